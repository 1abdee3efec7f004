"""Outputs of very many rows: few columns that stand for all of them, and no matrix of N×N.

Where the weights have inducing inputs (collapsed/low_rank.py), the bound needs Y only by the squares of its rows and by
``tr(Yᵀ M Y)`` for matrices M that are positive semi-definite. Few outputs are held as they are. Of many we hold
``Ŷ = Y V``, ``(N, r)``, for an orthonormal V, ``(D, r)``, the leading right singular vectors of Y. For any such V ::

    Y Yᵀ = Ŷ Ŷᵀ + R     R = Y (I − V Vᵀ) Yᵀ, positive semi-definite, so that     tr(Ŷᵀ M Ŷ) ≤ tr(Yᵀ M Y)

A bound in which Ŷ takes the place of Y, beside the squares of all of Y, takes what V leaves out for noise. It drops the
term ``tr(M R) ≥ 0``, and stays a bound, however well or badly V was found. V is found by a randomised range finder
(Halko, Martinsson and Tropp 2011) that reads Y three times, a block of outputs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.outputs.gram import OutputStatistics, infinite_outputs
from pyro_gprn.outputs.patterns import Patterns, SeenPatterns
from pyro_gprn.outputs.source import OutputSource, RowsOfOutputs, as_source
from pyro_gprn.pyro_state import new_generator, white_noise

#: Up to so many outputs with the same holes are held as they are; of more, so many columns stand for them.
MOST_COLUMNS, LEADING = 200, 128
#: Columns beyond those that are kept, by which the leading ones are found.
OVERSAMPLING = 16
#: Columns that hold a smaller share of the squares are left out.
LEAST_SHARE = 1e-14
#: A pass over the outputs takes about this many bytes (in float64) at a time.
CHUNK_BYTES = 2**27
#: More patterns of holes would each need matrices of their own.
MOST_PATTERNS = 64


class GroupRows(NamedTuple):
    """The rows by which sums over the rows of one pattern are made, whichever are fewer."""

    rows: Tensor  #: those that the pattern misses, or those that it has, (n,)
    is_missing: bool  #: True if sums over these are taken off the sums over all rows


@dataclass(frozen=True)
class CompressedStatistics(OutputStatistics):
    """Outputs of very many rows, as columns that stand for them.

    :param columns: ``Ŷ``, zero where missing, ``(N, r)`` in float64.
    :param pattern_of_column: the pattern of each, ``(r,)``.
    :param squares: ``Σ_d y_nd²`` over the outputs of each pattern, ``(g, N)``.
    :param loadings: ``V``, by which ``y_d ≈ Ŷ V_d``, ``(D, r)``; None where the columns are the outputs.

    >>> known = CompressedStatistics.of(torch.tensor([[1.0, 2.0], [1.0, torch.nan]]))
    >>> known.columns.tolist(), known.squares.tolist()
    ([[1.0, 2.0], [1.0, 0.0]], [[4.0, 0.0], [1.0, 1.0]])
    >>> CompressedStatistics.of(torch.ones(3, 1000)).columns.shape  # a thousand outputs, and all are the same
    torch.Size([3, 1])
    """

    chunk_bytes: ClassVar[int | None] = CHUNK_BYTES

    columns: Tensor
    pattern_of_column: Tensor
    squares: Tensor
    loadings: Tensor | None

    @staticmethod
    def of(outputs: Any, *, scattered: bool | None = None) -> CompressedStatistics:
        """The statistics of some outputs, from one pass over them, or four if they are many.

        :param outputs: an array ``(N, d_1, …, d_M)`` or an :class:`~pyro_gprn.outputs.source.OutputSource`.
        :param scattered: True is refused: holes are taken pattern by pattern.
        :raises ValueError: if an output has no observation at all, Y holds inf, or has too many patterns of holes.
        """
        if scattered:
            raise ValueError("outputs of very many rows are taken by patterns of holes; got scattered=True")
        source = as_source(outputs)
        patterns, squares = SeenPatterns(source.n_rows, source.device), _SquaresByPattern(source)
        for _, chunk in source.chunks(CHUNK_BYTES):
            values = chunk.to(torch.float64)
            squares.add(values, patterns.add(values))
            _check_patterns(len(patterns))
        observed, counts, pattern_of, order = patterns.find()
        by_pattern = squares.by_pattern[torch.from_numpy(order).to(source.device)]
        if not torch.isfinite(by_pattern).all():
            raise infinite_outputs()
        columns, of_column, loadings = _columns(source, pattern_of, len(counts))
        known = CompressedStatistics(source, observed, counts, pattern_of, columns, of_column, by_pattern, loadings)
        known.check_observed()
        return known

    @cached_property
    def squares_left_out(self) -> Tensor:
        """The squares of what V leaves out, for each pattern and row, ``(g, N)``: zero where columns are outputs."""
        if self.loadings is None:
            return torch.zeros_like(self.squares)
        held = [self.columns[:, self.columns_of(g)].square().sum(1) for g in range(len(self.counts))]
        return (self.squares - torch.stack(held)).clamp(min=0.0)

    @cached_property
    def group_rows(self) -> list[GroupRows]:
        """For each pattern the rows that it misses, or those that it has."""
        found = []
        for observed in self.observed:
            is_missing = bool(2 * observed.sum() > len(observed))
            found.append(GroupRows((~observed if is_missing else observed).nonzero().flatten(), is_missing))
        return found

    def columns_of(self, pattern: int) -> Tensor | slice:
        """Which columns have a pattern."""
        return slice(None) if len(self.counts) == 1 else (self.pattern_of_column == pattern).nonzero().flatten()

    def loadings_at(self, positions: slice | Tensor) -> Tensor:
        """``V`` of the outputs at some positions, ``(b, r)``."""
        if self.loadings is not None:
            return self.loadings[positions]
        n_outputs = self.columns.shape[1]
        places = torch.arange(n_outputs, device=self.columns.device)[positions]
        return torch.nn.functional.one_hot(places, n_outputs).to(self.columns)

    def left_out_at(self, positions: slice | Tensor) -> Tensor:
        """What V leaves out of the outputs at some positions, ``Y − Ŷ Vᵀ``, ``(N, b)``; zero where missing."""
        values = self.values_at(positions)
        return values - self.columns @ self.loadings_at(positions).mT

    @property
    def gram_of_observed(self) -> Tensor:
        raise ValueError(f"the Gram matrix of {self.source.n_rows} rows is not made: it would be N×N")

    @property
    def mean_square(self) -> Tensor:
        return self.squares.sum() / self.numbers.sum()

    @property
    def n_factors(self) -> int:
        return len(self.counts)

    @property
    def numbers_held(self) -> int:
        return self.columns.numel()

    def at_rows(self, rows: Tensor) -> CompressedStatistics:
        source, observed = RowsOfOutputs(self.source, rows), self.observed[:, rows]
        return replace(
            self, source=source, observed=observed, columns=self.columns[rows], squares=self.squares[:, rows]
        )

    def without_empty(self, source: OutputSource) -> CompressedStatistics:
        return CompressedStatistics.of(source)

    def rescaled(self, scale: Tensor, source: OutputSource) -> CompressedStatistics:
        return replace(self, source=source, columns=self.columns / scale, squares=self.squares / scale.square())


class _SquaresByPattern:
    """Sums of the squares of each row over the outputs of each pattern."""

    def __init__(self, source: OutputSource) -> None:
        self._none = torch.zeros(source.n_rows, dtype=torch.float64, device=source.device)
        self._sums: list[Tensor] = []

    def add(self, values: Tensor, patterns: Any) -> None:
        squares = values.square().nan_to_num(nan=0.0, posinf=torch.inf)
        of_output = torch.as_tensor(patterns, device=squares.device).expand(squares.shape[1])
        for number in of_output.unique().tolist():
            self._sums += [self._none] * (number + 1 - len(self._sums))
            self._sums[number] = self._sums[number] + squares[:, of_output == number].sum(1)

    @property
    def by_pattern(self) -> Tensor:
        return torch.stack(self._sums)


class TooManyPatternsError(ValueError):
    """The outputs have more patterns of holes than inducing inputs can do with."""


def _check_patterns(n_patterns: int) -> None:
    if n_patterns > MOST_PATTERNS:
        raise TooManyPatternsError(
            f"with inducing inputs each pattern of holes has sums of its own, so that there may be at most"
            f" {MOST_PATTERNS}; Y has {n_patterns} or more. Leave out rows in which outputs are missing here and there,"
            " take fewer outputs at a time, or take inducing=None for fewer rows"
        )


def _columns(
    source: OutputSource, pattern_of: Patterns | None, n_patterns: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The columns that stand for all outputs, the pattern of each, and V; None if the columns are the outputs."""
    of_output = torch.zeros(source.n_outputs, dtype=torch.long, device=source.device)
    of_output = of_output if pattern_of is None else pattern_of[:]
    if source.n_outputs <= MOST_COLUMNS:
        return _read(source, slice(None)), of_output, None
    parts = [_leading(source, (of_output == pattern).nonzero().flatten()) for pattern in range(n_patterns)]
    columns = torch.cat([values for values, _ in parts], dim=1)
    of_column = torch.cat([torch.full_like(of_output[:1], g).expand(v.shape[1]) for g, (v, _) in enumerate(parts)])
    loadings = columns.new_zeros(source.n_outputs, columns.shape[1])
    for pattern, (_, right) in enumerate(parts):
        of_pattern = (of_column == pattern).nonzero().flatten()
        loadings[(of_output == pattern).nonzero(), of_pattern] = right
    return columns, of_column, loadings


def _leading(source: OutputSource, positions: Tensor) -> tuple[Tensor, Tensor]:
    """``Y V`` and V of the outputs at some positions, ``(N, r)`` and ``(b, r)``; V is the identity if they are few."""
    n_outputs = len(positions)
    if n_outputs <= LEADING + OVERSAMPLING:
        return _read(source, positions), torch.eye(n_outputs, dtype=torch.float64, device=source.device)
    # An orthonormal Q that nearly spans the columns of Y, by products with white noise; then V from Yᵀ Q.
    probes = torch.empty(0, dtype=torch.float64, device=source.device)
    probes = white_noise(n_outputs, LEADING + OVERSAMPLING, like=probes, generator=new_generator(0))
    sketch = probes.new_zeros(source.n_rows, probes.shape[1])
    for some, block in _blocks(source, positions):
        sketch += block @ probes[some]
    Q = torch.linalg.qr(sketch).Q
    products = Q.new_empty(n_outputs, Q.shape[1])
    for some, block in _blocks(source, positions):
        products[some] = block.mT @ Q
    right, sizes, _ = torch.linalg.svd(products, full_matrices=False)
    n_kept = int((sizes.square() > LEAST_SHARE * sizes.square().sum()).sum().clamp(min=1, max=LEADING))
    right = right[:, :n_kept].contiguous()
    values = right.new_zeros(source.n_rows, n_kept)
    for some, block in _blocks(source, positions):
        values += block @ right[some]
    return values, right


def _blocks(source: OutputSource, positions: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The outputs at some positions, a block at a time, with where they lie among these."""
    width = max(1, CHUNK_BYTES // (8 * source.n_rows))
    is_run = len(positions) == source.n_outputs
    for start in range(0, len(positions), width):
        some = slice(start, start + width)
        yield some, _read(source, some if is_run else positions[some])


def _read(source: OutputSource, positions: slice | Tensor) -> Tensor:
    return source.read(positions).to(torch.float64).nan_to_num(nan=0.0)
