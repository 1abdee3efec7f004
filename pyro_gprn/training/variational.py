"""Stage 2: the posterior of the functions and all hyperparameters together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from tqdm import trange

from pyro_gprn.collapsed import CollapsedGPRN, Covariances
from pyro_gprn.guides.collapsed import CollapsedGuide
from pyro_gprn.linalg import NotPositiveDefiniteError
from pyro_gprn.statistics import OutputStatistics
from pyro_gprn.training.bound import collapsed_bound
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
            self.update_rows(torch.zeros_like(self.guide.v_loc[None]))
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
            self.update_rows(torch.zeros_like(self.guide.v_loc[None]))
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
            loss = -self._bound(self._white_noise(), held=self._covariances)
        except NotPositiveDefiniteError:
            return math.nan
        loss.backward()
        if torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None]).isfinite().all():
            self.optimiser.step()
            self.box.clamp()
        return loss.item()

    def _bound(self, white: Tensor, held: Covariances | None = None) -> Tensor:
        """The bound by given white noise, ``(s, N, K)``, at covariances ``held`` from before or at the current ones."""
        covariances, log_prior = (held, 0.0) if held else self.model.with_log_prior(self.model.covariances)
        self._covariances = None if held is not None else Covariances(*(part.detach() for part in covariances))
        scales = (self.guide.v_scale_row, self.guide.v_scale_col)
        if self.posterior != "variational":  # they keep the spread that they have
            scales = (scales[0].detach(), scales[1].detach())
        return collapsed_bound(self.model, self.guide.v_loc, *scales, covariances, white, self.known) + log_prior

    def _white_noise(self) -> Tensor:
        """For one step: a pair of antithetic draws, or the mean of q for a posterior that is a point on the way."""
        return self._antithetic(2) if self.posterior == "variational" else torch.zeros_like(self.guide.v_loc[None])

    @torch.no_grad()
    def _evaluate(self, white: Tensor) -> float:
        try:
            return self._bound(white).item()
        except NotPositiveDefiniteError:
            return -math.inf

    @torch.no_grad()
    def update_rows(self, white: Tensor) -> None:
        """Sets the row covariance of q to its Gauss-Newton optimum, averaged over draws by noise ``(s, N, K)``."""
        R, T = self.guide.v_scale_row, self.guide.v_scale_col
        try:
            covariances, _ = self.model.with_log_prior(self.model.covariances)
            V = self.guide.v_loc + R @ white @ T.mT
            rows = gauss_newton_rows(self.model, covariances, V, T.square().sum(-1), self.known)
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
