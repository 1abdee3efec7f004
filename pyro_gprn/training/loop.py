"""The training loop that every posterior shares. It can be interrupted and resumed, and never ends below its start."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import trange

from pyro_gprn.training.interruption import Interruption

#: Called after each step with its number and the (noisy) bound.
Callback = Callable[[int, float], None]
#: Steps between two checkpoints.
SAVE_EVERY = 20


class Trainee(ABC):
    """A model and its guide in training.

    All of its state is in the model, the guide, the optimiser and the generator of random numbers, so that a checkpoint
    of these four is complete.
    """

    model: torch.nn.Module
    guide: torch.nn.Module
    optimiser: torch.optim.Optimizer
    starts: Sequence[dict[str, Any]] = ()  #: of each start that was tried before this one was taken, a report

    @abstractmethod
    def step(self) -> float:
        """Takes one step of the optimiser; returns the loss, the negative bound."""

    @abstractmethod
    def evaluate(self) -> float:
        """Returns the bound: the same number at every call in the same state."""

    def between_steps(self, taken: int, settling: bool) -> None:  # noqa: B027
        """Does what is due between two steps, such as an exact update.

        :param taken: how many steps have been taken.
        :param settling: True late in the decay of the learning rate, where the optimiser comes to rest.
        """

    def finish(self, steps: int, start: float) -> None:  # noqa: B027
        """Does what is due after the last step.

        :param steps: how many there could have been.
        :param start: the bound before the first.
        """

    def parameters(self) -> dict[str, dict[str, Tensor]]:
        """Copies of the states of "model" and "guide"."""
        return {"model": copy_state(self.model), "guide": copy_state(self.guide)}

    def load_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Goes back to what :meth:`parameters` returned."""
        self.model.load_state_dict(parameters["model"])
        self.guide.load_state_dict(parameters["guide"])

    @property
    def may_pause(self) -> bool:
        """True if a checkpoint may be taken here: no intermediate result waits for the next step."""
        return True


class Outcome(NamedTuple):
    """How a training run ended."""

    start: float  #: the bound before the first step
    bound: float  #: the bound after the last step; never below ``start``
    losses: list[float]  #: the negative bound at each step


class TrainingRun:
    """Steps of one trainee, from its start or from where a checkpoint left it.

    :param trainee: what is trained.
    :param steps: at most this many steps; fewer when the bound has settled.
    """

    def __init__(self, trainee: Trainee, steps: int) -> None:
        self._trainee, self._steps = trainee, steps
        self._schedule = Schedule(trainee.optimiser, steps)
        self._losses: list[float] = []
        self._start, self._start_state = trainee.evaluate(), self._trainee.parameters()

    def state(self) -> dict[str, Any]:
        """Everything that :meth:`load_state` needs to go on from here, to the bit."""
        return {
            "start": self._start,
            "start_parameters": self._start_state,
            "parameters": self._trainee.parameters(),
            "optimiser": self._trainee.optimiser.state_dict()["state"],
            "schedule": self._schedule.state(),
            "losses": torch.tensor(self._losses, dtype=torch.float64, device="cpu"),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes back to where :meth:`state` was asked for."""
        self._start, self._start_state = state["start"], state["start_parameters"]
        self._trainee.load_parameters(state["parameters"])
        optimiser = self._trainee.optimiser.state_dict()
        optimiser["state"] = {int(key): value for key, value in state["optimiser"].items()}
        self._trainee.optimiser.load_state_dict(optimiser)
        self._schedule.load_state(state["schedule"])
        self._losses = state["losses"].tolist()

    def train(
        self,
        interruption: Interruption,
        *,
        progress: bool,
        callback: Callback | None = None,
        save: Callable[[], None] | None = None,
    ) -> Outcome:
        """Takes steps until the end, or until Ctrl-C, and goes back to the start if the bound was better there.

        :param interruption: says when to stop early.
        :param progress: whether to show a progress bar.
        :param callback: called after each step with its number and the (noisy) bound.
        :param save: called every so often between two steps, for a checkpoint.
        """
        taken_before = saved = len(self._losses)
        bar = trange(taken_before, self._steps, desc="fit", disable=not progress)
        try:
            for step in bar:
                if self._schedule.is_over or interruption.is_requested:
                    break
                self._one_step(step, callback)
                bar.set_postfix(bound=f"{-self._losses[-1]:.6g}", refresh=False)
                if save is not None and step + 1 - saved >= SAVE_EVERY and self._trainee.may_pause:
                    save()
                    saved = step + 1
        except KeyboardInterrupt:  # raised if another handler of the signal is in place
            if interruption.is_requested:  # the second Ctrl-C
                raise
            interruption.request()
        bar.close()
        if interruption.is_requested:
            interruption.tell(f"training was interrupted after {len(self._losses)} steps; keeping what was reached")
        return self._finish()

    def _finish(self) -> Outcome:
        if not self._losses:  # nothing has changed since the start
            return Outcome(self._start, self._start, [])
        self._trainee.finish(self._steps, self._start)
        bound = self._trainee.evaluate()
        if not bound >= self._start:
            self._trainee.load_parameters(self._start_state)
            bound = self._start
        return Outcome(self._start, bound, self._losses)

    def _one_step(self, step: int, callback: Callback | None) -> None:
        self._losses.append(self._trainee.step())
        self._schedule.step(self._losses)
        self._trainee.between_steps(step + 1, self._schedule.is_settling)
        if callback is not None:
            callback(step, -self._losses[-1])


class Schedule:
    """The learning rate: constant for half of the steps, or until the bound has settled; then a cosine to zero.

    :param optimiser: its present learning rate is the constant one.
    :param steps: at most this many steps.

    >>> optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    >>> schedule = Schedule(optimiser, steps=4)
    >>> for step in range(4):
    ...     schedule.step([0.0] * (step + 1))
    >>> schedule.is_over, optimiser.param_groups[0]["lr"]
    (True, 0.0)
    """

    window = 50  #: steps over which losses are averaged to tell whether the bound has settled

    def __init__(self, optimiser: torch.optim.Optimizer, steps: int) -> None:
        self._optimiser, self._rate = optimiser, optimiser.param_groups[0]["lr"]
        self._hold, self._decay = steps - steps // 2, steps // 2
        self._taken, self._last = 0, math.nan

    def step(self, losses: list[float]) -> None:
        """Sets the rate for the next step, given the losses of all steps so far."""
        self._taken += 1
        if self._taken < self._hold and self._taken % self.window == 0:
            known = [loss for loss in losses[-self.window :] if not math.isnan(loss)]
            recent = float(np.mean(known)) if known else math.nan
            if self._last - recent < 1e-3 * abs(losses[0] - recent) + 0.5:
                self._hold = self._taken
            self._last = recent
        self._set_rate()

    def _set_rate(self) -> None:
        past = max(0, self._taken - self._hold)
        fraction = min(1.0, past / max(1, self._decay))
        self._optimiser.param_groups[0]["lr"] = self._rate * 0.5 * (1 + math.cos(math.pi * fraction))

    @property
    def is_settling(self) -> bool:
        """True late in the decay, where the optimiser comes to rest."""
        return self._taken - self._hold >= 0.4 * self._decay

    @property
    def is_over(self) -> bool:
        """True when the rate has come down to zero."""
        return self._taken >= self._hold + self._decay

    def state(self) -> dict[str, Any]:
        """What :meth:`load_state` needs to go on from here."""
        return {"hold": self._hold, "taken": self._taken, "last": self._last}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes back to where :meth:`state` was asked for."""
        self._hold, self._taken, self._last = state["hold"], state["taken"], state["last"]
        self._set_rate()


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> bool:
    """Takes one step of an optimiser down the gradient of a loss and returns True.

    If the gradient is not finite, it takes no step and returns False.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> descend(torch.optim.SGD([x], lr=0.5), x.square().sum()), x.item()
    (True, 0.0)
    """
    loss.backward()
    gradients = [p.grad.flatten() for p in optimiser.param_groups[0]["params"] if p.grad is not None]
    if not torch.cat(gradients).isfinite().all():
        return False
    optimiser.step()
    return True


def copy_state(module: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of a module's parameters and buffers, by name.

    >>> list(copy_state(torch.nn.Linear(2, 3)))
    ['weight', 'bias']
    """
    return {name: value.clone() for name, value in module.state_dict().items()}
