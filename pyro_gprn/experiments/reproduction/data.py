"""The data sets of the experiments: how they are loaded, how they are split, and in which units errors are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_gprn import datasets
from pyro_gprn.datasets import Dataset, Split


@dataclass(frozen=True)
class Source:
    """A data set of an experiment.

    :param name: its name.
    :param load: loads it. A simulated set is made, or continued, in the folder that is given.
    :param n_test: how many rows are predicted.
    :param own_units: True if the outputs are quantities of different size, so that each has a scale of its own.
    :param in_standard_units: True if MAE is given for standardised outputs, False if it is in the data's own units.
    :param fold: ``(d_1, …, d_M)`` into which a method that needs several modes folds outputs of one; by default none.
    :param output_names: the first outputs, whose errors are also given one by one, in the data's own units.
    """

    name: str
    load: Callable[[Path], Dataset]
    n_test: int
    own_units: bool = False
    in_standard_units: bool = False
    fold: tuple[int, ...] | None = None
    output_names: tuple[str, ...] = ()

    def split(self, n_train: int, seed: int, folder: Path) -> Split:
        """Rows for training and for testing, as :meth:`~pyro_gprn.datasets.Dataset.split` chooses them."""
        return _load_once(self.load, folder).split(seed, n_train=n_train, n_test=self.n_test)

    def is_here(self, folder: Path) -> bool:
        """True if the data are on this machine, or could be downloaded or made."""
        try:
            _load_once(self.load, folder)
        except (FileNotFoundError, ImportError):
            return False
        return True

    def centre_and_scale(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of each output over the rows of ``Y``, and its standard deviation or, ``()``, one for all outputs.

        >>> QUICK_SOURCES["pm25"].centre_and_scale(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        (tensor([2., 5.]), tensor(0.7071))
        """
        centre = Y.nanmean(0)
        variance = (Y - centre).square().nanmean(0)
        spread = (variance if self.own_units else variance.nanmean()).sqrt()
        return centre, torch.where(spread > 0, spread, 1.0)


@cache
def _load_once(load: Callable[[Path], Dataset], folder: Path) -> Dataset:
    return load(folder)


def _named(name: str, X: Tensor, Y: Tensor) -> Dataset:
    """A data set whose columns have no names to speak of."""
    return Dataset(name, X, Y, ("",) * X.shape[1], ("",) * Y.shape[1:].numel())


def _published(name: str, folder: Path) -> Dataset:
    return getattr(datasets, f"load_{name}")()


def _cantilever(folder: Path) -> Dataset:
    runs = datasets.simulate_cantilever(356, folder=folder / "cantilever")
    return _named("cantilever", runs.X, runs.Y)


def _pressure(folder: Path) -> Dataset:
    return _named("pressure", *datasets.simulate_cavity(96, folder=folder / "cavity"))


def _stand_in(output_shape: tuple[int, ...], n_inputs: int, folder: Path) -> Dataset:
    """A draw from a network, in place of a data set that a test need not have."""
    X, Y, *_ = datasets.sample_gprn(20, output_shape=output_shape, n_inputs=n_inputs, noise_y=0.1)
    return _named("stand-in", X, Y)


def _small(name: str, output_shape: tuple[int, ...], n_inputs: int, **settings: Any) -> Source:
    return Source(name, partial(_stand_in, output_shape, n_inputs), 5, **settings)


SOURCES = {
    source.name: source
    for source in (
        Source("jura", partial(_published, "jura"), 100, True, True, output_names=("Cd, ppm", "Ni, ppm", "Zn, ppm")),
        Source("equity", partial(_published, "equity"), 200, own_units=True, output_names=("variance of NASDAQ",)),
        Source("pm25", partial(_published, "pm25"), 32),
        Source("cantilever", _cantilever, 100),
        # 3,923 outputs, a prime number: 3,924 = 36 × 109 is the fold with the least filling, a single zero
        Source("gene expression", partial(_published, "precise"), 100, fold=(36, 109)),
        Source("pressure", _pressure, 32),
    )
}
#: Small draws from a network under the same names, for ``--quick``.
QUICK_SOURCES = {
    source.name: source
    for source in (
        _small("jura", (3,), 2, own_units=True),
        _small("equity", (4,), 5, own_units=True),
        _small("pm25", (2, 3), 1),
        _small("cantilever", (3, 4), 2),
        _small("gene expression", (11,), 3, fold=(3, 4)),
        _small("pressure", (2, 3, 2), 5),
    )
}
