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

from pyro_gprn.estimator.kinds import check_rows, filled, library_of, plain
from pyro_gprn.estimator.template import Template
from pyro_gprn.outputs.memory import shared_tensor

__all__ = [
    "Template",
    "check_rows",
    "library_of",
    "plain",
    "read_inputs",
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
