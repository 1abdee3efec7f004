"""A fitted method beside the truth, on a standardised scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_gprn.estimator.containers import read_outputs
from pyro_gprn.metrics import LEVEL, Judged, crps_of_draws, judge_gaussian

#: Draws from which the CRPS is estimated, at most and at least, and how many numbers are drawn at once. The estimate is
#: unbiased for any number of draws, and that of a large field is a mean over many outputs.
MOST_DRAWS, FEWEST_DRAWS, NUMBERS_AT_ONCE = 200, 20, 2**24
#: More predicted numbers than these are judged by their means and standard deviations alone, as Gaussians.
MOST_JUDGED_EXACTLY = 2**23


class Prediction:
    """What a fitted method predicts at test inputs. Mean and intervals are computed at once, the rest by :meth:`judge`.

    A method of this package is judged by its own density, intervals and draws, up to eight million numbers. Beyond, and
    where its predictions are Gaussian, it is judged by means and standard deviations, in closed form, as is another
    estimator whose ``predict`` has ``return_std``; any other by its mean alone.

    :param method: a fitted estimator.
    :param X: test inputs, ``(N*, P)``.
    :param centre: what is subtracted from outputs before they are judged, ``(D,)``.
    :param scale: what they are divided by then, ``()`` or ``(D,)``.

    >>> from pyro_gprn.baselines import TrainingMean
    >>> mean = TrainingMean().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
    >>> judged = Prediction(mean, [[3.0]], torch.ones(1), torch.ones(())).judge(torch.tensor([[2.0]]))
    >>> judged.mean, judged.upper
    (tensor([[0.]], dtype=torch.float64), tensor([[2.2632]], dtype=torch.float64))
    """

    def __init__(self, method: Any, X: Any, centre: Any, scale: Any) -> None:
        self._method, self._X = method, X
        self._centre, self._scale = (torch.as_tensor(each, dtype=torch.float64) for each in (centre, scale))
        self._deviation: Tensor | None = None
        self._interval: list[Tensor] = []
        if _says_more_than_a_gaussian(method) and len(X) * self._centre.numel() <= MOST_JUDGED_EXACTLY:
            self._mean = self._standardise(method.predict(X))
            tail = (1 - LEVEL) / 2
            self._interval = [self._standardise(each) for each in method.predict(X, quantiles=(tail, 1 - tail))]
            return
        try:
            mean, deviation = method.predict(X, return_std=True)
            self._deviation = read_outputs(deviation).double().reshape(len(deviation), -1) / self._scale
        except TypeError:  # it has no such argument
            mean = method.predict(X)
        self._mean = self._standardise(mean)

    def _standardise(self, outputs: Any, n_axes: int = 1) -> Tensor:
        flat = read_outputs(outputs).double()
        return (flat.reshape(*flat.shape[:n_axes], -1) - self._centre) / self._scale

    def judge(self, truth: Any) -> Judged:
        """The prediction beside the truth.

        :param truth: the outputs at the test inputs, flat and standardised, ``(N*, D)``, NaN where missing.
        """
        truth = torch.as_tensor(truth, dtype=torch.float64)
        if self._interval:
            # log p of the numbers as they were, brought to the standardised scale
            outputs = self._as_they_were(truth)
            density = read_outputs(self._method.log_predictive_density(self._X, outputs)).double()
            density = density.reshape(truth.shape) + self._scale.log()
            return Judged(self._mean, density, self._crps(truth), *self._interval)
        if self._deviation is not None:
            return judge_gaussian(self._mean, self._deviation, truth)
        unknown = torch.full_like(self._mean, torch.nan)
        return Judged(self._mean, unknown, unknown, unknown, unknown)

    def _as_they_were(self, truth: Tensor) -> Tensor:
        shape = self._method.fitted_.template.shape
        return (truth * self._scale + self._centre).reshape(len(truth), *shape)

    def _crps(self, truth: Tensor) -> Tensor:
        n_outputs = truth.shape[1]
        n_draws = max(FEWEST_DRAWS, min(MOST_DRAWS, NUMBERS_AT_ONCE // n_outputs))
        at_once = max(1, NUMBERS_AT_ONCE // (n_draws * n_outputs))
        return torch.cat(
            [
                crps_of_draws(self._standardise(self._method.sample(self._X[rows], n_draws), 2), truth[rows])
                for rows in (slice(start, start + at_once) for start in range(0, len(truth), at_once))
            ]
        )


def _says_more_than_a_gaussian(method: Any) -> bool:
    """True of a method of this package whose predictions are not Gaussian for each output on its own."""
    return hasattr(method, "log_predictive_density") and not getattr(method.fitted_, "is_gaussian", False)
