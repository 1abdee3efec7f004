"""Predicted fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_gprn.estimator.kinds import filled, library_of, plain
from pyro_gprn.plots.axes import Mode, draw_picture, modes_of, new_axes, with_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: An interval of so many standard deviations on either side holds 95 % of a normal distribution.
_BAND = 1.96


def plot_field(
    mean: Any,
    std: Any = None,
    truth: Any = None,
    *,
    labels: Sequence[str] | None = None,
    title: str | None = None,
    axes: Sequence[Axes] | None = None,
) -> np.ndarray:
    """One predicted field beside the truth: truth, mean, standard deviation and error, as far as they are given.

    A field of one mode is drawn as curves with a 95 % band. A field of two modes is drawn as pictures: the first mode
    upwards, the second to the right. The dimensions of an xarray name the axes, and its coordinates place the points:
    each axis increases upwards or to the right whichever way the field is stored (north is up), and points that are
    not evenly spaced get cells of different sizes. Its name (or ``long_name``) and its units label the values.

    :param mean: ``(d_1,)`` or ``(d_1, d_2)``: an array of any kind; NaN, or masked, where the field is missing.
    :param std: standard deviation, of that shape. An xarray beside an xarray is matched by its coordinates.
    :param truth: what is true, or was observed; likewise.
    :param labels: names of the axes, one for each mode; by default the dimensions of an xarray.
    :param title: of the whole figure.
    :param axes: to draw on, as many as there are panels; by default new ones.

    >>> [each.get_title() for each in plot_field(np.ones((4, 5)), truth=np.zeros((4, 5)))]
    ['truth', 'mean', 'error (mean − truth)']
    """
    if len(np.shape(mean)) not in (1, 2):
        raise ValueError(f"a field to plot has one mode or two; got shape {np.shape(mean)} (choose one row, one frame)")
    modes, quantity = modes_of(mean, labels), _quantity(mean) or _quantity(truth)
    fields = {"mean": mean, "std": std, "truth": truth}
    given = {name: _values(each, mean, name) for name, each in fields.items() if each is not None}
    draw = _draw_curves if len(modes) == 1 else _draw_pictures
    drawn = draw(given["mean"], given.get("std"), given.get("truth"), modes, quantity, axes)
    if title is not None:
        drawn[0].figure.suptitle(title)
    return drawn


def _quantity(field: Any) -> str | None:
    """What the values of an xarray are, with their units."""
    if library_of(field) != "xarray":
        return None
    return with_units(str(field.attrs.get("long_name") or field.name or ""), field) or None


def _values(field: Any, mean: Any, name: str) -> np.ndarray:
    """The numbers of a field, stored as those of the mean are, NaN where missing."""
    if library_of(field) == library_of(mean) == "xarray" and set(field.dims) == set(mean.dims):
        field = _match(field, mean, name)
    values = np.asarray(filled(plain(field)), dtype=float)
    if values.shape != tuple(np.shape(mean)):
        raise ValueError(f"{name} must have the shape of mean, {tuple(np.shape(mean))}; got {values.shape}")
    return values


def _match(field: Any, mean: Any, name: str) -> Any:
    """An xarray with its dimensions and coordinates in the order of another's."""
    for dim in mean.dims:
        wanted, found = mean.get_index(dim), field.get_index(dim)
        if dim in mean.coords and dim in field.coords and not found.equals(wanted):
            where = found.get_indexer_for(wanted)
            if (where < 0).any():
                raise ValueError(
                    f"{name} and mean have different coordinates along {dim!r}: interpolate one to the other, or give"
                    f" {name} without coordinates, as {name}.to_numpy()"
                )
            field = field.isel({dim: where})
    return field.transpose(*mean.dims)


def _draw_curves(
    mean: np.ndarray,
    std: np.ndarray | None,
    truth: np.ndarray | None,
    modes: Sequence[Mode],
    quantity: str | None,
    axes: Sequence[Axes] | None,
) -> np.ndarray:
    drawn = new_axes(1 if truth is None else 2) if axes is None else np.asarray(axes)
    (mode,) = modes
    panels = [(drawn[0], mean, "prediction")]
    if truth is not None:
        drawn[0].plot(mode.places, truth[mode.order], color="black", lw=1, label="truth")
        panels.append((drawn[1], mean - truth, "error (mean − truth)"))
    for each, curve, title in panels:
        each.plot(mode.places, curve[mode.order], color="C0", lw=1.2, label="mean")
        if std is not None:
            low, high = curve - _BAND * std, curve + _BAND * std
            each.fill_between(mode.places, low[mode.order], high[mode.order], color="C0", alpha=0.25, label="95 %")
        mode.label_axis(each, "x")
        each.set(title=title, ylabel=quantity or "")
    drawn[0].legend()
    return drawn


def _draw_pictures(
    mean: np.ndarray,
    std: np.ndarray | None,
    truth: np.ndarray | None,
    modes: Sequence[Mode],
    quantity: str | None,
    axes: Sequence[Axes] | None,
) -> np.ndarray:
    shown = mean if truth is None else truth
    value_range = (np.nanmin(shown), np.nanmax(shown))
    panels: list[tuple[str, np.ndarray, tuple[float, float], str]] = []
    if truth is not None:
        panels.append(("truth", truth, value_range, "viridis"))
    panels.append(("mean", mean, value_range, "viridis"))
    if std is not None:
        panels.append(("standard deviation", std, (0.0, np.nanmax(std)), "viridis"))
    if truth is not None:
        largest = np.nanmax(np.abs(mean - truth))
        panels.append(("error (mean − truth)", mean - truth, (-largest, largest), "RdBu_r"))
    drawn = new_axes(len(panels), width=3.6, height=3.2) if axes is None else np.asarray(axes)
    for each, (title, field, limits, colours) in zip(drawn, panels, strict=True):
        picture = draw_picture(each, field, modes, limits, colours)
        each.figure.colorbar(picture, ax=each, shrink=0.85, label=quantity or "")
        each.set_title(title)
    return drawn
