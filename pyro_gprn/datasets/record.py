"""What a loader returns: a data set, which can be split into rows for training and rows for testing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Size, Tensor


class Split(NamedTuple):
    """Rows for training and rows for testing."""

    X_train: Tensor  #: ``(n_train, P)``
    Y_train: Tensor  #: ``(n_train, d_1, …, d_M)``
    X_test: Tensor  #: ``(n_test, P)``
    Y_test: Tensor  #: ``(n_test, d_1, …, d_M)``


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Inputs and outputs in their original units, with their names.

    :param name: the name of the data set.
    :param X: inputs, ``(N, P)``, float64.
    :param Y: outputs, ``(N, d_1, …, d_M)``, float64. NaN marks a missing output.
    :param input_names: one name for each column of X.
    :param output_names: one name for each output, in row-major order.
    :param split_sizes: the numbers of training and test rows that :meth:`split` returns by default. None if there is no
        default.

    >>> data = Dataset("toy", torch.arange(6.0)[:, None], torch.zeros(6, 2, 2), ("t",), ("a", "b", "c", "d"), (3, 2))
    >>> data
    Dataset 'toy': X (6, 1), Y (6, 2, 2), 0 missing
    >>> X_train, Y_train, X_test, Y_test = data.split(seed=1)
    >>> Y_train.shape, X_test.shape
    (torch.Size([3, 2, 2]), torch.Size([2, 1]))
    """

    name: str
    X: Tensor
    Y: Tensor
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    split_sizes: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if len(self.X) != len(self.Y):
            raise ValueError(f"{self.name}: X and Y must have as many rows; got {len(self.X)} and {len(self.Y)}")
        named = (len(self.input_names), len(self.output_names))
        if named != (self.X.shape[1], self.output_shape.numel()):
            raise ValueError(
                f"{self.name}: every input and output must have a name; got {named[0]} and {named[1]} names"
                f" for X {tuple(self.X.shape)} and Y {tuple(self.Y.shape)}"
            )

    def __repr__(self) -> str:
        missing = int(self.Y.isnan().sum())
        return f"Dataset {self.name!r}: X {tuple(self.X.shape)}, Y {tuple(self.Y.shape)}, {missing} missing"

    @property
    def output_shape(self) -> Size:
        """The shape of one row of Y, ``(d_1, …, d_M)``."""
        return self.Y.shape[1:]

    def split(self, seed: int = 0, *, n_train: int | None = None, n_test: int | None = None) -> Split:
        """Chooses rows for training and other rows for testing at random. The remaining rows are left out.

        The test rows depend only on ``seed`` and ``n_test``, so training sets of different sizes can be compared on the
        same test rows.

        :param seed: the seed of the choice. Torch's own random state is neither used nor changed.
        :param n_train: the number of training rows. The default is in :attr:`split_sizes`.
        :param n_test: the number of test rows. The default is in :attr:`split_sizes`.
        """
        if self.split_sizes is not None:
            n_train = self.split_sizes[0] if n_train is None else n_train
            n_test = self.split_sizes[1] if n_test is None else n_test
        if n_train is None or n_test is None:
            raise ValueError(f"{self.name} has no split of its own: give n_train and n_test")
        if min(n_train, n_test) < 0 or n_train + n_test > len(self.X):
            raise ValueError(f"{self.name} has {len(self.X)} rows; got n_train={n_train} and n_test={n_test}")
        rows = torch.randperm(len(self.X), generator=torch.Generator().manual_seed(seed))
        test, train = rows[:n_test], rows[n_test : n_test + n_train]
        return Split(self.X[train], self.Y[train], self.X[test], self.Y[test])
