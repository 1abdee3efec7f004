"""The one path by which every posterior is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import quiet_jitter
from pyro_gprn.network.base import Network
from pyro_gprn.network.kernels import kernel_words
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import new_generator
from pyro_gprn.training.checkpoint import Checkpoint, digest
from pyro_gprn.training.interruption import noticed_interrupts
from pyro_gprn.training.loop import Callback, Trainee
from pyro_gprn.training.restarts import Restarts
from pyro_gprn.training.threads import few_threads


@dataclass(frozen=True)
class TrainingSettings:
    """How long and how to train, whatever the posterior.

    :param steps: at most this many steps; fewer when the bound has settled.
    :param learning_rate: of Adam, before its decay.
    :param restarts: how many random starts of the latent functions; the best bound is kept.
    :param seed: of the draws; None takes one from torch's own state.
    :param progress: whether to show a progress bar.
    :param callback: called after each step with its number and the (noisy) bound.
    :param checkpoint: a file to which training is written as it goes; where it is there already, from the same data and
        settings, training goes on from it and ends as it would have without the break.
    :param after: the identity of the run whose result this one goes on from, which may stand in the same file.
    """

    steps: int
    learning_rate: float
    restarts: int = 1
    seed: int | None = None
    progress: bool = True
    callback: Callback | None = None
    checkpoint: str | Path | None = None
    after: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1:
            raise ValueError(f"steps and restarts must be at least 1; got {self.steps} and {self.restarts}")


class Fit(NamedTuple):
    """What training returns."""

    guide: Any  #: the posterior
    bound: float  #: evidence lower bound at the end (for a collapsed model, of the tempered likelihood, by fixed draws)
    start: float  #: the same before the first step; never above ``bound``
    losses: Tensor  #: negative bound at each step, (steps,); noisy where steps use random draws
    restarts: list[dict[str, Any]]  #: of each: "bound", "start", "losses", and the states of "model" and "guide"
    evidence: float = math.nan  #: of independent GPs with one shared kernel, by the same likelihood, where it is known
    starts: Sequence[dict[str, Any]] = ()  #: of the best run, of each start that was tried: "name", "bound", "seconds"
    identity: dict[str, Any] | None = None  #: what the fit depends on, if there is a checkpoint


def train(
    model: Network,
    known: OutputStatistics,
    settings: TrainingSettings,
    *,
    prepare: Callable[[], dict[str, Any]],
    make: Callable[[torch.Generator], Trainee],
    restore: Callable[[dict[str, Any]], None] = lambda prepared: None,
    guide: torch.nn.Module | None = None,
    identity: dict[str, Any] | None = None,
) -> tuple[Fit, dict[str, Any]]:
    """Trains a model and a new guide of it, in place, from several starts; Ctrl-C ends it early.

    :param model: the model.
    :param known: statistics of the data.
    :param settings: how long and how.
    :param prepare: brings the model's parameters to where every run begins; returns what to remember of that.
    :param make: a trainee of the model, by a generator of random numbers.
    :param restore: takes what ``prepare`` returned, now or before a break, and sets what is no parameter.
    :param guide: the trained posterior that training goes on from, if it does.
    :param identity: what else the result depends on, for the checkpoint.
    :returns: the fit, and what ``prepare`` returned.
    """
    if guide is not None and settings.restarts > 1:
        raise ValueError(f"from a given guide there is one start, so restarts must be 1; got {settings.restarts}")
    file = None
    if settings.checkpoint is not None:
        whole = fit_identity(model, known, settings, guide) | (identity or {})
        file = Checkpoint(settings.checkpoint, whole, after=settings.after)
    generator = new_generator(settings.seed)
    with noticed_interrupts() as interruption, quiet_jitter(), few_threads(model.n_rows):
        runs = Restarts(model, prepare, restore, lambda: make(generator), generator, file)
        trainee, best = runs.train(
            settings.restarts, settings.steps, interruption, progress=settings.progress, callback=settings.callback
        )
    fit = Fit(trainee.guide, best["bound"], best["start"], best["losses"], runs.finished)
    whole_identity = None if file is None else file.identity
    return fit._replace(identity=whole_identity, starts=best.get("starts", [])), runs.prepared


def fit_identity(
    model: Network, known: OutputStatistics, settings: TrainingSettings, guide: torch.nn.Module | None = None
) -> dict[str, Any]:
    """What a fit depends on: a checkpoint with another identity is that of another fit."""
    start = [*model.state_dict().values(), *([] if guide is None else guide.state_dict().values())]
    return {
        "data": f"{digest(model.X)} {known.source.digest()}",
        "start": digest(*start),
        "kernels": [kernel_words(model.kernel_f), kernel_words(model.kernel_w)],
        "n_latents": model.n_latents,
        "steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "restarts": settings.restarts,
        "seed": settings.seed,
    }
