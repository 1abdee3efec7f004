"""Inputs and outputs from a file: NumPy's ``.npz``, or netCDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def read_data(path: Path, inputs: Sequence[str] = ("X",), output: str = "Y") -> tuple[Any, Any]:
    """Inputs ``(N, P)`` and outputs ``(N, …)`` from a file; those of netCDF as xarrays.

    :param path: a file of NumPy (``.npz``) or netCDF (``.nc``; needs ``pyro-gprn[diagnostics]``).
    :param inputs: the name of the array of inputs, ``(N, P)``; or names of columns, ``(N,)`` each.
    :param output: the name of the array of outputs.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "data.npz"
    >>> np.savez(path, mass=np.ones(4), length=np.zeros(4), Y=np.ones((4, 3)))
    >>> X, Y = read_data(path, ["mass", "length"])
    >>> X.shape, Y.shape
    ((4, 2), (4, 3))
    """
    if not path.exists():
        raise SystemExit(f"there is no file {path}")
    if path.suffix not in (".npz", ".nc"):
        raise SystemExit(f"data must be in a file that ends in .npz or .nc; got {path.name}")
    with _opened(path) as arrays:
        wanted = [*inputs, output]
        if missing := [name for name in wanted if name not in arrays]:
            raise SystemExit(f"{path.name} has no {', '.join(missing)}; it has {', '.join(map(str, arrays))}")
        *columns, Y = (arrays[name].load() if path.suffix == ".nc" else arrays[name] for name in wanted)
    if len(columns) == 1 and np.ndim(columns[0]) == 2:
        return columns[0], Y
    return np.stack([np.asarray(column) for column in columns], axis=1), Y


def _opened(path: Path) -> Any:
    """The arrays of a file by name, as a context."""
    if path.suffix == ".npz":
        return np.load(path)
    try:
        import xarray as xr
    except ImportError as missing:
        raise ImportError("netCDF files need xarray: pip install 'pyro-gprn[diagnostics]'") from missing
    return xr.open_dataset(path)
