"""How good predictions are."""

from __future__ import annotations

from torch import Tensor


def nrmse(prediction: Tensor, truth: Tensor) -> float:
    """Root-mean-square error over the standard deviation of the truth (over all its entries).

    >>> import torch
    >>> nrmse(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
    1.0
    """
    return ((prediction - truth).square().mean().sqrt() / truth.std(correction=0)).item()


def coverage(draws: Tensor, truth: Tensor, level: float = 0.95) -> float:
    """How much of the truth lies in the central intervals of predictive draws.

    :param draws: ``(n_draws, *truth.shape)``.
    :param level: probability that an interval should hold.

    >>> import torch
    >>> coverage(torch.linspace(0, 1, 101)[:, None], torch.tensor([0.5]), level=0.9)
    1.0
    """
    tail = (1 - level) / 2
    lower, upper = draws.quantile(tail, dim=0), draws.quantile(1 - tail, dim=0)
    return ((lower <= truth) & (truth <= upper)).double().mean().item()
