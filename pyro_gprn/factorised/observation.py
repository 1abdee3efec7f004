"""How outputs come out of the signal ``W f`` at new inputs, by the model's own likelihood."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution
from torch import Size, Tensor
from torch.distributions import Distribution, Independent

from pyro_gprn.pyro_state import isolated

if TYPE_CHECKING:
    from pyro_gprn.factorised.model import GPRN


class Observation:
    """The likelihood of a model, as predictions need it.

    :param likelihood: maps a signal ``(…, d_1, …, d_M)`` to the distribution of the outputs.
    :param output_shape: ``(d_1, …, d_M)``.
    :param like: a tensor with the type and the device of a signal.
    :param is_gaussian: True for the network's own normal noise, for which everything is in closed form.

    >>> from torch.distributions import Normal
    >>> Observation(lambda signal: Normal(signal, 2.0), Size((3,)), torch.zeros(()), is_gaussian=True).variance()
    tensor([4., 4., 4.])
    """

    def __init__(
        self, likelihood: Callable[[Tensor], Distribution], output_shape: Size, like: Tensor, is_gaussian: bool
    ) -> None:
        self._likelihood, self._output_shape, self._like = likelihood, output_shape, like
        self.is_gaussian = is_gaussian

    def variance(self) -> Tensor:
        """The variance of the noise, ``(d_1, …, d_M)``.

        :raises ValueError: unless the likelihood has the signal for its mean and a variance that does not depend on it.
            Only then do outputs have the mean of the signal, and its variance plus that of the noise.
        """
        zeros = self._like.new_zeros(self._output_shape)
        at_zero, at_one = self._likelihood(zeros), self._likelihood(zeros + 1.0)
        shifted = torch.allclose(at_one.mean - at_zero.mean, zeros + 1.0) and torch.allclose(at_zero.mean, zeros)
        if not (shifted and torch.allclose(at_one.variance, at_zero.variance)):
            raise ValueError(
                "predictions need a likelihood whose mean is the signal and whose variance does not depend on it; got"
                f" {type(at_zero).__name__}"
            )
        return at_zero.variance

    def sample(self, signal: Tensor, positions: slice | Tensor) -> Tensor:
        """Draws the outputs at some positions given their signal, both ``(…, b)``, by torch's global random state."""
        return self._at(signal, positions).sample().flatten(-len(self._output_shape))[..., positions]

    def log_prob(self, signal: Tensor, y: Tensor, positions: slice | Tensor) -> Tensor:
        """``log p(y | signal)`` of the outputs at some positions, ``(…, b)``."""
        everything = self._spread_out(y.expand(signal.shape), positions)
        return self._at(signal, positions).log_prob(everything).flatten(-len(self._output_shape))[..., positions]

    def _at(self, signal: Tensor, positions: slice | Tensor) -> Distribution:
        return self._likelihood(self._spread_out(signal, positions))

    def _spread_out(self, values: Tensor, positions: slice | Tensor) -> Tensor:
        """Values of some outputs ``(…, b)`` among zeros for all others, ``(…, d_1, …, d_M)``."""
        everything = values.new_zeros(*values.shape[:-1], self._output_shape.numel())
        everything[..., positions] = values
        return everything.reshape(*values.shape[:-1], *self._output_shape)


def check_own_forward(model: GPRN) -> None:
    """Raises an error if a model overrides ``forward`` with another likelihood than its method ``likelihood`` has.

    Predictions, which use the method, would silently take the wrong noise.
    """
    zeros = {
        "f": model.X.new_zeros(()).expand(model.n_rows, model.n_latents),
        "w": model.X.new_zeros(()).expand(model.n_rows, model.n_latents, *model.output_shape),
    }
    with torch.no_grad(), isolated():
        site = poutine.trace(poutine.condition(model, data=zeros)).get_trace().nodes.get("y")
        said = model.likelihood(model.X.new_zeros(model.output_shape))
    found = None if site is None else _bare(site["fn"])
    if found is None or not torch.allclose(found.variance, said.variance.expand(found.variance.shape)):
        raise ValueError(
            f"{type(model).__name__} has a forward of its own in which the outputs given a signal of zero are"
            f" {'no site y' if found is None else type(found).__name__}, but its likelihood(signal) says"
            f" {type(said).__name__} of another variance: override likelihood(signal), which forward and predictions"
            " both use"
        )


def _bare(distribution: Distribution) -> Distribution:
    """The distribution without those wrappers that leave the distribution of each number as it is."""
    while isinstance(distribution, (Independent, MaskedDistribution, ExpandedDistribution)):
        distribution = distribution.base_dist
    return distribution
