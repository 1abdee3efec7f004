"""``pyro-gprn demo``: an emulator of a field-valued simulation, from runs to a picture."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyro
import torch
from torch import Tensor
from tqdm import trange

from pyro_gprn.datasets import simulate_plume
from pyro_gprn.elbo import ClosedFormELBO
from pyro_gprn.guides import KroneckerGuide
from pyro_gprn.metrics import coverage, nrmse
from pyro_gprn.model import GPRN
from pyro_gprn.predict import PosteriorPredictive, posterior_predictive

N_TRAIN, N_TEST, N_LATENTS = 80, 20, 5


class DemoScores(NamedTuple):
    """What the demo prints."""

    nrmse: float  #: of the GPRN's mean on held-out runs
    nrmse_of_mean_field: float  #: of predicting the mean of the training runs
    coverage: float  #: of the GPRN's central 95 % intervals


def run_demo(figure: Path, *, steps: int = 400, seed: int = 0, progress: bool = True) -> DemoScores:
    """Fits a GPRN to simulated puffs, scores it on held-out runs and draws one of them.

    :param figure: where the figure goes.
    :param steps: how many training steps.
    :param seed: of the training.
    :param progress: whether to show a progress bar.
    """
    X, Y = simulate_plume(N_TRAIN + N_TEST)
    print(f"{N_TRAIN} runs of an advection-diffusion simulator: {X.shape[1]} inputs, {Y[0].numel()} outputs each")
    X = (X - X[:N_TRAIN].mean(0)) / X[:N_TRAIN].std(0)
    centre, scale = Y[:N_TRAIN].mean(0), Y[:N_TRAIN].std()
    Y = (Y - centre) / scale
    predictive = _fit(X[:N_TRAIN], Y[:N_TRAIN], X[N_TRAIN:], steps=steps, seed=seed, progress=progress)
    truth, mean = Y[N_TRAIN:], predictive.mean()
    scores = DemoScores(
        nrmse=nrmse(mean, truth),
        nrmse_of_mean_field=nrmse(torch.zeros_like(truth), truth),
        coverage=coverage(predictive.sample(200), truth),
    )
    print(f"held-out runs                {N_TEST}")
    print(f"NRMSE, the mean field        {scores.nrmse_of_mean_field:.4f}")
    print(f"NRMSE, GPRN                  {scores.nrmse:.4f}")
    print(f"coverage of 95 % intervals   {scores.coverage:.3f}")
    deviation = predictive.variance().sqrt()
    _draw(figure, centre + scale * truth[0], centre + scale * mean[0], scale * deviation[0])
    print(f"figure                       {figure.resolve()}")
    return scores


def _fit(X: Tensor, Y: Tensor, X_new: Tensor, *, steps: int, seed: int, progress: bool) -> PosteriorPredictive:
    with pyro.settings.context(module_local_params=True), torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPRN(X, output_shape=Y.shape[1:], n_latents=N_LATENTS)
        guide = KroneckerGuide(model)
        loss = ClosedFormELBO()(model, guide)
        optimiser = torch.optim.Adam(loss.parameters(), lr=0.03)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        bar = trange(steps, desc="fit", disable=not progress)
        for step in bar:
            if step % 10 == 0:  # the mean of the weights in closed form, all the rest by gradient
                guide.update_mean(Y)
            optimiser.zero_grad()
            value = loss(Y)
            value.backward()
            optimiser.step()
            schedule.step()
            bar.set_postfix(bound=f"{-value.item():.4g}", refresh=False)
        guide.update_mean(Y)
        return posterior_predictive(model, guide, X_new)


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
