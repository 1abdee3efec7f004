"""Data to try things on."""

from pyro_gprn.datasets.cantilever import CantileverRuns, design_cantilever, simulate_cantilever
from pyro_gprn.datasets.cavity import CavityRuns, simulate_cavity
from pyro_gprn.datasets.plume import PlumeRuns, simulate_plume
from pyro_gprn.datasets.topology import SimpOptions

__all__ = [
    "CantileverRuns",
    "CavityRuns",
    "PlumeRuns",
    "SimpOptions",
    "design_cantilever",
    "simulate_cantilever",
    "simulate_cavity",
    "simulate_plume",
]
