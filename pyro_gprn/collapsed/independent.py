"""Independent GPs that share one kernel, or have one each: stage 1 of the training of a collapsed network.

They are the special case in which every latent function is constant. Their evidence is exact and cheap.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError, quiet_jitter
from pyro_gprn.collapsed.likelihood import effective_outputs, outputs_given
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.network.own_kernels import shared_kernel
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import few_threads
from pyro_gprn.training.interruption import Interruption, noticed_interrupts
from pyro_gprn.training.ranges import Ranges

#: How the names of the hyperparameters begin that the fit of independent GPs changes.
FITTED = ("kernel_w.", "noise_y")
#: Starts: length-scale over √P standard deviations of the inputs, noise over the outputs' scale.
STARTS = ((0.3, 0.1), (1.0, 0.03), (3.0, 0.003))
#: Steps of L-BFGS-B that tell which start is best, and those that follow from it.
TRIAL_STEPS, STEPS = 10, 100
#: Twice what the Gram matrix says; see the measurements in training.py.
EFFECTIVE_OUTPUTS_FACTOR = 2.0


class _Stopped(Exception):
    """Somebody asked for an early end."""


class EvidenceGivenF:
    """The negative log evidence given F, for each number of Y, as a function of the free hyperparameters.

    :param model: the model, whose kernel of the weights and noise are changed in place.
    :param known: statistics of the outputs.
    :param F: the functions, ``(N, K)``; the constant 1, ``(N, 1)``, makes independent GPs.
    :param interruption: ends the optimisation at the next evaluation.
    """

    def __init__(self, model: CollapsedGPRN, known: OutputStatistics, F: Tensor, interruption: Interruption) -> None:
        self._model, self.known, self._interruption = model, known, interruption
        self.parameters = {n: p for n, p in model.named_parameters() if n.startswith(FITTED)}
        self.F = F
        self.best, self.best_at = math.inf, self.current()

    def current(self) -> np.ndarray:
        """The hyperparameters, as one vector."""
        return parameters_to_vector(self.parameters.values()).detach().double().cpu().numpy()

    @torch.no_grad()
    def put(self, values: np.ndarray) -> None:
        """Sets the hyperparameters."""
        vector = torch.from_numpy(values.copy()).to(self._model.X.device)
        vector_to_parameters(vector, self.parameters.values())

    def __call__(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient; remembers the best values that were met."""
        if self._interruption.is_requested and math.isfinite(self.best):
            raise _Stopped
        self.put(values)
        try:
            # At the centre of the guides of hyperparameters that have priors: by fixed draws their spread would grow
            # without end, to cancel the very draws.
            terms, log_prior = self._model.at_centre_with_log_prior(self._model.weights_and_noise)
            covariance = self._model.output_covariance(self.F, *terms)
            value = outputs_given(self.known, covariance).log_density() + log_prior
            gradients = torch.autograd.grad(value, list(self.parameters.values()), materialize_grads=True)
        except NotPositiveDefiniteError:
            return 1e10, np.zeros_like(values)
        unit = -self.known.n_observed  # keeps the objective near 1
        loss = value.item() / unit
        if loss < self.best:
            self.best, self.best_at = loss, values.copy()
        return loss, parameters_to_vector(gradients).cpu().numpy() / unit


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
        objective = EvidenceGivenF(model, known, torch.ones_like(model.X[:, :1]), interruption)
        starts = [objective.current()]
        for length, noise in () if from_here else STARTS:
            ranges.start_independent(length, noise)
            starts.append(objective.current())
        return _maximise(objective, starts, ranges, interruption)


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


def _maximise(objective: EvidenceGivenF, starts: list[np.ndarray], ranges: Ranges, interruption: Interruption) -> float:
    """The best evidence from several starts, with the hyperparameters left there."""
    import scipy.optimize  # takes longer to load than the rest of this package: not for those who do not train with it

    bounds = [ranges.of(name) for name, p in objective.parameters.items() for _ in range(p.numel())]

    def descend(start: np.ndarray, iterations: int) -> Any:
        options = {"maxiter": iterations, "ftol": 1e-9, "gtol": 1e-6}
        return scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    with few_threads(len(objective.F)), quiet_jitter():
        try:
            objective(starts[0])
            if interruption.is_requested:
                raise _Stopped
            runs = [descend(start, TRIAL_STEPS) for start in starts]
            descend(min(runs, key=lambda run: run.fun).x, STEPS)
        except (_Stopped, KeyboardInterrupt) as stop:
            if isinstance(stop, KeyboardInterrupt) and interruption.is_requested:  # the second Ctrl-C
                raise
            interruption.request()
            interruption.tell("training was interrupted before the first step; keeping independent GPs")
    objective.put(objective.best_at)
    return -objective.best * objective.known.n_observed


@torch.no_grad()
def read_effective_outputs(model: CollapsedGPRN, known: OutputStatistics) -> float:
    """``effective_outputs="auto"``, at the hyperparameters of the independent GPs."""
    known = model.statistics(known)
    Kw, noise = model.at_centre(model.weights_and_noise)
    covariance = model.output_covariance(torch.ones_like(model.X[:, :1]), Kw, noise)
    return min(float(model.n_outputs), EFFECTIVE_OUTPUTS_FACTOR * effective_outputs(covariance, known))
