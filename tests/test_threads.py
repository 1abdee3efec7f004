"""Fits and predictions in threads of one process give what they give one after another, and leave no trace."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyro
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroSample
from quick import small

from pyro_gprn.estimator.selection import Selection

X = np.random.default_rng(0).uniform(size=(14, 2))
Y = np.sin(3 * X[:, :1] + np.arange(12)) + X[:, 1:]
X_NEW = X[:5] + 0.05


pytestmark = pytest.mark.usefixtures("quick")


def make(**settings):
    return small(**{"steps": 12} | settings)


def kernel_with_prior():
    kernel = kernels.RBF(2)
    kernel.variance = PyroSample(dist.LogNormal(0.0, 0.1))
    kernel.autoguide("variance", dist.Delta)
    kernel.variance_map = torch.tensor(1.0)
    return kernel


SETTINGS = [
    {},
    {"seed": 1, "restarts": 2, "steps": 6},
    {"inference": "kronecker"},
    {"inference": "mean-field", "steps": 6},
    {"inference": "mixture", "steps": 6},
    {"kernel_w": kernel_with_prior(), "steps": 6},
]


def everything(r):
    """Whatever an estimator says of new inputs."""
    mean, std = r.predict(X_NEW, return_std=True)
    return [mean, std, r.sample(X_NEW, 3), r.log_predictive_density(X_NEW, mean + 0.1)]


def fit_and_predict(settings):
    r = make(**settings).fit(X, Y)
    return [*everything(r), r.losses_, r.elbo_]


def side_by_side(function, arguments):
    """What a function returns for each argument, all of them at once."""
    together = threading.Barrier(len(arguments))

    def run(argument):
        together.wait()
        return function(argument)

    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(run, arguments))


def check_equal(results, expected):
    for ours, theirs in zip(results, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def one_after_another():
    return [fit_and_predict(settings) for settings in SETTINGS]


@pytest.mark.parametrize("attempt", range(2))
def test_fits_side_by_side_give_what_they_give_one_after_another(one_after_another, attempt):
    check_equal(side_by_side(fit_and_predict, SETTINGS), one_after_another)


def test_predictions_side_by_side_give_what_they_give_one_after_another():
    fitted = [make(steps=2, **settings).fit(X, Y) for settings in ({}, {"inference": "kronecker"}, {"seed": 1})]
    expected = [everything(r) for r in fitted]
    for _ in range(5):
        check_equal(side_by_side(everything, fitted), expected)
    check_equal(side_by_side(everything, [fitted[0]] * 4), [expected[0]] * 4)  # of one estimator, as dask's threads do


def test_a_prediction_beside_a_fit_is_what_it_is_alone(one_after_another):
    r = make(steps=2).fit(X, Y)
    expected = everything(r)

    def work(settings):
        return [everything(r) for _ in range(5)] if settings is None else fit_and_predict(settings)

    predicted, fitted = side_by_side(work, [None, SETTINGS[0]])
    check_equal(predicted, [expected] * 5)
    check_equal([fitted], one_after_another[:1])


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings)) or "plain")
def test_a_fit_leaves_global_state_as_it_was(settings):
    pyro.param("mine", torch.tensor(3.0))
    pyro.param("kernel_w.lengthscale", torch.tensor(7.0))  # a name that is ours too
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    with poutine.trace() as seen:
        fit_and_predict(settings)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert dict(pyro.get_param_store().items()) == {"mine": 3.0, "kernel_w.lengthscale": 7.0}
    assert list(seen.trace.nodes) == []


def test_fits_in_threads_leave_global_state_as_it_was():
    pyro.param("mine", torch.tensor(3.0))
    before = torch.get_rng_state()
    side_by_side(fit_and_predict, SETTINGS[:3])
    assert torch.equal(torch.get_rng_state(), before)
    assert dict(pyro.get_param_store().items()) == {"mine": 3.0}


@pytest.fixture
def _two_threads():
    """Two threads of torch's, also where one was asked for."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_each_thread_has_its_own_number_of_torch_threads_back():
    """torch counts threads by thread: who ends last cannot put back the number of who ended first."""
    other_is_inside, first_is_over = threading.Event(), threading.Event()
    inside, after = [], []

    def other():
        torch.get_num_threads()

        def wait(step, bound):
            inside.append(torch.get_num_threads())
            other_is_inside.set()
            first_is_over.wait(60)

        make(steps=1).fit(X, Y, callback=wait)
        after.append(torch.get_num_threads())

    thread = threading.Thread(target=other)

    def start_other(step, bound):
        inside.append(torch.get_num_threads())
        thread.start()
        other_is_inside.wait(60)

    try:
        make(steps=1).fit(X, Y, callback=start_other)
    finally:
        first_is_over.set()
    after.append(torch.get_num_threads())
    thread.join(60)
    assert inside == [1, 1]
    assert after == [2, 2]


@pytest.mark.usefixtures("_two_threads")
def test_folds_are_fitted_and_predicted_on_one_thread_of_torch(monkeypatch):
    """Beside another busy process two threads made what folds predict take ten times as long."""
    seen, score = [], Selection._score

    def watched(self, name, fold):
        seen.append(torch.get_num_threads())
        return score(self, name, fold)

    monkeypatch.setattr(Selection, "_score", watched)
    make(selection=True).fit(X, Y)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
