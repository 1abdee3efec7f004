"""Scores of predictions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: The probability that an interval should hold.
LEVEL = 0.95


def nrmse(prediction: Tensor, truth: Tensor) -> float:
    """The root-mean-square error divided by the standard deviation of the truth, both over all entries.

    :param prediction: predicted means, of any shape.
    :param truth: true values, of the same shape.

    >>> import torch
    >>> nrmse(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 2.0]))
    1.0
    """
    return ((prediction - truth).square().mean().sqrt() / truth.std(correction=0)).item()


def coverage(draws: Tensor, truth: Tensor, level: float = LEVEL) -> float:
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


def crps_of_draws(draws: Tensor, truth: Tensor) -> Tensor:
    """The continuous ranked probability score of a prediction that is known by its draws: an unbiased estimate.

    :param draws: ``(n, *truth.shape)``, at least two.
    :param truth: true values, of any shape.

    >>> crps_of_draws(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0]))
    tensor([0.])
    """
    # E|x − y| − ½ E|x − x'| over different draws, and Σ_{i<j} (x_(j) − x_(i)) = Σ_i (2 i − n + 1) x_(i), with i from 0
    n = len(draws)
    ranks = 2 * torch.arange(n, device=draws.device, dtype=draws.dtype) - n + 1
    between = torch.tensordot(ranks, draws.sort(0).values, dims=1) / (n * (n - 1))
    return (draws - truth).abs().mean(0) - between


class Judged(NamedTuple):
    """A prediction beside the truth: what its scores are made of, each of the shape of the truth, in its units."""

    mean: Tensor
    log_density: Tensor  #: of the truth
    crps: Tensor  #: continuous ranked probability score
    lower: Tensor  #: the lower end of the central 95 % interval
    upper: Tensor  #: its upper end


def judge_gaussian(mean: Tensor, deviation: Tensor, truth: Tensor) -> Judged:
    """Independent Gaussians beside the truth, in closed form.

    :param mean: of any shape.
    :param deviation: standard deviations, which broadcast to that. (Less than 1e-9 counts as that.)
    :param truth: true values, of the same shape.

    >>> judged = judge_gaussian(torch.zeros(1), torch.ones(1), torch.zeros(1))
    >>> judged.log_density, judged.upper
    (tensor([-0.9189]), tensor([1.9600]))
    """
    deviation = deviation.clamp(min=1e-9).expand(mean.shape)
    reach = torch.special.ndtri(deviation.new_tensor(0.5 + LEVEL / 2)) * deviation
    log_density = -0.5 * ((truth - mean) / deviation).square() - deviation.log() - 0.5 * math.log(2 * math.pi)
    return Judged(mean, log_density, gaussian_crps(mean, deviation, truth), mean - reach, mean + reach)


def mean_scores(judged: Judged, truth: Tensor, chosen: Tensor) -> dict[str, float]:
    """The scores of a prediction by their names, means over the chosen entries.

    ``rmse`` is the root-mean-square error divided by the root mean square of the truth, so that a prediction of zero,
    the mean of centred outputs, has 1. ``mae`` is the mean absolute error, ``nlpd`` the mean negative log density,
    ``crps`` the continuous ranked probability score, ``coverage`` the share of the truth in central 95 % intervals.

    :param truth: true values, of any shape.
    :param chosen: which of them count, boolean, of the same shape.

    >>> truth = torch.tensor([1.0, -1.0])
    >>> mean_scores(judge_gaussian(torch.zeros(2), torch.ones(2), truth), truth, truth.bool())["rmse"]
    1.0
    """
    error, truth = (judged.mean - truth)[chosen], truth[chosen]
    inside = (judged.lower[chosen] <= truth) & (truth <= judged.upper[chosen])
    known = ~judged.lower[chosen].isnan()
    return {
        "rmse": (error.square().mean().sqrt() / truth.square().mean().sqrt()).item(),
        "mae": error.abs().mean().item(),
        "nlpd": -judged.log_density[chosen].mean().item(),
        "crps": judged.crps[chosen].mean().item(),
        "coverage": inside.double().mean().item() if known.all() else math.nan,
    }
