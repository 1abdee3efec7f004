"""Missing outputs filled by what the other outputs say, where outputs are few: something to start from."""

from __future__ import annotations

import torch
from torch import Tensor

#: Outputs are filled if they are at most so many, and rows at least so many times as many.
MOST_OUTPUTS, ROWS_PER_OUTPUT = 50, 4
#: Rounds of expectation and maximisation.
ROUNDS = 20
#: Share of the outputs' variances that is added to them, so that none is taken for a combination of the others.
RIDGE = 0.02
#: The least variance of an output, as a share of their mean: a constant one has a covariance that can be solved.
LEAST_SHARE = 1e-6


def can_complete(n_rows: int, n_outputs: int) -> bool:
    """Whether outputs are few enough to tell their covariance from the rows.

    >>> can_complete(100, 5), can_complete(100, 60)
    (True, False)
    """
    return n_outputs <= MOST_OUTPUTS and n_outputs * ROWS_PER_OUTPUT <= n_rows


def complete(values: Tensor, observed: Tensor) -> Tensor:
    """Outputs with what is missing filled by its expectation, given what is observed in the same row.

    Rows are taken for independent draws of a Gaussian with mean zero, whose covariance between outputs is found by
    expectation and maximisation (Dempster, Laird and Rubin 1977).

    :param values: centred outputs, ``(N, D)``; what stands where one is missing does not matter.
    :param observed: True where an output was observed, ``(N, D)``.

    >>> first = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.2]).double()
    >>> Y = torch.stack([first, 2 * first], 1)
    >>> seen = torch.ones(6, 2, dtype=torch.bool)
    >>> seen[3, 1] = False
    >>> 5.5 < complete(Y, seen)[3, 1] < 6
    tensor(True)
    """
    filled = torch.where(observed, values, 0.0)
    variance = filled.square().sum(0) / observed.sum(0).clamp(min=1)
    least = (LEAST_SHARE * variance.mean()).clamp(min=torch.finfo(values.dtype).tiny)
    covariance = torch.diag(variance.clamp(min=least))
    patterns, pattern_of = observed.unique(dim=0, return_inverse=True)
    for _ in range(ROUNDS):
        unknown = torch.zeros_like(covariance)  # the covariance of what was filled, summed over rows
        for number, seen in enumerate(patterns):
            rows, known, missing = (pattern_of == number).nonzero(), seen.nonzero()[:, 0], (~seen).nonzero()[:, 0]
            between = covariance[known][:, missing]
            coefficients = torch.linalg.solve(covariance[known][:, known], between)
            filled[rows, missing] = filled[rows, known] @ coefficients
            left = covariance[missing][:, missing] - between.mT @ coefficients
            unknown[missing[:, None], missing] += len(rows) * left
        covariance = (filled.mT @ filled + unknown) / len(values)
        covariance.diagonal().mul_(1.0 + RIDGE).clamp_(min=least)
    return filled
