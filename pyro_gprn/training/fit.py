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
from pyro_gprn.pyro_state import few_threads, new_generator
from pyro_gprn.training.checkpoint import Checkpoint, digest
from pyro_gprn.training.interruption import noticed_interrupts
from pyro_gprn.training.loop import Callback, Trainee
from pyro_gprn.training.restarts import Restarts


@dataclass(frozen=True)
class TrainingSettings:
    """How long and how to train, whatever the posterior.

    :param steps: at most this many steps; fewer when the bound has settled.
    :param learning_rate: Adam's learning rate, before it decays.
    :param restarts: how many random starts of the latent functions; the run with the best bound is kept.
    :param seed: seed of all random draws; None takes one from torch's global state.
    :param progress: whether to show a progress bar.
    :param callback: called after each step with its number and the (noisy) bound.
    :param checkpoint: a file to which the state of training is written every so often. If it exists already, with the
        same data and settings, training goes on from it and ends as it would have without the break.
    :param after: the identity of the run whose result this one goes on from; that run may be in the same file.

    >>> TrainingSettings(steps=400, learning_rate=0.08).restarts
    1
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
    start: float  #: the same bound before the first step; never above ``bound``
    losses: Tensor  #: negative bound at each step, (steps,); noisy where steps use random draws
    restarts: list[dict[str, Any]]  #: for each: "bound", "start", "losses", and the states of "model" and "guide"
    evidence: float = math.nan  #: log evidence of independent GPs with one kernel, by the same likelihood; or NaN
    starts: Sequence[dict[str, Any]] = ()  #: of the best run, of each start that was tried: "name", "bound", "seconds"
    identity: dict[str, Any] | None = None  #: what the fit depends on; None without a checkpoint


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
    """Trains a model, in place, and a guide of it, from several starts; Ctrl-C ends training early.

    :param model: the model.
    :param known: statistics of the outputs.
    :param settings: how long and how to train.
    :param prepare: brings the model's parameters to where every run begins, and returns what a checkpoint must remember
        of this besides the parameters.
    :param make: makes a trainee of the model, given a generator of random numbers.
    :param restore: takes what ``prepare`` returned, in this process or in an earlier one that wrote the checkpoint, and
        sets all of the model that is no parameter.
    :param guide: a trained posterior to go on from; None begins with a new one.
    :param identity: what the result depends on besides :func:`fit_identity`, for the checkpoint.
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
    """What a fit depends on. A checkpoint with another identity is that of another fit.

    >>> model = Network(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> identity = fit_identity(model, OutputStatistics.of(torch.ones(5, 3)), TrainingSettings(400, 0.08, seed=0))
    >>> identity["n_latents"], identity["seed"], identity["kernels"][1]
    (2, 0, 'RBF[0](lengthscale, variance)')
    """
    start = [*model.state_dict().values(), *([] if guide is None else guide.state_dict().values())]
    return {
        "data": f"{digest(model.X)} {known.source.digest()}",
        "start": digest(*start),
        "kernels": [kernel_words(model.kernel_f), kernel_words(model.kernel_w)],
        "priors": model.describe_priors(),
        "n_latents": model.n_latents,
        "steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "restarts": settings.restarts,
        "seed": settings.seed,
    }
