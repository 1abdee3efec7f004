"""Outputs in a dask array: nothing but a few of its chunks is ever in memory.

Everything that is asked of all outputs is one dask graph, in which the results of chunks are merged as the branches of
a tree. It runs on whatever scheduler is active: threads, processes, or the cluster of a ``dask.distributed`` client.

A chunk here has all rows of its outputs. (Where Y comes in chunks of some rows, those with the same outputs are put
together, since a prediction of an output takes all of its rows.) So means and scales of outputs are exact in one read,
without the cancellation of sums of squares.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Size, Tensor
from tqdm import tqdm

from pyro_gprn.outputs.extra import load
from pyro_gprn.outputs.source import OutputSource, OutputValuesError, as_tensor, torch_dtype
from pyro_gprn.pyro_state import one_torch_thread

T = TypeVar("T")

#: A chunk of outputs with all rows has at most about so many bytes.
MOST_BYTES = 2**28
#: Outputs of at most so many bytes are one chunk in a pass over all of them.
WHOLE_BYTES = 2**28
#: Results of so many chunks are merged at a time.
MERGED_AT_ONCE = 8
#: Chunks, evenly spread, whose values identify Y, and how many numbers of each are looked at.
N_IDENTIFYING, IDENTIFYING_NUMBERS = 8, 2**22


class UnreadableChunkError(OSError):
    """A chunk of Y could not be read."""


class Chunk(NamedTuple):
    """A chunk of the outputs, with all of their rows."""

    number: tuple[int, ...]  #: its number in each output mode
    start: tuple[int, ...]  #: of its outputs, in each mode
    stop: tuple[int, ...]  #: their end

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its outputs."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    def describe(self) -> str:
        """In words, for errors."""
        outputs = ", ".join(f"{start}:{stop}" for start, stop in zip(self.start, self.stop, strict=True))
        return f"chunk {self.number} of Y (all rows of the outputs [{outputs}])"


class DaskOutputs(OutputSource):
    """Outputs in a dask array.

    :param array: ``(N, d_1, …, d_M)`` of float32 or float64, NaN where an output is missing, in known chunks.

    >>> import dask.array
    >>> source = DaskOutputs(dask.array.arange(24.0, chunks=7).reshape(2, 3, 4))
    >>> source.read(slice(5, 9))
    tensor([[ 5.,  6.,  7.,  8.],
            [17., 18., 19., 20.]], dtype=torch.float64)
    """

    is_in_memory = False

    def __init__(self, array: Any) -> None:
        super().__init__(Size(array.shape), torch_dtype(array.dtype), torch.device("cpu"))
        self.array = with_whole_rows(array)  #: in chunks that have all rows
        self._held: tuple[Tensor, Tensor] | None = None

    def reshape(self, output_shape: Size) -> DaskOutputs:
        if self.shape[1:] == output_shape:
            return self
        reshaped = copy.copy(self)
        reshaped.shape = Size((self.n_rows, *output_shape))
        return reshaped

    def chunks_of_outputs(self) -> list[Chunk]:
        """The chunks, in the order of their numbers."""
        modes = []
        for sizes in self.array.chunks[1:]:
            stops = np.cumsum(sizes).tolist()
            modes.append([(i, stop - size, stop) for i, (size, stop) in enumerate(zip(sizes, stops, strict=True))])
        return [Chunk(*zip(*each, strict=True)) for each in itertools.product(*modes)]

    def hold(self, positions: Tensor, values: Tensor) -> None:
        """Keeps the values ``(N, b)`` of a few outputs in memory, from where :meth:`read` then takes them.

        :param positions: of these outputs, ascending, ``(b,)``.
        """
        self._held = positions, values

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": None}

    def read(self, positions: slice | Tensor) -> Tensor:
        if isinstance(positions, slice):
            positions = torch.arange(self.n_outputs)[positions]
        positions = positions.cpu()
        if self._held is not None:
            places = torch.searchsorted(self._held[0], positions).clamp(max=len(self._held[0]) - 1)
            if torch.equal(self._held[0][places], positions):
                return self._held[1][:, places]
        found, blocks = self.find(positions), self._delayed()
        wanted = [load("dask").delayed(_outputs_at)(blocks[chunk.number], local) for chunk, local, _ in found]
        read = self._compute(wanted, [chunk for chunk, *_ in found])
        result = torch.empty(self.n_rows, len(positions), dtype=self.dtype)
        for (_, _, where), values in zip(found, read, strict=True):
            result[:, torch.from_numpy(where)] = as_tensor(values)
        return result

    def find(self, positions: Tensor) -> list[tuple[Chunk, np.ndarray, np.ndarray]]:
        """The chunks in which some outputs lie, each with where in its flattened outputs, and which of them these are.

        :param positions: of the outputs among all, flattened, ``(b,)``.
        """
        chunks = self.array.chunks[1:]
        by_mode = np.unravel_index(positions.numpy(), self.array.shape[1:])
        ends = [np.cumsum(sizes) for sizes in chunks]
        numbers = [np.searchsorted(end, index, side="right") for end, index in zip(ends, by_mode, strict=True)]
        flat = np.ravel_multi_index(numbers, [len(sizes) for sizes in chunks])
        every, found = self.chunks_of_outputs(), []
        order = np.argsort(flat, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(flat[order])) + 1) if len(order) else []:
            chunk = every[flat[places[0]]]
            local = [index[places] - start for index, start in zip(by_mode, chunk.start, strict=True)]
            found.append((chunk, np.ravel_multi_index(local, chunk.shape), places))
        return found

    def total(
        self,
        function: Callable[[np.ndarray, Chunk], T],
        merge: Callable[[list[T]], T],
        *,
        chunks: Sequence[Chunk] | None = None,
        progress: bool = False,
    ) -> T:
        """The merged results of a function of each chunk, by one dask graph.

        Outputs of at most :data:`WHOLE_BYTES` are taken as one chunk here. So their result does not depend on the
        chunks in which they come, not even in its last digit.

        :param function: takes a chunk ``(N, b_1, …, b_M)`` and which one it is. It runs on one torch thread.
        :param merge: makes one result of several that follow each other. It may change none of them.
        :param chunks: which chunks; None is all.
        :param progress: whether to show a progress bar.
        """
        if chunks is None and self.array.npartitions > 1 and self.array.nbytes <= WHOLE_BYTES:
            with suppress(OutputValuesError):  # the chunks one by one, below, tell which of them has such values
                return self._of_all_at_once(function, progress)
        some, blocks = self.chunks_of_outputs() if chunks is None else chunks, self._delayed()
        on_chunk, join = load("dask").delayed(_on_one_thread, pure=True), load("dask").delayed(merge, pure=True)
        parts = [on_chunk(function, blocks[chunk.number], chunk) for chunk in some]
        while len(parts) > 1:
            parts = [join(parts[i : i + MERGED_AT_ONCE]) for i in range(0, len(parts), MERGED_AT_ONCE)]
        (result,) = self._compute(parts, some, progress)
        return result

    def _of_all_at_once(self, function: Callable[[np.ndarray, Chunk], T], progress: bool) -> T:
        """The result of a function of all outputs, put together into one chunk."""
        whole = DaskOutputs(self.array.rechunk(-1))
        (chunk,) = whole.chunks_of_outputs()
        wanted = load("dask").delayed(_on_one_thread, pure=True)(function, whole._delayed().item(), chunk)
        (result,) = self._compute([wanted], self.chunks_of_outputs(), progress)
        return result

    def digest(self) -> str:
        """A fingerprint of the shape, the type, and the values in some chunks, evenly spread."""
        return hashlib.sha256(repr(self.identify()).encode()).hexdigest()

    def identify(self) -> dict[str, Any]:
        """What tells these outputs from others: their shape, type, and checksums of some of their chunks."""
        every = self.chunks_of_outputs()
        places = np.unique(np.linspace(0, len(every) - 1, N_IDENTIFYING).round().astype(int))
        some = [every[place] for place in places]
        sums = self.total(_checksum, lambda parts: list(itertools.chain(*parts)), chunks=some)
        blocks = [
            {"start": list(chunk.start), "stop": list(chunk.stop), "checksum": found}
            for chunk, found in zip(some, sums, strict=True)
        ]
        return {"shape": list(self.array.shape), "dtype": str(self.array.dtype), "blocks": blocks}

    def is_identified_by(self, identity: dict[str, Any]) -> bool:
        """True if these are the outputs that :meth:`identify` described, in whatever chunks."""
        if identity["shape"] != list(self.array.shape) or identity["dtype"] != str(self.array.dtype):
            return False
        for block in identity["blocks"]:
            modes = zip(block["start"], block["stop"], strict=True)
            some = (slice(None), *(slice(start, stop) for start, stop in modes))
            (found,) = compute([load("dask").delayed(_checksum)(self.array[some])])
            if found != [block["checksum"]]:
                return False
        return True

    def is_of(self, outputs: Any) -> bool:
        return outputs is self or outputs is self.array

    def _delayed(self) -> np.ndarray:
        """The chunks as ``dask.delayed`` objects, by their numbers in each output mode."""
        return self.array.to_delayed()[0]

    def _compute(self, wanted: list[Any], chunks: Sequence[Chunk], progress: bool = False) -> Sequence[Any]:
        try:
            return compute(wanted, progress=progress)
        except (OutputValuesError, MemoryError):
            raise
        except Exception as error:
            if type(error).__name__ != "KilledWorker":  # which reading once more might bring about again
                self._name_unreadable(chunks)
            raise

    def _name_unreadable(self, chunks: Sequence[Chunk]) -> None:
        """Raises an error that names the first of some chunks that cannot be read."""
        blocks = self._delayed()
        for chunk in chunks:
            try:
                compute([load("dask").delayed(np.shape)(blocks[chunk.number])])
            except Exception as error:
                name = type(error).__name__
                raise UnreadableChunkError(f"{chunk.describe()} cannot be read: {name}: {error}") from error


def with_whole_rows(array: Any) -> Any:
    """A dask array in chunks that have all rows, and the outputs that they had.

    A chunk that would be larger than :data:`MOST_BYTES` is divided along the outputs.

    >>> import dask.array
    >>> with_whole_rows(dask.array.zeros((8, 20), chunks=(2, 5))).chunks
    ((8,), (5, 5, 5, 5))
    """
    n_rows, sizes = array.shape[0], [list(each) for each in array.chunks[1:]]
    while n_rows * array.dtype.itemsize * np.prod([max(each) for each in sizes]) > MOST_BYTES:
        mode = max(range(len(sizes)), key=lambda mode: max(sizes[mode]))
        if max(sizes[mode]) == 1:
            break
        sizes[mode] = [half for size in sizes[mode] for half in ((size + 1) // 2, size // 2) if half]
    return array.rechunk({0: n_rows, **{1 + mode: tuple(each) for mode, each in enumerate(sizes)}})


def compute(wanted: list[Any], *, progress: bool = False) -> Sequence[Any]:
    """Computes delayed values on the scheduler that is active.

    :param progress: whether to show a progress bar, of chunks as they are read.
    """
    dask = load("dask")
    if not progress:
        return dask.compute(*wanted)
    client = _client()
    if client is None:
        with load("tqdm.dask").TqdmCallback(desc="reading Y", tqdm_class=tqdm, leave=False):
            return dask.compute(*wanted)
    futures = client.compute(wanted)
    load("distributed").progress(futures, notebook=False)
    return client.gather(futures)


def _client() -> Any:
    """The client of the cluster on which dask computes; None if it computes on this machine."""
    scheduler = load("dask.base").get_scheduler()
    client = getattr(scheduler, "__self__", None)
    return client if type(client).__module__.partition(".")[0] == "distributed" else None


def _outputs_at(block: np.ndarray, local: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(block).reshape(len(block), -1)[:, local])


def _on_one_thread(function: Callable[[np.ndarray, Chunk], T], block: np.ndarray, chunk: Chunk) -> T:
    with one_torch_thread():  # dask has a thread for each core already
        return function(np.asarray(block), chunk)


def _checksum(block: np.ndarray, chunk: Chunk | None = None) -> list[str]:
    """Of the first numbers of a chunk, row by row, as a list of one."""
    width = max(1, IDENTIFYING_NUMBERS // len(block))
    values = np.ascontiguousarray(np.asarray(block).reshape(len(block), -1)[:, :width])
    return [hashlib.sha256(values.astype(values.dtype.newbyteorder("<")).data).hexdigest()]


def numbers_of(block: np.ndarray, width: int) -> Iterator[Tensor]:
    """The outputs of a chunk, flattened, so many at a time: tensors ``(N, ≤ width)``."""
    flat = block.reshape(len(block), -1)
    for start in range(0, flat.shape[1], width):
        yield as_tensor(flat[:, start : start + width])
