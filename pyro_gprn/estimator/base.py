"""What every estimator of this package shares: how data are read for a fit, and what comes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import validate_data

from pyro_gprn.estimator.data import TrainingData
from pyro_gprn.estimator.prediction import Predictions, Record
from pyro_gprn.estimator.scaling import Standardize
from pyro_gprn.pyro_state import new_seed

R = TypeVar("R", bound=Record)


class Estimator(Predictions, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """An estimator by scikit-learn's conventions whose outputs may be fields, of NumPy, torch, pandas or xarray.

    A subclass sets the four settings below. Its ``fit`` hands a function to :meth:`_fit` that makes the record of a fit
    out of standardised data, and keeps that record as ``fitted_``, from which all predictions come.
    """

    output_shape: int | Sequence[int] | None
    standardize: Standardize
    seed: int | None
    device: str | torch.device | None

    def _read_data(self, X: Any, Y: Any, *, many_rows: bool = False, lazily: bool = False) -> TrainingData:
        """The data, standardised.

        :param many_rows: as for :meth:`~pyro_gprn.estimator.data.TrainingData.read`.
        :param lazily: whether outputs that are not in memory stay there.
        """
        return TrainingData.read(
            X,
            Y,
            self.output_shape,
            self.standardize,
            torch.device(self.device or "cpu"),
            many_rows=many_rows,
            lazily=lazily,
            progress=bool(getattr(self, "progress", False)),
        )

    def _fit(self, X: Any, Y: Any, train: Callable[[TrainingData, int], R], *, lazily: bool = False) -> R:
        """Reads and checks the data, and trains.

        :param X: inputs, ``(N, P)``, as they came.
        :param Y: outputs, as they came.
        :param train: takes standardised data and a seed, and returns the record of the fit.
        :param lazily: whether outputs that are not in memory stay there.
        """
        data = self._read_data(X, Y, lazily=lazily)
        named = X if hasattr(X, "columns") else data.X.cpu().numpy()
        validate_data(BaseEstimator(), named, skip_check_array=True)  # refuses names before the training, not after
        fitted = train(data, new_seed() % 2**31 if self.seed is None else self.seed)
        validate_data(self, named, skip_check_array=True)
        return fitted
