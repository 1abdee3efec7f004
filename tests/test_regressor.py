"""The estimator: predictions, degenerate data, errors, interruption, going on."""

import copy
import signal

import numpy as np
import pytest
import torch
from quick import small
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from pyro_gprn.estimator import fitted as record
from pyro_gprn.estimator.inference import INFERENCES

pytestmark = pytest.mark.usefixtures("quick")

X = np.random.default_rng(0).uniform(size=(30, 2))
PLACES = np.linspace(0, 1, 40)


def field(inputs):
    return 3.0 + 10.0 * np.exp(-0.5 * ((PLACES - 0.3 - 0.4 * inputs[:, :1]) / (0.1 + 0.1 * inputs[:, 1:])) ** 2)


Y = field(X)
X_NEW = np.random.default_rng(1).uniform(0.1, 0.9, size=(12, 2))


def make(**settings):
    return small(**{"steps": 20} | settings)


@pytest.fixture(scope="module")
def fitted():
    return make(steps=200).fit(X, Y)


def test_predictions_are_right_and_honest(fitted):
    mean, std = fitted.predict(X_NEW, return_std=True)
    truth = field(X_NEW)
    assert mean.shape == std.shape == truth.shape
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.1 * truth.std()
    assert 0.8 < np.mean(np.abs(mean - truth) < 1.96 * std) <= 1.0
    assert fitted.score(X_NEW, truth) > 0.98
    draws = fitted.sample(X_NEW, 400, seed=0)
    assert draws.shape == (400, 12, 40)
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.2)
    np.testing.assert_allclose(draws.std(0), std, rtol=0.3, atol=0.05)


def test_the_log_density_is_that_of_the_draws_units(fitted):
    truth = field(X_NEW)
    density = fitted.log_predictive_density(X_NEW, truth)
    mean, std = fitted.predict(X_NEW, return_std=True)
    normal = -0.5 * ((truth - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    assert density.shape == truth.shape
    assert abs(np.median(density - normal)) < 0.3
    truth[0, 3] = np.nan
    density = fitted.log_predictive_density(X_NEW, truth)
    assert np.isnan(density[0, 3])
    assert np.isnan(density).sum() == 1


def test_predictions_are_the_same_again_and_in_any_company(fitted, monkeypatch):
    whole = fitted.predict(X_NEW, return_std=True)
    for first, second in zip(whole, fitted.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_array_equal(first, second)
    monkeypatch.setattr(record, "BLOCK_NUMBERS", 1)  # one row at a time
    for together, alone in zip(whole, fitted.predict(X_NEW, return_std=True), strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_same_seed_same_result_and_torch_is_left_alone():
    before = torch.get_rng_state()
    first, second = make(restarts=2).fit(X, Y), make(restarts=2).fit(X, Y)
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(first.predict(X_NEW), second.predict(X_NEW))
    np.testing.assert_array_equal(first.restart_elbos_, second.restart_elbos_)
    assert len(first.restart_elbos_) == 2
    assert first.elbo_ == first.restart_elbos_.max()
    other = make(seed=1).fit(X, Y)
    assert not np.array_equal(first.predict(X_NEW), other.predict(X_NEW))


@pytest.mark.parametrize("inference", ["collapsed", "kronecker", "mean-field", "mixture"])
@pytest.mark.parametrize("holes", [False, True])
def test_every_inference_predicts(inference, holes):
    outputs = Y[:, :6].copy()
    if holes:
        outputs[3:6, 2] = np.nan
    r = make(inference=inference, steps=60).fit(X, outputs)
    mean, std = r.predict(X_NEW, return_std=True)
    assert (std > 0).all()
    assert r.score(X_NEW, field(X_NEW)[:, :6]) > 0.5
    assert r.sample(X_NEW, 3).shape == (3, 12, 6)
    assert np.isfinite(r.log_predictive_density(X_NEW, mean)).all()
    assert 0 < len(r.losses_) <= 150
    assert np.isfinite(r.losses_).all()


def test_output_shape_of_flat_outputs():
    r = make(output_shape=(5, 8), steps=5).fit(X, Y)
    assert r.model_.output_shape == (5, 8)
    assert r.output_shape_ == (5, 8)
    assert r.predict(X_NEW).shape == (12, 40)
    cube = make(steps=5).fit(X, Y.reshape(30, 5, 8))
    assert cube.output_shape_ == (5, 8)
    assert cube.predict(X_NEW).shape == (12, 5, 8)
    assert cube.sample(X_NEW, 2).shape == (2, 12, 5, 8)
    np.testing.assert_allclose(cube.predict(X_NEW).reshape(12, 40), r.predict(X_NEW))


@pytest.mark.parametrize("standardize", [True, False, "field", "outputs"])
def test_standardisation_is_undone(standardize):
    units = np.array([1e-3, 1.0, 1e4])
    outputs = Y[:, [5, 20, 30]] * units
    r = make(standardize=standardize, steps=40).fit(1e3 * X, outputs)
    if standardize in (True, "outputs"):
        error = (r.predict(1e3 * X_NEW) - field(X_NEW)[:, [5, 20, 30]] * units) / (units * Y[:, [5, 20, 30]].std(0))
        assert np.sqrt((error**2).mean()) < 0.6
        assert r.fitted_.scaling.y_scale.shape == (3,)
    else:
        assert r.fitted_.scaling.y_scale.shape == ()
        assert np.isfinite(r.predict(1e3 * X_NEW)).all()


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (X, np.full((30, 4), 7.0)),
        (X, np.full((30, 4), 0.1, dtype=np.float32)),
        (X, np.column_stack([Y[:, :3], np.full(30, -2.5)])),
        (np.repeat(X[:10], 3, axis=0), Y),
        (X[:1], Y[:1]),
        (X, Y[:, :1]),
        (X, Y[:, 0]),
        (X[:3], Y[:3]),
        (np.ones((5, 2)), Y[:5]),
        (X[:2], Y[:2]),
    ],
    ids=[
        "constant", "constant-float32", "one-constant", "duplicates", "one-row", "one-column", "one-output", "K>N",
        "same-inputs", "two-rows",
    ],
)  # fmt: skip
@pytest.mark.parametrize("inference", ["collapsed", "kronecker", "mean-field", "mixture"])
def test_degenerate_data_work(inputs, outputs, inference):
    r = make(n_latents=5, steps=8, inference=inference).fit(inputs, outputs)
    mean, std = r.predict(X_NEW, return_std=True)
    assert np.isfinite(mean).all()
    assert (np.isfinite(std) & (std > 0)).all()
    constant = np.ptp(outputs.reshape(len(outputs), -1), axis=0) == 0
    if len(outputs) > 1 and constant.any():
        expected = np.broadcast_to(outputs[0][constant], (12, constant.sum()))
        np.testing.assert_allclose(mean[:, constant], expected, rtol=1e-6)


BAD = [
    ({}, X[:5], Y[:6], "as many rows as each other; got 5 and 6"),
    ({}, X[:0], Y[:0], r"0 sample\(s\)"),
    ({}, X, Y[:, :0], r"0 feature\(s\)"),
    ({}, X[:, 0], Y, "Expected 2D array, got 1D array"),
    ({}, np.where(X > 0.9, np.nan, X), Y, "Input X contains NaN"),
    ({}, np.where(X > 0.9, np.inf, X), Y, "Input X contains infinity"),
    ({}, X, np.where(Y > 12, np.inf, Y), "Input Y contains infinity"),
    ({}, X, np.full_like(Y, np.nan), "every number of Y is missing"),
    ({"output_shape": (5, 7)}, X, Y, r"output_shape \(5, 7\) multiplies to 35, but Y of shape \(30, 40\)"),
    ({"output_shape": (8, 5)}, X, Y.reshape(30, 5, 8), "is not that of Y"),
    ({"n_latents": 0}, X, Y, "n_latents must be 'auto' or an integer of at least 1; got 0"),
    ({"n_latents": 1.5}, X, Y, "n_latents must be 'auto' or an integer of at least 1; got 1.5"),
    ({}, X, Y.astype(object), "dtype object"),
    ({}, np.full((30, 2), "word"), Y, "could not convert string to float"),
    ({"inference": "exact"}, X, Y, f"inference must be {' or '.join(map(repr, INFERENCES))}; got 'exact'"),
    ({"kernel_w": "rbg"}, X, Y, "kernel_w must be a Pyro kernel, or names out of rbf"),
    ({"kernel_f": "rbf +"}, X, Y, "kernel_f must be a Pyro kernel, or names out of rbf"),
    ({"kernel_w": "rbf[5]"}, X, Y, "columns must lie between 0 and 1"),
    ({"steps": -1}, X, Y, "steps must be an integer of at least 1; got -1"),
    ({"restarts": 0}, X, Y, "restarts must be an integer of at least 1; got 0"),
    ({"learning_rate": -0.1}, X, Y, "learning_rate must be a positive number; got -0.1"),
    ({"seed": "now"}, X, Y, "seed must be an integer or None"),
    ({"standardize": "rows"}, X, Y, "standardize must be"),
    ({"effective_outputs": 100}, X, Y, "at most D = 40"),
    ({}, X, None, "requires y to be passed"),
    ({}, X, 3.0, "one row for each row of X"),
]


@pytest.fixture(scope="module")
def of_three():
    """A fit of three outputs."""
    return make(steps=3).fit(X, Y[:, :3])


@pytest.mark.parametrize(("settings", "inputs", "outputs", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_has_its_own_error_and_leaves_the_estimator_as_it_was(of_three, settings, inputs, outputs, message):
    r = copy.copy(of_three).set_params(**settings)
    before = dict(vars(r))
    prediction = None if "inference" in settings else r.predict(X_NEW)
    with pytest.raises(ValueError, match=message):
        r.fit(inputs, outputs)
    assert vars(r).keys() == before.keys()
    assert all(vars(r)[name] is value for name, value in before.items())
    if prediction is not None:
        np.testing.assert_array_equal(r.predict(X_NEW), prediction)


def test_bad_predictions_have_their_own_errors(fitted):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        make().predict(X)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        make().save("nowhere")
    with pytest.raises(ValueError, match="X has 3 features, but GPRNRegressor is expecting 2"):
        fitted.predict(np.ones((4, 3)))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        fitted.predict(np.full((4, 2), np.nan))
    with pytest.raises(ValueError, match=r"Y must have shape \(12, 40\) for these X; got \(12, 39\)"):
        fitted.log_predictive_density(X_NEW, field(X_NEW)[:, :39])


def test_ctrl_c_leaves_a_usable_estimator():
    def interrupt(step, bound):
        if step == 10:
            signal.raise_signal(signal.SIGINT)

    r = make(steps=500)
    with pytest.warns(UserWarning, match="interrupted after 11 steps"):
        r.fit(X, Y, callback=interrupt)
    assert len(r.losses_) == 11
    assert r.score(X_NEW, field(X_NEW)) > 0.5


@pytest.mark.parametrize("inference", ["collapsed", "kronecker", "mean-field", "mixture"])
def test_ctrl_c_before_the_first_step_leaves_independent_gps(inference, monkeypatch):
    def interrupt(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("scipy.optimize.minimize", interrupt)
    r = make(inference=inference)
    with pytest.warns(UserWarning, match="interrupted before the first step"):
        r.fit(X, Y)
    assert len(r.losses_) == 0
    assert np.isfinite(r.predict(X_NEW)).all()


def test_warm_start_goes_on():
    r = make(steps=20, warm_start=True).fit(X, Y)
    first, before = r.elbo_, r.guide_
    r.set_params(steps=100).fit(X, Y)
    assert r.guide_ is not before  # what was there before is left as it was
    assert r.elbo_ > first
    with pytest.raises(ValueError, match="warm_start goes on with the inputs of the last fit"):
        r.fit(X[:20], Y[:20])


@pytest.mark.parametrize(("first", "second"), [("collapsed", "kronecker"), ("kronecker", "mean-field")])
def test_a_warm_start_with_another_inference_is_refused(first, second):
    r = make(inference=first, warm_start=True, steps=2).fit(X, Y).set_params(inference=second)
    with pytest.raises(ValueError, match=f"warm_start cannot go on with inference='{second}' from a .* and its"):
        r.fit(X, Y)


@pytest.mark.parametrize("inference", ["collapsed", "kronecker", "mean-field", "mixture"])
def test_a_copy_is_unfitted_and_has_the_same_settings(inference):
    r = make(inference=inference, kernel_w="matern52", steps=3).fit(X, Y)
    copy = clone(r)
    assert copy.get_params() == r.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_latents_chosen_by_held_out_rows():
    r = make(n_latents="auto", steps=10).fit(X, Y)
    assert r.n_latents_ in (1, 2, 3, 5, 8)
    assert set(r.latent_scores_) == {1, 2, 3, 5, 8}
    assert r.model_.n_latents == r.n_latents_
    assert make(n_latents="auto", steps=3).fit(X[:4], Y[:4]).n_latents_ == 1  # too few to hold any out


def test_progress_is_shown_when_asked_for(capsys):
    make(steps=3).fit(X, Y)
    assert capsys.readouterr().err == ""
    make(steps=3, progress=True).fit(X, Y)
    assert "bound=" in capsys.readouterr().err


def test_callback_sees_every_step():
    seen = []
    make(steps=7).fit(X, Y, callback=lambda step, bound: seen.append((step, bound)))
    assert [step for step, _ in seen] == list(range(7))
    assert all(isinstance(bound, float) for _, bound in seen)


def test_a_constant_score():
    r = make(steps=3).fit(X, np.full((30, 2), 4.0))
    assert r.score(X, np.full((30, 2), 4.0)) == 1.0
    assert r.score(X, np.full((30, 2), 5.0)) == 0.0


def test_the_correlation_of_outputs_changes_with_the_input(fitted):
    at = fitted.output_correlation(X_NEW[:2], [0, 10, 20])
    assert at.shape == (2, 3, 3)
    np.testing.assert_allclose(np.diagonal(at, axis1=1, axis2=2), 1.0)
    assert (np.abs(at) <= 1 + 1e-12).all()
    with pytest.raises(ValueError, match="needs inference='collapsed'"):
        make(inference="kronecker", steps=2).fit(X, Y).output_correlation(X_NEW[:1], [0, 1])
