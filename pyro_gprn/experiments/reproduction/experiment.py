"""What the three experiments have in common: a grid of cells, what is measured in each, and a report of the results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro_gprn.experiments.reproduction.cell import Cell
from pyro_gprn.experiments.reproduction.measure import Measurement
from pyro_gprn.experiments.reproduction.methods import METHODS

#: The results of cells.
Results = Mapping[Cell, Mapping[str, Any]]


@dataclass(frozen=True)
class Block:
    """Part of a grid: methods on a data set with one training size.

    :param data: the name of the data set.
    :param n_train: the number of training rows.
    :param methods: the names of the methods.
    :param latents: the values of K, for methods that have such a number.
    """

    data: str
    n_train: int
    methods: tuple[str, ...]
    latents: tuple[int, ...]

    def cells(self, repeats: int) -> list[Cell]:
        """All cells, method by method.

        >>> [str(cell) for cell in Block("jura", 249, ("kronecker", "IndependentGP"), (2, 5)).cells(1)]
        ['jura 249, kronecker K = 2, repeat 0', 'jura 249, kronecker K = 5, repeat 0',
         'jura 249, IndependentGP, repeat 0']
        """
        return [
            Cell(self.data, self.n_train, method, n_latents, repeat)
            for method in self.methods
            for n_latents in (self.latents if METHODS[method].latents else (None,))
            for repeat in range(repeats)
        ]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    :param blocks: its grid.
    :param quick_blocks: a small grid in its place, for ``--quick``.
    :param measurement: what is measured in each cell.
    :param repeats: how many repeats of each cell there are by default.
    :param report: the results as Markdown.
    :param plot: draws the results into a file. None if there is nothing to draw.
    """

    blocks: tuple[Block, ...]
    quick_blocks: tuple[Block, ...]
    measurement: type[Measurement]
    repeats: int
    report: Callable[[Results], str]
    plot: Callable[[Results, Path], None] | None = None

    def grid(self, repeats: int, *, is_quick: bool, only: Sequence[str] | None = None) -> list[Cell]:
        """The cells of the experiment.

        :param repeats: how many repeats of each cell.
        :param is_quick: True for the small grid.
        :param only: names of data sets, of methods, or of both; of each kind that is named, only these are run.
        """
        blocks = self.quick_blocks if is_quick else self.blocks
        data = {block.data for block in blocks}
        methods = {method for block in blocks for method in block.methods}
        names = set(only or ())
        if unknown := names - data - methods:
            known = ", ".join([*sorted(data), *sorted(methods)])
            raise SystemExit(f"--only takes names out of {known}; got {', '.join(sorted(unknown))}")
        data, methods = data & names or data, methods & names or methods
        cells = [cell for block in blocks for cell in block.cells(repeats)]
        return [cell for cell in cells if cell.data in data and cell.method in methods]


def by_setting(results: Results) -> dict[tuple[str, int, str, int | None], list[Mapping[str, Any]]]:
    """The results that there are, without those of failed cells, over the repeats of each data set, size, method and K.

    >>> results = {Cell("jura", 249, "kronecker", 2, repeat): {"seconds": 1.0} for repeat in range(3)}
    >>> [(setting, len(repeats)) for setting, repeats in by_setting(results).items()]
    [(('jura', 249, 'kronecker', 2), 3)]
    """
    found: dict[tuple[str, int, str, int | None], list[Mapping[str, Any]]] = {}
    for cell, result in results.items():
        if "error" not in result:
            found.setdefault((cell.data, cell.n_train, cell.method, cell.n_latents), []).append(result)
    return found


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    """The mean and the standard deviation over repeats; the latter is NaN for a single one.

    >>> mean_and_deviation([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    known = list(values)
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else float("nan")


def with_deviation(values: Iterable[float]) -> str:
    """The mean over repeats ± the standard deviation, in words; of a single repeat the value alone.

    >>> with_deviation([1.0, 3.0]), with_deviation([0.5])
    ('2 ± 1', '0.5')
    """
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.4g}" if math.isnan(deviation) else f"{mean:.4g} ± {deviation:.1g}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown.

    >>> print(markdown(["K", "seconds"], [["2", "0.1"]]))
    | K | seconds |
    | --- | --- |
    | 2 | 0.1 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def failures(results: Results) -> str:
    """The cells that failed and their errors, as a list in Markdown; empty if there are none.

    >>> print(failures({Cell("jura", 249, "HOGP", 2, 0): {"error": "MemoryError: 3 GB"}}))
    Failed:
    <BLANKLINE>
    - jura 249, HOGP K = 2, repeat 0: MemoryError: 3 GB
    """
    lines = [f"- {cell}: {result['error']}" for cell, result in results.items() if "error" in result]
    return "\n".join(["Failed:", "", *lines]) if lines else ""
