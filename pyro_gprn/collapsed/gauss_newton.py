"""The covariance of the whitened functions over rows, by Gauss-Newton."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.collapsed.likelihood import restrict
from pyro_gprn.collapsed.model import CollapsedGPRN, Covariances
from pyro_gprn.outputs.gram import OutputStatistics


def gauss_newton_rows(
    model: CollapsedGPRN, covariances: Covariances, V: Tensor, column_variances: Tensor, known: OutputStatistics
) -> Tensor:
    """The row factor ``R`` of q(V) that is best for the Gauss-Newton Hessian of the log-likelihood, ``(N, N)``.

    :param V: whitened functions to average over, ``(s, N, K)``.
    :param column_variances: the diagonal of ``T Tᵀ``, ``(K,)``.
    """
    # For a change a of column k of F, dC = diag(a) B + Bᵀ diag(a) with B = K_w diag(f_k), and the expected Hessian of
    #   log p is −aᵀ H_k a with H_k = Σ_g D_g [ (B C⁻¹) ∘ (B C⁻¹)ᵀ + C⁻¹ ∘ (B C⁻¹ Bᵀ) ].
    # The bound in R alone is then best where (R Rᵀ)⁻¹ = (1/K) [ tr(T Tᵀ) I + Σ_k t_k L_fᵀ H_k L_f ], t_k = (T Tᵀ)_kk,
    # where the second terms add up to Σ_k t_k B C⁻¹ Bᵀ = K_w (C⁻¹ ∘ F diag(t) Fᵀ) K_w.
    Lf, Kw, noise = covariances
    F = Lf @ V
    C = restrict(model.output_covariance(F, Kw, noise), known)
    seen = known.observed.to(C.dtype)
    inverse = torch.linalg.inv(C) * (seen.unsqueeze(-1) * seen.unsqueeze(-2))  # (s, g, N, N)
    by_pattern = inverse * (Kw @ (inverse * ((F * column_variances) @ F.mT).unsqueeze(1)) @ Kw)
    for k, column_variance in enumerate(column_variances):
        BC = (Kw * F[:, None, :, k]).unsqueeze(1) @ inverse
        by_pattern += column_variance * BC * BC.mT
    H = torch.einsum("g,sgij->ij", known.counts, by_pattern) / len(V)
    K = len(column_variances)
    precision = (Lf.mT @ H @ Lf) * (model.likelihood_weight / K)
    precision = 0.5 * (precision + precision.mT) + column_variances.mean() * torch.eye(len(Lf)).to(Lf)
    # R lower-triangular with R Rᵀ = precision⁻¹: for precision = UUᵀ with U upper-triangular, R = U⁻ᵀ
    flipped = safe_cholesky(precision.flip(0, 1), name="the precision of the functions").flip(0, 1)
    identity = torch.eye(len(Lf)).to(Lf)
    return torch.linalg.solve_triangular(flipped, identity, upper=True).mT
