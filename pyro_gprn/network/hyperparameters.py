"""Hyperparameters: points, or, if they have priors, posteriors that Pyro guides describe.

Everything that the package does with a hyperparameter's prior or guide is here. The rest of the package hands over a
function of the hyperparameters, which is called with them at the centre of their posterior, at draws from it, or
together with the terms that they add to a bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.contrib.gp.kernels import Combination
from pyro.contrib.gp.parameterized import Parameterized
from pyro.nn import pyro_method
from pyro.poutine.messenger import Messenger
from torch import Size, Tensor
from torch.distributions import biject_to

from pyro_gprn.pyro_state import isolated

T = TypeVar("T")

#: Endings of the names of the parameters that Pyro's guides of hyperparameters have.
_OF_GUIDES = ("_map", "_loc", "_scale", "_scale_tril")


def for_each_draw(module: Parameterized, function: Callable[[], Tensor]) -> Tensor:
    """Calls ``function`` with each of a batch of draws of a module's hyperparameters, and stacks what it returns.

    Under a plate (of vectorised particles, or of ``Predictive(parallel=True)``) Pyro draws a batch of values for a
    hyperparameter that has a prior. Pyro's kernels take one value at a time.

    :param module: the module whose hyperparameters are drawn already, as :meth:`Hyperparameters.drawn` does it.
    :param function: returns a tensor of the same shape at all values.
    :returns: ``(*batch, …)``; without a plate, what ``function`` returns.

    >>> import pyro
    >>> from pyro.contrib.gp.kernels import RBF
    >>> from pyro.nn import PyroSample
    >>> class Covariance(Hyperparameters):
    ...     def forward(self, X):
    ...         return for_each_draw(self.kernel, lambda: self.kernel(X))
    >>> covariance = Covariance()
    >>> covariance.kernel = RBF(1)
    >>> covariance.kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    >>> with pyro.plate("draws", 7):
    ...     covariance.drawn(lambda: covariance(torch.rand(4, 1))).shape
    torch.Size([7, 4, 4])
    """
    drawn = _drawn(module)
    if all(len(each.batch_shape) == 0 for each in drawn.values()):
        return function()
    batch_shape = torch.broadcast_shapes(*(each.batch_shape for each in drawn.values()))
    spread = {site: each.expand(batch_shape) for site, each in drawn.items()}
    values = module._pyro_context.cache  # from which Pyro takes a hyperparameter that has been drawn
    results = []
    try:
        for index in itertools.product(*map(range, batch_shape)):
            values.update({site: each[index] for site, each in spread.items()})
            results.append(function())
    finally:
        values.update({site: each.value for site, each in drawn.items()})
    return torch.stack(results).reshape(batch_shape + results[0].shape)


class _Drawn(NamedTuple):
    """A hyperparameter's value, ``(*batch, …)``, of which the batch is that of the plates it was drawn under."""

    value: Tensor
    batch_shape: Size

    def expand(self, batch_shape: Size) -> Tensor:
        return self.value.expand(batch_shape + self.value.shape[len(self.batch_shape) :])


def _drawn(module: Parameterized) -> dict[str, _Drawn]:
    """The hyperparameters of a module that have been drawn, by names of sites."""
    found = {}
    for part in module.modules():
        for name, prior in getattr(part, "_priors", {}).items():
            site = part._pyro_get_fullname(name)
            value = part._pyro_context.get(site)
            if value is not None:
                found[site] = _Drawn(value, value.shape[: value.dim() - len(prior.shape())])
    return found


class AtCentre(Messenger):
    """Gives every site that would be drawn the mean of its distribution.

    A site that its guide draws on an unconstrained scale thereby gets the image of the mean on that scale.

    >>> import pyro
    >>> with AtCentre():
    ...     pyro.sample("noise", dist.Normal(2.0, 1.0))
    tensor(2.)
    """

    def _pyro_sample(self, msg: dict) -> None:
        if not msg["is_observed"] and msg["value"] is None:
            msg["value"], msg["done"] = msg["fn"].mean, True


class Hyperparameters(Parameterized):
    """A module whose hyperparameters may have priors; a ``PyroModule``.

    Every hyperparameter is a ``PyroParam``: replace it by a ``PyroSample`` to give it a prior
    (``model.kernel_w.lengthscale = PyroSample(LogNormal(0, 1))``). A guide of this package then holds a point
    estimate of it, or the distribution named by ``model.kernel_w.autoguide("lengthscale", Normal)``, as with
    the models of ``pyro.contrib.gp``.

    >>> from pyro.nn import PyroSample
    >>> from pyro_gprn import GPRN
    >>> model = GPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=1)
    >>> model.noise_y = PyroSample(dist.LogNormal(0.0, 1.0))
    >>> model.has_priors, model.has_spread
    (True, False)
    """

    @property
    def has_priors(self) -> bool:
        """True if at least one hyperparameter has a prior."""
        return any(getattr(module, "_pyro_samples", None) for module in self.modules())

    @property
    def has_spread(self) -> bool:
        """True if the guide of at least one hyperparameter is a distribution rather than a point."""
        guides = [guide for module in self.modules() for guide, _ in getattr(module, "_guides", {}).values()]
        return any(guide is not dist.Delta for guide in guides)

    def own_shape(self, name: str) -> Size:
        """The shape of one of this module's own hyperparameters, without the plates it may be drawn under."""
        return self._priors[name].shape() if name in self._pyro_samples else getattr(self, name).shape

    def describe_priors(self) -> list[str]:
        """The priors in words that tell one from another: whose it is, its class, and its density at one point."""
        words = []
        for prefix, module in self.named_modules():
            for name, prior in getattr(module, "_priors", {}).items():
                point = biject_to(prior.support)(torch.full(prior.shape(), 0.3))
                density = prior.log_prob(point).sum().item()
                words.append(f"{prefix}.{name} {type(prior).__name__} {density:.12g}".lstrip("."))
        return words

    def hyperparameters(self) -> dict[str, Tensor]:
        """The current (or drawn) values of all hyperparameters, by name."""
        found = {}
        for prefix, module in self.named_modules():
            for name in [*getattr(module, "_pyro_params", {}), *getattr(module, "_pyro_samples", {})]:
                if not name.endswith(_OF_GUIDES):
                    found[f"{prefix}.{name}".lstrip(".")] = getattr(module, name).detach()
        return found

    def _load_pyro_samples(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, Combination) and module._pyro_samples:
                what = next(iter(module._pyro_samples))
                raise ValueError(
                    f"{name} is a {type(module).__name__} of kernels, which has no {what} of its own: put the prior on"
                    f" a part of it, such as {name}.kern0.{what}"
                )
        super()._load_pyro_samples()

    @pyro_method
    def drawn(self, function: Callable[[], T]) -> T:
        """Draws every hyperparameter that has a prior once from it, and calls ``function`` with these values."""
        self._load_pyro_samples()
        return function()

    def guided(self, function: Callable[[], T]) -> T:
        """As :meth:`drawn`, but draws the hyperparameters from their guides instead of their priors."""
        mode = self.mode
        self.set_mode("guide")
        try:
            return self.drawn(function)
        finally:
            self.set_mode(mode)

    def at_centre(self, function: Callable[[], T]) -> T:
        """Calls ``function`` with every hyperparameter at the centre of its posterior, whatever runs outside."""
        with isolated(), AtCentre():
            return self.guided(function)

    def at_values(self, values: Mapping[str, Tensor], function: Callable[[], T]) -> T:
        """Calls ``function`` with the hyperparameters that have priors set to given values, by names of sites."""
        with isolated(), poutine.condition(data=dict(values)):
            return self.drawn(function)

    def draw_hyperparameters(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One draw of the hyperparameters that have priors, from their guides, by names of sites."""
        with isolated(generator):
            trace = poutine.trace(self.guided).get_trace(lambda: None)
        sites = (name for name in trace.stochastic_nodes if not trace.nodes[name]["infer"].get("is_auxiliary"))
        return {name: trace.nodes[name]["value"].detach() for name in sites}

    def with_log_prior(
        self, function: Callable[[], T], generator: torch.Generator | None = None
    ) -> tuple[T, Tensor | float]:
        """Draws the hyperparameters that have priors from their guides, and calls ``function`` with these values.

        :returns: what ``function`` returns, and ``Σ log p − log q`` of these hyperparameters at their drawn values.
        """
        value, log_prior, log_guide = self._with_log_probabilities(function, generator)
        return value, log_prior - log_guide

    def at_centre_with_log_prior(self, function: Callable[[], T]) -> tuple[T, Tensor | float]:
        """What ``function`` returns with every hyperparameter at the centre of its posterior, and Σ log p there."""
        value, log_prior, _ = self._with_log_probabilities(function, centre=True)
        return value, log_prior

    def _with_log_probabilities(
        self, function: Callable[[], T], generator: torch.Generator | None = None, *, centre: bool = False
    ) -> tuple[T, Tensor | float, Tensor | float]:
        """What ``function`` returns, and Σ log p and Σ log q of hyperparameters with priors."""
        if not self.has_priors:
            with isolated():
                return function(), 0.0, 0.0
        with isolated(generator):
            with AtCentre() if centre else nullcontext():
                guide_trace = poutine.trace(self.guided).get_trace(function)
            value = guide_trace.nodes["_RETURN"]["value"]
            model_trace = poutine.trace(poutine.replay(self._load_pyro_samples, trace=guide_trace)).get_trace()
            return value, model_trace.log_prob_sum(), guide_trace.log_prob_sum()
