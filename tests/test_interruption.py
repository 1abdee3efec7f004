"""Ctrl-C ends a fit soon, wherever it is, at the best that was reached; a second one ends the program as usual."""

import signal
import threading

import numpy as np
import pytest
import torch
from quick import WITH_CHECKPOINTS, counted_fits, small

from pyro_gprn import CollapsedGPRN, fit_collapsed
from pyro_gprn.collapsed import independent
from pyro_gprn.estimator.inference import INFERENCES
from pyro_gprn.training import evidence
from pyro_gprn.training.interruption import noticed_interrupts

X = np.linspace(0, 1, 12)[:, None]
Y = np.sin(6 * X + np.linspace(0, 3, 5))
INTERRUPTED = pytest.mark.filterwarnings("ignore:.*interrupted:UserWarning")


def make(**settings):
    return small(**{"n_latents": 1, "steps": 6} | settings)


def press_ctrl_c(*_):
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _handler():
    """A handler of the user's own, which must be back after every fit."""

    def own(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, own)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("at", [1, 2, 9, 30])
def test_the_search_for_a_start_ends_within_one_evaluation(monkeypatch, at):
    evaluations, evaluate = [], CollapsedGPRN.output_covariance

    def interrupt(model, *arguments):
        evaluations.append(arguments)
        if len(evaluations) == at:
            press_ctrl_c()
        return evaluate(model, *arguments)

    monkeypatch.setattr(CollapsedGPRN, "output_covariance", interrupt)
    model = CollapsedGPRN(torch.from_numpy(X), 5, 1)
    with pytest.warns(UserWarning, match="interrupted before the first step"), noticed_interrupts() as interruption:
        assert np.isfinite(independent.fit_independent(model, model.statistics(torch.from_numpy(Y))))
    assert interruption.is_requested
    assert at <= len(evaluations) <= at + 1


@INTERRUPTED
@pytest.mark.parametrize("inference", WITH_CHECKPOINTS)
def test_ctrl_c_in_the_search_for_a_start_takes_no_step_and_leaves_independent_gps(monkeypatch, inference):
    evaluate = evidence.Evidence.__call__

    def interrupt(objective, values):
        press_ctrl_c()
        monkeypatch.setattr(evidence.Evidence, "__call__", evaluate)
        return evaluate(objective, values)

    monkeypatch.setattr(evidence.Evidence, "__call__", interrupt)
    r = make(inference=inference).fit(X, Y)
    assert len(r.losses_) == 0
    assert np.isfinite(r.predict(X)).all()


class Interrupting:
    """An array in whose reading somebody presses Ctrl-C."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        press_ctrl_c()
        return self.array.astype(dtype or self.array.dtype)


@INTERRUPTED
@pytest.mark.parametrize("which", ["X", "Y"])
def test_ctrl_c_while_the_data_are_read_leaves_independent_gps(which):
    data = {"X": X, "Y": Y}
    data[which] = Interrupting(data[which])
    r = make().fit(**data)
    assert len(r.losses_) == 0
    assert np.isfinite(r.predict(X)).all()


@pytest.fixture
def fits():
    with counted_fits(candidates=(1, 2, 3), happens=press_ctrl_c) as counted:
        yield counted


@INTERRUPTED
@pytest.mark.parametrize("interrupt_at", [0, 2, 3, 4])
def test_ctrl_c_in_the_search_for_the_number_of_functions_ends_everything(fits, interrupt_at):
    fits.happens_at = interrupt_at
    steps = []
    with pytest.warns(UserWarning, match="the choice between candidates was interrupted"):
        r = make(n_latents="auto").fit(X, Y, callback=lambda step, bound: steps.append(step))
    assert len(fits) == interrupt_at + 2  # the fit that was cut short, and the one that then takes no step
    assert steps == []
    assert bool(r.latent_scores_) == (interrupt_at >= 3)  # only folds to which all were fitted count
    assert r.n_latents_ in (set(r.latent_scores_) or {1})
    assert np.isfinite(r.predict(X)).all()


@INTERRUPTED
def test_a_search_that_was_interrupted_goes_on_from_its_checkpoint(fits, tmp_path):
    unbroken = make(n_latents="auto").fit(X, Y)
    all_fits = list(fits)
    fits.clear()
    fits.happens_at = 3
    make(n_latents="auto", checkpoint=tmp_path / "fit").fit(X, Y)
    fits.clear()
    fits.happens_at = None
    resumed = make(n_latents="auto", checkpoint=tmp_path / "fit").fit(X, Y)
    assert fits == all_fits[3:]  # the first fold is known
    assert resumed.latent_scores_ == unbroken.latent_scores_
    assert resumed.elbo_ == unbroken.elbo_


@INTERRUPTED
@pytest.mark.parametrize("inference", INFERENCES)
def test_a_second_ctrl_c_in_training_is_raised(inference):
    with pytest.raises(KeyboardInterrupt):
        make(inference=inference).fit(X, Y, callback=lambda step, bound: [press_ctrl_c(), press_ctrl_c()])


@INTERRUPTED
def test_a_second_ctrl_c_in_the_search_for_a_start_is_raised(monkeypatch):
    put = evidence.Evidence.put

    def interrupt_twice(objective, values):
        monkeypatch.setattr(evidence.Evidence, "put", put)
        press_ctrl_c()
        press_ctrl_c()

    monkeypatch.setattr(evidence.Evidence, "put", interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        make().fit(X, Y)


def test_the_handler_of_before_is_back_after_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        fit_collapsed(CollapsedGPRN(torch.from_numpy(X), 5, 1), torch.from_numpy(Y), steps=0)
    with pytest.raises(ZeroDivisionError):
        make().fit(X, Y, callback=lambda step, bound: 1 / 0)


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    own = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        r = make().fit(X, Y, callback=press_ctrl_c)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, own)
    assert len(r.losses_) == 6


def test_a_fit_in_another_thread_works_and_is_not_interrupted():
    expected, found = make().fit(X, Y).elbo_, []

    def fit():
        found.append(make().fit(X, Y).elbo_)

    thread = threading.Thread(target=fit)
    with noticed_interrupts() as interruption:  # the main thread's own fit, say
        thread.start()
        press_ctrl_c()
        thread.join()
    assert interruption.is_requested
    assert found == [expected]
