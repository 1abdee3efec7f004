"""Draws from the posterior of a collapsed network: its functions, and hyperparameters that have a spread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from pyro import poutine
from torch import Tensor

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.pyro_state import isolated, white_noise

T = TypeVar("T")

#: What a posterior may be: a guide of the model, or draws of its sites as ``MCMC.get_samples()`` gives them.
Posterior = Callable | Mapping[str, Tensor]


@dataclass(frozen=True)
class PosteriorDraws:
    """``s`` draws of the whitened functions, with the hyperparameters that belong to each.

    :param model: the model.
    :param V: whitened functions, ``(s, N, K)``.
    :param hyperparameters: draws of those that have a spread, by site, each ``(s, …)``. All others stand at the centre
        of their posterior.
    """

    model: CollapsedGPRN
    V: Tensor
    hyperparameters: dict[str, Tensor]

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: CollapsedGPRN,
        posterior: Posterior,
        n_draws: int,
        *,
        mirrored: bool = False,
        generator: torch.Generator | None = None,
    ) -> PosteriorDraws:
        """Draws from a posterior; of a mapping all that it holds.

        :param mirrored: whether draws come in pairs that mirror each other about the mean of q, which makes averages
            over them more exact. (Only from a :class:`~pyro_gprn.CollapsedGuide`.)
        :param generator: of random numbers; None is torch's global state.
        """
        if isinstance(posterior, Mapping):
            return cls(model, posterior["v"], {name: draws for name, draws in posterior.items() if name != "v"})
        if not isinstance(posterior, CollapsedGuide):
            return cls._of_guide(model, posterior, n_draws, generator)
        q = posterior.posterior()
        n_white = -(-n_draws // 2) if mirrored else n_draws
        deviations = q.colour(white_noise(n_white, *q.event_shape, like=q.loc, generator=generator))
        V = q.loc + (torch.cat([deviations, -deviations])[:n_draws] if mirrored else deviations)
        if not model.has_spread:
            return cls(model, V, {})
        draws = [model.draw_hyperparameters(generator) for _ in range(n_draws)]
        return cls(model, V, {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]})

    @classmethod
    def _of_guide(
        cls, model: CollapsedGPRN, guide: Callable, n_draws: int, generator: torch.Generator | None
    ) -> PosteriorDraws:
        """From another Pyro guide of the model, such as ``AutoDelta``."""
        Y = model.statistics().source.read(slice(None)).reshape(model.n_rows, *model.output_shape)
        with isolated(generator):
            traces = [poutine.trace(guide).get_trace(Y) for _ in range(n_draws)]
        first = traces[0]
        names = [name for name in first.stochastic_nodes if not first.nodes[name]["infer"].get("is_auxiliary")]
        return cls.of(model, {name: torch.stack([trace.nodes[name]["value"] for trace in traces]) for name in names}, 0)

    def first(self, n: int) -> PosteriorDraws:
        """The first ``n`` of the draws."""
        hyperparameters = {name: draws[:n] for name, draws in self.hyperparameters.items()}
        return PosteriorDraws(self.model, self.V[:n], hyperparameters)

    def each(self, function: Callable[[Tensor], T]) -> list[T]:
        """Calls ``function`` with draws of V, ``(b, N, K)``, and the model's hyperparameters at the draws' values.

        Draws that share their hyperparameters come together in one call; others one by one.
        """
        if not self.hyperparameters:
            return [self.model.at_centre(lambda: function(self.V))]
        results = []
        for i, v in enumerate(self.V):
            values = {name: draws[i] for name, draws in self.hyperparameters.items()}
            results.append(self.model.at_values(values, lambda v=v: function(v[None])))  # type: ignore[misc]
        return results
