import pyro.contrib.gp.kernels as gp
import pytest
import torch

from pyro_gprn import CollapsedGPRN
from pyro_gprn.network.kernels import (
    KERNELS,
    describe_kernel,
    hold_scale,
    matern_product,
    named_kernel,
    parts,
    rebuild_kernel,
)

X = torch.rand(12, 3, dtype=torch.float64)


@pytest.mark.parametrize("name", KERNELS)
def test_every_name_is_pyros_kernel_with_a_length_scale_for_each_column(name):
    kernel = named_kernel(name, X)
    assert type(kernel) is KERNELS[name]
    assert torch.linalg.eigvalsh(kernel.double()(X)).min() > -1e-9
    if hasattr(kernel, "lengthscale"):
        torch.testing.assert_close(kernel.lengthscale, X.std(0, correction=0))


def test_sums_and_products_bind_as_in_arithmetic():
    kernel = named_kernel("rbf + matern52 * periodic[0]", X).double()
    assert [type(part).__name__ for part in parts(kernel)] == ["RBF", "Matern52", "Periodic"]
    rbf, matern, periodic = parts(kernel)
    torch.testing.assert_close(kernel(X), rbf(X) + matern(X) * periodic(X))
    assert periodic.active_dims == [0]
    assert periodic.period.shape == (1,)
    grouped = named_kernel("(RBF + Linear) * constant", X)
    assert isinstance(grouped, gp.Product)


degrees = pytest.mark.parametrize("degree", [1, 2])


@degrees
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_a_product_over_columns_has_its_gradient(batch, degree):
    rows = torch.rand(*batch, 4, 9, dtype=torch.float64)
    columns = torch.cat([rows[..., :1, :], torch.rand(*batch, 2, 9, dtype=torch.float64)], -2)  # one is a row again
    inputs = (rows.requires_grad_(), columns.requires_grad_())
    assert torch.autograd.gradcheck(lambda *inputs: matern_product(*inputs, degree), inputs)


@degrees
def test_a_product_over_columns_is_that_of_the_formula_in_every_block(degree):
    inputs = [torch.rand(n, 40, dtype=torch.float64, requires_grad=True) for n in (50, 200)]  # blocks of 16 rows
    r = (inputs[0].unsqueeze(-2) - inputs[1]).abs()
    expected = ((1 + r + (degree - 1) * r.square() / 3) * torch.exp(-r)).prod(-1)
    actual = matern_product(*inputs, degree)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    upstream = torch.rand_like(expected)
    gradients = (torch.autograd.grad(value, inputs, upstream) for value in (actual, expected))
    for by_hand, automatic in zip(*gradients, strict=True):
        torch.testing.assert_close(by_hand, automatic, rtol=1e-10, atol=1e-12)


@degrees
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_over_columns_is_0_for_inputs_far_apart(degree, dtype):
    inputs = torch.zeros(3, 20, dtype=dtype)
    inputs[1] = 1e6
    inputs[2, ::2] = -1e6
    inputs.requires_grad_()
    value = matern_product(inputs, inputs, degree)
    assert torch.equal(value, torch.eye(3, dtype=dtype))
    assert torch.equal(*torch.autograd.grad(value.sum(), inputs), torch.zeros_like(inputs))


@pytest.mark.parametrize(
    "expression",
    ["", "rbg", "rbf - rbf", "rbf +", "rbf[3]", "rbf[-1]", "rbf['a']", "2 * rbf", "rbf(1)", "__import__('os')"],
)
def test_what_is_no_kernel_is_refused(expression):
    with pytest.raises(ValueError, match=r"kernel_w must be a Pyro kernel, or names out of rbf, .*got "):
        CollapsedGPRN(X, 4, 2, kernel_w=expression)


def test_the_scale_of_functions_is_held():
    model = CollapsedGPRN(X, 4, 2, kernel_f="rbf * periodic + matern52", kernel_w="rbf * periodic")
    names = [name for name, _ in model.kernel_f.named_parameters() if "variance" in name]
    assert len(names) == 1  # the second term of the sum, against the first
    assert len([name for name, _ in model.kernel_w.named_parameters() if "variance" in name]) == 3  # and the constant
    assert torch.isfinite(model()).all()


@pytest.mark.parametrize("expression", ["rbf", "rbf[0, 2] * periodic[1] + linear", "rational_quadratic + constant"])
def test_words_describe_a_kernel_fully(expression):
    kernel = gp.Sum(hold_scale(named_kernel(expression, X)), 1.0).double()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    again = rebuild_kernel(describe_kernel(kernel)).double()
    again.load_state_dict(kernel.state_dict())
    assert torch.equal(again(X), kernel(X))
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in kernel.named_parameters()]


def test_code_has_no_words():
    with pytest.raises(ValueError, match="has Exponent, which a file without code cannot hold"):
        describe_kernel(gp.Exponent(gp.RBF(2)))
