"""Which outputs were observed in the same rows: found block by block, in one pass over Y."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class FoundPatterns(NamedTuple):
    """The ``g`` patterns of all outputs, in an order that does not depend on that of the outputs."""

    observed: Tensor  #: the rows in which each is observed, (g, N), boolean
    counts: Tensor  #: how many outputs have each, (g,), in float64
    pattern_of: Tensor | None  #: the pattern of each output, (D,); None if there is only one
    order: np.ndarray  #: the number that :class:`Patterns` gave to each, (g,)


class Patterns:
    """Numbers the patterns of outputs as they come, a block at a time.

    :param n_rows: ``N``.
    :param device: the device of the blocks.

    >>> patterns = Patterns(2, torch.device("cpu"))
    >>> patterns.add(torch.ones(2, 3)), patterns.add(torch.tensor([[1.0, torch.nan], [1.0, 1.0]])).tolist()
    (0, [0, 1])
    >>> patterns.find().counts.tolist(), patterns.find().pattern_of.tolist()
    ([1.0, 4.0], [1, 1, 1, 1, 0])
    """

    def __init__(self, n_rows: int, device: torch.device) -> None:
        self._n_rows, self._device = n_rows, device
        self._numbers: dict[bytes, int] = {}  # by the observed rows packed into bits
        # For each block the patterns of its outputs, or (pattern, number of outputs) if all are complete.
        self._blocks: list[np.ndarray | tuple[int, int]] = []
        self._everything = np.packbits(np.ones(n_rows, dtype=bool)).tobytes()

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def complete(self) -> list[int]:
        """The number of the complete pattern, if there is one."""
        return [self._numbers[self._everything]] if self._everything in self._numbers else []

    def add(self, values: Tensor) -> int | np.ndarray:
        """The pattern of each output of a block ``(N, b)``, NaN where missing; one number if all are complete."""
        if not values.sum().isnan():
            number = self._number(self._everything)
            self._blocks.append((number, values.shape[1]))
            return number
        observed = ~values.isnan()  # (N, b)
        packed = np.packbits(np.ascontiguousarray(observed.mT.cpu().numpy()), axis=1)
        keys, local = np.unique(packed.view(np.dtype((np.void, packed.shape[1]))).ravel(), return_inverse=True)
        numbers = np.array([self._number(key.tobytes()) for key in keys])[local]
        self._blocks.append(numbers)
        return numbers

    def _number(self, key: bytes) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def find(self) -> FoundPatterns:
        """The patterns of all blocks that were added."""
        keys = sorted(self._numbers)
        order = np.array([self._numbers[key] for key in keys])
        bits = np.unpackbits(np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1), axis=1)
        observed = torch.from_numpy(bits[:, : self._n_rows].astype(bool)).to(self._device)
        counts = torch.from_numpy(self._counts()[order]).to(self._device)
        return FoundPatterns(observed, counts, self._pattern_of(order) if len(order) > 1 else None, order)

    def _counts(self) -> np.ndarray:
        counts = np.zeros(len(self._numbers))
        for each in self._blocks:
            if isinstance(each, tuple):
                counts[each[0]] += each[1]
            else:
                counts += np.bincount(each, minlength=len(counts))
        return counts

    def _pattern_of(self, order: np.ndarray) -> Tensor:
        rank = np.argsort(order)
        blocks = [np.full(each[1], each[0]) if isinstance(each, tuple) else each for each in self._blocks]
        return torch.from_numpy(rank[np.concatenate(blocks)]).to(self._device)
