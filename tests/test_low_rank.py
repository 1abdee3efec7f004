"""Inducing inputs: the bound and what follows from it, against the exact network and dense algebra."""

import math

import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from helpers import log_density, randomise
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, TraceMeanField_ELBO
from pyro.nn import PyroSample
from pyro.optim import Adam
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_gprn import CollapsedGPRN, CollapsedGuide, learn_output_scales, posterior_predictive, sample_weights
from pyro_gprn.collapsed import low_rank
from pyro_gprn.collapsed.bound import Factors, collapsed_bound
from pyro_gprn.collapsed.inducing import LowRankCovariances, at_rows
from pyro_gprn.collapsed.low_rank import OutputsGivenInducing, low_rank_density
from pyro_gprn.diagnostics.leave_one_out import describe_draws
from pyro_gprn.outputs import compressed
from pyro_gprn.outputs.compressed import CompressedStatistics
from pyro_gprn.pyro_state import new_generator, white_noise

N, K, D = 20, 2, 6


def make_outputs(holes, n_rows=N, n_outputs=D, seed=0):
    Y = torch.randn(n_rows, n_outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if holes:
        Y[:3, 2] = torch.nan  # few rows are missing
        Y[4:-2, 3] = torch.nan  # and nearly all
    return Y


def make_pair(holes=False, **settings):
    """The exact network and that with Z = X, with their guides in the same random state."""
    X = torch.rand(N, 2, generator=torch.Generator().manual_seed(1))
    shared = {"output_shape": D, "n_latents": K, "noise_f": 0.2, "noise_y": 0.3, "effective_outputs": 4.0} | settings
    exact, low = CollapsedGPRN(X, **shared), CollapsedGPRN(X, inducing=X, **shared)
    guides = [CollapsedGuide(model) for model in (exact, low)]
    randomise(guides[0])
    guides[1].load_state_dict(guides[0].state_dict())
    Y = make_outputs(holes)
    for model in (exact, low):
        model.statistics(Y)
    return (exact, guides[0]), (low, guides[1])


@pytest.mark.parametrize("holes", [False, True])
def test_with_all_rows_as_inducing_inputs_the_bound_is_the_exact_one(holes):
    bounds, white = [], torch.randn(4, N, K, dtype=torch.float64)
    for model, guide in make_pair(holes):
        q = Factors(guide.v_loc, guide.v_scale_row, guide.v_scale_col)
        bounds.append(collapsed_bound(model, q, model.covariances(), white, model.statistics()))
    torch.testing.assert_close(*bounds, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("holes", [False, True])
def test_with_all_rows_as_inducing_inputs_predictions_are_the_exact_ones(holes):
    X_new = torch.rand(7, 2)
    exact, low = (
        posterior_predictive(model, guide, X_new, n_draws=32, generator=new_generator(0))
        for model, guide in make_pair(holes)
    )
    y = torch.randn(7, D)
    for ask in (
        lambda p: p.mean(),
        lambda p: p.variance(),
        lambda p: p.variance([1, 3], noise=False),
        lambda p: p.quantiles([0.1, 0.9]),
        lambda p: p.log_density(y),
    ):
        torch.testing.assert_close(ask(exact), ask(low), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("holes", [False, True])
def test_with_all_rows_as_inducing_inputs_leave_one_out_is_the_exact_one(holes):
    exact, low = (describe_draws(*pair, 5, generator=new_generator(0)) for pair in make_pair(holes))
    torch.testing.assert_close(exact.by_row, low.by_row, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(exact.log_joint, low.log_joint, rtol=1e-8, atol=1e-8)


def test_joint_draws_and_weights_have_the_moments_of_the_exact_network():
    X_new = torch.rand(3, 2, generator=torch.Generator().manual_seed(2))
    draws, weights = [], []
    for model, guide in make_pair(True):
        predictive = posterior_predictive(model, guide, X_new, n_draws=100, generator=new_generator(0))
        draws.append(predictive.sample(600).flatten(1))
        weights.append(sample_weights(model, guide, X_new, 300, [0, 3], generator=new_generator(0)).flatten(1))
    for exact, low in (draws, weights):
        scale = exact.std(0)
        torch.testing.assert_close(low.mean(0) / scale, exact.mean(0) / scale, atol=0.3, rtol=0)
        torch.testing.assert_close(low.std(0) / scale, torch.ones_like(scale), atol=0.25, rtol=0)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("at_once", [3, 2**20], ids=["few-rows", "all-rows"])
def test_gradients_of_the_bound_by_finite_differences(holes, at_once, monkeypatch):
    m = 4
    monkeypatch.setattr(low_rank, "BLOCK_NUMBERS", at_once * m * K)
    known = CompressedStatistics.of(make_outputs(holes, 9))
    mean, A = torch.randn(2, 9, K, dtype=torch.float64), torch.randn(9, m, dtype=torch.float64)
    left, weights_left = torch.rand(2, 9, dtype=torch.float64)
    parts = mean, left, A, weights_left, torch.tensor(0.4, dtype=torch.float64)

    def value(mean, *rest):
        return low_rank_density(mean, LowRankCovariances(A, *rest), known)

    torch.autograd.gradcheck(value, tuple(part.clone().requires_grad_() for part in parts))
    torch.autograd.gradcheck(lambda mean: value(mean, *parts[1:]), mean.requires_grad_())


def weights_at(model, Z, F):
    """Covariances with exact functions, and weights that have inducing inputs Z."""
    nothing = torch.zeros(len(F), dtype=F.dtype)
    part = CollapsedGPRN(model.X, D, K, inducing=Z, noise_y=0.3)
    part.load_state_dict({k: v for k, v in model.state_dict().items() if k not in ("X", "Z")}, strict=False)
    return LowRankCovariances(F, nothing, *at_rows(part.kernel_w, model.X, Z, part.weights_factor()), part.noise_y**2)


@given(seed=st.integers(0, 10_000), holes=st.booleans())
@settings(max_examples=25, deadline=None)
def test_given_the_functions_the_bound_is_below_the_exact_density_and_rises_with_nested_inducing_inputs(seed, holes):
    generator = torch.Generator().manual_seed(seed)
    X, F = (torch.randn(N, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    Y = make_outputs(holes, seed=seed)
    exact = CollapsedGPRN(X, D, K, noise_y=0.3)
    randomise(exact.kernel_w)
    with torch.no_grad():
        _, Kw, noise = exact.covariances()
        highest = log_density(exact.output_covariance(F, Kw, noise), exact.statistics(Y))
        known = CompressedStatistics.of(Y)
        bounds = [low_rank_density(F[None], weights_at(exact, X[:m], F), known)[0] for m in (1, 3, 8, 15, N)]
    slack = 1e-6 * highest.abs()
    assert all(lower <= upper + slack for lower, upper in zip(bounds, [*bounds[1:], highest], strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_given_inducing_values_the_bound_is_below_the_mean_log_density_of_the_functions_that_go_with_them(seed):
    """The functions of all rows are drawn jointly, by dense algebra: no independence between rows is assumed."""
    torch.manual_seed(seed)
    X, Y = torch.rand(N, 1), make_outputs(False, seed=seed)
    shared = {"output_shape": D, "n_latents": K, "noise_f": 0.3, "noise_y": 0.4}
    exact, low = CollapsedGPRN(X, **shared), CollapsedGPRN(X, inducing=X[:5], **shared)
    with torch.no_grad():
        V = torch.randn(5, K, dtype=torch.float64)
        covariances = low.covariances()
        bound = OutputsGivenInducing(V, covariances, low.statistics(Y)).log_density()
        Lf, Kw, noise = exact.covariances()
        A, Kf = covariances.functions, Lf @ Lf.mT
        values, vectors = torch.linalg.eigh(Kf - A @ A.mT)
        root = vectors * values.clamp(min=0.0).sqrt()
        F = A @ V + root @ torch.randn(4000, N, K, dtype=torch.float64)
        densities = log_density(exact.output_covariance(F, Kw, noise), exact.statistics(Y))
    torch.testing.assert_close((Kf - A @ A.mT).diagonal(), covariances.functions_left, atol=1e-8, rtol=1e-6)
    assert bound < densities.mean() + 4 * densities.std() / len(densities) ** 0.5


def test_an_inducing_input_that_is_a_row_shares_its_noise_and_another_one_has_its_own():
    X = torch.rand(N, 1, dtype=torch.float64)
    settings = {"output_shape": D, "n_latents": K, "noise_f": 0.5}
    of_rows = CollapsedGPRN(X, inducing=X[:4], **settings).covariances()
    of_others = CollapsedGPRN(X, inducing=X[:4] + 1e-9, **settings).covariances()
    assert of_rows.functions_left[:4].max() < 1e-8
    assert of_others.functions_left.min() > 0.1
    assert of_rows.functions_left[4:].min() > 0.25 - 1e-6


# Many outputs: few columns stand for them.


@pytest.fixture
def few_columns(monkeypatch):
    monkeypatch.setattr(compressed, "MOST_COLUMNS", 8)
    monkeypatch.setattr(compressed, "LEADING", 3)
    monkeypatch.setattr(compressed, "OVERSAMPLING", 2)
    monkeypatch.setattr(compressed, "CHUNK_BYTES", 8 * N * 7)


def many_outputs(holes, noise):
    Y = torch.randn(N, 3, dtype=torch.float64) @ torch.randn(3, 40, dtype=torch.float64)
    Y += noise * torch.randn(N, 40, dtype=torch.float64)
    if holes:
        Y[:5, ::2] = torch.nan
    return Y


@pytest.mark.parametrize("holes", [False, True])
def test_columns_that_stand_for_many_outputs_keep_the_bound_a_bound_and_lose_nothing_of_a_low_rank(
    holes, few_columns, monkeypatch
):
    for noise in (0.0, 0.5):
        Y = many_outputs(holes, noise)
        known = CompressedStatistics.of(Y)
        assert known.columns.shape[1] < 10
        monkeypatch.setattr(compressed, "MOST_COLUMNS", 100)
        whole = CompressedStatistics.of(Y)
        monkeypatch.setattr(compressed, "MOST_COLUMNS", 8)
        model = CollapsedGPRN(torch.rand(N, 1), 40, K, inducing=6)
        V = torch.randn(6, K, dtype=torch.float64)
        bound, exact = (OutputsGivenInducing(V, model.covariances(), each).log_density() for each in (known, whole))
        torch.testing.assert_close(known.squares, whole.squares)
        if noise:
            assert bound < exact
        else:
            torch.testing.assert_close(bound, exact, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("holes", [False, True])
def test_the_mean_of_a_prediction_loses_nothing_to_the_columns(holes, few_columns, monkeypatch):
    """At inducing inputs and by one draw, where nothing differs from the mean of the draws, it is the same."""
    Y, X = many_outputs(holes, 0.5), torch.rand(N, 1)
    model = CollapsedGPRN(X, 40, K, inducing=6, noise_f=1e-6)
    posterior = {"v": torch.randn(1, 6, K, dtype=torch.float64)}
    means = []
    for most in (8, 100):
        monkeypatch.setattr(compressed, "MOST_COLUMNS", most)
        means.append(posterior_predictive(model, posterior, model.Z, Y.clone(), generator=new_generator(0)).mean())
    torch.testing.assert_close(*means, rtol=1e-3, atol=1e-3)


def test_float32_outputs_are_read_as_they_are():
    Y = make_outputs(True).float()
    single, double = (CompressedStatistics.of(each) for each in (Y, Y.double()))
    torch.testing.assert_close(single.columns, double.columns, rtol=0, atol=0)
    assert single.columns.dtype == torch.float64


def test_statistics_of_some_rows_are_those_of_the_rows_alone():
    Y, rows = make_outputs(True), torch.tensor([0, 3, 5, 18])
    part, alone = CompressedStatistics.of(Y).at_rows(rows), Y[rows]
    torch.testing.assert_close(part.columns, alone.nan_to_num(0.0))
    torch.testing.assert_close(part.squares.sum(), alone.nan_to_num(0.0).square().sum())
    assert torch.equal(part.observed[part.pattern_of].mT, ~alone.isnan())


# A citizen of Pyro.


def small_model(**settings):
    X = torch.linspace(0, 1, 30)[:, None]
    return CollapsedGPRN(X, output_shape=(2, 3), n_latents=2, inducing=5, noise_y=0.5, noise_f=0.1, **settings)


def small_outputs():
    return torch.randn(30, 2, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("particles", [{}, {"num_particles": 3, "vectorize_particles": True}], ids=["one", "three"])
def test_svi_trains_it_with_the_divergence_in_closed_form(particles):
    model, Y = small_model(), small_outputs()
    guide = CollapsedGuide(model)
    assert guide.posterior().event_shape == (5, 2)
    svi = SVI(model, guide, Adam({"lr": 0.02}), TraceMeanField_ELBO(**particles))
    history = [svi.step(Y) for _ in range(30)]
    assert sum(history[-10:]) < sum(history[:10])
    guide.set_rows(1e-6 * guide.v_scale_row.detach())  # as good as a point, so that the bound has no noise
    q = Factors(guide.v_loc, guide.v_scale_row, guide.v_scale_col)
    white = torch.zeros(1, 5, 2, dtype=torch.float64)
    bound = collapsed_bound(model, q, model.covariances(), white, model.statistics())
    assert -TraceMeanField_ELBO().loss(model, guide, Y) == pytest.approx(bound.item(), rel=1e-3)


def test_nuts_and_hyperparameters_with_priors_work():
    model, Y = small_model(), small_outputs()
    model.noise_y = PyroSample(dist.LogNormal(torch.tensor(-1.0), torch.tensor(0.3)))
    mcmc = MCMC(NUTS(model), num_samples=4, warmup_steps=3, disable_progbar=True)
    mcmc.run(Y)
    predictive = posterior_predictive(model, mcmc.get_samples(), model.X[:4] + 0.01, Y)
    assert predictive.mean().shape == (4, 2, 3)
    assert (predictive.variance() > 0).all()
    assert predictive.sample(3).shape == (3, 4, 2, 3)


def test_prior_draws_have_the_variance_of_the_network():
    model = CollapsedGPRN(torch.rand(15, 1), 50, 2, inducing=4, kernel_f=kernels.RBF(1), kernel_w=kernels.RBF(1))
    with poutine.block():
        draws = Predictive(model, num_samples=120, return_sites=["y"])()["y"]
    expected = 2 * (1 + model.noise_f**2) + model.noise_y**2
    assert draws.square().mean().item() == pytest.approx(expected.item(), rel=0.25)


def test_draws_of_the_functions_have_scales_and_hyperparameters_that_training_can_move():
    model, Y = small_model(train_inducing=True), small_outputs()
    guide = CollapsedGuide(model)
    q = Factors(guide.v_loc, guide.v_scale_row, guide.v_scale_col)
    white = white_noise(2, 5, 2, like=model.X, generator=new_generator(0))
    bound = collapsed_bound(model, q, model.covariances(), white, model.statistics(Y))
    bound.backward()
    assert model.Z.grad.abs().max() > 0
    scales = learn_output_scales(model, guide, Y, prior_degrees=1.0)
    assert (scales.degrees == 31.0).all()


class _LargestTensor(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that is made."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        result = function(*arguments, **(settings or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor):
                self.largest = max(self.largest, each.numel())
        return result


def test_no_array_is_as_large_as_rows_times_weights(monkeypatch):
    n_rows, m = 3000, 10
    monkeypatch.setattr(low_rank, "BLOCK_NUMBERS", 2**10)
    X = torch.rand(n_rows, 1)
    Y = torch.sin(6 * X + torch.arange(4))
    model = CollapsedGPRN(X, 4, 3, inducing=m)
    guide = CollapsedGuide(model)
    q = Factors(guide.v_loc, guide.v_scale_row, guide.v_scale_col)
    white = torch.randn(2, m, 3, dtype=torch.float64)
    known = model.statistics(Y)
    with _LargestTensor() as seen:
        collapsed_bound(model, q, model.covariances(), white, known).backward()
    assert seen.largest <= n_rows * max(m, 2 * 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inducing": 0}, "at least 1.*got 0"),
        ({"inducing": True}, "at least 1.*got True"),
        ({"inducing": "auto"}, "at least 1.*got 'auto'"),
        ({"inducing": torch.rand(4, 3)}, "the 1 columns"),
        ({"inducing": 4, "own_kernels": True}, "share a kernel"),
        ({"train_inducing": True}, "inducing=None"),
    ],
)
def test_wrong_inducing_inputs_have_their_own_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        CollapsedGPRN(torch.rand(9, 1), 3, 2, **settings)


def test_too_many_patterns_of_holes_say_what_to_do():
    Y = torch.randn(40, 100)
    Y[torch.rand(40, 100) < 0.3] = math.nan
    with pytest.raises(ValueError, match="each pattern of holes"):
        CompressedStatistics.of(Y)


def test_more_inducing_inputs_than_distinct_rows_are_all_of_these():
    X = torch.rand(5, 2).repeat(3, 1)
    assert CollapsedGPRN(X, 3, 2, inducing=9).Z.shape == (5, 2)
