"""What a collapsed network answers when it is asked for predictions, and for what they have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_gprn.collapsed.conditioned import ConditionedDraws, WhiteCoordinates
from pyro_gprn.collapsed.draws import Posterior
from pyro_gprn.collapsed.low_rank_prediction import LowRankDraws, LowRankPredictive
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.output_scales import PRIOR_DEGREES, learn_output_scales, learn_scale_rule
from pyro_gprn.collapsed.prediction import CollapsedPredictive
from pyro_gprn.collapsed.scattered_prediction import ScatteredPredictive
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.scattered import ScatteredStatistics
from pyro_gprn.prediction import (
    PosteriorPredictive,
    condition,
    posterior_predictive,
    prediction_settings,
    scales_of_outputs,
)
from pyro_gprn.prediction.holes import FilledPredictive, hole_rows
from pyro_gprn.prediction.scales import Scales
from pyro_gprn.training.widening import AS_THEY_ARE, Widening


@posterior_predictive.register(CollapsedGPRN)
def _(model: CollapsedGPRN, posterior: Posterior, X_new: Tensor, Y: Any = None, **settings: Any) -> PosteriorPredictive:
    fills_holes = settings.pop("fills_holes", True)
    if model.has_inducing:
        return LowRankPredictive(model, posterior, X_new, Y, **settings)
    generator, scales = settings.get("generator"), settings.get("output_scales")
    conditioned = settings.pop("conditioned", None)
    if conditioned is None:
        n_draws = settings.get("n_draws")
        conditioned = ConditionedDraws.of(model, posterior, Y, n_draws=n_draws, generator=generator)
    kind = ScatteredPredictive if isinstance(conditioned.known, ScatteredStatistics) else CollapsedPredictive
    predictive = kind(model, posterior, X_new, conditioned=conditioned, **settings)
    is_asked = fills_holes and _has_holes(model, predictive.X_new, conditioned.known)
    holes = conditioned.holes if is_asked else None
    if holes is None:
        return predictive
    holes = holes if scales is None else holes.widened(scales.widening.holes)
    return FilledPredictive(model, predictive, holes, generator)


def _has_holes(model: CollapsedGPRN, X_new: Tensor, known: OutputStatistics) -> bool:
    """True if one of the new inputs is that of a training row which misses outputs."""
    if known.is_complete:
        return False
    rows = hole_rows(model.X, X_new)
    return bool((~known.observed.all(0))[rows[rows >= 0]].any())


@prediction_settings.register(CollapsedGPRN)
def _(model: CollapsedGPRN) -> tuple[str, ...]:
    return "conditioned", "output_scales", "variance_type", "fills_holes"


@condition.register(CollapsedGPRN)
def _(
    model: CollapsedGPRN,
    posterior: Posterior,
    Y: Any = None,
    *,
    generator: torch.Generator | None = None,
    coordinates: WhiteCoordinates | None = None,
) -> ConditionedDraws | LowRankDraws:
    # as many draws as predictions have by default
    if model.has_inducing:
        return LowRankDraws.of(model, posterior, Y, generator=generator)
    return ConditionedDraws.of(model, posterior, Y, generator=generator, coordinates=coordinates)


@scales_of_outputs.register(CollapsedGPRN)
def _(
    model: CollapsedGPRN,
    posterior: Posterior,
    Y: Any = None,
    *,
    prior_degrees: float | None = None,
    widening: Widening = AS_THEY_ARE,
    as_rule: bool = False,
    generator: torch.Generator | None = None,
) -> Scales:
    tried = PRIOR_DEGREES if prior_degrees is None else prior_degrees
    learn = learn_scale_rule if as_rule else learn_output_scales
    return learn(model, posterior, Y, prior_degrees=tried, widening=widening, generator=generator)
