"""Fits with inducing inputs: from arrays to predictions, files and diagnostics."""

import numpy as np
import pandas as pd
import pytest
import torch
from quick import quick_starts

from pyro_gprn import CollapsedGPRN, GPRNRegressor, diagnose, fit_collapsed, posterior_predictive, to_arviz
from pyro_gprn.collapsed import subset
from pyro_gprn.estimator import regressor
from pyro_gprn.outputs import compressed
from pyro_gprn.outputs.compressed import CompressedStatistics

N, D = 150, 4
X = np.linspace(0, 10, N)[:, None]


def series(noise=0.05, seed=0):
    """Several series over time that share what they are made of, with a long hole in two of them."""
    random = np.random.default_rng(seed)
    Y = np.sin(X + np.arange(D)) * np.cos(0.3 * X * np.arange(1, D + 1)) + noise * random.normal(size=(N, D))
    Y[30:50, 1] = np.nan
    Y[80:95, 3] = np.nan
    return Y


@pytest.fixture(autouse=True)
def few_rows_to_begin_with(monkeypatch):
    monkeypatch.setattr(subset, "N_ROWS", 40)


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch, quick_starts():
        patch.setattr(subset, "N_ROWS", 40)
        return make(steps=60).fit(X, series())


def make(**settings):
    usual = {"n_latents": 2, "inducing": 25, "steps": 20, "seed": 0, "progress": False, "selection": False}
    return GPRNRegressor(**usual | {"kernel_w": "rbf"} | settings)


def test_a_fit_fills_holes_and_predicts_between_rows(fitted):
    truth = np.sin(X + np.arange(D)) * np.cos(0.3 * X * np.arange(1, D + 1))
    assert fitted.model_.has_inducing
    assert fitted.score(X + 0.01, truth) > 0.95
    mean, std = fitted.predict(X, return_std=True)
    inside = np.abs(mean - truth) < 2 * std
    assert inside.mean() > 0.9
    lower, upper = fitted.predict(X[:9], quantiles=(0.05, 0.95))
    assert (lower < upper).all()
    assert fitted.output_correlation(X[:2]).shape == (2, D, D)


def test_a_fit_never_ends_below_the_start_that_the_exact_network_of_some_rows_gives():
    torch.manual_seed(0)
    model = CollapsedGPRN(torch.from_numpy(X), D, 2, inducing=15, effective_outputs="auto")
    with quick_starts():
        fit = fit_collapsed(model, torch.from_numpy(series()), steps=15, seed=0, progress=False)
    assert fit.bound >= fit.start
    assert fit.guide.posterior().event_shape == (15, 2)
    assert {start["name"] for start in fit.starts} >= {"independent", "functions"}
    more = fit_collapsed(model, torch.from_numpy(series()), guide=fit.guide, steps=5, seed=0, progress=False)
    assert more.start == pytest.approx(fit.bound, abs=0.02 * abs(fit.bound) + 1.0)


def test_a_file_gives_the_same_predictions_to_the_bit(fitted, tmp_path):
    fitted.save(tmp_path / "fit.gprn")
    loaded = GPRNRegressor.load(tmp_path / "fit.gprn")
    np.testing.assert_array_equal(loaded.predict(X[:20]), fitted.predict(X[:20]))
    np.testing.assert_array_equal(loaded.sample(X[:3], 2), fitted.sample(X[:3], 2))
    assert loaded.inducing == 25
    assert isinstance(loaded.fitted_.known, CompressedStatistics)


def test_predictions_do_not_depend_on_which_other_inputs_are_asked_for(fitted):
    np.testing.assert_allclose(fitted.predict(X[:30])[7], fitted.predict(X[7:8])[0], rtol=1e-10, atol=1e-12)


def test_a_fit_that_was_stopped_goes_on_from_its_checkpoint(tmp_path):
    class Stopped(Exception):
        pass

    def stop(step, bound):
        if step == 41:
            raise Stopped

    settings = {"checkpoint": tmp_path / "fit.checkpoint", "steps": 60}
    with quick_starts():
        with pytest.raises(Stopped):
            make(**settings).fit(X, series(), callback=stop)
        resumed, whole = make(**settings).fit(X, series()), make(steps=60).fit(X, series())
    assert resumed.elbo_ == whole.elbo_


def test_diagnostics_take_it(fitted):
    report = diagnose(fitted)
    assert {"bound", "coverage", "leave-one-out", "latents", "posterior"} <= set(report.findings)
    assert 0.8 < report.coverage <= 1.0
    data = to_arviz(fitted, draws=3)
    assert data["posterior_predictive"]["y"].shape[-2:] == (N, D)


def test_frames_come_back_as_frames():
    times = pd.date_range("2024-01-01", periods=N, freq="h")
    frame = pd.DataFrame(series(), index=times, columns=list("abcd"))
    with quick_starts():
        predicted = (
            make(inducing=8, steps=2)
            .fit(pd.DataFrame(X, index=times, columns=["t"]), frame)
            .predict(pd.DataFrame(X[:5], index=times[:5], columns=["t"]))
        )
    assert list(predicted.columns) == list("abcd")


def test_auto_takes_inducing_inputs_for_many_rows_only(monkeypatch):
    monkeypatch.setattr(regressor, "MOST_EXACT", 100)
    monkeypatch.setattr(regressor, "N_INDUCING", 7)
    with quick_starts():
        many = make(inducing="auto", steps=2).fit(X, series())
        few = make(inducing="auto", steps=2).fit(X[:60], series()[:60, :1])
        exact = make(inducing=None, steps=2).fit(X[:110], series()[:110, :1])
    assert many.model_.Z.shape == (7, 1)
    assert not few.model_.has_inducing
    assert not exact.model_.has_inducing
    assert GPRNRegressor(own_kernels=True)._n_inducing(10**4) is None
    assert GPRNRegressor(inference="kronecker")._n_inducing(10**4) is None


def test_auto_stays_exact_where_every_output_has_holes_of_its_own(monkeypatch):
    monkeypatch.setattr(regressor, "MOST_EXACT", 50)
    monkeypatch.setattr(compressed, "MOST_PATTERNS", 2)
    with quick_starts():
        assert not make(inducing="auto", steps=2).fit(X[:75], series()[20:95]).model_.has_inducing
    with pytest.raises(ValueError, match="at most 2; Y has 3 or more"):
        make(inducing=10).fit(X, series())


def test_what_is_to_be_chosen_is_chosen_on_some_of_the_rows():
    with quick_starts():
        r = make(kernel_w=None, selection=True, steps=4, inducing=8, starts=["independent", "functions"])
        r.fit(X, series())
    assert len(r.selection_) >= 2
    assert r.kernel_evidence_
    assert len(r.model_.X) == N


def test_many_outputs_are_compressed_and_streamed(monkeypatch, tmp_path):
    monkeypatch.setattr(compressed, "MOST_COLUMNS", 20)
    monkeypatch.setattr(compressed, "LEADING", 6)
    monkeypatch.setattr(compressed, "OVERSAMPLING", 4)
    field = np.sin(X + np.linspace(0, 6, 60)).astype(np.float32)
    stored = np.memmap(tmp_path / "field.npy", dtype=np.float32, shape=field.shape, mode="w+")
    stored[:] = field
    with quick_starts():
        r = make(steps=40).fit(X, stored)
    assert r.fitted_.known.columns.shape == (N, 6) or r.fitted_.known.columns.shape[1] < 6
    assert r.score(X + 0.01, np.sin(X + 0.01 + np.linspace(0, 6, 60))) > 0.99
    assert r.predict(X[:2]).dtype == np.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inducing": 0}, "at least 1; got 0"),
        ({"inducing": "many"}, "got 'many'"),
        ({"inducing": 5, "inference": "kronecker"}, "need inference='collapsed'"),
        ({"inducing": 5, "own_kernels": True}, "share a kernel"),
    ],
)
def test_wrong_settings_have_their_own_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings).fit(X[:10], series()[:10, :1])


def test_rows_are_not_left_out_one_by_one_of_draws(fitted):
    draws = {"v": torch.randn(3, 25, 2, dtype=torch.float64)}
    model = fitted.model_
    assert posterior_predictive(model, draws, model.X[:3], fitted.fitted_.known).mean().shape == (3, D)
    with pytest.raises(ValueError, match="not left out one by one"):
        diagnose((model, draws))
