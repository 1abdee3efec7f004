"""The mean-field posterior: its distributions against dense algebra, and its exact updates."""

import math
from itertools import pairwise

import pyro
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from helpers import dense, random_triangle, randomise
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.optim import Adam
from torch.distributions import kl_divergence

from pyro_gprn import GPRN, ClosedFormELBO, KroneckerGuide, MeanFieldGuide, TensorNormal, posterior_predictive
from pyro_gprn.factorised import fit_kronecker, fit_mean_field
from pyro_gprn.factorised.column_normal import ColumnNormal, ProjectedColumnNormal
from pyro_gprn.outputs.source import ArrayOutputs

X = torch.rand(6, 2, generator=torch.Generator().manual_seed(1)).double()
Y = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(2)).double()
MASK = torch.rand(6, 2, 3, generator=torch.Generator().manual_seed(3)) > 0.3
NOISES = torch.tensor([[0.3, 0.5, 0.7], [0.4, 0.6, 0.8]])
EVENTS = [(5, 2), (5, 2, 3), (5, 2, 3, 2)]


def make(mean="projected", noise=0.4, n_latents=2):
    model = GPRN(X, (2, 3), n_latents, noise_y=noise, noise_f=0.1)
    guide = MeanFieldGuide(model, mean)
    randomise(guide)
    return model, guide


def bound_of(model, guide, outputs):
    """The bound of outputs that are NaN where they are missing."""
    missing = outputs.isnan()
    arguments = (outputs.nan_to_num(), ~missing) if missing.any() else (outputs,)
    return -ClosedFormELBO().loss(model, guide, *arguments)


def random_columns(event):
    return ColumnNormal(torch.randn(event).double(), random_triangle(event[0], (event[1],)))


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_density_entropy_and_moments_are_the_dense_ones(event):
    q = random_columns(event)
    value = torch.randn(3, *event).double()
    torch.testing.assert_close(q.log_prob(value), dense(q).log_prob(value.flatten(1)))
    torch.testing.assert_close(q.entropy(), dense(q).entropy())
    torch.testing.assert_close(q.variance.flatten(), dense(q).variance)
    draws = q.rsample((40_000,)).flatten(1)
    torch.testing.assert_close(draws.T.cov(), q.covariance_matrix, rtol=0, atol=0.12)
    torch.testing.assert_close(draws.mean(0), q.loc.flatten(), rtol=0, atol=0.05)


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("rows", ["triangle", "diagonal", "identity"])
def test_divergence_from_a_prior_is_the_dense_one(event, rows):
    factor = {"triangle": random_triangle(5), "diagonal": torch.rand(5).double() + 0.5, "identity": None}[rows]
    q, others = random_columns(event), [None] * (len(event) - 1)
    for prior in (
        TensorNormal(torch.randn(event).double(), [factor, *others]),
        TensorNormal.centred(event, [factor, *others], like=q.loc),
    ):
        torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(dense(q), dense(prior)))
    with pytest.raises(NotImplementedError, match="relates its columns"):
        kl_divergence(q, TensorNormal(q.loc, [None, random_triangle(2), *others[1:]]))
    with pytest.raises(ValueError, match="same modes"):
        kl_divergence(q, TensorNormal(torch.zeros(7, 2).double(), [None, None]))


def test_a_batch_has_a_density_and_a_divergence_for_each_member():
    q = random_columns((5, 2, 3))
    prior = TensorNormal.centred((5, 2, 3), [random_triangle(5), None, None], like=q.loc)
    many = q.expand((4, 1))
    assert many.rsample((2,)).shape == (2, 4, 1, 5, 2, 3)
    assert many.log_prob(many.rsample()).shape == many.entropy().shape == (4, 1)
    torch.testing.assert_close(
        kl_divergence(many, prior.expand((4, 1))), kl_divergence(q, prior).expand(4, 1), rtol=1e-12, atol=0
    )


def test_a_projected_mean_is_that_projection():
    B, factor = torch.randn(2, 6, 6).double(), random_triangle(6, (2,))
    gram = Y.flatten(1) @ Y.flatten(1).mT
    q = ProjectedColumnNormal(B, Y, gram, factor)
    torch.testing.assert_close(q.loc, torch.einsum("knp,pab->nkab", B, Y))
    same = ColumnNormal(q.loc, factor)
    prior = TensorNormal.centred(q.event_shape, [random_triangle(6), None, None, None], like=B)
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(same, prior))
    torch.testing.assert_close(q.expand((3,)).loc, same.loc.expand(3, 6, 2, 2, 3))
    value = torch.randn_like(same.loc)
    torch.testing.assert_close(q.log_prob(value), same.log_prob(value))


def test_a_factor_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"a scale_tril of shape \(K, N, N\); got \(5, 2, 3\) and \(5, 2, 2\)"):
        ColumnNormal(torch.zeros(5, 2, 3), torch.eye(2).expand(5, 2, 2))
    with pytest.raises(ValueError, match="lower-triangular"):
        ColumnNormal(torch.zeros(3, 2), torch.ones(2, 3, 3), validate_args=True)


@settings(max_examples=20, deadline=None)
@given(
    n_rows=st.integers(1, 7),
    n_latents=st.integers(1, 3),
    n_outputs=st.integers(1, 5),
    noise=st.sampled_from([1e-2, 0.3, 3.0]),
    kind=st.sampled_from(["projected", "full", "holes", "noises", "holes and noises"]),
    seed=st.integers(0, 10**6),
)
def test_no_update_lowers_the_bound(n_rows, n_latents, n_outputs, noise, kind, seed):
    with torch.random.fork_rng(), pyro.settings.context(module_local_params=True):
        torch.manual_seed(seed)
        outputs = torch.randn(n_rows, n_outputs).double()
        if "holes" in kind:
            outputs[torch.rand(n_rows, n_outputs) < 0.4] = math.nan
            outputs[0] = 1.0  # every output is observed somewhere
        noise_y = noise * (0.5 + torch.rand(n_outputs)) if "noises" in kind else noise
        model = GPRN(torch.rand(n_rows, 2), n_outputs, n_latents, noise_y=noise_y)
        guide = MeanFieldGuide(model, "projected" if kind == "projected" else "full")
        randomise(guide, 1.0)
        bounds = [bound_of(model, guide, outputs)]
        for _ in range(4):
            for update in (guide.update_weights, guide.update_functions):
                update(outputs)
                bounds.append(bound_of(model, guide, outputs))
    for before, after in pairwise(bounds):
        assert after >= before - 1e-9 * abs(before)


@pytest.mark.parametrize(
    ("mean", "noise", "holes"),
    [("projected", 0.4, False), ("full", 0.4, False), ("full", 0.4, True), ("full", NOISES, True)],
    ids=["projected", "full", "holes", "noises"],
)
def test_sweeps_end_where_the_bound_has_no_gradient(mean, noise, holes):
    model, guide = make(mean, noise)
    outputs = torch.where(MASK, Y, math.nan) if holes else Y
    arguments = (Y, MASK) if holes else (Y,)
    loss = ClosedFormELBO()(model, guide)

    def gradient():
        loss.zero_grad()
        loss(*arguments).backward()
        return torch.cat([parameter.grad.flatten() for parameter in guide.parameters()]).norm().item()

    before = gradient()
    for _ in range(80):
        guide.sweep(outputs)
    assert gradient() < 1e-4 * before


def test_sweeps_of_a_projected_and_of_a_full_mean_are_the_same():
    guides = {mean: make(mean)[1] for mean in ("projected", "full")}
    guides["full"].f_loc.data.copy_(guides["projected"].f_loc)
    guides["full"].f_precision = guides["projected"].f_precision.detach()
    for guide in guides.values():
        (guide.w_projection if guide.mean == "projected" else guide.w_loc).data.zero_()
        for _ in range(3):
            guide.sweep(Y)
    for ours, theirs in zip(*(guide.posterior(Y) for guide in guides.values()), strict=True):
        torch.testing.assert_close(ours.loc, theirs.loc)
        torch.testing.assert_close(ours.rows.scale_tril, theirs.rows.scale_tril)


def test_a_sweep_of_a_projected_mean_reads_no_output(monkeypatch):
    _, guide = make()
    guide.statistics(Y)

    def forbidden(*arguments):
        raise AssertionError("Y was read")

    monkeypatch.setattr(ArrayOutputs, "read", forbidden)
    guide.sweep()
    guide.sweep()


def test_with_one_latent_and_one_output_the_weights_are_gp_regression():
    model = GPRN(X, 1, 1, noise_y=0.4)
    guide, y = MeanFieldGuide(model), Y[:, 0, :1]
    randomise(guide)
    q_f = guide.posterior(y)[0]
    guide.update_weights(y)
    after, q_w = guide.posterior(y)
    assert torch.equal(after.loc, q_f.loc)
    # −(E[f²]w² − 2 E[f] y w) / 2σ² is a Gaussian observation of w, z = E[f] y / E[f²] with variance σ² / E[f²]
    squares = (q_f.loc.square() + q_f.variance).squeeze(-1)
    targets, variances = (q_f.loc * y).squeeze(-1) / squares, 0.4**2 / squares
    prior = model.kernel_w(X)
    gain = prior @ torch.linalg.inv(prior + torch.diag(variances))
    torch.testing.assert_close(q_w.loc.flatten(), gain @ targets, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(q_w.covariance_matrix, prior - gain @ prior, rtol=1e-6, atol=1e-8)


def test_with_constant_functions_it_is_gp_regression_with_its_evidence_and_predictions():
    y, X_new = Y.flatten(1)[:, :3], torch.cat([X, X[:2] + 0.3])
    model = GPRN(X, 3, 1, kernel_f=kernels.Constant(2), noise_f=1e-6, noise_y=0.4)
    guide = MeanFieldGuide(model, init_scale=1e-6)
    guide.update_weights(y)
    inputs = torch.cat([X, X_new])
    K = model.kernel_w(inputs).detach()
    covariance = K[:6, :6] + 0.4**2 * torch.eye(6).double()
    gain = K[6:, :6] @ torch.linalg.inv(covariance)
    predictive = posterior_predictive(model, guide, X_new)
    torch.testing.assert_close(predictive.mean(), gain @ y, rtol=1e-5, atol=1e-6)
    variance = (K[6:, 6:] - gain @ K[:6, 6:]).diagonal() + 0.4**2
    torch.testing.assert_close(predictive.variance(), variance[:, None].expand(8, 3), rtol=1e-5, atol=1e-6)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(6).double(), covariance).log_prob(y.mT).sum()
    divergence = kl_divergence(guide.posterior(y)[0], model.prior()[0])
    assert bound_of(model, guide, y) == pytest.approx((evidence - divergence).item(), rel=1e-5)


@pytest.mark.parametrize("mean", ["projected", "full"])
@pytest.mark.parametrize("elbo", [ClosedFormELBO, TraceMeanField_ELBO])
def test_svi_trains_it(mean, elbo):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model, guide = make(mean)
    svi = SVI(model, guide, Adam({"lr": 0.03}), elbo())
    before = bound_of(model, guide, Y)
    for _ in range(40):
        svi.step(Y)
    assert bound_of(model, guide, Y) > before + 5


def test_svi_of_the_hyperparameters_and_sweeps_of_the_posterior_work_together():
    pyro.clear_param_store()
    model, guide = make()
    svi = SVI(model, guide, Adam({"lr": 0.03}), ClosedFormELBO())
    svi.step(Y)
    before = bound_of(model, guide, Y)
    for _ in range(5):
        guide.sweep(Y)
        svi.step(Y)
    assert bound_of(model, guide, Y) > before


@pytest.mark.parametrize("mean", ["projected", "full"])
def test_shapes_and_parameters(mean):
    _, guide = make(mean)
    q_f, q_w = guide.posterior(Y)
    assert q_f.event_shape == q_f.loc.shape == (6, 2)
    assert q_w.event_shape == q_w.loc.shape == (6, 2, 2, 3)
    if mean == "projected":
        million = MeanFieldGuide(GPRN(X, output_shape=10**6, n_latents=2))
        assert max(p.numel() for p in million.parameters()) == 2 * 6 * 6


@pytest.mark.parametrize(
    ("inputs", "n_latents"),
    [
        (torch.zeros(1, 1), 3),
        (torch.rand(3, 2), 5),
        (torch.tensor([[0.0], [0.0], [1.0], [1.0], [1.0]]), 2),
        (torch.ones(4, 2), 2),
    ],
    ids=["one-row", "more-latents-than-rows", "duplicates", "all-equal"],
)
@pytest.mark.parametrize("mean", ["projected", "full"])
def test_small_and_degenerate_inputs_work(inputs, n_latents, mean):
    outputs = torch.randn(len(inputs), 4)
    model = GPRN(inputs, output_shape=4, n_latents=n_latents, noise_y=1e-3)
    guide = MeanFieldGuide(model, mean)
    for _ in range(3):
        guide.sweep(outputs)
    predictive = posterior_predictive(model, guide, torch.cat([inputs, inputs + 0.3]))
    assert torch.isfinite(predictive.mean()).all()
    assert (predictive.variance() > 0).all()
    assert torch.isfinite(predictive.sample(3)).all()


def test_a_row_without_any_output_is_interpolated():
    outputs = torch.where(torch.arange(6)[:, None, None] == 2, math.nan, Y)
    model, guide = make("full")
    for _ in range(5):
        guide.sweep(outputs)
    assert guide.w_precision[2].max() < 1e-20
    assert math.isfinite(bound_of(model, guide, outputs))


@pytest.mark.parametrize("case", ["projected", "holes", "noises"])
def test_a_fit_raises_the_bound(case):
    inputs = torch.linspace(0, 1, 12).double()[:, None]
    outputs = torch.sin(6 * inputs + torch.linspace(0, 3, 5))
    noise = 0.1
    if case == "holes":
        outputs[3:5, 2] = math.nan
    if case == "noises":
        noise = torch.full((5,), 0.1)
    model = GPRN(inputs, 5, 2, noise_y=noise)
    fit = fit_mean_field(model, outputs, steps=25, seed=0, progress=False)
    assert fit.guide.mean == ("projected" if case == "projected" else "full")
    assert fit.bound > fit.start + 5
    assert fit.bound == pytest.approx(bound_of(model, fit.guide, outputs))
    again = fit_mean_field(model, outputs, guide=fit.guide, steps=3, seed=0, progress=False)
    assert again.bound >= fit.bound - 1e-6 * abs(fit.bound)


def test_what_it_cannot_do_it_says():
    model = GPRN(X, output_shape=(2, 3), n_latents=2)
    with pytest.raises(ValueError, match="'projected' or 'full'; got 'lazy'"):
        MeanFieldGuide(model, mean="lazy")
    with pytest.raises(ValueError, match="call it with Y first"):
        MeanFieldGuide(model).posterior()
    with pytest.raises(ValueError, match="call it with Y first"):
        MeanFieldGuide(model, "full").sweep()
    with pytest.raises(ValueError, match="use mean='full' with a mask"):
        MeanFieldGuide(model)(Y, MASK)
    with pytest.raises(ValueError, match="this needs complete outputs"):
        MeanFieldGuide(model).sweep(torch.where(MASK, Y, math.nan))
    with pytest.raises(ValueError, match="one noise_y for all outputs; use mean='full'"):
        MeanFieldGuide(GPRN(X, (2, 3), 2, noise_y=torch.ones(2, 3)))
    with pytest.raises(ValueError, match="fit_mean_field goes on from a MeanFieldGuide; got a KroneckerGuide"):
        fit_mean_field(model, Y, guide=KroneckerGuide(model), steps=1, progress=False)
    with pytest.raises(ValueError, match="fit_kronecker goes on from a KroneckerGuide; got a MeanFieldGuide"):
        fit_kronecker(model, Y, guide=MeanFieldGuide(model), steps=1, progress=False)
