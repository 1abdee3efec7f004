"""A scale for each output of a collapsed network, in closed form, after the fit.

The network gives all outputs one prior variance, so that its intervals are right on average: too narrow where a field
varies much, too wide where it hardly varies. Here every output has a scale of its own, which the data tell::

    y_d | F, s_d ~ Normal(0, s_d² C_F)     s_d² ~ InvGamma(ν/2, ν/2)
    s_d² | Y, F  ~ InvGamma((ν + n_d)/2, (ν + q_d)/2)     q_d = y_dᵀ C_F⁻¹ y_d over the n_d rows in which d was observed

The mean of an output does not depend on its scale; its distribution given F is Student-t with ν + n_d degrees of
freedom. It is what parallel partial emulators do for independent outputs (Gu and Berger, 2016).

ν is chosen by the density of rows that are left out. The evidence of ν is closed form as well, but it asks how far
outputs are from zero, not how far from their predictions: on a field whose noise is the same everywhere it chose scales
(ν = 10) that made the density of new rows worse, where the left-out rows choose ν = ∞ (docs/calibration.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_gprn.collapsed.draws import Posterior, PosteriorDraws
from pyro_gprn.collapsed.likelihood import mean_precision
from pyro_gprn.collapsed.low_rank import OutputsGivenInducing
from pyro_gprn.collapsed.low_rank_draws import at_mean
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.compressed import CompressedStatistics
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import evenly_spread
from pyro_gprn.outputs.variation import spread_of
from pyro_gprn.prediction.scales import OutputScales, StudentMixture
from pyro_gprn.training.widening import AS_THEY_ARE, Widening

#: Draws of the functions over which the precision of the outputs is averaged.
N_DRAWS = 16
#: Values of ν to choose from; infinity is one scale for all outputs.
PRIOR_DEGREES = (1.0, 2.0, 4.0, 10.0, 30.0, math.inf)
#: Outputs, evenly spread, on which the choice is made.
N_JUDGED = 4096
#: Of very many rows fewer outputs, so that there are about so many numbers.
MOST_JUDGED = 2**23


@torch.no_grad()
def learn_output_scales(
    model: CollapsedGPRN,
    posterior: Posterior,
    Y: Any = None,
    *,
    prior_degrees: float | Sequence[float] = PRIOR_DEGREES,
    widening: Widening = AS_THEY_ARE,
    n_draws: int = N_DRAWS,
    positions: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> OutputScales:
    """The scale of each output, given the data: one pass over Y.

    :param model: the model.
    :param posterior: as for :func:`~pyro_gprn.posterior_predictive`, which takes the result as ``output_scales``.
    :param Y: the data, if the model has not seen them.
    :param prior_degrees: ν, how firmly scales are expected to be near 1 before the data are seen, in observations; or
        several values, of which that with the highest density of left-out rows is taken.
    :param widening: what scales are multiplied by then, for what was held out; by default 1.
    :param n_draws: how many draws of the functions ``C_F⁻¹`` is averaged over. (Of draws all are used. With inducing
        inputs it is that of their mean.)
    :param positions: of some of the flattened outputs, ``(b,)``, if the scales of these are enough: the others are NaN.
    :param generator: of random numbers; None is torch's global state.

    >>> from pyro_gprn import CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=3, n_latents=2)
    >>> Y = torch.randn(8, 1) * torch.tensor([0.1, 1.0, 10.0])
    >>> scales = learn_output_scales(model, CollapsedGuide(model), Y, prior_degrees=1.0)
    >>> scales.degrees, (scales.squares.diff() > 0).all()
    (tensor([9., 9., 9.], dtype=torch.float64), tensor(True))
    """
    known = model.statistics(Y)
    settings: dict[str, Any] = {"prior_degrees": prior_degrees, "widening": widening, "n_draws": n_draws}
    rule = learn_scale_rule(model, posterior, known, generator=generator, **settings)
    n_outputs = known.source.n_outputs
    if math.isinf(rule.prior_degrees) and not widening.needs_spread:
        return OutputScales.known(n_outputs, like=known.counts).widened(widening, None)
    degrees, squares, factors, spread = known.counts.new_full((4, n_outputs), math.nan)
    everything = known.source.chunks(known.chunk_bytes)
    for some, block in everything if positions is None else [(positions, known.source.read(positions))]:
        degrees[some], squares[some], _, factors[some], _, spread[some] = rule.of_values(block, some)
    return OutputScales(degrees, squares, rule.prior_degrees, factors, widening, spread)


class Precision(Protocol):
    """``C_F⁻¹`` of the outputs."""

    def solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        """Its product with values ``(N, b)`` of the outputs at some positions, zero where missing, ``(N, b)``."""
        ...

    def diagonal(self, positions: slice | Tensor) -> Tensor:
        """Its diagonal for some outputs, ``(N, b)``; 1 in missing rows."""
        ...

    def of_outputs(self, known: OutputStatistics) -> Precision:
        """That of other outputs of the same network, with the same groups."""
        ...


@dataclass(frozen=True)
class ScaleRule:
    """What tells the scale of an output from its values: scales of as many outputs as are asked for, when they are.

    :param known: statistics of the outputs.
    :param precision: ``C_F⁻¹``, averaged over draws.
    :param prior_degrees: ν.
    :param widening: what scales are multiplied by.
    """

    known: OutputStatistics
    precision: Precision
    prior_degrees: float
    widening: Widening = AS_THEY_ARE

    def at(self, positions: slice | Tensor) -> OutputScales:
        """The scales of some of the flattened outputs, ``(b,)``."""
        return self.of_values(self.known.source.read(positions), positions)

    def of_outputs(self, known: OutputStatistics) -> ScaleRule:
        """The rule for other outputs of the same network, with the same groups."""
        return replace(self, known=known, precision=self.precision.of_outputs(known))

    def of_values(self, block: Tensor, positions: slice | Tensor) -> OutputScales:
        """The scales of outputs ``(N, b)``, NaN where one is missing, which lie at these positions."""
        spread = spread_of(block.to(self.known.counts)) if self.widening.needs_spread else None
        return self._before_widening(block, positions).widened(self.widening, spread)

    def _before_widening(self, block: Tensor, positions: slice | Tensor) -> OutputScales:
        values = block.to(self.known.counts).nan_to_num(nan=0.0)
        if math.isinf(self.prior_degrees):
            return OutputScales.known(values.shape[1], like=values)
        n_seen = self.known.observed.sum(1).to(values)[self.known.patterns_at(positions)]
        squares = (values * self.precision.solve(values, positions)).sum(0).clamp(min=0.0)
        degrees = self.prior_degrees + n_seen
        return OutputScales(degrees, (self.prior_degrees + squares) / degrees, self.prior_degrees)


@torch.no_grad()
def learn_scale_rule(
    model: CollapsedGPRN,
    posterior: Posterior,
    Y: Any = None,
    *,
    prior_degrees: float | Sequence[float] = PRIOR_DEGREES,
    widening: Widening = AS_THEY_ARE,
    n_draws: int = N_DRAWS,
    generator: torch.Generator | None = None,
) -> ScaleRule:
    """What tells the scales of outputs, without a pass over them. The parameters are those above."""
    known = model.statistics(Y)
    draws = PosteriorDraws.of(model, posterior, n_draws, mirrored=True, generator=generator)
    precision = _mean_precision(draws, known)
    tried = [float(prior_degrees)] if isinstance(prior_degrees, (int, float)) else list(prior_degrees)
    chosen = tried[0] if len(tried) == 1 else _choose_prior_degrees(tried, precision, known)
    return ScaleRule(known, precision, chosen, widening)


class _LowRankPrecision:
    """That of a network with inducing inputs, at the mean of the draws: an average takes a pass over Y for each."""

    def __init__(self, given: OutputsGivenInducing) -> None:
        self._given = given

    def solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        return self._given.solve(values, positions)

    def diagonal(self, positions: slice | Tensor) -> Tensor:
        return self._given.precision()[self._given.known.patterns_at(positions)].mT

    def of_outputs(self, known: OutputStatistics) -> Precision:
        raise ValueError("outputs of very many rows are in memory, and their scales are learned all at once")


def _mean_precision(draws: PosteriorDraws, known: OutputStatistics) -> Precision:
    """``C_F⁻¹`` of the outputs, averaged over draws."""
    if isinstance(known, CompressedStatistics):
        return _LowRankPrecision(at_mean(draws, known))
    model, precision = draws.model, mean_precision(known)

    def add(V: Tensor) -> None:
        Lf, Kw, noise = model.covariances()
        for v in V:  # one draw at a time: each may have a matrix N×N for every group of outputs
            precision.add(model.output_covariance(Lf @ v, Kw, noise))

    draws.each(add)
    return precision


def _choose_prior_degrees(tried: Sequence[float], precision: Precision, known: OutputStatistics) -> float:
    """The value of ν with the highest density of rows left out, over some of the outputs."""
    # With z = P y, row n of an output lies z_n / P_nn from what the other rows predict, with variance s_d² / P_nn; and
    # the quadratic form of the other rows, which tells s_d, is q_d − z_n² / P_nn.
    n_judged = max(1, min(N_JUDGED, MOST_JUDGED // known.source.n_rows))
    (places,) = evenly_spread((known.source.n_outputs,), n_judged)
    positions = torch.tensor(places, device=known.counts.device)
    values, seen = known.values_at(positions), known.observed[known.patterns_at(positions)].mT
    solved, diagonal = precision.solve(values, positions), precision.diagonal(positions)  # (N, b)
    others = ((values * solved).sum(0) - solved.square() / diagonal).clamp(min=0.0)
    n_others = seen.sum(0) - 1.0

    def density(prior_degrees: float) -> float:
        degrees = prior_degrees + n_others
        squares = 1.0 if math.isinf(prior_degrees) else (prior_degrees + others) / degrees
        left_out = StudentMixture(torch.zeros_like(solved)[None], (squares / diagonal).sqrt()[None], degrees)
        return left_out.log_density_by_component(solved / diagonal)[0][seen].mean().item()

    return max(tried, key=density)
