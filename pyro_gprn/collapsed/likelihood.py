"""The likelihood of a GPRN with its weights integrated out.

Given F the outputs are independent Gaussians that share one covariance, and the data enter by their Gram matrix::

    y_d | F ~ Normal(0, C_F)     C_F = K_w ∘ (F Fᵀ) + σ_y² I
    log p(Y|F) = −½ Σ_g [ n_g D_g log 2π + D_g log|C_g| + tr(C_g⁻¹ G_g) ]

over the patterns g of holes: D_g outputs observed in n_g rows, C_g the part of C_F in those rows, G_g = Y_g Y_gᵀ. One
N×N Cholesky factor a pattern serves all outputs and all K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.outputs.gram import OutputStatistics


class CollapsedNormal(TorchDistribution):
    """Outputs that are independent draws of ``Normal(0, C)``, scored by their Gram matrices.

    :param covariance: ``C``, ``(*batch, N, N)``.
    :param output_shape: ``(d_1, …, d_M)``.
    :param statistics: of the outputs that will be scored; without, scoring makes them.

    The event shape is ``(N, d_1, …, d_M)``. NaN in a scored value is a missing output.

    >>> y = CollapsedNormal(torch.eye(3, dtype=torch.float64), Size((1000,)))
    >>> y.log_prob(torch.zeros(3, 1000)) == -1500 * math.log(2 * math.pi)
    tensor(True)
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # the Cholesky factorisation checks the covariance
    has_rsample = True

    def __init__(
        self,
        covariance: Tensor,
        output_shape: Size,
        statistics: OutputStatistics | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.covariance, self.output_shape, self.statistics = covariance, output_shape, statistics
        event_shape = covariance.shape[-1:] + output_shape
        super().__init__(covariance.shape[:-2], event_shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: TorchDistribution | None = None) -> CollapsedNormal:
        covariance = self.covariance.expand(Size(batch_shape) + self.covariance.shape[-2:])
        return CollapsedNormal(covariance, self.output_shape, self.statistics)

    @property
    def mean(self) -> Tensor:
        return self.covariance.new_zeros(()).expand(self.shape())

    @property
    def variance(self) -> Tensor:
        diagonal = self.covariance.diagonal(dim1=-2, dim2=-1)
        return diagonal.reshape(diagonal.shape + (1,) * len(self.output_shape)).expand(self.shape())

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        root = safe_cholesky(self.covariance, name="the covariance of the outputs")
        shape = Size(sample_shape) + self.covariance.shape[:-1] + (self.output_shape.numel(),)
        noise = torch.randn(shape, dtype=root.dtype, device=root.device)
        return (root @ noise).reshape(self._extended_shape(Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        known = self.statistics
        if known is None or not known.describe(value):
            known = OutputStatistics.of(value)
        return gram_log_density(self.covariance, known)


def gram_log_density(covariance: Tensor, statistics: OutputStatistics) -> Tensor:
    """``log p(Y)`` of independent outputs with one covariance ``C``, ``batch``; differentiable twice.

    :param covariance: ``C``, ``(*batch, N, N)``.
    :param statistics: of ``Y``.
    """
    return _GramLogDensity.apply(restrict(covariance, statistics), statistics)


def restrict(covariance: Tensor, statistics: OutputStatistics) -> Tensor:
    """``C`` for each pattern of holes, ``(*batch, g, N, N)``: the identity where the pattern misses a row."""
    by_pattern = covariance.unsqueeze(-3)
    if statistics.is_complete:
        return by_pattern
    seen = statistics.observed.to(covariance.dtype)
    return by_pattern * (seen.unsqueeze(-1) * seen.unsqueeze(-2)) + torch.diag_embed(1.0 - seen)


def density_and_score(covariance: Tensor, statistics: OutputStatistics) -> tuple[Tensor, Tensor]:
    """:func:`gram_log_density` and its gradient by ``C``, ``batch`` and ``(*batch, N, N)``, out of autograd's sight."""
    density, inverse = density_and_inverse(restrict(covariance, statistics), statistics)
    score = _score(inverse, statistics)
    if statistics.is_complete:
        return density, score.squeeze(-3)
    seen = statistics.observed.to(covariance.dtype)
    return density, torch.einsum("...gij,gi,gj->...ij", score, seen, seen)


def output_covariance(F: Tensor, Kw: Tensor, noise: Tensor, jitter: float) -> Tensor:
    """``C_F = K_w ∘ (F Fᵀ) + σ_y² I``, ``(*batch, N, N)`` for F ``(*batch, N, K)``.

    :param jitter: added to the diagonal, relative to its mean.
    """
    C = Kw * (F @ F.mT)
    level = noise + jitter * C.diagonal(dim1=-2, dim2=-1).mean(-1)
    return C + torch.diag_embed(level.unsqueeze(-1).expand(C.shape[:-1]))


def pull_back(score: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """The gradient by ``C_F`` turned into those by ``A = K_w ∘ (F Fᵀ)``, ``(*batch, N, N)``, and by σ_y², ``batch``."""
    # C = A + (σ² + j tr(A)/N) I, so with S = ∂/∂C:  ∂/∂A = S + (j/N) tr(S) I  and  ∂/∂σ² = tr S.
    by_noise = score.diagonal(dim1=-2, dim2=-1).sum(-1)
    by_A = score.clone()
    by_A.diagonal(dim1=-2, dim2=-1).add_((jitter / score.shape[-1]) * by_noise.unsqueeze(-1))
    return by_A, by_noise


def density_and_inverse(covariances: Tensor, statistics: OutputStatistics) -> tuple[Tensor, Tensor]:
    """The log density, ``batch``, and ``C_g⁻¹``, ``(*batch, g, N, N)``."""
    factor = safe_cholesky(covariances, name="the covariance of the outputs")
    inverse = torch.cholesky_inverse(factor)
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    squares = (inverse * statistics.grams).sum((-2, -1))
    constants = statistics.numbers * math.log(2 * math.pi)
    return -0.5 * (constants + statistics.counts * log_det + squares).sum(-1), inverse


def _score(inverse: Tensor, statistics: OutputStatistics) -> Tensor:
    """``∂/∂C_g = ½ (C_g⁻¹ G_g C_g⁻¹ − D_g C_g⁻¹)``, ``(*batch, g, N, N)``."""
    return 0.5 * (inverse @ statistics.grams @ inverse - statistics.counts[:, None, None] * inverse)


class _GramLogDensity(torch.autograd.Function):
    """The log density with its gradient by hand: half the time of autograd's."""

    @staticmethod
    def forward(ctx: Any, covariances: Tensor, statistics: OutputStatistics) -> Tensor:
        density, inverse = density_and_inverse(covariances, statistics)
        ctx.save_for_backward(covariances, inverse)
        ctx.statistics = statistics
        return density

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        covariances, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives the inverse must remember where it came from
            inverse = torch.linalg.inv(covariances)
        return upstream[..., None, None, None] * _score(inverse, ctx.statistics), None


def effective_outputs(covariance: Tensor, statistics: OutputStatistics) -> float:
    """How many independent outputs the data are worth, read off their Gram matrix; between 1 and D.

    The model counts D outputs as D independent draws; a smooth field of thousands of points has perhaps twenty. With
    ``C = LLᵀ`` the covariance of independent GPs, ``A = L⁻¹ G L⁻ᵀ / D`` has mean I and, for D independent outputs,
    off-diagonal entries of variance 1/D. So ``D_eff = N(N−1) / Σ_{i≠j} A_ij²``. Missing outputs: pairs of rows count
    the outputs that have both.

    :param covariance: ``C``, ``(N, N)``.
    :param statistics: of ``Y``.

    >>> Y = torch.randn(30, 10, dtype=torch.float64)
    >>> copies = OutputStatistics.of(Y.repeat(1, 100))  # a thousand outputs, worth ten
    >>> 8 < effective_outputs(torch.eye(30, dtype=torch.float64), copies) < 13
    True
    """
    n_rows, n_outputs = len(covariance), statistics.counts.sum().item()
    root = safe_cholesky(restrict(covariance, statistics), name="the covariance of the outputs")
    half = torch.linalg.solve_triangular(root, statistics.grams, upper=False)
    whitened = torch.linalg.solve_triangular(root, half.mT, upper=False).sum(0)
    seen = statistics.observed.double()
    A = whitened / torch.einsum("g,gi,gj->ij", statistics.counts, seen, seen).clamp(min=1.0)
    A = A / A.diagonal().mean().clamp(min=torch.finfo(A.dtype).tiny)
    off_diagonal = A.square().sum() - A.diagonal().square().sum()
    if n_rows == 1 or not off_diagonal > 0:
        return n_outputs
    return min(n_outputs, max(1.0, n_rows * (n_rows - 1) / off_diagonal.item()))
