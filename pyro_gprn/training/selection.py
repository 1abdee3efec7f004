"""How many latent functions: by refitted folds."""

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

#: Fits some rows with K functions, and scores others: (kept rows, held-out rows, K) to the mean log density of each
#: held-out row's outputs.
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
    """The number of latent functions with the best log density of held-out rows, over three refitted folds.

    A larger number must win by more than a standard error of the difference over rows. Ctrl-C ends the search; then
    only candidates with all their folds count.

    :param n_rows: ``N``.
    :param score: fits and scores one fold.
    :param candidates: the numbers that are tried.
    :param seed: of the folds.
    :param progress: whether to show a bar over the folds.
    :param file: where the scores of each candidate are written when it has all of them, and found again.

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
            rows = torch.full((n_rows,), math.nan, dtype=torch.float64)
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
