import math

import pytest
import torch
from helpers import log_density
from torch import Size
from torch.distributions import MultivariateNormal

from pyro_gprn.collapsed.likelihood import CollapsedNormal, OutputsGivenF, effective_outputs
from pyro_gprn.outputs import gram
from pyro_gprn.outputs.gram import OutputStatistics

BATCH_SHAPES = [(), (4,), (2, 3)]


def random_covariance(n, batch_shape=()):
    root = torch.randn(*batch_shape, n, n, dtype=torch.float64)
    return root @ root.mT + 0.1 * torch.eye(n, dtype=torch.float64)


def with_holes(Y, share=0.3):
    Y = Y.clone()
    Y[torch.rand_like(Y) < share] = torch.nan
    Y[0] = 1.0
    return Y


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
@pytest.mark.parametrize("holes", [False, True])
def test_log_density_equals_that_of_every_output_on_its_own(batch_shape, holes):
    Y = torch.randn(5, 3, 2, dtype=torch.float64)
    Y = with_holes(Y) if holes else Y
    C = random_covariance(5, batch_shape)
    expected = torch.zeros(batch_shape, dtype=torch.float64)
    for y in Y.flatten(1).T:
        seen = ~y.isnan()
        block = C[..., seen, :][..., seen]
        expected = expected + MultivariateNormal(torch.zeros(int(seen.sum())).double(), block).log_prob(y[seen])
    torch.testing.assert_close(log_density(C, OutputStatistics.of(Y)), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("holes", [False, True])
def test_log_density_equals_the_dense_gaussian_with_the_weights_integrated_out(holes):
    """Dense algebra over all N·D outputs and all N·K·D weights: y = Φ w + noise."""
    N, K, D = 4, 2, 3
    F, Kw, noise = torch.randn(N, K).double(), random_covariance(N), 0.3
    Y = torch.randn(N, D, dtype=torch.float64)
    Y = with_holes(Y) if holes else Y
    mixing = torch.zeros(N, D, N, K, D, dtype=torch.float64)
    for n in range(N):
        for d in range(D):
            mixing[n, d, n, :, d] = F[n]
    mixing = mixing.reshape(N * D, N * K * D)
    weights = torch.kron(Kw, torch.eye(K * D, dtype=torch.float64))
    dense = mixing @ weights @ mixing.mT + noise**2 * torch.eye(N * D, dtype=torch.float64)
    y = Y.flatten()
    seen = ~y.isnan()
    expected = MultivariateNormal(torch.zeros(int(seen.sum())).double(), dense[seen][:, seen]).log_prob(y[seen])
    C = Kw * (F @ F.mT) + noise**2 * torch.eye(N, dtype=torch.float64)
    torch.testing.assert_close(log_density(C, OutputStatistics.of(Y)), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("holes", [False, True])
def test_gradients_to_the_second_order(holes):
    Y = torch.randn(3, 4, dtype=torch.float64)
    known = OutputStatistics.of(with_holes(Y) if holes else Y)

    def density(root):
        return log_density(root @ root.mT + torch.eye(3, dtype=torch.float64), known)

    root = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(density, root)
    assert torch.autograd.gradgradcheck(density, root)


@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize("holes", [False, True])
def test_few_outputs_are_used_themselves_with_the_density_and_gradients_of_their_gram_matrices(
    holes, by_output, monkeypatch
):
    Y = torch.randn(12, 3, dtype=torch.float64)
    Y = with_holes(Y) if holes else Y
    C = random_covariance(12, (2, 3) if by_output else (2,)).requires_grad_()
    found = []
    for few in (4, 13):
        monkeypatch.setattr(gram, "FEW", few)
        known = OutputStatistics.of(Y, scattered=False)
        given = OutputsGivenF(C, known.by_output if by_output else known)
        assert (given.known.few_values is None) == (few == 13)
        value = given.log_density()
        (gradient,) = torch.autograd.grad(value.sum(), C)
        found.append((value, gradient, given.log_density_by_row()))
    for by_values, by_grams in zip(*found, strict=True):
        torch.testing.assert_close(by_values, by_grams, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_collapsed_normal_is_a_pyro_distribution(batch_shape):
    C = random_covariance(4, batch_shape)
    y = CollapsedNormal(C, Size((2, 3)))
    assert y.batch_shape == batch_shape
    assert y.event_shape == (4, 2, 3)
    draws = y.rsample((20_000,))
    covariance = torch.einsum("s...iab,s...jab->...ij", draws, draws) / (20_000 * 6)
    torch.testing.assert_close(covariance, C, rtol=0.05, atol=0.05)
    torch.testing.assert_close(y.variance[..., 0, 0], C.diagonal(dim1=-2, dim2=-1))
    assert y.expand((7, *batch_shape)).log_prob(draws.select(0, 0)[(0,) * len(batch_shape)]).shape == (7, *batch_shape)


def test_statistics_of_the_scored_outputs_are_used():
    Y = torch.randn(4, 5)
    known = OutputStatistics.of(Y)
    C = random_covariance(4)
    torch.testing.assert_close(CollapsedNormal(C, Size((5,)), known).log_prob(Y), log_density(C, known))
    other = CollapsedNormal(C, Size((5,)), known).log_prob(2 * Y)
    torch.testing.assert_close(other, log_density(C, OutputStatistics.of(2 * Y)))


@pytest.mark.parametrize("n_outputs", [10, 100, 1000])
def test_effective_outputs_of_independent_outputs_are_all_of_them(n_outputs):
    C = random_covariance(60)
    Y = CollapsedNormal(C, Size((n_outputs,))).sample()
    assert effective_outputs(C, OutputStatistics.of(Y)) == pytest.approx(n_outputs, rel=0.3)


def test_effective_outputs_of_copies_are_those_of_one():
    C = random_covariance(60)
    Y = CollapsedNormal(C, Size((30,))).sample()
    copies = effective_outputs(C, OutputStatistics.of(Y.repeat(1, 50)))
    assert copies == pytest.approx(30, rel=0.3)
    holes = Y.repeat(1, 50)
    holes[:5, :700] = torch.nan
    assert effective_outputs(C, OutputStatistics.of(holes)) == pytest.approx(copies, rel=0.3)


@pytest.mark.parametrize("Y", [torch.zeros(4, 7), torch.ones(1, 7), torch.ones(4, 1)], ids=["zeros", "one-row", "one"])
def test_effective_outputs_of_degenerate_data_are_between_one_and_all(Y):
    value = effective_outputs(torch.eye(len(Y), dtype=torch.float64), OutputStatistics.of(Y))
    assert math.isfinite(value)
    assert 1 <= value <= Y.shape[1]
