"""Simulations side by side."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import scipy.linalg  # noqa: F401  (its BLAS must be loaded to be limited)
from threadpoolctl import threadpool_limits


def process_pool(processes: int) -> ProcessPoolExecutor:
    """Processes of one thread each, which do not get in each other's way.

    Spawned, since a fork of a process whose BLAS or torch has threads may hang.
    """
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_one_thread)


def _one_thread() -> None:
    threadpool_limits(1)
