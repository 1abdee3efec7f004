"""Gaussian process regression networks on Pyro.

Multi-output regression in which the outputs are an input-dependent mixture of latent functions, at a cost a
step that does not grow with the number of outputs. See the README for a first example.
"""

from pyro_gprn.collapsed import CollapsedGPRN
from pyro_gprn.diagnostics import diagnose, to_arviz
from pyro_gprn.distributions import MatrixNormal, TensorNormal
from pyro_gprn.elbo import ClosedFormELBO
from pyro_gprn.guides import CollapsedGuide, KroneckerGuide
from pyro_gprn.model import GPRN
from pyro_gprn.plots import plot_correlation, plot_field, plot_fit
from pyro_gprn.predict import PosteriorPredictive, output_correlation, posterior_predictive, sample_weights
from pyro_gprn.regressor import GPRNRegressor
from pyro_gprn.training import CollapsedFit, fit_collapsed

__all__ = [
    "GPRN",
    "ClosedFormELBO",
    "CollapsedFit",
    "CollapsedGPRN",
    "CollapsedGuide",
    "GPRNRegressor",
    "KroneckerGuide",
    "MatrixNormal",
    "PosteriorPredictive",
    "TensorNormal",
    "diagnose",
    "fit_collapsed",
    "output_correlation",
    "plot_correlation",
    "plot_field",
    "plot_fit",
    "posterior_predictive",
    "sample_weights",
    "to_arviz",
]
