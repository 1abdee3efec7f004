import matplotlib
import numpy as np
import pytest
import torch
import xarray as xr
from matplotlib import pyplot

from pyro_gprn import GPRNRegressor, plot_correlation, plot_field, plot_fit

X = np.random.default_rng(0).uniform(size=(15, 2))
Y = np.sin(3 * X[:, :1] + np.linspace(0, 3, 12)) + X[:, 1:]


@pytest.fixture(autouse=True)
def _no_windows():
    matplotlib.use("Agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def fitted():
    return GPRNRegressor(2, steps=30, seed=0, progress=False).fit(X, Y.reshape(15, 3, 4))


def test_the_bound_over_the_steps(fitted):
    axes = plot_fit(fitted)
    curve, end = axes.get_lines()
    np.testing.assert_array_equal(curve.get_ydata(), -fitted.losses_)
    assert end.get_ydata()[0] == fitted.elbo_
    assert axes.get_ylabel() == "evidence lower bound"
    given = pyplot.subplots()[1]
    assert plot_fit(fitted, axes=given) is given


def test_pictures_of_a_field(fitted):
    mean, std = fitted.predict(X[:1], return_std=True)
    axes = plot_field(mean[0], std[0], Y[0].reshape(3, 4), labels=("y", "x"), title="a run")
    assert [each.get_title() for each in axes] == ["truth", "mean", "standard deviation", "error (mean − truth)"]
    assert all(each.get_xlabel() == "x" and each.get_ylabel() == "y" for each in axes)
    np.testing.assert_allclose(axes[3].get_images()[0].get_array(), mean[0] - Y[0].reshape(3, 4))
    low, high = axes[3].get_images()[0].get_clim()
    assert low == -high
    assert axes[0].figure.get_suptitle() == "a run"
    assert len(plot_field(mean[0])) == 1


def test_curves_of_a_field_with_a_band():
    axes = plot_field(torch.zeros(5), torch.ones(5), torch.ones(5))
    assert len(axes) == 2
    band = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(-1.96)
    assert band.max() == pytest.approx(1.96)
    assert axes[0].get_xlabel() == "mode 1"


def test_names_and_coordinates_of_an_xarray_are_used():
    field = xr.DataArray(np.ones((3, 4)), dims=("depth", "time"), coords={"depth": [0.0, 10.0, 20.0]})
    (axes,) = plot_field(field)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("depth", "time")
    assert axes.get_ylim() == (-5.0, 25.0)
    assert axes.get_xlim() == (-0.5, 3.5)


def test_the_correlation_at_an_input(fitted):
    axes = plot_correlation(fitted, X[0])
    picture = axes.get_images()[0].get_array()
    assert picture.shape == (12, 12)
    np.testing.assert_allclose(np.diag(picture), 1.0)
    assert "x = (0.637, 0.27)" in axes.get_title()
    assert plot_correlation(fitted, X[0], outputs=(0, [1, 2])).get_images()[0].get_array().shape == (2, 2)


def test_what_is_no_field_is_refused():
    with pytest.raises(ValueError, match="one mode or two"):
        plot_field(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=r"truth must have the shape of mean, \(3,\); got \(4,\)"):
        plot_field(np.ones(3), truth=np.ones(4))
