"""Checks of what an estimator is given: errors that say what was expected and what came."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pyro_gprn.network.checks import check_output_shape


def check_settings(settings: Any) -> None:
    """Of an estimator: numbers that must be positive, words that must be known."""
    if settings.n_latents != "auto" and not (_is_integer(settings.n_latents) and settings.n_latents >= 1):
        raise ValueError(f"n_latents must be 'auto' or an integer of at least 1; got {settings.n_latents!r}")
    for name in ("steps", "restarts"):
        value = getattr(settings, name)
        if not (name == "steps" and value is None) and not (_is_integer(value) and value >= 1):
            raise ValueError(f"{name} must be an integer of at least 1; got {value!r}")
    rate = settings.learning_rate
    if rate is not None and not (isinstance(rate, numbers.Real) and float(rate) > 0):
        raise ValueError(f"learning_rate must be a positive number; got {rate!r}")
    if settings.seed is not None and not _is_integer(settings.seed):
        raise ValueError(f"seed must be an integer or None; got {settings.seed!r}")
    if not (isinstance(settings.standardize, bool) or settings.standardize in ("field", "outputs")):
        raise ValueError(f"standardize must be True, False, 'field' or 'outputs'; got {settings.standardize!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_data(X: np.ndarray, Y: Tensor, output_shape: int | Sequence[int] | None) -> tuple[int, ...]:
    """That inputs and outputs fit together; returns the shape of one row's outputs, ``(d_1, …, d_M)``."""
    if len(X) != len(Y):
        raise ValueError(f"X and Y must have as many rows as each other; got {len(X)} and {len(Y)}")
    n_outputs = Y[0].numel()
    if output_shape is None:
        shape = tuple(Y.shape[1:]) or (1,)
    else:
        shape = tuple(check_output_shape(output_shape))
        if int(np.prod(shape)) != n_outputs or (Y.dim() > 2 and shape != tuple(Y.shape[1:])):
            raise ValueError(
                f"output_shape {shape} multiplies to {int(np.prod(shape))}, but Y of shape {tuple(Y.shape)} has"
                f" {n_outputs} outputs a row"
                if int(np.prod(shape)) != n_outputs
                else f"output_shape {shape} is not that of Y, {tuple(Y.shape[1:])}"
            )
    never = Y.reshape(len(Y), -1).isnan().all(0).nonzero().flatten().tolist()
    if never:
        raise ValueError(
            f"every output needs an observation, but {len(never)} of {n_outputs} have none (the first: output"
            f" {never[0]}): leave them out"
        )
    return shape
