"""Inputs and outputs brought to zero mean and unit scale, and back."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

#: Flat outputs up to this many may have units of their own; beyond, and with several modes, they are a field.
MOST_UNITS = 100

Standardize = bool | Literal["field", "outputs"]


class Scaling(NamedTuple):
    """Means and scales."""

    x_mean: Tensor  #: (P,)
    x_scale: Tensor  #: (P,)
    y_mean: Tensor  #: (D,), in the outputs' type
    y_scale: Tensor  #: (), or (D,) for one each, float64

    @classmethod
    def of(cls, X: Tensor, Y: Tensor, standardize: Standardize, n_modes: int) -> Scaling:
        """Read off the data.

        :param X: inputs, ``(N, P)``.
        :param Y: flat outputs, ``(N, D)``, NaN where missing.
        :param standardize: ``"field"`` gives all outputs one scale, ``"outputs"`` each its own, False leaves inputs and
            outputs as they are. True is ``"outputs"`` for at most a hundred outputs in one mode, else ``"field"``.
        :param n_modes: how many modes the outputs have.
        """
        if standardize is False:
            return cls(torch.zeros(X.shape[1]).to(X), torch.ones(X.shape[1]).to(X), Y.new_zeros(Y.shape[1]), _one(Y))
        if standardize is True:
            standardize = "outputs" if n_modes <= 1 and Y.shape[1] <= MOST_UNITS else "field"
        x_scale = _usable(X.std(0, correction=0), X.abs().amax(0))
        y_mean = Y.nanmean(0)
        squares, counts = _one(Y).new_zeros(Y.shape[1]), _one(Y).new_zeros(Y.shape[1])
        largest = y_mean.abs().double()
        for row in Y:  # row by row: no second array of the size of Y
            deviation = (row - y_mean).double()
            counts += ~deviation.isnan()
            squares += deviation.nan_to_num(nan=0.0).square()
            largest = torch.maximum(largest, row.abs().double().nan_to_num(nan=0.0))
        if standardize == "field":
            rounding = torch.finfo(Y.dtype).eps * largest.max()
            return cls(X.mean(0), x_scale, y_mean, _usable((squares.sum() / counts.sum()).sqrt(), rounding, 4.0))
        rounding = torch.finfo(Y.dtype).eps * largest
        return cls(X.mean(0), x_scale, y_mean, _usable((squares / counts).sqrt(), rounding, 4.0))

    def inputs(self, X: Tensor) -> Tensor:
        """Inputs in the model's units."""
        return (X - self.x_mean) / self.x_scale

    def outputs(self, Y: Tensor) -> Tensor:
        """Flat outputs in the model's units, and in their own type: a new array."""
        return (Y - self.y_mean).div_(self.y_scale.to(Y.dtype))

    def undo(self, values: Tensor) -> Tensor:
        """Predicted means (or draws) ``(…, D)`` in the outputs' own units: in place."""
        return values.mul_(self.y_scale).add_(self.y_mean)


def _one(Y: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.float64, device=Y.device)


def _usable(scale: Tensor, size: Tensor, factor: float = 1e-14) -> Tensor:
    """Scales, with 1 for what is constant up to rounding."""
    return torch.where(scale > factor * size, scale, 1.0)
