"""Other methods, to compare with."""

from pyro_gprn.baselines.independent import independent_gps

__all__ = ["independent_gps"]
