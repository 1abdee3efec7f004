import pyro.contrib.gp.kernels as gp
import pytest
import torch

from pyro_gprn import CollapsedGPRN
from pyro_gprn.network.kernels import KERNELS, describe_kernel, hold_scale, named_kernel, parts, rebuild_kernel

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
