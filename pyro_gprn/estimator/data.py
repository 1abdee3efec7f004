"""Inputs and outputs, read and standardised for training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Size, Tensor

from pyro_gprn.collapsed.subset import Subset
from pyro_gprn.estimator.containers import (
    Template,
    check_rows,
    is_lazy,
    library_of,
    read_inputs,
    read_lazy_outputs,
    read_outputs,
)
from pyro_gprn.estimator.scaling import Scaling, Standardize, scale_inputs, scale_outputs
from pyro_gprn.network.checks import check_output_shape
from pyro_gprn.outputs.gram import OutputStatistics
from pyro_gprn.outputs.lazy import DaskOutputs
from pyro_gprn.outputs.source import ArrayOutputs, OutputSource


class TrainingData(NamedTuple):
    """``X`` and ``Y`` as a fit needs them. No array here has the size of Y but Y itself.

    The model's units are those of standardised inputs and outputs.
    """

    X: Tensor  #: inputs in the model's units, (N, P)
    known: OutputStatistics  #: statistics of the outputs in the model's units
    outputs: OutputSource  #: reads the outputs as they came, (N, d_1, …, d_M)
    scaling: Scaling  #: between the model's units and the data's
    template: Template  #: the kind, type, shape and names of Y
    output_shape: tuple[int, ...]  #: (d_1, …, d_M)
    present: Tensor | None  #: positions of the outputs that have an observation; None if all have one
    is_part: bool = False  #: True if X and the statistics are those of some of the rows

    def at_rows(self, subset: Subset) -> TrainingData:
        """Inputs and statistics of some of the rows, for choices that are made on these."""
        return self._replace(X=self.X[subset.rows], known=subset.known, is_part=True)

    @classmethod
    def read(
        cls,
        X: Any,
        Y: Any,
        output_shape: int | Sequence[int] | None,
        standardize: Standardize,
        device: torch.device,
        *,
        many_rows: bool = False,
        lazily: bool = False,
        progress: bool = False,
    ) -> TrainingData:
        """Reads ``X``, and ``Y`` in one pass (rarely two: see :func:`~pyro_gprn.estimator.scaling.scale_outputs`).

        :param X: inputs, ``(N, P)``.
        :param Y: outputs, ``(N,)`` or ``(N, d_1, …, d_M)``, or flat with ``output_shape`` given.
        :param output_shape: ``(d_1, …, d_M)``; None takes the shape that Y has.
        :param standardize: as for :class:`~pyro_gprn.GPRNRegressor`.
        :param device: the device of the tensors.
        :param many_rows: True for rows that are too many for Gram matrices; further passes over Y follow then, from
            memory.
        :param lazily: whether outputs that are not in memory stay there: then no number is kept for each of them.
            Otherwise they are read into memory.
        :param progress: whether to show a progress bar for a pass over outputs that are not in memory.

        >>> X, Y = [[0.0], [1.0]], np.array([[1.0, 5.0], [3.0, 5.0]])
        >>> data = TrainingData.read(X, Y, None, True, torch.device("cpu"))
        >>> data.X.flatten(), data.scaling.y_mean
        (tensor([-1., 1.], dtype=torch.float64), tensor([2., 5.], dtype=torch.float64))
        """
        check_rows(X, Y)
        inputs = torch.from_numpy(read_inputs(X)).to(device)
        x_mean, x_scale = scale_inputs(inputs, standardize is not False)
        stays = lazily and is_lazy(Y) and not many_rows
        if stays and device.type != "cpu":
            raise ValueError(f"outputs that are not in memory need device='cpu'; got {device}")
        outputs = read_lazy_outputs(Y) if stays else read_outputs(Y).to(device)
        shape = check_shapes(inputs, outputs, output_shape)
        column = outputs[:, None] if outputs.ndim == 1 else outputs
        source = (DaskOutputs if stays else ArrayOutputs)(column).reshape(Size(shape))
        has_names = library_of(Y) == "pandas"
        found = scale_outputs(source, standardize, has_names=has_names, many_rows=many_rows, progress=progress)
        if found.present is not None and len(found.present) == 0:
            raise ValueError("every number of Y is missing (NaN): there is nothing to fit")
        scaling = Scaling(x_mean, x_scale, found.mean, found.scale)
        template = Template.of(Y, outputs, found.present)
        return cls(scaling.inputs(inputs), found.statistics, source, scaling, template, shape, found.present)


def check_shapes(X: Tensor, Y: Any, output_shape: int | Sequence[int] | None) -> tuple[int, ...]:
    """Checks that inputs and outputs fit together; returns the shape of one row's outputs, ``(d_1, …, d_M)``.

    :param X: inputs, ``(N, P)``.
    :param Y: outputs, ``(N,)``, ``(N, D)`` or ``(N, d_1, …, d_M)``.
    :param output_shape: ``(d_1, …, d_M)``; None takes the shape that Y has.

    >>> check_shapes(torch.ones(2, 1), torch.ones(2, 12), (3, 4))
    (3, 4)
    """
    if len(X) != len(Y):
        raise ValueError(f"X and Y must have as many rows as each other; got {len(X)} and {len(Y)}")
    if output_shape is None:
        return tuple(Y.shape[1:]) or (1,)
    n_outputs, shape = math.prod(Y.shape[1:]), tuple(check_output_shape(output_shape))
    if int(np.prod(shape)) != n_outputs:
        raise ValueError(
            f"output_shape {shape} multiplies to {int(np.prod(shape))}, but Y of shape {tuple(Y.shape)} has"
            f" {n_outputs} outputs a row"
        )
    if len(Y.shape) > 2 and shape != tuple(Y.shape[1:]):
        raise ValueError(f"output_shape {shape} is not that of Y, {tuple(Y.shape[1:])}")
    return shape
