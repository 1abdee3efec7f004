"""Pyro effect handlers: stand-ins for drawing, and a parameter store and random numbers of one's own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

import pyro
import torch
from pyro.poutine.messenger import Messenger


class Undrawn(Messenger):
    """Gives the named latent sites NaN (one number, expanded) in place of a draw.

    For when only their distributions are wanted. A model that looks at the value gets NaN, not a wrong answer.
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.names = names

    def _pyro_sample(self, msg: dict) -> None:
        if msg["name"] in self.names:
            msg["value"] = torch.tensor(math.nan, dtype=torch.float64).expand(msg["fn"].shape())
            msg["done"] = True


class AtCentre(Messenger):
    """Puts every site that would be drawn at its distribution's mean (for a transformed one: at the image of it)."""

    def _pyro_sample(self, msg: dict) -> None:
        if not msg["is_observed"] and msg["value"] is None:
            msg["value"], msg["done"] = msg["fn"].mean, True


def isolated() -> AbstractContextManager:
    """Runs what is inside with a parameter store of its own.

    Pyro's global store would hand a model the parameters of another that was trained before under the same names.
    """
    return pyro.get_param_store().scope()


@contextmanager
def own_randomness(seed: int | None) -> Iterator[None]:
    """Runs what is inside with random numbers of its own, and torch's state as it was afterwards.

    :param seed: of those; None takes one from torch's own state (which then moves on by one draw).
    """
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
