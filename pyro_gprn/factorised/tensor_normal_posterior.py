"""What posterior.py asks for, of the paper's posterior: matrix-normal functions and tensor-normal weights.

Its moments are::

    E[h_n h_nᵀ] = [Σ]_nn Ω + m_n m_nᵀ
    E[W_nᵀW_n]  = [Γ_1]_nn Γ_2 Π_{m≥3} tr(Γ_m) + E[W_n]ᵀE[W_n]

and at new inputs X*, with ``A = k*ᵀK⁻¹`` (one for w, one for f)::

    E[W*] = A_w 𝒰      Cov = (κ_w(X*,X*) − A_w k_w*) ⊗ I         + (A_w Γ_1 A_wᵀ) ⊗ Γ_2 ⊗ … ⊗ Γ_{M+2}
    E[f*] = A_f M      Cov = (κ_f(X*,X*) + σ_f² I − A_f k_f*) ⊗ I + (A_f Σ A_fᵀ) ⊗ Ω

The first term of each covariance is what the prior leaves open given the training rows; the second carries the
posterior's covariance over to the new rows.
"""

from __future__ import annotations

from functools import reduce
from operator import mul

import torch
from torch import Tensor

from pyro_gprn.algebra.factors import Identity
from pyro_gprn.algebra.linalg import along_mode, covariance_root, identity_like
from pyro_gprn.algebra.tensor_normal import TensorNormal, outer
from pyro_gprn.factorised.posterior import (
    FunctionsAtNewRows,
    OutputMoments,
    VarianceOfOutputs,
    WeightsAtNewRows,
    functions_at_new_rows,
    output_moments,
    row_second_moment,
    weights_at_new_rows,
)
from pyro_gprn.factorised.projected import ProjectedTensorNormal
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.pyro_state import white_noise


@row_second_moment.register
def _(q_f: TensorNormal) -> Tensor:
    rows, columns = q_f.factors
    return rows.variance()[:, None, None] * columns.covariance() + self_outer(q_f.loc)


@output_moments.register
def _(q_w: TensorNormal, Y: Tensor, precision: Tensor) -> OutputMoments:
    return moments_of_mean(q_w.loc, Y, precision).add_to_ww(_summed_covariance(q_w, precision))


@output_moments.register
def _(q_w: ProjectedTensorNormal, Y: Tensor, precision: Tensor) -> OutputMoments:
    return moments_of_projection(q_w.projection, q_w.gram, precision).add_to_ww(_summed_covariance(q_w, precision))


def moments_of_projection(projection: Tensor, gram: Tensor, precision: Tensor) -> OutputMoments:
    """The moments of weights that equal ``B Y``, ``E[w_kd] = B_k y_d``, for certain.

    :param projection: ``B``, ``(K, N, N)``.
    :param gram: ``G = YYᵀ`` over all outputs, ``(N, N)``.
    :param precision: ``1/σ_y²``, one number for all outputs.
    """
    # y_nᵀE[W_n] = (B_k G)_nn and (E[W_n]ᵀE[W_n])_kj = (B_k G B_jᵀ)_nn: the outputs enter by G alone
    if precision.dim() > 0:
        raise ValueError("a projected mean needs complete outputs and one noise for all of them")
    BG = projection @ gram
    yw = BG.diagonal(dim1=-2, dim2=-1).mT
    ww = torch.einsum("knp,jnp->nkj", BG, projection)
    return OutputMoments(precision * gram.trace(), precision * yw, precision * ww)


def moments_of_mean(mean: Tensor, Y: Tensor, precision: Tensor) -> OutputMoments:
    """The moments of weights that equal ``mean``, ``(N, K, d_1, …, d_M)``, for certain.

    :param Y: outputs, ``(N, d_1, …, d_M)``.
    :param precision: as for :func:`~pyro_gprn.factorised.posterior.output_moments`.
    """
    U, y = mean.flatten(2), Y.flatten(1).to(mean.dtype)  # (N, K, D) and (N, D)
    if precision.dim() == 0:  # one noise: multiply the sums rather than N·K·D numbers
        scaled_U, scaled_y, after = U, y, precision
    else:
        scales, after = precision.expand(Y.shape).flatten(1), precision.new_ones(())
        scaled_U, scaled_y = scales.unsqueeze(1) * U, scales * y
    yy = (y * scaled_y).sum()
    if not torch.isfinite(yy.detach()):
        raise ValueError("Y holds NaN or inf; for missing outputs pass mask=~torch.isnan(Y) beside Y")
    return OutputMoments(after * yy, after * (U @ scaled_y.unsqueeze(-1)).squeeze(-1), after * (scaled_U @ U.mT))


def _summed_covariance(q_w: TensorNormal, precision: Tensor) -> Tensor:
    """``Σ_d Cov(w_nd) / σ_d² = [Γ_1]_nn Γ_2 Σ_d [Γ_3 ⊗ … ⊗ Γ_{M+2}]_dd / σ_d²``, ``(N, K, K)``."""
    rows, columns, *outputs = q_w.factors
    if precision.dim() == 0:
        total = precision * reduce(mul, (factor.trace() for factor in outputs))
    else:
        total = (precision * outer(factor.variance() for factor in outputs)).flatten(-len(outputs)).sum(-1)
    return (rows.variance() * total)[:, None, None] * columns.covariance()


def self_outer(rows: Tensor) -> Tensor:
    """``r rᵀ`` of each row ``r``, from ``(…, K)`` to ``(…, K, K)``.

    >>> self_outer(torch.tensor([1.0, 2.0]))
    tensor([[1., 2.],
            [2., 4.]])
    """
    return rows.unsqueeze(-1) * rows.unsqueeze(-2)


class _CarriedRows:
    """The row covariance of a posterior, carried over to new inputs."""

    def __init__(self, posterior: TensorNormal, at_new: Conditional) -> None:
        self.interpolate = at_new.interpolate()  # A, (N*, N)
        self.residual = at_new.residual  # κ(X*,X*) − A k*, (N*, N*)
        root = self.interpolate @ posterior.factors[0].dense()
        self.spread = root @ root.mT  # A Γ Aᵀ with Γ the posterior's row covariance, (N*, N*)


class _Functions(FunctionsAtNewRows):
    def __init__(self, q_f: TensorNormal, at_new: Conditional) -> None:
        self._rows, self._columns = _CarriedRows(q_f, at_new), q_f.factors[1]
        self.mean = self._rows.interpolate @ q_f.loc

    def covariance(self) -> Tensor:
        columns = self._columns.covariance()
        residual = self._rows.residual.diagonal()[:, None, None] * identity_like(len(columns), columns)
        return residual + self._rows.spread.diagonal()[:, None, None] * columns

    def sample(self, n_draws: int, joint: bool, generator: torch.Generator | None) -> Tensor:
        n_rows, K = self.mean.shape
        shape = (2, n_draws, n_rows if joint else 1, K)
        white = white_noise(*shape, like=self.mean, generator=generator, dtype=torch.float32)
        spread = draw_rows(self._rows.spread, white[1]) @ self._columns.dense().mT
        return self.mean + draw_rows(self._rows.residual, white[0]) + spread


class _Weights(WeightsAtNewRows):
    def __init__(self, q_w: TensorNormal, at_new: Conditional) -> None:
        self._q_w, self._rows = q_w, _CarriedRows(q_w, at_new)
        self._columns = q_w.factors[1].covariance()
        self._outputs = q_w.factors[2:]
        self.n_rows = len(at_new.whitened)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        if isinstance(self._q_w, ProjectedTensorNormal):
            outputs = self._q_w.outputs.read(positions).to(self._rows.interpolate.dtype)
            return (self._rows.interpolate @ self._q_w.projection @ outputs).transpose(0, 1)
        return torch.tensordot(self._rows.interpolate, self._q_w.loc.flatten(2)[:, :, positions], dims=1)

    def variance(self, f_squared: Tensor) -> VarianceOfOutputs:
        by_residual = self._rows.residual.diagonal().clamp(min=0.0) * f_squared.diagonal(dim1=-2, dim2=-1).sum(-1)
        by_spread = self._rows.spread.diagonal() * (f_squared.flatten(-2) @ self._columns.flatten())

        def of_outputs(chosen: OutputSelection, block: slice) -> Tensor:
            return by_residual.unsqueeze(-1) + by_spread.unsqueeze(-1) * chosen.variances(self._outputs, block)

        return of_outputs

    def deviation(self, f: Tensor, chosen: OutputSelection, generator: torch.Generator | None) -> Tensor:
        # Over inputs its covariance is, for the residual, R_w ∘ ffᵀ, and for the posterior, (A_wΓ_1A_wᵀ) ∘ fΓ_2fᵀ
        residual = self._rows.residual * (f @ f.mT)
        spread = self._rows.spread * (f @ self._columns @ f.mT)
        factors = chosen.factors(self._outputs)
        sizes = torch.Size(factor.size for factor in factors)
        white = white_noise(2, *f.shape[:2], sizes.numel(), like=f, generator=generator)
        if all(isinstance(factor, Identity) for factor in factors):
            return chosen.pick(covariance_root(residual + spread) @ white[0])
        deviation = (covariance_root(spread) @ white[0]).reshape(*f.shape[:2], *sizes)
        for mode, factor in enumerate(factors):
            deviation = along_mode(factor.multiply, deviation, mode, len(factors))
        return chosen.pick(deviation.flatten(2) + covariance_root(residual) @ white[1])


functions_at_new_rows.register(TensorNormal, _Functions)
weights_at_new_rows.register(TensorNormal, _Weights)
