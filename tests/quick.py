"""Fits that are quick, and fits that are counted, for tests of what happens around them."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pyro_gprn import GPRNRegressor
from pyro_gprn.collapsed import independent
from pyro_gprn.estimator import selection
from pyro_gprn.estimator.inference import INFERENCES

#: Methods whose training takes steps from a start and writes checkpoints.
WITH_CHECKPOINTS = [name for name, each in INFERENCES.items() if each.has_checkpoints]


def small(**settings: Any) -> GPRNRegressor:
    """An estimator whose fits are as short as they can be and still be fits: it compares no kernels and two starts."""
    short = {"n_latents": 2, "steps": 8, "selection": False, "own_kernels": False, "seed": 0, "progress": False}
    inference = settings.get("inference", "collapsed")
    if inference == "collapsed":
        short["starts"] = ["independent", "functions"]
    if inference in INFERENCES and not INFERENCES[inference].has_constant_weights:
        short["kernel_w"] = "rbf"
    return GPRNRegressor(**short | settings)


@contextmanager
def quick_starts() -> Iterator[None]:
    """Fits begin nearly where they are, after a few evaluations of the evidence in place of a hundred."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(independent, "TRIAL_STEPS", 1)
        patch.setattr(independent, "STEPS", 2)
        yield


class CountedFits(list):
    """The number of functions of each collapsed fit, in order."""

    happens_at: int | None = None  #: the fit before which something happens


@contextmanager
def counted_fits(candidates: tuple[int, ...], happens: Callable[[], None]) -> Iterator[CountedFits]:
    """Counts the fits of estimators, which search for their number of functions among a few candidates."""
    counted, fit = CountedFits(), INFERENCES["collapsed"].fit

    def count(model, known, **settings):
        if len(counted) == counted.happens_at:
            happens()
        counted.append(model.n_latents)
        return fit(model, known, **settings)

    with pytest.MonkeyPatch.context() as patch, quick_starts():
        patch.setitem(INFERENCES, "collapsed", dataclasses.replace(INFERENCES["collapsed"], fit=count))
        patch.setattr(selection, "LATENTS", candidates)
        yield counted
