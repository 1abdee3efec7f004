"""What people met on their first day: arrays as they come, units, labels, masks, and how large a fit may be."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from quick import small

from pyro_gprn import (
    GPRN,
    CollapsedGPRN,
    CollapsedGuide,
    GPRNRegressor,
    KroneckerGuide,
    fit_collapsed,
    posterior_predictive,
    to_arviz,
)
from pyro_gprn.collapsed import bound as bound_module
from pyro_gprn.collapsed import trainee as trainee_module
from pyro_gprn.collapsed import training as training_module
from pyro_gprn.collapsed.bound import Factors, collapsed_bound, evaluate_bound
from pyro_gprn.diagnostics.arviz_versions import import_arviz

import_arviz()  # before the tests have a cache of their own, which it would ask for

X = np.random.default_rng(0).uniform(size=(12, 2))
PHASES = np.random.default_rng(1).permutation(np.linspace(0, 6, 150))  # neighbours have nothing to do with each other
TABLE = np.sin(3 * X[:, :1] + PHASES) + X[:, 1:]
Y = TABLE[:, :6]
X_NEW = X[:4] + 0.05


pytestmark = pytest.mark.usefixtures("quick")


def make(**settings):
    return small(**{"n_latents": 1, "steps": 3} | settings)


@pytest.fixture(scope="module")
def reference():
    return make().fit(X, Y).predict(X_NEW, return_std=True)


def refuse_to_train(step, bound):
    pytest.fail("training began")


# Silently wrong


def test_what_is_masked_is_missing_wherever_outputs_are_taken():
    masked = Y > 1.5
    filled = np.ma.masked_array(np.where(masked, 9.97e36, Y), masked)  # as netCDF4 gives it
    holes = np.where(masked, np.nan, Y)
    ours, theirs = make().fit(X, filled), make().fit(X, holes)
    assert np.abs(ours.predict(X_NEW)).max() < 10
    np.testing.assert_array_equal(ours.predict(X_NEW), theirs.predict(X_NEW))
    assert ours.score(X, filled) == theirs.score(X, holes)
    np.testing.assert_array_equal(ours.log_predictive_density(X, filled), theirs.log_predictive_density(X, holes))
    assert np.isnan(ours.log_predictive_density(X, filled)[masked]).all()
    with pytest.raises(ValueError, match="every input must be known, but X is masked in 1 of 12 rows"):
        make().fit(np.ma.masked_values(X, X[3, 1]), Y)


def labelled(library, array, labels):
    if library == "pandas":
        return pd.DataFrame(array, index=labels, columns=[f"c{i}" for i in range(array.shape[1])])
    return xr.DataArray(array, dims=("run", "place"), coords={"run": labels})


RUNS = [f"run {i}" for i in range(12)]


@pytest.mark.parametrize("of_X", ["pandas", "xarray"])
@pytest.mark.parametrize("of_Y", ["pandas", "xarray"])
def test_rows_whose_labels_disagree_are_refused_wherever_inputs_meet_outputs(of_X, of_Y):
    inputs, outputs = labelled(of_X, X, RUNS), labelled(of_Y, Y, RUNS)
    reversed_outputs = labelled(of_Y, Y[::-1], RUNS[::-1])
    others = labelled(of_Y, Y, [f"other {i}" for i in range(12)])
    for wrong in (reversed_outputs, others):
        with pytest.raises(ValueError, match="X and Y label their rows differently"):
            make().fit(inputs, wrong, callback=refuse_to_train)
    r = make().fit(inputs, outputs)
    np.testing.assert_allclose(np.asarray(r.predict(inputs)), make().fit(X, Y).predict(X))
    for method in (r.score, r.log_predictive_density):
        with pytest.raises(ValueError, match="X and Y label their rows differently"):
            method(inputs, reversed_outputs)


UNITS = {
    "random": 10.0 ** np.random.default_rng(2).uniform(-3, 3, 101),
    "log-spaced": np.logspace(-4, 4, 101),
    "two kinds": np.where(np.arange(101) % 2, 1.0, 1e4),
}


@pytest.mark.parametrize("units", UNITS)
def test_columns_in_different_units_are_predicted_as_in_one_unit(units):
    scale = UNITS[units]
    plain = make(standardize="outputs").fit(X, TABLE[:, :101]).predict(X_NEW, return_std=True)
    in_units = make().fit(X, TABLE[:, :101] * scale).predict(X_NEW, return_std=True)
    for ours, theirs in zip(in_units, plain, strict=True):
        np.testing.assert_allclose(ours / scale, theirs, rtol=1e-6, atol=1e-6)


def test_named_columns_are_a_table_however_many_there_are():
    names = [f"gas {i}" for i in range(150)]
    scale = np.linspace(1, 30, 150)  # which neither rule for arrays without names would notice
    frame = make().fit(X, pd.DataFrame(TABLE * scale, columns=names)).predict(X_NEW, return_std=True)
    plain = make(standardize="outputs").fit(X, TABLE).predict(X_NEW, return_std=True)
    for ours, theirs in zip(frame, plain, strict=True):
        assert list(ours.columns) == names
        np.testing.assert_allclose(ours.to_numpy() / scale, theirs, rtol=1e-6, atol=1e-6)


def test_a_smooth_field_of_flat_outputs_stays_a_field():
    places = np.linspace(0, 1, 200)
    field = np.exp(-0.5 * ((places - 0.3 - 0.4 * X[:, :1]) / 0.1) ** 2)  # next to nothing happens at its ends
    guessed, told = make().fit(X, field), make(standardize="field").fit(X, field)
    np.testing.assert_array_equal(guessed.predict(X_NEW), told.predict(X_NEW))
    assert guessed.fitted_.scaling.y_scale.shape == ()


def test_views_that_go_backwards_are_taken_for_inputs_and_outputs(reference):
    backwards = X[::-1][:, ::-1].copy()[::-1, ::-1]
    assert backwards.strides[0] < 0
    outputs = Y[::-1].copy()[::-1]
    r = make().fit(backwards, outputs)
    np.testing.assert_array_equal(r.predict(X_NEW[::-1].copy()[::-1]), reference[0])
    assert r.sample(X_NEW[::-1], 2).shape == (2, 4, 6)


def test_finite_numbers_near_the_end_of_float32_are_fitted(reference):
    r = make().fit(X, (1e38 * Y).astype(np.float32))
    for ours, theirs in zip(r.predict(X_NEW, return_std=True), reference, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours / np.float32(1e38), theirs, rtol=1e-2, atol=1e-3)
    assert np.isfinite(r.log_predictive_density(X, (1e38 * Y).astype(np.float32))).all()
    assert np.isfinite(r.score(X, (1e38 * Y).astype(np.float32)))
    with pytest.raises(ValueError, match="contains infinity"):
        make().fit(X, np.where(Y > 1.5, np.inf, Y).astype(np.float32))


# Large fits


def test_a_fit_of_many_rows_says_what_it_takes_before_it_begins(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().fit(X, Y)  # of twelve rows there is nothing to say
    monkeypatch.setattr(training_module, "MANY_ROWS", 12)
    events = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: events.append(str(message)))
        make().fit(X, Y, callback=lambda step, bound: events.append(step))
    assert events[1:] == [0, 1, 2]
    for word in ("N = 12 rows", "minutes", "GB", "Ctrl-C", "fewer rows"):
        assert word in events[0]


def test_the_bound_is_evaluated_a_few_draws_at_a_time(monkeypatch):
    model = CollapsedGPRN(torch.from_numpy(X), 6, 2)
    guide = CollapsedGuide(model)
    q = Factors(guide.v_loc, guide.v_scale_row, guide.v_scale_col)
    known, covariances = model.statistics(torch.from_numpy(Y)), model.covariances()
    white = torch.randn(16, 12, 2, dtype=torch.float64)
    at_once, together = [], bound_module.output_covariance
    monkeypatch.setattr(
        bound_module, "output_covariance", lambda F, *rest: [at_once.append(len(F)), together(F, *rest)][1]
    )
    whole = collapsed_bound(model, q, covariances, white, known)
    monkeypatch.setattr(bound_module, "MOST_NUMBERS", 3 * 12**2)
    in_parts = evaluate_bound(model, q, covariances, white, known)
    assert at_once == [16, 3, 3, 3, 3, 3, 1]
    torch.testing.assert_close(in_parts, whole.detach())


def test_the_bound_of_many_rows_is_evaluated_by_fewer_draws(monkeypatch):
    draws, evaluate = [], trainee_module.evaluate_bound

    def note(model, q, covariances, white, known):
        draws.append(len(white))
        return evaluate(model, q, covariances, white, known)

    monkeypatch.setattr(trainee_module, "evaluate_bound", note)
    for few in (500, 6, 1):  # up to so many rows there are as many draws as can be
        monkeypatch.setattr(trainee_module, "DRAWS_UP_TO", few)
        fit_collapsed(CollapsedGPRN(torch.from_numpy(X), 6, 1), torch.from_numpy(Y), steps=1, seed=0, progress=False)
    most, fewer, least = trainee_module.DRAWS, trainee_module.DRAWS // 4, trainee_module.LEAST_DRAWS
    assert set(draws) == {most, fewer, least}


# xarray, masks of land, selections


def ocean(n_sea):
    """Temperatures on a grid of 2 × 3 points, of which the first ``n_sea`` are not land."""
    field = Y.reshape(12, 2, 3).copy()
    field.reshape(12, 6)[:, n_sea:] = np.nan
    field[2, 0, 0] = np.nan  # and one observation is missing
    coordinates = {
        "run": RUNS,
        "lat": ("y", [10.0, 20.0], {"units": "degrees_north"}),
        "area": (("y", "x"), np.arange(6.0).reshape(2, 3)),
        "depth": 5.0,
    }
    return xr.DataArray(field, dims=("run", "y", "x"), coords=coordinates, name="sst", attrs={"units": "K"})


@pytest.fixture(
    scope="module",
    params=[(4, "collapsed"), (1, "collapsed"), (4, "kronecker"), (4, "mean-field"), (4, "mixture")],
    ids=str,
)
def sea(request):
    n_sea, inference = request.param
    return n_sea, ocean(n_sea), make(inference=inference).fit(X, ocean(n_sea))


def test_land_comes_back_as_nan_with_all_that_an_xarray_says(sea, tmp_path):
    n_sea, given, r = sea
    r.save(tmp_path / "model")
    for estimator in (r, GPRNRegressor.load(tmp_path / "model")):
        mean, std = estimator.predict(X_NEW, return_std=True)
        draws = estimator.sample(X_NEW, 2)
        for field, name in ((mean, "sst"), (std, "sst_std"), (draws, "sst")):
            assert (field.name, field.attrs) == (name, {"units": "K"})
            for coordinate in ("lat", "area", "depth"):
                xr.testing.assert_identical(field[coordinate].variable, given[coordinate].variable)
            flat = field.values.reshape(-1, 6)
            assert np.isfinite(flat[:, :n_sea]).all()
            assert np.isnan(flat[:, n_sea:]).all()
        np.testing.assert_array_equal(mean, r.predict(X_NEW))


def test_land_is_left_out_of_scores_densities_and_correlations(sea):
    n_sea, given, r = sea
    values = given.values.reshape(12, 6)[:, :n_sea]
    alone = make(inference=r.inference, standardize="field").fit(X, values)  # the sea alone: a vector
    assert r.score(X, given) == pytest.approx(alone.score(X, values))
    density = r.log_predictive_density(X, given)
    assert density.name == "sst_log_density"
    np.testing.assert_allclose(
        density.values.reshape(12, 6)[:, :n_sea], alone.log_predictive_density(X, values), rtol=1e-6, atol=1e-6
    )
    assert np.isnan(density.values.reshape(12, 6)[:, n_sea:]).all()
    if r.inference == "collapsed":
        correlation = r.output_correlation(X_NEW, [0, 5, n_sea - 1])
        assert np.isnan(correlation[:, 1]).all()
        assert np.isnan(correlation[:, :, 1]).all()
        np.testing.assert_allclose(correlation[:, [0, 2], [0, 2]], 1.0)
        everything = r.output_correlation(X_NEW)
        assert np.isnan(everything).sum() == 4 * (36 - n_sea**2)


def test_land_is_left_out_of_what_arviz_sees(sea):
    n_sea, _, r = sea
    if r.inference == "collapsed":
        data = to_arviz(r, draws=2)
        assert data["posterior_predictive"]["y"].shape[-1] == n_sea


FIELD = torch.from_numpy(Y.reshape(12, 2, 3))


@pytest.fixture(scope="module", params=["collapsed", "full", "diagonal", "isotropic"])
def of_two_modes(request):
    torch.manual_seed(0)
    if request.param == "collapsed":
        model = CollapsedGPRN(torch.from_numpy(X), (2, 3), 2)
        return model, CollapsedGuide(model)
    model = GPRN(torch.from_numpy(X), (2, 3), 2)
    guide = KroneckerGuide(model, output_factors=request.param)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model, guide


def by_mode(flat):
    """The same outputs, one at a time, each by its place in the two modes."""
    places = range(6)[flat] if isinstance(flat, slice) else [flat] if isinstance(flat, int) else flat
    return [divmod(place % 6, 3) for place in places]


@pytest.mark.parametrize("flat", [4, -1, slice(2, 5), slice(None, None, 4), [5, 0, 3], [2]], ids=str)
def test_flat_selections_of_a_field_are_those_mode_by_mode(of_two_modes, flat):
    model, guide = of_two_modes
    y = FIELD[:3] + 0.1

    def predictive():
        generator = torch.Generator().manual_seed(0)
        return posterior_predictive(model, guide, torch.from_numpy(X_NEW[:3]), FIELD, generator=generator)

    shape = (3,) if isinstance(flat, int) else (3, len(by_mode(flat)))
    picked = y.flatten(1)[:, flat]
    found = {
        "mean": predictive().mean(flat),
        "variance": predictive().variance(flat),
        "log_density": predictive().log_density(picked, flat),
    }
    expected = {
        "mean": [predictive().mean(place) for place in by_mode(flat)],
        "variance": [predictive().variance(place) for place in by_mode(flat)],
        "log_density": [predictive().log_density(y[(slice(None), *place)], place) for place in by_mode(flat)],
    }
    for name in found:
        assert found[name].shape == shape
        torch.testing.assert_close(found[name], torch.stack(expected[name], dim=1).reshape(shape))
    draws = predictive().sample(3000, flat)
    assert draws.shape == (3000, *shape)
    torch.testing.assert_close(draws.var(0), found["variance"], rtol=0.2, atol=0)


def test_a_flat_selection_of_a_field_goes_to_arviz():
    r = make().fit(X, FIELD.numpy())
    data = to_arviz(r, X=X_NEW, Y=FIELD.numpy()[:4], draws=3, outputs=[4, 0], weights=True, correlation_at=X_NEW[:1])
    assert data["posterior_predictive"]["y"].dims == ("chain", "draw", "run", "output")
    assert list(data["posterior_predictive"]["y"].coords["output"].values) == ["1, 1", "0, 0"]
    np.testing.assert_allclose(data["observed_data"]["y"], Y[:, [4, 0]])
    np.testing.assert_allclose(data["predictions_constant_data"]["y"], Y[:4, [4, 0]])
    assert data["predictions"]["y"].shape == (1, 3, 4, 2)
    assert data["posterior"]["w"].shape == (1, 3, 12, 1, 2)
    assert data["posterior"]["correlation"].shape == (1, 3, 1, 2, 2)
    one = to_arviz(r, draws=3, outputs=4)
    np.testing.assert_allclose(one["observed_data"]["y"], Y[:, 4])
