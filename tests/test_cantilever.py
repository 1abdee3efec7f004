import math

import numpy as np
import pytest
import torch

from pyro_gprn.datasets import SimpOptions, design_cantilever, simulate_cantilever
from pyro_gprn.datasets.simulated import cantilever
from pyro_gprn.datasets.simulated.elasticity import Plate
from pyro_gprn.datasets.simulated.topology import DensityFilter, SensitivityFilter, compliance_and_gradient, optimise

GRID = (8, 16)


def clamped_left(height, width):
    held = np.zeros((height + 1, width + 1, 2), dtype=bool)
    held[:, 0] = True
    return held


def random_problem(height=5, width=7):
    generator = np.random.default_rng(0)
    held = clamped_left(height, width)
    return Plate(held), generator.standard_normal(held.shape), generator.uniform(0.2, 1.0, (height, width))


def central_differences(function, x, step=1e-5):
    directions = step * np.eye(x.size).reshape(-1, *x.shape)
    return np.array([(function(x + h) - function(x - h)) / (2 * step) for h in directions]).reshape(x.shape)


def test_a_pulled_plate_stretches_evenly():
    held = np.zeros((5, 7, 2), dtype=bool)
    held[:, 0, 0] = held[-1, 0, 1] = True
    force = np.zeros(held.shape)
    force[:, -1, 0] = 0.3 * np.array([0.5, 1, 1, 1, 0.5])
    plate, modulus = Plate(held), np.full((4, 6), 2.0)
    displacement = plate.displacement(modulus, force)
    right, up = np.arange(7), np.arange(5)[::-1]
    np.testing.assert_allclose(displacement[..., 0], np.tile(0.15 * right, (5, 1)), atol=1e-12)
    np.testing.assert_allclose(displacement[..., 1], np.tile(-0.3 * 0.15 * up, (7, 1)).T, atol=1e-12)
    np.testing.assert_allclose(plate.von_mises_stress(modulus, displacement), 0.3)


def test_the_derivative_of_the_compliance_agrees_with_differences():
    plate, force, density = random_problem()
    _, gradient = compliance_and_gradient(plate, force, density, 3.0)
    expected = central_differences(lambda x: compliance_and_gradient(plate, force, x, 3.0)[0], density)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_the_derivatives_through_the_density_filter_agree_with_differences():
    plate, force, design = random_problem()
    smooth = DensityFilter(plate.shape, 2.4)
    _, gradient = compliance_and_gradient(plate, force, smooth.density(design), 3.0)
    expected = central_differences(lambda x: compliance_and_gradient(plate, force, smooth.density(x), 3.0)[0], design)
    np.testing.assert_allclose(smooth.gradient(design, gradient), expected, rtol=1e-4)
    expected = central_differences(lambda x: smooth.density(x).sum(), design)
    np.testing.assert_allclose(smooth.volume_gradient(), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", [DensityFilter, SensitivityFilter])
def test_a_filter_of_radius_one_changes_nothing(kind):
    _, _, design = random_problem()
    gradient = -design
    unfiltered = kind(design.shape, 1.0)
    np.testing.assert_allclose(unfiltered.density(design), design)
    np.testing.assert_allclose(unfiltered.gradient(design, gradient), gradient)


@pytest.mark.parametrize(("filtering", "published"), [("sensitivity", 216.81), ("density", 233.71)])
def test_the_half_beam_of_andreassen_et_al_has_its_published_compliance(filtering, published):
    held = np.zeros((21, 61, 2), dtype=bool)
    held[:, 0, 0] = held[-1, -1, 1] = True
    force = np.zeros(held.shape)
    force[0, 0, 1] = -1
    options = SimpOptions(volume_fraction=0.5, penalty=3, filter_radius=2.4, filtering=filtering)
    design = optimise(Plate(held), force, options)
    assert design.iterations < options.max_iterations
    assert design.compliance == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("filtering", ["sensitivity", "density"])
@pytest.mark.parametrize(("position", "angle"), [(0.5, math.pi / 2), (0.13, 0.3), (0.8, 2.0)])
def test_a_mirrored_force_gives_the_mirrored_design(position, angle, filtering):
    options = SimpOptions(filtering=filtering, volume_fraction=0.4)
    design = design_cantilever(position, angle, grid=GRID, options=options)
    mirrored = design_cantilever(1 - position, math.pi - angle, grid=GRID, options=options)
    np.testing.assert_allclose(mirrored.density, design.density[::-1], atol=1e-6)
    np.testing.assert_allclose(mirrored.stress, design.stress[::-1], atol=1e-5)
    assert mirrored.compliance == pytest.approx(design.compliance)


@pytest.mark.parametrize("filtering", ["sensitivity", "density"])
@pytest.mark.parametrize("volume_fraction", [0.2, 0.5, 0.9])
def test_a_design_uses_its_material_and_uses_it_well(volume_fraction, filtering):
    options = SimpOptions(volume_fraction=volume_fraction, filtering=filtering)
    design = design_cantilever(0.3, 1.0, grid=GRID, options=options)
    assert design.density.mean() == pytest.approx(volume_fraction, abs=1e-8)
    assert design.density.min() >= 0
    assert design.density.max() <= 1 + 1e-12
    one_step = design_cantilever(0.3, 1.0, grid=GRID, options=SimpOptions(volume_fraction, max_iterations=1))
    assert design.compliance < one_step.compliance
    void = design.density < 1e-3
    assert void.any() or volume_fraction > 0.2  # so that there are designs of which the next line says something
    assert design.stress[void].max(initial=0.0) < 1e-3  # where there is no material there is no stress


def test_runs_are_the_designs_of_their_inputs():
    X, Y, stress = simulate_cantilever(3, seed=1, grid=GRID, stress=True, progress=False)
    assert X.shape == (3, 2)
    assert Y.shape == stress.shape == (3, *GRID)
    assert Y.dtype == stress.dtype == torch.float32
    design = design_cantilever(*X[2].tolist(), grid=GRID)
    torch.testing.assert_close(Y[2], torch.from_numpy(design.density).float())
    torch.testing.assert_close(stress[2], torch.from_numpy(design.stress).float())


def test_runs_depend_on_the_seed_alone():
    first, again, other = (simulate_cantilever(2, seed, grid=GRID, progress=False) for seed in (0, 0, 1))
    assert torch.equal(first.X, again.X)
    assert torch.equal(first.Y, again.Y)
    assert not torch.equal(first.X, other.X)
    assert first.stress is None


def test_there_may_be_a_single_run(tmp_path):
    X, Y, _ = simulate_cantilever(1, grid=GRID, folder=tmp_path, progress=False)
    assert X.shape == (1, 2)
    assert Y.shape == (1, *GRID)


def test_an_interrupted_simulation_goes_on_where_it_stopped(tmp_path, monkeypatch):
    unbroken = simulate_cantilever(5, grid=GRID, progress=False)
    designs_left = iter(range(2))

    def interrupted(*arguments):
        if next(designs_left, None) is None:
            raise KeyboardInterrupt
        return optimise(*arguments)

    monkeypatch.setattr(cantilever, "optimise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate_cantilever(5, grid=GRID, folder=tmp_path, progress=False)

    designs_left = iter(range(3))  # so that one more than is missing would interrupt again
    resumed = simulate_cantilever(5, grid=GRID, folder=tmp_path, progress=False)
    assert torch.equal(resumed.X, unbroken.X)
    assert torch.equal(resumed.Y, unbroken.Y)


def test_processes_change_nothing(tmp_path):
    alone = simulate_cantilever(3, grid=GRID, stress=True, progress=False)
    together = simulate_cantilever(3, grid=GRID, stress=True, processes=2, folder=tmp_path, progress=False)
    for expected, result in zip(alone, together, strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("progress", [True, False])
def test_the_progress_bar_can_be_silenced(progress, capsys):
    simulate_cantilever(1, grid=GRID, progress=progress)
    assert ("cantilevers" in capsys.readouterr().err) == progress


def test_a_folder_of_other_runs_is_refused(tmp_path):
    simulate_cantilever(1, grid=GRID, folder=tmp_path, progress=False)
    with pytest.raises(ValueError, match="other settings"):
        simulate_cantilever(1, grid=GRID, options=SimpOptions(penalty=2), folder=tmp_path, progress=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "at least 1; got 0"),
        ({"processes": 0}, "at least 1; got 2 and 0"),
        ({"grid": (0, 4)}, r"both at least 1 element; got \(0, 4\)"),
        ({"grid": (4, 4, 4)}, r"\(height, width\)"),
    ],
)
def test_impossible_runs_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate_cantilever(**{"n": 2, "progress": False, **arguments})


@pytest.mark.parametrize(("position", "angle"), [(-0.1, 0.0), (1.1, 0.0), (math.nan, 0.0), (0.5, math.inf)])
def test_impossible_forces_are_refused(position, angle):
    with pytest.raises(ValueError, match="must be"):
        design_cantilever(position, angle, grid=GRID)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("volume_fraction", 0.0),
        ("volume_fraction", 1.0),
        ("penalty", 0.5),
        ("filter_radius", 0.9),
        ("filter_radius", math.nan),
        ("filtering", "median"),
        ("tolerance", -1.0),
        ("max_iterations", 0),
    ],
)
def test_impossible_options_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must .*; got"):
        SimpOptions(**{name: value})
