"""Data drawn from the model itself, with the truth behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_gprn.factorised.model import GPRN
from pyro_gprn.pyro_state import isolated, own_randomness


class GPRNSample(NamedTuple):
    """A draw from the network's prior, all float64."""

    X: Tensor  #: inputs, ``(n, P)``
    Y: Tensor  #: outputs, ``(n, d_1, …, d_M)``
    F: Tensor  #: latent functions, ``(n, K)``
    W: Tensor  #: weights, ``(n, K, d_1, …, d_M)``


def sample_gprn(
    n: int,
    seed: int = 0,
    *,
    output_shape: int | Sequence[int] = 5,
    n_latents: int = 2,
    n_inputs: int = 1,
    **settings: Any,
) -> GPRNSample:
    """Inputs drawn uniformly from the unit cube, and latent functions, weights and outputs from the prior of a network.

    For tests and for calibration: posteriors of draws like this one must cover the truth as often as they say.

    :param n: how many rows.
    :param seed: of everything; torch's own random state and Pyro's parameter store are left as they are.
    :param output_shape: ``(d_1, …, d_M)``, or the number of outputs.
    :param n_latents: ``K``.
    :param n_inputs: ``P``.
    :param settings: kernels and noises, as :class:`~pyro_gprn.GPRN` takes them.

    >>> X, Y, F, W = sample_gprn(8, output_shape=(4, 3), noise_y=1e-3)
    >>> Y.shape, W.shape
    (torch.Size([8, 4, 3]), torch.Size([8, 2, 4, 3]))
    >>> bool(torch.allclose(Y, torch.einsum("nkab,nk->nab", W, F), atol=0.01))
    True
    """
    with own_randomness(seed), isolated(), torch.no_grad():
        X = torch.rand(n, n_inputs, dtype=torch.float64)
        sites = pyro.poutine.trace(GPRN(X, output_shape, n_latents, **settings)).get_trace().nodes
    return GPRNSample(X, sites["y"]["value"], sites["f"]["value"], sites["w"]["value"])
