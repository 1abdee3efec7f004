"""Training of the collapsed model: from the data to a posterior, without tuning.

The recipe, and what was measured for each choice (twelve problems: heat, advection-diffusion, moving blobs and fronts
with and without noise, a chirp, PM2.5, Jura; N from 60 to 256, two or three splits each, K = 5):

1. *Independent GPs first.* With F fixed at the constant 1 the model is independent GPs that share one kernel: exact
   evidence, a few dozen L-BFGS-B steps from four starts, and the place where everything else begins.
2. *A race between starts* (starts.py, race.py): independent GPs, and functions that carry the signal, taken from the
   Gram matrix, with little noise of their own or much. After 80 steps each the best two take 80 more, and the better
   one is trained to the end. 40 steps are too few: on a chirp the start that ended at a bound of -762 (held-out log
   density 0.51 against 0.01) was behind independent GPs then, which ended at -914. Fitting the weights' kernel and the
   noise to the functions before the first step made the start better and the end worse (2274 against 2312 on fronts).
3. *Effective outputs* are read off the Gram matrix there; twice the reading is used. One and three times came close on
   smooth fields; ten times made F overfit (coverage of 95 % intervals 0.71 on a noise-free heat problem).
4. *Adam on everything, with a pair of antithetic draws a step* (400 steps, rate 0.08, β₂ = 0.95, then cosine decay),
   *and the row covariance of q by Gauss-Newton every 20 steps.* Over 600 steps this reached bounds of 1194, 909, 1362
   and 311 on blob, fronts, heat and chirp, against 1112, 901, 1315 and 310 of plain Adam with one draw, 850 steps and
   rate 0.02, in less time. L-BFGS on fixed draws with a free row covariance fails: the covariance learns to cancel the
   very draws (bound on fresh draws -357 on the blob). A point estimate (MAP) was worse on every field.
5. *L-BFGS-B at the end*, where there is hardly any noise (settling.py): there Adam has not settled in its steps, and
   does in ten times as many. It took a quarter to two fifths off the error of boundary layers (docs/training.md).
6. *Holes.* Where many outputs share each pattern of holes, a step costs a Cholesky factor for each pattern. Where
   nearly every output has its own holes, it costs one for all and a small one for each output (scattered.py): a fit of
   40 × 1,000 with 5 % missing takes two to three times as long as one of complete outputs (benchmarks/holes.py), and by
   patterns took 46 times as long. Outputs that have nearly all their own holes and miss nearly all rows gain nothing by
   that. Then the masked KroneckerGuide is cheaper step for step above about 1.3 D K / N patterns, but needs many times
   the steps: a message points to it above ten times D K / N.
7. *Hyperparameters stay in ranges* taken from the data: length-scales within the distances between inputs, noise down
   to 1e-6 of the outputs' scale. Inputs that do not matter end at the upper end of that range: 120 runs of a borehole
   with 8 further inputs or 18 told the five that matter apart without a prior.
8. *Inducing inputs.* All of this is done for the exact network of 300 rows. The network of all rows begins where that
   ends (subset.py) and takes steps of Adam alone (docs/many-rows.md).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.independent import fit_independent, independent_evidence, read_effective_outputs
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.race import race, race_steps
from pyro_gprn.collapsed.starts import MANY_ROWS, STARTS, check_starts
from pyro_gprn.collapsed.subset import N_ROWS as SUBSET_ROWS
from pyro_gprn.collapsed.subset import Subset, take_over
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import white_noise
from pyro_gprn.training.fit import Fit, TrainingSettings, train
from pyro_gprn.training.interruption import noticed_interrupts
from pyro_gprn.training.loop import copy_state

#: At most this many steps. On seven problems the bound gained 0.2 to 4 % less than 4,000 steps made it gain, and
#: held-out errors were the same; 400 steps fell 7 % short on one of them (docs/training.md).
STEPS = 800

#: What :func:`fit_collapsed` returns.
CollapsedFit = Fit

#: Cholesky factorisations that one training step takes the time of, and one evaluation in the search for a start; how
#: many of the latter there are; N×N arrays that are held at once (benchmarks/collapsed.py measures the first).
_STEP_COST, _EVALUATION_COST, _EVALUATIONS, _ARRAYS = 25, 8, 150, 40
#: With inducing inputs at most so many steps follow on those for some of the rows. 1,000 raised the bound by 0.15 and
#: 3.4 more than 300 did, which raised it by 70 and 271 (two problems, N = 2,000, m = 60).
INDUCING_STEPS = 300
#: With inducing inputs every restart begins so far, whitened, from the functions of the exact network of some rows.
RESTART_SPREAD = 0.3


def fit_collapsed(
    model: CollapsedGPRN,
    Y: Any,
    *,
    posterior: Literal["variational", "laplace", "point"] = "variational",
    guide: CollapsedGuide | None = None,
    starts: Sequence[str] | None = None,
    from_here: bool = False,
    at_independent: bool = False,
    steps: int = STEPS,
    learning_rate: float = 0.08,
    **settings: Any,
) -> CollapsedFit:
    """Trains a collapsed network: hyperparameters and the posterior of its functions.

    The model's hyperparameters are changed in place. ``effective_outputs="auto"`` becomes a number. Ctrl-C ends the
    training early and keeps what was reached. The bound that comes back is never below the start's.

    :param model: the model.
    :param Y: outputs, ``(N, d_1, …, d_M)`` or flat, NaN where missing; centred and of about unit scale.
    :param posterior: ``"variational"``, the default, maximises the bound. ``"laplace"`` finds the most probable
        functions and puts a Gauss-Newton covariance around them; ``"point"`` leaves them without. The most
        probable functions are too small, and the weights' kernel too large to make up for it, so that intervals are too
        wide at new inputs. Both are cheaper a step, and predicted every field that was tried worse.
    :param guide: a trained posterior of the model to go on from, in place of a new start.
    :param starts: names of the starts (:data:`~pyro_gprn.collapsed.starts.STARTS`) that are raced, the best trained to
        the end; None is all of them, or the first alone from N = 1,000 on. One name, ``["independent"]``, is no race.
    :param from_here: whether the fit of independent GPs, where all starts begin, starts at the hyperparameters that the
        model has; otherwise at several values from the data as well.
    :param at_independent: True if the model has the hyperparameters of this fit already, so that it is left out.
    :param steps: at most this many steps; fewer when the bound has settled. Where there is hardly any noise, rounds of
        L-BFGS-B follow, each with at most a twentieth of them (:func:`~pyro_gprn.collapsed.settling.settle`). With
        inducing inputs they are those of the exact network of some rows, and at most 300 steps follow.
    :param learning_rate: of Adam, before its decay.
    :param settings: ``restarts``, ``seed``, ``progress``, ``callback`` and ``checkpoint``, as in
        :class:`~pyro_gprn.training.fit.TrainingSettings`.

    >>> import torch
    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 200))
    >>> model = CollapsedGPRN(X, output_shape=200, n_latents=2, effective_outputs="auto")
    >>> fit = fit_collapsed(model, Y, steps=40, seed=0, progress=False)
    >>> fit.bound >= fit.start, 1 <= model.effective_outputs <= 200
    (True, True)
    """
    if posterior not in ("variational", "laplace", "point"):
        raise ValueError(f"posterior must be 'variational', 'laplace' or 'point'; got {posterior!r}")
    names = check_starts(starts, SUBSET_ROWS if model.has_inducing else model.n_rows)
    is_new = guide is None and model.has_inducing
    steps_before = 0 if guide is not None else race_steps(len(names), steps)
    how = TrainingSettings(min(steps, INDUCING_STEPS) if is_new else steps, learning_rate, **settings)
    known = model.statistics(Y)
    _announce_cost(model, known, how, steps_before)
    given, start_at = model.effective_outputs, {}

    def fit_subset() -> dict[str, Any]:
        """Trains the exact network of some of the rows, from where the network with inducing inputs begins."""
        subset = Subset.of(known)
        part = model.exact_at(subset.rows)
        part.effective_outputs = given
        fit = fit_collapsed(
            part,
            subset.known,
            posterior=posterior,
            starts=names,
            from_here=from_here,
            steps=steps,
            learning_rate=learning_rate,
            seed=how.seed,
            progress=False,
        )
        start = take_over(model, part, fit.guide)
        return {"effective_outputs": model.effective_outputs, "start": start, "starts": list(fit.starts)}

    with noticed_interrupts() as interruption:

        def prepare() -> dict[str, Any]:
            evidence = math.nan
            if guide is None and model.has_inducing:
                return {"evidence": evidence, **fit_subset()}
            if guide is None:
                model.effective_outputs = given
                if at_independent:
                    evidence = independent_evidence(model, known)
                else:
                    evidence = fit_independent(model, known, from_here=from_here)
                if model.effective_outputs == "auto":
                    model.effective_outputs = read_effective_outputs(model, known)
                evidence *= model.likelihood_power
            return {"evidence": evidence, "effective_outputs": model.effective_outputs}

        def restore(prepared: dict[str, Any]) -> None:
            model.effective_outputs = prepared["effective_outputs"]
            start_at.update(prepared)

        def make(generator: torch.Generator) -> CollapsedTrainee:
            trainee = partial(CollapsedTrainee, model, known, learning_rate, generator, posterior)
            if guide is not None:
                return trainee(guide)
            if model.has_inducing:
                return _from_subset(trainee, start_at, how, generator, is_hurried=interruption.is_requested)
            if interruption.is_requested:
                return trainee(is_hurried=True)
            begin = copy_state(model)
            runners: list[CollapsedTrainee] = []

            def make_runner(name: str) -> CollapsedTrainee:
                model.load_state_dict(begin)
                start = STARTS[name](model, known, generator)
                runners.append(trainee(start=start, like=runners[0] if runners else None))
                return runners[-1]

            return race(names, make_runner, steps, interruption)

        identity = {"posterior": posterior, "effective_outputs": given, "starts": names, "from_here": from_here}
        fit, prepared = train(
            model, known, how, prepare=prepare, make=make, restore=restore, guide=guide, identity=identity
        )
    return fit._replace(evidence=prepared["evidence"])


def _from_subset(
    make: Callable[..., CollapsedTrainee],
    prepared: dict[str, Any],
    how: TrainingSettings,
    generator: torch.Generator,
    *,
    is_hurried: bool,
) -> CollapsedTrainee:
    """A trainee that begins at the functions of the exact network of some rows; several restarts, beside them."""
    start = prepared["start"]
    if how.restarts > 1:
        start = start + RESTART_SPREAD * white_noise(*start.shape, like=start, generator=generator)
    trainee = make(start=start.clone(), is_hurried=is_hurried)
    trainee.starts = prepared["starts"]
    return trainee


def _announce_cost(model: CollapsedGPRN, known: OutputStatistics, how: TrainingSettings, before: int) -> None:
    """Warns of what will take long, before it begins; each run has steps ``before`` its own."""
    if model.has_inducing:
        return
    n_patterns, N = known.n_factors, model.n_rows
    if not model.own_kernels and n_patterns > max(16.0, 10.0 * model.n_outputs * model.n_latents / N):
        warnings.warn(
            f"Y has {n_patterns} patterns of missing outputs, each with a Cholesky factor of its own at every step;"
            " GPRN with KroneckerGuide(mean='full') and a mask may be faster here",
            stacklevel=3,
        )
    if N >= MANY_ROWS:
        unit = n_patterns * _seconds_of_a_cholesky(N)
        steps = how.restarts * (before + how.steps)
        minutes = unit * (steps * _STEP_COST + _EVALUATIONS * _EVALUATION_COST) / 60
        gigabytes = _ARRAYS * 8 * known.numbers_held / 1e9
        warnings.warn(
            f"N = {N} rows: a step factorises matrices of {N} × {N}, and its cost grows with N³. This fit will take"
            f" about {minutes:.0f} minutes at most, and {gigabytes:.1f} GB beside the data. Ctrl-C keeps what was"
            " reached; inducing inputs (inducing=100), fewer rows or fewer steps make it shorter",
            stacklevel=3,
        )


def _seconds_of_a_cholesky(n_rows: int) -> float:
    matrix = torch.eye(n_rows, dtype=torch.float64, device="cpu")
    begin = time.perf_counter()
    torch.linalg.cholesky(matrix)
    return time.perf_counter() - begin
