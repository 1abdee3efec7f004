"""The outputs Y: where they come from, what the bounds need of them, and how some of them are selected."""

from pyro_gprn.outputs.gram import OutputStatistics, gram_matrix

__all__ = ["OutputStatistics", "gram_matrix"]
