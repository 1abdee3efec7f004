"""Pictures of a fit and of its predictions, with matplotlib; each returns its axes."""

from pyro_gprn.plots.axes import new_axes
from pyro_gprn.plots.correlation import plot_correlation
from pyro_gprn.plots.fields import plot_field
from pyro_gprn.plots.fit import plot_fit

__all__ = ["new_axes", "plot_correlation", "plot_field", "plot_fit"]
