import math

import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from helpers import dense, randomise
from pyro.nn import PyroSample

import pyro_gprn.prediction.base
from pyro_gprn import GPRN, KroneckerGuide, MeanFieldGuide, output_correlation, posterior_predictive
from pyro_gprn.prediction import condition, prediction_settings, scales_of_outputs

X = torch.tensor([[0.0], [0.4], [1.0]])
X_NEW = torch.tensor([[0.1], [0.7]])
Y = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(2))
POSTERIORS = ["full", "diagonal", "isotropic", "mean-field"]
MEANS = ["projected", "full"]


def make(mean="projected", posterior="full", noise=0.3, X_new=X_NEW):
    model = GPRN(
        X,
        output_shape=(2, 2),
        n_latents=2,
        kernel_f=kernels.Matern32(1),
        kernel_w=kernels.Matern52(1, variance=torch.tensor(1.5)),
        noise_f=0.4,
        noise_y=noise,
    )
    if posterior == "mean-field":
        guide = MeanFieldGuide(model, mean=mean)
    else:  # its output factors
        guide = KroneckerGuide(model, mean=mean, output_factors=posterior)
    randomise(guide, 0.5)
    return model, guide, posterior_predictive(model, guide, X_new, Y)


@torch.no_grad()
def dense_draws(model, guide, n_draws, X_new=X_NEW):
    """Draws of f* ``(S, N*, K)``, W* ``(S, N*, K, 2, 2)`` from the dense joint posterior and the GP conditionals."""
    q_f, q_w = guide.posterior(Y)
    F = dense(q_f).sample((n_draws,)).reshape(n_draws, *q_f.event_shape)
    W = dense(q_w).sample((n_draws,)).reshape(n_draws, *q_w.event_shape)
    draws = []
    for kernel, noise, values in ((model.kernel_f, model.noise_f, F), (model.kernel_w, torch.zeros(()), W)):
        n, n_new = len(model.X), len(X_new)
        inputs = torch.cat([model.X, X_new.to(model.X)])
        K = kernel(inputs) + noise**2 * torch.eye(n + n_new, dtype=torch.float64)
        A = K[n:, :n] @ torch.linalg.inv(K[:n, :n])
        root = torch.linalg.cholesky(K[n:, n:] - A @ K[:n, n:])
        mean = torch.einsum("mn,sn...->sm...", A, values)
        draws.append(mean + torch.einsum("mj,sj...->sm...", root, torch.randn_like(mean)))
    return draws


def outputs_of(f, w, noise):
    mean = torch.einsum("snk,snkab->snab", f, w)
    return mean + noise * torch.randn_like(mean)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_mean_and_variance_agree_with_dense_draws(mean, posterior):
    model, guide, predictive = make(mean, posterior)
    y = outputs_of(*dense_draws(model, guide, 100_000), 0.3)
    error = y.std(0) / math.sqrt(len(y))
    assert ((y.mean(0) - predictive.mean()).abs() < 4.5 * error).all()
    squares = (y - y.mean(0)).square()
    assert ((squares.mean(0) - predictive.variance()).abs() < 4.5 * squares.std(0) / math.sqrt(len(y))).all()
    torch.testing.assert_close(predictive.variance() - predictive.variance(noise=False), torch.full_like(y[0], 0.09))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_draws_are_joint_over_inputs_and_outputs(mean, posterior):
    model, guide, predictive = make(mean, posterior)
    drawn, reference = predictive.sample(20_000), outputs_of(*dense_draws(model, guide, 100_000), 0.3)
    assert drawn.shape == (20_000, 2, 2, 2)

    def products(y):
        centred = (y - predictive.mean()).flatten(1)
        return centred.unsqueeze(-1) * centred.unsqueeze(-2)

    ours, theirs = products(drawn), products(reference)
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4.5 * error).all()


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_log_density_is_that_of_the_mixture(mean, posterior):
    model, guide, predictive = make(mean, posterior)
    Y_new = torch.randn(2, 2, 2)
    f, w = dense_draws(model, guide, 200_000)
    densities = dist.Normal(torch.einsum("snk,snkab->snab", f, w), 0.3).log_prob(Y_new).exp()
    expected = densities.mean(0)
    error = densities.std(0) / math.sqrt(len(f)) / expected
    ours = predictive.log_density(Y_new, n_draws=50_000)
    assert ((ours - expected.log()).abs() < 4.5 * error + 0.03).all()


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_far_from_the_data_the_variance_returns_to_the_prior(mean, posterior):
    _, _, predictive = make(mean, posterior, X_new=torch.tensor([[1e4]]))
    expected = 2 * 1.5 * (1 + 0.4**2) + 0.3**2  # K κ_w (κ_f + σ_f²) + σ_y²
    torch.testing.assert_close(predictive.variance(), torch.full((1, 2, 2), expected).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(predictive.mean(), torch.zeros(1, 2, 2).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_one_noise_for_each_output(posterior):
    noise = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    model, guide, predictive = make("full", posterior, noise=noise)
    torch.testing.assert_close(
        predictive.variance() - predictive.variance(noise=False), noise.square().expand(2, 2, 2).double()
    )
    y = outputs_of(*dense_draws(model, guide, 50_000), noise)
    drawn = predictive.sample(20_000)
    torch.testing.assert_close(drawn.var(0), y.var(0), rtol=0.1, atol=0)


@pytest.mark.parametrize("outputs", [(1, 0), (slice(None), [1, 0]), ([1], slice(0, 1))], ids=str)
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("mean", MEANS)
def test_some_outputs_alone_equal_those_of_all(outputs, posterior, mean):
    _, _, predictive = make(mean, posterior)
    index = (slice(None), *outputs)
    torch.testing.assert_close(predictive.mean(outputs), predictive.mean()[index])
    torch.testing.assert_close(predictive.variance(outputs), predictive.variance()[index])
    Y_new = torch.randn(2, 2, 2)
    torch.manual_seed(0)
    everything = predictive.log_density(Y_new)
    torch.manual_seed(0)
    torch.testing.assert_close(predictive.log_density(Y_new[index], outputs), everything[index])
    some, many = predictive.sample(20_000, outputs), predictive.sample(20_000)[(slice(None), *index)]
    assert some.shape == many.shape
    torch.testing.assert_close(some.var(0), many.var(0), rtol=0.15, atol=0)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_the_size_of_the_blocks_changes_nothing(mean, posterior, monkeypatch):
    _, _, predictive = make(mean, posterior)

    def everything():
        torch.manual_seed(0)
        return [predictive.mean(), predictive.variance(), predictive.log_density(Y[:2])]

    expected = everything()
    monkeypatch.setattr(pyro_gprn.prediction.base, "BLOCK_NUMBERS", 1)
    for ours, theirs in zip(everything(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert predictive.sample(5).shape == (5, 2, 2, 2)


@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_at_training_inputs_and_at_repeated_inputs(posterior):
    _, _, predictive = make(posterior=posterior, X_new=torch.cat([X, X, X_NEW]))
    assert torch.isfinite(predictive.sample(10)).all()
    assert (predictive.variance(noise=False) >= 0).all()
    torch.testing.assert_close(predictive.mean()[:3], predictive.mean()[3:6])


@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_gradients_flow_to_new_inputs(posterior):
    X_new = X_NEW.double().requires_grad_()
    model, guide, _ = make(posterior=posterior)

    def moments(inputs):
        predictive = posterior_predictive(model, guide, inputs)
        return predictive.mean((0, 1)), predictive.variance((1, slice(None)))

    assert torch.autograd.gradcheck(moments, X_new)
    assert not posterior_predictive(model, guide, X_NEW).mean().requires_grad


@pytest.mark.parametrize("constructor", [dist.Delta, dist.Normal], ids=["point", "narrow"])
def test_hyperparameters_whose_guide_is_a_point_stand_there(constructor):
    model, guide, _ = make()
    model.kernel_w.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    model.kernel_w.autoguide("lengthscale", constructor)
    if constructor is dist.Normal:
        model.kernel_w.lengthscale_scale = torch.tensor(1e-12)
    means = [posterior_predictive(model, guide, X_NEW).mean() for _ in range(2)]
    torch.testing.assert_close(*means, rtol=0, atol=0 if constructor is dist.Delta else 1e-9)
    held = model.kernel_w.lengthscale_map if constructor is dist.Delta else model.kernel_w.lengthscale_loc.exp()
    fixed, fixed_guide, _ = make()
    fixed.kernel_w.lengthscale = held.detach()
    fixed_guide.load_state_dict(guide.state_dict())
    torch.testing.assert_close(posterior_predictive(fixed, fixed_guide, X_NEW, Y).mean(), means[0])


@pytest.mark.parametrize(
    ("X_new", "message"),
    [
        (torch.zeros(2, 3), "X_new must have the 1 columns of the training inputs; got 3"),
        (torch.zeros(2), r"X_new must have shape \(N, P\)"),
        (torch.full((2, 1), torch.nan), "X_new must be finite"),
    ],
)
def test_wrong_new_inputs_say_what_was_expected(X_new, message):
    model, guide, _ = make()
    with pytest.raises(ValueError, match=message):
        posterior_predictive(model, guide, X_new)


def test_a_network_that_answers_only_with_predictions_has_nothing_else_to_give_them():
    model, guide, _ = make()
    assert condition(model, guide, Y) is scales_of_outputs(model, guide, Y) is None
    assert prediction_settings(model) == ()
    with pytest.raises(ValueError, match="needs inference='collapsed', a CollapsedGPRN; got GPRN"):
        output_correlation(model, guide, X_NEW, Y=Y)


def test_wrong_new_outputs_say_what_was_expected():
    _, _, predictive = make()
    with pytest.raises(ValueError, match=r"Y_new must have shape \(2, 2\); got \(2, 2, 2\)"):
        predictive.log_density(torch.zeros(2, 2, 2), outputs=(0, slice(None)))
