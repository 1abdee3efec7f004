"""The mean of the training outputs: what every method must beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.baselines.base import Baseline, GaussianRecord
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.scaling import Standardize
from pyro_gprn.pyro_state import white_noise


class TrainingMean(Baseline):
    """Predicts for every input the mean of each output over the training rows: what every method must beat.

    An output is taken for Gaussian with the variance that it had over the n training rows in which it was observed,
    and ``1/n`` of that for its mean. NaN in Y is a missing output.

    :param output_shape: ``(d_1, …, d_M)`` of a field whose outputs come flat, ``(N, D)``; by default the shape of Y.
    :param standardize: as for :class:`~pyro_gprn.GPRNRegressor`; it changes nothing here but rounding.
    :param seed: seed of :meth:`sample`; None gives other draws at every call.
    :param device: torch's device; by default the CPU.

    >>> import numpy as np
    >>> mean_of_two = TrainingMean().fit([[0.0], [1.0]], np.array([[1.0, 5.0], [3.0, 9.0]]))
    >>> mean, std = mean_of_two.predict([[7.0]], return_std=True)
    >>> mean, std.round(4)
    (array([[2., 7.]]), array([[1.7321, 3.4641]]))
    """

    def __init__(
        self,
        *,
        output_shape: int | Sequence[int] | None = None,
        standardize: Standardize = True,
        seed: int | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.output_shape = output_shape
        self.standardize = standardize
        self.seed = seed
        self.device = device

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def _train(self, data: TrainingData, seed: int) -> GaussianRecord:
        parts = [_moments(block.double()) for _, block in data.known.source.chunks()]
        mean, variance = (torch.cat(values) for values in zip(*parts, strict=True))
        is_known = ~variance.isnan()  # an output that was observed once is taken for one like the others
        usual = variance[is_known].mean() if is_known.any() else variance.new_tensor(1.0)
        return _Constant(data, mean, torch.where(is_known, variance, usual))


def _moments(block: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of new numbers of some outputs, ``(b,)`` each, from a block ``(N, b)`` of known ones."""
    counts = (~block.isnan()).sum(0)
    mean = block.nansum(0) / counts
    return mean, (block - mean).square().nansum(0) / (counts - 1) * (1 + 1 / counts)  # 0 / 0 is NaN for one number


@dataclass(frozen=True)
class _Constant(GaussianRecord):
    """The same Gaussian at all inputs.

    :param average: of each output, ``(D,)``.
    :param variance: of each output, ``(D,)``.
    """

    average: Tensor
    variance: Tensor

    def moments(self, X: Tensor, *, with_variance: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        yield slice(None), self.average, self.variance

    def draw(self, X: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
        noise = white_noise(n_draws, len(X), len(self.average), like=self.average, generator=generator)
        return noise.mul_(self.variance.sqrt()).add_(self.average)
