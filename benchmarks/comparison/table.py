"""The table of results: a file with one line of JSON for each cell, which is a problem, a split and a method."""

from __future__ import annotations

import json
import multiprocessing
import platform
import subprocess
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits

from comparison.methods import METHODS, Method
from comparison.problem import Problem, Task
from comparison.problems import DEVELOPMENT, HELD_ASIDE
from comparison.scores import score


class Cell(NamedTuple):
    """What one line of the results is about."""

    problem: str
    split: int
    method: str


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """The results so far; of several about one cell, the last. A line that was cut off is left out."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            result = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[Cell(result["problem"], result["split"], result["method"])] = result
    return found


def append(path: Path, result: dict[str, Any]) -> None:
    """Adds a line, on a line of its own even if the last one was cut off."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")


def versions() -> dict[str, str]:
    """Of what the results depend on."""
    packages = {name: version(name) for name in ("pyro-gprn", "pyro-ppl", "torch", "numpy", "scipy", "scikit-learn")}
    return {"commit": _commit(), "python": platform.python_version(), **packages}


def _commit() -> str:
    """The commit that the code is at; empty outside a clone."""
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def run_cell(problem: Problem, split: int, method: Method) -> dict[str, Any]:
    """One cell, on one thread. An error is part of the result."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"problem": problem.name, "split": split, "method": method.name}
    try:
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn on parameters at their bounds
            result |= _run(problem.make(split), split, method)
    except Exception as error:
        where = traceback.format_exc(limit=-3)
        result |= {"error": f"{type(error).__name__}: {error}", "traceback": where}
    finally:
        torch.set_num_threads(threads)
    return result


def _run(task: Task, split: int, method: Method) -> dict[str, Any]:
    n_rows, n_inputs = task.X.shape
    shape = {"N": n_rows, "P": n_inputs, "D": task.n_outputs, "n_scored": int(task.is_scored.sum())}
    if reason := method.why_not(task):
        return {"skipped": reason, **shape}
    start = time.perf_counter()
    predictive = method.fit(task, split)
    seconds = time.perf_counter() - start
    scores = score(predictive.judge(task.truth), task)
    return {"scores": scores, "seconds": seconds, "settings": dict(method.settings), **shape}


def _run_by_name(cell: Cell) -> dict[str, Any]:
    """For another process, which looks the names up."""
    problem = next(each for each in (*DEVELOPMENT, *HELD_ASIDE) if each.name == cell.problem)
    return run_cell(problem, cell.split, next(each for each in METHODS if each.name == cell.method))


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
    done = {} if again else read(path)
    wanted = [(p, Cell(p.name, split, m.name), m) for p in problems for split in splits for m in methods]
    cells = [(problem, cell, method) for problem, cell, method in wanted if cell not in done]
    print(f"{len(cells)} cells to run, {len(wanted) - len(cells)} done before", flush=True)
    if processes == 1:
        results = (run_cell(problem, cell.split, method) for problem, cell, method in cells)
        _keep(path, results)
    else:
        with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=20) as pool:
            _keep(path, pool.imap_unordered(_run_by_name, [cell for _, cell, _ in cells]))


def _keep(path: Path, results: Iterable[dict[str, Any]]) -> None:
    made_by = versions()
    for result in results:
        append(path, {**result, "versions": made_by})
        told = result.get("error") or result.get("skipped")
        if told is None:
            scores = result["scores"]
            told = ", ".join(f"{name} {scores[name]:.4g}" for name in ("rmse", "nlpd", "crps", "coverage"))
            told += f" ({result['seconds']:.1f} s)"
        print(f"{result['problem']} {result['split']}, {result['method']}: {told}", flush=True)
