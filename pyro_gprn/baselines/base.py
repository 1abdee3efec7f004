"""What the other methods share with each other: ``fit``, and predictions that are Gaussian for each output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.distributions import Normal

from pyro_gprn.estimator.base import Estimator
from pyro_gprn.estimator.checks import check_shared_settings
from pyro_gprn.estimator.containers import Template
from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.prediction import Record
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.outputs.source import OutputSource
from pyro_gprn.pyro_state import new_generator

#: The least standard deviation of a prediction, in the model's units: an output that never varied has a density, too.
LEAST_DEVIATION = 1e-9

B = TypeVar("B", bound="Baseline")


class Baseline(Estimator, ABC):
    """A method to compare with, behind the interface of :class:`~pyro_gprn.GPRNRegressor`.

    A subclass checks its settings and makes the record of a fit; ``fit`` and all predictions are here and in
    :class:`~pyro_gprn.estimator.base.Estimator`.
    """

    def fit(self: B, X: Any, Y: Any) -> B:
        """Fits the method.

        :param X: inputs, ``(N, P)``.
        :param Y: outputs, ``(N,)`` or ``(N, d_1, …, d_M)``, or flat with ``output_shape`` given. They are referred to,
            not copied, and predictions may read them again: do not change them as long as you predict.
        """
        check_shared_settings(self)
        self._check_settings()
        self.fitted_ = self._fit(X, Y, self._train)
        self.output_shape_ = tuple(self.fitted_.outputs.shape[1:])
        return self

    def _check_settings(self) -> None:
        """Raises an error for the first setting of the method that is wrong."""

    @abstractmethod
    def _train(self, data: TrainingData, seed: int) -> Record:
        """The record of a fit to standardised data."""


def check_complete(data: TrainingData, name: str, *, with_all_outputs: bool = False) -> None:
    """Raises an error if outputs are missing, for a method that cannot do without.

    :param name: of the method.
    :param with_all_outputs: whether outputs that were never observed are missed as well.
    """
    if not data.known.is_complete or (with_all_outputs and data.present is not None):
        raise ValueError(
            f"{name} needs complete outputs, but Y holds NaN: IndependentGP, LMC and GPRNRegressor take missing outputs"
        )


@dataclass(frozen=True)
class GaussianRecord(ABC):
    """The record of a fit whose prediction of each output on its own is a Gaussian.

    A subclass supplies :meth:`moments` and :meth:`draw` in the model's units, those of standardised inputs and outputs.
    D counts the outputs that have an observation.

    :param data: the training data, standardised.
    """

    data: TrainingData
    is_gaussian: ClassVar[bool] = True  #: mean and standard deviation say all of an output on its own

    @abstractmethod
    def moments(self, X: Tensor, *, with_variance: bool) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Blocks of outputs, each with its mean and its variance with noise, ``(N*, b)`` or to be broadcast to that.

        :param X: new inputs, ``(N*, P)``.
        :param with_variance: False if variances are not looked at, and may be anything.
        """

    @abstractmethod
    def draw(self, X: Tensor, n_draws: int, generator: torch.Generator) -> Tensor:
        """Draws of the outputs with their noise, joint over inputs and outputs, ``(n_draws, N*, D)``."""

    @property
    def outputs(self) -> OutputSource:
        """Reads Y as it came, ``(N, d_1, …, d_M)``."""
        return self.data.outputs

    @property
    def scaling(self) -> Scaling:
        """Between the model's units and the data's."""
        return self.data.scaling

    @property
    def template(self) -> Template:
        """The kind, type, shape and names of Y."""
        return self.data.template

    def empty(self, X: Tensor) -> Tensor:
        """An empty tensor for predictions at new inputs ``(N*, P)``, ``(N*, D)``, in Y's type."""
        return torch.empty(len(X), self.data.known.source.n_outputs, dtype=self.outputs.dtype, device=X.device)

    @torch.no_grad()
    def mean(self, X: Tensor, deviation: Tensor | None = None) -> Tensor:
        """The mean, ``(N*, D)``; a ``deviation`` from :meth:`empty` is filled with the standard deviation."""
        mean = self.empty(X)
        for block, centre, variance in self.moments(X, with_variance=deviation is not None):
            mean[:, block] = centre.to(mean)
            if deviation is not None:
                deviation[:, block] = _deviation(variance).to(deviation)
        if deviation is not None:
            self.scaling.undo_spread(deviation)
        return self.scaling.undo(mean)

    @torch.no_grad()
    def quantiles(self, X: Tensor, probabilities: list[float]) -> Tensor:
        """Of each output with its noise, ``(p, N*, D)``."""
        result = torch.stack([self.empty(X) for _ in probabilities])
        for block, mean, variance in self.moments(X, with_variance=True):
            for place, probability in enumerate(probabilities):
                reach = torch.special.ndtri(mean.new_tensor(probability))
                result[place, :, block] = (mean + reach * _deviation(variance)).to(result)
        return self.scaling.undo(result)

    @torch.no_grad()
    def sample(self, X: Tensor, n_draws: int, seed: int | None) -> Tensor:
        """Draws with noise, joint over inputs and outputs, ``(n_draws, N*, D)``."""
        return self.scaling.undo(self.draw(X, n_draws, new_generator(seed)))

    @torch.no_grad()
    def log_density(self, X: Tensor, Y: Tensor) -> Tensor:
        """``log p(y*_nd | data)`` of flat outputs, those without observation among them; NaN where ``Y`` is."""
        present = self.data.present
        values = self.scaling.outputs(Y if present is None else Y[:, present])
        result = torch.empty_like(values)
        for block, mean, variance in self.moments(X, with_variance=True):
            result[:, block] = Normal(mean, _deviation(variance), validate_args=False).log_prob(values[:, block])
        return result - self.scaling.y_scale.log()


def _deviation(variance: Tensor) -> Tensor:
    return variance.clamp(min=LEAST_DEVIATION**2).sqrt()
