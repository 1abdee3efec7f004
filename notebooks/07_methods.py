# %% [markdown]
# # The same data by every method
#
# The network has four posteriors here, and competitors stand behind the same interface: `fit`, `predict`, `sample`,
# `log_predictive_density`. One data set, a picture of each, a table of scores over folds, and what each is good for.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np

from pyro_gprn import GPRNRegressor, compare
from pyro_gprn.baselines import HOGP, LMC, IndependentGP, ReducedGP, TrainingMean

small = "PYRO_GPRN_SMALL" in os.environ  # a quick run, as the project's tests do
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# ## The data
#
# A front that moves with the first input and becomes steeper with the second, observed at 120 places with a little
# noise. Where the front is, neighbouring places vary together; which places these are depends on the input. That is
# what a network is made for, and what a fixed mixing of functions has to approximate.


# %%
def fronts(n_runs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs ``(n_runs, 2)`` and outputs ``(n_runs, 120)``."""
    rng = np.random.default_rng(seed)
    inputs, places = rng.random((n_runs, 2)), np.linspace(0, 1, 120)
    centre, width = 0.25 + 0.5 * inputs[:, :1], 0.03 + 0.1 * inputs[:, 1:]
    return inputs, np.tanh((places - centre) / width) + 0.05 * rng.standard_normal((n_runs, 120))


X, Y = fronts(20 if small else 48, seed=0)
n_train = 2 * len(X) // 3

# %% [markdown]
# ## The methods
#
# | name | what it is |
# | --- | --- |
# | `collapsed` | the network with its weights integrated out, our default; what it is made of is chosen by folds |
# | `kronecker` | the paper's posterior: matrix-normal functions, tensor-normal weights |
# | `mean-field` | a Gaussian for each function and each weight (Wilson et al. 2012; Nguyen and Bonilla 2013) |
# | `mixture` | a mixture of two isotropic Gaussians, NPV (Gershman et al. 2012; Nguyen and Bonilla 2013) |
# | `independent GPs` | one kernel for all outputs, no mixing |
# | `LMC` | functions mixed by loadings that do not depend on the input |
# | `PCA-GP`, `kernel PCA`, `Isomap` | a GP for each of a few coordinates of the outputs |
# | `HOGP` | one GP over inputs and outputs, its covariance a Kronecker product (BoTorch) |
# | `training mean` | the least that anything must beat |

# %%
quick = {"steps": 10} if small else {}
fewer = {"steps": 10 if small else 300}  # than by default, where steps are slow: this notebook should not take long
network = {"n_latents": 2 if small else 5, "seed": 0, "progress": False}
methods = {
    "collapsed": GPRNRegressor(selection=not small, **network, **quick),
    "kronecker": GPRNRegressor(inference="kronecker", **network, **fewer),
    "mean-field": GPRNRegressor(inference="mean-field", **network, **fewer),
    "mixture": GPRNRegressor(inference="mixture", **network, **fewer),
    "independent GPs": IndependentGP(),
    "LMC": LMC(seed=0, progress=False, **quick),
    "PCA-GP": ReducedGP("pca", 10, seed=0, **quick),
    "kernel PCA": ReducedGP("kpca", 10, seed=0, **quick),
    "Isomap": ReducedGP("isomap", 3, seed=0, **quick),
    "training mean": TrainingMean(),
}

# %% [markdown]
# ## A picture of each
#
# One run that was held out: the truth, the mean and the band of 95 %. HOGP factorises over rows and outputs together;
# with all 120 places a fit takes many minutes, so it gets every sixth place, and no part in the table below.

# %%
held_out = slice(n_train, n_train + 1)
places = np.linspace(0, 1, 120)
coarse = slice(None, None, 6)
shown = {name: (method, slice(None)) for name, method in methods.items()}
shown["HOGP, every sixth place"] = (HOGP(seed=0, steps=10 if small else 150), coarse)
figure, panels = plt.subplots(3, 4, figsize=(13, 7.5), layout="constrained", sharex=True, sharey=True)
for panel, (name, (method, some)) in zip(panels.flat, shown.items(), strict=False):
    mean, deviation = method.fit(X[:n_train], Y[:n_train, some]).predict(X[held_out], return_std=True)
    panel.fill_between(places[some], *(mean[0] + sign * 1.96 * deviation[0] for sign in (-1, 1)), alpha=0.25)
    panel.plot(places[some], mean[0], label="mean, 95 %")
    panel.plot(places, Y[held_out][0], ".", color="black", ms=3, label="held out")
    panel.set(title=name, ylim=(-2, 2))
legend = panels[0, 0].legend(loc="upper left", fontsize=8)
panels[-1, -1].set_axis_off()

# %% [markdown]
# ## Scores
#
# `compare` refits every method to the same folds. `rmse` is relative to the training mean; of all scores but coverage
# (0.95 is right) lower is better. The same from the shell, for a file with arrays `X` and `Y`: `pyro-gprn compare
# data.npz`.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # optimisers on hyperparameters that stand at the end of their range
    found = compare(methods, X, Y, cv=3, progress=False)
found.table.round(4)

# %%
print("difference from the first, with its standard error over folds")
print(found.describe_differences())

# %%
drawn = found.plot()

# %% [markdown]
# ## What each is good for
#
# Six of the ten are within a standard error or two of each other here: 32 runs of a noisy front do not tell them apart,
# and that is worth knowing before one of them is chosen. What does differ:
#
# - **collapsed**: among the best in every score, with intervals that hold what they say. It takes the longest, because
#   it refits folds to choose what it is made of; `selection=False` is several times faster.
# - **mean-field**: as good here, with one setting and no folds. Every update is exact and never lowers the bound; with
#   very little noise it converges slowly.
# - **kronecker**: the paper's posterior. One covariance of the rows for all weights together is a coarser family, which
#   shows; it is written down for any number of modes of the outputs.
# - **mixture**: one variance for everything cannot follow smooth functions, so the fit turns to rougher kernels. It is
#   here because the paper compares with it.
# - **independent GPs**: a quarter of a second, and close to the best. What other methods add must be worth their time.
# - **LMC**: for outputs that are mixed in the same way everywhere, which a moving front is not.
# - **PCA-GP, kernel PCA**: fast, and low errors where a few coordinates carry the outputs. The intervals of PCA-GP are
#   too narrow here.
# - **Isomap**: its way back is a barycentre of training outputs, which blurs what lies between them.
# - **HOGP**: for outputs on a grid whose rows and columns are correlated in the same way at every input.
#
# Fields with more runs, less noise and fronts that move further are where the network pulls ahead: `docs/accuracy.md`
# has fifteen problems.
