"""A simulator with a million outputs: the pressure, in space and time, of a flow in a square with moving walls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.datasets.simulated.batches import simulate_missing
from pyro_gprn.datasets.simulated.navier_stokes import CavityFlow, stable_step
from pyro_gprn.datasets.simulated.store import RunStore

Field = Literal["pressure", "velocity"]

_REYNOLDS = (100.0, 5000.0)  # the least and the greatest
_WALL_SPEED = (1.0, 10.0)


class CavityRuns(NamedTuple):
    """Inputs and outputs of the runs. ``Y`` is mapped from disk if there is a folder.

    The inputs are the Reynolds number and the speeds of the top, bottom, left and right walls, each moved and scaled
    to ``[0, 1]``.
    """

    X: Tensor  #: inputs, ``(n, 5)``, float64
    Y: Tensor  #: pressure, ``(n, frames, grid, grid)``, or velocity, ``(n, frames, 2, grid, grid)``; float32


class _Plan(NamedTuple):
    """Everything except its inputs that a run depends on."""

    grid: int
    frames: int
    final_time: float
    steps_per_frame: int
    field: Field


def simulate_cavity(
    n: int,
    seed: int = 0,
    *,
    grid: int = 100,
    frames: int = 100,
    final_time: float = 10.0,
    step: float = 1e-3,
    field: Field = "pressure",
    folder: str | Path | None = None,
    batch: int = 4,
    processes: int = 1,
    progress: bool = True,
) -> CavityRuns:
    """Incompressible flow in the unit square. It starts at rest, and each wall slides along itself at its own speed.

    The inputs ``x`` are uniform in ``[0, 1]``. The viscosity is ``1 / Re`` with ``Re = 100 + 4900 x₁``. The speeds of
    the top, bottom, left and right walls are ``1 + 9 x₂, …, 1 + 9 x₅``; the top and bottom walls move to the right, the
    left and right walls upwards.

    The outputs are recorded at ``frames`` equally spaced times, of which the last is ``final_time``. ``Y[..., i, j]``
    is the value at the centre of a cell, ``x = (i + ½) / grid`` and ``y = (j + ½) / grid``. The mean of the pressure
    over each frame is zero. :class:`~pyro_gprn.datasets.simulated.navier_stokes.CavityFlow` describes how the equations
    are solved.

    The outputs of a run are the same, to the last bit, for all values of ``batch`` and ``processes``.

    :param n: the number of runs.
    :param seed: the seed of the random inputs.
    :param grid: the number of cells along each side.
    :param frames: the number of times at which the outputs are recorded.
    :param final_time: the last of these times.
    :param step: the longest time step. A shorter one is taken if frames would otherwise not be a whole number of steps
        apart or if, on grids finer than 100, this step were unstable for the fastest walls.
    :param field: ``"pressure"``, or ``"velocity"`` for its components along x and y.
    :param folder: where finished runs are kept, as :class:`~pyro_gprn.datasets.simulated.store.RunStore` describes, so
        that an interrupted call can be continued. None keeps them in memory.
    :param batch: how many runs are simulated, and then stored, together.
    :param processes: how many batches are simulated at the same time.
    :param progress: whether to show a progress bar.

    >>> X, Y = simulate_cavity(2, grid=16, frames=3, final_time=0.3, step=0.01, progress=False)
    >>> X.shape, Y.shape
    (torch.Size([2, 5]), torch.Size([2, 3, 16, 16]))
    """
    n, seed, grid = _count("n", n), _count("seed", seed, least=0), _count("grid", grid, least=4)
    frames, batch, processes = _count("frames", frames), _count("batch", batch), _count("processes", processes)
    final_time, step = _duration("final_time", final_time), _duration("step", step)
    if field not in get_args(Field):
        raise ValueError(f"field must be one of {get_args(Field)}; got {field!r}")
    X = torch.rand(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plan = _Plan(grid, frames, final_time, _steps_per_frame(grid, final_time / frames, step), field)
    components = (2,) if field == "velocity" else ()
    settings = {"simulator": "cavity", "seed": seed, **plan._asdict()}
    store = RunStore(folder, (n, frames, *components, grid, grid), settings)
    simulate = partial(_simulate_batch, X=X.numpy(), plan=plan)
    simulate_missing(store, simulate, name="cavity", batch=batch, processes=processes, progress=progress)
    return CavityRuns(X, torch.from_numpy(store.runs))


def _simulate_batch(runs: Sequence[int], X: np.ndarray, plan: _Plan) -> np.ndarray:
    """The outputs for these rows of X, ``(len(runs), frames, …)``, float32."""
    _keep_freed_memory()
    inputs = X[list(runs)]
    reynolds, walls = _within(_REYNOLDS, inputs[:, 0]), _within(_WALL_SPEED, inputs[:, 1:])
    flow = CavityFlow(plan.grid, 1 / reynolds, walls)
    observe = flow.pressure if plan.field == "pressure" else flow.at_centres
    interval = plan.final_time / plan.frames
    velocity = flow.at_rest()
    outputs = []
    with np.errstate(over="ignore", invalid="ignore"):  # _check_finite reports overflows with the runs they are in
        for frame in range(1, plan.frames + 1):
            for _ in range(plan.steps_per_frame):
                velocity = flow.step(velocity, interval / plan.steps_per_frame)
            outputs.append(observe(velocity).astype("float32"))
            _check_finite(outputs[-1], runs, frame * interval)
    return np.stack(outputs, axis=1)


def _keep_freed_memory() -> None:
    """Makes the process keep freed memory for later arrays. On Linux this halves the time of a simulation.

    The C library of Linux (glibc) gives a freed block back to the system if the block is larger than a threshold. The
    arrays of each time step are then made of new memory, which the system has to clear page by page. The threshold
    rises when a larger block, of at most 32 MiB, is freed; so one block of nearly that size is made and freed here.
    With other C libraries this does nothing.
    """
    np.empty(31 * 2**20, dtype="uint8")


def _within(bounds: tuple[float, float], share: np.ndarray) -> np.ndarray:
    """The values that lie at these shares of the way from the lower to the upper bound."""
    low, high = bounds
    return low + (high - low) * share


def _check_finite(output: np.ndarray, runs: Sequence[int], time: float) -> None:
    finite = np.isfinite(output.reshape(len(runs), -1)).all(axis=1)
    if not finite.all():
        failed = [run for run, good in zip(runs, finite, strict=True) if not good]
        raise FloatingPointError(f"runs {failed} have blown up before time {time:g}: try a shorter step")


def _steps_per_frame(grid: int, interval: float, step: float) -> int:
    """The least number of equal steps between two frames that are no longer than ``step`` and stable for all inputs."""
    longest = min(step, stable_step(grid, 1 / min(_REYNOLDS), max(_WALL_SPEED)))
    return math.ceil(interval / longest * (1 - 1e-12))  # 0.1 / 0.001 is 100, even if rounding puts it just above


def _count(name: str, value: int, least: int = 1) -> int:
    if not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer, at least {least}; got {value!r}")
    return int(value)


def _duration(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite; got {value!r}")
    return float(value)
