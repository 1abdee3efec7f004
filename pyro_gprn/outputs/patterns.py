"""The pattern of holes of an output: kept for each of them or, where outputs are too many, seen when they are read."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.outputs.source import OutputSource


class PatternsByReading:
    """Finds the patterns of outputs among known ones by reading the outputs. Nothing here has the size of D.

    :param source: reads the outputs, NaN where one is missing.
    :param observed: the rows in which each of the ``g`` patterns is observed, ``(g, N)``, boolean.

    >>> from pyro_gprn.outputs.source import ArrayOutputs
    >>> Y = torch.tensor([[1.0, 2.0, torch.nan], [1.0, 2.0, 3.0]])
    >>> PatternsByReading(ArrayOutputs(Y), torch.tensor([[False, True], [True, True]]))[:]
    tensor([1, 1, 0])
    """

    def __init__(self, source: OutputSource, observed: Tensor) -> None:
        self._source, self._observed = source, observed

    def __getitem__(self, positions: slice | Tensor) -> Tensor:
        """The patterns of the outputs at some positions among the flattened outputs, ``(b,)``."""
        return find_patterns(self._source.read(positions), self._observed)


#: The pattern of each output, ``(D,)``, or what finds it.
Patterns: TypeAlias = Tensor | PatternsByReading


def find_patterns(values: Tensor, observed: Tensor) -> Tensor:
    """Which of the known patterns each output of a block ``(N, b)`` has, ``(b,)``.

    :param observed: the rows of each of the patterns, ``(g, N)``.
    :raises ValueError: for an output with another pattern.
    """
    known, found = _packed(observed), _packed(~values.isnan().mT)
    order = np.argsort(known)
    places = np.searchsorted(known[order], found).clip(max=len(known) - 1)
    patterns = order[places]
    is_other = known[patterns] != found
    if is_other.any():
        raise ValueError(
            f"{int(is_other.sum())} outputs of a block miss other rows than any output did when Y was fitted: Y has"
            " changed since"
        )
    return torch.from_numpy(patterns).to(values.device)


def _packed(observed: Tensor) -> np.ndarray:
    """Patterns ``(b, N)`` as ``b`` strings of bytes, which can be compared and sorted."""
    bits = np.packbits(np.ascontiguousarray(observed.cpu().numpy()), axis=1)
    return bits.view(np.dtype((np.void, bits.shape[1]))).ravel()
