"""A simulator whose outputs are structures: cantilevers, each optimised to be as stiff as possible under its force."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.datasets.simulated.batches import simulate_missing
from pyro_gprn.datasets.simulated.elasticity import Plate
from pyro_gprn.datasets.simulated.store import RunStore
from pyro_gprn.datasets.simulated.topology import Design, SimpOptions, optimise


class CantileverRuns(NamedTuple):
    """Forces and the designs that are optimal for them. ``Y`` and ``stress`` are mapped from disk if there is a folder.

    The force acts on the right edge, at a height between 0 (bottom) and 1 (top). Its angle is between 0 and π: at 0 the
    force points to the right, at π/2 upwards.
    """

    X: Tensor  #: height and angle of each force, ``(n, 2)``, float64
    Y: Tensor  #: density of each element, in [0, 1], ``(n, height, width)``, row 0 at the top, float32
    stress: Tensor | None  #: von Mises stress in each element, shaped like Y; None if it was not asked for


def simulate_cantilever(
    n: int,
    seed: int = 0,
    *,
    grid: tuple[int, int] = (40, 80),
    options: SimpOptions | None = None,
    stress: bool = False,
    processes: int = 1,
    folder: str | Path | None = None,
    progress: bool = True,
) -> CantileverRuns:
    """Optimal designs of cantilevers that are clamped along the left edge, for random forces on the right edge.

    The height of a force is uniform in ``[0, 1]`` and its angle in ``[0, π]``. Its length is 1. Angles beyond π would
    add nothing, because a force and its opposite have the same optimal design.

    :param n: the number of designs.
    :param seed: the seed of the random forces.
    :param grid: the number of elements along the height and along the width.
    :param options: the settings of the optimisation.
    :param stress: whether to return the von Mises stress as well.
    :param processes: how many designs are optimised at the same time. The results do not depend on it.
    :param folder: where finished designs are kept, so that an interrupted call can be continued. None keeps them in
        memory.
    :param progress: whether to show a progress bar.

    >>> X, Y, _ = simulate_cantilever(3, grid=(10, 20), progress=False)
    >>> X.shape, Y.shape
    (torch.Size([3, 2]), torch.Size([3, 10, 20]))
    >>> round(Y.mean().item(), 4)
    0.5
    """
    if n < 1 or processes < 1:
        raise ValueError(f"n and processes must be at least 1; got {n} and {processes}")
    _check_grid(grid)
    options = options or SimpOptions()
    uniform = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    X = uniform * torch.tensor([1.0, math.pi], dtype=torch.float64)
    settings = {"simulator": "cantilever", "seed": seed, **asdict(options)}
    store = RunStore(folder, (n, 2 if stress else 1, *grid), settings)
    simulate = partial(_simulate_batch, X=X.numpy(), grid=grid, options=options, stress=stress)
    simulate_missing(store, simulate, name="cantilevers", processes=processes, progress=progress)
    fields = torch.from_numpy(store.runs)
    return CantileverRuns(X, fields[:, 0], fields[:, 1] if stress else None)


def design_cantilever(
    position: float, angle: float, *, grid: tuple[int, int] = (40, 80), options: SimpOptions | None = None
) -> Design:
    """The optimal design of a cantilever under one force on its right edge.

    :param position: the height at which the force acts, from 0 (bottom) to 1 (top). A force between two nodes is shared
        by them.
    :param angle: the direction of the force in radians, anticlockwise. At 0 it points to the right.
    :param grid: the number of elements along the height and along the width.
    :param options: the settings of the optimisation.

    >>> design = design_cantilever(0.5, 0.0, grid=(10, 20))  # pulled to the right, halfway up
    >>> bool(np.allclose(design.density, design.density[::-1]))
    True
    """
    if not 0 <= position <= 1:
        raise ValueError(f"position must be between 0 (bottom) and 1 (top); got {position}")
    if not math.isfinite(angle):
        raise ValueError(f"angle must be finite; got {angle}")
    _check_grid(grid)
    height, width = grid
    held = np.zeros((height + 1, width + 1, 2), dtype=bool)
    held[:, 0] = True
    force = np.zeros(held.shape)
    shares = np.maximum(0.0, 1 - np.abs(np.arange(height + 1) - (1 - position) * height))
    force[:, -1] = shares[:, None] * [math.cos(angle), math.sin(angle)]
    return optimise(Plate(held), force, options or SimpOptions())


def _check_grid(grid: tuple[int, int]) -> None:
    if len(grid) != 2 or min(grid) < 1:
        raise ValueError(f"grid must be (height, width), both at least 1 element; got {grid}")


def _simulate_batch(
    runs: Sequence[int], X: np.ndarray, grid: tuple[int, int], options: SimpOptions, stress: bool
) -> np.ndarray:
    """Densities, and stress if asked for, for these rows of X, ``(len(runs), 1 or 2, height, width)``."""
    designs = [design_cantilever(*X[run].tolist(), grid=grid, options=options) for run in runs]
    return np.stack([[design.density, design.stress] if stress else [design.density] for design in designs])
