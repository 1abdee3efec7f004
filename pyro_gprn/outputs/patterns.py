"""Which outputs were observed in the same rows: found block by block in one pass over Y, and found again by reading."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.outputs.source import OutputSource


class PatternsByReading:
    """Finds the patterns of outputs among known ones by reading the outputs. Nothing here has the size of D.

    :param source: reads the outputs, NaN where one is missing.
    :param observed: the rows in which each of the ``g`` patterns is observed, ``(g, N)``, boolean.

    >>> from pyro_gprn.outputs.source import ArrayOutputs
    >>> Y = torch.tensor([[1.0, 2.0, torch.nan], [1.0, 2.0, 3.0]])
    >>> PatternsByReading(ArrayOutputs(Y), torch.tensor([[False, True], [True, True]]))[:]
    tensor([1, 1, 0])
    """

    def __init__(self, source: OutputSource, observed: Tensor) -> None:
        self._source, self._observed = source, observed

    def __getitem__(self, positions: slice | Tensor) -> Tensor:
        """The patterns of the outputs at some positions among the flattened outputs, ``(b,)``."""
        return find_patterns(self._source.read(positions), self._observed)


#: The pattern of each output, ``(D,)``, or what finds it.
Patterns: TypeAlias = Tensor | PatternsByReading


class FoundPatterns(NamedTuple):
    """The ``g`` patterns of all outputs, in an order that does not depend on that of the outputs."""

    observed: Tensor  #: the rows in which each is observed, (g, N), boolean
    counts: Tensor  #: how many outputs have each, (g,), in float64
    pattern_of: Patterns | None  #: the pattern of each output, (D,), or what finds it; None if there is only one
    order: np.ndarray  #: the number that :class:`SeenPatterns` gave to each, (g,)


class SeenPatterns:
    """Numbers the patterns of outputs as they come, a block at a time.

    :param n_rows: ``N``.
    :param device: the device of the blocks.
    :param keeps: whether the pattern of each output is kept. Otherwise it is found again by reading the output.

    >>> seen = SeenPatterns(2, torch.device("cpu"))
    >>> seen.add(torch.ones(2, 3)), seen.add(torch.tensor([[1.0, torch.nan], [1.0, 1.0]])).tolist()
    (0, [0, 1])
    >>> found = seen.find()
    >>> found.counts.tolist(), found.pattern_of.tolist()
    ([1.0, 4.0], [1, 1, 1, 1, 0])
    """

    def __init__(self, n_rows: int, device: torch.device, *, keeps: bool = True) -> None:
        self._n_rows, self._device, self._keeps = n_rows, device, keeps
        self._numbers: dict[bytes, int] = {}  # by the observed rows packed into bits
        self._counts: dict[int, int] = {}  # outputs of each pattern
        # For each block the patterns of its outputs, or (pattern, number of outputs) if all are complete.
        self._blocks: list[np.ndarray | tuple[int, int]] = []
        self._everything = np.packbits(np.ones(n_rows, dtype=bool)).tobytes()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def complete(self) -> list[int]:
        """The number of the complete pattern, if there is one."""
        return [self._numbers[self._everything]] if self._everything in self._numbers else []

    def add(self, values: Tensor, *, is_complete: bool | None = None) -> int | np.ndarray:
        """The pattern of each output of a block ``(N, b)``, NaN where missing; one number if all are complete.

        :param is_complete: whether none is missing, if that is known.
        """
        if not values.sum().isnan() if is_complete is None else is_complete:
            number = self._number(self._everything)
            self._note((number, values.shape[1]))
            return number
        keys, local = np.unique(_packed(~values.isnan().mT), return_inverse=True)
        numbers = np.array([self._number(key.tobytes()) for key in keys])[local]
        self._note(numbers)
        return numbers

    def merge(self, other: SeenPatterns) -> np.ndarray:
        """Adds the patterns of the blocks that come after these; returns the numbers that the others' have here."""
        numbers = np.array([self._number(key) for key in other._numbers], dtype=np.int64)  # theirs are 0, 1, 2, …
        for each in other._blocks:
            self._blocks.append((int(numbers[each[0]]), each[1]) if isinstance(each, tuple) else numbers[each])
        for number, count in other._counts.items():
            self._count(int(numbers[number]), count)
        return numbers

    def _number(self, key: bytes) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _note(self, patterns: np.ndarray | tuple[int, int]) -> None:
        """Counts the outputs of a block by their patterns, and keeps the patterns if they are to be kept."""
        if isinstance(patterns, tuple):
            self._count(*patterns)
        else:
            for number, count in zip(*(each.tolist() for each in np.unique(patterns, return_counts=True)), strict=True):
                self._count(number, count)
        if self._keeps:
            self._blocks.append(patterns)

    def _count(self, number: int, count: int) -> None:
        self._counts[number] = self._counts.get(number, 0) + count

    def find(self, source: OutputSource | None = None) -> FoundPatterns:
        """The patterns of all blocks that were added.

        :param source: reads the outputs, if their patterns were not kept.
        """
        keys = sorted(self._numbers)
        order = np.array([self._numbers[key] for key in keys])
        bits = np.unpackbits(np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1), axis=1)
        observed = torch.from_numpy(bits[:, : self._n_rows].astype(bool)).to(self._device)
        counts = [float(self._counts[number]) for number in order.tolist()]
        pattern_of: Patterns | None = None
        if len(order) > 1 and self._keeps:
            pattern_of = self._pattern_of(order)
        elif len(order) > 1 and source is not None:
            pattern_of = PatternsByReading(source, observed)
        as_tensor = torch.tensor(counts, dtype=torch.float64, device=self._device)
        return FoundPatterns(observed, as_tensor, pattern_of, order)

    def _pattern_of(self, order: np.ndarray) -> Tensor:
        rank = np.argsort(order)
        blocks = [np.full(each[1], each[0]) if isinstance(each, tuple) else each for each in self._blocks]
        return torch.from_numpy(rank[np.concatenate(blocks)]).to(self._device)


def find_patterns(values: Tensor, observed: Tensor) -> Tensor:
    """Which of the known patterns each output of a block ``(N, b)`` has, ``(b,)``.

    :param observed: the rows of each of the patterns, ``(g, N)``.
    :raises ValueError: for an output with another pattern.
    """
    known, found = _packed(observed), _packed(~values.isnan().mT)
    order = np.argsort(known)
    places = np.searchsorted(known[order], found).clip(max=len(known) - 1)
    patterns = order[places]
    is_other = known[patterns] != found
    if is_other.any():
        raise ValueError(
            f"{int(is_other.sum())} outputs of a block miss other rows than any output did when Y was fitted: Y has"
            " changed since"
        )
    return torch.from_numpy(patterns).to(values.device)


def _packed(observed: Tensor) -> np.ndarray:
    """Patterns ``(b, N)`` as ``b`` strings of bytes, which can be compared and sorted."""
    bits = np.packbits(np.ascontiguousarray(observed.cpu().numpy()), axis=1)
    return bits.view(np.dtype((np.void, bits.shape[1]))).ravel()
