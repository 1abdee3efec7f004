"""How the standard deviations of outputs are spread, in a few numbers: what tells a field from a table of columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Spreads are counted in so many classes for each factor of ten, over so many factors of ten below and above 1.
CLASSES, DECADES = 64, 40
#: An output varies if its spread is more than this share of the largest.
VARYING = 1e-14


@dataclass(frozen=True)
class Spreads:
    """The spreads of outputs that follow each other, without one number for each of them.

    :param counts: how many outputs that vary lie in each class of log₁₀ of the spread.
    :param largest: the largest spread.
    :param first: log₁₀ of the spread of the first output that varies; NaN if none does.
    :param last: of the last one.
    :param steps: the sum over neighbours that vary of how much log₁₀ of their spreads differs.

    >>> spreads = Spreads.of(torch.tensor([1.0, 10.0, 100.0]))
    >>> spreads.n_varying, spreads.steps
    (3, 2.0)
    """

    counts: Tensor
    largest: float
    first: float
    last: float
    steps: float

    @classmethod
    def of(cls, spread: Tensor) -> Spreads:
        """Of the standard deviations of some outputs in their order, ``(b,)``."""
        largest = spread.max() if len(spread) else spread.new_zeros(())
        logs = spread[spread > VARYING * largest].log10()
        classes = ((logs + DECADES) * CLASSES).floor().clamp(0, 2 * DECADES * CLASSES - 1).long()
        ends = (logs[0].item(), logs[-1].item()) if len(logs) else (torch.nan, torch.nan)
        steps = logs.diff().abs().sum().item()
        return cls(classes.bincount(minlength=2 * DECADES * CLASSES), largest.item(), *ends, steps)

    def merge(self, after: Spreads) -> Spreads:
        """The spreads of these outputs and of those that come after them."""
        gap = abs(after.first - self.last)
        return Spreads(
            self.counts + after.counts,
            max(self.largest, after.largest),
            after.first if self.first != self.first else self.first,
            self.last if after.last != after.last else after.last,
            self.steps + after.steps + (gap if gap == gap else 0.0),
        )

    @property
    def n_varying(self) -> int:
        """How many outputs vary."""
        return int(self._varying().sum())

    @property
    def mean_step(self) -> float:
        """The mean difference of log₁₀ of the spreads of neighbours."""
        return self.steps / max(1, int(self.counts.sum()) - 1)

    def median(self) -> float:
        """The median spread of outputs that vary, to one in a hundred."""
        counts = self._varying().cumsum(0)
        place = int((counts < (counts[-1] + 1) // 2).sum())
        return 10 ** ((place + 0.5) / CLASSES - DECADES)

    def _varying(self) -> Tensor:
        """The counts without those that turned out to be rounding, beside the largest spread of all."""
        logs = (torch.arange(len(self.counts)) + 1.0) / CLASSES - DECADES
        return self.counts * (10 ** logs.double() > VARYING * self.largest)
