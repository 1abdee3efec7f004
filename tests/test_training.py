import copy
import math
import signal

import pyro
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from helpers import log_density
from pyro.nn import PyroSample

from pyro_gprn import CollapsedGPRN, fit_collapsed, posterior_predictive
from pyro_gprn.collapsed.bound import gauss_newton_rows
from pyro_gprn.collapsed.independent import fit_independent
from pyro_gprn.collapsed.model import Covariances
from pyro_gprn.metrics import nrmse
from pyro_gprn.training.ranges import Ranges

QUICK = {"steps": 60, "progress": False, "seed": 0}


def bumps(n, n_outputs=50, noise=0.0, seed=0):
    """A bump on a line whose place and width depend on two inputs."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 2, generator=generator)
    points = torch.linspace(0, 1, n_outputs)
    place, width = 0.5 + 0.12 * X[:, :1], 0.12 * (0.3 * X[:, 1:]).exp()
    Y = torch.exp(-0.5 * ((points - place) / width).square())
    Y = (Y - Y.mean(0)) / Y.std()
    return X, Y + noise * torch.randn(Y.shape, generator=generator)


def test_a_fit_beats_its_start_and_independent_gps():
    X, Y = bumps(60)
    model = CollapsedGPRN(X[:40], 50, 3, effective_outputs="auto")
    fit = fit_collapsed(model, Y[:40], steps=200, progress=False, seed=0)
    assert fit.bound > fit.evidence
    assert fit.bound > fit.start
    assert isinstance(model.effective_outputs, float)
    independent = CollapsedGPRN(X[:40], 50, 1, kernel_f=kernels.Constant(2), noise_f=1e-6)
    fit_independent(independent, independent.statistics(Y[:40]))
    v = torch.zeros(1, 40, 1, dtype=torch.float64)
    v[0, 0] = 1.0
    baseline = posterior_predictive(independent, {"v": v}, X[40:], Y[:40]).mean()
    assert nrmse(posterior_predictive(model, fit.guide, X[40:]).mean(), Y[40:]) < nrmse(baseline, Y[40:])


def test_stage_one_finds_what_generated_the_data():
    X = torch.linspace(-2, 2, 30)[:, None]
    model = CollapsedGPRN(X, 400, 1, noise_y=0.2)
    with torch.no_grad():
        C = model.output_covariance(torch.ones(30, 1).double(), model.kernel_w(model.X), model.noise_y.square())
        Y = torch.linalg.cholesky(C) @ torch.randn(30, 400, dtype=torch.float64)
    truth = model.kernel_w.kern0.lengthscale.item()
    fit_independent(model, model.statistics(Y))
    assert model.kernel_w.kern0.lengthscale.item() == pytest.approx(truth, rel=0.1)
    assert model.noise_y.item() == pytest.approx(0.2, rel=0.1)


def test_a_copied_model_has_the_ranges_of_the_first():
    X, Y = bumps(12)
    model = CollapsedGPRN(X, 50, 2)
    known = model.statistics(Y)
    of_first, of_copy = Ranges(model, known), Ranges(copy.deepcopy(model), known)
    for name, _ in model.named_parameters():
        assert of_copy.of(name) == of_first.of(name)
        assert all(map(math.isfinite, of_copy.of(name)))


@pytest.mark.parametrize("posterior", ["variational", "laplace", "point"])
def test_every_posterior_works_and_never_ends_below_its_start(posterior):
    X, Y = bumps(20)
    model = CollapsedGPRN(X, 50, 2, effective_outputs="auto")
    fit = fit_collapsed(model, Y, posterior=posterior, **QUICK)
    assert fit.bound >= fit.start
    predictive = posterior_predictive(model, fit.guide, X + 0.1)
    assert torch.isfinite(predictive.mean()).all()
    assert (predictive.variance() > 0).all()


@pytest.mark.parametrize("K", [1, 2])
def test_gauss_newton_rows_are_those_of_the_hessian_where_it_is_exact(K):
    """At outputs that agree with the model on average, the expected Hessian is the Hessian: compare with autograd."""
    X = torch.linspace(0, 1, 5)[:, None]
    model = CollapsedGPRN(X, 5, K, noise_y=0.5, kernel_f=kernels.Matern32(1))
    covariances = Covariances(*(part.detach() for part in model.covariances()))
    Lf, Kw, noise = covariances
    v = torch.randn(5, K, dtype=torch.float64)
    C = model.output_covariance(Lf @ v, Kw, noise)
    known = model.statistics(torch.linalg.cholesky(C) * 5**0.5)  # five outputs with Gram matrix 5 C
    rows = gauss_newton_rows(model, covariances, v.unsqueeze(0), torch.ones(K).double(), known)

    def log_joint(v):
        return log_density(model.output_covariance(Lf @ v, Kw, noise), known) - 0.5 * v.square().sum()

    hessian = torch.autograd.functional.hessian(log_joint, v)  # (5, K, 5, K)
    precision = -torch.einsum("ikjk->ij", hessian) / K  # q(V) has one row covariance for all columns
    torch.testing.assert_close(rows @ rows.mT, torch.linalg.inv(precision), rtol=1e-5, atol=1e-7)


def test_same_seed_same_result_and_torch_state_untouched():
    X, Y = bumps(15)
    results = []
    for _ in range(2):
        before = torch.get_rng_state()
        model = CollapsedGPRN(X, 50, 2, effective_outputs="auto")
        fit = fit_collapsed(model, Y, **QUICK)
        assert torch.equal(torch.get_rng_state(), before)
        results.append((fit.bound, fit.guide.v_loc.detach()))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_restarts_keep_the_best():
    X, Y = bumps(15)
    bounds = []
    for restarts in (1, 3):
        model = CollapsedGPRN(X, 50, 2, effective_outputs="auto")
        bounds.append(fit_collapsed(model, Y, restarts=restarts, **QUICK).bound)
    assert bounds[1] >= bounds[0] - 1e-6 * abs(bounds[0])


def test_missing_outputs():
    X, Y = bumps(30)
    hidden = Y.clone()
    hidden[5:15, :20] = torch.nan
    hidden[20, 30:] = torch.nan
    model = CollapsedGPRN(X, 50, 2, effective_outputs="auto")
    fit = fit_collapsed(model, hidden, steps=200, progress=False, seed=0)
    mean = posterior_predictive(model, fit.guide, X).mean()
    missing = hidden.isnan()
    error = (mean - Y)[missing].square().mean().sqrt() / Y[missing].std()
    assert error < 0.5
    assert torch.isfinite(mean).all()


def test_very_many_patterns_of_holes_are_pointed_out():
    X, Y = torch.rand(40, 1), torch.full((40, 40), torch.nan)
    Y[torch.arange(40), torch.arange(40)] = Y[torch.arange(40) - 1, torch.arange(40)] = 1.0
    with pytest.warns(UserWarning, match=r"40 patterns of missing outputs.*KroneckerGuide\(mean='full'\) and a mask"):
        fit_collapsed(CollapsedGPRN(X, 40, 1), Y, **QUICK | {"steps": 2})


def test_priors_on_hyperparameters():
    X, Y = bumps(15)
    model = CollapsedGPRN(X, 50, 2)
    model.noise_y = PyroSample(dist.LogNormal(torch.tensor(0.0), torch.tensor(1e-3)))
    fit = fit_collapsed(model, Y, **QUICK)
    assert model.noise_y_map.item() == pytest.approx(1.0, rel=0.05)  # a prior this sharp wins
    assert fit.bound >= fit.start
    model.kernel_w.kern0.lengthscale = PyroSample(dist.LogNormal(torch.zeros(2), torch.ones(2)).to_event(1))
    model.kernel_w.kern0.autoguide("lengthscale", dist.Normal)
    assert math.isfinite(fit_collapsed(model, Y, **QUICK).bound)


def test_an_interrupted_fit_keeps_what_it_reached():
    X, Y = bumps(20)
    model = CollapsedGPRN(X, 50, 2, effective_outputs="auto")

    def interrupt(step, bound):
        if step == 20:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted after 21 steps"):
        fit = fit_collapsed(model, Y, callback=interrupt, restarts=3, **QUICK)
    assert len(fit.losses) == 21
    assert fit.bound >= fit.start
    assert torch.isfinite(posterior_predictive(model, fit.guide, X).mean()).all()


def test_progress_is_silent_when_off_and_shows_the_bound_when_on(capsys):
    X, Y = bumps(8)
    fit_collapsed(CollapsedGPRN(X, 50, 2), Y, **QUICK)
    assert capsys.readouterr().err == ""
    fit_collapsed(CollapsedGPRN(X, 50, 2), Y, **QUICK | {"progress": True})
    assert "bound=" in capsys.readouterr().err


def test_two_fits_in_one_session_do_not_meet():
    X, Y = bumps(12)
    pyro.clear_param_store()
    first = CollapsedGPRN(X, 50, 2)
    fit = fit_collapsed(first, Y, **QUICK)
    before = posterior_predictive(first, fit.guide, X, generator=torch.Generator().manual_seed(0)).mean()
    second = CollapsedGPRN(3 * X[:7], 50, 1)
    fit_collapsed(second, Y[:7], **QUICK)
    assert len(pyro.get_param_store()) == 0
    after = posterior_predictive(first, fit.guide, X, generator=torch.Generator().manual_seed(0)).mean()
    assert torch.equal(after, before)


@pytest.mark.parametrize(
    ("X", "Y"),
    [
        (torch.zeros(1, 1), torch.ones(1, 4)),
        (torch.rand(2, 3), torch.randn(2, 1)),
        (torch.ones(6, 2), torch.randn(6, 5)),
        (torch.rand(6, 2), torch.zeros(6, 5)),
        (torch.rand(6, 2).repeat(2, 1), torch.randn(12, 5)),
        (1e6 * torch.rand(8, 2), 1e-6 * torch.randn(8, 5)),
        (torch.rand(8, 1), torch.ones(8, 1).expand(8, 300)),
    ],
    ids=["one-row", "two-rows", "equal-inputs", "zeros", "duplicates", "scales", "constant"],
)
def test_degenerate_data_work(X, Y):
    model = CollapsedGPRN(X, Y.shape[1], 3, effective_outputs="auto")
    fit = fit_collapsed(model, Y, **QUICK)
    assert math.isfinite(fit.bound)
    predictive = posterior_predictive(model, fit.guide, torch.cat([X, X + 1]))
    assert torch.isfinite(predictive.mean()).all()
    assert (predictive.variance() > 0).all()
    assert torch.isfinite(predictive.sample(4)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"steps": 0}, "at least 1"), ({"restarts": 0}, "at least 1"), ({"posterior": "exact"}, "got 'exact'")],
)
def test_wrong_arguments_have_their_own_errors(settings, message):
    X, Y = bumps(5)
    with pytest.raises(ValueError, match=message):
        fit_collapsed(CollapsedGPRN(X, 50, 2), Y, **QUICK | settings)


@pytest.mark.slow
def test_five_hundred_rows_and_twenty_latents_train():
    X, Y = bumps(500, n_outputs=1000, noise=0.05)
    model = CollapsedGPRN(X, 1000, 20, effective_outputs="auto")
    fit = fit_collapsed(model, Y, steps=60, progress=False, seed=0)
    assert fit.bound > fit.start
