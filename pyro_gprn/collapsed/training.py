"""Training of the collapsed model: from the data to a posterior, without tuning.

The recipe, and what was measured for each choice (twelve problems: heat, advection-diffusion, moving blobs and fronts
with and without noise, a chirp, PM2.5, Jura; N from 60 to 256, two or three splits each, K = 5):

1. *Independent GPs first.* With F fixed at the constant 1 the model is independent GPs that share one kernel: exact
   evidence, a few dozen L-BFGS-B steps from four starts, and the place where everything else begins.
2. *Effective outputs* are read off the Gram matrix there; twice the reading is used. One and three times came close on
   smooth fields; ten times made F overfit (coverage of 95 % intervals 0.71 on a noise-free heat problem).
3. *Adam on everything, with a pair of antithetic draws a step* (400 steps, rate 0.08, β₂ = 0.95, then cosine decay),
   *and the row covariance of q by Gauss-Newton every 20 steps.* Over 600 steps this reached bounds of 1194, 909, 1362
   and 311 on blob, fronts, heat and chirp, against 1112, 901, 1315 and 310 of plain Adam with one draw, 850 steps and
   rate 0.02, in less time. L-BFGS on fixed draws with a free row covariance fails: the covariance learns to cancel the
   very draws (bound on fresh draws -357 on the blob). A point estimate (MAP) was worse on every field.
4. *Holes.* A step costs a Cholesky factor for each pattern of holes. Step for step that is cheaper than the masked
   KroneckerGuide up to about 1.3 D K / N patterns (with K = 5, 25 at N = 64 and D = 200, 80 at N = 64 and D = 1000, 7
   at N = D = 200); since the latter needs many times the steps, a message points to it above ten times D K / N.
5. *Hyperparameters stay in a box* taken from the data: length-scales within the distances between inputs, noise down to
   1e-6 of the outputs' scale.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.starts import fit_independent, read_effective_outputs
from pyro_gprn.collapsed.trainee import Stage2
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import isolated, own_randomness
from pyro_gprn.training.checkpoint import Checkpoint, digest
from pyro_gprn.training.loop import Callback
from pyro_gprn.training.restarts import Restarts

__all__ = ["CollapsedFit", "fit_collapsed"]


class CollapsedFit(NamedTuple):
    """What :func:`fit_collapsed` returns."""

    guide: CollapsedGuide  #: the posterior
    bound: float  #: evidence lower bound (of the weighted likelihood) at the end, by 64 draws
    start: float  #: the same before stage 2, by the same draws; never above ``bound``
    evidence: float  #: of independent GPs with one shared kernel, by the same weight of the likelihood
    losses: Tensor  #: negative bound at each step, noisy, (steps,)
    restarts: list[dict[str, Any]]  #: of each: "bound", "start", "losses", and the states of "model" and "guide"


def fit_collapsed(
    model: CollapsedGPRN,
    Y: Tensor,
    *,
    posterior: Literal["variational", "laplace", "point"] = "variational",
    steps: int = 400,
    learning_rate: float = 0.08,
    restarts: int = 1,
    seed: int | None = None,
    progress: bool = True,
    callback: Callback | None = None,
    guide: CollapsedGuide | None = None,
    checkpoint: str | Path | None = None,
) -> CollapsedFit:
    """Trains a collapsed network: hyperparameters and the posterior of its functions.

    The model's hyperparameters are changed in place. ``effective_outputs="auto"`` becomes a number. Ctrl-C ends the
    training early and keeps what was reached. The bound that comes back is never below the start's.

    :param model: the model.
    :param Y: outputs, ``(N, d_1, …, d_M)`` or flat, NaN where missing; centred and of about unit scale.
    :param posterior: ``"variational"``, the default, maximises the bound. ``"laplace"`` finds the most probable
        functions and puts a Gauss-Newton covariance around them; ``"point"`` leaves them without, which is
        over-confident. Both are cheaper a step, and predicted every field that was tried worse.
    :param steps: at most this many steps; fewer when the bound has settled.
    :param learning_rate: of Adam, before its decay.
    :param restarts: how many random starts of the latent functions; the best bound is kept.
    :param seed: of the draws; None takes torch's own state.
    :param progress: whether to show a progress bar.
    :param callback: called after each step with its number and the (noisy) bound.
    :param guide: a trained posterior of the model to go on from, in place of a new start.
    :param checkpoint: a file to which training is written as it goes; where it is there already, from the same data and
        settings, training goes on from it and ends as it would have without the break.

    >>> import torch
    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 200))
    >>> model = CollapsedGPRN(X, output_shape=200, n_latents=2, effective_outputs="auto")
    >>> fit = fit_collapsed(model, Y, steps=40, seed=0, progress=False)
    >>> fit.bound >= fit.start, 1 <= model.effective_outputs <= 200
    (True, True)
    """
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps and restarts must be at least 1; got {steps} and {restarts}")
    if posterior not in ("variational", "laplace", "point"):
        raise ValueError(f"posterior must be 'variational', 'laplace' or 'point'; got {posterior!r}")
    if guide is not None and restarts > 1:
        raise ValueError(f"from a given guide there is one start, so restarts must be 1; got {restarts}")
    known = model.statistics(Y)
    _check_patterns(model, known)
    settings = {"posterior": posterior, "steps": steps, "learning_rate": learning_rate, "restarts": restarts}
    file = None if checkpoint is None else Checkpoint(checkpoint, _identity(model, guide, known, seed, settings))
    with isolated(), own_randomness(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # jitter on the way; the end is checked
        runs = Restarts(
            model,
            prepare=lambda: _prepare(model, known, guide),
            make=lambda: Stage2(model, known, learning_rate, posterior, guide),
            file=file,
        )
        model.effective_outputs = runs.prepared["effective_outputs"]
        steps = 0 if runs.prepared["was_interrupted"] else steps
        trainee, best = runs.train(restarts, steps, progress=progress, callback=callback)
    evidence = runs.prepared["evidence"]
    return CollapsedFit(trainee.guide, best["bound"], best["start"], evidence, best["losses"], runs.finished)


def _prepare(model: CollapsedGPRN, known: OutputStatistics, guide: CollapsedGuide | None) -> dict[str, Any]:
    """Stage 1, unless there is a guide to go on from."""
    evidence, was_interrupted = math.nan, False
    if guide is None:
        evidence, was_interrupted = fit_independent(model, known)
        if model.effective_outputs == "auto":
            model.effective_outputs = read_effective_outputs(model, known)
        evidence *= model.likelihood_weight
    return {
        "evidence": evidence,
        "was_interrupted": was_interrupted,
        "effective_outputs": model.effective_outputs,
    }


def _identity(
    model: CollapsedGPRN,
    guide: CollapsedGuide | None,
    known: OutputStatistics,
    seed: int | None,
    settings: dict[str, Any],
) -> dict[str, Any]:
    """What a fit depends on, for its checkpoint."""
    start = [*model.state_dict().values(), *([] if guide is None else guide.state_dict().values())]
    numbers = {"n_latents": model.n_latents, "effective_outputs": model.effective_outputs, "seed": seed}
    return {"data": digest(model.X, known.outputs), "start": digest(*start), **numbers, **settings}


def _check_patterns(model: CollapsedGPRN, known: OutputStatistics) -> None:
    n_patterns = len(known.counts)
    if n_patterns > max(16.0, 10.0 * model.n_outputs * model.n_latents / model.n_rows):
        warnings.warn(
            f"Y has {n_patterns} patterns of missing outputs, each with a Cholesky factor of its own at every step;"
            " GPRN with KroneckerGuide(mean='full') and a mask may be faster here",
            stacklevel=3,
        )
