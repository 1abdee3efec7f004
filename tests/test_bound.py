"""The bound with its gradient by hand, against autograd through the parts it is made of."""

import pytest
import torch
from helpers import log_density, random_triangle
from torch.distributions import kl_divergence

from pyro_gprn import CollapsedGPRN, MatrixNormal
from pyro_gprn.collapsed import bound
from pyro_gprn.collapsed.bound import Factors, collapsed_bound, evaluate_bound

N, K, D = 5, 2, 7


def random_problem(holes):
    Y = torch.randn(N, D, dtype=torch.float64)
    if holes:
        Y[1, :3] = torch.nan
        Y[2:, 3] = torch.nan
    model = CollapsedGPRN(torch.randn(N, 2), D, K, effective_outputs=3.0, jitter=1e-3)
    known = model.statistics(Y)
    loc = torch.randn(N, K, dtype=torch.float64)
    row, col, Lf = (random_triangle(size) for size in (N, K, N))
    Kw = torch.randn(N, N, dtype=torch.float64)
    Kw = Kw @ Kw.mT
    noise = torch.tensor(0.3, dtype=torch.float64)
    parts = tuple(part.requires_grad_() for part in (loc, row, col, Lf, Kw, noise))
    return model, known, parts, torch.randn(4, N, K, dtype=torch.float64)


def bound_by_autograd(model, known, parts, white):
    loc, row, col, Lf, Kw, noise = parts
    F = Lf @ (loc + row @ white @ col.mT)
    density = log_density(model.output_covariance(F, Kw, noise), known).mean()
    return model.likelihood_power * density - kl_divergence(MatrixNormal(loc, row, col), model.prior())


@pytest.mark.parametrize("together", [True, False], ids=["together", "one-by-one"])
@pytest.mark.parametrize("holes", [False, True])
def test_value_and_gradient_equal_autograd_through_the_parts(holes, together, monkeypatch):
    if not together:
        monkeypatch.setattr(bound, "MOST_NUMBERS", 1)
    model, known, parts, white = random_problem(holes)
    by_hand = collapsed_bound(model, Factors(*parts[:3]), parts[3:], white, known)
    by_autograd = bound_by_autograd(model, known, parts, white)
    torch.testing.assert_close(by_hand, by_autograd, rtol=1e-12, atol=1e-10)
    gradients, expected = torch.autograd.grad(by_hand, parts), torch.autograd.grad(by_autograd, parts)
    for name, ours, theirs in zip(("M", "R", "T", "Lf", "Kw", "noise"), gradients, expected, strict=True):
        if name in ("R", "T"):  # what lies above the diagonal of a triangle is no parameter
            theirs = theirs.tril()
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("holes", [False, True])
def test_gradient_by_finite_differences(holes):
    model, known, parts, white = random_problem(holes)

    def value(loc, row, col, Lf, Kw, noise):
        symmetric = 0.5 * (Kw + Kw.mT)  # finite differences move one entry; a covariance moves with its mirror image
        return collapsed_bound(model, Factors(loc, row.tril(), col.tril()), (Lf, symmetric, noise), white, known)

    torch.autograd.gradcheck(value, parts)


@pytest.mark.parametrize("holes", [False, True])
def test_the_value_a_few_draws_at_a_time_is_the_value(holes, monkeypatch):
    model, known, parts, white = random_problem(holes)
    whole = collapsed_bound(model, Factors(*parts[:3]), parts[3:], white, known)
    monkeypatch.setattr(bound, "MOST_NUMBERS", 1)
    torch.testing.assert_close(evaluate_bound(model, Factors(*parts[:3]), parts[3:], white, known), whole.detach())
