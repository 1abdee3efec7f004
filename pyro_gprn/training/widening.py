"""What predicted standard deviations are multiplied by, so that intervals hold what folds have held out.

A factor scales the whole deviation of an output from its mean: the variance between draws of the functions as well as
that within, and the noise.

Outputs that vary most often want another factor than the others, and the missing entries of training rows another one
than whole rows: what is known of the other outputs of the row tells the first, and nothing tells the second. Of few
outputs too few errors are known for that: then everything has the larger of the factors of rows and of missing entries.

And an output wants another factor where it is far from its mean than where it is near. A puff that is here in one run
and there in another leaves each point of a field flat most of the time: that the intervals of a point are right on
average says little of them where the puff is. So there is a further factor for places (:class:`Places`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.metrics import LEVEL
from pyro_gprn.outputs.variation import most_varied

#: A prediction is widened at most by this factor, and narrowed by its inverse.
MOST_WIDENING = 2.0
#: With fewer outputs there is one factor for everything; and with fewer hidden entries these say nothing.
FEWEST_OUTPUTS, FEWEST_HIDDEN = 20, 20
#: Where the central interval of a standard normal distribution ends.
_REACH = 1.96
#: Distances from the mean, in spreads of the output, between which predictions are told apart, and how many held-out
#: numbers each part must have.
DISTANCES, FEWEST_OF_A_DISTANCE = (0.5, 1.0, 2.0, 4.0), 200


class Places(NamedTuple):
    """What deviations are multiplied by besides, for how far from its mean an output is predicted to be.

    The square of the factor is ``level + slope u²``: u is the distance of the prediction from the output's mean, over
    the output's spread, and no greater than ``reach``.

    >>> Places(0.5, 0.1, reach=4.0).squares(torch.tensor([[0.0, 2.0, 12.0]]), torch.tensor([1.0, 2.0, 1.0]))
    tensor([[0.5000, 0.6000, 2.1000]])
    """

    level: float = 1.0  #: the square of the factor at the mean
    slope: float = 0.0  #: by how much it grows with the square of the distance
    reach: float = 1.0  #: from this distance on it stays the same

    @property
    def is_nothing(self) -> bool:
        """True if the factor is 1 everywhere."""
        return self.slope == 0.0 and self.level == 1.0

    def squares(self, mean: Tensor, spread: Tensor) -> Tensor:
        """The square of the factor, ``(…, b)``.

        :param mean: the predicted mean, ``(…, b)``, in the model's units, in which outputs have a mean of zero.
        :param spread: the standard deviation of each output over the training rows, likewise, ``(b,)``.
        """
        smallest = torch.finfo(mean.dtype).tiny
        distance = (mean / spread.to(mean).clamp(min=smallest)).clamp_(-self.reach, self.reach)
        return distance.square_().mul_(self.slope).add_(self.level)


class Widening(NamedTuple):
    """What the deviations of outputs from their means are multiplied by, for what was held out.

    The factor of an output depends on its spread, its standard deviation over the training rows in the model's units:
    between the two spreads that are told here it goes in a straight line from one factor to the other, so that
    neighbouring points of a field have nearly the same.

    >>> Widening(others=1.0, most=0.6, spreads=(1.0, 3.0)).at(torch.tensor([0.1, 1.0, 2.0, 3.0, 9.0]))
    tensor([1.0000, 1.0000, 0.8000, 0.6000, 0.6000])
    """

    others: float = 1.0  #: for outputs that vary no more than the first of the spreads
    most: float = 1.0  #: for outputs that vary as much as the second, or more
    spreads: tuple[float, float] = (0.0, math.inf)  #: the median of the other outputs, and that of the tenth
    holes: float = 1.0  #: for missing entries of training rows
    places: Places = Places()  #: for how far from its mean an output is predicted to be, of whole rows

    @classmethod
    def same(cls, factor: float) -> Widening:
        """One factor for everything.

        >>> Widening.same(1.5).holes
        1.5
        """
        return cls(factor, factor, holes=factor)

    @property
    def is_nothing(self) -> bool:
        """True if no output is widened or narrowed."""
        return self.others == self.most == 1.0

    @property
    def needs_spread(self) -> bool:
        """True if a factor depends on the spread of the output."""
        return self.others != self.most or not self.places.is_nothing

    def at(self, spread: Tensor) -> Tensor:
        """The factor of each output, ``(b,)``.

        :param spread: its standard deviation over the training rows, in the model's units, ``(b,)``.
        """
        lower, upper = self.spreads
        return self.others + (self.most - self.others) * ((spread - lower) / (upper - lower)).clamp(0.0, 1.0)


#: Deviations that are not widened.
AS_THEY_ARE = Widening()


def find_widening(deviations: Tensor, spread: Tensor, means: Tensor | None = None) -> Widening:
    """The factors by which 95 % intervals of Gaussians hold what was held out.

    For most numbers they hold it as often as split conformal prediction asks: of n exchangeable errors
    ``0.95 (n + 1) / n``, so that the interval of a further one holds it in 95 of 100 cases. The errors of a row belong
    together, so n is the number of rows. Where intervals are too wide already, we go half of the way (on a logarithmic
    scale): folds have fewer rows than the fit, and too wide does less harm. The tenth of outputs that varies most has
    few numbers, and there the plain 95 % quantile, all of the way, gave better densities (docs/calibration.md).

    :param deviations: absolute errors over predicted standard deviations, ``(N, 2, b)``: of held-out rows and of hidden
        entries, NaN where nothing was held out.
    :param spread: the standard deviation of these outputs over the training rows, in the model's units, ``(b,)``.
    :param means: what was predicted, likewise, ``(N, 2, b)``; None leaves places out.

    >>> errors = 2.0 * torch.randn(4000, 1, 50).abs()
    >>> errors[:, :, 45:] /= 4.0  # those that vary most are predicted better than they should be
    >>> deviations = torch.cat([errors, torch.full_like(errors, torch.nan)], 1)
    >>> found = find_widening(deviations, torch.linspace(0.1, 2.0, 50))
    >>> found.others > 1.8, found.most < 0.6, found.holes == found.others
    (True, True, True)
    """
    of_rows, of_holes = deviations.unbind(1)
    tells_holes = bool((~of_holes.isnan()).sum() >= FEWEST_HIDDEN)
    if len(spread) < FEWEST_OUTPUTS:
        of_kinds = [_cautious_factor(each) for each in ((of_rows, of_holes) if tells_holes else (of_rows,))]
        return Widening.same(max(of_kinds))
    varied = most_varied(spread)
    if varied is None or of_rows[:, varied].isnan().all() or of_rows[:, ~varied].isnan().all():
        found = Widening.same(_cautious_factor(of_rows))
    else:
        medians = (spread[~varied].median().item(), spread[varied].median().item())
        others = _cautious_factor(of_rows[:, ~varied])
        found = Widening(others, _bounded(_factor(of_rows[:, varied], LEVEL)), medians, others)
    if means is not None:
        found = found._replace(places=_find_places(of_rows / found.at(spread), means[:, 0], spread))
    return found._replace(holes=_cautious_factor(of_holes)) if tells_holes else found


def _find_places(deviations: Tensor, means: Tensor, spread: Tensor) -> Places:
    """What is wanted besides the factors of outputs, by which the deviations ``(N, b)`` have been divided.

    Numbers are divided into parts by their distance from the mean. Each part has the factor by which 95 % intervals
    hold its numbers, and half of the way where that is below 1. The line through their squares counts all parts alike.
    """
    varies = (spread > 0) & ~deviations.isnan()
    distance, deviations = (means / spread).abs()[varies], deviations[varies]
    part = torch.bucketize(distance, distance.new_tensor(DISTANCES))
    middles, squares = [], []
    for number in range(len(DISTANCES) + 1):
        is_here = part == number
        if is_here.sum() >= FEWEST_OF_A_DISTANCE:
            middles.append(distance[is_here].median().item())
            squares.append(_softened(_factor(deviations[is_here], LEVEL)) ** 2)
    if len(squares) < 2:
        return Places()
    from scipy.optimize import nnls  # takes long to load: not for those whose fits have no folds

    # relative errors of the squares, by a level and a slope that are not negative
    columns = np.stack([np.ones(len(middles)), np.square(middles)], 1) / np.array(squares)[:, None]
    level, slope = nnls(columns, np.ones(len(squares)))[0]
    grows = level > 0 and slope > 0  # otherwise places tell nothing
    return Places(float(level), float(slope), middles[-1]) if grows else Places()


def _cautious_factor(deviations: Tensor) -> float:
    """At the level of split conformal prediction; half of the way where intervals are too wide."""
    n_rows = int((~deviations.isnan()).any(1).sum())
    return _softened(_factor(deviations, min(LEVEL * (n_rows + 1) / n_rows, 1.0)))


def _softened(factor: float) -> float:
    """Within bounds; half of the way, on a logarithmic scale, where it makes intervals narrower."""
    return _bounded(factor if factor > 1.0 else math.sqrt(factor))


def _factor(deviations: Tensor, level: float) -> float:
    """What deviations ``(N, b)`` are to be multiplied by for a share ``level`` of them to lie in 95 % intervals."""
    return deviations[~deviations.isnan()].quantile(level).item() / _REACH


def _bounded(factor: float) -> float:
    return min(max(factor, 1.0 / MOST_WIDENING), MOST_WIDENING)
