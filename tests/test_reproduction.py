"""The paper's experiments again: the commands run, a grid resumes after any end, and scores are what they say."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import pyro_gprn.experiments.cli as cli
from pyro_gprn.baselines import TrainingMean
from pyro_gprn.experiments.grid import run_cell, run_missing
from pyro_gprn.experiments.reproduction.cell import Cell
from pyro_gprn.experiments.reproduction.command import EXPERIMENTS
from pyro_gprn.experiments.reproduction.data import QUICK_SOURCES, SOURCES
from pyro_gprn.experiments.reproduction.measure import Accuracy, Speed
from pyro_gprn.experiments.reproduction.methods import METHODS
from pyro_gprn.experiments.reproduction.page import write_page
from pyro_gprn.experiments.reproduction.scores import score
from pyro_gprn.experiments.results import append, read

ROOT = Path(cli.__file__).parents[2]


@dataclass(frozen=True)
class Run:
    name: str
    seed: int


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def reproduce(*arguments):
    cli.main(["reproduce", *map(str, arguments), "--quiet"])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_quick_run_of_each_experiment_fills_its_grid_and_reports_it(name, tmp_path, capsys):
    path, figure = tmp_path / "results.jsonl", tmp_path / "figure.png"
    reproduce(name, "--quick", "--results", path, "--figure", figure)
    experiment = EXPERIMENTS[name]
    results = read(path, Cell)
    assert list(results) == experiment.grid(1, is_quick=True)
    for result in results.values():
        assert "error" not in result, result["traceback"]
        assert result["peak_mib"] > 50
        assert result["settings"]["seed"] == 0
        assert {"commit", "torch"} <= result["versions"].keys()
    told = capsys.readouterr().out
    assert "quick: small draws from a network stand in for the data" in told
    assert figure.exists() == (experiment.plot is not None)
    reproduce(name, "--quick", "--results", path, "--figure", figure, "--summary")
    assert told.endswith(capsys.readouterr().out)


def test_a_grid_killed_in_the_middle_loses_at_most_the_cell_in_work(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    asked = ["table1", "--quick", "--results", str(path), "--only", "jura", "mean-field", "--repeats"]
    command = [sys.executable, "-m", "pyro_gprn.experiments.cli", "reproduce", *asked, "1000", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            assert process.poll() is None, "the grid ended before it could be killed"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    before = path.read_bytes()
    finished = before[: before.rindex(b"\n") + 1]
    n_finished = finished.count(b"\n")
    assert [result["repeat"] for result in read(path, Cell).values()] == list(range(n_finished))
    path.write_bytes(finished + b'{"data": "jura", "n_train": 12, "met\xc3')  # killed while it wrote a character
    reproduce(*asked, n_finished + 2)
    assert f"2 cells to run, {n_finished} done before" in capsys.readouterr().out
    assert path.read_bytes().startswith(finished)
    assert [result["repeat"] for result in read(path, Cell).values()] == list(range(n_finished + 2))


def test_a_cell_that_fails_is_recorded_and_does_not_stop_the_grid(tmp_path, capsys):
    def work(cell):
        if cell.seed == 1:
            raise ArithmeticError("no answer")
        return {"value": cell.seed}

    path = tmp_path / "new folder/results.jsonl"
    how = {"tell": lambda result: result.get("error", "fine"), "progress": False}
    run_missing(path, [Run("a", seed) for seed in range(3)], work, **how)
    assert capsys.readouterr().out.splitlines()[1:] == ["fine", "ArithmeticError: no answer", "fine"]
    failed = read(path, Run)[Run("a", 1)]
    assert "in work" in failed["traceback"]
    run_missing(path, [Run("a", seed) for seed in range(3)], work, **how)
    assert len(lines_of(path)) == 3
    run_missing(path, [Run("a", 1)], lambda cell: {"value": 1}, again=True, **how)
    assert "error" not in read(path, Run)[Run("a", 1)]  # the last line counts


def test_cells_run_in_several_processes(tmp_path, capsys):
    path = tmp_path / "results.jsonl"

    def work(cell):
        import os

        return {"process": os.getpid(), "threads": __import__("torch").get_num_threads()}

    run_missing(path, [Run("a", seed) for seed in range(4)], work, tell=str, processes=2, progress=False)
    results = read(path, Run)
    assert results.keys() == {Run("a", seed) for seed in range(4)}
    assert all(result["threads"] == 1 and result["process"] != os.getpid() for result in results.values())


def test_ctrl_c_in_a_fit_ends_the_grid_and_leaves_no_result_that_was_cut_short(tmp_path):
    import signal

    path = tmp_path / "results.jsonl"
    first, second = Cell("jura", 12, "mean-field", 2, 0), Cell("jura", 12, "mean-field", 2, 1)

    def work(cell):
        if cell == second:
            signal.raise_signal(signal.SIGINT)  # from now on a fit ends early, at what it has reached
        return Accuracy(tmp_path, is_quick=True)(cell)

    with pytest.raises(KeyboardInterrupt):
        run_missing(path, [first, second], work, tell=str, progress=False)
    assert list(read(path, Cell)) == [first]


def test_the_threads_are_given_back():
    before = torch.get_num_threads()
    run_cell(Run("a", 0), lambda cell: {"value": 1 / 0})
    assert torch.get_num_threads() == before


def test_names_that_are_not_known_are_refused_and_others_choose_cells():
    grid = EXPERIMENTS["table1"].grid
    with pytest.raises(SystemExit, match=r"--only takes names out of equity, jura, pm25, .*; got juro"):
        grid(1, is_quick=False, only=["juro"])
    assert {cell.method for cell in grid(1, is_quick=False, only=["jura"])} == {
        "kronecker",
        "mean-field",
        "mixture",
        "collapsed",
        "GPRNRegressor()",
        "IndependentGP",
        "TrainingMean",
    }
    chosen = grid(2, is_quick=False, only=["jura", "equity", "mixture"])
    assert [str(cell) for cell in chosen] == [
        "jura 249, mixture K = 2, repeat 0",
        "jura 249, mixture K = 2, repeat 1",
        "equity 200, mixture K = 2, repeat 0",
        "equity 200, mixture K = 2, repeat 1",
    ]


def test_data_that_are_not_here_are_left_out_with_a_message(tmp_path, capsys, monkeypatch):
    def absent(folder):
        raise FileNotFoundError("no such file")

    for name, source in SOURCES.items():
        monkeypatch.setitem(SOURCES, name, type(source)(name, absent, 3))
    with pytest.raises(SystemExit, match="has no results of table1"):
        reproduce("table1", "--results", tmp_path / "results.jsonl")
    told = capsys.readouterr().out
    assert "jura is left out: its data are not here; set PYRO_GPRN_DATA to their folder" in told
    assert "0 cells to run" in told


def test_the_grids_are_those_of_the_paper():
    table, first, second = (EXPERIMENTS[name].grid(5, is_quick=False) for name in ("table1", "figure1", "figure2"))
    assert {(cell.data, cell.n_train, cell.n_latents) for cell in table if cell.n_latents} == {
        ("jura", 249, 2),
        ("equity", 200, 2),
        ("pm25", 256, 2),
    }
    assert {cell.n_latents for cell in first} == {2, 5, 15, 50}
    assert {(cell.data, cell.n_train) for cell in second} == {
        ("cantilever", 128),
        ("cantilever", 256),
        ("gene expression", 128),
        ("gene expression", 178),
        ("pressure", 64),
    }
    assert {cell.n_latents for cell in second if cell.data == "pressure"} == {2, 5, 10, None}
    assert not any(cell.method == "HOGP" for cell in second if cell.data == "pressure")
    assert QUICK_SOURCES.keys() == SOURCES.keys()


@pytest.mark.usefixtures("published_files")
def test_published_sets_have_rows_enough_for_their_grids(tmp_path):
    for name in ("table1", "figure2"):
        for block in EXPERIMENTS[name].blocks:
            if block.data not in ("cantilever", "pressure"):
                split = SOURCES[block.data].split(block.n_train, 0, tmp_path)
                assert (len(split.X_train), len(split.X_test)) == (block.n_train, SOURCES[block.data].n_test)


def test_every_repeat_has_a_split_of_its_own_and_every_method_the_same_splits(tmp_path):
    source = QUICK_SOURCES["jura"]
    first, again, other = (source.split(12, seed, tmp_path) for seed in (0, 0, 1))
    torch.testing.assert_close(first.X_test, again.X_test)
    assert not torch.equal(first.X_test, other.X_test)


def test_scores_are_over_the_outputs_that_are_known_in_units_and_standardised():
    Y = torch.tensor([[0.0, 4.0], [2.0, 4.0]], dtype=torch.float64)  # the means are 1 and 4
    method = TrainingMean(seed=0).fit(torch.zeros(2, 1), Y)
    truth = torch.tensor([[1.0, 6.0], [float("nan"), 9.0], [2.0, 4.0]], dtype=torch.float64)
    centre, scale = torch.tensor([1.0, 4.0]), torch.tensor([1.0, 4.0])
    found = score(method, torch.zeros(3, 1), truth, centre, scale)
    assert found["mae_in_units"] == pytest.approx((0 + 2 + 5 + 1 + 0) / 5)
    assert found["mae"] == pytest.approx((0 + 0.5 + 1.25 + 1 + 0) / 5)
    assert found["mae_of_outputs"] == pytest.approx([0.5, 7 / 3])
    known = truth[~truth.isnan()]
    errors = torch.tensor([0.0, 2.0, 5.0, 1.0, 0.0], dtype=torch.float64)
    assert found["nrmse"] == pytest.approx((errors.square().mean().sqrt() / known.std(correction=0)).item())
    assert found["rmse"] == pytest.approx(1.0)


def test_speed_counts_steps_without_the_first_ones(tmp_path):
    result = Speed(tmp_path, is_quick=True)(Cell("pm25", 12, "kronecker", 2, 0))
    assert result["steps"] == 2
    assert result["seconds_a_step"] > 0


def test_every_method_names_an_estimator_and_networks_take_their_settings():
    for method in METHODS.values():
        if method.estimator == "GPRNRegressor":
            arguments = method.arguments(None if method.latents is None else 2, 3)
            assert method.make(arguments).get_params().items() >= arguments.items()
    assert METHODS["GPRNRegressor()"].arguments(None, 3) == {"seed": 3}


def test_a_method_that_folds_is_given_the_fold_of_the_data_and_its_result_shows_it(tmp_path):
    assert [method.name for method in METHODS.values() if method.folds] == ["HOGP"]
    result = Accuracy(tmp_path, is_quick=True)(Cell("gene expression", 12, "HOGP", 2, 0))
    assert result["settings"] == {"n_latent_dims": 2, "fold": (3, 4), "seed": 0, "steps": 3}
    other = Accuracy(tmp_path, is_quick=True)(Cell("gene expression", 12, "PCA-GP", 2, 0))
    assert "fold" not in other["settings"]
    assert SOURCES["gene expression"].fold == (36, 109)


def test_table_1_compares_on_the_same_splits_only():
    def result(cell, mae):
        scores = {"mae": mae, "nlpd": 1.0, "crps": 0.3, "coverage": 0.95, "mae_of_outputs": [mae, 1.0, 2.0]}
        return {"repeat": cell.repeat, "scores": scores, "cpu_seconds": 1.0}

    errors = {"kronecker": [0.5, 1.0, 3.0], "mixture": [0.55, 1.3]}
    cells = {Cell("jura", 249, name, 2, n): mae for name, each in errors.items() for n, mae in enumerate(each)}
    results = {cell: result(cell, mae) for cell, mae in cells.items()}
    results[Cell("jura", 249, "mixture", 2, 2)] = {"repeat": 2, "error": "MemoryError: too much"}
    told = EXPERIMENTS["table1"].report(results)
    assert "| jura | mixture | 2 | 0.925 ± 0.5 | +20.0 ± 10.0 % | NPV 0.6088 ± 9e-06 |" in told  # +10 % and +30 %
    assert "| mixture | 0.925 ± 0.5 | 1 ± 0 | 2 ± 0 |" in told
    assert "- jura 249, mixture K = 2, repeat 2: MemoryError: too much" in told


def test_a_page_without_a_place_for_tables_is_refused_and_left_as_it_is(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no place")
    scores = {"mae_in_units": 1.2, "mae": 0.6, "nlpd": 1.0, "crps": 0.3, "coverage": 0.95}
    result = {"data": "pm25", "n_train": 256, "method": "mean-field", "n_latents": 2, "repeat": 0}
    append(tmp_path / "table1.jsonl", {**result, "scores": scores, "cpu_seconds": 1.0})
    with pytest.raises(ValueError, match="must have the lines <!-- table1 --> and <!-- end of table1 -->"):
        cli.main(["reproduce", "page", "--page", str(page), "--results", str(tmp_path)])
    assert page.read_text() == "no place"


def test_the_page_of_results_is_the_one_that_the_files_of_results_make(tmp_path):
    docs = Path(__file__).parents[1] / "docs"
    page = tmp_path / "paper-results.md"
    page.write_text((docs / "paper-results.md").read_text(encoding="utf-8"), encoding="utf-8")
    assert "table1" in write_page(page, docs / "results")
    assert page.read_text(encoding="utf-8") == (docs / "paper-results.md").read_text(encoding="utf-8")
