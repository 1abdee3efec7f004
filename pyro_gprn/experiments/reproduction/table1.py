"""The paper's Table 1: the mean absolute error of inferences of the same network, with two latent functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pyro_gprn.experiments.reproduction.data import SOURCES
from pyro_gprn.experiments.reproduction.experiment import (
    Block,
    Experiment,
    Results,
    by_setting,
    failures,
    markdown,
    mean_and_deviation,
    with_deviation,
)
from pyro_gprn.experiments.reproduction.measure import Accuracy
from pyro_gprn.experiments.reproduction.methods import METHODS, OURS

NAMES = ("kronecker", "mean-field", "mixture", "collapsed", OURS, "IndependentGP", "TrainingMean")
#: The method that the others are compared with, split by split: the paper's.
REFERENCE = "kronecker"
#: What the paper prints, by data set and by the paper's name of the method.
IN_PAPER = {
    "jura": {"SGPRN": "0.5127 ± 0.002", "MFVB": "0.5237 ± 0.001", "NPV": "0.6088 ± 9e-06"},
    "equity": {"SGPRN": "2.5759e-05 ± 2e-07", "MFVB": "4.4530e-05 ± 6e-07", "NPV": "4.7267e-05 ± 9e-18"},
    "pm25": {"SGPRN": "1.07089 ± 0.02", "MFVB": "1.3916 ± 0.06", "NPV": "14.7101 ± 0.14"},
}


def report(results: Results) -> str:
    """The table as Markdown, with the paper's numbers and with what the paper does not report.

    >>> from pyro_gprn.experiments.reproduction.cell import Cell
    >>> scores = {"mae_in_units": 1.2, "mae": 0.6, "nlpd": 1.0, "crps": 0.3, "coverage": 0.95}
    >>> cells = [Cell("pm25", 256, "mean-field", 2, repeat) for repeat in range(2)]
    >>> print(report({cell: {"repeat": cell.repeat, "scores": scores, "cpu_seconds": 1.5} for cell in cells}))
    | data | method | repeats | MAE | beside kronecker | in the paper | NLPD | CRPS | coverage | CPU seconds |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | pm25 | mean-field | 2 | 1.2 ± 0 | | MFVB 1.3916 ± 0.06 | 1.000 | 0.3000 | 0.950 | 1.5 |
    """
    rows = []
    settings = {(data, method): repeats for (data, _, method, _), repeats in by_setting(results).items()}
    for (data, method), repeats in settings.items():
        name = "mae" if SOURCES[data].in_standard_units else "mae_in_units"
        error = with_deviation(repeat["scores"][name] for repeat in repeats)
        reference = settings.get((data, REFERENCE), []) if method != REFERENCE else []
        others = [_mean_score(repeats, score) for score in ("nlpd", "crps", "coverage")]
        seconds, _ = mean_and_deviation(repeat["cpu_seconds"] for repeat in repeats)
        in_paper = METHODS[method].in_paper
        printed = f"{in_paper} {IN_PAPER[data][in_paper]}" if in_paper else ""
        shown = [f"{value:.{digits}f}" for value, digits in zip((*others, seconds), (3, 4, 3, 1), strict=True)]
        rows.append([data, method, str(len(repeats)), error, _beside(repeats, reference, name), printed, *shown])
    header = ["data", "method", "repeats", "MAE", f"beside {REFERENCE}", "in the paper"]
    table = markdown([*header, "NLPD", "CRPS", "coverage", "CPU seconds"], rows)
    return "\n\n".join(filter(None, [table, _output_by_output(results), failures(results)]))


def _beside(repeats: Sequence[Mapping[str, Any]], reference: Sequence[Mapping[str, Any]], name: str) -> str:
    """How much higher a score is than the reference's on the same splits: the mean and its standard error."""
    known = {repeat["repeat"]: repeat["scores"][name] for repeat in reference}
    ratios = [each["scores"][name] / known[each["repeat"]] - 1 for each in repeats if each["repeat"] in known]
    if not ratios:
        return ""
    mean, deviation = mean_and_deviation(ratios)
    return f"{100 * mean:+.1f} ± {100 * deviation / math.sqrt(len(ratios)):.1f} %"


def _mean_score(repeats: Sequence[Mapping[str, Any]], name: str) -> float:
    return mean_and_deviation(repeat["scores"][name] for repeat in repeats)[0]


def _output_by_output(results: Results) -> str:
    """The errors of single outputs, for data sets that name some; empty if there are none."""
    tables = []
    for data, names in ((data, SOURCES[data].output_names) for data in IN_PAPER):
        rows = []
        for (found, _, method, _), repeats in by_setting(results).items():
            if found == data and names:
                by_output = zip(*(repeat["scores"]["mae_of_outputs"][: len(names)] for repeat in repeats), strict=True)
                rows.append([method, *map(with_deviation, by_output)])
        if rows:
            tables.append(
                f"MAE of single outputs of {data}, in their own units\n\n{markdown(['method', *names], rows)}"
            )
    return "\n\n".join(tables)


TABLE_1 = Experiment(
    blocks=(
        Block("jura", 249, NAMES, (2,)),
        Block("equity", 200, NAMES, (2,)),
        Block("pm25", 256, NAMES, (2,)),
    ),
    quick_blocks=tuple(Block(data, 12, NAMES, (2,)) for data in ("jura", "pm25")),
    measurement=Accuracy,
    repeats=5,
    report=report,
)
