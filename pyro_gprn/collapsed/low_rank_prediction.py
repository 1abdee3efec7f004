"""Predictions of a network with inducing inputs: from the posterior of its weights there, whatever N is.

A draw of the functions has a posterior ``q(ω_d) = Normal(Ω_d, B⁻¹)`` of the whitened weights at inducing inputs
(low_rank.py). At a new input, with a* of the weights and functions f* drawn given the draw,

    y*_d ~ Normal(φ* Ω_d, φ* B⁻¹ φ*ᵀ + ‖f*‖² ℓ*) + noise     φ* = f* ⊗ a*     ℓ* = κ_w(x*, x*) − ‖a*‖²

``Ω = B⁻¹ ΦᵀY / σ²`` is linear in Y. Of many outputs few columns stand for all, ``Y ≈ Ŷ Vᵀ``: we keep Ω of the columns
for each draw, and Ω of what is left out, ``Y − Ŷ Vᵀ``, for the mean of the draws alone. So no part of Y is lost to the
mean of a prediction; that draws differ counts for the columns only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_gprn.collapsed.conditioned import mirrored_noise
from pyro_gprn.collapsed.draws import Posterior, PosteriorDraws
from pyro_gprn.collapsed.low_rank import OutputsGivenInducing, features
from pyro_gprn.collapsed.low_rank_draws import at_mean, low_rank_covariances
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.prediction import ChosenComponents, choose_draws
from pyro_gprn.outputs.compressed import CompressedStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.base import Components, PosteriorPredictive
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.prediction.scales import OutputScales, variance_factors

T = TypeVar("T")

#: How many components a mixture has by default: each holds matrices of (mK)², and more rows make draws differ less.
N_DRAWS = 32
#: New inputs are taken together as long as φ* of all draws holds at most this many numbers.
BLOCK_NUMBERS = 2**22


class DrawnWeights(NamedTuple):
    """``b`` draws of the functions that share their hyperparameters, with the posterior of the weights given each."""

    V: Tensor  #: whitened functions at inducing inputs, (b, m, K)
    white: Tensor  #: noise for the functions at a new input, (b, 1, K)
    functions_factor: Tensor  #: Cholesky factor of the functions' covariance at inducing inputs, (m, m)
    weights_factor: Tensor  #: that of the weights', (m, m)
    factor: Tensor  #: Cholesky factors of B, (b, g, mK, mK)
    mean: Tensor  #: Ω of the columns that stand for the outputs, (b, mK, r)
    noise: Tensor  #: σ_y², ()


class NewRows(NamedTuple):
    """What ``b`` draws that share their hyperparameters make of new inputs."""

    functions: Tensor  #: f*, (b, N*, K)
    mean_functions: Tensor  #: their mean given the mean of the draws, (N*, K)
    weights: Tensor  #: a*, (N*, m)
    weights_left: Tensor  #: ℓ*, (N*,), or how it varies jointly, (N*, N*)

    def blocks(self) -> Iterator[Tensor]:
        """φ* of some new inputs at a time, ``(b, n, mK)``."""
        at_once = max(1, BLOCK_NUMBERS // (self.functions[:, 0].numel() * self.weights.shape[1]))
        for start in range(0, len(self.weights), at_once):
            some = slice(start, start + at_once)
            yield features(self.functions[:, some], self.weights[some])


@dataclass(frozen=True)
class LowRankDraws:
    """Draws from the posterior of a network with inducing inputs, conditioned on the data.

    Made once, they serve predictions at any inputs.

    :param draws: the draws.
    :param known: statistics of the data.
    :param parts: the draws, those together that share their hyperparameters.
    :param left_out: Ω of what the columns leave out of each output, for the mean of the draws, ``(mK, D)``; None where
        the columns are the outputs.
    """

    draws: PosteriorDraws
    known: CompressedStatistics
    parts: list[DrawnWeights]
    left_out: Tensor | None

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: CollapsedGPRN,
        posterior: Posterior,
        Y: Any = None,
        *,
        n_draws: int = N_DRAWS,
        generator: torch.Generator | None = None,
    ) -> LowRankDraws:
        """Draws from a posterior; the parameters are those of :class:`~pyro_gprn.collapsed.CollapsedPredictive`."""
        known = low_rank_statistics(model, Y)
        draws = PosteriorDraws.of(model, posterior, n_draws, mirrored=True, generator=generator)

        def condition(V: Tensor) -> DrawnWeights:
            covariances = low_rank_covariances(model)
            white = mirrored_noise(len(V), 1, model, generator)
            given = [OutputsGivenInducing(v, covariances, known).weights() for v in V]
            factor, mean = torch.stack([each.factor for each in given]), torch.stack([each.mean for each in given])
            factors = model.functions_factor(), model.weights_factor()
            return DrawnWeights(V, white, *factors, factor, mean, covariances.noise)

        return cls(draws, known, draws.each(condition), _weights_left_out(draws, known))

    @property
    def n_draws(self) -> int:
        """The number of draws, ``s``."""
        return len(self.draws.V)

    @property
    def n_held(self) -> int:
        """How many numbers a prediction at one new input holds."""
        return self.n_draws * self.parts[0].factor.shape[-1]

    @cached_property
    def noise(self) -> Tensor:
        """``σ_y²`` of each draw, ``(s, 1)``."""
        return torch.cat([part.noise.reshape(1, 1).expand(len(part.V), 1) for part in self.parts])

    def each(self, function: Callable[[DrawnWeights], T]) -> list[T]:
        """Calls ``function`` with each part, and the model's hyperparameters at the part's values."""
        parts = iter(self.parts)
        return self.draws.each(lambda V: function(next(parts)))

    def at(self, X_new: Tensor, generator: torch.Generator | None = None, *, jointly: bool = False) -> list[NewRows]:
        """New inputs as each part has them: every input on its own, or all of them jointly with new noise."""
        model = self.draws.model

        def at_part(part: DrawnWeights) -> NewRows:
            Z = model.function_inputs
            f = Conditional.of(model.kernel_f, Z, X_new, part.functions_factor, model.noise_f, jointly=jointly)
            w = Conditional.of(model.kernel_w, Z, X_new, part.weights_factor, jointly=jointly)
            white = mirrored_noise(len(part.V), len(X_new), model, generator) if jointly else part.white
            functions = f.whitened.mT @ part.V + draw_rows(f.residual, white)
            return NewRows(functions, f.whitened.mT @ self.draws.V.mean(0), w.whitened.mT, w.residual)

        return self.each(at_part)


def low_rank_statistics(model: CollapsedGPRN, Y: Any = None) -> CompressedStatistics:
    """The statistics of the outputs of a model with inducing inputs."""
    known = model.statistics(Y)
    assert isinstance(known, CompressedStatistics)
    return known


def _weights_left_out(draws: PosteriorDraws, known: CompressedStatistics) -> Tensor | None:
    """Ω of what the columns leave out of each output: one pass over Y."""
    if known.loadings is None:
        return None
    given = at_mean(draws, known)
    blocks = [given.weights_of(known.left_out_at(some), some) for some, _ in known.source.chunks(known.chunk_bytes)]
    return torch.cat(blocks, dim=1)


class LowRankMixture:
    """New inputs by all draws: where the mixture of predictions comes from."""

    def __init__(self, conditioned: LowRankDraws, at_new: list[NewRows]) -> None:
        self._conditioned = conditioned
        self.at_new = at_new

    def __len__(self) -> int:
        return self._conditioned.n_draws

    @cached_property
    def means(self) -> Tensor:
        """The mean of the columns by each draw, ``(s, N*, r)``."""
        pairs = zip(self._conditioned.parts, self.at_new, strict=True)
        return torch.cat([torch.cat([phi @ part.mean for phi in new.blocks()], dim=1) for part, new in pairs])

    @cached_property
    def of_left_out(self) -> Tensor | None:
        """φ* at the mean of the draws, ``(N*, mK)``, which what is left out is multiplied with; None if nothing is."""
        if self._conditioned.left_out is None:
            return None
        each = [features(new.mean_functions, new.weights) for new in self.at_new]
        return torch.stack(each).mean(0)

    def mean_of_left_out(self, positions: slice | Tensor) -> Tensor | float:
        """What the left-out part of some outputs adds to their mean, ``(N*, b)``."""
        if self.of_left_out is None or self._conditioned.left_out is None:
            return 0.0
        return self.of_left_out @ self._conditioned.left_out[:, positions]

    def variance(self) -> Tensor:
        """The variance of the signal by each draw, ``(s, g, N*)``."""
        return torch.cat([self._variance(*pair) for pair in zip(self._conditioned.parts, self.at_new, strict=True)])

    def _variance(self, part: DrawnWeights, new: NewRows) -> Tensor:
        halves = (torch.linalg.solve_triangular(part.factor, phi.unsqueeze(1).mT, upper=False) for phi in new.blocks())
        explained = torch.cat([half.square().sum(-2) for half in halves], dim=-1)  # (b, g, N*)
        left = new.weights_left if new.weights_left.dim() == 1 else new.weights_left.diagonal()
        of_left = new.functions.square().sum(-1) * left.clamp(min=0.0)
        return explained + of_left.unsqueeze(1)

    def covariance(self, draws: Tensor) -> Tensor:
        """The covariance of the signal over jointly drawn new inputs by some draws, ``(c, g, N*, N*)``."""
        sizes = [len(part.V) for part in self._conditioned.parts]
        part_of = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), torch.tensor(sizes, device="cpu"))
        first = torch.tensor([0, *sizes], device="cpu").cumsum(0)
        result = []
        for draw in draws.tolist():
            number = int(part_of[draw])
            part, new, place = self._conditioned.parts[number], self.at_new[number], draw - int(first[number])
            f = new.functions[place]
            half = torch.linalg.solve_triangular(part.factor[place], features(f, new.weights).mT, upper=False)
            result.append(half.mT @ half + (f @ f.mT) * new.weights_left)
        return torch.stack(result)


class LowRankPredictive(PosteriorPredictive):
    """Predictions from a :class:`~pyro_gprn.CollapsedGPRN` with inducing inputs: a mixture over draws of its functions.

    The parameters are those of :class:`~pyro_gprn.collapsed.CollapsedPredictive`. Everything is float64, whatever
    ``variance_type`` is.
    """

    def __init__(
        self,
        model: CollapsedGPRN,
        posterior: Posterior,
        X_new: Tensor,
        Y: Any = None,
        *,
        n_draws: int = N_DRAWS,
        output_scales: OutputScales | None = None,
        conditioned: LowRankDraws | None = None,
        variance_type: torch.dtype = torch.float64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, X_new, generator)
        if conditioned is None:
            conditioned = LowRankDraws.of(model, posterior, Y, n_draws=n_draws, generator=generator)
        self._model, self._posterior, self._scales = model, posterior, output_scales
        self._conditioned, self._known = conditioned, conditioned.known
        with torch.set_grad_enabled(self.X_new.requires_grad):
            self._mixture = LowRankMixture(conditioned, conditioned.at(self.X_new))

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        mean = self._mixture.means.mean(0) @ self._known.loadings_at(positions).mT
        return mean + self._mixture.mean_of_left_out(positions)

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        between = (self._mixture.means @ self._known.loadings_at(positions).mT).var(0, correction=0)
        within = self._within[self._known.patterns_at(positions)].mT
        factors, of_scales = variance_factors(self._scales, positions)
        return between * factors**2 + within * of_scales

    @cached_property
    def _within(self) -> Tensor:
        """The mean variance within draws, ``(g, N*)``."""
        return self._mixture.variance().mean(0)

    def _noise(self, chosen: OutputSelection) -> Tensor:
        noise = self._conditioned.noise.mean()
        return noise * variance_factors(self._scales, chosen.positions(slice(None)))[1]

    def _components(self, n_draws: int | None, joint: bool) -> Components:
        conditioned, mixture = self._conditioned, self._mixture
        if not joint and n_draws is not None and n_draws > conditioned.n_draws:  # none counts twice
            settings: dict[str, Any] = {"n_draws": n_draws, "generator": self._generator}
            conditioned = LowRankDraws.of(self._model, self._posterior, self._known, **settings)
            mixture = LowRankMixture(conditioned, conditioned.at(self.X_new))
        if joint:
            mixture = LowRankMixture(conditioned, conditioned.at(self.X_new, self._generator, jointly=True))
        n = n_draws if joint or n_draws is None else min(n_draws, conditioned.n_draws)
        draws = choose_draws(conditioned.n_draws, n, self._generator)
        return LowRankComponents(mixture, conditioned, self._scales, draws, self._generator)

    def _numbers_per_output(self) -> tuple[int, int]:
        n_new = len(self.X_new)
        return n_new + self._known.columns.shape[1], self._conditioned.n_draws * n_new + self._known.columns.shape[1]


class LowRankComponents(ChosenComponents):
    """Some components of a mixture over draws at inducing inputs."""

    _mixture: Any

    def _means(self, positions: slice | Tensor) -> Tensor:
        of_columns = self._mixture.means[self._draws] @ self._known.loadings_at(positions).mT
        return of_columns + self._mixture.mean_of_left_out(positions)

    def _centre(self, positions: slice | Tensor) -> Tensor:
        of_columns = self._mixture.means.mean(0) @ self._known.loadings_at(positions).mT
        return of_columns + self._mixture.mean_of_left_out(positions)
