"""Whether training has settled: the gain of the bound by the default number of steps, and by ten times as many.

    python benchmarks/settling.py                    the development problems that settling is judged on
    python benchmarks/settling.py "noisy blob" chirp

The gain is the bound less the bound of the start. Both fits go from the start that won the race of the first.
"""

from __future__ import annotations

import sys

import numpy as np
from comparison.problem import Task
from comparison.problems import DEVELOPMENT

from pyro_gprn import GPRNRegressor
from pyro_gprn.collapsed.training import STEPS

PROBLEMS = ("heat", "plume", "fronts", "noisy blob", "pendulum", "chirp", "layer")


def fit(task: Task, **settings: object) -> GPRNRegressor:
    return GPRNRegressor(selection=False, seed=0, progress=False, **settings).fit(task.X, task.Y)


def error(fitted: GPRNRegressor, task: Task) -> float:
    """The scaled error at the test inputs."""
    difference = task.standardise(fitted.predict(task.X_test).reshape(task.truth.shape)) - task.truth
    return float(np.sqrt(np.mean(difference**2) / np.mean(task.truth**2)))


def main() -> None:
    print("| problem | start | default: bound | steps | ten times: bound | steps | share of the gain | errors |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for problem in (each for each in DEVELOPMENT if each.name in (sys.argv[1:] or PROBLEMS)):
        task = problem.make(0)
        fits = [fit(task)]
        winner = max(fits[0].starts_, key=lambda start: start["bound"])["name"]
        fits.append(fit(task, starts=[winner], steps=10 * STEPS))
        start = fits[1].fitted_.runs[0]["start"]  # that of the first is where its race ended
        share = (fits[0].elbo_ - start) / (fits[1].elbo_ - start)
        bounds = " | ".join(f"{each.elbo_:.0f} | {len(each.losses_)}" for each in fits)
        errors = ", ".join(f"{error(each, task):.4g}" for each in fits)
        print(f"| {problem.name} | {start:.0f}, {winner} | {bounds} | {share:.3f} | {errors} |", flush=True)


if __name__ == "__main__":
    main()
