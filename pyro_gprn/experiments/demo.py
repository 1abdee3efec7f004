"""``pyro-gprn demo``: an emulator of a field-valued simulation, from runs to a picture."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_gprn.collapsed import CollapsedGPRN
from pyro_gprn.datasets import simulate_plume
from pyro_gprn.metrics import coverage, nrmse
from pyro_gprn.predict import posterior_predictive
from pyro_gprn.training import fit_collapsed
from pyro_gprn.training.independent import independent_gps

N_TRAIN, N_TEST, N_LATENTS = 80, 20, 5


class DemoScores(NamedTuple):
    """What the demo prints: on held-out runs, of each way to predict."""

    mean_field: float  #: NRMSE of predicting the mean of the training runs
    independent: float  #: NRMSE of independent GPs with one shared kernel
    gprn: float  #: NRMSE of the GPRN
    coverage: float  #: of the GPRN's central 95 % intervals


def run_demo(figure: Path, *, steps: int = 400, seed: int = 0, progress: bool = True) -> DemoScores:
    """Fits a GPRN to simulated puffs, scores it on held-out runs and draws one of them.

    :param figure: where the figure goes.
    :param steps: how many training steps at most.
    :param seed: of the training.
    :param progress: whether to show a progress bar.
    """
    X, Y = simulate_plume(N_TRAIN + N_TEST)
    print(f"{N_TRAIN} runs of an advection-diffusion simulator: {X.shape[1]} inputs, {Y[0].numel()} outputs each")
    X = (X - X[:N_TRAIN].mean(0)) / X[:N_TRAIN].std(0)
    centre, scale = Y[:N_TRAIN].mean(0), Y[:N_TRAIN].std()
    Y = (Y - centre) / scale
    (X, X_new), (Y, truth) = X.split([N_TRAIN, N_TEST]), Y.split([N_TRAIN, N_TEST])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = CollapsedGPRN(X, Y.shape[1:], N_LATENTS, effective_outputs="auto")
        fit = fit_collapsed(model, Y, steps=steps, progress=progress)
        predictive = posterior_predictive(model, fit.guide, X_new)
        mean, draws = predictive.mean(), predictive.sample(256)
    scores = DemoScores(
        mean_field=nrmse(torch.zeros_like(truth), truth),
        independent=nrmse(posterior_predictive(*independent_gps(X, Y, Y.shape[1:]), X_new).mean(), truth),
        gprn=nrmse(mean, truth),
        coverage=coverage(draws, truth),
    )
    print(f"held-out runs                {N_TEST}")
    print(f"NRMSE, the mean field        {scores.mean_field:.4f}")
    print(f"NRMSE, independent GPs       {scores.independent:.4f}")
    print(f"NRMSE, GPRN                  {scores.gprn:.4f}")
    print(f"coverage of 95 % intervals   {scores.coverage:.3f}")
    deviation = predictive.variance().sqrt()
    _draw(figure, centre + scale * truth[0], centre + scale * mean[0], scale * deviation[0])
    print(f"figure                       {figure.resolve()}")
    return scores


def _draw(path: Path, truth: Tensor, mean: Tensor, deviation: Tensor) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("the figure needs matplotlib: pip install 'pyro-gprn[plot]'") from missing
    error = mean - truth
    largest = error.abs().max().item()
    low, high = truth.min().item(), truth.max().item()
    panels = [
        ("truth", truth, low, high, "viridis"),
        ("predicted mean", mean, low, high, "viridis"),
        ("standard deviation", deviation, 0.0, deviation.max().item(), "viridis"),
        ("error (mean − truth)", error, -largest, largest, "RdBu_r"),
    ]
    figure = Figure(figsize=(13, 3.2), layout="constrained")
    for axes, (title, field, lowest, highest, colours) in zip(figure.subplots(1, 4), panels, strict=True):
        picture = axes.imshow(
            field.T.numpy(), origin="lower", extent=(0, 1, 0, 1), vmin=lowest, vmax=highest, cmap=colours
        )
        figure.colorbar(picture, ax=axes, shrink=0.85)
        axes.set(title=title, xlabel="x", ylabel="y")
    figure.suptitle("concentration in a held-out run")
    figure.savefig(path, dpi=120)
