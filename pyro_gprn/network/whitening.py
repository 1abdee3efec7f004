"""Functions whitened by their prior, F = L_f V, and where their posteriors start."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_gprn.pyro_state import white_noise


def whitened_start(L: Tensor, n_latents: int, spread: float = 0.1, generator: torch.Generator | None = None) -> Tensor:
    """Whitened functions ``(N, K)``: the first is the constant 1, ``L⁻¹1``, the others are near zero.

    There the model is independent GPs that share one kernel.

    :param L: Cholesky factor of the functions' kernel matrix, ``(N, N)``.
    :param n_latents: ``K``.
    :param spread: standard deviation of the others.
    :param generator: of random numbers; None is torch's global state.

    >>> whitened_start(torch.eye(3), 1).T
    tensor([[1., 1., 1.]])
    """
    constant = torch.linalg.solve_triangular(L, torch.ones_like(L[:, :1]), upper=False)
    return torch.cat([constant, spread * white_noise(len(L), n_latents - 1, like=L, generator=generator)], dim=1)
