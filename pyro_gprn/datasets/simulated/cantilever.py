"""A simulator with structures for outputs: cantilevers, each the stiffest there is under its own force."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_gprn.datasets.simulated.elasticity import Plate
from pyro_gprn.datasets.simulated.processes import process_pool
from pyro_gprn.datasets.simulated.store import RunStore
from pyro_gprn.datasets.simulated.topology import Design, SimpOptions, optimise


class CantileverRuns(NamedTuple):
    """Optimised cantilevers. With a folder, ``Y`` and ``stress`` are views of its file."""

    X: Tensor  #: the force, (n, 2): height on the right edge (0 bottom, 1 top), angle (0 rightwards, π/2 up, to π)
    Y: Tensor  #: optimal densities in [0, 1], (n, height, width), row 0 at the top, float32
    stress: Tensor | None  #: von Mises stress in the optimal structures, shaped like Y; None if not asked for


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
    """Cantilevers of least compliance, clamped along the left edge, from random forces on the right edge.

    The force has length 1. Half a turn of angles is enough, as a force and its opposite have the same best structure.

    :param n: how many structures.
    :param seed: of the random forces.
    :param grid: elements along the height and the width.
    :param options: of the optimisation.
    :param stress: whether to return the von Mises stress too.
    :param processes: how many structures to work on at a time; more than one needs a script's own work to be under
        ``if __name__ == "__main__":``, as always with spawned processes.
    :param folder: where to keep finished structures, to go on from after an interruption; None keeps them in memory.
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
    forces = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    X = forces * torch.tensor([1.0, math.pi], dtype=torch.float64)

    shape = (n, 2 if stress else 1, *grid)
    missing: Sequence[int]
    write: Callable[[int, np.ndarray], None]
    if folder is None:
        runs = np.empty(shape, dtype="float32")
        missing, write = range(n), runs.__setitem__
    else:
        store = RunStore(folder, shape, {"simulator": "cantilever", "seed": seed, **asdict(options)})
        runs, missing, write = store.runs, store.missing(), store.write

    design = partial(design_cantilever, grid=grid, options=options)
    finished = _finished(design, {run: tuple(X[run].tolist()) for run in missing}, processes)
    for run, found in tqdm(finished, desc="cantilevers", total=len(missing), disable=not progress):
        write(run, np.stack([found.density, found.stress] if stress else [found.density]))

    fields = torch.from_numpy(runs)
    return CantileverRuns(X, fields[:, 0], fields[:, 1] if stress else None)


def design_cantilever(
    position: float, angle: float, *, grid: tuple[int, int] = (40, 80), options: SimpOptions | None = None
) -> Design:
    """The stiffest cantilever under one force on its right edge.

    :param position: where it acts, from 0 (bottom) to 1 (top); between two nodes they share it.
    :param angle: of the force, anticlockwise from rightwards, in radians.
    :param grid: elements along the height and the width.
    :param options: of the optimisation.

    >>> design = design_cantilever(0.5, 0.0, grid=(10, 20))  # pulled along the middle
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


def _finished(
    design: Callable[..., Design], forces: Mapping[int, Sequence[float]], processes: int
) -> Iterator[tuple[int, Design]]:
    """Numbers of runs with their structures, as they come."""
    if processes == 1:
        for run, force in forces.items():
            yield run, design(*force)
        return
    with process_pool(processes) as pool:
        run_of = {pool.submit(design, *force): run for run, force in forces.items()}
        try:
            for future in as_completed(run_of):
                yield run_of[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after an interruption: none is started that nobody waits for
