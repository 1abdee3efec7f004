"""Data to try things on."""

from pyro_gprn.datasets.plume import PlumeRuns, simulate_plume

__all__ = ["PlumeRuns", "simulate_plume"]
