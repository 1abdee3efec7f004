"""The network with its weights integrated out: model, posterior, training and predictions."""

from pyro_gprn.collapsed import predictives  # registers what the network answers
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.low_rank_prediction import LowRankPredictive
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.output_scales import learn_output_scales
from pyro_gprn.collapsed.prediction import CollapsedPredictive
from pyro_gprn.collapsed.scattered_prediction import ScatteredPredictive
from pyro_gprn.collapsed.training import CollapsedFit, fit_collapsed
from pyro_gprn.collapsed.weights import sample_weights
from pyro_gprn.prediction import output_correlation

__all__ = [
    "CollapsedFit",
    "CollapsedGPRN",
    "CollapsedGuide",
    "CollapsedPredictive",
    "LowRankPredictive",
    "ScatteredPredictive",
    "fit_collapsed",
    "learn_output_scales",
    "output_correlation",
    "predictives",
    "sample_weights",
]
