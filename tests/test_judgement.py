"""The choice between candidates by what is held out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_gprn import CollapsedGPRN, GPRNRegressor, fit_collapsed
from pyro_gprn.collapsed.kernel_choice import KernelChoice, choose_kernel
from pyro_gprn.estimator import selection
from pyro_gprn.metrics import gaussian_crps
from pyro_gprn.network.kernels import describe_kernel
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.training.folds import Fold, make_folds
from pyro_gprn.training.selection import HeldOut, Judgement, judge, smallest_of_the_best
from pyro_gprn.training.widening import Widening, find_widening

pytestmark = pytest.mark.usefixtures("quick")

X = torch.linspace(0, 1, 30)[:, None].double()


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("deviation", "truth"), [(1.0, 0.3), (0.2, -1.0), (3.0, 0.0)])
def test_the_score_of_a_gaussian_is_the_integral_over_its_distribution(deviation, truth):
    y = torch.linspace(-30, 30, 400_001, dtype=torch.float64)
    cdf = torch.distributions.Normal(0.5, deviation).cdf(y)
    by_integral = torch.trapezoid((cdf - (y >= truth).double()).square(), y)
    closed = gaussian_crps(*(torch.tensor(each, dtype=torch.float64) for each in (0.5, deviation, truth)))
    assert abs(closed - by_integral) < 1e-3 * by_integral


def test_every_row_is_held_out_once_and_never_kept_at_the_same_time():
    folds = make_folds(X, OutputStatistics.of(numbers(30, 4)), 5, seed=0)
    assert sorted(torch.cat([fold.held_out for fold in folds]).tolist()) == list(range(30))
    for fold in folds:
        assert not set(fold.kept.tolist()) & set(fold.held_out.tolist())
        assert fold.hidden is None
        torch.testing.assert_close(fold.training(OutputStatistics.of(X)).gram, X[fold.kept] @ X[fold.kept].T)


@given(st.integers(0, 20), st.integers(1, 9), st.integers(0, 5))
def test_hidden_entries_are_observed_ones_and_holes_as_long_as_those_of_the_data(start, length, seed):
    Y = numbers(30, 3)
    Y[start : start + length, 1] = torch.nan
    known = OutputStatistics.of(Y)
    for fold in make_folds(X, known, 4, seed=seed):
        if fold.hidden is None:
            continue
        assert not Y[fold.kept][fold.hidden].isnan().any()
        assert not fold.hidden[:, [0, 2]].any()  # only the output that has holes gets more
        assert fold.hidden.sum() <= length
        kept = fold.training(known).source.read(slice(None))
        assert torch.equal(kept.isnan(), Y[fold.kept].isnan() | fold.hidden)
        rows, entries = fold.scored(30, torch.tensor([1]))
        assert not (rows & entries).any()
        assert entries.sum() == fold.hidden[:, 1].sum()


def test_holes_move_along_the_input_whatever_the_order_of_the_rows():
    Y = numbers(30, 2)
    Y[5:9, 0] = torch.nan
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    for fold in make_folds(X[order], OutputStatistics.of(Y[order]), 3, seed=0):
        if fold.hidden is not None:
            places = order[fold.kept[fold.hidden[:, 0]]].sort().values
            assert places.max() - places.min() < 4


def test_an_output_that_would_lose_nearly_all_it_has_keeps_it():
    Y = numbers(30, 2)
    Y[:15, 0] = torch.nan  # its holes, moved by a half, would hide all the rest
    for fold in make_folds(X, OutputStatistics.of(Y), 3, seed=0):
        kept = fold.training(OutputStatistics.of(Y)).source.read(slice(None))
        assert (~kept[:, 0].isnan()).sum() >= 0.4 * 15 - 5


@pytest.mark.parametrize("n_with_holes", [1, 2, 4, 7])
def test_each_fold_moves_the_holes_of_some_outputs_and_all_are_moved_in_the_end(n_with_holes):
    Y = numbers(60, 8)
    for output in range(n_with_holes):
        Y[5 * output : 5 * output + 6, output] = torch.nan
    folds = make_folds(torch.linspace(0, 1, 60)[:, None], OutputStatistics.of(Y), 4, seed=0)
    moved = [fold.hidden.any(0).nonzero().flatten().tolist() for fold in folds]
    assert all(1 <= len(outputs) <= max(1, -(-n_with_holes // 4)) for outputs in moved)
    assert {output for outputs in moved for output in outputs} == set(range(n_with_holes))


FOLDS = [Fold(torch.tensor([0, 1]), torch.tensor([2])), Fold(torch.tensor([1, 2]), torch.tensor([0]))] * 2


def scorer(values, fitted):
    def score(name, fold):
        fitted.append(name)
        rows = torch.full((3, 2), math.nan)
        rows[fold.held_out, 0] = values[name]
        return HeldOut(rows, torch.full((3, 2, 4), 1.0), torch.zeros(3, 2, 4))

    return score


def test_candidates_far_behind_are_dropped_and_the_best_goes_through_all_folds():
    fitted = []
    judgement = judge(
        ["good", "near", "bad"], FOLDS, scorer({"good": 1.0, "near": 1.05, "bad": 2.0}, fitted), progress=False
    )
    assert judgement.best == "good"
    assert judgement.n_folds == {"good": 4, "near": 4, "bad": 1}
    assert fitted.count("bad") == 1
    report = judgement.report("good")
    assert [(each["name"], each["is_chosen"]) for each in report] == [("good", True), ("near", False), ("bad", False)]
    assert [each["ratio"] for each in report] == pytest.approx([1.0, 1.05, 2.0])


def test_a_dropped_candidate_is_compared_on_the_rows_that_it_has():
    def score(name, fold):  # the second fold is harder
        rows = torch.full((3, 2), math.nan)
        rows[fold.held_out, 0] = {"best": 1.0, "other": 1.5}[name] * (1.0 + 4.0 * (fold is FOLDS[1]))
        return HeldOut(rows, torch.full((3, 2, 4), 1.0), torch.zeros(3, 2, 4))

    best, other = judge(["best", "other"], FOLDS[:2], score, progress=False).report("best")
    assert best["score"] == 3.0
    assert other["score"] == other["ratio"] == 1.5
    assert math.isnan(Judgement({"a": torch.ones(3, 2)}, n_folds={"a": 1}, seconds={"a": 0.0}).report("b")[0]["ratio"])


def test_a_later_candidate_is_judged_beside_those_before():
    fitted = []
    score = scorer({"first": 1.0, "worse": 3.0, "better": 0.5}, fitted)
    judgement = judge(["first"], FOLDS, score, progress=False)
    judge(["worse", "better"], FOLDS, score, so_far=judgement, progress=False)
    assert judgement.best == "better"
    assert fitted.count("first") == 4
    assert fitted.count("worse") == 1


def test_a_challenger_goes_all_the_way_only_if_it_is_the_best_after_two_folds():
    fitted = []
    score = scorer({"best": 1.0, "far": 1.2, "level": 1.0, "ahead": 0.99, "behind": 1.01}, fitted)
    judgement = judge(["best", "far"], FOLDS, score, progress=False)
    judge(["level", "ahead", "behind"], FOLDS, score, so_far=judgement, are_challengers=True, progress=False)
    assert judgement.n_folds == {"best": 4, "far": 2, "level": 2, "ahead": 4, "behind": 2}
    assert judgement.best == "ahead"


def test_without_any_finished_fold_there_is_no_best():
    assert Judgement().best is None
    assert smallest_of_the_best(Judgement(), ["one", "two"]) == "one"


def of_rows(errors):
    """Deviations ``(N, 2, b)`` where rows alone were held out."""
    return torch.stack([errors, torch.full_like(errors, math.nan)], 1)


ALIKE = torch.ones(50).double()
DIFFERENT = torch.linspace(0.1, 2.0, 50).double()


@pytest.mark.parametrize(("spread", "expected"), [(1.0, 1.0), (1.5, 1.5), (0.64, 0.8), (9.0, 2.0), (0.01, 0.5)])
def test_widening_makes_intervals_hold_what_was_held_out(spread, expected):
    judgement = Judgement(deviations={"it": of_rows(spread * numbers(4000, 50).abs())})
    found = judgement.widening("it", ALIKE)
    assert found == Widening.same(found.others)
    assert found.others == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("n_rows", [20, 40, 80])
def test_widened_intervals_hold_the_next_row_in_95_of_100_cases_however_few_rows_there_are(n_rows):
    # All errors of a row are one: the hardest case. Without the correction 20 rows would hold 91 of 100.
    held = []
    for seed in range(2000):
        errors = 1.1 * numbers(n_rows + 1, 1, seed=seed).abs()
        judgement = Judgement(deviations={"it": of_rows(errors[:-1].expand(-1, 5))})
        held.append(bool(errors[-1] < 1.96 * judgement.widening("it", ALIKE[:5]).others))
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("of_most", "expected"), [(1.5, 1.5), (0.64, 0.64), (0.1, 0.5), (7.0, 2.0)])
def test_the_tenth_of_outputs_that_varies_most_has_its_own_factor(of_most, expected):
    errors = 1.2 * numbers(4000, 50).abs()
    errors[:, 45:] *= of_most / 1.2
    found = find_widening(of_rows(errors), DIFFERENT)
    assert found.others == pytest.approx(1.2, rel=0.02)
    assert found.most == pytest.approx(expected, rel=0.02)
    factors = found.at(DIFFERENT)
    assert (factors[:23] == found.others).all()
    torch.testing.assert_close(factors[47:], torch.full_like(factors[47:], found.most))
    assert (factors.diff() * (found.most - found.others) >= 0).all()


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0), st.floats(0.0, 3.0), st.floats(0.01, 3.0))
def test_factors_lie_between_those_of_the_groups_and_do_not_jump(others, most, lower, width):
    widening = Widening(others, most, (lower, lower + width))
    factors = widening.at(torch.linspace(0, 8, 8001).double())
    assert factors.min() >= min(others, most) - 1e-9
    assert factors.max() <= max(others, most) + 1e-9
    assert factors.diff().abs().max() <= 0.001001 * abs(most - others) / width + 1e-9


@pytest.mark.parametrize("spread", [DIFFERENT[:19], ALIKE], ids=["few outputs", "outputs that vary alike"])
def test_without_a_tenth_that_stands_out_there_is_one_factor(spread):
    errors = numbers(400, len(spread)).abs()
    errors[:, -2:] *= 3.0
    found = find_widening(of_rows(errors), spread)
    assert not found.needs_spread
    assert (found.at(spread) == found.others).all()


@pytest.mark.parametrize(("level", "slope"), [(0.7, 0.4), (1.0, 0.0)])
def test_places_tell_how_errors_grow_with_the_distance_from_the_mean(level, slope):
    """Of the factors that are wanted, those below 1 are taken half of the way."""
    means = 1.5 * DIFFERENT * numbers(4000, 50, seed=1)
    distance = (means / DIFFERENT).abs()
    wanted = (level + slope * distance.square()).sqrt()
    errors = of_rows(wanted * numbers(4000, 50).abs())
    found = find_widening(errors, DIFFERENT, of_rows(means))
    output = torch.ones(1).double()

    def factor(at):
        squares = found.places.squares(output * at, output)
        return (found.others * squares.sqrt()).item()

    for at in (0.2, 1.5, 2.5):
        rule = (level + slope * at**2) ** 0.5 / found.others
        expected = found.others * (rule if rule > 1 else rule**0.5)
        assert factor(at) == pytest.approx(expected, rel=0.15)
    assert factor(100.0) == factor(found.places.reach)


def test_where_errors_do_not_grow_with_the_distance_places_tell_nothing():
    means = 1.5 * DIFFERENT * numbers(4000, 50, seed=1)
    distance = (means / DIFFERENT).abs()
    errors = of_rows((1.2 - 0.2 * distance).clamp(min=0.2) * numbers(4000, 50).abs())
    found = find_widening(errors, DIFFERENT, of_rows(means))
    assert found.places.is_nothing
    assert found == find_widening(errors, DIFFERENT)


def test_places_need_predictions_at_several_distances_and_enough_outputs():
    errors, means = of_rows(numbers(400, 50).abs()), of_rows(0.01 * numbers(400, 50))
    assert find_widening(errors, DIFFERENT, means).places.is_nothing
    assert find_widening(errors, DIFFERENT).places.is_nothing
    few = find_widening(errors[..., :8], ALIKE[:8], of_rows(3 * numbers(400, 8)))
    assert few.places.is_nothing
    constant = find_widening(errors, torch.zeros(50).double(), of_rows(numbers(400, 50)))
    assert constant.places.is_nothing


def test_hidden_entries_have_their_own_factor_and_do_not_change_that_of_rows():
    rows = 1.2 * numbers(4000, 50).abs()
    deviations = of_rows(rows)
    deviations[:100, 1, 0] = 1.7 * numbers(100, seed=1).abs()
    found, without = find_widening(deviations, DIFFERENT), find_widening(of_rows(rows), DIFFERENT)
    assert found.holes == pytest.approx(1.7, rel=0.25)
    assert found.holes > without.others == without.holes
    assert found._replace(holes=without.holes) == without
    deviations[10:] = of_rows(rows)[10:]  # ten hidden entries say too little
    assert find_widening(deviations, DIFFERENT) == without


@pytest.mark.parametrize(("of_holes", "expected"), [(1.8, 1.8), (1.0, 1.3)])
def test_few_outputs_have_the_larger_of_the_factors_of_rows_and_of_hidden_entries(of_holes, expected):
    deviations = of_rows(1.3 * numbers(4000, 8).abs())
    deviations[:, 1, :2] = of_holes * numbers(4000, 2, seed=1).abs()
    found = find_widening(deviations, ALIKE[:8])
    assert found == Widening.same(found.others)
    assert found.others == pytest.approx(expected, rel=0.05)


def test_rows_and_hidden_entries_of_a_fold_are_kept_apart(monkeypatch):
    x, y = smooth()
    y[4:9, 1] = np.nan
    found, score = [], selection.Selection._score

    def keep(self, name, fold):
        found.append((fold, score(self, name, fold)))
        return found[-1][1]

    monkeypatch.setattr(selection.Selection, "_score", keep)
    GPRNRegressor(2, kernel_w="rbf", own_kernels=False, **QUICK).fit(x, y)
    fold, held_out = next(each for each in found if each[0].hidden is not None)
    rows, hidden = (~held_out.deviations.isnan()).unbind(1)
    assert not (rows & hidden).any()
    assert sorted(rows.any(1).nonzero().flatten().tolist()) == sorted(fold.held_out.tolist())
    assert torch.equal(hidden[fold.kept], fold.hidden)
    assert torch.equal(held_out.scores.isnan(), held_out.deviations.isnan().all(2))


def score_without_fits(monkeypatch, deviations):
    """Every fold of every candidate has the same score, and these deviations."""
    held_out = HeldOut(torch.full((24, 2), 1.0), deviations, torch.zeros_like(deviations))
    monkeypatch.setattr(selection.Selection, "_score", lambda self, candidate, fold: held_out)


def smooth(n_rows=24, n_outputs=30):
    inputs = np.linspace(0, 1, n_rows)[:, None]
    return inputs, np.sin(5 * inputs + np.linspace(0, 3, n_outputs)) + 0.05 * numbers(n_rows, n_outputs).numpy()


QUICK = {"steps": 15, "seed": 0, "progress": False}


@pytest.fixture(scope="module")
def selected():
    return GPRNRegressor(2, **QUICK).fit(*smooth())


def test_the_estimator_takes_the_candidate_with_the_best_score(selected):
    through = [each for each in selected.selection_ if each["folds"] == 5]
    chosen = [each for each in selected.selection_ if each["is_chosen"]]
    assert len(chosen) == 1
    assert chosen[0]["score"] == min(each["score"] for each in through)
    names = {each["name"] for each in selected.selection_}
    assert {selection.INDEPENDENT_GPS, selection.LINEAR_MODEL, "independent", "functions"} <= names


def test_what_is_given_is_not_chosen():
    x, y = smooth()
    assert GPRNRegressor(2, selection=False, **QUICK).fit(x, y).selection_ == []
    given = GPRNRegressor(2, kernel_w="rbf", starts=["functions"], **QUICK).fit(x, y)
    assert given.selection_ == []
    assert given.widening_ == Widening.same(1.0)


@pytest.mark.parametrize(
    ("name", "kernel"), [(selection.INDEPENDENT_GPS, "kernel_f"), (selection.LINEAR_MODEL, "kernel_w")]
)
def test_a_limit_of_the_network_can_win_and_be_saved(name, kernel, monkeypatch, tmp_path):
    def score(self, candidate, fold):
        rows = torch.full((24, 2), 0.1 if candidate == name else 1.0)
        return HeldOut(rows, torch.ones(24, 2, 30), torch.zeros(24, 2, 30))

    monkeypatch.setattr(selection.Selection, "_score", score)
    x, y = smooth()
    r = GPRNRegressor(2, kernel_w="rbf", **QUICK).fit(x, y)
    assert [each["name"] for each in r.selection_ if each["is_chosen"]] == [name]
    matrix = getattr(r.model_, kernel)(r.model_.X)
    assert (matrix - matrix[0, 0]).abs().max() < 1e-10
    r.save(tmp_path / "fit.gprn")
    loaded = GPRNRegressor.load(tmp_path / "fit.gprn")
    np.testing.assert_array_equal(loaded.predict(x), r.predict(x))
    assert loaded.selection_ == r.selection_


@pytest.mark.parametrize(("given", "is_tried"), [({}, True), ({"kernel_f": "matern52"}, False)], ids=str)
def test_another_kernel_of_the_functions_is_tried_unless_one_is_given(given, is_tried, monkeypatch):
    name = f"functions, {selection.OTHER_FUNCTIONS} functions"
    best = {name: 0.05, "functions": 0.1}

    def score(self, candidate, fold):
        rows = torch.full((24, 2), best.get(candidate, 1.0))
        return HeldOut(rows, torch.ones(24, 2, 30), torch.zeros(24, 2, 30))

    monkeypatch.setattr(selection.Selection, "_score", score)
    r = GPRNRegressor(2, kernel_w="rbf", **given, **QUICK).fit(*smooth())
    assert [each["name"] for each in r.selection_ if each["is_chosen"]] == [name if is_tried else "functions"]
    expected = selection.OTHER_FUNCTIONS if is_tried else "matern52"
    assert expected in describe_kernel(r.model_.kernel_f)["sum"][0]
    assert "rbf" in describe_kernel(r.model_.kernel_w)["sum"][0]


def test_widening_changes_intervals_and_not_means(monkeypatch):
    x, y = smooth()
    score_without_fits(monkeypatch, numbers(24, 2, 30).abs())
    fits = []
    for factor in (1.0, 1.5):
        monkeypatch.setattr(Judgement, "widening", lambda self, *which, factor=factor: Widening.same(factor))
        fits.append(GPRNRegressor(2, kernel_w="rbf", **QUICK).fit(x, y))
    (mean, narrow), (same, wide) = (r.predict(x + 0.01, return_std=True) for r in fits)
    np.testing.assert_array_equal(mean, same)
    assert (wide > narrow).all()
    assert (wide <= 1.5 * narrow * (1 + 1e-9)).all()
    assert [r.widening_ for r in fits] == [Widening.same(1.0), Widening.same(1.5)]


def test_selection_must_be_true_or_false():
    with pytest.raises(ValueError, match="selection must be True or False; got 'yes'"):
        GPRNRegressor(selection="yes").fit(*smooth())


def test_a_fit_that_goes_on_keeps_what_was_chosen_and_why(monkeypatch):
    monkeypatch.setattr(Judgement, "widening", lambda self, *which: Widening.same(1.5))
    score_without_fits(monkeypatch, numbers(24, 2, 30).abs())
    x, y = smooth()
    r = GPRNRegressor("auto", warm_start=True, **QUICK).fit(x, y)
    names = ("selection_", "widening_", "kernel_evidence_", "latent_scores_", "n_latents_")
    before = [getattr(r, name) for name in names]
    assert before[:2] != [[], Widening()]
    assert [getattr(r.fit(x, y), name) for name in names] == before


def test_candidates_of_a_fold_share_its_independent_gps(monkeypatch):
    refitted, fitted = KernelChoice.refitted, []

    def count(choice, X, known):
        fitted.append((len(X), choice.name))
        return refitted(choice, X, known)

    monkeypatch.setattr(KernelChoice, "refitted", count)
    r = GPRNRegressor(2, **QUICK).fit(*smooth())
    n_fits = sum(each["folds"] for each in r.selection_)
    assert len(fitted) <= 2 * 5 < n_fits  # two kernels, five folds


def test_training_at_the_independent_gps_is_training_after_their_fit():
    x, y = (torch.as_tensor(each) for each in smooth())
    known = OutputStatistics.of(y)
    choice = choose_kernel(x, known, ["rbf"])

    def fit(choice, **settings):
        model = CollapsedGPRN(x[:20], y.shape[1], 2, kernel_f="rbf", kernel_w="rbf")
        model.load_state_dict(choice.states["rbf"], strict=False)
        return fit_collapsed(model, y[:20], starts=["independent"], steps=5, seed=0, progress=False, **settings)

    after = fit(choice, from_here=True)
    there = fit(choice.refitted(x[:20], OutputStatistics.of(y[:20])), at_independent=True)
    assert there.bound == after.bound
    assert there.evidence == pytest.approx(after.evidence)
