"""Scores of a prediction. All are means over the entries that a task asks for, on its standardised scale."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from comparison.problem import Task

#: The probability that an interval should hold.
LEVEL = 0.95
#: With fewer outputs there is no tenth of them that varies most.
FEWEST_FOR_A_TENTH = 10


class Judged(NamedTuple):
    """A prediction of standardised outputs beside the truth, each ``(N*, D)``."""

    mean: np.ndarray
    log_density: np.ndarray  #: of the truth
    crps: np.ndarray  #: continuous ranked probability score
    lower: np.ndarray  #: the lower end of the central 95 % interval
    upper: np.ndarray  #: its upper end


def judge_gaussian(mean: np.ndarray, deviation: np.ndarray, truth: np.ndarray) -> Judged:
    """Independent Gaussians, in closed form.

    :param mean: ``(N*, D)``.
    :param deviation: standard deviations, which broadcast to that.
    :param truth: ``(N*, D)``.
    """
    deviation = np.broadcast_to(np.maximum(deviation, 1e-9), mean.shape)
    z = (truth - mean) / deviation
    crps = deviation * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    reach = norm.ppf(0.5 + LEVEL / 2) * deviation
    return Judged(mean, norm.logpdf(z) - np.log(deviation), crps, mean - reach, mean + reach)


def crps_of_draws(draws: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The unbiased estimate of the CRPS from draws ``(n, …)``: ``E|x − y| − ½ E|x − x'|`` over different draws."""
    n = len(draws)
    ordered = np.sort(draws, axis=0)
    # Σ_{i<j} (x_(j) − x_(i)) = Σ_i (2 i − n + 1) x_(i), with i from 0
    weights = 2 * np.arange(n) - n + 1
    between = np.tensordot(weights, ordered, axes=1) / (n * (n - 1))
    return np.abs(draws - truth).mean(0) - between


def most_varying(task: Task) -> np.ndarray:
    """Which outputs are the tenth with the largest variance over the training rows, ``(D,)``."""
    chosen = np.zeros(task.n_outputs, dtype=bool)
    if task.n_outputs >= FEWEST_FOR_A_TENTH:
        chosen[np.argsort(-task.spread)[: round(task.n_outputs / 10)]] = True
    return chosen


def score(judged: Judged, task: Task) -> dict[str, float]:
    """The scores of a prediction by their names.

    ``rmse`` is divided by the root-mean-square deviation of the truth from the training mean ("scaled RMSE"); ``mae``
    likewise by nothing but the standardisation; ``mae_in_units`` is in the units of measurement, if there are any.
    ``nlpd`` is the mean negative log density of the standardised numbers. ``coverage`` is the share of the truth in
    central 95 % intervals, ``coverage_top`` the same in the tenth of outputs that vary most, ``nlpd_top`` and
    ``rmse_top`` their density and scaled error.
    """
    asked, top = task.is_scored, task.is_scored & most_varying(task)
    error = judged.mean - task.truth
    is_inside = (judged.lower <= task.truth) & (task.truth <= judged.upper)

    def root_mean_square(array: np.ndarray) -> float:
        return float(np.sqrt(np.mean(array**2)))

    found = {
        "rmse": root_mean_square(error[asked]) / root_mean_square(task.truth[asked]),
        "mae": float(np.abs(error[asked]).mean()),
        "nlpd": float(-judged.log_density[asked].mean()),
        "crps": float(judged.crps[asked].mean()),
        "coverage": float(is_inside[asked].mean()),
    }
    if top.any():
        found |= {
            "rmse_top": root_mean_square(error[top]) / root_mean_square(task.truth[top]),
            "nlpd_top": float(-judged.log_density[top].mean()),
            "coverage_top": float(is_inside[top].mean()),
        }
    if task.to_units is not None:
        measured = [task.to_units(z * task.scale + task.centre) for z in (judged.mean, task.truth)]
        found["mae_in_units"] = float(np.abs(measured[0] - measured[1])[asked].mean())
    if not all(math.isfinite(value) for value in found.values()):
        raise ValueError(f"scores must be finite; got {found}")
    return found
