"""The paper's Figure 2: errors of many methods on many outputs, against the number of latent functions."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from pyro_gprn.experiments.reproduction.experiment import (
    Block,
    Experiment,
    Results,
    by_setting,
    failures,
    markdown,
    mean_and_deviation,
    with_deviation,
)
from pyro_gprn.experiments.reproduction.measure import Accuracy
from pyro_gprn.experiments.reproduction.methods import OURS

NAMES = (
    "kronecker",
    "collapsed",
    "PCA-GP",
    "KPCA-GP",
    "IsoMap-GP",
    "HOGP",
    "LMC",
    "IndependentGP",
    "TrainingMean",
    OURS,
)
WITHOUT_HOGP = tuple(name for name in NAMES if name != "HOGP")
LATENTS = (2, 5, 15, 50)
SCORES = ("nrmse", "nlpd", "crps", "coverage")


def report(results: Results) -> str:
    """A table for each data set and training size, as Markdown.

    >>> from pyro_gprn.experiments.reproduction.cell import Cell
    >>> scores = {"nrmse": 0.2, "nlpd": -1.0, "crps": 0.1, "coverage": 0.95}
    >>> print(report({Cell("pressure", 64, "PCA-GP", 2, 0): {"scores": scores, "cpu_seconds": 3.0, "peak_mib": 900.0}}))
    **pressure, 64 training rows**
    <BLANKLINE>
    | method | K | repeats | NRMSE | NLPD | CRPS | coverage | CPU seconds | MiB |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | PCA-GP | 2 | 1 | 0.2 | -1 | 0.1 | 0.95 | 3 | 900 |
    """
    rows: dict[tuple[str, int], list[list[str]]] = {}
    for (data, n_train, method, n_latents), repeats in by_setting(results).items():
        first, *others = ([repeat["scores"][name] for repeat in repeats] for name in SCORES)
        others.append([repeat["cpu_seconds"] for repeat in repeats])
        peak = max(repeat["peak_mib"] or float("nan") for repeat in repeats)
        shown = [with_deviation(first), *(f"{fmean(values):.3g}" for values in others), f"{peak:.0f}"]
        latents = "" if n_latents is None else str(n_latents)
        rows.setdefault((data, n_train), []).append([method, latents, str(len(repeats)), *shown])
    header = ["method", "K", "repeats", "NRMSE", "NLPD", "CRPS", "coverage", "CPU seconds", "MiB"]
    parts = [
        f"**{data}, {n_train} training rows**\n\n{markdown(header, each)}" for (data, n_train), each in rows.items()
    ]
    return "\n\n".join(filter(None, [*parts, failures(results)]))


def plot(results: Results, path: Path) -> None:
    """Draws NRMSE against K, a panel for each data set and training size; a method without K is a level line."""
    from matplotlib.figure import Figure

    curves: dict[tuple[str, int], dict[str, dict[int | None, tuple[float, float]]]] = {}
    for (data, n_train, method, n_latents), repeats in by_setting(results).items():
        found = mean_and_deviation(repeat["scores"]["nrmse"] for repeat in repeats)
        curves.setdefault((data, n_train), {}).setdefault(method, {})[n_latents] = found
    figure = Figure(figsize=(1 + 3.5 * len(curves), 3.6), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, ((data, n_train), methods) in zip(panels, curves.items(), strict=True):
        for method, by_latents in methods.items():
            style = {"color": f"C{NAMES.index(method)}", "label": method}
            if None in by_latents:
                axes.axhline(by_latents[None][0], linestyle="--", **style)
            else:
                latents = sorted(k for k in by_latents if k is not None)
                means, deviations = zip(*(by_latents[k] for k in latents), strict=True)
                axes.errorbar(latents, means, deviations, marker="o", capsize=2, **style)
        axes.set(xscale="log", xlabel="K", ylabel="NRMSE", title=f"{data}, {n_train} training rows")
        shown = sorted({k for by_latents in methods.values() for k in by_latents if k is not None})
        axes.set_xticks(shown, [str(k) for k in shown])
        axes.minorticks_off()
    lines = {name: line for axes in panels for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines.keys(), loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=120)


FIGURE_2 = Experiment(
    blocks=(
        Block("cantilever", 128, NAMES, LATENTS),
        Block("cantilever", 256, NAMES, LATENTS),
        Block("gene expression", 128, NAMES, LATENTS),
        Block("gene expression", 178, NAMES, LATENTS),  # all that PRECISE has beside 100 test samples
        Block("pressure", 64, WITHOUT_HOGP, (2, 5, 10)),  # the paper, too, leaves HOGP out
    ),
    quick_blocks=(
        Block("cantilever", 12, NAMES, (2,)),
        Block("pressure", 12, WITHOUT_HOGP, (2,)),
    ),
    measurement=Accuracy,
    repeats=5,
    report=report,
    plot=plot,
)
