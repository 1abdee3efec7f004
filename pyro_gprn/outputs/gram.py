"""What the bounds need of the outputs: Gram matrices, from one pass over Y.

Outputs that miss the same rows share one Gram matrix; a complete Y is the case of one pattern of holes. Where nearly
every output has holes of its own, the outputs that have some are held themselves, beside one Gram matrix of the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_gprn.outputs.patterns import Patterns, PatternsByReading
from pyro_gprn.outputs.source import OutputSource, OutputValuesError, RowsOfOutputs, as_source

#: Outputs themselves are used in place of their Gram matrix if they are so many times fewer than rows.
FEW = 4


@dataclass(frozen=True)
class OutputStatistics(ABC):
    """Outputs, the rows in which they were observed, and their Gram matrices.

    The pattern of an output is the set of rows in which it was observed. There are two kinds:
    :class:`GroupedStatistics` hold a Gram matrix for each pattern, and
    :class:`~pyro_gprn.outputs.scattered.ScatteredStatistics` are for outputs of which nearly each has its own pattern.
    :meth:`of` chooses.

    :param source: reads the outputs ``Y``, ``(N, d_1, …, d_M)``, NaN where one is missing.
    :param observed: the rows in which each of the ``g`` patterns is observed, ``(g, N)``, boolean.
    :param counts: how many outputs have each pattern, ``(g,)``, in float64.
    :param pattern_of: the pattern of each output, ``(D,)``, or what finds it by reading the output; None if there is
        only one pattern.
    :param is_by_output: True if every output is a group of its own, in place of all that have the same pattern.

    >>> OutputStatistics.of(torch.ones(2, 10, 10)).gram
    tensor([[100., 100.],
            [100., 100.]], dtype=torch.float64)
    >>> Y = torch.tensor([[1.0, 2.0, torch.nan], [1.0, 2.0, 3.0]])
    >>> known = OutputStatistics.of(Y)
    >>> known.observed.tolist(), known.counts.tolist(), known.pattern_of.tolist()
    ([[False, True], [True, True]], [1.0, 2.0], [1, 1, 0])
    """

    #: How many bytes a block of a pass over Y takes; None is the usual number.
    chunk_bytes: ClassVar[int | None] = None

    source: OutputSource
    observed: Tensor
    counts: Tensor
    pattern_of: Patterns | None
    is_by_output: bool = field(default=False, kw_only=True)

    @staticmethod
    def of(outputs: Any, *, scattered: bool | None = None) -> OutputStatistics:
        """The statistics of some outputs, from one pass over them.

        :param outputs: an array ``(N, d_1, …, d_M)`` or an :class:`~pyro_gprn.outputs.source.OutputSource`.
        :param scattered: whether holes are taken as scattered; None takes what costs less.
        :raises ValueError: if an output has no observation at all, or Y holds inf.
        """
        from pyro_gprn.outputs.sums import sum_up  # which makes these statistics, so it comes after them

        known = sum_up(as_source(outputs), scattered=scattered)
        known.check_observed()
        return known

    def check_observed(self) -> None:
        """Raises an error if an output has no observation at all."""
        never = self.never_observed()
        if len(never):
            raise ValueError(
                f"{len(never)} outputs have no observation at all (the first: output {never[0].item()}); leave them out"
            )

    @cached_property
    def is_complete(self) -> bool:
        """True if no output is missing anywhere."""
        return bool(self.observed.all())

    @cached_property
    def numbers(self) -> Tensor:
        """How many numbers of Y were observed in each pattern, ``(g,)``."""
        return self.counts * self.observed.sum(1)

    @cached_property
    def by_output(self) -> GroupedStatistics:
        """The statistics with one Gram matrix for each output, ``(D, N, N)``: for few outputs that differ otherwise.

        >>> OutputStatistics.of(torch.tensor([[1.0, 2.0], [3.0, torch.nan]])).by_output.grams.tolist()
        [[[1.0, 3.0], [3.0, 9.0]], [[4.0, 0.0], [0.0, 0.0]]]
        """
        if isinstance(self, GroupedStatistics) and self.is_by_output:
            return self
        values = self.values_at(slice(None)).mT  # (D, N)
        grams = values.unsqueeze(-1) * values.unsqueeze(-2)
        observed = self.observed[self.patterns_at(slice(None))]
        each = torch.arange(len(values), device=values.device)
        return GroupedStatistics(self.source, observed, torch.ones_like(values[:, 0]), each, grams, is_by_output=True)

    @property
    @abstractmethod
    def gram_of_observed(self) -> Tensor:
        """``Y Yᵀ`` over all outputs with zeros for what is missing, ``(N, N)``."""

    @property
    def mean_square(self) -> Tensor:
        """The mean square of the observed numbers, ``()``; of each output, ``(D,)``, if each is a group of its own."""
        return self.gram_of_observed.diagonal().sum() / self.numbers.sum()

    @property
    @abstractmethod
    def n_factors(self) -> int:
        """How many N×N factors a density takes."""

    @property
    @abstractmethod
    def numbers_held(self) -> int:
        """About how many numbers a density holds at once for one covariance of the rows."""

    @cached_property
    def pairs(self) -> Tensor:
        """How many outputs have both of two rows, ``(N, N)``."""
        seen = self.observed.to(self.counts)
        return (seen * self.counts.unsqueeze(1)).mT @ seen

    @property
    def gram(self) -> Tensor:
        """``Y Yᵀ`` over all outputs, ``(N, N)``.

        :raises ValueError: if Y has holes.
        """
        if not self.is_complete:
            rows = (~self.observed.all(0)).nonzero().flatten().tolist()
            raise ValueError(
                f"Y holds NaN in {len(rows)} of {self.observed.shape[1]} rows (the first: row {rows[0]}), and this"
                " needs complete outputs. For holes use CollapsedGPRN, or a guide with mean='full' and a mask."
            )
        return self.gram_of_observed

    @property
    def n_observed(self) -> float:
        """How many numbers of Y were observed in all."""
        return self.numbers.sum().item()

    def never_observed(self) -> Tensor:
        """Positions, among the flattened outputs, of those that are missing in every row."""
        if self.pattern_of is None:
            return torch.arange(self.source.n_outputs if not self.observed.any() else 0, device="cpu")
        return (~self.observed.any(1))[self.pattern_of[:]].nonzero().flatten()

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

    @abstractmethod
    def at_rows(self, rows: Tensor) -> OutputStatistics:
        """The statistics of some of the rows, without another pass over Y.

        :param rows: the numbers of these rows, ``(n,)``.
        """

    @abstractmethod
    def without_empty(self, source: OutputSource) -> OutputStatistics:
        """The statistics without the outputs that are missing in every row; ``source`` reads the remaining ones."""

    @abstractmethod
    def rescaled(self, scale: Tensor, source: OutputSource) -> OutputStatistics:
        """The statistics of the outputs divided by one number, ``scale``; ``source`` reads the divided outputs."""

    def _pattern_of_seen(self, source: OutputSource) -> tuple[Tensor, Patterns | None]:
        """Which patterns have an observation, ``(g,)``, and ``pattern_of`` counted among those and their outputs.

        :param source: reads the outputs that have an observation.
        """
        seen = self.observed.any(1)
        if self.pattern_of is None or seen.sum() <= 1:
            return seen, None
        if isinstance(self.pattern_of, PatternsByReading):
            return seen, PatternsByReading(source, self.observed[seen])
        return seen, (seen.cumsum(0) - 1)[self.pattern_of[seen[self.pattern_of]]]


@dataclass(frozen=True)
class GroupedStatistics(OutputStatistics):
    """Outputs with one Gram matrix for each pattern of holes. A complete Y is the case of one pattern.

    :param grams: ``Y_g Y_gᵀ`` over the outputs of each pattern, in float64, ``(g, N, N)``; zero in the rows that the
        pattern misses.
    """

    grams: Tensor

    @cached_property
    def few_values(self) -> Tensor | None:
        """The outputs of each pattern themselves, ``(g, N, r)``, where they are few; None where Gram matrices are less.

        Zero where a number is missing, and where a pattern has fewer than r outputs, so that this times its transpose
        is ``grams``.
        """
        n_outputs, n_rows = int(self.counts.max()), self.grams.shape[-1]
        if n_outputs * FEW > n_rows:
            return None
        values, pattern_of = self.values_at(slice(None)), self.patterns_at(slice(None))
        result = values.new_zeros(len(self.grams), n_rows, n_outputs)
        for pattern in range(len(self.grams)):
            some = values[:, pattern_of == pattern]
            result[pattern, :, : some.shape[1]] = some
        return result

    @property
    def gram_of_observed(self) -> Tensor:
        return self.grams[0] if len(self.grams) == 1 else self.grams.sum(0)

    @property
    def mean_square(self) -> Tensor:
        if not self.is_by_output:
            return super().mean_square
        return self.grams.diagonal(dim1=-2, dim2=-1).sum(-1) / self.numbers

    @property
    def n_factors(self) -> int:
        return len(self.grams)

    @property
    def numbers_held(self) -> int:
        return self.grams.numel()

    def at_rows(self, rows: Tensor) -> GroupedStatistics:
        source, grams = RowsOfOutputs(self.source, rows), self.grams[:, rows][:, :, rows]
        if self.is_by_output:
            return replace(self, source=source, observed=self.observed[:, rows], grams=grams)
        observed, merged = self.observed[:, rows].unique(dim=0, return_inverse=True)  # some differed in other rows only
        counts = torch.zeros_like(self.counts[: len(observed)]).index_add(0, merged, self.counts)
        grams = torch.zeros_like(grams[: len(observed)]).index_add(0, merged, grams)
        pattern_of: Patterns | None = None
        if isinstance(self.pattern_of, PatternsByReading):
            pattern_of = PatternsByReading(source, observed) if len(observed) > 1 else None
        elif self.pattern_of is not None and len(observed) > 1:
            pattern_of = merged[self.pattern_of]
        return GroupedStatistics(source, observed, counts, pattern_of, grams)

    def without_empty(self, source: OutputSource) -> GroupedStatistics:
        seen, pattern_of = self._pattern_of_seen(source)
        return GroupedStatistics(
            source,
            self.observed[seen],
            self.counts[seen],
            pattern_of,
            self.grams[seen],
            is_by_output=self.is_by_output,
        )

    def rescaled(self, scale: Tensor, source: OutputSource) -> GroupedStatistics:
        return replace(self, source=source, grams=self.grams / scale.square())


class StatisticsMemory:
    """Remembers the statistics of the last outputs, so that there is another pass over Y only when Y has changed.

    :param make: makes the statistics of an array or a source.

    >>> memory, Y = StatisticsMemory(), torch.ones(2, 3)
    >>> memory.of(Y) is memory.of(Y) is memory.of(None)
    True
    """

    def __init__(self, make: Callable[[Any], OutputStatistics] = OutputStatistics.of) -> None:
        self._make = make
        self._last: OutputStatistics | None = None

    def __deepcopy__(self, memo: dict) -> StatisticsMemory:
        """A copy of a model or a guide remembers the same statistics: Y is never copied."""
        copied = StatisticsMemory(self._make)
        copied._last = self._last
        return copied

    def of(self, outputs: Any) -> OutputStatistics:
        """The statistics of some outputs.

        :param outputs: an array, a source, or statistics that are known already; None stands for the last outputs.
        """
        if torch.jit.is_tracing() and isinstance(outputs, Tensor):
            if outputs.isnan().any():
                raise ValueError(
                    "outputs with holes cannot be compiled by torch.jit, which would take over the holes of the first"
                    " Y: use Trace_ELBO in place of JitTrace_ELBO, and NUTS without jit_compile"
                )
            return self._make(outputs)  # not remembered: the next call may be with another Y
        if isinstance(outputs, OutputStatistics):
            self._last = outputs
        elif outputs is not None and (self._last is None or not self._last.source.is_of(outputs)):
            self._last = self._make(outputs)
        if self._last is None:
            raise ValueError("this needs the data: call it with Y first")
        return self._last


def infinite_outputs() -> OutputValuesError:
    """The error for outputs that are not finite. It begins as scikit-learn's error does."""
    return OutputValuesError(
        "Input Y contains infinity or a value too large for dtype('float64'). Y holds inf, or numbers too large to"
        " square; a missing output is NaN, and all others must be finite"
    )


def gram_matrix(outputs: Any, *, chunk_bytes: int | None = None) -> Tensor:
    """``Y Yᵀ`` summed over outputs, in float64 and a chunk of outputs at a time.

    :param outputs: ``Y``, ``(N, d_1, …, d_M)``: a torch tensor, or anything that slices into NumPy arrays
        (NumPy, a memory map, dask, zarr).
    :param chunk_bytes: how many bytes of Y are held in float64 at a time; None is the usual number.
    :returns: ``(N, N)`` in float64.

    >>> import numpy as np
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
