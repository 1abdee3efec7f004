"""Draws from the posterior of a collapsed network, conditioned on the data: what predictions at all inputs share.

For a draw of F the outputs at new inputs are linear combinations of training outputs (prediction.py)::

    c = k C_F⁻¹     k = κ_w(X*,X) ∘ (f* Fᵀ)     Var = κ_w(x*,x*) ‖f*‖² − ‖k L⁻ᵀ‖²     C_F = L Lᵀ

They are made once, ``L⁻¹`` and ``C_F⁻¹``, so that a prediction is a few matrix products. But ``C_F⁻¹`` as it is would
be inexact: on a smooth field without noise it has entries of 10¹⁰, which cancel. We keep ``C_F⁻¹ B`` instead, where
``B Bᵀ = G + τ I``, G is the Gram matrix of evenly spread outputs and τ is tiny. In coordinates ``z``, with
``y_d = B z_d``, the outputs are white, and ``L⁻¹ B`` is of moderate size for every F that is likely. So we have the
coefficients of z ::

    c y_d = c̃ z_d     c̃ = k (C_F⁻¹ B)     c = c̃ B⁻¹

as exactly as by triangular solves, at the cost of a product. The coordinates serve the variance too (spread.py). Where
nearly every output has holes of its own, each draw fills them in its own way (scattered.py): then B is the identity,
and ``c = (k L⁻ᵀ) L⁻¹`` takes two products.

Where there are fewer training rows than draws, their average over draws is cheaper than the coefficients of each. As f*
is linear in ``t = L_f⁻¹ κ_f(X, x*)`` and in the deviation ρ of f* given F, ``f* = [t ρ] [V; e]`` with white noise e::

    average of c̃ = Σ_n κ_w(x*, x_n) [t ρ] M_n     M_n = average of [V; e] F_nᵀ (C_F⁻¹ B)_n     (N + 1, N) for each n
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import add_to_diagonal, identity_like
from pyro_gprn.collapsed.between_outputs import (
    N_DRAWS,
    MissingNumbers,
    fill_holes,
    inverse_roots,
    learn_output_covariance,
)
from pyro_gprn.collapsed.draws import Posterior, PosteriorDraws
from pyro_gprn.collapsed.likelihood import outputs_given
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.spread import LEAST, Directions, inputs_between
from pyro_gprn.outputs.gram import GroupedStatistics, OutputStatistics
from pyro_gprn.outputs.selection import spread_positions
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.prediction.holes import FilledHoles
from pyro_gprn.pyro_state import white_noise

T = TypeVar("T")

#: How many draws predictions are averages over: the first number, or as many fewer as can be kept, down to the second.
MOST_DRAWS, FEWEST_DRAWS = 128, 32
#: Matrices of all draws and groups are kept if they have at most this many numbers; otherwise each use makes them.
MOST_KEPT = 2**26
#: Matrices that are not kept are made for as many draws at a time as have about this many numbers.
MOST_MADE = 2**24
#: Outputs, evenly spread, whose Gram matrix makes the coordinates.
N_TYPICAL = 2**13
#: New inputs whose variances are computed at a time.
_AT_ONCE = 512
#: τ, relative to the mean diagonal of the Gram matrix.
RIDGE = 1e-10


class WhiteCoordinates(NamedTuple):
    """Coordinates z in which the outputs of each group are nearly white: ``y_d = B z_d``, ``Σ_d z_d z_dᵀ ≈ I``."""

    root: Tensor  #: B, (g, N, N)
    inverse: Tensor  #: B⁻¹, (g, N, N)

    @classmethod
    def of(cls, known: OutputStatistics) -> WhiteCoordinates:
        """From values of Y: Gram matrices that were summed in another order would give other last digits.

        Where holes are scattered, outputs are taken as they are.

        >>> coordinates = WhiteCoordinates.of(OutputStatistics.of(torch.tensor([[1.0, 1.0], [1.0, -1.0]])))
        >>> (coordinates.root @ coordinates.root.mT).round(decimals=4)
        tensor([[[2., 0.],
                 [0., 2.]]], dtype=torch.float64)
        """
        if not isinstance(known, GroupedStatistics):
            identity = identity_like(known.source.n_rows, known.counts).unsqueeze(0)
            return cls(identity, identity)
        places = spread_positions(known.source.n_outputs, N_TYPICAL).to(known.source.device)
        values, groups = known.values_at(places), known.patterns_at(places)
        by_group = (values[:, groups == group] for group in range(len(known.grams)))
        grams = torch.stack([some @ some.mT for some in by_group])
        level = grams.diagonal(dim1=-2, dim2=-1).mean(-1)
        level = torch.where(level > 0, level, 1.0)
        eigenvalues, vectors = torch.linalg.eigh(add_to_diagonal(grams, RIDGE * level))
        scale = eigenvalues.clamp(min=0.5 * RIDGE * level.unsqueeze(-1)).sqrt().unsqueeze(-2)
        return cls(vectors * scale, (vectors / scale).mT)


class NewRows(NamedTuple):
    """What b draws that share their hyperparameters make of new inputs."""

    functions: Tensor  #: f*, (b, N*, K)
    basis: Tensor  #: [t ρ], (N*, N + 1), where each input is on its own
    cross: Tensor  #: κ_w(X*, X), (N*, N), or of each group of outputs, (g, N*, N)
    variance: Tensor  #: κ_w(x*, x*), (N*,) or (g, N*)


class Matrices(NamedTuple):
    """Of some draws and all g groups of outputs; zero in the rows that the outputs of a group miss."""

    draws: slice  #: which draws these are
    root: Tensor  #: L⁻ᵀ, (b, g, N, N)
    solved: Tensor  #: C_F⁻¹ B, (b, g, N, N)


class DrawsAlike:
    """Draws of the functions with the same hyperparameters, conditioned on the data.

    Made while the model's hyperparameters have these values.

    :param model: the model.
    :param V: whitened functions, ``(b, N, K)``.
    :param white: noise for the functions at a new input, ``(b, 1, K)``.
    :param known: statistics of the outputs.
    :param coordinates: of the outputs.
    :param is_kept: whether matrices are kept once they are made.
    """

    def __init__(
        self,
        model: CollapsedGPRN,
        V: Tensor,
        white: Tensor,
        known: OutputStatistics,
        coordinates: WhiteCoordinates,
        is_kept: bool,
    ) -> None:
        self._model, self._known, self._coordinates, self._is_kept = model, known, coordinates, is_kept
        self.V, self.white = V, white
        self.Lf, self._Kw, self.noise = model.covariances()
        self.F = self.Lf @ V  #: the functions, (b, N, K)
        self._kept: list[Matrices] | None = None

    def matrices(self) -> Iterator[Matrices]:
        """The matrices of all draws, of some at a time."""
        if self._kept is not None:
            yield from self._kept
            return
        made = self._make()
        if self._is_kept:
            self._kept = list(made)
            made = iter(self._kept)
        yield from made

    @torch.no_grad()
    def _make(self) -> Iterator[Matrices]:
        at_once = max(1, MOST_MADE // self._coordinates.root.numel())
        is_grouped = isinstance(self._known, GroupedStatistics)
        seen = self._known.observed.to(self.F).unsqueeze(-1) if is_grouped else self.F.new_ones(())
        for start in range(0, len(self.F), at_once):
            some = slice(start, start + at_once)
            factor = outputs_given(self._known, self.covariance(some)).factor
            factor = factor if is_grouped else factor.unsqueeze(1)
            # The inverse from the left, R L = I: its product with k = L h is exact, that of one from the right is not.
            identity = identity_like(factor.shape[-1], factor)
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False, left=False)
            half = torch.linalg.solve_triangular(factor, self._coordinates.root, upper=False)
            solved = torch.linalg.solve_triangular(factor.mT, half, upper=True)
            # laid out as the products want them: rows of k times columns of these
            yield Matrices(some, (seen * inverse.mT).contiguous(), (seen * solved).contiguous())

    def covariance(self, some: slice) -> Tensor:
        """``C_F`` of some draws, ``(b, N, N)``, or of each output too, ``(b, D, N, N)``."""
        return self._model.output_covariance(self.F[some], self._Kw, self.noise)

    def at(self, X_new: Tensor, white: Tensor) -> NewRows:
        """The functions at new inputs ``(N*, P)``, and the kernel, at the hyperparameters' current values.

        :param white: noise ``(b, N*, K)`` for functions drawn jointly; ``(b, 1, K)`` for each input on its own.
        """
        model = self._model
        jointly = white.shape[-2] > 1
        f = Conditional.of(model.kernel_f, model.X, X_new, self.Lf, model.noise_f, jointly=jointly)
        F_new = f.whitened.mT @ self.V + draw_rows(f.residual, white)
        basis = torch.cat([f.whitened.mT, draw_rows(f.residual, torch.ones_like(X_new[:1, :1]))], dim=1)
        # a few at a time: a kernel for each output makes its diagonal of a whole matrix
        variance = torch.cat([model.kernel_w(some, diag=True) for some in X_new.split(_AT_ONCE)], dim=-1)
        return NewRows(F_new, basis, model.kernel_w(X_new, model.X), variance)


@dataclass(frozen=True)
class ConditionedDraws:
    """Draws from the posterior of a collapsed network, conditioned on the data.

    Made once, they serve predictions at any inputs: give them to :func:`~pyro_gprn.posterior_predictive` as
    ``conditioned``.

    :param draws: the draws.
    :param known: statistics of the data.
    :param coordinates: white coordinates of the outputs.
    :param parts: the draws, those together that share their hyperparameters.
    :param is_kept: whether their matrices are kept once they are made.

    >>> from pyro_gprn import CollapsedGuide, posterior_predictive
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=30, n_latents=2)
    >>> guide = CollapsedGuide(model)
    >>> conditioned = ConditionedDraws.of(model, guide, torch.ones(8, 30), n_draws=16)
    >>> [posterior_predictive(model, guide, model.X[n:], conditioned=conditioned).mean().shape for n in (3, 4)]
    [torch.Size([5, 30]), torch.Size([4, 30])]
    """

    draws: PosteriorDraws
    known: OutputStatistics
    coordinates: WhiteCoordinates
    parts: list[DrawsAlike]
    is_kept: bool

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: CollapsedGPRN,
        posterior: Posterior,
        Y: object = None,
        *,
        n_draws: int | None = None,
        generator: torch.Generator | None = None,
        coordinates: WhiteCoordinates | None = None,
    ) -> ConditionedDraws:
        """Draws from a posterior; the parameters are those of :class:`~pyro_gprn.collapsed.CollapsedPredictive`.

        :param coordinates: white coordinates of the outputs that were made before; None makes them.
        """
        known = model.statistics(Y)
        coordinates = WhiteCoordinates.of(known) if coordinates is None else coordinates
        can_be_kept = MOST_KEPT // (2 * coordinates.root.numel())
        if n_draws is None:
            n_draws = max(FEWEST_DRAWS, min(MOST_DRAWS, can_be_kept))
        draws = PosteriorDraws.of(model, posterior, n_draws, mirrored=True, generator=generator)
        is_kept = len(draws.V) <= can_be_kept

        def condition(V: Tensor) -> DrawsAlike:
            white = mirrored_noise(len(V), 1, model, generator)
            return DrawsAlike(model, V, white, known, coordinates, is_kept)

        return cls(draws, known, coordinates, draws.each(condition), is_kept)

    @property
    def n_draws(self) -> int:
        """The number of draws, ``s``."""
        return len(self.draws.V)

    @property
    def n_held(self) -> int:
        """How many numbers a prediction at one new input holds."""
        return self.n_draws * self.draws.model.n_rows

    @property
    def n_groups(self) -> int:
        """The number of groups of outputs, ``g``."""
        return len(self.coordinates.root)

    @cached_property
    def noise(self) -> Tensor:
        """``σ_y²`` of each draw, ``(s, 1)``, or of each group of outputs too, ``(s, g)``."""
        return torch.cat([part.noise.reshape(1, -1).expand(len(part.V), -1) for part in self.parts])

    @cached_property
    @torch.no_grad()
    def directions(self) -> Directions:
        """The directions of c̃ that the variance between draws is made of."""
        model = self.draws.model
        if model.n_rows <= LEAST:
            return Directions()
        few = self._few_outputs()
        if few is not None:
            return Directions.spanned_by(few)
        at_new = self.at(inputs_between(model.X))
        deviations = self.coefficients(self.cross(at_new))
        deviations = deviations - deviations.mean(0)
        size = deviations.square().sum((0, -1)).sqrt()  # every input counts the same, whatever its variance
        deviations = deviations / torch.where(size > 0, size, 1.0).unsqueeze(-1)
        by_group = deviations.movedim(1, 0).flatten(1, 2)
        return Directions.leading(by_group.mT @ by_group, model.n_outputs)

    def _few_outputs(self) -> Tensor | None:
        """The coordinates of the outputs of each group, ``(g, N, b)``, zeros after them, if no group has many."""
        n_outputs = self.known.source.n_outputs
        if n_outputs > LEAST * self.n_groups or not isinstance(self.known, GroupedStatistics):
            return None
        groups = self.known.patterns_at(slice(None))
        sizes = groups.bincount(minlength=self.n_groups)
        if sizes.max() > LEAST:
            return None
        order = groups.argsort(stable=True)
        places = torch.arange(n_outputs, device=order.device) - (sizes.cumsum(0) - sizes)[groups[order]]
        values = self.known.values_at(slice(None))
        found = values.new_zeros(self.n_groups, int(sizes.max()), len(values))
        found[groups[order], places] = values.mT[order]
        return self.coordinates.inverse @ found.mT

    @cached_property
    def projection(self) -> Tensor:
        """Takes outputs to their coordinates along :attr:`directions`, ``(g, r, N)``."""
        inverse, axes = self.coordinates.inverse, self.directions.axes
        return inverse if axes is None else axes.mT @ inverse

    def at(self, X_new: Tensor) -> list[NewRows]:
        """The new inputs as each part has them, every input on its own."""
        return self.each(lambda part: part.at(X_new, part.white))

    def each(self, function: Callable[[DrawsAlike], T]) -> list[T]:
        """Calls ``function`` with each part, and the model's hyperparameters at the part's values."""
        parts = iter(self.parts)
        return self.draws.each(lambda V: function(next(parts)))

    def cross(self, at_new: list[NewRows], rows: slice = slice(None)) -> list[Tensor]:
        """``k``, the covariance of some new rows with training rows, of each part, ``(b, 1 or g, N*, N)``."""
        pairs = zip(self.parts, at_new, strict=True)
        return [new.cross[..., rows, :] * (new.functions[:, rows] @ part.F.mT).unsqueeze(1) for part, new in pairs]

    def coefficients(self, cross: list[Tensor]) -> Tensor:
        """``c̃ = k C_F⁻¹ B`` of all draws, ``(s, g, N*, N)``."""
        if isinstance(self.known, GroupedStatistics):
            return self._products(cross, lambda made: made.solved)
        half = self.half(cross).split([len(k) for k in cross])
        return self._products(list(half), lambda made: made.root.mT)

    def mean_coefficients(
        self, at_new: list[NewRows], rows: slice = slice(None), of_draws: Tensor | None = None
    ) -> Tensor:
        """The average of c̃ over draws at some of the new inputs, ``(g, N*, N)``.

        :param of_draws: :meth:`coefficients` there, if they are known: then they need not be made again.
        """
        if self._averages is None:
            of_draws = self.coefficients(self.cross(at_new, rows)) if of_draws is None else of_draws
            return of_draws.mean(0)
        (new,) = at_new
        by_row = (new.basis[rows] @ self._averages).unflatten(-1, (-1, new.cross.shape[-1]))  # (g, N*, N, N)
        return (new.cross[..., rows, :].unsqueeze(-2) @ by_row).squeeze(-2)

    @cached_property
    @torch.no_grad()
    def _averages(self) -> Tensor | None:
        """``M``, ``(g, N + 1, N N)``; None if the coefficients of each draw are cheaper or M would be too large."""
        n_rows = self.draws.model.n_rows
        is_grouped = isinstance(self.known, GroupedStatistics)
        is_small = n_rows < self.n_draws and self.coordinates.root.numel() * n_rows <= MOST_MADE
        if not (is_grouped and is_small and len(self.parts) == 1):
            return None
        (part,) = self.parts
        left = torch.cat([part.V, part.white], dim=1) @ part.F.mT / self.n_draws  # (s, N + 1, N)
        sums = [torch.einsum("smn,sgnj->gmnj", left[made.draws], made.solved) for made in part.matrices()]
        return torch.stack(sums).sum(0).flatten(2)

    @cached_property
    def precision(self) -> Tensor:
        """``C_F⁻¹`` of all rows, of each draw, ``(s, N, N)``, where holes are scattered."""
        return torch.cat([made.solved for part in self.parts for made in part.matrices()]).squeeze(1)

    @cached_property
    @torch.no_grad()
    def holes(self) -> FilledHoles | None:
        """The missing numbers as the other outputs tell them (between_outputs.py); None if that cannot be said.

        It is said where outputs are a few, and not too much of them is missing.
        """
        missing = MissingNumbers.of(self.known)
        if missing is None:
            return None
        every = slice(None, None, -(-self.n_draws // N_DRAWS))  # some draws, evenly spread
        if len(self.parts) == 1:
            covariances = self.parts[0].covariance(every)
        else:  # a draw each
            covariances = torch.cat([part.covariance(slice(None)) for part in self.parts[every]])
        roots = inverse_roots(covariances if self.draws.model.own_kernels else covariances.unsqueeze(1))
        return fill_holes(missing, roots, learn_output_covariance(missing, roots))

    def half(self, cross: list[Tensor]) -> Tensor:
        """``k L⁻ᵀ`` of all draws, ``(s, g, N*, N)``: the sum of its squares is the variance that the data explain."""
        return self._products(cross, lambda made: made.root)

    def _products(self, cross: list[Tensor], which: Callable[[Matrices], Tensor]) -> Tensor:
        pairs = zip(self.parts, cross, strict=True)
        products = [k[made.draws] @ which(made) for part, k in pairs for made in part.matrices()]
        return products[0] if len(products) == 1 else torch.cat(products)


class SettledDraws(NamedTuple):
    """What remains of conditioned draws once all that depends on the new inputs is made: what outputs need of them."""

    known: OutputStatistics  #: statistics of the outputs that are predicted
    n_draws: int  #: s
    noise: Tensor  #: as :attr:`ConditionedDraws.noise`
    projection: Tensor | None = None  #: as :attr:`ConditionedDraws.projection`, if variances are wanted
    precision: Tensor | None = None  #: as :attr:`ConditionedDraws.precision`, where holes are scattered


def mirrored_noise(n_draws: int, n_rows: int, model: CollapsedGPRN, generator: torch.Generator | None = None) -> Tensor:
    """White noise for the functions in new rows, the second half of the draws that of the first mirrored, (n, rows, K).

    :param n_draws: how many draws; mirrored noise makes averages over them more exact.
    """
    half = white_noise(-(-n_draws // 2), n_rows, model.n_latents, like=model.X, generator=generator)
    return torch.cat([half, -half])[:n_draws]
