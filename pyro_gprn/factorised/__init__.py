"""The network with a posterior q(F) q(W): the paper's model, its bound, its posterior, training and predictions."""

from pyro_gprn.factorised import independent_posterior, tensor_normal_posterior  # register what these posteriors say
from pyro_gprn.factorised.elbo import ClosedFormELBO, expected_log_likelihood
from pyro_gprn.factorised.kronecker import KroneckerGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.prediction import FactorisedPredictive
from pyro_gprn.factorised.training import fit_kronecker

__all__ = [
    "GPRN",
    "ClosedFormELBO",
    "FactorisedPredictive",
    "KroneckerGuide",
    "expected_log_likelihood",
    "fit_kronecker",
    "independent_posterior",
    "tensor_normal_posterior",
]
