"""Training of the paper's posterior by its closed-form bound."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pyro.contrib.gp.kernels import Constant
from torch import Tensor

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.starts import fit_independent
from pyro_gprn.factorised.elbo import ClosedFormELBO
from pyro_gprn.factorised.kronecker import KroneckerGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import isolated, own_randomness
from pyro_gprn.training.checkpoint import Checkpoint, digest
from pyro_gprn.training.loop import Callback, Trainee
from pyro_gprn.training.ranges import Box
from pyro_gprn.training.restarts import Restarts

#: Steps between exact updates of the mean of q(W), where its (NK)³ cost is small.
MEAN_EVERY = 50
MEAN_UP_TO = 1500
#: The least noise to start with: from less, the bound of this posterior begins too low to recover (by 600 steps on a
#: smooth noise-free field it reached −2.6 million, and 14 thousand from here).
START_NOISE = 0.1


class KroneckerFit(NamedTuple):
    """What :func:`fit_kronecker` returns."""

    guide: KroneckerGuide  #: the posterior
    bound: float  #: evidence lower bound at the end, exact
    start: float  #: before the first step; never above ``bound``
    losses: Tensor  #: negative bound at each step, (steps,)
    restarts: list[dict[str, Any]]  #: of each: "bound", "start", "losses", and the states of "model" and "guide"


def fit_kronecker(
    model: GPRN,
    Y: Tensor,
    *,
    steps: int = 1000,
    learning_rate: float = 0.03,
    restarts: int = 1,
    seed: int | None = None,
    progress: bool = True,
    callback: Callback | None = None,
    guide: KroneckerGuide | None = None,
    checkpoint: str | Path | None = None,
) -> KroneckerFit:
    """Trains a network with the paper's posterior: hyperparameters and :class:`~pyro_gprn.KroneckerGuide`.

    From independent GPs with one shared kernel, by Adam on the closed-form bound, with the mean of q(W) set to its
    exact optimum now and then. The parameters are those of :func:`~pyro_gprn.fit_collapsed`. Complete outputs keep the
    mean projected (a step costs the same for any number of them); with holes it is held in full, N·K·D numbers.

    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 200))
    >>> fit = fit_kronecker(GPRN(X, output_shape=200, n_latents=2), Y, steps=20, seed=0, progress=False)
    >>> fit.bound >= fit.start
    True
    """
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps and restarts must be at least 1; got {steps} and {restarts}")
    if guide is not None and restarts > 1:
        raise ValueError(f"from a given guide there is one start, so restarts must be 1; got {restarts}")
    file = None
    if checkpoint is not None:
        start = [*model.state_dict().values(), *([] if guide is None else guide.state_dict().values())]
        settings = {"steps": steps, "learning_rate": learning_rate, "restarts": restarts, "seed": seed}
        identity = {"data": digest(model.X, Y), "start": digest(*start), "n_latents": model.n_latents, **settings}
        file = Checkpoint(checkpoint, identity)
    with isolated(), own_randomness(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # jitter on the way; the end is checked
        runs = Restarts(
            model,
            prepare=lambda: {"was_interrupted": guide is None and _start_from_independent(model, Y)},
            make=lambda: KroneckerTrainee(model, Y, learning_rate, guide),
            file=file,
        )
        steps = 0 if runs.prepared["was_interrupted"] else steps
        trainee, best = runs.train(restarts, steps, progress=progress, callback=callback)
    return KroneckerFit(trainee.guide, best["bound"], best["start"], best["losses"], runs.finished)


def _start_from_independent(model: GPRN, Y: Tensor) -> bool:
    """Stage 1 of the collapsed model, whose kernel of the weights is this model's."""
    constant = Constant(model.X.shape[1])
    independent = CollapsedGPRN(model.X, model.output_shape, 1, kernel_f=constant, kernel_w=model.kernel_w)
    with isolated():  # its parameters bear the names of this model's
        _, was_interrupted = fit_independent(independent, independent.statistics(Y))
        noise = independent.noise_y.detach()
    model.noise_y = noise.expand(model.noise_y.shape).clamp(min=START_NOISE)
    return was_interrupted


class KroneckerTrainee(Trainee):
    """The paper's model and posterior in training."""

    model: GPRN
    guide: KroneckerGuide

    def __init__(self, model: GPRN, Y: Tensor, learning_rate: float, guide: KroneckerGuide | None = None) -> None:
        mask = ~Y.isnan()
        self._is_complete = bool(mask.all())
        self.model = model
        self._data: tuple[Tensor, ...] = (Y,) if self._is_complete else (torch.where(mask, Y, 0.0), mask)
        if guide is None:
            guide = KroneckerGuide(model, mean="projected" if self._is_complete else "full")
        self.guide = guide
        self.box = Box(model, OutputStatistics.of(Y))
        self._loss = ClosedFormELBO()(model, self.guide)
        self._update_mean()
        parameters = [p for p in [*model.parameters(), *self.guide.parameters()] if p.requires_grad]
        self.optimiser = torch.optim.Adam(parameters, lr=learning_rate, fused=True)

    def step(self) -> float:
        self.optimiser.zero_grad()
        try:
            loss = self._loss(*self._data)
        except NotPositiveDefiniteError:
            return math.nan
        loss.backward()
        gradients = [p.grad.flatten() for p in self.optimiser.param_groups[0]["params"] if p.grad is not None]
        if torch.cat(gradients).isfinite().all():
            self.optimiser.step()
            self.box.clamp()
        return loss.item()

    @torch.no_grad()
    def evaluate(self) -> float:
        try:
            return -self._loss(*self._data).item()
        except NotPositiveDefiniteError:
            return -math.inf

    def between_steps(self, taken: int, settling: bool) -> None:
        if taken % MEAN_EVERY == 0 and not settling:
            self._update_mean()

    def finish(self) -> None:
        self._update_mean()

    def _update_mean(self) -> None:
        if self._is_complete and self.model.n_rows * self.model.n_latents <= MEAN_UP_TO:
            self.guide.update_mean(self._data[0])
