"""Numbers in one file that cannot hold code: a zip archive of NumPy arrays and a JSON header.

What goes in and comes out is a tree of dicts and lists with tensors, numbers, strings, booleans and None for leaves.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = "pyro-gprn"
VERSION = 1
_HEADER = "header.json"
_TENSOR = "$tensor"


class ArchiveError(ValueError):
    """A file that is not one of ours, is damaged, or comes from a later version."""


def write_archive(path: str | Path, kind: str, tree: dict[str, Any]) -> None:
    """Writes a tree to one file, all at once: a reader never sees half of it.

    :param path: where; replaced if it is there.
    :param kind: what the tree is, asked for again when it is read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers"
    >>> write_archive(path, "example", {"name": "x", "values": [torch.ones(2), 0.5]})
    >>> read_archive(path, "example")
    {'name': 'x', 'values': [tensor([1., 1.]), 0.5]}
    """
    path = Path(path)
    tensors: list[Tensor] = []
    header = {"format": FORMAT, "version": VERSION, "kind": kind, "tree": _take_out(tree, tensors)}
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_HEADER, json.dumps(header))
                for number, tensor in enumerate(tensors):
                    with archive.open(f"{number}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, tensor.detach().cpu().numpy(), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_archive(path: str | Path, kind: str) -> dict[str, Any]:
    """The tree that :func:`write_archive` wrote, checked: right format, kind and version, nothing damaged."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            header = _read_header(archive, path, kind)
            return _put_back(header["tree"], archive)
    except FileNotFoundError:
        raise
    except ArchiveError:
        raise
    except zipfile.BadZipFile as error:
        raise ArchiveError(f"{path} is not a file of pyro_gprn, or it is damaged ({error})") from error
    except (KeyError, TypeError, ValueError, EOFError, OSError) as error:
        raise ArchiveError(f"{path} is damaged: {error}") from error


def _read_header(archive: zipfile.ZipFile, path: Path, kind: str) -> dict[str, Any]:
    if _HEADER not in archive.namelist():
        raise ArchiveError(f"{path} is not a file of pyro_gprn: it has no {_HEADER}")
    header = json.loads(archive.read(_HEADER))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ArchiveError(f"{path} is not a file of pyro_gprn: its header is another's")
    if header["version"] > VERSION:
        raise ArchiveError(
            f"{path} was written by a later pyro_gprn (file version {header['version']}; this one reads up to"
            f" {VERSION}): upgrade pyro_gprn to read it"
        )
    if header["kind"] != kind:
        raise ArchiveError(f"{path} holds a {header['kind']}, not a {kind}")
    return header


def _take_out(node: Any, tensors: list[Tensor]) -> Any:
    """The tree with each tensor replaced by its number."""
    if isinstance(node, Tensor):
        tensors.append(node)
        return {_TENSOR: len(tensors) - 1}
    if isinstance(node, dict):
        return {str(key): _take_out(value, tensors) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_take_out(value, tensors) for value in node]
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    raise TypeError(f"an archive holds tensors, numbers and strings; got {type(node).__name__}")


def _put_back(node: Any, archive: zipfile.ZipFile) -> Any:
    if isinstance(node, dict):
        if set(node) == {_TENSOR}:
            data = io.BytesIO(archive.read(f"{node[_TENSOR]}.npy"))  # checks the sum of the entry
            return torch.from_numpy(np.lib.format.read_array(data, allow_pickle=False))
        return {key: _put_back(value, archive) for key, value in node.items()}
    if isinstance(node, list):
        return [_put_back(value, archive) for value in node]
    return node
