import shutil
import subprocess
import sys
import sysconfig

import numpy as np
import pytest

import pyro_gprn.experiments.cli as cli
from pyro_gprn import datasets
from pyro_gprn.datasets import simulate_cavity

SMALL = ["--grid", "8", "--frames", "2", "--final-time", "0.2", "--processes", "1", "--quiet"]


def test_the_command_is_installed():
    command = shutil.which("pyro-gprn", path=sysconfig.get_path("scripts"))
    assert command is not None, "there is no pyro-gprn beside this Python: pip install --editable ."
    listed = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "demo" in listed.stdout
    assert "simulate" in listed.stdout


def test_help_does_not_wait_for_torch():
    asked = "import sys; from pyro_gprn.experiments import cli; cli.main(['simulate', 'cavity', '--help'])"
    watched = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {asked}"
    listed = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, check=True)
    assert "--final-time" in listed.stdout
    assert listed.stdout.endswith("False\n")


def test_simulate_goes_on_where_it_was_interrupted(tmp_path, capsys):
    command = ["simulate", "cavity", "--runs", "3", "--seed", "4", "--folder", str(tmp_path / "runs"), *SMALL]
    cli.main(command)
    assert "3 runs" in capsys.readouterr().out
    made = np.load(tmp_path / "runs/runs.npy").copy()
    expected = simulate_cavity(3, 4, grid=8, frames=2, final_time=0.2, progress=False)
    np.testing.assert_array_equal(made, expected.Y)
    np.testing.assert_array_equal(np.load(tmp_path / "runs/inputs.npy"), expected.X)
    done = np.load(tmp_path / "runs/done.npy", mmap_mode="r+")
    done[1] = False  # as if it had been interrupted before the second run
    done.flush()
    runs = np.load(tmp_path / "runs/runs.npy", mmap_mode="r+")
    runs[1] = 0.0
    runs[2] = 7.0  # a mark: this run is there, and must not be made again
    runs.flush()
    cli.main(command)
    resumed = np.load(tmp_path / "runs/runs.npy")
    np.testing.assert_array_equal(resumed[:2], made[:2])
    assert (resumed[2] == 7.0).all()


def test_an_interruption_says_how_to_continue(tmp_path, monkeypatch):
    def simulate(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(datasets, "simulate_cavity", simulate)
    with pytest.raises(SystemExit, match="interrupted; the same command continues from here"):
        cli.main(["simulate", "cavity", "--folder", str(tmp_path)])


def test_simulate_cantilever_passes_its_options_on(tmp_path, monkeypatch):
    asked = {}

    def simulate(runs, seed, **settings):
        asked.update(runs=runs, seed=seed, **settings)
        (tmp_path / "beams").mkdir()
        return simulate_cavity(1, grid=4, frames=1, final_time=0.01, progress=False)

    monkeypatch.setattr(datasets, "simulate_cantilever", simulate)
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
