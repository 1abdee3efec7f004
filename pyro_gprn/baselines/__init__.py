"""Other methods, to compare with, behind the interface of :class:`~pyro_gprn.GPRNRegressor`."""

from pyro_gprn.baselines.coregionalisation import LMC
from pyro_gprn.baselines.hogp import HOGP
from pyro_gprn.baselines.independent import IndependentGP, independent_gps
from pyro_gprn.baselines.mean import TrainingMean
from pyro_gprn.baselines.reduced import ReducedGP

__all__ = ["HOGP", "LMC", "IndependentGP", "ReducedGP", "TrainingMean", "independent_gps"]
