"""Statistics of outputs of which nearly each has holes of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.holes import Holes, holes_of
from pyro_gprn.outputs.patterns import PatternsByReading
from pyro_gprn.outputs.source import OutputSource, RowsOfOutputs

#: Columns are taken together as long as one array over them holds at most this many numbers: what a cache has room for.
MOST_NUMBERS = 2**16


class ColumnBlock(NamedTuple):
    """Columns that have about as many holes."""

    holes: Holes
    columns: Tensor  #: zero where missing, (p, N)
    counts: Tensor  #: how many outputs each column stands for, (p,)


@dataclass(frozen=True)
class ScatteredStatistics(OutputStatistics):
    """Outputs of which nearly each has holes of its own: no N×N matrix is held for a pattern.

    Complete outputs are in one Gram matrix. Those with holes are columns; where more than N of them have the same
    holes, N columns with the same Gram matrix stand for them, each for several outputs.

    :param complete: ``Y Yᵀ`` over the complete outputs, ``(N, N)``.
    :param columns: outputs with holes, zero where missing, in float64, ``(r, N)``: a row for each.
    :param pattern_of_column: the pattern of each, ``(r,)``; none has the complete pattern or the empty one.

    >>> import torch
    >>> Y = torch.tensor([[1.0, 2.0, torch.nan], [1.0, 2.0, 3.0]])
    >>> known = OutputStatistics.of(Y, scattered=True)
    >>> known.complete.tolist(), known.columns.tolist()
    ([[5.0, 5.0], [5.0, 5.0]], [[0.0, 3.0]])
    """

    complete: Tensor
    columns: Tensor
    pattern_of_column: Tensor

    @cached_property
    def gram_of_observed(self) -> Tensor:
        return self.complete + self.columns.mT @ self.columns

    @cached_property
    def n_outputs(self) -> float:
        """How many outputs have an observation."""
        return self.counts[self.observed.any(1)].sum().item()

    @cached_property
    def n_complete(self) -> float:
        """How many outputs are complete."""
        return self.counts[self.observed.all(1)].sum().item()

    @cached_property
    def blocks(self) -> list[ColumnBlock]:
        """The columns, in blocks of those that have about as many holes."""
        n_columns = self.pattern_of_column.bincount(minlength=len(self.counts))
        counts = (self.counts / n_columns)[self.pattern_of_column]
        blocks = holes_of(self.observed[self.pattern_of_column], MOST_NUMBERS)
        return [ColumnBlock(holes, self.columns[holes.members], counts[holes.members]) for holes in blocks]

    @property
    def n_factors(self) -> int:
        return 1

    @cached_property
    def numbers_held(self) -> int:
        # outputs as they are, filled and solved; precisions of holes, their factors and inverses, and a copy to sum
        each = [3 * block.columns.numel() + 4 * block.holes.pairs.numel() for block in self.blocks]
        return max([self.complete.numel(), *each])

    def at_rows(self, rows: Tensor) -> ScatteredStatistics:
        source, observed = RowsOfOutputs(self.source, rows), self.observed[:, rows]
        complete, columns = self.complete[rows][:, rows], self.columns[:, rows]
        is_whole, is_empty = observed.all(1)[self.pattern_of_column], (~observed.any(1))[self.pattern_of_column]
        complete = complete + columns[is_whole].mT @ columns[is_whole]
        kept = ~(is_whole | is_empty)
        pattern_of, pattern_of_column = self.pattern_of, self.pattern_of_column[kept]
        if isinstance(pattern_of, PatternsByReading):
            pattern_of = PatternsByReading(source, observed)
        return ScatteredStatistics(
            source, observed, self.counts, pattern_of, complete, columns[kept], pattern_of_column
        )

    def without_empty(self, source: OutputSource) -> ScatteredStatistics:
        seen, pattern_of = self._pattern_of_seen(source)
        of_column = (seen.cumsum(0) - 1)[self.pattern_of_column]
        return ScatteredStatistics(
            source, self.observed[seen], self.counts[seen], pattern_of, self.complete, self.columns, of_column
        )

    def rescaled(self, scale: Tensor, source: OutputSource) -> ScatteredStatistics:
        return replace(self, source=source, complete=self.complete / scale.square(), columns=self.columns / scale)
