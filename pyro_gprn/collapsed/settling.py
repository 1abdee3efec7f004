"""The end of a training: L-BFGS-B goes on where Adam has come to rest.

Where there is hardly any noise, functions and hyperparameters move together slowly: the functions are whitened, so a
change of a length-scale moves every F. On boundary layers, from 30 runs, ten times the steps of Adam made the bound
gain a third more. Some rounds of L-BFGS-B, which learns how they depend on each other, reach that (docs/training.md).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.evidence import Evidence, maximise
from pyro_gprn.training.interruption import noticed_interrupts
from pyro_gprn.training.loop import copy_state
from pyro_gprn.training.ranges import Ranges

#: At most so many rounds, and so many steps of L-BFGS-B in each; fewer if training had few steps: a share of these.
ROUNDS, ROUND_STEPS, SHARE = 10, 40, 0.05
#: There is no further round if one gained less than this share of all that the bound has gained since training began.
LEAST_GAIN = 2e-3
#: Where the noise of every output is above this, on the standardised scale, Adam has settled.
MOST_NOISE = 0.05
#: Draws by which the bound is maximised in a round, held fixed there.
DRAWS = 8
#: A round ends when a step gains less than this for each effective number of Y.
TOLERANCE = 1e-12


class Settling(Protocol):
    """What is settled: a network in training."""

    model: CollapsedGPRN
    guide: CollapsedGuide
    known: OutputStatistics
    ranges: Ranges

    def evaluate(self) -> float:
        """The bound, by draws of its own."""

    def antithetic(self, n_draws: int) -> Tensor:
        """New white noise, ``(n_draws, N, K)``."""

    def bound_by(self, white: Tensor) -> Tensor:
        """The bound by given white noise, with R held, a scalar, differentiable."""

    def update_rows(self, white: Tensor) -> None:
        """Sets R to its Gauss-Newton optimum."""


def settle(network: Settling, steps: int, start: float) -> None:
    """Maximises the bound by functions and hyperparameters together, and leaves the network at the best that was met.

    Each round has draws of its own, and ends with the row covariance that is best for where it led. By fixed draws that
    covariance is held: it would learn to cancel the very draws.

    :param network: what is settled; its hyperparameters have no posterior of their own.
    :param steps: how many steps its training could take.
    :param start: the bound before these.
    """
    model, iterations = network.model, min(ROUND_STEPS, int(SHARE * steps))
    # Few outputs with a kernel each gained nothing by it, and each evaluation takes D times as long.
    if iterations == 0 or model.own_kernels or model.noise_y.min() > MOST_NOISE:
        return
    best, kept = network.evaluate(), _state_of(network)
    for _ in range(ROUNDS):
        if not _run(network, iterations):
            break
        bound = network.evaluate()
        gain = bound - best
        if gain > 0:
            best, kept = bound, _state_of(network)
        if not gain > LEAST_GAIN * (best - start):
            break
    _put(network, kept)


def _run(network: Settling, iterations: int) -> bool:
    """One round; False if somebody asked for an early end."""
    model, guide = network.model, network.guide
    white = network.antithetic(DRAWS)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad} | {"v_loc": guide.v_loc}
    n_numbers = model.likelihood_power * network.known.n_observed
    with noticed_interrupts() as interruption:
        if interruption.is_requested:
            return False
        bound = Evidence(parameters, lambda: network.bound_by(white), n_numbers, interruption)
        maximise(
            bound,
            [bound.current()],
            network.ranges,
            interruption,
            steps=iterations,
            tolerance=TOLERANCE,
            n_rows=model.n_rows,
            cut_short="training was interrupted while it settled",
        )
        network.update_rows(network.antithetic(DRAWS))
        return not interruption.is_requested


def _state_of(network: Settling) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return copy_state(network.model), copy_state(network.guide)


def _put(network: Settling, state: tuple[dict[str, Tensor], dict[str, Tensor]]) -> None:
    with torch.no_grad():
        network.model.load_state_dict(state[0])
        network.guide.load_state_dict(state[1])
