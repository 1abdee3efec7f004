"""A small simulator whose outputs are a field: a puff that is carried by the wind and spread by diffusion."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PlumeRuns(NamedTuple):
    """Inputs and outputs of the runs.

    The inputs are the place where the puff starts, x and y between 0.25 and 0.55, and the logarithm of the diffusivity,
    between −7.5 and −5.5.
    """

    X: Tensor  #: inputs, ``(n, 3)``, float64
    Y: Tensor  #: concentration at time 1, ``(n, grid, grid)``, x first, float32


def simulate_plume(n: int, seed: int = 0, *, grid: int = 32) -> PlumeRuns:
    """Solutions of ``∂c/∂t + u·∇c = ν ∇²c`` on a periodic unit square at time 1, for random inputs.

    The concentration ``c`` is a Gaussian of height 1 and standard deviation 0.06 at first. The wind ``u`` is
    ``(0.2, 0)`` until time ½ and ``(0, 0.2)`` after it. The equation is solved exactly in Fourier space.

    :param n: the number of runs.
    :param seed: the seed of the random inputs.
    :param grid: the number of points along each side.

    >>> X, Y = simulate_plume(5)
    >>> X.shape, Y.shape
    (torch.Size([5, 3]), torch.Size([5, 32, 32]))
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    start, log_diffusivity = 0.25 + 0.3 * X[:, :2], -7.5 + 2.0 * X[:, 2]
    points = torch.arange(grid, dtype=torch.float64) / grid
    k = 2 * math.pi * torch.fft.fftfreq(grid, d=1 / grid, dtype=torch.float64)
    kx, ky = torch.meshgrid(k, k, indexing="ij")
    offsets = points - start.unsqueeze(-1)  # (n, 2, grid)
    bumps = torch.exp(-0.5 * (offsets - offsets.round()).square() / 0.06**2)
    initial = bumps[:, 0, :, None] * bumps[:, 1, None, :]
    # ĉ(t) = ĉ(0) exp(−(ν|k|² + i k·u) t); each wind blows for t = ½
    decay = -log_diffusivity.exp()[:, None, None] * (kx.square() + ky.square())
    drift = -1j * (kx * 0.2 + ky * 0.2) * 0.5
    final = torch.fft.ifft2(torch.fft.fft2(initial) * torch.exp(decay + drift)).real
    return PlumeRuns(torch.cat([start, log_diffusivity.unsqueeze(-1)], dim=1), final.float())
