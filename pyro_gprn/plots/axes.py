"""Axes, and the modes of a field along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pyro_gprn.estimator.kinds import library_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable

#: The colour where a field is missing.
MISSING = "0.8"


def new_axes(n: int, width: float = 5.0, height: float = 3.6) -> np.ndarray:
    """New axes side by side, ``(n,)``; without matplotlib an error that names the extra to install."""
    try:
        from matplotlib import pyplot
    except ImportError as missing:
        raise ImportError("plots need matplotlib: pip install 'pyro-gprn[plot]'") from missing
    return pyplot.subplots(1, n, figsize=(width * n, height), layout="constrained", squeeze=False)[1][0]


@dataclass(frozen=True)
class Mode:
    """One mode of a field as an axis of a picture."""

    label: str  #: of the axis
    places: np.ndarray  #: of the points along the axis, increasing
    order: np.ndarray  #: the index that brings the field into the order of the places
    names: list[str] | None = None  #: of the points, if they are no numbers or dates: places are then counted

    @classmethod
    def of(cls, label: str, places: np.ndarray) -> Mode:
        """:param places: as stored: numbers, dates, time spans or names, in any order."""
        if places.dtype.kind == "m":
            label, places = f"{label} [days]", places / np.timedelta64(1, "D")
        if places.dtype.kind not in "iufM" or (places != places).any():
            count = np.arange(len(places))
            return cls(label, count, count, [str(name) for name in places])
        order = np.argsort(places, kind="stable")
        return cls(label, places[order], order)

    def select(self, indices: np.ndarray) -> Mode:
        """The mode with some of its points only, by their index as stored."""
        kept = np.isin(self.order, indices)
        order = np.searchsorted(indices, self.order[kept])
        return Mode(self.label, self.places[kept], order, self.names and [self.names[i] for i in indices])

    @property
    def is_uniform(self) -> bool:
        """True if the points are evenly spaced numbers, up to rounding."""
        if self.places.dtype.kind == "M":
            return False
        places = self.places.astype(float)
        even = np.linspace(places[0], places[-1], len(places))
        return bool(np.abs(places - even).max() <= 0.01 * (places[-1] - places[0]) / max(1, len(places) - 1))

    @property
    def edges(self) -> np.ndarray:
        """The borders of cells around the points: half way to the next, one more than there are points."""
        places = self.places.astype("M8[ns]") if self.places.dtype.kind == "M" else self.places.astype(float)
        half = np.diff(places) / 2
        if len(places) == 1:
            half = np.array([np.timedelta64(12, "h") if places.dtype.kind == "M" else 0.5])
        return np.concatenate([places[:1] - half[:1], places[: len(places) - 1] + half, places[-1:] + half[-1:]])

    def place_of(self, index: int) -> Any:
        """The place of the point that is stored at an index."""
        return self.places[self.order == index][0]

    def name_of(self, index: int) -> str:
        """The name, date or number of the point that is stored at an index."""
        if self.names is not None:
            return self.names[index]
        place = self.place_of(index)
        return str(place.astype("M8[s]")) if self.places.dtype.kind == "M" else f"{place:.6g}"

    def label_axis(self, axes: Axes, which: Literal["x", "y"]) -> None:
        """Writes the label, and ticks that suit the places, to an axis of a picture."""
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        axis: Axis = axes.xaxis if which == "x" else axes.yaxis
        axis.set_label_text(self.label)
        if self.names is not None:
            shown = at_most(8, len(self.names))
            axis.set_ticks(self.places[shown], [self.names[i] for i in shown])
            axes.tick_params(which, rotation=45 if which == "x" else 0)
        elif self.places.dtype.kind == "M":
            locator = AutoDateLocator(minticks=3, maxticks=6)
            axis.set_major_locator(locator)
            axis.set_major_formatter(ConciseDateFormatter(locator))


def modes_of(field: Any, labels: Sequence[str] | None = None) -> list[Mode]:
    """The modes of a field, with the names and coordinates of an xarray."""
    shape = tuple(np.shape(field))
    if labels is not None and len(labels) != len(shape):
        raise ValueError(f"labels must name the {len(shape)} modes of a field of shape {shape}; got {list(labels)}")
    names = [f"mode {m + 1}" for m in range(len(shape))]
    places = [np.arange(size) for size in shape]
    if library_of(field) == "xarray":
        names = [with_units(str(dim), field.coords.get(dim)) for dim in field.dims]
        known = zip(field.dims, places, strict=True)
        places = [np.asarray(field.coords[dim]) if dim in field.coords else count for dim, count in known]
    return [Mode.of(*each) for each in zip(names if labels is None else labels, places, strict=True)]


def with_units(name: str, array: Any) -> str:
    """A name with the units that an xarray has among its attributes."""
    units = "" if array is None else str(array.attrs.get("units", ""))
    return name if units in ("", "1") else f"{name} [{units}]".strip()


def draw_picture(
    axes: Axes, field: np.ndarray, modes: Sequence[Mode], limits: tuple[float, float], colours: str
) -> ScalarMappable:
    """Draws a field of two modes, ``(d_1, d_2)`` as it is stored, the first mode upwards."""
    vertical, horizontal = modes
    field = field[np.ix_(vertical.order, horizontal.order)]
    style: dict[str, Any] = {"vmin": limits[0], "vmax": limits[1], "cmap": colours}
    picture: ScalarMappable
    if vertical.is_uniform and horizontal.is_uniform:
        extent = (*horizontal.edges[[0, -1]], *vertical.edges[[0, -1]])
        picture = axes.imshow(field, origin="lower", aspect="auto", extent=extent, **style)
    else:
        picture = axes.pcolormesh(horizontal.edges, vertical.edges, field, **style)
    axes.set(xlim=horizontal.edges[[0, -1]], ylim=vertical.edges[[0, -1]], facecolor=MISSING)
    horizontal.label_axis(axes, "x")
    vertical.label_axis(axes, "y")
    return picture


def at_most(n: int, size: int) -> np.ndarray:
    """At most ``n`` of ``size`` positions, evenly spread."""
    return np.unique(np.linspace(0, size - 1, min(size, n)).round().astype(int))
