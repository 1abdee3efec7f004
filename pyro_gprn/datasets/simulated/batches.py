"""Runs of a simulator, made in batches by one or several processes. Each batch is stored as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
from joblib import Parallel, delayed
from tqdm import tqdm

from pyro_gprn.datasets.simulated.store import RunStore

Simulator = Callable[[Sequence[int]], np.ndarray]


def simulate_missing(
    store: RunStore, simulate: Simulator, *, name: str, batch: int = 1, processes: int = 1, progress: bool = True
) -> None:
    """Makes the runs that are missing in a store.

    An interruption (Ctrl-C) stops all processes at once. Batches that were finished are in the store. Batches that were
    being simulated are lost.

    Several processes are processes of joblib, which remain for five minutes after their work, so that a second call
    need not start them again.

    :param store: the store to fill.
    :param simulate: a function that takes the numbers of some runs and returns their outputs, ``(len(numbers), …)``.
        The outputs may depend on these numbers only, not on what was simulated before.
    :param name: the name in front of the progress bar.
    :param batch: how many runs are simulated, and then stored, together.
    :param processes: how many batches are simulated at the same time. A single one is simulated in the calling process.
    :param progress: whether to show a progress bar.

    >>> store = RunStore(None, (4, 2), {})
    >>> simulate_missing(store, lambda runs: np.array([[run, run**2] for run in runs]), name="squares", progress=False)
    >>> store.runs[3], store.missing()
    (array([3., 9.], dtype=float32), [])
    """
    missing = store.missing()
    batches = [missing[start : start + batch] for start in range(0, len(missing), batch)]
    processes = max(1, min(processes, len(batches)))  # joblib would start processes that have nothing to do
    # By default joblib joins short tasks into longer ones and returns results in the order of the tasks. Both would
    # keep finished runs out of the store.
    parallel = Parallel(processes, batch_size=1, return_as="generator_unordered")
    finished = parallel(delayed(_with_numbers)(simulate, runs) for runs in batches)
    done = len(store.runs) - len(missing)
    with (
        closing(finished),  # stops the processes, also where writing is what was interrupted
        tqdm(total=len(store.runs), initial=done, desc=name, unit="run", disable=not progress) as bar,
    ):
        for runs, outputs in finished:
            for run, output in zip(runs, outputs, strict=True):
                store.write(run, output)
            bar.update(len(runs))


def _with_numbers(simulate: Simulator, runs: Sequence[int]) -> tuple[Sequence[int], np.ndarray]:
    """The numbers of the runs and their outputs. Without the numbers it would not be known which batch this is."""
    return runs, simulate(runs)
