"""Choosing the number of latent functions: folds of rows are held out, and the network is fitted to the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.model_selection import KFold
from torch import Tensor
from tqdm import tqdm

from pyro_gprn.training.checkpoint import Checkpoint
from pyro_gprn.training.interruption import noticed_interrupts

#: Numbers of latent functions that are tried.
CANDIDATES = (1, 2, 3, 5, 8)
N_FOLDS = 3

#: Takes (kept rows, held-out rows, K), fits K latent functions to the kept rows, and returns for each held-out row the
#: mean log density of its outputs.
FoldScore = Callable[[Tensor, Tensor, int], Tensor]


@dataclass
class LatentChoice:
    """Which number of latent functions was chosen, and why."""

    n_latents: int
    scores: dict[int, float] = field(default_factory=dict)  #: mean held-out log density of each candidate


def choose_latents(
    n_rows: int,
    score: FoldScore,
    *,
    candidates: Sequence[int] = CANDIDATES,
    seed: int = 0,
    progress: bool = True,
    file: Checkpoint | None = None,
) -> LatentChoice:
    """Chooses the number of latent functions by the mean log density of held-out rows, over three folds.

    A larger number is chosen only if it wins by more than a standard error, over rows, of the difference. Ctrl-C ends
    the search; then only candidates whose folds are all finished count.

    :param n_rows: ``N``.
    :param score: fits and scores one fold.
    :param candidates: the numbers that are tried.
    :param seed: seed of the split into folds.
    :param progress: whether to show a progress bar over the folds.
    :param file: a checkpoint, to which each candidate's scores are written when all its folds are finished, and from
        which they are read again.

    >>> choose_latents(12, lambda kept, held_out, K: torch.full((len(held_out),), -abs(K - 3.0)), progress=False)
    LatentChoice(n_latents=3, scores={1: -2.0, 2: -1.0, 3: 0.0, 5: -2.0, 8: -5.0})
    """
    candidates = sorted({min(K, n_rows) for K in candidates})
    if n_rows < 2 * N_FOLDS:
        return LatentChoice(candidates[0])
    folds = list(KFold(N_FOLDS, shuffle=True, random_state=seed).split(np.empty(n_rows)))
    saved = None if file is None else file.load()
    by_row: dict[int, Tensor] = {} if saved is None else {int(K): rows for K, rows in saved["by_row"].items()}
    with (
        noticed_interrupts() as interruption,
        tqdm(total=len(candidates) * N_FOLDS, desc="latents", disable=not progress) as bar,
    ):
        for K in (each for each in candidates if each not in by_row):
            rows = torch.full((n_rows,), math.nan, dtype=torch.float64, device="cpu")
            for kept, held_out in folds:
                found = score(torch.from_numpy(kept), torch.from_numpy(held_out), K)
                if interruption.is_requested:  # the fold was cut short: its score says nothing
                    break
                rows[torch.from_numpy(held_out)] = found.double().cpu()
                bar.update()
            if interruption.is_requested:
                interruption.tell("the choice of n_latents was interrupted; taking the best so far", instead=True)
                break
            by_row[K] = rows
            if file is not None:
                file.save({"by_row": {str(each): scores for each, scores in by_row.items()}})
    best = _smallest_of_the_best(by_row, candidates[0])
    return LatentChoice(best, {K: rows.nanmean().item() for K, rows in by_row.items()})


def _smallest_of_the_best(by_row: dict[int, Tensor], default: int) -> int:
    best = default
    for K, rows in by_row.items():
        difference = (rows - by_row[best])[~(rows - by_row[best]).isnan()]
        error = difference.std() / max(1, len(difference)) ** 0.5
        if best != K and difference.mean() > error:
            best = K
    return best
