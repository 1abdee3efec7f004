"""What the bounds need of the outputs: their Gram matrix, from one pass over Y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: A pass over Y holds about this many bytes of it in float64 at a time.
CHUNK_BYTES = 2**26


@dataclass(frozen=True)
class OutputStatistics:
    """Outputs and their Gram matrix.

    :param outputs: ``Y`` itself, ``(N, d_1, …, d_M)``: referred to, never copied.
    :param gram: ``Y Yᵀ``, summed over all outputs in float64, ``(N, N)``.
    :param version: torch's count of in-place changes of ``Y`` when the Gram matrix was made.

    >>> OutputStatistics.of(torch.ones(2, 10, 10)).gram
    tensor([[100., 100.],
            [100., 100.]], dtype=torch.float64)
    """

    outputs: Tensor
    gram: Tensor
    version: int

    @classmethod
    def of(cls, outputs: Tensor) -> OutputStatistics:
        """One pass over ``outputs``."""
        return cls(outputs, gram_matrix(outputs), outputs._version)

    def describe(self, outputs: Tensor) -> bool:
        """Whether these are the statistics of exactly this tensor (or a view of all of it), unchanged."""
        return (
            outputs.data_ptr() == self.outputs.data_ptr()
            and outputs.shape == self.outputs.shape
            and outputs.stride() == self.outputs.stride()
            and outputs._version == self.version
        )


def gram_matrix(outputs: Any, *, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """``Y Yᵀ`` over all outputs, in chunks of columns, summed in float64.

    :param outputs: ``Y``, ``(N, d_1, …, d_M)``: a torch tensor, or anything that slices into NumPy arrays
        (NumPy, a memory map, dask, zarr).
    :param chunk_bytes: how much of Y is held in float64 at a time.
    :returns: ``(N, N)`` in float64.
    :raises ValueError: if Y holds NaN or inf.

    >>> gram_matrix(np.eye(2, 5, dtype=np.float32))
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    n_rows = outputs.shape[0]
    flat = outputs.reshape(n_rows, -1)
    width = max(1, chunk_bytes // (8 * n_rows))
    gram = torch.zeros(n_rows, n_rows, dtype=torch.float64, device=getattr(outputs, "device", None))
    for start in range(0, flat.shape[1], width):
        block = flat[:, start : start + width]
        chunk = (block if isinstance(block, Tensor) else torch.from_numpy(np.asarray(block))).to(torch.float64)
        gram += chunk @ chunk.mT
    not_finite = ~torch.isfinite(gram.diagonal())
    if not_finite.any():
        rows = not_finite.nonzero().flatten().tolist()
        raise ValueError(
            f"Y holds NaN or inf in {len(rows)} of {n_rows} rows (the first: row {rows[0]}), and a Gram matrix needs"
            " complete outputs. For missing outputs use KroneckerGuide(mean='full') with a mask."
        )
    return gram
