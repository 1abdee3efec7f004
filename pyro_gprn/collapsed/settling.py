"""The end of a training: L-BFGS-B goes on where Adam has come to rest.

Where there is hardly any noise, functions and hyperparameters move together slowly: the functions are whitened, so a
change of a length-scale moves every F. On boundary layers, from 30 runs, ten times the steps of Adam made the bound
gain a third more. Some rounds of L-BFGS-B, which learns how they depend on each other, reach that (docs/training.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro_gprn.training.evidence import Evidence, maximise
from pyro_gprn.training.interruption import noticed_interrupts

if TYPE_CHECKING:
    from pyro_gprn.collapsed.trainee import CollapsedTrainee

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


def settle(trainee: CollapsedTrainee, steps: int, start: float) -> None:
    """Maximises the bound by functions and hyperparameters together, and leaves them at the best that was met.

    Each round has draws of its own, and ends with the row covariance that is best for where it led. By fixed draws that
    covariance is held: it would learn to cancel the very draws.

    It is for exact networks whose outputs share a kernel and whose hyperparameters are points: by fixed draws the
    spread of others would grow without end.

    :param trainee: a network whose steps have been taken.
    :param steps: how many steps its training could take.
    :param start: the bound before these.
    """
    model, iterations = trainee.model, min(ROUND_STEPS, int(SHARE * steps))
    # Few outputs with a kernel each gained nothing by it, and each evaluation takes D times as long.
    if model.own_kernels or model.has_inducing or model.has_spread:
        return
    if iterations == 0 or model.noise_y.min() > MOST_NOISE:
        return
    best, kept = trainee.evaluate(), trainee.parameters()
    for _ in range(ROUNDS):
        if not _run(trainee, iterations):
            break
        bound = trainee.evaluate()
        gain = bound - best
        if gain > 0:
            best, kept = bound, trainee.parameters()
        if not gain > LEAST_GAIN * (best - start):
            break
    trainee.load_parameters(kept)


def _run(trainee: CollapsedTrainee, iterations: int) -> bool:
    """One round; False if somebody asked for an early end."""
    model, guide = trainee.model, trainee.guide
    white = trainee.antithetic(DRAWS)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad} | {"v_loc": guide.v_loc}
    n_numbers = model.likelihood_power * trainee.known.n_observed
    with noticed_interrupts() as interruption:
        if interruption.is_requested:
            return False
        bound = Evidence(parameters, lambda: trainee.bound_by(white), n_numbers, interruption)
        maximise(
            bound,
            [bound.current()],
            trainee.ranges,
            interruption,
            steps=iterations,
            tolerance=TOLERANCE,
            n_rows=model.n_rows,
            cut_short="training was interrupted while it settled",
        )
        trainee.update_rows(trainee.antithetic(DRAWS))
        return not interruption.is_requested
