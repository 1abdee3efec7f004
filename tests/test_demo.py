import sys

import pytest
import torch

from pyro_gprn.datasets import simulate_plume
from pyro_gprn.experiments import demo
from pyro_gprn.experiments.cli import main


@pytest.mark.slow
def test_demo_prints_its_scores_and_draws_its_figure(tmp_path, capsys):
    figure = tmp_path / "demo.png"
    main(["demo", "--quiet", "--figure", str(figure)])
    printed = capsys.readouterr()
    scores = dict(line.rsplit(maxsplit=1) for line in printed.out.splitlines()[1:])
    assert float(scores["NRMSE, GPRN"]) <= float(scores["NRMSE, independent GPs"])
    assert float(scores["NRMSE, independent GPs"]) < float(scores["NRMSE, the mean field"])
    assert 0.90 <= float(scores["coverage of 95 % intervals"]) <= 0.99
    assert 0.75 <= float(scores["coverage where the puff is"]) <= 0.99
    assert figure.stat().st_size > 10_000
    assert str(figure.resolve()) in printed.out
    assert printed.err == ""


def test_the_plume_obeys_its_equation():
    X, Y = simulate_plume(3, seed=1, grid=64)
    # On a periodic square the Fourier coefficients of a Gaussian of variance s² around m are, relative to the first,
    # exp(−i k·m − ½ |k|² s²). Diffusion adds 2νt to s², the wind adds 0.1 to m along each axis.
    coefficients = torch.fft.fft2(Y.double())
    variance = 0.06**2 + 2 * X[:, 2].exp()
    for i, j in [(1, 0), (0, 1), (2, 3)]:
        k = 2 * torch.pi * torch.tensor([i, j], dtype=torch.float64)
        expected = torch.exp(-1j * (X[:, :2] + 0.1) @ k.to(torch.complex128) - 0.5 * k.square().sum() * variance)
        torch.testing.assert_close(coefficients[:, i, j] / coefficients[:, 0, 0], expected, rtol=0, atol=1e-6)
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
    monkeypatch.setattr(demo, "N_TRAIN", 6)
    monkeypatch.setattr(demo, "N_TEST", 2)
    with pytest.raises(ImportError, match=r"pip install 'pyro-gprn\[plot\]'"):
        main(["demo", "--steps", "1", "--quiet", "--figure", str(tmp_path / "demo.png")])
