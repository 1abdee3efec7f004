"""Correlations between outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Size

from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.estimator.kinds import filled, library_of, plain
from pyro_gprn.outputs.selection import Outputs, OutputSelection, evenly_spread
from pyro_gprn.plots.axes import Mode, at_most, draw_picture, modes_of, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: At most this many outputs of one mode are compared, each with each, unless others are asked for.
MOST_OUTPUTS = 50
#: About this many points of a field are compared with one of them, unless others are asked for.
MOST_POINTS = 400


def plot_correlation(
    regressor: GPRNRegressor,
    x: Any,
    outputs: Outputs = None,
    axes: Axes | None = None,
    *,
    reference: int | Sequence[int] | None = None,
) -> Axes:
    """The correlation between outputs at one input: in a GPRN it changes with the input.

    Outputs of one mode are drawn as a matrix, each with each. A field of two modes is drawn as a picture of that field:
    the correlation of its points with one of them, the reference, which is marked. Of a field with more modes the
    picture shows the last two, at the place that the reference has in the others.

    :param regressor: fitted, with ``inference="collapsed"``.
    :param x: one input, ``(P,)``.
    :param outputs: which outputs to draw, as for :func:`~pyro_gprn.posterior_predictive`, leaving at most two modes; by
        default at most 50 of one mode, or about 400 of two, evenly spread.
    :param axes: to draw on; by default new ones.
    :param reference: for pictures, the output that the others are compared with: its place ``(i_1, …, i_M)`` in the
        field, or its number among the flattened outputs. By default the one in the middle or, if that one was never
        observed, the nearest to it that was.

    >>> X = np.linspace(0, 1, 10)[:, None]
    >>> settings = {"kernel_w": "rbf", "own_kernels": False, "selection": False, "seed": 0, "progress": False}
    >>> r = GPRNRegressor(2, steps=20, **settings).fit(X, np.sin(X + np.arange(6)))
    >>> plot_correlation(r, [0.5]).get_xlabel()
    'output'
    >>> field = r.set_params(output_shape=(2, 3)).fit(X, np.sin(X + np.arange(6)))
    >>> plot_correlation(field, [0.5], reference=(0, 2)).get_ylabel()
    'mode 1'
    """
    row = _row(regressor, x)
    drawn_modes = _drawn_modes(outputs, len(regressor.output_shape_))
    if len(drawn_modes) > 2:
        raise ValueError(
            f"outputs must leave at most two modes to draw; got {len(drawn_modes)}: choose one place, an integer, of"
            " each of the others"
        )
    if len(drawn_modes) == 2:
        return _draw_field(regressor, row, outputs, drawn_modes, reference, axes)
    if reference is not None:
        raise ValueError("a reference is for fields of two modes; outputs of one mode are compared each with each")
    return _draw_matrix(regressor, row, outputs, axes)


def _row(regressor: GPRNRegressor, x: Any) -> Any:
    """One input as a row, with the names of its columns if the regressor knows them."""
    row = np.asarray(filled(plain(x)), dtype=float).reshape(1, -1)
    names = getattr(regressor, "feature_names_in_", None)
    if names is None:
        return row
    import pandas as pd

    return pd.DataFrame(row, columns=names)


def _at(row: Any) -> str:
    return f"at x = ({', '.join(f'{value:.3g}' for value in np.asarray(row)[0])})"


def _drawn_modes(outputs: Outputs, n_modes: int) -> list[int]:
    """The modes that a choice of outputs leaves to draw; for a choice among flat outputs, one."""
    if outputs is None:
        return list(range(n_modes))[-2:]
    return [m for m, each in enumerate(outputs) if not isinstance(each, int)] if isinstance(outputs, tuple) else [0]


def _draw_matrix(regressor: GPRNRegressor, row: Any, outputs: Outputs, axes: Axes | None) -> Axes:
    """The correlation of each output with each."""
    shape = regressor.output_shape_
    outputs = evenly_spread(shape, MOST_OUTPUTS) if outputs is None else outputs
    correlation = regressor.output_correlation(row, outputs)[0]
    names = regressor.output_names_[_positions(outputs, shape)]
    axes = new_axes(1)[0] if axes is None else axes
    picture = axes.imshow(correlation, vmin=-1, vmax=1, cmap="RdBu_r")
    axes.figure.colorbar(picture, ax=axes, label="correlation")
    shown = at_most(8, len(names))
    axes.set_xticks(shown, names[shown], rotation=45)
    axes.set_yticks(shown, names[shown])
    axes.set(xlabel="output", ylabel="output", title=f"correlation {_at(row)}")
    return axes


def _draw_field(
    regressor: GPRNRegressor,
    row: Any,
    outputs: Outputs,
    drawn_modes: Sequence[int],
    reference: int | Sequence[int] | None,
    axes: Axes | None,
) -> Axes:
    """The correlation of one output with others, as a picture over two modes."""
    shape = regressor.output_shape_
    place = None if reference is None else _place(reference, shape)
    chosen = _chosen(outputs, shape, drawn_modes, place)
    grid = [len(each) for each in chosen]
    correlation = regressor.output_correlation(row, tuple(each.tolist() for each in chosen))[0]
    at = _observed(correlation.diagonal().reshape(grid), chosen, place)
    all_modes = _output_modes(regressor, row)
    modes = [all_modes[m].select(chosen[m]) for m in drawn_modes]
    field = correlation.reshape(*grid, *grid)[at].reshape([grid[m] for m in drawn_modes])
    axes = new_axes(1, width=5.4, height=4.2)[0] if axes is None else axes
    picture = draw_picture(axes, field, modes, (-1.0, 1.0), "RdBu_r")
    axes.figure.colorbar(picture, ax=axes, label="correlation with the marked output")
    vertical, horizontal = (mode.place_of(at[m]) for m, mode in zip(drawn_modes, modes, strict=True))
    axes.plot(horizontal, vertical, "o", mfc="white", mec="black", ms=7, mew=1.5)
    names = (mode.name_of(each[i]) for mode, each, i in zip(all_modes, chosen, at, strict=True))
    axes.set_title(f"correlation with ({', '.join(names)})\n{_at(row)}")
    return axes


def _place(reference: int | Sequence[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where an output stands in the field, ``(i_1, …, i_M)``."""
    try:
        if isinstance(reference, (int, np.integer)):
            return tuple(int(index) for index in np.unravel_index(reference, shape))
        np.ravel_multi_index(tuple(reference), shape)
    except ValueError:
        raise ValueError(
            f"the reference must be a place in the outputs' shape {shape}, such as {tuple(n // 2 for n in shape)}, or"
            f" a number below {int(np.prod(shape))}; got {reference!r}"
        ) from None
    return tuple(reference)


def _chosen(
    outputs: Outputs, shape: tuple[int, ...], drawn_modes: Sequence[int], place: tuple[int, ...] | None
) -> list[np.ndarray]:
    """For each mode the indices that are compared, increasing, those of the reference among them."""
    if outputs is None:
        centre = [size // 2 for size in shape] if place is None else place
        outputs = (*([index] for index in centre[:-2]), *evenly_spread(shape[-2:], MOST_POINTS))
    chosen = [np.unique(each) for each in np.unravel_index(_positions(outputs, shape), shape)]
    for m, index in enumerate(place or ()):
        if m not in drawn_modes and index not in chosen[m]:
            raise ValueError(f"outputs={outputs!r} leaves out the reference {place}: choose {index} of mode {m + 1}")
        chosen[m] = np.union1d(chosen[m], [index])
    return chosen


def _positions(outputs: Outputs, shape: tuple[int, ...]) -> np.ndarray:
    """The chosen outputs, as numbers among the flattened ones."""
    return np.arange(int(np.prod(shape)))[OutputSelection(outputs, Size(shape)).positions(slice(None))]


def _observed(variances: np.ndarray, chosen: list[np.ndarray], place: tuple[int, ...] | None) -> tuple[int, ...]:
    """Where the reference stands among the chosen outputs: outputs that were never observed have no correlations.

    :param variances: of the chosen outputs, NaN where there is none.
    :param place: the reference in the whole field; None is the nearest to the middle that was observed.
    """
    observed = np.argwhere(np.isfinite(variances))
    middle = [len(each) // 2 for each in chosen]
    wanted = middle if place is None else [int(np.searchsorted(*pair)) for pair in zip(chosen, place, strict=True)]
    distances = np.square(observed - wanted).sum(1)
    if len(observed) == 0 or (place is not None and distances.min() > 0):
        raise ValueError(f"the reference {place or ''} was never observed: nothing is correlated with it")
    return tuple(observed[distances.argmin()].tolist())


def _output_modes(regressor: GPRNRegressor, row: Any) -> list[Mode]:
    """The modes of the outputs, with names and coordinates if predictions have them."""
    predicted = regressor.predict(row)
    is_named = library_of(predicted) == "xarray" and predicted.shape[1:] == regressor.output_shape_
    return modes_of(predicted[0] if is_named else np.broadcast_to(0.0, regressor.output_shape_))
