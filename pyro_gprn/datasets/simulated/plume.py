"""A small simulator with a field for an output: a puff that the wind carries and diffusion spreads."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PlumeRuns(NamedTuple):
    """Runs of the simulator."""

    X: Tensor  #: inputs, (n, 3): where the puff starts (x and y, in [0.25, 0.55]), log diffusivity (in [-7.5, -5.5])
    Y: Tensor  #: concentration at the final time, (n, grid, grid), float32


def simulate_plume(n: int, seed: int = 0, *, grid: int = 32) -> PlumeRuns:
    """Runs of ``∂c/∂t + u·∇c = ν ∇²c`` on a periodic unit square, from random inputs.

    The puff is a Gaussian at first; the wind ``u`` is ``(0.2, 0)`` for the first half of the time and ``(0, 0.2)``
    for the second. Solved exactly in Fourier space, up to time 1.

    :param n: how many runs.
    :param seed: of the random inputs.
    :param grid: points along each side.

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
    # ĉ(t) = ĉ(0) exp(−(ν|k|² + i k·u) t), here with each wind for t = ½
    decay = -log_diffusivity.exp()[:, None, None] * (kx.square() + ky.square())
    drift = -1j * (kx * 0.2 + ky * 0.2) * 0.5
    final = torch.fft.ifft2(torch.fft.fft2(initial) * torch.exp(decay + drift)).real
    return PlumeRuns(torch.cat([start, log_diffusivity.unsqueeze(-1)], dim=1), final.float())
