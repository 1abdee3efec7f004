"""The whole method behind one class, for people who have arrays and do not use Pyro."""

from pyro_gprn.estimator.regressor import GPRNRegressor

__all__ = ["GPRNRegressor"]
