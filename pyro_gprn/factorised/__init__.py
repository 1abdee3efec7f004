"""The network with a posterior q(F) q(W): the paper's model, its bound, its posterior, training and predictions."""

from pyro_gprn.factorised.elbo import ClosedFormELBO
from pyro_gprn.factorised.kronecker import KroneckerGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.prediction import KroneckerPredictive
from pyro_gprn.factorised.training import KroneckerFit, fit_kronecker

__all__ = ["GPRN", "ClosedFormELBO", "KroneckerFit", "KroneckerGuide", "KroneckerPredictive", "fit_kronecker"]
