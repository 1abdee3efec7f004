"""What simulators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def new_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(n: int, n_columns: int, generator: torch.Generator) -> Tensor:
    """Uniform between 0 and 1, ``(n, n_columns)``."""
    return torch.rand(n, n_columns, generator=generator, dtype=torch.float64)


def grid(start: float, stop: float, n: int) -> Tensor:
    return torch.linspace(start, stop, n, dtype=torch.float64)


def between(X: Tensor, ranges: Sequence[tuple[float, float]]) -> list[Tensor]:
    """The first columns of inputs between 0 and 1, each in its range."""
    return [low + (high - low) * column for (low, high), column in zip(ranges, X.T, strict=False)]


def with_noise(Y: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Adds noise whose standard deviation is a share of that of the outputs."""
    return Y + share * Y.std() * torch.randn(Y.shape, generator=generator, dtype=Y.dtype)


def runge_kutta(rate: Callable[[Tensor], Tensor], state: Tensor, step: float, n_steps: int, every: int) -> Tensor:
    """States after every few steps of the classical method, ``(n_steps // every, *state.shape)``."""
    kept = []
    for number in range(1, n_steps + 1):
        first = rate(state)
        second = rate(state + 0.5 * step * first)
        third = rate(state + 0.5 * step * second)
        fourth = rate(state + step * third)
        state = state + step / 6 * (first + 2 * second + 2 * third + fourth)
        if number % every == 0:
            kept.append(state)
    return torch.stack(kept)


def second_difference(u: Tensor, spacing: float) -> Tensor:
    """``∂²u/∂x²`` along the last axis, with no flux at either end."""
    padded = torch.cat([u[..., :1], u, u[..., -1:]], dim=-1)
    return (padded[..., 2:] - 2 * u + padded[..., :-2]) / spacing**2
