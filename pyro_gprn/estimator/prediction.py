"""What a fitted estimator predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.collapsed.prediction import N_DRAWS
from pyro_gprn.collapsed.weights import output_correlation
from pyro_gprn.estimator.containers import Template, plain, read_outputs, writeable
from pyro_gprn.estimator.scaling import Scaling
from pyro_gprn.outputs.selection import Outputs
from pyro_gprn.prediction import PosteriorPredictive, posterior_predictive
from pyro_gprn.pyro_state import own_randomness

#: Numbers that one block of new inputs may hold: draws × training rows × new rows.
BLOCK_NUMBERS = 2**24


class Predictions:
    """The half of the estimator that comes after fitting: new inputs in, outputs in their own units and kind out."""

    inference: str
    model_: Any  #: the Pyro model of standardised data
    guide_: Any  #: its posterior
    output_shape_: tuple[int, ...]
    _outputs: Tensor  #: standardised training outputs, flat
    _scaling: Scaling
    _template: Template
    _seed: int

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the outputs at new inputs, as ``Y`` came; with ``return_std`` also their standard deviation.

        The standard deviation includes the observation noise.

        :param X: new inputs, ``(N*, P)``.
        """
        inputs = self._read_new(X)
        means, deviations = [], []
        for predictive, _ in self._by_block(inputs):
            means.append(self._scaling.undo(predictive.mean().flatten(1)))
            if return_std:
                deviations.append(predictive.variance().flatten(1).sqrt_().mul_(self._scaling.y_scale))
        mean = self._template.wrap(torch.cat(means), X)
        return (mean, self._template.wrap(torch.cat(deviations), X)) if return_std else mean

    def sample(self, X: Any, n: int = 1, *, seed: int | None = None) -> Any:
        """Draws of the outputs with their noise, joint over inputs and outputs, ``(n, N*, …)``.

        :param X: new inputs, ``(N*, P)``.
        :param n: how many draws.
        :param seed: of the draws; None takes new ones at every call.
        """
        inputs = self._read_new(X)
        with own_randomness(seed):
            draws = self._predictive(inputs).sample(n).flatten(2)
        return self._template.wrap(self._scaling.undo(draws), X, draws=True)

    def log_predictive_density(self, X: Any, Y: Any) -> Any:
        """``log p(y*_nd | data)`` of each output on its own, as ``Y`` came at the fit; NaN where ``Y`` is.

        :param X: new inputs, ``(N*, P)``.
        :param Y: outputs there.
        """
        inputs = self._read_new(X)
        Y_new = self._read_new_outputs(Y, len(inputs))
        outputs = self._scaling.outputs(Y_new.to(self._scaling.y_mean)).reshape(-1, *self.output_shape_)
        densities = [predictive.log_density(outputs[block]).flatten(1) for predictive, block in self._by_block(inputs)]
        return self._template.wrap(torch.cat(densities) - self._scaling.y_scale.log(), X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the mean, over all outputs together: ``1 − Σ (y − ŷ)² / Σ (y − ȳ_d)²`` over what is observed.

        :param X: inputs, ``(N*, P)``.
        :param y: outputs there, NaN where missing. (The name is scikit-learn's.)
        :param sample_weight: of each row, ``(N*,)``.
        """
        predicted = read_outputs(self.predict(X))
        truth = self._read_new_outputs(y, len(predicted)).double()
        weight = torch.ones(len(truth)) if sample_weight is None else torch.as_tensor(plain(sample_weight))
        weight = weight.double().unsqueeze(-1) * ~truth.isnan()
        truth = truth.nan_to_num(nan=0.0)
        centre = (weight * truth).sum(0) / weight.sum(0).clamp(min=1e-300)
        errors = (weight * (truth - predicted.reshape(truth.shape).double()).square()).sum()
        spread = (weight * (truth - centre).square()).sum()
        if spread == 0:
            return 1.0 if errors == 0 else 0.0  # scikit-learn's convention for constant outputs
        return (1.0 - errors / spread).item()

    def output_correlation(self, X: Any, outputs: Outputs = None) -> np.ndarray:
        """The correlation between outputs at new inputs, ``(N*, b, b)`` over the chosen outputs, flattened.

        :param X: new inputs, ``(N*, P)``.
        :param outputs: which outputs, as for :func:`~pyro_gprn.posterior_predictive`; all of them are D² numbers.
        """
        inputs = self._read_new(X)
        if not isinstance(self.model_, CollapsedGPRN):
            raise ValueError(f"the correlation of outputs needs inference='collapsed'; got {self.inference!r}")
        Y = self._outputs.reshape(-1, *self.output_shape_)
        with own_randomness(self._seed):
            return output_correlation(self.model_, self.guide_, inputs, outputs, Y).cpu().numpy()

    @property
    def output_names_(self) -> np.ndarray:
        """A name for each of the flattened outputs, ``(D,)``."""
        check_is_fitted(self)
        return self._template.output_names()

    def _read_new(self, X: Any) -> Tensor:
        check_is_fitted(self)
        read = writeable(validate_data(self, plain(X), reset=False, dtype=np.float64))
        return self._scaling.inputs(torch.from_numpy(read).to(self.model_.X.device))

    def _read_new_outputs(self, Y: Any, n_rows: int) -> Tensor:
        """Flat outputs at new inputs, ``(N*, D)``."""
        outputs = read_outputs(Y)
        if len(outputs) != n_rows or outputs[0].numel() != self._outputs.shape[1]:
            expected = (n_rows, *self._template.shape)
            raise ValueError(f"Y must have shape {expected} for these X; got {tuple(outputs.shape)}")
        return outputs.reshape(n_rows, -1)

    def _predictive(self, inputs: Tensor) -> PosteriorPredictive:
        outputs = self._outputs.reshape(-1, *self.output_shape_)
        return posterior_predictive(self.model_, self.guide_, inputs, outputs)

    def _by_block(self, inputs: Tensor) -> Iterator[tuple[PosteriorPredictive, slice]]:
        """Predictions for some inputs at a time, the same whatever inputs stand beside them."""
        size = max(1, BLOCK_NUMBERS // (N_DRAWS * len(self.model_.X)))
        for start in range(0, len(inputs), size):
            block = slice(start, start + size)
            with own_randomness(self._seed):
                yield self._predictive(inputs[block]), block
