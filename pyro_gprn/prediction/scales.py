"""Scales of the outputs that are unknown: what is known of them, and Student-t distributions that follow from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from scipy import special
from torch import Tensor
from torch.distributions import Chi2

from pyro_gprn.pyro_state import new_seed, own_randomness
from pyro_gprn.training.widening import AS_THEY_ARE, Widening

#: A variance is reported as if there were at least so many degrees of freedom.
LEAST_DEGREES = 3.0
#: From here on Hill's expansion of the Student-t is exact to 1e-8.
_MANY_DEGREES = 8.0
#: Degrees of freedom that are as good as infinite; and from where on the normal's constant is more exact.
_INFINITE, _NORMAL = 1e14, 1e6
#: A quantile is found to this many standard deviations of the standard normal; or between bounds that are this near, in
#: standard deviations of the mixture.
_TOLERANCE, _NEARNESS = 1e-6, 1e-9


class OutputScales(NamedTuple):
    """The posterior of the scale of each output: ``s_d² ~ InvGamma(ν_d/2, ν_d ŝ_d²/2)``.

    An output that is ``Normal(m, s_d² v)`` given its scale is then Student-t with ν_d degrees of freedom, location m
    and scale ``ŝ_d √v``. With infinitely many degrees of freedom it is known that the scale is ŝ_d.

    >>> scales = OutputScales(torch.tensor([4.0, 21.0]), torch.tensor([1.0, 2.0]), 1.0)
    >>> scales.variance()
    tensor([2.0000, 2.2105])
    >>> scales.draw((5, 1)).shape
    torch.Size([5, 1, 2])
    """

    degrees: Tensor  #: of freedom, ν_d, (D,)
    squares: Tensor  #: ŝ_d², (D,)
    prior_degrees: float  #: ν, of what was known of every scale before the data
    factors: Tensor | float = 1.0  #: what each ŝ_d, and the spread between draws, was multiplied by since, (D,)
    widening: Widening = AS_THEY_ARE  #: what tells these factors, and those of places and of missing entries
    spread: Tensor | float = 1.0  #: the standard deviation over the training rows, (D,), if the widening needs it

    @classmethod
    def known(cls, n_outputs: int, like: Tensor) -> OutputScales:
        """Scales that are known to be 1, of so many outputs, in the type and on the device of ``like``."""
        ones = like.new_ones(n_outputs)
        return cls(ones * math.inf, ones, math.inf)

    def at(self, positions: slice | Tensor) -> OutputScales:
        """Those of some of the flattened outputs, ``(b,)``."""
        factors, spread = (
            each[positions] if isinstance(each, Tensor) else each for each in (self.factors, self.spread)
        )
        degrees, squares = self.degrees[positions], self.squares[positions]
        return self._replace(degrees=degrees, squares=squares, factors=factors, spread=spread)

    def widened(self, widening: Widening, spread: Tensor | None) -> OutputScales:
        """The scales, which have not been widened yet, multiplied by the factors of their outputs.

        :param spread: the standard deviation of each output over the training rows, ``(D,)``; None will do if the
            widening does not need it.

        >>> scales = OutputScales.known(2, like=torch.ones(())).widened(Widening.same(1.5), None)
        >>> scales.squares, scales.widening.holes
        (tensor([2.2500, 2.2500]), 1.5)
        """
        scales = self._replace(widening=widening) if spread is None else self._replace(widening=widening, spread=spread)
        factors = widening.others if spread is None else widening.at(spread)
        return scales._replace(squares=self.squares * factors**2, factors=factors)

    def squares_at_places(self, mean: Tensor) -> Tensor | None:
        """The squares of the factors that places have besides, ``(…, D)``; None if all are 1.

        :param mean: the predicted mean, ``(…, D)``.
        """
        places = self.widening.places
        return None if places.is_nothing else places.squares(mean, torch.as_tensor(self.spread))

    def variance(self) -> Tensor:
        """``E[s_d²] = ŝ_d² ν_d / (ν_d − 2)``, ``(D,)``: the variance of a Student-t over that of its Gaussian.

        With few degrees of freedom it is huge, or infinite (ν_d ≤ 2), and says nothing of where the output will be.
        Below three it is taken at three, ``3 ŝ_d²``. Densities, quantiles and draws are exact.
        """
        degrees = self.degrees.clamp(min=LEAST_DEGREES)
        return self.squares / (1.0 - 2.0 / degrees)

    def spread_out(self, means: Tensor, centre: Tensor) -> Tensor:
        """Means of outputs ``(s, …, D)`` by each draw, as far from their common one as the outputs have been widened.

        :param centre: the mean over all draws, ``(…, D)``.

        >>> scales = OutputScales.known(2, like=torch.ones(())).widened(Widening.same(1.5), None)
        >>> scales.spread_out(torch.tensor([[0.0, 4.0], [2.0, 4.0]]), torch.tensor([1.0, 4.0]))
        tensor([[-0.5000,  4.0000],
                [ 2.5000,  4.0000]])
        """
        return centre + self.factors * (means - centre)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Draws of ``s_d``, ``(*shape, D)``.

        :param generator: of random numbers; None is torch's global state.
        """
        degrees = self.degrees.clamp(max=_INFINITE)
        with own_randomness(new_seed(generator)):  # torch draws from a Gamma by its global state alone
            drawn = Chi2(degrees.cpu(), validate_args=False).sample(torch.Size(shape))
        return (degrees * self.squares / drawn.to(degrees)).sqrt()


class Scales(Protocol):
    """The scales of outputs: :class:`OutputScales` of all of them, or a rule that tells those that are asked for."""

    @property
    def prior_degrees(self) -> float:
        """ν, of what was known of every scale before the data."""
        ...

    @property
    def widening(self) -> Widening:
        """What scales have been multiplied by since, for what was held out."""
        ...

    def at(self, positions: slice | Tensor) -> OutputScales:
        """Those of some of the flattened outputs, ``(b,)``."""
        ...


def variance_factors(scales: Scales | None, positions: slice | Tensor) -> tuple[Tensor | float, Tensor | float]:
    """What scales the variance of some outputs, ``(b,)`` each; 1 if there are no scales.

    Between draws it is the square of the first, by which the output was widened; within draws it is ``E[s_d²]``.

    >>> variance_factors(OutputScales.known(2, like=torch.ones(())).widened(Widening.same(3.0), None), slice(1))
    (3.0, tensor([9.]))
    """
    if scales is None:
        return 1.0, 1.0
    found = scales.at(positions)
    return found.factors, found.variance()


def student_cdf(t: Tensor, degrees: Tensor) -> Tensor:
    """The cumulative distribution of Student's t, in the shape of ``t``.

    :param degrees: of freedom, to be broadcast to ``t``; infinity is the normal distribution.

    >>> student_cdf(torch.tensor([0.0, 1.0, 1.96]), torch.tensor([5.0, 1.0, torch.inf]))
    tensor([0.5000, 0.7500, 0.9750])
    """
    # Hill (1970), algorithm 395: with a = ν − ½ and y = a log(1 + t²/ν), t is as far out in its distribution as
    #   z = √y (1 + (y + 3 − (0.4 y³ + 3.3 y² + 24 y + 85.5) / (0.8 y² + 100 + b)) / b)     b = 48 a²
    # is in the standard normal. It takes a tenth of the time of the incomplete beta function.
    many = degrees.clamp(min=_MANY_DEGREES, max=_INFINITE)
    a = many - 0.5
    b = 48.0 * a.square()
    y = a * torch.log1p(t.square() / many)
    correction = (((-0.4 * y - 3.3) * y - 24.0) * y - 85.5) / (0.8 * y.square() + 100.0 + b) + y + 3.0
    cdf = torch.special.ndtr(torch.copysign(y.sqrt() * (1.0 + correction / b), t))
    is_few = (degrees < _MANY_DEGREES).expand(t.shape)
    if is_few.any():
        exact = special.stdtr(degrees.expand(t.shape)[is_few].cpu().numpy(), t[is_few].cpu().numpy())
        cdf[is_few] = torch.as_tensor(exact).to(cdf)
    return cdf


@dataclass(frozen=True)
class StudentMixture:
    """An equal mixture of Student-t distributions, for each of many numbers.

    :param location: of each component, ``(s, …)``.
    :param scale: likewise.
    :param degrees: of freedom, to be broadcast to them; infinity is the normal distribution.

    >>> mixture = StudentMixture(torch.zeros(2, 1), torch.ones(2, 1), torch.tensor(4.0))
    >>> mixture.quantile(0.975)
    tensor([2.7764])
    """

    location: Tensor
    scale: Tensor
    degrees: Tensor

    def overlapping(self) -> StudentMixture:
        """The mixture with components that are at least so wide that they overlap; its mean and spread are the same.

        A few draws of the functions stand for all. Where a component is far narrower than the draws lie apart, the
        truth falls between components, and a density that is small there says only that the draws are few: on a truss
        with 18 outputs the mean log density was -3.1 in place of 1.0. Where components overlap nothing changes.

        >>> apart = StudentMixture(torch.tensor([[-1.0], [1.0]]), torch.full((2, 1), 0.01), torch.tensor(torch.inf))
        >>> wider = apart.overlapping()
        >>> (wider.location.square() + wider.scale.square()).mean(0)  # the variance was 1.0001
        tensor([1.0001])
        >>> wider.scale.min() > 0.9
        tensor(True)
        """
        # A kernel estimate from n draws is best with kernels of h = (4 / 3n)^(1/5) times the deviation between draws
        # (Silverman 1986). What a component lacks in variance is added; centres move inwards for it (West 1993).
        centre, between = self.location.mean(0), self.location.var(0, correction=0)
        bandwidth = (4.0 / (3.0 * len(self.location))) ** 0.2
        lacking = (bandwidth**2 * between - self.scale.square()).clamp(min=0.0)
        moved = torch.where(between > 0, 1.0 - lacking.mean(0) / between, 1.0).clamp(min=0.0).sqrt()
        scale = (self.scale.square() + lacking).sqrt()
        return StudentMixture(centre + moved * (self.location - centre), scale, self.degrees)

    def stretched(self, factors: Tensor) -> StudentMixture:
        """With all deviations from the mean multiplied by factors, ``(…)``."""
        centre = self.location.mean(0)
        return StudentMixture(centre + factors * (self.location - centre), factors * self.scale, self.degrees)

    def log_density_by_component(self, y: Tensor) -> Tensor:
        """``(s, …)``."""
        degrees = self.degrees.clamp(max=_INFINITE)
        halves = (degrees + 1.0) / 2.0
        constant = torch.lgamma(halves) - torch.lgamma(degrees / 2.0) - 0.5 * (math.pi * degrees).log()
        constant = torch.where(degrees > _NORMAL, -0.5 * math.log(2 * math.pi), constant)
        t = (y - self.location) / self.scale
        return constant - halves * torch.log1p(t.square() / degrees) - self.scale.log()

    def cdf(self, y: Tensor) -> Tensor:
        """The probability of what is below ``y``, ``(…)``."""
        return student_cdf((y - self.location) / self.scale, self.degrees).mean(0)

    def quantile(self, probability: float) -> Tensor:
        """Where the cumulative distribution is ``probability``, ``(…)``."""
        # The quantile of the mixture lies between the least and the greatest of the components' quantiles. In between
        # we look for it by the secant method on the scale of a standard normal, on which the distribution is nearly a
        # straight line, and by bisection where the secant leads outside.
        standard = special.stdtrit(self.degrees.clamp(max=_INFINITE).cpu().numpy(), probability)
        each = self.location + self.scale * torch.as_tensor(standard).to(self.scale)
        lower, upper = each.amin(0), each.amax(0)
        target = torch.special.ndtri(lower.new_tensor(probability))
        spread = (self.scale.square().mean(0) + self.location.var(0, correction=0)).sqrt()
        x = (self.location.mean(0) + target * spread).clamp(lower, upper)
        slope, last = 1.0 / spread, (x, torch.zeros_like(x))
        for step in range(100):
            excess = torch.special.ndtri(self.cdf(x)) - target
            lower, upper = torch.where(excess < 0, x, lower), torch.where(excess > 0, x, upper)
            is_open = (excess.abs() > _TOLERANCE) & (upper - lower > _NEARNESS * spread)
            if not is_open.any():
                break
            if step > 0:
                secant = (excess - last[1]) / (x - last[0])
                slope = torch.where(secant.isfinite() & (secant > 0), secant, slope)
            last, moved = (x, excess), x - excess / slope
            inside = (moved > lower) & (moved < upper)
            x = torch.where(is_open, torch.where(inside, moved, 0.5 * (lower + upper)), x)
        return x
