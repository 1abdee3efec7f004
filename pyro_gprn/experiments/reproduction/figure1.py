"""The paper's Figure 1: seconds an iteration against the number of latent functions."""

from __future__ import annotations

from pathlib import Path

from pyro_gprn.experiments.reproduction.experiment import (
    Block,
    Experiment,
    Results,
    by_setting,
    failures,
    markdown,
    mean_and_deviation,
)
from pyro_gprn.experiments.reproduction.measure import Speed

NAMES = ("kronecker", "mean-field", "mixture", "collapsed")
LATENTS = (2, 5, 15, 50)
#: Steps that count as an iteration: the paper trains SGPRN for 2,000 epochs and the others for 100 iterations, and
#: compares 20 epochs of the one with an iteration of the others.
STEPS_AN_ITERATION = {"kronecker": 20}


def seconds_an_iteration(results: Results) -> dict[tuple[str, str], dict[int, float]]:
    """By data set and method, the mean seconds of an iteration for each K."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for (data, _, method, n_latents), repeats in by_setting(results).items():
        seconds, _ = mean_and_deviation(repeat["seconds_a_step"] for repeat in repeats)
        if n_latents is not None:
            found.setdefault((data, method), {})[n_latents] = STEPS_AN_ITERATION.get(method, 1) * seconds
    return found


def report(results: Results) -> str:
    """The seconds as Markdown.

    >>> from pyro_gprn.experiments.reproduction.cell import Cell
    >>> print(report({Cell("jura", 249, "kronecker", 2, 0): {"seconds_a_step": 0.01}}))
    Seconds an iteration (kronecker: 20 steps, as the paper counts; otherwise one step)
    <BLANKLINE>
    | data | method | K = 2 | K = 5 | K = 15 | K = 50 |
    | --- | --- | --- | --- | --- | --- |
    | jura | kronecker | 0.2 | | | |
    """
    rows = [
        [data, method, *(f"{seconds[k]:.3g}" if k in seconds else "" for k in LATENTS)]
        for (data, method), seconds in seconds_an_iteration(results).items()
    ]
    title = "Seconds an iteration (kronecker: 20 steps, as the paper counts; otherwise one step)"
    table = markdown(["data", "method", *(f"K = {k}" for k in LATENTS)], rows)
    return "\n\n".join(filter(None, [title, table, failures(results)]))


def plot(results: Results, path: Path) -> None:
    """Draws a panel for each data set."""
    from matplotlib.figure import Figure

    curves = seconds_an_iteration(results)
    sets = list(dict.fromkeys(data for data, _ in curves))
    figure = Figure(figsize=(1 + 3.5 * len(sets), 3.2), layout="constrained")
    for axes, data in zip(figure.subplots(1, len(sets), squeeze=False)[0], sets, strict=True):
        for method in NAMES:
            if (data, method) in curves:
                latents, seconds = zip(*sorted(curves[data, method].items()), strict=True)
                axes.plot(latents, seconds, marker="o", label=method)
        axes.set(xscale="log", yscale="log", xlabel="latent functions K", ylabel="seconds an iteration", title=data)
        axes.set_xticks(LATENTS, [str(k) for k in LATENTS])
        axes.minorticks_off()
    figure.axes[-1].legend()
    figure.savefig(path, dpi=120)


FIGURE_1 = Experiment(
    blocks=tuple(Block(data, n, NAMES, LATENTS) for data, n in (("jura", 249), ("equity", 200), ("pm25", 256))),
    quick_blocks=(Block("jura", 12, NAMES, (2, 5)),),
    measurement=Speed,
    repeats=3,
    report=report,
    plot=plot,
)
