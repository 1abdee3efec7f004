"""What the bounds need of the outputs: Gram matrices, from one pass over Y.

Outputs that miss the same rows share one Gram matrix. A complete Y is the case of one pattern of holes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.outputs.source import OutputSource, RowsOfOutputs, as_source


@dataclass(frozen=True)
class OutputStatistics:
    """Outputs and their Gram matrices, one for each pattern of holes.

    The pattern of an output is the set of rows in which it was observed.

    :param source: reads the outputs ``Y``, ``(N, d_1, …, d_M)``, NaN where one is missing.
    :param grams: ``Y_g Y_gᵀ`` over the outputs of each of the ``g`` patterns, in float64, ``(g, N, N)``; zero in the
        rows that the pattern misses.
    :param observed: the rows in which each pattern is observed, ``(g, N)``, boolean.
    :param counts: how many outputs have each pattern, ``(g,)``, in float64.
    :param pattern_of: the pattern of each output, ``(D,)``; None if there is only one pattern.
    :param is_by_output: True if every output is a group of its own, in place of all that have the same pattern.

    >>> OutputStatistics.of(torch.ones(2, 10, 10)).gram
    tensor([[100., 100.],
            [100., 100.]], dtype=torch.float64)
    >>> Y = torch.tensor([[1.0, 2.0, torch.nan], [1.0, 2.0, 3.0]])
    >>> known = OutputStatistics.of(Y)
    >>> known.observed.tolist(), known.counts.tolist(), known.pattern_of.tolist()
    ([[False, True], [True, True]], [1.0, 2.0], [1, 1, 0])
    """

    source: OutputSource
    grams: Tensor
    observed: Tensor
    counts: Tensor
    pattern_of: Tensor | None
    is_by_output: bool = False

    @classmethod
    def of(cls, outputs: Any) -> OutputStatistics:
        """The statistics of some outputs, from one pass over them.

        :param outputs: an array ``(N, d_1, …, d_M)`` or an :class:`~pyro_gprn.outputs.source.OutputSource`.
        :raises ValueError: if an output has no observation at all, or Y holds inf.
        """
        source = as_source(outputs)
        sums = GramSums(source.n_rows, source.device)
        for _, chunk in source.chunks():
            sums.add(chunk.to(torch.float64))
        known = sums.statistics(source)
        never = known.never_observed()
        if len(never):
            raise ValueError(
                f"{len(never)} outputs have no observation at all (the first: output {never[0].item()}); leave them out"
            )
        return known

    @cached_property
    def is_complete(self) -> bool:
        """True if no output is missing anywhere."""
        return bool(self.observed.all())

    @cached_property
    def numbers(self) -> Tensor:
        """How many numbers of Y were observed in each pattern, ``(g,)``."""
        return self.counts * self.observed.sum(1)

    @cached_property
    def by_output(self) -> OutputStatistics:
        """The statistics with one Gram matrix for each output, ``(D, N, N)``: for few outputs that differ otherwise.

        >>> OutputStatistics.of(torch.tensor([[1.0, 2.0], [3.0, torch.nan]])).by_output.grams.tolist()
        [[[1.0, 3.0], [3.0, 9.0]], [[4.0, 0.0], [0.0, 0.0]]]
        """
        if self.is_by_output:
            return self
        values = self.values_at(slice(None)).mT  # (D, N)
        grams = values.unsqueeze(-1) * values.unsqueeze(-2)
        observed = self.observed[self.patterns_at(slice(None))]
        each = torch.arange(len(values), device=values.device)
        return OutputStatistics(self.source, grams, observed, torch.ones_like(values[:, 0]), each, is_by_output=True)

    @property
    def gram(self) -> Tensor:
        """``Y Yᵀ`` over all outputs, ``(N, N)``.

        :raises ValueError: if Y has holes.
        """
        if not self.is_complete:
            rows = (~self.observed.all(0)).nonzero().flatten().tolist()
            raise ValueError(
                f"Y holds NaN in {len(rows)} of {self.observed.shape[1]} rows (the first: row {rows[0]}), and this"
                " needs complete outputs. For holes use CollapsedGPRN, or KroneckerGuide(mean='full') with a mask."
            )
        return self.grams[0]

    @property
    def n_observed(self) -> float:
        """How many numbers of Y were observed in all."""
        return self.numbers.sum().item()

    def never_observed(self) -> Tensor:
        """Positions, among the flattened outputs, of those that are missing in every row."""
        if self.pattern_of is None:
            return torch.arange(self.source.n_outputs if not self.observed.any() else 0, device="cpu")
        return (~self.observed.any(1))[self.pattern_of].nonzero().flatten()

    def patterns_at(self, positions: slice | Tensor) -> Tensor:
        """The patterns of the outputs at some positions among the flattened outputs, ``(b,)``."""
        if self.pattern_of is not None:
            return self.pattern_of[positions]
        n = len(range(self.source.n_outputs)[positions]) if isinstance(positions, slice) else len(positions)
        return torch.zeros(n, dtype=torch.long, device=self.source.device)

    def values_at(self, positions: slice | Tensor) -> Tensor:
        """The outputs at some positions among the flattened outputs, ``(N, b)`` in float64, zero where missing."""
        values = self.source.read(positions).to(torch.float64)
        return values if self.is_complete else values.nan_to_num(nan=0.0)

    def at_rows(self, rows: Tensor) -> OutputStatistics:
        """The statistics of some of the rows, without another pass over Y.

        :param rows: the numbers of these rows, ``(n,)``.
        """
        grams, observed = self.grams[:, rows][:, :, rows], self.observed[:, rows]
        return replace(self, source=RowsOfOutputs(self.source, rows), grams=grams, observed=observed)

    def without_empty(self, source: OutputSource) -> OutputStatistics:
        """The statistics without the outputs that are missing in every row; ``source`` reads the remaining ones."""
        seen = self.observed.any(1)
        pattern_of = None
        if self.pattern_of is not None and seen.sum() > 1:
            kept = self.pattern_of[seen[self.pattern_of]]
            pattern_of = (seen.cumsum(0) - 1)[kept]
        grams, observed, counts = self.grams[seen], self.observed[seen], self.counts[seen]
        return OutputStatistics(source, grams, observed, counts, pattern_of, self.is_by_output)

    def rescaled(self, scale: Tensor, source: OutputSource) -> OutputStatistics:
        """The statistics of the outputs divided by one number, ``scale``; ``source`` reads the divided outputs."""
        return replace(self, source=source, grams=self.grams / scale.square())


class StatisticsMemory:
    """Remembers the statistics of the last outputs, so that there is another pass over Y only when Y has changed.

    >>> memory, Y = StatisticsMemory(), torch.ones(2, 3)
    >>> memory.of(Y) is memory.of(Y) is memory.of(None)
    True
    """

    def __init__(self) -> None:
        self._last: OutputStatistics | None = None

    def __deepcopy__(self, memo: dict) -> StatisticsMemory:
        """A copy of a model or a guide remembers the same statistics: Y is never copied."""
        copied = StatisticsMemory()
        copied._last = self._last
        return copied

    def of(self, outputs: Any) -> OutputStatistics:
        """The statistics of some outputs.

        :param outputs: an array, a source, or statistics that are known already; None stands for the last outputs.
        """
        if isinstance(outputs, OutputStatistics):
            self._last = outputs
        elif outputs is not None and (self._last is None or not self._last.source.is_of(outputs)):
            self._last = OutputStatistics.of(outputs)
        if self._last is None:
            raise ValueError("this needs the data: call it with Y first")
        return self._last


class GramSums:
    """Gram matrices, one for each pattern of holes, summed over blocks of outputs in float64.

    :param n_rows: ``N``.
    :param device: the device of the blocks.

    >>> Y = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    >>> sums = GramSums(2, Y.device)
    >>> sums.add(Y[:, :1])
    >>> sums.add(Y[:, 1:])
    >>> torch.equal(sums.statistics(as_source(Y)).gram, Y @ Y.T)
    True
    """

    def __init__(self, n_rows: int, device: torch.device) -> None:
        self._n_rows, self._device = n_rows, device
        self._numbers: dict[bytes, int] = {}  # pattern numbers, by the observed rows packed into bits
        self._grams: list[Tensor] = []
        self._counts: list[int] = []
        # For each block the patterns of its outputs, or (pattern, number of outputs) if all have the same one.
        self._pattern_of: list[np.ndarray | tuple[int, int]] = []
        self._everything = np.packbits(np.ones(n_rows, dtype=bool)).tobytes()

    def add(self, values: Tensor) -> None:
        """Adds a block of outputs ``(N, b)`` in float64, NaN where one is missing."""
        if not values.sum().isnan():
            self._add_all(values)
            return
        observed = ~values.isnan()  # (N, b)
        packed = np.packbits(np.ascontiguousarray(observed.mT.cpu().numpy()), axis=1)
        keys, local = np.unique(packed.view(np.dtype((np.void, packed.shape[1]))).ravel(), return_inverse=True)
        values, numbers = values.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), []
        for place, key in enumerate(keys):
            numbers.append(self._number(key.tobytes()))
            self._add_to(numbers[-1], values[:, torch.from_numpy(local == place).to(values.device)])
        self._pattern_of.append(np.array(numbers)[local])

    def _add_all(self, values: Tensor) -> None:
        number = self._number(self._everything)
        self._add_to(number, values)
        self._pattern_of.append((number, values.shape[1]))

    def _add_to(self, number: int, values: Tensor) -> None:
        self._grams[number] += values @ values.mT
        self._counts[number] += values.shape[1]

    def _number(self, key: bytes) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._grams.append(torch.zeros(self._n_rows, self._n_rows, dtype=torch.float64, device=self._device))
            self._counts.append(0)
        return self._numbers[key]

    def statistics(self, source: OutputSource) -> OutputStatistics:
        """The statistics of all blocks that were added; ``source`` reads the same outputs."""
        keys = sorted(self._numbers)
        order = [self._numbers[key] for key in keys]
        grams = torch.stack([self._grams[number] for number in order])
        if not torch.isfinite(grams).all():
            raise infinite_outputs()
        bits = np.unpackbits(np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1), axis=1)
        observed = torch.from_numpy(bits[:, : self._n_rows].astype(bool)).to(self._device)
        counts = torch.tensor([self._counts[number] for number in order], dtype=torch.float64, device=self._device)
        return OutputStatistics(source, grams, observed, counts, self._patterns(order) if len(order) > 1 else None)

    def _patterns(self, order: list[int]) -> Tensor:
        rank = np.argsort(order)
        blocks = [np.full(each[1], each[0]) if isinstance(each, tuple) else each for each in self._pattern_of]
        return torch.from_numpy(rank[np.concatenate(blocks)]).to(self._device)


def infinite_outputs() -> ValueError:
    """The error for outputs that are not finite. It begins as scikit-learn's error does."""
    return ValueError(
        "Input Y contains infinity or a value too large for dtype('float64'). Y holds inf, or numbers too large to"
        " square; a missing output is NaN, and all others must be finite"
    )


def gram_matrix(outputs: Any, *, chunk_bytes: int | None = None) -> Tensor:
    """``Y Yᵀ`` summed over outputs, in float64 and a chunk of outputs at a time.

    :param outputs: ``Y``, ``(N, d_1, …, d_M)``: a torch tensor, or anything that slices into NumPy arrays
        (NumPy, a memory map, dask, zarr).
    :param chunk_bytes: how many bytes of Y are held in float64 at a time; None takes what suits where Y is stored.
    :returns: ``(N, N)`` in float64.

    >>> gram_matrix(np.eye(2, 5, dtype=np.float32))
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    source = as_source(outputs)
    gram = torch.zeros(source.n_rows, source.n_rows, dtype=torch.float64, device=source.device)
    for _, chunk in source.chunks(chunk_bytes):
        chunk = chunk.to(torch.float64)
        gram += chunk @ chunk.mT
    return gram
