import math

import pyro
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from helpers import log_density
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.nn import PyroSample
from pyro.optim import Adam
from torch.distributions import kl_divergence

from pyro_gprn import GPRN, ClosedFormELBO, CollapsedGPRN, CollapsedGuide, KroneckerGuide, posterior_predictive

X = torch.linspace(0, 1, 6)[:, None]
Y = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(1))


def make(**settings):
    return CollapsedGPRN(X, output_shape=(2, 3), n_latents=2, noise_y=0.5, noise_f=0.1, **settings)


def test_sites():
    trace = poutine.trace(make()).get_trace(Y)
    assert trace.nodes["v"]["value"].shape == (6, 2)
    Lf = make().functions_factor()
    torch.testing.assert_close(trace.nodes["f"]["value"], Lf @ trace.nodes["v"]["value"])
    assert trace.nodes["y"]["fn"].event_shape == (6, 2, 3)
    assert trace.nodes["y"]["is_observed"]


def test_rotations_of_the_functions_change_nothing():
    model = make()
    _, Kw, noise = model.covariances()
    F = torch.randn(6, 2, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64)).Q
    known = model.statistics(Y)
    densities = [log_density(model.output_covariance(value, Kw, noise), known) for value in (F, F @ rotation)]
    torch.testing.assert_close(*densities, rtol=1e-12, atol=0)


def test_prior_draws_are_those_of_the_full_model():
    """The same second moments as GPRN's, over inputs."""
    kernel = {"kernel_f": kernels.Matern32(1), "kernel_w": kernels.Matern52(1)}
    collapsed = CollapsedGPRN(X, 200, 2, noise_f=0.3, noise_y=0.2, **kernel)
    full = GPRN(X, 200, 2, noise_f=0.3, noise_y=0.2, kernel_f=kernels.Matern32(1), kernel_w=kernels.Matern52(1))
    moments = []
    for model in (collapsed, full):
        draws = torch.stack([model().detach() for _ in range(500)])
        moments.append(torch.einsum("sid,sjd->ij", draws, draws) / (500 * 200))
    torch.testing.assert_close(*moments, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("effective_outputs", [None, 3.0])
def test_effective_outputs_weigh_the_likelihood(effective_outputs):
    model = make(effective_outputs=effective_outputs)
    trace = poutine.trace(model).get_trace(Y)
    trace.compute_log_prob()
    site = trace.nodes["y"]
    weight = 1.0 if effective_outputs is None else 3.0 / 6
    torch.testing.assert_close(site["log_prob_sum"], weight * site["fn"].log_prob(Y))


@pytest.mark.parametrize("elbo", [Trace_ELBO(), TraceMeanField_ELBO(num_particles=3, vectorize_particles=True)])
def test_svi_trains_it(elbo):
    model = make()
    guide = CollapsedGuide(model)
    svi = SVI(model, guide, Adam({"lr": 0.02}), elbo)
    history = [svi.step(Y) for _ in range(200)]
    assert sum(history[-20:]) < sum(history[:20])


def test_the_kl_of_the_guide_is_closed_form():
    model = make()
    guide = CollapsedGuide(model)
    losses = torch.tensor([TraceMeanField_ELBO().loss(model, guide, Y) for _ in range(300)], dtype=torch.float64)
    q = guide.posterior()
    Lf, Kw, noise = model.covariances()
    C = model.output_covariance(Lf @ q.rsample((3000,)), Kw, noise)
    likelihoods = log_density(C, model.statistics(Y))
    closed = kl_divergence(q, model.prior()) - likelihoods.mean()
    error = math.hypot(losses.std() / 300**0.5, likelihoods.std().item() / 3000**0.5)
    assert abs(losses.mean() - closed) < 4 * error


def test_other_guides_and_mcmc_work():
    model = make()
    model.noise_y = PyroSample(dist.LogNormal(torch.tensor(-1.0), torch.tensor(0.3)))
    point = AutoDelta(model)
    svi = SVI(model, point, Adam({"lr": 0.02}), Trace_ELBO())
    for _ in range(50):
        svi.step(Y)
    mcmc = MCMC(NUTS(model), num_samples=6, warmup_steps=4, disable_progbar=True)
    mcmc.run(Y)
    samples = mcmc.get_samples()
    assert set(samples) == {"v", "noise_y"}
    for posterior in (point, samples):
        predictive = posterior_predictive(model, posterior, X + 0.1, Y, n_draws=8)
        assert torch.isfinite(predictive.mean()).all()
        assert (predictive.variance() > 0).all()
        assert predictive.sample(3).shape == (3, 6, 2, 3)
        assert torch.isfinite(predictive.log_density(Y)).all()


@pytest.mark.parametrize("seed", range(5))
def test_paper_bound_below_collapsed_bound_below_evidence(seed):
    torch.manual_seed(seed)
    settings = {"noise_f": 0.2, "noise_y": 0.4, "kernel_f": None}
    inputs, outputs = torch.rand(5, 1), torch.randn(5, 7)
    with pyro.settings.context(module_local_params=True):
        full = GPRN(inputs, 7, 2, **settings | {"kernel_f": kernels.RBF(1)})
        collapsed = CollapsedGPRN(inputs, 7, 2, **settings | {"kernel_f": kernels.RBF(1)})
        q = CollapsedGuide(collapsed)
        with torch.no_grad():
            for parameter in q.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        guide = KroneckerGuide(full)
        with torch.no_grad():  # the same q(F), whitened alike
            guide.f_loc.copy_(q.v_loc)
            guide.f_scale_row_unconstrained.copy_(q.v_scale_row_unconstrained)
            guide.f_scale_col_unconstrained.copy_(q.v_scale_col_unconstrained)
        weights = [p for name, p in guide.named_parameters() if name.startswith("w_")]
        loss = ClosedFormELBO()(full, guide)
        optimiser = torch.optim.LBFGS(weights, max_iter=200, line_search_fn="strong_wolfe")

        def closure():
            optimiser.zero_grad()
            value = loss(outputs)
            value.backward()
            return value

        optimiser.step(closure)
        paper = -loss(outputs).item()
        with torch.no_grad():
            Lf, Kw, noise = collapsed.covariances()
            V = q.posterior().rsample((20_000,))
            likelihood = log_density(collapsed.output_covariance(Lf @ V, Kw, noise), collapsed.statistics(outputs))
            weight = likelihood + collapsed.prior().log_prob(V) - q.posterior().log_prob(V)
    bound, error = weight.mean().item(), (weight.std() / len(V) ** 0.5).item()
    importance = (weight.logsumexp(0) - math.log(len(V))).item()
    assert paper <= bound + 4 * error
    assert bound <= importance


def test_importance_weights_give_the_evidence_where_it_can_be_integrated():
    """N = 1 and K = 1: the evidence is an integral over one number."""
    outputs = torch.randn(1, 4, dtype=torch.float64)
    model = CollapsedGPRN(torch.zeros(1, 1), 4, 1, noise_y=0.5, kernel_f=kernels.RBF(1))
    Lf, Kw, noise = (part.detach() for part in model.covariances())
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)

    def log_joint(v):
        F = Lf * v[:, None, None]
        likelihood = log_density(model.output_covariance(F, Kw, noise), model.statistics(outputs))
        return likelihood + dist.Normal(0.0, 1.0).log_prob(v)

    evidence = torch.logsumexp(log_joint(grid), 0) + math.log(grid[1] - grid[0])
    guide = CollapsedGuide(model, init_scale=1.5)
    draws = guide.posterior().rsample((50_000,)).detach()
    weights = log_joint(draws.flatten()) - guide.posterior().log_prob(draws).detach()
    estimate = weights.logsumexp(0) - math.log(len(draws))
    error = (weights - estimate).exp().std() / len(draws) ** 0.5
    assert abs(estimate - evidence) < 4 * error
    assert weights.mean() <= evidence


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise_y": torch.ones(2, 3)}, "one noise_y for all outputs"),
        ({"effective_outputs": 0}, "above 0 and at most D = 6; got 0"),
        ({"effective_outputs": 7}, "at most D = 6; got 7"),
        ({"effective_outputs": "all"}, "'auto' or a number"),
        ({"n_latents": 0}, "n_latents"),
    ],
)
def test_wrong_arguments_have_their_own_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        CollapsedGPRN(**({"X": X, "output_shape": (2, 3), "n_latents": 2} | settings))


def test_auto_without_a_fit_says_what_to_do():
    with pytest.raises(ValueError, match="fit_collapsed"):
        poutine.trace(make(effective_outputs="auto")).get_trace(Y)


def test_two_models_in_one_session_keep_their_own_parameters():
    first, second = make(), make()
    guides = [CollapsedGuide(model) for model in (first, second)]
    with torch.no_grad():
        second.kernel_w.kern0.lengthscale_unconstrained.fill_(3.0)
        guides[1].v_loc.fill_(0.5)
    first()  # puts its parameters into Pyro's global store
    assert posterior_predictive(second, guides[1], X, Y).mean().shape == (6, 2, 3)
    assert second.kernel_w.kern0.lengthscale.item() == pytest.approx(math.exp(3.0))
