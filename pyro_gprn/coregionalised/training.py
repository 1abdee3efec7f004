"""Training of the coregionalised network: its exact evidence, maximised by L-BFGS-B.

The weights are maximised along with the hyperparameters, beside their prior. All N·D numbers are one Gaussian vector:
for the algebra with holes (collapsed/likelihood.py) they are one output in N·D rows.

Where few outputs have holes it predicts them better than the variational posterior of the collapsed network does: on a
problem of six series the scaled error was 0.206 against 0.289 (one split; docs/training.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from pyro_gprn.collapsed.likelihood import outputs_given
from pyro_gprn.coregionalised.guide import CoregionalisedGuide
from pyro_gprn.coregionalised.model import CoregionalisedGPRN, flat_outputs
from pyro_gprn.outputs.completion import can_complete, complete
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import new_generator, white_noise
from pyro_gprn.training.evidence import Evidence, maximise
from pyro_gprn.training.fit import Fit
from pyro_gprn.training.interruption import Interruption, noticed_interrupts
from pyro_gprn.training.loop import Callback, copy_state
from pyro_gprn.training.ranges import Ranges, positive_parameters

#: At most this many steps of L-BFGS-B; fewer when one gains less log evidence than this for each number of Y.
STEPS, TOLERANCE = 200, 1e-5
#: Length-scales of the functions at the start, over √P standard deviations of each input, from first to last.
SHORTEST, LONGEST = 0.3, 1.0
#: Noise of the outputs at the start, over their scale; of the functions; and the spread of random parts of the weights.
NOISE_Y, NOISE_F, SPREAD = 0.2, 0.01, 0.05


def fit_coregionalised(
    model: CoregionalisedGPRN,
    Y: Any,
    *,
    guide: CoregionalisedGuide | None = None,
    steps: int = STEPS,
    restarts: int = 1,
    seed: int | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Fit:
    """Trains a coregionalised network: hyperparameters and weights.

    The model's hyperparameters are changed in place. Ctrl-C ends the training at the best that was met.

    :param model: the model.
    :param Y: outputs, ``(N, d_1, …, d_M)`` or flat, NaN where missing; centred and of about unit scale.
    :param guide: trained weights to go on from, with the hyperparameters that the model has.
    :param steps: at most this many steps of L-BFGS-B.
    :param restarts: how many starts, which differ in random parts of the weights; the best is kept.
    :param seed: seed of these; None takes one from torch.
    :param progress: whether to show a progress bar.
    :param callback: called after each evaluation with its number and the log evidence.
    :returns: the fit. Its bound is the log evidence with the log prior of the weights.

    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 4))
    >>> model = CoregionalisedGPRN(X, output_shape=4, n_latents=2)
    >>> fit = fit_coregionalised(model, Y, steps=20, seed=0, progress=False)
    >>> fit.bound >= fit.start
    True
    """
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps and restarts must be at least 1; got {steps} and {restarts}")
    if guide is not None and restarts > 1:
        raise ValueError(f"from a given guide there is one start, so restarts must be 1; got {restarts}")
    known = model.statistics(Y)
    flat = flat_statistics(known)
    generator = new_generator(seed)
    runs: list[dict[str, Any]] = []
    with noticed_interrupts() as interruption:
        ranges = Ranges(model, known)
        while len(runs) < restarts and not (runs and interruption.is_requested):
            q = CoregionalisedGuide(model, init_loc=_start(model, known, ranges, generator)) if guide is None else guide
            with tqdm(total=steps, desc="fit", disable=not progress) as bar:
                runs.append(_train(model, q, flat, steps, interruption, ranges, _Watch(bar, callback)))
    best = max(runs, key=lambda run: run["bound"])
    model.load_state_dict(best["model"])
    q.load_state_dict(best["guide"])
    return Fit(q, best["bound"], best["start"], best["losses"], runs)


class _Watch:
    """Keeps the losses and shows them."""

    def __init__(self, bar: tqdm, callback: Callback | None) -> None:
        self._bar, self._callback = bar, callback
        self.losses: list[float] = []

    def __call__(self, value: float) -> None:
        self.losses.append(-value)
        self._bar.update()
        self._bar.set_postfix(bound=f"{value:.6g}", refresh=False)
        if self._callback is not None:
            self._callback(len(self.losses) - 1, value)


def _train(
    model: CoregionalisedGPRN,
    q: CoregionalisedGuide,
    flat: OutputStatistics,
    steps: int,
    interruption: Interruption,
    ranges: Ranges,
    watch: _Watch,
) -> dict[str, Any]:
    """Trains one run, and returns what :class:`~pyro_gprn.training.fit.Fit` keeps of it."""
    parameters = {name: p for name, p in [*model.named_parameters(), *q.named_parameters()] if p.requires_grad}

    def value() -> Tensor:
        return log_evidence(model, q.w_loc, flat)

    evidence = Evidence(parameters, value, flat.n_observed, interruption, watch)
    size = flat.source.n_rows
    bound = maximise(
        evidence, [evidence.current()], ranges, interruption, steps=steps, tolerance=TOLERANCE, n_rows=size
    )
    return {
        "start": -watch.losses[0] if watch.losses else bound,
        "bound": bound,
        "losses": torch.tensor(watch.losses, dtype=torch.float64, device="cpu"),
        "model": copy_state(model),
        "guide": copy_state(q),
    }


def log_evidence(model: CoregionalisedGPRN, w: Tensor, flat: OutputStatistics) -> Tensor:
    """``log p(Y | W) + log p(W)``, ``()``, with what the priors of hyperparameters add.

    :param w: the weights, ``(K, D)``.
    :param flat: from :func:`flat_statistics`.
    """
    covariance, log_prior = model.at_centre_with_log_prior(lambda: model.output_covariance(w))
    return outputs_given(flat, covariance).log_density() + model.prior().log_prob(w) + log_prior


def flat_statistics(known: OutputStatistics) -> OutputStatistics:
    """The statistics of all outputs taken for one output in D·N rows, those of the first output first."""
    return OutputStatistics.of(flat_outputs(known.source.read(slice(None))).unsqueeze(1))


@torch.no_grad()
def _start(model: CoregionalisedGPRN, known: OutputStatistics, ranges: Ranges, generator: torch.Generator) -> Tensor:
    """Sets the hyperparameters to where training starts and returns the weights, ``(K, D)``.

    The weights are the principal axes of the outputs, missing ones filled by the others where these tell them. The
    functions have length-scales from short to long.
    """
    K, D = model.n_latents, model.n_outputs
    spread = model.X.std(0, correction=0)
    unit = math.sqrt(len(spread)) * torch.where(spread > 0, spread, 1.0)
    stretch = torch.logspace(math.log10(SHORTEST), math.log10(LONGEST), K).to(unit)
    parameters = dict(model.named_parameters())
    for name in positive_parameters(model.kernel_f, "lengthscale"):
        target = parameters[f"kernel_f.{name}"]
        target.copy_((stretch.unsqueeze(1) * (unit if target.shape[-1] == len(unit) else unit.mean())).log())
    for name in positive_parameters(model, "noise_f"):
        parameters[name].fill_(math.log(NOISE_F))
    for name in positive_parameters(model, "noise_y"):
        parameters[name].copy_((NOISE_Y * ranges.mean_square.sqrt()).log())
    ranges.clamp()
    everything = slice(None)
    values, seen = known.values_at(everything), known.observed[known.patterns_at(everything)].mT
    filled = complete(values, seen) if can_complete(*values.shape) else values
    _, sizes, axes = torch.linalg.svd(filled, full_matrices=False)
    leading = (axes * sizes.unsqueeze(1) / math.sqrt(len(values)))[:K]
    leading = torch.nn.functional.pad(leading, (0, 0, 0, K - len(leading)))
    return leading + SPREAD * white_noise(K, D, like=leading, generator=generator)
