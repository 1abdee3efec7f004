"""What a problem is: for each split, what is given to learn from and what is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

#: Makes n runs from a seed: inputs ``(n, P)`` and outputs ``(n, d_1, …, d_M)``.
Simulator = Callable[[int, int], tuple[Tensor, Tensor]]
#: An output whose standard deviation over the training rows is a smaller share of the outputs' scale is not scored: its
#: density can be made as high as one likes, and nobody asks for it.
LEAST_SPREAD = 1e-6


@dataclass(frozen=True, eq=False)
class Task:
    """One split of a problem, in the units of its data.

    :param X: training inputs, ``(N, P)``.
    :param Y: training outputs, ``(N, d_1, …, d_M)``, NaN where they are hidden or missing.
    :param X_test: test inputs, ``(N*, P)``.
    :param Y_test: the truth, ``(N*, d_1, …, d_M)``.
    :param is_asked: which entries of the truth are predicted, ``(N*, d_1, …, d_M)``.
    :param rows: the training rows that the test rows are, ``(N*,)``, where holes are to be filled; None where the test
        inputs are new.
    :param own_units: whether each output has a unit of its own. The outputs of a field share one.
    :param to_units: from the data's scale back to what people measure, such as ``np.exp`` of logarithms.
    """

    X: np.ndarray
    Y: np.ndarray
    X_test: np.ndarray
    Y_test: np.ndarray
    is_asked: np.ndarray
    rows: np.ndarray | None = None
    own_units: bool = False
    to_units: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def n_outputs(self) -> int:
        """``D``."""
        return self.Y[0].size

    @property
    def has_holes(self) -> bool:
        """Whether some training outputs are NaN."""
        return bool(np.isnan(self.Y).any())

    @cached_property
    def centre(self) -> np.ndarray:
        """The mean of each output over the training rows, ``(D,)``."""
        return np.nanmean(self.Y.reshape(len(self.Y), -1), axis=0)

    @cached_property
    def spread(self) -> np.ndarray:
        """The standard deviation of each output over the training rows, ``(D,)``."""
        return np.nanstd(self.Y.reshape(len(self.Y), -1), axis=0)

    @cached_property
    def scale(self) -> np.ndarray:
        """What outputs are divided by before they are scored, ``(D,)``: the same number for all outputs of a field."""
        common = np.sqrt(np.mean(self.spread**2))
        return np.where(self.spread > 0, self.spread, 1.0) if self.own_units else np.full_like(self.spread, common)

    def standardise(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs ``(…, D)`` about the training mean, divided by :attr:`scale`."""
        return (outputs - self.centre) / self.scale

    @cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Training and test inputs, standardised by the training inputs."""
        centre, spread = self.X.mean(0), self.X.std(0)
        spread = np.where(spread > 0, spread, 1.0)
        return (self.X - centre) / spread, (self.X_test - centre) / spread

    @cached_property
    def outputs(self) -> np.ndarray:
        """Training outputs, standardised and flat, ``(N, D)``."""
        return self.standardise(self.Y.reshape(len(self.Y), -1))

    @cached_property
    def truth(self) -> np.ndarray:
        """The truth, standardised and flat, ``(N*, D)``."""
        return self.standardise(self.Y_test.reshape(len(self.Y_test), -1))

    @cached_property
    def is_scored(self) -> np.ndarray:
        """Which entries of :attr:`truth` are scored: those asked for of the outputs that vary, ``(N*, D)``."""
        varies = self.spread > LEAST_SPREAD * np.sqrt(np.mean(self.spread**2))
        return self.is_asked.reshape(self.truth.shape) & varies & ~np.isnan(self.truth)


@dataclass(frozen=True)
class Problem:
    """A problem with a name, which makes a :class:`Task` of the number of a split."""

    name: str
    make: Callable[[int], Task]


def new_runs(name: str, simulate: Simulator, n_train: int, n_test: int, *, own_units: bool = False) -> Problem:
    """Predict all outputs of new runs."""

    def make(split: int) -> Task:
        X, Y = (array.double().numpy() for array in simulate(n_train + n_test, split))
        (X, X_test), (Y, Y_test) = np.split(X, [n_train]), np.split(Y, [n_train])
        return Task(X, Y, X_test, Y_test, np.ones(Y_test.shape, dtype=bool), own_units=own_units)

    return Problem(name, make)


def fill_holes(
    X: np.ndarray,
    Y: np.ndarray,
    is_hidden: np.ndarray,
    *,
    own_units: bool = True,
    to_units: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Task:
    """Predict entries that are hidden in rows of which other outputs are known.

    :param is_hidden: which entries of Y are hidden, of its shape.
    """
    rows = np.flatnonzero(is_hidden.reshape(len(Y), -1).any(1))
    known = np.where(is_hidden, np.nan, Y)
    return Task(X, known, X[rows], Y[rows], is_hidden[rows] & ~np.isnan(Y[rows]), rows, own_units, to_units)


def hide_blocks(shape: tuple[int, ...], n_blocks: int, length: int, seed: int) -> np.ndarray:
    """Long holes at random: in each of ``n_blocks`` different outputs, ``length`` rows that follow one another."""
    generator = torch.Generator().manual_seed(seed)
    n_rows, n_outputs = shape[0], int(np.prod(shape[1:]))
    is_hidden = np.zeros((n_rows, n_outputs), dtype=bool)
    for output in torch.randperm(n_outputs, generator=generator)[:n_blocks].tolist():
        start = int(torch.randint(n_rows - length + 1, (), generator=generator))
        is_hidden[start : start + length, output] = True
    return is_hidden.reshape(shape)
