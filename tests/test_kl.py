import pyro
import pyro.distributions as dist
import pytest
import torch
from helpers import BATCH_SHAPES, KINDS, dense, random_factor, random_tensor_normal, random_triangle
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import TraceMeanField_ELBO
from torch.distributions import kl_divergence

from pyro_gprn import MatrixNormal, TensorNormal
from pyro_gprn.factorised.projected import ProjectedTensorNormal

modes_and_kinds = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(KINDS), st.sampled_from(KINDS)), min_size=1, max_size=5
)


@settings(max_examples=100, deadline=None)
@given(modes_and_kinds, st.sampled_from(BATCH_SHAPES))
def test_kl_equals_the_dense_one(modes_and_kinds, batch_shape):
    modes, p_kinds, q_kinds = zip(*modes_and_kinds, strict=True)
    p, q = random_tensor_normal(modes, p_kinds, batch_shape), random_tensor_normal(modes, q_kinds, batch_shape)
    kl = kl_divergence(p, q)
    assert kl.shape == batch_shape
    torch.testing.assert_close(kl, kl_divergence(dense(p), dense(q)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_modes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_kl_between_full_factors_equals_the_dense_one(n_modes, batch_shape):
    modes = (3, 2, 2, 3, 2)[:n_modes]
    p, q = (random_tensor_normal(modes, ["full"] * n_modes, batch_shape) for _ in range(2))
    torch.testing.assert_close(kl_divergence(p, q), kl_divergence(dense(p), dense(q)), rtol=1e-10, atol=0)


def test_kl_of_a_distribution_with_itself_is_zero():
    p = random_tensor_normal((2, 3, 2), ("full", "diagonal", "identity"))
    torch.testing.assert_close(kl_divergence(p, p), torch.zeros((), dtype=torch.float64), atol=1e-12, rtol=0)


def test_kl_has_right_gradients():
    def kl(loc, p_row, p_column, q_row, q_column):
        p = TensorNormal(loc, [p_row.tril(), p_column])
        return kl_divergence(p, MatrixNormal(torch.zeros_like(loc), q_row.tril(), q_column))

    def column():
        return 0.5 + torch.rand(2, dtype=torch.float64)

    arguments = [torch.randn(3, 2, dtype=torch.float64), random_triangle(3), column(), random_triangle(3), column()]
    assert torch.autograd.gradcheck(kl, [argument.requires_grad_() for argument in arguments])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_kl_with_multivariate_normals_and_independent_normals(kind, batch_shape):
    p = random_tensor_normal((4,), [kind], batch_shape)
    multivariate = dense(random_tensor_normal((4,), ["full"], batch_shape))
    torch.testing.assert_close(kl_divergence(p, multivariate), kl_divergence(dense(p), multivariate))
    torch.testing.assert_close(kl_divergence(multivariate, p), kl_divergence(multivariate, dense(p)))

    p = random_tensor_normal((2, 3), [kind, "full"], batch_shape)
    loc, scale = torch.randn(*batch_shape, 2, 3).double(), 0.5 + torch.rand(*batch_shape, 2, 3).double()
    independent = dist.Normal(loc, scale).to_event(2)
    reference = dist.MultivariateNormal(loc.flatten(-2), torch.diag_embed(scale.square().flatten(-2)))
    torch.testing.assert_close(kl_divergence(p, independent), kl_divergence(dense(p), reference))
    torch.testing.assert_close(kl_divergence(independent, p), kl_divergence(reference, dense(p)))


@pytest.mark.parametrize("prior_kinds", [("full", "identity", "identity"), ("full", "diagonal", "identity")], ids=str)
@pytest.mark.parametrize("is_centred", [True, False])
def test_kl_of_a_projected_mean_equals_that_of_the_same_mean(prior_kinds, is_centred):
    Y = torch.randn(4, 5, dtype=torch.float64)
    factors = [random_factor("full", 4), random_factor("full", 2), None]
    projected = ProjectedTensorNormal(torch.randn(2, 4, 4, dtype=torch.float64), Y, Y @ Y.mT, factors)
    prior_factors = [random_factor(kind, size) for kind, size in zip(prior_kinds, (4, 2, 5), strict=True)]
    prior = TensorNormal.centred((4, 2, 5), prior_factors, like=Y)
    if not is_centred:
        prior = TensorNormal(torch.randn(4, 2, 5, dtype=torch.float64), prior_factors)
    expected = kl_divergence(TensorNormal(projected.loc, factors), prior)
    torch.testing.assert_close(kl_divergence(projected, prior), expected)


def test_different_modes_are_refused():
    p, q = (random_tensor_normal(modes, ["full", "full"]) for modes in ((2, 3), (3, 2)))
    with pytest.raises(ValueError, match=r"event shapes \(2, 3\) and \(3, 2\)"):
        kl_divergence(p, q)


def test_independent_of_another_kind_is_not_taken_for_a_normal():
    p = random_tensor_normal((2,), ["full"])
    with pytest.raises(NotImplementedError, match="Laplace"):
        kl_divergence(p, dist.Laplace(torch.zeros(2), torch.ones(2)).to_event(1))


@pytest.mark.parametrize("num_particles", [1, 3])
@pytest.mark.parametrize("vectorize_particles", [False, True])
@pytest.mark.parametrize("plate_size", [None, 4])
def test_trace_mean_field_elbo_takes_it_up(plate_size, num_particles, vectorize_particles):
    """A sampled KL would change from call to call and miss the closed form; this one does neither."""
    p, q = (random_tensor_normal((2, 3), ("full", "diagonal")) for _ in range(2))

    def program(distribution):
        def run():
            if plate_size is None:
                return pyro.sample("z", distribution)
            with pyro.plate("plate", plate_size):
                return pyro.sample("z", distribution)

        return run

    elbo = TraceMeanField_ELBO(
        num_particles=num_particles, vectorize_particles=vectorize_particles, max_plate_nesting=1
    )
    losses = [elbo.loss(program(q), program(p)) for _ in range(2)]
    expected = (plate_size or 1) * kl_divergence(p, q).item()
    assert losses == pytest.approx([expected] * 2, rel=1e-12)
