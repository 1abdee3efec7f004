"""``pyro-gprn demo``: an emulator of a field-valued simulation, from runs to a picture."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_gprn.baselines import independent_gps
from pyro_gprn.datasets import simulate_plume
from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.metrics import coverage, nrmse
from pyro_gprn.plots import plot_field
from pyro_gprn.prediction import posterior_predictive

N_TRAIN, N_TEST, N_LATENTS = 80, 20, 5
#: The puff is where the concentration is at least this share of the run's highest.
IN_PUFF = 0.1


class DemoScores(NamedTuple):
    """The scores on held-out runs that the demo prints."""

    mean_field: float  #: NRMSE if the mean of the training runs is predicted
    independent: float  #: NRMSE of independent GPs with one shared kernel
    gprn: float  #: NRMSE of the GPRN
    coverage: float  #: share of outputs inside the GPRN's central 95 % intervals
    coverage_in_puff: float  #: the same where the true concentration is at least a tenth of the run's highest


def run_demo(figure: Path, *, steps: int | None = None, seed: int = 0, progress: bool = True) -> DemoScores:
    """Fits a GPRN to simulated puffs, scores it on held-out runs and draws one of them.

    :param figure: the file for the figure.
    :param steps: at most this many training steps; None is the default of the regressor.
    :param seed: seed of the training and of the draws.
    :param progress: whether to show a progress bar.
    """
    X, Y = simulate_plume(N_TRAIN + N_TEST)
    print(f"{N_TRAIN} runs of an advection-diffusion simulator: {X.shape[1]} inputs, {Y[0].numel()} outputs each")
    (X, X_new), (Y, truth) = X.split([N_TRAIN, N_TEST]), Y.split([N_TRAIN, N_TEST])
    regressor = GPRNRegressor(N_LATENTS, steps=steps, seed=seed, progress=progress).fit(X, Y)
    mean, deviation = regressor.predict(X_new, return_std=True)
    draws = regressor.sample(X_new, 256, seed=seed)
    in_puff = truth >= IN_PUFF * truth.amax((1, 2), keepdim=True)
    centre = Y.mean(0)
    scores = DemoScores(  # errors relative to the spread about the mean field
        mean_field=nrmse(torch.zeros_like(truth), truth - centre),
        independent=nrmse(_independent_gps(X, Y - centre, X_new), truth - centre),
        gprn=nrmse(mean - centre, truth - centre),
        coverage=coverage(draws, truth),
        coverage_in_puff=coverage(draws[:, in_puff], truth[in_puff]),
    )
    print(f"held-out runs                {N_TEST}")
    print(f"NRMSE, the mean field        {scores.mean_field:.4f}")
    print(f"NRMSE, independent GPs       {scores.independent:.4f}")
    print(f"NRMSE, GPRN                  {scores.gprn:.4f}")
    print(f"coverage of 95 % intervals   {scores.coverage:.3f}")
    print(f"coverage where the puff is   {scores.coverage_in_puff:.3f}")
    panels = plot_field(
        mean[0].T, deviation[0].T, truth[0].T, labels=("y", "x"), title="concentration in a held-out run"
    )
    panels[0].figure.savefig(figure, dpi=120)
    print(f"figure                       {figure.resolve()}")
    return scores


def _independent_gps(X: Tensor, Y: Tensor, X_new: Tensor) -> Tensor:
    """Predictions of independent GPs with one shared kernel, the baseline."""
    centre, scale = X.mean(0), X.std(0)
    model, draws = independent_gps((X - centre) / scale, Y, Y.shape[1:])
    return posterior_predictive(model, draws, (X_new - centre) / scale).mean()
