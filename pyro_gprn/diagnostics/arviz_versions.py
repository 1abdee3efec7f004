"""Turns named arrays into what ArviZ reads: InferenceData for ArviZ 0.x, a DataTree for 1.x.

This is the only module that knows which version of ArviZ is installed. It needs no torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

#: A variable: the names of its dimensions, and its values.
Variable = tuple[Sequence[str], np.ndarray]


def import_arviz() -> Any:
    """The module ``arviz``; if it is missing, an error that says how to install it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # 0.23 announces 1.0, which this module knows
        return _import("arviz")


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as missing:
        raise ImportError(f"diagnostics need {name}: pip install 'pyro-gprn[diagnostics]'") from missing


def _is_first_or_later(arviz: Any) -> bool:
    return int(arviz.__version__.partition(".")[0]) >= 1


def to_inference_data(
    groups: Mapping[str, Mapping[str, Variable]],
    coordinates: Mapping[str, Sequence[Any]],
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Groups of named arrays in the form that ArviZ reads.

    :param groups: for each group, such as ``"posterior"``, its variables by name. The first dimensions of draws are
        ``"chain"`` and ``"draw"``.
    :param coordinates: labels along those dimensions that have any.
    :param attributes: attributes that every group gets.

    >>> data = to_inference_data({"posterior": {"noise": (("chain", "draw"), np.ones((2, 5)))}}, {})
    >>> dict(data["posterior"].sizes)
    {'chain': 2, 'draw': 5}
    """
    arviz, xr = import_arviz(), _import("xarray")
    datasets = {}
    for group, variables in groups.items():
        sizes: dict[str, int] = {}
        for dims, values in variables.values():
            sizes |= dict(zip(dims, np.shape(values), strict=True))
        labels: dict[str, Any] = {name: range(sizes[name]) for name in ("chain", "draw") if name in sizes}
        labels |= {name: values for name, values in coordinates.items() if name in sizes}
        data = {name: (list(dims), np.asarray(values)) for name, (dims, values) in variables.items()}
        datasets[group] = xr.Dataset(
            data, coords={name: list(values) for name, values in labels.items()}, attrs=dict(attributes or {})
        )
    if _is_first_or_later(arviz):
        return xr.DataTree.from_dict(datasets)
    return arviz.InferenceData(**datasets)


def pareto_k(log_ratios: np.ndarray) -> float:
    """The Pareto shape k of the upper tail of importance ratios, given their logarithms ``(s,)``: below 0.7 trust them.

    It is infinite if the ratios are too few, or too much alike, to have a tail.

    >>> draws = np.random.default_rng(0).exponential(size=500)
    >>> pareto_k(-3.0 * draws) < 0.7 < pareto_k(3.0 * draws)
    True
    """
    arviz = import_arviz()
    if _is_first_or_later(arviz):
        from arviz_stats.base import array_stats

        try:
            # 1.x takes log-likelihoods, which are the logarithms of the ratios with the other sign.
            return float(array_stats.psislw(-log_ratios)[1])
        except ValueError:  # of a tail that is too short
            return math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ warns of a large k, which is returned anyway
        return float(arviz.psislw(log_ratios.copy())[1])


def elpd_of(loo: Any) -> float:
    """The expected log predictive density in what ``az.loo`` returns, whose name depends on the version of ArviZ.

    >>> from types import SimpleNamespace
    >>> elpd_of(SimpleNamespace(elpd=-1.5)), elpd_of(SimpleNamespace(elpd_loo=-1.5))
    (-1.5, -1.5)
    """
    return float(loo.elpd_loo if hasattr(loo, "elpd_loo") else loo.elpd)


def draw_predictive_check(data: Any) -> Any:
    """ArviZ's plot of a posterior predictive check, whose name depends on the version of ArviZ."""
    arviz = import_arviz()
    sizes = data["posterior_predictive"].sizes
    n_shown = min(50, sizes["chain"] * sizes["draw"])
    if _is_first_or_later(arviz):
        return arviz.plot_ppc_dist(data, num_samples=n_shown)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of matplotlib, for ArviZ 0.x to heed
        return arviz.plot_ppc(data, num_pp_samples=n_shown)
