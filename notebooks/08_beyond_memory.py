# %% [markdown]
# # Outputs beyond memory
#
# A fit needs the outputs only through their Gram matrix, and a prediction of an output only its own training values.
# So Y may be larger than memory: it stays in a store on disk, is read chunk by chunk by
# [dask](https://www.dask.org), and predictions go to another store in the same way. Here are runs of a simulator in a
# [zarr](https://zarr.dev) store, and at the end there is a zarr store of predicted fields, with never more than a few
# chunks in memory.
#
# It needs `pip install 'pyro-gprn[scale]'`.

# %%
import os
import resource
import tempfile
from pathlib import Path

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from distributed import Client, LocalCluster

from pyro_gprn import GPRNRegressor, plot_field

small = "PYRO_GPRN_SMALL" in os.environ  # a quick run, as the project's tests do
plt.rcParams["figure.dpi"] = 80
folder = Path(tempfile.mkdtemp())


def peak_memory():
    """The most memory that this process has held so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# %% [markdown]
# ## A store of runs
#
# A front that moves over a grid: its place, angle and width depend on three inputs. In reality these chunks would come
# from a simulator. A chunk has all runs of a tile of the grid. (Any chunks will do. Where a chunk has few runs of many
# grid points, all runs of these points are read together, so chunks should not be wide then.)

# %%
n_runs, grid, tile = (16, (40, 60), 20) if small else (48, (1200, 1600), 200)
X = np.random.default_rng(0).uniform(-1, 1, size=(n_runs + 4, 3))


def front(inputs, rows, columns):
    """The field at some points of the grid, for each of the inputs."""
    y, x = np.meshgrid(rows / grid[0], columns / grid[1], indexing="ij")
    place, angle, width = (inputs[:, i, None, None] for i in range(3))
    return np.tanh((x - 0.5 - 0.2 * place + 0.3 * angle * (y - 0.5)) / (0.1 * 2**width)).astype(np.float32)


def simulate(block_info=None):
    _, rows, columns = block_info[None]["array-location"]
    return front(X[:n_runs], np.arange(*rows), np.arange(*columns))


tiles = da.core.normalize_chunks((n_runs, tile, tile), (n_runs, *grid))
runs = xr.DataArray(
    da.map_blocks(simulate, chunks=tiles, dtype=np.float32, meta=np.empty((0, 0, 0), np.float32)),
    dims=("run", "y", "x"),
    coords={"y": np.linspace(0, 1, grid[0]), "x": np.linspace(0, 1, grid[1])},
    name="temperature",
    attrs={"units": "K"},
)
runs.to_dataset().to_zarr(folder / "runs.zarr", consolidated=False)
print(f"{n_runs} runs of {runs[0].size:,} outputs, {runs.nbytes / 1e6:,.0f} MB, in {runs.data.npartitions} chunks")

# %% [markdown]
# ## One pass, and a fit
#
# `open_zarr` reads nothing yet. `fit` makes one pass over the store, and everything after that, the training and the
# choice between candidates, is as quick as with a thousand outputs.

# %%
Y = xr.open_zarr(folder / "runs.zarr", consolidated=False)["temperature"]
settings = {"n_latents": 5, "steps": 20 if small else 200, "selection": False, "seed": 0, "progress": False}
r = GPRNRegressor(**settings).fit(X[:n_runs], Y)
print(f"bound {r.elbo_:,.0f}")

# %% [markdown]
# ## A store of predictions
#
# Predictions are lazy: they have the dimensions, coordinates and chunks of the outputs, and nothing is computed until
# they are written or looked at. A worker gets a chunk of Y and gives back that chunk of the predictions. The scales by
# which every output has an interval of its own are found there, too.

# %%
mean, deviation = r.predict(X[n_runs:], return_std=True)
predicted = xr.Dataset({"mean": mean, "deviation": deviation})
print(dict(mean.sizes), "in chunks of", [sizes[0] for sizes in mean.chunks], "with units", mean.units)
predicted.to_zarr(folder / "predicted.zarr", consolidated=False)
print(f"most memory so far: {peak_memory():.2f} GB")
assert peak_memory() < 1

# %%
written = xr.open_zarr(folder / "predicted.zarr", consolidated=False)
step = max(1, grid[0] // 120)
some = {"run": 0, "y": slice(None, None, step), "x": slice(None, None, step)}
truth = front(X[n_runs : n_runs + 1], np.arange(0, grid[0], step), np.arange(0, grid[1], step))[0]
panels = plot_field(
    written["mean"].isel(some),
    written["deviation"].isel(some),
    truth,
    labels=("y", "x"),
    title="a run that was held out",
)

# %% [markdown]
# A slice of the predictions reads the chunks that it needs, and no others.

# %%
corner = r.predict(X[n_runs:])[:, :5, :5]
print(corner.shape, f"{float(corner.mean()):.3f} {corner.units}")

# %% [markdown]
# ## A file that refers to the store
#
# A saved fit has the Gram matrix and the place of the store, but nothing of Y. When it is loaded, some chunks are
# compared with what they were; if the store has moved, `load(path, Y=…)` takes it from where it is now.

# %%
r.save(folder / "front.gprn")
again = GPRNRegressor.load(folder / "front.gprn")
print(f"{(folder / 'front.gprn').stat().st_size / 1e3:,.0f} kB")
np.testing.assert_array_equal(again.predict(X[n_runs:])[:, :5, :5], corner)

# %% [markdown]
# ## The same on a cluster
#
# Where a `dask.distributed` client is active, the same calls run on its workers: here two processes on this machine. A
# worker that dies costs time only, since its chunks are read again by another. The dashboard shows the pass as it
# goes.

# %%
where = {"dashboard_address": ":0", "silence_logs": 50} | ({} if small else {"host": "127.0.0.1"})
cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=not small, **where)
with cluster, Client(cluster) as client:
    print("dashboard:", client.dashboard_link)
    on_cluster = GPRNRegressor(**settings).fit(X[:n_runs], Y)
    difference = abs(on_cluster.predict(X[n_runs:]) - r.predict(X[n_runs:])).max()
    print(f"bound {on_cluster.elbo_:,.0f}; largest difference of the predictions: {float(difference):.0e}")
print(f"most memory of this process: {peak_memory():.2f} GB")
