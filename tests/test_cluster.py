"""Outputs beyond memory on a cluster of processes: the same answer, also when a worker is killed."""

import os
import signal
import sys

import dask
import dask.array as da
import numpy as np
import pytest

from pyro_gprn import GPRNRegressor
from pyro_gprn.outputs import lazy

SETTINGS = {
    "steps": 5, "starts": ["independent"], "kernel_w": "rbf", "own_kernels": False, "selection": False, "seed": 0,
    "progress": False,
}  # fmt: skip
N, D = 10, 40


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _chunk_by_chunk(monkeypatch):
    """A pass goes over chunks, also where outputs are so few that they could be one."""
    monkeypatch.setattr(lazy, "WHOLE_BYTES", 0)


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    quiet = {"distributed.worker.daemon": True, "distributed.admin.system-monitor.gil.enabled": False}
    with dask.config.set(quiet):
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def problem():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(N, 2))
    return X, np.sin(3 * X[:, :1] + np.linspace(0, 3, D)) + 0.1 * rng.normal(size=(N, D))


def killer(path):
    """Passes chunks on; the process that reads the third for the first time ends at once, as if it were killed."""

    def read(block, block_id=None):
        if block_id == (0, 2) and not os.path.exists(path):
            with open(path, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    return read


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_worker_that_is_killed_in_the_pass_costs_nothing_but_time(client, tmp_path):
    X, Y = problem()
    chunks = da.from_array(Y, chunks=(N, 5))
    expected = GPRNRegressor(2, **SETTINGS).fit(X, chunks)
    killed = chunks.map_blocks(killer(tmp_path / "killed"), dtype=Y.dtype, meta=np.empty((0, 0)))
    with client.as_current():
        found = GPRNRegressor(2, **SETTINGS).fit(X, killed)
        mean, deviation = dask.compute(*found.predict(X[:3], return_std=True))
    assert (tmp_path / "killed").exists()
    assert found.elbo_ == expected.elbo_
    for one, other in zip(expected.predict(X[:3], return_std=True), (mean, deviation), strict=True):
        np.testing.assert_array_equal(one, other)


def test_predictions_are_computed_by_workers_that_get_one_chunk_each(client):
    X, Y = problem()
    with client.as_current():
        r = GPRNRegressor(2, **SETTINGS | {"progress": True}).fit(X, da.from_array(Y, chunks=(N, 5)))
        draws = r.sample(X[:2], 3).compute()
        quantile = r.predict(X[:2], quantiles=(0.9,))[0].compute()
    assert draws.shape == (3, 2, D)
    expected = GPRNRegressor(2, **SETTINGS).fit(X, Y).predict(X[:2], quantiles=(0.9,))[0]
    np.testing.assert_allclose(quantile, expected, rtol=1e-9)


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_every_scheduler_gives_the_same(scheduler):
    X, Y = problem()
    chunks = da.from_array(Y, chunks=(4, 9))
    expected = GPRNRegressor(2, **SETTINGS).fit(X, chunks)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        found = GPRNRegressor(2, **SETTINGS).fit(X, chunks)
        mean = found.predict(X[:3]).compute()
    assert found.elbo_ == expected.elbo_
    np.testing.assert_array_equal(mean, expected.predict(X[:3]))
