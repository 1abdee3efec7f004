"""The outputs given F where nearly every output has holes of its own.

One N×N factor serves all outputs. With P = C_F⁻¹ of all rows, y⁰ an output with zeros in its holes, m the rows that it
misses and z = P y⁰, the holes given what was observed are Gaussian::

    y_m | y_o, F ~ Normal(−P_mm⁻¹ z_m, P_mm⁻¹)

With ỹ the output whose holes are filled with these means, everything else follows (o are the rows that it has)::

    y_oᵀ C_oo⁻¹ y_o = ỹᵀ P ỹ     log|C_oo| = log|C_F| + log|P_mm|     C_oo⁻¹ y_o = [P ỹ]_o, and [P ỹ]_m = 0

and C_oo⁻¹ itself, with zeros in the holes, is ``P − P_:m P_mm⁻¹ P_m:``. The gradient of the log density is that of
complete outputs whose Gram matrix is the expected one given what was observed (Fisher's identity): ``G̃ + S``, with
``G̃ = Σ_d ỹ_d ỹ_dᵀ`` and S the sum of all ``P_mm⁻¹``, each put in its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import identity_like, safe_cholesky
from pyro_gprn.collapsed.likelihood import (
    COVARIANCE,
    Coefficients,
    LeftOutRows,
    MeanPrecision,
    OutputsGivenF,
    mean_precision,
    outputs_given,
    without_diagonal,
)
from pyro_gprn.outputs.holes import Holes, holes_of
from pyro_gprn.outputs.scattered import ScatteredStatistics

#: How many numbers an array may hold over several draws or several outputs.
_MOST_NUMBERS = 2**22


class HolesGivenF:
    """What a block of ``p`` outputs misses, given F and what they have: a Gaussian for each output.

    :param precision: ``P = C_F⁻¹`` of all rows, ``(*batch, N, N)``.
    :param holes: the rows that the outputs miss, up to ``h`` each.

    >>> precision = torch.tensor([[2.0, -1.0], [-1.0, 2.0]], dtype=torch.float64)
    >>> holes = holes_of(torch.tensor([[True, False]]))[0]
    >>> HolesGivenF(precision, holes).fill(torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    tensor([[3.0000, 1.5000]], dtype=torch.float64)
    """

    def __init__(self, precision: Tensor, holes: Holes) -> None:
        self._precision, self.holes = precision, holes

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factors of ``P_mm``, ``(*batch, p, h, h)``; the identity in rows that are no holes."""
        n_outputs, size = self.holes.rows.shape
        with_ones = torch.nn.functional.pad(self._precision, (0, size, 0, size))
        with_ones.diagonal(dim1=-2, dim2=-1)[..., self.holes.n_rows :] = 1.0
        at_holes = _gather(with_ones.flatten(-2), self.holes.pairs).unflatten(-1, (n_outputs, size, size))
        return safe_cholesky(at_holes, name="the precision of missing outputs")

    @cached_property
    def covariance(self) -> Tensor:
        """``P_mm⁻¹``, ``(*batch, p, h, h)``; the identity in rows that are no holes."""
        identity = identity_like(self.factor.shape[-1], self.factor)
        half = torch.linalg.solve_triangular(self.factor, identity, upper=False)  # torch.cholesky_inverse takes longer
        return half.mT @ half

    def log_det(self) -> Tensor:
        """``log|P_mm|``, ``(*batch, p)``."""
        return 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def fill(self, columns: Tensor) -> Tensor:
        """The outputs with their holes filled with the means, ``(*batch, p, N)``.

        :param columns: the outputs, zero where missing, ``(p, N)``.
        """
        solved = columns @ self._precision
        rows = self.holes.rows.expand(*solved.shape[:-2], -1, -1)
        at_holes = (solved.gather(-1, rows) * self.holes.is_hole).unsqueeze(-1)
        means = -(self.covariance @ at_holes).squeeze(-1)
        return columns.expand_as(solved).scatter_add(-1, rows, means)

    def half(self, matrix: Tensor) -> Tensor:
        """``L⁻¹ A_m:`` with ``P_mm = L Lᵀ``, ``(*batch, p, h, M)``, for a matrix ``A``, ``(*batch, N, M)``.

        So that ``A_m:ᵀ P_mm⁻¹ B_m:`` is the product of two of these.
        """
        at_holes = matrix[..., self.holes.rows, :] * self.holes.is_hole.unsqueeze(-1)
        return torch.linalg.solve_triangular(self.factor, at_holes, upper=False)

    def sum_of_covariances(self, counts: Tensor) -> Tensor:
        """``Σ_d n_d P_mm⁻¹``, each put in its rows, ``(*batch, N, N)``, for ``n_d`` ``(p,)``."""
        n_rows, size = self.holes.n_rows, self.holes.n_rows + self.holes.rows.shape[1]
        terms = (self.covariance * counts[:, None, None]).flatten(-3)
        total = torch.zeros(*terms.shape[:-1], size**2, dtype=terms.dtype, device=terms.device)
        total = total.scatter_add(-1, self.holes.pairs.expand_as(terms), terms)
        return total.unflatten(-1, (size, size))[..., :n_rows, :n_rows]


class Expected(NamedTuple):
    """What all outputs are expected to be, holes and all, given F and what was observed."""

    gram: Tensor  #: G̃ = Σ_d ỹ_d ỹ_dᵀ, (*batch, N, N)
    spread: Tensor  #: S, the sum of the covariances of the holes, (*batch, N, N)
    log_det: Tensor  #: Σ_d log|P_mm|, batch

    @classmethod
    def of(cls, precision: Tensor, known: ScatteredStatistics, *, with_spread: bool = True) -> Expected:
        """By ``P = C_F⁻¹`` of all rows, ``(*batch, N, N)``; S is needed for the score only, and zero if left out."""
        gram, spread = known.complete.expand(precision.shape), torch.zeros_like(precision)
        log_det = torch.zeros_like(precision[..., 0, 0])
        for holes, columns, counts in known.blocks:
            given = HolesGivenF(precision, holes)
            filled = given.fill(columns)
            gram = gram + filled.mT @ filled
            if with_spread:
                spread = spread + given.sum_of_covariances(counts)
            log_det = log_det + given.log_det() @ counts
        return cls(gram, spread, log_det)


class ScatteredOutputsGivenF(OutputsGivenF):
    """All outputs given draws of F, by their scattered holes.

    >>> from pyro_gprn.outputs.gram import OutputStatistics
    >>> Y = torch.zeros(3, 10, dtype=torch.float64)
    >>> Y[[0, 1, 2], [4, 4, 7]] = torch.tensor([torch.nan, 1.0, torch.nan], dtype=torch.float64)
    >>> known = OutputStatistics.of(Y, scattered=True)
    >>> outputs_given(known, torch.eye(3, dtype=torch.float64)).log_density()
    tensor(-26.2303, dtype=torch.float64)
    """

    known: ScatteredStatistics

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factor of ``C_F``, ``(*batch, N, N)``."""
        return safe_cholesky(self.covariance, name=COVARIANCE)

    @cached_property
    def inverse(self) -> Tensor:
        """``P = C_F⁻¹`` of all rows, ``(*batch, N, N)``."""
        return torch.cholesky_inverse(self.factor)

    @cached_property
    def _expected(self) -> Expected:
        return Expected.of(self.inverse, self.known)

    def log_density(self) -> Tensor:
        if torch.is_grad_enabled() and self.covariance.requires_grad:
            return _LogDensity.apply(self.covariance, self.known)
        expected = vars(self).get("_expected")  # there already if the score was asked for
        if expected is None:
            expected = Expected.of(self.inverse, self.known, with_spread=False)
        return _log_density(self.factor, self.inverse, expected, self.known)

    def score(self) -> Tensor:
        return _score(self.inverse, self._expected, self.known)

    def _inverse_of_observed(self) -> tuple[Tensor, Tensor]:
        # The Gauss-Newton Hessian is quadratic in the precision: we take that of the outputs' average precision,
        # P − P S P / D, for the average of theirs. It is a little smaller, and exact for complete outputs.
        n_outputs = self.known.counts.new_tensor([self.known.n_outputs])
        average = self.inverse - self.inverse @ self._expected.spread @ self.inverse / n_outputs
        return average.unsqueeze(-3), n_outputs

    def log_density_by_row(self) -> Tensor:
        # As for groups, with the output's own Q = P − P_:m P_mm⁻¹ P_m: in place of C⁻¹.
        P, known = self.inverse, self.known
        precision = P.diagonal(dim1=-2, dim2=-1)
        squares = (P @ known.complete @ P).diagonal(dim1=-2, dim2=-1)
        result = 0.5 * (known.n_complete * (precision / (2 * math.pi)).log() - squares / precision)
        for holes, columns, counts in known.blocks:
            given = HolesGivenF(P, holes)
            diagonal = self._diagonal(given)
            squares = (given.fill(columns) @ P).square()
            each = 0.5 * (counts.unsqueeze(-1) * (diagonal / (2 * math.pi)).log() - squares / diagonal)
            result = result + torch.where(holes.observed, each, 0.0).sum(-2)
        return result

    def _diagonal(self, given: HolesGivenF) -> Tensor:
        """The diagonal of ``C_oo⁻¹`` for a block of outputs, ``(*batch, p, N)``; 1 in missing rows."""
        diagonal = self.inverse.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) - given.half(self.inverse).square().sum(-2)
        return torch.where(given.holes.observed, diagonal, 1.0)

    def predict(self, cross: Tensor) -> Coefficients:
        """The Gaussian of complete outputs in new rows, as one group; see :class:`HolesGivenF` for what holes change.

        :param cross: ``k``, the covariance of new rows with training rows, ``(*batch, N*, N)``.
        """
        half = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        coefficients = torch.linalg.solve_triangular(self.factor.mT, half, upper=True).mT
        return Coefficients(coefficients.unsqueeze(-3), half.unsqueeze(-3))

    def predict_left_out(self, cross: Tensor, positions: slice | Tensor) -> LeftOutRows:
        # With Q = P − P_:m P_mm⁻¹ P_m: of an output, the coefficients of row n are  Q k_n − Q_:n (Q k_n)_n / Q_nn, so
        #   mean = k_n·Qy − (Qy)_n (Q k_n)_n / Q_nn     explained = k_nᵀ Q k_n − (Q k_n)_n² / Q_nn     Qy = P ỹ
        # where the terms with Q_nn are left out if the output misses row n.
        P, k = self.inverse, without_diagonal(cross)
        W = k @ P
        values = self.known.values_at(positions)
        mean, explained = (P.new_empty(*P.shape[:-2], *values.shape) for _ in range(2))
        for holes in self._holes_at(positions):
            given = HolesGivenF(P, holes)
            solved = given.fill(values[:, holes.members].mT) @ P  # (*batch, p, N)
            half_P, half_W = given.half(P), given.half(W.mT)
            own = W.diagonal(dim1=-2, dim2=-1).unsqueeze(-2) - (half_P * half_W).sum(-2)
            own = torch.where(holes.observed, own, 0.0)
            ratio = own / self._diagonal(given)
            mean[..., holes.members] = (solved @ k.mT - solved * ratio).mT
            all_rows = (k * W).sum(-1).unsqueeze(-2) - half_W.square().sum(-2)
            explained[..., holes.members] = (all_rows - own * ratio).mT
        return LeftOutRows(mean, explained)

    def solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        result = self.covariance.new_empty(*self.covariance.shape[:-2], *values.shape)
        for holes in self._holes_at(positions):
            solved = HolesGivenF(self.inverse, holes).fill(values[:, holes.members].mT) @ self.inverse
            result[..., holes.members] = torch.where(holes.observed, solved, 0.0).mT
        return result

    def precision_at(self, positions: slice | Tensor) -> Tensor:
        n_outputs = len(self.known.patterns_at(positions))
        result = self.covariance.new_empty(*self.covariance.shape[:-1], n_outputs)
        for holes in self._holes_at(positions):
            result[..., holes.members] = self._diagonal(HolesGivenF(self.inverse, holes)).mT
        return result

    def _holes_at(self, positions: slice | Tensor) -> list[Holes]:
        return holes_of(self.known.observed[self.known.patterns_at(positions)])

    def whitened_gram(self) -> Tensor:
        """``Σ_d L_d⁻¹ y_d y_dᵀ L_d⁻ᵀ`` with ``L_d`` the factor of the output's covariance, ``(N, N)``, for one draw.

        It takes an N×N factor for each output with holes, a few at a time. A fit asks for it once.
        """
        half = torch.linalg.solve_triangular(self.factor, self.known.complete, upper=False)
        total = torch.linalg.solve_triangular(self.factor, half.mT, upper=False)
        at_once = max(1, _MOST_NUMBERS // self.covariance.numel())
        seen = self.known.observed[self.known.pattern_of_column].to(self.covariance)
        for some, columns in zip(seen.split(at_once), self.known.columns.split(at_once), strict=True):
            each = self.covariance * some.unsqueeze(-1) * some.unsqueeze(-2) + torch.diag_embed(1.0 - some)
            factor = safe_cholesky(each, name=COVARIANCE)
            whitened = torch.linalg.solve_triangular(factor, columns.unsqueeze(-1), upper=False).squeeze(-1)
            total = total + whitened.mT @ whitened
        return total


class ScatteredMeanPrecision(MeanPrecision):
    """``C_oo⁻¹`` of each output, averaged over draws of F, which are added one by one."""

    def __init__(self, known: ScatteredStatistics) -> None:
        self._known, self._draws = known, list[Tensor]()

    def add(self, covariance: Tensor) -> None:
        self._draws.append(covariance)

    def solve(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        return self._average(values.shape[1], lambda given: given.solve(values, positions))

    def diagonal(self, positions: slice | Tensor) -> Tensor:
        n_outputs = len(self._known.patterns_at(positions))
        return self._average(n_outputs, lambda given: given.precision_at(positions))

    def _average(self, n_outputs: int, of: Callable[[ScatteredOutputsGivenF], Tensor]) -> Tensor:
        """The average over draws of what is ``(s, N, b)`` for several, as many together as there is room for."""
        draws = torch.stack(self._draws)
        at_once = max(1, _MOST_NUMBERS // (draws.shape[-1] * max(1, n_outputs)))
        parts = [of(ScatteredOutputsGivenF(some, self._known)).sum(0) for some in draws.split(at_once)]
        return torch.stack(parts).sum(0) / len(draws)


outputs_given.register(ScatteredStatistics, lambda known, covariance: ScatteredOutputsGivenF(covariance, known))
mean_precision.register(ScatteredStatistics, ScatteredMeanPrecision)


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """Some of the last dimension, ``(*batch, n)`` for an index ``(n,)``: several times faster than by brackets."""
    return values.gather(-1, index.expand(*values.shape[:-1], -1))


def _log_density(factor: Tensor, inverse: Tensor, expected: Expected, known: ScatteredStatistics) -> Tensor:
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    # Σ ỹᵀPỹ, and not y⁰ᵀPy⁰ − z_mᵀP_mm⁻¹z_m: outputs with zeros in their holes are rough, and these two terms, huge
    # where there is little noise, would cancel.
    squares = (inverse * expected.gram).sum((-2, -1))
    constants = known.n_observed * math.log(2 * math.pi)
    return -0.5 * (constants + known.n_outputs * log_det + expected.log_det + squares)


def _score(inverse: Tensor, expected: Expected, known: ScatteredStatistics) -> Tensor:
    """``∂/∂C = ½ (P (G̃ + S) P − D P)``, ``(*batch, N, N)``."""
    return 0.5 * (inverse @ (expected.gram + expected.spread) @ inverse - known.n_outputs * inverse)


class _LogDensity(torch.autograd.Function):
    """The log density with its gradient by hand."""

    @staticmethod
    def forward(ctx: Any, covariance: Tensor, known: ScatteredStatistics) -> Tensor:
        factor = safe_cholesky(covariance, name=COVARIANCE)
        inverse = torch.cholesky_inverse(factor)
        expected = Expected.of(inverse, known)
        ctx.save_for_backward(covariance, inverse, *expected)
        ctx.known = known
        return _log_density(factor, inverse, expected, known)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        covariance, inverse, *parts = ctx.saved_tensors
        expected = Expected(*parts)
        if torch.is_grad_enabled():  # for second derivatives all must remember where they came from
            inverse = torch.linalg.inv(covariance)
            expected = Expected.of(inverse, ctx.known)
        return upstream[..., None, None] * _score(inverse, expected, ctx.known), None
