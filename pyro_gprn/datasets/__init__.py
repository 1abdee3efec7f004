"""Data to try things on."""

from pyro_gprn.datasets.cavity import CavityRuns, simulate_cavity
from pyro_gprn.datasets.plume import PlumeRuns, simulate_plume

__all__ = ["CavityRuns", "PlumeRuns", "simulate_cavity", "simulate_plume"]
