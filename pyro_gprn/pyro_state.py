"""Pyro's and torch's global state, kept apart from the user's and from other threads.

Pyro keeps parameters in one store, and effect handlers on one stack, for the whole process; torch has one random state.
A fit or a prediction of this package must neither disturb these nor depend on them. All Pyro code in it therefore runs
inside :func:`isolated`, which lets one thread in at a time, and random numbers come from generators of the package's
own. Outside of :func:`isolated`, where nearly all the time is spent, threads run side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import torch
from pyro import poutine
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
