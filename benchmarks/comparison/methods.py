"""The methods that are compared. Each is fitted to a task and gives a predictive, which is judged beside the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeCV

from comparison import gaussian_processes
from comparison.problem import Task
from pyro_gprn import GPRNRegressor
from pyro_gprn.baselines import IndependentGP
from pyro_gprn.experiments.judgement import Prediction
from pyro_gprn.metrics import Judged, judge_gaussian

#: A GP for each output is fitted to at most this many outputs.
MOST_OUTPUTS_ONE_BY_ONE = 20
#: Components of PCA: those of so much of the variance, at most so many.
SHARE_OF_VARIANCE, MOST_COMPONENTS = 0.999, 15
#: Rows of complete data that least squares wants for each output that it regresses on.
ROWS_PER_REGRESSOR = 2


class Predictive(Protocol):
    """A prediction of the standardised outputs at the test inputs."""

    def judge(self, truth: np.ndarray) -> Judged:
        """The prediction beside the truth, ``(N*, D)``."""
        ...


@dataclass
class Gaussian:
    """Independent Gaussians: mean ``(N*, D)``, and standard deviations that broadcast to it."""

    mean: np.ndarray
    deviation: np.ndarray

    def judge(self, truth: np.ndarray) -> Judged:
        mean, deviation, truth = (torch.tensor(each) for each in (self.mean, self.deviation, truth))
        return judge_gaussian(mean, deviation, truth)


def _anything(task: Task) -> str | None:
    """No task is too much."""
    return None


@dataclass(frozen=True)
class Method:
    """A method to compare with.

    :param fit: takes a task and the number of its split, and gives a predictive.
    :param settings: what is written beside its results.
    :param why_not: says why the method cannot do a task, or None if it can.
    """

    name: str
    fit: Callable[[Task, int], Predictive]
    settings: Mapping[str, Any] = field(default_factory=dict)
    why_not: Callable[[Task], str | None] = _anything


def network(task: Task, split: int, **settings: Any) -> Predictive:
    """The estimator with its default settings."""
    regressor = GPRNRegressor(seed=split, progress=False, **settings).fit(task.X, task.Y)
    return Prediction(regressor, task.X_test, task.centre, task.scale)


def shared_gp(task: Task, split: int, kernel: str) -> Predictive:
    """Independent GPs that share one kernel with a length-scale for each input, by their exact evidence."""
    scaling = "outputs" if task.own_units else "field"
    gps = IndependentGP(kernel, standardize=scaling).fit(task.X, task.Y)
    mean, deviation = (each.reshape(task.truth.shape) for each in gps.predict(task.X_test, return_std=True))
    return Gaussian(task.standardise(mean), deviation / task.scale)


def sklearn_gp(task: Task, split: int, **settings: Any) -> Predictive:
    """scikit-learn's GP for several outputs."""
    X, X_test = task.inputs
    regressor = gaussian_processes.fit_shared(X, task.outputs, seed=split, **settings)
    mean, deviation = (each.reshape(len(X_test), -1) for each in regressor.predict(X_test, return_std=True))
    return Gaussian(mean, deviation)


def gp_each(task: Task, split: int, restarts: int) -> Predictive:
    """A GP for each output, each with its own kernel."""
    X, X_test = task.inputs
    return Gaussian(*gaussian_processes.predict_each(X, task.outputs, X_test, restarts, split))


def pca_gp(task: Task, split: int, restarts: int) -> Predictive:
    """A GP for each principal component; what the components leave out is in the variance."""
    (X, X_test), Y = task.inputs, task.outputs
    pca = PCA(min(*Y.shape, MOST_COMPONENTS), random_state=split).fit(Y)
    n_components = 1 + int(np.searchsorted(pca.explained_variance_ratio_.cumsum(), SHARE_OF_VARIANCE))
    axes = pca.components_[:n_components]  # (C, D)
    scores = (Y - pca.mean_) @ axes.T
    mean, deviation = gaussian_processes.predict_each(X, scores, X_test, restarts, split)
    left_out = (Y - pca.mean_ - scores @ axes).var(0)
    return Gaussian(pca.mean_ + mean @ axes, np.sqrt(deviation**2 @ axes**2 + left_out))


def least_squares(task: Task, split: int) -> Predictive:
    """Each hidden entry by linear regression on the outputs that are known in its row, lightly regularised.

    The ridge and the variance of the error are chosen by leaving out one row at a time.
    """
    Y = task.outputs
    assert task.rows is not None
    mean, deviation = np.zeros_like(task.truth), np.ones_like(task.truth)
    for output in np.flatnonzero(task.is_scored.any(0)):
        asked = np.flatnonzero(task.is_scored[:, output])
        known = ~np.isnan(Y[task.rows[asked]])
        for pattern in np.unique(known, axis=0):
            places = asked[(known == pattern).all(1)]
            others, rows = _complete_rows(Y, output, np.flatnonzero(pattern))
            if len(others) == 0:
                continue  # nothing else is known there: the training mean
            regression = RidgeCV(np.logspace(-6, 3, 19)).fit(Y[np.ix_(rows, others)], Y[rows, output])
            mean[places, output] = regression.predict(Y[np.ix_(task.rows[places], others)])
            deviation[places, output] = np.sqrt(-regression.best_score_)
    return Gaussian(mean, deviation)


def _complete_rows(Y: np.ndarray, output: int, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs to regress on, and the rows where they and the output are known.

    While these rows are few, the output with the most holes is left out.
    """
    known = ~np.isnan(Y)
    others = others[np.argsort(-known[:, others].sum(0), kind="stable")]
    while True:
        rows = np.flatnonzero(known[:, output] & known[:, others].all(1))
        is_enough = len(rows) >= min(ROWS_PER_REGRESSOR * len(others), known[:, output].sum())
        if len(others) == 0 or (len(rows) > 2 and is_enough):
            return others, rows
        others = others[:-1]


def training_mean(task: Task, split: int) -> Predictive:
    """The mean and the standard deviation of each output over the training rows."""
    shape = task.truth.shape
    return Gaussian(np.zeros(shape), np.broadcast_to(task.spread / task.scale, shape))


def _holes(task: Task) -> str | None:
    return "takes no missing outputs" if task.has_holes else None


def _holes_or_own_units(task: Task) -> str | None:
    return _holes(task) or ("each output is standardised anyway" if task.own_units else None)


def _few_outputs(task: Task) -> str | None:
    return f"more than {MOST_OUTPUTS_ONE_BY_ONE} outputs" if task.n_outputs > MOST_OUTPUTS_ONE_BY_ONE else None


def _known_in_row(task: Task) -> str | None:
    return "no output is known in the test rows" if task.rows is None else None


def _of(name: str, fit: Callable[..., Predictive], why_not: Callable[[Task], str | None], **settings: Any) -> Method:
    """A method whose function takes settings."""
    return Method(name, partial(fit, **settings), settings, why_not)


#: The name of the method that is compared with all others.
OURS = "GPRNRegressor()"
METHODS = (
    Method(OURS, network),
    _of("shared GP, RBF", shared_gp, _anything, kernel="rbf"),
    _of("shared GP, Matérn", shared_gp, _anything, kernel="matern52"),
    _of("sklearn GP", sklearn_gp, _holes, kernel="rbf", restarts=3),
    _of("sklearn GP, Matérn", sklearn_gp, _holes, kernel="matern52", restarts=3),
    _of("sklearn GP, normalize_y", sklearn_gp, _holes_or_own_units, kernel="rbf", restarts=3, normalise=True),
    _of("GP each", gp_each, _few_outputs, restarts=1),
    _of("PCA-GP", pca_gp, _holes, restarts=0),
    Method("least squares", least_squares, why_not=_known_in_row),
    Method("mean", training_mean),
)
