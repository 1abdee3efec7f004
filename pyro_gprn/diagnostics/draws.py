"""Draws from a posterior, and what follows from them, in one form for every kind of posterior.

The modules beside this one register, for the model of each method, what its posterior may be (:func:`chains_of`) and
how to draw from it (:func:`draw_chain`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.network.base import Network
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.scales import Scales


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


@singledispatch
def chains_of(model: Network, posterior: Any, Y: Any = None) -> tuple[list[tuple[Any, Any]], OutputStatistics]:
    """The chains of a posterior, each a model with its posterior, and statistics of the outputs.

    :param posterior: a guide; of a collapsed model, draws or an MCMC run will do too.
    :param Y: the outputs, ``(N, d_1, …, d_M)``, or their statistics, if model and guide have not seen them.
    :raises ValueError: if diagnostics cannot take such a model or posterior.

    >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> chains, known = chains_of(model, CollapsedGuide(model), torch.ones(5, 3))
    >>> len(chains), known.source.shape
    (1, torch.Size([5, 3]))
    """
    raise ValueError(f"diagnostics need a CollapsedGPRN or a GPRN; got {type(model).__name__}")


@singledispatch
def draw_chain(
    model: Network,
    posterior: Any,
    known: OutputStatistics,
    n_draws: int,
    scales: Scales | None = None,
    *,
    generator: torch.Generator,
) -> ChainDraws:
    """Draws from the posterior of one chain.

    :param known: statistics of the outputs.
    :param n_draws: how many draws.
    :param scales: a scale for each output, if the fit has such.
    :param generator: source of random numbers.

    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> from pyro_gprn.pyro_state import new_generator
    >>> model = GPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> known = OutputStatistics.of(torch.ones(5, 3))
    >>> draw_chain(model, KroneckerGuide(model), known, 7, generator=new_generator(0)).F.shape
    torch.Size([7, 5, 2])
    """
    raise TypeError(f"draws need a GPRN, a CollapsedGPRN or a CoregionalisedGPRN; got {type(model).__name__}")
