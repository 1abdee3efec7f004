"""Predictions with the weights integrated out.

Given a draw of F and of f*, the functions at new inputs, every output is a Gaussian with one covariance for all::

    y*_d | F, f*, Y ~ Normal(c y_d, V)     k = κ_w(X*,X) ∘ (f* Fᵀ)     c = k C_F⁻¹     V = κ_w(X*,X*) ∘ (f* f*ᵀ) − c kᵀ

so the prediction is a mixture over draws in which each new output is a weighting of training outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from pyro import poutine
from torch import Tensor

from pyro_gprn.algebra.linalg import covariance_root, safe_cholesky
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.likelihood import restrict
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.base import Components, PosteriorPredictive, posterior_predictive
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.pyro_state import AtCentre, isolated

#: How many components a mixture has by default.
N_DRAWS = 128


class Weighting(NamedTuple):
    """New outputs as weightings of training outputs, for ``s`` draws and ``g`` patterns of holes."""

    weights: Tensor  #: c, (s, g, N*, N)
    half: Tensor  #: L⁻¹kᵀ with C = LLᵀ, so that V = prior − halfᵀ half, (s, g, N, N*)
    functions: Tensor  #: f*, (s, N*, K)
    kernel: Tensor  #: κ_w(X*, X*), (s, N*, N*)
    noise: Tensor  #: σ_y², (s,)

    def covariance(self, draws: Tensor) -> Tensor:
        """``V`` of some draws, without observation noise, ``(c, g, N*, N*)``."""
        f, half = self.functions[draws], self.half[draws]
        return (self.kernel[draws] * (f @ f.mT)).unsqueeze(1) - half.mT @ half

    def variance(self) -> Tensor:
        """The diagonal of ``V`` of all draws, ``(s, g, N*)``."""
        prior = self.kernel.diagonal(dim1=-2, dim2=-1) * self.functions.square().sum(-1)
        return (prior.unsqueeze(1) - self.half.square().sum(-2)).clamp(min=0.0)


class CollapsedPredictive(PosteriorPredictive):
    """Predictions from a :class:`~pyro_gprn.CollapsedGPRN`: a mixture over draws of its functions.

    :param model: the model.
    :param posterior: a :class:`~pyro_gprn.CollapsedGuide`; another Pyro guide of the model, such as ``AutoDelta``; or
        draws, a mapping from site names to tensors as ``MCMC.get_samples()`` gives: "v" and drawn hyperparameters.
    :param X_new: ``(N*, P)``.
    :param Y: the data, if the model has not seen them.
    :param n_draws: how many components the mixture has. (Of draws all are used.)
    """

    def __init__(
        self,
        model: CollapsedGPRN,
        posterior: CollapsedGuide | Callable | Mapping[str, Tensor],
        X_new: Tensor,
        Y: Tensor | None = None,
        *,
        n_draws: int = N_DRAWS,
    ) -> None:
        super().__init__(model, X_new)
        self._model, self._known = model, model.statistics(Y)
        with torch.no_grad(), isolated(), poutine.block():
            self._draws: Tensor | Mapping[str, Tensor]
            if isinstance(posterior, CollapsedGuide):
                self._draws = _antithetic(posterior, n_draws)
            elif isinstance(posterior, Mapping):
                self._draws = posterior
            else:
                self._draws = draw_sites(posterior, self._known.outputs, n_draws)
        self._mixture = mixture = self._weighting(joint=False)
        self._joint_mixture: Weighting | None = None
        self._noise_variance = mixture.noise.mean()
        self._mean_weights = mixture.weights.mean(0)
        deviations = (mixture.weights - self._mean_weights).movedim(0, -2) / len(mixture.weights) ** 0.5
        self._weights_root = torch.linalg.qr(deviations, mode="r").R  # of the covariance over draws, (g, N*, r, N)
        self._variance_within = mixture.variance().mean(0)  # (g, N*)

    @torch.no_grad()
    def _weighting(self, joint: bool) -> Weighting:
        """With the functions at new inputs drawn jointly, or at each on its own."""
        with isolated(), poutine.block():
            if isinstance(self._draws, Tensor):
                V = self._draws
                with AtCentre():
                    return self._model.guided(lambda: self._weigh(V, self._white(-(-len(V) // 2), joint)))
            parts = []  # one draw at a time, each with its own hyperparameters
            for i, v in enumerate(self._draws["v"]):
                with poutine.condition(data={name: values[i] for name, values in self._draws.items()}):
                    parts.append(self._model.drawn(lambda v=v: self._weigh(v[None], self._white(1, joint))))
            return Weighting(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def _white(self, n: int, joint: bool) -> Tensor:
        """White noise for the functions at new inputs and the same mirrored, ``(2 n, N* or 1, K)``."""
        half = torch.randn(n, len(self.X_new) if joint else 1, self._model.n_latents, dtype=torch.float64)
        return torch.cat([half, -half]).to(self.X_new.device)

    def _weigh(self, V: Tensor, white: Tensor) -> Weighting:
        """The weighting for draws of V, ``(s, N, K)``, at the hyperparameters' current values."""
        model, seen = self._model, self._known.observed.to(V.dtype)
        Lf, Kw, noise = model.covariances()
        f = Conditional.of(model.kernel_f, model.X, self.X_new, Lf, model.noise_f)
        F = Lf @ V
        F_new = f.whitened.mT @ V + draw_rows(f.residual, white[: len(V)])
        cross = (model.kernel_w(self.X_new, model.X) * (F_new @ F.mT)).unsqueeze(1) * seen.unsqueeze(1)
        C = restrict(model.output_covariance(F, Kw, noise), self._known)
        L = safe_cholesky(C, name="the covariance of the outputs")
        half = torch.linalg.solve_triangular(L, cross.mT, upper=False)  # (s, g, N, N*)
        weights = torch.linalg.solve_triangular(L.mT, half, upper=True).mT
        kernel = model.kernel_w(self.X_new).expand(len(V), -1, -1)
        return Weighting(weights, half, F_new, kernel, noise.expand(len(V)))

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return _apply(self._mean_weights, self._known, chosen.positions(block))

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        # E over draws of the variance, and the variance over draws of the mean
        positions = chosen.positions(block)
        between = _apply(self._weights_root, self._known, positions).square().sum(-2)
        return between + self._variance_within[self._known.patterns_at(positions)].mT

    def _components(self, n_draws: int, joint: bool) -> Components:
        if joint and self._joint_mixture is None:
            self._joint_mixture = self._weighting(joint=True)
        mixture = self._joint_mixture if joint and self._joint_mixture is not None else self._mixture
        return _Chosen(mixture, self._known, n_draws)

    def _numbers_per_output(self) -> tuple[int, int]:
        _, n_new, rank, n_rows = self._weights_root.shape
        return max(n_new, n_rows), max(n_new * rank, n_rows)


class _Chosen(Components):
    """``n`` components of a mixture, each as often as the others or once more."""

    def __init__(self, mixture: Weighting, known: OutputStatistics, n: int) -> None:
        available = len(mixture.weights)
        self._draws = torch.cat([torch.randperm(available) for _ in range(-(-n // available))])[:n]
        self._mixture, self._known = mixture, known
        self._weights = mixture.weights[self._draws].movedim(1, 0)  # (g, n, N*, N)
        self._variance = mixture.variance()[self._draws]  # (n, g, N*)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return _apply(self._weights, self._known, chosen.positions(block))

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._variance[:, self._known.patterns_at(chosen.positions(block))].mT

    def noise(self, shared: Tensor) -> Tensor:
        return self._mixture.noise[self._draws, None, None]

    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        covariance = self._mixture.covariance(self._draws[components])
        patterns = self._known.patterns_at(chosen.positions(slice(None)))
        white = torch.randn(len(covariance), covariance.shape[-1], chosen.size).to(covariance)
        for pattern in range(covariance.shape[1]):
            some = patterns == pattern
            white[..., some] = covariance_root(covariance[:, pattern]) @ white[..., some]
        return white


def _apply(maps: Tensor, known: OutputStatistics, positions: slice | Tensor) -> Tensor:
    """Linear maps ``(g, …, m, N)`` of training outputs, each output by its pattern's: ``(…, m, b)``."""
    Y = known.outputs.flatten(1)[:, positions].to(maps.dtype)
    if known.pattern_of is None:
        return maps[0] @ Y
    Y = Y.nan_to_num(nan=0.0)
    result = maps.new_empty(*maps.shape[1:-1], Y.shape[1])
    patterns = known.pattern_of[positions]
    for pattern in patterns.unique().tolist():
        some = patterns == pattern
        result[..., some] = maps[pattern] @ Y[:, some]
    return result


def _antithetic(guide: CollapsedGuide, n_draws: int) -> Tensor:
    """Draws of V in pairs that mirror each other about the mean, ``(n_draws, N, K)``."""
    q = guide.posterior()
    half = q.rsample((-(-n_draws // 2),)) - q.loc
    return q.loc + torch.cat([half, -half])[:n_draws]


def draw_sites(guide: Callable, Y: Tensor, n_draws: int) -> dict[str, Tensor]:
    """Draws of a guide's sites."""
    traces = [poutine.trace(guide).get_trace(Y) for _ in range(n_draws)]
    names = [name for name in traces[0].stochastic_nodes if not traces[0].nodes[name]["infer"].get("is_auxiliary")]
    return {name: torch.stack([trace.nodes[name]["value"] for trace in traces]) for name in names}


posterior_predictive.register(CollapsedGPRN, CollapsedPredictive)
