"""Variational posteriors (Pyro guides) of the GPRN."""

from pyro_gprn.guides.collapsed import CollapsedGuide
from pyro_gprn.guides.kronecker import KroneckerGuide

__all__ = ["CollapsedGuide", "KroneckerGuide"]
