import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from helpers import dense, random_tensor_normal, randomise
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from pyro.nn import PyroSample
from pyro.optim import Adam
from torch.distributions import kl_divergence

from pyro_gprn import GPRN, ClosedFormELBO, KroneckerGuide, MeanFieldGuide, TensorNormal
from pyro_gprn.factorised.column_normal import ColumnNormal, ProjectedColumnNormal
from pyro_gprn.factorised.elbo import expected_log_likelihood
from pyro_gprn.factorised.projected import ProjectedTensorNormal

X = torch.rand(5, 2, generator=torch.Generator().manual_seed(1))
Y = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(2))
MASK = torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(3)) > 0.3
PER_OUTPUT = torch.tensor([[0.3, 0.5, 0.7], [0.4, 0.6, 0.8]])

CASES = [
    pytest.param("projected", 0.5, None, id="projected"),
    pytest.param("full", 0.5, None, id="full"),
    pytest.param("full", 0.5, MASK, id="full-mask"),
    pytest.param("full", PER_OUTPUT, None, id="full-noises"),
    pytest.param("full", PER_OUTPUT, MASK, id="full-noises-mask"),
]
POSTERIORS = ["full", "diagonal", "isotropic", "mean-field"]


def make(mean="projected", noise=0.5, posterior="full", **kwargs):
    model = GPRN(X, output_shape=(2, 3), n_latents=2, noise_y=noise, noise_f=0.1, **kwargs)
    if posterior == "mean-field":
        guide = MeanFieldGuide(model, mean=mean)
    else:  # its output factors
        guide = KroneckerGuide(model, mean=mean, output_factors=posterior)
    randomise(guide)
    return model, guide


def dense_bound(model, guide, mask):
    """The bound from dense Gaussians over all numbers of F and of W, output by output."""
    q_f, q_w = guide.posterior(Y)
    prior_f, prior_w = model.prior()
    f, w = dense(q_f), dense(q_w)
    scale = model.noise_y.expand(2, 3)
    total = -kl_divergence(f, dense(prior_f)) - kl_divergence(w, dense(prior_w))
    for n in range(5):
        f_index = torch.tensor([n * 2 + k for k in range(2)])
        f_second = f.covariance_matrix[f_index][:, f_index] + torch.outer(f.loc[f_index], f.loc[f_index])
        for a in range(2):
            for b in range(3):
                if mask is not None and not mask[n, a, b]:
                    continue
                w_index = torch.tensor([((n * 2 + k) * 2 + a) * 3 + b for k in range(2)])
                w_mean = w.loc[w_index]
                w_second = w.covariance_matrix[w_index][:, w_index] + torch.outer(w_mean, w_mean)
                square = Y[n, a, b] ** 2 - 2 * Y[n, a, b] * (w_mean @ f.loc[f_index]) + (w_second * f_second).sum()
                total = total - 0.5 * (math.log(2 * math.pi) + 2 * scale[a, b].log() + square / scale[a, b] ** 2)
    return total


@pytest.mark.parametrize(("mean", "noise", "mask"), CASES)
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_bound_equals_the_dense_formula(mean, noise, mask, posterior):
    model, guide = make(mean, noise, posterior)
    arguments = (Y,) if mask is None else (Y, mask)
    loss = ClosedFormELBO().loss(model, guide, *arguments)
    assert loss == pytest.approx(-dense_bound(model, guide, mask).item(), rel=1e-8)


@pytest.mark.parametrize(("mean", "noise", "mask"), CASES)
@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_bound_equals_monte_carlo(mean, noise, mask, posterior):
    model, guide = make(mean, noise, posterior)
    arguments = (Y,) if mask is None else (Y, mask)
    n_draws = 10_000
    guide_trace = poutine.trace(pyro.plate("draws", n_draws, dim=-4)(guide)).get_trace(*arguments)
    replayed = poutine.replay(pyro.plate("draws", n_draws, dim=-4)(model), trace=guide_trace)
    model_trace = poutine.trace(replayed).get_trace(*arguments)
    bounds = torch.zeros(n_draws, dtype=torch.float64)
    for trace, sign in ((model_trace, 1.0), (guide_trace, -1.0)):
        trace.compute_log_prob()
        for site in trace.nodes.values():
            if site["type"] == "sample" and "log_prob" in site and site["name"] in ("f", "w", "y"):
                bounds += sign * site["log_prob"].reshape(n_draws, -1).sum(-1)
    standard_error = bounds.std() / math.sqrt(n_draws)
    closed = -ClosedFormELBO().loss(model, guide, *arguments)
    assert abs(closed - bounds.mean()) < 4 * standard_error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mean", ["projected", "full"])
def test_the_outputs_may_have_any_floating_dtype(mean, dtype):
    model, guide = make(mean)
    elbo = ClosedFormELBO()
    assert elbo.loss(model, guide, Y.to(dtype)) == pytest.approx(elbo.loss(model, guide, Y.double()), rel=1e-6)


@pytest.mark.parametrize("mean", ["projected", "full"])
@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_nothing_is_drawn_and_a_projected_mean_never_multiplied_out(mean, posterior, monkeypatch):
    model, guide = make(mean, posterior=posterior)

    def forbidden(*args):
        raise AssertionError("must not be called")

    for distribution in (TensorNormal, ColumnNormal):
        monkeypatch.setattr(distribution, "rsample", forbidden)
    for distribution in (ProjectedTensorNormal, ProjectedColumnNormal):
        monkeypatch.setattr(distribution, "loc", property(forbidden))
    assert math.isfinite(ClosedFormELBO().loss_and_grads(model, guide, Y))


@pytest.mark.parametrize("mean", ["projected", "full"])
@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_gradients(mean, posterior):
    with pyro.settings.context(module_local_params=True):
        model, guide = make(mean, posterior=posterior)
        loss = ClosedFormELBO()(model, guide)
        names = [name for name, _ in loss.named_parameters()]

        def closed(*values):
            return torch.func.functional_call(loss, dict(zip(names, values, strict=True)), (Y,))

        values = [p.detach().clone().requires_grad_() for p in loss.parameters()]
        assert torch.autograd.gradcheck(closed, values, fast_mode=True)


@pytest.mark.parametrize("mean", ["projected", "full"])
def test_both_elbos_train_and_agree(mean):
    losses = {}
    for name, elbo in {"closed": ClosedFormELBO(), "sampled": TraceMeanField_ELBO()}.items():
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        model, guide = make(mean)
        svi = SVI(model, guide, Adam({"lr": 0.05}), elbo)
        history = [svi.step(Y) for _ in range(150)]
        assert sum(history[-20:]) < sum(history[:20])
        losses[name] = ClosedFormELBO().loss(model, guide, Y)
        draws = torch.tensor([TraceMeanField_ELBO().loss(model, guide, Y) for _ in range(150)])
        assert abs(draws.mean() - losses[name]) < 4 * draws.std() / math.sqrt(len(draws))
    assert losses["sampled"] == pytest.approx(losses["closed"], rel=0.05)


def test_torch_optimisers_train_it_as_a_module():
    model, guide = make()
    loss = ClosedFormELBO()(model, guide)
    optimiser = torch.optim.LBFGS(loss.parameters(), max_iter=30)

    def closure():
        optimiser.zero_grad()
        value = loss(Y)
        value.backward()
        return value

    before = closure().item()
    optimiser.step(closure)
    assert loss(Y).item() < before


@pytest.mark.parametrize("constructor", [dist.Delta, dist.Normal], ids=["point", "normal"])
def test_priors_on_hyperparameters_enter_the_bound(constructor):
    model, guide = make("full")
    model.noise_y = PyroSample(dist.HalfNormal(1.0))
    model.kernel_w.lengthscale = PyroSample(dist.LogNormal(torch.zeros(2), torch.ones(2)).to_event(1))
    model.autoguide("noise_y", constructor)
    model.kernel_w.autoguide("lengthscale", constructor)
    draws = torch.tensor([ClosedFormELBO().loss(model, guide, Y) for _ in range(64)], dtype=torch.float64)
    sampled = torch.tensor([Trace_ELBO().loss(model, guide, Y) for _ in range(200)], dtype=torch.float64)
    error = math.hypot(draws.std() / 8, sampled.std() / math.sqrt(200))
    assert abs(draws.mean() - sampled.mean()) < 4 * error
    if constructor is dist.Delta:
        assert draws.std() < 1e-9
    svi = SVI(model, guide, Adam({"lr": 0.02}), ClosedFormELBO(num_particles=4))
    history = [svi.step(Y) for _ in range(50)]
    assert sum(history[-10:]) < sum(history[:10])


def test_independent_normals_may_stand_in_for_either_posterior():
    model, _ = make()
    q_f = dist.Normal(torch.randn(5, 2).double(), 0.5 + torch.rand(5, 2).double()).to_event(2)
    q_w = dist.Normal(torch.randn(5, 2, 2, 3).double(), 0.5 + torch.rand(5, 2, 2, 3).double()).to_event(4)
    factorised = random_tensor_normal((5, 2, 2, 3), ["diagonal"] * 4)
    same = dist.Normal(factorised.loc, factorised.stddev).to_event(4)
    for mask in (None, MASK):
        bounds = [expected_log_likelihood(q_f, q, Y, model.noise_y.detach(), mask) for q in (factorised, same)]
        torch.testing.assert_close(*bounds)

    def guide(Y):
        pyro.sample("f", q_f)
        pyro.sample("w", q_w)

    draws = torch.tensor([Trace_ELBO().loss(model, guide, Y) for _ in range(1000)])
    closed = ClosedFormELBO().loss(model, guide, Y)
    assert abs(draws.mean() - closed) < 4 * draws.std() / math.sqrt(1000)


def test_what_it_cannot_do_it_says():
    model, guide = make("full")
    elbo = ClosedFormELBO()
    with pytest.raises(ValueError, match="needs the data"):
        elbo.loss(model, guide)
    with pytest.raises(ValueError, match="mask"):
        elbo.loss(model, guide, torch.full_like(Y, torch.nan))

    def student(Y):
        f, w = (pyro.sample(name, prior) for name, prior in zip("fw", model.prior(), strict=True))
        pyro.sample("y", dist.StudentT(3.0, (f[..., None, None] * w).sum(1), 0.1).to_event(3), obs=Y)

    with pytest.raises(ValueError, match="only in y ~ NetworkNormal"):
        elbo.loss(student, guide, Y)
    with pytest.raises(ValueError, match="'w' is missing"):
        elbo.loss(model, lambda Y: pyro.sample("f", guide.posterior()[0]), Y)
