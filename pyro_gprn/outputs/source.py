"""Where the outputs Y come from: tensors, NumPy arrays, memory maps, or anything else that can be sliced.

A source is read a block of outputs at a time, in the type that Y has. Nothing here copies Y, reshapes the whole of it
or holds more of it than one block, so that Y may lie on disk.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from pyro_gprn.outputs.memory import shared_tensor

#: A pass over outputs in memory takes about this many bytes (in float64) at a time: what a processor's cache holds.
CHUNK_BYTES = 2**22
#: A pass over outputs that may have to be read from elsewhere, such as a disk, takes this many bytes at a time.
READ_BYTES = 2**26
#: How many numbers are compared to tell whether outputs have changed.
SAMPLE_SIZE = 1024
#: Outputs in one block of a digest. Another number would give other digests.
_DIGEST_WIDTH = 2**14


class OutputValuesError(ValueError):
    """Outputs cannot be used because of the values that they have."""


class OutputSource(ABC):
    """Outputs of N rows that are read a block at a time.

    :param shape: ``(N, d_1, …, d_M)``.
    :param dtype: the floating type in which blocks come.
    :param device: the device on which blocks come.
    """

    is_in_memory = True  #: False if reading a block may take as long as a file or another computation does

    def __init__(self, shape: Size, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    @property
    def n_rows(self) -> int:
        """The number of rows, ``N``."""
        return self.shape[0]

    @property
    def n_outputs(self) -> int:
        """The number of outputs, ``D = d_1 ⋯ d_M``."""
        return self.shape[1:].numel()

    @abstractmethod
    def read(self, positions: slice | Tensor) -> Tensor:
        """Reads some of the flattened outputs, ``(N, b)``, NaN where missing. They may be a view: never write to them.

        :param positions: which of the D outputs: a slice without a step, or their positions ``(b,)``.
        """

    @abstractmethod
    def is_of(self, outputs: Any) -> bool:
        """True if this source reads ``outputs``, unchanged since it was made (see :class:`Identity`)."""

    def chunks(self, chunk_bytes: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Reads all outputs and yields them a block ``(N, b)`` at a time, with the positions of each block.

        :param chunk_bytes: about how many bytes one block takes in float64. None takes :data:`CHUNK_BYTES`, wherever Y
            lies, so that sums over blocks are the same to the bit; several blocks are read at once where that pays.
        """
        width = max(1, (chunk_bytes or CHUNK_BYTES) // (8 * self.n_rows))
        at_once = width if chunk_bytes else width * max(1, self._read_bytes // CHUNK_BYTES)
        for first in range(0, self.n_outputs, at_once):
            outputs = self.read(slice(first, min(first + at_once, self.n_outputs)))
            for start in range(0, outputs.shape[1], width):
                block = outputs[:, start : start + width]
                yield slice(first + start, first + start + block.shape[1]), block

    @property
    def _read_bytes(self) -> int:
        """About how many bytes are read at once, counted in float64."""
        return CHUNK_BYTES

    def digest(self) -> str:
        """A fingerprint of all values, their shape and type, from one pass over Y. How Y is stored does not matter."""
        summary = hashlib.sha256(f"{self.dtype}{tuple(self.shape)}".encode())
        for _, block in self.chunks(8 * self.n_rows * _DIGEST_WIDTH):
            summary.update(np.ascontiguousarray(block.cpu().numpy()).data)
        return summary.hexdigest()

    def reshape(self, output_shape: Size) -> OutputSource:
        """The same outputs seen as a tensor of another ``output_shape``."""
        return self if self.shape[1:] == output_shape else ReshapedOutputs(self, output_shape)


class ArrayOutputs(OutputSource):
    """Outputs in an array: a torch tensor, or anything that slices into NumPy arrays (NumPy, a memory map, zarr, dask).

    :param array: ``(N, d_1, …, d_M)``, NaN where an output is missing. It is referred to, never copied.

    >>> field = ArrayOutputs(np.arange(24.0).reshape(2, 3, 4))
    >>> field.read(slice(5, 9))
    tensor([[ 5.,  6.,  7.,  8.],
            [17., 18., 19., 20.]], dtype=torch.float64)
    >>> field.read(torch.tensor([0, 11]))
    tensor([[ 0., 11.],
            [12., 23.]], dtype=torch.float64)
    """

    def __init__(self, array: Any) -> None:
        dtype = array.dtype if isinstance(array, Tensor) else torch_dtype(array.dtype)
        device = array.device if isinstance(array, Tensor) else torch.device("cpu")
        super().__init__(Size(array.shape), dtype, device)
        self.array = array
        self._flat = _flat_view(array)
        self._identity = Identity(array)

    @property
    def _read_bytes(self) -> int:
        return CHUNK_BYTES if isinstance(self.array, Tensor) else READ_BYTES

    def is_of(self, outputs: Any) -> bool:
        return self._identity.is_of(outputs)

    def read(self, positions: slice | Tensor) -> Tensor:
        if self._flat is not None:
            index: Any = positions
            if isinstance(positions, Tensor) and not isinstance(self._flat, Tensor):
                index = positions.numpy()  # NumPy would take a tensor of one number for that number
            return as_tensor(self._flat[:, index])
        nothing = torch.empty(self.n_rows, 0, dtype=self.dtype, device=self.device)
        if isinstance(positions, slice):
            start, stop, _ = positions.indices(self.n_outputs)
            parts = [as_tensor(part).reshape(self.n_rows, -1) for part in self._parts(start, stop, ())]
        else:
            parts = [self.read(run) for run in _runs(positions.tolist())]
        return torch.cat([nothing, *parts], dim=1)

    def _parts(self, start: int, stop: int, fixed: tuple[int, ...]) -> Iterator[Any]:
        """Slices of the array with the outputs from ``start`` to ``stop``, counted within the ``fixed`` indices."""
        # Outputs are counted row-major, so an index of the next mode stands for a slab of them. What begins or ends
        # inside a slab is looked for one mode further on; the whole slabs between come in one slice.
        if start >= stop:
            return
        modes = self.shape[1 + len(fixed) :]
        if len(modes) <= 1:
            index: tuple[int | slice, ...] = (slice(None), *fixed, slice(start, stop))
            yield self.array[index if modes else index[:-1]]
            return
        slab = math.prod(modes[1:])
        while start < stop:
            slab_number, begin = divmod(start, slab)
            whole = (stop - start) // slab if begin == 0 else 0
            if whole:
                slabs: tuple[int | slice, ...] = (slice(None), *fixed, slice(slab_number, slab_number + whole))
                yield self.array[slabs]
                start += whole * slab
            else:
                end = min(slab, begin + stop - start)
                yield from self._parts(begin, end, (*fixed, slab_number))
                start += end - begin


class ReshapedOutputs(OutputSource):
    """The outputs of a source, seen as a tensor of another shape.

    :param source: reads the outputs.
    :param output_shape: the new ``(d_1, …, d_M)``, with the same product.

    >>> ReshapedOutputs(ArrayOutputs(torch.ones(2, 12)), Size((3, 4))).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, source: OutputSource, output_shape: Size) -> None:
        super().__init__(Size((source.n_rows, *output_shape)), source.dtype, source.device)
        self._source = source

    def read(self, positions: slice | Tensor) -> Tensor:
        return self._source.read(positions)

    def is_of(self, outputs: Any) -> bool:
        return self._source.is_of(outputs)


class RowsOfOutputs(OutputSource):
    """Some rows of the outputs of a source.

    :param source: reads the outputs in all rows.
    :param rows: the numbers of the rows, ``(n,)``.

    >>> RowsOfOutputs(ArrayOutputs(torch.tensor([[1.0], [2.0], [3.0]])), torch.tensor([2, 0])).read(slice(0, 1))
    tensor([[3.],
            [1.]])
    """

    def __init__(self, source: OutputSource, rows: Tensor) -> None:
        super().__init__(Size((len(rows), *source.shape[1:])), source.dtype, source.device)
        self._source, self._rows = source, rows

    def read(self, positions: slice | Tensor) -> Tensor:
        return self._source.read(positions)[self._rows]

    @property
    def _read_bytes(self) -> int:
        # A block of all rows is read before some are taken: it is that which must not be large.
        return max(1, READ_BYTES * self.n_rows // self._source.n_rows)

    def is_of(self, outputs: Any) -> bool:
        return outputs is self


class StandardizedOutputs(OutputSource):
    """The standardised outputs of a source, ``(y − mean) / scale``, computed as they are read, in float64.

    :param source: reads the outputs as they are.
    :param mean: the mean of each of the flattened outputs, ``(D,)``, in float64.
    :param scale: one number ``()``, or one for each output ``(D,)``.
    :param present: the source's positions of the outputs that are kept, ``(D,)``; None keeps all.

    >>> source = StandardizedOutputs(ArrayOutputs(torch.tensor([[1.0, 4.0]])), torch.zeros(2), torch.tensor(2.0))
    >>> source.read(slice(0, 2))
    tensor([[0.5000, 2.0000]], dtype=torch.float64)
    """

    def __init__(self, source: OutputSource, mean: Tensor, scale: Tensor, present: Tensor | None = None) -> None:
        shape = source.shape if present is None else Size((source.n_rows, len(present)))
        super().__init__(shape, torch.float64, source.device)
        self.source, self.mean, self.scale, self.present = source, mean, scale, present

    def read(self, positions: slice | Tensor) -> Tensor:
        block = self.source.read(positions if self.present is None else self.present[positions])
        scale = self.scale if self.scale.dim() == 0 else self.scale[positions]
        return (block.double() - self.mean[positions]).div_(scale)

    def is_of(self, outputs: Any) -> bool:
        return outputs is self

    @property
    def _read_bytes(self) -> int:
        return self.source._read_bytes


class Identity:
    """Tells whether an array is the one that was given, and unchanged.

    An array is known by the object that owns its memory, which is kept alive here, and by where in it the values lie.
    Changes in place are noticed by torch's own count of them. Changes that torch does not see, made through NumPy to
    memory that the two share, are noticed if they touch one of :data:`SAMPLE_SIZE` numbers, evenly spread. **A change
    through NumPy that misses all of these goes unnoticed**: after one, pass a copy (``Y.clone()``, ``Y.copy()``).

    >>> Y = torch.zeros(3, 4)
    >>> identity = Identity(Y)
    >>> identity.is_of(Y), identity.is_of(Y.reshape(3, 2, 2)), identity.is_of(torch.zeros(3, 4))
    (True, True, False)
    >>> Y.numpy()[1, 2] = 5.0
    >>> identity.is_of(Y)
    False
    """

    def __init__(self, array: Any) -> None:
        self._owner, self._place, self._version = _owner(array), _place(array), _version(array)
        self._sample = _sample(array)  # as bytes, in which NaN is like NaN

    def is_of(self, array: Any) -> bool:
        """True if ``array`` is the one that was given, with the values that it had then."""
        return (
            _owner(array) is self._owner
            and _place(array) == self._place
            and _version(array) == self._version
            and _sample(array) == self._sample
        )


def as_source(outputs: Any) -> OutputSource:
    """A source that reads some outputs; a source is returned as it is.

    :param outputs: an array ``(N, d_1, …, d_M)``, or a source.

    >>> source = as_source(torch.ones(2, 3))
    >>> source.shape, as_source(source) is source
    (torch.Size([2, 3]), True)
    """
    return outputs if isinstance(outputs, OutputSource) else ArrayOutputs(outputs)


def as_tensor(block: Any) -> Tensor:
    """A block of an array as a tensor: a view if possible, so never write to it."""
    return block if isinstance(block, Tensor) else shared_tensor(np.asarray(block))


def _flat_view(array: Any) -> Any:
    """The array with its outputs flattened, ``(N, D)``, if that is a view of it; otherwise None."""
    if isinstance(array, Tensor):
        try:
            return array.view(len(array), -1)
        except RuntimeError:  # its strides do not allow it
            return None
    if isinstance(array, np.ndarray) and (array.flags.c_contiguous or array.ndim <= 2):
        return array.reshape(len(array), -1)
    return None


def _runs(positions: list[int]) -> Iterator[slice]:
    """Positions as slices: one for each run of neighbouring positions."""
    if not positions:
        return
    start = previous = positions[0]
    for position in positions[1:]:
        if position != previous + 1:
            yield slice(start, previous + 1)
            start = position
        previous = position
    yield slice(start, previous + 1)


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch type of a NumPy type."""
    return torch.from_numpy(np.empty(0, dtype=np.dtype(dtype).newbyteorder("="))).dtype


def _owner(array: Any) -> Any:
    """The object that owns an array's memory: itself, or what it is a view of."""
    if isinstance(array, Tensor):
        return array if array._base is None else array._base
    return array


def _place(array: Any) -> tuple:
    if isinstance(array, Tensor):  # where the flattened outputs lie: the same for a reshaped view
        flat = _flat_view(array)
        view = array if flat is None else flat
        return (view.storage_offset(), *view.shape, *view.stride())
    return tuple(array.shape)


def _version(array: Any) -> int:
    return array._version if isinstance(array, Tensor) and not array.is_inference() else 0


def _sample(array: Any) -> bytes | None:
    """Evenly spread values of an array as bytes; None if it does not lie in the CPU's memory."""
    if isinstance(array, Tensor):
        if array.device.type != "cpu":
            return None  # nobody but torch writes there
        array = array.detach().numpy()
    if not isinstance(array, np.ndarray):
        return None
    places = np.unique(np.linspace(0, array.size - 1, min(array.size, SAMPLE_SIZE)).astype(np.int64))
    return array[np.unravel_index(places, array.shape)].tobytes()
