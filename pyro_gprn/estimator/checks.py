"""Checks of what an estimator is given: errors that say what was expected and what came."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np


def check_settings(settings: Any) -> None:
    """Checks the settings of an estimator: numbers that must be positive, words that must be known.

    :param settings: the estimator, with its settings as attributes.
    :raises ValueError: for the first setting that is wrong.
    """
    if settings.n_latents != "auto" and not (_is_integer(settings.n_latents) and settings.n_latents >= 1):
        raise ValueError(f"n_latents must be 'auto' or an integer of at least 1; got {settings.n_latents!r}")
    for name in ("steps", "restarts"):
        value = getattr(settings, name)
        if not (name == "steps" and value is None):
            check_count(name, value)
    rate = settings.learning_rate
    if rate is not None and not (isinstance(rate, numbers.Real) and float(rate) > 0):
        raise ValueError(f"learning_rate must be a positive number; got {rate!r}")
    check_shared_settings(settings)
    if settings.inference == "coregionalised":
        for name in ("learning_rate", "kernel_w"):
            if getattr(settings, name) is not None:
                raise ValueError(
                    f"inference='coregionalised' takes no {name}: its weights are the same at all inputs, and it is"
                    f" trained by L-BFGS; got {getattr(settings, name)!r}"
                )
    if not (isinstance(settings.own_kernels, (bool, np.bool_)) or settings.own_kernels == "auto"):
        raise ValueError(f"own_kernels must be 'auto', True or False; got {settings.own_kernels!r}")
    if settings.own_kernels != "auto" and settings.own_kernels and settings.inference != "collapsed":
        raise ValueError(f"own_kernels=True needs inference='collapsed'; got {settings.inference!r}")
    _check_inducing(settings)
    for name in ("output_scales", "selection"):
        check_truth(name, getattr(settings, name))


def _check_inducing(settings: Any) -> None:
    inducing = settings.inducing
    if inducing is None or (isinstance(inducing, str) and inducing == "auto"):
        return
    if not (_is_integer(inducing) and inducing >= 1):
        raise ValueError(f"inducing must be 'auto', None or an integer of at least 1; got {inducing!r}")
    if settings.inference != "collapsed":
        raise ValueError(f"inducing inputs need inference='collapsed'; got {settings.inference!r}")
    if settings.own_kernels != "auto" and settings.own_kernels:
        raise ValueError("inducing inputs are for outputs that share a kernel: set own_kernels=False, or inducing=None")


def check_shared_settings(settings: Any) -> None:
    """Checks the settings that all estimators have: ``seed`` and ``standardize``."""
    if settings.seed is not None and not _is_integer(settings.seed):
        raise ValueError(f"seed must be an integer or None; got {settings.seed!r}")
    if not (isinstance(settings.standardize, bool) or settings.standardize in ("field", "outputs")):
        raise ValueError(f"standardize must be True, False, 'field' or 'outputs'; got {settings.standardize!r}")


def check_count(name: str, value: Any) -> None:
    """Checks a setting that must be an integer of at least 1."""
    if not (_is_integer(value) and value >= 1):
        raise ValueError(f"{name} must be an integer of at least 1; got {value!r}")


def check_truth(name: str, value: Any) -> None:
    """Checks a setting that must be True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False; got {value!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
