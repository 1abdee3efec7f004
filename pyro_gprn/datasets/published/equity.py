"""Returns and covariances of five equity indices (Wilson et al. 2012)."""

from __future__ import annotations

import numpy as np
import torch

from pyro_gprn.datasets.published.fetch import RemoteFile, fetch
from pyro_gprn.datasets.record import Dataset

_SOURCE = (
    "https://raw.githubusercontent.com/davidaknowles/gprn/7da3d4499860b667835d6ca6cc1243c7d5fb7e3c/datasets/equity"
)
RETURNS = RemoteFile(
    "equity/data.csv",
    f"{_SOURCE}/data.csv",
    "sha256:b1bf543c737c1c76b24b413fcb699fca62d41d913adf02c819b2066b6f0fcf7f",
)
COVARIANCES = RemoteFile(
    "equity/truth.txt",
    f"{_SOURCE}/truth.txt",
    "sha256:0b4848127a86e6a0e457a9c4020584ab4c859dd3e79be3bb4fe71eddc29f4a75",
)
#: The five indices. The files do not name their columns; this is the order in which the paper lists the indices.
INDICES = ("NASDAQ", "FTSE", "TSE", "NIKKEI", "DJC")


def load_equity() -> Dataset:
    """Covariances of five equity indices, ``(643, 25)``, with the returns on the same day as inputs, ``(643, 5)``.

    The outputs are all 25 entries of the 5×5 covariance matrix, row by row, as in the paper. The matrix is symmetric,
    so only 15 of them are distinct. :meth:`~pyro_gprn.datasets.Dataset.split` returns the paper's split: 200 random
    days for training and 200 other days for testing.

    The task would be a different and much easier one if the day were the input.

    >>> load_equity()  # doctest: +SKIP
    Dataset 'equity': X (643, 5), Y (643, 25), 0 missing
    """
    X, Y = (torch.from_numpy(np.loadtxt(fetch(file))) for file in (RETURNS, COVARIANCES))
    pairs = tuple(f"{first}-{second}" for first in INDICES for second in INDICES)
    return Dataset("equity", X, Y, INDICES, pairs, (200, 200))
