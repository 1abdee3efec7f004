"""A kernel and a noise for each output, with shared functions."""

import copy
import dataclasses
import math

import numpy as np
import pyro.contrib.gp.kernels as gp
import pyro.distributions as dist
import pytest
import torch
from helpers import random_triangle, randomise
from pyro.infer import MCMC, NUTS, SVI, Predictive, TraceMeanField_ELBO
from pyro.nn import PyroSample
from pyro.optim import Adam
from torch.distributions import MultivariateNormal, kl_divergence

from pyro_gprn import (
    CollapsedGPRN,
    CollapsedGuide,
    GPRNRegressor,
    MatrixNormal,
    diagnose,
    fit_collapsed,
    learn_output_scales,
    output_correlation,
    posterior_predictive,
    sample_weights,
    to_arviz,
)
from pyro_gprn.baselines import independent_gps
from pyro_gprn.collapsed import bound, kernel_choice
from pyro_gprn.collapsed.bound import Factors, collapsed_bound, evaluate_bound, gauss_newton_rows
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.collapsed.independent import fit_independent, read_effective_outputs
from pyro_gprn.collapsed.kernel_choice import choose_kernel, choose_own_kernels, own_kernels_penalty
from pyro_gprn.collapsed.likelihood import CollapsedNormal, OutputsGivenF
from pyro_gprn.diagnostics.leave_one_out import describe_draws, predict_left_out
from pyro_gprn.network.kernels import KERNELS, named_kernel
from pyro_gprn.network.own_kernels import own_kernels, shared_kernel
from pyro_gprn.outputs import gram
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import isolated, new_generator

N, P, K, D = 7, 2, 2, 4
QUICK = {"steps": 15, "seed": 0, "progress": False}


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, X_NEW, Y = numbers(N, P), numbers(3, P, seed=1), numbers(N, D, seed=2)
EYE = torch.eye(N).double()
HOLES = Y.clone()
HOLES[1, :2] = torch.nan
HOLES[3:, 3] = torch.nan


def outputs(holes):
    return HOLES if holes else Y


def make(own=True, **settings):
    return CollapsedGPRN(X, D, K, noise_y=0.5, noise_f=0.1, own_kernels=own, **settings)


def varied(**settings):
    """A model whose outputs have hyperparameters that differ."""
    model = make(**settings)
    torch.manual_seed(3)
    randomise(model)
    return model


def alike():
    """A model with one kernel, and one that has the same for each output, with their guides."""
    shared, own = make(own=False), make()
    torch.manual_seed(4)
    randomise(shared)
    values = dict(shared.named_parameters())
    guide = CollapsedGuide(shared)
    randomise(guide)
    other = CollapsedGuide(own)
    other.load_state_dict(guide.state_dict())
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            parameter.copy_(values[name])
    return (shared, guide), (own, other)


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


holes = pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])


# Kernels.


@torch.no_grad()
def values(kernel, *inputs, **settings):
    """Of a kernel by itself: kernels share names in Pyro's own store."""
    with isolated():
        return kernel(*inputs, **settings)


@pytest.mark.parametrize("words", [*KERNELS, "rbf[1] * periodic[0] + linear", "matern52 + constant"])
def test_each_output_has_the_kernel_that_it_would_have_alone(words):
    shared = named_kernel(words, X).double()
    own = own_kernels(shared, 3).double()
    randomise(own)
    for inputs in ((X,), (X, X_NEW)):
        together = values(own, *inputs)
        assert together.shape == (3, N, len(inputs[-1]))
        for d in range(3):
            alone = copy.deepcopy(shared)
            with torch.no_grad():
                for name, parameter in alone.named_parameters():
                    parameter.copy_(own.get_parameter(name)[d].reshape(parameter.shape))
            close(together[d], values(alone, *inputs))
    close(values(own, X, diag=True), values(own, X).diagonal(dim1=-2, dim2=-1))


def test_a_product_of_matern_kernels_has_its_gradient():
    kernel = own_kernels(named_kernel("product_matern52", X), 3).double()
    names = [name for name, _ in kernel.named_parameters()]

    def value(*parameters):
        with isolated():
            return torch.func.functional_call(kernel, dict(zip(names, parameters, strict=True)), (X, X_NEW))

    assert torch.autograd.gradcheck(value, tuple(p.detach().requires_grad_() for p in kernel.parameters()))


def test_the_way_back_to_a_shared_kernel():
    shared = gp.Sum(gp.RBF(2, lengthscale=torch.tensor([1.0, 3.0])), gp.Constant(2, variance=torch.tensor(5.0)))
    back = shared_kernel(own_kernels(shared, 3))
    close(values(back.double(), X), values(shared.double(), X))


@pytest.mark.parametrize("kernel", [gp.Polynomial(2), gp.Cosine(2), gp.Warping(gp.RBF(2), lambda x: x)])
def test_kernels_that_cannot_be_had_for_each_output_are_refused(kernel):
    with pytest.raises(ValueError, match=f"kernel_w may have a kernel of its own .* got .*{type(kernel).__name__}"):
        make(kernel_w=kernel)


def test_a_prior_is_given_to_the_model_and_not_to_the_kernel_before():
    kernel = gp.RBF(2)
    kernel.variance = PyroSample(dist.LogNormal(0.0, 1.0))
    with pytest.raises(ValueError, match="without priors"):
        make(kernel_w=kernel)


# Densities.


@holes
def test_the_density_is_a_dense_normal_for_each_output(holes):
    model, Y = varied(jitter=0.0), outputs(holes)
    known, F = model.statistics(Y), numbers(2, N, K, seed=5)
    with torch.no_grad():
        Kw, noise = model.weights_and_noise()
        given = OutputsGivenF(model.output_covariance(F, Kw, noise), known)
        expected = torch.zeros(2, dtype=torch.float64)
        by_row = torch.zeros(2, N, dtype=torch.float64)
        for d in range(D):
            seen = ~Y[:, d].isnan()
            for s in range(2):
                C = Kw[d] * (F[s] @ F[s].T) + noise[d] * EYE
                normal = MultivariateNormal(torch.zeros(int(seen.sum())).double(), C[seen][:, seen])
                expected[s] += normal.log_prob(Y[seen, d])
                for n in seen.nonzero().flatten():
                    rest = seen & (torch.arange(N) != n)
                    without = MultivariateNormal(torch.zeros(int(rest.sum())).double(), C[rest][:, rest])
                    by_row[s, n] += normal.log_prob(Y[seen, d]) - without.log_prob(Y[rest, d])
        close(given.log_density(), expected, 1e-8)
        close(given.log_density_by_row(), by_row, 1e-8)


def test_a_covariance_that_all_outputs_share_is_refused_where_each_has_its_own():
    with pytest.raises(ValueError, match=r"must have shape \(…, 4, N, N\); got \(7, 7\)"):
        OutputsGivenF(torch.eye(N), OutputStatistics.of(Y).by_output)


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_draws_of_outputs_have_their_own_covariances(batch):
    covariance = numbers(*batch, D, N, N + 3)
    covariance = covariance @ covariance.mT / N
    y = CollapsedNormal(covariance, torch.Size((2, 2)), by_output=True)
    assert y.batch_shape == batch
    assert y.event_shape == (N, 2, 2)
    assert y.expand((5, *batch)).batch_shape == (5, *batch)
    torch.manual_seed(0)
    draws = y.sample((4000,)).flatten(-2)
    moments = torch.einsum("s...id,s...jd->...dij", draws, draws) / 4000
    torch.testing.assert_close(moments, covariance, rtol=0.2, atol=0.2)
    close(y.variance.flatten(-2), covariance.diagonal(dim1=-2, dim2=-1).mT)


# The bound.


def problem(holes):
    model = make(effective_outputs=3.0, jitter=1e-3)
    known = model.statistics(outputs(holes))
    torch.manual_seed(6)
    row, col, Lf = (random_triangle(size) for size in (N, K, N))
    Kw = numbers(D, N, N, seed=7)
    parts = (numbers(N, K), row, col, Lf, Kw @ Kw.mT, 0.1 + numbers(D, seed=8).square())
    return model, known, tuple(part.requires_grad_() for part in parts), numbers(4, N, K, seed=9)


@holes
@pytest.mark.parametrize("together", [True, False], ids=["together", "one-by-one"])
def test_value_and_gradient_of_the_bound_equal_autograd_through_the_parts(holes, together, monkeypatch):
    if not together:
        monkeypatch.setattr(bound, "MOST_NUMBERS", 1)
    model, known, parts, white = problem(holes)
    loc, row, col, Lf, Kw, noise = parts
    by_hand = collapsed_bound(model, Factors(loc, row, col), (Lf, Kw, noise), white, known)
    C = model.output_covariance(Lf @ (loc + row @ white @ col.mT), Kw, noise)
    density = OutputsGivenF(C, known).log_density().mean()
    by_autograd = 3.0 / D * density - kl_divergence(MatrixNormal(loc, row, col), model.prior())
    close(by_hand, by_autograd)
    close(evaluate_bound(model, Factors(loc, row, col), (Lf, Kw, noise), white, known), by_autograd.detach())
    gradients, expected = torch.autograd.grad(by_hand, parts), list(torch.autograd.grad(by_autograd, parts))
    expected[1:3] = (each.tril() for each in expected[1:3])  # what lies above the diagonal is no parameter
    for ours, theirs in zip(gradients, expected, strict=True):
        close(ours, theirs, 1e-8)


@holes
def test_gradient_of_the_bound_by_finite_differences(holes):
    model, known, parts, white = problem(holes)

    def value(loc, row, col, Lf, Kw, noise):
        symmetric = 0.5 * (Kw + Kw.mT)
        return collapsed_bound(model, Factors(loc, row.tril(), col.tril()), (Lf, symmetric, noise), white[:2], known)

    assert torch.autograd.gradcheck(value, parts)


@holes
def test_gauss_newton_is_the_expected_hessian(holes, monkeypatch):
    """For data whose second moment is the model's, the Hessian by F is minus what is expected."""
    monkeypatch.setattr(gram, "FEW", N + 1)  # the density goes by Gram matrices: these below belong to no outputs
    model, known, parts, _ = problem(holes)
    Kw, noise = parts[4].detach(), parts[5].detach()
    F = numbers(N, K, seed=10)
    covariance = model.output_covariance(F, Kw, noise)
    ideal = known.observed.double()
    grams = covariance * ideal.unsqueeze(-1) * ideal.unsqueeze(-2)
    expected = dataclasses.replace(known, grams=grams)

    def density(column):
        moved = torch.stack([column, F[:, 1]], 1)
        return OutputsGivenF(model.output_covariance(moved, Kw, noise), expected).log_density()

    model.jitter = 0.0
    hessian = torch.autograd.functional.hessian(density, F[:, 0].clone())
    given = OutputsGivenF(model.output_covariance(F[None], Kw, noise), known)
    # the expected Hessian leaves out the second derivative of C, which the score multiplies: zero for ideal data
    close(given.gauss_newton(F[None], Kw, torch.tensor([1.0, 0.0]).double()), -hessian, 1e-2)


# With equal hyperparameters everything is as with the shared kernel.


@holes
def test_with_equal_kernels_all_results_are_those_of_the_shared_one(holes):
    data = outputs(holes)
    results = []
    for model, guide in alike():
        known = model.statistics(data)
        q = Factors(guide.v_loc, guide.v_scale_row, guide.v_scale_col)
        covariances, white = model.covariances(), numbers(4, N, K)
        scales = learn_output_scales(model, guide, data, prior_degrees=2.0, generator=new_generator(0))
        new = posterior_predictive(model, guide, X_NEW, data, n_draws=6, generator=new_generator(0))
        scaled = posterior_predictive(
            model, guide, X_NEW, data, n_draws=6, output_scales=scales, generator=new_generator(0)
        )
        draws = describe_draws(model, guide, 5, data, generator=new_generator(0))
        left_out = predict_left_out(draws.draws, torch.arange(D), data, generator=new_generator(0))
        results.append(
            {
                "bound": collapsed_bound(model, q, covariances, white, known),
                "value": evaluate_bound(model, q, covariances, white, known),
                "rows": gauss_newton_rows(model, covariances, white, torch.ones(K).double(), known),
                "mean": new.mean(),
                "variance": new.variance(),
                "variance of two": new.variance([2, 0]),
                "scaled variance": scaled.variance(),
                "density": new.log_density(numbers(3, D)),
                "draws": new.sample(4),
                "scaled draws": scaled.sample(4),
                "quantiles": scaled.quantiles((0.1, 0.9)),
                "degrees": scales.degrees,
                "squares": scales.squares,
                "joint": draws.log_joint,
                "by row": draws.by_row,
                "left out": left_out.mean,
                "left-out variance": left_out.variance,
                "residuals": left_out.residual_squares,
                "correlation": output_correlation(model, guide, X_NEW, [0, 2], data, generator=new_generator(0)),
            }
        )
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, rtol=1e-10, atol=1e-10, msg=name)


# Independent GPs with a kernel each.


def test_outputs_that_share_a_kernel_count_twice_and_those_with_their_own_once():
    inputs, data = numbers(40, 2), numbers(40, 12, seed=5)
    copies = torch.cat([data, data], 1)  # 24 outputs, worth 12 at most
    found = {}
    for own in (False, True):
        model = CollapsedGPRN(inputs, 24, 1, noise_y=0.5, own_kernels=own)
        found[own] = read_effective_outputs(model, model.statistics(copies))
    assert 6 < found[True] < 12
    close(found[False], 2 * found[True])


@holes
def test_independent_gps_with_a_kernel_each_are_separate_regressions(holes):
    grid = torch.linspace(0, 3, 18)[:, None].double()
    table = torch.cat([torch.sin(2 * grid), torch.sin(7 * grid), grid**2], 1) + 0.1 * numbers(18, 3)
    table[:, 2] *= 10  # units of its own
    if holes:
        table[3, 0] = table[8:10, 1] = torch.nan
    model, draw = independent_gps(grid, table, 3, own_kernels=True)
    together = posterior_predictive(model, draw, grid + 0.05)
    again = CollapsedGPRN(grid, 3, 1, own_kernels=True)
    evidence = fit_independent(again, again.statistics(table))
    alone = 0.0
    for d in range(3):
        one, of_one = independent_gps(grid, table[:, d : d + 1], 1)
        alone += fit_independent(one, one.statistics(), from_here=True)
        separate = posterior_predictive(one, of_one, grid + 0.05)
        torch.testing.assert_close(together.mean()[:, d : d + 1], separate.mean(), rtol=1e-3, atol=1e-2)
    assert evidence == pytest.approx(alone, abs=0.05)


def test_each_finds_the_start_that_is_best_for_it():
    """A smooth output without noise beside a rough, noisy one of five inputs: as good as two separate searches."""
    x = torch.rand(60, 5, generator=torch.Generator().manual_seed(0)).double()
    smooth = torch.sin(3 * x[:, 0]) + x[:, 1] ** 2
    rough = torch.sin(12 * x[:, 0]) * (0.5 + x[:, 3]) + 0.1 * numbers(60)
    table = torch.stack([smooth, rough], 1) - torch.stack([smooth, rough], 1).mean(0)
    together = CollapsedGPRN(x, 2, 1, own_kernels=True)
    alone = 0.0
    for d in range(2):
        one = CollapsedGPRN(x, 1, 1)
        alone += fit_independent(one, one.statistics(table[:, d : d + 1]))
    assert fit_independent(together, together.statistics(table)) == pytest.approx(alone, abs=1e-6)
    with torch.no_grad(), isolated():
        covariance = together.output_covariance(torch.ones(60, 1).double(), *together.weights_and_noise())
    assert OutputsGivenF(covariance, together.statistics()).log_density().item() == pytest.approx(alone, abs=1e-4)


def test_their_evidence_and_predictions_are_those_of_gaussian_process_regression():
    model = CollapsedGPRN(X, D, 1, kernel_f=gp.Constant(P), noise_f=1e-6, own_kernels=True, jitter=0.0)
    torch.manual_seed(0)
    randomise(model.kernel_w)
    with torch.no_grad():
        Lf = model.functions_factor()
        v = torch.linalg.solve_triangular(Lf, torch.ones(N, 1).double(), upper=False)
        predictive = posterior_predictive(model, {"v": v[None]}, X_NEW, Y)
        with isolated():
            Kw, cross, prior = model.kernel_w(X), model.kernel_w(X_NEW, X), model.kernel_w(X_NEW)
        for d in range(D):
            C = Kw[d] + model.noise_y[d].square() * EYE
            solved = torch.linalg.solve(C, cross[d].T)
            torch.testing.assert_close(predictive.mean()[:, d], solved.T @ Y[:, d], rtol=1e-4, atol=1e-5)
            variance = prior[d].diagonal() + model.noise_y[d].square() - (cross[d] * solved.T).sum(1)
            torch.testing.assert_close(predictive.variance()[:, d], variance, rtol=1e-4, atol=1e-5)


# Predictions given functions, weights.


def test_noise_and_variance_of_a_selection_are_those_outputs():
    model = varied()
    guide = CollapsedGuide(model)
    predictive = posterior_predictive(model, guide, X_NEW, Y, generator=new_generator(0))
    for noise in (True, False):
        close(predictive.variance([2, 0], noise=noise), predictive.variance(noise=noise)[:, [2, 0]])
    close(predictive.variance() - predictive.variance(noise=False), model.noise_y.square().expand(3, D).detach())


@holes
def test_draws_of_weights_reproduce_the_mean(holes):
    """E[y*] = E[Σ_k W f]: over draws of weights and functions at the training inputs, without noise."""
    model, data = varied(), outputs(holes)
    v = numbers(1, N, K)
    sites = {"v": v.expand(2000, N, K)}
    W = sample_weights(model, sites, X, 0, Y=data, generator=new_generator(0))
    with torch.no_grad():
        Lf, Kw, noise = model.covariances()
        F = Lf @ v[0]
        C = model.output_covariance(F, Kw, noise)
        signal = C - noise[:, None, None] * EYE
        means = torch.einsum("snkd,nk->snd", W, F).mean(0)
        for d in range(D):
            seen = ~data[:, d].isnan()
            expected = signal[d][:, seen] @ torch.linalg.solve(C[d][seen][:, seen], data[seen, d])
            torch.testing.assert_close(means[:, d], expected, rtol=0.1, atol=0.1)


# Pyro.


def test_it_is_a_pyro_model():
    model = make()
    assert model().shape == (N, D)
    guide = CollapsedGuide(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), TraceMeanField_ELBO(num_particles=2, vectorize_particles=True))
    history = [svi.step(Y) for _ in range(60)]
    assert sum(history[-10:]) < sum(history[:10])
    for parallel in (False, True):
        assert Predictive(model, guide=guide, num_samples=5, parallel=parallel)()["y"].shape == (5, N, D)


@pytest.mark.parametrize("each", [True, False], ids=["each-output", "one-for-all"])
def test_priors_on_the_hyperparameters_of_each_output_or_of_all(each):
    model = make()
    one = dist.LogNormal(torch.tensor(-1.0), torch.tensor(0.3))
    model.noise_y = PyroSample(one.expand([D]).to_event(1) if each else one)
    model.kernel_w.kern0.lengthscale = PyroSample(one.expand([D, P]).to_event(2) if each else one)
    mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=4, warmup_steps=3, disable_progbar=True)
    mcmc.run(HOLES)
    samples = mcmc.get_samples()
    assert samples["noise_y"].shape == ((4, D) if each else (4,))
    predictive = posterior_predictive(model, samples, X_NEW, HOLES)
    assert torch.isfinite(predictive.log_density(numbers(3, D))).all()
    assert predictive.sample(3).shape == (3, 3, D)
    fit = fit_collapsed(model, HOLES, **QUICK)
    assert math.isfinite(fit.bound)
    assert fit.bound >= fit.start


# Training and what comes after.


def units():
    """Three outputs of different length-scales and units."""
    grid = np.linspace(0, 1, 24)[:, None]
    rng = np.random.default_rng(0)
    table = np.hstack([np.sin(3 * grid), 100 * np.sin(20 * grid), grid**2 + 0.3 * rng.normal(size=grid.shape)])
    return grid, table + 0.01 * table.std(0) * rng.normal(size=table.shape)


@holes
@pytest.mark.parametrize("posterior", ["variational", "laplace"])
def test_training_raises_the_bound_above_independent_gps(posterior, holes):
    grid, table = (torch.from_numpy(each) for each in units())
    if holes:
        table[4, 0] = table[7:9, 1] = torch.nan
    model = CollapsedGPRN(grid, 3, 2, own_kernels=True, effective_outputs="auto")
    fit = fit_collapsed(model, table, posterior=posterior, **QUICK)
    assert fit.bound >= fit.start
    assert 1 <= model.effective_outputs <= 3
    lengths = model.kernel_w.kern0.lengthscale.detach().flatten()
    assert lengths[1] < lengths[0]


def test_without_noise_functions_that_are_constant_keep_the_evidence_of_independent_gps():
    grid = torch.linspace(0, 1, 30)[:, None].double()
    table = torch.cat([torch.sin(3 * grid), torch.sin(9 * grid)], 1)  # no noise
    bounds = {}
    for start in ("independent", "constant functions"):
        model = CollapsedGPRN(grid, 2, 2, own_kernels=True)
        fit = fit_collapsed(model, table, starts=[start], **QUICK | {"steps": 60})
        bounds[start] = fit.bound
    assert bounds["independent"] < 0.5 * fit.evidence
    assert 0.9 * fit.evidence < bounds["constant functions"] < fit.evidence


def test_a_fit_is_resumed_and_that_of_a_shared_kernel_is_not_taken_for_it(tmp_path):
    def fit(own, path, stop=None):
        def callback(step, bound):
            if step == stop:
                raise InterruptedError

        model = CollapsedGPRN(X, D, 1, own_kernels=own)
        return fit_collapsed(model, HOLES, checkpoint=path, callback=callback, **QUICK)

    whole = fit(True, tmp_path / "whole.ckpt")
    with pytest.raises(InterruptedError):
        fit(True, tmp_path / "part.ckpt", stop=10)
    assert fit(True, tmp_path / "part.ckpt").bound == pytest.approx(whole.bound, abs=1e-9)
    with pytest.raises(ValueError, match="another fit"):
        fit(False, tmp_path / "whole.ckpt")


def test_diagnostics_know_the_outputs_hyperparameters():
    model = varied()
    guide = CollapsedGuide(model)
    model.statistics(HOLES)
    data = to_arviz((model, guide), X=X_NEW.numpy(), draws=6, outputs=[0, 2], weights=True, correlation_at=X_NEW[:1])
    posterior = data["posterior"]
    assert posterior["noise_y"].dims == ("chain", "draw", "each_output")
    assert posterior["kernel_w.kern0.lengthscale"].dims == ("chain", "draw", "each_output", "input")
    assert posterior["w"].shape == (1, 6, N, K, 2)
    assert data["prior_predictive"]["y"].shape == (1, 6, N, 2)
    assert np.isfinite(data["log_likelihood"]["y"].values).all()
    assert 0 <= diagnose((model, guide)).coverage <= 1


def test_leaving_a_row_out_is_predicting_it_from_the_others():
    """With functions that are constant, of the same value in a new row, it is exact Gaussian process regression."""
    model = CollapsedGPRN(X, D, 1, kernel_f=gp.Constant(P), noise_f=1e-6, own_kernels=True, jitter=0.0)
    torch.manual_seed(0)
    randomise(model.kernel_w)
    with torch.no_grad():
        v = torch.linalg.solve_triangular(model.functions_factor(), torch.ones(N, 1).double(), upper=False)
        left_out = predict_left_out(PosteriorDraws.of(model, {"v": v[None]}, 0), torch.arange(D), HOLES)
        Kw, noise = model.weights_and_noise()
        for d in range(D):
            for n in range(N):
                rest = ~HOLES[:, d].isnan() & (torch.arange(N) != n)
                C = Kw[d] + noise[d] * EYE
                expected = Kw[d][n, rest] @ torch.linalg.solve(C[rest][:, rest], HOLES[rest, d])
                torch.testing.assert_close(left_out.mean[0, n, d], expected, rtol=1e-3, atol=1e-4)


# The choice by evidence, and the estimator.


def test_outputs_of_different_length_scales_get_kernels_of_their_own():
    grid, table = (torch.from_numpy(each) for each in units())
    known = OutputStatistics.of((table - table.mean(0)) / table.std(0))
    choice = choose_own_kernels(grid, known)
    assert choice.own_kernels
    assert choice.name in choice.evidence
    shared = choose_kernel(grid, known)
    assert max(choice.evidence.values()) > max(shared.evidence.values()) + own_kernels_penalty(grid, known, "rbf")


def test_outputs_of_one_kernel_share_it():
    grid = torch.linspace(0, 1, 30)[:, None].double()
    with torch.no_grad(), isolated():
        root = torch.linalg.cholesky(gp.RBF(1, lengthscale=torch.tensor(0.2)).double()(grid) + 1e-2 * torch.eye(30))
    assert choose_own_kernels(grid, OutputStatistics.of(root @ numbers(30, 4)), ["rbf"]) == choose_kernel(
        grid, OutputStatistics.of(root @ numbers(30, 4)), ["rbf"]
    )


@pytest.mark.parametrize("n_outputs", [1, kernel_choice.MOST_OUTPUTS + 1])
def test_of_one_output_or_many_it_is_not_asked(n_outputs, monkeypatch):
    asked = []
    monkeypatch.setattr(kernel_choice, "own_kernels_penalty", lambda *_: asked.append(1) or 0.0)
    assert not choose_own_kernels(X, OutputStatistics.of(numbers(N, n_outputs)), ["rbf"]).own_kernels
    assert not asked


def test_where_a_product_for_each_output_is_too_much_the_next_kernel_is_tried(monkeypatch):
    X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Y = torch.stack([torch.sin(a * X[:, 0]) + torch.cos(b * X[:, 1]) for a, b in ((2, 9), (9, 2))], 1)
    known = OutputStatistics.of((Y - Y.mean(0)) / Y.std(0))
    names = ["product_matern32", "matern32", "rbf"]
    monkeypatch.setattr(kernel_choice, "MARGIN", math.inf)  # the first of them is taken
    monkeypatch.setattr(kernel_choice, "MOST_NUMBERS", 2 * 30**2)  # of P arrays of N×N
    assert choose_kernel(X, known, names).name == "product_matern32"
    choice = choose_own_kernels(X, known, names)
    assert choice.own_kernels
    assert choice.evidence.keys() == {"matern32", "rbf"}


def test_a_product_that_is_asked_for_is_taken_even_of_one_column():
    grid, table = units()
    r = GPRNRegressor(2, kernel_w="product_matern52", selection=False, **QUICK).fit(grid, table)
    assert torch.from_numpy(r.predict(grid)).isfinite().all()


def test_the_penalty_counts_each_outputs_own_numbers():
    known = OutputStatistics.of(HOLES)
    seen = torch.tensor([6.0, 6.0, 7.0, 3.0])
    expected = 0.5 * 5 * (seen.log().sum() - seen.sum().log())  # two length-scales, two variances, a noise
    assert own_kernels_penalty(X, known, "rbf") == pytest.approx(expected.item())


@pytest.mark.parametrize("with_data", [True, False])
def test_an_estimator_chooses_kernels_of_their_own_and_keeps_them_in_a_file(with_data, tmp_path):
    grid, table = units()
    table[3, 0] = np.nan
    r = GPRNRegressor(2, selection=False, **QUICK).fit(grid, table)
    assert r.own_kernels_
    assert r.model_.noise_y.shape == (3,)
    r.save(tmp_path / "fit.gprn", with_data=with_data)
    again = GPRNRegressor.load(tmp_path / "fit.gprn", Y=None if with_data else table)
    assert again.own_kernels_
    assert again.own_kernels == "auto"
    for ours, theirs in zip(
        r.predict(grid + 0.01, return_std=True), again.predict(grid + 0.01, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(r.sample(grid[:3], 4), again.sample(grid[:3], 4))
    warm = r.set_params(warm_start=True).fit(grid, table)
    assert warm.own_kernels_
    assert to_arviz(again, draws=3)["posterior"]["noise_y"].coords["each_output"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"own_kernels": False}, False),
        ({"own_kernels": True}, True),
        ({"own_kernels": True, "kernel_w": gp.Matern32(1)}, True),
        ({"kernel_w": gp.Matern32(1)}, False),
        ({"kernel_w": "rbf"}, True),
        ({"inference": "kronecker"}, False),
    ],
    ids=str,
)
def test_the_setting_is_what_is_fitted(settings, expected):
    assert GPRNRegressor(1, selection=False, **{**QUICK, "steps": 2} | settings).fit(*units()).own_kernels_ is expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"own_kernels": "each"}, "'auto', True or False; got 'each'"),
        ({"own_kernels": True, "inference": "kronecker"}, "needs inference='collapsed'"),
    ],
)
def test_wrong_settings_have_their_own_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        GPRNRegressor(**settings).fit(*units())
