"""Draws from the posterior q(F) q(W) of a network that has its weights, or from a mixture of such posteriors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.diagnostics.draws import ChainDraws, chains_of, draw_chain
from pyro_gprn.factorised.elbo import closed_form_bound
from pyro_gprn.factorised.guide import FactorisedGuide, has_one_noise
from pyro_gprn.factorised.model import GPRN
from pyro_gprn.factorised.posterior import Mixture, as_mixture
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction import posterior_predictive
from pyro_gprn.pyro_state import isolated, white_noise

#: A draw of the weights of all outputs may have this many numbers.
MOST_WEIGHTS = 10_000_000
NO_LOG_LIKELIHOOD = (
    "not available for this posterior, because the density of a row given all other rows needs the weights integrated"
    " out, as inference='collapsed' has them"
)


class _Posterior(NamedTuple):
    """The posterior at one value of the hyperparameters."""

    hyperparameters: dict[str, Tensor]
    mixture: Mixture
    bound: Tensor  #: on the evidence, ()


class FactorisedDraws(ChainDraws):
    """Draws of functions and weights, both from the same component where the posterior is a mixture.

    Outputs are drawn from the posterior anew: their functions are not those of :attr:`F`. The statistic "bound" is the
    bound on the evidence; where hyperparameters have a spread, it is the one at each draw of these, with their
    ``log p − log q``, and its mean over draws estimates the bound. It is NaN if the likelihood is not Gaussian.

    :param model: the model.
    :param guide: its guide.
    :param known: statistics of the outputs.
    :param n_draws: how many draws.
    :param generator: source of random numbers.

    >>> from pyro_gprn import MeanFieldGuide
    >>> from pyro_gprn.pyro_state import new_generator
    >>> model = GPRN(torch.linspace(0, 1, 5)[:, None], output_shape=3, n_latents=2)
    >>> known, generator = OutputStatistics.of(torch.ones(5, 3)), new_generator(0)
    >>> draws = FactorisedDraws(model, MeanFieldGuide(model), known, 7, generator=generator)
    >>> draws.weights(OutputSelection([0, 2], model.output_shape), generator).shape
    torch.Size([7, 5, 2, 2])
    """

    log_likelihood = None

    @torch.no_grad()
    def __init__(
        self,
        model: GPRN,
        guide: FactorisedGuide,
        known: OutputStatistics,
        n_draws: int,
        *,
        generator: torch.Generator,
    ) -> None:
        self._model, self._guide, self._known = model, guide, known
        posteriors = self._posteriors(n_draws, generator)
        components = torch.randint(len(posteriors[0].mixture.components), (n_draws,), generator=generator)
        pairs = [each.mixture.components[i] for each, i in zip(posteriors, components, strict=True)]
        self._q_w = [q_w for _, q_w in pairs]  # what the weights of each draw come from
        with isolated(generator):
            self.F = torch.stack([q_f.sample() for q_f, _ in pairs])
        self.of_each_output = () if has_one_noise(model) else ("noise_y",)
        self.hyperparameters = {
            name: torch.stack([each.hyperparameters[name] for each in posteriors])
            for name in posteriors[0].hyperparameters
        }
        if self.of_each_output:  # modes of outputs count as one dimension
            self.hyperparameters["noise_y"] = self.hyperparameters["noise_y"].flatten(1)
        self.sample_stats = {"bound": torch.stack([each.bound for each in posteriors])}
        # az.loo would take an attribute of sample_stats for the densities if it were named "log_likelihood".
        self.attributes = {"no_log_likelihood": NO_LOG_LIKELIHOOD}

    def _posteriors(self, n_draws: int, generator: torch.Generator) -> list[_Posterior]:
        """The posterior that each draw comes from: the same for all, unless hyperparameters have a spread."""

        def draw() -> _Posterior:
            posterior, log_prior = self._model.with_log_prior(self._posterior, generator)
            return posterior._replace(bound=posterior.bound + log_prior)

        return [draw() for _ in range(n_draws)] if self._model.has_spread else [draw()] * n_draws

    def _posterior(self) -> _Posterior:
        """The posterior at the present values of the hyperparameters, whose own terms are missing in the bound."""
        model, posterior = self._model, self._guide.posterior(self._known)
        bound = model.X.new_tensor(math.nan)
        if model.is_gaussian:
            values, mask = self._guide.observed(self._known)
            bound = closed_form_bound(posterior, model.prior(), values, model.noise_y, mask)
        return _Posterior(model.hyperparameters(), as_mixture(*posterior), bound)

    @torch.no_grad()
    def weights(self, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        size = self._q_w[0].event_shape.numel()
        if size > MOST_WEIGHTS:
            raise ValueError(
                f"weights=True draws the weights of all outputs before some are selected: at most {MOST_WEIGHTS:,}"
                f" numbers a draw; got {size:,}. With inference='collapsed' only those of selected outputs are drawn."
            )
        with isolated(generator):
            return torch.stack([q_w.sample().flatten(2)[..., chosen.positions(slice(None))] for q_w in self._q_w])

    def predict(self, X_new: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        predictive = posterior_predictive(self._model, self._guide, X_new, self._known, generator=generator)
        n_draws = len(self.F)
        drawn = predictive.sample(n_draws, chosen.outputs).reshape(n_draws, len(X_new), chosen.size)
        return drawn[torch.randperm(n_draws, generator=generator)]  # those of a mixture come one part after another

    @torch.no_grad()
    def draw_prior(self, n_draws: int, chosen: OutputSelection, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        model = self._model
        prior_f, prior_w = model.at_centre(model.prior)
        Lf, Lw = prior_f.factors[0].dense(), prior_w.factors[0].dense()
        F = Lf @ white_noise(n_draws, model.n_rows, model.n_latents, like=Lf, generator=generator)
        signal = F.new_zeros(n_draws, model.n_rows, chosen.size)
        for k in range(model.n_latents):
            signal += F[..., k : k + 1] * (Lw @ white_noise(*signal.shape, like=Lw, generator=generator))
        return F, model.at_centre(lambda: self._observe(signal, chosen, generator))

    def _observe(self, signal: Tensor, chosen: OutputSelection, generator: torch.Generator) -> Tensor:
        """Draws the outputs given their signal, both ``(n_draws, N, b)``."""
        if self._model.is_gaussian:
            noise = chosen.gather(self._model.noise_y)
            return signal + noise * white_noise(*signal.shape, like=signal, generator=generator)
        with isolated(generator):  # a likelihood draws by torch's global state
            return self._model.observation().sample(signal, chosen.positions(slice(None)))


@draw_chain.register(GPRN)
def _(
    model: GPRN,
    guide: FactorisedGuide,
    known: OutputStatistics,
    n_draws: int,
    scales: None = None,
    *,
    generator: torch.Generator,
) -> FactorisedDraws:
    return FactorisedDraws(model, guide, known, n_draws, generator=generator)  # its outputs have no scales


@chains_of.register(GPRN)
def _(model: GPRN, posterior: Any, Y: Any = None) -> tuple[list[tuple[Any, Any]], OutputStatistics]:
    if not isinstance(posterior, FactorisedGuide):
        raise ValueError(
            f"of a {type(model).__name__} diagnostics take one of the package's guides, such as a KroneckerGuide; got"
            f" {type(posterior).__name__}"
        )
    return [(model, posterior)], posterior.statistics(Y)
