"""The benchmark of accuracy: its problems hide what they should, its scores are right, and its table resumes."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from pyro_gprn.metrics import crps_of_draws, judge_gaussian

pytestmark = pytest.mark.usefixtures("quick")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _find_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def _simulated():
    from comparison.problems import BLIND, DEVELOPMENT, HELD_ASIDE, UNSEEN

    published = ("jura", "pm25", "equity", "gene expression")
    every = (*DEVELOPMENT, *HELD_ASIDE, *BLIND, *UNSEEN)
    return [problem for problem in every if not problem.name.startswith(published)]


def _tiny(name="tiny"):
    from comparison.problem import new_runs
    from comparison.simulators.development import pendulum

    return new_runs(name, pendulum, 12, 5)


def test_problems_are_at_least_sixteen_with_names_of_their_own_and_about_half_are_held_aside():
    from comparison.problems import BLIND, DEVELOPMENT, HELD_ASIDE, UNSEEN

    names = [problem.name for problem in (*DEVELOPMENT, *HELD_ASIDE, *BLIND, *UNSEEN)]
    assert len(set(names)) == len(names) >= 16
    assert abs(len(DEVELOPMENT) - len(HELD_ASIDE)) <= 2
    assert len(BLIND) == 18
    assert len(UNSEEN) == 8


def test_simulated_problems_are_seeded_and_differ_between_splits():
    for problem in _simulated():
        first, again, other = problem.make(0), problem.make(0), problem.make(1)
        for name in ("X", "Y", "X_test", "Y_test", "is_asked"):
            np.testing.assert_array_equal(getattr(first, name), getattr(again, name), err_msg=problem.name)
        assert first.Y.shape == other.Y.shape, problem.name
        assert not np.array_equal(first.Y, other.Y, equal_nan=True), problem.name


def test_simulated_problems_ask_for_finite_outputs_that_vary_and_were_not_given():
    for problem in _simulated():
        task = problem.make(0)
        assert task.Y.dtype == np.float64, problem.name
        assert np.isfinite(task.Y_test).all(), problem.name
        assert task.truth[task.is_scored].std() > 0.1, problem.name
        if task.rows is None:
            assert task.is_asked.all(), problem.name
            assert not task.has_holes, problem.name
            assert not (task.X[:, None] == task.X_test).all(-1).any(), problem.name
        else:
            np.testing.assert_array_equal(task.X[task.rows], task.X_test)
            given = task.Y[task.rows]
            assert np.isnan(given[task.is_asked]).all(), problem.name
            np.testing.assert_array_equal(given[~task.is_asked], task.Y_test[~task.is_asked])
            assert np.isnan(task.Y).sum() == task.is_asked.sum() > 0, problem.name


@pytest.mark.usefixtures("published_files")
def test_jura_hides_one_metal_at_a_hundred_sites_and_gives_the_others():
    from comparison.published import jura

    task = jura("jura", 0).make(3)
    assert task.is_asked.sum(0).tolist() == [100, 0, 0]
    assert np.isnan(task.Y).sum(0).tolist() == [100, 0, 0]
    assert np.exp(task.Y_test).min() > 0.1  # ppm


def test_a_long_hole_is_as_long_as_it_should_be_and_without_a_break():
    from comparison.problem import hide_blocks

    is_hidden = hide_blocks((50, 2, 4), 3, 12, seed=0).reshape(50, 8)
    lengths = is_hidden.sum(0)
    assert sorted(lengths.tolist()) == [0] * 5 + [12] * 3
    for column in is_hidden.T[lengths > 0]:
        assert np.ptp(np.flatnonzero(column)) == 11


def test_scores_do_not_depend_on_the_units_of_the_outputs():
    from comparison.methods import training_mean
    from comparison.problem import Task
    from comparison.scores import score

    rng = np.random.default_rng(0)
    X, Y, X_test, Y_test = (rng.standard_normal(shape) for shape in ((30, 2), (30, 3), (9, 2), (9, 3)))
    asked, units = np.ones((9, 3), dtype=bool), np.array([1.0, 1e3, 1e-3])
    one = Task(X, Y, X_test, Y_test, asked, own_units=True)
    other = Task(X, 5 + Y * units, X_test, 5 + Y_test * units, asked, own_units=True)
    scores = [score(training_mean(task, 0).judge(task.truth), task) for task in (one, other)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-9)
    assert scores[0]["rmse"] == pytest.approx(1.0)


def test_the_crps_of_draws_is_that_of_their_gaussian():
    truth = torch.tensor([[-1.0, 0.0, 2.5]], dtype=torch.float64)
    draws = torch.special.ndtri((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)[:, None, None] * 2.0 + 0.5
    exact = judge_gaussian(torch.full_like(truth, 0.5), torch.tensor(2.0, dtype=torch.float64), truth)
    np.testing.assert_allclose(crps_of_draws(draws.expand(4000, 1, 3), truth), exact.crps, rtol=2e-3)
    integral = np.linspace(-30, 30, 200_001)
    steps = (norm.cdf((integral - 0.5) / 2.0) - (integral >= 2.5)) ** 2
    assert exact.crps[0, 2].item() == pytest.approx(np.trapezoid(steps, integral), rel=1e-3)


def test_a_network_is_judged_by_its_own_density_in_standardised_units():
    from comparison.methods import network
    from comparison.scores import score

    task = _tiny().make(0)
    judged = network(task, 0, n_latents=1, steps=5).judge(task.truth)
    # A density integrates to one, so that a Gaussian with its intervals has nearly the same.
    deviation = (judged.upper - judged.lower) / (2 * norm.ppf(0.975))
    nearly = norm.logpdf(task.truth, (judged.upper + judged.lower) / 2, deviation).mean()
    assert -score(judged, task)["nlpd"] == pytest.approx(nearly, abs=0.3)
    assert (judged.crps > -0.1).all()


def test_least_squares_finds_an_output_that_is_a_sum_of_others_and_knows_its_error():
    from comparison.methods import least_squares
    from comparison.problem import fill_holes

    rng = np.random.default_rng(1)
    Y = rng.standard_normal((200, 3))
    Y[:, 2] = Y[:, 0] - 2 * Y[:, 1] + 0.1 * rng.standard_normal(200)
    is_hidden = np.zeros((200, 3), dtype=bool)
    is_hidden[:40, 2] = True
    task = fill_holes(np.arange(200.0)[:, None], Y, is_hidden)
    predictive = least_squares(task, 0)
    errors = (predictive.mean - task.truth)[task.is_scored] * task.scale[2]
    assert errors.std() < 0.15
    np.testing.assert_allclose(predictive.deviation[task.is_scored] * task.scale[2], 0.1, rtol=0.3)


def test_the_reduced_marginal_likelihood_of_scikit_learn_has_the_same_maximum():
    from comparison.gaussian_processes import fit_shared, make_kernel
    from sklearn.gaussian_process import GaussianProcessRegressor

    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (15, 1))
    Y = np.sin(2 * X + np.linspace(0, 3, 40)) + 0.1 * rng.standard_normal((15, 40))
    scaled = (Y - Y.mean(0)) / Y.std(0)
    direct = GaussianProcessRegressor(make_kernel("rbf", 1)).fit(X, scaled)
    reduced = fit_shared(X, Y, restarts=0, seed=0, normalise=True)
    assert direct.log_marginal_likelihood(reduced.kernel_.theta) == pytest.approx(
        direct.log_marginal_likelihood_value_, abs=0.05
    )


def test_the_table_resumes_and_records_what_fails(tmp_path, capsys):
    from comparison.methods import Method, training_mean
    from comparison.table import Cell, read, run

    calls = []

    def counted(task, split):
        calls.append(split)
        return training_mean(task, split)

    def broken(task, split):
        raise ArithmeticError("no answer")

    def never(task):
        return "not for this"

    methods = [Method("mean", counted, {"a": 1}), Method("broken", broken), Method("none", broken, {}, never)]
    path = tmp_path / "results.jsonl"
    run(path, [_tiny()], range(2), methods)
    run(path, [_tiny()], range(3), methods)
    assert calls == [0, 1, 2]
    results = read(path)
    assert len(results) == 9
    mean = results[Cell("tiny", 1, "mean")]
    assert mean["scores"]["rmse"] == pytest.approx(1.0)
    assert mean["settings"] == {"a": 1}
    assert {"torch", "pyro-gprn", "commit"} <= mean["versions"].keys()
    assert "ArithmeticError: no answer" in results[Cell("tiny", 0, "broken")]["error"]
    assert results[Cell("tiny", 0, "none")]["skipped"] == "not for this"
    run(path, [_tiny()], range(1), methods[:1], again=True)
    assert calls == [0, 1, 2, 0]


def test_a_line_that_was_cut_off_is_computed_again(tmp_path):
    from comparison.table import Cell, read

    from pyro_gprn.experiments.results import append

    path = tmp_path / "results.jsonl"
    whole = {"problem": "p", "split": 0, "method": "m"}
    append(path, whole)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"problem": "p", "spl')
    append(path, {**whole, "split": 1})
    assert list(read(path)) == [Cell("p", 0, "m"), Cell("p", 1, "m")]


def _result(problem, split, method, rmse, nlpd=0.0, coverage=0.95, n_scored=2000):
    scores = {"rmse": rmse, "mae": rmse, "nlpd": nlpd, "crps": rmse, "coverage": coverage, "coverage_top": coverage}
    return {
        "problem": problem,
        "split": split,
        "method": method,
        "scores": scores,
        "seconds": 1.0,
        "n_scored": n_scored,
    }


def test_the_summary_compares_in_pairs_and_judges_the_criteria():
    from comparison.methods import OURS
    from comparison.summary import Summary, write_summary
    from comparison.table import Cell

    lines = []
    for split, (ours, other) in enumerate([(0.1, 0.2), (0.3, 0.5), (0.2, 0.2)]):
        lines += [_result("a", split, OURS, ours, nlpd=ours), _result("a", split, "other", other, nlpd=other)]
        lines += [_result("b", split, OURS, 0.104, nlpd=1, coverage=0.9), _result("b", split, "other", 0.1)]
        lines += [_result("c", split, OURS, 0.1, coverage=0.5, n_scored=10), _result("c", split, "other", 0.2)]
    lines.append(_result("a", 0, "only once", 0.001))
    results = {Cell(each["problem"], each["split"], each["method"]): each for each in json.loads(json.dumps(lines))}
    found = Summary(results).compare("a", "rmse")
    assert found.other == "other"  # a method without all splits is no reference
    assert found.difference == pytest.approx(-0.1)
    assert found.ratio == pytest.approx(2 / 3)
    assert found.error == pytest.approx(0.1 / math.sqrt(3))
    text = write_summary(results)
    assert "at most 1.02 times the best other: 2 of 3 problems (wanted: all): DOES NOT HOLD; not on b" in text
    assert "Scaled RMSE lowest: 2 of 3 problems (wanted: 67%): holds" in text
    assert "CRPS lowest: 2 of 3 problems (wanted: 75%): DOES NOT HOLD" in text
    assert "0.92 to 0.98: 1 of 2 problems (wanted: all): DOES NOT HOLD; not on b (0.900)" in text


def test_the_command_runs_chosen_cells_and_refuses_names_it_does_not_know(tmp_path, capsys):
    import accuracy

    path = tmp_path / "results.jsonl"
    accuracy.main(["--only", "circuit", "--methods", "mean", "--splits", "2", "--results", str(path)])
    assert len(path.read_text().splitlines()) == 2
    assert "| circuit | **1** |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"problems must be among .*; got nothing like it"):
        accuracy.main(["--only", "nothing like it"])


def test_the_command_takes_one_group_and_names_the_file_of_results_after_it(tmp_path, monkeypatch, capsys):
    import accuracy

    monkeypatch.chdir(tmp_path)
    chosen = (([], "circuit", "accuracy"), (["--blind"], "wing", "blind"), (["--unseen"], "motor", "unseen"))
    for flags, problem, name in chosen:
        accuracy.main([*flags, "--only", problem, "--methods", "mean", "--splits", "1"])
        assert f'"{problem}"' in (tmp_path / f"{name}.jsonl").read_text()
    with pytest.raises(SystemExit):
        accuracy.main(["--held-aside", "--blind", "--summary"])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_finds_what_it_imports(path):
    importlib.import_module(path.stem)
