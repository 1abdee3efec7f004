"""Data sets to try the package on.

The folder ``published`` loads data that others have published. The folder ``simulated`` makes data on this machine. All
names that a user needs can be imported from here.
"""

from pyro_gprn.datasets.published.equity import load_equity
from pyro_gprn.datasets.published.expression import load_dream5, load_precise
from pyro_gprn.datasets.published.jura import load_jura
from pyro_gprn.datasets.published.pm25 import load_pm25
from pyro_gprn.datasets.record import Dataset, Split
from pyro_gprn.datasets.simulated.cantilever import CantileverRuns, design_cantilever, simulate_cantilever
from pyro_gprn.datasets.simulated.cavity import CavityRuns, simulate_cavity
from pyro_gprn.datasets.simulated.plume import PlumeRuns, simulate_plume
from pyro_gprn.datasets.simulated.sample import GPRNSample, sample_gprn
from pyro_gprn.datasets.simulated.topology import SimpOptions

__all__ = [
    "CantileverRuns",
    "CavityRuns",
    "Dataset",
    "GPRNSample",
    "PlumeRuns",
    "SimpOptions",
    "Split",
    "design_cantilever",
    "load_dream5",
    "load_equity",
    "load_jura",
    "load_pm25",
    "load_precise",
    "sample_gprn",
    "simulate_cantilever",
    "simulate_cavity",
    "simulate_plume",
]
