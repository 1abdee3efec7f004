"""Predictions at new inputs, whichever posterior they come from."""

from pyro_gprn.prediction.base import PosteriorPredictive, posterior_predictive

__all__ = ["PosteriorPredictive", "posterior_predictive"]
