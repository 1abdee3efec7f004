"""Arrays as people have them: NumPy, torch, pandas and xarray in, the same kind out.

This module reads arrays. :mod:`~pyro_gprn.estimator.template` gives predictions back in the same kind, and
:mod:`~pyro_gprn.estimator.kinds` tells the kind of an array and the labels of its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_array
from torch import Tensor

from pyro_gprn.estimator.kinds import check_rows, filled, is_lazy, library_of, plain
from pyro_gprn.estimator.template import Template
from pyro_gprn.outputs.extra import load
from pyro_gprn.outputs.memory import shared_tensor

__all__ = [
    "Template",
    "check_rows",
    "is_lazy",
    "library_of",
    "plain",
    "read_inputs",
    "read_lazy_outputs",
    "read_outputs",
    "writeable",
]


def read_inputs(X: Any) -> np.ndarray:
    """Inputs as a finite float64 array, ``(N, P)``. Anything else raises the errors that scikit-learn would raise.

    Masked inputs are refused too: every input must be known.

    >>> read_inputs([[1, 2], [3, 4]][::-1])
    array([[3., 4.],
           [1., 2.]])
    """
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        rows = np.unique(np.nonzero(np.ma.getmaskarray(X))[0])
        raise ValueError(
            f"every input must be known, but X is masked in {len(rows)} of {len(X)} rows (the first: row {rows[0]})"
        )
    return writeable(check_array(plain(X), dtype=np.float64, input_name="X"))


def read_outputs(Y: Any) -> Tensor:
    """Outputs as a tensor ``(N, …)`` of float32 or float64, NaN where missing or masked. Never write to it.

    The tensor shares the memory of ``Y`` wherever it can: a read-only array, a memory map and a view with gaps are not
    copied. What is copied: other types (integers, booleans and what is longer than 64 bits become float64, float16
    becomes float32), an array of which something is masked, and memory that torch cannot address (see
    :func:`~pyro_gprn.outputs.memory.shared_tensor`). The numbers themselves are not looked at: the first pass over Y
    finds an ``inf``.

    >>> read_outputs(np.ma.masked_equal([[1, 2], [3, 0]], 0))
    tensor([[1., 2.],
            [3., nan]], dtype=torch.float64)
    """
    if Y is None:
        raise ValueError("fit requires y to be passed, but the target y is None")
    outputs = _of_torch(Y) if isinstance(Y, Tensor) else shared_tensor(_of_numpy(Y))
    if outputs.dim() == 0:
        raise ValueError("Y must have one row for each row of X; got a single number")
    if 0 in outputs.shape:
        raise ValueError(f"Y must have at least one row and one output; got shape {tuple(outputs.shape)}")
    return outputs


def read_lazy_outputs(Y: Any) -> Any:
    """Outputs that are not in memory (see :func:`~pyro_gprn.estimator.kinds.is_lazy`) as a dask array of float32 or
    float64, ``(N, …)``, NaN where missing or masked. Nothing is computed; what can be refused is refused.

    >>> import dask.array
    >>> read_lazy_outputs(dask.array.ones((4, 6), dtype=int, chunks=3)).dtype
    dtype('float64')
    """
    dask_array = load("dask.array")
    if library_of(Y) == "zarr":
        chunks = (Y.shape[0], *(Y.shards or Y.chunks)[1:]) if Y.ndim else ()
        array = dask_array.from_array(Y, chunks=chunks)
    elif library_of(Y) == "xarray":
        array = Y.data if Y.chunks is not None else Y.chunk().data
        array = array if library_of(array) == "dask" else Y.chunk(Y.encoding.get("preferred_chunks", {})).data
    else:
        array = Y
    if any(size != size for size in array.shape):
        raise ValueError(
            f"Y has chunks of unknown size, shape {array.shape}: call Y.compute_chunk_sizes() first, or make it of"
            " arrays whose sizes are known"
        )
    if array.ndim == 0 or 0 in array.shape:
        raise ValueError(f"Y must have at least one row and one output; got shape {tuple(array.shape)}")
    if array.dtype == object:
        raise ValueError("Unknown label type: Y must hold numbers; got an array of dtype object")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"Y must hold real numbers; got an array of dtype {array.dtype}")
    dtype = np.float32 if array.dtype.kind == "f" and array.dtype.itemsize <= 4 else np.float64
    if isinstance(load("dask.array.utils").meta_from_array(array), np.ma.MaskedArray):
        array = array.astype(dtype).map_blocks(filled, dtype=dtype, meta=np.empty((0,) * array.ndim, dtype))
    return array.astype(dtype)


def _of_torch(Y: Tensor) -> Tensor:
    if Y.layout != torch.strided:
        raise TypeError(f"Y must be dense; got a tensor of layout {Y.layout}: use Y.to_dense()")
    if Y.is_complex():
        raise ValueError(f"Complex data not supported: Y must hold real numbers; got {Y.dtype}")
    if not Y.is_floating_point():
        return Y.detach().cpu().to(torch.float64)
    return Y.detach().cpu().to(Y.dtype if Y.dtype in (torch.float32, torch.float64) else torch.float32)


def _of_numpy(Y: Any) -> np.ndarray:
    array = _check_dense(filled(Y))
    if library_of(Y) == "pandas":
        array = _check_dense(Y.infer_objects()) if array.dtype == object else array  # objects that are all numbers
    if array.dtype == object:
        raise ValueError("Unknown label type: Y must hold numbers; got an array of dtype object")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"Y must hold numbers; got an array of dtype {array.dtype}")
    if array.dtype.kind == "f" and array.itemsize <= 4:
        return array.astype(np.float32, copy=False)
    return array.astype(np.float64, copy=False)


def _check_dense(Y: Any) -> np.ndarray:
    """scikit-learn's reading and errors, without its pass over the numbers."""
    return check_array(
        Y,
        dtype=None,
        input_name="Y",
        ensure_2d=False,
        allow_nd=True,
        ensure_all_finite=False,
        ensure_min_samples=0,
    )


def writeable(array: np.ndarray) -> np.ndarray:
    """The array, or a copy of it if torch cannot take it as it is: if it is read-only or has steps backwards."""
    return np.require(array, requirements=["C", "A", "W"])
