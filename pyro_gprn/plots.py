"""Pictures of a fit and of its predictions, with matplotlib; each returns its axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Size

from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.estimator.containers import library_of, plain
from pyro_gprn.outputs.selection import Outputs, OutputSelection, evenly_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_correlation", "plot_field", "plot_fit"]

#: So many outputs' correlations are drawn unasked.
MOST_OUTPUTS = 50
#: Two-sided 95 % of a normal distribution.
_BAND = 1.96


def plot_fit(regressor: GPRNRegressor, axes: Axes | None = None) -> Axes:
    """The bound over the training steps, with that of the end.

    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> r = GPRNRegressor(n_latents=1, steps=20, seed=0, progress=False).fit(X, np.sin(X + np.arange(5)))
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


def plot_field(
    mean: Any,
    std: Any = None,
    truth: Any = None,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    axes: Sequence[Axes] | None = None,
) -> np.ndarray:
    """One predicted field beside the truth: truth, mean, standard deviation and error, as far as they are known.

    A field of one mode is drawn as curves with a 95 % band, one of two modes as pictures, the first mode upwards.

    :param mean: ``(d_1,)`` or ``(d_1, d_2)``: an array of any kind. Names and coordinates of an xarray are used.
    :param std: standard deviation, of that shape.
    :param truth: likewise.
    :param labels: names of the modes.
    :param title: of the whole figure.
    :param axes: to draw on, as many as there are panels; by default new ones.

    >>> [each.get_title() for each in plot_field(np.ones((4, 5)), truth=np.zeros((4, 5)))]
    ['truth', 'mean', 'error (mean − truth)']
    """
    names, coordinates = _names_and_coordinates(mean, labels)
    mean, std, truth = (None if each is None else np.asarray(plain(each), dtype=float) for each in (mean, std, truth))
    for name, field in (("std", std), ("truth", truth)):
        if field is not None and field.shape != mean.shape:
            raise ValueError(f"{name} must have the shape of mean, {mean.shape}; got {field.shape}")
    if mean.ndim not in (1, 2):
        raise ValueError(f"a field to plot has one mode or two; got shape {mean.shape} (choose one row, one frame)")
    draw = _draw_curves if mean.ndim == 1 else _draw_pictures
    drawn = draw(mean, std, truth, names, coordinates, axes)
    if title is not None:
        drawn[0].figure.suptitle(title)
    return drawn


def plot_correlation(regressor: GPRNRegressor, x: Any, outputs: Outputs = None, axes: Axes | None = None) -> Axes:
    """The correlation between outputs at one input: what a GPRN has and models with fixed mixing have not.

    :param regressor: fitted, with ``inference="collapsed"``.
    :param x: one input, ``(P,)``.
    :param outputs: which outputs, as for :func:`~pyro_gprn.posterior_predictive`; by default at most fifty, evenly
        spread.

    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> r = GPRNRegressor(n_latents=2, steps=20, seed=0, progress=False).fit(X, np.sin(X + np.arange(5)))
    >>> plot_correlation(r, [0.5]).get_xlabel()
    'output'
    """
    x = np.asarray(plain(x), dtype=float).reshape(1, -1)
    shape = regressor.output_shape_
    outputs = evenly_spread(shape, MOST_OUTPUTS) if outputs is None else outputs
    correlation = regressor.output_correlation(x, outputs)[0]
    positions = OutputSelection(outputs, Size(shape)).positions(slice(None))
    names = regressor.output_names_[np.asarray(positions)]
    axes = new_axes(1)[0] if axes is None else axes
    picture = axes.imshow(correlation, vmin=-1, vmax=1, cmap="RdBu_r")
    axes.figure.colorbar(picture, ax=axes, label="correlation")
    shown = np.unique(np.linspace(0, len(names) - 1, min(len(names), 8)).round().astype(int))
    axes.set_xticks(shown, names[shown], rotation=45)
    axes.set_yticks(shown, names[shown])
    at = ", ".join(f"{value:.3g}" for value in x[0])
    axes.set(xlabel="output", ylabel="output", title=f"correlation at x = ({at})")
    return axes


def new_axes(n: int, width: float = 5.0, height: float = 3.6) -> np.ndarray:
    """Axes side by side, ``(n,)``; without matplotlib an error that names the extra."""
    try:
        from matplotlib import pyplot
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'pyro-gprn[plot]'") from missing
    return pyplot.subplots(1, n, figsize=(width * n, height), layout="constrained", squeeze=False)[1][0]


def _names_and_coordinates(field: Any, labels: Sequence[str] | None) -> tuple[list[str], list[np.ndarray]]:
    shape = np.shape(plain(field))
    names, coordinates = [f"mode {m + 1}" for m in range(len(shape))], [np.arange(size) for size in shape]
    if library_of(field) == "xarray":
        names = [str(name) for name in field.dims]
        known = zip(field.dims, coordinates, strict=True)
        coordinates = [np.asarray(field[name]) if name in field.coords else counted for name, counted in known]
    return (names if labels is None else list(labels)), coordinates


def _draw_curves(
    mean: np.ndarray,
    std: np.ndarray | None,
    truth: np.ndarray | None,
    names: list[str],
    coordinates: list[np.ndarray],
    axes: Sequence[Axes] | None,
) -> np.ndarray:
    drawn = new_axes(1 if truth is None else 2) if axes is None else np.asarray(axes)
    (places,) = coordinates
    panels = [(drawn[0], mean, "prediction")]
    if truth is not None:
        drawn[0].plot(places, truth, color="black", lw=1, label="truth")
        panels.append((drawn[1], mean - truth, "error (mean − truth)"))
    for each, curve, title in panels:
        each.plot(places, curve, color="C0", lw=1.2, label="mean")
        if std is not None:
            each.fill_between(places, curve - _BAND * std, curve + _BAND * std, color="C0", alpha=0.25, label="95 %")
        each.set(xlabel=names[0], title=title)
    drawn[0].legend()
    return drawn


def _draw_pictures(
    mean: np.ndarray,
    std: np.ndarray | None,
    truth: np.ndarray | None,
    names: list[str],
    coordinates: list[np.ndarray],
    axes: Sequence[Axes] | None,
) -> np.ndarray:
    reference = mean if truth is None else truth
    value_range = (np.nanmin(reference), np.nanmax(reference))
    panels: list[tuple[str, np.ndarray, tuple[float, float], str]] = []
    if truth is not None:
        panels.append(("truth", truth, value_range, "viridis"))
    panels.append(("mean", mean, value_range, "viridis"))
    if std is not None:
        panels.append(("standard deviation", std, (0.0, np.nanmax(std)), "viridis"))
    if truth is not None:
        largest = np.nanmax(np.abs(mean - truth))
        panels.append(("error (mean − truth)", mean - truth, (-largest, largest), "RdBu_r"))
    drawn = new_axes(len(panels), width=3.4, height=3.2) if axes is None else np.asarray(axes)
    for each, (title, field, (low, high), colours) in zip(drawn, panels, strict=True):
        picture = each.imshow(
            field, origin="lower", aspect="auto", extent=_extent(coordinates), vmin=low, vmax=high, cmap=colours
        )
        each.figure.colorbar(picture, ax=each, shrink=0.85)
        each.set(title=title, xlabel=names[1], ylabel=names[0])
    return drawn


def _extent(coordinates: list[np.ndarray]) -> tuple[float, float, float, float]:
    """Edges of the picture, half a cell beyond the outermost points; cells are counted where places are no numbers."""
    edges = []
    for places in reversed(coordinates):
        numeric = places.astype(float) if places.dtype.kind in "iuf" else np.arange(float(len(places)))
        half = 0.5 * (numeric[-1] - numeric[0]) / max(1, len(numeric) - 1) or 0.5
        edges += [numeric[0] - half, numeric[-1] + half]
    return edges[0], edges[1], edges[2], edges[3]
