"""Maximising an exact log evidence by L-BFGS-B: it can be interrupted, and ends at the best that was met."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError, quiet_jitter
from pyro_gprn.pyro_state import few_threads
from pyro_gprn.training.interruption import Interruption
from pyro_gprn.training.ranges import Ranges

#: Called after each evaluation with the log evidence.
Watch = Callable[[float], None]


class Stopped(Exception):
    """Somebody asked for an early end."""


class Evidence:
    """The negative log evidence, for each number of Y, as a function of some parameters.

    :param parameters: these, by name; they are changed in place.
    :param log_evidence: the log evidence at the values that they have, ``()``, differentiable.
    :param n_numbers: how many numbers of Y there are.
    :param interruption: ends the optimisation at the next evaluation.
    :param watch: called after each evaluation with the log evidence.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        log_evidence: Callable[[], Tensor],
        n_numbers: float,
        interruption: Interruption,
        watch: Watch | None = None,
    ) -> None:
        self.parameters, self._log_evidence, self._interruption = dict(parameters), log_evidence, interruption
        self._n_numbers, self._watch = n_numbers, watch
        self.best, self.best_at = math.inf, self.current()

    def current(self) -> np.ndarray:
        """The parameters, as one vector."""
        return parameters_to_vector(self.parameters.values()).detach().double().cpu().numpy()

    @torch.no_grad()
    def put(self, values: np.ndarray) -> None:
        """Sets the parameters."""
        device = next(iter(self.parameters.values())).device
        vector_to_parameters(torch.from_numpy(values.copy()).to(device), self.parameters.values())

    def __call__(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient; remembers the best values that were met."""
        if self._interruption.is_requested and math.isfinite(self.best):
            raise Stopped
        self.put(values)
        try:
            value = self._log_evidence()
            gradients = torch.autograd.grad(value, list(self.parameters.values()), materialize_grads=True)
        except NotPositiveDefiniteError:
            return 1e10, np.zeros_like(values)
        unit = -self._n_numbers  # keeps the objective near 1
        loss = value.item() / unit
        if loss < self.best:
            self.best, self.best_at = loss, values.copy()
        if self._watch is not None:
            self._watch(value.item())
        return loss, parameters_to_vector(gradients).cpu().numpy() / unit

    @property
    def highest(self) -> float:
        """The highest log evidence that was met."""
        return -self.best * self._n_numbers


def maximise(
    evidence: Evidence,
    starts: Sequence[np.ndarray],
    ranges: Ranges,
    interruption: Interruption,
    *,
    steps: int,
    trial_steps: int = 0,
    tolerance: float = 1e-9,
    n_rows: int,
    cut_short: str = "training was interrupted before the first step; keeping the best that was met so far",
) -> float:
    """The highest log evidence from several starts, with the parameters left there.

    Each start is tried for some steps, and the best is followed to the end; without trials, the first.

    :param evidence: what is maximised.
    :param starts: values of the parameters.
    :param ranges: of those parameters that have one.
    :param interruption: ends it at the next evaluation, with a warning.
    :param steps: at most so many steps of L-BFGS-B from the best start.
    :param trial_steps: from each start; 0 for no trials.
    :param tolerance: it ends when a step gains less than this for each number of Y.
    :param n_rows: the size of the matrices, by which the number of threads is chosen.
    :param cut_short: what a warning says after Ctrl-C.
    """
    import scipy.optimize  # takes longer to load than the rest of this package: not for those who do not train with it

    bounds = [ranges.of(name) for name, p in evidence.parameters.items() for _ in range(p.numel())]

    def descend(start: np.ndarray, iterations: int) -> Any:
        options = {"maxiter": iterations, "ftol": tolerance, "gtol": 1e-6}
        return scipy.optimize.minimize(evidence, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    with few_threads(n_rows), quiet_jitter():
        try:
            evidence(starts[0])
            if interruption.is_requested:
                raise Stopped
            tried = [descend(start, trial_steps) for start in starts] if trial_steps else []
            descend(min(tried, key=lambda run: run.fun).x if tried else starts[0], steps)
        except (Stopped, KeyboardInterrupt) as stop:
            if isinstance(stop, KeyboardInterrupt) and interruption.is_requested:  # the second Ctrl-C
                raise
            interruption.request()
            interruption.tell(cut_short)
    evidence.put(evidence.best_at)
    return evidence.highest
