"""The outputs given the functions F, the weights integrated out.

Given F the outputs are independent Gaussians that share one covariance, and the data enter by their Gram matrices::

    y_d | F ~ Normal(0, C_F)     C_F = K_w ∘ (F Fᵀ) + σ_y² I
    log p(Y|F) = −½ Σ_g [ n_g D_g log 2π + D_g log|C_g| + tr(C_g⁻¹ G_g) ]

over groups g of outputs: D_g outputs with the same holes, observed in n_g rows, C_g the part of C_F in those rows,
G_g = Y_g Y_gᵀ. One N×N Cholesky factor a group serves all its outputs and all K. Where each output has a kernel and a
noise of its own, each is a group, and K_w, σ_y² and C_F have a dimension of groups too.

:class:`OutputsGivenF` is the one place that knows of groups. Everything that depends on C_F goes through it, or through
its second kind for outputs that have each its own holes (scattered.py); :func:`outputs_given` makes the right one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property, singledispatch
from typing import Any, NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from pyro_gprn.algebra.linalg import add_to_diagonal, safe_cholesky
from pyro_gprn.outputs.gram import GroupedStatistics, OutputStatistics

#: What ``C_F`` is called in warnings and errors.
COVARIANCE = "the covariance of the outputs"


def times_kernel(kernel: Tensor, products: Tensor, by_group: bool | None = None) -> Tensor:
    """A kernel times products of functions, elementwise: ``κ_w ∘ (f fᵀ)``, ``(*batch, N, M)`` or ``(*batch, g, N, M)``.

    :param kernel: ``(N, M)``; or ``(g, N, M)``, one for each group of outputs. Either may have a batch, as products do.
    :param products: ``(*batch, N, M)``.
    :param by_group: whether the kernel is one for each group; None tells it by its dimensions, if it has no batch.
    """
    by_group = kernel.dim() > 2 if by_group is None else by_group
    return kernel * (products.unsqueeze(-3) if by_group else products)


def output_covariance(F: Tensor, Kw: Tensor, noise: Tensor, jitter: float, by_group: bool | None = None) -> Tensor:
    """``C_F = K_w ∘ (F Fᵀ) + σ_y² I``, ``(*batch, N, N)`` for F ``(*batch, N, K)``.

    With ``K_w`` ``(g, N, N)`` and ``σ_y²`` ``(g,)``, one for each group of outputs, it is ``(*batch, g, N, N)``.

    :param jitter: added to the diagonal, relative to its mean.
    :param by_group: as for :func:`times_kernel`.
    """
    C = times_kernel(Kw, F @ F.mT, by_group)
    return add_to_diagonal(C, noise + jitter * C.diagonal(dim1=-2, dim2=-1).mean(-1))


def pull_back(score: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """The gradient by ``C_F`` turned into those by ``A = K_w ∘ (F Fᵀ)``, ``(*batch, N, N)``, and by σ_y², ``batch``.

    The first is the score itself, changed in place. (The batch may end with groups.)
    """
    # C = A + (σ² + j tr(A)/N) I, so with S = ∂/∂C:  ∂/∂A = S + (j/N) tr(S) I  and  ∂/∂σ² = tr S.
    by_noise = score.diagonal(dim1=-2, dim2=-1).sum(-1)
    score.diagonal(dim1=-2, dim2=-1).add_((jitter / score.shape[-1]) * by_noise.unsqueeze(-1))
    return score, by_noise


class Coefficients(NamedTuple):
    """New outputs as linear combinations of training outputs, ``E[y*_d] = c y_d``, for each group."""

    coefficients: Tensor  #: c = k C⁻¹, (*batch, g, N*, N)
    half: Tensor  #: L⁻¹kᵀ with C = LLᵀ, so that the covariance explained is halfᵀ half, (*batch, g, N, N*)


class OutputsGivenF:
    """All outputs given draws of F: densities, their gradients, and predictions, for every group of outputs.

    :param covariance: ``C_F``, ``(*batch, N, N)``; or ``(*batch, g, N, N)``, one for each output, with statistics by
        output (``known.by_output``).
    :param known: statistics of the outputs.

    >>> known = OutputStatistics.of(torch.zeros(3, 10, dtype=torch.float64))
    >>> given = OutputsGivenF(torch.eye(3, dtype=torch.float64), known)
    >>> given.log_density() == -15 * math.log(2 * math.pi)
    tensor(True)
    >>> given.log_density_by_row()
    tensor([-9.1894, -9.1894, -9.1894], dtype=torch.float64)
    """

    known: Any  #: the statistics

    def __init__(self, covariance: Tensor, known: OutputStatistics) -> None:
        if known.is_by_output and covariance.shape[-3:-2] != known.counts.shape:
            raise ValueError(
                f"with one group for each of {len(known.counts)} outputs the covariance must have shape"
                f" (…, {len(known.counts)}, N, N); got {tuple(covariance.shape)}"
            )
        self.covariance, self.known = covariance, known

    @cached_property
    def by_group(self) -> Tensor:
        """``C_g``, ``(*batch, g, N, N)``: the identity where the outputs of a group miss a row."""
        by_group = self._with_groups(self.covariance)
        if self.known.is_complete:
            return by_group
        return by_group * self._seen_pairs + torch.diag_embed(1.0 - self._seen)

    def _with_groups(self, matrices: Tensor) -> Tensor:
        """Matrices ``(*batch, …, …)`` that all groups share, or one for each group, as ``(*batch, 1 or g, …, …)``."""
        return matrices if self.known.is_by_output else matrices.unsqueeze(-3)

    @cached_property
    def _seen(self) -> Tensor:
        """1 where the outputs of a group have a row, 0 where they miss it, ``(g, N)``."""
        return self.known.observed.to(self.covariance.dtype)

    @cached_property
    def _seen_pairs(self) -> Tensor:
        return self._seen.unsqueeze(-1) * self._seen.unsqueeze(-2)

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factors of ``C_g``, ``(*batch, g, N, N)``."""
        return safe_cholesky(self.by_group, name=COVARIANCE)

    @cached_property
    def inverse(self) -> Tensor:
        """``C_g⁻¹``, ``(*batch, g, N, N)``; the identity in missing rows."""
        return torch.cholesky_inverse(self.factor)

    def log_density(self) -> Tensor:
        """``log p(Y|F)``, ``batch``; autograd can differentiate it twice by the covariance."""
        if torch.is_grad_enabled() and self.covariance.requires_grad and not torch.jit.is_tracing():
            return _LogDensity.apply(self.by_group, self.known)
        return _log_density(self.factor, lambda: self.inverse, self.known)

    def score(self) -> Tensor:
        """The gradient of :meth:`log_density` by ``C_F``, in its shape, out of autograd's sight."""
        score = _score(self.inverse, self.known)
        if self.known.is_by_output:
            return score if self.known.is_complete else score.mul_(self._seen_pairs)
        if self.known.is_complete:
            return score.squeeze(-3)
        return torch.einsum("...gij,gi,gj->...ij", score, self._seen, self._seen)

    def gauss_newton(self, F: Tensor, Kw: Tensor, column_scales: Tensor) -> Tensor:
        """``Σ_k t_k H_k`` with ``−H_k`` the expected Hessian of the log density by column k of F, averaged over draws.

        :param F: the draws of F that the covariance was made of, ``(s, N, K)``.
        :param Kw: kernel matrix of the weights, ``(N, N)``, or of each group, ``(g, N, N)``.
        :param column_scales: ``t_k``, ``(K,)``.
        :returns: ``(N, N)``.
        """
        # For a change a of column k of F, dC = diag(a) B + Bᵀ diag(a) with B = K_w diag(f_k), and the expected Hessian
        # of log p is −aᵀ H_k a with  H_k = Σ_g D_g [ (B C⁻¹) ∘ (B C⁻¹)ᵀ + C⁻¹ ∘ (B C⁻¹ Bᵀ) ].
        # The second terms add up to  C⁻¹ ∘ Σ_k t_k B C⁻¹ Bᵀ = C⁻¹ ∘ K_w (C⁻¹ ∘ F diag(t) Fᵀ) K_w.
        inverse, counts = self._inverse_of_observed()  # (s, g, N, N)
        by_group = inverse * (Kw @ (inverse * ((F * column_scales) @ F.mT).unsqueeze(1)) @ Kw)
        for k, scale in enumerate(column_scales):
            BC = (Kw * F[:, None, None, :, k]) @ inverse
            by_group += scale * BC * BC.mT
        return torch.einsum("g,sgij->ij", counts, by_group) / len(F)

    def _inverse_of_observed(self) -> tuple[Tensor, Tensor]:
        """``C_g⁻¹`` with zeros in missing rows, ``(*batch, g, N, N)``, and the groups' numbers of outputs, ``(g,)``."""
        inverse = self.inverse if self.known.is_complete else self.inverse * self._seen_pairs
        return inverse, self.known.counts

    def log_density_by_row(self) -> Tensor:
        """``log p(y_n | the other rows, F)`` of each row, ``(*batch, N)``: from the Gram matrices, no row taken out."""
        # The conditional of y_nd given the other rows has variance 1/[C⁻¹]_nn and lies [C⁻¹y_d]_n / [C⁻¹]_nn from y_nd.
        #   Σ_d log p(y_nd | rest) = ½ D log [C⁻¹]_nn − ½ D log 2π − ½ [C⁻¹ G C⁻¹]_nn / [C⁻¹]_nn
        # over each group whose outputs have the row.
        precision = self.inverse.diagonal(dim1=-2, dim2=-1)  # (*batch, g, N)
        squares = _both_sides(self.inverse, self.known).diagonal(dim1=-2, dim2=-1)
        by_group = 0.5 * (self.known.counts.unsqueeze(-1) * (precision / (2 * math.pi)).log() - squares / precision)
        return torch.where(self.known.observed, by_group, 0.0).sum(-2)

    def predict(self, cross: Tensor) -> Coefficients:
        """The Gaussian of the outputs in new rows.

        :param cross: ``k``, the covariance of new rows with training rows, ``(*batch, N*, N)``, or with a dimension of
            groups where the covariance has one.
        """
        cross = self._with_groups(cross) * self._seen.unsqueeze(-2)
        half = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        return Coefficients(torch.linalg.solve_triangular(self.factor.mT, half, upper=True).mT, half)

    def predict_left_out(self, cross: Tensor, positions: slice | Tensor) -> LeftOutRows:
        """Each row of some outputs from all other rows, where its covariance with these is given anew.

        :param cross: a row ``k_n`` for each n, its entry at n left out of account, ``(*batch, N, N)``, or with a
            dimension of groups where the covariance has one.
        :param positions: which outputs; ``b`` of them.
        """
        # With P = C⁻¹ the inverse of C without row n is P − P_:n P_n: / P_nn, so the coefficients of row n are
        #   P k_n − P_:n (P k_n)_n / P_nn.
        k = self._with_groups(without_diagonal(cross)) * self._seen.unsqueeze(-2)
        P = self.inverse
        coefficients = k @ P  # a row for each n
        own = coefficients.diagonal(dim1=-2, dim2=-1) / P.diagonal(dim1=-2, dim2=-1)
        coefficients = without_diagonal(coefficients - own.unsqueeze(-1) * P)
        mean = combine_outputs(coefficients.movedim(-3, 0), self.known, positions)
        return LeftOutRows(mean, (k * coefficients).sum(-1)[..., self.known.patterns_at(positions), :].mT)

    def solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        """``C_g⁻¹ values``, ``(*batch, N, b)``, with each output by its own group.

        :param values: ``(N, b)``, zero where an output is missing.
        :param positions: which outputs these are.
        """
        groups = self.known.patterns_at(positions)
        result = self.factor.new_empty(*self.factor.shape[:-3], *values.shape)
        for group in groups.unique().tolist():
            some = groups == group
            result[..., some] = torch.cholesky_solve(values[:, some], self.factor[..., group, :, :])
        return result

    def precision_at(self, positions: slice | Tensor) -> Tensor:
        """The diagonal of ``C_g⁻¹`` for some outputs, ``(*batch, N, b)``; 1 in missing rows."""
        return self.inverse.diagonal(dim1=-2, dim2=-1)[..., self.known.patterns_at(positions), :].mT

    def whitened_gram(self) -> Tensor:
        """``Σ_g L_g⁻¹ G_g L_g⁻ᵀ`` with ``C_g = L_g L_gᵀ``, ``(*batch, N, N)``."""
        half = torch.linalg.solve_triangular(self.factor, self.known.grams, upper=False)
        return torch.linalg.solve_triangular(self.factor, half.mT, upper=False).sum(-3)


class LeftOutRows(NamedTuple):
    """Each row of ``b`` outputs predicted from all other rows."""

    mean: Tensor  #: (*batch, N, b)
    explained: Tensor  #: by how much the other rows reduce the variance of each, (*batch, N, b)


class MeanPrecision:
    """``C_g⁻¹`` of every group of outputs, averaged over draws of F, which are added one by one.

    :param known: statistics of the outputs.
    """

    _known: Any  #: of the kind of statistics that it is for

    def __init__(self, known: GroupedStatistics) -> None:
        self._known, self._n_draws = known, 0
        self._total = torch.zeros_like(known.grams)

    def add(self, covariance: Tensor) -> None:
        """Adds one draw, by its ``C_F``, ``(N, N)``."""
        self._total += OutputsGivenF(covariance, self._known).inverse
        self._n_draws += 1

    def of_outputs(self, known: OutputStatistics) -> MeanPrecision:
        """The same for other outputs of the same network, with the same groups."""
        other = copy.copy(self)
        other._known = known
        return other

    def solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        """``C_g⁻¹ values``, ``(N, b)``, for values ``(N, b)`` of the outputs at some positions, zero where missing."""
        return combine_values(self._total, values, self._known, positions) / self._n_draws

    def diagonal(self, positions: slice | Tensor) -> Tensor:
        """The diagonal for some outputs, ``(N, b)``; 1 in missing rows."""
        diagonal = self._total.diagonal(dim1=-2, dim2=-1) / self._n_draws
        return diagonal[self._known.patterns_at(positions)].mT


@singledispatch
def outputs_given(known: OutputStatistics, covariance: Tensor) -> OutputsGivenF:
    """The outputs given draws of F, by the kind of their statistics.

    Statistics of another kind register their own: ``outputs_given.register(MyStatistics, …)``.

    :param known: statistics of the outputs.
    :param covariance: ``C_F``, ``(*batch, N, N)``.
    """
    raise TypeError(f"known must be grouped or scattered statistics of outputs; got {type(known).__name__}")


@singledispatch
def mean_precision(known: OutputStatistics) -> MeanPrecision:
    """An average over draws of ``C_F⁻¹`` that has no draws yet, by the kind of the statistics."""
    raise TypeError(f"known must be grouped or scattered statistics of outputs; got {type(known).__name__}")


outputs_given.register(GroupedStatistics, lambda known, covariance: OutputsGivenF(covariance, known))
mean_precision.register(GroupedStatistics, MeanPrecision)


def combine_outputs(coefficients: Tensor, known: OutputStatistics, positions: slice | Tensor) -> Tensor:
    """Linear combinations of training outputs, each output by its own group's: ``(…, m, b)``.

    :param coefficients: ``(g, …, m, N)``.
    :param positions: which of the flattened outputs; ``b`` of them.
    """
    return combine_values(coefficients, known.values_at(positions), known, positions)


def combine_values(coefficients: Tensor, values: Tensor, known: OutputStatistics, positions: slice | Tensor) -> Tensor:
    """Linear combinations of values ``(N, b)`` that belong to the outputs at some positions: ``(…, m, b)``."""
    if known.pattern_of is None:
        return coefficients[0] @ values
    result = coefficients.new_empty(*coefficients.shape[1:-1], values.shape[1])
    groups = known.patterns_at(positions)
    for group in groups.unique().tolist():
        some = groups == group
        result[..., some] = coefficients[group] @ values[:, some]
    return result


def without_diagonal(matrix: Tensor) -> Tensor:
    """The matrix with zeros on its diagonal."""
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))


def _log_density(factor: Tensor, inverse: Callable[[], Tensor], known: GroupedStatistics) -> Tensor:
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    if known.few_values is not None:
        squares = torch.linalg.solve_triangular(factor, known.few_values, upper=False).square().sum((-2, -1))
    else:
        squares = (inverse() * known.grams).sum((-2, -1))
    constants = known.numbers * math.log(2 * math.pi)
    return -0.5 * (constants + known.counts * log_det + squares).sum(-1)


def _score(inverse: Tensor, known: GroupedStatistics) -> Tensor:
    """``∂/∂C_g = ½ (C_g⁻¹ G_g C_g⁻¹ − D_g C_g⁻¹)``, ``(*batch, g, N, N)``."""
    score = _both_sides(inverse, known)
    score -= known.counts[:, None, None] * inverse
    return score.mul_(0.5)


def _both_sides(inverse: Tensor, known: GroupedStatistics) -> Tensor:
    """``C_g⁻¹ G_g C_g⁻¹``, ``(*batch, g, N, N)``."""
    if known.few_values is None:
        return inverse @ known.grams @ inverse
    solved = inverse @ known.few_values
    return solved @ solved.mT


class _LogDensity(torch.autograd.Function):
    """The log density with its gradient by hand: half the time of autograd's."""

    @staticmethod
    def forward(ctx: Any, by_group: Tensor, known: GroupedStatistics) -> Tensor:
        factor = safe_cholesky(by_group, name=COVARIANCE)
        inverse = torch.cholesky_inverse(factor)
        ctx.save_for_backward(by_group, inverse)
        ctx.known = known
        return _log_density(factor, lambda: inverse, known)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        by_group, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives the inverse must remember where it came from
            inverse = torch.linalg.inv(by_group)
        return upstream[..., None, None, None] * _score(inverse, ctx.known), None


def colour(root: Tensor, white: Tensor, by_output: bool) -> Tensor:
    """White noise ``(…, N, D)`` with a covariance over rows.

    :param root: a square root of it, ``(…, N, N)``; of each output's, ``(…, D, N, N)``, if ``by_output``.

    >>> colour(torch.stack([torch.eye(2), 3 * torch.eye(2)]), torch.ones(2, 2), by_output=True)
    tensor([[1., 3.],
            [1., 3.]])
    """
    return torch.einsum("...dij,...jd->...id", root, white) if by_output else root @ white


class CollapsedNormal(TorchDistribution):
    """Outputs that are independent draws of ``Normal(0, C)``, scored by their Gram matrices.

    :param covariance: ``C``, ``(*batch, N, N)``.
    :param output_shape: ``(d_1, …, d_M)``.
    :param statistics: of the outputs that will be scored; without, scoring makes them.
    :param by_output: True if each of the D outputs has a covariance of its own, ``(*batch, D, N, N)``.

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
        by_output: bool = False,
        validate_args: bool | None = None,
    ) -> None:
        self.covariance, self.output_shape, self.statistics = covariance, output_shape, statistics
        self.by_output = by_output
        event_shape = covariance.shape[-1:] + output_shape
        batch_shape = covariance.shape[: -3 if by_output else -2]
        super().__init__(batch_shape, event_shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape: Sequence[int], _instance: TorchDistribution | None = None) -> CollapsedNormal:
        covariance = self.covariance.expand(Size(batch_shape) + self.covariance.shape[len(self.batch_shape) :])
        return CollapsedNormal(covariance, self.output_shape, self.statistics, self.by_output)

    @property
    def mean(self) -> Tensor:
        return self.covariance.new_zeros(()).expand(self.shape())

    @property
    def variance(self) -> Tensor:
        diagonal = self.covariance.diagonal(dim1=-2, dim2=-1)
        if self.by_output:
            return diagonal.mT.reshape(self.shape())
        return diagonal.reshape(diagonal.shape + (1,) * len(self.output_shape)).expand(self.shape())

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        root = safe_cholesky(self.covariance, name=COVARIANCE)
        shape = Size(sample_shape) + self.batch_shape + self.event_shape[:1] + (self.output_shape.numel(),)
        noise = torch.randn(shape, dtype=root.dtype, device=root.device)
        return colour(root, noise, self.by_output).reshape(self._extended_shape(Size(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        n_modes = len(self.event_shape)
        if value.dim() > n_modes:
            return self._log_prob_of_batch(value, torch.broadcast_shapes(value.shape[:-n_modes], self.batch_shape))
        known = self.statistics
        if known is None or not known.source.is_of(value):
            known = OutputStatistics.of(value)
        return outputs_given(known.by_output if self.by_output else known, self.covariance).log_density()

    def _log_prob_of_batch(self, value: Tensor, batch_shape: Size) -> Tensor:
        # Each has its own Gram matrix.
        covariance = self.expand(batch_shape).covariance.flatten(end_dim=len(batch_shape) - 1)
        values = value.expand(batch_shape + self.event_shape).flatten(end_dim=len(batch_shape) - 1)
        each = [
            CollapsedNormal(one, self.output_shape, by_output=self.by_output).log_prob(y)
            for one, y in zip(covariance, values, strict=True)
        ]
        return torch.stack(each).reshape(batch_shape)


def effective_outputs(covariance: Tensor, known: OutputStatistics) -> float:
    """How many independent outputs the data are worth, read off their Gram matrix; between 1 and D.

    The model counts D outputs as D independent draws; a smooth field of thousands of points has perhaps twenty. With
    ``C = LLᵀ`` the covariance of independent GPs, ``A = L⁻¹ G L⁻ᵀ / D`` has mean I and, for D independent outputs,
    off-diagonal entries of variance 1/D. So ``D_eff = N(N−1) / Σ_{i≠j} A_ij²``. Missing outputs: pairs of rows count
    the outputs that have both.

    :param covariance: ``C``, ``(N, N)``, or ``(D, N, N)`` with statistics by output.
    :param known: statistics of ``Y``.

    >>> Y = torch.randn(30, 10, dtype=torch.float64)
    >>> copies = OutputStatistics.of(Y.repeat(1, 100))  # a thousand outputs, worth ten
    >>> 8 < effective_outputs(torch.eye(30, dtype=torch.float64), copies) < 13
    True
    """
    n_rows, n_outputs = covariance.shape[-1], known.counts.sum().item()
    A = outputs_given(known, covariance).whitened_gram() / known.pairs.clamp(min=1.0)
    A = A / A.diagonal().mean().clamp(min=torch.finfo(A.dtype).tiny)
    off_diagonal = A.square().sum() - A.diagonal().square().sum()
    if n_rows == 1 or not off_diagonal > 0:
        return n_outputs
    return min(n_outputs, max(1.0, n_rows * (n_rows - 1) / off_diagonal.item()))
