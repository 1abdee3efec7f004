"""Training of the collapsed model: from the data to a posterior, without tuning.

The recipe, and what was measured for each choice (twelve problems: heat, advection-diffusion, moving blobs and fronts
with and without noise, a chirp, PM2.5, Jura; N from 60 to 256, two or three splits each, K = 5):

1. *Independent GPs first.* With F fixed at the constant 1 the model is independent GPs that share one kernel: exact
   evidence, a few dozen L-BFGS-B steps from four starts, and the place where everything else begins.
2. *Effective outputs* are read off the Gram matrix there; twice the reading is used. One and three times came close on
   smooth fields; ten times made F overfit (coverage of 95 % intervals 0.71 on a noise-free heat problem).
3. *Adam on everything, with a pair of antithetic draws a step* (400 steps, rate 0.08, β₂ = 0.95, then cosine decay),
   *and the row covariance of q by Gauss-Newton every 20 steps.* Over 600 steps this reached bounds of 1194, 909, 1362 and
   311 on blob, fronts, heat and chirp, against 1112, 901, 1315 and 310 of plain Adam with one draw, 850 steps and rate
   0.02, in less time. L-BFGS on fixed draws with a free row covariance fails: the covariance learns to cancel the very
   draws (bound on fresh draws -357 on the blob). A point estimate (MAP) was worse on every field.
4. *Hyperparameters stay in a box* taken from the data: length-scales within the distances between inputs, noise down to
   1e-6 of the outputs' scale.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import constraints, kl_divergence
from tqdm import trange

import pyro_gprn.kl  # noqa: F401  (registers the KLs)
from pyro_gprn.collapsed import CollapsedGPRN, Covariances
from pyro_gprn.guides.collapsed import CollapsedGuide
from pyro_gprn.handlers import isolated
from pyro_gprn.linalg import NotPositiveDefiniteError, safe_cholesky
from pyro_gprn.marginal import effective_outputs, gram_log_density, restrict
from pyro_gprn.statistics import OutputStatistics

#: Twice what the Gram matrix says; see the module's docstring.
EFFECTIVE_OUTPUTS_FACTOR = 2.0
#: Starts of the independent GPs: length-scale over √P standard deviations, noise over the outputs' scale.
STARTS = ((0.3, 0.1), (1.0, 0.03), (3.0, 0.003))
#: Steps between Gauss-Newton updates of the row covariance.
ROWS_EVERY = 20

State = dict[str, Tensor]


class CollapsedFit(NamedTuple):
    """What :func:`fit_collapsed` returns."""

    guide: CollapsedGuide  #: the posterior
    bound: float  #: evidence lower bound (of the weighted likelihood) at the end, by 64 draws
    start: float  #: the same before stage 2, by the same draws; never above ``bound``
    evidence: float  #: of independent GPs with one shared kernel, by the same weight of the likelihood
    losses: Tensor  #: negative bound at each step, noisy, (steps,)


def fit_collapsed(
    model: CollapsedGPRN,
    Y: Tensor,
    *,
    steps: int = 400,
    learning_rate: float = 0.08,
    restarts: int = 1,
    seed: int | None = None,
    progress: bool = True,
    callback: Callable[[int, float], None] | None = None,
) -> CollapsedFit:
    """Trains a collapsed network: hyperparameters and the posterior of its functions.

    The model's hyperparameters are changed in place. ``effective_outputs="auto"`` becomes a number. Ctrl-C ends the
    training early and keeps what was reached. The bound that comes back is never below the start's.

    :param model: the model.
    :param Y: outputs, ``(N, d_1, …, d_M)`` or flat, NaN where missing; centred and of about unit scale.
    :param steps: at most this many steps; fewer when the bound has settled.
    :param learning_rate: of Adam, before its decay.
    :param restarts: how many random starts of the latent functions; the best bound is kept.
    :param seed: of the draws; None takes torch's own state.
    :param progress: whether to show a progress bar.
    :param callback: called after each step with its number and the (noisy) bound.

    >>> X = torch.linspace(0, 1, 12)[:, None]
    >>> Y = torch.sin(6 * X + torch.linspace(0, 3, 200))
    >>> model = CollapsedGPRN(X, output_shape=200, n_latents=2, effective_outputs="auto")
    >>> fit = fit_collapsed(model, Y, steps=40, seed=0, progress=False)
    >>> fit.bound >= fit.start, 1 <= model.effective_outputs <= 200
    (True, True)
    """
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps and restarts must be at least 1; got {steps} and {restarts}")
    with isolated(), torch.random.fork_rng(enabled=seed is not None), warnings.catch_warnings():
        if seed is not None:
            torch.manual_seed(seed)
        warnings.simplefilter("ignore", RuntimeWarning)  # jitter on the way; the end is checked
        known = model.statistics(Y)
        box = _Box(model, known)
        evidence = _fit_independent(model, known, box)
        if model.effective_outputs == "auto":
            model.effective_outputs = _read_effective_outputs(model, known)
        independent = _copy(model)
        fits = []
        for _ in range(restarts):
            model.load_state_dict(independent)
            fit = _Stage2(model, known, box, learning_rate).run(steps, progress, callback)
            fits.append((fit, _copy(model)))
        best, state = max(fits, key=lambda pair: pair[0].bound)
        model.load_state_dict(state)
        return best._replace(evidence=model.likelihood_weight * evidence)


class _Box:
    """Ranges of the hyperparameters that are known by name, and where they start, from the data."""

    def __init__(self, model: CollapsedGPRN, known: OutputStatistics) -> None:
        distances = torch.pdist(model.X)
        longest = distances.max().item() if len(distances) and distances.max() > 0 else 1.0
        apart = distances[distances > 1e-9 * longest]
        shortest = apart.min().item() if len(apart) else longest
        seen = (known.counts * known.observed.sum(1)).sum()
        power = (known.grams.diagonal(dim1=-2, dim2=-1).sum() / seen).item()
        self.power = power if power > 1e-30 else 1.0  # mean square of the outputs
        scale = math.sqrt(self.power)
        ranges = {
            "lengthscale": (max(0.1 * shortest, 1e-3 * longest), 10 * longest),
            "variance": (1e-4 * self.power, 1e8 * self.power),
            "noise_y": (1e-6 * scale, 3 * scale),
            "noise_f": (1e-6, 0.3),
        }
        self._bounds = {
            name: (math.log(ranges[kind][0]), math.log(ranges[kind][1]))
            for kind in ranges
            for name in _positive_parameters(model, kind)
        }
        self._model = model

    def of(self, name: str) -> tuple[float, float]:
        """Bounds of one unconstrained parameter."""
        return self._bounds.get(name, (-math.inf, math.inf))

    @torch.no_grad()
    def clamp(self) -> None:
        """Puts every hyperparameter back into its range."""
        for name, parameter in self._model.named_parameters():
            parameter.clamp_(*self.of(name))

    @torch.no_grad()
    def start_independent(self, length: float, noise: float) -> None:
        """Sets the kernel of the weights and the noise to one of the starts."""
        parameters = dict(self._model.named_parameters())
        spread = self._model.X.std(0, correction=0)
        lengths = length * math.sqrt(len(spread)) * torch.where(spread > 0, spread, 1.0)
        for name in _positive_parameters(self._model.kernel_w, "lengthscale"):
            target = parameters[f"kernel_w.{name}"]
            target.copy_((lengths if target.shape == lengths.shape else lengths.mean()).log())
        for name in _positive_parameters(self._model.kernel_w, "variance"):
            parameters[f"kernel_w.{name}"].fill_(math.log(self.power * max(1.0, length**2)))
        for name in _positive_parameters(self._model, "noise_y"):
            parameters[name].fill_(math.log(noise * math.sqrt(self.power)))
        self.clamp()


def _positive_parameters(module: torch.nn.Module, kind: str) -> list[str]:
    """Names of the unconstrained (logarithmic) parameters behind positive ones whose name starts with ``kind``."""
    found = []
    for prefix, child in module.named_modules():
        for name, (constraint, _) in getattr(child, "_pyro_params", {}).items():
            if name.startswith(kind) and constraint is constraints.positive:
                found.append(f"{prefix}.{name}_unconstrained".lstrip("."))
    return found


def _fit_independent(model: CollapsedGPRN, known: OutputStatistics, box: _Box) -> float:
    """Stage 1: independent GPs with one shared kernel (F = 1), by their evidence. Returns it."""
    chosen = {name: p for name, p in model.named_parameters() if name.startswith(("kernel_w.", "noise_y"))}
    sizes = [parameter.numel() for parameter in chosen.values()]
    constant = torch.ones_like(model.X[:, :1])
    unit = (known.counts * known.observed.sum(1)).sum().item()  # numbers observed: keeps the objective near 1

    @torch.no_grad()
    def put(values: np.ndarray) -> None:
        parts = torch.from_numpy(values.copy()).split(sizes)
        for parameter, part in zip(chosen.values(), parts, strict=True):
            parameter.copy_(part.reshape(parameter.shape))

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        put(values)
        try:
            (_, Kw, noise), log_prior = model.covariances_and_log_prior()
            value = gram_log_density(model.output_covariance(constant, Kw, noise), known) + log_prior
            gradients = torch.autograd.grad(value, list(chosen.values()), materialize_grads=True)
        except NotPositiveDefiniteError:
            return 1e10, np.zeros_like(values)
        return -value.item() / unit, -torch.cat([g.flatten() for g in gradients]).numpy() / unit

    def flat() -> np.ndarray:
        return torch.cat([p.detach().flatten() for p in chosen.values()]).double().numpy()

    box.clamp()
    starts = [flat()]
    for length, noise in STARTS:
        box.start_independent(length, noise)
        starts.append(flat())
    bounds = [box.of(name) for name, size in zip(chosen, sizes, strict=True) for _ in range(size)]
    options = {"maxiter": 100, "ftol": 1e-9, "gtol": 1e-6}
    runs = [minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options) for start in starts]
    best = min(runs, key=lambda run: run.fun)
    put(best.x)
    return -best.fun * unit


@torch.no_grad()
def _read_effective_outputs(model: CollapsedGPRN, known: OutputStatistics) -> float:
    (_, Kw, noise), _ = model.covariances_and_log_prior()
    covariance = model.output_covariance(torch.ones_like(model.X[:, :1]), Kw, noise)
    return min(float(model.n_outputs), EFFECTIVE_OUTPUTS_FACTOR * effective_outputs(covariance, known))


class _Stage2:
    """Everything at once: the variational posterior and the hyperparameters, from where stage 1 ended."""

    def __init__(self, model: CollapsedGPRN, known: OutputStatistics, box: _Box, learning_rate: float) -> None:
        self.model, self.known, self.box = model, known, box
        self.guide = CollapsedGuide(model)
        self.update_rows(self._antithetic(0))
        self.parameters = [p for p in [*model.parameters(), *self.guide.parameters()] if p.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, lr=learning_rate, betas=(0.9, 0.95))

    def run(self, steps: int, progress: bool, callback: Callable[[int, float], None] | None) -> CollapsedFit:
        """Trains for at most ``steps`` steps and returns to the start if that was better."""
        fixed = self._antithetic(64)
        start, start_state = self._evaluate(fixed), (_copy(self.model), _copy(self.guide))
        losses: list[float] = []
        schedule = _Schedule(self.optimiser, steps, abs(start))
        bar = trange(steps, desc="fit", disable=not progress)
        try:
            for step in bar:
                losses.append(self._step())
                if callback is not None:
                    callback(step, -losses[-1])
                bar.set_postfix(bound=f"{-losses[-1]:.6g}", refresh=False)
                schedule.step(losses)
                if (step + 1) % ROWS_EVERY == 0 and schedule.rows_may_change:
                    self.update_rows(self._antithetic(2))
                if schedule.is_over:
                    break
        except KeyboardInterrupt:
            warnings.warn(f"training was interrupted after {len(losses)} steps; keeping what was reached", stacklevel=3)
        bar.close()
        bound = self._evaluate(fixed)
        if not bound >= start:
            self.model.load_state_dict(start_state[0])
            self.guide.load_state_dict(start_state[1])
            bound = start
        return CollapsedFit(self.guide, bound, start, math.nan, torch.tensor(losses, dtype=torch.float64))

    def _step(self) -> float:
        """One step of Adam; a step that cannot be computed is left out."""
        self.optimiser.zero_grad()
        try:
            loss = -self._bound(self._antithetic(2))
        except NotPositiveDefiniteError:
            return math.nan
        loss.backward()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if all(torch.isfinite(gradient).all() for gradient in gradients):
            self.optimiser.step()
            self.box.clamp()
        return loss.item()

    def _bound(self, noise: Tensor) -> Tensor:
        """The bound by given white noise, ``(s, N, K)``."""
        (Lf, Kw, noise_y), log_prior = self.model.covariances_and_log_prior()
        q = self.guide.posterior()
        V = q.loc + self.guide.v_scale_row @ noise @ self.guide.v_scale_col.mT
        log_likelihood = gram_log_density(self.model.output_covariance(Lf @ V, Kw, noise_y), self.known).mean()
        return self.model.likelihood_weight * log_likelihood - kl_divergence(q, self.model.prior()) + log_prior

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
        V = q.loc + self.guide.v_scale_row @ noise @ self.guide.v_scale_col.mT if len(noise) else q.loc.unsqueeze(0)
        try:
            covariances, _ = self.model.covariances_and_log_prior()
            rows = gauss_newton_rows(self.model, covariances, V, q.factors[1].variance(), self.known)
        except NotPositiveDefiniteError:
            return
        if torch.isfinite(rows).all():
            self.guide.v_scale_row_unconstrained.copy_(rows.tril(-1) + torch.diag_embed(rows.diagonal().log()))

    def _antithetic(self, n_draws: int) -> Tensor:
        half = torch.randn(n_draws // 2, self.model.n_rows, self.model.n_latents, dtype=torch.float64)
        return torch.cat([half, -half]).to(self.model.X.device)


class _Schedule:
    """A constant rate for half of the steps, or until the bound has settled; then a cosine to zero."""

    window = 50

    def __init__(self, optimiser: torch.optim.Optimizer, steps: int, start: float) -> None:
        self._optimiser, self._rate = optimiser, optimiser.param_groups[0]["lr"]
        self._hold, self._decay = steps - steps // 2, steps // 2
        self._taken, self._last, self._start = 0, math.nan, start

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


def gauss_newton_rows(
    model: CollapsedGPRN, covariances: Covariances, V: Tensor, column_variances: Tensor, known: OutputStatistics
) -> Tensor:
    """The row factor ``R`` of q(V) that is best for the Gauss-Newton Hessian of the log-likelihood, ``(N, N)``.

    :param V: whitened functions to average over, ``(s, N, K)``.
    :param column_variances: the diagonal of ``T Tᵀ``, ``(K,)``.
    """
    # For a change a of column k of F, dC = diag(a) B + Bᵀ diag(a) with B = K_w diag(f_k), and the expected Hessian of
    #   log p is −aᵀ H_k a with H_k = Σ_g D_g [ (B C⁻¹) ∘ (B C⁻¹)ᵀ + C⁻¹ ∘ (B C⁻¹ Bᵀ) ].
    # The bound in R alone is then best where (R Rᵀ)⁻¹ = (1/K) [ tr(T Tᵀ) I + Σ_k (T Tᵀ)_kk L_fᵀ H_k L_f ].
    Lf, Kw, noise = covariances
    F = Lf @ V
    C = restrict(model.output_covariance(F, Kw, noise), known)
    seen = known.observed.to(C.dtype)
    inverse = torch.linalg.inv(C) * (seen.unsqueeze(-1) * seen.unsqueeze(-2))
    H = torch.zeros_like(Kw)
    for k, column_variance in enumerate(column_variances):
        B = (Kw * F[:, None, :, k]).unsqueeze(1)  # (s, 1, N, N)
        BC = B @ inverse
        by_pattern = BC * BC.mT + inverse * (BC @ B.mT)
        H = H + column_variance * torch.einsum("g,sgij->ij", known.counts, by_pattern) / len(V)
    K = len(column_variances)
    precision = (Lf.mT @ H @ Lf) * (model.likelihood_weight / K)
    precision = 0.5 * (precision + precision.mT) + column_variances.mean() * torch.eye(len(Lf)).to(Lf)
    # R lower-triangular with R Rᵀ = precision⁻¹: for precision = UUᵀ with U upper-triangular, R = U⁻ᵀ
    flipped = safe_cholesky(precision.flip(0, 1), name="the precision of the functions").flip(0, 1)
    identity = torch.eye(len(Lf)).to(Lf)
    return torch.linalg.solve_triangular(flipped, identity, upper=True).mT


def _copy(module: torch.nn.Module) -> State:
    return {name: value.clone() for name, value in module.state_dict().items()}
