"""Selecting some of the outputs: mode by mode, or among the flattened ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TypeAlias

import torch
from torch import Size, Tensor

from pyro_gprn.algebra.factors import Factor

#: A selection within one mode, or among the flattened outputs.
ModeChoice: TypeAlias = int | slice | Sequence[int] | Tensor
#: None selects all outputs, a tuple has one selection for each mode, anything else selects among the flattened outputs.
Outputs: TypeAlias = ModeChoice | tuple[ModeChoice, ...] | None


class OutputSelection:
    """A selection among the outputs. An int drops its mode, as in NumPy.

    ``size`` is the number of selected outputs and ``shape`` the shape that they have.

    :param outputs: None for all; a tuple with one selection for each mode; or one selection, within the only mode or,
        if there are several, among the flattened outputs (row-major: the last mode counts fastest).
    :param output_shape: ``(d_1, …, d_M)``.

    >>> selection = OutputSelection((1, slice(0, 4, 2)), Size((3, 5)))
    >>> selection.shape, selection.positions(slice(None))
    (torch.Size([2]), tensor([5, 7]))
    >>> OutputSelection([5, 7], Size((3, 5))).positions(slice(None))
    tensor([5, 7])
    """

    def __init__(self, outputs: Outputs, output_shape: Size) -> None:
        choices = (slice(None),) * len(output_shape) if outputs is None else outputs
        self.outputs, self.output_shape = outputs, output_shape
        #: True if the selection is mode by mode, so that the selected outputs form a tensor.
        self.is_by_mode = isinstance(choices, tuple) or len(output_shape) == 1
        choices = choices if isinstance(choices, tuple) else (choices,)
        sizes = output_shape if self.is_by_mode else Size((output_shape.numel(),))
        if len(choices) != len(sizes):
            raise ValueError(
                f"outputs must be None, count the flattened outputs, or have one entry for each of the"
                f" {len(output_shape)} output modes {tuple(output_shape)}; got {len(choices)}"
            )
        self.drops = [isinstance(choice, int) for choice in choices]  # True for each mode that an int selects from
        self.indices = [_index(choice, size) for choice, size in zip(choices, sizes, strict=True)]
        kept = zip(self.drops, self.indices, strict=True)
        self.shape = Size(len(index) for dropped, index in kept if not dropped)
        self.size = Size(len(index) for index in self.indices).numel()
        self._is_everything = outputs is None
        self._flat = torch.zeros((), dtype=torch.long, device="cpu")  # positions of the selected outputs
        if not self._is_everything:
            for index, size in zip(self.indices, sizes, strict=True):
                self._flat = self._flat.unsqueeze(-1) * size + index
        self._flat = self._flat.flatten()

    def positions(self, block: slice) -> slice | Tensor:
        """The positions of a block of the selected outputs among all outputs, flattened: a slice, or ``(b,)``."""
        return block if self._is_everything else self._flat[block]

    def all_positions(self) -> Tensor:
        """The positions of the selected outputs among all outputs, flattened, ``(size,)``."""
        return torch.arange(self.size, device="cpu") if self._is_everything else self._flat

    def blocks(self, size: int) -> Iterator[slice]:
        """The selected outputs in blocks of at most ``size``."""
        for start in range(0, self.size, size):
            yield slice(start, min(start + size, self.size))

    def reshape(self, flat: Tensor) -> Tensor:
        """Brings values of the selected outputs from ``(…, size)`` to ``(…, *shape)``."""
        return flat.reshape(flat.shape[:-1] + self.shape)

    def gather(self, array: Tensor) -> Tensor:
        """The selected entries, ``(size,)``, of an array with one entry for each output; a single number is kept."""
        return array if array.dim() == 0 else array.flatten()[self.positions(slice(None))]

    def factors(self, factors: Sequence[Factor]) -> list[Factor]:
        """The modes' covariance factors, restricted to the selected indices if the selection is mode by mode."""
        if self._is_everything or not self.is_by_mode:
            return list(factors)
        return [factor.select(index) for factor, index in zip(factors, self.indices, strict=True)]

    def pick(self, values: Tensor) -> Tensor:
        """The selected outputs, ``(…, size)``, of flattened values that were made with :meth:`factors`."""
        return values if self.is_by_mode else values[..., self._flat]

    def variances(self, factors: Sequence[Factor], block: slice = slice(None)) -> Tensor:
        """The diagonal of the Kronecker product of the modes' covariances at a block of selected outputs, ``(b,)``."""
        positions = self.positions(block)
        places = self.all_positions()[block] if isinstance(positions, slice) else positions
        by_mode = torch.unravel_index(places, self.output_shape)
        return reduce(torch.mul, (factor.variance()[index] for factor, index in zip(factors, by_mode, strict=True)))


def evenly_spread(output_shape: Sequence[int], n: int) -> tuple[list[int], ...]:
    """A selection of at most about ``n`` outputs, evenly spread, with as many indices in every mode.

    All outputs are selected if there are at most ``n``.

    >>> evenly_spread((5, 100), 16)
    ([0, 1, 3, 4], [0, 33, 66, 99])
    """
    each = max(output_shape) if Size(output_shape).numel() <= n else max(1, int(n ** (1 / len(output_shape))))
    return tuple(spread_positions(size, each).unique().tolist() for size in output_shape)


def spread_positions(n_outputs: int, n: int) -> Tensor:
    """Positions of at most ``n`` of the flattened outputs, evenly spread, ascending.

    >>> spread_positions(100, 4)
    tensor([ 0, 33, 66, 99])
    """
    return torch.linspace(0, n_outputs - 1, min(n_outputs, n), device="cpu", dtype=torch.float64).round().long()


def _index(choice: ModeChoice, size: int) -> Tensor:
    """The selection within one mode as a vector of indices."""
    if isinstance(choice, slice):
        picked = range(size)[choice]
        index = torch.arange(*((picked.start, picked.stop, picked.step) if picked else (0,)), device="cpu")
    else:
        requested = torch.as_tensor(choice, device="cpu").reshape(-1)
        if requested.is_floating_point() or requested.dtype == torch.bool:
            raise ValueError(f"outputs must be selected by ints or slices; got {choice!r}")
        if ((requested < -size) | (requested >= size)).any():
            raise ValueError(f"outputs {choice!r} lie outside a mode of size {size}")
        index = requested % size
    if len(index) == 0:
        raise ValueError(f"outputs {choice!r} chooses nothing of a mode of size {size}")
    return index
