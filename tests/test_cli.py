import numpy as np
import pytest

import pyro_gprn.experiments.cli as cli
from pyro_gprn.datasets import simulate_cavity

SMALL = ["--grid", "8", "--frames", "2", "--final-time", "0.2", "--processes", "1", "--quiet"]


def test_simulate_goes_on_where_it_was_interrupted(tmp_path, capsys, monkeypatch):
    command = ["simulate", "cavity", "--runs", "3", "--seed", "4", "--folder", str(tmp_path / "runs"), *SMALL]
    cli.main(command)
    assert "3 runs" in capsys.readouterr().out
    made = np.load(tmp_path / "runs/runs.npy").copy()
    expected = simulate_cavity(3, 4, grid=8, frames=2, final_time=0.2, progress=False)
    np.testing.assert_array_equal(made, expected.Y)
    np.testing.assert_array_equal(np.load(tmp_path / "runs/inputs.npy"), expected.X)
    done = np.load(tmp_path / "runs/done.npy", mmap_mode="r+")
    done[1] = False  # as if it had been stopped before the second run
    done.flush()
    runs = np.load(tmp_path / "runs/runs.npy", mmap_mode="r+")
    runs[1] = 0.0
    runs.flush()
    cli.main(command)
    np.testing.assert_array_equal(np.load(tmp_path / "runs/runs.npy"), made)


def test_simulate_cantilever(tmp_path, monkeypatch):
    asked = {}

    def simulate(runs, seed, **settings):
        asked.update(runs=runs, seed=seed, **settings)
        (tmp_path / "beams").mkdir()
        return simulate_cavity(1, grid=4, frames=1, final_time=0.01, progress=False)

    monkeypatch.setattr(cli, "simulate_cantilever", simulate)
    cli.main(["simulate", "cantilever", "--folder", str(tmp_path / "beams"), "--stress", "--processes", "2"])
    assert asked == {
        "runs": 356,
        "seed": 0,
        "stress": True,
        "folder": tmp_path / "beams",
        "processes": 2,
        "progress": True,
    }


def test_without_a_command_there_is_help(capsys):
    with pytest.raises(SystemExit):
        cli.main([])
    assert "demo" in capsys.readouterr().err
