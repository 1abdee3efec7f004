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
        noise: Tensor | None = None,
        *,
        jointly: bool = True,
    ) -> Conditional:
        """The conditional of a process with a given kernel.

        The noise of the process belongs to its input. A new input that is one of ``X`` has the noise of that row, so
        that a missing output of the row is predicted from the process as the other outputs saw it. (Where several rows
        have that input, it is the mean of their noises.) Every other new input has a noise of its own.

        :param X: inputs at which values are given, ``(N, P)``.
        :param X_new: new inputs, ``(N*, P)``.
        :param L: Cholesky factor of the process's covariance at ``X``, its noise included, ``(N, N)``.
        :param noise: the standard deviation of the noise of the process, ``()``; None if it has none.
        :param jointly: False leaves out how new inputs vary together: the residual is a variance for each.
        """
        cross = kernel(X, X_new)
        prior = kernel(X_new) if jointly else kernel(X_new, diag=True)
        if noise is not None:
            noises = NoiseOfRows.of(X, X_new, noise.square())
            cross = cross + noises.cross
            prior = prior + (noises.covariance() if jointly else noises.variance)
        T = torch.linalg.solve_triangular(L, cross, upper=False)
        return cls(L, T, prior - (T.mT @ T if jointly else T.square().sum(0)))

    def interpolate(self) -> Tensor:
        """``A = κ(X*, X) K⁻¹``, ``(N*, N)``: the mean at new inputs is ``A values``."""
        return torch.linalg.solve_triangular(self.factor, self.whitened.mT, upper=False, left=False)


def same_rows(X: Tensor, X_new: Tensor) -> Tensor:
    """Whether a new input, ``(N*, P)``, is that of a row of ``X``, ``(N, P)``: ``(N, N*)``, boolean.

    >>> same_rows(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [3.0]])).tolist()
    [[False, False], [True, False]]
    """
    is_same = torch.ones(len(X), len(X_new), dtype=torch.bool, device=X.device)
    for column, new in zip(X.unbind(1), X_new.detach().unbind(1), strict=True):
        is_same &= column.unsqueeze(1) == new
    return is_same


class NoiseOfRows(NamedTuple):
    """White noise that belongs to inputs, at new inputs beside that of the rows of X.

    A new input that m rows have has the mean of their m noises; every other has a noise of its own.

    >>> X, X_new = torch.tensor([[1.0], [2.0], [2.0]]), torch.tensor([[2.0], [3.0]])
    >>> noises = NoiseOfRows.of(X, X_new, torch.tensor(4.0))
    >>> noises.cross
    tensor([[0., 0.],
            [2., 0.],
            [2., 0.]])
    >>> noises.covariance()
    tensor([[2., 0.],
            [0., 4.]])
    """

    cross: Tensor  #: covariance with the noises of the rows, (N, N*)
    variance: Tensor  #: (N*,)
    level: Tensor  #: the variance of the noise of a row, ()

    @classmethod
    def of(cls, X: Tensor, X_new: Tensor, level: Tensor) -> NoiseOfRows:
        """The noise at new inputs ``(N*, P)`` beside that of the rows of ``X``, ``(N, P)``, of variance ``level``."""
        is_same = same_rows(X, X_new)
        n_same = is_same.sum(0)
        cross = level * (is_same / n_same.clamp(min=1)).to(X)
        return cls(cross, level / n_same.clamp(min=1), level)

    def covariance(self) -> Tensor:
        """``(N*, N*)``: new inputs that are the same row have the same noise."""
        together = self.cross.mT @ self.cross / self.level
        return together + torch.diag_embed(torch.where((self.cross == 0).all(0), self.level, 0.0))


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
