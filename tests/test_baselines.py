"""The other methods: each equals the dense algebra or the library that it stands for, behind one interface."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from pyro_gprn.baselines import HOGP, LMC, IndependentGP, ReducedGP, TrainingMean

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(16, 2))
X_NEW = RNG.uniform(size=(3, 2))
SHAPES = [(), (5,), (4, 3), (2, 3, 2)]


def outputs(shape, X=X):
    loadings = np.random.default_rng(1).normal(size=(2, *shape))
    return np.tensordot(np.sin(4 * X), loadings, 1) + 2.0


pytestmark = pytest.mark.usefixtures("quick")


METHODS = {
    "independent": IndependentGP("rbf"),
    "own kernels": IndependentGP("matern52", own_kernels=True),
    "output scales": IndependentGP("rbf", output_scales=True),
    "lmc": LMC(2, kernel="rbf", steps=4, effective_outputs=None, progress=False, seed=0),
    "pca": ReducedGP("pca", kernel="rbf", steps=10),
    "kpca": ReducedGP("kpca", 3, kernel="rbf", steps=10, seed=0),
    "isomap": ReducedGP("isomap", 2, kernel="rbf", steps=10, seed=0),
    "hogp": HOGP(steps=5, seed=0),
    "mean": TrainingMean(),
}
WITH_HOLES = ("independent", "own kernels", "output scales", "lmc", "mean")
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@each_method
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_method_fits_predicts_samples_and_scores_outputs_of_any_number_of_modes(method, shape):
    Y, truth = outputs(shape), outputs(shape, X_NEW)
    fitted = clone(method).fit(X, Y)
    mean, std = fitted.predict(X_NEW, return_std=True)
    assert mean.shape == std.shape == (3, *shape)
    assert (std > 0).all()
    lower, median, upper = fitted.predict(X_NEW, quantiles=(0.1, 0.5, 0.9))
    assert (lower < median).all()
    assert (median < upper).all()
    draws = fitted.sample(X_NEW, 400, seed=0)
    assert draws.shape == (400, 3, *shape)
    assert (np.abs(draws.mean(0) - mean) < 6 * std / 20).all()
    np.testing.assert_array_equal(draws, fitted.sample(X_NEW, 400, seed=0))
    density = fitted.log_predictive_density(X_NEW, truth)
    assert density.shape == (3, *shape)
    assert np.isfinite(density).all()
    assert np.isfinite(fitted.score(X_NEW, truth))
    assert fitted.output_shape_ == (shape or (1,))


@each_method
def test_a_density_integrates_to_one(method):
    fitted = clone(method).fit(X, outputs((5,)))
    mean, std = fitted.predict(X_NEW[:1], return_std=True)
    steps = np.linspace(-15, 15, 151)
    density = np.exp(fitted.log_predictive_density(X_NEW[[0] * 151], mean + steps[:, None] * std)) * std
    np.testing.assert_allclose(np.trapezoid(density, steps, axis=0), 1.0, atol=0.02)


@each_method
def test_predictions_follow_the_units_of_the_outputs(method):
    Y, units = outputs((5,)), np.array([1.0, 1e3, 1e-3, 1.0, 10.0])
    mean, std = clone(method).fit(X, Y).predict(X_NEW, return_std=True)
    in_units, std_in_units = clone(method).fit(X, Y * units - 7.0).predict(X_NEW, return_std=True)
    np.testing.assert_allclose((in_units + 7.0) / units, mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(std_in_units / units, std, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", WITH_HOLES)
def test_missing_outputs_are_taken_and_outputs_never_observed_come_back_as_nan(name):
    Y = outputs((5,))
    Y[3, 2] = np.nan
    Y[:, 4] = np.nan
    fitted = clone(METHODS[name]).fit(X, Y)
    mean, std = fitted.predict(X_NEW, return_std=True)
    assert np.isnan(mean[:, 4]).all()
    assert np.isnan(std[:, 4]).all()
    assert np.isfinite(mean[:, :4]).all()
    density = fitted.log_predictive_density(X_NEW, outputs((5,), X_NEW))
    assert np.isfinite(density[:, :4]).all()
    assert np.isnan(density[:, 4]).all()


@each_method
def test_predictions_come_in_the_kind_of_the_outputs(method):
    import pandas as pd
    import xarray as xr

    table = pd.DataFrame(outputs((2,)), columns=["Cd", "Zn"])
    mean, std = clone(method).fit(X, table).predict(X_NEW, return_std=True)
    assert list(mean.columns) == list(std.columns) == ["Cd", "Zn"]
    field = xr.DataArray(outputs((2, 3)).astype(np.float32), dims=["run", "lat", "lon"], name="t", attrs={"units": "K"})
    fitted = clone(method).fit(X, field)
    mean, std = fitted.predict(X_NEW, return_std=True)
    assert mean.dims == ("run", "lat", "lon")
    assert mean.dtype == np.float32
    assert std.name == "t_std"
    assert fitted.sample(X_NEW, 2).dims == ("draw", "run", "lat", "lon")
    tensor = clone(method).fit(torch.from_numpy(X), torch.from_numpy(outputs((3,)))).predict(torch.from_numpy(X_NEW))
    assert isinstance(tensor, torch.Tensor)


@each_method
def test_a_fitted_method_can_be_pickled(method):
    fitted = clone(method).fit(X, outputs((5,)))
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(fitted.predict(X_NEW), again.predict(X_NEW))


@each_method
def test_a_method_stands_in_a_pipeline_and_in_cross_validation(method):
    scores = cross_val_score(make_pipeline(MinMaxScaler(), clone(method)), X, outputs((3,)), cv=2)
    assert np.isfinite(scores).all()


@each_method
def test_a_wrong_setting_is_told_before_the_fit(method):
    with pytest.raises(ValueError, match="standardize must be True, False, 'field' or 'outputs'; got 'all'"):
        clone(method).set_params(standardize="all").fit(X, outputs((3,)))
    with pytest.raises(ValueError, match="as many rows"):
        clone(method).fit(X[:4], outputs((3,)))


@pytest.mark.parametrize(
    ("estimator", "check"),
    [pair for name in ("mean", "independent") for pair in estimator_checks_generator(METHODS[name])],
    ids=lambda value: getattr(value, "func", value),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_check_estimator(estimator, check):
    check(estimator)


def dense_gp(kernel, noise, X, Y, X_new):
    """Mean ``(N*, D)`` and variance with noise ``(N*,)`` by dense algebra."""
    K = kernel(X).double() + noise * torch.eye(len(X), dtype=torch.float64)
    cross = kernel(X_new, X)
    mean = cross @ torch.linalg.solve(K, Y)
    return mean, kernel(X_new, diag=True) + noise - (cross * torch.linalg.solve(K, cross.mT).mT).sum(1)


@pytest.mark.parametrize("own", [False, True], ids=["shared kernel", "own kernels"])
def test_independent_gps_are_the_dense_ones(own):
    Y = outputs((3,))
    gps = IndependentGP("rbf", own_kernels=own, standardize=False).fit(X, Y)
    model = gps.fitted_.model
    mean, std = gps.predict(X_NEW, return_std=True)
    inputs, new = torch.from_numpy(X), torch.from_numpy(X_NEW)
    with torch.no_grad():
        for d in range(3):

            def kernel(A, B=None, diag=False, d=d):
                K = model.kernel_w(A, B, diag=diag)
                return K[d] if own else K

            noise = (model.noise_y[d] if own else model.noise_y).square()
            expected, variance = dense_gp(kernel, noise, inputs, torch.from_numpy(Y[:, d : d + 1]), new)
            np.testing.assert_allclose(mean[:, d], expected[:, 0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(std[:, d], variance.sqrt(), rtol=1e-3, atol=1e-5)


def test_the_kernel_of_independent_gps_may_be_chosen_by_their_evidence_or_be_a_pyro_kernel():
    import pyro.contrib.gp.kernels as kernels

    Y = outputs((3,))
    chosen = IndependentGP().fit(X, Y).fitted_
    assert {"rbf", "matern52"} <= chosen.kernel_evidence.keys()
    given = kernels.Matern32(2)
    before = given.lengthscale.item()
    fitted = IndependentGP(given).fit(X, Y).fitted_
    assert isinstance(fitted.model.kernel_w, kernels.Matern32)
    assert given.lengthscale.item() == before  # a fit changes a copy


def test_weights_of_the_linear_model_are_the_same_everywhere_and_its_outputs_are_worth_fewer():
    Y = np.repeat(outputs((2,)), 50, axis=1)
    fitted = LMC(2, kernel="rbf", steps=4, progress=False, seed=0).fit(X, Y).fitted_
    with torch.no_grad():
        weights = fitted.model.kernel_w(fitted.model.X)
    torch.testing.assert_close(weights, weights[0, 0].expand_as(weights))
    assert fitted.model.effective_outputs < 50


def test_the_training_mean_is_that_of_the_observed_numbers():
    Y = outputs((4,))
    Y[:3, 1] = np.nan
    Y[1:, 2] = np.nan
    mean, std = TrainingMean(standardize=False).fit(X, Y).predict(X_NEW, return_std=True)
    np.testing.assert_allclose(mean[1], np.nanmean(Y, 0))
    n = len(X) - 3
    np.testing.assert_allclose(std[0, 1], np.nanstd(Y[:, 1], ddof=1) * np.sqrt(1 + 1 / n))
    assert std[0, 2] > 0.1  # observed once: as uncertain as the others are
