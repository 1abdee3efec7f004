"""What posterior.py asks for, of mean-field posteriors: a Gaussian over the rows for each function and each weight.

With ``S_k`` the posterior covariance of function k, or of weight k of any output, and ``A = k*ᵀK⁻¹``, at new inputs::

    E[W*_kd] = A E[w_kd]      Cov = κ_w(X*,X*) − A k_w*  +  A S_k Aᵀ

The weights of different latents k and outputs d stay independent. The functions follow in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import covariance_root
from pyro_gprn.factorised.column_normal import ColumnNormal, ProjectedColumnNormal
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
from pyro_gprn.factorised.tensor_normal_posterior import moments_of_mean, moments_of_projection, self_outer
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.pyro_state import white_noise


@row_second_moment.register
def _(q_f: ColumnNormal) -> Tensor:
    return torch.diag_embed(q_f.row_variance) + self_outer(q_f.loc)


@output_moments.register
def _(q_w: ColumnNormal, Y: Tensor, precision: Tensor) -> OutputMoments:
    total = precision * q_w.n_outputs if precision.dim() == 0 else precision.expand(Y.shape).flatten(1).sum(-1)
    covariance = torch.diag_embed(total.unsqueeze(-1) * q_w.row_variance)
    if isinstance(q_w, ProjectedColumnNormal):
        return moments_of_projection(q_w.projection, q_w.gram, precision).add_to_ww(covariance)
    return moments_of_mean(q_w.loc, Y, precision).add_to_ww(covariance)


class _CarriedRows:
    """The row covariances of the columns, carried over to new inputs."""

    def __init__(self, posterior: ColumnNormal, at_new: Conditional) -> None:
        self.interpolate = at_new.interpolate()  # A, (N*, N)
        self.residual = at_new.residual  # κ(X*,X*) − A k*, (N*, N*)
        self.root = self.interpolate @ posterior.rows.scale_tril  # of A S_k Aᵀ, (K, N*, N)

    def variance(self) -> Tensor:
        """The variance of each column in each row, ``(N*, K)``."""
        return self.residual.diagonal().clamp(min=0.0).unsqueeze(-1) + self.root.square().sum(-1).mT


class _Functions(FunctionsAtNewRows):
    def __init__(self, q_f: ColumnNormal, at_new: Conditional) -> None:
        self._rows = _CarriedRows(q_f, at_new)
        self.mean = self._rows.interpolate @ q_f.loc

    def covariance(self) -> Tensor:
        return torch.diag_embed(self._rows.variance())

    def sample(self, n_draws: int, joint: bool, generator: torch.Generator | None) -> Tensor:
        n_new, K = self.mean.shape
        if not joint:
            white = white_noise(n_draws, 1, K, like=self.mean, generator=generator)
            return self.mean + self._rows.variance().sqrt() * white
        n_training = self._rows.root.shape[-1]
        white = white_noise(n_draws, n_training + n_new, K, like=self.mean, generator=generator)
        at_training, at_new = white.split([n_training, n_new], dim=1)
        spread = torch.einsum("kmn,snk->smk", self._rows.root, at_training)
        return self.mean + spread + draw_rows(self._rows.residual, at_new)


class _Weights(WeightsAtNewRows):
    def __init__(self, q_w: ColumnNormal, at_new: Conditional) -> None:
        self._q_w, self._rows = q_w, _CarriedRows(q_w, at_new)
        self.n_rows = len(at_new.whitened)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        if isinstance(self._q_w, ProjectedColumnNormal):
            outputs = self._q_w.outputs.read(positions).to(self._rows.interpolate.dtype)
            return (self._rows.interpolate @ self._q_w.projection @ outputs).transpose(0, 1)
        return torch.tensordot(self._rows.interpolate, self._q_w.loc.flatten(2)[:, :, positions], dims=1)

    def variance(self, f_squared: Tensor) -> VarianceOfOutputs:
        squares = f_squared.diagonal(dim1=-2, dim2=-1)  # (…, N*, K)
        variance = (squares * self._rows.variance()).sum(-1, keepdim=True)

        def of_outputs(chosen: OutputSelection, block: slice) -> Tensor:
            return variance.expand(*variance.shape[:-1], len(range(chosen.size)[block]))

        return of_outputs

    def deviation(self, f: Tensor, chosen: OutputSelection, generator: torch.Generator | None) -> Tensor:
        # Over inputs its covariance is R_w ∘ ffᵀ + Σ_k (A S_k Aᵀ) ∘ f_k f_kᵀ, the same for every output
        spread = self._rows.root @ self._rows.root.mT
        covariance = self._rows.residual * (f @ f.mT) + torch.einsum("kmn,smk,snk->smn", spread, f, f)
        return covariance_root(covariance) @ white_noise(*f.shape[:2], chosen.size, like=f, generator=generator)


functions_at_new_rows.register(ColumnNormal, _Functions)
weights_at_new_rows.register(ColumnNormal, _Weights)
