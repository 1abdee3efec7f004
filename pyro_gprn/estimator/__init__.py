"""The whole method for somebody who has arrays and no Pyro."""

from pyro_gprn.estimator.regressor import GPRNRegressor

__all__ = ["GPRNRegressor"]
