"""Choosing between candidates by what is held out: every candidate is fitted to the same folds and scored there.

The bound of one start may be above that of another, and the other may predict better: on few outputs, with long holes,
or where the likelihood is tempered. What was held out is the judge then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from pyro_gprn.training.checkpoint import Checkpoint
from pyro_gprn.training.folds import Fold
from pyro_gprn.training.interruption import Interruption, noticed_interrupts
from pyro_gprn.training.widening import Widening, find_widening

#: Numbers of latent functions that are tried.
LATENTS = (1, 2, 3, 5, 8)
#: With fewer rows nothing is held out: too little would be left to fit.
FEWEST_ROWS = 8
#: How many folds; and how many where rows are many, and a fit costs more.
N_FOLDS, N_FOLDS_OF_MANY = 5, 3
#: After i folds, candidates whose score is more than (1 + this / i) times the best are dropped.
PATIENCE = 0.3
#: How candidates are fitted and scored: another number for another way, since the scores of the two do not compare. A
#: search that was cut short is not gone on with by another way.
SCORING = 3
#: A challenger is dropped if it is not the best after so many folds.
FOLDS_OF_A_CHALLENGE = 2


class HeldOut(NamedTuple):
    """How a candidate that was fitted to what a fold keeps predicts what it holds out; NaN where that is nothing."""

    scores: Tensor  #: mean score of each row, lower is better, (N, 2): as a held-out row, and of its hidden entries
    deviations: Tensor  #: absolute errors over predicted standard deviations, of b outputs, (N, 2, b): likewise
    means: Tensor  #: what is predicted of them, (N, 2, b)


#: Fits a candidate to what a fold keeps and predicts what it holds out.
FoldScore = Callable[[str, Fold], HeldOut]


@dataclass
class Judgement:
    """What folds say of candidates.

    :param by_row: for each candidate the mean score of each row, ``(N, 2)``, lower is better; NaN where it has none.
    :param deviations: absolute errors over predicted standard deviations, ``(N, 2, b)``: of held-out rows and of hidden
        entries.
    :param means: what was predicted, likewise.
    :param n_folds: how many folds each was fitted to.
    :param seconds: how long that took.
    """

    by_row: dict[str, Tensor] = field(default_factory=dict)
    deviations: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    n_folds: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def score(self, name: str, like: str | None = None) -> float:
        """The mean score of a candidate: of held-out rows and of hidden entries, each counting the same.

        :param like: another candidate: then on the rows that both have.
        """
        rows = self.by_row[name]
        if like is not None:
            rows = torch.where(self.by_row[like].isnan(), torch.nan, rows)
        return rows.nanmean(0).nanmean().item()

    @property
    def contenders(self) -> list[str]:
        """The candidates that were fitted to most folds: the others were dropped."""
        most = max(self.n_folds.values(), default=0)
        return [name for name, n_folds in self.n_folds.items() if n_folds == most > 0]

    @property
    def best(self) -> str | None:
        """The contender with the lowest score; None if no fold was finished."""
        return min(self.contenders, key=self.score, default=None)

    def is_beaten(self, name: str, by: str) -> bool:
        """Whether another candidate wins by more than a standard error, over rows, of the difference."""
        difference = (self.by_row[name] - self.by_row[by]).nanmean(1)
        difference = difference[~difference.isnan()]
        return bool(difference.mean() > difference.std() / max(1, len(difference)) ** 0.5)

    def report(self, chosen: str) -> list[dict[str, Any]]:
        """For each candidate its "name", "score", "folds", "seconds" and whether it "is_chosen", the best first.

        Those that were dropped were scored on fewer rows than the others, so "ratio" is the score over that of the
        chosen one on the same rows; NaN if that has no score.
        """
        names = sorted(self.by_row, key=lambda name: (-self.n_folds[name], self.score(name)))
        return [
            {
                "name": name,
                "score": self.score(name),
                "ratio": self.score(name) / self.score(chosen, like=name) if chosen in self.by_row else math.nan,
                "folds": self.n_folds[name],
                "seconds": self.seconds[name],
                "is_chosen": name == chosen,
            }
            for name in names
        ]

    def widening(self, name: str, spread: Tensor) -> Widening:
        """What a candidate's predicted standard deviations are to be multiplied by.

        :param spread: the standard deviation of the scored outputs over the training rows, ``(b,)``.
        """
        return find_widening(self.deviations[name], spread, self.means.get(name))

    def add(self, name: str, found: HeldOut, seconds: float) -> None:
        """Takes in what one more fold says."""
        # A row is held out once; an entry may be hidden in several folds, and then the last one counts.
        for kept, values in zip((self.by_row, self.deviations, self.means), found, strict=True):
            values = values.double().cpu()
            kept[name] = torch.where(values.isnan(), kept.get(name, torch.nan), values)
        self.n_folds[name] = self.n_folds.get(name, 0) + 1
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def take_in(self, saved: Mapping[str, Any], names: Sequence[str]) -> None:
        """Takes over what a checkpoint kept of some candidates."""
        for name in (name for name in names if name in saved["by_row"]):
            self.by_row[name], self.seconds[name] = saved["by_row"][name], saved["seconds"][name]
            self.deviations[name], self.means[name] = saved["deviations"][name], saved["means"][name]
            self.n_folds[name] = int(saved["n_folds"][name])

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {name: getattr(self, name) for name in ("by_row", "deviations", "means", "n_folds", "seconds")}


def judge(
    names: Sequence[str],
    folds: Sequence[Fold],
    score: FoldScore,
    *,
    so_far: Judgement | None = None,
    are_challengers: bool = False,
    what: str = "candidates",
    progress: bool = True,
    file: Checkpoint | None = None,
) -> Judgement:
    """Fits every candidate to every fold and scores what was held out; those far behind are dropped on the way.

    Ctrl-C ends it; then the folds that are finished count.

    :param names: the candidates.
    :param folds: what is held out.
    :param score: fits and scores one candidate on one fold.
    :param so_far: what the same folds said of candidates before, to which this is added.
    :param are_challengers: True drops these candidates after two folds if they are not the best by then: they go all
        the way only to take its place.
    :param what: what they are called beside the progress bar.
    :param progress: whether to show one.
    :param file: a checkpoint, to which the scores are written after each fold, and from which they are read again.

    >>> fold = Fold(torch.tensor([0, 1]), torch.tensor([2]))
    >>> guess = {"good": 1.0, "bad": 3.0}
    >>> def score(name, fold):
    ...     return HeldOut(torch.full((3, 2), guess[name]), torch.full((3, 2, 4), 1.96), torch.zeros(3, 2, 4))
    >>> judgement = judge(list(guess), [fold], score, progress=False)
    >>> judgement.best, judgement.score("bad")
    ('good', 3.0)
    """
    saved = None if file is None else file.load()
    judgement = Judgement() if so_far is None else so_far
    if saved is not None:
        judgement.take_in(saved, names)
    with (
        noticed_interrupts() as interruption,
        tqdm(total=len(names) * len(folds), desc=what, disable=not progress) as bar,
    ):
        for i, fold in enumerate(folds):
            patience = 0.0 if are_challengers and i >= FOLDS_OF_A_CHALLENGE else PATIENCE
            running = _in_the_race(names, judgement, i, patience)
            waiting = [name for name in running if judgement.n_folds.get(name, 0) == i]
            if not _judge_fold(judgement, waiting, fold, score, bar, interruption):
                interruption.tell(f"the choice between {what} was interrupted; taking the best so far", instead=True)
                break
            if file is not None and waiting:
                file.save(judgement.state())
    return judgement


def _judge_fold(
    judgement: Judgement,
    names: Sequence[str],
    fold: Fold,
    score: FoldScore,
    bar: tqdm,
    interruption: Interruption,
) -> bool:
    """Scores all candidates on one fold; False, and nothing is taken in, if that was interrupted."""
    found = []
    for name in names:
        begin = time.perf_counter()
        predicted = score(name, fold)
        if interruption.is_requested:  # the fit was cut short: its score says nothing
            return False
        found.append((name, predicted, time.perf_counter() - begin))
        bar.update()
    for each in found:
        judgement.add(*each)
    return True


def _in_the_race(names: Sequence[str], judgement: Judgement, n_done: int, patience: float) -> list[str]:
    """The candidates that go into the next fold after ``n_done``: none is far behind another."""
    if n_done == 0:
        return list(names)
    others = judgement.by_row

    def is_near(name: str) -> bool:
        best = min(judgement.score(other, like=name) for other in others if judgement.n_folds[other] >= n_done)
        return judgement.score(name) <= (1 + patience / n_done) * best

    return [name for name in names if judgement.n_folds.get(name, 0) >= n_done and is_near(name)]


def smallest_of_the_best(judgement: Judgement, names: Sequence[str]) -> str:
    """The first of some candidates, in their order, that none after it beats by more than a standard error.

    >>> rows = {"small": torch.tensor([[1.0], [1.2], [0.9]]), "large": torch.tensor([[0.99], [1.3], [0.8]])}
    >>> smallest_of_the_best(Judgement(rows, n_folds={"small": 1, "large": 1}), ["small", "large"])
    'small'
    """
    best = None
    for name in names:
        if name in judgement.contenders and (best is None or judgement.is_beaten(best, by=name)):
            best = name
    return names[0] if best is None else best
