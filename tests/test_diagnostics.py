"""ArviZ, leave-one-out, the report and its pictures."""

import copy
import math
import os
import subprocess
import sys
import types
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from matplotlib import pyplot
from pyro.infer import MCMC, NUTS
from quick import small
from sklearn.model_selection import KFold
from torch.distributions import MultivariateNormal

from pyro_gprn import GPRN, CollapsedGPRN, CollapsedGuide, GPRNRegressor, KroneckerGuide, diagnose, to_arviz
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.collapsed.likelihood import OutputsGivenF
from pyro_gprn.datasets import simulate_plume
from pyro_gprn.diagnostics import align, held_out, plot_calibration, plot_khat, plot_latents, plot_predictive_check
from pyro_gprn.diagnostics.arviz_versions import elpd_of, import_arviz, pareto_k, to_inference_data
from pyro_gprn.diagnostics.coverage import coverage_where, find_coverages
from pyro_gprn.diagnostics.leave_one_out import describe_draws, predict_left_out
from pyro_gprn.diagnostics.report import Report, look_at_latents
from pyro_gprn.estimator.inference import INFERENCES
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import new_generator

pytestmark = pytest.mark.usefixtures("quick")

az = import_arviz()
RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(size=(40, 1)), axis=0)
KERNEL = np.exp(-0.5 * ((X - X.T) / 0.2) ** 2) + 1e-6 * np.eye(40)
Y = np.linalg.cholesky(KERNEL) @ RNG.normal(size=(40, 30)) + 0.1 * RNG.normal(size=(40, 30))  # independent GPs


def fit(outputs=Y, **settings):
    return small(**{"n_latents": 3, "steps": 150, "restarts": 2} | settings).fit(X, outputs)


@pytest.fixture(scope="module")
def fitted():
    return fit()


@pytest.fixture(scope="module")
def right():
    """A fit of the right size."""
    return fit(n_latents=1, steps=400)


@pytest.fixture(scope="module")
def data(fitted):
    return to_arviz(fitted, X=X[:5] + 0.01, Y=Y[:5], draws=60)


@pytest.fixture(autouse=True)
def _no_windows():
    matplotlib.use("Agg")
    yield
    pyplot.close("all")


def test_groups_names_and_units(data):
    assert dict(data["posterior"]["f"].sizes) == {"chain": 2, "draw": 60, "run": 40, "latent": 3}
    assert data["posterior"]["kernel_w.kern0.lengthscale"].dims == ("chain", "draw", "input")
    assert data["posterior_predictive"]["y"].shape == (2, 60, 40, 30)
    assert data["predictions"]["y"].shape == (2, 60, 5, 30)
    np.testing.assert_allclose(data["observed_data"]["y"], Y, atol=1e-9)
    np.testing.assert_allclose(data["constant_data"]["X"], X, atol=1e-9)
    np.testing.assert_allclose(data["predictions_constant_data"]["y"], Y[:5])
    assert data["log_likelihood"]["y"].dims == ("chain", "draw", "run")
    assert data["prior"]["f"].shape == (1, 60, 40, 3)
    assert data["prior_predictive"]["y"].shape == (1, 60, 40, 30)
    stats = data["sample_stats"]
    np.testing.assert_allclose(stats["bound"], stats["lp"] - stats["log_q"])
    error = np.asarray(data["posterior_predictive"]["y"]).mean((0, 1)) - Y
    assert np.sqrt((error**2).mean()) < 0.2


def test_arviz_takes_it(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = az.summary(data, var_names=["noise_y", "f"])
        assert len(summary) == 1 + 40 * 3
        assert np.isfinite(elpd_of(az.loo(data)))
        az.plot_trace(data, var_names=["noise_y"])
        plot_predictive_check(data)


def test_the_bound_is_that_of_the_fit(fitted, data):
    best = int(fitted.restart_elbos_.argmax())
    drawn = np.asarray(data["sample_stats"]["bound"])[best]
    assert drawn.mean() == pytest.approx(fitted.elbo_, abs=5 * drawn.std() / np.sqrt(60) + 3)


def test_names_and_coordinates_are_the_users():
    frame = pd.DataFrame(Y[:, :3], columns=["Cd", "Ni", "Zn"])
    data = to_arviz(fit(frame, steps=5), draws=5, outputs=[0, 2])
    assert list(data["posterior_predictive"]["y"].coords["output"].values) == ["Cd", "Zn"]
    field = xr.DataArray(Y.reshape(40, 5, 6), dims=("run", "time", "place"), coords={"time": np.arange(5) * 10})
    data = to_arviz(fit(field, steps=5), draws=5, outputs=(slice(1, 3), 4))
    assert data["posterior_predictive"]["y"].dims == ("chain", "draw", "run", "time")
    np.testing.assert_array_equal(data["posterior_predictive"]["y"].coords["time"], [10, 20])
    np.testing.assert_allclose(data["observed_data"]["y"], field[:, 1:3, 4], atol=1e-9)


def test_large_outputs_are_thinned(fitted, monkeypatch):
    from pyro_gprn.diagnostics import source

    monkeypatch.setattr(source, "MOST_NUMBERS", 2 * 10 * 40 * 7)
    data = to_arviz(fitted, draws=10)
    assert data["posterior_predictive"]["y"].shape == (2, 10, 40, 7)
    assert data["posterior"].attrs["outputs"] == "7 of 30 outputs"


def test_weights_and_correlations_on_request(fitted):
    data = to_arviz(fitted, draws=4, outputs=[0, 3, 5], weights=True, correlation_at=X[:2])
    assert data["posterior"]["w"].shape == (2, 4, 40, 3, 3)
    assert data["posterior"]["correlation"].shape == (2, 4, 2, 3, 3)


def test_models_guides_and_mcmc():
    inputs, outputs = torch.linspace(0, 1, 6)[:, None], torch.randn(6, 4, dtype=torch.float64)
    model = CollapsedGPRN(inputs, 4, 1)
    guide = CollapsedGuide(model)
    model.statistics(outputs)
    data = to_arviz((model, guide), draws=7)
    np.testing.assert_allclose(data["observed_data"]["y"], outputs)
    mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=6, warmup_steps=4, disable_progbar=True)
    mcmc.run(outputs)
    sampled = to_arviz((model, mcmc))
    assert sampled["posterior"]["f"].shape == (1, 6, 6, 1)
    assert np.isnan(sampled["sample_stats"]["log_q"]).all()
    report = diagnose((model, mcmc))
    assert "bound" not in report.findings
    assert "optimistic" in report.findings["coverage"]
    assert "it needs 25 draws, and there are 6" in report.findings["leave-one-out"]
    with pytest.raises(ValueError, match="too few draws"):
        plot_khat(report)
    assert not report.is_refitted
    for source, message in [
        ("x", "got str"),
        ((torch.nn.Linear(1, 1), guide), "CollapsedGPRN"),
        (GPRNRegressor(), "fit"),
    ]:
        with pytest.raises(ValueError, match=message):
            to_arviz(source)


FACTORISED = sorted(name for name, inference in INFERENCES.items() if inference.model is GPRN)


@pytest.fixture(scope="module", params=FACTORISED)
def with_weights(request):
    """A fit of a network that has its weights."""
    return fit(Y[:, :12], inference=request.param, n_latents=1, steps=30)


def test_of_a_network_with_its_weights_all_is_said_that_can_be(monkeypatch, with_weights):
    monkeypatch.setattr("pyro_gprn.diagnostics.report.LEAST_STEPS", 30)
    report = diagnose(with_weights)
    for heading in ("posterior", "leave-one-out"):
        assert report.findings[heading].startswith("not available for this posterior, because")
    assert report.is_refitted
    assert report.pit.shape == (40, 12)
    assert 0.85 < report.coverage <= 1.0
    assert report.findings["coverage"].startswith("in central 95 % intervals (50 %), of held-out rows")
    assert 0.1 < report.residual < 0.5
    assert np.isfinite(report.log_density)
    assert report.further_gain >= 0.0
    assert len(report.restart_bounds) == 2
    np.testing.assert_allclose(report.latent_shares, [1.0])
    assert np.isnan(report.pareto_k)
    assert "log density" in str(report)
    assert plot_calibration(report)[0].get_xlabel() == "probability integral transform"


def test_held_out_rows_do_not_enter_the_predictions_of_a_network_with_its_weights(with_weights):
    model, guide = with_weights.fitted_.run(0)
    rows = rows_of_first_fold(40)
    predicted = []
    for change in (0.0, 5.0):
        outputs = with_weights.fitted_.known.source.read(slice(None)).clone()
        outputs[rows] += change
        known, settings = OutputStatistics.of(outputs), {"steps": 3, "generator": new_generator(0)}
        predicted.append(held_out.predict_by_refits(model, guide, known, torch.arange(12), **settings))
    first, second = predicted
    torch.testing.assert_close(first.mean[rows], second.mean[rows], rtol=0, atol=0)
    others = np.setdiff1d(np.arange(40), rows)
    assert (first.mean[others] - second.mean[others]).abs().max() > 1e-2


def test_few_rows_are_not_divided_into_folds():
    inputs, outputs = torch.linspace(0, 1, 6)[:, None], torch.randn(6, 4, dtype=torch.float64)
    model = GPRN(inputs, 4, 1)
    guide = KroneckerGuide(model)
    guide.update_mean(outputs)
    report = diagnose((model, guide))
    assert report.findings["coverage"].endswith("3 folds need 9 rows; there are 6")
    assert "residuals" not in report.findings
    assert "one start" in report.findings["restarts"]


def test_a_guide_that_nobody_can_train_is_refused():
    model = GPRN(torch.linspace(0, 1, 6)[:, None], 4, 1)
    with pytest.raises(ValueError, match=r"KroneckerGuide.*; got a Linear"):
        held_out.inference_of(torch.nn.Linear(1, 1))
    assert held_out.inference_of(KroneckerGuide(model)) is INFERENCES["kronecker"]


def test_few_outputs_do_not_tell_that_a_function_does_nothing():
    F = torch.randn(200, 40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    F[:, :, 0] = 3.0 + 0.1 * F[:, :, 0]  # the second is as likely positive as negative everywhere
    few, many = Report(), Report()
    look_at_latents(few, F, 12)
    look_at_latents(many, F, 60)
    assert few.warnings == []
    assert "does not use 1 of them, but 12 outputs are few to tell" in few.findings["latents"]
    assert many.warnings == ["1 of 2 latent functions do nothing: n_latents=1 would do."]


def holes():
    outputs = torch.randn(5, 6, dtype=torch.float64)
    outputs[1, :2] = torch.nan
    outputs[3:, 4] = torch.nan
    return outputs


@pytest.mark.parametrize("outputs", [torch.randn(5, 6, dtype=torch.float64), holes()], ids=["complete", "holes"])
def test_leave_one_out_by_row_equals_dense_conditionals(outputs):
    model = CollapsedGPRN(torch.rand(5, 2), 6, 2, noise_y=0.4)
    known = model.statistics(outputs)
    C = torch.randn(5, 8, dtype=torch.float64)
    C = C @ C.mT + 0.3 * torch.eye(5, dtype=torch.float64)
    given = OutputsGivenF(C, known)
    density, by_row = given.log_density(), given.log_density_by_row()
    total = 0.0
    for n in range(5):
        expected = 0.0
        for d in range(6):
            seen = [i for i in range(5) if not outputs[i, d].isnan()]
            if n not in seen:
                continue
            rest = [i for i in seen if i != n]
            joint = MultivariateNormal(torch.zeros(len(seen)).double(), C[seen][:, seen]).log_prob(outputs[seen, d])
            others = MultivariateNormal(torch.zeros(len(rest)).double(), C[rest][:, rest]).log_prob(outputs[rest, d])
            expected = expected + joint - others
            total = total + (joint if n == seen[0] else 0.0)
        torch.testing.assert_close(by_row[n], torch.as_tensor(expected), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(density, torch.as_tensor(total), rtol=1e-9, atol=1e-9)


def test_rows_left_out_equal_a_model_without_them():
    """With constant functions, a GP: the prediction of a row from the others is textbook."""
    import pyro.contrib.gp.kernels as kernels

    inputs, outputs = torch.rand(6, 1).double(), torch.randn(6, 3, dtype=torch.float64)
    model = CollapsedGPRN(inputs, 3, 1, kernel_f=kernels.Constant(1), noise_f=1e-6, noise_y=0.3)
    known = model.statistics(outputs)
    V = torch.zeros(1, 6, 1, dtype=torch.float64)
    V[0, 0, 0] = 0.9
    with torch.no_grad():
        _, Kw, noise = model.covariances()
    left_out = predict_left_out(PosteriorDraws(model, V, {}), torch.arange(3))
    K = 0.81 * Kw
    for n in range(6):
        rest = [i for i in range(6) if i != n]
        gain = K[n, rest] @ torch.linalg.inv(K[rest][:, rest] + noise * torch.eye(5).double())
        torch.testing.assert_close(left_out.mean[0, n], gain @ outputs[rest], rtol=1e-4, atol=1e-4)
        variance = K[n, n] - gain @ K[rest, n] + noise
        torch.testing.assert_close(left_out.variance[0, n, 0], variance, rtol=1e-4, atol=1e-4)
    assert known.is_complete


def test_the_joint_density_of_a_draw():
    inputs, outputs = torch.rand(5, 1), torch.randn(5, 7, dtype=torch.float64)
    model = CollapsedGPRN(inputs, 7, 2, effective_outputs=3.5)
    model.statistics(outputs)
    described = describe_draws(model, CollapsedGuide(model), 4)
    with torch.no_grad():
        Lf, Kw, noise = model.covariances()
        C = model.output_covariance(Lf @ described.draws.V[2], Kw, noise)
        likelihood = MultivariateNormal(torch.zeros(5).double(), C).log_prob(outputs.T).sum()
        prior = model.prior().log_prob(described.draws.V[2])
    torch.testing.assert_close(described.log_joint[2], 0.5 * likelihood + prior)


def test_alignment_undoes_rotations():
    F = torch.randn(9, 3, dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(4, 3, 3, dtype=torch.float64)).Q
    torch.testing.assert_close(align(F @ Q, F), F.expand(4, 9, 3))


def test_a_good_fit_of_the_right_size_looks_right(right):
    report = diagnose(right)
    assert report.warnings == []
    assert "nothing looks wrong" in str(report)
    assert 0.9 < report.coverage < 0.99
    assert report.loo.pareto_k.shape == (40,)


def test_too_few_steps_are_flagged():
    outputs = np.sin(9 * X**2 * np.linspace(0.5, 1, 30))
    report = diagnose(fit(outputs, steps=5))
    assert any("has not settled" in warning for warning in report.warnings)
    assert report.further_gain > 5


def test_useless_latents_are_flagged(fitted):
    report = diagnose(fitted)
    assert any("2 of 3 latent functions do nothing: n_latents=1" in warning for warning in report.warnings)
    assert report.latent_certainties[0] > 0.9


def change(r, restart, noise=0.0, scale=0.0):
    """A fitted regressor with one restart's noise and spread changed, in logarithms."""
    state = r.fitted_.runs[restart]
    state["model"]["noise_y_unconstrained"] = state["model"]["noise_y_unconstrained"] + noise
    rows = state["guide"]["v_scale_row_unconstrained"]
    state["guide"]["v_scale_row_unconstrained"] = rows + scale * torch.eye(len(rows)).to(rows)


def test_an_over_confident_posterior_is_flagged():
    r = fit(n_latents=1, restarts=1, output_scales=False)  # a scale for each output would make up for some of it
    change(r, 0, noise=-2.0, scale=-6.0)
    report = diagnose(r)
    assert report.coverage < 0.7
    assert any("over-confident" in warning for warning in report.warnings)


def rows_of_first_fold(n_rows):
    return next(KFold(held_out.N_FOLDS, shuffle=True, random_state=0).split(np.empty(n_rows)))[1]


def test_held_out_rows_do_not_enter_their_predictions(fitted):
    model, guide = fitted.fitted_.run(0)
    rows = rows_of_first_fold(40)
    predicted = []
    for change in (0.0, 5.0):
        outputs = fitted.fitted_.known.source.read(slice(None)).clone()
        outputs[rows] += change
        known, scales = model.statistics(outputs), fitted.fitted_.output_scales
        settings = {"scales": scales, "generator": new_generator(0)}
        predicted.append(held_out.predict_by_folds(model, guide, known, torch.arange(30), **settings))
    first, second = predicted
    torch.testing.assert_close(first.mean[rows], second.mean[rows], rtol=0, atol=0)
    others = np.setdiff1d(np.arange(40), rows)
    assert (first.mean[others] - second.mean[others]).abs().min() > 1e-4
    assert ((second.values - first.values)[rows] - 5.0).abs().max() < 1e-14 * 5.0


def test_the_posterior_at_some_rows_is_the_marginal_of_that_at_all_rows(fitted):
    model, guide = fitted.fitted_.run(0)
    rows = torch.tensor([3, 0, 17, 30])
    part, q = held_out.at_rows(model, guide, rows)
    with torch.no_grad():
        full, own = model.functions_factor(), part.functions_factor()
        torch.testing.assert_close(own @ q.v_loc, (full @ guide.v_loc)[rows], rtol=1e-6, atol=1e-8)
        spread, expected = own @ q.v_scale_row, (full @ guide.v_scale_row)[rows]
        torch.testing.assert_close(spread @ spread.mT, expected @ expected.mT, rtol=1e-6, atol=1e-10)
        torch.testing.assert_close(q.v_scale_col, guide.v_scale_col)


def test_a_fit_is_as_it_was_after_the_report(fitted):
    before = {name: value.clone() for name, value in fitted.fitted_.guide.state_dict().items()}
    mean = fitted.predict(X[:3])
    diagnose(fitted)
    assert all(torch.equal(before[name], value) for name, value in fitted.fitted_.guide.state_dict().items())
    np.testing.assert_array_equal(fitted.predict(X[:3]), mean)


def test_intervals_that_fail_where_the_field_varies_are_called_over_confident():
    runs = simulate_plume(100, grid=12)
    settings = {
        "n_latents": 3,
        "steps": 200,
        "seed": 0,
        "progress": False,
        "kernel_w": "rbf",
        "output_scales": False,
        "selection": False,
    }
    r = GPRNRegressor(**settings).fit(runs.X[:40], runs.Y[:40])
    report = diagnose(r)
    everywhere, varied, farthest = report.coverages
    assert everywhere.outer == report.coverage > 0.88  # right on average
    assert farthest.is_over_confident
    assert any("over-confident" in warning and farthest.place in warning for warning in report.warnings)
    lower, upper = r.predict(runs.X[40:], quantiles=(0.025, 0.975))
    inside = (lower <= runs.Y[40:]) & (runs.Y[40:] <= upper)
    spread = runs.Y[:40].var(0)
    chosen = spread >= spread.flatten().topk(14).values[-1]
    assert varied.outer == pytest.approx(inside[:, chosen].double().mean().item(), abs=0.1)  # as in rows never seen


def test_coverage_is_judged_where_outputs_vary():
    pit = torch.rand(60, 200, generator=torch.Generator().manual_seed(0))
    values = torch.randn(60, 200, generator=torch.Generator().manual_seed(1))
    values[:, :20] *= 10
    pit[:, :20] = torch.where(pit[:, :20] < 0.3, 0.001, pit[:, :20])  # 30 % are far below their intervals
    everywhere, varied, farthest = find_coverages(pit, values, values)
    assert everywhere.outer > 0.9
    assert not everywhere.is_over_confident
    assert varied.outer < 0.75
    assert varied.is_over_confident
    assert farthest.is_over_confident
    assert len(find_coverages(pit, values / values.std(0), values)) == 2  # none varies more than the others


@pytest.mark.parametrize("n_rows", [8, 20, 80])
def test_rows_that_are_right_or_wrong_as_one_raise_few_false_alarms(n_rows):
    generator = torch.Generator().manual_seed(0)
    alarms = 0
    for _ in range(300):
        pit = torch.rand(n_rows, 1, generator=generator).expand(n_rows, 50)
        found = coverage_where(pit, torch.tensor(True), "all")
        alarms += found.is_over_confident or found.is_narrow_inside or found.is_wide_inside
    assert alarms <= 6


def test_intervals_that_are_too_wide_in_the_middle_are_told():
    pit = 0.5 + 0.2 * (torch.rand(60, 50, generator=torch.Generator().manual_seed(0)) - 0.5)
    found = coverage_where(pit, torch.tensor(True), "all")
    assert found.is_wide_inside
    assert not found.is_over_confident


def test_no_elpd_is_quoted_that_cannot_be_trusted(monkeypatch, right):
    trusted = diagnose(right)
    assert trusted.untrusted == []
    assert "elpd" in trusted.findings["leave-one-out"]
    assert "cannot" not in trusted.findings["leave-one-out"]
    monkeypatch.setattr("pyro_gprn.diagnostics.report.pareto_k", lambda ratios: 3.9)
    report = diagnose(right)
    assert report.findings["leave-one-out"].startswith("elpd cannot be trusted")
    assert "log density" in report.findings["leave-one-out"]
    assert any("3.90" in doubt and "held-out" in doubt for doubt in report.untrusted)
    assert "nothing looks wrong" not in str(report)
    assert str(report).endswith("nothing else looks wrong")


def test_holes_are_left_out_of_the_coverage():
    outputs = Y[:, :6].copy()
    outputs[5:20, 1] = np.nan
    outputs[30:, 4] = np.nan
    report = diagnose(fit(outputs, n_latents=1, restarts=1))
    assert (np.isnan(report.pit) == np.isnan(outputs)).all()
    assert 0.85 < report.coverage <= 1.0
    assert np.isfinite(report.log_density)
    assert report.is_refitted


def test_an_output_that_only_held_out_rows_have_is_predicted_all_the_same():
    outputs = Y[:, :6].copy()
    outputs[np.setdiff1d(np.arange(40), rows_of_first_fold(40)), 2] = np.nan
    report = diagnose(fit(outputs, n_latents=1, restarts=1, steps=50))
    assert (np.isnan(report.pit) == np.isnan(outputs)).all()


def test_a_bad_local_optimum_among_restarts_is_flagged(right):
    r = copy.deepcopy(right)
    run = r.fitted_.runs[0]
    run["bound"] -= 0.2 * (run["bound"] - run["start"]) + 50
    report = diagnose(r)
    assert any("restarts disagree" in warning for warning in report.warnings)
    assert not any("restarts disagree" in warning for warning in diagnose(right).warnings)


def test_pictures(fitted, data):
    report = diagnose(fitted)
    histogram, curve = plot_calibration(report)
    assert histogram.get_xlabel() == "probability integral transform"
    assert curve.get_lines()[1].get_ydata()[-1] > 0.85
    assert plot_khat(report).get_ylabel() == "Pareto k-hat"
    assert len(plot_latents(data).get_lines()) == 3


def test_pareto_k_tells_light_tails_from_heavy_ones():
    rng = np.random.default_rng(0)
    assert pareto_k(0.3 * rng.normal(size=2000)) < 0.5
    assert pareto_k(rng.standard_exponential(size=2000) * 2.0) > 0.7
    assert pareto_k(rng.standard_exponential(size=2000) * -2.0) < 0.5  # it is the upper tail that matters
    assert pareto_k(rng.normal(size=5)) == math.inf == pareto_k(np.zeros(200))  # there is no tail


def test_without_arviz_the_error_names_the_extra(monkeypatch, fitted):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro-gprn\[diagnostics\]'"):
        to_arviz(fitted, draws=3)


def test_arviz_one_gets_a_tree(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", types.SimpleNamespace(__version__="1.3.0"))
    tree = to_inference_data({"posterior": {"a": (("chain", "draw"), np.ones((2, 3)))}}, {})
    assert isinstance(tree, xr.DataTree)
    assert tree["posterior"]["a"].dims == ("chain", "draw")


FIRST = """
import importlib.util, sys
import numpy as np
import arviz as az
spec = importlib.util.spec_from_file_location("adapter", sys.argv[1])
adapter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adapter)
rng = np.random.default_rng(0)
draws = ("chain", "draw")
data = adapter.to_inference_data(
    {
        "posterior": {"a": (draws, rng.normal(size=(2, 100)))},
        "log_likelihood": {"y": ((*draws, "run"), rng.normal(size=(2, 100, 5)))},
        "posterior_predictive": {"y": ((*draws, "run", "output"), rng.normal(size=(2, 100, 5, 3)))},
        "observed_data": {"y": (("run", "output"), rng.normal(size=(5, 3)))},
    },
    {"output": list("abc")},
)
assert az.__version__.startswith("1.")
assert len(az.summary(data)) == 1
assert np.isfinite(az.loo(data).elpd)
assert adapter.pareto_k(0.3 * rng.normal(size=2000)) < 0.5
assert adapter.pareto_k(2.0 * rng.standard_exponential(size=2000)) > 0.7
assert adapter.pareto_k(-2.0 * rng.standard_exponential(size=2000)) < 0.5
assert adapter.pareto_k(rng.normal(size=5)) == np.inf == adapter.pareto_k(np.zeros(200))
az.plot_trace(data, var_names=["a"])
adapter.draw_predictive_check(data)
"""


@pytest.mark.skipif("PYRO_GPRN_ARVIZ1" not in os.environ, reason="names a Python that has ArviZ 1.x")
def test_the_adapter_with_arviz_one():
    adapter = Path(__file__).parents[1] / "pyro_gprn/diagnostics/arviz_versions.py"
    command = [os.environ["PYRO_GPRN_ARVIZ1"], "-c", FIRST, str(adapter)]
    subprocess.run(command, check=True, env=os.environ | {"MPLBACKEND": "agg"})


def test_without_xarray_the_error_names_the_extra(monkeypatch, fitted):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"xarray: pip install 'pyro-gprn\[diagnostics\]'"):
        to_arviz(fitted, draws=3)
