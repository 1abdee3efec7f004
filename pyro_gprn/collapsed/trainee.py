"""Stage 2: the posterior of the functions and all hyperparameters together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError
from pyro_gprn.collapsed.bound import collapsed_bound
from pyro_gprn.collapsed.gauss_newton import gauss_newton_rows
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.model import CollapsedGPRN, Covariances
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.loop import Trainee
from pyro_gprn.training.ranges import Box

#: Steps between Gauss-Newton updates of the row covariance.
ROWS_EVERY = 20


class Stage2(Trainee):
    """Everything at once: the variational posterior and the hyperparameters, from where stage 1 ended.

    :param model: the model.
    :param known: statistics of the data.
    :param learning_rate: of Adam.
    :param posterior: as for :func:`~pyro_gprn.fit_collapsed`.
    :param guide: a posterior to go on from; by default a new one.
    """

    model: CollapsedGPRN
    guide: CollapsedGuide

    def __init__(
        self,
        model: CollapsedGPRN,
        known: OutputStatistics,
        learning_rate: float,
        posterior: str = "variational",
        guide: CollapsedGuide | None = None,
    ) -> None:
        self.posterior = posterior
        self.model, self.known, self.box = model, known, Box(model, known)
        self.guide = CollapsedGuide(model) if guide is None else guide
        self._fixed = self._antithetic(64)  # for every evaluation
        self._covariances: Covariances | None = None  # held between two steps of the hyperparameters
        if guide is None:
            self._start_rows()
        self.parameters = [p for p in [*model.parameters(), *self.guide.parameters()] if p.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, lr=learning_rate, betas=(0.9, 0.95), fused=True)

    def _start_rows(self) -> None:
        if self.posterior == "point":
            self._set_rows(1e-6 * torch.eye(self.model.n_rows).to(self.model.X))
        else:
            self.update_rows(torch.zeros_like(self.guide.v_loc[None]))

    @property
    def may_pause(self) -> bool:
        return self._covariances is None

    def between_steps(self, taken: int, settling: bool) -> None:
        if self.posterior == "variational" and taken % ROWS_EVERY == 0 and not settling:
            self.update_rows(self._antithetic(2))

    def finish(self) -> None:
        self._covariances = None
        if self.posterior == "laplace":
            self.update_rows(torch.zeros_like(self.guide.v_loc[None]))

    @torch.no_grad()
    def evaluate(self) -> float:
        try:
            return self._bound(self._fixed, remember=False).item()
        except NotPositiveDefiniteError:
            return -math.inf

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

    def _bound(self, white: Tensor, held: Covariances | None = None, *, remember: bool = True) -> Tensor:
        """The bound by given white noise, ``(s, N, K)``, at covariances ``held`` from before or at the current ones."""
        covariances, log_prior = (held, 0.0) if held else self.model.with_log_prior(self.model.covariances)
        if remember:  # the current ones serve the next step too
            self._covariances = None if held else Covariances(*(part.detach() for part in covariances))
        scales = (self.guide.v_scale_row, self.guide.v_scale_col)
        if self.posterior != "variational":  # they keep the spread that they have
            scales = (scales[0].detach(), scales[1].detach())
        return collapsed_bound(self.model, self.guide.v_loc, *scales, covariances, white, self.known) + log_prior

    def _white_noise(self) -> Tensor:
        """For one step: a pair of antithetic draws, or the mean of q for a posterior that is a point on the way."""
        return self._antithetic(2) if self.posterior == "variational" else torch.zeros_like(self.guide.v_loc[None])

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
