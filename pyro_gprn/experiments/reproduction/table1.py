"""The paper's Table 1: the mean absolute error of inferences of the same network, with two latent functions."""

from __future__ import annotations

from pyro_gprn.experiments.reproduction.data import SOURCES
from pyro_gprn.experiments.reproduction.experiment import (
    Block,
    Experiment,
    Results,
    by_setting,
    failures,
    markdown,
    mean_and_deviation,
)
from pyro_gprn.experiments.reproduction.measure import Accuracy
from pyro_gprn.experiments.reproduction.methods import METHODS, OURS

NAMES = ("kronecker", "mean-field", "mixture", "collapsed", OURS, "IndependentGP", "TrainingMean")
#: What the paper prints, by data set and by the paper's name of the method.
IN_PAPER = {
    "jura": {"SGPRN": "0.5127 ± 0.002", "MFVB": "0.5237 ± 0.001", "NPV": "0.6088 ± 9e-06"},
    "equity": {"SGPRN": "2.5759e-05 ± 2e-07", "MFVB": "4.4530e-05 ± 6e-07", "NPV": "4.7267e-05 ± 9e-18"},
    "pm25": {"SGPRN": "1.07089 ± 0.02", "MFVB": "1.3916 ± 0.06", "NPV": "14.7101 ± 0.14"},
}


def report(results: Results) -> str:
    """The table as Markdown, with the paper's numbers and with what the paper does not report.

    >>> from pyro_gprn.experiments.reproduction.cell import Cell
    >>> scores = {"mae_in_units": 2.6e-5, "mae": 0.6, "nlpd": 1.0, "crps": 0.3, "coverage": 0.95}
    >>> cells = [Cell("equity", 200, "mean-field", 2, repeat) for repeat in range(2)]
    >>> print(report({cell: {"scores": scores, "cpu_seconds": 1.5} for cell in cells}))
    | data | method | repeats | MAE | in the paper | NLPD | CRPS | coverage | CPU seconds |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | equity | mean-field | 2 | 2.6e-05 ± 0 | MFVB 4.4530e-05 ± 6e-07 | 1.000 | 0.3000 | 0.950 | 1.5 |
    """
    rows = []
    for (data, _, method, _), repeats in by_setting(results).items():
        name = "mae" if SOURCES[data].in_standard_units else "mae_in_units"
        mean, deviation = mean_and_deviation(repeat["scores"][name] for repeat in repeats)
        others = [
            mean_and_deviation(repeat["scores"][score] for repeat in repeats)[0]
            for score in ("nlpd", "crps", "coverage")
        ]
        seconds, _ = mean_and_deviation(repeat["cpu_seconds"] for repeat in repeats)
        in_paper = METHODS[method].in_paper
        printed = f"{in_paper} {IN_PAPER[data][in_paper]}" if in_paper else ""
        shown = [f"{value:.{digits}f}" for value, digits in zip((*others, seconds), (3, 4, 3, 1), strict=True)]
        rows.append([data, method, str(len(repeats)), f"{mean:.4g} ± {deviation:.1g}", printed, *shown])
    header = ["data", "method", "repeats", "MAE", "in the paper", "NLPD", "CRPS", "coverage", "CPU seconds"]
    return "\n\n".join(filter(None, [markdown(header, rows), failures(results)]))


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
