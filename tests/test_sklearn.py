"""scikit-learn's own checks, and its tools around the estimator."""

import numpy as np
import pytest
from quick import small
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

pytestmark = pytest.mark.usefixtures("quick")

#: Checks that cannot pass, each with its reason: there is none.
CANNOT: dict[str, str] = {}
#: They fit a hundred times, some of them two hundred rows.
SHORTEST = {"n_latents": 1, "steps": 3, "starts": ["independent"]}


@pytest.mark.parametrize(
    ("estimator", "check"),
    list(estimator_checks_generator(small(**SHORTEST))),
    ids=lambda value: getattr(value, "func", value),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_check_estimator(estimator, check):
    check(estimator)


X = np.random.default_rng(0).uniform(size=(24, 2))
Y = np.sin(3 * X[:, :1] + np.arange(4)) * X[:, 1:]


def test_pipeline_cross_validation_and_grid_search():
    scores = cross_val_score(make_pipeline(MinMaxScaler(), small(steps=40)), X, Y, cv=3)
    assert scores.shape == (3,)
    assert (scores > 0.5).all()
    search = GridSearchCV(small(steps=20), {"n_latents": [1, 2], "kernel_w": ["rbf", "matern52"]}, cv=2).fit(X, Y)
    assert set(search.best_params_) == {"n_latents", "kernel_w"}
    assert search.predict(X).shape == Y.shape
