"""What is held out to judge a fit: entries of Y that look like those that will be asked for.

Whole rows, as new inputs have none of their outputs. Where Y has holes, entries in the rows that stay are hidden as
well: the data's own holes, moved along the rows, so that they are as long as those that a prediction will have to fill.
Each fold moves the holes of some of the outputs only: with all of them moved, twice as much would be missing as in the
data, and what other outputs can tell of a hole would be judged too low.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.model_selection import KFold
from torch import Tensor

from pyro_gprn.outputs.gram import OutputStatistics

#: Holes are moved where Y has at most this many numbers; in larger data rows alone are held out.
MOST_NUMBERS = 2**23
#: An output of which a fold would leave a smaller share of its observations keeps them all.
LEAST_SHARE = 0.4


@dataclass(frozen=True, eq=False)
class Fold:
    """One way to divide the data. A fold is equal to itself alone.

    :param kept: the rows to train on, ``(n,)``.
    :param held_out: the other rows, ``(N − n,)``.
    :param hidden: entries of kept rows that are held out too, ``(n, D)``; None if there are none.
    """

    kept: Tensor
    held_out: Tensor
    hidden: Tensor | None = None

    def training(self, known: OutputStatistics) -> OutputStatistics:
        """The statistics of what is kept."""
        if self.hidden is None:
            return known.at_rows(self.kept)
        values = known.source.read(slice(None))[self.kept]
        return OutputStatistics.of(torch.where(self.hidden.to(values.device), torch.nan, values))

    def scored(self, n_rows: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Which entries of some outputs are scored, ``(N, b)``: those of held-out rows, and those that are hidden."""
        rows = torch.zeros(n_rows, len(positions), dtype=torch.bool, device="cpu")
        entries = rows.clone()
        rows[self.held_out] = True
        if self.hidden is not None:
            entries[self.kept] = self.hidden[:, positions]
        return rows, entries


def make_folds(X: Tensor, known: OutputStatistics, n_folds: int, seed: int) -> list[Fold]:
    """Divides the data ``n_folds`` times; each row is held out once.

    :param X: inputs, ``(N, P)``. Of one column, holes are moved along its values; otherwise along the rows as they are.
    :param known: statistics of the outputs.
    :param n_folds: at least 2.
    :param seed: seed of the division.

    >>> Y = torch.ones(30, 2)
    >>> Y[:6, 1] = torch.nan
    >>> X = torch.linspace(0, 1, 30)[:, None]
    >>> fold = make_folds(X, OutputStatistics.of(Y), 5, seed=0)[1]
    >>> fold.kept[fold.hidden[:, 1]]  # six rows from the tenth on, but for those that are held out
    tensor([10, 12, 13, 14, 15])
    """
    observed = _observed(X, known)
    splits = KFold(n_folds, shuffle=True, random_state=seed).split(np.empty(len(X)))
    moved = _moved_outputs(observed, n_folds)
    return [
        _fold(kept, held_out, observed, moved[i], (i + 1) / (n_folds + 1)) for i, (kept, held_out) in enumerate(splits)
    ]


def _moved_outputs(observed: tuple[Tensor, Tensor] | None, n_folds: int) -> list[Tensor]:
    """The outputs whose holes each fold moves: every output that has some in one fold at least, each fold one."""
    with_holes = torch.arange(0, device="cpu") if observed is None else (~observed[0]).any(0).nonzero().flatten()
    enough = with_holes.repeat(-(-n_folds // max(1, len(with_holes))))
    return [enough[i::n_folds] for i in range(n_folds)]


def _observed(X: Tensor, known: OutputStatistics) -> tuple[Tensor, Tensor] | None:
    """Which entries of Y are observed, ``(N, D)``, and the order of the rows; None if no holes are to be moved."""
    if known.is_complete or known.source.n_outputs * len(X) > MOST_NUMBERS:
        return None
    order = X[:, 0].argsort().cpu() if X.shape[1] == 1 else torch.arange(len(X), device="cpu")
    return ~known.source.read(slice(None)).isnan().cpu(), order


def _fold(
    kept: Sequence[int],
    held_out: Sequence[int],
    observed: tuple[Tensor, Tensor] | None,
    outputs: Tensor,
    moved_by: float,
) -> Fold:
    rows, others = torch.as_tensor(kept, device="cpu"), torch.as_tensor(held_out, device="cpu")
    if observed is None:
        return Fold(rows, others)
    seen, order = observed
    moved = torch.empty_like(seen)
    moved[order] = (~seen[order]).roll(round(moved_by * len(seen)), 0)
    is_moved = torch.zeros(seen.shape[1], dtype=torch.bool, device="cpu")
    is_moved[outputs] = True
    hidden = (moved & seen & is_moved)[rows]
    stays = (seen[rows] & ~hidden).sum(0)
    hidden[:, stays < LEAST_SHARE * seen.sum(0)] = False
    return Fold(rows, others, hidden if hidden.any() else None)
