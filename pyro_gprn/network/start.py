"""Where guides start."""

from __future__ import annotations

import torch
from torch import Tensor


def whitened_start(L: Tensor, n_latents: int, spread: float = 0.1) -> Tensor:
    """Whitened functions ``(N, K)``: the first is the constant 1, ``L⁻¹1``, the others are near zero.

    There the model is independent GPs that share one kernel.

    :param L: Cholesky factor of the functions' kernel matrix, ``(N, N)``.
    :param n_latents: ``K``.
    :param spread: standard deviation of the others.

    >>> whitened_start(torch.eye(3), 1).T
    tensor([[1., 1., 1.]])
    """
    constant = torch.linalg.solve_triangular(L, torch.ones_like(L[:, :1]), upper=False)
    others = spread * torch.randn(len(L), n_latents - 1, dtype=L.dtype).to(L.device)
    return torch.cat([constant, others], dim=1)
