"""Predictions from the paper's posterior.

At new inputs X*, with ``A = k*ᵀK⁻¹`` (one for w, one for f), the posteriors of weights and functions are::

    E[W*] = A_w 𝒰      Cov = (κ_w(X*,X*) − A_w k_w*) ⊗ I         + (A_w Γ_1 A_wᵀ) ⊗ Γ_2 ⊗ … ⊗ Γ_{M+2}
    E[f*] = A_f M      Cov = (κ_f(X*,X*) + σ_f² I − A_f k_f*) ⊗ I + (A_f Σ A_fᵀ) ⊗ Ω

The prior's residual spreads over the identity, the posterior's part over the posterior's factors. Given f* the
outputs are Gaussian, since the weights are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pyro import poutine
from torch import Tensor

from pyro_gprn.algebra.factors import Identity
from pyro_gprn.algebra.linalg import along_mode, covariance_root
from pyro_gprn.algebra.tensor_normal import MatrixNormal, TensorNormal
from pyro_gprn.factorised.kronecker import KroneckerGuide
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.base import Components, PosteriorPredictive, posterior_predictive
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.pyro_state import AtCentre, isolated


class KroneckerPredictive(PosteriorPredictive):
    """Predictions from a :class:`~pyro_gprn.KroneckerGuide`: mean and variance are exact.

    Gradients flow to ``X_new`` if it requires them (not through draws). Hyperparameters with priors stand at the centre
    of their guide.

    :param model: the model.
    :param guide: its posterior, trained.
    :param X_new: ``(N*, P)``.
    :param Y: the data, which a guide with ``mean="projected"`` needs if it has not seen them.
    """

    def __init__(self, model: GPRN, guide: KroneckerGuide, X_new: Tensor, Y: Tensor | None = None) -> None:
        super().__init__(model, X_new)
        with self._gradients(), isolated(), poutine.block(), AtCentre():
            model.guided(lambda: self._condition(model, guide, Y))

    def _condition(self, model: GPRN, guide: KroneckerGuide, Y: Tensor | None) -> None:
        q_f, q_w = guide.posterior(Y)
        prior_f, prior_w = model.prior()
        Lf, Lw = prior_f.factors[0].dense(), prior_w.factors[0].dense()
        self._f = _Functions(q_f, Lf, Conditional.of(model.kernel_f, model.X, self.X_new, Lf, model.noise_f))
        self._w = _Weights(q_w, Lw, Conditional.of(model.kernel_w, model.X, self.X_new, Lw))
        self._noise_variance = model.noise_y.square()

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.einsum("nk,nkd->nd", self._f.mean, self._w.mean(chosen, block))

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        # Var = tr(E[wwᵀ] E[ffᵀ]) − (w̄ᵀf̄)² = w̄ᵀCov(f)w̄ + tr(Cov(w) E[ffᵀ])
        covariance = self._f.covariance()
        squared = covariance + self._f.mean.unsqueeze(-1) * self._f.mean.unsqueeze(-2)
        w = self._w.mean(chosen, block)
        return (w * (covariance @ w)).sum(1) + self._w.variance(squared, chosen, block)

    def _components(self, n_draws: int, joint: bool) -> Components:
        return _GivenFunctions(self._f.sample(n_draws, joint), self._w)

    def _numbers_per_output(self) -> tuple[int, int]:
        return (max(self._f.mean.numel(), self._w.n_rows),) * 2


class _Carried(NamedTuple):
    """A posterior over the rows of training inputs, carried over to new inputs."""

    interpolate: Tensor  #: A = k*ᵀK⁻¹, (N*, N)
    residual: Tensor  #: κ(X*,X*) − A k*, (N*, N*)
    spread: Tensor  #: A Γ Aᵀ with Γ the posterior's row covariance, (N*, N*)

    @classmethod
    def of(cls, posterior: TensorNormal, L: Tensor, at_new: Conditional) -> _Carried:
        interpolate = torch.linalg.solve_triangular(L, at_new.whitened.mT, upper=False, left=False)
        root = interpolate @ posterior.factors[0].dense()
        return cls(interpolate, at_new.residual, root @ root.mT)


class _Functions:
    """The latent functions at new inputs: their mean ``(N*, K)``, covariances and draws."""

    def __init__(self, q_f: MatrixNormal, L: Tensor, at_new: Conditional) -> None:
        self._rows = _Carried.of(q_f, L, at_new)
        self._columns = q_f.factors[1]
        self.mean = self._rows.interpolate @ q_f.loc

    def covariance(self) -> Tensor:
        """Of each row on its own, ``(N*, K, K)``."""
        columns = self._columns.covariance()
        residual = self._rows.residual.diagonal()[:, None, None] * torch.eye(len(columns)).to(columns)
        return residual + self._rows.spread.diagonal()[:, None, None] * columns

    def sample(self, n_draws: int, joint: bool) -> Tensor:
        """Joint over inputs or for each on its own, ``(n_draws, N*, K)``."""
        n_rows, K = self.mean.shape
        white = torch.randn(2, n_draws, n_rows if joint else 1, K).to(self.mean)
        spread = draw_rows(self._rows.spread, white[1]) @ self._columns.dense().mT
        return self.mean + draw_rows(self._rows.residual, white[0]) + spread


class _Weights:
    """The weights at new inputs, some outputs at a time."""

    def __init__(self, q_w: TensorNormal, L: Tensor, at_new: Conditional) -> None:
        self._q_w = q_w
        self._rows = _Carried.of(q_w, L, at_new)
        self._columns = q_w.factors[1].covariance()
        self._outputs = q_w.factors[2:]
        self.n_rows = len(L)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        """``(N*, K, b)``."""
        return self._q_w.combine_rows(self._rows.interpolate, chosen.positions(block))

    def variance(self, f_squared: Tensor, chosen: OutputSelection, block: slice) -> Tensor:
        """``tr(Cov(w_nd) ffᵀ)``, ``(…, N*, b)``, for ``ffᵀ`` of shape ``(…, N*, K, K)``."""
        by_residual = self._rows.residual.diagonal().clamp(min=0.0) * f_squared.diagonal(dim1=-2, dim2=-1).sum(-1)
        by_spread = self._rows.spread.diagonal() * (f_squared * self._columns).sum((-2, -1))
        return by_residual.unsqueeze(-1) + by_spread.unsqueeze(-1) * chosen.variances(self._outputs, block)

    def deviation(self, f: Tensor, chosen: OutputSelection) -> Tensor:
        """Draws of ``Σ_k f_k (W* − E[W*])_k``, ``(s, N*, size)``, given draws ``f``, ``(s, N*, K)``."""
        # Over inputs its covariance is, for the residual, R_w ∘ ffᵀ, and for the posterior, (A_wΓ_1A_wᵀ) ∘ fΓ_2fᵀ
        residual = self._rows.residual * (f @ f.mT)
        spread = self._rows.spread * (f @ self._columns @ f.mT)
        factors = chosen.factors(self._outputs)
        white = torch.randn(2, *f.shape[:2], chosen.size, dtype=f.dtype, device=f.device)
        if all(isinstance(factor, Identity) for factor in factors):
            return covariance_root(residual + spread) @ white[0]
        deviation = (covariance_root(spread) @ white[0]).reshape(*f.shape[:2], *(factor.size for factor in factors))
        for mode, factor in enumerate(factors):
            deviation = along_mode(factor.multiply, deviation, mode, len(factors))
        return deviation.flatten(2) + covariance_root(residual) @ white[1]


class _GivenFunctions(Components):
    """The Gaussians of y* given draws of f*, ``(s, N*, K)``."""

    def __init__(self, functions: Tensor, weights: _Weights) -> None:
        self._functions, self._weights = functions, weights

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.einsum("snk,nkd->snd", self._functions, self._weights.mean(chosen, block))

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        squared = self._functions.unsqueeze(-1) * self._functions.unsqueeze(-2)
        return self._weights.variance(squared, chosen, block)

    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        return self._weights.deviation(self._functions[components], chosen)


posterior_predictive.register(GPRN, KroneckerPredictive)
