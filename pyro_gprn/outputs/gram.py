"""What the bounds need of the outputs: Gram matrices, from one pass over Y.

Outputs that miss the same rows share one Gram matrix. A complete Y is the case of one pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: A pass over a tensor takes about this many bytes of it (in float64) at a time: what a cache holds.
CHUNK_BYTES = 2**22
#: And a pass over an array that may have to be read from elsewhere.
READ_BYTES = 2**26


@dataclass(frozen=True)
class OutputStatistics:
    """Outputs and their Gram matrices, by pattern of holes.

    :param outputs: ``Y`` itself, ``(N, d_1, …, d_M)``, NaN where an output is missing: referred to, never copied.
    :param grams: ``Y_g Y_gᵀ`` over the outputs of each of ``g`` patterns, in float64, ``(g, N, N)``; zero in rows
        that the pattern misses.
    :param observed: which rows each pattern has, ``(g, N)``, boolean.
    :param counts: how many outputs have each pattern, ``(g,)``, in float64.
    :param pattern_of: the pattern of each output, ``(D,)``; None when there is only one.
    :param version: torch's count of in-place changes of ``Y`` when these were made.

    >>> OutputStatistics.of(torch.ones(2, 10, 10)).gram
    tensor([[100., 100.],
            [100., 100.]], dtype=torch.float64)
    >>> Y = torch.tensor([[1.0, 2.0, torch.nan], [1.0, 2.0, 3.0]])
    >>> known = OutputStatistics.of(Y)
    >>> known.observed.tolist(), known.counts.tolist(), known.pattern_of.tolist()
    ([[False, True], [True, True]], [1.0, 2.0], [1, 1, 0])
    """

    outputs: Tensor
    grams: Tensor
    observed: Tensor
    counts: Tensor
    pattern_of: Tensor | None
    version: int

    @classmethod
    def of(cls, outputs: Tensor) -> OutputStatistics:
        """One pass over ``outputs``; two more where some are missing."""
        n_rows, device = outputs.shape[0], outputs.device
        gram = gram_matrix(outputs)
        if torch.isfinite(gram.diagonal()).all():
            everything = torch.ones(1, n_rows, dtype=torch.bool, device=device)
            counts = torch.full((1,), float(outputs[0].numel()), dtype=torch.float64, device=device)
            return cls(outputs, gram.unsqueeze(0), everything, counts, None, outputs._version)
        observed, pattern_of = _patterns(outputs)
        counts = torch.bincount(pattern_of, minlength=len(observed)).double()
        grams = torch.stack([gram_matrix(outputs, pattern_of == g) for g in range(len(observed))])
        if not torch.isfinite(grams).all():
            raise ValueError("Y holds inf; a missing output is NaN, and all others must be finite")
        return cls(outputs, grams, observed, counts, pattern_of, outputs._version)

    @cached_property
    def is_complete(self) -> bool:
        """Whether no output is missing anywhere."""
        return bool(self.observed.all())

    @cached_property
    def numbers(self) -> Tensor:
        """How many numbers of Y each pattern has, ``(g,)``."""
        return self.counts * self.observed.sum(1)

    @property
    def gram(self) -> Tensor:
        """``Y Yᵀ`` of complete outputs, ``(N, N)``."""
        if not self.is_complete:
            rows = (~self.observed.all(0)).nonzero().flatten().tolist()
            raise ValueError(
                f"Y holds NaN in {len(rows)} of {self.observed.shape[1]} rows (the first: row {rows[0]}), and this"
                " needs complete outputs. For holes use CollapsedGPRN, or KroneckerGuide(mean='full') with a mask."
            )
        return self.grams[0]

    @property
    def n_observed(self) -> float:
        """How many numbers of Y were observed."""
        return self.numbers.sum().item()

    def patterns_at(self, positions: slice | Tensor) -> Tensor:
        """The pattern of each output at some positions among the flattened ones, ``(b,)``."""
        if self.pattern_of is not None:
            return self.pattern_of[positions]
        chosen = self.outputs[:1].flatten()[positions]  # only to count them
        return torch.zeros(len(chosen), dtype=torch.long, device=chosen.device)

    def describe(self, outputs: Tensor) -> bool:
        """Whether these are the statistics of exactly this tensor (or a view of all of it), unchanged."""
        return (
            outputs.data_ptr() == self.outputs.data_ptr()
            and outputs.shape == self.outputs.shape
            and outputs.stride() == self.outputs.stride()
            and outputs._version == self.version
        )


class StatisticsMemory:
    """The statistics of the last outputs it was given: one pass over Y when it is new, none until it changes."""

    def __init__(self) -> None:
        self._last: OutputStatistics | None = None

    def of(self, outputs: Tensor | None) -> OutputStatistics:
        """Statistics of ``outputs``, or of the last ones for None."""
        if outputs is not None and (self._last is None or not self._last.describe(outputs)):
            self._last = OutputStatistics.of(outputs)
        if self._last is None:
            raise ValueError("this needs the data: call it with Y first")
        return self._last


def gram_matrix(outputs: Any, columns: Tensor | None = None, *, chunk_bytes: int | None = None) -> Tensor:
    """``Y Yᵀ`` over outputs, in chunks of columns, summed in float64.

    :param outputs: ``Y``, ``(N, d_1, …, d_M)``: a torch tensor, or anything that slices into NumPy arrays
        (NumPy, a memory map, dask, zarr).
    :param columns: which outputs to sum over, a boolean for each of the flattened ones, with NaN among them taken
        for zero; None is all, as they are.
    :param chunk_bytes: how much of Y is held in float64 at a time; None chooses.
    :returns: ``(N, N)`` in float64.

    >>> gram_matrix(np.eye(2, 5, dtype=np.float32))
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    n_rows = outputs.shape[0]
    gram = torch.zeros(n_rows, n_rows, dtype=torch.float64, device=getattr(outputs, "device", None))
    for start, chunk in _chunks(outputs, chunk_bytes):
        if columns is not None:
            chunk = chunk[:, columns[start : start + chunk.shape[1]]].nan_to_num(
                nan=0.0, posinf=torch.inf, neginf=-torch.inf
            )
        chunk = chunk.to(torch.float64)
        gram += chunk @ chunk.mT
    return gram


def _chunks(outputs: Any, chunk_bytes: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """Blocks of the flattened outputs ``(N, b)`` with the position of their first, as tensors."""
    n_rows = outputs.shape[0]
    flat = outputs.reshape(n_rows, -1)
    if chunk_bytes is None:
        chunk_bytes = CHUNK_BYTES if isinstance(outputs, Tensor) else READ_BYTES
    width = max(1, chunk_bytes // (8 * n_rows))
    for start in range(0, flat.shape[1], width):
        block = flat[:, start : start + width]
        if not isinstance(block, Tensor):  # torch warns of memory that it may not write to; such a block is copied
            block = torch.from_numpy(np.require(block, requirements="W"))
        yield start, block


def _patterns(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The patterns of observed rows, ``(g, N)``, and which of them each output has, ``(D,)``."""
    observed = torch.cat([~chunk.isnan() for _, chunk in _chunks(outputs)], dim=1).mT.contiguous()  # (D, N)
    packed = np.packbits(observed.cpu().numpy(), axis=1)  # a pattern as a few bytes, which sort fast
    as_bytes = packed.view(np.dtype((np.void, packed.shape[1])))
    _, first, inverse = np.unique(as_bytes.ravel(), return_index=True, return_inverse=True)
    patterns, pattern_of = observed[first], torch.from_numpy(inverse).to(observed.device)
    empty = (~patterns.any(1))[pattern_of].nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"{len(empty)} outputs have no observation at all (the first: output {empty[0]}); leave them out"
        )
    return patterns, pattern_of
