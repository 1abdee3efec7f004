"""What predicted standard deviations are multiplied by, so that intervals hold what folds have held out.

A factor scales the whole deviation of an output from its mean: the variance between draws of the functions as well as
that within, and the noise.

Outputs that vary most often want another factor than the others, and the missing entries of training rows another one
than whole rows: what is known of the other outputs of the row tells the first, and nothing tells the second. Of few
outputs too few errors are known for that: then everything has the larger of the factors of rows and of missing entries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from pyro_gprn.metrics import LEVEL
from pyro_gprn.outputs.variation import most_varied

#: A prediction is widened at most by this factor, and narrowed by its inverse.
MOST_WIDENING = 2.0
#: With fewer outputs there is one factor for everything; and with fewer hidden entries these say nothing.
FEWEST_OUTPUTS, FEWEST_HIDDEN = 20, 20
#: Where the central interval of a standard normal distribution ends.
_REACH = 1.96


class Widening(NamedTuple):
    """What the deviations of outputs from their means are multiplied by, for what was held out.

    The factor of an output depends on its spread, its standard deviation over the training rows in the model's units:
    between the two spreads that are told here it goes in a straight line from one factor to the other, so that
    neighbouring points of a field have nearly the same.

    >>> import torch
    >>> Widening(others=1.0, most=0.6, spreads=(1.0, 3.0)).at(torch.tensor([0.1, 1.0, 2.0, 3.0, 9.0]))
    tensor([1.0000, 1.0000, 0.8000, 0.6000, 0.6000])
    """

    others: float = 1.0  #: for outputs that vary no more than the first of the spreads
    most: float = 1.0  #: for outputs that vary as much as the second, or more
    spreads: tuple[float, float] = (0.0, math.inf)  #: the median of the other outputs, and that of the tenth
    holes: float = 1.0  #: for missing entries of training rows

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
    def is_same(self) -> bool:
        """True if all outputs have one factor, so that their spreads need not be known."""
        return self.others == self.most

    def at(self, spread: Tensor) -> Tensor:
        """The factor of each output, ``(b,)``.

        :param spread: its standard deviation over the training rows, in the model's units, ``(b,)``.
        """
        lower, upper = self.spreads
        return self.others + (self.most - self.others) * ((spread - lower) / (upper - lower)).clamp(0.0, 1.0)


#: Deviations that are not widened.
AS_THEY_ARE = Widening()


def find_widening(deviations: Tensor, spread: Tensor) -> Widening:
    """The factors by which 95 % intervals of Gaussians hold what was held out.

    For most numbers they hold it as often as split conformal prediction asks: of n exchangeable errors
    ``0.95 (n + 1) / n``, so that the interval of a further one holds it in 95 of 100 cases. The errors of a row belong
    together, so n is the number of rows. Where intervals are too wide already, we go half of the way (on a logarithmic
    scale): folds have fewer rows than the fit, and too wide does less harm. The tenth of outputs that varies most has
    few numbers, and there the plain 95 % quantile, all of the way, gave better densities (docs/calibration.md).

    :param deviations: absolute errors over predicted standard deviations, ``(N, 2, b)``: of held-out rows and of hidden
        entries, NaN where nothing was held out.
    :param spread: the standard deviation of these outputs over the training rows, in the model's units, ``(b,)``.

    >>> import torch
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
    return found._replace(holes=_cautious_factor(of_holes)) if tells_holes else found


def _cautious_factor(deviations: Tensor) -> float:
    """At the level of split conformal prediction; half of the way where intervals are too wide."""
    n_rows = int((~deviations.isnan()).any(1).sum())
    factor = _factor(deviations, min(LEVEL * (n_rows + 1) / n_rows, 1.0))
    return _bounded(factor if factor > 1.0 else math.sqrt(factor))


def _factor(deviations: Tensor, level: float) -> float:
    """What deviations ``(N, b)`` are to be multiplied by for a share ``level`` of them to lie in 95 % intervals."""
    return deviations[~deviations.isnan()].quantile(level).item() / _REACH


def _bounded(factor: float) -> float:
    return min(max(factor, 1.0 / MOST_WIDENING), MOST_WIDENING)
