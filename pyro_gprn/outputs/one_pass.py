"""The one pass over outputs that are too many for memory: no number is kept for each of them.

A chunk has all rows of its outputs, so that it tells their means, scales and patterns of holes whenever it is read.
What is kept of the pass are Gram matrices, a few sums, and the values of a few outputs, evenly spread, which training
and predictions look at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Size, Tensor

from pyro_gprn.outputs.gram import GroupedStatistics, OutputStatistics
from pyro_gprn.outputs.lazy import Chunk, DaskOutputs, numbers_of
from pyro_gprn.outputs.patterns import find_patterns
from pyro_gprn.outputs.scattered import ScatteredStatistics
from pyro_gprn.outputs.selection import evenly_spread, spread_positions
from pyro_gprn.outputs.source import CHUNK_BYTES, ArrayOutputs, OutputSource, OutputValuesError
from pyro_gprn.outputs.spreads import Spreads
from pyro_gprn.outputs.standardize import OutputScale, centre_chunk, scale_of_field, standardize_chunk, usable_scale
from pyro_gprn.outputs.sums import GramSums

#: So many outputs, evenly spread, are kept in memory: those that make the coordinates of predictions, those on which
#: scales are judged, and those on which candidates are scored.
N_COORDINATES, N_JUDGED, N_SCORED = 2**13, 4096, 300
#: Outputs that have holes of their own are kept as they are, up to this many numbers.
MOST_HELD = 2**28


class BlockStandard(NamedTuple):
    """How outputs are standardised, without a number for each of them: a block of outputs tells the rest.

    :param kind: how they are scaled; see :func:`~pyro_gprn.outputs.standardize.standardize`.
    :param centre: whether means are subtracted.
    :param scale: the one scale of a field, ``()``; otherwise 1.
    """

    kind: OutputScale
    centre: bool
    scale: Tensor

    def apply(self, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs ``(N, b)`` standardised, in float64, with their means ``(b,)`` and their scales, ``()`` or ``(b,)``.

        >>> BlockStandard("outputs", True, torch.ones(())).apply(torch.tensor([[1.0], [3.0]]))[0].tolist()
        [[-1.0], [1.0]]
        """
        (mean, _, _, scales), values = standardize_chunk(block, self.kind, self.centre)
        if self.kind == "outputs":
            return values, mean, scales
        return values.div_(self.scale), mean, self.scale


class OutputsByBlock(OutputSource):
    """The standardised outputs of a source whose means and scales are found anew as they are read, in float64.

    :param source: reads the outputs as they are.
    :param standard: how they are standardised.
    :param present: the source's positions of the outputs that are kept, ``(D,)``; None keeps all.
    """

    def __init__(self, source: OutputSource, standard: BlockStandard, present: Tensor | None = None) -> None:
        shape = source.shape if present is None else Size((source.n_rows, len(present)))
        super().__init__(shape, torch.float64, source.device)
        self.source, self.standard, self.present = source, standard, present
        self.is_in_memory = source.is_in_memory

    def read(self, positions: slice | Tensor) -> Tensor:
        return self.standard.apply(self.read_as_it_is(positions))[0]

    def read_as_it_is(self, positions: slice | Tensor) -> Tensor:
        """The outputs at some positions, ``(N, b)``, before they are standardised."""
        return self.source.read(positions if self.present is None else self.present[positions])

    def is_of(self, outputs: Any) -> bool:
        return outputs is self

    def digest(self) -> str:
        return self.source.digest()


class OnePass(NamedTuple):
    """What the pass finds; D counts the outputs that have an observation."""

    statistics: OutputStatistics  #: of the standardised outputs, with a source that reads these
    standard: BlockStandard  #: how they are standardised
    spreads: Spreads  #: of all outputs, in their order if they have one mode, if these were asked for
    present: Tensor | None  #: positions, (D,), of the outputs that have an observation; None if all have one

    @property
    def mean(self) -> Tensor:
        """Of no output, ``(0,)``: its chunk tells it."""
        return torch.empty(0, dtype=torch.float64)

    @property
    def scale(self) -> Tensor:
        """The one scale of a field, ``()``; otherwise 1."""
        return self.standard.scale


@dataclass
class BlockSums:
    """Sums over some chunks."""

    gram: GramSums
    spreads: Spreads
    n_numbers: float = 0.0
    largest_mean: float = 0.0
    empty: list[tuple[Chunk, np.ndarray]] = field(default_factory=list)  #: outputs without any observation
    held: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  #: positions and values of a few outputs


def standardize_lazily(
    source: DaskOutputs,
    scale: OutputScale,
    *,
    centre: bool = True,
    needs_spreads: bool = False,
    progress: bool = False,
) -> OnePass:
    """Finds the scales of outputs, and the Gram matrices of the standardised outputs, in one pass over Y.

    :param source: reads the outputs as they are.
    :param scale: as for :func:`~pyro_gprn.outputs.standardize.standardize`.
    :param centre: whether the mean of each output is subtracted.
    :param needs_spreads: whether it is to be found how the outputs' standard deviations are spread.
    :param progress: whether to show a progress bar.

    >>> import dask.array
    >>> Y = dask.array.from_array(np.array([[1.0, 10.0], [3.0, 50.0]]), chunks=1)
    >>> found = standardize_lazily(DaskOutputs(Y), "outputs")
    >>> found.statistics.gram
    tensor([[ 2., -2.],
            [-2.,  2.]], dtype=torch.float64)
    """
    settings: dict[str, Any] = {"scale": scale, "centre": centre, "needs_spreads": needs_spreads}
    sum_chunk: Any = partial(_sum_chunk, output_shape=source.array.shape[1:], **settings)
    sums: BlockSums = source.total(sum_chunk, _merge, progress=progress)
    one = torch.ones((), dtype=torch.float64)
    if scale == "field":
        largest_mean = torch.tensor(sums.largest_mean, dtype=torch.float64)
        one = scale_of_field(sums.gram.sum_of_squares, sums.n_numbers, largest_mean, source.dtype)
    standard, present = BlockStandard(scale, centre, one), _present(source, sums.empty)
    if present is None:
        source.hold(*_joined(sums.held))
    elif len(present):
        positions = present[_typical(len(present))]
        source.hold(positions, source.read(positions))
    standardized = OutputsByBlock(source, standard, present)
    known = sums.gram.statistics(standardized)
    if present is not None:
        known = known.without_empty(standardized)
    if scale == "field":
        known = known.rescaled(one, standardized)
    return OnePass(known, standard, sums.spreads, present)


def without_outputs(known: OutputStatistics) -> OutputStatistics:
    """The statistics without what reads the outputs, nor any of them: what a worker needs to predict a block."""
    nothing = ArrayOutputs(torch.empty(known.source.n_rows, 0, dtype=torch.float64))
    if isinstance(known, GroupedStatistics):
        return GroupedStatistics(nothing, known.observed, known.counts, None, known.grams)
    return statistics_of_block(known, nothing.array)


def statistics_of_block(known: OutputStatistics, values: Tensor) -> OutputStatistics:
    """The statistics by which the outputs of a block are predicted: its values, and which of the patterns they have.

    :param known: the statistics of all outputs, or these :func:`without_outputs`.
    :param values: the standardised outputs of the block, each with an observation, ``(N, b)``.
    """
    source = ArrayOutputs(values)
    if isinstance(known, GroupedStatistics):
        patterns = None if len(known.observed) == 1 else find_patterns(values, known.observed)
        return GroupedStatistics(source, known.observed, known.counts, patterns, known.grams)
    n_rows = len(values)
    observed, patterns = (~values.isnan()).mT.unique(dim=0, return_inverse=True)
    counts = patterns.bincount(minlength=len(observed)).double()
    no_gram, no_columns = values.new_zeros(n_rows, n_rows), values.new_zeros(0, n_rows)
    return ScatteredStatistics(source, observed, counts, patterns, no_gram, no_columns, patterns[:0])


def _sum_chunk(
    block: np.ndarray,
    chunk: Chunk,
    output_shape: tuple[int, ...],
    scale: OutputScale,
    centre: bool,
    needs_spreads: bool,
) -> BlockSums:
    n_rows, width = len(block), max(1, CHUNK_BYTES // (8 * len(block)))
    sums = BlockSums(GramSums(n_rows, torch.device("cpu"), keeps_patterns=False), Spreads.of(torch.zeros(0)))
    empty, room = [], torch.empty(n_rows * width, dtype=torch.float64)
    for number, chunk_part in enumerate(numbers_of(block, width)):
        try:
            values, mean, counts = centre_chunk(chunk_part, centre, room[: chunk_part.numel()].view(chunk_part.shape))
        except OutputValuesError as error:
            raise OutputValuesError(f"{error}. The first that was found is in {chunk.describe()}") from None
        if needs_spreads or scale == "outputs":
            spread = (values.square().nansum(0) / counts.clamp(min=1.0)).sqrt()
            sums.spreads = sums.spreads.merge(Spreads.of(spread))
            if scale == "outputs":
                values /= usable_scale(spread, mean, chunk_part.dtype)
        n_numbers = counts.sum().item()
        sums.gram.add(values, is_complete=n_numbers == values.numel())
        sums.n_numbers += n_numbers
        sums.largest_mean = max(sums.largest_mean, mean.abs().max().item())
        if n_numbers < values.numel() and (counts == 0).any():
            empty.append(number * width + np.flatnonzero(counts.numpy() == 0))
    if empty:
        sums.empty.append((chunk, np.concatenate(empty)))
    positions, local = _typical_in(chunk, output_shape)
    sums.held.append((positions, block.reshape(n_rows, -1)[:, local]))
    return sums


def _merge(parts: Sequence[BlockSums]) -> BlockSums:
    first = parts[0]
    total = BlockSums(GramSums(first.gram.n_rows, torch.device("cpu"), keeps_patterns=False), first.spreads)
    total.spreads = reduce(Spreads.merge, (part.spreads for part in parts))
    for part in parts:
        total.gram.merge(part.gram)
        total.n_numbers += part.n_numbers
        total.largest_mean = max(total.largest_mean, part.largest_mean)
        total.empty += part.empty
        total.held += part.held
        if total.gram.numbers_held > MOST_HELD:
            raise OutputValuesError(
                f"so many outputs have holes of their own that what must be kept of them has more than {MOST_HELD:,}"
                " numbers. Outputs that miss the same rows are no problem; for holes that are scattered over more"
                " outputs than memory can hold, fill them first, or fit to some of the outputs"
            )
    return total


def _typical(n_outputs: int) -> Tensor:
    """Positions of the outputs that are looked at again, ascending."""
    judged = (evenly_spread((n_outputs,), n)[0] for n in (N_JUDGED, N_SCORED))
    return torch.cat([spread_positions(n_outputs, N_COORDINATES), *map(torch.tensor, judged)]).unique()


def _typical_in(chunk: Chunk, output_shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Those that lie in a chunk: their positions among all outputs, and among those of the chunk."""
    positions = _typical(int(np.prod(output_shape))).numpy()
    by_mode = np.stack(np.unravel_index(positions, output_shape))
    start, stop = np.array(chunk.start)[:, None], np.array(chunk.stop)[:, None]
    inside = ((by_mode >= start) & (by_mode < stop)).all(0)
    return positions[inside], np.ravel_multi_index(tuple((by_mode - start)[:, inside]), chunk.shape)


def _joined(held: list[tuple[np.ndarray, np.ndarray]]) -> tuple[Tensor, Tensor]:
    positions = np.concatenate([some for some, _ in held])
    order = np.argsort(positions)
    values = np.concatenate([values for _, values in held], axis=1)[:, order]
    return torch.from_numpy(positions[order]), torch.from_numpy(np.ascontiguousarray(values))


def _present(source: DaskOutputs, empty: list[tuple[Chunk, np.ndarray]]) -> Tensor | None:
    if not empty:
        return None
    shape, is_present = source.array.shape[1:], np.ones(source.n_outputs, dtype=bool)
    for chunk, local in empty:
        by_mode = np.unravel_index(local, chunk.shape)
        index = tuple(each + start for each, start in zip(by_mode, chunk.start, strict=True))
        is_present[np.ravel_multi_index(index, shape)] = False
    return torch.from_numpy(np.flatnonzero(is_present))
