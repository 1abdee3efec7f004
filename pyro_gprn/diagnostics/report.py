"""A short report on a fit, in words."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.collapsed.guide import CollapsedGuide
from pyro_gprn.collapsed.model import CollapsedGPRN
from pyro_gprn.coregionalised import CoregionalisedGPRN
from pyro_gprn.diagnostics.arviz import align
from pyro_gprn.diagnostics.arviz_versions import elpd_of, import_arviz, pareto_k, to_inference_data
from pyro_gprn.diagnostics.coregionalised_draws import CoregionalisedDraws
from pyro_gprn.diagnostics.coverage import Coverage, find_coverages
from pyro_gprn.diagnostics.held_out import (
    LEAST_ROWS,
    N_FOLDS,
    RowPredictions,
    predict_by_folds,
    predict_by_refits,
    predict_without_refit,
)
from pyro_gprn.diagnostics.leave_one_out import DescribedDraws, describe_draws
from pyro_gprn.diagnostics.source import PosteriorSource
from pyro_gprn.estimator.inference import inference_of
from pyro_gprn.network.base import Network
from pyro_gprn.pyro_state import isolated, new_generator, new_seed

#: Steps of further training that tell whether the bound had settled, and their learning rate.
MORE_STEPS, MORE_RATE = 60, 0.04
#: How much a bound may still gain, or a restart may fall behind the best, as a share of what training gained.
TOLERANCE = 0.03
#: A latent function counts as unused if its posterior mean explains less than this share of its mean square.
USELESS = 0.2
#: With fewer (effective) outputs a fit may leave functions unused that the data came from. Of 24 fits to draws from
#: the network itself, with the true 2 or 3 functions, all 8 with 4 outputs did so, 5 of 8 with 12, and none with 60.
FEW_OUTPUTS = 20
#: Calibration is checked on so many outputs: as many as make this many numbers, but not fewer than the second.
N_NUMBERS, N_OUTPUTS = 100_000, 100
N_DRAWS = 200
#: Importance ratios whose k-hat is above this cannot be trusted; nor a sum over rows, if it is in this share of them.
K_LIMIT, POOR_ROWS = 0.7, 0.05
#: ArviZ tells a tail from this many draws on.
FEWEST_DRAWS = 25
#: A fold of a network that has its weights is trained for at least so many steps.
LEAST_STEPS = 100
_UNAVAILABLE = "not available for this posterior, because "


@dataclass
class Report:
    """What :func:`diagnose` found. Print it to read it.

    :attr:`warnings` says what looks wrong, :attr:`untrusted` which checks say nothing here.

    >>> report = Report()
    >>> report.say("bound", "-12.3; 60 further steps gain 40", "the bound has not settled")
    >>> print(report)
    bound  -12.3; 60 further steps gain 40
    <BLANKLINE>
    ! the bound has not settled
    """

    findings: dict[str, str] = field(default_factory=dict)  #: what was found, by heading
    warnings: list[str] = field(default_factory=list)  #: what looks wrong, each in a sentence or two
    untrusted: list[str] = field(default_factory=list)  #: which checks cannot be trusted, and what to look at instead
    further_gain: float = np.nan  #: what the bound gained by further training
    restart_bounds: list[float] = field(default_factory=list)  #: the bound of each restart
    pareto_k: float = np.nan  #: k-hat of the variational posterior
    loo: Any = None  #: what ``az.loo`` returns, with one observation for each row; None for a few draws
    elpd: float = np.nan  #: the expected log predictive density of all rows, by ``az.loo``; see :attr:`untrusted`
    is_refitted: bool = False  #: True if held-out rows are those of refitted folds; otherwise they are optimistic
    #: probability integral transforms of b outputs in held-out rows, (N, b), NaN where missing
    pit: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    coverage: float = np.nan  #: the share of these outputs that lie in their central 95 % intervals
    coverages: list[Coverage] = field(default_factory=list)  #: the same of all, and where outputs vary
    residual: float = np.nan  #: the root mean square error in held-out rows over the outputs' standard deviation
    log_density: float = np.nan  #: the mean log density of a number in held-out rows, of standardised outputs
    #: the share of each latent function in the mean square of all, (K,), largest first
    latent_shares: np.ndarray = field(default_factory=lambda: np.zeros(0))
    #: the share of each latent function's mean square that its posterior mean explains, (K,)
    latent_certainties: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __str__(self) -> str:
        width = max(len(heading) for heading in self.findings)
        indent = "\n" + " " * (width + 2)
        lines = [f"{heading:<{width}}  " + finding.replace("\n", indent) for heading, finding in self.findings.items()]
        lines += ["", *(f"! {warning}" for warning in self.warnings), *(f"? {doubt}" for doubt in self.untrusted)]
        if not self.warnings:
            lines.append("nothing else looks wrong" if self.untrusted else "nothing looks wrong")
        return "\n".join(lines)

    def say(self, heading: str, finding: str, warning: str | None = None) -> None:
        """Notes a finding under a heading and, if something is wrong, a warning."""
        self.findings[heading] = finding
        if warning is not None:
            self.warnings.append(warning)


def diagnose(source: Any, *, seed: int = 0) -> Report:
    """Checks a fit: has the bound settled, do restarts agree, is it calibrated, which latent functions matter?

    Calibration is judged by rows that are held out: the functions are learned anew without them, in three folds of a
    few dozen steps. Without a guide each row is left out of the fit as it is, which is optimistic; the report says so.

    Of a network that has its weights (``inference="kronecker"`` and others) the same is said, but for what needs the
    weights integrated out, which the report names. Its folds are trained anew, in as many steps as the fit took.

    :param source: a fitted :class:`~pyro_gprn.GPRNRegressor`, ``(model, guide)``, ``(model, mcmc)`` or
        ``(model, draws)``. If it has draws instead of a guide, training is not checked.
    :param seed: seed of all draws.

    >>> from pyro_gprn import GPRNRegressor
    >>> X = np.linspace(0, 1, 15)[:, None]
    >>> r = GPRNRegressor(1, steps=3, seed=0, selection=False, progress=False).fit(X, np.sin(9 * X**2 + np.arange(4)))
    >>> report = diagnose(r)
    >>> sorted(report.findings)
    ['bound', 'coverage', 'latents', 'leave-one-out', 'posterior', 'residuals', 'restarts']
    """
    about = PosteriorSource.of(source)
    report, generator = Report(), new_generator(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ warns of what the report says anyway
        _look_at_fit(*about.chains[about.best], report, about, generator)
    return report


@singledispatch
def _look_at_fit(
    model: Network, guide: Any, report: Report, about: PosteriorSource, generator: torch.Generator
) -> None:
    """Notes in a report what is found of the best chain; here of a network that has its weights."""
    unavailable = _UNAVAILABLE + "with its weights q is over too many numbers for importance sampling"
    _look_at_refits(report, about, unavailable, generator)
    with isolated(generator):
        q_f, _ = model.at_centre(lambda: guide.posterior(about.known))
        F = q_f.sample((N_DRAWS,))
    look_at_latents(report, F, model.n_outputs)


@_look_at_fit.register(CoregionalisedGPRN)
def _(
    model: CoregionalisedGPRN, guide: Any, report: Report, about: PosteriorSource, generator: torch.Generator
) -> None:
    _look_at_refits(report, about, "exact, given weights and hyperparameters, which are points", generator)
    F = CoregionalisedDraws(model, guide, about.known, N_DRAWS, generator=generator).F
    look_at_latents(report, F, model.n_outputs)


@_look_at_fit.register(CollapsedGPRN)
def _(model: CollapsedGPRN, posterior: Any, report: Report, about: PosteriorSource, generator: torch.Generator) -> None:
    described = [describe_draws(*chain, N_DRAWS, generator=generator) for chain in about.chains]
    of_best, is_guide = described[about.best], isinstance(posterior, CollapsedGuide)
    if is_guide:
        _look_at_training(report, about, generator)
        _look_at_posterior(report, posterior, of_best)
    positions, scales = _some_outputs(model), about.scales(about.best)
    if is_guide and model.n_rows >= LEAST_ROWS:
        rows = predict_by_folds(model, posterior, about.known, positions, scales=scales, generator=generator)
    else:
        rows = predict_without_refit(of_best.draws, about.known, positions, scales, generator=generator)
    _look_at_rows(report, described, rows)
    _look_at_calibration(report, rows)
    _look_at_residuals(report, rows)
    n_effective = model.likelihood_power * model.n_outputs
    look_at_latents(report, of_best.F if is_guide else align(of_best.F, of_best.F[0]), n_effective)


def _look_at_refits(report: Report, about: PosteriorSource, of_posterior: str, generator: torch.Generator) -> None:
    """What is found of a network by folds that are trained anew.

    :param of_posterior: what is to be said of its posterior.
    """
    model, guide = about.chains[about.best]
    inference = inference_of(guide)
    _look_at_training(report, about, generator)
    report.say("posterior", of_posterior)
    report.say("leave-one-out", _UNAVAILABLE + "it needs the weights integrated out, as inference='collapsed' has them")
    if model.n_rows < LEAST_ROWS:
        report.say("coverage", _UNAVAILABLE + f"{N_FOLDS} folds need {LEAST_ROWS} rows; there are {model.n_rows}")
    else:
        steps = min(inference.steps, len(about.runs[about.best]["losses"]) if about.runs else inference.steps)
        steps = max(steps, LEAST_STEPS)
        positions, scales = _some_outputs(model), about.scales(about.best)
        rows = predict_by_refits(model, guide, about.known, positions, steps=steps, scales=scales, generator=generator)
        report.log_density = rows.log_density.nanmean().item()
        report.findings["leave-one-out"] += f"\n{_density_of(report)}"
        _look_at_calibration(report, rows)
        _look_at_residuals(report, rows)


def _look_at_training(report: Report, about: PosteriorSource, generator: torch.Generator) -> None:
    model, guide = copy.deepcopy(about.chains[about.best])
    seed = new_seed(generator)
    train = inference_of(guide).train
    more = train(model, about.known, MORE_STEPS, MORE_RATE, guide=guide, seed=seed, progress=False)
    runs, best = about.runs, about.best
    gained = runs[best]["bound"] - runs[best]["start"] if runs else np.nan
    report.further_gain = more.bound - more.start
    allowed = 5.0 + (0.0 if np.isnan(gained) else TOLERANCE * max(gained, 0.0))
    report.say(
        "bound",
        f"{more.start:.6g}; {MORE_STEPS} further steps gain {report.further_gain:.3g}",
        f"the bound has not settled: {MORE_STEPS} further steps raise it by {report.further_gain:.3g}. Train for more"
        " steps (steps=, or warm_start=True and fit again)."
        if report.further_gain > allowed
        else None,
    )
    report.restart_bounds = [run["bound"] for run in runs]
    if len(runs) > 1:
        worst = min(report.restart_bounds)
        behind = max(report.restart_bounds) - worst
        report.say(
            "restarts",
            f"{len(runs)}, bounds from {worst:.6g} to {max(report.restart_bounds):.6g}",
            f"restarts disagree: one ended {behind:.3g} below the best, in a worse local optimum. The best is kept;"
            " with more restarts a better one may be found."
            if behind > allowed
            else None,
        )
    else:
        report.say("restarts", "one start: whether others agree is not known (restarts=3 would tell)")


def _look_at_posterior(report: Report, guide: CollapsedGuide, described: DescribedDraws) -> None:
    q = guide.posterior()
    ratios = (described.log_joint - q.log_prob(described.draws.V)).detach().cpu().numpy()
    report.pareto_k = pareto_k(ratios)
    if report.pareto_k <= K_LIMIT:
        report.say("posterior", f"PSIS k-hat {report.pareto_k:.2f}: q is close to the posterior")
        return
    n = described.F[0].numel()
    report.say("posterior", f"PSIS k-hat {report.pareto_k:.2f}: q, over {n} numbers, is not close to the posterior")
    report.untrusted.append(
        f"importance sampling cannot correct q: its k-hat, {report.pareto_k:.2f}, is above {K_LIMIT}. Trust nothing"
        " that weights draws of q, elpd among it. Look at coverage and density of held-out rows, which do without."
    )


def _some_outputs(model: Network) -> Tensor:
    """Positions of the outputs on which calibration is checked, ``(b,)``."""
    D = model.n_outputs
    n_outputs = min(D, max(N_OUTPUTS, N_NUMBERS // model.n_rows))
    return torch.linspace(0, D - 1, n_outputs).round().long().unique().to(model.X.device)


def _look_at_rows(report: Report, described: list[DescribedDraws], held_out: RowPredictions) -> None:
    by_row = torch.stack([each.by_row for each in described]).cpu().numpy()
    report.log_density = held_out.log_density.nanmean().item()
    if by_row[..., 0].size < FEWEST_DRAWS:
        finding = f"elpd is not told: it needs {FEWEST_DRAWS} draws, and there are {by_row[..., 0].size}"
        report.say("leave-one-out", f"{finding}\n{_density_of(report)}")
        return
    dims = ("chain", "draw", "run")
    noise = np.random.default_rng(0).normal(size=by_row.shape[:2])  # az.loo needs a posterior for its number of draws
    data = to_inference_data({"posterior": {"size": (dims[:2], noise)}, "log_likelihood": {"y": (dims, by_row)}}, {})
    report.loo = import_arviz().loo(data, pointwise=True)
    k = np.asarray(report.loo.pareto_k)
    poor = int((k > K_LIMIT).sum())
    report.elpd = elpd_of(report.loo)
    if poor > POOR_ROWS * len(k):
        finding = f"elpd cannot be trusted: k-hat is above {K_LIMIT} in {poor} of {len(k)} rows"
        report.untrusted.append(
            f"leave-one-out by importance sampling: k-hat is above {K_LIMIT} in {poor} of {len(k)} rows, so elpd says"
            " nothing. Compare fits by the log density of held-out rows."
        )
    elif report.pareto_k > K_LIMIT:
        finding = "elpd cannot be trusted: it weights draws of q"
    else:
        but = f"; k-hat is above {K_LIMIT} in {poor}" if poor else ""
        finding = f"elpd {report.elpd:.6g} over {len(k)} rows{but}"
    report.say("leave-one-out", f"{finding}\n{_density_of(report)}")


def _density_of(report: Report) -> str:
    return f"log density {report.log_density:.4g} a number in held-out rows"


def _look_at_calibration(report: Report, held_out: RowPredictions) -> None:
    report.pit, report.is_refitted = held_out.pit.cpu().numpy(), held_out.is_refitted
    report.coverages = find_coverages(held_out.pit, held_out.values, held_out.mean)
    report.coverage = report.coverages[0].outer
    how = (
        "of held-out rows, by three refitted folds"
        if report.is_refitted
        else "of rows left out of the fit as it is, whose functions have seen them: optimistic"
    )
    found = "\n".join(str(each) for each in report.coverages)
    report.say("coverage", f"in central 95 % intervals (50 %), {how}:\n{found}")
    narrow = [f"{each.outer:.0%} of {each.place}" for each in report.coverages if each.is_over_confident]
    if narrow:
        report.warnings.append(f"the posterior is over-confident: 95 % intervals hold {_listed(narrow)}.")
    inside = [
        f"{each.inner:.0%} of {each.place}"
        for each in report.coverages
        if each.is_narrow_inside and not each.is_over_confident
    ]
    if inside:
        report.warnings.append(f"intervals are too narrow in the middle: 50 % intervals hold {_listed(inside)}.")
    wide = [f"{each.inner:.0%} of {each.place}" for each in report.coverages if each.is_wide_inside]
    if wide:
        report.warnings.append(
            f"intervals are too wide in the middle: 50 % intervals hold {_listed(wide)}. Most errors are far smaller"
            " than the standard deviation says."
        )


def _look_at_residuals(report: Report, held_out: RowPredictions) -> None:
    spread = (held_out.values - held_out.values.nanmean(0)).square().nanmean().sqrt()
    error = (held_out.values - held_out.mean).square().nanmean().sqrt()
    report.residual = (error / spread).item()
    report.say(
        "residuals",
        f"root mean square {report.residual:.3g} of the outputs' standard deviation in held-out rows",
        "held-out rows are predicted no better than by the outputs' means" if report.residual >= 1.0 else None,
    )


def _listed(clauses: list[str]) -> str:
    return ", and ".join(clauses)


def look_at_latents(report: Report, F: Tensor, n_outputs: float) -> None:
    """Notes in a report which of the latent functions matter.

    :param F: draws of the functions, ``(s, N, K)``.
    :param n_outputs: how many (effective) outputs there were to learn them from.
    """
    # Rotations of F mean nothing, so the functions are taken along the principal axes of E[FᵀF]. One that the data do
    # not need is as likely positive as negative everywhere: its mean is small beside its spread.
    sizes, axes = torch.linalg.eigh((F.mT @ F).mean(0))
    sizes, axes = sizes.flip(0).clamp(min=1e-300), axes.flip(1)
    certain = (F.mean(0) @ axes).square().sum(0) / sizes
    report.latent_shares = (sizes / sizes.sum()).cpu().numpy()
    report.latent_certainties = certain.cpu().numpy()
    unused = int(((certain < USELESS) | (sizes < 1e-6 * sizes.sum())).sum())
    shares = ", ".join(f"{share:.1%}" for share in report.latent_shares)
    found = f"{shares} of the functions' size, of which " + ", ".join(f"{c:.0%}" for c in certain.tolist())
    warning = None
    if unused and n_outputs < FEW_OUTPUTS:
        found += f" is certain;\nthe fit does not use {unused} of them, but {n_outputs:.0f} outputs are few to tell"
    else:
        found += " is certain"
    if unused and n_outputs >= FEW_OUTPUTS:
        warning = f"{unused} of {F.shape[-1]} latent functions do nothing: n_latents={F.shape[-1] - unused} would do."
    report.say("latents", found, warning)
