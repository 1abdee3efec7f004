"""Scores of predictions."""

from __future__ import annotations

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
