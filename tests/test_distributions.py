import pyro.distributions as dist
import pytest
import torch
from helpers import BATCH_SHAPES, KINDS, dense, random_factor, random_tensor_normal, random_triangle
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size

from pyro_gprn import MatrixNormal, TensorNormal
from pyro_gprn.algebra.factors import Diagonal, Triangular
from pyro_gprn.factorised.posterior import weights_at_new_rows
from pyro_gprn.factorised.projected import ProjectedTensorNormal
from pyro_gprn.outputs.selection import OutputSelection
from pyro_gprn.prediction.conditional import Conditional

modes_and_kinds = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(KINDS)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(modes_and_kinds, st.sampled_from(BATCH_SHAPES))
def test_density_entropy_and_variance_equal_the_dense_ones(modes_and_kinds, batch_shape):
    modes, kinds = zip(*modes_and_kinds, strict=True)
    distribution = random_tensor_normal(modes, kinds, batch_shape)
    reference = dense(distribution)
    value = torch.randn(5, *batch_shape, *modes, dtype=torch.float64)
    assert distribution.event_shape == modes
    assert distribution.batch_shape == batch_shape
    torch.testing.assert_close(distribution.log_prob(value), reference.log_prob(value.flatten(-len(modes))))
    torch.testing.assert_close(distribution.entropy(), reference.entropy())
    torch.testing.assert_close(distribution.variance.flatten(-len(modes)), reference.variance)
    torch.testing.assert_close(distribution.stddev.square(), distribution.variance)


def test_covariance_is_the_kronecker_product_first_mode_slowest():
    distribution = random_tensor_normal((2, 3), ("full", "full"))
    rows, columns = (factor.covariance() for factor in distribution.factors)
    torch.testing.assert_close(distribution.covariance_matrix, torch.kron(rows, columns))


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
@pytest.mark.parametrize("kinds", [("full", "identity", "diagonal"), ("diagonal", "full", "full")], ids=str)
def test_moments_of_draws(batch_shape, kinds):
    distribution = random_tensor_normal((2, 3, 2), kinds, batch_shape)
    n_draws = 100_000
    draws = distribution.rsample((n_draws,)).flatten(-3)
    deviation = draws - dense(distribution).loc
    covariance = torch.einsum("s...i,s...j->...ij", deviation, deviation) / n_draws
    expected = distribution.covariance_matrix
    # Var of a sample covariance entry is (C_ii C_jj + C_ij²)/n ≤ 2 C_ii C_jj/n
    spread = expected.diagonal(dim1=-2, dim2=-1)
    error = (2 * spread.unsqueeze(-1) * spread.unsqueeze(-2) / n_draws).sqrt()
    assert ((covariance - expected).abs() < 5 * error).all()
    assert (deviation.mean(0).abs() < 5 * (spread / n_draws).sqrt()).all()


def test_draws_are_reparametrised():
    loc = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    row = random_triangle(3).requires_grad_()
    column = (0.5 + torch.rand(2, dtype=torch.float64)).requires_grad_()

    def draw(loc, row, column):
        torch.manual_seed(0)
        return TensorNormal(loc, [row.tril(), column]).rsample()

    assert torch.autograd.gradcheck(draw, (loc, row, column))


def test_log_prob_has_right_gradients():
    value = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    row = random_triangle(3).requires_grad_()
    column = (0.5 + torch.rand(2, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda value, row, column: TensorNormal(torch.zeros_like(value), [row.tril(), column]).log_prob(value),
        (value, row, column),
    )


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_expand_keeps_kind_and_density(batch_shape):
    for distribution in (random_tensor_normal((2, 3), KINDS[:2]), MatrixNormal(torch.zeros(2, 3), None, None)):
        expanded = distribution.expand(batch_shape)
        assert type(expanded) is type(distribution)
        assert expanded.batch_shape == batch_shape
        value = expanded.sample()
        assert value.shape == (*batch_shape, 2, 3)
        torch.testing.assert_close(expanded.log_prob(value), distribution.log_prob(value))
        torch.testing.assert_close(expanded.entropy(), distribution.entropy().expand(batch_shape))


def test_factors_broadcast_against_a_batch_of_means():
    row = random_triangle(2)
    distribution = TensorNormal(torch.zeros(4, 2, 3, dtype=torch.float64), [row, None])
    assert distribution.batch_shape == (4,)
    assert distribution.rsample((5,)).shape == (5, 4, 2, 3)
    batched = TensorNormal(torch.zeros(2, 3, dtype=torch.float64), [random_triangle(2, (4,)), None])
    assert batched.batch_shape == (4,)
    assert batched.sample().shape == (4, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_everything_stays_in_its_dtype(dtype):
    distribution = random_tensor_normal((2, 3, 2), ("full", "identity", "diagonal"), dtype=dtype)
    value = distribution.rsample()
    results = [value, distribution.log_prob(value), distribution.entropy(), distribution.variance]
    assert {result.dtype for result in results} == {dtype}
    torch.testing.assert_close(distribution.log_prob(value), dense(distribution).log_prob(value.flatten()))


def test_matrix_normal_is_the_tensor_normal_of_two_modes():
    row, column = random_triangle(3), random_triangle(2)
    loc = torch.randn(3, 2, dtype=torch.float64)
    value = torch.randn(3, 2, dtype=torch.float64)
    expected = dist.MultivariateNormal(loc.flatten(), torch.kron(row @ row.mT, column @ column.mT))
    torch.testing.assert_close(MatrixNormal(loc, row, column).log_prob(value), expected.log_prob(value.flatten()))


def test_an_identity_factor_and_a_zero_mean_are_never_built():
    huge = TensorNormal.centred((3, 10**6, 10**6), [torch.ones(3), None, None], like=torch.zeros(()))
    assert huge.log_det() == 0
    assert huge.loc.untyped_storage().nbytes() < 100


def test_works_as_a_pyro_distribution():
    distribution = random_tensor_normal((2, 3), ("full", "identity"))
    assert distribution.shape((5,)) == (5, 2, 3)
    assert distribution.expand_by([4]).to_event(1).event_shape == (4, 2, 3)
    assert distribution.mask(False).log_prob(distribution.sample()) == 0
    assert distribution.support.check(distribution.sample())


def test_projected_equals_a_tensor_normal_with_that_mean():
    Y = torch.randn(4, 2, 3)
    flat = Y.flatten(1).double()
    factors = [random_factor(kind, size) for kind, size in zip(["full"] * 2 + KINDS[1:], (4, 2, 2, 3), strict=True)]
    projection = torch.randn(2, 4, 4, dtype=torch.float64)
    projected = ProjectedTensorNormal(projection, Y, flat @ flat.mT, factors)
    plain = TensorNormal(torch.einsum("knp,pab->nkab", projection, Y.double()), factors)
    value = plain.sample()
    torch.testing.assert_close(projected.loc, plain.loc)
    torch.testing.assert_close(projected.log_prob(value), plain.log_prob(value))
    torch.testing.assert_close(projected.expand((3,)).log_prob(value), plain.expand((3,)).log_prob(value))
    chosen = OutputSelection([4, 0], Size((2, 3)))
    at_new = Conditional(random_triangle(4), torch.randn(4, 3).double(), torch.eye(3).double())
    means = [weights_at_new_rows(q, at_new).mean(chosen, slice(0, 2)) for q in (projected, plain)]
    torch.testing.assert_close(*means)
    expected = torch.tensordot(at_new.interpolate(), plain.loc.flatten(2)[:, :, [4, 0]], dims=1)
    torch.testing.assert_close(means[0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_selecting_from_a_factor_selects_from_its_covariance(kind):
    factor = TensorNormal(torch.zeros(5, dtype=torch.float64), [random_factor(kind, 5)]).factors[0]
    index = torch.tensor([3, 0, 4])
    torch.testing.assert_close(factor.select(index).covariance(), factor.covariance()[index][:, index])
    assert factor.select(index).is_valid()


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ([None, None, None], "one entry for each mode"),
        ([], "one entry for each mode"),
        ([torch.ones(4), None], r"mode of size 3 needs a scale factor of shape \(3,\) or \(3, 3\); got shape \(4,\)"),
        ([torch.ones(3, 2), None], r"got shape \(3, 2\)"),
        ([torch.tensor(1.0), None], "a vector or a matrix"),
        ([Diagonal(torch.ones(2)), None], "got size 2"),
        ([-torch.ones(3), None], "factor of mode 0 must be lower-triangular with a positive diagonal"),
        ([None, torch.ones(2, 2)], "factor of mode 1 must be lower-triangular"),
        ([torch.full((3,), torch.nan), None], "without NaN"),
        ([Triangular(torch.full((3, 3), torch.nan)), None], "without NaN"),
    ],
)
def test_wrong_factors_say_what_was_expected(factors, message):
    with pytest.raises(ValueError, match=message):
        TensorNormal(torch.zeros(3, 2), factors)
