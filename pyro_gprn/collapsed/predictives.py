"""Which kind of prediction a collapsed network has: by its inducing inputs, and by the holes of its outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_gprn.collapsed.conditioned import ConditionedDraws, WhiteCoordinates
from pyro_gprn.collapsed.draws import Posterior
from pyro_gprn.collapsed.low_rank_prediction import LowRankDraws, LowRankPredictive
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.prediction import CollapsedPredictive
from pyro_gprn.collapsed.scattered_prediction import ScatteredPredictive
from pyro_gprn.outputs.scattered import ScatteredStatistics
from pyro_gprn.prediction.base import PosteriorPredictive, posterior_predictive


@posterior_predictive.register(CollapsedGPRN)
def _(model: CollapsedGPRN, posterior: Posterior, X_new: Tensor, Y: Any = None, **settings: Any) -> PosteriorPredictive:
    if model.has_inducing:
        return LowRankPredictive(model, posterior, X_new, Y, **settings)
    conditioned = settings.get("conditioned")
    known = model.statistics(Y) if conditioned is None else conditioned.known
    is_scattered = isinstance(known, ScatteredStatistics)
    return (ScatteredPredictive if is_scattered else CollapsedPredictive)(model, posterior, X_new, Y, **settings)


def condition_draws(
    model: CollapsedGPRN,
    posterior: Posterior,
    Y: Any,
    generator: torch.Generator,
    *,
    coordinates: WhiteCoordinates | None = None,
) -> ConditionedDraws | LowRankDraws:
    """Draws from a posterior, as many as predictions have by default, conditioned on the data.

    :param coordinates: white coordinates of the outputs, if they are known from before.
    """
    if model.has_inducing:
        return LowRankDraws.of(model, posterior, Y, generator=generator)
    return ConditionedDraws.of(model, posterior, Y, generator=generator, coordinates=coordinates)
