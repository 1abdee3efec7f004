"""What the predictions of every posterior share: selecting outputs, working block by block, mixing components."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Size, Tensor

from pyro_gprn.network.base import Network
from pyro_gprn.network.checks import check_inputs
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.prediction.scales import OutputScales, Scales, StudentMixture
from pyro_gprn.pyro_state import white_noise

#: How many numbers an intermediate array of one block of outputs may hold.
BLOCK_NUMBERS = 2**21
#: Quantiles are read off this many draws if the noise is not Gaussian.
N_QUANTILE_DRAWS = 1000
#: Arrays that the search for a quantile holds at once: small enough for a cache it takes a third of the time.
_QUANTILE_ARRAYS = 16


class Components(ABC):
    """A mixture of s Gaussians over the signal at new inputs; component i is p(signal given draw i of the functions).

    Where :meth:`scales` are known only with a spread, a component is Gaussian given them: the output's deviation from
    the mean, noise included, is multiplied by its scale.

    Methods take a selection of outputs, and a block of b of the selected ones.
    """

    n_components: int  #: s

    @abstractmethod
    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        """The mean of each component, ``(s, N*, b)``."""

    @abstractmethod
    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        """The variance of each component, without observation noise, ``(s, N*, b)``."""

    @abstractmethod
    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        """One draw, less its mean, from each of c components, joint over inputs and outputs, ``(c, N*, size)``."""

    @abstractmethod
    def noise(self, chosen: OutputSelection) -> Tensor:
        """The variance of the observation noise, ``(s or 1, 1, size or 1)``."""

    def scales(self, chosen: OutputSelection, block: slice) -> OutputScales | None:
        """Of the outputs of a block, each ``(s or 1, 1, b)``; None if all are 1."""
        return None


class PosteriorPredictive(ABC):
    """Outputs at new inputs, given the data: mean, variance, quantiles, joint draws and log density.

    Made by :func:`~pyro_gprn.posterior_predictive`. Methods work block by block over the outputs: no array but a result
    has both N* and D in its shape. Each takes a selection of outputs and computes no others. With one output mode,
    ``outputs`` is an int, a slice or a sequence of ints. With several modes it is a tuple with one of these for each
    mode, or an int, a slice or a sequence of ints that give positions among the flattened outputs.

    >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide, posterior_predictive
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=(20, 30), n_latents=2)
    >>> predictive = posterior_predictive(model, CollapsedGuide(model), model.X[:5], Y=torch.ones(8, 20, 30))
    >>> predictive.mean().shape, predictive.log_density(torch.ones(5, 30), outputs=(3, slice(None))).shape
    (torch.Size([5, 20, 30]), torch.Size([5, 30]))
    """

    _scales: Scales | None = None  #: of the outputs; None if all are 1

    def __init__(self, model: Network, X_new: Tensor, generator: torch.Generator | None = None) -> None:
        self.X_new = check_inputs(X_new, n_columns=model.X.shape[1], name="X_new").to(model.X.device)
        self.output_shape = model.output_shape
        self._generator = generator

    @abstractmethod
    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        """``E[y*]``, ``(N*, b)``."""

    @abstractmethod
    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        """``Var[y*]`` without observation noise, ``(N*, b)``."""

    @abstractmethod
    def _noise(self, chosen: OutputSelection) -> Tensor:
        """The variance of the observation noise, ``()`` or ``(size,)``."""

    @abstractmethod
    def _components(self, n_draws: int | None, joint: bool) -> Components:
        """A mixture that approximates the distribution of the signal.

        :param n_draws: how many components; None for as many as suit the posterior.
        :param joint: whether it must be right jointly over the new inputs, or only at each of them on its own.
        """

    @abstractmethod
    def _numbers_per_output(self) -> tuple[int, int]:
        """How many numbers :meth:`_mean` and :meth:`_variance` hold for each output of a block."""

    def mean(self, outputs: Outputs = None, *, out: Tensor | None = None) -> Tensor:
        """The mean ``E[y*]`` of the selected outputs, ``(N*, …)``.

        :param out: a tensor ``(N*, size)`` of any floating type, which is filled in place of a new float64 tensor.
        """
        return self._fill(outputs, self._mean, self._numbers_per_output()[0], out)

    def variance(self, outputs: Outputs = None, *, noise: bool = True, out: Tensor | None = None) -> Tensor:
        """The variance ``Var[y*]`` of the selected outputs, ``(N*, …)``.

        :param noise: whether observation noise is included.
        :param out: as for :meth:`mean`.
        """
        with torch.set_grad_enabled(self.X_new.requires_grad):
            everything = OutputSelection(outputs, self.output_shape)
            of_noise = (self._noise(everything) if noise else self.X_new.new_zeros(())).expand(everything.size)

        def compute(chosen: OutputSelection, block: slice) -> Tensor:
            found = self._variance(chosen, block) + of_noise[block]
            stretched = None if self._is_same_everywhere else self._stretch(chosen, block, self._mean(chosen, block))
            return found if stretched is None else found * stretched

        return self._fill(outputs, compute, self._numbers_per_output()[1], out)

    @property
    def _is_same_everywhere(self) -> bool:
        """True unless deviations from the mean are stretched by how far an output is predicted from its own mean."""
        return self._scales is None or self._scales.widening.places.is_nothing

    def _stretch(self, chosen: OutputSelection, block: slice, mean: Tensor) -> Tensor | None:
        """The squares of what deviations are stretched by at these places, ``(N*, b)``; None if it is 1 everywhere.

        :param mean: what is predicted there, ``(N*, b)``.
        """
        if self._scales is None or self._is_same_everywhere:
            return None
        return self._scales.at(chosen.positions(block)).squares_at_places(mean)

    def fill_mean_and_variance(self, mean: Tensor, variance: Tensor) -> None:
        """Writes mean and variance of all outputs, noise included, to tensors ``(N*, D)`` of any floating type."""
        self.variance(out=variance)
        self.mean(out=mean)

    def _fill(
        self,
        outputs: Outputs,
        compute: Callable[[OutputSelection, slice], Tensor],
        numbers_per_output: int,
        out: Tensor | None,
    ) -> Tensor:
        chosen = OutputSelection(outputs, self.output_shape)
        with torch.set_grad_enabled(self.X_new.requires_grad):
            result = self.X_new.new_empty(len(self.X_new), chosen.size) if out is None else out
            for block in self._blocks(chosen, numbers_per_output):
                result[:, block] = compute(chosen, block)
            return chosen.reshape(result)

    @torch.no_grad()
    def sample(self, n_draws: int, outputs: Outputs = None, *, noise: bool = True) -> Tensor:
        """Draws of y*, joint over inputs and outputs, ``(n_draws, N*, …)``; ``noise`` as for :meth:`variance`."""
        chosen = OutputSelection(outputs, self.output_shape)
        components = self._components(n_draws, joint=True)
        result = self.X_new.new_empty(n_draws, len(self.X_new), chosen.size)
        for block in self._blocks(chosen, n_draws * len(self.X_new)):
            result[..., block] = components.mean(chosen, block)
        at_once = max(1, BLOCK_NUMBERS // result[0].numel())
        for start in range(0, n_draws, at_once):
            some = slice(start, start + at_once)
            result[some] = self._draw(result[some], components, chosen, some, noise)
        if not self._is_same_everywhere:
            for block in self._blocks(chosen, n_draws * len(self.X_new)):
                mean = self._mean(chosen, block)
                stretched = self._stretch(chosen, block, mean)
                if stretched is not None:
                    result[..., block] = mean + stretched.sqrt() * (result[..., block] - mean)
        return chosen.reshape(result)

    @torch.no_grad()
    def log_density(self, Y_new: Tensor, outputs: Outputs = None, *, n_draws: int | None = None) -> Tensor:
        """``log p(y*_nd | data)`` of each new output on its own, ``(N*, …)``.

        The density is the average, over draws of the latent functions, of the density given the functions.

        :param Y_new: values of the selected outputs at the new inputs, ``(N*, …)``.
        :param n_draws: how many draws; by default as many as suit the posterior.
        """
        chosen = OutputSelection(outputs, self.output_shape)
        expected = Size((len(self.X_new),)) + chosen.shape
        if Y_new.shape != expected:
            raise ValueError(f"Y_new must have shape {tuple(expected)}; got {tuple(Y_new.shape)}")
        components = self._components(n_draws, joint=False)
        result = self.X_new.new_empty(len(self.X_new), chosen.size)
        y = Y_new.reshape(len(self.X_new), chosen.size).to(result)
        for block in self._blocks(chosen, components.n_components * len(self.X_new)):
            by_component = self._log_density_given(y[:, block], components, chosen, block)
            result[:, block] = by_component.logsumexp(0) - math.log(components.n_components)
        return chosen.reshape(result)

    @torch.no_grad()
    def cdf(self, Y_new: Tensor, outputs: Outputs = None) -> Tensor:
        """``P(y*_nd ≤ Y_new | data)`` of each new output on its own, noise included, ``(N*, …)``; NaN where Y_new is.

        It belongs to :meth:`quantiles`: if the noise is not Gaussian, it is the share of 1,000 draws of the outputs.

        :param Y_new: values of the selected outputs at the new inputs, ``(N*, …)``.

        >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide, posterior_predictive
        >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=30, n_latents=2)
        >>> predictive = posterior_predictive(model, CollapsedGuide(model), model.X[:5], Y=torch.ones(8, 30))
        >>> (predictive.cdf(predictive.quantiles([0.3])[0]) - 0.3).abs().max() < 1e-5
        tensor(True)
        """
        chosen = OutputSelection(outputs, self.output_shape)
        y = Y_new.reshape(len(self.X_new), chosen.size).to(self.X_new)
        if not self._has_gaussian_noise:
            draws = self.sample(N_QUANTILE_DRAWS, outputs).reshape(-1, *y.shape)
            return chosen.reshape(torch.where(y.isnan(), torch.nan, (draws <= y).to(y).mean(0)))
        components = self._components(None, joint=False)
        result = torch.empty_like(y)
        for block in self._blocks(chosen, components.n_components * len(self.X_new)):
            result[:, block] = self._mixture_of(components, chosen, block).cdf(y[:, block])
        return chosen.reshape(result)

    @torch.no_grad()
    def quantiles(
        self,
        probabilities: Sequence[float],
        outputs: Outputs = None,
        *,
        n_draws: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Quantiles of each new output on its own, noise included, ``(p, N*, …)``.

        Those of the mixture over draws of the latent functions whose density :meth:`log_density` is, found to a
        millionth of a standard deviation; if the noise is not Gaussian, those of 1,000 draws of the outputs.
        ``(0.025, 0.975)`` bounds the central 95 % interval.

        :param probabilities: strictly between 0 and 1, ``p`` of them.
        :param n_draws: as for :meth:`log_density`; the time taken is proportional to it.
        :param out: flat, ``(p, N*, size)``, of any floating type, to write to in place of a new float64 tensor.

        >>> from pyro_gprn import CollapsedGPRN, CollapsedGuide, posterior_predictive
        >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=30, n_latents=2)
        >>> predictive = posterior_predictive(model, CollapsedGuide(model), model.X[:5], Y=torch.ones(8, 30))
        >>> lower, upper = predictive.quantiles((0.025, 0.975))
        >>> lower.shape, (lower < upper).all()
        (torch.Size([5, 30]), tensor(True))
        """
        wanted = check_probabilities(probabilities)
        chosen = OutputSelection(outputs, self.output_shape)
        shape = (len(wanted), len(self.X_new), chosen.size)
        result = self.X_new.new_empty(shape) if out is None else out
        if not self._has_gaussian_noise:
            return self._quantiles_of_draws(wanted, chosen, n_draws or N_QUANTILE_DRAWS, result)
        components = self._components(n_draws, joint=False)
        for block in self._blocks(chosen, _QUANTILE_ARRAYS * components.n_components * len(self.X_new)):
            mixture = self._mixture_of(components, chosen, block)
            for place, probability in enumerate(wanted):
                result[place, :, block] = mixture.quantile(probability)
        return chosen.reshape(result)

    @property
    def _has_gaussian_noise(self) -> bool:
        """True if an output is Gaussian given its signal (and its scale)."""
        return True

    def _quantiles_of_draws(
        self, probabilities: Sequence[float], chosen: OutputSelection, n_draws: int, out: Tensor
    ) -> Tensor:
        wanted, positions = self.X_new.new_tensor(probabilities), chosen.all_positions()
        for block in self._blocks(chosen, n_draws * len(self.X_new)):
            out[..., block] = self.sample(n_draws, positions[block]).quantile(wanted, dim=0)
        return chosen.reshape(out)

    def _draw(self, mean: Tensor, components: Components, chosen: OutputSelection, some: slice, noise: bool) -> Tensor:
        """Draws ``(c, N*, size)`` from some components, given their means."""
        scales = components.scales(chosen, slice(None))
        signal = components.deviation(chosen, some)
        signal = signal + mean if scales is None else signal
        drawn = self._draw_observation(signal, components, chosen, some) if noise else signal
        if scales is None:
            return drawn
        shape = (components.n_components, 1, chosen.size)
        own = OutputScales(scales.degrees.expand(shape)[some], scales.squares.expand(shape)[some], scales.prior_degrees)
        return mean + own.draw((), self._generator) * drawn

    def _draw_observation(self, signal: Tensor, components: Components, chosen: OutputSelection, some: slice) -> Tensor:
        """Draws outputs ``(c, N*, size)`` given the signal of c components ``some``: adds Gaussian noise."""
        scale = components.noise(chosen).sqrt().expand(components.n_components, *signal.shape[1:])[some]
        return signal + scale * white_noise(*scale.shape, like=scale, generator=self._generator)

    def _log_density_given(self, y: Tensor, components: Components, chosen: OutputSelection, block: slice) -> Tensor:
        """``log p(y | component)``, ``(s, N*, b)``."""
        return self._mixture_of(components, chosen, block).log_density_by_component(y)

    def _mixture_of(self, components: Components, chosen: OutputSelection, block: slice) -> StudentMixture:
        """The outputs of a block with their noise: Gaussian given a component, Student-t if scales are unknown."""
        noise = components.noise(chosen)
        variance = components.variance(chosen, block) + (noise[..., block] if noise.shape[-1] > 1 else noise)
        mean, scales = components.mean(chosen, block), components.scales(chosen, block)
        if scales is None:
            return StudentMixture(mean, variance.sqrt(), variance.new_tensor(math.inf)).overlapping()
        mixture = StudentMixture(mean, (variance * scales.squares).sqrt(), scales.degrees).overlapping()
        stretched = self._stretch(chosen, block, mean.mean(0))
        return mixture if stretched is None else mixture.stretched(stretched.sqrt())

    def _blocks(self, chosen: OutputSelection, numbers_per_output: int) -> Iterator[slice]:
        return chosen.blocks(max(1, BLOCK_NUMBERS // numbers_per_output))


def check_probabilities(probabilities: Sequence[float]) -> list[float]:
    """The probabilities of quantiles, as a list of at least one number strictly between 0 and 1."""
    found = [float(each) for each in torch.as_tensor(probabilities, dtype=torch.float64).flatten()]
    if not found or not all(0.0 < each < 1.0 for each in found):
        raise ValueError(f"quantiles need probabilities strictly between 0 and 1; got {probabilities!r}")
    return found


class MixturePredictive(PosteriorPredictive):
    """A mixture of predictions at the same new inputs in equal shares, such as one for each draw of hyperparameters.

    :param model: the model of all parts.
    :param parts: the predictions that are mixed.
    :param generator: source of random numbers; None uses torch's global state.
    """

    def __init__(self, model: Network, parts: Sequence[PosteriorPredictive], generator: torch.Generator | None) -> None:
        super().__init__(model, parts[0].X_new, generator)
        self.parts = list(parts)

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.stack([part._mean(chosen, block) for part in self.parts]).mean(0)

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        within = torch.stack([part._variance(chosen, block) for part in self.parts]).mean(0)
        return within + torch.stack([part._mean(chosen, block) for part in self.parts]).var(0, correction=0)

    def _noise(self, chosen: OutputSelection) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*(part._noise(chosen) for part in self.parts))).mean(0)

    @property
    def _has_gaussian_noise(self) -> bool:
        return all(part._has_gaussian_noise for part in self.parts)

    def sample(self, n_draws: int, outputs: Outputs = None, *, noise: bool = True) -> Tensor:
        # Each part draws its own outputs: its likelihood may be no Gaussian.
        return torch.cat([part.sample(n, outputs, noise=noise) for part, n in self._shares(n_draws)])  # type: ignore[arg-type]

    def log_density(self, Y_new: Tensor, outputs: Outputs = None, *, n_draws: int | None = None) -> Tensor:
        shares = self._shares(n_draws)
        total = sum(n or 1 for _, n in shares)
        by_part = [part.log_density(Y_new, outputs, n_draws=n) + math.log((n or 1) / total) for part, n in shares]
        return torch.stack(by_part).logsumexp(0)

    def _shares(self, n_draws: int | None) -> list[tuple[PosteriorPredictive, int | None]]:
        """The parts with how many of the draws each has; None if it may have as many as it likes."""
        n_parts = len(self.parts)
        each = [None if n_draws is None else len(range(i, n_draws, n_parts)) for i in range(n_parts)]
        return [(part, n) for part, n in zip(self.parts, each, strict=True) if n != 0]

    def _components(self, n_draws: int | None, joint: bool) -> Components:
        return _Joined([part._components(n, joint) for part, n in self._shares(n_draws)])

    def _numbers_per_output(self) -> tuple[int, int]:
        mean, variance = self.parts[0]._numbers_per_output()
        return mean * len(self.parts), variance * len(self.parts)


class _Joined(Components):
    """The components of several mixtures, one after another."""

    def __init__(self, parts: list[Components]) -> None:
        self._parts = parts
        self.n_components = sum(part.n_components for part in parts)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.cat([part.mean(chosen, block) for part in self._parts])

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return torch.cat([part.variance(chosen, block) for part in self._parts])

    def noise(self, chosen: OutputSelection) -> Tensor:
        each = [(part.noise(chosen), part.n_components) for part in self._parts]
        return torch.cat([noise.expand(n, 1, noise.shape[-1]) for noise, n in each])

    def scales(self, chosen: OutputSelection, block: slice) -> OutputScales | None:
        each = [(part.scales(chosen, block), part.n_components) for part in self._parts]
        found = [scales for scales, _ in each if scales is not None]
        if not found:
            return None
        ones = torch.ones_like(found[0].squares)
        common = OutputScales(ones * math.inf, ones, math.inf)
        both = [(common if scales is None else scales, n) for scales, n in each]
        degrees = torch.cat([scales.degrees.expand(n, -1, -1) for scales, n in both])
        squares = torch.cat([scales.squares.expand(n, -1, -1) for scales, n in both])
        return OutputScales(degrees, squares, found[0].prior_degrees)

    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        start, stop, _ = components.indices(self.n_components)
        drawn, before = [], 0
        for part in self._parts:
            some = slice(max(0, start - before), max(0, min(stop - before, part.n_components)))
            if some.start < some.stop:
                drawn.append(part.deviation(chosen, some))
            before += part.n_components
        return torch.cat(drawn)
