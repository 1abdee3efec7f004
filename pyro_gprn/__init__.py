"""Gaussian process regression networks on Pyro.

Multi-output regression in which the outputs are an input-dependent mixture of latent functions. The cost of a
training step does not grow with the number of outputs. See the README for a first example.

Names are loaded when they are first asked for (PEP 562), so that a user of the Pyro models does not wait for
scikit-learn, which only the estimator needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as below; "as" tells type checkers that they are public
    from pyro_gprn.algebra.tensor_normal import MatrixNormal as MatrixNormal, TensorNormal as TensorNormal  # noqa: I001
    from pyro_gprn.collapsed import (
        CollapsedFit as CollapsedFit,
        CollapsedGPRN as CollapsedGPRN,
        CollapsedGuide as CollapsedGuide,
        fit_collapsed as fit_collapsed,
        learn_output_scales as learn_output_scales,
        sample_weights as sample_weights,
    )
    from pyro_gprn.coregionalised import CoregionalisedGPRN as CoregionalisedGPRN
    from pyro_gprn.diagnostics import diagnose as diagnose, to_arviz as to_arviz
    from pyro_gprn.estimator import GPRNRegressor as GPRNRegressor
    from pyro_gprn.experiments.comparison import compare as compare
    from pyro_gprn.factorised import (
        GPRN as GPRN,
        ClosedFormELBO as ClosedFormELBO,
        KroneckerGuide as KroneckerGuide,
        MeanFieldGuide as MeanFieldGuide,
        MixtureGuide as MixtureGuide,
    )
    from pyro_gprn.plots import plot_correlation as plot_correlation, plot_field as plot_field, plot_fit as plot_fit
    from pyro_gprn.prediction import (
        PosteriorPredictive as PosteriorPredictive,
        output_correlation as output_correlation,
        posterior_predictive as posterior_predictive,
    )

_HOMES = {
    "algebra.tensor_normal": ("MatrixNormal", "TensorNormal"),
    "collapsed": (
        "CollapsedFit",
        "CollapsedGPRN",
        "CollapsedGuide",
        "fit_collapsed",
        "learn_output_scales",
        "sample_weights",
    ),
    "coregionalised": ("CoregionalisedGPRN",),
    "diagnostics": ("diagnose", "to_arviz"),
    "estimator": ("GPRNRegressor",),
    "experiments.comparison": ("compare",),
    "factorised": ("GPRN", "ClosedFormELBO", "KroneckerGuide", "MeanFieldGuide", "MixtureGuide"),
    "plots": ("plot_correlation", "plot_field", "plot_fit"),
    "prediction": ("PosteriorPredictive", "output_correlation", "posterior_predictive"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pyro_gprn' has no attribute {name!r}")
    value = getattr(import_module(f"pyro_gprn.{_HOME_OF[name]}"), name)
    globals()[name] = value  # found at once the next time
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
