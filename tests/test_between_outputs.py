"""A covariance between outputs, and the missing numbers that it tells."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close as assert_torch_close

from pyro_gprn import CollapsedGPRN, CollapsedGuide, GPRNRegressor, posterior_predictive
from pyro_gprn.baselines import IndependentGP
from pyro_gprn.collapsed import between_outputs
from pyro_gprn.collapsed.between_outputs import (
    MissingNumbers,
    fill_holes,
    inverse_roots,
    learn_output_covariance,
    left_out_errors,
    shrink,
)
from pyro_gprn.collapsed.prediction import CollapsedPredictive
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.prediction.holes import FilledPredictive, hole_rows
from pyro_gprn.pyro_state import new_generator


@pytest.fixture(autouse=True)
def _few_outputs_will_do(monkeypatch):
    monkeypatch.setattr(between_outputs, "FEWEST_OUTPUTS", 2)


def assert_close(found, expected, rtol=1e-7, atol=1e-9):
    assert_torch_close(found, expected, rtol=rtol, atol=atol)


def covariance(size: int, seed: int) -> torch.Tensor:
    root = torch.randn(size, size, generator=new_generator(seed), dtype=torch.float64)
    return root @ root.mT + torch.eye(size)


def correlated(n_rows: int, B: torch.Tensor, seed: int = 0, share: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows from Normal(0, B), and which of their numbers are observed."""
    white = torch.randn(n_rows, len(B), generator=new_generator(seed), dtype=torch.float64)
    seen = torch.rand(n_rows, len(B), generator=new_generator(seed + 1)) > share
    return white @ torch.linalg.cholesky(B).mT, seen


def sensors(n_rows: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, the truth, and outputs with holes: every other sensor is nearly a copy of the one before it."""
    X = torch.linspace(0, 1, n_rows, dtype=torch.float64)[:, None]
    rough = torch.randn(n_rows, 3, generator=new_generator(3), dtype=torch.float64)
    truth = (torch.sin(6 * X + torch.arange(3)) + 0.5 * rough).repeat_interleave(2, 1)
    truth = truth + 0.02 * torch.randn(truth.shape, generator=new_generator(4), dtype=torch.float64)
    Y = truth.clone()
    Y[5:12, 0] = Y[20:26, 3] = torch.nan
    return X, truth, Y


def fitted() -> tuple[CollapsedGPRN, CollapsedGuide, torch.Tensor, torch.Tensor]:
    X, truth, Y = sensors()
    model = CollapsedGPRN(X, output_shape=6, n_latents=2)
    guide = CollapsedGuide(model)
    model.statistics(Y)
    return model, guide, truth, Y


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(2, 4), st.integers(0, 1000))
def test_missing_numbers_are_those_of_the_dense_gaussian(n_rows, n_outputs, seed):
    C, B = covariance(n_rows, seed), covariance(n_outputs, seed + 1)
    Y, seen = correlated(n_rows, B, seed, share=0.4)
    seen[0, 0] = False
    seen[0, 1] = True
    missing = MissingNumbers(torch.where(seen, Y, 0.0), seen)
    found = missing.given(inverse_roots(C)[None], B)

    everything = torch.kron(C, B)  # of the rows of Y, one after another
    known, hidden = seen.flatten(), ~seen.flatten()
    gain = torch.linalg.solve(everything[known][:, known], everything[known][:, hidden]).mT
    assert_close(found.mean, gain @ Y.flatten()[known], rtol=1e-6, atol=1e-8)
    left = everything[hidden][:, hidden] - gain @ everything[known][:, hidden]
    assert_close(found.variance(), left.diagonal(), rtol=1e-6, atol=1e-8)
    root = found.deviations(torch.eye(len(left), dtype=torch.float64))
    assert_close(root @ root.mT, left, rtol=1e-6, atol=1e-8)


def test_outputs_with_kernels_of_their_own_have_roots_of_their_own():
    roots, B = inverse_roots(torch.stack([covariance(5, seed) for seed in range(3)])), covariance(3, 9)
    Y, seen = correlated(5, B, share=0.3)
    missing = MissingNumbers(torch.where(seen, Y, 0.0), seen)
    found = missing.given(roots, B)

    colour = torch.linalg.inv(torch.block_diag(*roots))  # of the outputs, one after another
    everything = colour @ torch.kron(B, torch.eye(5).double()) @ colour.mT
    known, hidden = seen.mT.flatten(), ~seen.mT.flatten()
    gain = torch.linalg.solve(everything[known][:, known], everything[known][:, hidden]).mT
    by_output = torch.zeros(3, 5).double()
    by_output[missing.outputs, missing.rows] = found.mean
    assert_close(by_output.flatten()[hidden], gain @ Y.mT.flatten()[known], rtol=1e-6, atol=1e-8)
    same = missing.given(roots[:1], B)
    assert_close(missing.given(roots[:1].expand(3, 5, 5), B).mean, same.mean)
    assert_close(
        missing.given(roots[:1].expand(3, 5, 5), B).innovations(new_generator(0)), same.innovations(new_generator(0))
    )


def test_the_covariance_is_found_again_with_rows_that_vary_together_and_holes():
    B, C = covariance(4, 1), covariance(400, 2) / 400
    E, seen = correlated(400, B)
    Y = torch.linalg.solve(inverse_roots(C), E)
    found = learn_output_covariance(MissingNumbers(torch.where(seen, Y, 0.0), seen), inverse_roots(C)[None, None])
    assert (found.matrix - B).norm() < 0.2 * B.norm()
    assert found.shrinkage <= 0.1
    assert found.degrees >= 10
    assert found.spread == pytest.approx(1.0, abs=0.2)


def test_outputs_that_share_nothing_are_left_alone():
    Y, seen = correlated(50, torch.eye(20).double())
    found = learn_output_covariance(MissingNumbers(torch.where(seen, Y, 0.0), seen), torch.eye(50).double()[None, None])
    assert found.shrinkage >= 1.0


def test_heavy_tails_are_seen():
    Y, seen = correlated(300, covariance(5, 1))
    Y = Y * torch.distributions.Chi2(3.0).sample((300, 5)).double().rsqrt()
    found = learn_output_covariance(
        MissingNumbers(torch.where(seen, Y, 0.0), seen), torch.eye(300).double()[None, None]
    )
    assert found.degrees <= 6


def test_left_out_numbers_are_told_by_the_others_of_their_row():
    B = torch.tensor([[1.0, 0.99], [0.99, 1.0]]).double()
    E, _ = correlated(500, B)
    errors, deviations = left_out_errors(E, 0.0)
    assert deviations.mean() == pytest.approx((1 - 0.99**2) ** 0.5, rel=0.1)
    assert errors.square().mean() == pytest.approx(1.0, abs=0.1)


@settings(deadline=None)
@given(st.floats(0, 100), st.integers(0, 100))
def test_shrinking_keeps_variances_and_takes_the_same_share_of_all_covariances(shrinkage, seed):
    S = covariance(4, seed)
    B = shrink(S, shrinkage)
    assert_close(B.diagonal(), S.diagonal())
    off = ~torch.eye(4, dtype=torch.bool)
    assert_close(B[off] * (1 + shrinkage), S[off])


def test_draws_of_missing_numbers_have_their_mean_and_covariance():
    Y, seen = correlated(12, covariance(3, 1), share=0.3)
    missing = MissingNumbers(torch.where(seen, Y, 0.0), seen)
    between = between_outputs.OutputCovariance(covariance(3, 1), 0.0, float("inf"), 2.0)
    roots = inverse_roots(covariance(12, 5)).expand(2, 1, 12, 12)
    holes = fill_holes(missing, roots, between)
    draws = holes.sample(4000, new_generator(0))
    assert_close(draws.mean(0), holes.mean(), atol=0.15 * holes.variance().sqrt().max().item())
    assert_close(draws.var(0), holes.variance(), rtol=0.15)
    dense = 2.0 * torch.cholesky_inverse(missing.given(roots[0], between.matrix).root)
    assert (torch.cov(draws.mT) - dense).norm() < 0.1 * dense.norm()


def test_only_missing_numbers_of_training_rows_change():
    model, guide, _, Y = fitted()
    X_new = torch.cat([model.X + 1e-3, model.X])
    filled = posterior_predictive(model, guide, X_new, Y, generator=new_generator(0))
    plain = CollapsedPredictive(model, guide, X_new, Y, generator=new_generator(0))
    assert isinstance(filled, FilledPredictive)
    is_hole = torch.cat([torch.zeros_like(Y, dtype=torch.bool), Y.isnan()])
    for name in ("mean", "variance"):
        ours, theirs = getattr(filled, name)(), getattr(plain, name)()
        assert_close(ours[~is_hole], theirs[~is_hole], rtol=1e-12, atol=0)
        assert ((ours - theirs)[is_hole].abs() > 1e-6).all()
    mean, variance = torch.empty(2, len(X_new), 6, dtype=torch.float64)
    filled.fill_mean_and_variance(mean, variance)
    assert_close(mean, filled.mean())
    assert_close(variance, filled.variance(), rtol=1e-9)


def test_a_near_copy_fills_a_hole_better_than_the_functions_do():
    model, guide, truth, Y = fitted()
    hole = Y.isnan()
    filled = posterior_predictive(model, guide, model.X, Y, generator=new_generator(0))
    plain = CollapsedPredictive(model, guide, model.X, Y, generator=new_generator(0))
    error, before = ((each.mean() - truth)[hole].square().mean().sqrt() for each in (filled, plain))
    assert error < 0.1 < 3 * error < before
    assert filled.variance()[hole].mean() < 0.2 * plain.variance()[hole].mean()
    assert filled.log_density(truth)[hole].mean() > plain.log_density(truth)[hole].mean() + 1


@pytest.mark.parametrize("outputs", [None, 3, slice(0, 4), [3, 0, 3]], ids=str)
def test_what_is_said_of_missing_numbers_agrees_for_every_selection(outputs):
    model, guide, truth, Y = fitted()
    filled = posterior_predictive(model, guide, model.X[3:24], Y, generator=new_generator(0))
    picked = slice(None) if outputs is None else outputs
    assert_close(filled.mean(outputs), filled.mean()[:, picked])
    assert_close(filled.variance(outputs), filled.variance()[:, picked], rtol=1e-9)
    values = truth[3:24][:, picked]
    assert_close(filled.log_density(values, outputs), filled.log_density(truth[3:24])[:, picked], rtol=1e-9)
    lower, upper = filled.quantiles((0.1, 0.9), outputs)
    assert (filled.cdf(lower, outputs) - 0.1).abs().max() < 1e-4
    assert (lower < upper).all()
    draws = filled.sample(300, outputs)
    assert draws.shape == (300, *values.shape)
    spread = filled.variance(outputs).sqrt()
    assert ((draws.mean(0) - filled.mean(outputs)).abs() < 0.5 * spread).all()


def test_independent_gps_stay_independent():
    X, _, Y = sensors()
    gps = IndependentGP("rbf").fit(X, Y)
    assert type(gps.fitted_.predictive(gps.fitted_.model.X, new_generator(0))) is CollapsedPredictive


def test_inputs_that_several_rows_have_are_no_hole():
    X = torch.tensor([[0.0], [1.0], [1.0], [2.0]])
    assert hole_rows(X, torch.tensor([[1.0], [2.0], [5.0]])).tolist() == [-1, 3, -1]


@pytest.mark.parametrize("case", ["complete", "few outputs", "few rows", "many holes"])
def test_where_no_covariance_can_be_learned_there_is_none(case, monkeypatch):
    _, _, Y = sensors()
    if case == "complete":
        Y = Y.nan_to_num()
    elif case == "few outputs":
        monkeypatch.setattr(between_outputs, "FEWEST_OUTPUTS", 7)
    elif case == "few rows":
        Y = Y[3:10]
    else:
        monkeypatch.setattr(between_outputs, "MOST_MISSING", 5)
    assert MissingNumbers.of(OutputStatistics.of(Y)) is None


def test_a_constant_output_and_rows_without_any_number_do_no_harm():
    X, _, Y = sensors()
    Y[:, 2] = 0.0
    Y[7] = torch.nan
    model = CollapsedGPRN(X, output_shape=6, n_latents=2)
    filled = posterior_predictive(model, CollapsedGuide(model), X, Y)
    assert filled.mean().isfinite().all()
    assert (filled.variance() > 0).all()


def test_the_estimator_fills_holes_and_a_loaded_one_fills_them_the_same(tmp_path):
    X, truth, Y = (each.numpy() for each in sensors())
    r = GPRNRegressor(2, selection=False, own_kernels=False, steps=50, seed=0, progress=False).fit(X, Y)
    mean, deviation = r.predict(X, return_std=True)
    hole = np.isnan(Y)
    assert np.abs((mean - truth)[hole]).max() < 0.3
    assert (np.abs(mean - truth)[hole] < 4 * deviation[hole]).all()
    r.save(tmp_path / "file")
    again = GPRNRegressor.load(tmp_path / "file").predict(X, return_std=True)
    np.testing.assert_array_equal(mean, again[0])
    np.testing.assert_array_equal(deviation, again[1])
