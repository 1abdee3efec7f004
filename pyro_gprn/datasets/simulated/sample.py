"""Data drawn from the network itself, together with the latent functions and weights that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_gprn.factorised.model import GPRN
from pyro_gprn.pyro_state import isolated, own_randomness


class GPRNSample(NamedTuple):
    """A draw from the prior of a network. All tensors are float64."""

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
    """Draws inputs uniformly from the unit cube, and latent functions, weights and outputs from a network's prior.

    Such draws are for tests of calibration: an interval of 95 % probability in the posterior must cover the true value
    in 95 % of them.

    :param n: the number of rows.
    :param seed: the seed of all random numbers. Torch's own random state and Pyro's parameter store are not changed.
    :param output_shape: ``(d_1, …, d_M)``, or the number of outputs.
    :param n_latents: the number of latent functions, ``K``.
    :param n_inputs: the number of inputs, ``P``.
    :param settings: kernels and noises, with the names that :class:`~pyro_gprn.GPRN` has for them.

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
