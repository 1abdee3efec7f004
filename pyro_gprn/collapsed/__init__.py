"""The network with its weights integrated out: model, posterior, training and predictions."""

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.low_rank_prediction import LowRankPredictive
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.output_scales import learn_output_scales
from pyro_gprn.collapsed.prediction import CollapsedPredictive
from pyro_gprn.collapsed.predictives import condition_draws
from pyro_gprn.collapsed.scattered_prediction import ScatteredPredictive
from pyro_gprn.collapsed.training import CollapsedFit, fit_collapsed
from pyro_gprn.collapsed.weights import output_correlation, sample_weights

__all__ = [
    "CollapsedFit",
    "CollapsedGPRN",
    "CollapsedGuide",
    "CollapsedPredictive",
    "LowRankPredictive",
    "ScatteredPredictive",
    "condition_draws",
    "fit_collapsed",
    "learn_output_scales",
    "output_correlation",
    "sample_weights",
]
