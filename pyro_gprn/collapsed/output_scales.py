"""A scale for each output of a collapsed network, in closed form, after the fit.

The network gives all outputs one prior variance, so that its intervals are right on average: too narrow where a field
varies much, too wide where it hardly varies. Here every output has a scale of its own, which the data tell::

    y_d | F, s_d ~ Normal(0, s_d² C_F)     s_d² ~ InvGamma(ν/2, ν/2)
    s_d² | Y, F  ~ InvGamma((ν + n_d)/2, (ν + q_d)/2)     q_d = y_dᵀ C_F⁻¹ y_d over the n_d rows in which d was observed

The mean of an output does not depend on its scale; its distribution given F is Student-t with ν + n_d degrees of
freedom. It is what parallel partial emulators do for independent outputs (Gu and Berger, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.collapsed.draws import Posterior, PosteriorDraws
from pyro_gprn.collapsed.likelihood import OutputsGivenF, combine_values
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.prediction.scales import OutputScales

#: Draws of the functions over which the precision of the outputs is averaged.
N_DRAWS = 16
#: Values of ν among which the evidence may choose; infinity is one scale for all outputs.
PRIOR_DEGREES = (0.5, 1.0, 2.0, 4.0, 10.0, 30.0, math.inf)


@torch.no_grad()
def learn_output_scales(
    model: CollapsedGPRN,
    posterior: Posterior,
    Y: Any = None,
    *,
    prior_degrees: float | Sequence[float] = 1.0,
    n_draws: int = N_DRAWS,
    generator: torch.Generator | None = None,
) -> OutputScales:
    """The scale of each output, given the data: one pass over Y.

    :param model: the model.
    :param posterior: as for :func:`~pyro_gprn.posterior_predictive`, which takes the result as ``output_scales``.
    :param Y: the data, if the model has not seen them.
    :param prior_degrees: ν, how firmly scales are expected to be near 1 before the data are seen, in observations; or
        several values, among which the evidence chooses.
    :param n_draws: how many draws of the functions ``C_F⁻¹`` is averaged over. (Of draws all are used.)
    :param generator: of random numbers; None is torch's global state.

    >>> from pyro_gprn import CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=3, n_latents=2)
    >>> Y = torch.randn(8, 1) * torch.tensor([0.1, 1.0, 10.0])
    >>> scales = learn_output_scales(model, CollapsedGuide(model), Y)
    >>> scales.degrees, (scales.squares.diff() > 0).all()
    (tensor([9., 9., 9.], dtype=torch.float64), tensor(True))
    """
    known = model.statistics(Y)
    draws = PosteriorDraws.of(model, posterior, n_draws, mirrored=True, generator=generator)
    counts = known.observed.sum(1).double()[known.patterns_at(slice(None))]
    squares = _quadratic_forms(_mean_precision(draws, known), known)
    tried = [prior_degrees] if isinstance(prior_degrees, (int, float)) else list(prior_degrees)
    best = tried[0] if len(tried) == 1 else max(tried, key=lambda degrees: _evidence(degrees, counts, squares))
    if math.isinf(best):
        return OutputScales(torch.full_like(squares, math.inf), torch.ones_like(squares), best)
    return OutputScales(best + counts, (best + squares) / (best + counts), best)


def _mean_precision(draws: PosteriorDraws, known: OutputStatistics) -> Tensor:
    """``C_g⁻¹`` of each group of outputs, averaged over draws, ``(g, N, N)``."""
    model = draws.model

    def add_up(V: Tensor) -> Tensor:
        Lf, Kw, noise = model.covariances()
        each = (OutputsGivenF(model.output_covariance(Lf @ v, Kw, noise), known).inverse for v in V)
        return sum(each, start=torch.zeros_like(known.grams))  # one draw at a time: each has g matrices N×N

    return torch.stack(draws.each(add_up)).sum(0) / len(draws.V)


def _quadratic_forms(precision: Tensor, known: OutputStatistics) -> Tensor:
    """``y_dᵀ P y_d`` of each output with its group's P, ``(D,)``."""
    result = precision.new_empty(known.source.n_outputs)
    for positions, block in known.source.chunks():
        values = block.to(precision) if known.is_complete else block.to(precision).nan_to_num(nan=0.0)
        result[positions] = (values * combine_values(precision, values, known, positions)).sum(0)
    return result.clamp(min=0.0)


def _evidence(prior_degrees: float, counts: Tensor, squares: Tensor) -> float:
    """``log p(Y|ν)`` without what does not depend on ν: of each output with ``n_d = counts`` and ``q_d = squares``."""
    if math.isinf(prior_degrees):
        return -0.5 * squares.sum().item()
    half, half_after = torch.tensor(prior_degrees / 2.0, dtype=torch.float64), (prior_degrees + counts) / 2.0
    by_output = torch.lgamma(half_after) - torch.lgamma(half) + half * half.log()
    return (by_output - half_after * ((prior_degrees + squares) / 2.0).log()).sum().item()
