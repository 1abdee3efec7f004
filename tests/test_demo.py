import subprocess
import sys

import pytest
import torch

from pyro_gprn.datasets import simulate_plume
from pyro_gprn.experiments.cli import main


def test_demo_prints_its_scores_and_draws_its_figure(tmp_path, capsys):
    figure = tmp_path / "demo.png"
    main(["demo", "--quiet", "--figure", str(figure)])
    printed = capsys.readouterr()
    scores = dict(line.rsplit(maxsplit=1) for line in printed.out.splitlines()[1:])
    assert float(scores["NRMSE, GPRN"]) <= float(scores["NRMSE, independent GPs"])
    assert float(scores["NRMSE, independent GPs"]) < float(scores["NRMSE, the mean field"])
    assert 0.90 <= float(scores["coverage of 95 % intervals"]) <= 0.99
    assert figure.stat().st_size > 10_000
    assert str(figure.resolve()) in printed.out
    assert printed.err == ""


def test_the_command_is_installed():
    listed = subprocess.run(
        [sys.executable, "-m", "pyro_gprn.experiments.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "demo" in listed.stdout


def test_the_plume_obeys_its_equation():
    X, Y = simulate_plume(3, seed=1, grid=64)
    # Mass is kept, and the puff ends where the wind brought it: 0.1 along each axis
    torch.testing.assert_close(
        Y.double().mean((1, 2)), torch.full((3,), 2 * torch.pi * 0.06**2).double(), rtol=1e-4, atol=0
    )
    points = torch.arange(64) / 64
    for axis in (1, 2):
        marginal = Y.sum(3 - axis)
        centre = (marginal * points).sum(1) / marginal.sum(1)
        torch.testing.assert_close(centre.double(), X[:, axis - 1] + 0.1, rtol=0, atol=5e-3)


def test_the_same_seed_gives_the_same_runs():
    for first, second in zip(simulate_plume(3, seed=1), simulate_plume(3, seed=1), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(simulate_plume(3, seed=1).X, simulate_plume(3, seed=2).X)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'pyro-gprn\[plot\]'"):
        main(["demo", "--steps", "1", "--quiet", "--figure", str(tmp_path / "demo.png")])
