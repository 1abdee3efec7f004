"""A simulator with a million outputs: pressure, in space and time, in a cavity whose walls drive the flow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_gprn.datasets.simulated.navier_stokes import CavityFlow, stable_step
from pyro_gprn.datasets.simulated.processes import process_pool
from pyro_gprn.datasets.simulated.store import RunStore

Field = Literal["pressure", "velocity"]

_REYNOLDS = (100.0, 5000.0)
_WALL_SPEED = (1.0, 10.0)


class CavityRuns(NamedTuple):
    """Runs of the simulator."""

    X: Tensor  #: inputs, (n, 5), in [0, 1]: Reynolds number, speeds of the top, bottom, left and right walls; float64
    Y: Tensor  #: pressure, (n, frames, grid, grid), or velocity, (n, frames, 2, grid, grid); x before y; float32


class _Plan(NamedTuple):
    """What a run depends on besides its inputs."""

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
    """Runs of incompressible flow in the unit square, from rest, each wall sliding along itself at its own speed.

    The inputs ``x`` are uniform in ``[0, 1]``: the viscosity is ``1 / Re`` with ``Re = 100 + 4900 x₁``, and the walls
    (top, bottom, left, right) have speeds ``1 + 9 x₂, …, 1 + 9 x₅``, to the right and upwards. The output is seen at
    ``frames`` times, equally spaced, the last one ``final_time``; ``Y[..., i, j]`` is at the centre of a cell,
    ``((i + ½) / grid, (j + ½) / grid)``. Pressure has mean zero in each frame. How the equations are solved:
    :class:`~pyro_gprn.datasets.simulated.navier_stokes.CavityFlow`.

    A run is the same, to the last bit, in whatever batch and process it is made.

    :param n: how many runs.
    :param seed: of the random inputs.
    :param grid: cells along each side.
    :param frames: how many times the output is seen.
    :param final_time: when it is seen last.
    :param step: the longest time step. It is shortened to fit a whole number of times between frames and, on grids
        finer than 100, to keep the fastest walls stable.
    :param field: ``"pressure"`` or ``"velocity"`` (its x and y components).
    :param folder: where to keep the runs, as :class:`~pyro_gprn.datasets.simulated.store.RunStore` does: ``Y`` is then
        mapped from disk, and a call that was interrupted goes on where it stopped. None keeps them in memory.
    :param batch: how many runs are made, and written, together.
    :param processes: how many processes make batches, side by side. With more than one, a script that calls this needs
        the usual ``if __name__ == "__main__":``.
    :param progress: shows a progress bar.

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
    runs, missing, write = _open(folder, (n, frames, *components, grid, grid), {"seed": seed, **plan._asdict()})
    batches = [missing[start : start + batch] for start in range(0, len(missing), batch)]
    with tqdm(total=n, initial=n - len(missing), desc="cavity", unit="run", disable=not progress) as bar:
        for members, outputs in zip(batches, _simulate(batches, X.numpy(), plan, processes), strict=True):
            for run, output in zip(members, outputs, strict=True):
                write(run, output)
            bar.update(len(members))
    return CavityRuns(X, torch.from_numpy(runs))


def _open(
    folder: str | Path | None, shape: tuple[int, ...], settings: dict[str, Any]
) -> tuple[np.ndarray, list[int], Callable[[int, np.ndarray], None]]:
    """The array of runs, which are still to be made, and how to write one: on disk or, without a folder, in memory."""
    if folder is None:
        runs = np.empty(shape, dtype="float32")
        return runs, list(range(len(runs))), runs.__setitem__
    store = RunStore(folder, shape, {"simulator": "cavity", **settings})
    return store.runs, store.missing(), store.write


def _simulate(batches: Sequence[Sequence[int]], X: np.ndarray, plan: _Plan, processes: int) -> Iterator[np.ndarray]:
    """The outputs of one batch of runs after another, each ``(len(batch), frames, …)``."""
    simulate = partial(_simulate_batch, X=X, plan=plan)
    if processes == 1:
        yield from map(simulate, batches)
    else:
        with process_pool(processes) as pool:
            yield from pool.map(simulate, batches)


def _simulate_batch(runs: Sequence[int], X: np.ndarray, plan: _Plan) -> np.ndarray:
    """The outputs of these rows of ``X``, ``(len(runs), frames, …)``, float32."""
    _keep_freed_memory()
    inputs = X[list(runs)]
    reynolds, walls = _within(_REYNOLDS, inputs[:, 0]), _within(_WALL_SPEED, inputs[:, 1:])
    flow = CavityFlow(plan.grid, 1 / reynolds, walls)
    observe = flow.pressure if plan.field == "pressure" else flow.at_centres
    interval = plan.final_time / plan.frames
    velocity = flow.at_rest()
    outputs = []
    with np.errstate(over="ignore", invalid="ignore"):  # caught below
        for frame in range(1, plan.frames + 1):
            for _ in range(plan.steps_per_frame):
                velocity = flow.step(velocity, interval / plan.steps_per_frame)
            outputs.append(observe(velocity).astype("float32"))
            _check_finite(outputs[-1], runs, frame * interval)
    return np.stack(outputs, axis=1)


def _keep_freed_memory() -> None:
    """Halves the time on Linux: without it the arrays of each step are new memory, cleared by the system page by page.

    glibc gives freed memory back to the system beyond a threshold: twice the largest block, of at most 32 MiB, that it
    has seen freed. Elsewhere this does nothing.
    """
    np.empty(31 * 2**20, dtype="uint8")


def _within(bounds: tuple[float, float], share: np.ndarray) -> np.ndarray:
    low, high = bounds
    return low + (high - low) * share


def _check_finite(output: np.ndarray, runs: Sequence[int], time: float) -> None:
    finite = np.isfinite(output.reshape(len(runs), -1)).all(axis=1)
    if not finite.all():
        failed = [run for run, good in zip(runs, finite, strict=True) if not good]
        raise FloatingPointError(f"runs {failed} have blown up before time {time:g}: try a shorter step")


def _steps_per_frame(grid: int, interval: float, step: float) -> int:
    """The fewest equal steps between two frames, none longer than ``step`` nor than is stable for every input."""
    longest = min(step, stable_step(grid, 1 / min(_REYNOLDS), max(_WALL_SPEED)))
    return math.ceil(interval / longest * (1 - 1e-12))  # 0.1 / 0.001 is 100, whatever the rounding


def _count(name: str, value: int, least: int = 1) -> int:
    if not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer, at least {least}; got {value!r}")
    return int(value)


def _duration(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite; got {value!r}")
    return float(value)
