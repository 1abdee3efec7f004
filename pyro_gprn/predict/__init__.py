"""Predictions at new inputs, whichever posterior they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from pyro_gprn.collapsed import CollapsedGPRN
from pyro_gprn.network import Network
from pyro_gprn.predict.base import PosteriorPredictive
from pyro_gprn.predict.collapsed import CollapsedPredictive
from pyro_gprn.predict.kronecker import KroneckerPredictive
from pyro_gprn.predict.weights import output_correlation, sample_weights

__all__ = [
    "CollapsedPredictive",
    "KroneckerPredictive",
    "PosteriorPredictive",
    "output_correlation",
    "posterior_predictive",
    "sample_weights",
]


def posterior_predictive(
    model: Network, posterior: Callable | Mapping[str, Tensor], X_new: Tensor, Y: Tensor | None = None, **settings: Any
) -> PosteriorPredictive:
    """Outputs at new inputs, given the data: an object with mean, variance, joint draws and log density.

    :param model: a :class:`~pyro_gprn.GPRN` or :class:`~pyro_gprn.CollapsedGPRN`.
    :param posterior: its guide, trained; for a collapsed model also draws of its sites, as from MCMC.
    :param X_new: ``(N*, P)``.
    :param Y: the data, if model and guide have not seen them.
    :param settings: ``n_draws`` of a collapsed model's mixture.

    >>> import torch
    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = GPRN(X, output_shape=(20, 30), n_latents=2)
    >>> predictive = posterior_predictive(model, KroneckerGuide(model), X[:5] + 0.05, Y=torch.ones(8, 20, 30))
    >>> predictive.mean().shape, predictive.variance(outputs=(3, slice(0, 10))).shape
    (torch.Size([5, 20, 30]), torch.Size([5, 10]))
    >>> predictive.sample(7, outputs=(3, [4, 5])).shape
    torch.Size([7, 5, 2])
    """
    kind: Any = CollapsedPredictive if isinstance(model, CollapsedGPRN) else KroneckerPredictive
    return kind(model, posterior, X_new, Y, **settings)
