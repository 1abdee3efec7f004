"""Scores of predictions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def nrmse(prediction: Tensor, truth: Tensor) -> float:
    """The root-mean-square error divided by the standard deviation of the truth, both over all entries.

    :param prediction: predicted means, of any shape.
    :param truth: true values, of the same shape.

    >>> import torch
    >>> nrmse(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
    1.0
    """
    return ((prediction - truth).square().mean().sqrt() / truth.std(correction=0)).item()


def coverage(draws: Tensor, truth: Tensor, level: float = 0.95) -> float:
    """The share of true values that lie inside the central intervals of predictive draws.

    :param draws: ``(n_draws, *truth.shape)``.
    :param truth: true values, of any shape.
    :param level: the probability that each interval should contain.

    >>> import torch
    >>> coverage(torch.linspace(0, 1, 101)[:, None], torch.tensor([0.5]), level=0.9)
    1.0
    """
    tail = (1 - level) / 2
    lower, upper = draws.quantile(tail, dim=0), draws.quantile(1 - tail, dim=0)
    return ((lower <= truth) & (truth <= upper)).double().mean().item()


def gaussian_crps(mean: Tensor, deviation: Tensor, truth: Tensor) -> Tensor:
    """The continuous ranked probability score of Gaussian predictions, in the units of the truth; lower is better.

    It is the absolute error of a prediction that is certain, and rewards one that knows how uncertain it is.

    :param mean: of any shape.
    :param deviation: standard deviations, of the same shape.
    :param truth: true values, of the same shape.

    >>> gaussian_crps(torch.zeros(2), torch.tensor([1e-6, 1.0]), torch.ones(2))
    tensor([1.0000, 0.6024])
    """
    # E|y − t| − ½ E|y − y'| = σ [ z (2Φ(z) − 1) + 2φ(z) − 1/√π ]     z = (t − μ)/σ
    z = (truth - mean) / deviation
    spread = torch.erf(z / math.sqrt(2.0))  # 2Φ(z) − 1
    density = torch.exp(-0.5 * z.square()) * math.sqrt(2.0 / math.pi)
    return deviation * (z * spread + density - 1.0 / math.sqrt(math.pi))
