"""Every public model is an ordinary Pyro model: guides, bounds, samplers, handlers, plates and pictures take it.

Densities are checked against a calculation that shares no code with the models.
"""

import math

import pyro
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    MCMC,
    NUTS,
    SVI,
    JitTrace_ELBO,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from pyro.infer.autoguide import AutoDelta, AutoLowRankMultivariateNormal, AutoNormal
from pyro.infer.inspect import generate_graph_specification, get_model_relations
from pyro.infer.mcmc.util import initialize_model
from pyro.nn import PyroSample
from pyro.ops.integrator import potential_grad
from pyro.optim import Adam
from torch.distributions import LogNormal, MultivariateNormal, Normal

from pyro_gprn import GPRN, CollapsedGPRN, CollapsedGuide, KroneckerGuide

N, D, K = 5, 3, 2
NOISE_F, NOISE_Y = 0.3, 0.5
X = torch.linspace(0, 2, N, dtype=torch.float64)[:, None]
Y = torch.randn(N, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
KINDS = ["GPRN", "CollapsedGPRN", "own kernels"]
#: Names of the hyperparameters that may have a prior, with the location and the scale of a log-normal one.
PRIORS = {"noise_y": (-0.5, 0.3), "kernel_w.lengthscale": (0.2, 0.4)}
CASES = [(kind, prior) for kind in KINDS for prior in (None, *PRIORS)]
each_model = pytest.mark.parametrize(("kind", "prior"), CASES, ids=[f"{k}-{p or 'no prior'}" for k, p in CASES])
# torch.jit.trace is deprecated, and warns of the branches of the safe Cholesky factorisation.
traced = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


@pytest.fixture(autouse=True)
def _pyro_state():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


def make(kind, prior=None):
    own = {"kernel_f": kernels.RBF(1), "kernel_w": kernels.RBF(1), "noise_f": NOISE_F, "noise_y": NOISE_Y}
    own_kernels = {} if kind == "GPRN" else {"own_kernels": kind == "own kernels"}
    model = (GPRN if kind == "GPRN" else CollapsedGPRN)(X, D, K, **own, **own_kernels)
    if prior == "noise_y":
        model.noise_y = PyroSample(dist.LogNormal(*map(torch.tensor, PRIORS[prior])))
    if prior == "kernel_w.lengthscale":
        location = torch.full(model.kernel_w.lengthscale.shape, PRIORS[prior][0], dtype=torch.float64)
        model.kernel_w.lengthscale = PyroSample(dist.LogNormal(location, PRIORS[prior][1]).to_event(location.dim()))
    return model


def own_guide(model):
    return KroneckerGuide(model, mean="full") if isinstance(model, GPRN) else CollapsedGuide(model)


def n_plates(model):
    return 2 if isinstance(model, GPRN) else 0


def functions_of(model):
    """The site that the functions are drawn at."""
    return "f" if isinstance(model, GPRN) else "v"


def rbf(lengthscale):
    return torch.exp(-0.5 * (X - X.mT).square() / lengthscale.square())


def log_densities(kind, values, outputs=Y):
    """The log density of each site, out of textbook parts."""
    noise = values.get("noise_y", torch.tensor(NOISE_Y)).double().expand(D)
    lengthscale = values.get("kernel_w.lengthscale", torch.tensor(1.0)).double().expand(D if kind != "GPRN" else 1, 1)
    zeros, identity = X.new_zeros(N), torch.eye(N, dtype=torch.float64)
    Kf = rbf(torch.ones(1)) + NOISE_F**2 * identity
    found = {name: LogNormal(*PRIORS[name]).log_prob(values[name]).sum() for name in PRIORS if name in values}
    if kind == "GPRN":
        Kw = MultivariateNormal(zeros, rbf(lengthscale[0]) + 1e-10 * identity)
        found["f"] = MultivariateNormal(zeros, Kf).log_prob(values["f"].mT).sum()
        found["w"] = Kw.log_prob(values["w"].permute(1, 2, 0)).sum()
        signal = torch.einsum("nk,nkd->nd", values["f"], values["w"])
        found["y"] = Normal(signal, noise).log_prob(outputs).sum()
        return found
    found["v"] = Normal(0.0, 1.0).log_prob(values["v"]).sum()
    F = torch.linalg.cholesky(Kf) @ values["v"]
    covariances = [rbf(lengthscale[d]) * (F @ F.mT) + noise[d] ** 2 * identity for d in range(D)]
    found["y"] = sum(MultivariateNormal(zeros, covariances[d]).log_prob(outputs[:, d]) for d in range(D))
    return found


def log_joint(kind, values, outputs=Y):
    return sum(log_densities(kind, values, outputs).values())


def drawn(trace):
    """The values of the latent sites of a model."""
    names = [name for name in trace.stochastic_nodes if not trace.nodes[name]["infer"].get("is_auxiliary")]
    return {name: trace.nodes[name]["value"].detach() for name in names}


def members(model, values, size):
    """The values of each member of a plate, without the dimensions of size 1 of the model's own plates."""
    shapes = {name: each.shape for name, each in drawn(poutine.trace(model).get_trace(Y)).items()}
    return [{name: each[i].reshape(shapes[name]) for name, each in values.items()} for i in range(size)]


def close(ours, expected):
    torch.testing.assert_close(torch.as_tensor(ours).double(), torch.as_tensor(expected).double(), rtol=1e-6, atol=1e-6)


# Pictures


@each_model
@pytest.mark.parametrize("has_mask", [False, True])
def test_a_picture_has_every_edge_and_every_plate(kind, prior, has_mask):
    if has_mask and kind != "GPRN":
        pytest.skip("holes of the collapsed model are NaN")
    model = make(kind, prior)
    mask = torch.rand(N, D) > 0.3
    relations = get_model_relations(model, (torch.where(mask, Y, torch.nan), mask) if has_mask else (Y,))
    into = {site: set(sources) for site, sources in relations["sample_sample"].items()}
    expected = {"f": set(), "w": set(), "y": {"f", "w"}} if kind == "GPRN" else {"v": set(), "f": {"v"}, "y": {"v"}}
    if prior is not None:
        expected[prior] = set()
        expected["w" if kind == "GPRN" and prior != "noise_y" else "y"].add(prior)
    assert into == expected
    assert "y" in relations["observed"]
    used = set().union(*relations["sample_param"].values())
    assert used == set(relations["param_constraint"])  # noises as well, which are added to diagonals
    assert relations["plate_sample"] == ({"data": ["y"], "output_1": ["y"]} if kind == "GPRN" else {})
    plates = generate_graph_specification(relations)["plate_data"]
    assert plates == ({"data": {"parent": None}, "output_1": {"parent": "data"}} if kind == "GPRN" else {})


@each_model
def test_a_picture_is_drawn(kind, prior):
    pytest.importorskip("graphviz")
    picture = pyro.render_model(make(kind, prior), model_args=(Y,), render_params=True, render_distributions=True)
    assert "-> y" in picture.source
    assert ("cluster_output_1" in picture.source) == (kind == "GPRN")
    assert get_model_relations(make(kind, prior))["observed"] == ([] if kind == "GPRN" else ["f"])  # without Y too


# Guides and bounds


@each_model
@pytest.mark.parametrize("guide", [AutoNormal, AutoDelta, AutoLowRankMultivariateNormal, own_guide])
def test_the_loss_of_a_guide_is_log_q_minus_log_p(kind, prior, guide):
    model = make(kind, prior)
    guide = guide(model)
    guide(Y)
    svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO())
    pyro.set_rng_seed(1)
    loss = svi.evaluate_loss(Y)
    pyro.set_rng_seed(1)
    trace = poutine.trace(guide).get_trace(Y)
    close(loss, (trace.log_prob_sum() - log_joint(kind, drawn(trace))).item())
    assert all(math.isfinite(svi.step(Y)) for _ in range(2))


@traced
@each_model
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO, JitTrace_ELBO, RenyiELBO, TraceMeanField_ELBO])
def test_every_bound_of_a_point_is_the_log_joint(kind, prior, elbo):
    model, elbo = make(kind, prior), elbo(num_particles=2)
    guide = AutoDelta(model, init_loc_fn=lambda site: site["fn"].sample())
    values = guide(Y)
    for outputs in (Y, Y + 1.0):  # the second by what was compiled for the first
        close(elbo.loss_and_grads(model, guide, outputs), -log_joint(kind, values, outputs).item())
    losses = [SVI(model, guide, Adam({"lr": 0.01}), elbo).step(Y) for _ in range(2)]
    assert losses[1] < losses[0]


@each_model
@pytest.mark.parametrize("guide", [AutoNormal, own_guide])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceGraph_ELBO])
def test_the_loss_of_vectorised_particles_is_the_mean_over_them(kind, prior, guide, elbo):
    model, size = make(kind, prior), 3
    guide = guide(model)
    guide(Y)
    nesting = n_plates(model) + 1
    pyro.set_rng_seed(1)
    loss = elbo(num_particles=size, vectorize_particles=True, max_plate_nesting=nesting).loss(model, guide, Y)
    pyro.set_rng_seed(1)
    with pyro.plate("particles", size, dim=-nesting):
        trace = poutine.trace(guide).get_trace(Y)
    each = [log_joint(kind, values) for values in members(model, drawn(trace), size)]
    close(loss, (trace.log_prob_sum() - sum(each)).item() / size)


@traced
@each_model
@pytest.mark.parametrize("elbo", [JitTrace_ELBO, RenyiELBO, TraceMeanField_ELBO])
def test_vectorised_particles_train(kind, prior, elbo):
    model = make(kind, prior)
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), elbo(num_particles=3, vectorize_particles=True))
    assert all(math.isfinite(svi.step(Y)) for _ in range(2))


@traced
def test_outputs_with_holes_are_not_compiled():
    model = make("CollapsedGPRN")
    holes = Y.clone()
    holes[1, 2] = torch.nan
    with pytest.raises(ValueError, match=r"outputs with holes cannot be compiled .* Trace_ELBO"):
        JitTrace_ELBO().loss_and_grads(model, AutoDelta(model), holes)


# Samplers


@traced
@each_model
@pytest.mark.parametrize("jit_compile", [False, True])
def test_nuts_samples_from_the_log_joint(kind, prior, jit_compile):
    model = make(kind, prior)
    start, potential, transforms, _ = initialize_model(
        model, (Y,), jit_compile=jit_compile, skip_jit_warnings=True, initial_params=None
    )
    for scale in (1.0, 0.5):
        at = {name: scale * value for name, value in start.items()}
        values = {name: transforms[name].inv(value) if name in transforms else value for name, value in at.items()}
        jacobian = sum(each.sum() for name, each in at.items() if name in PRIORS)  # of the exponential function
        close(potential(at).item(), -(log_joint(kind, values) + jacobian).item())
    mcmc = MCMC(
        NUTS(model, jit_compile=jit_compile, ignore_jit_warnings=True, max_tree_depth=2),
        num_samples=2,
        warmup_steps=1,
        disable_progbar=True,
    )
    mcmc.run(Y)
    samples = mcmc.get_samples()
    assert set(samples) == set(start)
    assert all(each.shape == (2, *start[name].shape) and torch.isfinite(each).all() for name, each in samples.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_matrix_without_a_factor_is_a_divergence_and_no_error(kind):
    model = make(kind, "kernel_w.lengthscale")
    start, potential, _, _ = initialize_model(model, (Y,))
    start["kernel_w.lengthscale"] = torch.full_like(
        start["kernel_w.lengthscale"], -740.0
    )  # whose exponential is nearly zero
    _, energy = potential_grad(potential, start)
    assert energy.isnan()


@each_model
def test_parallel_predictions_have_the_moments_of_the_prior(kind, prior):
    model, size = make(kind, prior), 600
    found = Predictive(model, num_samples=size, parallel=True, return_sites=["y", "f", *([prior] if prior else [])])()
    assert found["y"].shape == (size, N, D)
    assert found["f"].reshape(size, N, K).shape == (size, N, K)
    squares = found["y"].detach().square().mean((1, 2))
    noise = NOISE_Y**2
    if prior == "noise_y":
        location, scale = PRIORS[prior]
        noise = math.exp(2 * location + 2 * scale**2)
    expected = K * (1 + NOISE_F**2) + noise
    assert abs(squares.mean() - expected) < 4.5 * squares.std() / math.sqrt(size)
    # each draw has the noise and the length-scale that were drawn with it
    if prior is not None:
        assert len(found[prior].reshape(size, -1).unique(dim=0)) == size


@each_model
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("guide", [AutoNormal, own_guide])
def test_predictions_from_a_guide_have_the_shapes_of_the_model(kind, prior, guide, parallel):
    model = make(kind, prior)
    guide = guide(model)
    guide(Y)
    found = Predictive(model, guide=guide, num_samples=4, parallel=parallel)()
    assert found["y"].shape == (4, N, D)
    assert len(found["y"].detach().flatten(1).unique(dim=0)) == 4
    assert {prior} - {None} <= set(found)


# Handlers and plates


@each_model
def test_the_density_of_a_trace_is_the_log_joint(kind, prior):
    trace = poutine.trace(make(kind, prior)).get_trace(Y)
    trace.compute_log_prob()
    for name, expected in log_densities(kind, drawn(trace)).items():
        close(trace.nodes[name]["log_prob_sum"].item(), expected.item())


@each_model
def test_a_scaled_model_has_a_scaled_density(kind, prior):
    trace = poutine.trace(poutine.scale(make(kind, prior), scale=2.5)).get_trace(Y)
    close(trace.log_prob_sum().item(), 2.5 * log_joint(kind, drawn(trace)).item())


@each_model
def test_a_masked_model_has_no_density(kind, prior):
    trace = poutine.trace(poutine.mask(make(kind, prior), mask=False)).get_trace(Y)
    assert trace.log_prob_sum() == 0.0
    assert trace.nodes["y"]["is_observed"]


@each_model
def test_a_conditioned_site_has_its_value_and_its_density(kind, prior):
    model = make(kind, prior)
    name = prior or functions_of(model)
    given = 0.7 * torch.ones_like(poutine.trace(model).get_trace().nodes[name]["value"])
    trace = poutine.trace(poutine.condition(model, data={name: given})).get_trace(Y)
    assert trace.nodes[name]["is_observed"]
    assert torch.equal(trace.nodes[name]["value"], given)
    close(trace.log_prob_sum().item(), log_joint(kind, drawn(trace) | {name: given}).item())


@each_model
def test_an_intervention_has_its_value_downstream_and_no_density(kind, prior):
    model = make(kind, prior)
    name = prior or functions_of(model)
    given = 0.7 * torch.ones_like(poutine.trace(model).get_trace().nodes[name]["value"])
    trace = poutine.trace(poutine.do(model, data={name: given})).get_trace(Y)
    trace.compute_log_prob()
    expected = log_densities(kind, drawn(trace) | {name: given})
    close(trace.nodes["y"]["log_prob_sum"].item(), expected["y"].item())
    others = sum(value for site, value in expected.items() if site != name)
    ours = trace.log_prob_sum() - trace.nodes[name]["log_prob_sum"]  # of the value that was drawn and not used
    close(ours.item(), others.item())


@each_model
@pytest.mark.parametrize("above", [1, 2])
@pytest.mark.parametrize("is_observed", [False, True])
def test_each_member_of_an_outer_plate_has_the_density_of_its_own_values(kind, prior, above, is_observed):
    model, size = make(kind, prior), 4  # neither D nor K nor N
    dim = -n_plates(model) - above
    with pyro.plate("outer", size, dim=dim):
        trace = poutine.trace(model).get_trace(*([Y] if is_observed else []))
    trace.compute_log_prob()
    values = drawn(trace)
    outputs = [Y] * size if is_observed else list(values.pop("y").reshape(size, N, D))
    ours = sum(trace.nodes[name]["log_prob"].reshape(size, -1).sum(1) for name in [*values, "y"])
    each = [log_joint(kind, one, y) for one, y in zip(members(model, values, size), outputs, strict=True)]
    close(ours.detach(), torch.stack(each))


@each_model
def test_two_outer_plates_train_with_vectorised_particles(kind, prior):
    model = make(kind, prior)
    first = -n_plates(model) - 1

    def nested(Y):
        with pyro.plate("first", 2, dim=first), pyro.plate("second", 3, dim=first - 1):
            return model(Y)

    guide = AutoNormal(nested)
    svi = SVI(nested, guide, Adam({"lr": 0.01}), Trace_ELBO(num_particles=4, vectorize_particles=True))
    assert math.isfinite(svi.step(Y))
    sites = poutine.trace(guide).get_trace(Y)
    shape = sites.nodes[functions_of(model)]["value"].shape
    assert shape[:2] == (3, 2)
    assert shape.numel() == 6 * N * K
