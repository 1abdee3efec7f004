"""Problems with published data. ``PYRO_GPRN_DATA`` names the folder of the files; others are downloaded."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from comparison.problem import Problem, Task, fill_holes, hide_blocks
from pyro_gprn import datasets
from pyro_gprn.datasets import Dataset

#: Sites of the Jura where one metal is hidden.
N_HIDDEN_SITES = 100


@cache
def _load(name: str) -> Dataset:
    return getattr(datasets, f"load_{name}")()


def jura(name: str, metal: int) -> Problem:
    """One metal is hidden at 100 random sites of 359; logarithms."""

    def make(split: int) -> Task:
        data = _load("jura")
        sites = torch.randperm(len(data.X), generator=torch.Generator().manual_seed(split))[:N_HIDDEN_SITES]
        is_hidden = np.zeros(data.Y.shape, dtype=bool)
        is_hidden[sites, metal] = True
        return fill_holes(data.X.numpy(), data.Y.log().numpy(), is_hidden, to_units=np.exp)

    return Problem(name, make)


def new_rows(name: str, data_set: str, n_train: int | None = None, *, own_units: bool = False) -> Problem:
    """The data set's own split into training and test rows."""

    def make(split: int) -> Task:
        X, Y, X_test, Y_test = (array.numpy() for array in _load(data_set).split(split, n_train=n_train))
        return Task(X, Y, X_test, Y_test, ~np.isnan(Y_test), own_units=own_units)

    return Problem(name, make)


def dust_holes(name: str, n_sensors: int, n_hours: int) -> Problem:
    """Some sensors of PM2.5 fail for hours, each at its own time; what they missed is asked for."""

    def make(split: int) -> Task:
        data = _load("pm25")
        is_hidden = hide_blocks(tuple(data.Y.shape), n_sensors, 2 * n_hours, split)
        return fill_holes(data.X.numpy(), data.Y.numpy(), is_hidden, own_units=False)

    return Problem(name, make)
