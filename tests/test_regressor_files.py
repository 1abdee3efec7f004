"""Files: a fitted estimator saved and loaded, and a fit that is killed and resumed."""

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
import xarray as xr
from quick import small

from pyro_gprn import GPRNRegressor
from pyro_gprn.archive import ArchiveError

pytestmark = pytest.mark.usefixtures("quick")

X = np.random.default_rng(0).uniform(size=(15, 2))
Y = np.sin(3 * X[:, :1] + np.arange(6)) + X[:, 1:]
X_NEW = X[:4] + 0.05


def fit(outputs=Y, **settings):
    return small(**settings).fit(X, outputs)


def holes():
    outputs = Y.copy()
    outputs[2:5, 3] = np.nan
    return outputs


def days():
    dates = np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[ns]")
    return xr.DataArray(Y.reshape(15, 2, 3), dims=("run", "day", "y"), coords={"day": dates, "y": list("abc")})


CASES = {
    "plain": {},
    "float32": {"outputs": Y.astype(np.float32)},
    "holes": {"outputs": holes()},
    "torch": {"outputs": torch.from_numpy(Y)},
    "pandas": {"outputs": pd.DataFrame(Y, columns=list("abcdef"))},
    "xarray": {"outputs": days()},
    "kronecker": {"inference": "kronecker"},
    "kronecker-holes": {"inference": "kronecker", "outputs": holes()},
    "mean-field": {"inference": "mean-field"},
    "mean-field-holes": {"inference": "mean-field", "outputs": holes()},
    "mixture": {"inference": "mixture"},
    "mixture-holes": {"inference": "mixture", "outputs": holes()},
    "words": {"kernel_w": "rbf[0] * periodic[1] + linear", "kernel_f": "matern52"},
    "pyro-kernels": {"kernel_w": kernels.Sum(kernels.Matern32(2), kernels.RBF(1, active_dims=[1]))},
    "settings": {"standardize": "outputs", "effective_outputs": 3, "output_shape": (2, 3), "restarts": 2},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_data", [True, False])
def test_a_loaded_estimator_predicts_the_same_to_the_bit(case, with_data, tmp_path):
    r = fit(**CASES[case])
    path = tmp_path / "model.gprn"
    r.save(path, with_data=with_data)
    again = GPRNRegressor.load(path, Y=None if with_data else CASES[case].get("outputs", Y))
    for before, after in zip(r.predict(X_NEW, return_std=True), again.predict(X_NEW, return_std=True), strict=True):
        assert type(after) is type(before)
        np.testing.assert_array_equal(np.asarray(after), np.asarray(before))
    np.testing.assert_array_equal(np.asarray(again.sample(X_NEW, 3, seed=1)), np.asarray(r.sample(X_NEW, 3, seed=1)))
    assert again.elbo_ == r.elbo_
    np.testing.assert_array_equal(again.losses_, r.losses_)
    if case == "pandas":
        assert list(again.predict(X_NEW).columns) == list("abcdef")
    if case == "xarray":
        assert again.predict(X_NEW).coords["day"].dtype == r.predict(X_NEW).coords["day"].dtype
        np.testing.assert_array_equal(again.predict(X_NEW).coords["y"], list("abc"))
    again.set_params(warm_start=True, restarts=1).fit(X, CASES[case].get("outputs", Y))  # training can go on
    assert again.elbo_ >= r.elbo_ - 0.1 * abs(r.elbo_) - 5


def test_column_names_are_kept(tmp_path):
    r = GPRNRegressor(1, steps=2, progress=False, selection=False).fit(pd.DataFrame(X, columns=["a", "b"]), Y)
    r.save(tmp_path / "model")
    again = GPRNRegressor.load(tmp_path / "model")
    assert list(again.feature_names_in_) == ["a", "b"]
    assert again.get_params() == r.get_params()


def test_other_outputs_than_those_it_was_fitted_to_are_refused(tmp_path):
    fit().save(tmp_path / "model", with_data=False)
    with pytest.raises(ValueError, match="saved without its training outputs"):
        GPRNRegressor.load(tmp_path / "model")
    for other in (Y + 1e-9, Y[:, :5], Y.astype(np.float32)):
        with pytest.raises(ValueError, match="is not what the estimator in"):
            GPRNRegressor.load(tmp_path / "model", Y=other)


class Own(kernels.RBF):
    """A kernel that only its author has."""


def test_a_kernel_of_ones_own_is_given_again(tmp_path):
    r = fit(kernel_w=Own(2))
    r.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"kernel_w in .* is a Own, which a file without code cannot hold"):
        GPRNRegressor.load(tmp_path / "model")
    again = GPRNRegressor.load(tmp_path / "model", kernel_w=Own(2))
    np.testing.assert_array_equal(again.predict(X_NEW), r.predict(X_NEW))


def test_files_that_are_not_right_say_so(tmp_path):
    path = tmp_path / "model"
    fit().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArchiveError, match="damaged"):
        GPRNRegressor.load(path)
    path.write_text("hello")
    with pytest.raises(ArchiveError, match="not a file of pyro_gprn"):
        GPRNRegressor.load(path)
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(entries["header.json"])
    entries["header.json"] = json.dumps(header | {"version": 1000}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, entry in entries.items():
            archive.writestr(name, entry)
    with pytest.raises(ArchiveError, match="later pyro_gprn"):
        GPRNRegressor.load(path)
    with pytest.raises(FileNotFoundError):
        GPRNRegressor.load(tmp_path / "nowhere")


KILLED = """
    import os, signal
    import numpy as np
    from quick import quick_starts, small

    X = np.random.default_rng(0).uniform(size=(15, 2))
    Y = np.sin(3 * X[:, :1] + np.arange(6)) + X[:, 1:]

    def kill(step, bound):
        if step == {step}:
            os.kill(os.getpid(), signal.SIGKILL)

    with quick_starts():
        small(inference={inference!r}, steps=40, checkpoint={path!r}).fit(X, Y, callback=kill)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kill -9 is of POSIX")
@pytest.mark.parametrize("inference", ["collapsed", "kronecker", "mean-field", "mixture"])
def test_a_fit_that_was_killed_is_resumed(tmp_path, inference):
    path = tmp_path / "fit.checkpoint"
    program = textwrap.dedent(KILLED).format(path=str(path), inference=inference, step=30)
    killed = subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).parent)
    assert killed.returncode == -9
    assert path.exists()
    steps = []
    settings = {"inference": inference, "steps": 40}
    r = small(checkpoint=path, **settings)
    r.fit(X, Y, callback=lambda step, bound: steps.append(step))
    assert steps[0] == 20  # it went on from the last checkpoint
    unbroken = fit(**settings)
    assert r.elbo_ == pytest.approx(unbroken.elbo_, rel=1e-6)
    np.testing.assert_allclose(r.predict(X_NEW), unbroken.predict(X_NEW), rtol=1e-5, atol=1e-8)
    r.set_params(n_latents=3)
    with pytest.raises(ValueError, match="checkpoint of another fit"):
        r.fit(X, Y)


def test_a_fit_without_a_seed_is_resumed_too(tmp_path):
    class Stop(Exception):
        """Nothing catches it."""

    def stop(step, bound):
        if step == 30:
            raise Stop

    def fit_again(**settings):
        return GPRNRegressor(2, steps=60, progress=False, selection=False, checkpoint=tmp_path / "file").fit(
            X, Y, **settings
        )

    with pytest.raises(Stop):
        fit_again(callback=stop)
    steps = []
    fit_again(callback=lambda step, bound: steps.append(step))
    assert steps[0] == 20
