"""Draws from a posterior, and what follows from them, in one form for every kind of posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.outputs.selection import OutputSelection


class ChainDraws(ABC):
    """``s`` draws from the posterior of one chain, in the model's units.

    Methods are given the outputs of which they tell, ``b`` of them, and a generator of random numbers.
    """

    hyperparameters: dict[str, Tensor]  #: all of them, by name, (s, …)
    of_each_output: tuple[str, ...]  #: how the names of those begin that each of D outputs has of its own, (s, D, …)
    F: Tensor  #: functions at the training inputs, (s, N, K)
    sample_stats: dict[str, Tensor]  #: numbers that describe a draw, by name, (s,)
    log_likelihood: Tensor | None  #: for each row the log density of its outputs given all other rows, (s, N), if known
    attributes: dict[str, Any]  #: what else a reader of the draws should know
    are_rotated: bool = True  #: True if the posterior is the same for rotated functions, which are aligned then

    @abstractmethod
    def weights(self, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        """Weights at the training inputs that belong to :attr:`F`, ``(s, N, K, b)``."""

    @abstractmethod
    def predict(self, X_new: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        """Outputs with noise at new inputs ``(N*, P)``, ``(s, N*, b)``."""

    @abstractmethod
    def draw_prior(self, n_draws: int, chosen: OutputSelection, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Functions ``(n_draws, N, K)`` and outputs ``(n_draws, N, b)`` from the prior, at fitted hyperparameters."""

    def correlation(self, X_at: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        """The correlation between the outputs at some inputs ``(m, P)`` by each draw, ``(s, m, b, b)``, if known."""
        raise ValueError(
            "correlation_at needs the weights integrated out: inference='collapsed', a CollapsedGPRN; got a GPRN, which"
            " has its weights"
        )
