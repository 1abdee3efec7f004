"""A short race between starts: each takes some steps, and the one that got furthest is trained to the end.

All are judged by the same draws. Training by gradients stays near where it starts, and no start wins everywhere: from
independent GPs a network gains on smooth fields; where outputs follow a few shapes, functions that carry the signal do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.training.interruption import Interruption

#: How many of the starts take part in each round; None is all of them. Two of the four are independent GPs, which are
#: ahead at first: with two in the second round a start that ended 18 above both was left behind.
ROUNDS = (None, 3)
#: The steps of one round, and the largest share of the training's steps that they may be.
ROUND_STEPS, LARGEST_SHARE = 60, 0.2

#: Makes a trainee from the start of that name; the model is changed in place.
MakeTrainee = Callable[[str], CollapsedTrainee]


class Runner:
    """One start in the race. The runners share one model: each puts its own state into it before it steps."""

    def __init__(self, name: str, trainee: CollapsedTrainee) -> None:
        self.name, self.trainee = name, trainee
        self.seconds, self.steps = 0.0, 0
        self.keep()

    def keep(self) -> None:
        """Remembers where it stands."""
        self.bound = self.trainee.evaluate()
        self._parameters = self.trainee.parameters()

    def put(self) -> None:
        """Brings model and guide to where it stands."""
        self.trainee.load_parameters(self._parameters)

    def run(self, steps: int, interruption: Interruption) -> None:
        """Takes some steps, and keeps where they lead if that is better."""
        begin, before = time.perf_counter(), self.bound
        self.put()
        for _ in range(steps):
            if interruption.is_requested:
                break
            self.trainee.step()
            self.steps += 1
            self.trainee.between_steps(self.steps, False)
        self.trainee.pause()
        if self.trainee.evaluate() >= before:
            self.keep()
        self.seconds += time.perf_counter() - begin

    def report(self) -> dict[str, Any]:
        """Name, bound, steps and seconds."""
        return {"name": self.name, "bound": self.bound, "steps": self.steps, "seconds": self.seconds}


def race(names: Sequence[str], make: MakeTrainee, steps: int, interruption: Interruption) -> CollapsedTrainee:
    """The trainee that got furthest, the model at its state, with a report of all as its ``starts``.

    :param names: of the starts.
    :param make: a trainee from one of them.
    :param steps: how many steps the training may take; a round takes at most a fifth of that.
    :param interruption: ends the race early.
    """
    runners: list[Runner] = []
    for name in names:
        if runners and interruption.is_requested:
            break
        begin = time.perf_counter()
        runners.append(Runner(name, make(name)))
        runners[-1].seconds = time.perf_counter() - begin
    field = runners
    for n_runners in ROUNDS if len(runners) > 1 else ():
        field = sorted(field, key=_rank)[:n_runners]
        for runner in field:
            runner.run(round_steps(steps), interruption)
    best = min(field, key=_rank)
    best.put()
    best.trainee.starts = [runner.report() for runner in runners]
    return best.trainee


def round_steps(steps: int) -> int:
    """How many steps one round takes before a training of at most ``steps``."""
    return min(ROUND_STEPS, int(LARGEST_SHARE * steps))


def race_steps(n_starts: int, steps: int) -> int:
    """How many steps a race of so many starts takes before a training of at most ``steps``.

    >>> race_steps(1, 400), race_steps(4, 400)
    (0, 420)
    """
    if n_starts == 1:
        return 0
    return sum(round_steps(steps) * min(n_starts, n_runners or n_starts) for n_runners in ROUNDS)


def _rank(runner: Runner) -> float:
    return math.inf if math.isnan(runner.bound) else -runner.bound
