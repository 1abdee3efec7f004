"""The network with a posterior q(F) q(W): the paper's model, its bound, its posterior, training and predictions."""

from pyro_gprn.factorised import (  # register what these posteriors say
    column_normal_posterior,
    independent_posterior,
    tensor_normal_posterior,
)
from pyro_gprn.factorised.elbo import ClosedFormELBO, expected_log_likelihood
from pyro_gprn.factorised.kronecker import KroneckerGuide
from pyro_gprn.factorised.mean_field import MeanFieldGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.prediction import FactorisedPredictive
from pyro_gprn.factorised.training import fit_kronecker, fit_mean_field

__all__ = [
    "GPRN",
    "ClosedFormELBO",
    "FactorisedPredictive",
    "KroneckerGuide",
    "MeanFieldGuide",
    "column_normal_posterior",
    "expected_log_likelihood",
    "fit_kronecker",
    "fit_mean_field",
    "independent_posterior",
    "tensor_normal_posterior",
]
