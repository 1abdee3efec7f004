"""Pictures for diagnostics, on ArviZ and matplotlib; each returns its axes.

The picture of k-hat is our own, because ArviZ's cannot be drawn beside others: that of ArviZ 1.x takes no axes and
returns none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_gprn.diagnostics.arviz_versions import draw_predictive_check
from pyro_gprn.diagnostics.report import K_LIMIT, Report
from pyro_gprn.plots import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_calibration", "plot_khat", "plot_latents", "plot_predictive_check"]


def plot_predictive_check(data: Any) -> Any:
    """The distribution of the outputs beside those of draws from the posterior predictive, by ArviZ.

    :param data: from :func:`~pyro_gprn.to_arviz`.
    :returns: what ArviZ returns: axes in 0.x, a collection of plots in 1.x.

    >>> from pyro_gprn.diagnostics.arviz_versions import to_inference_data
    >>> draws = np.random.default_rng(0).normal(size=(1, 50, 8))
    >>> predicted = {"y": (("chain", "draw", "run"), draws[:, 1:])}
    >>> observed = {"y": (("run",), draws[0, 0])}
    >>> groups = {"posterior_predictive": predicted, "observed_data": observed}
    >>> picture = plot_predictive_check(to_inference_data(groups, {}))
    """
    return draw_predictive_check(data)


def plot_calibration(report: Report, axes: Any = None) -> np.ndarray:
    """Probability integral transforms of held-out rows, and how often central intervals hold them.

    For calibrated predictions the histogram is flat and the curve lies on the diagonal. Over-confident predictions give
    a histogram like a ∪ and a curve below the diagonal; too cautious ones give a ∩ and a curve above it.

    :param report: from :func:`~pyro_gprn.diagnostics.diagnose`.
    :param axes: two matplotlib axes to draw on; by default new ones.

    >>> [axes.get_title() for axes in plot_calibration(Report(pit=np.random.default_rng(0).uniform(size=(20, 5))))]
    ['held-out rows', 'coverage']
    """
    drawn = new_axes(2) if axes is None else np.asarray(axes)
    pit = report.pit[~np.isnan(report.pit)]
    drawn[0].hist(pit, bins=20, range=(0, 1), density=True, color="C0", alpha=0.7)
    drawn[0].axhline(1.0, color="black", lw=1)
    drawn[0].set(xlabel="probability integral transform", ylabel="density", title="held-out rows")
    levels = np.linspace(0.02, 0.98, 49)
    covered = [np.mean(np.abs(pit - 0.5) <= level / 2) for level in levels]
    drawn[1].plot([0, 1], [0, 1], color="black", lw=1, label="right")
    drawn[1].plot(levels, covered, color="C0", label="found")
    drawn[1].set(xlabel="central interval", ylabel="share of outputs inside", title="coverage")
    drawn[1].legend()
    return drawn


def plot_khat(report: Report, axes: Axes | None = None) -> Axes:
    """The Pareto k-hat of each row: how heavy the tail is of the importance ratios that would leave the row out.

    The larger it is, the more the posterior depends on that one row.

    :param report: from :func:`~pyro_gprn.diagnostics.diagnose`.
    :param axes: matplotlib axes to draw on; by default new ones.

    >>> from types import SimpleNamespace
    >>> plot_khat(Report(loo=SimpleNamespace(pareto_k=[0.1, 0.9]))).get_xlabel()
    'run'
    """
    if report.loo is None:
        raise ValueError(
            "the report has no leave-one-out by importance sampling: too few draws, or a fit that has its weights"
        )
    axes = new_axes(1)[0] if axes is None else axes
    k = np.asarray(report.loo.pareto_k)
    axes.scatter(np.arange(len(k)), k, s=12, color=np.where(k > K_LIMIT, "C3", "C0"))
    axes.axhline(K_LIMIT, color="black", lw=1, ls="--", label=f"{K_LIMIT}: above, not to be trusted")
    axes.set(xlabel="run", ylabel="Pareto k-hat", title="leave-one-out")
    axes.legend()
    return axes


def plot_latents(data: Any, column: int = 0, axes: Axes | None = None) -> Axes:
    """The latent functions with 95 % bands, over one input.

    :param data: from :func:`~pyro_gprn.to_arviz`, where draws of ``f`` are aligned, so that their quantiles mean
        something.
    :param column: the number of the input column to draw them over.
    :param axes: matplotlib axes to draw on; by default new ones.

    >>> f, X = np.random.default_rng(0).normal(size=(1, 50, 8, 2)), np.linspace(0, 1, 8)[:, None]
    >>> len(plot_latents({"posterior": {"f": f}, "constant_data": {"X": X}}).get_lines())
    2
    """
    axes = new_axes(1)[0] if axes is None else axes
    f = np.asarray(data["posterior"]["f"])
    f = f.reshape(-1, *f.shape[2:])  # draws of all chains, (s, N, K)
    x = np.asarray(data["constant_data"]["X"])[:, column]
    order = np.argsort(x)
    for k in range(f.shape[-1]):
        low, middle, high = np.quantile(f[:, order, k], [0.025, 0.5, 0.975], axis=0)
        axes.plot(x[order], middle, color=f"C{k % 10}", lw=1, marker=".", ms=4, label=f"latent {k}")
        axes.fill_between(x[order], low, high, color=f"C{k % 10}", alpha=0.2)
    axes.set(xlabel=f"input {column}", ylabel="f", title="latent functions (aligned)")
    axes.legend()
    return axes
