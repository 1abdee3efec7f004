# %% [markdown]
# # A million outputs in seconds
#
# The largest experiment of the paper: the pressure in a square cavity whose four walls slide and drive the flow, at
# 100 × 100 points and 100 times, so a million outputs for each run. The five inputs are the Reynolds number and the
# speeds of the walls; 64 runs to learn from, 32 held out.
#
# Training sees the outputs only through their $N \times N$ Gram matrix $\mathbf{G} = \mathbf{Y}\mathbf{Y}^\top$,
# since with the weights integrated out
#
# $$\log p(\mathbf{Y}|\mathbf{F}) = -\tfrac{ND}{2}\log 2\pi - \tfrac{D}{2}\log|\mathbf{C}_F|
# - \tfrac12\,\mathrm{tr}(\mathbf{C}_F^{-1}\mathbf{G}), \qquad
# \mathbf{C}_F = \mathbf{K}_w \circ \mathbf{F}\mathbf{F}^\top + \sigma_y^2\,\mathbf{I}.$$
#
# So there is one pass over the data, and after it the number of outputs does not matter until we predict.
#
# **Data.** The full set takes long to simulate: `pyro-gprn simulate cavity --folder cavity` makes it, and goes on
# after an interruption. This notebook reads the folder that the environment variable `PYRO_GPRN_CAVITY` names.
# Without it, it simulates a smaller set of the same kind (a coarser grid, and fewer and earlier frames), so that
# everybody can run it. The next cell says which one the numbers and pictures below are of.

# %%
import json
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from pyro_gprn import GPRNRegressor, plot_field, plot_fit, posterior_predictive
from pyro_gprn.baselines import independent_gps
from pyro_gprn.datasets import simulate_cavity
from pyro_gprn.outputs import gram_matrix

small = "PYRO_GPRN_SMALL" in os.environ  # a quick run, as the project's tests do
plt.rcParams["figure.dpi"] = 80

# %%
if "PYRO_GPRN_CAVITY" in os.environ:
    folder = Path(os.environ["PYRO_GPRN_CAVITY"])
    # mapped copy-on-write: nothing is written, but torch wants arrays that it could write to
    X, Y = np.load(folder / "inputs.npy"), np.load(folder / "runs.npy", mmap_mode="c")
    final_time = json.loads((folder / "settings.json").read_text())["final_time"]
    print("the set that PYRO_GPRN_CAVITY names, mapped from disk")
else:
    n, grid, frames, final_time = (16, 12, 4, 0.2) if small else (96, 24, 10, 0.3)
    runs = simulate_cavity(n, grid=grid, frames=frames, final_time=final_time, step=5e-3, progress=False)
    X, Y = runs.X.numpy(), runs.Y.numpy()
    print("a small set, simulated here")
n_test = len(X) // 3
n_train = len(X) - n_test
times = final_time * np.arange(1, Y.shape[1] + 1) / Y.shape[1]
X_train, Y_train, X_test, Y_test = X[:n_train], Y[:n_train], X[n_train:], Y[n_train:]
print(f"{n_train} runs to learn from, {n_test} held out; {Y[0].size:,} outputs each: (time, x, y) = {Y.shape[1:]}")
print(f"up to time {final_time:g}; training outputs {Y_train.nbytes / 1e6:,.1f} MB in {Y.dtype}")

# %% [markdown]
# ## One pass, one fit
#
# `fit` makes the Gram matrix itself. To see what the pass alone takes, we make it here once more. And to see whether
# the number of outputs matters, we fit to every tenth output as well.


# %%
def timed(function, *arguments):
    """What a function returns, and how many seconds it took."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


settings = {"n_latents": 5, "steps": 50 if small else None, "seed": 0, "progress": False}
tenth = np.ascontiguousarray(Y_train.reshape(n_train, -1)[:, ::10])
GPRNRegressor(**settings | {"steps": 1}).fit(X_train, tenth)  # the first fit of a session loads libraries
_, seconds_gram = timed(gram_matrix, Y_train)
regressor, seconds_fit = timed(GPRNRegressor(**settings).fit, X_train, Y_train)
_, seconds_tenth = timed(GPRNRegressor(**settings).fit, X_train, tenth)
mean, seconds_mean = timed(regressor.predict, X_test)
print(f"a pass for the Gram matrix          {seconds_gram:7.2f} s")
print(f"fit, {Y_train[0].size:9,} outputs              {seconds_fit:7.2f} s, {len(regressor.losses_)} steps")
print(f"fit, {tenth.shape[1]:9,} outputs              {seconds_tenth:7.2f} s")
print(f"mean field of {n_test} held-out runs       {seconds_mean:7.2f} s")

# %%
axes = plot_fit(regressor)

# %% [markdown]
# ## How good is it?
#
# Against two baselines: the mean field of the training runs, whatever the inputs, and independent GPs that share one
# kernel. The error is the root mean square over the spread about the mean field (NRMSE), over all held-out runs.

# %%
centre = Y_train.mean(0)


def predict_independent() -> np.ndarray:
    """The mean of independent GPs with one shared kernel."""
    scaled, new = (torch.from_numpy((inputs - X_train.mean(0)) / X_train.std(0)) for inputs in (X_train, X_test))
    model, draws = independent_gps(scaled, torch.from_numpy(Y_train - centre), Y.shape[1:])
    return posterior_predictive(model, draws, new).mean().numpy() + centre


def squares(errors: np.ndarray) -> float:
    return np.square(errors, dtype=float).mean()


independent, seconds_independent = timed(predict_independent)
predictions = {"mean field": np.broadcast_to(centre, Y_test.shape), "independent GPs": independent, "GPRN": mean}
nrmse_by_frame = pd.DataFrame(
    {
        name: [
            (squares(prediction[:, t] - Y_test[:, t]) / squares(Y_test[:, t] - centre[t])) ** 0.5
            for t in range(len(times))
        ]
        for name, prediction in predictions.items()
    },
    index=pd.Index(times, name="time"),
)
spread = sum(squares(truth - centre) for truth in Y_test)  # run by run: Y may be larger than memory
for name, prediction in predictions.items():
    error = sum(squares(guess - truth) for guess, truth in zip(prediction, Y_test, strict=True))
    print(f"NRMSE, {name:16} {(error / spread) ** 0.5:.4f}")

# %%
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name in ("independent GPs", "GPRN"):
    axes.plot(times, nrmse_by_frame[name], marker="." if len(times) < 30 else None, label=name)
axes.set(xlabel="time", ylabel="NRMSE of the frame", title=f"{n_test} held-out runs", ylim=(0, None))
legend = axes.legend()

# %% [markdown]
# ## Standard deviations
#
# The mean is one product of small matrices with $\mathbf{Y}$. The standard deviation of every output mixes many draws
# of the latent functions and costs more, so with very many outputs we ask for a few runs only.

# %%
n_rows = n_test if Y[0].size < 100_000 else 3
(few, deviation), seconds_deviation = timed(regressor.predict, X_test[:n_rows], True)
inside = np.abs(few - Y_test[:n_rows]) < 1.96 * deviation
print(f"mean and standard deviation: {seconds_deviation / n_rows:.3f} s a run")
print(f"within mean ± 1.96 standard deviations, {n_rows} held-out runs: {inside.mean():.3f}  (0.95 would be right)")
edge = np.ones(Y.shape[2:], dtype=bool)
edge[2:-2, 2:-2] = False  # the two outermost cells, next to the walls
print(f"beside the walls {inside[..., edge].mean():.3f}, elsewhere {inside[..., ~edge].mean():.3f}")

# %% [markdown]
# The pressure is extreme in the corners, where a sliding wall meets another, and smooth elsewhere, but the model has
# one noise for all outputs. So look at both parts, not only at the average of them.
#
# ## One frame
#
# The first held-out run, at a middle time. Colours are cut at the middle 98 % of the truth, or the corners would hide
# everything else.

# %%
run, frame = 0, len(times) // 2
truth, mean_frame, deviation_frame = (fields[run, frame].T for fields in (Y_test, few, deviation))
panels = plot_field(
    mean_frame, deviation_frame, truth, labels=("cell in y", "cell in x"), title=f"pressure at time {times[frame]:.2f}"
)
limits = np.quantile(truth, [0.01, 0.99])
for panel in panels[:2]:
    panel.images[0].set_clim(*limits)
largest = np.quantile(np.abs(mean_frame - truth), 0.98)
panels[3].images[0].set_clim(-largest, largest)

# %% [markdown]
# ## Where it is wrong
#
# The error of each held-out run, against its Reynolds number and the speed of its fastest wall.

# %%
by_run = [(squares(guess - field) / squares(field - centre)) ** 0.5 for guess, field in zip(mean, Y_test, strict=True)]
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
fastest = 1 + 9 * X_test[:, 1:].max(1)
points = axes.scatter(100 + 4900 * X_test[:, 0], by_run, c=fastest)
axes.set(xlabel="Reynolds number", ylabel="NRMSE of the run", ylim=(0, None), title="held-out runs")
colorbar = figure.colorbar(points, label="speed of the fastest wall")
