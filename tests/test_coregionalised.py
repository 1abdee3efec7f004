"""The network with constant weights and its functions integrated out, against dense algebra."""

import numpy as np
import pyro
import pyro.poutine as poutine
import pytest
import torch
from helpers import randomise
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from pyro.optim import Adam
from torch.distributions import MultivariateNormal

from pyro_gprn import (
    CoregionalisedGPRN,
    GPRNRegressor,
    diagnose,
    output_correlation,
    posterior_predictive,
    to_arviz,
)
from pyro_gprn.coregionalised import ConditionedFunctions, CoregionalisedGuide, fit_coregionalised, weight_correlation
from pyro_gprn.coregionalised.model import flat_outputs
from pyro_gprn.coregionalised.training import flat_statistics, log_evidence
from pyro_gprn.estimator.selection import COREGIONALISED
from pyro_gprn.prediction.conditional import Conditional

N, P, K, D = 6, 2, 2, 3


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, X_NEW, Y = numbers(N, P), numbers(4, P, seed=1), numbers(N, D, seed=2)
HOLES = Y.clone()
HOLES[1, 0] = HOLES[3:, 2] = torch.nan
OUTPUTS = pytest.mark.parametrize("outputs", [Y, HOLES], ids=["complete", "holes"])


def trained(outputs=Y, kernel="matern52"):
    """A model and a guide at random values."""
    with pyro.get_param_store().scope():
        torch.manual_seed(3)
        model = CoregionalisedGPRN(X, D, K, kernel_f=kernel, noise_f=0.3)
        randomise(model)
        guide = CoregionalisedGuide(model, init_loc=numbers(K, D, seed=4))
        model.statistics(outputs)
    return model, guide


@torch.no_grad()
def dense_covariance(model, w, one, other, *, same):
    """The covariance of outputs at two sets of inputs, number by number; ``same`` tells which rows are the same."""
    kernel = model.kernel_f(one, other) + model.noise_f.square() * same
    offset = torch.ones_like(kernel[0])
    blocks = [
        [sum(w[k, d] * w[k, e] * kernel[k] for k in range(K)) + (d == e) * offset for e in range(D)] for d in range(D)
    ]
    return torch.cat([torch.cat(row, 1) for row in blocks])


def dense_posterior(model, w, outputs, X_new, same):
    """Mean and covariance of the signal at new inputs by conditioning one large Gaussian, the first output first."""
    y = flat_outputs(outputs)
    seen = ~y.isnan()
    noise = torch.diag(model.noise_y.detach().square().repeat_interleave(N))
    C = dense_covariance(model, w, X, X, same=torch.eye(N).double()) + noise
    cross = dense_covariance(model, w, X_new, X, same=same)[:, seen]
    gain = cross @ torch.linalg.inv(C[seen][:, seen])
    new = dense_covariance(model, w, X_new, X_new, same=torch.eye(len(X_new)).double())
    return gain @ y[seen], new - gain @ cross.mT


@OUTPUTS
def test_the_evidence_is_that_of_one_large_gaussian(outputs):
    model, guide = trained(outputs)
    w, y = guide.w_loc.detach(), flat_outputs(outputs)
    seen = ~y.isnan()
    C = dense_covariance(model, w, X, X, same=torch.eye(N).double())
    C = C + torch.diag(model.noise_y.detach().square().repeat_interleave(N))
    expected = MultivariateNormal(torch.zeros(int(seen.sum())).double(), C[seen][:, seen]).log_prob(y[seen])
    found = log_evidence(model, w, flat_statistics(model.statistics()))
    torch.testing.assert_close(found, expected + model.prior().log_prob(w), rtol=1e-7, atol=1e-7)


@OUTPUTS
def test_the_pyro_model_has_the_same_evidence(outputs):
    model, guide = trained(outputs)
    with pyro.get_param_store().scope():
        trace = poutine.trace(poutine.condition(model, {"w": guide.w_loc})).get_trace(outputs)
    expected = log_evidence(model, guide.w_loc, flat_statistics(model.statistics()))
    torch.testing.assert_close(trace.log_prob_sum(), expected, rtol=1e-7, atol=1e-7)


def test_the_gradient_of_the_evidence_is_right():
    model, guide = trained(HOLES)
    flat = flat_statistics(model.statistics())
    w = guide.w_loc.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda w: log_evidence(model, w, flat), w)


@OUTPUTS
@pytest.mark.parametrize("kernel", ["rbf", "product_matern32"])
def test_predictions_are_those_of_one_large_gaussian(outputs, kernel):
    model, guide = trained(outputs, kernel)
    mean, covariance = dense_posterior(model, guide.w_loc.detach(), outputs, X_NEW, same=0.0)
    predictive = posterior_predictive(model, guide, X_NEW)
    torch.testing.assert_close(flat_outputs(predictive.mean()), mean, rtol=1e-6, atol=1e-7)
    variance = predictive.variance(noise=False)
    torch.testing.assert_close(flat_outputs(variance), covariance.diagonal(), rtol=1e-6, atol=1e-7)
    noise = predictive.variance() - variance
    torch.testing.assert_close(noise, model.noise_y.detach().square().expand(len(X_NEW), D))


def test_a_missing_output_is_predicted_from_the_functions_of_its_own_row():
    model, guide = trained(HOLES)
    rows = torch.tensor([1, 4])
    same = torch.zeros(2, N).double()
    same[[0, 1], rows] = 1.0
    mean, covariance = dense_posterior(model, guide.w_loc.detach(), HOLES, X[rows], same)
    predictive = posterior_predictive(model, guide, X[rows])
    torch.testing.assert_close(flat_outputs(predictive.mean()), mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(
        flat_outputs(predictive.variance(noise=False)), covariance.diagonal(), rtol=1e-6, atol=1e-7
    )
    moved = posterior_predictive(model, guide, X[rows] + 1e-9).variance(noise=False)
    assert (moved > predictive.variance(noise=False) + 1e-3).all()  # elsewhere the functions have noise of their own


def test_draws_have_the_covariance_of_one_large_gaussian():
    model, guide = trained(HOLES)
    mean, covariance = dense_posterior(model, guide.w_loc.detach(), HOLES, X_NEW, same=0.0)
    generator = torch.Generator().manual_seed(0)
    draws = posterior_predictive(model, guide, X_NEW, generator=generator).sample(40_000, noise=False)
    flat = torch.stack([flat_outputs(draw) for draw in draws])
    scale = covariance.diagonal().sqrt()
    assert ((flat.mean(0) - mean) / scale).abs().max() < 0.03
    assert ((flat.mT.cov() - covariance) / (scale[:, None] * scale)).abs().max() < 0.04


def test_densities_quantiles_and_the_distribution_agree():
    model, guide = trained()
    predictive = posterior_predictive(model, guide, X_NEW)
    middle, upper = predictive.quantiles((0.5, 0.975))
    deviation = predictive.variance().sqrt()
    torch.testing.assert_close(middle, predictive.mean(), atol=1e-5, rtol=0.0)
    torch.testing.assert_close(upper, predictive.mean() + 1.959964 * deviation, atol=1e-4, rtol=0.0)
    expected = torch.distributions.Normal(predictive.mean(), deviation).log_prob(torch.ones(4, D))
    torch.testing.assert_close(predictive.log_density(torch.ones(4, D)), expected)


def test_gradients_reach_new_inputs():
    model, guide = trained()
    given = ConditionedFunctions.of(model, guide, model.statistics())

    def predict(X_new):
        predictive = posterior_predictive(model, guide, X_new, conditioned=given)
        return predictive.mean(), predictive.variance()

    assert torch.autograd.gradcheck(predict, X_NEW.clone().requires_grad_())


def test_rows_with_the_same_input_share_the_mean_of_their_noises():
    # Conditioning on both rows' values of f̂, which differ by their noises alone.
    from pyro.contrib.gp.kernels import RBF

    rows, noise = torch.tensor([[0.0], [0.0], [2.0]]).double(), torch.tensor(0.5).double()
    kernel = RBF(1).double()
    L = torch.linalg.cholesky(kernel(rows) + noise**2 * torch.eye(3))
    at_new = Conditional.of(kernel, rows, rows[:1].repeat(2, 1), L, noise)
    torch.testing.assert_close(at_new.interpolate()[0], torch.tensor([0.5, 0.5, 0.0]).double())
    assert torch.linalg.eigvalsh(at_new.residual).min() > -1e-12
    torch.testing.assert_close(at_new.residual, torch.zeros(2, 2).double(), atol=1e-12, rtol=0.0)


def test_it_is_a_citizen_of_pyro():
    with pyro.get_param_store().scope():
        model = CoregionalisedGPRN(X, D, K)
        guide = CoregionalisedGuide(model)
        svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
        losses = [svi.step(HOLES) for _ in range(30)]
        assert losses[-1] < losses[0]
        assert Predictive(model, guide=guide, num_samples=3)()["y"].shape == (3, N * D)
        assert model().shape == (N, D)
    with pyro.get_param_store().scope():
        run = MCMC(NUTS(CoregionalisedGPRN(X, D, K)), 3, warmup_steps=2, disable_progbar=True)
        run.run(HOLES)
        assert run.get_samples()["w"].shape == (3, K, D)


def test_training_never_ends_below_its_start_and_the_best_restart_is_kept():
    model = CoregionalisedGPRN(X, D, K)
    fit = fit_coregionalised(model, HOLES, restarts=3, steps=30, seed=0, progress=False)
    assert all(run["bound"] >= run["start"] for run in fit.restarts)
    assert fit.bound == max(run["bound"] for run in fit.restarts)
    found = log_evidence(model, fit.guide.w_loc, flat_statistics(model.statistics()))
    assert found.item() == pytest.approx(fit.bound)


def test_too_many_numbers_are_refused():
    with pytest.raises(ValueError, match=r"Cholesky factor of size N·D.*got N = 6 and D = 4,000.*'collapsed'"):
        CoregionalisedGPRN(X, 4000, K)


def test_diagnostics_of_another_posterior_say_what_they_take():
    model, _ = trained()
    with pytest.raises(ValueError, match="of a CoregionalisedGPRN diagnostics take a CoregionalisedGuide; got dict"):
        to_arviz((model, {"w": numbers(10, K, D)}))


def test_correlations_are_those_of_the_weights():
    w = numbers(K, D)
    found = weight_correlation(w, 2)
    assert found.shape == (2, D, D)
    torch.testing.assert_close(found[1], torch.corrcoef(torch.cat([w, -w]).mT))
    guide = CoregionalisedGuide(CoregionalisedGPRN(X, D, K), init_loc=w)
    assert torch.equal(output_correlation(guide.model, guide, X_NEW[:2]), found)
    some = output_correlation(guide.model, guide, X_NEW[:1], [2, 0])
    torch.testing.assert_close(some, found[:1, [2, 0]][..., [2, 0]])


# The estimator.

QUICK = {"inference": "coregionalised", "n_latents": 2, "steps": 25, "seed": 0, "progress": False}


QUICK_CHOICE = {"kernel_w": "rbf", "own_kernels": False, "seed": 0, "progress": False}


def series(n=40):
    """Three series over time that mix two functions, one of which is hidden for a while."""
    time = np.linspace(0, 1, n)
    functions = np.stack([np.sin(9 * time), np.cos(23 * time)], 1)
    mixed = functions @ np.array([[1.0, 0.5, -1.0], [0.3, 1.0, 1.0]])
    outputs = mixed + 0.05 * np.random.default_rng(0).normal(size=mixed.shape)
    hidden = outputs.copy()
    hidden[12:24, 0] = np.nan
    return time[:, None], hidden, mixed


def test_a_hole_is_filled_from_the_other_outputs(tmp_path):
    time, hidden, truth = series()
    r = GPRNRegressor(**QUICK).fit(time, hidden)
    mean, std = r.predict(time, return_std=True)
    error = mean[12:24, 0] - truth[12:24, 0]
    assert np.sqrt(np.mean(error**2)) < 0.15 * truth[:, 0].std()
    assert np.mean(np.abs(error) < 3 * std[12:24, 0]) > 0.9
    r.save(tmp_path / "fit.gprn")
    again = GPRNRegressor.load(tmp_path / "fit.gprn")
    np.testing.assert_array_equal(again.predict(time), mean)
    np.testing.assert_array_equal(again.sample(time[:4], 3), r.sample(time[:4], 3))
    assert r.output_correlation(time[:2]).shape == (2, 3, 3)
    assert r.log_predictive_density(time, truth).shape == truth.shape


def test_what_is_held_out_may_choose_it_and_everything_follows(tmp_path):
    time, hidden, _ = series()
    r = GPRNRegressor(2, **QUICK_CHOICE, steps=25, warm_start=True).fit(time, hidden)
    chosen = next(each for each in r.selection_ if each["is_chosen"])
    assert chosen["name"].startswith(COREGIONALISED)
    assert isinstance(r.model_, CoregionalisedGPRN)
    r.save(tmp_path / "fit.gprn")
    again = GPRNRegressor.load(tmp_path / "fit.gprn")
    np.testing.assert_array_equal(again.predict(time), r.predict(time))
    np.testing.assert_array_equal(again.predict(time, quantiles=(0.1,))[0], r.predict(time, quantiles=(0.1,))[0])
    before = r.elbo_
    assert r.fit(time, hidden).elbo_ >= before - 1e-6


def test_diagnostics_take_it():
    time, hidden, _ = series()
    r = GPRNRegressor(**QUICK).fit(time, hidden)
    report = diagnose(r)
    assert "exact, given weights" in report.findings["posterior"]
    assert 0.5 < report.coverage <= 1.0
    data = to_arviz(r, X=time[:4], draws=20, weights=True, correlation_at=time[:2])
    assert data["posterior"]["w"].shape == (1, 20, 40, 2, 3)
    signal = np.einsum("csnk,csnkd->csnd", data["posterior"]["f"].values, data["posterior"]["w"].values)
    standardised = (hidden - np.nanmean(hidden, 0)) / np.nanstd(hidden, 0)
    apart = standardised - signal.mean((0, 1))  # functions and weights belong together; the rest is an offset
    assert np.nanstd(apart, 0).max() < 0.2


@pytest.mark.parametrize("name", ["learning_rate", "kernel_w"])
def test_settings_that_it_does_not_have_are_refused(name):
    with pytest.raises(ValueError, match=f"inference='coregionalised' takes no {name}"):
        GPRNRegressor(**QUICK, **{name: 0.1 if name == "learning_rate" else "rbf"}).fit(X.numpy(), Y.numpy())
