"""A hyperparameter with a prior: the spread of its posterior reaches predictions, which average over it."""

import math

import numpy as np
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample

from pyro_gprn import (
    GPRN,
    CollapsedGPRN,
    CollapsedGuide,
    GPRNRegressor,
    KroneckerGuide,
    MeanFieldGuide,
    fit_collapsed,
    posterior_predictive,
)
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.factorised import fit_kronecker, fit_mean_field
from pyro_gprn.factorised import prediction as factorised
from pyro_gprn.factorised.training import KroneckerTrainee, MeanFieldTrainee
from pyro_gprn.outputs.gram import OutputStatistics

X = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None]
X_NEW = torch.tensor([[0.1], [0.62], [1.4]], dtype=torch.float64)
Y = torch.sin(5 * X + torch.tensor([0.0, 1.0]))
Y_NEW = torch.sin(5 * X_NEW + torch.tensor([0.0, 1.0])) + 0.3
CENTRE = -0.7
N_DRAWS = 120
MODELS = ["collapsed", "kronecker", "mean-field"]
FITS = {"collapsed": fit_collapsed, "kronecker": fit_kronecker, "mean-field": fit_mean_field}
TRAINEES = {"collapsed": CollapsedTrainee, "kronecker": KroneckerTrainee, "mean-field": MeanFieldTrainee}


def make(name, lengthscale=1.0):
    """A model and a posterior in which nothing but the length-scale of the weights can vary (much)."""
    kernel_w = kernels.RBF(1, lengthscale=torch.as_tensor(lengthscale))
    settings = {"kernel_f": kernels.Constant(1), "kernel_w": kernel_w, "noise_f": 1e-6, "noise_y": 0.2}
    if name == "collapsed":
        model = CollapsedGPRN(X, 2, 1, **settings)
        return model, CollapsedGuide(model, init_scale=1e-9)
    model = GPRN(X, 2, 1, **settings)
    if name == "mean-field":
        guide = MeanFieldGuide(model, init_scale=0.3)
        guide.update_weights(Y)
        return model, guide
    guide = KroneckerGuide(model, init_scale=0.3)
    guide.update_mean(Y)
    return model, guide


def give_prior(model, constructor=dist.Normal, scale=0.5):
    model.kernel_w.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    model.kernel_w.autoguide("lengthscale", constructor)
    if constructor is dist.Delta:
        model.kernel_w.lengthscale_map = torch.tensor(math.exp(CENTRE))
    else:
        model.kernel_w.lengthscale_loc.data.fill_(CENTRE)
        model.kernel_w.lengthscale_scale = torch.tensor(scale)


def predict(name, model, guide, seed=0):
    settings = {"n_draws": N_DRAWS} if name == "collapsed" else {}
    return posterior_predictive(model, guide, X_NEW, Y, generator=torch.Generator().manual_seed(seed), **settings)


@pytest.fixture(autouse=True)
def _many_draws(monkeypatch):
    monkeypatch.setattr(factorised, "N_HYPERPARAMETERS", 60)


def by_quadrature(name, state, scale):
    """Mean, variance and density of y*, with the length-scale integrated out, and the spread of each over it."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    weights = torch.from_numpy(weights / weights.sum())[:, None, None]
    means, variances, densities = [], [], []
    for node in nodes:
        model, guide = make(name, math.exp(CENTRE + scale * node))
        guide.load_state_dict(state)
        predictive = predict(name, model, guide)
        means.append(predictive.mean())
        variances.append(predictive.variance())
        densities.append(predictive.log_density(Y_NEW).exp())
    mean, within, density = ((weights * torch.stack(each)).sum(0) for each in (means, variances, densities))

    def spread(values):
        return (weights * (torch.stack(values) - (weights * torch.stack(values)).sum(0)) ** 2).sum(0).sqrt()

    squares = [m.square() + v for m, v in zip(means, variances, strict=True)]
    return mean, within + spread(means).square(), density, spread(means), spread(squares), spread(densities)


@pytest.mark.parametrize("name", MODELS)
def test_predictions_average_over_the_posterior_of_a_hyperparameter(name):
    model, guide = make(name)
    give_prior(model)
    predictive = predict(name, model, guide)
    n = N_DRAWS if name == "collapsed" else factorised.N_HYPERPARAMETERS
    mean, variance, density, mean_spread, square_spread, density_spread = by_quadrature(name, guide.state_dict(), 0.5)
    error = 4.5 / math.sqrt(n)
    assert ((predictive.mean() - mean).abs() < error * mean_spread + 1e-6).all()
    squares = predictive.variance() + predictive.mean().square()
    assert ((squares - variance - mean.square()).abs() < error * square_spread + 1e-6).all()
    ours = predictive.log_density(Y_NEW).exp()
    assert ((ours - density).abs() < error * density_spread + 0.01 * density).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_wider_posterior_of_a_hyperparameter_makes_wider_predictions(name):
    model, guide = make(name)
    variances = {}
    for scale in (1e-6, 3.0):
        give_prior(model, scale=scale)
        variances[scale] = predict(name, model, guide).variance(noise=False)
    assert (variances[3.0] / variances[1e-6]).max() > 1.5
    fixed, fixed_guide = make(name, math.exp(CENTRE))
    fixed_guide.load_state_dict(guide.state_dict())
    certain = predict(name, fixed, fixed_guide).variance(noise=False)
    torch.testing.assert_close(variances[1e-6], certain, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_joint_draws_average_over_the_posterior_of_a_hyperparameter(name):
    model, guide = make(name)
    give_prior(model)
    predictive = predict(name, model, guide)
    draws = predictive.sample(6000)
    squares = (draws - predictive.mean()).square()
    # the draws come from as many values of the length-scale as the moments: only their own noise is left
    error = 4.5 * squares.std(0) / math.sqrt(len(draws)) + 0.05 * predictive.variance()
    assert ((squares.mean(0) - predictive.variance()).abs() < error).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_noise_with_a_posterior_adds_its_mean_square(name):
    model, guide = make(name)
    model.noise_y = PyroSample(dist.LogNormal(0.0, 1.0))
    model.autoguide("noise_y", dist.Normal)
    model.noise_y_loc.data.fill_(-1.0)
    model.noise_y_scale = torch.tensor(0.3)
    predictive = predict(name, model, guide)
    n = N_DRAWS if name == "collapsed" else factorised.N_HYPERPARAMETERS
    added = predictive.variance() - predictive.variance(noise=False)
    expected = math.exp(-2 + 2 * 0.3**2)
    relative_spread = math.sqrt(math.exp(4 * 0.3**2) - 1)
    torch.testing.assert_close(
        added, torch.full_like(added, expected), rtol=4.5 * relative_spread / math.sqrt(n), atol=0
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_point_estimate_predicts_as_a_fixed_hyperparameter_does(name):
    model, guide = make(name)
    give_prior(model, dist.Delta)
    fixed, fixed_guide = make(name, math.exp(CENTRE))
    fixed_guide.load_state_dict(guide.state_dict())
    ours, theirs = predict(name, model, guide), predict(name, fixed, fixed_guide)
    for method in ("mean", "variance"):
        torch.testing.assert_close(getattr(ours, method)(), getattr(theirs, method)())
    torch.testing.assert_close(ours.log_density(Y_NEW), theirs.log_density(Y_NEW))
    torch.testing.assert_close(ours.sample(5), theirs.sample(5))


def with_wide_start():
    kernel = kernels.RBF(1)
    kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    kernel.autoguide("lengthscale", dist.Normal)
    kernel.lengthscale_loc.data.fill_(CENTRE)
    return kernel


@pytest.mark.parametrize("name", MODELS)
def test_the_bound_is_the_same_at_every_evaluation(name):
    model = (CollapsedGPRN if name == "collapsed" else GPRN)(X, 2, 1, kernel_w=with_wide_start())
    trainee = TRAINEES[name](model, OutputStatistics.of(Y), 0.05, torch.Generator().manual_seed(0))
    assert trainee.evaluate() == trainee.evaluate()
    trainee.step()
    assert trainee.evaluate() == trainee.evaluate()


@pytest.mark.parametrize("name", MODELS)
def test_data_make_the_posterior_of_a_hyperparameter_narrower_than_its_prior(name):
    inputs = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    noise = torch.randn(12, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = torch.sin(5 * inputs + torch.linspace(0, 3, 20)) + 0.05 * noise
    model = (CollapsedGPRN if name == "collapsed" else GPRN)(inputs, 20, 1, kernel_w=with_wide_start())
    FITS[name](model, outputs, steps=120, seed=0, progress=False)
    assert model.kernel_w.lengthscale_scale < 0.8  # the prior's is 1
    assert -2.5 < model.kernel_w.lengthscale_loc < 0.5  # of the logarithm


@pytest.mark.parametrize("inference", MODELS)
def test_the_estimator_takes_a_kernel_with_a_prior_and_predicts_the_same_again(inference, monkeypatch):
    monkeypatch.setattr(factorised, "N_HYPERPARAMETERS", 8)
    r = GPRNRegressor(
        1, inference=inference, kernel_w=with_wide_start(), steps=3, seed=0, progress=False, selection=False
    ).fit(X, Y)
    assert torch.equal(r.predict(X_NEW), r.predict(X_NEW))


def test_a_prior_on_a_sum_of_kernels_is_refused_with_the_place_where_it_belongs():
    model = CollapsedGPRN(torch.rand(5, 1), 3, 1)  # a kernel by name has a constant added
    model.kernel_w.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    with pytest.raises(ValueError, match=r"kernel_w is a Sum of kernels.*kernel_w\.kern0\.lengthscale"):
        fit_collapsed(model, torch.randn(5, 3, dtype=torch.float64), steps=1, progress=False)
    with pytest.raises(ValueError, match=r"kernel_w\.kern0\.lengthscale"):
        model()
