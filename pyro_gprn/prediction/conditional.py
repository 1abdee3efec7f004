"""Gaussian process conditionals at new inputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pyro.contrib.gp.kernels import Kernel
from torch import Tensor

from pyro_gprn.algebra.linalg import covariance_root


class Conditional(NamedTuple):
    """A Gaussian process at new inputs X*, given its values at X.

    With ``K = LLᵀ`` and ``T = L⁻¹κ(X, X*)`` it has ``mean = Tᵀ L⁻¹ values`` and ``covariance = κ(X*, X*) − TᵀT``.

    >>> from pyro.contrib.gp.kernels import RBF
    >>> X = torch.tensor([[0.0], [2.0]])
    >>> at_new = Conditional.of(RBF(1), X, X[:1], torch.linalg.cholesky(RBF(1)(X)))
    >>> at_new.interpolate().round(decimals=4).abs()
    tensor([[1., 0.]], grad_fn=<AbsBackward0>)
    """

    factor: Tensor  #: L, (N, N)
    whitened: Tensor  #: T, (N, N*)
    residual: Tensor  #: κ(X*,X*) − TᵀT, (N*, N*), or its diagonal alone, (N*,)

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        X: Tensor,
        X_new: Tensor,
        L: Tensor,
        fresh_noise: Tensor | None = None,
        *,
        jointly: bool = True,
    ) -> Conditional:
        """The conditional of a process with a given kernel.

        :param X: inputs at which values are given, ``(N, P)``.
        :param X_new: new inputs, ``(N*, P)``.
        :param L: Cholesky factor of the process's covariance at ``X``, ``(N, N)``.
        :param fresh_noise: standard deviation of noise that every new input has of its own.
        :param jointly: False leaves out how new inputs vary together: the residual is a variance for each.
        """
        T = torch.linalg.solve_triangular(L, kernel(X, X_new), upper=False)
        if not jointly:
            variance = kernel(X_new, diag=True) - T.square().sum(0)
            return cls(L, T, variance if fresh_noise is None else variance + fresh_noise.square())
        residual = kernel(X_new) - T.mT @ T
        if fresh_noise is not None:
            residual = residual + torch.diag_embed(fresh_noise.square().expand(len(X_new)))
        return cls(L, T, residual)

    def interpolate(self) -> Tensor:
        """``A = κ(X*, X) K⁻¹``, ``(N*, N)``: the mean at new inputs is ``A values``."""
        return torch.linalg.solve_triangular(self.factor, self.whitened.mT, upper=False, left=False)


def draw_rows(covariance: Tensor, white: Tensor) -> Tensor:
    """Draws ``(…, N*, k)`` with a covariance ``(N*, N*)`` over rows, or with variances ``(N*,)``.

    :param white: white noise, ``(…, N*, k)`` for draws that are joint over rows. From white noise ``(…, 1, k)`` each
        row is drawn by its own variance alone, so that it does not depend on which other rows there are.

    >>> draw_rows(torch.tensor([[4.0, 0.0], [0.0, 9.0]]), torch.ones(1, 1))
    tensor([[2.],
            [3.]])
    """
    if white.shape[-2] == 1:
        variance = covariance if covariance.dim() == 1 else covariance.diagonal()
        tiny = torch.finfo(variance.dtype).tiny  # not zero, at which a square root has no gradient
        return variance.clamp(min=tiny).sqrt().unsqueeze(-1) * white
    return covariance_root(covariance) @ white
