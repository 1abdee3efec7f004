"""Moments of the posteriors that the expected log-likelihood is made of.

For every kind of posterior one function each; those of the paper's posterior are::

    E[h_n h_nᵀ] = [Σ]_nn Ω + m_n m_nᵀ
    E[W_nᵀW_n]  = [Γ_1]_nn Γ_2 Π_{m≥3} tr(Γ_m) + E[W_n]ᵀE[W_n]
"""

from __future__ import annotations

from functools import reduce, singledispatch
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from pyro_gprn.algebra.tensor_normal import ProjectedTensorNormal, TensorNormal, outer


class OutputMoments(NamedTuple):
    """Sums over outputs, each output weighted by its precision ``1/σ_d²`` (zero where it is missing)."""

    yy: Tensor  #: Σ_n y_nᵀ y_n, ()
    yw: Tensor  #: y_nᵀ E[W_n], (N, K)
    ww: Tensor  #: E[W_nᵀ W_n], (N, K, K)

    def add_to_ww(self, covariance: Tensor) -> OutputMoments:
        """These moments of the mean with the weights' covariance added."""
        return self._replace(ww=self.ww + covariance)


@singledispatch
def row_second_moment(q_f: Distribution) -> Tensor:
    """``E[h_n h_nᵀ]`` for each row of F, ``(N, K, K)``; ``q_f`` is over ``(N, K)``."""
    raise NotImplementedError(f"no closed-form moments for functions that are {type(q_f).__name__}")


@row_second_moment.register
def _(q_f: TensorNormal) -> Tensor:
    rows, columns = q_f.factors
    return rows.variance()[:, None, None] * columns.covariance() + _self_outer(q_f.loc)


@row_second_moment.register
def _(q_f: Independent) -> Tensor:
    return torch.diag_embed(q_f.variance) + _self_outer(q_f.mean)


@singledispatch
def output_moments(q_w: Distribution, Y: Tensor, precision: Tensor) -> OutputMoments:
    """Moments of weights and data, summed over outputs.

    :param q_w: over ``(N, K, d_1, …, d_M)``.
    :param Y: ``(N, d_1, …, d_M)``.
    :param precision: ``1/σ_y²``: ``()``, ``(d_1, …, d_M)`` or ``(N, d_1, …, d_M)``.
    :raises ValueError: if Y holds NaN or inf.
    """
    raise NotImplementedError(f"no closed-form moments for weights that are {type(q_w).__name__}")


@output_moments.register
def _(q_w: TensorNormal, Y: Tensor, precision: Tensor) -> OutputMoments:
    return _moments_of_mean(q_w.loc, Y, precision).add_to_ww(_summed_covariance(q_w, precision))


@output_moments.register
def _(q_w: ProjectedTensorNormal, Y: Tensor, precision: Tensor) -> OutputMoments:
    # y_nᵀE[W_n] = (B_k G)_nn and (E[W_n]ᵀE[W_n])_kj = (B_k G B_jᵀ)_nn: the outputs enter by G = YYᵀ alone
    if precision.dim() > 0:
        raise ValueError("a projected mean needs complete outputs and one noise for all of them")
    B, G = q_w.projection, q_w.gram
    BG = B @ G
    yw = BG.diagonal(dim1=-2, dim2=-1).mT
    ww = torch.einsum("knp,jnp->nkj", BG, B)
    of_mean = OutputMoments(precision * G.trace(), precision * yw, precision * ww)
    return of_mean.add_to_ww(_summed_covariance(q_w, precision))


@output_moments.register
def _(q_w: Independent, Y: Tensor, precision: Tensor) -> OutputMoments:
    variance = (precision.expand(Y.shape).unsqueeze(1) * q_w.variance).flatten(2).sum(-1)
    return _moments_of_mean(q_w.mean, Y, precision).add_to_ww(torch.diag_embed(variance))


def _moments_of_mean(mean: Tensor, Y: Tensor, precision: Tensor) -> OutputMoments:
    U, y = mean.flatten(2), Y.flatten(1).to(mean.dtype)  # (N, K, D) and (N, D)
    if precision.dim() == 0:  # one noise: weigh the sums rather than N·K·D numbers
        weighted_U, weighted_y, after = U, y, precision
    else:
        weights, after = precision.expand(Y.shape).flatten(1), precision.new_ones(())
        weighted_U, weighted_y = weights.unsqueeze(1) * U, weights * y
    yy = (y * weighted_y).sum()
    if not torch.isfinite(yy.detach()):
        raise ValueError("Y holds NaN or inf; for missing outputs pass mask=~torch.isnan(Y) beside Y")
    return OutputMoments(after * yy, after * (U @ weighted_y.unsqueeze(-1)).squeeze(-1), after * (weighted_U @ U.mT))


def _summed_covariance(q_w: TensorNormal, precision: Tensor) -> Tensor:
    """``Σ_d Cov(w_nd) / σ_d² = [Γ_1]_nn Γ_2 Σ_d [Γ_3 ⊗ … ⊗ Γ_{M+2}]_dd / σ_d²``, ``(N, K, K)``."""
    rows, columns, *outputs = q_w.factors
    if precision.dim() == 0:
        total = precision * reduce(mul, (factor.trace() for factor in outputs))
    else:
        total = (precision * outer(factor.variance() for factor in outputs)).flatten(-len(outputs)).sum(-1)
    return (rows.variance() * total)[:, None, None] * columns.covariance()


def _self_outer(rows: Tensor) -> Tensor:
    return rows.unsqueeze(-1) * rows.unsqueeze(-2)
