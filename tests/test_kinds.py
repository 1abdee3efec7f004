"""Arrays of every kind go in, and come out alike."""

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from quick import small

pytestmark = pytest.mark.usefixtures("quick")

X = np.random.default_rng(0).uniform(size=(15, 2))
Y = np.sin(3 * X[:, :1] + np.arange(6)) + X[:, 1:]
X_NEW = X[:4] + 0.05


def fit(inputs, outputs, **settings):
    return small(**{"steps": 5} | settings).fit(inputs, outputs)


@pytest.fixture(scope="module")
def reference():
    return fit(X, Y).predict(X_NEW)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy(dtype, reference):
    r = fit(X.astype(dtype), Y.astype(dtype))
    mean, std = r.predict(X_NEW.astype(dtype), return_std=True)
    draws, density = r.sample(X_NEW, 3), r.log_predictive_density(X_NEW, mean)
    assert all(isinstance(each, np.ndarray) and each.dtype == dtype for each in (mean, std, draws, density))
    np.testing.assert_allclose(mean, reference, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch(dtype, reference):
    r = fit(torch.from_numpy(X), torch.from_numpy(Y).to(dtype))
    mean, std = r.predict(torch.from_numpy(X_NEW).requires_grad_(), return_std=True)
    for each in (mean, std, r.sample(X_NEW, 3), r.log_predictive_density(X_NEW, mean)):
        assert isinstance(each, torch.Tensor)
        assert each.dtype == dtype
    np.testing.assert_allclose(mean.numpy(), reference, rtol=1e-3, atol=1e-3)


def test_integers_and_lists(reference):
    counts = np.arange(30).reshape(15, 2)
    assert fit(X, counts).predict(X_NEW).dtype == np.float64
    np.testing.assert_allclose(fit(X.tolist(), Y.tolist()).predict(X_NEW.tolist()), reference)


def test_pandas(reference):
    names, rows = list("abcdef"), [f"run {i}" for i in range(15)]
    inputs = pd.DataFrame(X, columns=["speed", "angle"], index=rows)
    r = fit(inputs, pd.DataFrame(Y, columns=names, index=rows))
    mean, std = r.predict(inputs[:4] + 0.05, return_std=True)
    for frame in (mean, std):
        assert list(frame.columns) == names
        assert list(frame.index) == rows[:4]
    np.testing.assert_allclose(mean.to_numpy(), reference)
    assert list(r.feature_names_in_) == ["speed", "angle"]
    assert list(r.output_names_) == names
    assert r.sample(inputs[:4], 3).shape == (3, 4, 6)  # pandas has no third dimension
    with pytest.raises(ValueError, match="feature names"):
        r.predict(pd.DataFrame(X_NEW, columns=["angle", "speed"]))
    one = fit(inputs, pd.Series(Y[:, 0], name="a")).predict(inputs[:4])
    assert isinstance(one, pd.Series)
    assert one.name == "a"


def test_xarray():
    times = np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[ns]")
    outputs = xr.DataArray(
        Y.reshape(15, 2, 3),
        dims=("run", "time", "y"),
        coords={"run": np.arange(15) * 10, "time": times, "y": [0.0, 0.5, 1.0]},
    )
    r = fit(X, outputs)
    assert r.output_shape_ == (2, 3)
    mean, std = r.predict(X_NEW, return_std=True)
    for field in (mean, std):
        assert field.dims == ("run", "time", "y")
        assert "run" not in field.coords  # nobody named the new runs
        np.testing.assert_array_equal(field.coords["time"], times)
        np.testing.assert_array_equal(field.coords["y"], [0.0, 0.5, 1.0])
    assert r.sample(X_NEW, 3).dims == ("draw", "run", "time", "y")
    named = xr.DataArray(X_NEW, dims=("run", "input"), coords={"run": list("abcd")})
    np.testing.assert_array_equal(r.predict(named).coords["run"], list("abcd"))
    assert r.log_predictive_density(named, mean).dims == ("run", "time", "y")
    assert r.score(X_NEW, mean) == pytest.approx(1.0)


def test_an_xarray_keeps_its_name_its_attributes_and_coordinates_that_are_no_index():
    outputs = xr.DataArray(
        Y.reshape(15, 2, 3),
        dims=("run", "y", "x"),
        coords={"lat": (("y", "x"), np.arange(6.0).reshape(2, 3)), "height": 2.0},
        name="wind",
        attrs={"units": "m/s"},
    )
    r = fit(X, outputs)
    for field in (r.predict(X_NEW), r.sample(X_NEW, 2)):
        assert (field.name, field.attrs) == ("wind", {"units": "m/s"})
        xr.testing.assert_identical(field.lat, outputs.lat)
        assert field.height == 2.0


def test_masked_outputs_are_missing_ones():
    holes = np.where(Y > 1.5, np.nan, Y)
    masked = np.ma.masked_array(np.where(Y > 1.5, 9.97e36, Y), Y > 1.5)
    np.testing.assert_array_equal(fit(X, masked).predict(X_NEW), fit(X, holes).predict(X_NEW))


def test_views_that_go_backwards_are_taken():
    forwards, backwards = fit(X[::-1].copy(), Y[::-1].copy()), fit(X[::-1], Y[::-1])
    np.testing.assert_array_equal(backwards.predict(X_NEW[::-1]), forwards.predict(X_NEW[::-1].copy()))


def test_a_memory_map_is_not_changed(tmp_path):
    np.save(tmp_path / "Y.npy", Y)
    mapped = np.load(tmp_path / "Y.npy", mmap_mode="r")
    assert fit(X, mapped).predict(X_NEW).shape == (4, 6)
    np.testing.assert_array_equal(np.load(tmp_path / "Y.npy"), Y)


def test_fitting_changes_neither_inputs_nor_outputs():
    inputs, outputs = X.copy(), Y.copy()
    fit(inputs, outputs).predict(X_NEW)
    np.testing.assert_array_equal(inputs, X)
    np.testing.assert_array_equal(outputs, Y)
