"""Scores of a prediction. All are means over the entries that a task asks for, on its standardised scale."""

from __future__ import annotations

import math

import numpy as np
import torch

from comparison.problem import Task
from pyro_gprn.metrics import Judged, mean_scores

#: With fewer outputs there is no tenth of them that varies most.
FEWEST_FOR_A_TENTH = 10


def most_varying(task: Task) -> np.ndarray:
    """Which outputs are the tenth with the largest variance over the training rows, ``(D,)``."""
    chosen = np.zeros(task.n_outputs, dtype=bool)
    if task.n_outputs >= FEWEST_FOR_A_TENTH:
        chosen[np.argsort(-task.spread)[: round(task.n_outputs / 10)]] = True
    return chosen


def score(judged: Judged, task: Task) -> dict[str, float]:
    """The scores of a prediction by their names: those of :func:`~pyro_gprn.metrics.mean_scores`, and further ones.

    ``mae_in_units`` is in the units of measurement, if there are any. ``coverage_top``, ``nlpd_top`` and ``rmse_top``
    are those of the tenth of outputs that vary most.
    """
    truth, asked = torch.from_numpy(task.truth), torch.from_numpy(task.is_scored)
    found = mean_scores(judged, truth, asked)
    top = asked & torch.from_numpy(most_varying(task))
    if top.any():
        of_top = mean_scores(judged, truth, top)
        found |= {f"{name}_top": of_top[name] for name in ("rmse", "nlpd", "coverage")}
    if task.to_units is not None:
        measured = [task.to_units(z * task.scale + task.centre) for z in (judged.mean.numpy(), task.truth)]
        found["mae_in_units"] = float(np.abs(measured[0] - measured[1])[task.is_scored].mean())
    if not all(math.isfinite(value) for value in found.values()):
        raise ValueError(f"scores must be finite; got {found}")
    return found
