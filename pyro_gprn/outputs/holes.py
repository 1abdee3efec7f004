"""Outputs that each miss some rows of their own, in a few blocks of outputs that miss about as many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

#: Outputs that miss at most so many rows come together; further sizes follow by the same steps.
_SIZES = (0, 2, 4, 8, 12, 16)


@dataclass(frozen=True)
class Holes:
    """The rows that each of ``p`` outputs misses, filled up to the same number ``h`` by rows that it has.

    :param members: which of the outputs these are, ``(p,)``.
    :param rows: for each output h rows, no row twice, ``(p, h)``.
    :param is_hole: whether the output misses the row, ``(p, h)``.
    :param n_rows: ``N``.

    >>> blocks = list(holes_of(torch.tensor([[True, False, True], [True, True, True]])))
    >>> len(blocks), blocks[0].members.tolist(), blocks[0].is_hole.tolist()
    (1, [0, 1], [[True, False], [False, False]])
    >>> blocks[0].rows[0, 0]
    tensor(1)
    """

    members: Tensor
    rows: Tensor
    is_hole: Tensor
    n_rows: int

    @cached_property
    def observed(self) -> Tensor:
        """Whether each output has each row, ``(p, N)``."""
        missing = torch.zeros(len(self.rows), self.n_rows, dtype=torch.bool, device=self.rows.device)
        return missing.scatter(-1, self.rows, self.is_hole).logical_not_()

    @cached_property
    def pairs(self) -> Tensor:
        """Where the pairs of holes lie in a flattened matrix ``(N + h, N + h)``, ``(p · h · h,)``.

        Rows that are no holes are counted as ``N, …, N + h − 1``: what the matrix has there is what they get.
        """
        size = self.rows.shape[1]
        rows = torch.where(self.is_hole, self.rows, self.n_rows + torch.arange(size, device=self.rows.device))
        return (rows.unsqueeze(-1) * (self.n_rows + size) + rows.unsqueeze(-2)).flatten()


def holes_of(observed: Tensor, most_numbers: int | None = None) -> list[Holes]:
    """The holes of ``b`` outputs, in blocks of outputs that miss about as many rows; complete outputs come with them.

    :param observed: whether each output has each row, ``(b, N)``, boolean.
    :param most_numbers: how many numbers an array over a block, ``(p, N)`` or ``(p, h, h)``, may hold; None is any.
    """
    n_missing = observed.logical_not().sum(1)
    n_rows, blocks = observed.shape[1], []
    for fewer, size in pairwise(_sizes(n_rows)):
        lower = -1 if fewer == 0 else fewer
        members = ((n_missing > lower) & (n_missing <= size)).nonzero().flatten()
        at_once = max(1, len(members) if most_numbers is None else most_numbers // max(n_rows, size**2))
        for some in members.split(at_once) if len(members) else ():
            rows = observed[some].byte().argsort(dim=1, stable=True)[:, :size]  # missing rows come first
            is_hole = torch.arange(size, device=observed.device) < n_missing[some].unsqueeze(1)
            blocks.append(Holes(some, rows, is_hole, n_rows))
    return blocks


def _sizes(n_rows: int) -> list[int]:
    """Numbers of holes at which blocks end, from 0 to N."""
    sizes = list(_SIZES)
    while sizes[-1] < n_rows:
        sizes += [sizes[-1] * 3 // 2, sizes[-1] * 2]
    return [size for size in sizes if size < n_rows] + [n_rows]
