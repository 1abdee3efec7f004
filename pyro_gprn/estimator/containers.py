"""Arrays as people have them: NumPy, torch, pandas and xarray in, the same kind out.

Neither pandas nor xarray is needed: an object of theirs can only come from somebody who has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor


def library_of(array: Any) -> str:
    """``"torch"``, ``"pandas"`` or ``"xarray"`` for an array of theirs, otherwise ``"numpy"``."""
    library = type(array).__module__.partition(".")[0]
    return library if library in ("torch", "pandas", "xarray") else "numpy"


def plain(array: Any) -> Any:
    """What NumPy understands, without copying what it can see as it is."""
    return array.detach().cpu().numpy() if isinstance(array, Tensor) else array


def read_inputs(X: Any) -> np.ndarray:
    """Inputs as a finite float64 array, ``(N, P)``; scikit-learn's errors for anything else."""
    return writeable(check_array(plain(X), dtype=np.float64, input_name="X"))


def read_outputs(Y: Any) -> Tensor:
    """Outputs as a floating-point tensor ``(N, …)``, NaN where missing: a view where that can be."""
    if Y is None:
        raise ValueError("fit requires y to be passed, but the target y is None")
    array = plain(Y)
    if getattr(array, "dtype", None) is np.dtype(object):
        raise ValueError("Unknown label type: Y must hold numbers; got an array of dtype object")
    array = check_array(
        array,
        dtype=[np.float64, np.float32],
        input_name="Y",
        ensure_2d=False,
        allow_nd=True,
        ensure_all_finite="allow-nan",
        ensure_min_samples=0,
    )
    if array.ndim == 0:
        raise ValueError("Y must have one row for each row of X; got a single number")
    if 0 in array.shape:
        raise ValueError(f"Y must have at least one row and one output; got shape {array.shape}")
    return torch.from_numpy(writeable(np.ascontiguousarray(array)))


def writeable(array: np.ndarray) -> np.ndarray:
    """The array, or a copy of one that may not be written to: torch warns of tensors in such memory."""
    return array if array.flags.writeable else array.copy()


@dataclass(frozen=True)
class Template:
    """The kind, type and names of the outputs that came, for predictions to take after.

    :param library: whose array it was.
    :param shape: of one row, as it came: ``()`` for one output in a vector.
    :param dtype: of the predictions, as NumPy writes it.
    :param names: for pandas the columns, or the one name of a series; for xarray the dimensions, the rows' first.
    :param coordinates: for xarray, by dimension, of the outputs' dimensions that have them.
    """

    library: str
    shape: tuple[int, ...]
    dtype: str
    names: list[Any] = field(default_factory=list)
    coordinates: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, Y: Any, outputs: Tensor) -> Template:
        """:param outputs: ``Y`` as :func:`read_outputs` reads it."""
        shape, dtype, library = tuple(outputs.shape[1:]), str(outputs.numpy().dtype), library_of(Y)
        if library == "pandas":
            return cls(library, shape, dtype, [Y.name] if Y.ndim == 1 else list(Y.columns))
        if library == "xarray":
            coordinates = {d: np.asarray(Y.coords[d].values) for d in Y.dims[1:] if d in Y.coords}
            return cls(library, shape, dtype, list(Y.dims), coordinates)
        return cls(library, shape, dtype)

    def output_names(self) -> np.ndarray:
        """A name for each of the flattened outputs, ``(D,)``: the columns', or where it stands."""
        if self.library == "pandas" and self.shape != ():
            return np.array([str(name) for name in self.names])
        return np.array([", ".join(map(str, place)) or "0" for place in np.ndindex(*self.shape)])

    def wrap(self, values: Tensor, X: Any, draws: bool = False) -> Any:
        """Predictions ``(N*, D)``, or ``(n, N*, D)`` of draws, in the kind and shape of the outputs.

        :param X: the new inputs as they came: for pandas and xarray their labels become the rows'.
        """
        values = values.reshape(*values.shape[:-1], *self.shape).to(getattr(torch, self.dtype))
        if self.library == "torch":
            return values
        array = values.cpu().numpy()
        if self.library == "pandas" and not draws:
            return self._pandas(array, X)
        if self.library == "xarray":
            return self._xarray(array, X, draws)
        return array

    def _pandas(self, array: np.ndarray, X: Any) -> Any:
        import pandas as pd

        index = X.index if library_of(X) == "pandas" else None
        if self.shape == ():
            return pd.Series(array, index=index, name=self.names[0])
        return pd.DataFrame(array, index=index, columns=self.names)

    def _xarray(self, array: np.ndarray, X: Any, draws: bool) -> Any:
        import xarray as xr

        rows, coordinates = self.names[0], dict(self.coordinates)
        labels = _row_labels(X, rows)
        if labels is not None:
            coordinates[rows] = labels
        return xr.DataArray(array, dims=["draw", *self.names] if draws else self.names, coords=coordinates)


def _row_labels(X: Any, rows: str) -> Any:
    """Labels of the rows of X, if it has any."""
    if library_of(X) == "xarray":
        return X.coords[X.dims[0]].values if X.dims[0] == rows and rows in X.coords else None
    return X.index.to_numpy() if library_of(X) == "pandas" else None
