"""A covariance between the outputs of a collapsed network, after the fit: what tells the missing numbers of a row.

Given its functions, the network takes outputs for independent. But two sensors that stand side by side share more than
a few functions tell, and where one of them is silent the other knows best. So outputs get a covariance B beside that of
the rows, as they get a scale each (output_scales.py), which is the diagonal of B::

    Y | F, B ~ MatrixNormal(0, C_F, B)

For a new row, none of whose outputs is known, this changes no mean. For the h numbers m that are missing in training
rows it does. With ``W = C_F^(−1/2)``, the symmetric root of its inverse, the rows of ``E = W Y`` are N independent
draws from Normal(0, B). With ``Ω = B⁻¹`` and Y⁰ the outputs with zeros for what is missing, the precision of missing
numbers (n, d) and (n', d') given all others is a part of that of all numbers, and::

    M = (W W)_nn' Ω_dd'     (h, h)          y_m | y_others ~ Normal(−M⁻¹ (W E⁰ Ω)_m, M⁻¹)     E⁰ = W Y⁰

Where each output has a kernel of its own, and so a C_F of its own, it has a root of its own::

    e_d = W_d y_d        M = (W_d W_d')_nn' Ω_dd'       (W_d (E⁰ Ω)_d)_m

B is found by expectation and maximisation: a draw of the missing numbers gives ``S = EᵀE / N``, and ::

    B ← (S + λ diag S) / (1 + λ)

λ shrinks the correlations. It is chosen by rows of E that are left out, of which every number is predicted from the
others of its row: by ``−Σ_e≠d Ω_de e_e / Ω_dd``, with variance ``1 / Ω_dd``. The errors of these predictions, over
their deviations, are taken for Student-t, with the degrees of freedom and the scale that make them most likely; and the
best λ is the one with the highest density of this kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import quiet_jitter, safe_cholesky
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.prediction.holes import FilledHoles
from pyro_gprn.prediction.scales import OutputScales, StudentMixture
from pyro_gprn.pyro_state import new_generator, white_noise

#: A covariance is learned for so many outputs, from at least so many rows. With fewer outputs it gained nothing over
#: coregionalised GPs, which are a candidate there (docs/training.md).
FEWEST_OUTPUTS, MOST_OUTPUTS, FEWEST_ROWS = 20, 300, 10
#: At most so much may be missing: a round takes a Cholesky factor of the missing numbers' precision.
MOST_MISSING = 4000
#: Draws of the functions over which the missing numbers are a mixture.
N_DRAWS = 8
#: Rounds of expectation and maximisation; S is averaged over those after the second number.
ROUNDS, FIRST_ROUNDS = 30, 10
#: Values of λ to choose from, and the one to begin with.
SHRINKAGES, FIRST_SHRINKAGE = (0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0, 100.0), 0.1
#: Folds of rows that are left out to choose it.
N_FOLDS = 5
#: Degrees of freedom to choose from.
DEGREES = (3.0, 4.0, 6.0, 10.0, 30.0, math.inf)
#: A variance of B is at least this share of the mean variance.
LEAST_SHARE = 1e-8


class OutputCovariance(NamedTuple):
    """The covariance between outputs, and the distribution of what it predicts.

    Where it says ``Normal(m, v)``, a number is Student-t with location m and scale ``√(spread v)``.
    """

    matrix: Tensor  #: B, (D, D)
    shrinkage: float  #: λ
    degrees: float  #: of freedom; infinity is a Gaussian
    spread: float  #: what variances are multiplied by


@dataclass(frozen=True)
class MissingNumbers:
    """The missing numbers of outputs.

    :param values: the outputs with zeros for what is missing, Y⁰, ``(N, D)``.
    :param observed: False where a number is missing, ``(N, D)``.

    >>> missing = MissingNumbers(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[True, True], [True, False]]))
    >>> missing.rows, missing.outputs
    (tensor([1]), tensor([1]))
    """

    values: Tensor
    observed: Tensor

    @classmethod
    def of(cls, known: OutputStatistics) -> MissingNumbers | None:
        """Those of outputs with these statistics.

        None if nothing is missing, if there are too few or too many outputs, too few rows or too many missing numbers
        for a covariance between outputs, and if Y is not in memory.
        """
        n_rows, n_outputs = known.source.n_rows, known.source.n_outputs
        is_small = FEWEST_OUTPUTS <= n_outputs <= MOST_OUTPUTS and n_rows >= FEWEST_ROWS
        if known.is_complete or not is_small or not known.source.is_in_memory:
            return None
        everything = slice(None)
        missing = cls(known.values_at(everything), known.observed[known.patterns_at(everything)].mT)
        return missing if len(missing.rows) <= MOST_MISSING else None

    @cached_property
    def rows(self) -> Tensor:
        """The row of each, ``(h,)``."""
        return self._places[:, 0]

    @cached_property
    def outputs(self) -> Tensor:
        """The output of each, ``(h,)``."""
        return self._places[:, 1]

    @cached_property
    def _places(self) -> Tensor:
        return (~self.observed).nonzero()

    def given(self, roots: Tensor, B: Tensor) -> MissingGiven:
        """Their Gaussian given the others.

        :param roots: W, one for all outputs, ``(1, N, N)``, or one for each, ``(D, N, N)``.
        :param B: the covariance between outputs, ``(D, D)``.
        """
        precision = torch.cholesky_inverse(safe_cholesky(B, name="the covariance between outputs"))
        columns = roots[self.outputs % len(roots), self.rows]  # of the missing numbers, (h, N)
        M = (columns @ columns.mT) * precision[self.outputs.unsqueeze(1), self.outputs]
        root = safe_cholesky(M, name="the precision of missing numbers")
        pulled = whiten(roots, self.values) @ precision  # (N, D)
        pull = (columns * pulled.mT[self.outputs]).sum(-1)
        mean = -torch.cholesky_solve(pull.unsqueeze(-1), root).squeeze(-1)
        return MissingGiven(self, roots, root, mean)


@dataclass(frozen=True)
class MissingGiven:
    """The Gaussian of the missing numbers given all others.

    :param missing: the missing numbers.
    :param roots: W, ``(1 or D, N, N)``.
    :param root: the Cholesky factor of their precision M, ``(h, h)``.
    :param mean: ``(h,)``.
    """

    missing: MissingNumbers
    roots: Tensor
    root: Tensor
    mean: Tensor

    def variance(self) -> Tensor:
        """``(h,)``."""
        return torch.cholesky_inverse(self.root).diagonal()

    def deviations(self, white: Tensor) -> Tensor:
        """Draws less their mean, joint over the missing numbers, from white noise, ``(h, …)`` each."""
        return torch.linalg.solve_triangular(self.root.mT, white, upper=True)

    def innovations(self, generator: torch.Generator | None) -> Tensor:
        """``E`` for two draws of the missing numbers that mirror each other about their mean, ``(2, N, D)``."""
        missing = self.missing
        drawn = self.deviations(white_noise(len(self.mean), 1, like=self.mean, generator=generator)).squeeze(-1)
        Y = missing.values.expand(2, -1, -1).clone()
        Y[:, missing.rows, missing.outputs] = torch.stack([self.mean + drawn, self.mean - drawn])
        return whiten(self.roots, Y)


def inverse_roots(C: Tensor) -> Tensor:
    """``C^(−1/2)``, symmetric, of covariances ``(…, N, N)``."""
    eigenvalues, vectors = torch.linalg.eigh(C)
    least = torch.finfo(C.dtype).eps * eigenvalues[..., -1:]
    return (vectors * eigenvalues.clamp(min=least).rsqrt().unsqueeze(-2)) @ vectors.mT


def whiten(roots: Tensor, Y: Tensor) -> Tensor:
    """``W_d y_d`` of each output, in the shape of ``Y``, ``(…, N, D)``.

    :param roots: one for all outputs, ``(1, N, N)``, or one for each, ``(D, N, N)``.
    """
    if len(roots) == 1:
        return roots[0] @ Y
    return torch.einsum("dnm,...md->...nd", roots, Y)


@torch.no_grad()
def fill_holes(missing: MissingNumbers, roots: Tensor, between: OutputCovariance) -> FilledHoles:
    """The missing numbers, as a mixture over draws of the functions.

    :param roots: W of these draws, ``(s, 1 or D, N, N)``.
    :param between: the covariance between outputs.
    """
    with quiet_jitter():
        each = [missing.given(of_draw, between.matrix) for of_draw in roots]
        location, variance = torch.stack([g.mean for g in each]), torch.stack([g.variance() for g in each])
    degrees = location.new_tensor(between.degrees)
    scales = OutputScales(degrees.expand(len(missing.rows)), torch.full_like(location[0], between.spread), math.inf)

    def draw(component: int, n: int, generator: torch.Generator | None) -> Tensor:
        with quiet_jitter():
            given = missing.given(roots[component], between.matrix)
        white = white_noise(len(given.mean), n, like=given.mean, generator=generator)
        return given.mean + given.deviations(white).mT * scales.draw((n,), generator)

    mixture = StudentMixture(location, (between.spread * variance).sqrt(), degrees)
    return FilledHoles(missing.rows, missing.outputs, mixture, draw)


@torch.no_grad()
def learn_output_covariance(missing: MissingNumbers, roots: Tensor) -> OutputCovariance:
    """Finds the covariance between outputs.

    :param missing: the outputs and what is missing of them.
    :param roots: W of some draws of the functions, ``(s, 1 or D, N, N)``. A round takes those of one draw.

    >>> noise = torch.randn(60, 3, generator=new_generator(0), dtype=torch.float64)
    >>> Y = noise + noise[:, :1]  # the last two outputs have a correlation of 0.5 ** 0.5 with the first
    >>> seen = torch.rand(60, 3, generator=new_generator(1)) > 0.1
    >>> found = learn_output_covariance(MissingNumbers(Y * seen, seen), torch.eye(60)[None, None].double())
    >>> 0.5 < found.matrix[0, 1] / (found.matrix[0, 0] * found.matrix[1, 1]).sqrt() < 0.85
    tensor(True)
    """
    generator, shrinkage = new_generator(0), FIRST_SHRINKAGE
    values, n_rows = missing.values, len(missing.values)
    variance = values.square().sum(0) / missing.observed.sum(0)
    least = (LEAST_SHARE * variance.mean()).clamp(min=torch.finfo(variance.dtype).tiny)
    B, average = torch.diag(variance.clamp(min=least)), torch.zeros_like(variance).diag()
    innovations = values
    with quiet_jitter():
        for number in range(ROUNDS):
            both = missing.given(roots[number % len(roots)], B).innovations(generator)
            innovations = both[0]
            S = (both.mT @ both).mean(0) / n_rows
            average = average + (S - average) / max(1, number - FIRST_ROUNDS + 1)
            if number in (FIRST_ROUNDS // 2, FIRST_ROUNDS, ROUNDS // 2):
                shrinkage = max(SHRINKAGES, key=lambda each: _Student.of(*left_out_errors(innovations, each)).density)
            B = shrink(average, shrinkage, least)
        student = _Student.of(*left_out_errors(innovations, shrinkage))
    return OutputCovariance(B, shrinkage, student.degrees, student.spread)


def shrink(S: Tensor, shrinkage: float, least: Tensor | float = 0.0) -> Tensor:
    """``(S + λ diag S) / (1 + λ)``, with a diagonal of at least ``least``.

    >>> shrink(torch.tensor([[1.0, 0.8], [0.8, 1.0]]), 1.0)
    tensor([[1.0000, 0.4000],
            [0.4000, 1.0000]])
    """
    diagonal = S.diagonal()
    shrunk = S / (1.0 + shrinkage)
    return shrunk + torch.diag(diagonal.clamp(min=least) - diagonal / (1.0 + shrinkage))


def left_out_errors(E: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Rows ``E``, ``(N, D)``, left out in folds, each number predicted from the others of its row.

    :returns: the errors over their deviations, and the deviations, ``(N, D)`` each.
    """
    errors, deviations = torch.empty_like(E), torch.empty_like(E)
    folds = torch.randperm(len(E), generator=new_generator(0), device="cpu").to(E.device) % N_FOLDS
    for fold in range(N_FOLDS):
        left_out, some = folds == fold, E[folds != fold]
        B = shrink(some.mT @ some / len(some), shrinkage, torch.finfo(E.dtype).tiny)
        precision = torch.cholesky_inverse(safe_cholesky(B, name="the covariance between outputs"))
        deviation = precision.diagonal().rsqrt()
        errors[left_out], deviations[left_out] = (E[left_out] @ precision) * deviation, deviation
    return errors, deviations


class _Student(NamedTuple):
    """The Student-t distribution under which errors are most likely."""

    density: float  #: the mean log density
    degrees: float  #: of freedom
    spread: float  #: the squared scale

    @classmethod
    def of(cls, errors: Tensor, deviations: Tensor) -> _Student:
        """From errors over deviations, and deviations, each of any shape."""
        fits = [(degrees, _spread(errors, degrees)) for degrees in DEGREES]
        return max(cls(_density(errors, *fit) - deviations.log().mean().item(), *fit) for fit in fits)


def _density(errors: Tensor, degrees: float, spread: float) -> float:
    student = StudentMixture(errors.new_zeros(1, 1, 1), errors.new_tensor(spread).sqrt(), errors.new_tensor(degrees))
    return student.log_density_by_component(errors).mean().item()


def _spread(errors: Tensor, degrees: float) -> float:
    """The squared scale with the highest likelihood, by rounds of weighted means."""
    squares = errors.square()
    spread = squares.mean()
    if math.isinf(degrees):
        return spread.item()
    for _ in range(30):
        spread = (squares * (degrees + 1.0) / (degrees + squares / spread)).mean()
    return spread.item()
