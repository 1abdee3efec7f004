"""How many latent functions: by refitted folds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from tqdm import tqdm

#: Numbers of latent functions that are tried.
CANDIDATES = (1, 2, 3, 5, 8)
N_FOLDS = 3
#: The density is averaged over at most this many outputs.
N_SCORED = 500

#: Fits inputs and flat outputs with K functions; returns the log density of held-out outputs at held-out inputs.
FoldScore = Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]


def choose_latents(
    X: Tensor,
    Y: Tensor,
    score: FoldScore,
    *,
    candidates: Sequence[int] = CANDIDATES,
    seed: int = 0,
    progress: bool = True,
) -> tuple[int, dict[int, float], bool]:
    """The number of latent functions with the best log density of held-out rows, over three refitted folds.

    A larger number must win by more than a standard error of the difference over rows.

    :param X: inputs, ``(N, P)``.
    :param Y: flat outputs, ``(N, D)``, NaN where missing.
    :param score: fits and scores one fold.
    :returns: the number, the mean log density of each candidate, and whether Ctrl-C cut the search short.
    """
    candidates = sorted({min(K, len(X)) for K in candidates})
    if len(X) < 2 * N_FOLDS:
        return candidates[0], {}, False
    generator = torch.Generator().manual_seed(seed)
    folds = torch.randperm(len(X), generator=generator).tensor_split(N_FOLDS)
    by_row: dict[int, Tensor] = {}
    interrupted = False
    bar = tqdm(total=len(candidates) * N_FOLDS, desc="latents", disable=not progress)
    try:
        for K in candidates:
            rows = torch.full((len(X),), torch.nan, dtype=torch.float64)
            for held_out in folds:
                kept = torch.ones(len(X), dtype=torch.bool)
                kept[held_out] = False
                rows[held_out] = score(X[kept], Y[kept], X[held_out], Y[held_out], K).double().nanmean(1).cpu()
                bar.update()
            by_row[K] = rows
    except KeyboardInterrupt:
        interrupted = True
        warnings.warn("the choice of n_latents was interrupted; taking the best so far", stacklevel=3)
    bar.close()
    return _smallest_of_the_best(by_row, candidates[0]), {K: r.nanmean().item() for K, r in by_row.items()}, interrupted


def _smallest_of_the_best(by_row: dict[int, Tensor], default: int) -> int:
    best = default
    for K, rows in by_row.items():
        difference = (rows - by_row[best])[~(rows - by_row[best]).isnan()]
        error = difference.std() / max(1, len(difference)) ** 0.5
        if best != K and difference.mean() > error:
            best = K
    return best
