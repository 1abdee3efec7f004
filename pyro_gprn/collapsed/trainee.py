"""A collapsed network in training: the posterior of the functions and all hyperparameters together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_gprn.algebra.linalg import NotPositiveDefiniteError, identity_like
from pyro_gprn.collapsed.bound import Factors, collapsed_bound, evaluate_bound, gauss_newton_rows
from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.inducing import LowRankCovariances
from pyro_gprn.collapsed.model import CollapsedGPRN, Covariances
from pyro_gprn.collapsed.settling import settle
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import new_generator, new_seed, white_noise
from pyro_gprn.training.loop import Trainee, descend
from pyro_gprn.training.ranges import Ranges

#: Steps between Gauss-Newton updates of the row covariance.
ROWS_EVERY = 20
#: Draws by which the bound is evaluated: so many up to this number of rows, fewer above, and at least so many.
DRAWS, DRAWS_UP_TO, LEAST_DRAWS = 64, 500, 8


class CollapsedTrainee(Trainee):
    """Model and posterior in training.

    :param model: the model.
    :param known: statistics of the data.
    :param learning_rate: of Adam.
    :param generator: of random numbers.
    :param posterior: as for :func:`~pyro_gprn.fit_collapsed`.
    :param guide: a posterior to go on from; by default a new one.
    :param start: whitened functions from which a new one starts, ``(N, K)``; by default those of independent GPs.
    :param like: another trainee of the model: the bound is evaluated by the same draws.
    :param is_hurried: True if somebody waits for an early end: then the posterior starts without its Gauss-Newton
        covariance, and the bound is evaluated by one pair of draws.
    """

    model: CollapsedGPRN
    guide: CollapsedGuide
    draws: Tensor  #: white noise for every evaluation of the bound, (s, N, K)
    seed: int  #: of hyperparameters that have a spread, for the same

    def __init__(
        self,
        model: CollapsedGPRN,
        known: OutputStatistics,
        learning_rate: float,
        generator: torch.Generator,
        posterior: str = "variational",
        guide: CollapsedGuide | None = None,
        *,
        start: Tensor | None = None,
        like: CollapsedTrainee | None = None,
        is_hurried: bool = False,
    ) -> None:
        self.posterior, self._generator = posterior, generator
        known = model.statistics(known)
        self.model, self.known, self.ranges = model, known, Ranges(model, known)
        self.guide = CollapsedGuide(model, generator=generator, init_loc=start) if guide is None else guide
        self.draws = self.antithetic(2 if is_hurried else _n_draws(model.n_rows)) if like is None else like.draws
        self.seed = (new_seed(generator) if model.has_spread else 0) if like is None else like.seed
        self._covariances: Covariances | LowRankCovariances | None = (
            None  # held between two steps of the hyperparameters
        )
        if guide is None and not is_hurried:
            self._start_rows()
        parameters = [p for p in [*model.parameters(), *self.guide.parameters()] if p.requires_grad]
        self.optimiser = torch.optim.Adam(parameters, lr=learning_rate, betas=(0.9, 0.95), fused=True)

    def _start_rows(self) -> None:
        if self.posterior == "point":
            self.guide.set_rows(1e-6 * identity_like(self.model.n_values, self.model.X))
        else:
            self.update_rows(torch.zeros_like(self.guide.v_loc[None]))

    @property
    def may_pause(self) -> bool:
        return self._covariances is None

    def pause(self) -> None:
        """Forgets what waits for the next step, before the model is put into another state."""
        self._covariances = None

    def between_steps(self, taken: int, settling: bool) -> None:
        # With inducing inputs the Hessian is a rough one, the weights held: good to start from, not to come back to.
        is_due = taken % ROWS_EVERY == 0 and not settling and not self.model.has_inducing
        if self.posterior == "variational" and is_due:
            self.update_rows(self.antithetic(2))

    def finish(self, steps: int, start: float) -> None:
        self.pause()
        if self.posterior == "laplace":
            self.update_rows(torch.zeros_like(self.guide.v_loc[None]))
        elif self.posterior == "variational":
            settle(self, steps, start)

    @torch.no_grad()
    def evaluate(self) -> float:
        try:
            covariances, log_prior = self._current(new_generator(self.seed))
            bound = evaluate_bound(self.model, self._factors(), covariances, self.draws, self.known)
        except NotPositiveDefiniteError:
            return -math.inf
        return float(bound + log_prior)

    def step(self) -> float:
        """One step of Adam; a step that cannot be computed is left out."""
        self.optimiser.zero_grad()
        try:
            loss = -self._bound(self._white_noise())
        except NotPositiveDefiniteError:
            return math.nan
        if descend(self.optimiser, loss):
            self.ranges.clamp()
        return loss.item()

    def _bound(self, white: Tensor) -> Tensor:
        """The bound by given white noise, ``(s, N, K)``. Every other step holds the covariances of the one before."""
        log_prior: Tensor | float = 0.0
        if self._covariances is not None:
            covariances, self._covariances = self._covariances, None
        else:
            covariances, log_prior = self._current()
            self._covariances = type(covariances)(*(part.detach() for part in covariances))
        return collapsed_bound(self.model, self._factors(), covariances, white, self.known) + log_prior

    def bound_by(self, white: Tensor) -> Tensor:
        """The bound by given white noise, ``(s, N, K)``, as a function of the hyperparameters and of q's mean."""
        covariances, log_prior = self._current()
        return collapsed_bound(self.model, self._factors(is_held=True), covariances, white, self.known) + log_prior

    def _current(
        self, generator: torch.Generator | None = None
    ) -> tuple[Covariances | LowRankCovariances, Tensor | float]:
        """At the current hyperparameters (or at a draw from their guides), with what their priors add to the bound."""
        return self.model.with_log_prior(self.model.covariances, generator or self._generator)

    def _factors(self, *, is_held: bool = False) -> Factors:
        q = Factors(self.guide.v_loc, self.guide.v_scale_row, self.guide.v_scale_col)
        if self.posterior == "variational" and not is_held:
            return q
        return Factors(q.loc, q.row.detach(), q.column.detach())  # the spread stays as it is

    def _white_noise(self) -> Tensor:
        """For one step: a pair of antithetic draws, or the mean of q for a posterior that is a point on the way.

        With inducing inputs there is one draw: q is narrow where rows are many, and a second doubles the cost.
        """
        if self.posterior != "variational":
            return torch.zeros_like(self.guide.v_loc[None])
        return self.antithetic(2)[: 1 if self.model.has_inducing else 2]

    @torch.no_grad()
    def update_rows(self, white: Tensor) -> None:
        """Sets the row covariance of q to its Gauss-Newton optimum, averaged over draws by noise ``(s, N, K)``."""
        q = self._factors()
        try:
            covariances, _ = self._current()
            V = q.loc + q.row @ white @ q.column.mT
            rows = gauss_newton_rows(self.model, covariances, V, q.column.square().sum(-1), self.known)
        except NotPositiveDefiniteError:
            return
        if torch.isfinite(rows).all():
            self.guide.set_rows(rows)

    def antithetic(self, n_draws: int) -> Tensor:
        """White noise in pairs that mirror each other, ``(n_draws, N, K)``."""
        shape = (n_draws // 2, self.model.n_values, self.model.n_latents)
        half = white_noise(*shape, like=self.model.X, generator=self._generator)
        return torch.cat([half, -half])


def _n_draws(n_rows: int) -> int:
    """An even number of draws to evaluate the bound by: their cost grows with the cube of the rows."""
    fewer = int(DRAWS * min(1.0, (DRAWS_UP_TO / n_rows) ** 2))
    return max(LEAST_DRAWS, fewer - fewer % 2)
