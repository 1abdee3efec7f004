"""Pyro's and torch's global state, kept apart from the user's and from other threads.

Pyro keeps parameters in one store, and effect handlers on one stack, for the whole process; torch has one random state.
A fit or a prediction of this package must neither disturb these nor depend on them. All Pyro code in it therefore runs
inside :func:`isolated`, which lets one thread in at a time, and random numbers come from generators of the package's
own. Outside of :func:`isolated`, where nearly all the time is spent, threads run side by side. How many threads linear
algebra may use during fits is global state, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyro
import torch
from pyro import poutine
from threadpoolctl import threadpool_limits
from torch import Tensor

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def isolated(generator: torch.Generator | None = None) -> Iterator[None]:
    """Runs Pyro code with an empty parameter store, out of sight of outer effect handlers, one thread at a time.

    Pyro's global store would hand a model the parameters of another one that has the same names.

    :param generator: if given, torch's global random state is seeded from it inside and put back afterwards (Pyro's
        ``sample`` takes no generator). None leaves the global state alone.

    >>> with isolated():
    ...     scale = pyro.param("scale", torch.tensor(2.0))
    >>> "scale" in pyro.get_param_store()
    False
    """
    with _ONE_AT_A_TIME, pyro.get_param_store().scope(), poutine.block():
        if generator is None:
            yield
        else:
            with own_randomness(new_seed(generator)):
                yield


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seeds torch's global random state inside and puts it back afterwards; lets one thread in at a time.

    >>> with own_randomness(0):
    ...     first = torch.randn(3)
    >>> with own_randomness(0):
    ...     torch.equal(torch.randn(3), first)
    True
    """
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def new_seed(generator: torch.Generator | None = None) -> int:
    """A seed drawn from a generator, or from torch's global state if there is none.

    >>> new_seed(new_generator(0)) == new_seed(new_generator(0))
    True
    """
    return int(torch.randint(2**62, (), generator=generator))


def new_generator(seed: int | None) -> torch.Generator:
    """A new generator of random numbers, independent of torch's global one.

    :param seed: the generator's seed. None draws one from torch's global state, which moves on by one draw.

    >>> torch.randn((), generator=new_generator(0)) == torch.randn((), generator=new_generator(0))
    tensor(True)
    """
    return torch.Generator().manual_seed(new_seed() if seed is None else seed)


def white_noise(
    *shape: int, like: Tensor, generator: torch.Generator | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Standard normal numbers of a given shape, in the type and on the device of ``like``.

    They are drawn on the CPU, so that they are the same on every device.

    :param shape: the shape of the result.
    :param generator: source of random numbers; None uses torch's global state.
    :param dtype: the type in which they are drawn; by default that of ``like``. For very many numbers float32 takes
        half the time, and the eighth digit of noise does not matter.

    >>> white_noise(2, 3, like=torch.zeros(1, dtype=torch.float64)).dtype
    torch.float64
    """
    drawn = torch.randn(*shape, dtype=like.dtype if dtype is None else dtype, device="cpu", generator=generator)
    return drawn.to(like)


#: With this many rows or more torch keeps its threads: N×N products gain from them.
MANY_ROWS = 300


# The numbers of threads are those of the whole process: the first fit that wants fewer sets them, and the last one
# that ends, in whatever thread, puts them back.
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
