"""Methods compared on a data set, fold by fold: what a person does on the first day with new data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold
from torch import Tensor

from pyro_gprn.baselines import IndependentGP, ReducedGP, TrainingMean
from pyro_gprn.estimator import GPRNRegressor
from pyro_gprn.estimator.containers import library_of, read_outputs
from pyro_gprn.estimator.kinds import take_rows
from pyro_gprn.estimator.scaling import scale_outputs
from pyro_gprn.experiments.judgement import Prediction
from pyro_gprn.metrics import LEVEL, mean_scores
from pyro_gprn.outputs.source import ArrayOutputs
from pyro_gprn.plots.axes import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What is told of each method, in this order.
SCORES = ("rmse", "mae", "nlpd", "crps", "coverage", "seconds")
#: What :meth:`Comparison.plot` draws.
PLOTTED = ("rmse", "nlpd", "crps", "coverage")
#: An output whose standard deviation over the training rows is a smaller share of the outputs' scale is not scored: its
#: density can be made as high as one likes, and nobody asks for it.
LEAST_SPREAD = 1e-6


def compare(
    methods: Sequence[Any] | Mapping[str, Any] | None,
    X: Any,
    Y: Any,
    *,
    cv: Any = 5,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Compares methods by how they predict rows that were held out.

    Every method is fitted to the same folds. Outputs are judged on a standardised scale: about their means over the
    training rows, and divided by one number if they are a field, or each by its own standard deviation if they are a
    table (as ``standardize=True`` of :class:`~pyro_gprn.GPRNRegressor` decides). What is missing (NaN) is not scored,
    and neither are outputs that are constant in the training rows. If a method fails on a fold there is a warning, the
    error is recorded, and the comparison goes on. Needs ``pyro-gprn[compare]``.

    :param methods: estimators, or a mapping from names to estimators. They are copied, not fitted themselves. Any
        estimator of scikit-learn's kind will do; what it cannot tell (density, intervals) is NaN. None takes
        :class:`~pyro_gprn.GPRNRegressor`, independent GPs, PCA-GP (if ``pyro-gprn[baselines]`` is installed and Y is
        complete) and the training mean. The others are compared with the first.
    :param X: inputs, ``(N, P)``: NumPy, torch, pandas or xarray.
    :param Y: outputs, ``(N, …)``, NaN where missing.
    :param cv: how many folds of shuffled rows; or a splitter of scikit-learn; or pairs of training rows and test rows.
    :param seed: of the folds, and of the methods that None takes.
    :param progress: whether to show a progress bar.

    >>> from pyro_gprn.baselines import IndependentGP, TrainingMean
    >>> X = np.linspace(0, 1, 12)[:, None]
    >>> found = compare([IndependentGP("rbf"), TrainingMean()], X, np.sin(6 * X + np.arange(3)), cv=3, progress=False)
    >>> list(found.table.index), bool(found.table.rmse["IndependentGP"] < 0.1 < found.table.rmse["TrainingMean"])
    (['IndependentGP', 'TrainingMean'], True)
    """
    _need_pandas()
    named = _named(_usual(Y, seed) if methods is None else methods)
    folds = list(_folds(cv, len(X), seed))
    rows: list[dict[str, Any]] = []
    with _bar(len(folds) * len(named), progress) as bar:
        for number, (training, test) in enumerate(folds):
            fold = Fold.of(X, Y, training, test)
            for name, method in named.items():
                bar.set_description(name)
                rows.append({"method": name, "fold": number, **_run(name, method, fold, number)})
                bar.update()
    return Comparison.of(rows)


@dataclass(frozen=True)
class Comparison:
    """How methods compare on a data set. It prints as its :attr:`table`.

    ``rmse`` is the root-mean-square error over that of the training mean (on the fold's test rows), ``mae`` the mean
    absolute error, ``nlpd`` the mean negative log density, ``crps`` the continuous ranked probability score (of all
    these lower is better), ``coverage`` the share of the truth in central 95 % intervals, ``seconds`` the time of fit
    and prediction. All but ``seconds`` are on the standardised scale.

    :param folds: a data frame with a row for each method and fold, and the scores and an "error" (None if there was
        none) as columns.
    """

    folds: Any

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> Comparison:
        """:param rows: "method", "fold", scores and "error" of each fit."""
        import pandas as pd

        frame = pd.DataFrame(rows, columns=["method", "fold", *SCORES, "error"])
        return cls(frame.set_index(["method", "fold"]))

    @property
    def methods(self) -> list[str]:
        """Their names, in the order in which they were given."""
        return list(self.folds.index.get_level_values("method").unique())

    @property
    def table(self) -> Any:
        """A data frame of methods × scores: means over the folds on which a method did not fail, and their number."""
        by_method = self.folds[list(SCORES)].groupby(level="method", sort=False)
        done = self.folds["error"].isna().groupby(level="method", sort=False).sum()
        return by_method.mean().assign(folds=done)

    @property
    def differences(self) -> Any:
        """A data frame of how each further method differs from the first, fold by fold: mean and standard error.

        Columns are pairs of a score and "difference" or "standard_error". A positive difference means that the score of
        the further method is higher. The folds share training rows, so that their differences are not independent, and
        the standard error is rather too small.
        """
        import pandas as pd

        scores = self.folds[list(SCORES)].unstack("fold")
        first, *others = self.methods
        rows = {}
        for name in others:
            apart = (scores.loc[name] - scores.loc[first]).unstack(0)  # folds × scores
            n = apart.notna().sum()
            rows[name] = pd.concat({"difference": apart.mean(), "standard_error": apart.std() / n**0.5}, axis=1).stack()
        columns = pd.MultiIndex.from_product([SCORES, ["difference", "standard_error"]])
        return pd.DataFrame(rows, index=columns).T

    def describe_differences(self) -> str:
        """The :attr:`differences` as text: for each method and score the difference ± its standard error."""
        found = self.differences
        told = {score: [f"{d:+.3g} ± {e:.1g}" for d, e in found[score].itertuples(index=False)] for score in SCORES}
        return type(found)(told, index=found.index).to_string()

    def plot(self, scores: Sequence[str] = PLOTTED, *, axes: Sequence[Axes] | None = None) -> Any:
        """Draws a panel for each score: a point for each method and fold, and a line at the mean of each method.

        :param scores: which scores.
        :param axes: where to draw, one for each score; by default new axes side by side.
        :returns: the axes, ``(len(scores),)``.
        """
        if unknown := set(scores) - set(SCORES):
            raise ValueError(f"scores must be among {', '.join(SCORES)}; got {', '.join(sorted(unknown))}")
        names, table = self.methods, self.table
        panels = new_axes(len(scores), width=3.2, height=1.2 + 0.4 * len(names)) if axes is None else axes
        for score, panel in zip(scores, panels, strict=True):
            for place, name in enumerate(names):
                values = self.folds[score].loc[name].to_numpy(dtype=float)
                panel.plot(values, np.full(len(values), place), "o", color="0.6", markersize=4)
                panel.plot(table.loc[name, score], place, "|", color="C0", markersize=18, mew=2)
            if score == "coverage":
                panel.axvline(LEVEL, color="0.8", zorder=0)
            panel.set_yticks(range(len(names)), names if panel is panels[0] else [""] * len(names))
            panel.set(xlabel=score, ylim=(len(names) - 0.5, -0.5))
        return panels

    def __repr__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")


class Fold(NamedTuple):
    """Training and test rows of a fold, and how outputs are judged there."""

    X: Any
    Y: Any
    X_test: Any
    truth: Tensor  #: standardised and flat, (N*, D)
    is_scored: Tensor  #: which entries of the truth count, (N*, D)
    centre: Tensor  #: (D,)
    scale: Tensor  #: () or (D,)

    @classmethod
    def of(cls, X: Any, Y: Any, training: np.ndarray, test: np.ndarray) -> Fold:
        """The fold of some training rows and some test rows."""
        known, asked = take_rows(Y, training), take_rows(Y, test)
        outputs = read_outputs(known)
        found: Any = scale_outputs(
            ArrayOutputs(outputs[:, None] if outputs.dim() == 1 else outputs),
            True,
            has_names=library_of(Y) == "pandas",
        )
        D = outputs[0].numel()
        centre, spread = torch.full((D,), math.nan, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
        places = slice(None) if found.present is None else found.present
        centre[places], spread[places] = found.mean, found.spread
        scale = found.scale
        if scale.dim() > 0:
            scale = torch.ones(D, dtype=torch.float64)
            scale[places] = found.scale
        truth = (read_outputs(asked).double().reshape(len(test), D) - centre) / scale
        varies = spread > LEAST_SPREAD * spread.square().mean().sqrt()
        return cls(take_rows(X, training), known, take_rows(X, test), truth, varies & ~truth.isnan(), centre, scale)


def _run(name: str, method: Any, fold: Fold, number: int) -> dict[str, Any]:
    """The scores of a method on a fold, or its error."""
    begin = time.perf_counter()
    try:
        fitted = clone(method).fit(fold.X, fold.Y)
        prediction = Prediction(fitted, fold.X_test, fold.centre, fold.scale)
        seconds = time.perf_counter() - begin
        scores = mean_scores(prediction.judge(fold.truth), fold.truth, fold.is_scored)
        return scores | {"seconds": seconds, "error": None}
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        warnings.warn(f"{name} failed on fold {number}: {told}", RuntimeWarning, stacklevel=3)
        return dict.fromkeys(SCORES, math.nan) | {"error": told}


def _usual(Y: Any, seed: int) -> dict[str, Any]:
    """What is compared if nothing is named."""
    methods: dict[str, Any] = {
        "GPRNRegressor": GPRNRegressor(seed=seed, progress=False),
        "IndependentGP": IndependentGP(seed=seed),
    }
    if find_spec("botorch") is not None and not read_outputs(Y).isnan().any():
        methods["ReducedGP"] = ReducedGP(seed=seed)
    return methods | {"TrainingMean": TrainingMean(seed=seed)}


def _named(methods: Sequence[Any] | Mapping[str, Any]) -> dict[str, Any]:
    """Methods by name: by their class, or as they print where two are of one class."""
    if isinstance(methods, Mapping):
        named = dict(methods)
    else:
        classes = [type(each).__name__ for each in methods]
        names = [kind if classes.count(kind) == 1 else repr(each) for kind, each in zip(classes, methods, strict=True)]
        named = dict(zip(names, methods, strict=True))
        if len(named) < len(names):
            raise ValueError(f"methods that look alike need names: compare({{name: method, …}}, X, Y); got {names}")
    if not named:
        raise ValueError("compare needs at least one method; got none")
    return named


def _folds(cv: Any, n_rows: int, seed: int) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    if isinstance(cv, int):
        return KFold(cv, shuffle=True, random_state=seed).split(np.empty(n_rows))
    return cv.split(np.empty(n_rows)) if hasattr(cv, "split") else cv


def _bar(total: int, is_shown: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, disable=not is_shown, leave=False)


def _need_pandas() -> None:
    if find_spec("pandas") is None:
        raise ImportError("compare needs pandas: pip install 'pyro-gprn[compare]'")
