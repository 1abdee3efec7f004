"""Outputs centred and scaled, in the one pass over Y that makes their Gram matrices."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.outputs.compressed import CHUNK_BYTES, CompressedStatistics
from pyro_gprn.outputs.gram import OutputStatistics, infinite_outputs
from pyro_gprn.outputs.source import OutputSource, StandardizedOutputs
from pyro_gprn.outputs.sums import GramSums

#: How outputs are scaled: all by one number, each by its own, or not at all.
OutputScale = Literal["field", "outputs"] | None


class StandardizedStatistics(NamedTuple):
    """What :func:`standardize` finds; D counts the outputs that have an observation."""

    statistics: OutputStatistics  #: of the standardised outputs, with a source that reads these
    mean: Tensor  #: the mean of each output, (D,), in float64
    scale: Tensor  #: one number, (), or one for each output, (D,)
    spread: Tensor  #: the standard deviation of each output, (D,)
    present: Tensor | None  #: positions, (D,), of the outputs that have an observation; None if all have one


def standardize(
    source: OutputSource, scale: OutputScale, *, centre: bool = True, many_rows: bool = False
) -> StandardizedStatistics:
    """Finds the means and scales of outputs, and the Gram matrices of the standardised outputs, in one pass over Y.

    Every chunk has all rows of some outputs, so that their means and scales are known before the next chunk is read.
    Outputs without any observation are left out.

    :param source: reads the outputs as they are, ``(N, d_1, …, d_M)``.
    :param scale: ``"field"`` divides all by one number, the root mean square of the centred outputs; ``"outputs"``
        divides each by its own standard deviation; None divides by 1.
    :param centre: whether the mean of each output is subtracted.
    :param many_rows: True for rows that are too many for Gram matrices: the statistics are compressed ones
        (compressed.py), from further passes over Y.

    >>> from pyro_gprn.outputs.source import ArrayOutputs
    >>> found = standardize(ArrayOutputs(torch.tensor([[1.0, 10.0], [3.0, 50.0]])), "outputs")
    >>> found.mean, found.scale, found.statistics.gram
    (tensor([ 2., 30.], dtype=torch.float64),
     tensor([ 1., 20.], dtype=torch.float64),
     tensor([[ 2., -2.],
            [-2.,  2.]], dtype=torch.float64))
    """
    sums = None if many_rows else GramSums(source.n_rows, source.device)
    parts = []
    for _, chunk in source.chunks(CHUNK_BYTES if many_rows else None):
        part, values = standardize_chunk(chunk, scale, centre)
        parts.append(part)
        if sums is not None:
            sums.add(values)
    mean, spread, counts, scales = (torch.cat(values) for values in zip(*parts, strict=True))
    if scale is None:
        scales = torch.ones((), dtype=torch.float64, device=source.device)
    elif scale == "field":
        squares = (spread.square() * counts).sum().item() if sums is None else sums.sum_of_squares
        scales = scale_of_field(squares, counts.sum().item(), mean.abs().max(), source.dtype)
    return _leave_out_empty(source, sums, mean, spread, counts, scales)


def standardize_chunk(chunk: Tensor, scale: OutputScale, centre: bool) -> tuple[tuple[Tensor, ...], Tensor]:
    """Mean, spread, number of observations and scale of the outputs of a chunk, and the chunk standardised by them."""
    values, mean, counts = centre_chunk(chunk, centre)
    add_up = torch.sum if (counts == len(values)).all() else torch.nansum
    spread = (add_up(values.square(), 0) / counts.clamp(min=1.0)).sqrt()
    scales = torch.ones_like(mean)
    if scale == "outputs":
        scales = usable_scale(spread, mean, chunk.dtype)
        values /= scales
    return (mean, spread, counts, scales), values


def centre_chunk(chunk: Tensor, centre: bool, out: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A chunk ``(N, b)`` less the means of its outputs, in float64, with these means and the numbers of observations.

    :param centre: False takes all means for zero.
    :param out: a tensor ``(N, b)`` of float64 to be filled in place of a new one.
    """
    # Row by row in memory, however Y is stored: then results are the same to the bit.
    values = torch.empty(chunk.shape, dtype=torch.float64, device=chunk.device) if out is None else out
    values.copy_(chunk)
    totals, counts = values.sum(0), torch.full_like(values[0], float(len(values)))
    if not totals.isfinite().all():
        if values.isinf().any():
            raise infinite_outputs()
        totals, counts = values.nansum(0), values.isnan().logical_not_().sum(0).double()
    mean = totals / counts.clamp(min=1.0) if centre else torch.zeros_like(totals)
    values -= mean
    return values, mean, counts


def scale_of_field(sum_of_squares: float, n_numbers: float, largest_mean: Tensor, dtype: torch.dtype) -> Tensor:
    """The one scale of all outputs, ``()``: the root mean square of what is left when their means are subtracted.

    :param sum_of_squares: of the centred outputs.
    :param n_numbers: how many numbers were observed.
    :param largest_mean: the largest absolute value of an output's mean, ``()``.
    :param dtype: the type of the outputs as they came.
    """
    mean_square = largest_mean.new_tensor(sum_of_squares / max(1.0, n_numbers))
    return usable_scale(mean_square.sqrt(), largest_mean, dtype)


def usable_scale(scale: Tensor, mean: Tensor, dtype: torch.dtype) -> Tensor:
    """The scales, with 1 for outputs that are constant up to the rounding of their type."""
    rounding = 4.0 * torch.finfo(dtype).eps * (mean.abs() + scale)
    return torch.where(scale > rounding, scale, 1.0)


def _leave_out_empty(
    source: OutputSource, sums: GramSums | None, mean: Tensor, spread: Tensor, counts: Tensor, scale: Tensor
) -> StandardizedStatistics:
    present = None
    if (counts == 0).any():
        present = (counts > 0).nonzero().flatten()
        mean, spread = mean[present], spread[present]
        scale = scale if scale.dim() == 0 else scale[present]
    standardized = StandardizedOutputs(source, mean, scale, present)
    if sums is None:
        return StandardizedStatistics(CompressedStatistics.of(standardized), mean, scale, spread, present)
    known = sums.statistics(standardized)
    if present is not None:
        known = known.without_empty(standardized)
    if scale.dim() == 0:
        known = known.rescaled(scale, standardized)
    return StandardizedStatistics(known, mean, scale, spread, present)
