"""How many held-out numbers lie in their central intervals: of all, and where outputs vary."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_gprn.outputs.variation import most_varied, spread_of

#: 95 % intervals that hold less than this are too narrow.
LEAST_OUTER = 0.88
#: 50 % intervals that hold less, or more, than this are too narrow, or too wide.
LEAST_INNER, MOST_INNER = 0.35, 0.70
#: A share counts as wrong only if it is this many standard errors from what it should be.
STANDARD_ERRORS = 3.0
#: The share of numbers that are predicted farthest from their outputs' means; and how many at least, if so many are a
#: tenth of all.
FARTHEST, LEAST_NUMBERS = 0.01, 100


class Coverage(NamedTuple):
    """The share of some held-out numbers that lie in their central intervals.

    Numbers of one row are right or wrong together, so standard errors are those of a mean over rows; and at least those
    of as many numbers that are right or wrong on their own.
    """

    place: str  #: which numbers, in words
    numbers: int  #: how many
    outer: float  #: the share in central 95 % intervals
    outer_error: float  #: its standard error
    inner: float  #: the share in central 50 % intervals
    inner_error: float  #: its standard error

    @property
    def is_over_confident(self) -> bool:
        """True if 95 % intervals hold too little, by more than chance."""
        return self.outer < min(LEAST_OUTER, 0.95 - STANDARD_ERRORS * self.outer_error)

    @property
    def is_narrow_inside(self) -> bool:
        """True if 50 % intervals hold too little, by more than chance."""
        return self.inner < min(LEAST_INNER, 0.5 - STANDARD_ERRORS * self.inner_error)

    @property
    def is_wide_inside(self) -> bool:
        """True if 50 % intervals hold too much, by more than chance."""
        return self.inner > max(MOST_INNER, 0.5 + STANDARD_ERRORS * self.inner_error)

    def __str__(self) -> str:
        return f"{self.outer:.3f} ({self.inner:.3f}) of {self.place}"


def coverage_where(pit: Tensor, chosen: Tensor, place: str) -> Coverage:
    """The coverage of chosen numbers.

    :param pit: probability integral transforms, ``(N, b)``, NaN where missing.
    :param chosen: which of them count, boolean, to be broadcast to them.
    :param place: which these are, in words.

    >>> pit = torch.tensor([[0.5, 0.6], [0.1, 0.999]])
    >>> str(coverage_where(pit, torch.tensor(True), "four numbers"))
    '0.750 (0.500) of four numbers'
    """
    counted = ~pit.isnan() & chosen
    n_by_row = counted.sum(1).double()
    total = n_by_row.sum()

    def share(level: float) -> tuple[float, float]:
        inside = (((pit - 0.5).abs() <= level / 2) & counted).sum(1).double()
        found = inside.sum() / total
        deviations = inside - found * n_by_row
        by_rows = (len(pit) / max(1, len(pit) - 1) * deviations.square().sum()).sqrt() / total
        return found.item(), max(by_rows.item(), math.sqrt(level * (1 - level) / total))

    return Coverage(place, int(total), *share(0.95), *share(0.5))


def find_coverages(pit: Tensor, values: Tensor, mean: Tensor, spread: Tensor | None = None) -> list[Coverage]:
    """The coverage of all numbers, of the outputs that vary most, and of what is predicted to be far from the mean.

    The last are told by their predictions and not by their values: values that turn out far from the mean are often
    outside of right intervals, too.

    :param pit: probability integral transforms of held-out numbers, ``(N, b)``, NaN where missing.
    :param values: these numbers, ``(N, b)``.
    :param mean: their predicted means, ``(N, b)``.
    :param spread: the standard deviation by which outputs are said to vary, ``(b,)``; by default that of the values.
    """
    seen = ~pit.isnan()
    places = [coverage_where(pit, seen, f"all {int(seen.sum()):,} numbers")]
    centre = values.nanmean(0)
    varied = most_varied(spread_of(values) if spread is None else spread)
    if varied is not None:
        places.append(coverage_where(pit, varied, "the tenth of outputs that vary most"))
    far = torch.where(seen, (mean - centre).abs(), -1.0).flatten()
    n_seen = int(seen.sum())
    n_far = max(1, round(FARTHEST * n_seen), min(LEAST_NUMBERS, n_seen // 10))
    farthest = torch.zeros_like(far, dtype=torch.bool)
    farthest[far.topk(n_far).indices] = True
    place = f"the {n_far:,} numbers that are predicted farthest from their outputs' means"
    return [*places, coverage_where(pit, farthest.reshape(pit.shape), place)]
