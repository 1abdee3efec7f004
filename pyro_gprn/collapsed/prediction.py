"""Predictions with the weights integrated out.

Given a draw of F and of f*, the functions at new inputs, every output is a Gaussian with one covariance for all::

    y*_d | F, f*, Y ~ Normal(c y_d, V)     k = κ_w(X*,X) ∘ (f* Fᵀ)     c = k C_F⁻¹     V = κ_w(X*,X*) ∘ (f* f*ᵀ) − c kᵀ

so the prediction is a mixture over draws in which each new output is a linear combination of training outputs. With a
scale for each output (output_scales.py) its covariance is ``s_d² V``, with s_d known up to its posterior, so that the
components of the mixture are Student-t.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import covariance_root
from pyro_gprn.collapsed.draws import Posterior, PosteriorDraws
from pyro_gprn.collapsed.likelihood import combine_outputs, outputs_given, times_kernel
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import Outputs, OutputSelection
from pyro_gprn.prediction.base import Components, PosteriorPredictive
from pyro_gprn.prediction.conditional import Conditional, draw_rows
from pyro_gprn.prediction.scales import OutputScales
from pyro_gprn.pyro_state import white_noise

#: How many components a mixture has by default.
N_DRAWS = 128


class OutputMixture(NamedTuple):
    """New outputs as linear combinations of training outputs, for ``s`` draws and ``g`` groups of outputs."""

    coefficients: Tensor  #: c, (s, g, N*, N)
    half: Tensor  #: L⁻¹kᵀ with C = LLᵀ, so that V = prior − halfᵀ half, (s, g, N, N*)
    functions: Tensor  #: f*, (s, N*, K)
    kernel: Tensor  #: κ_w(X*, X*), (s, 1, N*, N*), or of each group of outputs, (s, g, N*, N*)
    noise: Tensor  #: σ_y², (s, 1), or of each group of outputs, (s, g)

    def covariance(self, draws: Tensor) -> Tensor:
        """``V`` of some draws, without observation noise, ``(c, g, N*, N*)``."""
        f, half = self.functions[draws], self.half[draws]
        return self.kernel[draws] * (f @ f.mT).unsqueeze(1) - half.mT @ half

    def variance(self) -> Tensor:
        """The diagonal of ``V`` of all draws, ``(s, g, N*)``."""
        prior = self.kernel.diagonal(dim1=-2, dim2=-1) * self.functions.square().sum(-1).unsqueeze(1)
        return (prior - self.half.square().sum(-2)).clamp(min=0.0)


class CollapsedPredictive(PosteriorPredictive):
    """Predictions from a :class:`~pyro_gprn.CollapsedGPRN`: a mixture over draws of its functions.

    Hyperparameters that have a posterior with a spread are drawn too, one value for each component.

    :param model: the model.
    :param posterior: a :class:`~pyro_gprn.CollapsedGuide`; another Pyro guide of the model, such as ``AutoDelta``; or
        draws, a mapping from site names to tensors as ``MCMC.get_samples()`` gives: "v" and drawn hyperparameters.
    :param X_new: ``(N*, P)``.
    :param Y: the data, if the model has not seen them.
    :param n_draws: how many components the mixture has. (Of draws all are used.)
    :param output_scales: what :func:`~pyro_gprn.learn_output_scales` says; None gives all outputs one scale.
    :param generator: of random numbers; None is torch's global state.
    """

    def __init__(
        self,
        model: CollapsedGPRN,
        posterior: Posterior,
        X_new: Tensor,
        Y: Any = None,
        *,
        n_draws: int = N_DRAWS,
        output_scales: OutputScales | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(model, X_new, generator)
        self._scales = output_scales
        self._model, self._posterior, self._known = model, posterior, model.statistics(Y)
        self._draws = PosteriorDraws.of(model, posterior, n_draws, mirrored=True, generator=generator)
        self._mixture = mixture = self._mix(self._draws, joint=False)
        self._joint_mixture: OutputMixture | None = None
        self._mean_coefficients = mixture.coefficients.mean(0)
        deviations = (mixture.coefficients - self._mean_coefficients).movedim(0, -2) / len(mixture.coefficients) ** 0.5
        self._deviation_root = torch.linalg.qr(deviations, mode="r").R  # of the covariance over draws, (g, N*, r, N)
        self._variance_within = mixture.variance().mean(0)  # (g, N*)

    @torch.no_grad()
    def _mix(self, draws: PosteriorDraws, joint: bool) -> OutputMixture:
        """The mixture over draws, with the functions at new inputs drawn jointly, or at each on its own."""
        parts = draws.each(lambda V: self._mix_some(V, self._mirrored_noise(-(-len(V) // 2), joint)))
        return (
            parts[0] if len(parts) == 1 else OutputMixture(*(torch.cat(values) for values in zip(*parts, strict=True)))
        )

    def _mirrored_noise(self, n: int, joint: bool) -> Tensor:
        """White noise for the functions at new inputs and the same mirrored, ``(2 n, N* or 1, K)``."""
        n_rows = len(self.X_new) if joint else 1
        half = white_noise(n, n_rows, self._model.n_latents, like=self._model.X, generator=self._generator)
        return torch.cat([half, -half])

    def _mix_some(self, V: Tensor, white: Tensor) -> OutputMixture:
        """The mixture over draws of V, ``(s, N, K)``, at the hyperparameters' current values."""
        model = self._model
        Lf, Kw, noise = model.covariances()
        f = Conditional.of(model.kernel_f, model.X, self.X_new, Lf, model.noise_f)
        F = Lf @ V
        F_new = f.whitened.mT @ V + draw_rows(f.residual, white[: len(V)])
        cross = times_kernel(model.kernel_w(self.X_new, model.X), F_new @ F.mT)
        new = outputs_given(self._known, model.output_covariance(F, Kw, noise)).predict(cross)
        kernel = model.kernel_w(self.X_new).expand(len(V), noise.numel(), -1, -1)
        return OutputMixture(new.coefficients, new.half, F_new, kernel, noise.expand(len(V), noise.numel()))

    @torch.no_grad()
    def cdf(self, Y_new: Tensor, outputs: Outputs = None) -> Tensor:
        """``P(y*_nd ≤ Y_new | data)`` of each new output on its own, noise included, ``(N*, …)``; NaN where Y_new is.

        :param Y_new: values of the selected outputs at the new inputs, ``(N*, …)``.

        >>> from pyro_gprn import CollapsedGuide
        >>> model = CollapsedGPRN(torch.linspace(0, 1, 8)[:, None], output_shape=30, n_latents=2)
        >>> predictive = CollapsedPredictive(model, CollapsedGuide(model), model.X[:5], torch.ones(8, 30))
        >>> (predictive.cdf(predictive.quantiles([0.3])[0]) - 0.3).abs().max() < 1e-5
        tensor(True)
        """
        chosen = OutputSelection(outputs, self.output_shape)
        components = self._components(None, joint=False)
        y = Y_new.reshape(len(self.X_new), chosen.size).to(self.X_new)
        result = torch.empty_like(y)
        for block in self._blocks(chosen, components.n_components * len(self.X_new)):
            result[:, block] = self._mixture_of(components, chosen, block).cdf(y[:, block])
        return chosen.reshape(result)

    def _mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return combine_outputs(self._mean_coefficients, self._known, chosen.positions(block))

    def _variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        positions = chosen.positions(block)
        between = combine_outputs(self._deviation_root, self._known, positions).square().sum(-2)
        within = self._variance_within[self._known.patterns_at(positions)].mT
        return between + (within if self._scales is None else within * self._scales.at(positions).variance())

    def _noise(self, chosen: OutputSelection) -> Tensor:
        noise = _of_outputs(self._mixture.noise.mean(0), self._known, chosen).squeeze(-1)
        return noise if self._scales is None else noise * self._scales.at(chosen.positions(slice(None))).variance()

    def _components(self, n_draws: int | None, joint: bool) -> Components:
        if joint:
            if self._joint_mixture is None:
                self._joint_mixture = self._mix(self._draws, joint=True)
            return ChosenComponents(self._joint_mixture, self._known, self._scales, n_draws, self._generator)
        mixture = self._mixture
        if n_draws is not None and n_draws > len(mixture.coefficients):  # none counts twice: draw as many as are wanted
            more = PosteriorDraws.of(self._model, self._posterior, n_draws, mirrored=True, generator=self._generator)
            mixture = self._mix(more, joint=False)
        n_chosen = min(n_draws or N_DRAWS, len(mixture.coefficients))
        return ChosenComponents(mixture, self._known, self._scales, n_chosen, self._generator)

    def _numbers_per_output(self) -> tuple[int, int]:
        _, n_new, rank, n_rows = self._deviation_root.shape
        return max(n_new, n_rows), max(n_new * rank, n_rows)


def _of_outputs(values: Tensor, known: OutputStatistics, chosen: OutputSelection) -> Tensor:
    """Values ``(…, 1)`` of all outputs as they are, or those of each group, ``(…, g)``, of each chosen output."""
    return values if values.shape[-1] == 1 else values[..., known.patterns_at(chosen.positions(slice(None)))]


class ChosenComponents(Components):
    """``n`` components of a mixture, each as often as the others or once more; None is all of them."""

    def __init__(
        self,
        mixture: OutputMixture,
        known: OutputStatistics,
        scales: OutputScales | None,
        n: int | None,
        generator: torch.Generator | None,
    ) -> None:
        available = len(mixture.coefficients)
        n = available if n is None else n
        rounds = [torch.randperm(available, device="cpu", generator=generator) for _ in range(-(-n // available))]
        self._draws = torch.cat(rounds)[:n]
        self._mixture, self._known, self._scales, self._generator = mixture, known, scales, generator
        self.n_components = n
        self._coefficients = mixture.coefficients[self._draws].movedim(1, 0)  # (g, n, N*, N)
        self._variance = mixture.variance()[self._draws]  # (n, g, N*)

    def mean(self, chosen: OutputSelection, block: slice) -> Tensor:
        return combine_outputs(self._coefficients, self._known, chosen.positions(block))

    def variance(self, chosen: OutputSelection, block: slice) -> Tensor:
        return self._variance[:, self._known.patterns_at(chosen.positions(block))].mT

    def noise(self, chosen: OutputSelection) -> Tensor:
        return _of_outputs(self._mixture.noise[self._draws, None], self._known, chosen)

    def scales(self, chosen: OutputSelection, block: slice) -> OutputScales | None:
        if self._scales is None:
            return None
        degrees, squares, prior_degrees = self._scales.at(chosen.positions(block))
        return OutputScales(degrees[None, None], squares[None, None], prior_degrees)

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
