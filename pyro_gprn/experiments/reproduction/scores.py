"""Scores of a fitted estimator on test rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_gprn.metrics import gaussian_crps, nrmse

#: The probability of the central intervals whose coverage is measured.
LEVEL = 0.95
#: At most this many numbers are predicted at once.
NUMBERS_AT_ONCE = 2**24
#: Up to this many outputs have errors of their own beside the mean.
FEW_OUTPUTS = 25


def score(estimator: Any, X: Tensor, truth: Tensor, scale: Tensor) -> dict[str, Any]:
    """Scores of predictions, over all test outputs that are known.

    - ``mae``: mean absolute error in the data's units;
    - ``mae_standardised``: the same after division by the scale;
    - ``mae_of_outputs``: of up to 25 outputs, the mean absolute error of each, in the data's units;
    - ``nrmse``: root-mean-square error divided by the standard deviation of all the test outputs;
    - ``nlpd``: mean negative log density of the outputs after division by the scale;
    - ``crps``: mean continuous ranked probability score after division by the scale, of the Gaussian with the
      predictive mean and standard deviation;
    - ``coverage``: the share of the outputs inside central 95 % intervals.

    :param estimator: a fitted :class:`~pyro_gprn.GPRNRegressor`, or another with its interface.
    :param X: test inputs, ``(N*, P)``.
    :param truth: test outputs, ``(N*, d_1, …, d_M)``, NaN where unknown.
    :param scale: the scale of each output, ``(d_1, …, d_M)``, or of all, ``()``.

    >>> from pyro_gprn import GPRNRegressor
    >>> X = torch.linspace(0, 1, 20)[:, None]
    >>> Y = torch.sin(6 * X + torch.arange(3.0))
    >>> estimator = GPRNRegressor(1, steps=3, selection=False, seed=0, progress=False).fit(X, Y)
    >>> found = score(estimator, X + 0.02, torch.sin(6 * (X + 0.02) + torch.arange(3.0)), torch.tensor(0.5))
    >>> round(found["mae_standardised"] / found["mae"], 3), found["nrmse"] < 0.1, len(found["mae_of_outputs"])
    (2.0, True, 3)
    """
    at_once = max(1, NUMBERS_AT_ONCE // truth[0].numel())
    parts = [_judge(estimator, *rows) for rows in zip(X.split(at_once), truth.split(at_once), strict=True)]
    error, crps, log_density, is_inside = (torch.cat(each) for each in zip(*parts, strict=True))
    known, standardised = ~truth.isnan(), error.abs() / scale
    found: dict[str, Any] = {
        "mae": error[known].abs().mean().item(),
        "mae_standardised": standardised[known].mean().item(),
        "nrmse": nrmse((truth + error)[known], truth[known]),
        "nlpd": -(log_density + scale.log())[known].mean().item(),
        "crps": (crps / scale)[known].mean().item(),
        "coverage": is_inside[known].double().mean().item(),
    }
    if truth[0].numel() <= FEW_OUTPUTS:
        found["mae_of_outputs"] = error.abs().nanmean(0).flatten().tolist()
    return found


def _judge(estimator: Any, X: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each output of some rows its error, CRPS, log density, and whether it is inside its interval."""
    mean, deviation = estimator.predict(X, return_std=True)
    lower, upper = estimator.predict(X, quantiles=((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    log_density = estimator.log_predictive_density(X, truth)
    return mean - truth, gaussian_crps(mean, deviation, truth), log_density, (lower <= truth) & (truth <= upper)
