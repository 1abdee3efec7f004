"""dask and zarr, which only outputs beyond memory need: the extra ``pyro-gprn[scale]``."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """A module of dask or zarr; without them an error that names the extra to install.

    :param name: of the module, such as ``"dask.array"``.
    """
    try:
        return import_module(name)
    except ImportError as missing:
        raise ImportError(
            "outputs in a zarr store are read by dask: pip install 'pyro-gprn[scale]' (dask, distributed, zarr, xarray)"
        ) from missing
