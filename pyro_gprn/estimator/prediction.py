"""What a fitted estimator predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from pyro_gprn.estimator.containers import (
    Template,
    check_rows,
    is_lazy,
    plain,
    read_inputs,
    read_lazy_outputs,
    read_outputs,
)
from pyro_gprn.estimator.fitted import FittedNetwork
from pyro_gprn.estimator.lazy import log_density_lazily, predict_lazily, quantiles_lazily, sample_lazily
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.outputs.extra import load
from pyro_gprn.outputs.lazy import DaskOutputs
from pyro_gprn.outputs.source import OutputSource
from pyro_gprn.prediction.base import check_probabilities


class Record(Protocol):
    """What predictions need of a fit, be it of a network (:class:`~pyro_gprn.estimator.fitted.FittedNetwork`) or not.

    Methods take new inputs ``(N*, P)`` in the model's units, and return outputs flat and in the data's own. D counts
    the outputs that have an observation, unless it is said otherwise.
    """

    @property
    def outputs(self) -> OutputSource:
        """Reads Y as it came, ``(N, d_1, …, d_M)``."""
        ...

    @property
    def scaling(self) -> Scaling:
        """Between the model's units and the data's."""
        ...

    @property
    def template(self) -> Template:
        """The kind, type, shape and names of Y."""
        ...

    def empty(self, X: Tensor) -> Tensor:
        """An empty tensor for predictions, ``(N*, D)``, in Y's type."""
        ...

    def mean(self, X: Tensor, deviation: Tensor | None = None) -> Tensor:
        """The mean, ``(N*, D)``; a ``deviation`` from :meth:`empty` is filled with the standard deviation."""
        ...

    def quantiles(self, X: Tensor, probabilities: list[float]) -> Tensor:
        """Of each output with its noise, ``(p, N*, D)``."""
        ...

    def sample(self, X: Tensor, n_draws: int, seed: int | None) -> Tensor:
        """Draws with noise, joint over inputs and outputs, ``(n_draws, N*, D)``."""
        ...

    def log_density(self, X: Tensor, Y: Tensor) -> Tensor:
        """``log p(y*_nd | data)``, ``(N*, D)``, of all the outputs that Y has, flat; NaN where ``Y`` is."""
        ...


class Predictions:
    """The half of the estimator that comes after fitting: it takes new inputs, and predicts outputs as ``Y`` came.

    That is, predictions have the units, kind, type and shape of the training outputs ``Y``, and their names. Everything
    is read from ``fitted_``, the record of the fit.
    """

    seed: int | None
    fitted_: Record

    def predict(self, X: Any, return_std: bool = False, *, quantiles: Sequence[float] | None = None) -> Any:
        """The mean of the outputs at new inputs, as ``Y`` came; or mean and standard deviation; or quantiles.

        Standard deviation and quantiles include the observation noise. With ``output_scales`` an output is Student-t,
        whose tails are heavy where it was observed in few rows; quantiles tell more than the standard deviation there.

        :param X: new inputs, ``(N*, P)``.
        :param return_std: whether the standard deviation is wanted too: ``mean, std = r.predict(X, return_std=True)``.
        :param quantiles: probabilities between 0 and 1. A list comes back in place of the mean, with the quantiles of
            each probability as ``Y`` came: ``lower, upper = r.predict(X, quantiles=(0.05, 0.95))``.
        :returns: the mean, ``(N*, d_1, …, d_M)``; the mean and the standard deviation; or a list of quantiles.
        """
        if return_std and quantiles is not None:
            raise ValueError("predict gives either mean and standard deviation or quantiles: call it once for each")
        inputs = self._read_new(X)
        if isinstance(self.fitted_.outputs, DaskOutputs):
            return self._predict_lazily(inputs, X, return_std, quantiles)
        wrap = self.fitted_.template.wrap
        if quantiles is not None:
            return [wrap(each, X) for each in self.fitted_.quantiles(inputs, check_probabilities(quantiles))]
        deviation = self.fitted_.empty(inputs) if return_std else None
        mean = wrap(self.fitted_.mean(inputs, deviation), X)
        return mean if deviation is None else (mean, wrap(deviation, X, quantity="std"))

    def sample(self, X: Any, n: int = 1, *, seed: int | None = None) -> Any:
        """Draws of the outputs with their noise, joint over inputs and outputs, ``(n, N*, …)``.

        :param X: new inputs, ``(N*, P)``.
        :param n: how many draws.
        :param seed: the same seed gives the same draws. None takes the estimator's seed; if that is None too, every
            call gives other draws.
        """
        inputs, seed = self._read_new(X), self.seed if seed is None else seed
        if isinstance(self.fitted_.outputs, DaskOutputs):
            return self.fitted_.template.wrap_lazy(sample_lazily(self._lazy_fit, inputs, n, seed), X, draws=True)
        draws = self.fitted_.sample(inputs, n, seed)
        return self.fitted_.template.wrap(draws, X, draws=True)

    def log_predictive_density(self, X: Any, Y: Any) -> Any:
        """``log p(y*_nd | data)`` of each output on its own, in the kind and shape of predictions; NaN where ``Y`` is.

        :param X: new inputs, ``(N*, P)``.
        :param Y: outputs at these inputs, ``(N*, d_1, …, d_M)``.
        """
        check_rows(X, Y)
        inputs = self._read_new(X)
        if isinstance(self.fitted_.outputs, DaskOutputs):
            found = log_density_lazily(self._lazy_fit, inputs, self._read_new_lazy_outputs(Y, len(inputs)))
            return self.fitted_.template.wrap_lazy(found, X, quantity="log_density")
        outputs = self._read_new_outputs(Y, len(inputs)).to(inputs)
        return self.fitted_.template.wrap(self.fitted_.log_density(inputs, outputs), X, quantity="log_density")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the mean, over all outputs together: ``1 − Σ (y − ŷ)² / Σ (y − ȳ_d)²`` over what is observed.

        The names ``y`` and ``sample_weight`` are scikit-learn's.

        :param X: inputs, ``(N*, P)``.
        :param y: outputs at these inputs, ``(N*, d_1, …, d_M)``, NaN where missing.
        :param sample_weight: how much each row counts, ``(N*,)``.
        """
        check_rows(X, y)
        predicted = read_outputs(self.predict(X))
        truth = self._read_new_outputs(y, len(predicted)).double()
        counts = torch.ones(len(truth)) if sample_weight is None else torch.as_tensor(plain(sample_weight))
        counts = counts.double().unsqueeze(-1) * ~truth.isnan()
        truth = truth.nan_to_num(nan=0.0)
        centre = (counts * truth).sum(0) / counts.sum(0).clamp(min=1e-300)
        errors = (counts * (truth - predicted.reshape(truth.shape).double().nan_to_num(nan=0.0)).square()).sum()
        spread = (counts * (truth - centre).square()).sum()
        if spread == 0:
            return 1.0 if errors == 0 else 0.0  # scikit-learn's convention for constant outputs
        return (1.0 - errors / spread).item()

    def _predict_lazily(self, inputs: Tensor, X: Any, return_std: bool, quantiles: Sequence[float] | None) -> Any:
        wrap = self.fitted_.template.wrap_lazy
        if quantiles is not None:
            probabilities = check_probabilities(quantiles)
            return [wrap(each, X) for each in quantiles_lazily(self._lazy_fit, inputs, probabilities)]
        mean, *deviation = predict_lazily(self._lazy_fit, inputs, with_deviation=return_std)
        return (wrap(mean, X), wrap(deviation[0], X, quantity="std")) if return_std else wrap(mean, X)

    @property
    def _lazy_fit(self) -> FittedNetwork:
        return cast(FittedNetwork, self.fitted_)  # no other record is made of outputs that are not in memory

    @property
    def output_names_(self) -> np.ndarray:
        """A name for each of the flattened outputs, ``(D,)``."""
        check_is_fitted(self)
        return self.fitted_.template.output_names()

    def _read_new(self, X: Any) -> Tensor:
        check_is_fitted(self)
        read = read_inputs(X)
        validate_data(self, X if hasattr(X, "columns") else read, reset=False, skip_check_array=True)
        return self.fitted_.scaling.inputs(torch.from_numpy(read).to(self.fitted_.scaling.x_mean.device))

    def _read_new_lazy_outputs(self, Y: Any, n_rows: int) -> Any:
        """Outputs at new inputs as a dask array, ``(N*, …)``."""
        array = read_lazy_outputs(Y) if is_lazy(Y) else load("dask.array").from_array(read_outputs(Y).numpy())
        if array.shape != (n_rows, *self.fitted_.template.shape):
            expected = (n_rows, *self.fitted_.template.shape)
            raise ValueError(f"Y must have shape {expected} for these X; got {tuple(array.shape)}")
        return array

    def _read_new_outputs(self, Y: Any, n_rows: int) -> Tensor:
        """Flat outputs at new inputs, ``(N*, D)``."""
        outputs = read_outputs(Y)
        if len(outputs) != n_rows or outputs[0].numel() != self.fitted_.outputs.n_outputs:
            expected = (n_rows, *self.fitted_.template.shape)
            raise ValueError(f"Y must have shape {expected} for these X; got {tuple(outputs.shape)}")
        return outputs.reshape(n_rows, -1)
