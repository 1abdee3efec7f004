"""The table of results: a file with one line of JSON for each cell, which is a problem, a split and a method."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.methods import Method
from comparison.problem import Problem, Task
from comparison.scores import score
from pyro_gprn.experiments import results
from pyro_gprn.experiments.grid import run_missing


@dataclass(frozen=True)
class Cell:
    """What one line of the results is about."""

    problem: str
    split: int
    method: str


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """The results so far; of several about one cell, the last."""
    return results.read(path, Cell)


@dataclass(frozen=True)
class Work:
    """What is done for a cell, given the problems and the methods by their names."""

    problems: Mapping[str, Problem]
    methods: Mapping[str, Method]

    def __call__(self, cell: Cell) -> dict[str, Any]:
        method = self.methods[cell.method]
        task = self.problems[cell.problem].make(cell.split)
        n_rows, n_inputs = task.X.shape
        shape = {"N": n_rows, "P": n_inputs, "D": task.n_outputs, "n_scored": int(task.is_scored.sum())}
        if reason := method.why_not(task):
            return {"skipped": reason, **shape}
        return {**_run(task, cell.split, method), "settings": dict(method.settings), **shape}


def _run(task: Task, split: int, method: Method) -> dict[str, Any]:
    start = time.perf_counter()
    predictive = method.fit(task, split)
    seconds = time.perf_counter() - start
    return {"scores": score(predictive.judge(task.truth), task), "seconds": seconds}


def without_data(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The problems whose data are not on this machine and cannot be downloaded."""
    for problem in problems:
        try:
            problem.make(0)
        except (FileNotFoundError, ImportError):
            yield problem


def run(
    path: Path,
    problems: Sequence[Problem],
    splits: Sequence[int],
    methods: Sequence[Method],
    *,
    again: bool = False,
    processes: int = 1,
) -> None:
    """Runs the cells that are not in the file yet, and adds each to the file when it is done.

    :param again: whether to run the cells that are in the file, too. The last line about a cell counts.
    :param processes: how many cells run at once.
    """
    cells = [Cell(problem.name, split, method.name) for problem in problems for split in splits for method in methods]
    work = Work({each.name: each for each in problems}, {each.name: each for each in methods})
    run_missing(path, cells, work, tell=_tell, again=again, processes=processes, progress=False)


def _tell(result: dict[str, Any]) -> str:
    told = result.get("error") or result.get("skipped")
    if told is None:
        scores = result["scores"]
        told = ", ".join(f"{name} {scores[name]:.4g}" for name in ("rmse", "nlpd", "crps", "coverage"))
        told += f" ({result['seconds']:.1f} s)"
    return f"{result['problem']} {result['split']}, {result['method']}: {told}"
