import math

import pyro
import pyro.contrib.gp.kernels as kernels
import pytest
import torch
from helpers import randomise
from pyro.infer import SVI
from pyro.optim import Adam

from pyro_gprn import GPRN, ClosedFormELBO, KroneckerGuide, posterior_predictive
from pyro_gprn.factorised import fit_kronecker

X = torch.rand(4, 1, generator=torch.Generator().manual_seed(1))
Y = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))


def make(mean, output_shape=5, output_factors="isotropic", **kwargs):
    model = GPRN(X, output_shape=output_shape, n_latents=2, noise_y=0.5, **kwargs)
    guide = KroneckerGuide(model, mean=mean, output_factors=output_factors)
    randomise(guide)
    return model, guide


def solve_for(model, guide, parameter):
    """Newton's step for one parameter of the bound, exact where the bound is quadratic in it."""

    def loss(value):
        return torch.func.functional_call(ClosedFormELBO()(model, guide), {f"guide.{name}": value}, (Y,))

    name = next(name for name, p in guide.named_parameters() if p is parameter)
    start = torch.zeros_like(parameter)
    gradient = torch.autograd.functional.jacobian(loss, start).flatten()
    hessian = torch.autograd.functional.hessian(loss, start).reshape(len(gradient), -1)
    parameter.data = torch.linalg.lstsq(hessian, -gradient, driver="gelsd").solution.reshape(parameter.shape)


def test_best_full_mean_is_the_best_projected_mean():
    best = {}
    with pyro.settings.context(module_local_params=True):
        models = {mean: make(mean) for mean in ("full", "projected")}
        shared = models["full"][1].state_dict()
        for mean, (model, guide) in models.items():
            guide.load_state_dict({name: value for name, value in shared.items() if name != "w_loc"}, strict=False)
            solve_for(model, guide, guide.w_loc if mean == "full" else guide.w_projection)
            best[mean] = ClosedFormELBO().loss(model, guide, Y), guide.posterior(Y)[1].loc
            guide.update_mean(Y)
            best[f"{mean}, by update_mean"] = ClosedFormELBO().loss(model, guide, Y), guide.posterior(Y)[1].loc
    loss, loc = best.pop("full")
    for other_loss, other_loc in best.values():
        assert other_loss == pytest.approx(loss, rel=1e-9)
        torch.testing.assert_close(other_loc, loc, rtol=1e-6, atol=1e-8)


def test_the_updated_mean_of_outputs_with_holes_is_their_best():
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 1, 1], [1, 0, 0, 1, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    with pyro.settings.context(module_local_params=True):
        model, guide = make("full")
        guide.update_mean(torch.where(mask, Y, torch.nan))
        loss = ClosedFormELBO().differentiable_loss(model, guide, torch.where(mask, Y, 0.0), mask)
        (gradient,) = torch.autograd.grad(loss, guide.w_loc)
    assert guide.w_loc.abs().max() > 0.1
    assert gradient.abs().max() < 1e-9 * abs(loss.item())


@pytest.mark.parametrize("mean", ["projected", "full"])
def test_full_output_factors_end_isotropic(mean):
    model, guide = make(mean, output_shape=(2, 3), output_factors="full")
    outputs = torch.randn(4, 2, 3)
    randomise(guide, scale=1.0)
    covariances = [p for name, p in guide.named_parameters() if "w_scale" in name]
    loss = ClosedFormELBO()(model, guide)
    optimiser = torch.optim.LBFGS(covariances, max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = loss(outputs)
        value.backward()
        return value

    def anisotropy(root):
        covariance = (root @ root.mT).detach()
        isotropic = covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)
        return ((covariance - isotropic).norm() / isotropic.norm()).item()

    roots = [guide.w_scale_output_1, guide.w_scale_output_2]
    assert min(anisotropy(root) for root in roots) > 0.1
    optimiser.step(closure)
    assert max(anisotropy(root) for root in (guide.w_scale_output_1, guide.w_scale_output_2)) < 1e-4


@pytest.mark.parametrize("mean", ["projected", "full"])
@pytest.mark.parametrize("output_factors", ["full", "diagonal", "isotropic"])
def test_posterior_shapes_and_parameters(mean, output_factors):
    _, guide = make(mean, output_shape=(2, 3), output_factors=output_factors)
    q_f, q_w = guide.posterior(torch.randn(4, 2, 3))
    assert q_f.event_shape == (4, 2)
    assert q_w.event_shape == q_w.loc.shape == (4, 2, 2, 3)
    if mean == "projected" and output_factors == "isotropic":
        million = KroneckerGuide(GPRN(X, output_shape=10**6, n_latents=2))
        assert max(p.numel() for p in million.parameters()) < 100


def test_starts_at_independent_gps():
    guide = KroneckerGuide(GPRN(X, output_shape=5, n_latents=3))
    f = guide.posterior(Y)[0].loc
    torch.testing.assert_close(f[:, 0], torch.ones(4, dtype=torch.float64), rtol=1e-6, atol=0)
    assert f[:, 1:].abs().max() < 0.5


def test_statistics_are_made_once_and_again_when_the_data_change():
    model, guide = make("projected")
    data = Y.clone()
    first = guide.statistics(data)
    assert guide.statistics(data) is first
    assert guide.statistics() is first
    data[0, 0] += 1
    second = guide.statistics(data)
    torch.testing.assert_close(second.gram, data.double() @ data.double().mT)
    assert ClosedFormELBO().loss(model, guide, data) != ClosedFormELBO().loss(model, guide, Y)


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
    model = GPRN(inputs, output_shape=4, n_latents=n_latents)
    guide = KroneckerGuide(model, mean=mean)
    guide.update_mean(outputs)
    svi = SVI(model, guide, Adam({"lr": 0.02}), ClosedFormELBO())
    history = [svi.step(outputs) for _ in range(50)]
    assert history[-1] < history[0]
    predictive = posterior_predictive(model, guide, torch.cat([inputs, inputs + 0.3]))
    assert torch.isfinite(predictive.mean()).all()
    assert (predictive.variance() > 0).all()
    assert torch.isfinite(predictive.sample(3)).all()


def test_constant_outputs_and_tiny_noise_work():
    model = GPRN(X, output_shape=3, n_latents=2, noise_y=1e-6, kernel_w=kernels.Matern52(1))
    guide = KroneckerGuide(model)
    guide.update_mean(torch.zeros(4, 3))
    assert math.isfinite(ClosedFormELBO().loss(model, guide, torch.zeros(4, 3)))
    guide.update_mean(torch.ones(4, 3))
    torch.testing.assert_close(
        posterior_predictive(model, guide, X).mean(), torch.ones(4, 3, dtype=torch.float64), rtol=0, atol=0.1
    )


def test_a_fit_with_a_noise_for_each_output_holds_the_mean_in_full():
    fit = fit_kronecker(GPRN(X, 5, 2, noise_y=torch.full((5,), 0.3)), Y, steps=5, seed=0, progress=False)
    assert fit.guide.mean == "full"
    assert fit.bound > fit.start


def test_what_it_cannot_do_it_says():
    model = GPRN(X, output_shape=5, n_latents=2)
    with pytest.raises(ValueError, match="'projected' or 'full'; got 'lazy'"):
        KroneckerGuide(model, mean="lazy")
    with pytest.raises(ValueError, match="'full', 'diagonal' or 'isotropic'; got 'none'"):
        KroneckerGuide(model, output_factors="none")
    with pytest.raises(ValueError, match="call it with Y first"):
        KroneckerGuide(model).posterior()
    with pytest.raises(ValueError, match="use mean='full' with a mask"):
        KroneckerGuide(model)(Y, torch.ones(4, 5, dtype=torch.bool))
    noisy = GPRN(X, output_shape=5, n_latents=2, noise_y=torch.ones(5))
    with pytest.raises(ValueError, match="one noise_y for all outputs; use mean='full'"):
        KroneckerGuide(noisy)
    with pytest.raises(ValueError, match="one noise_y"):
        KroneckerGuide(noisy, mean="full").update_mean(Y)
    with pytest.raises(ValueError, match="5 outputs have no observation"):
        KroneckerGuide(model, mean="full").update_mean(torch.full((4, 5), torch.nan))
    with pytest.raises(ValueError, match="'projected' needs complete outputs; use mean='full'"):
        KroneckerGuide(model).update_mean(torch.where(Y.min() < Y, Y, torch.nan))
