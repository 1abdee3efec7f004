"""A checkpoint belongs to one fit, and a program that is started again trains nothing twice."""

import numpy as np
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroSample
from quick import WITH_CHECKPOINTS, counted_fits, small

from pyro_gprn import CollapsedGPRN, fit_collapsed
from pyro_gprn.estimator import regressor

X = np.linspace(0, 1, 9)[:, None]
Y = np.sin(6 * X + np.linspace(0, 3, 5))


class Killed(Exception):
    """Stands for kill -9: nothing catches it."""


pytestmark = pytest.mark.usefixtures("quick")


def make(path, **settings):
    return small(**{"n_latents": 1, "steps": 6, "checkpoint": path} | settings)


def steps_of(r):
    """How many steps fitting takes."""
    steps = []
    r.fit(X, Y, callback=lambda step, bound: steps.append(step))
    return len(steps)


@pytest.mark.parametrize("inference", WITH_CHECKPOINTS)
@pytest.mark.parametrize("name", ["kernel_w", "kernel_f"])
@pytest.mark.parametrize("other", ["matern52", kernels.Matern52(1)], ids=["word", "kernel"])
def test_a_fit_with_another_kernel_is_another_fit(tmp_path, inference, name, other):
    first = "rbf" if isinstance(other, str) else kernels.RBF(1)  # of the same parameters
    assert steps_of(make(tmp_path / "fit", inference=inference, **{name: first})) == 6
    with pytest.raises(ValueError, match=r"checkpoint of another fit, with another .*kernels"):
        make(tmp_path / "fit", inference=inference, **{name: other}).fit(X, Y)
    assert steps_of(make(tmp_path / "fit", inference=inference, **{name: first})) == 0


def test_a_fit_with_another_prior_is_another_fit(tmp_path):
    def fit(prior):
        steps = []
        model = CollapsedGPRN(torch.from_numpy(X), 5, 1)
        model.kernel_w.kern0.lengthscale = PyroSample(prior)
        model.kernel_w.kern0.autoguide("lengthscale", dist.Delta)
        model.kernel_w.kern0.lengthscale_map = torch.tensor(0.5)
        settings = {"steps": 4, "seed": 0, "progress": False, "checkpoint": tmp_path / "fit"}
        fit_collapsed(model, torch.from_numpy(Y), callback=lambda step, bound: steps.append(step), **settings)
        return len(steps)

    assert fit(dist.LogNormal(0.0, 1.0)) == 4
    assert fit(dist.LogNormal(0.0, 1.0)) == 0
    with pytest.raises(ValueError, match="checkpoint of another fit"):
        fit(dist.LogNormal(0.0, 0.01))


@pytest.mark.parametrize("inference", WITH_CHECKPOINTS)
def test_a_warm_start_has_its_place_in_the_checkpoint_of_the_fit_that_it_goes_on_from(tmp_path, inference):
    def run_program():
        r = make(tmp_path / "fit", inference=inference, warm_start=True)
        taken, bounds = [], []
        for _ in range(3):
            taken.append(steps_of(r))
            bounds.append(r.elbo_)
        return taken, bounds, r.predict(X)

    taken, bounds, predicted = run_program()
    assert taken[:2] == [6, 6]  # the third may find the second again, if that could not better the first
    again, same_bounds, same_prediction = run_program()
    assert again == [0, 0, 0]
    assert same_bounds == bounds
    np.testing.assert_array_equal(same_prediction, predicted)
    unsaved = make(None, inference=inference, warm_start=True).fit(X, Y).fit(X, Y).fit(X, Y)
    assert unsaved.elbo_ == bounds[-1]


def test_a_program_that_is_killed_in_its_warm_start_goes_on_there(tmp_path):
    def run_program(stop_at=None):
        r, taken = make(tmp_path / "fit", warm_start=True, steps=30), []

        def count(step, bound):
            taken[-1] += 1
            if (len(taken), step) == stop_at:
                raise Killed

        for _ in range(2):
            taken.append(0)
            r.fit(X, Y, callback=count)
        return taken, r

    with pytest.raises(Killed):
        run_program(stop_at=(2, 25))
    taken, r = run_program()
    assert taken == [0, 10]  # the second was saved after 20 steps
    unbroken = make(None, warm_start=True, steps=30).fit(X, Y).fit(X, Y)
    assert r.elbo_ == unbroken.elbo_
    np.testing.assert_array_equal(r.predict(X), unbroken.predict(X))


def test_a_warm_start_from_another_fit_is_refused_by_its_checkpoint(tmp_path):
    make(tmp_path / "fit", steps=3).fit(X, Y)
    r = make(None, warm_start=True).fit(X, Y)
    with pytest.raises(ValueError, match="checkpoint of another fit"):
        r.set_params(checkpoint=tmp_path / "fit").fit(X, Y)


def kill():
    raise Killed


@pytest.fixture
def fits():
    with counted_fits(candidates=(1, 2), happens=kill) as counted:
        yield counted


def test_a_search_for_the_number_of_functions_that_is_over_fits_no_fold_again(tmp_path, fits):
    first = make(tmp_path / "fit", n_latents="auto").fit(X, Y)
    assert fits[:2] == [1, 2]
    assert len(fits) > 5
    fits.clear()
    again = make(tmp_path / "fit", n_latents="auto")
    assert steps_of(again) == 0
    assert fits == [first.n_latents_]  # which was over too
    assert again.latent_scores_ == first.latent_scores_
    assert again.elbo_ == first.elbo_
    with pytest.raises(ValueError, match=r"checkpoint of another fit, with another .*kernels"):
        make(tmp_path / "fit", n_latents="auto", kernel_w="matern32").fit(X, Y)


def test_scores_of_another_way_of_scoring_are_not_compared(tmp_path, fits, monkeypatch):
    fits.happens_at = 2
    with pytest.raises(Killed):
        make(tmp_path / "fit", n_latents="auto").fit(X, Y)
    monkeypatch.setattr(regressor, "SCORING", 0)
    with pytest.raises(ValueError, match="checkpoint of another fit, with another scoring"):
        make(tmp_path / "fit", n_latents="auto").fit(X, Y)


@pytest.mark.parametrize(("stop_at", "known"), [(1, 0), (2, 2), (4, 4)])
def test_a_search_that_was_killed_goes_on_with_the_first_unfinished_fold(tmp_path, fits, stop_at, known):
    unbroken = make(None, n_latents="auto").fit(X, Y)
    all_fits = list(fits)
    fits.clear()
    fits.happens_at = stop_at
    with pytest.raises(Killed):
        make(tmp_path / "fit", n_latents="auto").fit(X, Y)
    fits.clear()
    fits.happens_at = None
    resumed = make(tmp_path / "fit", n_latents="auto").fit(X, Y)
    assert fits == all_fits[known:]
    assert resumed.latent_scores_ == unbroken.latent_scores_
    np.testing.assert_array_equal(resumed.predict(X), unbroken.predict(X))
