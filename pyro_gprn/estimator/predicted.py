"""Predictions in the model's units, brought to those of the data: of all outputs, or of a block of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.prediction import PosteriorPredictive


@dataclass(frozen=True)
class PredictedOutputs:
    """Predictions of D outputs at N* new inputs, flat, in the data's units.

    :param parts: predictions at some of the inputs, each with the numbers of these. They are used once.
    :param scaling: between the model's units and the data's.
    :param shape: ``(N*, D)``.
    :param dtype: the type in which they come.
    """

    parts: Iterable[tuple[PosteriorPredictive, slice]]
    scaling: Scaling
    shape: tuple[int, int]
    dtype: torch.dtype

    def mean(self, deviation: Tensor | None = None) -> Tensor:
        """The mean, ``(N*, D)``.

        :param deviation: if given, a tensor ``(N*, D)`` that is filled with the standard deviation, noise included.
        """
        mean = self.empty()
        for predictive, rows in self.parts:
            if deviation is None:
                predictive.mean(out=mean[rows])
            else:
                predictive.fill_mean_and_variance(mean[rows], deviation[rows])
        if deviation is not None:
            self.scaling.undo_spread(deviation.sqrt_())
        return self.scaling.undo(mean)

    def quantiles(self, probabilities: list[float]) -> Tensor:
        """Of each output with its noise, ``(p, N*, D)``."""
        result = torch.stack([self.empty() for _ in probabilities])
        for predictive, rows in self.parts:
            predictive.quantiles(probabilities, out=result[:, rows])
        return self.scaling.undo(result)

    def sample(self, n_draws: int) -> Tensor:
        """Draws of the outputs with noise, joint over inputs and outputs, ``(n_draws, N*, D)``."""
        ((predictive, _),) = self.parts
        return self.scaling.undo(predictive.sample(n_draws).flatten(2))

    def log_density(self, values: Tensor) -> Tensor:
        """``log p(y*_nd | data)`` of outputs ``(N*, D)`` in the data's units; NaN where they are NaN."""
        scaled, densities = self.scaling.outputs(values), []
        for predictive, rows in self.parts:
            of_rows = scaled[rows].reshape(-1, *predictive.output_shape)
            densities.append(predictive.log_density(of_rows).flatten(1))
        return torch.cat(densities) - self.scaling.y_scale.log()

    def empty(self) -> Tensor:
        """An empty tensor ``(N*, D)``."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.scaling.y_scale.device)
