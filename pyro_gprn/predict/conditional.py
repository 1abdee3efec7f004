"""Gaussian process conditionals at new inputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_gprn.linalg import covariance_root


class Conditional(NamedTuple):
    """A Gaussian process at new inputs X*, given its values at X: with ``K = LLᵀ`` and ``T = L⁻¹κ(X, X*)``,
    ``mean = Tᵀ L⁻¹ values`` and ``covariance = κ(X*, X*) − TᵀT``."""

    whitened: Tensor  #: T, (N, N*)
    residual: Tensor  #: κ(X*,X*) − TᵀT, (N*, N*)

    @classmethod
    def of(cls, kernel: Kernel, X: Tensor, X_new: Tensor, L: Tensor, fresh_noise: Tensor | None = None) -> Conditional:
        """:param fresh_noise: standard deviation of noise that every new input has of its own."""
        T = torch.linalg.solve_triangular(L, kernel(X, X_new), upper=False)
        residual = kernel(X_new) - T.mT @ T
        if fresh_noise is not None:
            residual = residual + torch.diag_embed(fresh_noise.square().expand(len(X_new)))
        return cls(T, residual)

    def sample_residual(self, white: Tensor) -> Tensor:
        """A draw of what the conditional leaves open, ``(…, N*, k)``, from white noise of that shape."""
        return covariance_root(self.residual) @ white
