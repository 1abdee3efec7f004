"""Accuracy and calibration of GPRNRegressor() beside what one would take instead, on many problems.

    python benchmarks/accuracy.py                        run all cells that are missing, then print the summary
    python benchmarks/accuracy.py --only heat plume --splits 2 --methods "GPRNRegressor()" "sklearn GP"
    python benchmarks/accuracy.py --held-aside           the problems on which nothing was developed
    python benchmarks/accuracy.py --blind                the problems written without a look at how GPRNs do
    python benchmarks/accuracy.py --unseen               the same, written last
    python benchmarks/accuracy.py --summary              print the summary of the results so far
    python benchmarks/accuracy.py --list                 print the problems and methods

Each result is added to the results file as soon as it is there, and what is in the file is not computed again: stop it
when you like. Published data are read from the folder that PYRO_GPRN_DATA names; without them their problems are left
out. Each cell runs on one thread; --processes runs several cells at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from comparison.methods import METHODS
from comparison.problem import Problem
from comparison.problems import BLIND, DEVELOPMENT, HELD_ASIDE, UNSEEN
from comparison.summary import write_summary
from comparison.table import read, run, without_data

#: The problems of each group, by the name of its file of results.
GROUPS = {"accuracy": DEVELOPMENT, "held-aside": HELD_ASIDE, "blind": BLIND, "unseen": UNSEEN}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="PROBLEM", help="run these problems only")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="run these methods only")
    parser.add_argument("--splits", type=int, default=5, help="how many splits of each problem (5)")
    parser.add_argument("--results", type=Path, help="the file of results (the group's name and .jsonl)")
    parser.add_argument("--summary", action="store_true", help="run nothing, print the summary")
    group = parser.add_mutually_exclusive_group()
    for name, what in (
        ("held-aside", "on which nothing was developed"),
        ("blind", "written without a look at GPRNs"),
        ("unseen", "written likewise, and last"),
    ):
        group.add_argument(f"--{name}", dest="group", action="store_const", const=name, help=f"the problems {what}")
    parser.set_defaults(group="accuracy")
    parser.add_argument("--again", action="store_true", help="run the chosen cells even if the file has them")
    parser.add_argument("--processes", type=int, default=1, help="how many cells run at once (1)")
    parser.add_argument("--list", action="store_true", help="print the problems and methods")
    return parser.parse_args(arguments)


def _choose(every: Sequence, names: Sequence[str] | None, what: str) -> list:
    """Those with the names, in the order of all; all of them for None."""
    known = {each.name for each in every}
    if unknown := set(names or ()) - known:
        raise SystemExit(f"{what} must be among {', '.join(sorted(known))}; got {', '.join(sorted(unknown))}")
    return [each for each in every if names is None or each.name in names]


def _list(problems: Sequence[Problem]) -> None:
    print("| problem | N | D | P | scored numbers |\n| --- | --- | --- | --- | --- |")
    for problem in problems:
        task = problem.make(0)
        print(f"| {problem.name} | {len(task.X)} | {task.n_outputs} | {task.X.shape[1]} | {task.is_scored.sum()} |")
    print("\nmethods: " + "; ".join(method.name for method in METHODS))


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    path = options.results or Path(f"{options.group}.jsonl")
    problems = _choose(GROUPS[options.group], options.only, "problems")
    methods = _choose(METHODS, options.methods, "methods")
    if not options.summary:
        absent = list(without_data(problems))
        problems = [problem for problem in problems if problem not in absent]
        for problem in absent:
            print(f"{problem.name} is left out: its data are not here; set PYRO_GPRN_DATA to their folder")
        if options.list:
            return _list(problems)
        run(path, problems, range(options.splits), methods, again=options.again, processes=options.processes)
    chosen = {problem.name for problem in problems}
    print("\n" + write_summary({cell: result for cell, result in read(path).items() if cell.problem in chosen}))
    return None


if __name__ == "__main__":
    main()
