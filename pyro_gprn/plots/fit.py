"""How the training went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.plots.axes import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_fit(regressor: GPRNRegressor, axes: Axes | None = None) -> Axes:
    """The bound at each training step, and the bound at the end.

    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> settings = {"kernel_w": "rbf", "own_kernels": False, "selection": False, "seed": 0, "progress": False}
    >>> r = GPRNRegressor(1, steps=20, **settings).fit(X, np.sin(X + np.arange(5)))
    >>> plot_fit(r).get_xlabel()
    'step'
    """
    axes = new_axes(1)[0] if axes is None else axes
    bounds = -regressor.losses_
    steps = np.arange(1, len(bounds) + 1)
    axes.plot(steps, bounds, lw=0.8, color="C0", alpha=0.6, label="at each step (noisy)")
    if np.isfinite(regressor.elbo_):
        axes.axhline(regressor.elbo_, color="C1", lw=1.2, label=f"at the end: {regressor.elbo_:.6g}")
    if len(bounds) > 20:  # the first steps may be far below all others
        low, high = np.nanquantile(bounds, [0.1, 1.0])
        axes.set_ylim(low - 0.15 * (high - low or 1.0), high + 0.1 * (high - low or 1.0))
    axes.set(xlabel="step", ylabel="evidence lower bound", title="training")
    axes.legend(loc="lower right")
    return axes
