# %% [markdown]
# # Variants of the model
#
# The parts are Pyro's own kind: kernels, priors, noises and likelihoods can be swapped. This notebook tries four
# variants on data that call for some of them, and compares them by bound and by leave-one-out.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.nn import PyroSample

from pyro_gprn import GPRN, ClosedFormELBO, CollapsedGPRN, KroneckerGuide, diagnose, fit_collapsed, posterior_predictive
from pyro_gprn.datasets import sample_gprn
from pyro_gprn.diagnostics import elpd_of, import_arviz, to_inference_data

warnings.filterwarnings("ignore", module="arviz")
small = "PYRO_GPRN_SMALL" in os.environ  # a quick run, as the project's tests do
plt.rcParams["figure.dpi"] = 80
pyro.settings.set(module_local_params=True)  # several models in one session, each with parameters of its own

# %% [markdown]
# ## Data: rough weights, one noisy output, a few outliers
#
# Drawn from a network with a Matérn-3/2 kernel for its weights. The last output has five times the noise of the others,
# and one number in fifty is off by far.

# %%
n = 30 if small else 60
n_outputs = 6
X, Y, _, _ = sample_gprn(n, seed=1, output_shape=n_outputs, n_latents=2, kernel_w="matern32", noise_y=0.05)
generator = torch.Generator().manual_seed(0)
Y[:, -1] += 0.25 * torch.randn(n, generator=generator, dtype=torch.float64)
clean = Y.clone()
outliers = torch.rand(Y.shape, generator=generator) < 0.02
Y[outliers] += 3.0 * torch.randn(int(outliers.sum()), generator=generator, dtype=torch.float64).sign()
X, Y, clean = (X - X.mean(0)) / X.std(0), Y - Y.mean(0), clean - Y.mean(0)
order = X[:, 0].argsort()
plt.figure(figsize=(7, 3), layout="constrained")
plt.plot(X[order, 0], Y[order], marker=".", lw=0.7)
plt.plot(X[:, :1].expand_as(Y)[outliers], Y[outliers], "kx", label="outliers")
plt.xlabel("x (standardised)")
plt.ylabel("y")
legend = plt.legend()

# %% [markdown]
# ## Another kernel, and a prior on a hyperparameter
#
# Kernels by name, or any of `pyro.contrib.gp.kernels`. A `PyroSample` in the place of a parameter is a prior; with
# `autoguide` the hyperparameter has a posterior, here a normal on its logarithm, instead of a point.

# %%
steps = 150 if small else 400


def collapsed(**settings: object) -> CollapsedGPRN:
    return CollapsedGPRN(X, n_outputs, 2, **settings)


with_prior = collapsed(kernel_w="matern32")
with_prior.kernel_w.kern0.lengthscale = PyroSample(dist.LogNormal(torch.zeros(1), torch.ones(1)).to_event(1))
with_prior.kernel_w.kern0.autoguide("lengthscale", dist.Normal)
variants = {
    "RBF": collapsed(),
    "Matérn 3/2": collapsed(kernel_w="matern32"),
    "Matérn 3/2, prior on ℓ": with_prior,
}
rows = {}
fits = {}
for name, model in variants.items():
    fits[name] = fit_collapsed(model, Y, seed=0, steps=steps, progress=False)
    report = diagnose((model, fits[name].guide))
    rows[name] = {"bound": fits[name].bound, "LOO by row": report.elpd, "coverage": report.coverage}
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# Likelihood and posterior are of one kind in all three, so that their bounds may be compared. The data come from the
# rough kernel, but with these outliers bound and leave-one-out hardly tell the kernels apart. The prior costs a little
# of the bound, and buys a posterior of the length-scale.
#
# ## A noise for each output, and a Student-t likelihood
#
# Both need the weights, so the model is `GPRN` and the posterior `KroneckerGuide(mean="full")`. A noise for each output
# is an argument. Another likelihood is one method of a subclass: the distribution of the outputs given the signal
# $\sum_k w_{kd} f_k$. Training and predictions both ask for it. `TraceMeanField_ELBO` takes the closed-form KLs and
# draws the rest.


# %%
class StudentGPRN(GPRN):
    """A network whose outputs have heavy-tailed noise."""

    def likelihood(self, signal: torch.Tensor) -> dist.StudentT:
        return dist.StudentT(3.0, signal, self.noise_y)


def train(model: GPRN, elbo: ELBO, n_steps: int) -> KroneckerGuide:
    guide = KroneckerGuide(model, mean="full")
    loss = elbo(model, guide)  # a torch module
    optimiser = torch.optim.Adam([*model.parameters(), *guide.parameters()], lr=0.02)
    for _ in range(n_steps):
        optimiser.zero_grad()
        loss(Y).backward()
        optimiser.step()
    return guide


more = 400 if small else 2500
settings = {"kernel_w": "matern32", "noise_y": 0.3}
guides = {}
networks = {
    "one noise": (GPRN(X, n_outputs, 2, **settings), ClosedFormELBO()),
    "a noise each": (GPRN(X, n_outputs, 2, **settings | {"noise_y": torch.full((n_outputs,), 0.3)}), ClosedFormELBO()),
    "Student-t": (StudentGPRN(X, n_outputs, 2, **settings), TraceMeanField_ELBO()),
}
torch.manual_seed(0)
for name, (model, elbo) in networks.items():
    guides[name] = train(model, elbo, more)
print("noise of each output:", networks["a noise each"][0].noise_y.detach().numpy().round(3))

# %% [markdown]
# Given $f$ and $w$ the numbers in $Y$ are independent, so that leave-one-out is over single numbers here: their
# log-likelihoods at draws of the posterior go to `az.loo`. (The table above is by rows: not to be compared.)

# %%
az = import_arviz()


@torch.no_grad()
def log_likelihoods(model: GPRN, guide: KroneckerGuide, n_draws: int = 200) -> torch.Tensor:
    q_f, q_w = guide.posterior()
    signal = torch.einsum("snk,snkd->snd", q_f.sample((n_draws,)), q_w.sample((n_draws,)))
    return model.likelihood(signal).log_prob(Y)


rows = {}
for name, (model, elbo) in networks.items():
    values = log_likelihoods(model, guides[name])[None].numpy()
    draws = ("chain", "draw")
    groups = {"posterior": {"lp": (draws, values.sum((-2, -1)))}, "log_likelihood": {"y": ((*draws, "n", "d"), values)}}
    loo = az.loo(to_inference_data(groups, {}), pointwise=True)
    with torch.no_grad():
        q_f, q_w = guides[name].posterior()
        mean = torch.einsum("nk,nkd->nd", q_f.mean, q_w.mean)
    rows[name] = {
        "bound": -elbo.loss(model, guides[name], Y),
        "LOO by number": elpd_of(loo),
        "k-hat > 0.7": int((loo.pareto_k > 0.7).sum()),
        "error at outliers": (mean - clean)[outliers].abs().mean().item(),
        "error elsewhere": (mean - clean)[~outliers].abs().mean().item(),
    }
pd.DataFrame(rows).T.round(3)

# %% [markdown]
# Where an outlier stands, a Gaussian is drawn towards it and a Student-t lets it go: the column *error at outliers*,
# against the data before they were spoilt, says how far each was drawn.

# %%
places = torch.linspace(X.min().item(), X.max().item(), 200)[:, None]
worst = int(outliers.sum(0).argmax())
predictions = {
    name: posterior_predictive(networks[name][0], guides[name], places, Y) for name in ("one noise", "Student-t")
}
plt.figure(figsize=(8, 3.4), layout="constrained")
for name, predictive in predictions.items():
    plt.plot(places[:, 0], predictive.mean(worst), label=name)
plt.plot(X[:, 0], Y[:, worst], "k.", ms=4)
plt.plot(X[outliers[:, worst], 0], Y[outliers[:, worst], worst], "rx", label="outliers")
plt.xlabel("x (standardised)")
plt.ylabel(f"output {worst}")
legend = plt.legend()

# %% [markdown]
# Predictions have the noise of the model's own likelihood. The variance of a Student-t with three degrees of freedom is
# three times its scale squared, and its draws reach farther out: the last column is the share of drawn outputs that lie
# more than four standard deviations from the mean. (Of a normal distribution that is 0.006 %.)

# %%
rows = {}
for name, predictive in predictions.items():
    deviation = predictive.variance(worst).sqrt()
    noise = (predictive.variance(worst) - predictive.variance(worst, noise=False)).mean().sqrt()
    far = (predictive.sample(2000, worst) - predictive.mean(worst)).abs() > 4 * deviation
    rows[name] = {
        "scale of the noise": networks[name][0].noise_y.item(),
        "standard deviation of the noise in predictions": noise.item(),
        "draws beyond 4 standard deviations, %": 100 * far.double().mean().item(),
    }
pd.DataFrame(rows).T.round(3)
