"""Where a fit and a prediction go: the modules in the order in which they are first entered, and how often that order
crosses from one folder to another.

    python benchmarks/crossings.py

CONTRIBUTING.md quotes what this prints. Few crossings mean that somebody who follows a fit through the code reads it
folder by folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import pyro_gprn
from pyro_gprn import GPRNRegressor

ROOT = Path(pyro_gprn.__file__).parent


def first_visits(work: Callable[[], Any]) -> list[Path]:
    """The modules of the package that some work enters, in the order of their first visits."""
    visited: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(ROOT)):
            visited.setdefault(name)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return [Path(name).relative_to(ROOT) for name in visited]


def crossings(visits: list[Path]) -> int:
    """How often one first visit lies in another folder than the one before."""
    return sum(first.parent != second.parent for first, second in pairwise(visits))


def by_folder(visits: list[Path]) -> str:
    """The visits in one line a stay: a folder, and the modules that are entered there."""
    lines: list[list[str]] = []
    for visit in visits:
        folder = visit.parent.name or "pyro_gprn"
        if lines and lines[-1][0] == folder:
            lines[-1].append(visit.stem)
        else:
            lines.append([folder, visit.stem])
    return "\n".join(f"{folder + '/':<12} {', '.join(modules)}" for folder, *modules in lines)


def trace() -> dict[str, list[Path]]:
    """First visits of one ``fit`` and of one ``predict`` with its standard deviation."""
    X = np.random.default_rng(0).uniform(size=(20, 2))
    Y = np.sin(3 * X[:, :1] + np.arange(24)).reshape(20, 4, 6)  # too many to have kernels of their own
    regressor = GPRNRegressor(
        2, steps=30, seed=0, selection=False, progress=False
    )  # a selection is fits and predictions
    regressor.fit(X, Y)  # so that everything is imported
    regressor.predict(X, return_std=True)
    return {
        "fit": first_visits(lambda: regressor.fit(X, Y)),
        "predict": first_visits(lambda: regressor.predict(X, return_std=True)),
    }


def main() -> None:
    for work, visits in trace().items():
        print(f"{work}: {len(visits)} modules, {crossings(visits)} crossings between folders\n")
        print(by_folder(visits), end="\n\n")


if __name__ == "__main__":
    main()
