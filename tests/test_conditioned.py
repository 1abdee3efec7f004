"""Predictions from draws that are conditioned on the data once are those of the straightforward computation."""

import copy
import pickle

import numpy as np
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample
from quick import quick_starts

import pyro_gprn.collapsed.conditioned
import pyro_gprn.collapsed.prediction
from pyro_gprn import CollapsedGPRN, CollapsedGuide, GPRNRegressor, learn_output_scales, posterior_predictive
from pyro_gprn.collapsed import spread
from pyro_gprn.collapsed.conditioned import FEWEST_DRAWS, MOST_DRAWS, ConditionedDraws, DrawsAlike
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.pyro_state import new_generator

RNG = torch.Generator().manual_seed(0)
X_NEW = torch.rand(7, 2, generator=RNG, dtype=torch.float64) * 1.4 - 0.2
N_DRAWS = 24


def problem(n_rows=12, n_outputs=9, *, holes=False, has_spread=False, own_kernels=False):
    generator = torch.Generator().manual_seed(n_rows)
    X = torch.rand(n_rows, 2, generator=generator, dtype=torch.float64)
    Y = torch.sin(3 * X[:, :1] + torch.arange(n_outputs)) + X[:, 1:]
    Y = Y + 0.2 * torch.randn(Y.shape, generator=generator, dtype=torch.float64)
    if holes:
        Y[2:5, 3] = torch.nan
        Y[7, 4:6] = torch.nan
    model = CollapsedGPRN(X, n_outputs, 2, noise_y=0.3, noise_f=0.1, jitter=0.0, own_kernels=own_kernels)
    if own_kernels:
        model.noise_y = torch.linspace(0.2, 0.5, n_outputs, dtype=torch.float64)
        model.kernel_w.kern0.lengthscale = torch.linspace(0.3, 1.0, 2 * n_outputs).double().reshape(n_outputs, 2)
    if has_spread:
        model.kernel_w = kernels.Matern52(2).double()
        model.kernel_w.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
        model.kernel_w.autoguide("lengthscale", dist.Normal)
        model.kernel_w.lengthscale_loc.data.fill_(-0.3)
        model.kernel_w.lengthscale_scale = torch.tensor(0.2)
    torch.manual_seed(1)
    return model, CollapsedGuide(model, init_scale=0.5), Y


@torch.no_grad()
def plainly(model, guide, Y, X_new, scales=None):
    """Mean and variance (noise included) of each output, one draw and one output at a time."""
    generator = new_generator(5)
    draws = PosteriorDraws.of(model, guide, N_DRAWS, mirrored=True, generator=generator)
    means, variances, noises = [], [], []

    def given(V):
        half = torch.randn(-(-len(V) // 2), 1, model.n_latents, generator=generator, dtype=torch.float64)
        n = model.n_rows
        inputs = torch.cat([model.X, X_new])
        Kf = model.kernel_f(inputs) + model.noise_f**2 * torch.eye(len(inputs), dtype=torch.float64)
        Lf = torch.linalg.cholesky(Kf[:n, :n])
        A = torch.linalg.solve(Kf[:n, :n], Kf[:n, n:]).mT
        rest = (Kf[n:, n:] - A @ Kf[:n, n:]).diagonal().sqrt()
        Kw, noise = model.kernel_w(inputs), model.noise_y.square().expand(Y.shape[1])
        for v, white in zip(V, torch.cat([half, -half]), strict=False):
            F = Lf @ v
            both = torch.cat([F, A @ F + rest[:, None] * white])
            by_output = []
            for d, y in enumerate(Y.T):
                C = (Kw[d] if model.own_kernels else Kw) * (both @ both.mT)
                seen = (~y.isnan()).nonzero().flatten()
                noisy = C[seen][:, seen] + noise[d] * torch.eye(len(seen), dtype=torch.float64)
                gain = torch.linalg.solve(noisy, C[seen][:, n:]).mT
                left = C.diagonal()[n:] - (gain * C[n:][:, seen]).sum(1)
                by_output.append(torch.stack([gain @ y[seen], left]))
            found = torch.stack(by_output, dim=-1)
            means.append(found[0])
            variances.append(found[1])
            noises.append(noise)

    draws.each(given)
    mean, within = torch.stack(means), torch.stack(variances).mean(0) + torch.stack(noises).mean(0)
    within = within if scales is None else within * scales.variance()
    return mean.mean(0), within + mean.var(0, correction=0)


CASES = {
    "complete": {},
    "holes": {"holes": True},
    "a spread": {"has_spread": True},
    "both": {"holes": True, "has_spread": True},
    "more outputs": {"n_outputs": 40},
    "own kernels": {"own_kernels": True},
    "own kernels, holes": {"own_kernels": True, "holes": True},
    "scattered": {"holes": True},
    "scattered, a spread": {"holes": True, "has_spread": True},
}


@pytest.mark.parametrize("with_scales", [False, True], ids=["one scale", "scales"])
@pytest.mark.parametrize("case", CASES)
def test_mean_and_variance_are_those_of_the_straightforward_computation(case, with_scales):
    model, guide, Y = problem(**CASES[case])
    scales = learn_output_scales(model, guide, Y, prior_degrees=2.0) if with_scales else None
    settings = {"n_draws": N_DRAWS, "output_scales": scales, "generator": new_generator(5)}
    known = OutputStatistics.of(Y, scattered="scattered" in case)
    predictive = posterior_predictive(model, guide, X_NEW, known, **settings)
    mean, variance = plainly(model, guide, Y, X_NEW, scales)
    torch.testing.assert_close(predictive.mean(), mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(predictive.variance(), variance, rtol=1e-7, atol=1e-10)
    together = torch.empty_like(mean), torch.empty_like(mean)
    predictive.fill_mean_and_variance(*together)
    torch.testing.assert_close(together, (mean, variance), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
def test_what_does_not_fit_into_memory_or_cache_at_once_changes_nothing(holes, monkeypatch):
    model, guide, Y = problem(holes=holes)

    def predict():
        predictive = posterior_predictive(model, guide, X_NEW, Y, n_draws=N_DRAWS, generator=new_generator(5))
        return predictive.mean(), predictive.variance(), predictive.log_density(torch.zeros(7, 9)), predictive.sample(4)

    expected = predict()
    monkeypatch.setattr(pyro_gprn.collapsed.conditioned, "MOST_KEPT", 0)
    monkeypatch.setattr(pyro_gprn.collapsed.conditioned, "MOST_MADE", 1)
    monkeypatch.setattr(pyro_gprn.collapsed.prediction, "CACHED_NUMBERS", 1)
    monkeypatch.setattr(pyro_gprn.collapsed.prediction, "HELD_NUMBERS", 1)
    torch.testing.assert_close(predict(), expected)


def test_matrices_that_cannot_be_kept_are_made_once_for_many_inputs(monkeypatch):
    model, guide, Y = problem()
    made = []
    make = DrawsAlike._make
    monkeypatch.setattr(DrawsAlike, "_make", lambda self: made.append(len(self.V)) or make(self))
    monkeypatch.setattr(pyro_gprn.collapsed.conditioned, "MOST_KEPT", 0)
    monkeypatch.setattr(pyro_gprn.collapsed.prediction, "CACHED_NUMBERS", 1)
    predictive = posterior_predictive(model, guide, X_NEW, Y)
    predictive.mean()
    assert made == [FEWEST_DRAWS]


def test_there_are_as_many_draws_as_can_be_kept(monkeypatch):
    model, guide, Y = problem()
    for n_kept, n_draws in ((10, FEWEST_DRAWS), (50, 50), (1000, MOST_DRAWS)):
        monkeypatch.setattr(pyro_gprn.collapsed.conditioned, "MOST_KEPT", 2 * n_kept * 12**2)
        assert ConditionedDraws.of(model, guide, Y).n_draws == n_draws


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
def test_few_directions_have_almost_all_of_the_variance(holes, monkeypatch):
    model, guide, Y = problem(30, 25, holes=holes)
    mean, exact = plainly(model, guide, Y, X_NEW)

    def predict():
        conditioned = ConditionedDraws.of(model, guide, Y, n_draws=N_DRAWS, generator=new_generator(5))
        predictive = posterior_predictive(model, guide, X_NEW, conditioned=conditioned)
        torch.testing.assert_close(predictive.mean(), mean, rtol=1e-8, atol=1e-10)
        return predictive.variance(), conditioned.directions.axes.shape[-1]

    monkeypatch.setattr(spread, "DROPPED", 0.0)
    variance, n_directions = predict()
    torch.testing.assert_close(variance, exact, rtol=1e-7, atol=0)
    assert n_directions == 30
    monkeypatch.setattr(spread, "MOST_FEATURES", 0)  # as for very many outputs
    variance, n_directions = predict()
    torch.testing.assert_close(variance, exact, rtol=0.2, atol=0)
    if not holes:  # with holes, sums are right over the outputs of each group
        torch.testing.assert_close(variance.sum(1), exact.sum(1), rtol=1e-7, atol=0)
    assert n_directions == spread.LEAST == 16


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "holes"])
@pytest.mark.parametrize(("n_outputs", "own_kernels", "n_directions"), [(9, False, 9), (9, True, 1), (1, False, 1)])
def test_a_few_outputs_vary_along_as_many_directions_exactly(n_outputs, own_kernels, n_directions, holes):
    model, guide, Y = problem(20, n_outputs, holes=holes and n_outputs > 1, own_kernels=own_kernels)
    mean, variance = plainly(model, guide, Y, X_NEW)
    conditioned = ConditionedDraws.of(model, guide, Y, n_draws=N_DRAWS, generator=new_generator(5))
    predictive = posterior_predictive(model, guide, X_NEW, conditioned=conditioned)
    torch.testing.assert_close(predictive.mean(), mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(predictive.variance(), variance, rtol=1e-8, atol=0)
    assert conditioned.directions.is_all
    sizes = conditioned.known.patterns_at(slice(None)).bincount()
    assert conditioned.directions.axes.shape[-1] == sizes.max() <= n_directions


def test_float32_products_give_six_digits_of_a_variance():
    model, guide, Y = problem(30, 25)
    variances = [
        posterior_predictive(model, guide, X_NEW, Y, variance_type=kind, generator=new_generator(5)).variance()
        for kind in (torch.float64, torch.float32)
    ]
    assert not torch.equal(*variances)
    torch.testing.assert_close(variances[1], variances[0], rtol=1e-5, atol=0)


@torch.no_grad()
def test_a_smooth_field_without_noise_is_predicted_as_exactly_as_by_triangular_solves():
    X = torch.linspace(0, 1, 25, dtype=torch.float64)[:, None]
    Y = torch.sin(3 * X + torch.linspace(0, 3, 40))
    model = CollapsedGPRN(X, 40, 1, kernel_f=kernels.Constant(1), kernel_w=kernels.RBF(1), noise_f=1e-6, noise_y=1e-6)
    v = torch.zeros(1, 25, 1, dtype=torch.float64)
    v[0, 0] = 1.0
    X_new = torch.linspace(0.01, 0.99, 30, dtype=torch.float64)[:, None]
    conditioned = ConditionedDraws.of(model, {"v": v}, Y, n_draws=1)
    mean = posterior_predictive(model, {"v": v}, X_new, conditioned=conditioned).mean()
    C = model.output_covariance(conditioned.parts[0].F[0], model.kernel_w(X), model.noise_y**2)
    assert torch.linalg.cond(C) > 1e10
    cross = conditioned.cross(conditioned.at(X_new))[0][0]
    solved = cross @ torch.cholesky_solve(Y, torch.linalg.cholesky(C))
    inverted = (cross @ torch.linalg.inv(C)) @ Y
    error = (mean - solved).abs().max()
    assert error < 1e-9
    assert error < 1e-3 * (inverted - solved).abs().max()


def test_gradients_reach_new_inputs():
    model, guide, Y = problem()
    inputs = X_NEW.clone().requires_grad_()
    mean = posterior_predictive(model, guide, inputs, Y, generator=new_generator(5)).mean()
    variance = posterior_predictive(model, guide, inputs, Y, generator=new_generator(5)).variance()
    for values, method in ((mean, "mean"), (variance, "variance")):
        (gradient,) = torch.autograd.grad(values[2, 3], inputs)
        assert torch.equal(gradient[:2], torch.zeros(2, 2))  # no other input matters
        step = torch.zeros_like(X_NEW)
        step[2, 1] = 1e-5
        ends = [posterior_predictive(model, guide, X_NEW + s * step, Y, generator=new_generator(5)) for s in (1, -1)]
        upper, lower = (getattr(end, method)([3])[2, 0] for end in ends)
        torch.testing.assert_close(gradient[2, 1], (upper - lower) / 2e-5, rtol=1e-5, atol=1e-8)
    assert not posterior_predictive(model, guide, X_NEW, Y).mean().requires_grad


@pytest.fixture(scope="module")
def fitted():
    _, _, Y = problem(20, 9, holes=True)
    X = problem(20, 9)[0].X.numpy()
    with quick_starts():
        return X, GPRNRegressor(2, steps=4, seed=0, progress=False).fit(X, Y.numpy())


def test_a_second_prediction_factorises_nothing(fitted, monkeypatch):
    X, r = fitted
    first = r.predict(X[:3] + 0.01, return_std=True)
    r.predict(X[:3], quantiles=(0.1,))
    calls = []
    for name in ("cholesky_ex", "cholesky", "eigh", "qr", "inv"):
        monkeypatch.setattr(torch.linalg, name, lambda *args, **kwargs: calls.append(args))
    again = r.predict(X[:3] + 0.01, return_std=True)
    r.predict(X[3:9])
    r.predict(X[3:9], quantiles=(0.1,))
    r.log_predictive_density(X[:3], first[0])
    assert calls == []
    for one, other in zip(again, first, strict=True):
        np.testing.assert_array_equal(one, other)


def test_predictions_follow_a_model_that_is_trained_further(fitted):
    X, r = fitted
    r = copy.deepcopy(r)
    before = r.predict(X[:3])
    with torch.no_grad():
        r.guide_.v_loc.add_(0.3)
    assert np.abs(r.predict(X[:3]) - before).max() > 1e-6
    with torch.no_grad():
        r.guide_.v_loc.sub_(0.3)
    np.testing.assert_allclose(r.predict(X[:3]), before, rtol=1e-9)


def test_what_is_kept_for_predictions_is_not_pickled(fitted):
    X, r = fitted
    mean = r.predict(X)
    size = len(pickle.dumps(r))
    r.predict(X, return_std=True)
    other = pickle.loads(pickle.dumps(r))
    assert len(pickle.dumps(r)) == size
    np.testing.assert_array_equal(other.predict(X), mean)


@pytest.mark.parametrize("method", ["predict", "sample", "quantiles", "density"])
def test_a_prediction_holds_one_torch_thread_and_puts_the_others_back(fitted, method, monkeypatch):
    X, r = fitted
    inside = []
    matmul = torch.matmul
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda *args: (inside.append(torch.get_num_threads()), matmul(*args))[1]
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        {
            "predict": lambda: r.predict(X, return_std=True),
            "sample": lambda: r.sample(X, 2),
            "quantiles": lambda: r.predict(X, quantiles=(0.1,)),
            "density": lambda: r.log_predictive_density(X, np.zeros((20, 9))),
        }[method]()
        assert set(inside) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
