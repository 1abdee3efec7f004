"""Draws from the posterior of a coregionalised network, whose functions are integrated out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.coregionalised import (
    ConditionedFunctions,
    CoregionalisedGPRN,
    CoregionalisedGuide,
    CoregionalisedPredictive,
    weight_correlation,
)
from pyro_gprn.coregionalised.training import flat_statistics, log_evidence
from pyro_gprn.diagnostics.draws import ChainDraws, chains_of, draw_chain
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.scales import Scales
from pyro_gprn.pyro_state import white_noise

NO_LOG_LIKELIHOOD = (
    "not available for this posterior, because the functions are integrated out: given the weights, the density of a"
    " row given all other rows is one number, the same in every draw"
)


class CoregionalisedDraws(ChainDraws):
    """Draws of the functions at the training inputs, from their exact posterior given weights and hyperparameters.

    Weights and hyperparameters are points, the same in every draw. Outputs are drawn anew: their functions are not
    those of :attr:`F`.

    :param model: the model.
    :param guide: its weights.
    :param known: statistics of the outputs.
    :param n_draws: how many draws.
    :param scales: what the deviations of each output are multiplied by.
    :param generator: source of random numbers.

    >>> from pyro_gprn.pyro_state import new_generator
    >>> model = CoregionalisedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> known, generator = model.statistics(torch.ones(5, 3)), new_generator(0)
    >>> draws = CoregionalisedDraws(model, CoregionalisedGuide(model), known, 7, generator=generator)
    >>> draws.F.shape, draws.weights(OutputSelection([0, 2], model.output_shape), generator).shape
    (torch.Size([7, 5, 2]), torch.Size([7, 5, 2, 2]))
    """

    log_likelihood = None
    of_each_output = ("noise_y",)
    are_rotated = False  # each function has a kernel of its own

    @torch.no_grad()
    def __init__(
        self,
        model: CoregionalisedGPRN,
        guide: CoregionalisedGuide,
        known: OutputStatistics,
        n_draws: int,
        scales: Scales | None = None,
        *,
        generator: torch.Generator,
    ) -> None:
        self._model, self._guide, self._scales = model, guide, scales
        self._given = ConditionedFunctions.of(model, guide, known)
        functions = self._given.at(model.X)
        self.F = (functions.mean + functions.draw(n_draws, generator))[..., : model.n_latents]  # without offsets
        values = model.at_centre(model.hyperparameters)
        self.hyperparameters = {name: each.expand(n_draws, *each.shape) for name, each in values.items()}
        bound = log_evidence(model, guide.w_loc, flat_statistics(known))
        self.sample_stats = {"bound": bound.expand(n_draws)}
        self.attributes = {"no_log_likelihood": NO_LOG_LIKELIHOOD}

    def _weights(self, chosen: OutputSelection) -> Tensor:
        return self._guide.w_loc.detach()[:, chosen.positions(slice(None))]

    def weights(self, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        w = self._weights(chosen)
        return w.expand(*self.F.shape[:2], *w.shape)

    def predict(self, X_new: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        predictive = CoregionalisedPredictive(
            self._model,
            self._guide,
            X_new,
            output_scales=self._scales,
            conditioned=self._given,
            generator=generator,
        )
        n_draws = len(self.F)
        return predictive.sample(n_draws, chosen.outputs).reshape(n_draws, len(X_new), chosen.size)

    @torch.no_grad()
    def draw_prior(self, n_draws: int, chosen: OutputSelection, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        model, positions = self._model, chosen.positions(slice(None))
        covariances = model.at_centre(model.function_covariances)
        root = safe_cholesky(covariances, jitter=model.jitter, name="the kernel matrices of f")  # (K, N, N)
        white = white_noise(n_draws, model.n_latents, model.n_rows, 1, like=root, generator=generator)
        F = (root @ white).squeeze(-1).mT
        # the priors of weights and offsets are white
        w = white_noise(n_draws, model.n_latents, chosen.size, like=root, generator=generator)
        offsets = white_noise(n_draws, 1, chosen.size, like=root, generator=generator)
        noise = model.at_centre(lambda: model.noise_y)[positions]
        signal = offsets + F @ w
        return F, signal + noise * white_noise(*signal.shape, like=signal, generator=generator)

    def correlation(self, X_at: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        return weight_correlation(self._weights(chosen), len(X_at)).expand(len(self.F), -1, -1, -1)


draw_chain.register(CoregionalisedGPRN, CoregionalisedDraws)


@chains_of.register(CoregionalisedGPRN)
def _(model: CoregionalisedGPRN, posterior: Any, Y: Any = None) -> tuple[list[tuple[Any, Any]], OutputStatistics]:
    if not isinstance(posterior, CoregionalisedGuide):
        raise ValueError(
            f"of a CoregionalisedGPRN diagnostics take a CoregionalisedGuide; got {type(posterior).__name__}"
        )
    return [(model, posterior)], model.statistics(Y)
