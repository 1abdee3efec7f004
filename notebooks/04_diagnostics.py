# %% [markdown]
# # Can this fit be trusted?
#
# A fit always returns something. This notebook looks it over: a report in words, leave-one-out by row, calibration,
# ArviZ on the posterior, and NUTS beside the variational posterior on a problem small enough for it.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from pyro.infer import MCMC, NUTS

from pyro_gprn import CollapsedGPRN, GPRNRegressor, diagnose, fit_collapsed, posterior_predictive, to_arviz
from pyro_gprn.datasets import sample_gprn
from pyro_gprn.diagnostics import import_arviz, plot_calibration, plot_khat, plot_latents, plot_predictive_check

warnings.filterwarnings("ignore", module="arviz")
small = "PYRO_GPRN_SMALL" in os.environ  # a quick run, as the project's tests do
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## Data whose truth is known
#
# Drawn from the model itself: two latent functions, forty outputs over one input.

# %%
n = 30 if small else 60
X, Y, F, W = sample_gprn(n, seed=3, output_shape=40, n_latents=2, noise_y=0.05)
order = X[:, 0].argsort()
plt.figure(figsize=(6, 3), layout="constrained")
plt.plot(X[order, 0], Y[order, :4], marker=".", lw=0.8)
plt.xlabel("x")
plt.ylabel("y")
title = plt.title("four of the forty outputs")

# %% [markdown]
# ## The report
#
# The outputs are independent draws, so each counts for one (`effective_outputs=None`). Three restarts, then `diagnose`:
# it trains a copy a little further to see whether the bound had settled, compares the restarts, takes the importance
# ratios of $q$ against the posterior, predicts each row from all others, refits the network to three folds to see
# whether its intervals hold what was held out, and asks which latent functions the data need. What looks wrong is said
# in words, with an exclamation mark; a number that has just been called untrustworthy is not quoted.

# %%
steps = 200 if small else None  # None: the default
common = {"effective_outputs": None, "seed": 0, "steps": steps, "progress": False}
regressor = GPRNRegressor(n_latents=2, restarts=3, **common).fit(X, Y)
report = diagnose(regressor)
print(report)

# %% [markdown]
# Leaving one row out costs nothing here. Given a draw of $F$ the outputs are Gaussian with one covariance $C$, and
#
# $$\log p(y_n \mid \text{the other rows}, F) = \tfrac12 D \log [C^{-1}]_{nn} - \tfrac12 D \log 2\pi
#   - \tfrac12 \frac{[C^{-1} G C^{-1}]_{nn}}{[C^{-1}]_{nn}},$$
#
# which needs the outputs only through their Gram matrix $G$. These are the terms that `az.loo` smooths.

# %%
figure, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
plot_calibration(report, axes=axes[:2])
axis = plot_khat(report, axes=axes[2])

# %% [markdown]
# ## Three fits that are wrong, on purpose
#
# Too few steps; more latent functions than the data have; and a posterior that is made too narrow by hand.

# %%
for name, settings in {"too few steps": {"n_latents": 2, "steps": 8}, "too many latents": {"n_latents": 5}}.items():
    wrong = GPRNRegressor(**common | settings).fit(X, Y)
    print(f"{name}:", *(f"\n  ! {warning}" for warning in diagnose(wrong).warnings))

# %%
narrow = CollapsedGPRN((X - X.mean(0)) / X.std(0), Y.shape[1], 2)
fit = fit_collapsed(narrow, Y - Y.mean(0), seed=0, steps=200, progress=False)
with torch.no_grad():
    narrow.noise_y_unconstrained -= 2.0
    fit.guide.v_scale_row_unconstrained.diagonal().sub_(6.0)
print("made narrow:", *(f"\n  ! {warning}" for warning in diagnose((narrow, fit.guide)).warnings))

# %% [markdown]
# ## The posterior in ArviZ
#
# `to_arviz` gives InferenceData (ArviZ 0.x) or a DataTree (1.x), with restarts as chains. The latent functions are
# rotated to agree with one another first: $F$ and $FQ$ are the same to the model, and averages over rotations mean
# nothing. Hyperparameters are point estimates here, one for each restart, so that their spread is between restarts.

# %%
az = import_arviz()  # without its announcement of version 1
data = to_arviz(regressor, draws=100)
az.summary(data, var_names=["noise_y", "kernel_w.kern0.lengthscale", "kernel_w.kern0.variance"], kind="stats")

# %%
figure, axes = plt.subplots(1, 2, figsize=(12, 3.6), layout="constrained")
plot_latents(data, axes=axes[0])
truth = F[order]
axes[1].plot(X[order, 0], truth, marker=".", lw=0.8)
axes[1].set(xlabel="x", ylabel="f", title="the truth, in a rotation of its own")
check = plot_predictive_check(data)

# %% [markdown]
# ## NUTS beside the variational posterior
#
# With the weights integrated out what is left to sample is $V$ and, if they have priors, the hyperparameters: small
# enough for Hamiltonian Monte Carlo when $N$ is small. Both predict from the same hyperparameters.

# %%
m, outputs = (10, 3) if small else (14, 4)
inputs, few = X[order][:: n // m][:m], Y[order][:: n // m][:m, :outputs]
few = few - few.mean(0)
model = CollapsedGPRN((inputs - inputs.mean(0)) / inputs.std(0), outputs, 1)
variational = fit_collapsed(model, few, seed=0, steps=200, progress=False)
for parameter in model.parameters():
    parameter.requires_grad_(False)  # held where the fit left them
torch.manual_seed(0)
mcmc = MCMC(NUTS(model), num_samples=100 if small else 300, warmup_steps=100, disable_progbar=True)
mcmc.run(few)

# %%
new = torch.linspace(model.X.min().item(), model.X.max().item(), 60)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(12, 3.6), layout="constrained", sharey=True)
predictions = {}
for axis, (name, posterior) in zip(
    axes, {"NUTS": mcmc.get_samples(), "variational": variational.guide}.items(), strict=True
):
    predictive = posterior_predictive(model, posterior, new, few)
    mean, sd = predictive.mean(0), predictive.variance(0).sqrt()
    predictions[name] = (mean, sd)
    axis.plot(new[:, 0], mean, color="C0")
    axis.fill_between(new[:, 0], mean - 1.96 * sd, mean + 1.96 * sd, alpha=0.25)
    axis.plot(model.X[:, 0], few[:, 0], "k.", ms=5)
    axis.set(xlabel="x (standardised)", ylabel="first output", title=name)
(mean_nuts, sd_nuts), (mean_q, sd_q) = predictions["NUTS"], predictions["variational"]
print(f"means differ by {(mean_nuts - mean_q).abs().mean() / sd_nuts.mean():.2f} standard deviations on average")
print(f"standard deviations: variational over NUTS {np.median(sd_q / sd_nuts):.2f} (median)")
