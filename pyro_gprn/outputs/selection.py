"""Choosing some of the outputs, mode by mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TypeAlias

import torch
from torch import Size, Tensor

from pyro_gprn.algebra.factors import Factor

#: What may be chosen of one mode.
ModeChoice: TypeAlias = int | slice | Sequence[int] | Tensor
#: None is all outputs; for several modes, a tuple with one choice for each.
Outputs: TypeAlias = ModeChoice | tuple[ModeChoice, ...] | None


class OutputSelection:
    """The chosen outputs of a tensor of outputs; an int drops its mode, as in NumPy.

    :param outputs: the choice.
    :param output_shape: ``(d_1, …, d_M)``.

    >>> chosen = OutputSelection((1, slice(0, 4, 2)), Size((3, 5)))
    >>> chosen.shape, chosen.positions(slice(None))
    (torch.Size([2]), tensor([5, 7]))
    """

    def __init__(self, outputs: Outputs, output_shape: Size) -> None:
        choices = (slice(None),) * len(output_shape) if outputs is None else outputs
        choices = choices if isinstance(choices, tuple) else (choices,)
        if len(choices) != len(output_shape):
            raise ValueError(
                f"outputs must be None or have one entry for each of the {len(output_shape)} output modes"
                f" {tuple(output_shape)}; got {len(choices)}"
            )
        self.outputs = outputs
        self.drops = [isinstance(choice, int) for choice in choices]  # the modes of which one number was chosen
        self.indices = [_index(choice, size) for choice, size in zip(choices, output_shape, strict=True)]
        kept = zip(self.drops, self.indices, strict=True)
        self.shape = Size(len(index) for dropped, index in kept if not dropped)
        self.size = Size(len(index) for index in self.indices).numel()
        self._is_everything = outputs is None
        self._flat = torch.zeros((), dtype=torch.long)  # of the chosen among all outputs
        if not self._is_everything:
            for index, size in zip(self.indices, output_shape, strict=True):
                self._flat = self._flat.unsqueeze(-1) * size + index
        self._flat = self._flat.flatten()

    def positions(self, block: slice) -> slice | Tensor:
        """Where a block of the chosen outputs stands among all outputs, flattened."""
        return block if self._is_everything else self._flat[block]

    def blocks(self, size: int) -> Iterator[slice]:
        """The chosen outputs in blocks of at most ``size``."""
        for start in range(0, self.size, size):
            yield slice(start, min(start + size, self.size))

    def reshape(self, flat: Tensor) -> Tensor:
        """``(…, size)`` to ``(…, *shape)``."""
        return flat.reshape(flat.shape[:-1] + self.shape)

    def gather(self, array: Tensor) -> Tensor:
        """The chosen entries of one number or one for each output, ``()`` or ``(size,)``."""
        return array if array.dim() == 0 else array.flatten()[self.positions(slice(None))]

    def factors(self, factors: Sequence[Factor]) -> list[Factor]:
        """The modes' covariance factors restricted to what was chosen."""
        if self._is_everything:
            return list(factors)
        return [factor.select(index) for factor, index in zip(factors, self.indices, strict=True)]

    def variances(self, factors: Sequence[Factor], block: slice = slice(None)) -> Tensor:
        """The diagonal of the Kronecker product of the modes' covariances, for a block of the chosen, ``(b,)``."""
        places = torch.arange(*block.indices(self.size))
        by_mode = torch.unravel_index(places, [len(index) for index in self.indices])
        modes = zip(factors, self.indices, by_mode, strict=True)
        return reduce(torch.mul, (factor.variance()[index[place]] for factor, index, place in modes))


def evenly_spread(output_shape: Sequence[int], n: int) -> tuple[list[int], ...]:
    """A choice of about ``n`` outputs at most, as many of every mode, evenly spread; of all where there are no more.

    >>> evenly_spread((5, 100), 16)
    ([0, 1, 3, 4], [0, 33, 66, 99])
    """
    each = max(output_shape) if Size(output_shape).numel() <= n else max(1, int(n ** (1 / len(output_shape))))
    return tuple(torch.linspace(0, size - 1, min(size, each)).round().long().unique().tolist() for size in output_shape)


def _index(choice: ModeChoice, size: int) -> Tensor:
    """One mode's choice as a vector of indices."""
    if isinstance(choice, slice):
        picked = range(size)[choice]
        index = torch.arange(picked.start, picked.stop, picked.step) if picked else torch.arange(0)
    else:
        requested = torch.as_tensor(choice).reshape(-1)
        if requested.is_floating_point() or requested.dtype == torch.bool:
            raise ValueError(f"outputs must be chosen by ints or slices; got {choice!r}")
        if ((requested < -size) | (requested >= size)).any():
            raise ValueError(f"outputs {choice!r} lie outside a mode of size {size}")
        index = requested % size
    if len(index) == 0:
        raise ValueError(f"outputs {choice!r} chooses nothing of a mode of size {size}")
    return index
