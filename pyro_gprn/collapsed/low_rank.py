"""The outputs given the functions at inducing inputs: the weights integrated out, and no matrix of N×N.

Given the functions' values at inducing inputs, those at row n have mean ``μ_n`` and variance ``ρ_n`` each, and the
weights have ``a_n`` and ``ℓ_n = κ_w(x_n, x_n) − ‖a_n‖²`` (inducing.py). With ``ω``, ``(mK, D)``, the whitened weights
at inducing inputs and a posterior q(ω) that all rows share, Jensen's inequality gives (as in Titsias 2009)

    log p(Y | V) ≥ Σ_n E[log Normal(y_n; W_nᵀ f_n, σ²)] − KL(q(ω) ‖ p(ω))

where the expectation is over q(ω), over the weights of row n given ω, and over the functions of row n given V. It is
quadratic in ω and row n enters by ``E[f_n f_nᵀ] = μ_n μ_nᵀ + ρ_n I``, so that the best q(ω) is a Gaussian, and

    Φ = [diag(μ_1) A | … | diag(μ_K) A]   (N, mK)     S = ΦᵀΦ + I_K ⊗ Aᵀ diag(ρ) A     B = I + S/σ²     P = ΦᵀY
    bound = −½ [ N D log 2πσ² + D log|B| + ‖Y‖²/σ² − tr(Pᵀ B⁻¹ P)/σ⁴ + (D/σ²) Σ_n (‖μ_n‖² + K ρ_n) ℓ_n ]
    q(ω_d) = Normal(B⁻¹ P_d / σ², B⁻¹)

It is a bound for the network as it stands. That the functions of different rows are dependent given V is not assumed
away: the bound asks for one row at a time. With Z = X nothing is left of either process, and it is ``log p(Y|F)``.

Outputs that miss the same rows are a group, with sums over the rows that they have. These are made from the sums over
all rows less those over the rows that are missing, or from the rows that are there, whichever are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import add_to_diagonal, identity_like, safe_cholesky
from pyro_gprn.collapsed.inducing import LowRankCovariances
from pyro_gprn.outputs.compressed import CompressedStatistics
from pyro_gprn.outputs.gram import OutputStatistics

#: Rows are taken together as long as their part of Φ holds at most this many numbers.
BLOCK_NUMBERS = 2**20
#: What B is called in warnings and errors.
PRECISION = "the precision of the weights at inducing inputs"


class WeightPosterior(NamedTuple):
    """``q(ω)`` for one draw of the functions and ``g`` groups of outputs."""

    factor: Tensor  #: Cholesky factor of B, (g, mK, mK)
    mean: Tensor  #: of the columns that stand for the outputs, (mK, r)


class OutputsGivenInducing:
    """All outputs given draws of the functions at inducing inputs.

    :param V: whitened functions at inducing inputs, ``(m, K)``.
    :param covariances: of rows and inducing inputs.
    :param known: statistics of the outputs.
    """

    def __init__(self, V: Tensor, covariances: LowRankCovariances, known: CompressedStatistics) -> None:
        self.mean = covariances.functions @ V
        self.covariances, self.known = covariances, known

    def log_density(self) -> Tensor:
        """The bound, ``()``; autograd can differentiate it once."""
        return low_rank_density(self.mean.unsqueeze(0), self.covariances, self.known).squeeze(0)

    @cached_property
    def _algebra(self) -> _Algebra:
        _, left, A, weights_left, noise = self.covariances
        return _Algebra.of(_Rows(self.mean, left, A, weights_left), noise, self.known)

    @property
    def noise(self) -> Tensor:
        return self.covariances.noise

    def weights(self) -> WeightPosterior:
        """The posterior of the whitened weights at inducing inputs."""
        return WeightPosterior(self._algebra.factor, self._algebra.solved / self.noise)

    def weights_of(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        """The posterior mean of the weights for some outputs ``(N, b)``, zero where missing: ``(mK, b)``."""
        total = self._algebra.factor.new_zeros(self._algebra.factor.shape[-1], values.shape[1])
        for rows in _row_blocks(len(values), total.shape[0]):
            total += self.features_at(rows).mT @ values[rows]
        return self._solve(total, positions) / self.noise

    def _solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        groups = self.known.patterns_at(positions)
        result = torch.empty_like(values)
        for group in groups.unique().tolist():
            some = groups == group
            result[:, some] = torch.cholesky_solve(values[:, some], self._algebra.factor[group])
        return result

    def features_at(self, rows: slice | Tensor) -> Tensor:
        """``Φ`` of some rows, ``(n, mK)``."""
        return features(self.mean[rows], self.covariances.weights[rows])

    def solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        """``C⁻¹ values``, ``(N, b)``, with ``C = ΦΦᵀ + σ² I`` over the rows that each output has.

        :param values: ``(N, b)``, zero where an output is missing.
        """
        weights, seen = self.weights_of(values, positions), self.known.observed[self.known.patterns_at(positions)].mT
        result = torch.empty_like(values)
        for rows in _row_blocks(len(values), len(weights)):
            result[rows] = (values[rows] - self.features_at(rows) @ weights) / self.noise
        return result.mul_(seen)

    def precision(self) -> Tensor:
        """The diagonal of C⁻¹ of every group, ``(g, N)``; 1 in missing rows."""
        N, identity = len(self.mean), identity_like(self._algebra.factor.shape[-1], self.mean)
        roots = torch.linalg.solve_triangular(self._algebra.factor, identity, upper=False)
        result = roots.new_empty(len(roots), N)
        for rows in _row_blocks(N, roots.shape[-1]):
            explained = (self.features_at(rows) @ roots.mT).square().sum(-1) / self.noise
            result[:, rows] = (1.0 - explained).clamp(min=torch.finfo(result.dtype).eps) / self.noise
        return torch.where(self.known.observed, result, 1.0)

    def log_density_by_row(self) -> Tensor:
        """``log p(y_n | the other rows, V)`` of each row, ``(N,)``, by the posterior of the weights without the row.

        What the columns leave out of many outputs counts as noise.
        """
        known, weights, precision = self.known, self.weights().mean, self.precision()
        total = torch.zeros_like(self.mean[:, 0])
        surprise = torch.empty_like(known.columns)
        for rows in _row_blocks(len(total), len(weights)):
            surprise[rows] = (known.columns[rows] - self.features_at(rows) @ weights) / self.noise
        for group, count in enumerate(known.counts):
            squares = surprise[:, known.columns_of(group)].square().sum(1)
            squares = squares + known.squares_left_out[group] / self.noise.square()
            by_row = 0.5 * (count * (precision[group] / (2 * math.pi)).log() - squares / precision[group])
            total += torch.where(known.observed[group], by_row, 0.0)
        return total

    def function_precision(self) -> Tensor:
        """Minus the Hessian of the expected log-likelihood by the functions of each row, q(ω) held, ``(N, K)``."""
        # Σ_d E[w_nkd²]/σ² with E over q(ω) and the weights of the row given ω, of the columns in place of the outputs.
        m, K = self.covariances.weights.shape[1], self.mean.shape[1]
        A, posterior, known = self.covariances.weights, self.weights(), self.known
        identity = identity_like(m * K, A)
        result = torch.zeros_like(self.mean)
        for group, count in enumerate(known.counts):
            covariance = torch.cholesky_solve(identity, posterior.factor[group])
            mean = posterior.mean[:, known.columns_of(group)]
            second = torch.einsum("kir,kjr->kij", *[mean.unflatten(0, (K, m))] * 2)
            second = second + count * covariance.view(K, m, K, m).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            of_row = torch.stack([((A @ each) * A).sum(-1) for each in second], dim=1)
            of_row = of_row + count * self.covariances.weights_left.unsqueeze(-1)
            result += of_row * known.observed[group].unsqueeze(-1)
        return result / self.noise


def low_rank_density(mean: Tensor, covariances: LowRankCovariances, known: OutputStatistics) -> Tensor:
    """The bound of ``log p(Y | V)`` for draws of the functions, ``(s,)``; autograd can differentiate it once.

    :param mean: of the functions at the rows, ``(s, N, K)``.
    :param covariances: of rows and inducing inputs.
    :param known: statistics of the outputs.
    """
    return _Density.apply(mean, *covariances[1:], known)


class _Rows(NamedTuple):
    """What all rows, or some of them, bring to the sums."""

    mean: Tensor  #: μ, (N, K)
    left: Tensor  #: ρ, (N,)
    weights: Tensor  #: A, (N, m)
    weights_left: Tensor  #: ℓ, (N,)

    def at(self, rows: slice | Tensor) -> _Rows:
        return _Rows(*(part[rows] for part in self))

    def second_moment(self) -> Tensor:
        """``S``, ``(mK, mK)``, a few rows at a time."""
        K, m = self.mean.shape[1], self.weights.shape[1]
        total = self.weights.new_zeros(K, m, K * m)
        of_left = self.weights.new_zeros(m, m)
        for rows in _row_blocks(len(self.mean), K * m):
            phi = features(self.mean[rows], self.weights[rows])
            for k in range(K):  # what lies below the blocks of the diagonal is what lies above them
                total[k, :, k * m :] += phi[:, k * m : (k + 1) * m].mT @ phi[:, k * m :]
            of_left += self.weights[rows].mT @ (self.left[rows].unsqueeze(-1) * self.weights[rows])
        S = total.view(K * m, K * m)
        for k in range(K):
            here = slice(k * m, (k + 1) * m)
            S[here, here] += of_left
            S[(k + 1) * m :, here] = S[here, (k + 1) * m :].mT
        return S

    def trace(self) -> Tensor:
        """``Σ_n (‖μ_n‖² + K ρ_n) ℓ_n``, ``()``."""
        return (self.function_squares() * self.weights_left).sum()

    def function_squares(self) -> Tensor:
        """``E‖f_n‖²``, ``(N,)``."""
        return self.mean.square().sum(-1) + self.mean.shape[1] * self.left


@dataclass(frozen=True)
class _Algebra:
    """The small matrices that one draw of the functions makes, and the bound."""

    noise: Tensor
    factor: Tensor  #: Cholesky factors of B, (g, mK, mK)
    products: Tensor  #: P, (mK, r)
    solved: Tensor  #: B⁻¹ P, each column by its own group, (mK, r)
    traces: Tensor  #: Σ_n E‖f_n‖² ℓ_n, (g,)
    known: CompressedStatistics

    @classmethod
    def of(cls, rows: _Rows, noise: Tensor, known: CompressedStatistics) -> _Algebra:
        products = known.columns.new_zeros(rows.mean.shape[1] * rows.weights.shape[1], known.columns.shape[1])
        for some in _row_blocks(len(rows.mean), len(products)):
            products += features(rows.mean[some], rows.weights[some]).mT @ known.columns[some]
        moments, traces = _by_group(rows, known)
        factor = safe_cholesky(add_to_diagonal(moments / noise, noise.new_ones(len(moments))), name=PRECISION)
        solved = torch.empty_like(products)
        for group in range(len(known.counts)):
            of_group = known.columns_of(group)
            solved[:, of_group] = torch.cholesky_solve(products[:, of_group], factor[group])
        return cls(noise, factor, products, solved, traces, known)

    def bound(self) -> Tensor:
        known, noise = self.known, self.noise
        log_det = 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constants = known.numbers * (2 * math.pi * noise).log()
        squares = known.squares.sum() / noise - (self.products * self.solved).sum() / noise.square()
        return -0.5 * ((constants + known.counts * (log_det + self.traces / noise)).sum() + squares)

    @cached_property
    def inverse(self) -> Tensor:
        """``B⁻¹``, ``(g, mK, mK)``."""
        return torch.cholesky_inverse(self.factor)

    def by_moments(self) -> Tensor:
        """The gradient by S of each group, ``(g, mK, mK)``."""
        # With Ω = B⁻¹P/σ²: ∂S = −(D B⁻¹ + Ω Ωᵀ) / 2σ².
        result = self.known.counts[:, None, None] * self.inverse
        for group in range(len(result)):
            weights = self.solved[:, self.known.columns_of(group)] / self.noise
            result[group] += weights @ weights.mT
        return result.mul_(-0.5 / self.noise)

    def by_products(self) -> Tensor:
        """The gradient by P, ``(mK, r)``: ``Ω/σ²``."""
        return self.solved / self.noise.square()

    def by_traces(self) -> Tensor:
        """The gradient by the trace of each group, ``(g,)``."""
        return -0.5 * self.known.counts / self.noise

    def by_noise(self) -> Tensor:
        """The gradient by σ², ``()``."""
        # log|B|: tr(B⁻¹ S/σ²) = mK − tr B⁻¹. The data: ½‖Y‖²/σ⁴ − ½ tr(PᵀB⁻¹P)/σ⁶ − ½ ‖B⁻¹P‖²/σ⁶.
        known, noise = self.known, self.noise
        n_weights = self.factor.shape[-1]
        of_log_det = known.counts * (n_weights - self.inverse.diagonal(dim1=-2, dim2=-1).sum(-1)) / noise
        of_trace = known.counts * self.traces / noise.square()
        of_data = (
            known.squares.sum() / noise.square()
            - ((self.products * self.solved).sum() + self.solved.square().sum()) / noise**3
        )
        return 0.5 * ((of_log_det + of_trace - known.numbers / noise).sum() + of_data)


def _by_group(rows: _Rows, known: CompressedStatistics) -> tuple[Tensor, Tensor]:
    """``S`` and the trace of each group, ``(g, mK, mK)`` and ``(g,)``."""
    own = [rows.at(group.rows) for group in known.group_rows]
    moments, traces = [part.second_moment() for part in own], [part.trace() for part in own]
    missing = [number for number, group in enumerate(known.group_rows) if group.is_missing]
    if missing:
        moment, trace = rows.second_moment(), rows.trace()
        for number in missing:
            moments[number], traces[number] = moment - moments[number], trace - traces[number]
    return torch.stack(moments), torch.stack(traces)


class _Density(torch.autograd.Function):
    # Forward, a pass over the rows makes S and P; backward, a second one takes their gradients to the rows:
    #   ∂Φ_n = 2 ∂S Φ_n + ∂P y_n     ∂μ_nk = ∂Φ_nk·a_n + 2 μ_nk ℓ_n ∂t     ∂a_n = Σ_k μ_nk ∂Φ_nk + 2 ρ_n (Σ_k ∂S_kk) a_n
    #   ∂ρ_n = a_nᵀ (Σ_k ∂S_kk) a_n + K ℓ_n ∂t                          ∂ℓ_n = (‖μ_n‖² + K ρ_n) ∂t
    # with ∂S and ∂t summed over the groups that have row n.

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        left: Tensor,
        A: Tensor,
        weights_left: Tensor,
        noise: Tensor,
        known: CompressedStatistics,
    ) -> Tensor:
        ctx.save_for_backward(mean, left, A, weights_left, noise)
        draws = [_Algebra.of(_Rows(each, left, A, weights_left), noise, known) for each in mean]
        ctx.draws, ctx.known = draws if any(ctx.needs_input_grad) else [], known
        return torch.stack([draw.bound() for draw in draws])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        mean, left, A, weights_left, _ = ctx.saved_tensors
        wants_all = any(ctx.needs_input_grad[1:4])
        gradients = _Rows(*(torch.zeros_like(part) for part in (mean, left, A, weights_left)))
        by_noise = torch.zeros_like(upstream[0])
        for number, (draw, weight) in enumerate(zip(ctx.draws, upstream, strict=True)):
            rows = _Rows(mean[number], left, A, weights_left)
            total = _Rows(gradients.mean[number], *gradients[1:])
            _add_row_gradients(total, rows, draw, weight, wants_all)
            by_noise = by_noise + weight * draw.by_noise()
        rest = gradients[1:] if wants_all else (None, None, None)
        return gradients.mean, *rest, by_noise, None


def _add_row_gradients(total: _Rows, rows: _Rows, draw: _Algebra, weight: Tensor, wants_all: bool) -> None:
    """Adds the gradients of a draw's bound, times a weight, to those by the rows."""
    known = draw.known
    by_moments, by_traces = weight * draw.by_moments(), weight * draw.by_traces()
    in_all = [number for number, group in enumerate(known.group_rows) if group.is_missing]
    of_all = _SmallGradients(by_moments[in_all].sum(0), by_traces[in_all].sum())
    _pull_back(total, rows, slice(None), of_all, (weight * draw.by_products(), known.columns), wants_all)
    for number, group in enumerate(known.group_rows):
        if len(group.rows):
            sign = -1.0 if group.is_missing else 1.0
            own = _SmallGradients(sign * by_moments[number], sign * by_traces[number])
            _pull_back(total, rows, group.rows, own, None, wants_all)


class _SmallGradients(NamedTuple):
    moment: Tensor  #: by S, (mK, mK)
    trace: Tensor  #: by the trace, ()


def _pull_back(
    total: _Rows,
    rows: _Rows,
    which: slice | Tensor,
    by: _SmallGradients,
    by_products: tuple[Tensor, Tensor] | None,
    wants_all: bool,
) -> None:
    """Adds to the gradients by some rows what those by S, by the trace, and by P (with the columns) make of them."""
    K, m = rows.mean.shape[1], rows.weights.shape[1]
    blocks = by.moment.view(K, m, K, m).diagonal(dim1=0, dim2=2).sum(-1)  # Σ_k ∂S_kk
    numbers = torch.arange(len(rows.mean), device=rows.mean.device)[which]
    for some in numbers.split(_rows_at_once(K * m)):
        here: slice | Tensor = slice(int(some[0]), int(some[-1]) + 1) if isinstance(which, slice) else some
        part = rows.at(here)
        by_phi = 2.0 * features(part.mean, part.weights) @ by.moment
        if by_products is not None:
            by_phi += by_products[1][here] @ by_products[0].mT
        by_phi = by_phi.unflatten(1, (K, m))
        total.mean[here] += torch.einsum("nki,ni->nk", by_phi, part.weights) + (
            2.0 * by.trace * part.mean * part.weights_left.unsqueeze(-1)
        )
        if wants_all:
            of_blocks = part.weights @ blocks
            by_weights = torch.einsum("nki,nk->ni", by_phi, part.mean) + 2.0 * part.left.unsqueeze(-1) * of_blocks
            total.weights[here] += by_weights
            total.left[here] += (of_blocks * part.weights).sum(-1) + K * by.trace * part.weights_left
            total.weights_left[here] += by.trace * part.function_squares()


def features(mean: Tensor, weights: Tensor) -> Tensor:
    """``Φ``, ``(…, N, mK)``, of functions ``(…, N, K)`` and ``a`` of the weights, ``(N, m)``."""
    return (mean.unsqueeze(-1) * weights.unsqueeze(-2)).flatten(-2)


def _rows_at_once(n_weights: int) -> int:
    return max(1, BLOCK_NUMBERS // n_weights)


def _row_blocks(n_rows: int, n_weights: int) -> Iterator[slice]:
    size = _rows_at_once(n_weights)
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))
