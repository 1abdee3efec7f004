"""Heavy metals in the soil of the Swiss Jura (Goovaerts 1997)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch

from pyro_gprn.datasets.published.fetch import RemoteFile, fetch
from pyro_gprn.datasets.record import Dataset

_SOURCE = (
    "https://raw.githubusercontent.com/davidaknowles/gprn/7da3d4499860b667835d6ca6cc1243c7d5fb7e3c/datasets/jura_csv"
)
LOCATIONS = RemoteFile(
    "jura/X.txt",
    f"{_SOURCE}/X.txt",
    "sha256:2d115675d7161b749c75ea4ab4a29bbc2052eb21438228dbc6cac508e97fe92a",
)
CONCENTRATIONS = RemoteFile(
    "jura/Y.txt",
    f"{_SOURCE}/Y.txt",
    "sha256:99bd74841114dc4e0de87f9c355a849caeea57a2c24175985d74f6a69fd2d53b",
)
#: The rows before this one are Goovaerts' prediction set. The 100 rows from this one on are his validation set.
FIRST_VALIDATION_ROW = 259


def load_jura(pattern: Literal["complete", "wilson"] = "complete") -> Dataset:
    """Cadmium, nickel and zinc in ppm, ``(359, 3)``, at 359 sites in the Swiss Jura, ``(359, 2)``.

    The inputs are the coordinates of the sites in km, on a local grid.

    :meth:`~pyro_gprn.datasets.Dataset.split` returns the paper's split: 249 random sites for training and 100 other
    sites for testing, where all three metals are to be predicted. The paper speaks of 349 sites, so ten sites are left
    out, which depend on the seed. The file that its authors used differs from this public one in three rows.

    ``pattern="wilson"`` is the experiment of Wilson et al. (2012). Cadmium is NaN at the 100 validation sites (rows 259
    to 358), nickel and zinc are known everywhere. There is no split: train on all rows and compare the predictions with
    the true values, ``load_jura().Y[259:, 0]``. Wilson et al. took logarithms (``Y.log()``) and standardised them; this
    function does neither.

    The files may be used for non-commercial purposes (D. Knowles). The same numbers are in the R package gstat.

    :param pattern: ``"complete"`` for all values, or ``"wilson"`` to hide cadmium at the validation sites.

    >>> load_jura()  # doctest: +SKIP
    Dataset 'jura': X (359, 2), Y (359, 3), 0 missing
    >>> X_train, Y_train, X_test, Y_test = load_jura().split(seed=0)  # doctest: +SKIP
    """
    if pattern not in ("complete", "wilson"):
        raise ValueError(f"pattern must be 'complete' or 'wilson'; got {pattern!r}")
    X, Y = (torch.from_numpy(np.loadtxt(fetch(file))) for file in (LOCATIONS, CONCENTRATIONS))
    if pattern == "wilson":
        Y[FIRST_VALIDATION_ROW:, 0] = math.nan
    split_sizes = (249, 100) if pattern == "complete" else None
    return Dataset("jura", X, Y, ("Xloc", "Yloc"), ("Cd", "Ni", "Zn"), split_sizes)
