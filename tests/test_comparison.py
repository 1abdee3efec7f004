"""Methods compared on a data set: the scores are those of the same predictions by hand, fold by fold."""

import importlib.util

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import pyro_gprn.experiments.cli as cli
from pyro_gprn import GPRNRegressor, compare
from pyro_gprn.baselines import LMC, IndependentGP, TrainingMean
from pyro_gprn.experiments import comparison, judgement
from pyro_gprn.experiments.files import read_data

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(20, 2))
Y = np.sin(4 * X[:, :1] + np.arange(3)) * [1.0, 10.0, 0.1] + 0.01 * RNG.normal(size=(20, 3))
SCORES = ["rmse", "mae", "nlpd", "crps", "coverage", "seconds"]


pytestmark = pytest.mark.usefixtures("quick")


def quietly(*arguments, **settings):
    return compare(*arguments, progress=False, **settings)


class Failing(TrainingMean):
    def fit(self, X, Y):
        raise ArithmeticError("no answer")


def test_scores_are_those_of_the_same_predictions_by_hand():
    splits = list(KFold(4, shuffle=True, random_state=3).split(X))
    found = quietly([IndependentGP("rbf"), TrainingMean()], X, Y, cv=4, seed=3)
    assert list(found.table.columns) == [*SCORES, "folds"]
    for fold, (training, test) in enumerate(splits):
        centre, scale = Y[training].mean(0), Y[training].std(0)
        for name, method in (("IndependentGP", IndependentGP("rbf")), ("TrainingMean", TrainingMean())):
            mean, std = method.fit(X[training], Y[training]).predict(X[test], return_std=True)
            z, error = (Y[test] - mean) / std, (Y[test] - mean) / scale
            scores = found.folds.loc[(name, fold)]
            truth = (Y[test] - centre) / scale
            assert scores.rmse == pytest.approx(np.sqrt((error**2).mean() / (truth**2).mean()), rel=1e-6)
            assert scores.mae == pytest.approx(np.abs(error).mean(), rel=1e-6)
            assert scores.nlpd == pytest.approx(-(norm.logpdf(z) - np.log(std / scale)).mean(), rel=1e-5)
            assert scores.coverage == pytest.approx((np.abs(z) < norm.ppf(0.975)).mean())
            crps = std / scale * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
            assert scores.crps == pytest.approx(crps.mean(), rel=0.1)
    assert found.table.rmse["TrainingMean"] == pytest.approx(1.0)
    assert (found.table.folds == 4).all()


def test_differences_are_paired_by_fold():
    found = quietly({"a": TrainingMean(), "b": IndependentGP("rbf")}, X, Y, cv=4)
    apart = found.folds.rmse["b"] - found.folds.rmse["a"]
    assert list(found.differences.index) == ["b"]
    assert found.differences.loc["b", ("rmse", "difference")] == pytest.approx(apart.mean())
    assert found.differences.loc["b", ("rmse", "standard_error")] == pytest.approx(apart.std(ddof=1) / 2)
    assert "±" in found.describe_differences()
    assert repr(found).splitlines()[0].split() == [*SCORES, "folds"]


def test_what_is_missing_or_constant_is_not_scored():
    holed = np.column_stack([Y, np.full(20, 7.0), np.full(20, np.nan)])
    holed[4, 1] = holed[9, 2] = np.nan
    found = quietly([TrainingMean(), IndependentGP("rbf")], X, holed, cv=3)
    assert np.isfinite(found.table.to_numpy(dtype=float)).all()
    filled = quietly([TrainingMean()], X, holed[:, :3], cv=3)
    assert found.table.mae["TrainingMean"] == pytest.approx(filled.table.mae["TrainingMean"])


def test_a_method_that_fails_is_recorded_and_does_not_stop_the_others():
    with pytest.warns(RuntimeWarning, match=r"Failing failed on fold \d: ArithmeticError: no answer"):
        found = quietly([TrainingMean(), Failing()], X, Y, cv=2)
    assert found.folds.error["Failing"].tolist() == ["ArithmeticError: no answer"] * 2
    assert found.table.folds.tolist() == [2, 0]
    assert np.isnan(found.table.rmse["Failing"])
    assert found.folds.error["TrainingMean"].isna().all()


def test_other_estimators_are_judged_by_what_they_can_tell():
    gaussian = make_pipeline(StandardScaler(), GaussianProcessRegressor(alpha=1e-3))
    found = quietly({"linear": LinearRegression(), "gp": gaussian}, X, Y, cv=2)
    assert found.table.loc["linear", ["rmse", "mae"]].notna().all()
    assert found.table.loc["linear", ["nlpd", "crps", "coverage"]].isna().all()
    assert found.table.loc["gp"].notna().all()


def test_very_many_numbers_are_judged_as_gaussians(monkeypatch):
    X = np.linspace(0, 1, 30)[:, None]
    Y = np.sin(6 * X + np.linspace(0, 3, 8)) + 0.1 * np.random.default_rng(0).normal(size=(30, 8))
    gps = IndependentGP("rbf").fit(X[::2], Y[::2])
    centre, scale, truth = np.zeros(8), np.ones(()), Y[1::2]
    exactly = judgement.Prediction(gps, X[1::2], centre, scale).judge(truth)
    monkeypatch.setattr(judgement, "MOST_JUDGED_EXACTLY", truth.size - 1)
    monkeypatch.setattr(IndependentGP, "log_predictive_density", None)  # which is not asked
    quickly = judgement.Prediction(gps, X[1::2], centre, scale).judge(truth)
    np.testing.assert_array_equal(quickly.mean, exactly.mean)
    for name, near in (("log_density", 0.05), ("crps", 0.02), ("lower", 0.02), ("upper", 0.02)):
        assert abs(getattr(quickly, name) - getattr(exactly, name)).max() < near


def test_gaussian_predictions_are_judged_in_closed_form_and_nothing_is_drawn(monkeypatch):
    monkeypatch.setattr(TrainingMean, "sample", None)
    mean = TrainingMean().fit(X[:15], Y[:15])
    judged = judgement.Prediction(mean, X[15:], np.zeros(3), np.ones(())).judge(Y[15:])
    centre, std = mean.predict(X[15:], return_std=True)
    z = (Y[15:] - centre) / std
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(judged.crps, crps, rtol=1e-6)
    np.testing.assert_allclose(judged.log_density, mean.log_predictive_density(X[15:], Y[15:]), rtol=1e-6)
    for ours, theirs in zip((judged.lower, judged.upper), mean.predict(X[15:], quantiles=(0.025, 0.975)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("kind", ["numpy", "torch", "pandas", "xarray", "list"])
def test_data_may_be_of_any_kind(kind):
    import torch

    table = pd.DataFrame(Y, columns=["a", "b", "c"], index=[f"row {i}" for i in range(20)])
    given = {
        "numpy": (X, Y),
        "torch": (torch.from_numpy(X), torch.from_numpy(Y)),
        "pandas": (pd.DataFrame(X, columns=["p", "q"], index=table.index), table),
        "xarray": (xr.DataArray(X, dims=["run", "input"]), xr.DataArray(Y, dims=["run", "place"])),
        "list": (X.tolist(), Y.tolist()),
    }
    found = quietly([IndependentGP("rbf"), TrainingMean()], *given[kind], cv=2)
    expected = quietly([IndependentGP("rbf"), TrainingMean()], X, Y, cv=2)
    columns = ["rmse", "mae", "nlpd", "coverage"]
    np.testing.assert_allclose(found.table[columns], expected.table[columns], rtol=1e-6)


def test_outputs_may_have_several_modes():
    field = np.sin(4 * X[:, :1, None] + np.arange(6).reshape(2, 3))
    found = quietly([IndependentGP("rbf"), TrainingMean()], X, field, cv=2)
    assert found.table.rmse["IndependentGP"] < 0.2


def test_folds_may_be_given():
    pairs = [(np.arange(10), np.arange(10, 20)), (np.arange(5, 20), np.arange(5))]
    assert len(quietly([TrainingMean()], X, Y, cv=pairs).folds) == 2
    assert len(quietly([TrainingMean()], X, Y, cv=KFold(4)).folds) == 4


def test_methods_of_one_class_are_named_by_their_settings():
    found = quietly([IndependentGP("rbf"), IndependentGP("matern52")], X, Y, cv=2)
    assert found.methods == ["IndependentGP(kernel='rbf')", "IndependentGP(kernel='matern52')"]
    with pytest.raises(ValueError, match="methods that look alike need names"):
        quietly([TrainingMean(), TrainingMean()], X, Y)
    with pytest.raises(ValueError, match="at least one method"):
        quietly([], X, Y)


def test_by_default_the_network_is_compared_with_what_can_take_the_data(monkeypatch):
    names = ["GPRNRegressor", "IndependentGP", "ReducedGP", "TrainingMean"]
    monkeypatch.setattr(comparison, "_run", lambda *arguments: dict.fromkeys(SCORES, 1.0) | {"error": None})
    assert quietly(None, X, Y).methods == names
    holed = Y.copy()
    holed[0, 0] = np.nan
    assert quietly(None, X, holed).methods == [name for name in names if name != "ReducedGP"]
    found = importlib.util.find_spec
    monkeypatch.setattr(comparison, "find_spec", lambda name: None if name == "botorch" else found(name))
    assert quietly(None, X, Y).methods == [name for name in names if name != "ReducedGP"]
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"compare needs pandas: pip install 'pyro-gprn\[compare\]'"):
        quietly(None, X, Y)


def test_a_comparison_can_be_drawn():
    mpl.use("agg")
    found = quietly([TrainingMean(), IndependentGP("rbf")], X, Y, cv=3)
    panels = found.plot()
    assert [panel.get_xlabel() for panel in panels] == ["rmse", "nlpd", "crps", "coverage"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["TrainingMean", "IndependentGP"]
    assert found.plot(["mae"], axes=[panels[0]])[0] is panels[0]
    with pytest.raises(ValueError, match=r"scores must be among rmse, .*; got speed"):
        found.plot(["speed"])
    mpl.pyplot.close("all")


def test_the_network_and_the_linear_model_can_be_compared():
    methods = [
        GPRNRegressor(1, steps=3, selection=False, seed=0, progress=False),
        LMC(1, kernel="rbf", steps=3, effective_outputs=None, seed=0, progress=False),
    ]
    assert np.isfinite(quietly(methods, X, Y, cv=[(np.arange(15), np.arange(15, 20))]).table).all(axis=None)


def test_the_command_compares_the_data_of_a_file(tmp_path, capsys):
    mpl.use("agg")
    np.savez(tmp_path / "data.npz", X=X, Y=Y)
    figure = tmp_path / "scores.png"
    settings = ["--methods", "mean", "independent", "--folds", "2", "--figure", str(figure), "--quiet"]
    cli.main(["compare", str(tmp_path / "data.npz"), *settings])
    told = capsys.readouterr().out
    assert "20 rows of 3 outputs, 2 folds" in told
    assert "differences from mean" in told
    assert "independent" in told
    assert figure.exists()
    with pytest.raises(SystemExit, match=r"data\.npz has no Z; it has X, Y"):
        cli.main(["compare", str(tmp_path / "data.npz"), "--output", "Z"])
    with pytest.raises(SystemExit, match="there is no file"):
        cli.main(["compare", str(tmp_path / "none.npz")])
    (tmp_path / "data.csv").touch()
    with pytest.raises(SystemExit, match=r"ends in \.npz or \.nc; got data\.csv"):
        cli.main(["compare", str(tmp_path / "data.csv")])


def test_inputs_may_be_columns_of_a_netcdf_file(tmp_path):
    data = xr.Dataset({"p": ("run", X[:, 0]), "q": ("run", X[:, 1]), "field": (("run", "place"), Y)})
    data.to_netcdf(tmp_path / "data.nc")
    inputs, outputs = read_data(tmp_path / "data.nc", ["p", "q"], "field")
    np.testing.assert_array_equal(inputs, X)
    np.testing.assert_array_equal(outputs, Y)
    assert outputs.dims == ("run", "place")
