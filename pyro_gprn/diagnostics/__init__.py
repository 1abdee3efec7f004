"""Posterior diagnostics: ArviZ, leave-one-out, calibration, a report in words, pictures."""

from pyro_gprn.diagnostics import collapsed_draws, coregionalised_draws, factorised_draws  # register their draws
from pyro_gprn.diagnostics.arviz import align, to_arviz
from pyro_gprn.diagnostics.arviz_versions import elpd_of, import_arviz, to_inference_data
from pyro_gprn.diagnostics.plots import plot_calibration, plot_khat, plot_latents, plot_predictive_check
from pyro_gprn.diagnostics.report import Report, diagnose

__all__ = [
    "Report",
    "align",
    "collapsed_draws",
    "coregionalised_draws",
    "diagnose",
    "elpd_of",
    "factorised_draws",
    "import_arviz",
    "plot_calibration",
    "plot_khat",
    "plot_latents",
    "plot_predictive_check",
    "to_arviz",
    "to_inference_data",
]
