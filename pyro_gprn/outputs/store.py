"""The zarr store from which outputs are read: found, named in a file, and opened again.

A file may come from a stranger. So only stores on this machine are opened, and none whose chunks are pickles, which can
run code when they are read.
"""

from __future__ import annotations

from typing import Any

from pyro_gprn.outputs.extra import load


class StoreError(ValueError):
    """The store that a file names cannot be used: it is gone, or it may not be opened."""


def find_store(array: Any) -> dict[str, str] | None:
    """Where the zarr array lies that a dask array is read from, as a file can hold it; None if that is not one on disk.

    Whether the dask array is this array, or what was computed from it, its values must tell.

    >>> import dask.array
    >>> find_store(dask.array.ones(3)) is None
    True
    """
    found = {id(each): each for each in map(_zarr_behind, array.dask.values()) if each is not None}
    stored = list(found.values())
    if len(stored) != 1 or type(stored[0].store).__name__ != "LocalStore":
        return None
    return {"store": str(stored[0].store.root.absolute()), "array": stored[0].path}


def open_store(reference: dict[str, str]) -> Any:
    """The zarr array that :func:`find_store` named.

    :raises StoreError: if there is none, or its chunks may not be read.
    """
    zarr = load("zarr")
    store, path = reference["store"], reference["array"]
    if not (isinstance(store, str) and isinstance(path, str)) or "://" in store:
        raise StoreError(f"the store {store!r:.200} is none on this machine")
    try:
        array = zarr.open_array(store=zarr.storage.LocalStore(store, read_only=True), path=path, mode="r")
    except Exception as error:  # zarr raises many things
        what = "is gone" if isinstance(error, FileNotFoundError) else "cannot be opened"
        raise StoreError(f"{_name(reference)} {what} ({type(error).__name__}: {error})") from error
    metadata = {name: value for name, value in array.metadata.to_dict().items() if name != "attributes"}
    if "pickle" in str(metadata).lower():
        raise StoreError(f"the chunks of {_name(reference)} are pickles, which could run code")
    return array


def _name(reference: dict[str, str]) -> str:
    array = f"the array {reference['array']!r} in " if reference["array"] else ""
    return f"{array}the zarr store {reference['store']}"


def _zarr_behind(node: Any) -> Any:
    """The zarr array that a node of a dask graph is, or that xarray has wrapped in it; otherwise None."""
    for _ in range(10):  # xarray's wrappers have the next one as their array
        if type(node).__module__.partition(".")[0] not in ("zarr", "xarray"):
            return None
        if type(node).__name__ == "Array":
            return node
        node = node.get_array() if hasattr(node, "get_array") else getattr(node, "array", None)
    return None
