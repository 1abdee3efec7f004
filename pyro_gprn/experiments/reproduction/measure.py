"""What is done for a cell: the accuracy of a fit, or the time that a step of it takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro_gprn.experiments.reproduction.cell import Cell
from pyro_gprn.experiments.reproduction.data import QUICK_SOURCES, SOURCES, Source
from pyro_gprn.experiments.reproduction.memory import forget_peak, peak_memory
from pyro_gprn.experiments.reproduction.methods import METHODS
from pyro_gprn.experiments.reproduction.scores import score


@dataclass(frozen=True)
class Measurement:
    """Takes a cell and returns its result.

    :param folder: where simulated data are kept.
    :param is_quick: True for small data and as little training as possible.
    """

    folder: Path
    is_quick: bool = False

    @property
    def sources(self) -> Mapping[str, Source]:
        """The data sets by their names."""
        return QUICK_SOURCES if self.is_quick else SOURCES

    def __call__(self, cell: Cell) -> dict[str, Any]:
        raise NotImplementedError


class Accuracy(Measurement):
    """Fits a method and scores it on the test rows.

    >>> result = Accuracy(Path("."), is_quick=True)(Cell("jura", 12, "collapsed", 2, 0))
    >>> sorted(result), sorted(result["scores"])[:2]
    (['bound', 'cpu_seconds', 'peak_mib', 'scores', 'seconds', 'seconds_to_predict', 'settings'], ['coverage', 'crps'])
    """

    def __call__(self, cell: Cell) -> dict[str, Any]:
        source, method = self.sources[cell.data], METHODS[cell.method]
        split = source.split(cell.n_train, cell.repeat, self.folder)
        settings = method.arguments(cell.n_latents, cell.repeat, fold=source.fold, is_quick=self.is_quick)
        forget_peak()
        start, at_work = time.perf_counter(), time.process_time()
        estimator = method.make(settings).fit(split.X_train, split.Y_train)
        fitted, cpu_seconds = time.perf_counter(), time.process_time() - at_work
        scores = score(estimator, split.X_test, split.Y_test, *source.centre_and_scale(split.Y_train))
        return {
            "scores": scores,
            "seconds": fitted - start,
            "cpu_seconds": cpu_seconds,
            "seconds_to_predict": time.perf_counter() - fitted,
            "bound": getattr(estimator, "elbo_", None),
            "peak_mib": peak_memory(),
            "settings": settings,
        }


class Speed(Measurement):
    """Times the training steps of a method. The first few are left out, and it stops when enough have been timed.

    >>> result = Speed(Path("."), is_quick=True)(Cell("jura", 12, "mean-field", 2, 0))
    >>> sorted(result)
    ['peak_mib', 'seconds_a_step', 'settings', 'steps']
    """

    #: Steps that are not timed, and then the most that are. An exact update after the 50th step is among them.
    n_first, n_timed = 10, 50
    #: No further step is timed after so many seconds, if two have been.
    seconds = 120.0

    def __call__(self, cell: Cell) -> dict[str, Any]:
        method = METHODS[cell.method]
        split = self.sources[cell.data].split(cell.n_train, cell.repeat, self.folder)
        settings = method.arguments(cell.n_latents, cell.repeat)
        n_first, n_timed = (1, 2) if self.is_quick else (self.n_first, self.n_timed)
        settings |= {"steps": 4 * (n_first + n_timed)}  # more than are taken: late steps have no exact updates
        if settings["inference"] == "collapsed":
            settings |= {"starts": ["independent"]}  # no race of several starts before the first step
        times: list[float] = []

        def note(step: int, bound: float) -> None:
            times.append(time.perf_counter())
            is_long = len(times) > 3 and times[-1] - times[0] > self.seconds
            if len(times) > n_first + n_timed or is_long:
                raise _EnoughTimedError

        forget_peak()
        with contextlib.suppress(_EnoughTimedError):
            method.make(settings).fit(split.X_train, split.Y_train, callback=note)
        timed = times[min(n_first, len(times) - 3) :]
        seconds = (timed[-1] - timed[0]) / (len(timed) - 1)
        return {"seconds_a_step": seconds, "steps": len(timed) - 1, "peak_mib": peak_memory(), "settings": settings}


class _EnoughTimedError(Exception):
    """Ends a fit."""
