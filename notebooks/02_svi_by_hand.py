# %% [markdown]
# # The paper, equation by equation, and beyond it
#
# *Scalable Gaussian Process Regression Networks* (Li, Xing, Kirby and Zhe, IJCAI 2020) puts a matrix-normal posterior
# on the latent functions and a tensor-normal one on the weights, and has a bound in closed form. Here are its
# equations next to the code, each checked by Monte Carlo, with the slips of the printed formulas corrected
# (`docs/paper.md` lists them all). Then two ways to train it with Pyro's `SVI`, and at the end a tighter bound on the
# same data, with the weights integrated out.
#
# | paper | here | is |
# | --- | --- | --- |
# | $N, D, K$ | `n_rows`, `n_outputs`, `n_latents` | rows, outputs, latent functions |
# | $\mathbf{F}$, $\mathbf{h}_n$ | site `"f"`, $(N, K)$, and a row of it | latent functions, noise $\sigma_f$ included |
# | $\mathcal{W}$, $\mathbf{W}_n$ | site `"w"`, $(N, K, d_1, \dots, d_M)$, and a row of it as $D \times K$ | weights |
# | $\mathbf{K}_{\hat f}, \mathbf{K}_w$ | `Kf`, `Kw` | kernel matrices |

# %%
import math
import os
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
import pyro
import torch
from pyro import poutine
from pyro.contrib.gp.kernels import RBF
from pyro.distributions import MultivariateNormal, Normal
from pyro.infer import ELBO, SVI, RenyiELBO, TraceMeanField_ELBO
from pyro.optim import ClippedAdam
from torch.distributions import kl_divergence

from pyro_gprn import (
    GPRN,
    ClosedFormELBO,
    CollapsedGPRN,
    CollapsedGuide,
    KroneckerGuide,
    MatrixNormal,
    TensorNormal,
    posterior_predictive,
)
from pyro_gprn.datasets import sample_gprn
from pyro_gprn.factorised import expected_log_likelihood

small = "PYRO_GPRN_SMALL" in os.environ  # a quick run, as the project's tests do
plt.rcParams["figure.dpi"] = 80
random_state = pyro.set_rng_seed(0)

# %% [markdown]
# ## Equations 1 and 2: the model
#
# $$\mathbf{y}(\mathbf{x}) = \mathbf{W}(\mathbf{x})\,[\mathbf{f}(\mathbf{x}) + \sigma_f\,\boldsymbol\epsilon]
# + \sigma_y\,\mathbf{z}$$
#
# At the $N$ inputs this is, with a row-major vec (first mode slowest),
#
# $$\mathbf{F} \sim \mathcal{MN}(0, \mathbf{K}_{\hat f}, \mathbf{I}_K), \quad
# \mathcal{W} \sim \mathcal{TN}(0, \mathbf{K}_w, \mathbf{I}_K, \mathbf{I}_{d_1}, \dots, \mathbf{I}_{d_M}), \quad
# y_{nd} \sim \mathcal{N}\big(\textstyle\sum_k w_{nkd} f_{nk},\ \sigma_y^2\big).$$
#
# `GPRN` is this as a Pyro model. We draw data from it, so that the truth is known, and hold the hyperparameters at
# their true values throughout: then every bound below is a bound of one and the same $\log p(\mathbf{Y})$.


# %%
def hyperparameters() -> dict:
    """Kernels and noise, new ones at each call: a model owns its kernels."""
    kernel_f, kernel_w = (RBF(1, lengthscale=torch.tensor(length)) for length in (0.3, 0.5))
    return {"kernel_f": kernel_f, "kernel_w": kernel_w, "noise_y": 0.1}


n_rows, output_shape, n_latents = (8, (3, 2), 2) if small else (20, (6, 5), 2)
draw = sample_gprn(n_rows + 12, 1, output_shape=output_shape, n_latents=n_latents, **hyperparameters())
X, Y, X_new, Y_new = draw.X[:n_rows], draw.Y[:n_rows], draw.X[n_rows:], draw.Y[n_rows:]
model = GPRN(X, output_shape, n_latents, **hyperparameters())
print(poutine.trace(model).get_trace(Y).format_shapes())

# %%
order = draw.X[:, 0].argsort()
figure, panels = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
panels[0].plot(draw.X[order], draw.F[order], marker=".")
panels[0].set(xlabel="x", ylabel="f", title="latent functions")
panels[1].plot(draw.X[order], draw.Y.flatten(1)[order], lw=0.8, marker=".", ms=4)
title = panels[1].set(xlabel="x", ylabel="y", title=f"{model.n_outputs} outputs")

# %% [markdown]
# ## Equations 6 and 7: the posterior
#
# $$q(\mathbf{F}) = \mathcal{MN}(\mathbf{M}, \boldsymbol\Sigma, \boldsymbol\Omega), \qquad
# q(\mathcal{W}) = \mathcal{TN}(\mathcal{U}, \boldsymbol\Gamma_1, \dots, \boldsymbol\Gamma_{M+2}), \qquad
# \mathrm{cov}\,\mathrm{vec}(\mathcal{W}) = \boldsymbol\Gamma_1 \otimes \dots \otimes \boldsymbol\Gamma_{M+2}.$$
#
# `TensorNormal` takes the Cholesky factor of each $\boldsymbol\Gamma_m$ (None is the identity, a vector a diagonal).
# It never builds the Kronecker product; here we do, once, to compare. The posterior below is some posterior with all
# factors full, for six of the inputs.

# %%
few = GPRN(X[:6], (3, 2), 2, **hyperparameters())
with torch.no_grad():
    prior_f, prior_w = few.prior()
Lf, Lw = prior_f.scale_trils[0], prior_w.scale_trils[0]


def random_factor(size: int) -> torch.Tensor:
    """A lower-triangular matrix with a positive diagonal."""
    return 0.3 * torch.randn(size, size, dtype=torch.float64).tril(-1) + torch.eye(size, dtype=torch.float64) * 0.6


q_f = MatrixNormal(Lf @ torch.randn(6, 2, dtype=torch.float64), Lf @ random_factor(6), random_factor(2))
w_loc = torch.tensordot(Lw, torch.randn(6, 2, 3, 2, dtype=torch.float64), dims=1)
q_w = TensorNormal(w_loc, [Lw @ random_factor(6), random_factor(2), random_factor(3), random_factor(2)])

dense = MultivariateNormal(q_w.loc.flatten(), q_w.covariance_matrix)
weights = q_w.sample()
print("numbers in W:", weights.numel(), " covariance as a dense matrix:", tuple(q_w.covariance_matrix.shape))
print(f"log q(W) by factors {q_w.log_prob(weights):.6f}, by the dense matrix {dense.log_prob(weights.flatten()):.6f}")

# %% [markdown]
# ## Below equation 8: the two KLs
#
# Corrected, with $t_m$ the size of mode $m$:
#
# $$\mathrm{KL}(q(\mathcal{W})\,\|\,p(\mathcal{W})) = \tfrac12\Big[
# \mathrm{tr}(\mathbf{K}_w^{-1}\boldsymbol\Gamma_1) \prod_{m=2}^{M+2} \mathrm{tr}(\boldsymbol\Gamma_m)
# + \mathrm{tr}(\mathbf{K}_w^{-1}\mathbf{U}_1\mathbf{U}_1^\top) - NDK + DK\log|\mathbf{K}_w|
# - \sum_{m=1}^{M+2} \frac{NDK}{t_m} \log|\boldsymbol\Gamma_m| \Big]$$
#
# The paper prints $\mathbf{K}_{\hat f}^{-1}$ for $\mathbf{K}_w^{-1}$ in the mean term, and leaves out $-NDK$. The KL
# of $q(\mathbf{F})$ is the same formula with two modes (there the paper leaves out $-NK$). The package has one
# function for both, registered with torch, so that `kl_divergence` and Pyro find it. Monte Carlo decides:


# %%
def printed_kl_w(q_w: TensorNormal, Kf: torch.Tensor, Kw: torch.Tensor) -> torch.Tensor:
    """KL(q(W)‖p(W)) as the paper prints it."""
    covariances = [factor @ factor.mT for factor in q_w.scale_trils]
    total, U1 = q_w.event_shape.numel(), q_w.loc.flatten(1)
    traces = math.prod(covariance.trace() for covariance in covariances[1:])
    log_dets = sum(total / len(covariance) * covariance.logdet() for covariance in covariances)
    mean_term = (torch.linalg.solve(Kf, U1) * U1).sum()
    first = torch.linalg.solve(Kw, covariances[0]).trace() * traces
    return 0.5 * (first + total / len(Kw) * Kw.logdet() + mean_term - log_dets)


def monte_carlo(values: torch.Tensor) -> str:
    """Mean and standard error of independent draws."""
    return f"{values.mean():.2f} ± {values.std() / len(values) ** 0.5:.2f}"


n_draws = 2_000 if small else 50_000
W, F = q_w.sample((n_draws,)), q_f.sample((n_draws,))
rows = {
    "KL of W": (
        f"{kl_divergence(q_w, prior_w):.2f}",
        monte_carlo(q_w.log_prob(W) - prior_w.log_prob(W)),
        f"{printed_kl_w(q_w, Lf @ Lf.mT, Lw @ Lw.mT):.2f}",
    ),
    "KL of F": (
        f"{kl_divergence(q_f, prior_f):.2f}",
        monte_carlo(q_f.log_prob(F) - prior_f.log_prob(F)),
        f"{kl_divergence(q_f, prior_f) + F[0].numel() / 2:.2f}",
    ),
}

# %% [markdown]
# ## The expected log-likelihood
#
# Corrected:
#
# $$\mathbb{E}_q \log p(\mathbf{Y}|\mathcal{W},\mathbf{F}) = -\tfrac{ND}{2}\log 2\pi\sigma_y^2 - \frac{1}{2\sigma_y^2}
# \sum_n \Big[\mathbf{y}_n^\top\mathbf{y}_n - 2\,\mathbf{y}_n^\top\mathbb{E}[\mathbf{W}_n]\,\mathbf{m}_n
# + \mathrm{tr}\big(\mathbb{E}[\mathbf{W}_n^\top\mathbf{W}_n]\ \mathbb{E}[\mathbf{h}_n\mathbf{h}_n^\top]\big)\Big]$$
#
# $$\mathbb{E}[\mathbf{W}_n^\top\mathbf{W}_n] = [\boldsymbol\Gamma_1]_{nn}\,\boldsymbol\Gamma_2
# \prod_{m\ge3}\mathrm{tr}(\boldsymbol\Gamma_m) + \mathbb{E}[\mathbf{W}_n]^\top\mathbb{E}[\mathbf{W}_n], \qquad
# \mathbb{E}[\mathbf{h}_n\mathbf{h}_n^\top] = [\boldsymbol\Sigma]_{nn}\,\boldsymbol\Omega
# + \mathbf{m}_n\mathbf{m}_n^\top$$
#
# The paper prints $\mathbb{E}[\mathbf{W}_n^\top\mathbf{W}_n]$ without $[\boldsymbol\Gamma_1]_{nn}$, and leaves out
# $-\tfrac{ND}{2}\log 2\pi$.


# %%
def likelihood_by_hand(
    q_f: MatrixNormal, q_w: TensorNormal, y: torch.Tensor, noise: float, *, as_printed: bool
) -> float:
    """The formula above, line by line; or with the paper's slips."""
    sigma, omega = (factor @ factor.mT for factor in q_f.scale_trils)
    gamma_1, gamma_2, *others = (factor @ factor.mT for factor in q_w.scale_trils)
    traces = math.prod(gamma.trace() for gamma in others)
    constant = 0.0 if as_printed else math.log(2 * math.pi)
    value = -0.5 * y.numel() * (constant + 2 * math.log(noise))
    for n, m in enumerate(q_f.loc):
        U = q_w.loc[n].flatten(1).T  # E[W_n], (D, K)
        E_WW = (1.0 if as_printed else gamma_1[n, n]) * gamma_2 * traces + U.T @ U
        E_hh = sigma[n, n] * omega + torch.outer(m, m)
        target = y[n].flatten()
        value -= (target @ target - 2 * target @ U @ m + (E_WW @ E_hh).trace()) / (2 * noise**2)
    return float(value)


y, noise = draw.Y.flatten(1)[:6, :6].reshape(6, 3, 2), 0.5
log_likelihoods = Normal(torch.einsum("snkab,snk->snab", W, F), noise).log_prob(y).flatten(1).sum(-1)
rows["expected log-likelihood"] = (
    f"{expected_log_likelihood(q_f, q_w, y, torch.tensor(noise)):.2f}",
    monte_carlo(log_likelihoods),
    f"{likelihood_by_hand(q_f, q_w, y, noise, as_printed=True):.2f}",
)
by_hand = likelihood_by_hand(q_f, q_w, y, noise, as_printed=False)
print(f"expected log-likelihood, line by line: {by_hand:.2f}")
columns = ["closed form, here", "Monte Carlo ± standard error", "as printed in the paper"]
pd.DataFrame.from_dict(rows, orient="index", columns=columns)

# %% [markdown]
# ## Equation 8, trained two ways
#
# $$\mathcal{L} = \mathbb{E}_q \log p(\mathbf{Y}|\mathcal{W},\mathbf{F})
# - \mathrm{KL}(q(\mathcal{W})\,\|\,p(\mathcal{W})) - \mathrm{KL}(q(\mathbf{F})\,\|\,p(\mathbf{F}))$$
#
# `TraceMeanField_ELBO` is Pyro's own: it takes up the closed-form KLs and draws the likelihood, so it is noisy.
# `ClosedFormELBO` draws nothing. Both are arguments of the same `SVI`, with the same guide (`mean="full"`: all of
# $\mathcal{U}$ is a parameter, as in the paper).


# %%
steps = 60 if small else 800


def settings(name: str) -> dict[str, float]:
    """What Adam gets for the parameter of this name: the hyperparameters stay where they are, the rate decays."""
    return {"lr": 0.0 if name.startswith(("kernel", "noise")) else 0.05, "lrd": 0.05 ** (1 / steps)}


class Run(NamedTuple):
    """A trained network."""

    model: torch.nn.Module
    guide: torch.nn.Module
    curve: list[float]  #: the bound at each step
    scores: list[float]  #: what some other bounds say at the end


def train(model: torch.nn.Module, guide: torch.nn.Module, elbo: ELBO, scored_by: list[ELBO]) -> Run:
    """Trains in Pyro's global store of parameters, by name: so it is emptied first, and the scores are read at once."""
    pyro.clear_param_store()
    svi = SVI(model, guide, ClippedAdam(settings), elbo)
    curve = [-svi.step(Y) for _ in range(steps)]
    return Run(model, guide, curve, [-score.loss(model, guide, Y) for score in scored_by])


def train_paper(elbo: ELBO, seed: int) -> Run:
    """The paper's posterior, from a random start."""
    pyro.set_rng_seed(seed)
    model = GPRN(X, output_shape, n_latents, **hyperparameters())
    return train(model, KroneckerGuide(model, mean="full"), elbo, [ClosedFormELBO()])


starts = range(1 if small else 2)
drawn, exact = ([train_paper(elbo, seed) for seed in starts] for elbo in (TraceMeanField_ELBO(), ClosedFormELBO()))
print(f"the bound after {steps} steps, in closed form")
for name, runs in (("TraceMeanField_ELBO", drawn), ("ClosedFormELBO", exact)):
    print(f"{name:20}", *(f"start {seed}: {run.scores[0]:8.1f}" for seed, run in enumerate(runs)))

# %% [markdown]
# The noise of the drawn likelihood costs bound.
#
# For given $q(\mathbf{F})$ and covariances the bound is quadratic in $\mathcal{U}$, with the same Hessian for every
# output. So the best mean is $\mathcal{U} = \mathbf{B}\,\mathbf{Y}$ with one $\mathbf{B}$, $(K, N, N)$, for all
# outputs. `guide.update_mean` puts it there in one step. Adam had not quite arrived:

# %%
pyro.clear_param_store()
model, guide = exact[0].model, exact[0].guide
guide.update_mean(Y)
closed_form_loss = ClosedFormELBO().loss(model, guide, Y)
print(f"the bound with the best mean: {-closed_form_loss:.1f}, before: {exact[0].scores[0]:.1f}")

# %% [markdown]
# `KroneckerGuide(model)`, by default with `mean="projected"`, holds $\mathbf{B}$ instead of $\mathcal{U}$. Then the
# data enter by the Gram matrix $\mathbf{Y}\mathbf{Y}^\top$ alone, and a step costs the same for a thousand outputs
# and for a million.
#
# ## The weights integrated out
#
# Given $\mathbf{F}$ the outputs are independent Gaussians with one covariance, so that $\mathcal{W}$ needs no
# approximation:
#
# $$\mathbf{y}_d\,|\,\mathbf{F} \sim \mathcal{N}(0, \mathbf{C}_F), \qquad
# \mathbf{C}_F = \mathbf{K}_w \circ \mathbf{F}\mathbf{F}^\top + \sigma_y^2\,\mathbf{I}$$
#
# $$\mathcal{L}' = \mathbb{E}_{q(F)} \log p(\mathbf{Y}|\mathbf{F}) - \mathrm{KL}(q(\mathbf{F})\,\|\,p(\mathbf{F}))
# \ \ge\ \mathcal{L}\quad\text{for the same } q(\mathbf{F}),$$
#
# since it keeps the dependence of $\mathcal{W}$ on $\mathbf{F}$ that $q(\mathbf{F})\,q(\mathcal{W})$ cuts.
# `CollapsedGPRN` is this model, whitened ($\mathbf{F} = \mathbf{L}_f\mathbf{V}$), `CollapsedGuide` a matrix-normal
# $q(\mathbf{V})$; Pyro's SVI does the rest. How far is it from $\log p(\mathbf{Y})$ itself? Draws of the trained
# guide, weighted by importance, give an estimate, which is on average still a little too low.


# %%
def train_collapsed(seed: int) -> Run:
    """The collapsed posterior, from a random start."""
    pyro.set_rng_seed(seed)
    model = CollapsedGPRN(X, output_shape, n_latents, **hyperparameters())
    scored_by = [TraceMeanField_ELBO(num_particles=particles), RenyiELBO(alpha=0, num_particles=particles)]
    return train(model, CollapsedGuide(model), TraceMeanField_ELBO(), scored_by)


particles = 100 if small else 500
collapsed = [train_collapsed(seed) for seed in starts]
print(f"after {steps} steps, from {particles} draws")
for number, name in enumerate(("collapsed bound", "log evidence by importance weights")):
    print(f"{name:35}", *(f"start {seed}: {run.scores[number]:8.1f}" for seed, run in enumerate(collapsed)))

# %%
evidence = max(run.scores[1] for run in collapsed)
shown = {
    "paper's posterior, TraceMeanField_ELBO": drawn[0],
    "paper's posterior, ClosedFormELBO": exact[0],
    "weights integrated out": collapsed[0],
}
figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
for label, run in shown.items():
    axes.plot(range(1, steps + 1), run.curve, lw=1, label=label)
axes.axhline(evidence, color="black", lw=1, ls="--", label="log evidence (importance weights)")
lowest = min(drawn[0].scores[0], exact[0].scores[0])
axes.set_ylim(lowest - 2 * (evidence - lowest), evidence + 0.2 * (evidence - lowest))
axes.set(xlabel="step of Adam", ylabel="bound", title="the same data, the same hyperparameters")
legend = axes.legend(loc="lower right")

# %%
print("below the highest estimate of the log evidence, start 0:")
print(f"the paper's posterior, with the best mean  {evidence + closed_form_loss:6.1f}")
print(f"weights integrated out                     {evidence - collapsed[0].scores[0]:6.1f}")

# %% [markdown]
# ## Predictions
#
# `posterior_predictive` takes either posterior.

# %%
torch.manual_seed(0)
table = {}
for name, run in (("paper's posterior", exact[0]), ("collapsed", collapsed[0])):
    predictive = posterior_predictive(run.model, run.guide, X_new, Y)
    error = (predictive.mean() - Y_new).square().mean().sqrt().item()
    table[name] = {"RMSE": error, "mean log density": predictive.log_density(Y_new).mean().item()}
pd.DataFrame.from_dict(table, orient="index").round(3)

# %% [markdown]
# With twelve new inputs of one draw these two rows say little about which is better in general; the bounds above say
# more. In everyday use `fit_collapsed` or `GPRNRegressor` train the collapsed model without tuning.
