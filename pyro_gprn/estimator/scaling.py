"""Inputs and outputs brought to zero mean and unit scale, and back."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pyro_gprn.outputs.lazy import DaskOutputs
from pyro_gprn.outputs.one_pass import OnePass, standardize_lazily
from pyro_gprn.outputs.source import OutputSource
from pyro_gprn.outputs.spreads import Spreads
from pyro_gprn.outputs.standardize import OutputScale, StandardizedStatistics, standardize

#: Up to this many outputs in one mode are scaled one by one by default.
MOST_UNITS = 20
#: Outputs are no field if the largest spread is more than this many times the median one, …
MOST_DISPARATE = 1000.0
#: … or if neighbours' spreads differ by more than this factor on average (geometrically).
MOST_UNEVEN = 3.0

Standardize = bool | Literal["field", "outputs"]


class Scaling(NamedTuple):
    """Means and scales of inputs and outputs. D counts the outputs that have an observation.

    The model's units are those of standardised inputs and outputs.

    >>> scaling = Scaling(torch.zeros(1), torch.ones(1), torch.tensor([1.0, 2.0]), torch.tensor(10.0))
    >>> scaling.outputs(torch.tensor([[11.0, 12.0]])), scaling.undo(torch.ones(1, 2))
    (tensor([[1., 1.]]), tensor([[11., 12.]]))
    """

    x_mean: Tensor  #: the mean of each input column, (P,)
    x_scale: Tensor  #: the scale of each input column, (P,)
    y_mean: Tensor  #: the mean of each output, (D,), float64; (0,) of outputs beyond memory, whose chunks tell it
    y_scale: Tensor  #: one scale for all outputs, (), or one for each, (D,), float64

    def inputs(self, X: Tensor) -> Tensor:
        """Inputs ``(…, P)`` in the model's units."""
        return (X - self.x_mean) / self.x_scale

    def undo_inputs(self, X: Tensor) -> Tensor:
        """The model's inputs ``(…, P)`` in the data's units."""
        return X * self.x_scale + self.x_mean

    def outputs(self, Y: Tensor) -> Tensor:
        """Flat outputs ``(…, D)`` in the model's units, as a new tensor."""
        return (Y - self.y_mean) / self.y_scale

    def undo(self, values: Tensor) -> Tensor:
        """Brings predicted means or draws, ``(…, D)``, to the data's units, in place."""
        # in the type of the values: with two types torch would make a copy of all of them in the wider one
        return self.undo_spread(values).add_(self.y_mean.to(values.dtype))

    def undo_spread(self, values: Tensor) -> Tensor:
        """Brings predicted standard deviations, ``(…, D)``, to the data's units, in place."""
        return values.mul_(self.y_scale.to(values.dtype))

    def undo_at(self, values: Tensor, positions: Tensor) -> Tensor:
        """Values ``(…, b)`` of the outputs at some positions, in the data's units, as a new tensor."""
        scale = self.y_scale if self.y_scale.dim() == 0 else self.y_scale[positions]
        return values * scale + self.y_mean[positions]


def scale_inputs(X: Tensor, is_wanted: bool) -> tuple[Tensor, Tensor]:
    """The mean and the scale of each column of ``X``, ``(P,)``; a constant column has scale 1.

    :param X: inputs, ``(N, P)``.
    :param is_wanted: False makes all means 0 and all scales 1.

    >>> scale_inputs(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), is_wanted=True)
    (tensor([2., 5.]), tensor([1., 1.]))
    """
    if not is_wanted:
        return torch.zeros_like(X[0]), torch.ones_like(X[0])
    spread = X.std(0, correction=0)
    return X.mean(0), torch.where(spread > 1e-14 * X.abs().amax(0), spread, 1.0)


def scale_outputs(
    source: OutputSource, wanted: Standardize, *, has_names: bool, many_rows: bool = False, progress: bool = False
) -> StandardizedStatistics | OnePass:
    """Standardises outputs, in one pass over Y; in two if what was taken for a field turns out to be none.

    :param source: reads the outputs as they are, ``(N, d_1, …, d_M)``.
    :param wanted: ``"field"`` gives all outputs one scale, ``"outputs"`` each its own, False leaves them as they are.
        True is ``"outputs"`` for columns that have names, and for at most twenty outputs in one mode; otherwise
        ``"field"``, unless :func:`are_a_field` says that outputs in one mode are none.
    :param has_names: True if the outputs are the named columns of a table.
    :param many_rows: as for :func:`~pyro_gprn.outputs.standardize.standardize`.
    :param progress: whether to show a progress bar for a pass over outputs that are not in memory.

    >>> from pyro_gprn.outputs.source import ArrayOutputs
    >>> scale_outputs(ArrayOutputs(torch.tensor([[1.0, 10.0], [3.0, 50.0]])), True, has_names=False).scale
    tensor([ 1., 20.], dtype=torch.float64)
    """
    scale, is_undecided = _first_scale(source, wanted, has_names)
    if isinstance(source, DaskOutputs):
        lazily = partial(standardize_lazily, source, progress=progress)
        found = lazily(scale, centre=wanted is not False, needs_spreads=is_undecided)
        return lazily("outputs") if is_undecided and not are_a_field(found.spreads) else found
    known = standardize(source, scale, centre=wanted is not False, many_rows=many_rows)
    if is_undecided and not are_a_field(Spreads.of(known.spread)):
        return standardize(source, "outputs", many_rows=many_rows)
    return known


def _first_scale(source: OutputSource, wanted: Standardize, has_names: bool) -> tuple[OutputScale, bool]:
    """How outputs are scaled at first, and whether their spreads may still show that they are no field."""
    if wanted is not True:
        return (None if wanted is False else wanted), False
    in_one_mode = len(source.shape) == 2
    scale: OutputScale = "outputs" if in_one_mode and (has_names or source.n_outputs <= MOST_UNITS) else "field"
    return scale, in_one_mode and scale == "field"


def are_a_field(spreads: Spreads) -> bool:
    """True if outputs of these standard deviations, in their order, may be points of one field.

    They are no field, but a table of columns in different units, if the largest spread is more than a thousand times
    the median one, or if neighbours' spreads differ by more than a factor of three on average. (Of the fields that we
    simulate the first is 86 at most, the second 1.6.)

    >>> smooth, mixed = torch.linspace(0, 3, 200).sin(), torch.tensor([1.0, 1e4, 0.1, 1e3])
    >>> are_a_field(Spreads.of(smooth)), are_a_field(Spreads.of(mixed))
    (True, False)
    """
    if spreads.n_varying < 2:
        return True
    uneven = 10**spreads.mean_step
    return spreads.largest <= MOST_DISPARATE * spreads.median() and uneven <= MOST_UNEVEN
