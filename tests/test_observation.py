"""Predictions follow the model's own likelihood, and any guide that says what it is at new inputs."""

import math

import numpy as np
import pyro
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from helpers import randomise
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.nn import PyroSample
from pyro.optim import Adam
from scipy.stats import kstest
from scipy.stats import norm as normal
from scipy.stats import t as student_t

from pyro_gprn import GPRN, KroneckerGuide, posterior_predictive
from pyro_gprn.factorised import fit_kronecker, fit_mean_field, fit_mixture

X = torch.tensor([[0.0], [0.4], [1.0]], dtype=torch.float64)
X_NEW = torch.tensor([[0.1], [0.7]], dtype=torch.float64)
Y = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
Y_NEW = torch.tensor([[[0.3, -0.5], [4.0, 0.0]], [[1.0, -3.0], [0.1, 0.2]]], dtype=torch.float64)
NOISE = torch.tensor([[0.2, 0.5], [0.3, 0.4]], dtype=torch.float64)
N_DRAWS = 40_000


class HeavyTailed(GPRN):
    def likelihood(self, signal):
        return dist.StudentT(3.0, signal, self.noise_y)


class OwnForward(GPRN):
    """As in a first course on Pyro: everything in forward."""

    def observe(self, signal):
        return dist.StudentT(3.0, signal, self.noise_y)

    def forward(self, Y=None):
        prior_f, prior_w = self.prior()
        f, w = pyro.sample("f", prior_f), pyro.sample("w", prior_w)
        signal = torch.einsum("nk,nkab->nab", f, w)
        return pyro.sample("y", self.observe(signal).to_event(3), obs=Y)


class OwnForwardWithTheSameLikelihood(OwnForward):
    def observe(self, signal):
        return dist.Normal(signal, self.noise_y)


class OwnForwardAndLikelihood(OwnForward):
    likelihood = HeavyTailed.likelihood


class Counts(GPRN):
    def likelihood(self, signal):
        return dist.Poisson(signal.exp())


def make(kind=GPRN, noise=NOISE):
    settings = {"kernel_f": kernels.Matern32(1), "kernel_w": kernels.Matern52(1), "noise_f": 0.4, "noise_y": noise}
    model = kind(X, (2, 2), 2, **settings)
    pyro.set_rng_seed(0)
    guide = KroneckerGuide(model, mean="full")
    randomise(guide, 0.5)
    return model, guide


def predict(model, guide):
    return posterior_predictive(model, guide, X_NEW, Y, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def signals():
    """Draws of the signal, which every likelihood here shares."""
    return predict(*make()).sample(N_DRAWS, noise=False)


@pytest.mark.parametrize("kind", [HeavyTailed, OwnForwardAndLikelihood])
@pytest.mark.parametrize("outputs", [None, (1, slice(None)), [3, 0]], ids=str)
def test_the_variance_has_that_of_the_likelihood(kind, outputs):
    predictive = predict(*make(kind))
    added = predictive.variance(outputs) - predictive.variance(outputs, noise=False)
    picked = {"None": NOISE, "(1, slice(None, None, None))": NOISE[1], "[3, 0]": NOISE.flatten()[[3, 0]]}[str(outputs)]
    torch.testing.assert_close(added, (3 * picked.square()).expand_as(added))


def test_draws_have_the_tails_of_the_likelihood():
    model, guide = make(HeavyTailed)
    noise = predict(model, guide).sample(5000) - predict(model, guide).sample(5000, noise=False)
    scaled = (noise / NOISE).flatten().numpy()
    assert kstest(scaled, student_t(3).cdf).pvalue > 1e-3
    assert kstest(scaled, normal(scale=math.sqrt(3)).cdf).pvalue < 1e-9  # a Gaussian of the same variance
    assert np.mean(np.abs(scaled) > 5) == pytest.approx(2 * student_t(3).sf(5), rel=0.2)


@pytest.mark.parametrize("outputs", [None, (1, slice(None)), [3, 0]], ids=str)
def test_the_log_density_is_that_of_the_likelihood(signals, outputs):
    densities = dist.StudentT(3.0, signals, NOISE).log_prob(Y_NEW).exp()
    expected, error = densities.mean(0), densities.std(0) / math.sqrt(N_DRAWS)

    def pick(values):
        if outputs is None:
            return values
        return values[(slice(None), *outputs)] if isinstance(outputs, tuple) else values.flatten(1)[:, outputs]

    predictive = predict(*make(HeavyTailed))
    ours = predictive.log_density(pick(Y_NEW), outputs, n_draws=N_DRAWS).exp()
    assert ((ours - pick(expected)).abs() < 7 * pick(error)).all()  # two estimates, each with such an error
    gaussian = predict(*make(GPRN, math.sqrt(3) * NOISE)).log_density(pick(Y_NEW), outputs, n_draws=N_DRAWS).exp()
    assert ((gaussian - pick(expected)).abs() > 20 * pick(error)).any()


def test_quantiles_of_a_mixture_over_hyperparameters_have_the_tails_of_the_likelihood():
    model, guide = make(HeavyTailed)
    model.kernel_w.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    model.kernel_w.autoguide("lengthscale", dist.Normal)
    model.kernel_w.lengthscale_loc.data.fill_(-0.5)
    model.kernel_w.lengthscale_scale = torch.tensor(0.3)
    predictive = predict(model, guide)
    assert len(predictive.parts) > 1
    wanted = (0.005, 0.5, 0.995)
    found = predictive.quantiles(wanted, n_draws=16_000)
    below = (predictive.sample(16_000) < found.unsqueeze(1)).double().mean(1)
    for share, probability in zip(below, wanted, strict=True):
        error = math.sqrt(2 * probability * (1 - probability) / 16_000)  # of the draws, and of the quantile
        assert ((share - probability).abs() < 4.5 * error).all()
    assert predictive.quantiles([0.5], (0, [1])).shape == (1, 2, 1)


def test_a_forward_of_ones_own_with_another_likelihood_is_refused():
    message = r"OwnForward has a forward of its own .* StudentT, but its likelihood\(signal\) says Normal"
    with pytest.raises(ValueError, match=message):
        predict(*make(OwnForward))


def test_a_forward_of_ones_own_with_the_same_likelihood_predicts():
    ours, theirs = predict(*make(OwnForwardWithTheSameLikelihood)), predict(*make())
    for method in ("mean", "variance"):
        torch.testing.assert_close(getattr(ours, method)(), getattr(theirs, method)())
    torch.testing.assert_close(ours.log_density(Y_NEW), theirs.log_density(Y_NEW))


def test_a_likelihood_whose_mean_is_not_the_signal_is_refused():
    with pytest.raises(ValueError, match=r"predictions need a likelihood whose mean is the signal .* got Poisson"):
        predict(*make(Counts))


def test_another_likelihood_trains_by_pyros_bound():
    model, guide = make(HeavyTailed)
    assert math.isfinite(SVI(model, guide, Adam({"lr": 0.01}), TraceMeanField_ELBO()).step(Y))


@pytest.mark.parametrize("fit", [fit_kronecker, fit_mean_field, fit_mixture])
def test_another_likelihood_is_refused_by_the_closed_form_training(fit):
    with pytest.raises(ValueError, match=f"{fit.__name__} trains by the closed-form bound.*likelihood"):
        fit(HeavyTailed(X, (2, 2), 1), Y, steps=1, progress=False)


def independent_guide(n_modes):
    generator = torch.Generator().manual_seed(3)
    shapes = {"f": (3, 2), "w": (3, 2, *[2] * n_modes)}
    parameters = {
        name: (torch.randn(shape, generator=generator).double(), 0.2 + torch.rand(shape, generator=generator).double())
        for name, shape in shapes.items()
    }

    def guide(Y=None, mask=None):
        for name, (loc, scale) in parameters.items():
            pyro.sample(name, dist.Normal(loc, scale).to_event(loc.dim()))

    return guide, parameters


@torch.no_grad()
def dense_draws(model, parameters, n_draws):
    """Draws of the outputs: of functions and weights at the training inputs, of both at new ones, of the noise."""
    inputs, n = torch.cat([X, X_NEW]), len(X)
    drawn = []
    for name, kernel, noise in (("f", model.kernel_f, model.noise_f), ("w", model.kernel_w, torch.zeros(()))):
        loc, scale = parameters[name]
        values = loc + scale * torch.randn(n_draws, *loc.shape, dtype=torch.float64)
        K = kernel(inputs) + noise**2 * torch.eye(len(inputs), dtype=torch.float64)
        A = torch.linalg.solve(K[:n, :n], K[:n, n:]).mT
        mean = torch.einsum("mn,sn...->sm...", A, values)
        root = torch.linalg.cholesky(K[n:, n:] - A @ K[:n, n:])
        drawn.append(mean + torch.einsum("mj,sj...->sm...", root, torch.randn_like(mean)))
    signal = torch.einsum("snk,snk...->sn...", *drawn)
    return signal + 0.3 * torch.randn_like(signal)


@pytest.mark.parametrize("n_modes", [1, 2])
def test_a_guide_of_independent_normals_predicts_as_dense_draws_do(n_modes):
    settings = {"kernel_f": kernels.Matern32(1), "kernel_w": kernels.Matern52(1), "noise_f": 0.4, "noise_y": 0.3}
    model = GPRN(X, (2,) * n_modes, 2, **settings)
    guide, parameters = independent_guide(n_modes)
    predictive = posterior_predictive(model, guide, X_NEW, generator=torch.Generator().manual_seed(0))
    theirs = dense_draws(model, parameters, 25_000).flatten(1)
    mean, variance = predictive.mean().flatten(), predictive.variance().flatten()
    assert ((theirs.mean(0) - mean).abs() < 4.5 * theirs.std(0) / math.sqrt(len(theirs))).all()
    squares = (theirs - mean).square()
    assert ((squares.mean(0) - variance).abs() < 4.5 * squares.std(0) / math.sqrt(len(theirs))).all()

    def products(y):
        centred = y - mean
        return centred.unsqueeze(-1) * centred.unsqueeze(-2)  # of all inputs and outputs with each other

    ours, expected = products(predictive.sample(8_000).flatten(1)), products(theirs)
    error = (ours.var(0) / len(ours) + expected.var(0) / len(expected)).sqrt()
    assert ((ours.mean(0) - expected.mean(0)).abs() < 4.5 * error).all()
    picked = predictive.mean([1]).flatten(), predictive.variance([1]).flatten()
    torch.testing.assert_close(picked, (mean.reshape(2, -1)[:, 1], variance.reshape(2, -1)[:, 1]))
    y = predictive.mean() + 0.5
    kernel_estimate = dist.Normal(theirs.reshape(-1, *y.shape), 0.1).log_prob(y).exp().mean(0)  # rough
    torch.testing.assert_close(predictive.log_density(y, n_draws=5000).exp(), kernel_estimate, rtol=0.1, atol=0.01)
