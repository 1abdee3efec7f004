"""What ArviZ gets of a network that has its weights."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from pyro.distributions import LogNormal, Normal, StudentT
from pyro.nn import PyroSample
from torch.nn import Linear

from pyro_gprn import (
    GPRN,
    CollapsedGPRN,
    CollapsedGuide,
    GPRNRegressor,
    KroneckerGuide,
    MeanFieldGuide,
    MixtureGuide,
    diagnose,
    posterior_predictive,
    to_arviz,
)
from pyro_gprn.diagnostics import factorised_draws, plot_latents
from pyro_gprn.diagnostics.arviz_versions import import_arviz
from pyro_gprn.diagnostics.collapsed_draws import CollapsedDraws
from pyro_gprn.diagnostics.factorised_draws import FactorisedDraws
from pyro_gprn.estimator.inference import INFERENCES
from pyro_gprn.factorised.elbo import ClosedFormELBO
from pyro_gprn.factorised.posterior import as_mixture, row_second_moment
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.pyro_state import new_generator
from tests.helpers import randomise

az = import_arviz()
FACTORISED = sorted(name for name, inference in INFERENCES.items() if inference.model is GPRN)
GUIDES = [KroneckerGuide, MeanFieldGuide, MixtureGuide]
X = torch.linspace(0, 1, 6, dtype=torch.float64)[:, None]
X_NEW = X[:2] + 0.07
Y = torch.sin(4 * X + torch.arange(4.0))
DRAWS = 3000


def made(guide_class, noise_y=0.3, mean="projected", model_class=GPRN, **settings):
    """A model of the data, and a guide of no use, at which every part of its posterior counts."""
    torch.manual_seed(0)
    model = model_class(X, 4, 2, noise_y=noise_y, **settings)
    guide = guide_class(model, mean=mean)
    randomise(guide)
    guide.statistics(Y)
    return model, guide


def is_mean_of(expected, draws, axis=0, n_errors=5.0):
    """True if the means of draws are as expected within so many of their standard errors."""
    errors = draws.std(axis) / np.sqrt(draws.shape[axis])
    return (np.abs(draws.mean(axis) - np.asarray(expected)) < n_errors * errors + 1e-3).all()


def has_moments_of(predictive, draws, noise=True):
    mean, variance = predictive.mean().numpy(), predictive.variance(noise=noise).numpy()
    return is_mean_of(mean, draws) and is_mean_of(variance, (draws - mean) ** 2)


@pytest.fixture(scope="module", params=["projected", "full"])
def mean(request):
    return request.param


@pytest.fixture(scope="module", params=GUIDES, ids=lambda guide: guide.__name__)
def exported(request, mean):
    guide_class = request.param
    model, guide = made(guide_class, mean=mean)
    return model, guide, to_arviz((model, guide), X=X_NEW, draws=DRAWS, weights=True)


def test_functions_have_the_second_moments_of_q(exported):
    _, guide, data = exported
    components = as_mixture(*guide.posterior(Y)).components
    squares = sum(row_second_moment(q_f).diagonal(dim1=-2, dim2=-1).sum(-1) for q_f, _ in components) / len(components)
    f = data["posterior"]["f"].values[0]
    assert f.shape == (DRAWS, 6, 2)
    assert is_mean_of(squares.detach(), (f**2).sum(-1))  # which no rotation changes


def test_functions_and_weights_together_are_the_signal(exported):
    model, guide, data = exported
    signal = (data["posterior"]["f"].values[0, ..., None] * data["posterior"]["w"].values[0]).sum(2)
    assert has_moments_of(posterior_predictive(model, guide, X, Y), signal, noise=False)


def test_outputs_have_the_moments_of_the_predictive(exported):
    model, guide, data = exported
    assert has_moments_of(posterior_predictive(model, guide, X, Y), data["posterior_predictive"]["y"].values[0])
    assert has_moments_of(posterior_predictive(model, guide, X_NEW, Y), data["predictions"]["y"].values[0])


def test_draws_of_outputs_do_not_come_one_component_after_another(exported):
    y = exported[2]["posterior_predictive"]["y"].values[0]
    assert is_mean_of(0.0, y[: DRAWS // 2] - y[DRAWS // 2 :])


def test_the_bound_is_that_of_the_pair(exported):
    model, guide, data = exported
    bound = data["sample_stats"]["bound"]
    assert bound.dims == ("chain", "draw")
    np.testing.assert_allclose(bound, -ClosedFormELBO().loss(model, guide, Y))


def test_the_prior_of_outputs_with_a_noise_for_each():
    noises = torch.tensor([0.1, 0.5, 1.0, 2.0], dtype=torch.float64)
    model, guide = made(KroneckerGuide, noise_y=noises, mean="full")
    data = to_arviz((model, guide), draws=DRAWS, outputs=[3, 0])
    assert data["posterior"]["noise_y"].dims == ("chain", "draw", "each_output")
    np.testing.assert_allclose(data["posterior"]["noise_y"][0, 0], noises)
    Kf, Kw = (prior.factors[0].covariance().detach() for prior in model.prior())
    f, y = data["prior"]["f"].values[0], data["prior_predictive"]["y"].values[0]
    assert is_mean_of(Kf, f[:, :, None, 0] * f[:, None, :, 0])
    for place, output in enumerate([3, 0]):
        covariance = 2 * Kf * Kw + noises[output].square() * torch.eye(6)
        assert is_mean_of(covariance, y[:, :, None, place] * y[:, None, :, place])


def test_a_noise_for_each_output_of_a_field_has_one_dimension():
    model = GPRN(X, (2, 2), 1, noise_y=0.1 * torch.ones(2, 2))
    guide = KroneckerGuide(model, mean="full")
    guide.statistics(Y.reshape(6, 2, 2))
    data = to_arviz((model, guide), draws=3, outputs=(1, slice(None)), weights=True)
    assert data["posterior"]["noise_y"].coords["each_output"].values.tolist() == ["0, 0", "0, 1", "1, 0", "1, 1"]
    assert data["posterior"]["w"].shape == (1, 3, 6, 1, 2)


@pytest.mark.parametrize("inference", FACTORISED)
def test_a_regressor_of_named_outputs_with_holes(inference):
    frame = pd.DataFrame(Y.numpy() * 10 + 50, columns=["Cd", "Ni", "Pb", "Zn"])
    frame.iloc[2, 1] = np.nan
    settings = {"steps": 15, "restarts": 2, "seed": 0, "selection": False, "progress": False}
    r = GPRNRegressor(2, inference=inference, **settings).fit(X.numpy(), frame)
    data = to_arviz(r, X=X_NEW.numpy(), Y=frame[:2], draws=20, outputs=[0, 1, 3], weights=True)
    assert dict(data["posterior"]["f"].sizes) == {"chain": 2, "draw": 20, "run": 6, "latent": 2}
    assert data["posterior"]["w"].shape == (2, 20, 6, 2, 3)
    assert data["posterior"]["kernel_w.lengthscale"].dims == ("chain", "draw", "input")
    for group, rows in [("posterior_predictive", 6), ("predictions", 2)]:
        assert data[group]["y"].shape == (2, 20, rows, 3)
        assert data[group]["y"].coords["output"].values.tolist() == ["Cd", "Ni", "Zn"]
        assert 30 < data[group]["y"].mean() < 70
    assert data["prior_predictive"]["y"].shape == (1, 20, 6, 3)
    np.testing.assert_allclose(data["observed_data"]["y"], frame[["Cd", "Ni", "Zn"]])
    np.testing.assert_allclose(data["constant_data"]["X"], X, atol=1e-12)
    np.testing.assert_allclose(data["sample_stats"]["bound"][:, 0], r.restart_elbos_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(az.summary(data, var_names=["noise_y", "f"])) == 1 + 6 * 2
    assert len(plot_latents(data).get_lines()) == 2


def test_what_needs_the_weights_integrated_out_is_refused_or_said_to_be_missing(monkeypatch):
    model, guide = made(MeanFieldGuide)
    data = to_arviz((model, guide), draws=5)
    assert data["posterior"].attrs["no_log_likelihood"].startswith("not available for this posterior, because")
    assert "likelihood_power" not in data["posterior"].attrs
    with pytest.raises(TypeError, match="log likelihood not found"):
        az.loo(data)
    with pytest.raises(ValueError, match=r"correlation_at needs .* inference='collapsed'"):
        to_arviz((model, guide), draws=5, correlation_at=X_NEW)
    monkeypatch.setattr(factorised_draws, "MOST_WEIGHTS", 47)
    with pytest.raises(ValueError, match="at most 47 numbers a draw; got 48"):
        to_arviz((model, guide), draws=5, outputs=[0], weights=True)
    for check in (to_arviz, diagnose):
        with pytest.raises(ValueError, match=r"of a GPRN .*; got Linear"):
            check((model, Linear(1, 1)))


@pytest.mark.parametrize("is_collapsed", [True, False])
def test_weights_are_rotated_along_with_the_functions(is_collapsed):
    if is_collapsed:
        model = CollapsedGPRN(X, 4, 2)
        guide, make = CollapsedGuide(model, init_scale=1.0), CollapsedDraws
        model.statistics(Y)
    else:
        (model, guide), make = made(KroneckerGuide), FactorisedDraws
    data = to_arviz((model, guide), draws=5, outputs=[3, 1], weights=True)["posterior"]
    generator = new_generator(0)
    draws = make(model, guide, OutputStatistics.of(Y), 5, generator=generator)
    w = draws.weights(OutputSelection([3, 1], model.output_shape), generator)
    rotated = torch.as_tensor((data["f"].values[0, ..., None] * data["w"].values[0]).sum(2))
    torch.testing.assert_close(rotated, (draws.F.unsqueeze(-1) * w).sum(2))
    assert not np.allclose(data["f"][0], draws.F)


def test_hyperparameters_with_a_spread_are_drawn():
    model = GPRN(X, 4, 2)
    model.noise_y = PyroSample(LogNormal(0.0, 1.0))
    model.autoguide("noise_y", Normal)
    guide = KroneckerGuide(model)
    guide.update_mean(Y)
    data = to_arviz((model, guide), draws=150)
    noise = data["posterior"]["noise_y"].values[0]
    assert len(np.unique(noise)) == 150
    assert is_mean_of(model.noise_y_loc.item(), np.log(noise))
    assert len(np.unique(data["posterior"]["kernel_w.lengthscale"])) == 1
    losses = np.array([ClosedFormELBO().loss(model, guide, Y) for _ in range(150)])
    bounds = data["sample_stats"]["bound"].values[0]
    assert is_mean_of(-losses.mean(), bounds, n_errors=7.0)


def test_a_likelihood_of_ones_own():
    class Heavy(GPRN):
        def likelihood(self, signal):
            return StudentT(8.0, signal, self.noise_y)

    model, guide = made(KroneckerGuide, mean="full", model_class=Heavy, noise_y=2.0)
    data = to_arviz((model, guide), draws=DRAWS, outputs=[0, 2])
    assert np.isnan(data["sample_stats"]["bound"]).all()
    Kf, Kw = (prior.factors[0].covariance().detach() for prior in model.prior())
    variance = (2 * Kf * Kw).diagonal() + 4.0 * 8 / 6
    assert is_mean_of(variance[:, None].expand(6, 2), data["prior_predictive"]["y"].values[0] ** 2)


def test_draws_depend_on_the_seed_alone():
    pair = made(MixtureGuide)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (to_arviz(pair, draws=4, weights=True, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for group, name in [("posterior", "w"), ("posterior_predictive", "y"), ("prior_predictive", "y")]:
        np.testing.assert_array_equal(first[group][name], again[group][name])
        assert not np.allclose(first[group][name], other[group][name])
