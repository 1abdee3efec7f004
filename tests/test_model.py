import math

import pyro
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroSample

from pyro_gprn import GPRN, MatrixNormal, TensorNormal
from pyro_gprn.factorised.likelihood import NetworkNormal

X = torch.linspace(0, 1, 6)[:, None]


def test_sites_shapes_and_plates():
    trace = poutine.trace(GPRN(X, output_shape=(4, 3), n_latents=2)).get_trace()
    f, w, y = (trace.nodes[name] for name in ("f", "w", "y"))
    assert isinstance(f["fn"], MatrixNormal)
    assert isinstance(w["fn"], TensorNormal)
    assert f["value"].shape == (6, 2)
    assert w["value"].shape == (6, 2, 4, 3)
    assert y["value"].shape == (6, 4, 3)
    assert {frame.name: (frame.dim, frame.size) for frame in y["cond_indep_stack"]} == {
        "data": (-3, 6),
        "output_1": (-2, 4),
        "output_2": (-1, 3),
    }
    trace.compute_log_prob()
    assert y["log_prob"].shape == (6, 4, 3)


def test_log_joint_is_that_of_the_definition():
    model = GPRN(X, output_shape=3, n_latents=2, noise_y=0.3, noise_f=0.2)
    trace = poutine.trace(model).get_trace()
    f, w, y = (trace.nodes[name]["value"] for name in ("f", "w", "y"))
    identity = torch.eye(6, dtype=torch.float64)
    Kf = kernels.RBF(1, lengthscale=X.std(0, correction=0)).double()(X.double()) + (0.2**2 + 1e-10) * identity
    Kw = kernels.RBF(1, lengthscale=X.std(0, correction=0)).double()(X.double()) + 1e-10 * identity
    zeros = torch.zeros(6, dtype=torch.float64)
    expected = dist.MultivariateNormal(zeros, Kf).log_prob(f.mT).sum()
    expected = expected + dist.MultivariateNormal(zeros, Kw).log_prob(w.permute(1, 2, 0)).sum()
    for n in range(6):
        expected = expected + dist.Normal(w[n].mT @ f[n], 0.3).log_prob(y[n]).sum()
    torch.testing.assert_close(trace.log_prob_sum(), expected, rtol=1e-6, atol=0)


def test_prior_draws_have_the_variance_of_the_model():
    # Var[y] = K κ_w(x,x) (κ_f(x,x) + σ_f²) + σ_y²
    model = GPRN(X, output_shape=50, n_latents=3, noise_f=0.5, noise_y=0.4)
    draws = torch.stack([model().detach() for _ in range(400)])
    assert draws.square().mean().item() == pytest.approx(3 * (1 + 0.25) + 0.16, rel=0.1)


def test_a_mask_takes_missing_outputs_out_of_the_likelihood():
    model = GPRN(X, output_shape=(2, 3), n_latents=2)
    Y = torch.randn(6, 2, 3)
    mask = torch.rand(6, 2, 3) > 0.3
    trace = poutine.trace(model).get_trace(torch.where(mask, Y, torch.nan), mask)
    trace.compute_log_prob()
    complete = poutine.trace(poutine.replay(model, trace=trace)).get_trace(Y)
    complete.compute_log_prob()
    expected = torch.where(mask, complete.nodes["y"]["log_prob"], 0.0)
    torch.testing.assert_close(trace.nodes["y"]["log_prob"], expected)


def test_flat_outputs_are_taken_too():
    model = GPRN(X, output_shape=(2, 3), n_latents=2)
    assert poutine.trace(model).get_trace(torch.randn(6, 6)).nodes["y"]["value"].shape == (6, 2, 3)


@pytest.mark.parametrize(
    "kernel",
    [
        lambda: kernels.Matern52(1),
        lambda: kernels.Periodic(1),
        lambda: kernels.Sum(kernels.RBF(1), kernels.WhiteNoise(1)),
        lambda: kernels.Product(kernels.RBF(1), kernels.Cosine(1)),
        lambda: kernels.RationalQuadratic(1, active_dims=[0]),
    ],
    ids=["matern52", "periodic", "sum", "product", "rational-quadratic"],
)
def test_any_pyro_kernel_works(kernel):
    model = GPRN(X, output_shape=3, n_latents=2, kernel_f=kernel(), kernel_w=kernel())
    assert torch.isfinite(model()).all()


def test_hyperparameters_are_parameters_and_may_have_priors():
    model = GPRN(X, output_shape=3, n_latents=2)
    names = {name for name, _ in model.named_pyro_params()}
    assert names == {"noise_f", "noise_y", "kernel_f.lengthscale", "kernel_w.lengthscale", "kernel_w.variance"}
    model.kernel_w.lengthscale = PyroSample(dist.LogNormal(torch.zeros(1), torch.ones(1)).to_event(1))
    model.noise_y = PyroSample(dist.HalfNormal(1.0))
    trace = poutine.trace(model).get_trace()
    assert {"kernel_w.lengthscale", "noise_y"} <= set(trace.stochastic_nodes)
    used = trace.nodes["y"]["fn"].scale
    assert used == trace.nodes["noise_y"]["value"]


def test_one_noise_for_each_output():
    noise = torch.tensor([0.1, 1.0, 10.0])
    model = GPRN(X, output_shape=3, n_latents=2, noise_y=noise)
    torch.testing.assert_close(poutine.trace(model).get_trace().nodes["y"]["fn"].scale, noise.double())


def test_everything_is_float64_and_the_default_dtype_is_left_alone():
    model = GPRN(X, output_shape=3, n_latents=2, kernel_w=kernels.RBF(1))
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model().dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_constant_columns_and_single_rows_get_a_length_scale():
    model = GPRN(torch.tensor([[1.0, 2.0]]), output_shape=3, n_latents=2)
    assert torch.equal(model.kernel_w.lengthscale.detach(), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": torch.zeros(6)}, r"shape \(N, P\).*got \(6,\); for one input column use X\[:, None\]"),
        ({"X": torch.zeros(6, 1, 1)}, r"shape \(N, P\).*got \(6, 1, 1\)"),
        ({"X": torch.zeros(0, 2)}, "at least one row"),
        ({"X": torch.tensor([[0.0], [math.nan]])}, "X must be finite; row 1"),
        ({"X": torch.tensor([[math.inf], [0.0]])}, "X must be finite; row 0"),
        ({"output_shape": 0}, "positive sizes"),
        ({"output_shape": (3, -1)}, "positive sizes"),
        ({"output_shape": ()}, "positive sizes"),
        ({"n_latents": 0}, "n_latents must be at least 1; got 0"),
        ({"noise_y": 0.0}, "noise_y is a standard deviation and must be positive"),
        ({"noise_y": -0.1}, "noise_y .* got -0.1"),
        ({"noise_f": 0.0}, "noise_f is a standard deviation"),
        ({"noise_f": math.nan}, "noise_f .* positive and finite"),
        ({"noise_y": torch.ones(2)}, r"noise_y must be one number or of shape \(3,\); got shape \(2,\)"),
        ({"noise_f": torch.ones(3)}, r"noise_f must be one number; got shape \(3,\)"),
        ({"kernel_w": torch.nn.Linear(1, 1)}, "kernel_w must be a kernel of pyro.contrib.gp.kernels; got Linear"),
        ({"kernel_f": kernels.RBF(2)}, r"kernel_f reads input columns \[0, 1\], but X has 1"),
        (dict.fromkeys(["kernel_f", "kernel_w"], kernels.RBF(1)), "two kernels"),
    ],
)
def test_wrong_arguments_have_their_own_errors(change, message):
    with pytest.raises(ValueError, match=message):
        GPRN(**({"X": X, "output_shape": 3, "n_latents": 2} | change))


@pytest.mark.parametrize(
    ("Y", "mask", "message"),
    [
        (torch.zeros(5, 2, 3), None, r"Y must have shape \(6, 2, 3\).*got \(5, 2, 3\)"),
        (torch.zeros(6), None, r"Y must have shape \(6, 2, 3\)"),
        (torch.zeros(6, 7), None, r"7 outputs a row, but output_shape \(2, 3\) multiplies to 6"),
        (torch.zeros(6, 3, 2), None, r"must have shape \(6, 2, 3\) or be flat"),
        (torch.zeros(6, 6, dtype=torch.long), None, "floating-point; got torch.int64"),
        (torch.zeros(6, 6), torch.ones(6, 6), "mask must be boolean"),
        (torch.zeros(6, 6), torch.ones(6, 5, dtype=torch.bool), "mask of shape"),
    ],
)
def test_wrong_outputs_have_their_own_errors(Y, mask, message):
    with pytest.raises(ValueError, match=message):
        GPRN(X, output_shape=(2, 3), n_latents=2)(Y, mask)


def test_nan_without_a_mask_is_refused():
    model = GPRN(X, output_shape=3, n_latents=2)
    with pytest.raises(ValueError, match="mask"):
        poutine.trace(model).get_trace(torch.full((6, 3), torch.nan)).log_prob_sum()


def test_likelihood_refuses_weights_that_do_not_fit():
    with pytest.raises(ValueError, match=r"weights of shape \(…, N, K, d_1, …, d_M\)"):
        NetworkNormal(torch.zeros(4, 2), torch.zeros(4, 3, 5), torch.tensor(1.0))


def test_a_model_in_one_process_leaves_no_trace_in_pyro():
    pyro.clear_param_store()
    GPRN(X, output_shape=3, n_latents=2)
    assert len(pyro.get_param_store()) == 0
