"""A scale for each output: against dense algebra and brute force, in every kind of prediction."""

import copy
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pyro.contrib.gp.kernels as kernels
import pytest
import scipy.stats
import torch
from pyro.distributions import StudentT
from torch.distributions import Normal

from pyro_gprn import (
    GPRN,
    CollapsedGPRN,
    CollapsedGuide,
    GPRNRegressor,
    KroneckerGuide,
    diagnose,
    learn_output_scales,
    posterior_predictive,
    to_arviz,
)
from pyro_gprn.archive import read_archive, write_archive
from pyro_gprn.collapsed.conditioned import ConditionedDraws
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.collapsed.output_scales import learn_scale_rule
from pyro_gprn.diagnostics.arviz_versions import import_arviz
from pyro_gprn.diagnostics.leave_one_out import predict_left_out
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.variation import spread_of
from pyro_gprn.prediction.base import MixturePredictive
from pyro_gprn.prediction.scales import OutputScales, StudentMixture, student_cdf
from pyro_gprn.pyro_state import new_generator
from pyro_gprn.training.widening import Places, Widening

pytestmark = pytest.mark.usefixtures("quick")

import_arviz()  # which warns once a day, when it is first imported
X = torch.linspace(0, 1, 5)[:, None]
X_NEW = torch.tensor([[0.1], [0.45], [1.3]])
SIZES = torch.tensor([0.1, 0.3, 1.0, 3.0, 10.0, 1.0])
Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)) * SIZES


def with_holes():
    outputs = Y.clone()
    outputs[1, :2] = torch.nan
    outputs[1:, 4] = torch.nan
    return outputs


def constant_functions(outputs=Y, n_rows=5):
    """A network that is one Gaussian process for each output, and its posterior: F is known."""
    model = CollapsedGPRN(
        X[:n_rows], outputs.shape[1], 1, kernel_f=kernels.Constant(1), kernel_w=kernels.Matern52(1), noise_f=1e-6
    )
    v = torch.zeros(1, n_rows, 1, dtype=torch.float64)
    v[0, 0, 0] = 1.0
    model.statistics(outputs)
    return model, {"v": v}


@torch.no_grad()
def dense_process(model, y, X_new):
    """Quadratic form of what is observed of one output; its mean and variance, with noise, at new inputs."""
    seen = (~y.isnan()).nonzero().flatten()
    inputs = torch.cat([model.X[seen], X_new.double()])
    K, n = model.kernel_w(inputs), len(seen)
    noise = model.noise_y**2
    precision = torch.linalg.inv(K[:n, :n] + noise * torch.eye(n).double())
    observed = y[seen].double()
    variance = (K[n:, n:] - K[n:, :n] @ precision @ K[:n, n:]).diagonal() + noise
    return observed @ precision @ observed, K[n:, :n] @ precision @ observed, variance


@pytest.mark.parametrize("outputs", [Y, Y.double(), with_holes()], ids=["float32", "float64", "holes"])
def test_scales_are_those_of_dense_algebra(outputs):
    model = CollapsedGPRN(X, 6, 2, noise_y=0.3)
    draws = {"v": torch.randn(3, 5, 2, dtype=torch.float64)}
    scales = learn_output_scales(model, draws, outputs, prior_degrees=1.5)
    with torch.no_grad():
        Lf, Kw, noise = model.covariances()
    for d in range(6):
        y = outputs[:, d].double()
        seen = (~y.isnan()).nonzero().flatten()
        forms = []
        for v in draws["v"]:
            C = model.output_covariance(Lf @ v, Kw, noise)[seen][:, seen]
            forms.append(y[seen] @ torch.linalg.solve(C, y[seen]))
        expected = (1.5 + torch.stack(forms).mean()) / (1.5 + len(seen))
        torch.testing.assert_close(scales.squares[d], expected)
        assert scales.degrees[d] == 1.5 + len(seen)


@pytest.mark.parametrize("outputs", [Y, with_holes()], ids=["complete", "holes"])
def test_densities_and_variances_are_averages_over_the_scale(outputs):
    """By Monte Carlo over s_d from its posterior, given which an output is Gaussian."""
    model, posterior = constant_functions(outputs)
    scales = learn_output_scales(model, posterior, prior_degrees=4.0)
    predictive = posterior_predictive(model, posterior, X_NEW, output_scales=scales)
    mean, variance = predictive.mean(), predictive.variance()
    density = predictive.log_density(torch.ones(3, 6))
    generator = np.random.default_rng(0)
    for d in range(6):
        form, expected_mean, spread = dense_process(model, outputs[:, d], X_NEW)
        n = int((~outputs[:, d].isnan()).sum())
        squares = torch.as_tensor(
            scipy.stats.invgamma((4 + n) / 2, scale=(4 + form.item()) / 2).rvs(100_000, generator)
        )
        by_scale = Normal(expected_mean, (squares[:, None] * spread).sqrt()).log_prob(torch.ones(3).double())
        torch.testing.assert_close(mean[:, d], expected_mean, rtol=1e-4, atol=1e-5)
        expected = by_scale.logsumexp(0) - math.log(len(squares))
        torch.testing.assert_close(density[:, d], expected, rtol=0.02, atol=0.02)
        exact = spread * (4 + form) / (n + 2)  # the mean of the inverse gamma distribution
        torch.testing.assert_close(variance[:, d], exact, rtol=1e-4, atol=1e-6)
        if n > 2:
            torch.testing.assert_close(squares.mean() * spread, exact, rtol=0.05, atol=0)


def network(**settings):
    model = CollapsedGPRN(X, 6, 2, noise_y=0.3)
    guide = CollapsedGuide(model, init_scale=0.5)
    scales = learn_output_scales(model, guide, Y, prior_degrees=4.0)
    return posterior_predictive(model, guide, X_NEW, Y, output_scales=scales, **settings)


def test_draws_have_the_variance_and_the_quantiles_that_are_said():
    predictive = network()
    draws = predictive.sample(40_000)
    torch.testing.assert_close(draws.var(0), predictive.variance(), rtol=0.15, atol=0)
    signal = predictive.sample(40_000, noise=False)
    torch.testing.assert_close(signal.var(0), predictive.variance(noise=False), rtol=0.15, atol=0)
    probabilities = (0.025, 0.5, 0.9)
    quantiles = predictive.quantiles(probabilities)
    below = (draws < quantiles[:, None]).double().mean(1)
    wanted = torch.tensor(probabilities)[:, None, None].double()
    assert ((below - wanted).abs() < 0.025).all()  # the mixture has 128 components, the draws others


def test_quantiles_are_where_the_density_says():
    predictive = network()
    wanted = torch.tensor([0.05, 0.2, 0.8, 0.95]).double()
    quantiles = predictive.quantiles(wanted.tolist(), [2])[..., 0]  # (4, 3)
    edges = torch.linspace(quantiles.min().item() - 60, quantiles.max().item(), 20_001).double()
    density = predictive.log_density(edges.expand(3, -1), [2] * len(edges)).exp()
    below = torch.cumulative_trapezoid(density, edges, dim=1)
    for row in range(3):
        found = np.interp(quantiles[:, row], edges[1:], below[row])
        np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_all_rows_of_an_output_share_its_scale_in_a_draw():
    model, posterior = constant_functions()
    scales = learn_output_scales(model, posterior, prior_degrees=1.0)
    far = torch.tensor([[50.0], [90.0]])  # given its scale an output is independent at these
    draws = posterior_predictive(model, posterior, far, output_scales=scales).sample(20_000, [2, 3])
    sizes = draws.abs().log().permute(1, 2, 0).flatten(0, 1)  # of both rows for each of two outputs
    correlation = torch.corrcoef(sizes)
    # log s has variance ψ'(ν/2)/4, the logarithm of a standard normal's size π²/8
    expected = (
        0.25
        * torch.special.polygamma(1, torch.tensor(3.0))
        / (0.25 * torch.special.polygamma(1, torch.tensor(3.0)) + math.pi**2 / 8)
    )
    assert correlation[0, 2] == pytest.approx(expected.item(), abs=0.035)
    assert correlation[0, 2] > 0.04
    assert abs(correlation[0, 1]) < 0.035  # scales of different outputs have nothing to do with each other


def test_without_scales_nothing_changes_and_known_scales_only_scale():
    model, posterior = constant_functions()
    ones = torch.ones(6).double()
    none = posterior_predictive(model, posterior, X_NEW)
    known = OutputScales(ones * math.inf, 4 * ones, math.inf)
    twice = posterior_predictive(model, posterior, X_NEW, output_scales=known)
    torch.testing.assert_close(twice.mean(), none.mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(twice.variance(), 4 * none.variance(), rtol=1e-4, atol=1e-5)
    z = (none.quantiles([0.9])[0] - none.mean()) / none.variance().sqrt()
    torch.testing.assert_close(z, torch.full_like(z, 1.2815516), rtol=1e-5, atol=1e-5)
    further = twice.quantiles([0.9])[0] - none.mean()
    torch.testing.assert_close(further, 2 * z * none.variance().sqrt(), rtol=1e-3, atol=1e-4)
    assert torch.isfinite(twice.sample(10)).all()


def test_a_mixture_of_predictions_keeps_the_scales_of_each():
    model, posterior = constant_functions()
    scales = learn_output_scales(model, posterior, prior_degrees=1.0)
    parts = [posterior_predictive(model, posterior, X_NEW, output_scales=each) for each in (scales, None)]
    both = MixturePredictive(model, parts, None)
    truth = torch.ones(3, 6)
    expected = torch.stack([part.log_density(truth) for part in parts]).logsumexp(0) - math.log(2)
    torch.testing.assert_close(both.log_density(truth), expected)
    torch.testing.assert_close(both.sample(40_000, [2]).var(0), both.variance([2]), rtol=0.2, atol=0)


@pytest.mark.parametrize("degrees", [0.5, 1.0, 2.5, 7.9, 8.0, 30.0, 1e5, math.inf])
def test_the_distribution_of_student_is_scipys(degrees):
    t = torch.linspace(-40, 40, 2001).double()
    expected = scipy.stats.norm.cdf(t) if math.isinf(degrees) else scipy.stats.t(degrees).cdf(t)
    np.testing.assert_allclose(student_cdf(t, torch.tensor(degrees).double()), expected, atol=1e-8)
    mixture = StudentMixture(
        torch.zeros(1, 2001).double(), torch.full((1, 2001), 2.0).double(), torch.tensor(degrees).double()
    )
    density = mixture.log_density_by_component(t)[0]
    frozen = scipy.stats.norm(0, 2) if math.isinf(degrees) else scipy.stats.t(degrees, 0, 2)
    np.testing.assert_allclose(density, frozen.logpdf(t), rtol=1e-6)
    for p in (0.001, 0.3, 0.99):
        np.testing.assert_allclose(mixture.quantile(p), frozen.ppf(p), rtol=1e-5)


def test_quantiles_of_a_lumpy_mixture_are_exact():
    generator = torch.Generator().manual_seed(0)
    location = 30 * torch.randn(5, 200, generator=generator).double()
    scale = torch.rand(5, 200, generator=generator).double() ** 4 + 1e-3
    degrees = torch.linspace(1, 60, 200).double()
    mixture = StudentMixture(location, scale, degrees)
    for p in (0.05, 0.5, 0.999):
        x = mixture.quantile(p)
        below = torch.as_tensor(scipy.stats.t(degrees).cdf((x - location) / scale)).mean(0)
        # between lumps, where there is next to no probability, a small step in x is a small step in probability
        assert (below - p).abs().max() < 1e-5


@pytest.mark.parametrize("n_draws", [1, 2, 128])
def test_components_that_overlap_stay_and_narrow_ones_are_widened_about_the_same_mean_and_variance(n_draws):
    generator = torch.Generator().manual_seed(0)
    location = torch.randn(n_draws, 3, generator=generator).double()
    scale = (torch.rand(n_draws, 3, generator=generator).double() + 0.5) * torch.tensor([1.5, 0.1, 1e-6]).double()
    mixture = StudentMixture(location, scale, torch.tensor(math.inf).double())
    wider = mixture.overlapping()
    torch.testing.assert_close(wider.location.mean(0), location.mean(0))

    def variance(of):
        return of.scale.square().mean(0) + of.location.var(0, correction=0)

    torch.testing.assert_close(variance(wider), variance(mixture))
    torch.testing.assert_close(wider.location[:, 0], location[:, 0])
    torch.testing.assert_close(wider.scale[:, 0], scale[:, 0])
    if n_draws > 1:
        # one width for all of the narrowest, by Silverman's rule
        rule = (4 / (3 * n_draws)) ** 0.2 * location[:, 2].std(correction=0)
        torch.testing.assert_close(wider.scale[:, 2], rule.expand(n_draws))


def test_the_density_of_a_smooth_distribution_is_found_by_few_draws_that_are_certain():
    """The functions spread the prediction like a standard normal; given one of 128 draws it is nearly certain."""
    generator = torch.Generator().manual_seed(1)
    location = torch.randn(128, 1, generator=generator).double()
    mixture = StudentMixture(location, torch.full_like(location, 1e-4), torch.tensor(math.inf).double())
    truth = torch.randn(2000, generator=generator).double()

    def log_density(of):
        return (of.log_density_by_component(truth).logsumexp(0) - math.log(128)).mean().item()

    best = scipy.stats.norm.logpdf(truth.numpy()).mean()
    assert log_density(mixture) < best - 1000
    assert abs(log_density(mixture.overlapping()) - best) < 0.03


def test_one_row_and_constant_outputs_have_finite_predictions():
    for outputs, n_rows in [(Y[:1], 1), (torch.zeros(5, 6), 5), (Y[:2], 2)]:
        model, posterior = constant_functions(outputs, n_rows)
        for prior_degrees in (0.5, (1.0, 10.0, math.inf)):
            scales = learn_output_scales(model, posterior, prior_degrees=prior_degrees)
            predictive = posterior_predictive(model, posterior, X_NEW, output_scales=scales)
            assert (predictive.variance() > 0).all()
            assert predictive.variance().isfinite().all()
            assert predictive.log_density(torch.zeros(3, 6)).isfinite().all()
            assert predictive.sample(20).isfinite().all()
            lower, upper = predictive.quantiles((0.05, 0.95))
            assert (lower < upper).all()


def test_few_degrees_of_freedom_report_the_variance_of_three():
    scales = OutputScales(torch.tensor([1.5, 2.0, 3.0, 6.0]), torch.full((4,), 2.0), 1.0)
    torch.testing.assert_close(scales.variance(), torch.tensor([6.0, 6.0, 6.0, 3.0]))


@pytest.mark.parametrize("probabilities", [(), (0.0, 0.5), (0.5, 1.0), (math.nan,)])
def test_impossible_probabilities_are_refused(probabilities):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        network().quantiles(probabilities)


class _HeavyTails(GPRN):
    def likelihood(self, signal):
        return StudentT(3.0, signal, 2.0)


def test_quantiles_know_the_noise_of_a_model_of_ones_own():
    model = _HeavyTails(X, (2, 3), 1)
    predictive = posterior_predictive(model, KroneckerGuide(model), X_NEW, Y.reshape(5, 2, 3))
    lower, upper = predictive.quantiles((0.1, 0.9), (slice(None), [0, 2]), n_draws=4000)
    assert lower.shape == (3, 2, 2)
    draws = predictive.sample(4000, (slice(None), [0, 2]))
    inside = ((lower < draws) & (draws < upper)).double().mean(0)
    assert ((inside - 0.8).abs() < 0.04).all()


@pytest.mark.parametrize("outputs", [Y, with_holes()], ids=["complete", "holes"])
def test_a_row_left_out_does_not_tell_its_own_scale(outputs):
    """Each row predicted by a Student-t process of the other rows."""
    model, posterior = constant_functions(outputs)
    scales = learn_output_scales(model, posterior, prior_degrees=1.0)
    left_out = predict_left_out(PosteriorDraws(model, posterior["v"], {}), torch.arange(6))
    pit = left_out.distribution(scales).cdf(outputs.double())
    for d in range(6):
        for n in range(5):
            rest = outputs[:, d].clone()
            rest[n] = torch.nan
            count = int((~rest.isnan()).sum())
            if outputs[n, d].isnan() or count == 0:
                continue
            form, mean, variance = dense_process(model, rest, X[n : n + 1])
            scale = (variance[0] * (1 + form) / (1 + count)).sqrt().item()
            expected = scipy.stats.t(1 + count, mean[0].item(), scale).cdf(outputs[n, d].item())
            assert pit[n, d].item() == pytest.approx(expected, abs=1e-3)


def curves(sizes, n_rows, n_outputs, seed=0):
    """Independent Gaussian processes with noise, each times its own number; rows in random order."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n_rows, 1))
    kernel = np.exp(-0.5 * ((x - x.T) / 0.2) ** 2) + 0.01 * np.eye(n_rows)
    return x, (np.linalg.cholesky(kernel) @ rng.normal(size=(n_rows, n_outputs))) * sizes


def regressor(**settings):
    plain = {
        "n_latents": 1,
        "steps": 60,
        "seed": 0,
        "progress": False,
        "selection": False,
        "effective_outputs": None,
        "own_kernels": False,
    }
    return GPRNRegressor(**plain | settings)


def test_intervals_hold_where_outputs_vary_most():
    sizes = np.exp(np.random.default_rng(1).normal(size=300))
    x, y = curves(sizes, 90, 300)
    largest = sizes.argsort()[-30:]
    covered = {}
    for output_scales in (True, False):
        r = regressor(standardize="field", output_scales=output_scales).fit(x[:40], y[:40])
        lower, upper = r.predict(x[40:], quantiles=(0.025, 0.975))
        covered[output_scales] = ((lower <= y[40:]) & (y[40:] <= upper))[:, largest].mean()
    assert 0.92 <= covered[True] <= 0.98
    assert covered[False] < 0.85


def test_left_out_rows_choose_how_much_scales_may_differ():
    for sizes, expected in [(np.ones(100), (30.0, math.inf)), (np.geomspace(0.01, 10, 100), (1.0, 2.0))]:
        x, y = curves(sizes, 40, 100)
        r = regressor(standardize="field").fit(x, y)
        assert r.fitted_.output_scales.prior_degrees in expected


@pytest.fixture(scope="module")
def fitted():
    x, y = curves(np.geomspace(0.1, 10, 12), 30, 12)
    y[3:6, 2] = np.nan
    return x, y, regressor(standardize="field", restarts=2, steps=20).fit(x, y)


def test_the_mean_is_the_same_and_so_are_other_kinds_of_inference(fitted):
    x, y, r = fitted
    without = regressor(standardize="field", restarts=2, steps=20, output_scales=False).fit(x, y)
    np.testing.assert_array_equal(r.predict(x), without.predict(x))
    assert without.fitted_.output_scales is None
    assert (r.predict(x, return_std=True)[1] != without.predict(x, return_std=True)[1]).any()
    kronecker = regressor(inference="kronecker", steps=3).fit(x, np.nan_to_num(y))
    assert kronecker.fitted_.output_scales is None
    lower, upper = kronecker.predict(x[:2], quantiles=(0.1, 0.9))
    assert (lower < upper).all()
    with pytest.raises(ValueError, match="output_scales must be True or False; got 3"):
        regressor(output_scales=3).fit(x, y)


def test_a_file_keeps_the_scales(fitted, tmp_path):
    x, y, r = fitted
    for with_data in (True, False):
        r.save(tmp_path / "fit.gprn", with_data=with_data)
        loaded = GPRNRegressor.load(tmp_path / "fit.gprn", Y=None if with_data else y)
        assert loaded.output_scales is True
        np.testing.assert_array_equal(loaded.predict(x, return_std=True)[1], r.predict(x, return_std=True)[1])
        np.testing.assert_array_equal(loaded.sample(x, 3), r.sample(x, 3))
        np.testing.assert_array_equal(loaded.predict(x, quantiles=[0.3]), r.predict(x, quantiles=[0.3]))


def test_a_loaded_fit_tells_the_scales_of_every_restart(fitted, tmp_path):
    _, _, r = fitted
    r.save(tmp_path / "fit.gprn")
    loaded = GPRNRegressor.load(tmp_path / "fit.gprn").fitted_
    for number in range(2):
        before, after = (each.learn_scales(*each.run(number)) for each in (r.fitted_, loaded))
        torch.testing.assert_close(after.squares, before.squares, rtol=0, atol=0)
        assert after.prior_degrees == before.prior_degrees


def test_quantiles_come_back_as_the_outputs_came(fitted):
    x, y, r = fitted
    found = r.predict(x[:4], quantiles=(0.1, 0.5, 0.9))
    assert [each.shape for each in found] == [(4, 12)] * 3
    frame = pd.DataFrame(y[:, :3].astype(np.float32), columns=["Cd", "Ni", "Zn"])
    lower, upper = regressor(steps=3).fit(x, frame).predict(x[:4], quantiles=(0.05, 0.95))
    assert list(lower.columns) == ["Cd", "Ni", "Zn"]
    assert (lower < upper).all(axis=None)
    assert lower.dtypes.eq(np.float32).all()
    draws = r.sample(x[:4], 4000)
    assert np.abs((draws < found[2]).mean(0) - 0.9).max() < 0.06
    with pytest.raises(ValueError, match="either mean and standard deviation or quantiles"):
        r.predict(x, return_std=True, quantiles=(0.5,))


def test_report_and_arviz_use_the_scales(fitted):
    x, _, r = fitted
    report = diagnose(r)
    assert 0.85 < report.coverage <= 1.0
    data = to_arviz(r, X=x[:3], draws=300)
    best = r.fitted_.best_run
    drawn = np.asarray(data["predictions"]["y"])[best].std(0)
    np.testing.assert_allclose(drawn, r.predict(x[:3], return_std=True)[1], rtol=0.35)


@pytest.mark.parametrize("outputs", [Y, with_holes()], ids=["complete", "holes"])
def test_scales_of_some_outputs_are_the_same_without_the_others(outputs):
    model, draw = constant_functions(outputs)
    everywhere = learn_output_scales(model, draw, prior_degrees=2.0)
    some = learn_output_scales(model, draw, prior_degrees=2.0, positions=torch.tensor([4, 1]))
    torch.testing.assert_close(some.squares[[1, 4]], everywhere.squares[[1, 4]])
    assert some.squares[[0, 2, 3, 5]].isnan().all()


WIDENING = Widening(others=1.2, most=0.6, spreads=(0.2, 5.0), holes=1.7)
BY_PLACE = WIDENING._replace(places=Places(level=0.6, slope=0.4, reach=1.5))
either = pytest.mark.parametrize("widening", [WIDENING, BY_PLACE], ids=["by output", "by place"])


def stretched(widening, spread, mean):
    """The factor of each number, by the definition."""
    distance = (mean / spread).abs().clamp(max=widening.places.reach)
    return widening.at(spread) * (widening.places.level + widening.places.slope * distance.square()).sqrt()


@pytest.mark.parametrize("prior_degrees", [2.0, math.inf])
@pytest.mark.parametrize("outputs", [Y, with_holes()], ids=["complete", "holes"])
def test_each_scale_is_widened_by_the_factor_of_its_outputs_spread(outputs, prior_degrees):
    model = CollapsedGPRN(X, 6, 2, noise_y=0.3)
    draws = {"v": torch.randn(3, 5, 2, dtype=torch.float64)}
    settings = {"prior_degrees": prior_degrees}
    plain = learn_output_scales(model, draws, outputs, **settings)
    wide = learn_output_scales(model, draws, outputs, widening=WIDENING, **settings)
    factors = torch.as_tensor(np.interp(np.nanstd(outputs.double().numpy(), 0), WIDENING.spreads, (1.2, 0.6)))
    torch.testing.assert_close(wide.factors, factors, rtol=1e-6, atol=0)
    torch.testing.assert_close(wide.squares, plain.squares * factors**2, rtol=1e-6, atol=0)
    some, rule = torch.tensor([4, 1]), learn_scale_rule(model, draws, outputs, widening=WIDENING, **settings)
    for one, other in zip(rule.at(some), wide.at(some), strict=True):
        torch.testing.assert_close(one, other)
    assert rule.widening.holes == wide.widening.holes == 1.7


@pytest.mark.parametrize("prior_degrees", [2.0, math.inf])
@either
@pytest.mark.parametrize("kind", ["complete", "groups", "scattered", "inducing"])
def test_what_widens_an_output_scales_its_whole_deviation_from_the_mean(kind, widening, prior_degrees):
    outputs = Y if kind in ("complete", "inducing") else with_holes()
    model = CollapsedGPRN(X, 6, 2, noise_y=0.3, inducing=4 if kind == "inducing" else None)
    known = model.statistics(OutputStatistics.of(outputs, scattered=kind == "scattered"))
    draws = {"v": 1.5 * torch.randn(6, model.n_values, 2, dtype=torch.float64)}
    plain, wide = (predict_with(model, draws, known, prior_degrees, each) for each in (Widening(), widening))
    mean = plain.mean()
    factors = stretched(widening, spread_of(outputs.double()), mean)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(wide.mean(), mean)
    torch.testing.assert_close(wide.variance(), plain.variance() * factors**2, rtol=1e-6, atol=0)
    signal = wide.variance([4, 1], noise=False), plain.variance([4, 1], noise=False) * factors[:, [4, 1]] ** 2
    torch.testing.assert_close(*signal, rtol=1e-6, atol=0)
    both = torch.empty(2, *mean.shape, dtype=mean.dtype)
    wide.fill_mean_and_variance(*both)
    torch.testing.assert_close(both, torch.stack([mean, wide.variance()]), rtol=1e-6, atol=1e-12)
    probabilities = (0.1, 0.5, 0.975)
    for after, before in zip(wide.quantiles(probabilities), plain.quantiles(probabilities), strict=True):
        torch.testing.assert_close(after - mean, (before - mean) * factors, **close)
    expected = plain.log_density(mean + 0.3 / factors) - factors.log()
    torch.testing.assert_close(wide.log_density(mean + 0.3), expected, **close)
    before, after = (each.sample(3, noise=False) for each in (plain, wide))
    torch.testing.assert_close(after[1:] - after[0], (before[1:] - before[0]) * factors, **close)


def test_gradients_flow_through_the_factors_of_places():
    model = CollapsedGPRN(X, 6, 2, noise_y=0.3)
    draws = {"v": torch.randn(4, 5, 2, dtype=torch.float64)}
    scales = learn_output_scales(model, draws, Y, prior_degrees=2.0, widening=BY_PLACE)

    def variance(inputs):
        conditioned = ConditionedDraws.of(model, draws, Y, generator=new_generator(0))
        return posterior_predictive(model, draws, inputs, conditioned=conditioned, output_scales=scales).variance()

    inputs = X_NEW[:2].double().requires_grad_()
    assert torch.autograd.gradcheck(variance, inputs, atol=1e-6)


def predict_with(model, draws, known, prior_degrees, widening):
    settings = {"prior_degrees": prior_degrees, "widening": widening, "generator": new_generator(0)}
    scales = learn_output_scales(model, draws, known, **settings)
    return posterior_predictive(model, draws, X_NEW, known, output_scales=scales, generator=new_generator(0))


@either
def test_leaving_a_row_out_of_widened_scales_is_widening_what_the_others_say(widening):
    model, posterior = constant_functions()
    left_out = predict_left_out(PosteriorDraws.of(model, posterior, 1), torch.arange(6))
    for prior_degrees in (2.0, math.inf):
        plain, wide = (
            learn_output_scales(model, posterior, prior_degrees=prior_degrees, widening=each)
            for each in (Widening(), widening)
        )
        before, after = left_out.distribution(plain), left_out.distribution(wide)
        centre = before.location.mean(0)
        factors = stretched(widening, spread_of(Y.double()), centre)
        torch.testing.assert_close(after.scale, before.scale * factors, rtol=1e-6, atol=0)
        torch.testing.assert_close(after.location - centre, (before.location - centre) * factors, rtol=1e-6, atol=1e-12)


@either
def test_a_widened_fit_is_saved_and_diagnosed(widening, tmp_path):
    x, y = curves(np.geomspace(0.1, 10, 12), 30, 12)
    r = regressor(standardize="field", steps=20).fit(x, y)
    r._set_fitted(replace(r.fitted_, widening=widening))
    assert len(r.fitted_.output_scales.factors.unique()) > 2
    r.save(tmp_path / "fit.gprn")
    loaded = GPRNRegressor.load(tmp_path / "fit.gprn")
    assert loaded.widening_ == loaded.fitted_.output_scales.widening == widening
    for ours, theirs in zip(loaded.fitted_.output_scales, r.fitted_.output_scales, strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs
    np.testing.assert_array_equal(loaded.predict(x, return_std=True), r.predict(x, return_std=True))
    assert diagnose(r).coverages


def test_a_file_of_before_with_one_factor_for_all_is_read(fitted, tmp_path):
    x, _, r = fitted
    r = copy.copy(r)
    r._set_fitted(replace(r.fitted_, widening=Widening.same(1.5)))
    r.save(tmp_path / "fit.gprn")
    tree = read_archive(tmp_path / "fit.gprn", "regressor")
    scales = tree["output_scales"]
    del scales["factors"], scales["spread"]
    tree["widening"] = scales["widening"] = 1.5
    write_archive(tmp_path / "before.gprn", "regressor", tree)
    loaded = GPRNRegressor.load(tmp_path / "before.gprn")
    assert loaded.widening_ == loaded.fitted_.output_scales.widening == Widening.same(1.5)
    assert loaded.fitted_.output_scales.factors == 1.5
    np.testing.assert_array_equal(loaded.predict(x, return_std=True), r.predict(x, return_std=True))


def test_an_output_that_was_never_observed_has_the_factor_of_those_that_vary_least():
    values = torch.tensor([[1.0, torch.nan], [3.0, torch.nan]])
    torch.testing.assert_close(spread_of(values), torch.tensor([1.0, 0.0]))
    assert WIDENING.at(spread_of(values))[1] == torch.tensor(WIDENING.others)
