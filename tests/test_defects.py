"""Defects of the past, each with a property that did not hold: files, densities, names, seeds, pictures of models."""

import copy
import dataclasses
import math
import os

import numpy as np
import pandas as pd
import pyro.contrib.gp.kernels as kernels
import pyro.distributions as dist
import pytest
import torch
from quick import small
from sklearn.exceptions import NotFittedError

from pyro_gprn import CollapsedGPRN, CollapsedGuide, GPRNRegressor, posterior_predictive
from pyro_gprn.archive import ArchiveError, read_archive, write_archive
from pyro_gprn.estimator.inference import INFERENCES
from pyro_gprn.network.kernels import kernel_words
from pyro_gprn.outputs.selection import OutputSelection

X = np.random.default_rng(0).uniform(size=(10, 2))
Y = np.sin(3 * X[:, :1] + np.arange(4)) + X[:, 1:]
X_NEW = X[:3] + 0.05


pytestmark = pytest.mark.usefixtures("quick")


def make(**settings):
    return small(**{"n_latents": 1, "steps": 3} | settings)


@pytest.fixture(scope="module")
def fitted():
    return make().fit(X, Y)


# Files


@pytest.mark.parametrize("inference", INFERENCES)
def test_a_loaded_estimator_is_fitted_again_as_the_saved_one_is(tmp_path, inference):
    settings = {
        "kernel_w": kernels.Sum(kernels.Matern32(2, lengthscale=torch.tensor(0.3)), kernels.RBF(1, active_dims=[1])),
        "kernel_f": kernels.Matern52(2, variance=torch.tensor(0.7)),
    }
    if INFERENCES[inference].has_constant_weights:  # whose kernel nobody chooses
        del settings["kernel_w"]
    r = make(inference=inference, **settings).fit(X, Y)
    r.save(tmp_path / "model")
    again = GPRNRegressor.load(tmp_path / "model")
    for name in settings:
        assert kernel_words(getattr(again, name)) == kernel_words(settings[name])
        for key, value in settings[name].state_dict().items():
            torch.testing.assert_close(getattr(again, name).state_dict()[key], value, check_dtype=False)
    more = Y + 0.1 * X[:, :1]
    r.fit(X, more)
    again.fit(X, more)
    for name in settings:
        assert kernel_words(getattr(again.model_, name)) == kernel_words(getattr(r.model_, name))
    assert again.elbo_ == r.elbo_
    np.testing.assert_array_equal(again.predict(X_NEW), r.predict(X_NEW))


@pytest.fixture(scope="module")
def tree(fitted, tmp_path_factory):
    """What a file holds of a fitted estimator."""
    path = tmp_path_factory.mktemp("saved") / "model"
    fitted.save(path)
    return read_archive(path, "regressor")


@pytest.fixture
def edit(tree, tmp_path, monkeypatch):
    """Writes a file of a fitted estimator that was changed by a function."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of files, none to be kept

    def edited(change):
        changed = copy.deepcopy(tree)
        change(changed)
        write_archive(tmp_path / "model", "regressor", changed)
        return tmp_path / "model"

    return edited


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_file_of_a_gpu_loads_without_one(fitted, edit):
    again = GPRNRegressor.load(edit(lambda tree: tree["settings"].update(device="cuda")))
    np.testing.assert_array_equal(again.predict(X_NEW), fitted.predict(X_NEW))
    again.fit(X, Y)  # on this machine too
    np.testing.assert_array_equal(
        GPRNRegressor.load(edit(lambda tree: None), device="cpu").predict(X_NEW), fitted.predict(X_NEW)
    )


OPTIONAL = {
    "kernel_evidence",
    "present",
    "training_identity",
    "kernel_settings",
    "output_scales",
    "jitter",
    "selection",
    "widening",
    "inference",
    "inducing",
    "lazy",
}  # of files that were written before there were these
WRONG = [None, -1.5, "word", [1, "a"], {"a": 1}, torch.ones(2, 2)]


def test_a_file_that_lacks_something_is_damaged(fitted, tree, edit):
    for name in sorted(tree.keys() - OPTIONAL - {"Y", "digest"}):
        with pytest.raises(ArchiveError, match=f"damaged: it has no '{name}'"):
            GPRNRegressor.load(edit(lambda tree, name=name: tree.pop(name)))
    for part in ("settings", "scaling", "template", "kernels"):
        for name in sorted(tree[part]):
            try:
                again = GPRNRegressor.load(edit(lambda tree, part=part, name=name: tree[part].pop(name)))
            except ArchiveError:
                continue
            np.testing.assert_array_equal(again.predict(X_NEW), fitted.predict(X_NEW))  # it can do without


def is_refused_or_harmless(path, expected):
    """Whether a file is damaged, or else predicts as if it were whole; any other error passes through."""
    try:
        again = GPRNRegressor.load(path)
    except ArchiveError:
        return True
    return np.array_equal(again.predict(X_NEW), expected)


def test_a_file_with_something_of_the_wrong_type_is_damaged(fitted, tree, edit):
    expected, surprises = fitted.predict(X_NEW), {}
    for name in sorted(tree):
        for wrong in WRONG:
            path = edit(lambda tree, name=name, wrong=wrong: tree.update({name: wrong}))
            try:
                harmless = is_refused_or_harmless(path, expected)
            except Exception as error:
                surprises.setdefault(name, []).append((wrong, repr(error)[:80]))
            else:
                if not harmless:
                    surprises.setdefault(name, []).append((wrong, "predicts something else"))
    assert not surprises, "\n".join(f"{name}: {each}" for name, each in surprises.items())


EDITS = {
    "unknown setting": lambda tree: tree["settings"].update(colour="red"),
    "unknown inference": lambda tree: tree["settings"].update(inference="exact"),
    "impossible device": lambda tree: tree["settings"].update(device=[1]),
    "another number of functions": lambda tree: tree.update(n_latents=3),
    "another shape of outputs": lambda tree: tree.update(output_shape=[2, 5]),
    "losses in words": lambda tree: tree.update(losses="none"),
    "kernel of columns that are not there": lambda tree: tree["kernels"].update(kernel_w={"rbf": [0, 7]}),
    "sum of one": lambda tree: tree["kernels"].update(kernel_w={"sum": [1.0]}),
    "kernel in words": lambda tree: tree["kernels"].update(kernel_w="rbf"),
    "fewer inputs": lambda tree: tree["model"].update(X=torch.ones(4, 2)),
    "unknown inputs": lambda tree: tree["model"].update(X=torch.full((10, 2), torch.nan)),
    "empty guide": lambda tree: tree["guide"].clear(),
    "fewer means": lambda tree: tree["scaling"].update(y_mean=torch.ones(3)),
    "unknown library": lambda tree: tree["template"].update(library="polars"),
    "impossible type": lambda tree: tree["template"].update(dtype="object"),
    "shape of more outputs": lambda tree: tree["template"].update(shape=[7]),
}


@pytest.mark.parametrize("change", EDITS)
def test_an_edited_file_is_damaged(edit, change):
    path = edit(EDITS[change])
    with pytest.raises(ArchiveError):
        GPRNRegressor.load(path)


# Densities


def test_no_component_of_a_mixture_counts_twice():
    """With constant functions everything is known: a mixture of five Gaussians, one for each draw."""
    inputs, at = torch.from_numpy(X), torch.from_numpy(X_NEW)
    outputs, y = torch.from_numpy(Y), torch.from_numpy(Y[:3] + 0.3)
    model = CollapsedGPRN(inputs, 4, 1, kernel_f=kernels.Constant(2), noise_f=1e-7, noise_y=0.3)
    v = torch.zeros(5, 10, 1, dtype=torch.float64)
    v[:, 0, 0] = torch.tensor([0.3, 0.7, 1.0, 2.0, 4.0])
    densities = []
    with torch.no_grad():
        for f in v[:, 0, 0]:
            C = f**2 * model.kernel_w(inputs) + 0.09 * torch.eye(10, dtype=torch.float64)
            k = f**2 * model.kernel_w(at, inputs)
            variance = f**2 * model.kernel_w(at).diagonal() - (k * torch.linalg.solve(C, k.mT).mT).sum(1) + 0.09
            densities.append(dist.Normal(k @ torch.linalg.solve(C, outputs), variance.sqrt()[:, None]).log_prob(y))
    expected = torch.stack(densities).logsumexp(0) - math.log(5)
    predictive = posterior_predictive(model, {"v": v}, at, outputs)
    for n_draws in (None, 5, 6, 7, 200):
        torch.testing.assert_close(predictive.log_density(y, n_draws=n_draws), expected, rtol=1e-4, atol=1e-4)


def test_as_many_components_as_are_asked_for_are_drawn():
    inputs = torch.from_numpy(X)
    model = CollapsedGPRN(inputs, 4, 2)
    predictive = posterior_predictive(model, CollapsedGuide(model), inputs[:1], torch.from_numpy(Y), n_draws=8)
    for n_draws in (8, 20):
        means = predictive._components(n_draws, joint=False).mean(
            OutputSelection(None, model.output_shape), slice(0, 4)
        )
        assert len(means.unique(dim=0)) == n_draws


# Names and seeds


@pytest.mark.parametrize("columns", [["a", 1], [("a", 1), "b"]], ids=str)
def test_names_that_cannot_be_used_are_refused_before_the_training(monkeypatch, columns):
    def train(*arguments, **settings):
        pytest.fail("training began")

    monkeypatch.setitem(INFERENCES, "collapsed", dataclasses.replace(INFERENCES["collapsed"], fit=train))
    r = make()
    with pytest.raises(TypeError, match="Feature names are only supported if all input features have string names"):
        r.fit(pd.DataFrame(X, columns=pd.Index(columns, dtype=object, tupleize_cols=False)), Y)
    with pytest.raises(NotFittedError):
        r.predict(X_NEW)


def test_draws_are_the_same_for_the_same_seed_and_only_then(fitted):
    first = fitted.sample(X_NEW, 4)
    np.testing.assert_array_equal(fitted.sample(X_NEW, 4), first)
    np.testing.assert_array_equal(fitted.sample(X_NEW, 4, seed=0), first)
    assert not np.array_equal(fitted.sample(X_NEW, 4, seed=1), first)
    np.testing.assert_array_equal(fitted.sample(X_NEW, 4, seed=1), fitted.sample(X_NEW, 4, seed=1))
    unseeded = make(seed=None).fit(X, Y)
    assert not np.array_equal(unseeded.sample(X_NEW, 4), unseeded.sample(X_NEW, 4))
    np.testing.assert_array_equal(unseeded.sample(X_NEW, 4, seed=2), unseeded.sample(X_NEW, 4, seed=2))
