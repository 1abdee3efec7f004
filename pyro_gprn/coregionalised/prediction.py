"""Predictions of the coregionalised network: one Gaussian, in closed form.

Given the weights W and all observed numbers y, with C their covariance, the functions at new inputs are Gaussian::

    Cov[f*_k, y_nd] = w_kd c_k(x*, x_n)         c_k = κ_k, plus σ_f² where x* is the input of row n
    E[f*_k] = Σ_n c_k(x*, x_n) b_kn             b_kn = Σ_d w_kd (C⁻¹y)_nd
    Cov[f*] = prior − HᵀH                       H = L⁻¹ Cov[y, f*],  C = LLᵀ

and the outputs are f* W. The offsets of the outputs are D further functions, constant ones, so that there are K + D of
them here. A missing output of a training row is predicted from the row's own functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import as_correlation, covariance_root
from pyro_gprn.collapsed.likelihood import outputs_given
from pyro_gprn.coregionalised.guide import CoregionalisedGuide
from pyro_gprn.coregionalised.model import CoregionalisedGPRN
from pyro_gprn.coregionalised.training import flat_statistics
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.outputs.variation import spread_of
from pyro_gprn.prediction import (
    PosteriorPredictive,
    condition,
    output_correlation,
    posterior_predictive,
    prediction_settings,
    scales_of_outputs,
)
from pyro_gprn.prediction.base import Components
from pyro_gprn.prediction.conditional import NoiseOfRows
from pyro_gprn.prediction.scales import OutputScales, Scales, variance_factors
from pyro_gprn.pyro_state import white_noise
from pyro_gprn.training.widening import AS_THEY_ARE, Widening


@dataclass(frozen=True)
class ConditionedFunctions:
    """The functions of a coregionalised network given the data: what does not depend on new inputs.

    :param model: the model.
    :param w: the weights of functions and offsets, ``(K + D, D)``.
    :param factor: L, the Cholesky factor of the covariance of all numbers, ``(D·N, D·N)``; the identity where missing.
    :param observed: 1 where a number is observed, else 0, ``(D·N,)``.
    :param coefficients: b, ``(K + D, N)``.
    """

    model: CoregionalisedGPRN
    w: Tensor
    factor: Tensor
    observed: Tensor
    coefficients: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, model: CoregionalisedGPRN, guide: CoregionalisedGuide, known: OutputStatistics) -> ConditionedFunctions:
        """The functions given outputs with these statistics, at the centre of hyperparameters that have priors."""
        flat, w = flat_statistics(known), guide.w_loc.detach()
        given = outputs_given(flat, model.at_centre(lambda: model.output_covariance(w)))
        w = model.with_offset_weights(w)
        solved = given.solve(flat.values_at(slice(None)), slice(None))
        by_output = solved.reshape(model.n_outputs, model.n_rows)
        observed = flat.observed[0].to(solved)
        return cls(model, w, given.factor.squeeze(-3), observed, w @ (by_output * observed.reshape(by_output.shape)))

    @property
    def n_held(self) -> int:
        """About how many numbers a prediction holds for each new input."""
        return self.factor.shape[0] * len(self.w)

    def at(self, X_new: Tensor) -> FunctionsAtNewInputs:
        """The functions at new inputs, ``(N*, P)``."""
        return self.model.at_centre(lambda: self._at(X_new))

    def _at(self, X_new: Tensor) -> FunctionsAtNewInputs:
        model = self.model
        noises = NoiseOfRows.of(model.X, X_new, model.noise_f.square())
        cross = model.with_offset_kernels(model.kernel_f(model.X, X_new) + noises.cross)
        mean = torch.einsum("knm,kn->mk", cross, self.coefficients)
        return FunctionsAtNewInputs(self, X_new, cross, mean, noises)


@dataclass(frozen=True)
class FunctionsAtNewInputs:
    """The Gaussian of the functions at new inputs.

    :param given: the functions given the data.
    :param X_new: ``(N*, P)``.
    :param cross: ``c_k(x_n, x*)``, ``(K + D, N, N*)``.
    :param mean: ``(N*, K + D)``.
    :param noises: the functions' own noise at the new inputs.
    """

    given: ConditionedFunctions
    X_new: Tensor
    cross: Tensor
    mean: Tensor
    noises: NoiseOfRows

    def explained(self) -> Tensor:
        """``H``, ``(D·N, K + D, N*)``."""
        between = torch.einsum("kd,knm->dnkm", self.given.w, self.cross).flatten(0, 1)
        between = between * self.given.observed[:, None, None]
        solved = torch.linalg.solve_triangular(self.given.factor, between.flatten(1), upper=False)
        return solved.unflatten(1, between.shape[1:])

    def covariance(self) -> Tensor:
        """Between the functions at each new input on its own, ``(N*, K + D, K + D)``."""
        H, model = self.explained(), self.given.model
        kernel = model.at_centre(lambda: model.kernel_f(self.X_new, diag=True)) + self.noises.variance  # (K, N*)
        prior = model.with_offset_kernels(kernel)
        return torch.diag_embed(prior.mT) - torch.einsum("ikm,ijm->mkj", H, H)

    def joint_covariance(self) -> Tensor:
        """Between all functions at all new inputs, the inputs of the first function first, each ``(K + D)·N*``."""
        H, model = self.explained().flatten(1), self.given.model
        kernel = model.at_centre(lambda: model.kernel_f(self.X_new)) + self.noises.covariance()
        prior = model.with_offset_kernels(kernel)
        return torch.block_diag(*prior) - H.mT @ H

    @torch.no_grad()
    def draw(self, n_draws: int, generator: torch.Generator | None) -> Tensor:
        """Draws, joint over functions and inputs, less the mean, ``(n_draws, N*, K + D)``."""
        root = covariance_root(self.joint_covariance())
        white = white_noise(root.shape[-1], n_draws, like=root, generator=generator)
        return (root @ white).unflatten(0, (-1, len(self.X_new))).permute(2, 1, 0)


def weight_correlation(w: Tensor, n_inputs: int) -> Tensor:
    """The correlation between outputs with weights ``(K, b)``, which is the same at all inputs: ``(n_inputs, b, b)``.

    Of the signal, for functions from their prior, as :func:`~pyro_gprn.output_correlation` has it.

    >>> weight_correlation(torch.tensor([[1.0, -2.0], [0.0, 0.0]]), 3).shape
    torch.Size([3, 2, 2])
    """
    return as_correlation(w.mT @ w).expand(n_inputs, -1, -1)


class CoregionalisedPredictive(PosteriorPredictive):
    """Predictions from a :class:`~pyro_gprn.coregionalised.CoregionalisedGPRN`: exact, given its weights.

    Gradients flow to ``X_new`` if it requires them (not through draws).

    :param model: the model.
    :param guide: its weights.
    :param X_new: ``(N*, P)``.
    :param Y: the data, if the model has not seen them.
    :param output_scales: what the deviations of each output are multiplied by; None leaves them as they are.
    :param conditioned: the functions given the data, if they were made before for another prediction.
    :param generator: of random numbers; None is torch's global state.
    """

    def __init__(
        self,
        model: CoregionalisedGPRN,
        guide: CoregionalisedGuide,
        X_new: Tensor,
        Y: Any = None,
        *,
        output_scales: Scales | None = None,
        conditioned: ConditionedFunctions | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, X_new, generator)
        if conditioned is None:
            conditioned = ConditionedFunctions.of(model, guide, model.statistics(Y))
        self._scales = output_scales
        noise = model.at_centre(lambda: model.noise_y.square()).detach()
        with torch.set_grad_enabled(self.X_new.requires_grad):
            self._gaussian = OneGaussian(conditioned.at(self.X_new), noise, output_scales, generator)

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._gaussian.mean(chosen, block)[0]

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._gaussian.variance(chosen, block)[0] * self._squares(chosen, block)

    def _squares(self, chosen: OutputSelection, block: slice) -> Tensor | float:
        return variance_factors(self._scales, chosen.positions(block))[1]

    def _noise(self, chosen: OutputSelection) -> Tensor:
        return self._gaussian.noise(chosen).flatten() * self._squares(chosen, slice(None))

    def _components(self, n_draws: int | None, joint: bool) -> Components:
        return self._gaussian.repeated(1 if n_draws is None else n_draws)

    def _numbers_per_output(self) -> tuple[int, int]:
        return self._gaussian.functions.mean.numel(), self._gaussian.functions.mean.numel()


@dataclass(frozen=True)
class OneGaussian(Components):
    """The Gaussian of the outputs at new inputs as a mixture: the same one ``n_components`` times.

    :param functions: at the new inputs.
    :param noise_variance: ``σ_d²``, ``(D,)``.
    :param output_scales: of the outputs, if they have such.
    :param generator: of random numbers.
    :param n_components: as many as draws are to be taken.
    """

    functions: FunctionsAtNewInputs
    noise_variance: Tensor
    output_scales: Scales | None
    generator: torch.Generator | None
    n_components: int = 1

    def repeated(self, n: int) -> OneGaussian:
        """The same Gaussian so many times."""
        return replace(self, n_components=n)

    def _weights(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self.functions.given.w[:, chosen.positions(block)]

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return (self.functions.mean @ self._weights(chosen, block)).expand(self.n_components, -1, -1)

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        w = self._weights(chosen, block)
        variance = torch.einsum("kd,mkj,jd->md", w, self.functions.covariance(), w).clamp(min=0.0)
        return variance.expand(self.n_components, -1, -1)

    def noise(self, chosen: OutputSelection) -> Tensor:
        return self.noise_variance[chosen.positions(slice(None))].reshape(1, 1, -1)

    def scales(self, chosen: OutputSelection, block: slice) -> OutputScales | None:
        if self.output_scales is None:
            return None
        scales = self.output_scales.at(chosen.positions(block))
        return scales._replace(degrees=scales.degrees[None, None], squares=scales.squares[None, None])

    def deviation(self, chosen: OutputSelection, components: slice) -> Tensor:
        drawn = self.functions.draw(len(range(self.n_components)[components]), self.generator)
        return drawn @ self._weights(chosen, slice(None))


posterior_predictive.register(CoregionalisedGPRN, CoregionalisedPredictive)


@prediction_settings.register(CoregionalisedGPRN)
def _(model: CoregionalisedGPRN) -> tuple[str, ...]:
    return "conditioned", "output_scales"


@condition.register(CoregionalisedGPRN)
def _(model: CoregionalisedGPRN, guide: CoregionalisedGuide, Y: Any = None, **settings: Any) -> ConditionedFunctions:
    return ConditionedFunctions.of(model, guide, model.statistics(Y))  # nothing is drawn


@scales_of_outputs.register(CoregionalisedGPRN)
def _(
    model: CoregionalisedGPRN,
    guide: CoregionalisedGuide,
    Y: Any = None,
    *,
    widening: Widening = AS_THEY_ARE,
    **settings: Any,
) -> OutputScales:
    scales = OutputScales.known(model.n_outputs, like=model.X)  # outputs have variances of their own already
    spread = spread_of(model.statistics(Y).source.read(slice(None)).to(model.X)) if widening.needs_spread else None
    return scales.widened(widening, spread)


@output_correlation.register(CoregionalisedGPRN)
def _(
    model: CoregionalisedGPRN,
    guide: CoregionalisedGuide,
    X_new: Tensor,
    outputs: Outputs = None,
    Y: Any = None,
    **settings: Any,
) -> Tensor:
    positions = OutputSelection(outputs, model.output_shape).positions(slice(None))
    return weight_correlation(guide.w_loc.detach()[:, positions], len(X_new))
