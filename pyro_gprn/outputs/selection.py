"""Selecting some of the outputs: mode by mode, or among the flattened ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TypeAlias

import torch
from torch import Size, Tensor

from pyro_gprn.algebra.factors import Factor

#: What may be selected of one mode, or of the flattened outputs.
ModeChoice: TypeAlias = int | slice | Sequence[int] | Tensor
#: None is all outputs; a tuple has one choice for each mode; anything else counts the flattened outputs.
Outputs: TypeAlias = ModeChoice | tuple[ModeChoice, ...] | None


class OutputSelection:
    """The selected outputs of a tensor of outputs; an int drops its mode, as in NumPy.

    :param outputs: None for all; a tuple with one choice for each mode; or one choice, of the only mode or, where
        there are several, of the flattened outputs (row-major: the last mode counts fastest).
    :param output_shape: ``(d_1, …, d_M)``.

    >>> chosen = OutputSelection((1, slice(0, 4, 2)), Size((3, 5)))
    >>> chosen.shape, chosen.positions(slice(None))
    (torch.Size([2]), tensor([5, 7]))
    >>> OutputSelection([5, 7], Size((3, 5))).positions(slice(None))
    tensor([5, 7])
    """

    def __init__(self, outputs: Outputs, output_shape: Size) -> None:
        choices = (slice(None),) * len(output_shape) if outputs is None else outputs
        self.outputs, self.output_shape = outputs, output_shape
        #: True if what was selected is a tensor: some indices of every mode.
        self.is_by_mode = isinstance(choices, tuple) or len(output_shape) == 1
        choices = choices if isinstance(choices, tuple) else (choices,)
        sizes = output_shape if self.is_by_mode else Size((output_shape.numel(),))
        if len(choices) != len(sizes):
            raise ValueError(
                f"outputs must be None, count the flattened outputs, or have one entry for each of the"
                f" {len(output_shape)} output modes {tuple(output_shape)}; got {len(choices)}"
            )
        self.drops = [isinstance(choice, int) for choice in choices]  # the modes of which one number was chosen
        self.indices = [_index(choice, size) for choice, size in zip(choices, sizes, strict=True)]
        kept = zip(self.drops, self.indices, strict=True)
        self.shape = Size(len(index) for dropped, index in kept if not dropped)
        self.size = Size(len(index) for index in self.indices).numel()
        self._is_everything = outputs is None
        self._flat = torch.zeros((), dtype=torch.long)  # of the chosen among all outputs
        if not self._is_everything:
            for index, size in zip(self.indices, sizes, strict=True):
                self._flat = self._flat.unsqueeze(-1) * size + index
        self._flat = self._flat.flatten()

    def positions(self, block: slice) -> slice | Tensor:
        """Where a block of the selected outputs stands among all outputs, flattened."""
        return block if self._is_everything else self._flat[block]

    def all_positions(self) -> Tensor:
        """Where the selected outputs stand among all outputs, flattened, ``(size,)``."""
        return torch.arange(self.size) if self._is_everything else self._flat

    def blocks(self, size: int) -> Iterator[slice]:
        """The selected outputs in blocks of at most ``size``."""
        for start in range(0, self.size, size):
            yield slice(start, min(start + size, self.size))

    def reshape(self, flat: Tensor) -> Tensor:
        """``(…, size)`` to ``(…, *shape)``."""
        return flat.reshape(flat.shape[:-1] + self.shape)

    def gather(self, array: Tensor) -> Tensor:
        """The selected entries of one number or one for each output, ``()`` or ``(size,)``."""
        return array if array.dim() == 0 else array.flatten()[self.positions(slice(None))]

    def factors(self, factors: Sequence[Factor]) -> list[Factor]:
        """The modes' covariance factors, restricted to what was selected if that is by mode."""
        if self._is_everything or not self.is_by_mode:
            return list(factors)
        return [factor.select(index) for factor, index in zip(factors, self.indices, strict=True)]

    def pick(self, values: Tensor) -> Tensor:
        """The selected outputs ``(…, size)`` of what :meth:`factors` made, flattened."""
        return values if self.is_by_mode else values[..., self._flat]

    def variances(self, factors: Sequence[Factor], block: slice = slice(None)) -> Tensor:
        """The diagonal of the Kronecker product of the modes' covariances, for a block of the selected, ``(b,)``."""
        positions = self.positions(block)
        places = torch.arange(*positions.indices(self.size)) if isinstance(positions, slice) else positions
        by_mode = torch.unravel_index(places, self.output_shape)
        return reduce(torch.mul, (factor.variance()[index] for factor, index in zip(factors, by_mode, strict=True)))


def evenly_spread(output_shape: Sequence[int], n: int) -> tuple[list[int], ...]:
    """A selection of about ``n`` outputs at most, as many of every mode, evenly spread; all where there are no more.

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
