"""The network with constant weights and its functions integrated out: exact, for few outputs."""

from pyro_gprn.coregionalised.guide import CoregionalisedGuide
from pyro_gprn.coregionalised.model import CoregionalisedGPRN
from pyro_gprn.coregionalised.prediction import ConditionedFunctions, CoregionalisedPredictive, weight_correlation
from pyro_gprn.coregionalised.training import fit_coregionalised

__all__ = [
    "ConditionedFunctions",
    "CoregionalisedGPRN",
    "CoregionalisedGuide",
    "CoregionalisedPredictive",
    "fit_coregionalised",
    "weight_correlation",
]
