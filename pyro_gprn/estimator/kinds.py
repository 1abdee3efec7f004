"""The kinds of array that people have, and the labels of their rows.

Neither pandas nor xarray is needed: an object of theirs can only come from somebody who has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

_CLASSES = {"torch.Tensor", "pandas.Series", "pandas.DataFrame", "xarray.DataArray", "dask.Array", "zarr.Array"}


def library_of(array: Any) -> str:
    """``"torch"``, ``"pandas"``, ``"xarray"``, ``"dask"`` or ``"zarr"`` for an array of theirs, otherwise ``"numpy"``.

    >>> library_of(np.ones(3)), library_of([1, 2])
    ('numpy', 'numpy')
    """
    for kind in type(array).__mro__:  # a subclass, such as a GeoDataFrame, is of its parent's library
        library = kind.__module__.partition(".")[0]
        if f"{library}.{kind.__name__}" in _CLASSES:
            return library
    return "numpy"


def plain(array: Any) -> Any:
    """The array in a form that NumPy understands, without a copy if the memory can be shared.

    >>> import torch
    >>> plain(torch.ones(2))
    array([1., 1.], dtype=float32)
    """
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else array


def filled(array: Any) -> Any:
    """A NumPy masked array as an ordinary one with NaN where it is masked; anything else as it is.

    The numbers are copied only if some of them are masked.

    >>> filled(np.ma.masked_values([1, 2, -999], -999))
    array([ 1.,  2., nan])
    """
    if not isinstance(array, np.ma.MaskedArray):
        return array
    if not np.ma.is_masked(array) or array.dtype.kind not in "biuf":
        return array.data
    numbers = array.data.astype(array.dtype if array.dtype.kind == "f" else np.float64)
    numbers[np.ma.getmaskarray(array)] = np.nan
    return numbers


def is_lazy(array: Any) -> bool:
    """True if an array is not in memory: one of dask or zarr, or one of xarray that holds such an array.

    >>> is_lazy(np.ones(3))
    False
    """
    library = library_of(array)
    if library == "xarray":
        return array.chunks is not None or not array.variable._in_memory
    return library in ("dask", "zarr")


def row_labels(array: Any) -> Any:
    """The labels of the rows, a pandas index, for an array of pandas or xarray; otherwise None.

    Rows that are only counted, 0, 1, 2 and so on in a ``pandas.RangeIndex``, have no labels.

    >>> import pandas
    >>> list(row_labels(pandas.Series([1.0, 2.0], index=["a", "b"])))
    ['a', 'b']
    >>> row_labels(pandas.Series([1.0, 2.0])) is None
    True
    """
    library = library_of(array)
    if library not in ("pandas", "xarray") or array.ndim == 0:
        return None
    index = array.index if library == "pandas" else array.get_index(array.dims[0])
    is_count = type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1
    return None if is_count else index


def take_rows(array: Any, rows: np.ndarray) -> Any:
    """Some rows of an array, in its own kind; of a list as a NumPy array.

    >>> take_rows([1.0, 2.0, 3.0], np.array([2, 0]))
    array([3., 1.])
    """
    library = library_of(array)
    if library == "pandas":
        return array.iloc[rows]
    return array[rows] if library in ("torch", "xarray", "dask") else np.asarray(filled(array))[rows]


def check_rows(X: Any, Y: Any) -> None:
    """Raises an error if the rows of X and of Y are labelled, and differently.

    Rows are paired by position. Labels in another order, or other labels, therefore mean that inputs would be paired
    with outputs of other runs; reordering them unasked would surprise those who meant the positions. Nothing is
    compared if X or Y has no labels (see :func:`row_labels`), or if they have different numbers of rows.

    >>> import pandas
    >>> X, Y = pandas.Series([1.0, 2.0], index=["a", "b"]), pandas.Series([3.0, 4.0], index=["b", "a"])
    >>> check_rows(X, Y.loc[X.index])
    >>> check_rows(X, Y)
    Traceback (most recent call last):
    ValueError: X and Y label their rows differently: row 0 is 'a' in X and 'b' in Y. ...
    """
    of_X, of_Y = row_labels(X), row_labels(Y)
    if of_X is None or of_Y is None or len(of_X) != len(of_Y) or of_X.equals(of_Y):
        return
    pairs = enumerate(zip(of_X, of_Y, strict=True))
    different = next((row for row, (x, y) in pairs if not (x == y or (x != x and y != y))), None)  # NaN is like NaN
    if different is not None:
        raise ValueError(
            f"X and Y label their rows differently: row {different} is {_show(of_X[different])} in X and"
            f" {_show(of_Y[different])} in Y. Rows are paired by position, so bring both into one order first, with"
            f" {_how_to_align(X, Y)}; or give one of them without labels, as X.to_numpy()"
        )


def _show(label: Any) -> str:
    return repr(label.item() if isinstance(label, np.generic) else label)


def _how_to_align(X: Any, Y: Any) -> str:
    libraries = library_of(X), library_of(Y)
    if libraries == ("xarray", "xarray") and X.dims[0] == Y.dims[0]:
        return "X, Y = xarray.align(X, Y)"
    labels = "X.index" if libraries[0] == "pandas" else f"X.get_index({X.dims[0]!r})"
    return f"Y = Y.loc[{labels}]" if libraries[1] == "pandas" else f"Y = Y.sel({{{Y.dims[0]!r}: {labels}}})"
