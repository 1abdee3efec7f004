"""The summary of a table of results, as markdown: means over splits, comparisons in pairs, and the criteria."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comparison.methods import OURS
from comparison.table import Cell

Results = Mapping[Cell, Mapping[str, Any]]

#: Scaled RMSE may be so many times the best other method's.
MOST_RATIO = 1.02
#: The shares of problems where scaled RMSE, and NLPD and CRPS, are to be the lowest.
SHARE_RMSE, SHARE_DENSITY = 2 / 3, 3 / 4
#: Where coverage should be: overall, and in the tenth of outputs that vary most.
COVERAGE, COVERAGE_TOP = (0.92, 0.98), (0.88, 0.99)
#: Coverage is judged where so many numbers were predicted.
FEWEST_NUMBERS = 1000
TITLES = {
    "rmse": "Scaled RMSE",
    "mae": "MAE (standardised)",
    "nlpd": "NLPD",
    "crps": "CRPS",
    "coverage": "Coverage of 95 % intervals",
    "coverage_top": "Coverage in the tenth of outputs that vary most",
    "mae_in_units": "MAE in units",
    "seconds": "Seconds",
}


@dataclass(frozen=True)
class Comparison:
    """Our method and the best other one on a problem, over the splits that both have."""

    ours: float  #: our mean over the splits
    other: str  #: the other method with the lowest mean
    best: float  #: its mean
    error: float  #: standard error of the mean difference, NaN of a single split

    @property
    def ratio(self) -> float:
        return self.ours / self.best

    @property
    def difference(self) -> float:
        return self.ours - self.best


class Summary:
    """Means and comparisons of a table of results."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self.problems = list(dict.fromkeys(cell.problem for cell in results))
        self.methods = list(dict.fromkeys(cell.method for cell in results))

    def values(self, problem: str, method: str, name: str) -> dict[int, float]:
        """A score of a method on a problem, by split."""
        found = {}
        for cell, result in self._results.items():
            if (cell.problem, cell.method) == (problem, method) and "scores" in result:
                value = result["seconds"] if name == "seconds" else result["scores"].get(name)
                if value is not None:
                    found[cell.split] = value
        return found

    def mean(self, problem: str, method: str, name: str) -> float | None:
        """The mean over splits; None if there is no result."""
        values = self.values(problem, method, name)
        return statistics.fmean(values.values()) if values else None

    def compare(self, problem: str, name: str) -> Comparison | None:
        """Our method beside the best other one; None if either is missing."""
        ours = self.values(problem, OURS, name)
        found = []
        for method in self.methods:
            theirs = self.values(problem, method, name)
            if method == OURS or not ours or not ours.keys() <= theirs.keys():
                continue  # a method that failed on a split is no reference
            differences = [ours[split] - theirs[split] for split in ours]
            spread = statistics.stdev(differences) if len(differences) > 1 else math.nan
            best = statistics.fmean(theirs[split] for split in ours)
            found.append(
                Comparison(statistics.fmean(ours.values()), method, best, spread / math.sqrt(len(differences)))
            )
        return min(found, key=lambda each: each.best, default=None)

    def n_scored(self, problem: str) -> int:
        """The least number of predicted numbers in a split."""
        return min(result["n_scored"] for cell, result in self._results.items() if cell.problem == problem)

    def failures(self) -> list[str]:
        """What went wrong, a line each."""
        return [
            f"{cell.problem}, split {cell.split}, {cell.method}: {result['error']}"
            for cell, result in self._results.items()
            if "error" in result
        ]


def write_summary(results: Results) -> str:
    """The whole summary as markdown."""
    summary = Summary({cell: result for cell, result in results.items() if "n_scored" in result})
    parts = [_overview(summary), *(_means(summary, name, title) for name, title in TITLES.items())]
    parts += [_comparisons(summary, name) for name in ("rmse", "nlpd", "crps")]
    parts.append(_criteria(summary))
    if failures := Summary(results).failures():
        parts.append("\n".join(["**Failed**", "", *(f"- {line}" for line in failures)]))
    return "\n\n".join(part for part in parts if part)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _overview(summary: Summary) -> str:
    """A row for each problem: our scores beside those of the best other method, and our coverage."""
    names = ("rmse", "nlpd", "crps")
    rows = []
    for problem in summary.problems:
        found = {name: each for name in names if (each := summary.compare(problem, name))}
        if len(found) < len(names):
            continue
        row = [problem, str(len(summary.values(problem, OURS, "rmse")))]
        for name, each in found.items():
            ratio = [] if name == "nlpd" else [f"{each.ratio:.3f}"]
            row += [_number(each.ours), f"{_number(each.best)}, {each.other}", *ratio]
        covered = [summary.mean(problem, OURS, name) for name in ("coverage", "coverage_top")]
        rows.append([*row, *("" if each is None else f"{each:.3f}" for each in covered)])
    header = ["problem", "splits", "RMSE", "best other", "ratio", "NLPD", "best other", "CRPS", "best other", "ratio"]
    return f"**{OURS}**, means over splits\n\n" + _table([*header, "coverage", "top tenth"], rows) if rows else ""


def _number(value: float | None, is_bold: bool = False) -> str:
    shown = "" if value is None else f"{value:.4g}"
    return f"**{shown}**" if is_bold else shown


def _means(summary: Summary, name: str, title: str) -> str:
    """Problems × methods; the lowest of a row is bold where low is good."""
    rows = []
    for problem in summary.problems:
        means = {method: summary.mean(problem, method, name) for method in summary.methods}
        known = [value for value in means.values() if value is not None]
        if not known:
            continue
        lowest = min(known) if not name.startswith(("coverage", "seconds")) else math.nan
        rows.append([problem, *(_number(each, each == lowest) for each in means.values())])
    return f"**{title}**, mean over splits\n\n" + _table(["problem", *summary.methods], rows) if rows else ""


def _comparisons(summary: Summary, name: str) -> str:
    header = ["problem", OURS, "best other", "which", "ratio", "difference", "standard error"]
    rows = []
    for problem in summary.problems:
        if found := summary.compare(problem, name):
            ratio = "" if name == "nlpd" else f"{found.ratio:.3f}"  # a log density has no ratio
            numbers = [_number(found.ours), _number(found.best), found.other, ratio]
            rows.append([problem, *numbers, f"{found.difference:+.3g}", f"{found.error:.2g}"])
    return f"**{TITLES[name]}: {OURS} beside the best other method, paired**\n\n" + _table(header, rows) if rows else ""


def _criteria(summary: Summary) -> str:
    lines = ["**Criteria**", ""]
    compared = {name: {} for name in ("rmse", "nlpd", "crps")}  # type: dict[str, dict[str, Comparison]]
    for name, found in compared.items():
        found |= {p: each for p in summary.problems if (each := summary.compare(p, name))}
    high = [p for p, each in compared["rmse"].items() if each.ratio > MOST_RATIO]
    lines.append(_criterion(f"scaled RMSE at most {MOST_RATIO} times the best other", high, len(compared["rmse"]), 1.0))
    for name, share in (("rmse", SHARE_RMSE), ("nlpd", SHARE_DENSITY), ("crps", SHARE_DENSITY)):
        beaten = [p for p, each in compared[name].items() if each.difference >= 0]
        lines.append(_criterion(f"{TITLES[name]} lowest", beaten, len(compared[name]), share))
    for name, (low, high_end) in (("coverage", COVERAGE), ("coverage_top", COVERAGE_TOP)):
        judged = {
            p: mean
            for p in summary.problems
            if summary.n_scored(p) >= FEWEST_NUMBERS and (mean := summary.mean(p, OURS, name)) is not None
        }
        outside = [f"{p} ({mean:.3f})" for p, mean in judged.items() if not low <= mean <= high_end]
        lines.append(_criterion(f"{TITLES[name]}: {low} to {high_end}", outside, len(judged), 1.0))
    return "\n".join(lines)


def _criterion(what: str, not_so: Sequence[str], n_judged: int, share: float) -> str:
    """A line: whether it holds on at least that share of the problems."""
    if n_judged == 0:
        return f"- {what}: no results"
    n_held = n_judged - len(not_so)
    verdict = "holds" if n_held >= share * n_judged - 1e-9 else "DOES NOT HOLD"
    wanted = "all" if share == 1.0 else f"{share:.0%}"
    missed = f"; not on {', '.join(not_so)}" if not_so else ""
    return f"- {what}: {n_held} of {n_judged} problems (wanted: {wanted}): {verdict}{missed}"
