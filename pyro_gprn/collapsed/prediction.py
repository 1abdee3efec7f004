"""Predictions with the weights integrated out.

Given a draw of F and of f*, the functions at new inputs, every output is a Gaussian with one covariance for all::

    y*_d | F, f*, Y ~ Normal(c y_d, V)     k = κ_w(X*,X) ∘ (f* Fᵀ)     c = k C_F⁻¹     V = κ_w(X*,X*) ∘ (f* f*ᵀ) − c kᵀ

so the prediction is a mixture over draws in which each new output is a linear combination of training outputs. With a
scale for each output (output_scales.py) its covariance is ``s_d² V``, with s_d known up to its posterior, so that the
components of the mixture are Student-t.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import covariance_root
from pyro_gprn.collapsed.conditioned import (
    MOST_DRAWS,
    ConditionedDraws,
    DrawsAlike,
    NewRows,
    SettledDraws,
    mirrored_noise,
)
from pyro_gprn.collapsed.draws import Posterior
from pyro_gprn.collapsed.likelihood import combine_outputs, combine_values
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.output_scales import ScaleRule
from pyro_gprn.collapsed.spread import most_directions, n_pairs, products_of_pairs, quadratic_forms
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.base import Components, PosteriorPredictive
from pyro_gprn.prediction.scales import OutputScales, Scales, variance_factors
from pyro_gprn.pyro_state import white_noise

#: What may be wanted of predictions for blocks of outputs.
Wanted: TypeAlias = Literal["mean", "variance", "marginal", "joint"]
#: Draws, with or without the matrices from which predictions at new inputs are made.
Draws: TypeAlias = ConditionedDraws | SettledDraws
#: Coefficients of all draws are made for as many new inputs at a time as give about this many numbers: a cache holds
#: them, which halves the time. Where the matrices of draws are made anew each time, that is what costs, and there are
#: more inputs at a time.
CACHED_NUMBERS, HELD_NUMBERS = 2**19, 2**24


class OutputMixture(NamedTuple):
    """New outputs as linear combinations of training outputs, for ``s`` draws and ``g`` groups of outputs."""

    coefficients: Tensor  #: c, (s, g, N*, N)
    half: Tensor  #: k L⁻ᵀ with C = LLᵀ, so that V = prior − half halfᵀ, (s, g, N*, N)
    functions: Tensor  #: f*, (s, N*, K)
    kernel: Tensor  #: κ_w(X*, X*), (s, 1, N*, N*), or of each group, (s, g, N*, N*); or without the last, its diagonal

    def covariance(self, draws: Tensor) -> Tensor:
        """``V`` of some draws, without observation noise, ``(c, g, N*, N*)``."""
        f, half = self.functions[draws], self.half[draws]
        return self.kernel[draws] * (f @ f.mT).unsqueeze(1) - half @ half.mT

    def variance(self) -> Tensor:
        """The diagonal of ``V`` of all draws, ``(s, g, N*)``."""
        kernel = self.kernel if self.kernel.dim() == 3 else self.kernel.diagonal(dim1=-2, dim2=-1)
        return _left_over(kernel, self.functions, self.half)


class CollapsedPredictive(PosteriorPredictive):
    """Predictions from a :class:`~pyro_gprn.CollapsedGPRN`: a mixture over draws of its functions.

    Hyperparameters that have a posterior with a spread are drawn too, one value for each component. Gradients flow to
    ``X_new`` if it requires them (not through draws).

    :param model: the model.
    :param posterior: a :class:`~pyro_gprn.CollapsedGuide`; another Pyro guide of the model, such as ``AutoDelta``; or
        draws, a mapping from site names to tensors as ``MCMC.get_samples()`` gives: "v" and drawn hyperparameters.
    :param X_new: ``(N*, P)``.
    :param Y: the data, if the model has not seen them.
    :param n_draws: how many components the mixture has; None is 128, and fewer (at least 32) where training rows or
        groups of outputs are so many that their matrices could not be kept. (Of draws all are used.)
    :param output_scales: what :func:`~pyro_gprn.learn_output_scales` says; None gives all outputs one scale.
    :param conditioned: draws that were made and conditioned on the data before, for another prediction from the same
        posterior; ``Y`` and ``n_draws`` are then left out of account.
    :param variance_type: the type of the products that :meth:`variance` is made of. float32 takes half the time, and
        the sixth digit of a variance does not matter.
    :param generator: of random numbers; None is torch's global state.
    """

    def __init__(
        self,
        model: CollapsedGPRN,
        posterior: Posterior,
        X_new: Tensor,
        Y: Any = None,
        *,
        n_draws: int | None = None,
        output_scales: OutputScales | ScaleRule | None = None,
        conditioned: ConditionedDraws | None = None,
        variance_type: torch.dtype = torch.float64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, X_new, generator)
        if conditioned is None:
            conditioned = ConditionedDraws.of(model, posterior, Y, n_draws=n_draws, generator=generator)
        self._scales, self._variance_type = output_scales, variance_type
        self._model: Any = model
        self._posterior: Any = posterior
        self._known = conditioned.known
        self._conditioned: Any = conditioned
        with torch.set_grad_enabled(self.X_new.requires_grad):
            self._at_new = conditioned.at(self.X_new)
        self._averages: tuple[Tensor, ...] = ()
        self._apart: OutputMixture | None = None
        self._chosen: Tensor | None = None

    def _averaged(self, *, with_variance: bool) -> tuple[Tensor, ...]:
        """What means and variances need of the draws: averages over them.

        :returns: of the coefficients c, ``(g, N*, N)``; and with the variance of the quadratic forms that give the
            variance between draws (spread.py), ``(g, N*, r (r + 1) / 2)``, and of the variance within, ``(g, N*)``.
        """
        if len(self._averages) < (3 if with_variance else 1):
            drawn = self._conditioned
            at_most = CACHED_NUMBERS if drawn.is_kept else HELD_NUMBERS
            at_once = max(1, at_most // (drawn.n_draws * drawn.n_groups * self._model.n_rows))
            blocks = range(0, len(self.X_new), at_once)
            parts = [self._average(slice(start, start + at_once), with_variance) for start in blocks]
            mean, *rest = (torch.cat(values, dim=1) for values in zip(*parts, strict=True))
            self._averages = (mean @ drawn.coordinates.inverse, *rest)
        return self._averages

    def _average(self, rows: slice, with_variance: bool) -> tuple[Tensor, ...]:
        """The averages at some new inputs, coefficients in white coordinates."""
        drawn = self._conditioned
        if not with_variance:
            return (drawn.mean_coefficients(self._at_new, rows),)
        cross = drawn.cross(self._at_new, rows)
        coefficients = drawn.coefficients(cross)
        mean = drawn.mean_coefficients(self._at_new, rows, coefficients)
        forms = quadratic_forms(coefficients - coefficients.mean(0), drawn.directions)
        functions = torch.cat([new.functions[:, rows] for new in self._at_new])
        kernel = _of_draws([new.variance[..., rows] for new in self._at_new], self._at_new, 1)
        return mean, forms, _left_over(kernel, functions, drawn.half(cross)).mean(0)

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return combine_outputs(self._averaged(with_variance=False)[0], self._known, chosen.positions(block))

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        along = combine_outputs(self._conditioned.projection, self._known, positions)
        return self._variance_along(along, positions, self._forms(noise=False))

    def _forms(self, *, noise: bool) -> Tensor:
        """The variance between draws and within, as a form in the features of an output, ``(g, N*, pairs + 1)``."""
        _, between, within = self._averaged(with_variance=True)
        if noise:
            within = within + self._conditioned.noise.mean(0).unsqueeze(-1)
        return torch.cat([between, within.unsqueeze(-1)], dim=-1).to(self._variance_type)

    def _variance_along(self, along: Tensor, positions: slice | Tensor, forms: Tensor) -> Tensor:
        """The variance of the outputs at some positions, ``(N*, b)``, from where they lie along r directions."""
        features = forms.new_empty(forms.shape[-1], along.shape[1])
        factors, within = variance_factors(self._scales, positions)
        products_of_pairs((along * factors).to(forms), out=features[:-1])
        features[-1] = within
        return combine_values(forms, features, self._known, positions).clamp_(min=0.0)

    def fill_mean_and_variance(self, mean: Tensor, variance: Tensor) -> None:
        n_new = len(self.X_new)
        forms = self._forms(noise=True)
        both = torch.cat([self._averaged(with_variance=False)[0], self._conditioned.projection], dim=1)
        everything = OutputSelection(None, self.output_shape)
        for block in self._blocks(everything, self._numbers_per_output()[1]):
            combined = combine_outputs(both, self._known, block)  # Y is read once, for mean and variance
            mean[:, block] = combined[:n_new]
            found = self._variance_along(combined[n_new:], block, forms)
            stretched = self._stretch(everything, block, mean[:, block])
            variance[:, block] = found if stretched is None else found.mul_(stretched)

    def _noise(self, chosen: OutputSelection) -> Tensor:
        noise = _of_outputs(self._conditioned.noise.mean(0), self._known, chosen).squeeze(-1)
        return noise * variance_factors(self._scales, chosen.positions(slice(None)))[1]

    @torch.no_grad()
    def _mix(self, conditioned: ConditionedDraws, at_new: list[NewRows], kernels: list[Tensor]) -> OutputMixture:
        """The mixture over draws at new inputs, with the kernel of each part ``(…, N*, N*)`` or its diagonal."""
        cross = conditioned.cross(at_new)
        coefficients = conditioned.coefficients(cross) @ conditioned.coordinates.inverse
        functions = torch.cat([new.functions for new in at_new])
        n_dims = kernels[0].dim() - (at_new[0].variance.dim() - 1)  # without that of groups
        return OutputMixture(coefficients, conditioned.half(cross), functions, _of_draws(kernels, at_new, n_dims))

    def _mix_apart(self, conditioned: ConditionedDraws) -> OutputMixture:
        """The mixture with the functions drawn at each input on its own."""
        at_new = self._at_new if conditioned is self._conditioned else conditioned.at(self.X_new)
        return self._mix(conditioned, at_new, [new.variance for new in at_new])

    @cached_property
    @torch.no_grad()
    def _joint_mixture(self) -> OutputMixture:
        """The mixture with the functions drawn jointly over the new inputs."""
        model, X_new = self._model, self.X_new

        def at(part: DrawsAlike) -> tuple[NewRows, Tensor]:
            white = mirrored_noise(len(part.V), len(X_new), model, self._generator)
            return part.at(X_new, white), model.kernel_w(X_new)

        at_new, kernels = zip(*self._conditioned.each(at), strict=True)
        return self._mix(self._conditioned, list(at_new), list(kernels))

    def _components(self, n_draws: int | None, joint: bool) -> Components:
        conditioned = self._conditioned
        if joint:
            return self._choose(self._joint_mixture, conditioned, n_draws)
        if self._apart is not None:
            return self._choose(self._apart, conditioned, n_draws)
        if n_draws is not None and n_draws > conditioned.n_draws:  # none counts twice: draw as many as are wanted
            conditioned = ConditionedDraws.of(
                self._model, self._posterior, self._known, n_draws=n_draws, generator=self._generator
            )
        return self._choose(self._mix_apart(conditioned), conditioned, min(n_draws or MOST_DRAWS, conditioned.n_draws))

    def _choose(self, mixture: OutputMixture, conditioned: Draws, n: int | None) -> Components:
        draws = self._chosen
        if draws is None:
            draws = choose_draws(len(mixture.coefficients), n, self._generator)
        return self._kind_of_components()(mixture, conditioned, self._scales, draws, self._generator)

    def _kind_of_components(self) -> type[ChosenComponents]:
        return ChosenComponents

    def settle(self, wanted: Wanted, n_draws: int | None = None) -> CollapsedPredictive:
        """These predictions without the draws from which they are made: ready for blocks of outputs, one at a time.

        What remains is small, and all that does not depend on the outputs has been computed: see :meth:`of_outputs`.

        :param wanted: what will be asked for: ``"mean"``, ``"variance"`` (and the mean), ``"marginal"`` (quantiles and
            densities), or ``"joint"`` (draws).
        :param n_draws: how many draws, if they are wanted: then all blocks have the same functions in draw i.
        """
        settled, drawn = copy.copy(self), self._conditioned
        projection = None
        if wanted in ("mean", "variance"):
            settled._averages = self._averaged(with_variance=wanted == "variance")
            projection = drawn.projection if wanted == "variance" else None
        elif wanted == "marginal":
            settled._apart = self._mix_apart(drawn)
        else:
            settled._joint_mixture = self._joint_mixture
            settled._averages = () if self._is_same_everywhere else self._averaged(with_variance=False)
            settled._chosen = choose_draws(drawn.n_draws, n_draws, self._generator)
        nothing: Any = None  # until of_outputs
        settled._conditioned = SettledDraws(nothing, drawn.n_draws, drawn.noise, projection)
        settled._model = settled._posterior = settled._generator = settled._known = settled._scales = nothing
        settled._at_new = []
        return settled

    def some_draws(self, some: slice) -> CollapsedPredictive:
        """Some of the settled draws."""
        other = copy.copy(self)
        other._chosen = None if self._chosen is None else self._chosen[some]
        return other

    def of_outputs(
        self, known: OutputStatistics, scales: ScaleRule | OutputScales | None, generator: torch.Generator | None = None
    ) -> CollapsedPredictive:
        """The settled predictions for other outputs, with the same groups.

        :param known: statistics of these outputs.
        :param scales: of these outputs.
        :param generator: of random numbers, for draws.
        """
        other = copy.copy(self)
        other._known, other._scales, other._generator = known, scales, generator
        other._conditioned, other.output_shape = self._conditioned._replace(known=known), known.source.shape[1:]
        return other

    def _numbers_per_output(self) -> tuple[int, int]:
        n_new, n_rows = len(self.X_new), self._known.source.n_rows
        n_directions = min(n_rows, most_directions(self._known.source.n_outputs))  # how many, only a variance knows
        mean = 8 * max(n_new, n_rows)  # a cache holds blocks of Y that are this small
        return mean, max(mean, 2 * n_pairs(n_directions))


def _left_over(kernel: Tensor, functions: Tensor, half: Tensor) -> Tensor:
    """The variance that training outputs leave, ``(s, g, N*)``; ``kernel`` is κ_w(x*, x*), ``(s, 1 or g, N*)``."""
    return (kernel * functions.square().sum(-1).unsqueeze(1) - half.square().sum(-1)).clamp(min=0.0)


def _of_draws(values: list[Tensor], at_new: list[NewRows], n_dims: int) -> Tensor:
    """Values of each part, ``(…)`` or of each group ``(g, …)``, as those of each draw, ``(s, 1 or g, …)``.

    :param n_dims: how many dimensions ``…`` stands for.
    """
    with_groups = (each if each.dim() > n_dims else each.unsqueeze(0) for each in values)
    pairs = zip(with_groups, at_new, strict=True)
    return torch.cat([each.expand(len(new.functions), *each.shape) for each, new in pairs])


def _of_outputs(values: Tensor, known: OutputStatistics, chosen: OutputSelection) -> Tensor:
    """Values ``(…, 1)`` of all outputs as they are, or those of each group, ``(…, g)``, of each chosen output."""
    return values if values.shape[-1] == 1 else values[..., known.patterns_at(chosen.positions(slice(None)))]


def choose_draws(available: int, n: int | None, generator: torch.Generator | None) -> Tensor:
    """Numbers of ``n`` of the available draws, each as often as the others or once more, ``(n,)``; None is all."""
    n = available if n is None else n
    rounds = [torch.randperm(available, device="cpu", generator=generator) for _ in range(-(-n // available))]
    return torch.cat(rounds)[:n]


class ChosenComponents(Components):
    """Some components of a mixture: those with the numbers ``draws``, ``(n,)``.

    :param mixture: of all draws, with a covariance and a variance by each.
    :param conditioned: the draws.
    """

    def __init__(
        self,
        mixture: Any,
        conditioned: Any,
        scales: Scales | None,
        draws: Tensor,
        generator: torch.Generator | None,
    ) -> None:
        self._draws = draws
        self._mixture, self._known, self._scales, self._generator = mixture, conditioned.known, scales, generator
        self._noise = conditioned.noise[self._draws]
        self.n_components = len(draws)
        times = draws.bincount(minlength=conditioned.n_draws)
        self._are_all_draws = bool((times == times[0]).all())  # each as often: then their mean is that of all draws
        self._variance = mixture.variance()[self._draws]  # (n, g, N*)

    @cached_property
    def _coefficients(self) -> Tensor:
        return self._mixture.coefficients[self._draws].movedim(1, 0)  # (g, n, N*, N)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        means = self._means(positions)
        if self._scales is None or self._scales.widening.is_nothing:
            return means
        centre = means.mean(0) if self._are_all_draws else self._centre(positions)
        return self._scales.at(positions).spread_out(means, centre)

    def _means(self, positions: slice | Tensor) -> Tensor:
        """The means of the components as the network has them, ``(n, N*, b)``."""
        return combine_outputs(self._coefficients, self._known, positions)

    def _centre(self, positions: slice | Tensor) -> Tensor:
        """The mean over all draws, ``(N*, b)``."""
        return combine_outputs(self._mixture.coefficients.mean(0), self._known, positions)

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._variance[:, self._known.patterns_at(chosen.positions(block))].mT

    def noise(self, chosen: OutputSelection) -> Tensor:
        return _of_outputs(self._noise[:, None], self._known, chosen)

    def scales(self, chosen: OutputSelection, block: slice) -> OutputScales | None:
        if self._scales is None:
            return None
        scales = self._scales.at(chosen.positions(block))
        return scales._replace(degrees=scales.degrees[None, None], squares=scales.squares[None, None])

    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        return self._deviation(chosen, components, self._known.patterns_at(chosen.positions(slice(None))))

    def _deviation(self, chosen: OutputSelection, components: slice, groups: Tensor) -> Tensor:
        """The deviation of outputs of given groups, ``(size,)``."""
        covariance = self._mixture.covariance(self._draws[components])
        shape = (len(covariance), covariance.shape[-1], chosen.size)
        white = white_noise(*shape, like=covariance, generator=self._generator, dtype=torch.float32)
        for group in range(covariance.shape[1]):
            some = groups == group
            white[..., some] = covariance_root(covariance[:, group]) @ white[..., some]
        return white
