"""How many threads linear algebra may use during fits.

The numbers are those of the whole process: the first fit that wants fewer sets them, and the last one that ends, in
whatever thread, puts them back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from threadpoolctl import threadpool_limits

#: With this many rows or more torch keeps its threads: N×N products gain from them.
MANY_ROWS = 300


_lock = threading.Lock()


class _BlasLimit:
    """One thread for SciPy's BLAS: set by the first fit that holds it, taken back by the last."""

    def __init__(self) -> None:
        self._holders = 0
        self._limit: Any = None

    @contextmanager
    def hold(self) -> Iterator[None]:
        with _lock:
            if self._holders == 0:
                self._limit = threadpool_limits(limits=1, user_api="blas")
            self._holders += 1
        try:
            yield
        finally:
            with _lock:
                self._holders -= 1
                if self._holders == 0:
                    self._limit.restore_original_limits()


class _TorchLimit:
    """One thread for torch, which counts threads by the thread that asks: each one that holds it has its own back."""

    def __init__(self) -> None:
        self._holders, self._usual = 0, 1
        self._this_thread = threading.local()

    @contextmanager
    def hold(self) -> Iterator[None]:
        if getattr(self._this_thread, "holds", False):
            yield
            return
        with _lock:
            before = torch.get_num_threads()
            if self._holders == 0:
                self._usual = before
            elif before == 1:  # a thread that first asked while another held the limit was given that
                before = self._usual
            self._holders += 1
            torch.set_num_threads(1)
        self._this_thread.holds = True
        try:
            yield
        finally:
            self._this_thread.holds = False
            with _lock:
                self._holders -= 1
                torch.set_num_threads(before)


_blas, _torch = _BlasLimit(), _TorchLimit()


def one_torch_thread() -> AbstractContextManager[None]:
    """Limits torch to one thread, and puts its number back afterwards. Unlike :func:`few_threads` it takes no time.

    >>> with one_torch_thread():
    ...     torch.get_num_threads()
    1
    """
    return _torch.hold()


@contextmanager
def few_threads(n_rows: int) -> Iterator[None]:
    """Limits SciPy's BLAS to one thread, and torch too if N×N matrices are small; puts both back afterwards.

    Small matrices gain nothing from a second thread. With one of two cores taken by another process, a fit that takes
    5 s took 112 s on two torch threads, which wait for each other between thousands of small operations. SciPy's BLAS
    keeps a core busy while it waits between its tiny products; when torch needs that core, a fit takes four times as
    long on two cores.

    :param n_rows: ``N``.

    >>> before = torch.get_num_threads()
    >>> with few_threads(50), few_threads(50):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    with _blas.hold():
        if n_rows >= MANY_ROWS:
            yield
        else:
            with _torch.hold():
                yield
