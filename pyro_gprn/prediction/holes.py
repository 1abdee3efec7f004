"""Predictions in which missing numbers of training rows are known better than new numbers at the same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_gprn.network.base import Network
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.prediction.base import Components, PosteriorPredictive, check_probabilities
from pyro_gprn.prediction.conditional import same_rows
from pyro_gprn.prediction.scales import LEAST_DEGREES, StudentMixture


@dataclass(frozen=True)
class FilledHoles:
    """What is known of h missing numbers: a mixture of Student-t distributions for each.

    :param rows: their training rows, ``(h,)``.
    :param outputs: their positions among the flattened outputs, ``(h,)``.
    :param mixture: of s components, each ``(s, h)``.
    :param draw: takes the number of a component, a number n, and a generator: n draws from that component, joint over
        the missing numbers, ``(n, h)``.
    """

    rows: Tensor
    outputs: Tensor
    mixture: StudentMixture
    draw: Callable[[int, int, torch.Generator | None], Tensor]

    @property
    def n_components(self) -> int:
        """``s``."""
        return len(self.mixture.location)

    def mean(self) -> Tensor:
        """``(h,)``."""
        return self.mixture.location.mean(0)

    def variance(self) -> Tensor:
        """``(h,)``; below three degrees of freedom it is taken at three, as for the scales of outputs."""
        degrees = self.mixture.degrees.clamp(min=LEAST_DEGREES)
        within = self.mixture.scale.square() / (1.0 - 2.0 / degrees)
        return within.mean(0) + self.mixture.location.var(0, correction=0)

    def log_density(self, y: Tensor) -> Tensor:
        """``(h,)``."""
        return self.mixture.log_density_by_component(y).logsumexp(0) - math.log(self.n_components)

    def sample(self, n_draws: int, generator: torch.Generator | None) -> Tensor:
        """Draws, joint over the numbers, ``(n_draws, h)``: from each component as many as from the others."""
        result = self.mixture.location.new_empty(n_draws, len(self.rows))
        for component in range(min(n_draws, self.n_components)):
            some = result[component :: self.n_components]
            some[:] = self.draw(component, len(some), generator)
        return result

    def at(self, numbers: Tensor) -> FilledHoles:
        """Some of the missing numbers, ``(k,)``; one may be named several times."""
        location, scale = (each[:, numbers] for each in (self.mixture.location, self.mixture.scale))
        return FilledHoles(
            self.rows[numbers],
            self.outputs[numbers],
            StudentMixture(location, scale, self.mixture.degrees),
            lambda component, n, generator: self.draw(component, n, generator)[:, numbers],
        )

    def widened(self, factor: float) -> FilledHoles:
        """With all deviations from the mean multiplied by a factor."""
        centre = self.mean()
        location = centre + factor * (self.mixture.location - centre)
        mixture = replace(self.mixture, location=location, scale=factor * self.mixture.scale)

        def draw(component: int, n: int, generator: torch.Generator | None) -> Tensor:
            return centre + factor * (self.draw(component, n, generator) - centre)

        return replace(self, mixture=mixture, draw=draw)


def hole_rows(X: Tensor, X_new: Tensor) -> Tensor:
    """For each new input the training row that it is, ``(N*,)``; −1 if it is none, or several rows have that input.

    >>> hole_rows(torch.tensor([[1.0], [2.0], [2.0]]), torch.tensor([[2.0], [1.0], [0.0]]))
    tensor([-1,  0, -1])
    """
    is_same = same_rows(X, X_new)
    return torch.where(is_same.sum(0) == 1, is_same.byte().argmax(0), -1)


class FilledPredictive(PosteriorPredictive):
    """Predictions at inputs some of which are training rows with holes.

    A missing number of such a row is a number that was not written down: it is predicted as such, its noise included
    (so that ``noise`` makes no difference to it), from all that is known of the row. All other numbers are those of
    ``predictive``. In draws the missing numbers vary together, but not with the other numbers.

    :param model: the model.
    :param predictive: predictions at the same inputs.
    :param holes: the missing numbers.
    :param generator: of random numbers; None is torch's global state.
    """

    def __init__(
        self,
        model: Network,
        predictive: PosteriorPredictive,
        holes: FilledHoles,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, predictive.X_new, generator)
        self._predictive = predictive
        rows = hole_rows(model.X, self.X_new)
        self._places, numbers = (rows.unsqueeze(1) == holes.rows).nonzero().unbind(1)
        self._holes = holes.at(numbers)  # (k,), with the new inputs that they are at

    def mean(self, outputs: Outputs = None, *, out: Tensor | None = None) -> Tensor:
        return self._put(self._predictive.mean(outputs, out=out), outputs, self._holes.mean())

    def variance(self, outputs: Outputs = None, *, noise: bool = True, out: Tensor | None = None) -> Tensor:
        found = self._predictive.variance(outputs, noise=noise, out=out)
        return self._put(found, outputs, self._holes.variance())

    def fill_mean_and_variance(self, mean: Tensor, variance: Tensor) -> None:
        self._predictive.fill_mean_and_variance(mean, variance)
        self._put(mean, None, self._holes.mean())
        self._put(variance, None, self._holes.variance())

    @torch.no_grad()
    def sample(self, n_draws: int, outputs: Outputs = None, *, noise: bool = True) -> Tensor:
        found = self._predictive.sample(n_draws, outputs, noise=noise)
        return self._put(found, outputs, self._holes.sample(n_draws, self._generator))

    @torch.no_grad()
    def log_density(self, Y_new: Tensor, outputs: Outputs = None, *, n_draws: int | None = None) -> Tensor:
        found = self._predictive.log_density(Y_new, outputs, n_draws=n_draws)
        return self._put(found, outputs, self._holes.log_density(self._values_at(Y_new, outputs)))

    @torch.no_grad()
    def cdf(self, Y_new: Tensor, outputs: Outputs = None) -> Tensor:
        found = self._predictive.cdf(Y_new, outputs)
        return self._put(found, outputs, self._holes.mixture.cdf(self._values_at(Y_new, outputs)))

    @torch.no_grad()
    def quantiles(
        self,
        probabilities: Sequence[float],
        outputs: Outputs = None,
        *,
        n_draws: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        wanted = check_probabilities(probabilities)
        found = self._predictive.quantiles(wanted, outputs, n_draws=n_draws, out=out)
        return self._put(found, outputs, torch.stack([self._holes.mixture.quantile(each) for each in wanted]))

    def _put(self, found: Tensor, outputs: Outputs, values: Tensor) -> Tensor:
        """Writes values ``(…, k)`` of the missing numbers into predictions ``(…, N*, …)`` of some outputs."""
        flat, places, numbers = self._chosen(found, outputs, values.dim() - 1)
        flat[..., self._places[numbers], places] = values[..., numbers].to(flat)
        return found

    def _values_at(self, Y_new: Tensor, outputs: Outputs) -> Tensor:
        """The values of the missing numbers in ``Y_new``, ``(N*, …)``: ``(k,)``, NaN for those of other outputs."""
        flat, places, numbers = self._chosen(Y_new, outputs, 0)
        values = self._holes.mean() * torch.nan
        values[numbers] = flat[self._places[numbers], places].to(values)
        return values

    def _chosen(self, values: Tensor, outputs: Outputs, n_before: int) -> tuple[Tensor, Tensor, Tensor]:
        """Values of outputs, flat, ``(…, N*, size)``; where missing numbers lie among these; and which they are."""
        chosen = OutputSelection(outputs, self.output_shape)
        flat = values.view(*values.shape[: n_before + 1], chosen.size)
        positions = chosen.all_positions().to(self._places.device)
        places, numbers = (positions.unsqueeze(1) == self._holes.outputs).nonzero().unbind(1)
        return flat, places, numbers

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._predictive._mean(chosen, block)

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._predictive._variance(chosen, block)

    def _noise(self, chosen: OutputSelection) -> Tensor:
        return self._predictive._noise(chosen)

    def _components(self, n_draws: int | None, joint: bool) -> Components:
        return self._predictive._components(n_draws, joint)

    def _numbers_per_output(self) -> tuple[int, int]:
        return self._predictive._numbers_per_output()
