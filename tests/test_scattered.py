"""Holes that nearly every output has of its own: the same answers as by groups of outputs with the same holes."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.distributions import MultivariateNormal

from pyro_gprn import (
    CollapsedGPRN,
    CollapsedGuide,
    GPRNRegressor,
    fit_collapsed,
    learn_output_scales,
    posterior_predictive,
    sample_weights,
)
from pyro_gprn.collapsed import CollapsedPredictive, ScatteredPredictive
from pyro_gprn.collapsed import likelihood as likelihood_module
from pyro_gprn.collapsed import scattered as scattered_module
from pyro_gprn.collapsed.draws import PosteriorDraws
from pyro_gprn.collapsed.likelihood import effective_outputs, mean_precision, outputs_given
from pyro_gprn.collapsed.starts import leading_functions
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.diagnostics.leave_one_out import describe_draws, predict_left_out
from pyro_gprn.outputs import scattered as scattered_statistics
from pyro_gprn.outputs import sums as sums_module
from pyro_gprn.outputs.gram import GroupedStatistics, OutputStatistics
from pyro_gprn.outputs.holes import holes_of
from pyro_gprn.outputs.scattered import ScatteredStatistics
from pyro_gprn.outputs.source import as_source
from pyro_gprn.outputs.standardize import standardize
from pyro_gprn.pyro_state import new_generator
from tests.helpers import BATCH_SHAPES, randomise

pytestmark = pytest.mark.usefixtures("quick")

CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def holed(n_rows, n_outputs, share, seed=0):
    """Outputs with scattered holes, among them one with one row only and one that is complete; a row that none has."""
    generator = torch.Generator().manual_seed(seed)
    Y = torch.randn(n_rows, n_outputs, generator=generator, dtype=torch.float64)
    Y[torch.rand(n_rows, n_outputs, generator=generator) < share] = torch.nan
    Y[0] = torch.randn(n_outputs, generator=generator, dtype=torch.float64)
    Y[1:, 0] = torch.nan
    Y[:, 1] = 1.0
    Y[-1] = torch.nan
    return Y


@st.composite
def outputs(draw):
    n_rows, n_outputs = draw(st.integers(2, 7)), draw(st.integers(1, 12))
    bits = draw(st.lists(st.integers(1, 2**n_rows - 1), min_size=n_outputs, max_size=n_outputs))
    observed = torch.tensor([[bool(each >> row & 1) for each in bits] for row in range(n_rows)])
    Y = torch.randn(n_rows, n_outputs, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))).double()
    return torch.where(observed, Y, torch.nan)


def both(Y):
    return OutputStatistics.of(Y, scattered=False), OutputStatistics.of(Y, scattered=True)


def covariance(n_rows, batch_shape=(), seed=0):
    root = torch.randn(*batch_shape, n_rows, n_rows + 2, generator=torch.Generator().manual_seed(seed)).double()
    return root @ root.mT + 0.3 * torch.eye(n_rows, dtype=torch.float64)


def close(ours, theirs, **tolerance):
    torch.testing.assert_close(ours, theirs, **(CLOSE | tolerance))


@settings(max_examples=60, deadline=None)
@given(Y=outputs())
def test_density_and_score_equal_the_dense_answer_for_any_holes(Y):
    C = covariance(len(Y)).requires_grad_()
    dense = torch.zeros((), dtype=torch.float64)
    for y in Y.mT:
        seen = ~y.isnan()
        dense = dense + MultivariateNormal(C.new_zeros(int(seen.sum())), C[seen][:, seen]).log_prob(y[seen])
    (gradient,) = torch.autograd.grad(dense, C)
    for known in both(Y):
        ours = outputs_given(known, C.detach())
        close(ours.log_density(), dense.detach())
        close(ours.score(), 0.5 * (gradient + gradient.mT))
        (by_autograd,) = torch.autograd.grad(outputs_given(known, C).log_density(), C)
        close(by_autograd, ours.score())


@settings(max_examples=40, deadline=None)
@given(Y=outputs())
def test_everything_else_equals_the_answer_by_groups_for_any_holes(Y):
    C, cross = covariance(len(Y)), torch.randn(len(Y), len(Y), dtype=torch.float64)
    (grouped, scattered), positions = both(Y), torch.arange(Y.shape[1]).flip(0)
    theirs, ours = outputs_given(grouped, C), outputs_given(scattered, C)
    values = grouped.values_at(positions)
    close(ours.log_density_by_row(), theirs.log_density_by_row())
    close(ours.solve(values, positions), theirs.solve(values, positions))
    close(ours.precision_at(positions), theirs.precision_at(positions))
    close(ours.whitened_gram(), theirs.whitened_gram())
    for mine, yours in zip(
        ours.predict_left_out(cross, positions), theirs.predict_left_out(cross, positions), strict=True
    ):
        close(mine, yours)
    assert effective_outputs(C, scattered) == pytest.approx(effective_outputs(C, grouped), rel=1e-8)
    close(leading_functions(scattered, 2).abs(), leading_functions(grouped, 2).abs(), atol=1e-6)
    averages = [mean_precision(known) for known in (grouped, scattered)]
    for average in averages:
        average.add(C)
        average.add(2 * C)
    close(averages[1].solve(values, positions), averages[0].solve(values, positions))
    close(averages[1].diagonal(positions), averages[0].diagonal(positions))


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
def test_batches_of_covariances(batch_shape):
    Y, positions = holed(9, 30, 0.2), torch.tensor([3, 0, 1, 17])
    C, cross = covariance(9, batch_shape), torch.randn(*batch_shape, 9, 9, dtype=torch.float64)
    theirs, ours = (outputs_given(known, C) for known in both(Y))
    values = ours.known.values_at(positions)
    assert ours.log_density().shape == batch_shape
    close(ours.log_density(), theirs.log_density())
    close(ours.score(), theirs.score())
    close(ours.log_density_by_row(), theirs.log_density_by_row())
    close(ours.solve(values, positions), theirs.solve(values, positions))
    close(ours.precision_at(positions), theirs.precision_at(positions))
    for mine, yours in zip(
        ours.predict_left_out(cross, positions), theirs.predict_left_out(cross, positions), strict=True
    ):
        close(mine, yours)


def test_derivatives_by_finite_differences():
    _, known = both(holed(5, 7, 0.3))
    C = covariance(5, (2,)).requires_grad_()

    def density(C):
        return outputs_given(known, 0.5 * (C + C.mT)).log_density()

    assert torch.autograd.gradcheck(density, C)
    assert torch.autograd.gradgradcheck(density, C)


def test_gauss_newton_is_near_that_by_groups_and_exact_where_all_miss_the_same():
    F, scales = torch.randn(2, 9, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    Kw = covariance(9)
    C = Kw * (F @ F.mT) + 0.5 * torch.eye(9, dtype=torch.float64)
    same = torch.randn(9, 12, dtype=torch.float64)
    same[[2, 5]] = torch.nan
    for Y, tolerance in ((same, 1e-9), (holed(9, 40, 0.1), 0.1)):
        theirs, ours = (outputs_given(known, C).gauss_newton(F, Kw, scales) for known in both(Y))
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
        assert torch.linalg.eigvalsh(0.5 * (ours + ours.mT)).min() > -1e-9 * ours.norm()


def test_little_noise_does_not_spoil_the_density():
    """Outputs with zeros in their holes are rough: their squares are huge where there is little noise."""
    x = torch.linspace(0, 1, 25, dtype=torch.float64)[:, None]
    C = torch.exp(-0.5 * ((x - x.mT) / 0.3) ** 2) + 1e-8 * torch.eye(25, dtype=torch.float64)
    Y = torch.linalg.cholesky(C) @ torch.randn(25, 60, dtype=torch.float64)
    Y[torch.rand(Y.shape) < 0.1] = torch.nan
    theirs, ours = (outputs_given(known, C) for known in both(Y))
    close(ours.log_density(), theirs.log_density(), rtol=1e-5)
    assert (ours.score() - theirs.score()).norm() < 1e-4 * theirs.score().norm()


def test_statistics_choose_by_cost():
    assert isinstance(OutputStatistics.of(holed(20, 300, 0.1)), ScatteredStatistics)
    few = torch.randn(20, 300)
    few[3:9, :100] = few[12, 50:] = torch.nan
    assert isinstance(OutputStatistics.of(few), GroupedStatistics)
    assert isinstance(OutputStatistics.of(torch.randn(20, 300)), GroupedStatistics)
    nearly_empty = torch.full((60, 400), torch.nan)
    nearly_empty[torch.randint(60, (400,)), torch.arange(400)] = 1.0
    nearly_empty[torch.randint(60, (400,)), torch.arange(400)] = 1.0
    assert isinstance(OutputStatistics.of(nearly_empty), GroupedStatistics)


@pytest.mark.parametrize("width", [1, 7, 1000])
def test_many_outputs_with_the_same_holes_become_few_columns(width, monkeypatch):
    monkeypatch.setattr(sums_module, "_LEAST_ROOM", 50)
    Y = torch.cat([holed(6, 40, 0.3), torch.randn(6, 200, dtype=torch.float64)], 1)
    Y[2, 40:100] = torch.nan
    Y[3:5, 120:] = torch.nan
    sums = sums_module.GramSums(6, Y.device)
    for start in range(0, Y.shape[1], width):
        sums.add(Y[:, start : start + width])
    known = sums.statistics(as_source(Y), scattered=True)
    grouped = OutputStatistics.of(Y, scattered=False)
    assert len(known.columns) < 60
    C = covariance(6)
    for compute in (lambda given: given.log_density(), lambda given: given.score(), lambda g: g.log_density_by_row()):
        close(compute(outputs_given(known, C)), compute(outputs_given(grouped, C)))
    close(known.gram_of_observed, grouped.gram_of_observed)
    assert torch.equal(known.pairs, grouped.pairs)
    assert torch.equal(known.pattern_of, grouped.pattern_of)


def test_statistics_of_some_rows_rescaled_and_without_empty_outputs():
    Y = holed(8, 30, 0.3)
    rows, C = torch.tensor([6, 0, 3, 4]), covariance(4)
    theirs, ours = (known.at_rows(rows) for known in both(Y))
    close(outputs_given(ours, C).log_density(), outputs_given(theirs, C).log_density())
    close(outputs_given(ours, C).score(), outputs_given(theirs, C).score())
    Y[:, [4, 9]] = torch.nan
    for scale in ("field", "outputs", None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sums_module, "is_scattered", lambda *_: False)
            theirs = standardize(as_source(Y), scale)
            patch.setattr(sums_module, "is_scattered", lambda *_: True)
            ours = standardize(as_source(Y), scale)
        assert isinstance(ours.statistics, ScatteredStatistics)
        assert len(ours.present) == 28
        C = covariance(8)
        close(
            outputs_given(ours.statistics, C).log_density(),
            outputs_given(theirs.statistics, C).log_density(),
        )


def test_blocks_of_columns_add_up(monkeypatch):
    Y, C = holed(12, 90, 0.4), covariance(12)
    grouped, _ = both(Y)
    monkeypatch.setattr(scattered_statistics, "MOST_NUMBERS", 60)
    monkeypatch.setattr(scattered_module, "_MOST_NUMBERS", 1000)
    known = OutputStatistics.of(Y, scattered=True)
    assert len(known.blocks) > 20
    assert all(block.columns.numel() <= 60 for block in known.blocks)
    close(outputs_given(known, C).log_density(), outputs_given(grouped, C).log_density())
    assert effective_outputs(C, known) == pytest.approx(effective_outputs(C, grouped))


@settings(max_examples=40, deadline=None)
@given(Y=outputs())
def test_holes_name_every_missing_row_once(Y):
    observed = ~Y.mT.isnan()
    found = torch.ones_like(observed)
    members = []
    for holes in holes_of(observed):
        members += holes.members.tolist()
        assert torch.equal(holes.observed, observed[holes.members])
        assert all(len(set(rows)) == len(rows) for rows in holes.rows.tolist())
        for output, rows, is_hole in zip(holes.members, holes.rows, holes.is_hole, strict=True):
            found[output, rows[is_hole]] = False
    assert sorted(members) == list(range(len(observed)))
    assert torch.equal(found, observed)


def predictives(Y, **settings):
    """The same prediction from statistics by groups and from scattered ones."""
    X = torch.linspace(0, 1, len(Y))[:, None]
    model = CollapsedGPRN(X, Y.shape[1], 2, noise_y=0.3)
    guide = CollapsedGuide(model)
    torch.manual_seed(0)
    randomise(guide)
    new = torch.tensor([[0.13], [0.5], [1.2]])
    made = [
        posterior_predictive(model, guide, new, known, generator=new_generator(0), n_draws=12, **settings)
        for known in both(Y)
    ]
    return model, guide, made


def test_predictions_equal_those_by_groups():
    Y = holed(9, 25, 0.25)
    _, _, (theirs, ours) = predictives(Y)
    assert isinstance(ours, ScatteredPredictive)
    assert type(theirs) is CollapsedPredictive
    chosen = [3, 0, 1, 24]
    close(ours.mean(), theirs.mean())
    close(ours.mean(chosen), theirs.mean()[:, chosen])
    for noise in (True, False):
        close(ours.variance(noise=noise), theirs.variance(noise=noise))
    y = torch.randn(3, 4, dtype=torch.float64)
    close(ours.log_density(y, chosen), theirs.log_density(y, chosen))
    assert ours.log_density(y, chosen, n_draws=40).isfinite().all()


def test_predictions_with_output_scales_equal_those_by_groups():
    Y = holed(9, 25, 0.25) * torch.linspace(0.1, 3, 25, dtype=torch.float64)
    model, guide, _ = predictives(Y)
    scales = [
        learn_output_scales(model, guide, known, prior_degrees=degrees, generator=new_generator(1))
        for degrees in (2.0, (1.0, 4.0, 30.0))
        for known in both(Y)
    ]
    for theirs, ours in (scales[:2], scales[2:]):
        assert ours.prior_degrees == theirs.prior_degrees
        close(ours.degrees, theirs.degrees)
        close(ours.squares, theirs.squares)
    _, _, (theirs, ours) = predictives(Y, output_scales=scales[0])
    close(ours.variance(), theirs.variance())
    close(ours.log_density(torch.ones(3, 25).double()), theirs.log_density(torch.ones(3, 25).double()))
    close(ours.quantiles([0.1, 0.9]), theirs.quantiles([0.1, 0.9]), atol=1e-5)


def test_joint_draws_have_the_covariance_of_the_mixture():
    Y = holed(9, 6, 0.4)
    _, _, (_, ours) = predictives(Y)
    drawn = ours.sample(20_000, noise=False)
    mean, variance = ours.mean(), ours.variance(noise=False)
    error = variance.sqrt() / 20_000**0.5
    assert ((drawn.mean(0) - mean).abs() < 6 * error + 0.02 * variance.sqrt()).all()
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.12, atol=0.01)


def test_left_out_rows_and_densities_of_draws_equal_those_by_groups():
    Y = holed(9, 25, 0.25)
    model, guide, _ = predictives(Y)
    found = []
    for known in both(Y):
        described = describe_draws(model, guide, 5, known, generator=new_generator(0))
        draws = PosteriorDraws.of(model, guide, 5, generator=new_generator(1))
        left_out = predict_left_out(draws, torch.tensor([0, 1, 7, 20]), known, generator=new_generator(2))
        weights = sample_weights(model, guide, model.X[:2], 3, [0, 1, 7], known, generator=new_generator(3))
        found.append((described.log_joint, described.by_row, *left_out, weights))
    for theirs, ours in zip(*found, strict=True):
        close(ours, theirs)


def waves(n_rows=16, n_outputs=60, share=0.05):
    generator = torch.Generator().manual_seed(0)
    X = torch.linspace(0, 1, n_rows)[:, None]
    Y = torch.sin(5 * X + torch.linspace(0, 3, n_outputs)) * (1 + X)
    Y = Y + 0.05 * torch.randn(Y.shape, generator=generator)
    Y[torch.rand(Y.shape, generator=generator) < share] = torch.nan
    return X, Y.double()


def test_a_fit_ends_near_the_bound_by_groups():
    X, Y = waves()
    bounds = []
    for known in both(Y):
        model = CollapsedGPRN(X, Y.shape[1], 2, effective_outputs=20)
        fit = fit_collapsed(model, known, steps=60, seed=0, progress=False, starts=["independent"])
        bounds.append(fit.bound)
        assert fit.bound >= fit.start
    assert bounds[1] == pytest.approx(bounds[0], abs=0.02 * abs(bounds[0]) + 1.0)


def test_the_estimator_takes_scattered_holes():
    X, Y = waves(20, 300)
    estimator = GPRNRegressor(n_latents=2, steps=20, seed=0, progress=False).fit(X.numpy(), Y.numpy())
    assert isinstance(estimator.fitted_.known, ScatteredStatistics)
    mean, deviation = estimator.predict(X.numpy(), return_std=True)
    assert (abs(mean - Y.numpy())[~Y.isnan().numpy()] < 1.0).all()
    assert (deviation > 0).all()


def test_a_step_factorises_as_many_large_matrices_as_for_complete_outputs(monkeypatch):
    counted = []

    def count(matrix, *arguments, **settings):
        counted.append(matrix[..., 0, 0].numel() if matrix.shape[-1] == 20 else 0)
        return safe_cholesky(matrix, *arguments, **settings)

    safe_cholesky = likelihood_module.safe_cholesky
    for module in (likelihood_module, scattered_module):
        monkeypatch.setattr(module, "safe_cholesky", count)
    X, Y = waves(20, 300)
    large = []
    for outputs in (Y.nan_to_num(), Y):
        model = CollapsedGPRN(X, 300, 2)
        trainee = CollapsedTrainee(model, model.statistics(outputs), 0.01, new_generator(0))
        counted.clear()
        trainee.step()
        large.append(sum(counted))
    assert large[0] == large[1] == 2
