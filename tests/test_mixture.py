"""MixtureGuide against Monte Carlo, against one Gaussian, and as a Pyro guide."""

import math

import pyro
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from helpers import randomise
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroSample
from pyro.optim import Adam
from torch.distributions import kl_divergence

from pyro_gprn import GPRN, ClosedFormELBO, KroneckerGuide, MixtureGuide, TensorNormal, posterior_predictive
from pyro_gprn.factorised import expected_log_likelihood, fit_kronecker, fit_mixture
from pyro_gprn.factorised.isotropic_mixture import IsotropicMixture
from pyro_gprn.factorised.posterior import as_mixture
from pyro_gprn.factorised.projected import ProjectedTensorNormal


@pytest.fixture(autouse=True)
def _own_parameters():
    """Two guides of one test have the same names, which Pyro's store of parameters would mix up."""
    with pyro.settings.context(module_local_params=True):
        yield


X = torch.rand(4, 2, generator=torch.Generator().manual_seed(1))
Y = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(2))
MASK = torch.rand(4, 2, 3, generator=torch.Generator().manual_seed(3)) > 0.3
PER_OUTPUT = torch.tensor([[0.3, 0.5, 0.7], [0.4, 0.6, 0.8]])
N_NUMBERS = 4 * 2 * (1 + 6)  # of F and W together
MEANS = ["projected", "full"]
CASES = [
    pytest.param("projected", 0.5, None, id="projected"),
    pytest.param("full", 0.5, None, id="full"),
    pytest.param("full", 0.5, MASK, id="full-mask"),
    pytest.param("full", PER_OUTPUT, MASK, id="full-noises-mask"),
]


def make(mean="projected", noise=0.5, components=2, apart=0.3, **settings):
    length = {"lengthscale": torch.tensor(0.5)}
    settings = {"kernel_f": kernels.Matern32(2, **length), "kernel_w": kernels.Matern52(2, **length)} | settings
    model = GPRN(X, output_shape=(2, 3), n_latents=2, noise_y=noise, noise_f=0.1, **settings)
    guide = MixtureGuide(model, mean=mean, components=components)
    randomise(guide, apart)
    return model, guide


def arguments(mask):
    return (Y,) if mask is None else (Y, mask)


def closed_bound(model, guide, mask=None):
    return -ClosedFormELBO().loss(model, guide, *arguments(mask))


def in_plate(function, n_draws):
    return pyro.plate("draws", n_draws, dim=-4)(function)


def sampled_terms(model, guide, n_draws, mask=None):
    """``log p(Y, F, W)`` and ``log q(F, W)`` at draws from a guide, each ``(n_draws,)``."""
    guide_trace = poutine.trace(in_plate(guide, n_draws)).get_trace(*arguments(mask))
    model_trace = poutine.trace(poutine.replay(in_plate(model, n_draws), trace=guide_trace)).get_trace(*arguments(mask))
    terms = []
    for trace in (model_trace, guide_trace):
        trace.compute_log_prob()
        sites = [site for name, site in trace.nodes.items() if name in ("f", "w", "y") and "log_prob" in site]
        terms.append(sum(site["log_prob"].reshape(n_draws, -1).sum(-1) for site in sites))
    return terms


@torch.no_grad()
def expected_log_joint(model, component, mask=None):
    """In closed form: the expected log-likelihood, less the cross-entropies KL(q‖p) + H[q]."""
    joint = expected_log_likelihood(*component, Y, model.noise_y, mask)
    for q, prior in zip(component, model.prior(), strict=True):
        joint = joint - kl_divergence(q, prior) - q.entropy()
    return joint.item()


@pytest.mark.parametrize(("mean", "noise", "mask"), CASES)
@torch.no_grad()
def test_the_expected_log_joint_of_each_component_equals_monte_carlo(mean, noise, mask):
    model, guide = make(mean, noise)
    mixture = as_mixture(*guide.posterior(Y))
    joints = []
    for q_f, q_w in mixture.components:

        def one(*data, q_f=q_f, q_w=q_w):
            pyro.sample("f", q_f)
            pyro.sample("w", q_w)

        sampled, _ = sampled_terms(model, one, 10_000, mask)
        joints.append(expected_log_joint(model, (q_f, q_w), mask))
        assert abs(joints[-1] - sampled.mean()) < 4 * sampled.std() / math.sqrt(len(sampled))
    entropies = sum(q.entropy() for component in mixture.components for q in component) / 2
    whole = sum(joints) / 2 + entropies + mixture.entropy
    assert closed_bound(model, guide, mask) == pytest.approx(whole.item(), rel=1e-9)


@pytest.mark.parametrize(("mean", "noise", "mask"), CASES)
@pytest.mark.parametrize("apart", [0.01, 1.0], ids=["near", "far"])
@torch.no_grad()
def test_the_bound_is_below_the_sampled_elbo_with_the_exact_entropy(mean, noise, mask, apart):
    model, guide = make(mean, noise, apart=apart)
    joint, log_q = sampled_terms(model, guide, 10_000, mask)
    error = (joint - log_q).std() / 100
    slack = (joint - log_q).mean() - closed_bound(model, guide, mask)
    assert slack > -4 * error
    # What Jensen's inequality costs lies near n/2 (1 − log 2), which it is for one component
    assert slack < 0.5 * N_NUMBERS * (1 - math.log(2)) + math.log(2) + 4 * error


def test_the_entropy_is_jensens_bound_between_all_pairs():
    _, guide = make("full", components=3)
    with torch.no_grad():
        guide.scale_unconstrained += torch.tensor([0.0, 0.5, -0.5])
        q_f, q_w = guide.posterior(Y)
        pairs = list(zip(q_f.components, q_w.components, strict=True))
        centres = [torch.cat([f.loc.flatten(), w.loc.flatten()]) for f, w in pairs]
        bound = 0.0
        for centre, scale in zip(centres, q_f.scales, strict=True):
            both = (scale**2 + q_f.scales**2).sqrt()
            densities = [dist.Normal(other, s).log_prob(centre).sum() for other, s in zip(centres, both, strict=True)]
            bound -= (torch.stack(densities).logsumexp(0) - math.log(3)) / 3
        entropies = [f.entropy() + w.entropy() for f, w in pairs]
        torch.testing.assert_close(as_mixture(q_f, q_w).entropy, bound - sum(entropies) / 3)


@pytest.mark.parametrize("mask", [None, MASK], ids=["complete", "mask"])
def test_one_component_is_a_gaussian_less_half_of_one_minus_log_2_for_each_number(mask):
    model, guide = make("full", components=1)
    q_f, q_w = guide.posterior(Y)

    def gaussian(*data):  # the same by other formulas: independent normals
        pyro.sample("f", dist.Normal(q_f.mean.detach(), q_f.scales.item()).to_event(2))
        pyro.sample("w", dist.Normal(q_w.mean.detach(), q_w.scales.item()).to_event(4))

    joint = expected_log_joint(model, (q_f.components[0], q_w.components[0]), mask)
    entropy = 0.5 * N_NUMBERS * math.log(2 * math.pi * math.e * q_f.scales.item() ** 2)
    assert closed_bound(model, gaussian, mask) == pytest.approx(joint + entropy, rel=1e-9)
    shortfall = 0.5 * N_NUMBERS * (1 - math.log(2))
    assert closed_bound(model, guide, mask) == pytest.approx(closed_bound(model, gaussian, mask) - shortfall, rel=1e-9)


@pytest.mark.parametrize("mean", MEANS)
def test_a_component_that_comes_twice_counts_once_and_one_far_away_adds_log_2(mean):
    model, one = make(mean, components=1)
    _, two = make(mean, components=2)
    single = {name: value.clone() for name, value in one.state_dict().items()}
    two.load_state_dict({name: torch.cat([value, value]) for name, value in single.items()})
    assert closed_bound(model, two) == pytest.approx(closed_bound(model, one), rel=1e-9)
    mirrored = {name: torch.cat([value, value if "scale" in name else -value]) for name, value in single.items()}
    two.load_state_dict(mirrored)  # W F is the same for −W and −F: another mode, as good and far away
    assert closed_bound(model, two) == pytest.approx(closed_bound(model, one) + math.log(2), rel=1e-9)


def test_projected_means_are_full_ones_through_the_gram_matrix():
    model, projected = make("projected", components=3)
    _, full = make("full", components=3)
    with torch.no_grad():
        full.w_loc.copy_(torch.einsum("qknp,pab->qnkab", projected.w_projection, Y.double()))
        full.f_loc.copy_(projected.f_loc)
        full.scale_unconstrained.copy_(projected.scale_unconstrained)
    assert closed_bound(model, projected) == pytest.approx(closed_bound(model, full), rel=1e-9)
    distances = [guide.posterior(Y)[1].squared_distances() for guide in (projected, full)]
    torch.testing.assert_close(*distances)
    numbers = [sum(p.numel() for p in MixtureGuide(GPRN(X, D, 2)).parameters()) for D in (10, 10**6)]
    assert numbers[0] == numbers[1] == 2 * (4 * 2 + 2 * 4**2 + 1)


def test_nothing_is_drawn_and_a_projected_mean_never_multiplied_out(monkeypatch):
    model, guide = make()

    def forbidden(*args):
        raise AssertionError("must not be called")

    monkeypatch.setattr(IsotropicMixture, "rsample", forbidden)
    monkeypatch.setattr(ProjectedTensorNormal, "loc", property(forbidden))
    assert math.isfinite(ClosedFormELBO().loss_and_grads(model, guide, Y))


@pytest.mark.parametrize("mean", MEANS)
def test_gradients_and_floating_types(mean):
    model, guide = make(mean, apart=0.05)
    elbo = ClosedFormELBO()
    assert elbo.loss(model, guide, Y.float()) == pytest.approx(elbo.loss(model, guide, Y.double()), rel=1e-6)
    loss = elbo(model, guide)
    names = [name for name, _ in loss.named_parameters()]

    def closed(*values):
        return torch.func.functional_call(loss, dict(zip(names, values, strict=True)), (Y,))

    values = [p.detach().clone().requires_grad_() for p in loss.parameters()]
    assert torch.autograd.gradcheck(closed, values, fast_mode=True)


@torch.no_grad()
def test_the_sites_have_the_density_of_the_mixture_and_come_from_one_component():
    _, guide = make(components=3, apart=1.0)
    trace = poutine.trace(in_plate(guide, 500)).get_trace(Y)
    f, w = (trace.nodes[name]["value"].reshape(500, 4, 2, *rest) for name, rest in (("f", ()), ("w", (2, 3))))
    trace.compute_log_prob()
    q_f, q_w = guide.posterior()
    by_component = torch.stack(
        [a.log_prob(f) + b.log_prob(w) for a, b in zip(q_f.components, q_w.components, strict=True)]
    )
    sampled = trace.nodes["f"]["log_prob"] + trace.nodes["w"]["log_prob"]
    torch.testing.assert_close(sampled.flatten(), by_component.logsumexp(0) - math.log(3))
    assert trace.nodes["component"]["log_prob_sum"] == 0
    chosen = trace.nodes["component"]["value"].long().flatten()
    assert torch.equal(by_component.argmax(0), chosen)  # so far apart, each is the likeliest by far
    assert (chosen.bincount() > 100).all()


def test_draws_are_reparametrised():
    means, scales = torch.tensor([-1.0, 2.0], requires_grad=True), torch.tensor([0.5, 1.5], requires_grad=True)
    components = [TensorNormal(m.expand(1, 1), [s.expand(1), None]) for m, s in zip(means, scales, strict=True)]
    draws = IsotropicMixture(components, scales).rsample((20_000,))
    draws.square().mean().backward()  # of E[x²] = ½ Σ_j (m_j² + s_j²) the gradients are m_j and s_j
    torch.testing.assert_close(means.grad, means.detach(), rtol=0, atol=0.06)
    torch.testing.assert_close(scales.grad, scales.detach(), rtol=0, atol=0.1)


@torch.no_grad()
def test_mean_and_variance_of_a_site_are_those_of_its_draws():
    _, guide = make(apart=0.5)
    for q in guide.posterior(Y):
        draws = q.expand((2,)).sample((20_000,))
        torch.testing.assert_close(draws.mean((0, 1)), q.mean, rtol=0, atol=0.05)
        torch.testing.assert_close(draws.flatten(0, 1).var(0), q.variance, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize(
    "elbo",
    [
        ClosedFormELBO(),
        Trace_ELBO(),
        TraceMeanField_ELBO(),
        Trace_ELBO(num_particles=5, vectorize_particles=True, max_plate_nesting=3),
    ],
    ids=["closed", "trace", "mean-field", "vectorised"],
)
def test_every_elbo_trains_it(mean, elbo):
    with pyro.settings.context(module_local_params=False):  # as SVI needs it
        model, guide = make(mean)
        before = closed_bound(model, guide)
        svi = SVI(model, guide, Adam({"lr": 0.03}), elbo)
        history = [svi.step(Y) for _ in range(40)]
        assert all(math.isfinite(loss) for loss in history)
        assert closed_bound(model, guide) > before + 5


@pytest.mark.parametrize(("mean", "mask"), [("projected", None), ("full", None), ("full", MASK)])
def test_updated_means_are_the_best_of_every_component(mean, mask):
    model, guide = make(mean, apart=1.0)
    with torch.no_grad():
        guide.scale_unconstrained -= 3.0  # without overlap
    guide.update_mean(Y if mask is None else torch.where(mask, Y, torch.nan))
    bound = ClosedFormELBO().differentiable_loss(model, guide, Y, mask)
    parameter = guide.w_projection if mean == "projected" else guide.w_loc
    (gradient,) = torch.autograd.grad(bound, parameter)
    assert gradient.abs().max() < 1e-9 * abs(bound.item())


@pytest.mark.parametrize("constructor", [dist.Delta, dist.Normal], ids=["point", "normal"])
def test_priors_on_hyperparameters_enter_bound_fit_and_predictions(constructor):
    model, guide = make("projected")
    model.noise_y = PyroSample(dist.HalfNormal(1.0))
    model.autoguide("noise_y", constructor)
    closed = torch.tensor([closed_bound(model, guide) for _ in range(20)])
    sampled = torch.tensor([-Trace_ELBO().loss(model, guide, Y) for _ in range(100)])
    error = math.hypot(closed.std() / math.sqrt(20), sampled.std() / math.sqrt(100))
    assert closed.mean() < sampled.mean() + 4 * error
    fit = fit_mixture(model, Y, steps=5, seed=0, progress=False)
    predictive = posterior_predictive(model, fit.guide, X[:2], Y)
    n_draws = 1 if constructor is dist.Delta else 32
    assert len(predictive.parts) == 2 * n_draws
    assert torch.isfinite(predictive.variance()).all()


@pytest.mark.parametrize("mean", MEANS)
@torch.no_grad()
def test_predictions_are_the_mixture_of_the_components(mean):
    model, guide = make(mean, apart=0.7)
    X_new = torch.tensor([[0.1, 0.5], [0.7, 0.2], [0.4, 0.9]])
    predictive = posterior_predictive(model, guide, X_new, Y, generator=torch.Generator().manual_seed(0))
    draws = dense_draws(model, guide, X_new, 40_000)
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - predictive.mean()).abs() < 5 * error).all()
    torch.testing.assert_close(draws.var(0), predictive.variance(), rtol=0.06, atol=0)
    own = predictive.sample(40_000)
    correlations = [each.flatten(1).T.corrcoef() for each in (own, draws)]
    torch.testing.assert_close(*correlations, rtol=0, atol=0.05)
    level = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    quantiles = predictive.quantiles(level.tolist(), n_draws=2000)
    reached = (draws.unsqueeze(0) < quantiles.unsqueeze(1)).double().mean(1)
    torch.testing.assert_close(reached, level.reshape(3, 1, 1, 1).expand_as(reached), rtol=0, atol=0.025)
    point, width = predictive.mean(), 0.1
    near = ((draws - point).abs() < width / 2).double().mean(0) / width
    density = predictive.log_density(point, n_draws=2000).exp()
    torch.testing.assert_close(density, near, rtol=0.2, atol=0.02)


def dense_draws(model, guide, X_new, n_draws):
    """Draws of outputs with noise, ``(n_draws, N*, 2, 3)``: of u from a component, and of the rest by dense algebra."""
    N, parts = len(X), []
    for mu_f, mu_w, scale in zip(
        guide.posterior(Y)[0].components, guide.posterior(Y)[1].components, guide.posterior(Y)[0].scales, strict=True
    ):
        at_new = []
        for kernel, noise, loc in ((model.kernel_f, model.noise_f, mu_f.loc), (model.kernel_w, 0.0, mu_w.loc)):
            inputs = torch.cat([model.X, X_new.double()])
            K = kernel(inputs) + noise**2 * torch.eye(len(inputs), dtype=torch.float64)
            A = torch.linalg.solve(K[:N, :N], K[:N, N:]).T
            root = torch.linalg.cholesky(K[N:, N:] - A @ K[:N, N:])
            values = loc + scale * torch.randn(n_draws // 2, *loc.shape, dtype=torch.float64)
            centre = torch.einsum("mn,sn...->sm...", A, values)
            at_new.append(centre + torch.einsum("mj,sj...->sm...", root, torch.randn_like(centre)))
        signal = torch.einsum("snk,snkab->snab", *at_new)
        parts.append(signal + model.noise_y * torch.randn_like(signal))
    return torch.cat(parts)


@pytest.mark.parametrize("holes", [False, True])
def test_a_fit_raises_the_bound_and_its_components_differ(holes):
    outputs = torch.sin(3 * X[:, :1] + torch.arange(6.0)).float()
    if holes:
        outputs[1, 2] = torch.nan
    fit = fit_mixture(GPRN(X, 6, 1), outputs, components=3, steps=40, seed=0, progress=False)
    assert fit.guide.mean == ("full" if holes else "projected")
    assert fit.bound > fit.start
    assert len(fit.guide.scale) == 3
    q_f, _ = fit.guide.posterior()
    distances = q_f.squared_distances() + torch.eye(3)
    assert (distances > 1e-4).all()
    again = fit_mixture(fit.guide.model, outputs, guide=fit.guide, steps=3, progress=False)
    assert again.guide is fit.guide


def test_a_smoother_kernel_leaves_less_variance_and_the_start_follows_it():
    scales = []
    for length in (0.1, 0.3, 1.0):
        kernel = kernels.RBF(2, lengthscale=torch.tensor(length))
        model = GPRN(X, (2, 3), 1, kernel_w=kernel)
        scales.append(MixtureGuide(model).posterior(Y)[0].scales[0].item())
        assert math.isfinite(closed_bound(model, MixtureGuide(model)))
    assert scales[0] > scales[1] > scales[2]


def test_what_it_cannot_do_it_says(tmp_path):
    model = GPRN(X, (2, 3), 2)
    with pytest.raises(ValueError, match="components must be at least 1; got 0"):
        MixtureGuide(model, components=0)
    with pytest.raises(ValueError, match="'projected' or 'full'; got 'lazy'"):
        MixtureGuide(model, mean="lazy")
    with pytest.raises(ValueError, match="use mean='full' with a mask"):
        MixtureGuide(model)(Y, MASK)
    with pytest.raises(ValueError, match="'projected' needs complete outputs; use mean='full'"):
        MixtureGuide(model).update_mean(torch.where(MASK, Y, torch.nan))
    with pytest.raises(ValueError, match="fit_mixture goes on from a MixtureGuide; got a KroneckerGuide"):
        fit_mixture(model, Y, guide=KroneckerGuide(model), progress=False)
    settings = {"steps": 3, "seed": 0, "progress": False, "checkpoint": tmp_path / "fit"}
    fit_mixture(GPRN(X, (2, 3), 2), Y, **settings)
    with pytest.raises(ValueError, match="another fit, with another components"):
        fit_mixture(GPRN(X, (2, 3), 2), Y, components=3, **settings)
    with pytest.raises(ValueError, match="another fit, with another components, posterior"):
        fit_kronecker(GPRN(X, (2, 3), 2), Y, **settings)
