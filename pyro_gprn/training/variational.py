"""Stage 2: the posterior of the functions and all hyperparameters together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from tqdm import trange

import pyro_gprn.kl  # noqa: F401  (registers the KLs)
from pyro_gprn.collapsed import CollapsedGPRN, Covariances
from pyro_gprn.guides.collapsed import CollapsedGuide
from pyro_gprn.linalg import NotPositiveDefiniteError
from pyro_gprn.marginal import gram_log_density
from pyro_gprn.statistics import OutputStatistics
from pyro_gprn.training.box import Box
from pyro_gprn.training.gauss_newton import gauss_newton_rows

#: Steps between Gauss-Newton updates of the row covariance.
ROWS_EVERY = 20


class Stage2:
    """Everything at once: the variational posterior and the hyperparameters, from where stage 1 ended."""

    def __init__(
        self, model: CollapsedGPRN, known: OutputStatistics, learning_rate: float, posterior: str = "variational"
    ) -> None:
        self.posterior = posterior
        self.was_interrupted = False
        self.model, self.known, self.box = model, known, Box(model, known)
        self.guide = CollapsedGuide(model)
        if posterior == "point":
            self._set_rows(1e-6 * torch.eye(model.n_rows).to(model.X))
        else:
            self.update_rows(self._antithetic(0))
        self.parameters = [p for p in [*model.parameters(), *self.guide.parameters()] if p.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, lr=learning_rate, betas=(0.9, 0.95), fused=True)
        self._covariances: Covariances | None = None  # held between two steps of the hyperparameters

    def run(
        self, steps: int, progress: bool, callback: Callable[[int, float], None] | None
    ) -> tuple[float, float, Tensor]:
        """Trains for at most ``steps`` steps, back to the start if that was better.

        :returns: the bound at the start and at the end, by the same 64 draws, and the losses on the way.
        """
        fixed = self._antithetic(64)
        start, start_state = self._evaluate(fixed), (copy_state(self.model), copy_state(self.guide))
        losses: list[float] = []
        schedule = Schedule(self.optimiser, steps)
        bar = trange(steps, desc="fit", disable=not progress)
        try:
            for step in bar:
                losses.append(self.step())
                if callback is not None:
                    callback(step, -losses[-1])
                bar.set_postfix(bound=f"{-losses[-1]:.6g}", refresh=False)
                schedule.step(losses)
                if self.posterior == "variational" and (step + 1) % ROWS_EVERY == 0 and schedule.rows_may_change:
                    self.update_rows(self._antithetic(2))
                if schedule.is_over:
                    break
        except KeyboardInterrupt:
            self.was_interrupted = True
            warnings.warn(f"training was interrupted after {len(losses)} steps; keeping what was reached", stacklevel=3)
        bar.close()
        if self.posterior == "laplace":
            self.update_rows(self._antithetic(0))
        bound = self._evaluate(fixed)
        if not bound >= start:
            self.model.load_state_dict(start_state[0])
            self.guide.load_state_dict(start_state[1])
            bound = start
        return start, bound, torch.tensor(losses, dtype=torch.float64)

    def step(self) -> float:
        """One step of Adam; a step that cannot be computed is left out."""
        self.optimiser.zero_grad()
        try:
            draws = self._antithetic(2) if self.posterior == "variational" else None
            loss = -self._bound(draws, held=self._covariances)
        except NotPositiveDefiniteError:
            return math.nan
        loss.backward()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if all(torch.isfinite(gradient).all() for gradient in gradients):
            self.optimiser.step()
            self.box.clamp()
        return loss.item()

    def _bound(self, noise: Tensor | None, held: Covariances | None = None) -> Tensor:
        """The bound by given white noise, ``(s, N, K)``; without, the log-density of the mean of q.

        At covariances ``held`` from before, or at the current ones.
        """
        covariances, log_prior = (held, 0.0) if held is not None else self.model.covariances_and_log_prior()
        self._covariances = None if held is not None else Covariances(*(part.detach() for part in covariances))
        Lf, Kw, noise_y = covariances
        q = self.guide.posterior()
        V = q.loc if noise is None else self._functions(noise)
        log_likelihood = gram_log_density(self.model.output_covariance(Lf @ V, Kw, noise_y), self.known).mean()
        prior = self.model.prior()
        cost = -prior.log_prob(V) if noise is None else kl_divergence(q, prior)
        return self.model.likelihood_weight * log_likelihood - cost + log_prior

    def _functions(self, noise: Tensor) -> Tensor:
        """Draws of V from q by given white noise, ``(s, N, K)``."""
        return self.guide.v_loc + self.guide.v_scale_row @ noise @ self.guide.v_scale_col.mT

    @torch.no_grad()
    def _evaluate(self, noise: Tensor) -> float:
        try:
            return self._bound(noise).item()
        except NotPositiveDefiniteError:
            return -math.inf

    @torch.no_grad()
    def update_rows(self, noise: Tensor) -> None:
        """Sets the row covariance of q to its Gauss-Newton optimum, averaged over draws (or at the mean for none)."""
        q = self.guide.posterior()
        V = self._functions(noise) if len(noise) else q.loc.unsqueeze(0)
        try:
            covariances, _ = self.model.covariances_and_log_prior()
            rows = gauss_newton_rows(self.model, covariances, V, q.factors[1].variance(), self.known)
        except NotPositiveDefiniteError:
            return
        if torch.isfinite(rows).all():
            self._set_rows(rows)

    @torch.no_grad()
    def _set_rows(self, rows: Tensor) -> None:
        self.guide.v_scale_row_unconstrained.copy_(rows.tril(-1) + torch.diag_embed(rows.diagonal().log()))

    def _antithetic(self, n_draws: int) -> Tensor:
        half = torch.randn(n_draws // 2, self.model.n_rows, self.model.n_latents, dtype=torch.float64)
        return torch.cat([half, -half]).to(self.model.X.device)


class Schedule:
    """A constant rate for half of the steps, or until the bound has settled; then a cosine to zero."""

    window = 50

    def __init__(self, optimiser: torch.optim.Optimizer, steps: int) -> None:
        self._optimiser, self._rate = optimiser, optimiser.param_groups[0]["lr"]
        self._hold, self._decay = steps - steps // 2, steps // 2
        self._taken, self._last = 0, math.nan

    def step(self, losses: list[float]) -> None:
        """After each step."""
        self._taken += 1
        if self._taken < self._hold and self._taken % self.window == 0:
            recent = float(np.nanmean(losses[-self.window :]))
            if self._last - recent < 1e-3 * abs(losses[0] - recent) + 0.5:
                self._hold = self._taken
            self._last = recent
        past = max(0, self._taken - self._hold)
        fraction = past / max(1, self._decay)
        self._optimiser.param_groups[0]["lr"] = self._rate * 0.5 * (1 + math.cos(math.pi * min(1.0, fraction)))

    @property
    def rows_may_change(self) -> bool:
        """Not late in the decay, where Adam should come to rest."""
        return self._taken - self._hold < 0.4 * self._decay

    @property
    def is_over(self) -> bool:
        return self._taken >= self._hold + self._decay


def copy_state(module: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of a module's parameters and buffers."""
    return {name: value.clone() for name, value in module.state_dict().items()}
