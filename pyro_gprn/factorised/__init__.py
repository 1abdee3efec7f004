"""The network with a posterior q(F) q(W): the paper's model, its bound, its posterior, training and predictions."""

from pyro_gprn.factorised import (  # register what these posteriors say
    column_normal_posterior,
    independent_posterior,
    tensor_normal_posterior,
)
from pyro_gprn.factorised.elbo import ClosedFormELBO, expected_log_likelihood
from pyro_gprn.factorised.kronecker import KroneckerGuide
from pyro_gprn.factorised.mean_field import MeanFieldGuide
from pyro_gprn.factorised.mixture import MixtureGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.prediction import FactorisedPredictive
from pyro_gprn.factorised.training import fit_kronecker, fit_mean_field, fit_mixture

__all__ = [
    "GPRN",
    "ClosedFormELBO",
    "FactorisedPredictive",
    "KroneckerGuide",
    "MeanFieldGuide",
    "MixtureGuide",
    "column_normal_posterior",
    "expected_log_likelihood",
    "fit_kronecker",
    "fit_mean_field",
    "fit_mixture",
    "independent_posterior",
    "tensor_normal_posterior",
]
