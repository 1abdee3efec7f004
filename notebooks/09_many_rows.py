# %% [markdown]
# # Many rows
#
# An exact fit costs $N^3$ a step. From a thousand rows on, inducing inputs $\mathbf{Z}$ stand for all rows: the
# functions are inferred at $m$ of these, the weights are still integrated out, and a step costs $O(N (mK)^2)$ with no
# array of $N \times N$. What is maximised is a lower bound of the exact evidence for every draw of the functions
# (`docs/many-rows.md` has the algebra); with $\mathbf{Z} = \mathbf{X}$ it is the exact one.
#
# Here: six sensors that were read ten thousand times, three of which failed for a while.

# %%
import os
import time

import matplotlib.pyplot as plt
import numpy as np

from pyro_gprn import GPRNRegressor

small = "PYRO_GPRN_SMALL" in os.environ  # a quick run, as the project's tests do
n_rows, n_inducing = (120, 12) if small else (10_000, 100)
settings = {"selection": False} | ({"steps": 10, "starts": ["independent"], "kernel_w": "rbf"} if small else {})
plt.rcParams["figure.dpi"] = 80

# %% [markdown]
# Two things drive the sensors, and how much each sensor feels of them changes slowly: the first three follow each other
# early on, and go their own ways later.

# %%
random = np.random.default_rng(0)
days = np.sort(random.uniform(0, 30, n_rows))[:, None]
first, second = np.sin(1.9 * days), np.cos(1.2 * days + 0.1 * days**1.3)
turn = np.linspace(0, 0.12, 6) * days
truth = np.cos(turn) * first + np.sin(turn + np.linspace(0, 1, 6)) * second
readings = truth + 0.3 * random.normal(size=truth.shape)
holes = {1: (8.0, 11.0), 3: (14.0, 16.0), 4: (20.0, 23.5)}
for sensor, (begin, end) in holes.items():
    failed = (days[:, 0] > begin) & (days[:, 0] < end)
    readings[failed, sensor] = np.nan
print(f"{readings.size:,} numbers, {np.isnan(readings).mean():.1%} of them missing")

# %% [markdown]
# `inducing="auto"` would have taken 100 inducing inputs for so many rows, too. The fit starts from the exact network of
# 300 of the rows.

# %%
begin = time.perf_counter()
network = GPRNRegressor(3, inducing=n_inducing, seed=0, progress=False, **settings).fit(days, readings)
print(f"{time.perf_counter() - begin:.0f} s, bound {network.elbo_:.6g}, {len(network.losses_)} steps after the start")

# %% [markdown]
# The holes: how far off is what the network fills in, beside a straight line from one edge of the hole to the other?

# %%
mean, deviation = network.predict(days, return_std=True)
print("sensor  network  straight line  inside 95 %")
for sensor in holes:
    missing = np.isnan(readings[:, sensor])
    line = np.interp(days[missing, 0], days[~missing, 0], mean[~missing, sensor])
    errors = [np.sqrt(np.mean((guess - truth[missing, sensor]) ** 2)) for guess in (mean[missing, sensor], line)]
    inside = np.abs(mean - truth)[missing, sensor] < 1.96 * deviation[missing, sensor]
    print(f"{sensor:6d}  {errors[0]:7.3f}  {errors[1]:13.3f}  {inside.mean():11.2f}")

# %%
figure, axes = plt.subplots(len(holes), 1, figsize=(9, 6), sharex=True)
for axis, (sensor, (begin_of, end_of)) in zip(axes, holes.items(), strict=True):
    some = slice(None, None, max(1, n_rows // 1000))
    axis.plot(days[some], readings[some, sensor], ".", color="0.8", markersize=2)
    axis.plot(days, truth[:, sensor], color="C1", linewidth=1, label="truth")
    axis.plot(days, mean[:, sensor], color="C0", linewidth=1, label="network")
    low, high = mean[:, sensor] - 2 * deviation[:, sensor], mean[:, sensor] + 2 * deviation[:, sensor]
    axis.fill_between(days[:, 0], low, high, color="C0", alpha=0.2)
    axis.axvspan(begin_of, end_of, color="0.93", zorder=0)
    axis.set_ylabel(f"sensor {sensor}")
axes[0].legend(loc="upper right")
axes[-1].set_xlabel("days")
plt.show()

# %% [markdown]
# Everything that an exact fit has is here as well: `sample`, quantiles, `save` and `load`, checkpoints, `diagnose`,
# `to_arviz`. Outputs that have a kernel each (`own_kernels=True`) need an exact fit.
