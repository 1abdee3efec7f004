"""Predictions at new inputs, whichever posterior they come from."""

from pyro_gprn.prediction.base import PosteriorPredictive
from pyro_gprn.prediction.methods import (
    Conditioned,
    condition,
    output_correlation,
    posterior_predictive,
    prediction_settings,
    scales_of_outputs,
)

__all__ = [
    "Conditioned",
    "PosteriorPredictive",
    "condition",
    "output_correlation",
    "posterior_predictive",
    "prediction_settings",
    "scales_of_outputs",
]
