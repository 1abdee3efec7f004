"""Scores of a fitted method on test rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_gprn.experiments.judgement import Prediction
from pyro_gprn.metrics import mean_scores, nrmse

#: Up to this many outputs have errors of their own beside the mean.
FEW_OUTPUTS = 25


def score(method: Any, X: Tensor, Y: Tensor, centre: Tensor, scale: Tensor) -> dict[str, Any]:
    """The scores of predictions, over all test outputs that are known.

    These are :func:`~pyro_gprn.metrics.mean_scores` of standardised outputs and, of outputs as they are,

    - ``mae_in_units``: the mean absolute error;
    - ``mae_of_outputs``: of up to 25 outputs, the mean absolute error of each;
    - ``nrmse``: the root-mean-square error divided by the standard deviation of all the test outputs, as in the paper.

    :param method: a fitted :class:`~pyro_gprn.GPRNRegressor`, or another with its interface.
    :param X: test inputs, ``(N*, P)``.
    :param Y: test outputs, ``(N*, d_1, …, d_M)``, NaN where unknown.
    :param centre: what is subtracted from each output to standardise it, ``(d_1, …, d_M)``.
    :param scale: what it is divided by then, ``(d_1, …, d_M)``; or one number for all outputs, ``()``.

    >>> import torch
    >>> from pyro_gprn.baselines import TrainingMean
    >>> X, Y = torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])
    >>> found = score(TrainingMean().fit(X, Y), X, Y + 1.0, centre=Y.mean(0), scale=torch.tensor(0.5))
    >>> found["mae_in_units"], found["mae"], found["rmse"]
    (1.0, 2.0, 1.0)
    """
    Y, centre = Y.double().flatten(1), centre.double().flatten()
    scale = scale.double().flatten() if scale.dim() else scale.double()
    known, truth = ~Y.isnan(), (Y - centre) / scale
    judged = Prediction(method, X, centre, scale).judge(truth)
    predicted = judged.mean * scale + centre
    error = (predicted - Y).abs()
    in_units = {"mae_in_units": error[known].mean().item(), "nrmse": nrmse(predicted[known], Y[known])}
    few = {"mae_of_outputs": error.nanmean(0).tolist()} if Y.shape[1] <= FEW_OUTPUTS else {}
    return {**mean_scores(judged, truth, known), **in_units, **few}
