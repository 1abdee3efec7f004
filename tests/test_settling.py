"""The end of a training, where L-BFGS-B goes on from where Adam has come to rest."""

import math
import signal

import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample

from pyro_gprn import CollapsedGPRN, fit_collapsed
from pyro_gprn.collapsed import settling
from pyro_gprn.collapsed.trainee import CollapsedTrainee
from pyro_gprn.pyro_state import new_generator

HOW = {"steps": 60, "seed": 0, "progress": False, "starts": ["independent"]}


def layers(n_rows=15, noise=0.0):
    """Boundary layers of different thickness, with noise or without."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n_rows, 2, generator=generator, dtype=torch.float64)
    thickness = 0.1 + 0.3 * X[:, :1]
    Y = torch.exp(-torch.linspace(0, 1, 40, dtype=torch.float64) / thickness) * (1 + X[:, 1:])
    Y = (Y - Y.mean(0)) / Y.std()
    return X, Y + noise * torch.randn(Y.shape, generator=generator, dtype=torch.float64)


def network(X, **settings):
    return CollapsedGPRN(X, 40, 2, effective_outputs="auto", **settings)


def fitted(X, Y, **settings):
    model = network(X)
    return model, fit_collapsed(model, Y, **HOW | settings)


@pytest.fixture
def counted(monkeypatch):
    """How many steps of L-BFGS-B each round may take."""
    rounds, run = [], settling._run
    monkeypatch.setattr(settling, "_run", lambda network, steps: rounds.append(steps) or run(network, steps))
    return rounds


@pytest.fixture
def unsettled(monkeypatch):
    """Makes fits without it."""
    return lambda: monkeypatch.setattr(settling, "ROUNDS", 0)


def test_the_bound_of_few_noise_free_runs_gains_by_it(counted, unsettled):
    X, Y = layers()
    bound = fitted(X, Y)[1].bound
    assert len(counted) > 0
    assert set(counted) == {3}  # a twentieth of the steps
    unsettled()
    assert bound > fitted(X, Y)[1].bound + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_never_ends_below_where_it_began(monkeypatch, dtype):
    X, Y = layers()
    model = network(X.to(dtype))
    fit_collapsed(model, Y.to(dtype), **HOW)
    trainee = CollapsedTrainee(model, model.statistics(Y), 0.01, new_generator(0))
    before = trainee.evaluate()
    monkeypatch.setattr(settling, "LEAST_GAIN", -math.inf)
    monkeypatch.setattr(settling, "DRAWS", 2)  # which the mean learns to suit
    settling.settle(trainee, 800, before)
    assert trainee.evaluate() >= before


def test_the_row_covariance_is_held_while_draws_are_fixed():
    X, Y = layers()
    model = network(X)
    fit_collapsed(model, Y, **HOW)
    trainee = CollapsedTrainee(model, model.statistics(Y), 0.01, new_generator(0))
    trainee.bound_by(trainee.antithetic(4)).backward()
    assert trainee.guide.v_loc.grad.abs().max() > 0
    assert model.noise_y_unconstrained.grad.abs() > 0
    assert trainee.guide.v_scale_row_unconstrained.grad is None
    assert trainee.guide.v_scale_col_unconstrained.grad is None


@pytest.mark.parametrize(
    ("noise", "settings"),
    [(0.3, {}), (0.0, {"steps": 19}), (0.0, {"posterior": "point"}), (0.0, {"posterior": "laplace"})],
    ids=["noisy", "few steps", "point", "laplace"],
)
def test_where_there_is_nothing_to_settle_no_time_is_spent(counted, noise, settings):
    fitted(*layers(noise=noise), **settings)
    assert counted == []


def test_outputs_with_a_kernel_each_are_left_to_adam(counted):
    X, Y = layers()
    fit_collapsed(CollapsedGPRN(X, 3, 2, own_kernels=True), Y[:, ::15], **HOW)
    assert counted == []


def test_hyperparameters_with_a_posterior_are_left_to_adam(counted):
    X, Y = layers()
    model = network(X)
    model.noise_y = PyroSample(dist.LogNormal(-5.0, 1.0))
    model.autoguide("noise_y", dist.Normal)
    assert math.isfinite(fit_collapsed(model, Y, **HOW).bound)
    assert counted == []


def test_ctrl_c_keeps_the_best_that_was_met(monkeypatch, unsettled):
    X, Y = layers()
    bound_by, calls = CollapsedTrainee.bound_by, []

    def interrupt(self, white):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return bound_by(self, white)

    monkeypatch.setattr(CollapsedTrainee, "bound_by", interrupt)
    with pytest.warns(UserWarning, match="interrupted while it settled"):
        bound = fitted(X, Y)[1].bound
    assert len(calls) == 4
    unsettled()
    assert bound >= fitted(X, Y)[1].bound


def test_a_fit_that_was_killed_ends_where_it_would_have(tmp_path, counted):
    X, Y = layers()

    class Killed(Exception):
        pass

    def kill(step, bound):
        if step == 45:
            raise Killed

    with pytest.raises(Killed):
        fitted(X, Y, checkpoint=tmp_path / "fit", callback=kill)
    assert counted == []
    model, resumed = fitted(X, Y, checkpoint=tmp_path / "fit")
    assert len(counted) > 0
    other, unbroken = fitted(X, Y)
    assert resumed.bound == unbroken.bound
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
