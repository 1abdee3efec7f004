"""How many threads linear algebra may use during fits.

The numbers are those of the whole process: the first fit that wants fewer sets them, and the last one that ends, in
whatever thread, puts them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

#: With this many rows or more torch keeps its threads: N×N products gain from them.
MANY_ROWS = 300


class _SharedLimit:
    """A limit that is set when its first holder comes and taken back when its last one goes.

    :param set_limit: sets the limit; returns a function that takes it back.
    """

    def __init__(self, set_limit: Callable[[], Callable[[], object]]) -> None:
        self._set_limit, self._lock, self._holders = set_limit, threading.Lock(), 0
        self._take_back: Callable[[], object] = lambda: None

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self._lock:
            if self._holders == 0:
                self._take_back = self._set_limit()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    self._take_back()


def _limit_blas() -> Callable[[], object]:
    return threadpool_limits(limits=1, user_api="blas").restore_original_limits


def _limit_torch() -> Callable[[], object]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    return lambda: torch.set_num_threads(before)


_blas, _torch = _SharedLimit(_limit_blas), _SharedLimit(_limit_torch)


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
