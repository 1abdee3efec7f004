"""Memory that torch and NumPy share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def shared_tensor(array: np.ndarray) -> Tensor:
    """A tensor that shares the memory of an array, also of a read-only one. Never write to the tensor.

    torch warns of read-only memory, and hiding a warning changes the filters of all threads. So torch is shown the
    memory as if it could be written to. Writing would change what the array's owner meant to protect, or crash.

    The array is copied only if torch cannot address it: steps backwards (``array[::-1]``), steps that are no multiple
    of a number's size (a field of a record array), or another machine's byte order.

    >>> array = np.broadcast_to(1.0, (2, 3))
    >>> shared_tensor(array).data_ptr() == array.ctypes.data
    True
    """
    is_regular = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    if not (is_regular and array.flags.aligned and array.dtype.isnative):
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Unprotected(array)))


class _Unprotected:
    """The memory of an array, shown to NumPy as writeable, and kept alive as long as it is used."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        seen = array.__array_interface__
        self.__array_interface__ = {**seen, "data": (seen["data"][0], False)}
