import math

import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

import pyro_gprn.prediction.base
from pyro_gprn import CollapsedGPRN, CollapsedGuide, posterior_predictive, sample_weights

pytestmark = pytest.mark.usefixtures("quick")

X = torch.linspace(0, 1, 5)[:, None]
X_NEW = torch.tensor([[0.1], [0.45], [1.3]])
Y = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))


def holes():
    outputs = Y.clone()
    outputs[1, 0] = torch.nan
    outputs[3, 1, 2] = torch.nan
    return outputs


def make(kernel_f=None, **settings):
    return CollapsedGPRN(
        X, (2, 3), 2, kernel_f=kernel_f or kernels.Matern32(1), kernel_w=kernels.Matern52(1), noise_y=0.3, **settings
    )


@pytest.mark.parametrize("outputs", [Y, holes()], ids=["complete", "holes"])
def test_constant_functions_give_gaussian_process_regression(outputs):
    """f constant in x: every output is a GP with kernel ‖f‖² κ_w, whose posterior is known."""
    model = make(kernels.Constant(1), noise_f=1e-6)
    v = torch.zeros(1, 5, 2, dtype=torch.float64)
    v[0, 0] = torch.tensor([0.8, -0.5])
    predictive = posterior_predictive(model, {"v": v}, X_NEW, outputs)
    scale = 0.8**2 + 0.5**2
    inputs = torch.cat([X, X_NEW]).double()
    K = scale * model.kernel_w(inputs).detach()
    for a in range(2):
        for b in range(3):
            y = outputs[:, a, b].double()
            seen = (~y.isnan()).nonzero().flatten()
            noisy = K[seen][:, seen] + 0.09 * torch.eye(len(seen))
            gain = K[5:][:, seen] @ torch.linalg.inv(noisy)
            covariance = K[5:, 5:] - gain @ K[seen][:, 5:]
            torch.testing.assert_close(predictive.mean((a, b)), gain @ y[seen], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                predictive.variance((a, b), noise=False), covariance.diagonal(), rtol=1e-4, atol=1e-5
            )
            draws = predictive.sample(20_000, (a, b), noise=False)
            torch.testing.assert_close(draws.T.cov(), covariance, rtol=0.1, atol=0.01)
            expected = Normal(gain @ y[seen], (covariance.diagonal() + 0.09).sqrt()).log_prob(torch.ones(3))
            torch.testing.assert_close(predictive.log_density(torch.ones(3), (a, b)), expected, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def dense_mixture(model, guide, outputs, n_draws):
    """Conditional means and covariances of new outputs from dense joint Gaussians, one draw of (F, f*) at a time."""
    inputs = torch.cat([model.X, X_NEW.double()])
    n = len(model.X)
    Kf = model.kernel_f(inputs) + model.noise_f**2 * torch.eye(len(inputs), dtype=torch.float64)
    Lf = torch.linalg.cholesky(Kf[:n, :n])
    A = Kf[n:, :n] @ torch.linalg.inv(Kf[:n, :n])
    rest = torch.linalg.cholesky(Kf[n:, n:] - A @ Kf[:n, n:])
    means, covariances = [], []
    for v in guide.posterior().sample((n_draws,)):
        F = Lf @ v
        F_new = A @ F + rest @ torch.randn(len(X_NEW), v.shape[1], dtype=torch.float64)
        both = torch.cat([F, F_new])
        C = model.kernel_w(inputs) * (both @ both.mT)
        noisy = C[:n, :n] + model.noise_y**2 * torch.eye(n, dtype=torch.float64)
        gain = C[n:, :n] @ torch.linalg.inv(noisy)
        means.append(gain @ outputs.flatten(1).double())
        covariances.append(C[n:, n:] - gain @ C[:n, n:])
    return torch.stack(means), torch.stack(covariances)


def test_mixture_agrees_with_dense_algebra():
    model = make(noise_f=0.2)
    guide = CollapsedGuide(model, init_scale=0.5)
    n_draws = 4000
    means, covariances = dense_mixture(model, guide, Y, n_draws)
    predictive = posterior_predictive(model, guide, X_NEW, Y, n_draws=n_draws)
    error = means.std(0) * math.sqrt(2 / n_draws)
    assert ((predictive.mean().flatten(1) - means.mean(0)).abs() < 4.5 * error).all()
    variance = means.var(0) + covariances.diagonal(dim1=-2, dim2=-1).mean(0).unsqueeze(-1) + 0.09
    torch.testing.assert_close(predictive.variance().flatten(1), variance, rtol=0.15, atol=0)
    draws = predictive.sample(n_draws, (1, 2), noise=False)
    reference = (
        means[:, :, 5]
        + MultivariateNormal(torch.zeros(3).double(), covariances + 1e-9 * torch.eye(3).double()).sample()
    )
    torch.testing.assert_close(draws.T.cov(), reference.T.cov(), rtol=0.25, atol=0.05)
    scale = (covariances.diagonal(dim1=-2, dim2=-1) + 0.09).sqrt().unsqueeze(-1)
    densities = Normal(means, scale).log_prob(torch.ones(3, 6))
    expected = densities.logsumexp(0) - math.log(n_draws)
    ours = predictive.log_density(torch.ones(3, 2, 3), n_draws=n_draws)
    error = densities.exp().std(0) / expected.exp() * math.sqrt(2 / n_draws)
    assert ((ours.flatten(1) - expected).abs() < 4.5 * error).all()


@pytest.mark.parametrize("outputs", [Y, holes()], ids=["complete", "holes"])
def test_blocks_and_choices_change_nothing(outputs, monkeypatch):
    model = make()
    predictive = posterior_predictive(model, CollapsedGuide(model), X_NEW, outputs)
    mean, variance = predictive.mean(), predictive.variance()
    for chosen in [(1, 2), (slice(None), [2, 0])]:
        index = (slice(None), *chosen)
        torch.testing.assert_close(predictive.mean(chosen), mean[index])
        torch.testing.assert_close(predictive.variance(chosen), variance[index])
        assert predictive.sample(5, chosen).shape == (5, *mean[index].shape)
    monkeypatch.setattr(pyro_gprn.prediction.base, "BLOCK_NUMBERS", 1)
    torch.testing.assert_close(predictive.mean(), mean)
    torch.testing.assert_close(predictive.variance(), variance)
    assert torch.isfinite(predictive.log_density(torch.zeros(3, 2, 3))).all()


def test_a_prediction_does_not_depend_on_the_inputs_beside_it():
    model = make()
    guide = CollapsedGuide(model)

    def at(inputs):
        torch.manual_seed(0)
        predictive = posterior_predictive(model, guide, inputs, Y)
        return predictive.mean(), predictive.variance(), predictive.log_density(torch.zeros(len(inputs), 2, 3))

    for together, alone in zip(at(X_NEW), at(X_NEW[1:2]), strict=True):
        torch.testing.assert_close(together[1:2], alone)


def test_float32_outputs_are_fine():
    model = make()
    guide = CollapsedGuide(model)
    torch.manual_seed(0)
    single = posterior_predictive(model, guide, X_NEW, Y).mean()
    torch.manual_seed(0)
    torch.testing.assert_close(posterior_predictive(model, guide, X_NEW, Y.double()).mean(), single)


@pytest.mark.parametrize("outputs", [Y, holes()], ids=["complete", "holes"])
@torch.no_grad()
def test_draws_of_the_weights_are_those_of_the_dense_posterior(outputs):
    model = make(noise_f=0.2)
    guide = CollapsedGuide(model, init_scale=1e-8)  # F is known: what is left is Gaussian
    F = model.functions_factor() @ guide.v_loc
    inputs = torch.cat([model.X, X_NEW.double()])
    prior = torch.kron(torch.eye(2).double(), model.kernel_w(inputs))  # of (w_1, w_2) at all inputs
    draws = sample_weights(model, guide, X_NEW, 4000, outputs=(0, slice(None)), Y=outputs)
    assert draws.shape == (4000, 3, 2, 3)
    for d in range(3):
        y = outputs[:, 0, d].double()
        seen = (~y.isnan()).nonzero().flatten()
        mixing = torch.zeros(5, 2, 8, dtype=torch.float64)
        for n in range(5):
            mixing[n, :, n] = F[n]
        mixing = mixing.reshape(5, 16)[seen]
        gain = prior @ mixing.mT @ torch.linalg.inv(mixing @ prior @ mixing.mT + 0.09 * torch.eye(len(seen)))
        mean = (gain @ y[seen]).reshape(2, 8)[:, 5:].T
        covariance = prior - gain @ mixing @ prior
        deviation = covariance.diagonal().clamp(min=0).sqrt().reshape(2, 8)[:, 5:].T
        assert ((draws[..., d].mean(0) - mean).abs() < 4.5 * deviation / 4000**0.5 + 1e-6).all()
        torch.testing.assert_close(draws[..., d].std(0), deviation, rtol=0.1, atol=1e-4)
