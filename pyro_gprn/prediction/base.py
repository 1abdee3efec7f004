"""What predictions of every posterior share: choosing outputs, going block by block, mixing components."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import singledispatch
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Normal

from pyro_gprn.network.base import Network
from pyro_gprn.network.checks import check_inputs
from pyro_gprn.outputs.selection import Outputs, OutputSelection

#: How many numbers an intermediate array of one block of outputs may hold.
BLOCK_NUMBERS = 2**21


class Components(ABC):
    """``s`` Gaussians over the new outputs: what they are given one draw each of the latent functions."""

    def noise(self, shared: Tensor) -> Tensor:
        """Observation noise, ``(b,)`` or ``(s, 1, 1)``, where ``shared`` is that of the prediction as a whole."""
        return shared

    @abstractmethod
    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        """``(s, N*, b)``."""

    @abstractmethod
    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        """Without observation noise, ``(s, N*, b)``."""

    @abstractmethod
    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        """A draw around the mean from each of some components, joint over inputs and outputs, ``(c, N*, size)``."""


class PosteriorPredictive(ABC):
    """Outputs at new inputs, given the data: mean, variance, joint draws and log density.

    Made by :func:`~pyro_gprn.posterior_predictive`. Work goes block by block over the outputs: no array but a result
    has both N* and D in it. Each method takes ``outputs``, a choice among them, and computes no others: for one output
    mode an int, a slice or a sequence of ints; for several a tuple with one of these for each mode.

    >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide, posterior_predictive
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=(20, 30), n_latents=2)
    >>> predictive = posterior_predictive(model, CollapsedGuide(model), model.X[:5], Y=torch.ones(8, 20, 30))
    >>> predictive.mean().shape, predictive.log_density(torch.ones(5, 30), outputs=(3, slice(None))).shape
    (torch.Size([5, 20, 30]), torch.Size([5, 30]))
    """

    def __init__(self, model: Network, X_new: Tensor) -> None:
        self.X_new = check_inputs(X_new, n_columns=model.X.shape[1], name="X_new").to(model.X.device)
        self.output_shape = model.output_shape
        self._noise_variance: Tensor  # σ_y², () or (d_1, …, d_M)

    @abstractmethod
    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        """``E[y*]``, ``(N*, b)``."""

    @abstractmethod
    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        """``Var[y*]`` without observation noise, ``(N*, b)``."""

    @abstractmethod
    def _components(self, n_draws: int, joint: bool) -> Components:
        """A mixture that stands for the distribution of y* without noise: jointly, or of each new input on its own."""

    @abstractmethod
    def _numbers_per_output(self) -> tuple[int, int]:
        """How many numbers :meth:`_mean` and :meth:`_variance` hold for each output of a block."""

    def mean(self, outputs: Outputs = None) -> Tensor:
        """``E[y*]``, ``(N*, …)``."""
        chosen = OutputSelection(outputs, self.output_shape)
        with self._gradients():
            result = self._empty(chosen)
            for block in self._blocks(chosen, self._numbers_per_output()[0]):
                result[:, block] = self._mean(chosen, block)
            return chosen.reshape(result)

    def variance(self, outputs: Outputs = None, *, noise: bool = True) -> Tensor:
        """``Var[y*]``, ``(N*, …)``. Without the observation noise if ``noise`` is False."""
        chosen = OutputSelection(outputs, self.output_shape)
        with self._gradients():
            result = self._empty(chosen)
            for block in self._blocks(chosen, self._numbers_per_output()[1]):
                result[:, block] = self._variance(chosen, block)
            return chosen.reshape(result + self._noise(chosen) if noise else result)

    @torch.no_grad()
    def sample(self, n_draws: int, outputs: Outputs = None, *, noise: bool = True) -> Tensor:
        """Draws of y*, joint over inputs and outputs, ``(n_draws, N*, …)``."""
        chosen = OutputSelection(outputs, self.output_shape)
        components = self._components(n_draws, joint=True)
        result = self._empty(chosen, n_draws)
        for block in self._blocks(chosen, n_draws * len(self.X_new)):
            result[..., block] = components.mean(chosen, block)
        at_once = max(1, BLOCK_NUMBERS // result[0].numel())
        for start in range(0, n_draws, at_once):
            some = slice(start, start + at_once)
            result[some] += components.deviation(chosen, some)
            if noise:
                scale = components.noise(self._noise(chosen)).sqrt().expand_as(result)[some]
                result[some] += scale * torch.randn_like(scale)
        return chosen.reshape(result)

    @torch.no_grad()
    def log_density(self, Y_new: Tensor, outputs: Outputs = None, *, n_draws: int = 200) -> Tensor:
        """``log p(y*_nd | data)`` of each new output on its own, ``(N*, …)``.

        The average, over ``n_draws`` of the latent functions, of the Gaussian of y* given them.

        :param Y_new: the new outputs, or the chosen ones of them, ``(N*, …)``.
        """
        chosen = OutputSelection(outputs, self.output_shape)
        expected = Size((len(self.X_new),)) + chosen.shape
        if Y_new.shape != expected:
            raise ValueError(f"Y_new must have shape {tuple(expected)}; got {tuple(Y_new.shape)}")
        components = self._components(n_draws, joint=False)
        result = self._empty(chosen)
        y = Y_new.reshape(len(self.X_new), chosen.size).to(result)
        noise = self._noise(chosen).expand(chosen.size)
        for block in self._blocks(chosen, n_draws * len(self.X_new)):
            scale = (components.variance(chosen, block) + components.noise(noise[block])).sqrt()
            by_component = Normal(components.mean(chosen, block), scale, validate_args=False).log_prob(y[:, block])
            result[:, block] = by_component.logsumexp(0) - math.log(n_draws)
        return chosen.reshape(result)

    def _noise(self, chosen: OutputSelection) -> Tensor:
        return chosen.gather(self._noise_variance)

    def _blocks(self, chosen: OutputSelection, numbers_per_output: int) -> Iterator[slice]:
        return chosen.blocks(max(1, BLOCK_NUMBERS // numbers_per_output))

    def _empty(self, chosen: OutputSelection, *n_draws: int) -> Tensor:
        return self._noise_variance.new_empty(*n_draws, len(self.X_new), chosen.size)

    def _gradients(self) -> torch.set_grad_enabled:
        return torch.set_grad_enabled(self.X_new.requires_grad)


@singledispatch
def posterior_predictive(
    model: Network, posterior: Callable | Mapping[str, Tensor], X_new: Tensor, Y: Any = None, **settings: Any
) -> PosteriorPredictive:
    """Outputs at new inputs, given the data: an object with mean, variance, joint draws and log density.

    :param model: a :class:`~pyro_gprn.GPRN` or :class:`~pyro_gprn.CollapsedGPRN`.
    :param posterior: its guide, trained; for a collapsed model also draws of its sites, as from MCMC.
    :param X_new: ``(N*, P)``.
    :param Y: the data, if model and guide have not seen them.
    :param settings: ``n_draws`` of a collapsed model's mixture.

    >>> import torch
    >>> from pyro_gprn import GPRN, KroneckerGuide
    >>> X = torch.linspace(0, 1, 8)[:, None]
    >>> model = GPRN(X, output_shape=(20, 30), n_latents=2)
    >>> predictive = posterior_predictive(model, KroneckerGuide(model), X[:5] + 0.05, Y=torch.ones(8, 20, 30))
    >>> predictive.mean().shape, predictive.variance(outputs=(3, slice(0, 10))).shape
    (torch.Size([5, 20, 30]), torch.Size([5, 10]))
    >>> predictive.sample(7, outputs=(3, [4, 5])).shape
    torch.Size([7, 5, 2])
    """
    raise TypeError(f"predictions need a GPRN or a CollapsedGPRN; got {type(model).__name__}")
