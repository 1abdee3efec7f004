"""One pass over Y that makes the statistics of the outputs, whatever their holes are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import covariance_root
from pyro_gprn.outputs.gram import GroupedStatistics, OutputStatistics, infinite_outputs
from pyro_gprn.outputs.patterns import Patterns, SeenPatterns
from pyro_gprn.outputs.scattered import ScatteredStatistics
from pyro_gprn.outputs.source import OutputSource

#: Numbers in columns that are held before those with the same holes are looked for.
_LEAST_ROOM = 2**20
#: What a matrix costs beside the cube of its size, as if it were so much larger; and the cost of groups that is low
#: enough, or so many times that of scattered holes at most, to keep groups.
_OVERHEAD, _LITTLE, _PREFERENCE = 10, 1e6, 2.0


def is_scattered(observed: Tensor, counts: Tensor) -> bool:
    """True if holes are better taken output by output than pattern by pattern.

    By patterns a density costs an N×N factor for each; output by output one N×N factor, and for each output that misses
    h rows two products with N×N and one h×h factor (at most N times for outputs with the same holes).

    :param observed: the rows of each pattern, ``(g, N)``.
    :param counts: how many outputs have each, ``(g,)``.

    >>> observed = torch.rand(500, 40) > 0.05
    >>> is_scattered(observed, torch.ones(500)), is_scattered(observed[:5], 100 * torch.ones(5))
    (True, False)
    """
    n_rows = observed.shape[1]
    n_missing = observed.logical_not().sum(1).to(counts)
    factor = float(n_rows + _OVERHEAD) ** 3
    grouped = len(counts) * factor
    n_columns = counts.clamp(max=n_rows) * (n_missing > 0) * (n_missing < n_rows)
    scattered = factor + (n_columns * ((n_missing + _OVERHEAD) ** 3 + n_rows**2)).sum().item()
    return grouped > max(_LITTLE, _PREFERENCE * scattered)


class GramSums:
    """Sums over blocks of outputs, in float64, from which their statistics are made.

    Outputs with holes are held as columns. Once there are more than N with the same holes, their Gram matrix takes
    their place: it is smaller. So no more is held than N² numbers for each pattern, nor more than Y itself.

    :param n_rows: ``N``.
    :param device: the device of the blocks.
    :param keeps_patterns: whether the pattern of each output is kept. Where there are too many outputs for that, they
        are only counted, and what reads an output again sees its pattern.

    >>> from pyro_gprn.outputs.source import as_source
    >>> Y = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    >>> sums = GramSums(2, Y.device)
    >>> sums.add(Y[:, :1])
    >>> sums.add(Y[:, 1:])
    >>> torch.equal(sums.statistics(as_source(Y)).gram, Y @ Y.T)
    True
    """

    def __init__(self, n_rows: int, device: torch.device, *, keeps_patterns: bool = True) -> None:
        self.n_rows, self._device = n_rows, device
        self._patterns = SeenPatterns(n_rows, device, keeps=keeps_patterns)
        self._grams: dict[int, Tensor] = {}  # of complete outputs, and of patterns with more outputs than rows
        self._columns: list[tuple[np.ndarray, Tensor]] = []  # other outputs (k, N), and their patterns (k,)
        self._n_columns, self._room = 0, _LEAST_ROOM // n_rows

    def add(self, values: Tensor, *, is_complete: bool | None = None) -> None:
        """Adds a block of outputs ``(N, b)`` in float64, NaN where one is missing.

        :param is_complete: whether none is missing, if that is known.
        """
        numbers = self._patterns.add(values, is_complete=is_complete)
        if isinstance(numbers, int):
            self._add_to(numbers, values @ values.mT)
            return
        self._columns.append((numbers, values.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf).mT))
        self._n_columns += len(numbers)
        self._make_room()

    def merge(self, other: GramSums) -> GramSums:
        """Adds the sums over the blocks that come after these, and returns all of them; ``other`` is used up.

        >>> from pyro_gprn.outputs.source import as_source
        >>> first, second = GramSums(2, torch.device("cpu")), GramSums(2, torch.device("cpu"))
        >>> first.add(torch.tensor([[1.0], [3.0]]))
        >>> second.add(torch.tensor([[2.0], [4.0]]))
        >>> first.merge(second).statistics(as_source(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))).gram
        tensor([[ 5., 11.],
                [11., 25.]])
        """
        numbers = self._patterns.merge(other._patterns)
        for number, gram in other._grams.items():
            self._add_to(int(numbers[number]), gram)
        self._columns += [(numbers[some], columns) for some, columns in other._columns]
        self._n_columns += other._n_columns
        self._make_room()
        return self

    @property
    def sum_of_squares(self) -> float:
        """Of all numbers."""
        of_columns = sum(columns.square().sum().item() for _, columns in self._columns)
        return sum(gram.trace().item() for gram in self._grams.values()) + of_columns

    @property
    def numbers_held(self) -> int:
        """How many numbers are held in matrices and columns."""
        return (len(self._grams) * self.n_rows + self._n_columns) * self.n_rows

    def _make_room(self) -> None:
        if self._n_columns > self._room:
            self._compact()
            self._room = max(self._room, 2 * self._n_columns)

    def _add_to(self, number: int, product: Tensor) -> None:
        self._grams[number] = self._grams[number] + product if number in self._grams else product

    def _compact(self) -> None:
        """Puts a Gram matrix in the place of columns with the same holes, if there are more of them than N."""
        if not self._columns:
            return
        numbers = np.concatenate([some for some, _ in self._columns])
        columns = torch.cat([some for _, some in self._columns])
        is_many = np.bincount(numbers, minlength=len(self._patterns)) > self.n_rows
        is_many[[*self._grams, *self._patterns.complete]] = True
        for number in np.unique(numbers[is_many[numbers]]).tolist():
            self._add_to(number, _gram_of(columns[self._where(numbers == number)]))
        kept = ~is_many[numbers]
        self._columns, self._n_columns = [(numbers[kept], columns[self._where(kept)])], int(kept.sum())

    def _where(self, mask: np.ndarray) -> Tensor:
        return torch.from_numpy(np.flatnonzero(mask)).to(self._device)

    def statistics(self, source: OutputSource, *, scattered: bool | None = None) -> OutputStatistics:
        """The statistics of all blocks that were added; ``source`` reads the same outputs.

        :param scattered: whether holes are taken as scattered; None takes what costs less.
        """
        self._compact()
        observed, counts, pattern_of, order = self._patterns.find(source)
        if is_scattered(observed, counts) if scattered is None else scattered:
            return self._scattered(source, observed, counts, pattern_of, order)
        grams = torch.stack([self._gram(number) for number in order.tolist()])
        if not torch.isfinite(grams).all():
            raise infinite_outputs()
        return GroupedStatistics(source, observed, counts, pattern_of, grams)

    def _scattered(
        self, source: OutputSource, observed: Tensor, counts: Tensor, pattern_of: Patterns | None, order: np.ndarray
    ) -> ScatteredStatistics:
        complete = torch.zeros(self.n_rows, self.n_rows, dtype=torch.float64, device=self._device)
        for number in self._patterns.complete:
            complete = self._grams[number]
        parts = list(self._columns)
        for number in self._grams.keys() - set(self._patterns.complete):
            parts.append((np.full(self.n_rows, number), covariance_root(self._grams[number]).mT))
        numbers = np.concatenate([np.zeros(0, dtype=np.int64), *(some for some, _ in parts)])
        columns = torch.cat([complete[:0], *(some for _, some in parts)])
        pattern_of_column = torch.from_numpy(np.argsort(order)[numbers]).to(self._device)
        is_seen = observed.any(1)[pattern_of_column]
        if not torch.isfinite(complete.sum() + columns.square().sum()):
            raise infinite_outputs()
        return ScatteredStatistics(
            source, observed, counts, pattern_of, complete, columns[is_seen], pattern_of_column[is_seen]
        )

    def _gram(self, number: int) -> Tensor:
        if number not in self._grams:
            numbers, columns = self._columns[0]
            self._add_to(number, _gram_of(columns[self._where(numbers == number)]))
        return self._grams[number]


def sum_up(source: OutputSource, *, scattered: bool | None = None) -> OutputStatistics:
    """The statistics of the outputs of a source, from one pass over them; an output may be missing in all rows.

    :param scattered: as for :meth:`GramSums.statistics`.
    """
    sums = GramSums(source.n_rows, source.device)
    for _, chunk in source.chunks():
        sums.add(chunk.to(torch.float64))
    return sums.statistics(source, scattered=scattered)


def _gram_of(columns: Tensor) -> Tensor:
    """``Y Yᵀ`` over columns ``(k, N)``, each an output."""
    return columns.mT @ columns
