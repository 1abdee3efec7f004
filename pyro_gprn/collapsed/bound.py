"""The bound of the collapsed model by given draws, with its gradient by hand.

Each step of training asks for it. Autograd gives the same numbers, but spends half of a small problem's step on its
books.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_gprn.collapsed.likelihood import density_and_score, output_covariance, pull_back
from pyro_gprn.collapsed.model import CollapsedGPRN, Covariances
from pyro_gprn.outputs.gram import OutputStatistics


def collapsed_bound(
    model: CollapsedGPRN,
    loc: Tensor,
    scale_row: Tensor,
    scale_col: Tensor,
    covariances: Covariances,
    white: Tensor,
    known: OutputStatistics,
) -> Tensor:
    """``ρ E_q[log p(Y|F)] − KL(q(V)‖p(V))``, a scalar, differentiable once; ρ is the model's weight of the likelihood.

    :param loc: mean of q, ``(N, K)``.
    :param scale_row: lower-triangular factor of q over rows, ``(N, N)``.
    :param scale_col: and over functions, ``(K, K)``.
    :param covariances: at the model's hyperparameters.
    :param white: white noise to draw V by, ``(s, N, K)``.
    """
    weight, jitter = model.likelihood_weight, model.jitter
    return _Bound.apply(loc, scale_row, scale_col, *covariances, white, known, weight, jitter)


class _Bound(torch.autograd.Function):
    # The likelihood's part, averaged over draws E, comes by the chain  V = M + R E Tᵀ,  F = L_f V,  A = K_w ∘ (F Fᵀ):
    #   ∂F = 2 (∂A ∘ K_w) F     ∂V = L_fᵀ ∂F     ∂M = Σ ∂V     ∂R = Σ ∂V (E Tᵀ)ᵀ     ∂T = Σ ∂Vᵀ (R E)
    #   ∂K_w = Σ ∂A ∘ (F Fᵀ)    ∂L_f = Σ ∂F Vᵀ
    # with ∂A and ∂σ² from marginal.py, and
    #   KL = ½ (tr(RRᵀ) tr(TTᵀ) + |M|² − NK) − K log|R| − N log|T|     (kl.py, with a white prior).

    @staticmethod
    def forward(
        ctx: Any,
        M: Tensor,
        R: Tensor,
        T: Tensor,
        Lf: Tensor,
        Kw: Tensor,
        noise: Tensor,
        E: Tensor,
        known: OutputStatistics,
        weight: float,
        jitter: float,
    ) -> Tensor:
        N, K = M.shape
        RE, ET = R @ E, E @ T.mT
        V = M + RE @ T.mT
        F = Lf @ V
        density, score = density_and_score(output_covariance(F, Kw, noise, jitter), known)
        by_A, by_noise = pull_back((weight / len(E)) * score, jitter)
        by_F = 2.0 * (by_A * Kw) @ F
        by_V = Lf.mT @ by_F
        row_trace, column_trace = R.square().sum(), T.square().sum()
        by_R = (by_V @ ET.mT).sum(0).tril() - column_trace * R
        by_T = (by_V.mT @ RE).sum(0).tril() - row_trace * T
        by_R.diagonal().add_(K / R.diagonal())
        by_T.diagonal().add_(N / T.diagonal())
        ctx.gradients = [by_V.sum(0) - M, by_R, by_T]
        if ctx.needs_input_grad[3]:
            ctx.gradients += [(by_F @ V.mT).sum(0), (by_A * (F @ F.mT)).sum(0), by_noise.sum()]
        kl = 0.5 * (row_trace * column_trace + M.square().sum() - N * K)
        return weight * density.mean() - kl + K * R.diagonal().log().sum() + N * T.diagonal().log().sum()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [upstream * gradient for gradient in ctx.gradients]
        return *gradients, *[None] * (10 - len(gradients))
