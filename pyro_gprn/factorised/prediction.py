"""Predictions from a posterior q(F) q(W).

Weights and functions are independent of each other, so mean and variance are exact; given f* the signal is Gaussian,
since the weights are. Predictions from a mixture of such posteriors are the mixture of its components'. How each kind
of posterior is carried over to new inputs is said in posterior.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.posterior import (
    FunctionsAtNewRows,
    Mixture,
    VarianceOfOutputs,
    WeightsAtNewRows,
    as_mixture,
    functions_at_new_rows,
    posteriors_of,
    weights_at_new_rows,
)
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction import PosteriorPredictive, posterior_predictive
from pyro_gprn.prediction.base import Components, MixturePredictive
from pyro_gprn.prediction.conditional import Conditional
from pyro_gprn.pyro_state import isolated, white_noise

#: Densities are averages over this many draws of the functions by default.
N_DRAWS = 200
#: Predictions are averages over this many draws of hyperparameters, if a guide of theirs is more than a point.
N_HYPERPARAMETERS = 32


class FactorisedPredictive(PosteriorPredictive):
    """Predictions from a guide with sites "f" and "w": mean and variance are exact.

    Gradients flow to ``X_new`` if it requires them (not through draws).

    :param model: the model.
    :param guide: its trained guide.
    :param X_new: new inputs, ``(N*, P)``.
    :param Y: the training outputs, which a guide with ``mean="projected"`` needs if it has not seen them.
    :param component: the number of the component that predicts, if the guide's posterior is a mixture.
    :param hyperparameters: values of those that have priors; by default the centre of their posteriors.
    :param generator: source of random numbers; None uses torch's global state.

    >>> from pyro_gprn import KroneckerGuide
    >>> model = GPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> FactorisedPredictive(model, KroneckerGuide(model), model.X[:2], torch.ones(5, 3)).mean().shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        model: GPRN,
        guide: Callable,
        X_new: Tensor,
        Y: Any = None,
        *,
        component: int = 0,
        hyperparameters: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, X_new, generator)
        self._observe = model.observation()
        with torch.set_grad_enabled(self.X_new.requires_grad):
            if hyperparameters is None:
                model.at_centre(lambda: self._condition(model, guide, Y, component))
            else:
                model.at_values(hyperparameters, lambda: self._condition(model, guide, Y, component))

    def _condition(self, model: GPRN, guide: Callable, Y: Any, component: int) -> None:
        q_f, q_w = mixture_of(guide, Y).components[component]
        prior_f, prior_w = model.prior()
        Lf, Lw = prior_f.factors[0].dense(), prior_w.factors[0].dense()
        self._f: FunctionsAtNewRows = functions_at_new_rows(
            q_f, Conditional.of(model.kernel_f, model.X, self.X_new, Lf, model.noise_f)
        )
        self._w: WeightsAtNewRows = weights_at_new_rows(q_w, Conditional.of(model.kernel_w, model.X, self.X_new, Lw))
        self._noise_variance = self._observe.variance()

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.einsum("nk,nkd->nd", self._f.mean, self._w.mean(chosen, block))

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        # Var = tr(E[wwᵀ] E[ffᵀ]) − (w̄ᵀf̄)² = w̄ᵀCov(f)w̄ + tr(Cov(w) E[ffᵀ])
        covariance = self._f.covariance()
        squared = covariance + self._f.mean.unsqueeze(-1) * self._f.mean.unsqueeze(-2)
        w = self._w.mean(chosen, block)
        return (w * (covariance @ w)).sum(1) + self._w.variance(squared)(chosen, block)

    def _noise(self, chosen: OutputSelection) -> Tensor:
        return chosen.gather(self._noise_variance)

    def _components(self, n_draws: int | None, joint: bool) -> Components:
        n_draws = N_DRAWS if n_draws is None else n_draws
        f = self._f.sample(n_draws, joint, self._generator)
        return _GivenFunctions(f, self._w, self._noise_variance, self._generator)

    def _numbers_per_output(self) -> tuple[int, int]:
        return (max(self._f.mean.numel(), self._w.n_rows),) * 2

    @property
    def _has_gaussian_noise(self) -> bool:
        return self._observe.is_gaussian

    def _draw_observation(self, signal: Tensor, components: Components, chosen: OutputSelection, some: slice) -> Tensor:
        if self._observe.is_gaussian:
            return super()._draw_observation(signal, components, chosen, some)
        with isolated(self._generator):  # the likelihood draws by torch's global state
            return self._observe.sample(signal, chosen.positions(slice(None)))

    def _log_density_given(self, y: Tensor, components: Components, chosen: OutputSelection, block: slice) -> Tensor:
        if self._observe.is_gaussian:
            return super()._log_density_given(y, components, chosen, block)
        scale = components.variance(chosen, block).clamp(min=0.0).sqrt()
        signal = components.mean(chosen, block) + scale * white_noise(
            *scale.shape, like=scale, generator=self._generator
        )
        return self._observe.log_prob(signal, y, chosen.positions(block))


class _GivenFunctions(Components):
    """Component i is the Gaussian of the signal given draw i of f*; the draws are ``(s, N*, K)``."""

    def __init__(
        self, functions: Tensor, weights: WeightsAtNewRows, noise: Tensor, generator: torch.Generator | None
    ) -> None:
        self._functions, self._weights, self._noise, self._generator = functions, weights, noise, generator
        self.n_components = len(functions)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.einsum("snk,nkd->snd", self._functions, self._weights.mean(chosen, block))

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._variance(chosen, block)

    @cached_property
    def _variance(self) -> VarianceOfOutputs:
        # All that depends on the K × K products of functions is made once, for all blocks of outputs.
        return self._weights.variance(self._functions.unsqueeze(-1) * self._functions.unsqueeze(-2))

    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        return self._weights.deviation(self._functions[components], chosen, self._generator)

    def noise(self, chosen: OutputSelection) -> Tensor:
        return chosen.gather(self._noise).reshape(1, 1, -1)


@posterior_predictive.register
def _(model: GPRN, posterior: Callable, X_new: Tensor, Y: Any = None, **settings: Any) -> PosteriorPredictive:
    generator = settings.get("generator")
    values = [model.draw_hyperparameters(generator) for _ in range(N_HYPERPARAMETERS)] if model.has_spread else [None]
    numbers = range(len(model.at_centre(lambda: mixture_of(posterior, Y)).components))
    parts = [
        FactorisedPredictive(model, posterior, X_new, Y, component=number, hyperparameters=each, **settings)
        for each in values
        for number in numbers
    ]
    return parts[0] if len(parts) == 1 else MixturePredictive(model, parts, generator)


def mixture_of(guide: Callable, Y: Any) -> Mixture:
    """The posterior of a guide as a mixture; ``Y`` are the training outputs, or None if the guide knows them."""
    return as_mixture(*posteriors_of(guide, *([] if Y is None else [Y])))
