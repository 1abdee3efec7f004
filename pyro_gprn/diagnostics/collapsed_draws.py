"""Draws from the posterior of a network whose weights are integrated out."""

from __future__ import annotations

from typing import Any

import torch
from pyro.infer import MCMC
from torch import Size, Tensor

from pyro_gprn.algebra.linalg import safe_cholesky
from pyro_gprn.collapsed.draws import Posterior
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.inducing import LowRankCovariances
from pyro_gprn.collapsed.likelihood import colour
from pyro_gprn.collapsed.low_rank_normal import LowRankNormal
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.weights import sample_weights
from pyro_gprn.diagnostics.draws import ChainDraws, chains_of, draw_chain
from pyro_gprn.diagnostics.leave_one_out import describe_draws
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction import output_correlation, posterior_predictive
from pyro_gprn.prediction.scales import Scales
from pyro_gprn.pyro_state import new_seed, own_randomness, white_noise


class CollapsedDraws(ChainDraws):
    """Draws of the functions. Weights and outputs are drawn given these, so that draws of all have the same functions.

    :param model: the model.
    :param posterior: its guide, or a mapping with draws of its sites as MCMC gives them.
    :param known: statistics of the outputs.
    :param n_draws: how many draws from a guide; of a mapping, all are taken.
    :param scales: a scale for each output, which predictions have then.
    :param generator: source of random numbers.

    >>> from pyro_gprn.pyro_state import new_generator
    >>> model = CollapsedGPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> known, generator = model.statistics(torch.ones(5, 3)), new_generator(0)
    >>> draws = CollapsedDraws(model, CollapsedGuide(model), known, 7, generator=generator)
    >>> draws.weights(OutputSelection([0, 2], model.output_shape), generator).shape
    torch.Size([7, 5, 2, 2])
    """

    def __init__(
        self,
        model: CollapsedGPRN,
        posterior: Posterior,
        known: OutputStatistics,
        n_draws: int,
        scales: Scales | None = None,
        *,
        generator: torch.Generator,
    ) -> None:
        described = describe_draws(model, posterior, n_draws, generator=generator)
        self._model, self._known, self._scales = model, known, scales
        self._sites = {"v": described.draws.V, **described.draws.hyperparameters}  # as predictions take them
        self.hyperparameters, self.F, self.log_likelihood = described.hyperparameters, described.F, described.by_row
        self.of_each_output = ("kernel_w", "noise_y") if model.own_kernels else ()
        self.attributes = {"likelihood_power": float(model.likelihood_power)}
        log_joint = described.log_joint
        log_q = torch.full_like(log_joint, torch.nan)
        if isinstance(posterior, CollapsedGuide):
            log_q = posterior.posterior().log_prob(described.draws.V).detach()
        self.sample_stats = {"lp": log_joint, "log_q": log_q, "bound": log_joint - log_q}

    def weights(self, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        model = self._model
        drawn = sample_weights(model, self._sites, model.X, 0, chosen.outputs, self._known, generator=generator)
        return drawn.reshape(*drawn.shape[:3], chosen.size)

    def predict(self, X_new: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        settings = {"output_scales": self._scales, "generator": generator}
        predictive = posterior_predictive(self._model, self._sites, X_new, self._known, **settings)
        n_draws = len(self.F)
        return predictive.sample(n_draws, chosen.outputs).reshape(n_draws, len(X_new), chosen.size)

    @torch.no_grad()
    def draw_prior(self, n_draws: int, chosen: OutputSelection, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        model, positions = self._model, chosen.all_positions()
        covariances = model.at_centre(model.covariances)
        if isinstance(covariances, LowRankCovariances):
            V = white_noise(n_draws, model.n_values, model.n_latents, like=model.X, generator=generator)
            with own_randomness(new_seed(generator)):
                drawn = LowRankNormal(V, covariances, Size((chosen.size,))).sample()
            return covariances.functions @ V, drawn
        Lf, Kw, noise = covariances
        F = Lf @ white_noise(n_draws, model.n_rows, model.n_latents, like=Lf, generator=generator)
        root = safe_cholesky(model.output_covariance(F, Kw, noise), name="the covariance of the outputs")
        root = root[:, positions] if model.own_kernels else root
        white = white_noise(n_draws, model.n_rows, chosen.size, like=root, generator=generator)
        return F, colour(root, white, by_output=model.own_kernels)

    def correlation(self, X_at: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        alone = [{name: draws[i : i + 1] for name, draws in self._sites.items()} for i in range(len(self.F))]
        model, outputs, known = self._model, chosen.outputs, self._known
        return torch.stack([output_correlation(model, one, X_at, outputs, known, generator=generator) for one in alone])


draw_chain.register(CollapsedGPRN, CollapsedDraws)


@chains_of.register(CollapsedGPRN)
def _(model: CollapsedGPRN, posterior: Any, Y: Any = None) -> tuple[list[tuple[Any, Any]], OutputStatistics]:
    if not isinstance(posterior, MCMC):
        return [(model, posterior)], model.statistics(Y)
    draws = posterior.get_samples(group_by_chain=True)
    by_chain = [{name: each[i] for name, each in draws.items()} for i in range(len(draws["v"]))]
    return [(model, each) for each in by_chain], model.statistics(Y)
