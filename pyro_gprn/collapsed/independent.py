"""Independent GPs that share one kernel, or have one each: stage 1 of the training of a collapsed network.

They are the special case in which every latent function is constant. Their evidence is exact and cheap.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pyro_gprn.collapsed.likelihood import effective_outputs, outputs_given
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.network.own_kernels import shared_kernel
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.evidence import Evidence, maximise
from pyro_gprn.training.interruption import Interruption, noticed_interrupts
from pyro_gprn.training.ranges import Ranges

#: How the names of the hyperparameters begin that the fit of independent GPs changes.
FITTED = ("kernel_w.", "noise_y")
#: Starts: length-scale over √P standard deviations of the inputs, noise over the outputs' scale.
STARTS = ((0.3, 0.1), (1.0, 0.03), (3.0, 0.003))
#: Steps of L-BFGS-B that tell which start is best, and those that follow from it.
TRIAL_STEPS, STEPS = 10, 100
#: Twice what the Gram matrix says; see the measurements in training.py. Where each output has a kernel of its own, what
#: it says: counted twice, the 18 outputs of a truss, worth 9, were overfitted (docs/training.md).
EFFECTIVE_OUTPUTS_FACTOR, FACTOR_WITH_OWN_KERNELS = 2.0, 1.0


def evidence_given(model: CollapsedGPRN, known: OutputStatistics, F: Tensor, interruption: Interruption) -> Evidence:
    """The evidence given F as a function of the weights' kernel and the noise.

    :param model: the model, whose kernel of the weights and noise are changed in place.
    :param known: statistics of the outputs.
    :param F: the functions, ``(N, K)``; the constant 1, ``(N, 1)``, makes independent GPs.
    :param interruption: ends the optimisation at the next evaluation.
    """
    parameters = {name: p for name, p in model.named_parameters() if name.startswith(FITTED)}
    return Evidence(parameters, partial(_log_evidence, model, known, F), known.n_observed, interruption)


def _log_evidence(model: CollapsedGPRN, known: OutputStatistics, F: Tensor) -> Tensor:
    """The log evidence given F, at the hyperparameters that the model has, with the log density of their priors."""
    # At the centre of the guides of hyperparameters that have priors: by fixed draws their spread would grow without
    # end, to cancel the very draws.
    terms, log_prior = model.at_centre_with_log_prior(model.weights_and_noise)
    return outputs_given(known, model.output_covariance(F, *terms)).log_density() + log_prior


def fit_independent(model: CollapsedGPRN, known: OutputStatistics, *, from_here: bool = False) -> float:
    """Fits the kernel of the weights and the noise, in place, with F = 1, by the exact evidence.

    Ctrl-C ends it at the next evaluation, with a warning, at the best that was met.

    :param from_here: whether the hyperparameters that the model has are the only start.
    :returns: the evidence.
    """
    known = model.statistics(known)
    if model.own_kernels and model.n_outputs > 1 and not model.has_priors:
        return _fit_each(model, known, from_here)
    with noticed_interrupts() as interruption:
        ranges = Ranges(model, known)
        ranges.clamp()
        evidence = evidence_given(model, known, torch.ones_like(model.X[:, :1]), interruption)
        starts = [evidence.current()]
        for length, noise in () if from_here else STARTS:
            ranges.start_independent(length, noise)
            starts.append(evidence.current())
        return maximise(
            evidence, starts, ranges, interruption, steps=STEPS, trial_steps=TRIAL_STEPS, n_rows=model.n_rows
        )


@torch.no_grad()
def _fit_each(model: CollapsedGPRN, known: OutputStatistics, from_here: bool) -> float:
    """Fits GPs with a kernel each one by one, so that each finds the best start of its own.

    With one start for all together, a rough output beside a smooth one without noise ended in a poor optimum: log
    evidence 611 in all instead of 659. It takes about the same time.
    """
    evidence, of_all = 0.0, dict(model.named_parameters())
    with noticed_interrupts():
        for d in range(model.n_outputs):
            one = CollapsedGPRN(model.X, 1, 1, kernel_w=shared_kernel(model.kernel_w), jitter=model.jitter)
            own = {name: p for name, p in one.named_parameters() if name.startswith(FITTED)}
            for name, parameter in own.items():
                parameter.copy_(of_all[name][d].reshape(parameter.shape))
            alone = OutputStatistics.of(known.source.read(slice(d, d + 1)))
            with torch.enable_grad():
                evidence += fit_independent(one, alone, from_here=from_here)
            for name, parameter in own.items():
                of_all[name][d] = parameter.reshape(of_all[name][d].shape)
    return evidence


@torch.no_grad()
def independent_evidence(model: CollapsedGPRN, known: OutputStatistics) -> float:
    """The log evidence of independent GPs at the hyperparameters that the model has."""
    return _log_evidence(model, model.statistics(known), torch.ones_like(model.X[:, :1])).item()


@torch.no_grad()
def read_effective_outputs(model: CollapsedGPRN, known: OutputStatistics) -> float:
    """``effective_outputs="auto"``, at the hyperparameters of the independent GPs."""
    known = model.statistics(known)
    Kw, noise = model.at_centre(model.weights_and_noise)
    covariance = model.output_covariance(torch.ones_like(model.X[:, :1]), Kw, noise)
    factor = FACTOR_WITH_OWN_KERNELS if model.own_kernels else EFFECTIVE_OUTPUTS_FACTOR
    return min(float(model.n_outputs), factor * effective_outputs(covariance, known))
