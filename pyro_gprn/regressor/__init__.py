"""The whole method for somebody who has arrays and no Pyro."""

from pyro_gprn.regressor.estimator import GPRNRegressor

__all__ = ["GPRNRegressor"]
