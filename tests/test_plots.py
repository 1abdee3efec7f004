import matplotlib
import matplotlib.dates
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from matplotlib import pyplot

from pyro_gprn import GPRNRegressor, plot_correlation, plot_field, plot_fit

pytestmark = pytest.mark.usefixtures("quick")

X = np.random.default_rng(0).uniform(size=(15, 2))
Y = np.sin(3 * X[:, :1] + np.linspace(0, 3, 12)) + X[:, 1:]


@pytest.fixture(autouse=True)
def _no_windows():
    matplotlib.use("Agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def fitted():
    return GPRNRegressor(2, steps=30, seed=0, progress=False, selection=False).fit(X, Y.reshape(15, 3, 4))


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


def drawn(axes):
    """The numbers of a picture, from the lowest row upwards, and the borders of its cells along y and x."""
    (picture,) = axes.get_images() or axes.collections
    if axes.get_images():
        values, (left, right, low, high) = picture.get_array(), picture.get_extent()
        borders = np.linspace(low, high, values.shape[0] + 1), np.linspace(left, right, values.shape[1] + 1)
        assert picture.origin == "lower"
    else:
        values, corners = picture.get_array(), picture.get_coordinates()
        borders = corners[:, 0, 1], corners[0, :, 0]
    assert axes.get_ylim() == (borders[0][0], borders[0][-1])
    assert axes.get_xlim() == (borders[1][0], borders[1][-1])
    return values, *borders


def value_at(axes, y, x):
    """The number that stands at a place of a picture, by the axes' own labels."""
    values, rows, columns = drawn(axes)
    return values[np.searchsorted(rows, y) - 1, np.searchsorted(columns, x) - 1]


@pytest.mark.parametrize("latitudes", [[60.0, 50.0, 40.0], [40.0, 50.0, 60.0], [60.0, 55.0, 40.0], [50.0, 60.0, 40.0]])
@pytest.mark.parametrize("longitudes", [[0.0, 10.0, 20.0, 30.0], [0.0, 10.0, -20.0, -10.0], [30.0, 20.0, 10.0, 0.0]])
def test_north_is_up_and_every_number_stands_at_its_place(latitudes, longitudes):
    field = xr.DataArray(
        np.arange(12.0).reshape(3, 4), dims=("lat", "lon"), coords={"lat": latitudes, "lon": longitudes}
    )
    for axes in plot_field(field, field, field):
        assert axes.get_ylim()[0] < axes.get_ylim()[1]
        assert axes.get_xlim()[0] < axes.get_xlim()[1]
        if "error" not in axes.get_title():
            for place in field.stack(place=("lat", "lon")):
                assert value_at(axes, place.lat, place.lon) == place


def test_points_that_are_not_evenly_spaced_get_cells_half_way_to_the_next():
    field = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("y", "depth"), coords={"depth": [100.0, 10.0, 0.0]})
    (axes,) = plot_field(field)
    values, rows, columns = drawn(axes)
    np.testing.assert_allclose(columns, [-5, 5, 55, 145])
    np.testing.assert_allclose(rows, [-0.5, 0.5, 1.5])
    np.testing.assert_array_equal(values, field[:, ::-1])


def test_dates_names_and_time_spans_are_coordinates_too():
    field = xr.DataArray(np.ones((3, 2)), dims=("site", "day"), coords={"site": ["a", "b", "c"]})
    (axes,) = plot_field(field.assign_coords(day=np.array(["2026-01-01", "2026-01-02"], dtype="M8[ns]")))
    axes.figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert matplotlib.dates.num2date(axes.get_xlim()[0]).isoformat() == "2025-12-31T12:00:00+00:00"
    (axes,) = plot_field(field.assign_coords(day=np.array([12, 36], dtype="m8[h]")))
    assert axes.get_xlabel() == "day [days]"
    np.testing.assert_allclose(axes.get_xlim(), (0.0, 2.0))


def test_values_and_axes_carry_their_units():
    field = xr.DataArray(
        np.ones((3, 2)),
        dims=("lat", "x"),
        coords={"lat": ("lat", [0.0, 1.0, 2.0], {"units": "degrees_north"})},
        name="tas",
        attrs={"units": "K"},
    )
    panels = plot_field(field, field, field)
    bars = [axes.get_ylabel() for axes in panels[0].figure.axes if axes not in panels]
    assert bars == ["tas [K]"] * 4
    assert all((each.get_ylabel(), each.get_xlabel()) == ("lat [degrees_north]", "x") for each in panels)
    (curve,) = plot_field(field.assign_attrs(long_name="air temperature")[:, 0])
    assert (curve.get_xlabel(), curve.get_ylabel()) == ("lat [degrees_north]", "air temperature [K]")
    (plain,) = plot_field(field.values, labels=("a", "b"))
    assert plain.get_ylabel() == "a"
    with pytest.raises(ValueError, match=r"labels must name the 2 modes .* got \['a'\]"):
        plot_field(field, labels=["a"])


def test_a_truth_that_is_stored_otherwise_is_matched_by_its_coordinates():
    mean = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("y", "x"), coords={"y": [1.0, 0.0], "x": ["a", "b", "c"]})
    panels = plot_field(mean, truth=mean.sortby("y").transpose("x", "y"))
    np.testing.assert_array_equal(drawn(panels[-1])[0], np.zeros((2, 3)))
    with pytest.raises(ValueError, match="truth and mean have different coordinates along 'y'"):
        plot_field(mean, truth=mean.assign_coords(y=[1.0, 0.5]))
    curves = plot_field(mean[:, 0], truth=mean[:, 0].sortby("y"))
    assert all(np.diff(line.get_xdata()).min() > 0 for each in curves for line in each.get_lines())


def test_masked_numbers_are_left_blank():
    (axes,) = plot_field(np.ma.masked_greater(np.arange(6.0).reshape(2, 3), 4.5))
    assert np.ma.getmaskarray(drawn(axes)[0]).tolist() == [[False] * 3, [False, False, True]]


def test_the_correlation_of_outputs_in_one_mode_is_a_matrix(fitted):
    flat = GPRNRegressor(2, steps=5, seed=0, progress=False, selection=False).fit(X, Y)
    axes = plot_correlation(flat, X[0])
    picture = axes.get_images()[0].get_array()
    assert picture.shape == (12, 12)
    np.testing.assert_allclose(np.diag(picture), 1.0)
    assert "x = (0.637, 0.27)" in axes.get_title()
    assert plot_correlation(fitted, X[0], outputs=(0, [1, 2])).get_images()[0].get_array().shape == (2, 2)
    with pytest.raises(ValueError, match="a reference is for fields of two modes"):
        plot_correlation(flat, X[0], reference=3)


def test_the_correlation_of_a_field_is_a_picture_of_it(fitted):
    full = fitted.output_correlation(X[:1])[0].reshape(3, 4, 3, 4)
    for reference, place in ((None, (1, 2)), ((2, 0), (2, 0)), (7, (1, 3))):
        axes = plot_correlation(fitted, X[0], reference=reference)
        np.testing.assert_allclose(drawn(axes)[0], full[place])
        (mark,) = axes.get_lines()
        assert (mark.get_ydata()[0], mark.get_xdata()[0]) == place
        assert axes.get_title() == f"correlation with {place}\nat x = (0.637, 0.27)"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("mode 1", "mode 2")
    part = plot_correlation(fitted, X[0], outputs=([0, 2], slice(2, 4)), reference=(1, 2))
    assert drawn(part)[0].shape == (3, 2)  # the reference is among them
    with pytest.raises(ValueError, match=r"a place in the outputs' shape \(3, 4\), such as \(1, 2\), .* got \(3, 0\)"):
        plot_correlation(fitted, X[0], reference=(3, 0))


def named(outputs, **settings):
    return GPRNRegressor(2, steps=5, seed=0, progress=False, selection=False, **settings).fit(X, outputs)


def test_the_correlation_of_a_field_has_its_names_and_coordinates():
    outputs = xr.DataArray(Y.reshape(15, 3, 4), dims=("run", "lat", "lon"), coords={"lat": [60.0, 50.0, 30.0]})
    r = named(outputs)
    axes = plot_correlation(r, X[0], reference=(0, 1))
    full = r.output_correlation(X[:1])[0].reshape(3, 4, 3, 4)[0, 1]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("lat", "lon")
    assert value_at(axes, 60.0, 1.0) == pytest.approx(1.0)
    assert value_at(axes, 30.0, 2.0) == full[2, 2]
    assert axes.get_title().startswith("correlation with (60, 1)\n")
    assert axes.get_lines()[0].get_ydata()[0] == 60.0


def test_a_large_field_is_thinned_and_three_modes_are_cut_at_the_reference():
    wide = np.sin(3 * X[:, :1] + np.linspace(0, 3, 2 * 50 * 60)).reshape(15, 2, 50, 60)
    r = named(wide)
    axes = plot_correlation(r, X[0], reference=(0, 13, 7))
    values, rows, columns = drawn(axes)
    assert values.size <= 21 * 21
    assert (rows[-1] > 49, columns[-1] > 59) == (True, True)
    assert value_at(axes, 13, 7) == pytest.approx(1.0)
    assert axes.get_title().startswith("correlation with (0, 13, 7)")
    assert plot_correlation(r, X[0]).get_title().startswith("correlation with (1, ")
    with pytest.raises(ValueError, match="at most two modes to draw; got 3"):
        plot_correlation(r, X[0], outputs=(slice(None), slice(0, 3), slice(0, 3)))
    with pytest.raises(ValueError, match=r"leaves out the reference \(0, 13, 7\): choose 0 of mode 1"):
        plot_correlation(r, X[0], outputs=(1, slice(0, 3), slice(0, 3)), reference=(0, 13, 7))


class WithLand:
    """Stands for a regressor some of whose outputs were never observed."""

    output_shape_ = (3, 4)

    def output_correlation(self, x, outputs):
        land = np.array([[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], dtype=bool)[np.ix_(*outputs)].ravel()
        correlation = np.eye(len(land)) + 0.5
        correlation[land] = correlation[:, land] = np.nan
        return correlation[None]

    def predict(self, x):
        return np.ones((1, 3, 4))


def test_the_reference_is_never_one_without_observations():
    axes = plot_correlation(WithLand(), [0.0])
    assert axes.get_title().startswith(
        ("correlation with (0, 2)", "correlation with (1, 1)", "correlation with (1, 3)")
    )
    assert np.isnan(value_at(axes, 1, 2)) or np.ma.is_masked(value_at(axes, 1, 2))
    with pytest.raises(ValueError, match=r"the reference \(1, 2\) was never observed"):
        plot_correlation(WithLand(), [0.0], reference=(1, 2))


def test_the_correlation_of_a_regressor_that_knows_the_names_of_its_inputs():
    inputs = pd.DataFrame(X, columns=["speed", "angle"])
    r = GPRNRegressor(2, steps=5, seed=0, progress=False, selection=False).fit(inputs, Y.reshape(15, 3, 4))
    assert "x = (0.637, 0.27)" in plot_correlation(r, inputs.iloc[0]).get_title()


def test_what_is_no_field_is_refused():
    with pytest.raises(ValueError, match="one mode or two"):
        plot_field(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=r"truth must have the shape of mean, \(3,\); got \(4,\)"):
        plot_field(np.ones(3), truth=np.ones(4))
