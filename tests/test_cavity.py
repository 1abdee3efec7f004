import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

from pyro_gprn.datasets import simulate_cavity
from pyro_gprn.datasets.simulated import cavity
from pyro_gprn.datasets.simulated.navier_stokes import CavityFlow, stable_step
from pyro_gprn.datasets.simulated.store import RunStore

TINY = {"grid": 12, "frames": 3, "final_time": 0.06, "step": 0.005, "progress": False}

# Ghia, Ghia and Shin (1982), with a lid at speed 1: u on the vertical centre line, v on the horizontal one
GHIA_U = {100: {0.5: -0.2058, 0.453: -0.2109}, 400: {0.281: -0.3273}}
GHIA_V = {100: {0.234: 0.1753, 0.805: -0.2453}, 400: {0.227: 0.3020, 0.859: -0.4499}}


def steady_centre_lines(reynolds, grid):
    """The functions u(½, y) and v(x, ½) of the steady flow under a lid at speed 1."""
    flow = CavityFlow(grid, np.array(1 / reynolds), np.array([1.0, 0.0, 0.0, 0.0]))
    step = stable_step(grid, 1 / reynolds, 1.0)
    velocity, change = flow.at_rest(), np.inf
    while change > 3e-4:
        before, velocity = velocity, flow.step(velocity, step)
        change = abs(velocity - before).max() / step
    centres = (np.arange(grid) + 0.5) / grid
    u, v = velocity[:, grid // 2]
    return CubicSpline(centres, u), CubicSpline(centres, v)


def check_against_ghia(reynolds, grid, tolerance):
    u, v = steady_centre_lines(reynolds, grid)
    inside = np.linspace(0.05, 0.95, 1801)
    for line, published in ((u, GHIA_U[reynolds]), (v, GHIA_V[reynolds])):
        for place, value in published.items():
            assert abs(line(place) - value) < tolerance
    assert abs(u(inside).min() - min(GHIA_U[reynolds].values())) < tolerance
    assert abs(v(inside).min() - min(GHIA_V[reynolds].values())) < tolerance
    assert abs(v(inside).max() - max(GHIA_V[reynolds].values())) < tolerance


@pytest.mark.parametrize("reynolds", [100, 400])
def test_the_steady_flow_agrees_with_the_published_one(reynolds):
    check_against_ghia(reynolds, grid=40, tolerance=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("reynolds", [100, 400])
def test_the_steady_flow_on_a_fine_grid_agrees_with_the_published_one(reynolds):
    check_against_ghia(reynolds, grid=100, tolerance=0.02)


def test_no_projection_leaves_divergence():
    left = []

    class Watched(CavityFlow):
        def project(self, velocity):
            projected = super().project(velocity)
            left.append(abs(self.divergence(projected)).max())
            return projected

    flow = Watched(100, np.array(1 / 5000), np.full(4, 10.0))
    velocity = flow.at_rest()
    for _ in range(20):
        velocity = flow.step(velocity, 1e-3)
    assert len(left) == 60
    assert max(left) < 1e-10  # of ∇·w, in which ∂u/∂x alone reaches 10 / h = 1000


def test_projecting_twice_is_projecting_once_and_keeps_the_walls_tight():
    flow = CavityFlow(16, np.array(0.01), np.ones(4))
    velocity = flow.at_rest()
    velocity[:, 1:-1] = np.random.default_rng(0).normal(size=(2, 15, 16))
    once = flow.project(velocity)
    np.testing.assert_allclose(flow.project(once), once, atol=1e-13)
    np.testing.assert_array_equal(once[:, [0, -1]], 0)


def flow_at(walls, *, time=0.5, steps=100, grid=24, reynolds=200):
    flow = CavityFlow(grid, np.array(1 / reynolds), np.array(walls, dtype=float))
    velocity = flow.at_rest()
    for _ in range(steps):
        velocity = flow.step(velocity, time / steps)
    return flow, velocity


def test_walls_that_mirror_each_other_give_a_flow_that_does():
    flow, velocity = flow_at([3, 3, 0, 0])  # top and bottom: y ↔ 1 − y
    np.testing.assert_allclose(velocity[0], velocity[0, :, ::-1], atol=1e-12)
    np.testing.assert_allclose(velocity[1], -velocity[1, ::-1], atol=1e-12)
    np.testing.assert_allclose(flow.pressure(velocity), flow.pressure(velocity)[:, ::-1], atol=1e-10)
    assert abs(velocity).max() > 1


def test_walls_symmetric_about_the_diagonal_give_a_flow_that_is():
    flow, velocity = flow_at([5, 2, 2, 5])  # top and right, bottom and left: x ↔ y
    np.testing.assert_allclose(velocity[0], velocity[1], atol=1e-12)
    np.testing.assert_allclose(flow.pressure(velocity), flow.pressure(velocity).T, atol=1e-10)


def test_walls_turned_by_a_quarter_turn_the_flow():
    # anticlockwise: the top wall, moving to the right, becomes the left one, moving upwards; and so on
    top, bottom, left, right = 4, 1, 3, 2
    flow, velocity = flow_at([top, bottom, left, right])
    turned_flow, turned = flow_at([-right, -left, top, bottom])
    np.testing.assert_allclose(
        turned_flow.pressure(turned), np.rot90(flow.pressure(velocity), k=1, axes=(0, 1)), atol=1e-10
    )


def convergence_order(walls, time):
    """The order with which the pressure converges, from time steps Δt, Δt/2 and Δt/4."""
    runs = [flow_at(walls, time=time, steps=steps) for steps in (50, 100, 200)]
    coarse, middle, fine = (flow.pressure(velocity) for flow, velocity in runs)
    return np.log2(abs(coarse - middle).max() / abs(middle - fine).max())


@pytest.mark.parametrize("walls", [(1, 1, 1, 1), (3, 3, 0, 0), (5, 2, 2, 5)], ids=str)
def test_the_pressure_converges_with_the_third_order_of_the_scheme(walls):
    assert convergence_order(walls, time=0.1) == pytest.approx(3, abs=0.1)


def test_where_the_flow_turns_round_the_pressure_converges_with_order_two_at_least():
    assert convergence_order((3, 1, 2, 1), time=0.5) > 2


@pytest.mark.parametrize("reynolds", [100, 5000])
@pytest.mark.parametrize("grid", [16, 64])
def test_the_stable_step_is_stable_for_the_fastest_walls(grid, reynolds):
    flow = CavityFlow(grid, np.array(1 / reynolds), np.full(4, 10.0))
    step = stable_step(grid, 1 / reynolds, 10.0)
    velocity = flow.at_rest()
    for _ in range(round(1 / step)):
        velocity = flow.step(velocity, step)
    assert 1 < abs(velocity).max() < 12


def test_pressure_is_what_keeps_the_flow_without_divergence():
    flow, velocity = flow_at([3, 1, 2, 1])
    short = 1e-7
    change = (flow.step(velocity, short) - velocity) / short
    pushed = flow.forces(velocity) - change  # ∇p, own direction first
    pressure = flow.pressure(velocity)
    np.testing.assert_allclose(pushed[0, 1:-1], np.diff(pressure, axis=0) * 24, atol=1e-4)
    np.testing.assert_allclose(pushed[1, 1:-1].T, np.diff(pressure, axis=1) * 24, atol=1e-4)


def test_the_record_has_the_shapes_and_kinds_it_promises():
    X, Y = simulate_cavity(3, **TINY)
    assert X.shape == (3, 5)
    assert X.dtype == torch.float64
    assert (X >= 0).all()
    assert (X <= 1).all()
    assert Y.shape == (3, 3, 12, 12)
    assert Y.dtype == torch.float32
    torch.testing.assert_close(Y.mean(dim=(2, 3)), torch.zeros(3, 3), atol=1e-6 * float(Y.abs().max()), rtol=0)


def test_velocity_follows_the_nearest_wall():
    _, Y = simulate_cavity(2, field="velocity", **{**TINY, "final_time": 1.0})
    assert Y.shape == (2, 3, 2, 12, 12)
    along_x, along_y = Y[:, -1, 0], Y[:, -1, 1]
    assert (along_x[:, 4:8, -1] > 0.1).all()
    assert (along_y[:, -1, 4:8] > 0.1).all()
    assert (along_x[:, 4:8, -1] > along_y[:, 4:8, -1].abs()).all()
    assert (along_y[:, -1, 4:8] > along_x[:, -1, 4:8].abs()).all()


def test_frames_are_equally_spaced_up_to_the_final_time():
    few, many = (simulate_cavity(1, **{**TINY, "frames": frames}).Y for frames in (2, 6))
    torch.testing.assert_close(few, many[:, 2::3])


def test_the_seed_decides_the_runs():
    first, again, other = (simulate_cavity(2, seed, **TINY) for seed in (1, 1, 2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first.X, other.X)
    assert not torch.equal(first.Y, other.Y)


@pytest.mark.parametrize(("batch", "processes"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_a_run_is_the_same_in_any_batch_and_process(batch, processes):
    together = simulate_cavity(5, batch=5, **TINY).Y
    torch.testing.assert_close(simulate_cavity(5, batch=batch, processes=processes, **TINY).Y, together, rtol=0, atol=0)


def test_interrupted_and_resumed_is_as_unbroken(tmp_path, monkeypatch):
    unbroken = simulate_cavity(5, **TINY)
    written = []
    whole_write = RunStore.write

    def write(store, run, values):  # is interrupted the first time at run 3
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(run)
        whole_write(store, run, values)

    monkeypatch.setattr(RunStore, "write", write)
    with pytest.raises(KeyboardInterrupt):
        simulate_cavity(5, folder=tmp_path, batch=2, **TINY)
    assert written == [0, 1, 2]

    written = []
    resumed = simulate_cavity(5, folder=tmp_path, batch=2, **TINY)
    assert written == [3, 4]
    torch.testing.assert_close(resumed, unbroken, rtol=0, atol=0)


def test_a_finished_folder_is_read_and_one_of_other_settings_refused(tmp_path, monkeypatch):
    runs = simulate_cavity(2, folder=tmp_path, **TINY)
    with pytest.raises(ValueError, match="other settings"):
        simulate_cavity(2, folder=tmp_path, **{**TINY, "step": 0.001})
    monkeypatch.setattr(cavity, "CavityFlow", None)  # any further simulation would fail
    torch.testing.assert_close(simulate_cavity(2, folder=tmp_path, **TINY), runs, rtol=0, atol=0)


def test_a_flow_that_blows_up_is_an_error_and_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(cavity, "stable_step", lambda *_: np.inf)
    settings = {"grid": 12, "frames": 2, "final_time": 100.0, "step": 0.5, "progress": False}
    with pytest.raises(FloatingPointError, match=r"runs \[0, 1\] have blown up before time 50"):
        simulate_cavity(2, folder=tmp_path, **settings)
    assert not np.load(tmp_path / "done.npy").any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be an integer, at least 1; got 0"),
        ({"n": 2.5}, "n must be an integer, at least 1; got 2.5"),
        ({"seed": -1}, "seed must be an integer, at least 0; got -1"),
        ({"grid": 3}, "grid must be an integer, at least 4; got 3"),
        ({"frames": 0}, "frames must be an integer, at least 1; got 0"),
        ({"batch": 0}, "batch must be an integer, at least 1; got 0"),
        ({"processes": -1}, "processes must be an integer, at least 1; got -1"),
        ({"final_time": 0.0}, "final_time must be positive and finite; got 0.0"),
        ({"step": float("nan")}, "step must be positive and finite; got nan"),
        ({"field": "vorticity"}, "field must be one of .*'pressure', 'velocity'.*; got 'vorticity'"),
    ],
    ids=str,
)
def test_a_bad_argument_is_an_error_that_says_so(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate_cavity(**{"n": 2, **TINY, **arguments})


def test_progress_is_shown_only_on_request(capsys):
    simulate_cavity(1, **TINY)
    assert capsys.readouterr().err == ""
    simulate_cavity(1, **{**TINY, "progress": True})
    assert "1/1" in capsys.readouterr().err
