"""Predictions of a collapsed network where nearly every output has holes of its own.

Given a draw, new outputs are the combinations ``c ỹ`` of outputs whose holes are filled (scattered.py), with the
coefficients ``c`` of complete outputs. That the holes are not known adds ``c_m P_mm⁻¹ c_mᵀ`` to the covariance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.collapsed.conditioned import ConditionedDraws
from pyro_gprn.collapsed.draws import Posterior
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.output_scales import ScaleRule
from pyro_gprn.collapsed.prediction import (
    ChosenComponents,
    CollapsedPredictive,
    Draws,
    OutputMixture,
    Wanted,
)
from pyro_gprn.collapsed.scattered import HolesGivenF
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.holes import holes_of
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.scales import OutputScales, variance_factors
from pyro_gprn.pyro_state import white_noise

#: About how many numbers an array over draws, outputs, holes and new rows may hold.
_MOST_NUMBERS = 2**20


class FilledOutputs:
    """Combinations of training outputs whose holes are filled, for ``s`` draws.

    :param coefficients: of complete outputs, ``(s, N*, N)``.
    :param precision: ``P = C_F⁻¹`` of all rows, ``(s, N, N)``.
    :param known: statistics of the training outputs.
    """

    def __init__(self, coefficients: Tensor, precision: Tensor, known: OutputStatistics) -> None:
        self._coefficients, self._precision, self._known = coefficients, precision, known

    def mean(self, positions: slice | Tensor) -> Tensor:
        """``c ỹ_d`` of some outputs, ``(s, N*, b)``."""
        values = self._known.values_at(positions)
        result = self._empty(values.shape[1])
        for given in self._holes(positions):
            members = given.holes.members
            result[..., members] = self._coefficients @ given.fill(values[:, members].mT).mT
        return result

    def mean_and_variance(self, positions: slice | Tensor) -> tuple[Tensor, Tensor]:
        """``c ỹ_d`` and the diagonal of ``c_m P_mm⁻¹ c_mᵀ`` of some outputs, ``(s, N*, b)`` each."""
        values = self._known.values_at(positions)
        mean, variance = self._empty(values.shape[1]), self._empty(values.shape[1])
        for given in self._holes(positions):
            members = given.holes.members
            mean[..., members] = self._coefficients @ given.fill(values[:, members].mT).mT
            variance[..., members] = given.half(self._coefficients.mT).square().sum(-2).mT
        return mean, variance

    def deviation_by_holes(self, positions: slice | Tensor, generator: torch.Generator | None) -> Tensor:
        """One draw from ``Normal(0, c_m P_mm⁻¹ c_mᵀ)`` for each of some outputs, ``(s, N*, b)``."""
        result = self._empty(len(self._known.patterns_at(positions)))
        for given in self._holes(positions):
            shape = (len(self._coefficients), *given.holes.rows.shape)
            white = white_noise(*shape, like=self._coefficients, generator=generator)
            half = given.half(self._coefficients.mT)
            result[..., given.holes.members] = torch.einsum("sphn,sph->snp", half, white)
        return result

    def _empty(self, n_outputs: int) -> Tensor:
        return self._coefficients.new_empty(*self._coefficients.shape[:2], n_outputs)

    def _holes(self, positions: slice | Tensor) -> Iterator[HolesGivenF]:
        observed = self._known.observed[self._known.patterns_at(positions)]
        n_draws, n_new, n_rows = self._coefficients.shape
        for holes in holes_of(observed, _MOST_NUMBERS // (n_draws * max(1, n_new // n_rows))):
            yield HolesGivenF(self._precision, holes)


class ScatteredPredictive(CollapsedPredictive):
    """Predictions from a :class:`~pyro_gprn.CollapsedGPRN` where nearly every output has holes of its own.

    The parameters are those of :class:`~pyro_gprn.collapsed.prediction.CollapsedPredictive`.
    """

    def __init__(
        self, model: CollapsedGPRN, posterior: Posterior, X_new: Tensor, Y: Any = None, **settings: Any
    ) -> None:
        super().__init__(model, posterior, X_new, Y, **settings)
        self._mixture = self._mix_apart(self._conditioned)
        precision = self._conditioned.precision
        self._filled = FilledOutputs(self._mixture.coefficients.squeeze(1), precision, self._known)

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._filled.mean(chosen.positions(block)).mean(0)

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        return self._variance_of(*self._filled.mean_and_variance(positions), positions)

    def _variance_of(self, means: Tensor, of_holes: Tensor, positions: slice | Tensor) -> Tensor:
        """The variance of some outputs, ``(N*, b)``, by the mean of each draw and what holes add, ``(s, N*, b)``."""
        factors, of_scales = variance_factors(self._scales, positions)
        within = self._mixture.variance().mean(0).mT + of_holes.mean(0)
        return means.var(0, correction=0) * factors**2 + within * of_scales

    def fill_mean_and_variance(self, mean: Tensor, variance: Tensor) -> None:
        everything = OutputSelection(None, self.output_shape)
        noise = self._noise(everything).expand(everything.size)
        for block in self._blocks(everything, self._numbers_per_output()[1]):
            means, of_holes = self._filled.mean_and_variance(block)
            mean[:, block] = means.mean(0)
            found = self._variance_of(means, of_holes, block) + noise[block]
            stretched = self._stretch(everything, block, means.mean(0))
            variance[:, block] = found if stretched is None else found * stretched

    def _kind_of_components(self) -> type[ChosenComponents]:
        return _FilledComponents

    def settle(self, wanted: Wanted, n_draws: int | None = None) -> CollapsedPredictive:
        settled = super().settle("joint" if wanted == "joint" else "marginal", n_draws)
        settled._conditioned = settled._conditioned._replace(precision=self._conditioned.precision)
        return settled

    def of_outputs(
        self, known: OutputStatistics, scales: ScaleRule | OutputScales | None, generator: torch.Generator | None = None
    ) -> CollapsedPredictive:
        other: Any = super().of_outputs(known, scales, generator)
        other._filled = FilledOutputs(self._mixture.coefficients.squeeze(1), self._conditioned.precision, known)
        return other

    def _mix_apart(self, conditioned: ConditionedDraws) -> OutputMixture:
        is_made = conditioned is self._conditioned and hasattr(self, "_mixture")
        return self._mixture if is_made else super()._mix_apart(conditioned)

    def _numbers_per_output(self) -> tuple[int, int]:
        n_draws, n_new, n_rows = self._mixture.coefficients.squeeze(1).shape
        return (n_draws * max(n_new, n_rows),) * 2


class _FilledComponents(ChosenComponents):
    """Components of a mixture whose training outputs have their holes filled."""

    def __init__(self, mixture: OutputMixture, conditioned: Draws, *rest: Any) -> None:
        super().__init__(mixture, conditioned, *rest)
        self._precision: Any = conditioned.precision
        self._filled = self._filled_of(slice(None))

    def _filled_of(self, components: slice) -> FilledOutputs:
        return FilledOutputs(self._coefficients[0, components], self._precision[self._draws[components]], self._known)

    def _means(self, positions: slice | Tensor) -> Tensor:
        return self._filled.mean(positions)

    def _centre(self, positions: slice | Tensor) -> Tensor:
        everything = FilledOutputs(self._mixture.coefficients.squeeze(1), self._precision, self._known)
        return everything.mean(positions).mean(0)

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._variance.mT + self._filled.mean_and_variance(chosen.positions(block))[1]

    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        positions = chosen.positions(slice(None))
        filled = self._filled_of(components)
        of_complete = self._deviation(chosen, components, torch.zeros(chosen.size, dtype=torch.long))
        return of_complete + filled.deviation_by_holes(positions, self._generator)
