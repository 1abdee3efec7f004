"""What posterior.py asks for, of independent normals ``Independent(Normal(loc, scale), …)`` over F and W.

Values that are independent between training rows are no longer so between new rows. There, with ``A = k*ᵀK⁻¹``::

    E[W*_kd] = A U_kd      Cov = κ_w(X*,X*) − A k_w*  +  A diag(s²_kd) Aᵀ

The weights of different latents k and outputs d stay independent. The functions follow in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Independent

from pyro_gprn.algebra.linalg import covariance_root
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
from pyro_gprn.factorised.tensor_normal_posterior import moments_of_mean, self_outer
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.pyro_state import white_noise


@row_second_moment.register
def _(q_f: Independent) -> Tensor:
    return torch.diag_embed(q_f.variance) + self_outer(q_f.mean)


@output_moments.register
def _(q_w: Independent, Y: Tensor, precision: Tensor) -> OutputMoments:
    variance = (precision.expand(Y.shape).unsqueeze(1) * q_w.variance).flatten(2).sum(-1)
    return moments_of_mean(q_w.mean, Y, precision).add_to_ww(torch.diag_embed(variance))


class _Functions(FunctionsAtNewRows):
    def __init__(self, q_f: Independent, at_new: Conditional) -> None:
        self._q_f, self._residual, self._interpolate = q_f, at_new.residual, at_new.interpolate()
        self.mean = self._interpolate @ q_f.mean

    def _variance(self) -> Tensor:
        """The variance of each function in each row, ``(N*, K)``."""
        return self._residual.diagonal().clamp(min=0.0).unsqueeze(-1) + self._interpolate.square() @ self._q_f.variance

    def covariance(self) -> Tensor:
        return torch.diag_embed(self._variance())

    def sample(self, n_draws: int, joint: bool, generator: torch.Generator | None) -> Tensor:
        n_new, K = self.mean.shape
        if not joint:
            return self.mean + self._variance().sqrt() * white_noise(n_draws, 1, K, like=self.mean, generator=generator)
        white = white_noise(n_draws, len(self._q_f.mean) + n_new, K, like=self.mean, generator=generator)
        at_training, at_new = white.split([len(self._q_f.mean), n_new], dim=1)
        spread = self._interpolate @ (self._q_f.stddev * at_training)
        return self.mean + spread + draw_rows(self._residual, at_new)


class _Weights(WeightsAtNewRows):
    def __init__(self, q_w: Independent, at_new: Conditional) -> None:
        self._loc, self._scale = q_w.mean.flatten(2), q_w.stddev.flatten(2)  # (N, K, D)
        self._residual, self._interpolate = at_new.residual, at_new.interpolate()
        self.n_rows = len(self._loc)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.tensordot(self._interpolate, self._loc[:, :, chosen.positions(block)], dims=1)

    def variance(self, f_squared: Tensor) -> VarianceOfOutputs:
        squares = f_squared.diagonal(dim1=-2, dim2=-1)  # (…, N*, K)
        by_residual = self._residual.diagonal().clamp(min=0.0) * squares.sum(-1)

        def of_outputs(chosen: OutputSelection, block: slice) -> Tensor:
            scale = self._scale[:, :, chosen.positions(block)]
            spread = torch.tensordot(self._interpolate.square(), scale.square(), dims=1)
            return by_residual.unsqueeze(-1) + torch.einsum("...nk,nkd->...nd", squares, spread)

        return of_outputs

    def deviation(self, f: Tensor, chosen: OutputSelection, generator: torch.Generator | None) -> Tensor:
        root, scale = covariance_root(self._residual * (f @ f.mT)), self._scale[:, :, chosen.positions(slice(None))]
        deviation = root @ white_noise(*f.shape[:2], chosen.size, like=f, generator=generator)
        for draw, functions in zip(deviation, f, strict=True):  # one at a time: N·K numbers for each output
            at_training = scale * white_noise(*scale.shape, like=scale, generator=generator)
            draw += torch.einsum("mk,mn,nkd->md", functions, self._interpolate, at_training)
        return deviation


functions_at_new_rows.register(Independent, _Functions)
weights_at_new_rows.register(Independent, _Weights)
