"""The bound of the collapsed model by given draws, with its gradient by hand.

Every training step asks for it. Autograd gives the same numbers; its overhead is half of a step at N = 64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_gprn.algebra.linalg import identity_like, safe_cholesky
from pyro_gprn.algebra.tensor_normal import MatrixNormal
from pyro_gprn.collapsed.inducing import LowRankCovariances
from pyro_gprn.collapsed.likelihood import output_covariance, outputs_given, pull_back
from pyro_gprn.collapsed.low_rank import OutputsGivenInducing, low_rank_density
from pyro_gprn.collapsed.model import CollapsedGPRN, Covariances
from pyro_gprn.outputs.gram import OutputStatistics

#: Draws are taken together as long as one array over them holds at most this many numbers: with many rows, one by one.
MOST_NUMBERS = 2**22


class Factors(NamedTuple):
    """The parameters of q(V) = MatrixNormal(loc, R Rᵀ, T Tᵀ)."""

    loc: Tensor  #: mean, (N, K)
    row: Tensor  #: R, lower-triangular, (N, N)
    column: Tensor  #: T, lower-triangular, (K, K)


def collapsed_bound(
    model: CollapsedGPRN,
    q: Factors,
    covariances: Covariances | LowRankCovariances,
    white: Tensor,
    known: OutputStatistics,
) -> Tensor:
    """``ρ E_q[log p(Y|F)] − KL(q(V)‖p(V))``, a scalar, differentiable once; ρ is ``model.likelihood_power``.

    :param q: the posterior.
    :param covariances: at the model's hyperparameters.
    :param white: white noise to draw V by, ``(s, N, K)``.
    :param known: statistics of the outputs.
    """
    if isinstance(covariances, LowRankCovariances):
        return _low_rank_bound(model, q, covariances, white, known)
    return _Bound.apply(*q, *covariances, white, known, model.likelihood_power, model.jitter)


def _low_rank_bound(
    model: CollapsedGPRN, q: Factors, covariances: LowRankCovariances, white: Tensor, known: OutputStatistics
) -> Tensor:
    """The bound with inducing inputs; the part that all rows take part in has its gradient by hand (low_rank.py)."""
    V = q.loc + q.row @ white @ q.column.mT
    density = low_rank_density(covariances.functions @ V, covariances, known)
    return model.likelihood_power * density.mean() - kl_divergence(MatrixNormal(*q, validate_args=False), model.prior())


@torch.no_grad()
def evaluate_bound(
    model: CollapsedGPRN,
    q: Factors,
    covariances: Covariances | LowRankCovariances,
    white: Tensor,
    known: OutputStatistics,
) -> Tensor:
    """The value of :func:`collapsed_bound`, a few draws at a time, so that many draws fit in memory."""
    if isinstance(covariances, LowRankCovariances):
        return _low_rank_bound(model, q, covariances, white, known)
    Lf, Kw, noise = covariances
    total = torch.zeros((), dtype=torch.float64, device=Lf.device)
    for some in _few_at_a_time(white, known):
        F = Lf @ (q.loc + q.row @ some @ q.column.mT)
        total += outputs_given(known, output_covariance(F, Kw, noise, model.jitter)).log_density().sum()
    kl = kl_divergence(MatrixNormal(*q, validate_args=False), model.prior())
    return model.likelihood_power * total / len(white) - kl


def _few_at_a_time(draws: Tensor, known: OutputStatistics) -> tuple[Tensor, ...]:
    """Draws ``(s, N, K)``, as many together as there is room for what their densities hold."""
    return draws.split(max(1, MOST_NUMBERS // known.numbers_held))


def gauss_newton_rows(
    model: CollapsedGPRN,
    covariances: Covariances | LowRankCovariances,
    V: Tensor,
    column_scales: Tensor,
    known: OutputStatistics,
) -> Tensor:
    """The row factor ``R`` of q(V) that is best for the Gauss-Newton Hessian of the log-likelihood, ``(N, N)``.

    :param V: whitened functions to average over, ``(s, N, K)``.
    :param column_scales: the diagonal of ``T Tᵀ``, ``(K,)``.
    """
    # With −H_k the Hessian by column k of F and t_k = (T Tᵀ)_kk, the bound in R alone is best where
    #   (R Rᵀ)⁻¹ = (1/K) [ tr(T Tᵀ) I + ρ Σ_k t_k L_fᵀ H_k L_f ].
    if isinstance(covariances, LowRankCovariances):
        H = _low_rank_hessian(covariances, V, column_scales, known)
    else:
        H = _hessian(model, covariances, V, column_scales, known)
    identity = identity_like(len(H), H)
    precision = H * (model.likelihood_power / len(column_scales))
    precision = 0.5 * (precision + precision.mT) + column_scales.mean() * identity
    # R lower-triangular with R Rᵀ = precision⁻¹: for precision = UUᵀ with U upper-triangular, R = U⁻ᵀ
    flipped = safe_cholesky(precision.flip(0, 1), name="the precision of the functions").flip(0, 1)
    return torch.linalg.solve_triangular(flipped, identity, upper=True).mT


def _hessian(
    model: CollapsedGPRN, covariances: Covariances, V: Tensor, column_scales: Tensor, known: OutputStatistics
) -> Tensor:
    """``Σ_k t_k L_fᵀ H_k L_f``, ``(N, N)``."""
    Lf, Kw, noise = covariances
    H = torch.zeros_like(Lf)
    for some in _few_at_a_time(V, known):
        F = Lf @ some
        given = outputs_given(known, output_covariance(F, Kw, noise, model.jitter))
        H += given.gauss_newton(F, Kw, column_scales) * (len(some) / len(V))
    return Lf.mT @ H @ Lf


def _low_rank_hessian(covariances: LowRankCovariances, V: Tensor, column_scales: Tensor, known: Any) -> Tensor:
    """``Σ_k t_k A_fᵀ H_k A_f``, ``(m, m)``, with H_k diagonal: that of the likelihood for the weights' posterior."""
    A = covariances.functions
    by_row = sum(OutputsGivenInducing(each, covariances, known).function_precision() @ column_scales for each in V)
    return A.mT @ (A * (torch.as_tensor(by_row) / len(V)).unsqueeze(-1))


def _density_and_gradients(
    F: Tensor, Kw: Tensor, noise: Tensor, known: OutputStatistics, scale: float, jitter: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``scale · Σ log p(Y|F)`` over draws, with its gradients by ``A = K_w ∘ (F Fᵀ)`` of each, and by σ_y².

    Where K_w and σ_y² have a dimension of groups, A has it after that of draws.

    What it is made of, a handful of N×N arrays, is let go before the next are made.
    """
    given = outputs_given(known, output_covariance(F, Kw, noise, jitter))
    by_A, by_noise = pull_back(given.score().mul_(scale), jitter)
    return scale * given.log_density().sum(), by_A, by_noise.sum(0)


def _summed_product(left: Tensor, right: Tensor) -> Tensor:
    """``Σ_s left_s right_sᵀ``, ``(a, b)`` for ``(s, a, k)`` and ``(s, b, k)``, without a matrix for each draw."""
    return torch.einsum("sak,sbk->ab", left, right)


class _Bound(torch.autograd.Function):
    # The likelihood's part, averaged over draws E, comes by the chain  V = M + R E Tᵀ,  F = L_f V,  A = K_w ∘ (F Fᵀ):
    #   ∂F = 2 (∂A ∘ K_w) F     ∂V = L_fᵀ ∂F     ∂M = Σ ∂V     ∂R = Σ ∂V (E Tᵀ)ᵀ     ∂T = Σ ∂Vᵀ (R E)
    #   ∂K_w = Σ ∂A ∘ (F Fᵀ)    ∂L_f = Σ ∂F Vᵀ
    # (with a sum over groups in ∂F, and none in ∂K_w, where each group has a K_w), ∂A and ∂σ² from likelihood.py, and
    #   KL = ½ (tr(RRᵀ) tr(TTᵀ) + |M|² − NK) − K log|R| − N log|T|     (algebra/kl.py, with a white prior).

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
        power: float,
        jitter: float,
    ) -> Tensor:
        N, K = M.shape
        row_trace, column_trace = R.square().sum(), T.square().sum()
        kl = 0.5 * (row_trace * column_trace + M.square().sum() - N * K)
        value = K * R.diagonal().log().sum() + N * T.diagonal().log().sum() - kl
        by_M, by_R, by_T = -M, -column_trace * R, -row_trace * T
        by_R.diagonal().add_(K / R.diagonal())
        by_T.diagonal().add_(N / T.diagonal())
        by_Lf, by_Kw, by_noise = torch.zeros_like(Lf), torch.zeros_like(Kw), torch.zeros_like(noise)
        for some in _few_at_a_time(E, known):
            RE, ET = R @ some, some @ T.mT
            V = M + RE @ T.mT
            F = Lf @ V
            density, by_A, of_noise = _density_and_gradients(F, Kw, noise, known, power / len(E), jitter)
            by_products = by_A * Kw if Kw.dim() == 2 else (by_A * Kw).sum(1)
            by_F = 2.0 * by_products @ F
            by_V = Lf.mT @ by_F
            value = value + density
            by_M = by_M + by_V.sum(0)
            by_R += _summed_product(by_V, ET).tril_()
            by_T += _summed_product(by_V.mT, RE.mT).tril_()
            if ctx.needs_input_grad[3]:
                by_Lf += _summed_product(by_F, V)
                products = F @ F.mT
                by_Kw += by_A.mul_(products if Kw.dim() == 2 else products.unsqueeze(1)).sum(0)
                by_noise += of_noise
        ctx.gradients = [by_M, by_R, by_T]
        if ctx.needs_input_grad[3]:
            ctx.gradients += [by_Lf, by_Kw, by_noise]
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [upstream * gradient for gradient in ctx.gradients]
        return *gradients, *[None] * (10 - len(gradients))
