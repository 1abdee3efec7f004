"""Files that hold numbers and text and cannot hold code: a zip archive of NumPy arrays with a JSON header.

What is written and read is a tree: dicts and lists, with tensors, numbers, strings, booleans and None as leaves. The
entry ``header.json`` holds the name and the version of the format, the kind of the tree, and the tree itself, with each
tensor replaced by its number. The entries ``0.npy``, ``1.npy``, … hold the tensors. Nothing is compressed.

A file may come from a stranger. Its entries, their sizes, shapes and types are therefore checked against each other and
against the size of the file before any tensor is read: no small file can ask for a lot of memory.

Why this is not a library's format: safetensors has no checksums, so that a damaged number is read as if it were right,
and holds no tree, which would need a second format inside it; ``torch.load(weights_only=True)`` is still an unpickler,
which a crafted file can get to run code in versions of torch that we support (CVE-2025-32434, in all before 2.6).
"""

from __future__ import annotations

import glob
import io
import json
import math
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = "pyro-gprn"
VERSION = 1
_HEADER = "header.json"
_HEADER_LIMIT = 32 * 2**20  # bytes: room for a million names of outputs; parsed, it may take 30 times that in memory
_ARRAY_HEADER_LIMIT = 10 + 2**16  # bytes: what NumPy's format allows
_TENSOR = "$tensor"
_PARTIAL = ".partial"


class ArchiveError(ValueError):
    """A file cannot be used: it is not one of ours, is damaged, or was written by a later version."""


def write_archive(path: str | Path, kind: str, tree: dict[str, Any]) -> None:
    """Writes a tree to one file.

    The file appears whole or not at all: the tree goes to a file beside it, which is then renamed. When writing fails,
    a file that was there before is left as it was. What a killed process left of an earlier attempt is removed. A
    tensor is written in pieces, without a copy of it in memory.

    :param path: the file; replaced if it exists.
    :param kind: what the tree describes. Whoever reads the file asks for the same kind.
    :param tree: dicts and lists of tensors, numbers, strings, booleans and None. Keys are turned into strings.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers"
    >>> write_archive(path, "example", {"name": "x", "values": [torch.ones(2), 0.5]})
    >>> read_archive(path, "example")
    {'name': 'x', 'values': [tensor([1., 1.]), 0.5]}
    """
    path = Path(path)
    tensors: list[Tensor] = []
    header = json.dumps({"format": FORMAT, "version": VERSION, "kind": kind, "tree": _take_out(tree, tensors)})
    if len(header) > _HEADER_LIMIT:
        raise ValueError(
            f"an archive holds at most {_HEADER_LIMIT} bytes of numbers and strings outside of tensors;"
            f" got {len(header)}"
        )
    _remove_abandoned(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        with partial.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_HEADER, header)
                for number, tensor in enumerate(tensors):
                    with archive.open(_entry_of(number), "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, tensor.detach().cpu().numpy(), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes what processes that were killed while they wrote this file have left beside it."""
    for partial in path.parent.glob(f"{glob.escape(path.name)}.*{_PARTIAL}"):
        process = partial.name[len(path.name) + 1 : -len(_PARTIAL)]
        if process.isdecimal() and not _is_running(int(process)):
            with suppress(OSError):
                partial.unlink()


def _is_running(process: int) -> bool:
    """True if a process with this number may be writing."""
    if os.name != "posix":
        return False  # Windows refuses to remove a file that is open
    try:
        os.kill(process, 0)  # no signal: it only asks
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def read_archive(path: str | Path, kind: str) -> dict[str, Any]:
    """Reads the tree that :func:`write_archive` wrote, with its tensors on the CPU.

    :param path: the file.
    :param kind: what the tree should describe; a file of another kind is refused.
    :raises ArchiveError: if the file is not one of ours, is damaged, is of another kind or of a later version.
    :raises OSError: if the file cannot be opened, as :func:`open` raises it.
    """
    path = Path(path)
    with path.open("rb") as file, reading(path), zipfile.ZipFile(file) as archive:
        size = os.fstat(file.fileno()).st_size
        tree = _read_header(archive, size, path, kind)["tree"]
        if not isinstance(tree, dict):
            raise TypeError(f"its tree is a {type(tree).__name__}, not a dict")
        _check_entries(archive, size, [_entry_of(number) for number in _numbers(tree)])
        return _put_back(tree, archive)


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turns errors about the content of a file into an :class:`ArchiveError` that names the file.

    Wrap it around code that makes something of a tree. A field that is missing, or holds what it should not, then says
    that the file is damaged. To refuse a file for another reason, raise an ArchiveError: it passes unchanged. So do an
    OSError and a lack of memory. Leave outside what is not about the file's content, such as the caller's arguments.

    :param path: the file, for the message.

    >>> tree = {"steps": 3}
    >>> with reading("model.gprn"):
    ...     tree["seed"]
    Traceback (most recent call last):
    pyro_gprn.archive.ArchiveError: model.gprn is damaged: it has no 'seed'
    """
    try:
        yield
    except (ArchiveError, torch.cuda.OutOfMemoryError):  # which are a ValueError and a RuntimeError
        raise
    except zipfile.BadZipFile as error:
        raise ArchiveError(f"{path} is not a file of pyro_gprn, or it is damaged ({error})") from error
    except RecursionError as error:
        raise ArchiveError(f"{path} is damaged: it is nested too deeply") from error
    except KeyError as error:
        raise ArchiveError(f"{path} is damaged: it has no {error}") from error
    except EOFError as error:
        raise ArchiveError(f"{path} is damaged: it ends too early") from error
    except (ArithmeticError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ArchiveError(f"{path} is damaged: {error}") from error


def _read_header(archive: zipfile.ZipFile, size: int, path: Path, kind: str) -> dict[str, Any]:
    """The header, from an entry that was checked. What a later version may do differently is not looked at."""
    names = archive.namelist()
    if _HEADER not in names:
        raise ArchiveError(f"{path} is not a file of pyro_gprn: it has no {_HEADER}")
    _check_once(names, "it holds")
    entry = archive.getinfo(_HEADER)
    _check_room([entry], size)
    if entry.file_size > _HEADER_LIMIT:
        raise ValueError(f"{_HEADER} has {entry.file_size} bytes, more than the {_HEADER_LIMIT} that are allowed")
    header = json.loads(archive.read(entry))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ArchiveError(f"{path} is not a file of pyro_gprn: its header is another's")
    version = header["version"]
    if type(version) is not int or version < 1:
        raise ValueError(f"its version is {version!r:.40}, not a whole number from 1")
    if version > VERSION:
        raise ArchiveError(
            f"{path} was written by a later pyro_gprn (file version {version}; this one reads up to {VERSION}):"
            " upgrade pyro_gprn to read it"
        )
    if header["kind"] != kind:
        raise ArchiveError(f"{path} holds a {header['kind']!s:.40}, not a {kind}")
    return header


def _check_entries(archive: zipfile.ZipFile, size: int, named: list[str]) -> None:
    """Refuses entries that are not the header and the tensors it names, each once, or are not as large as they say."""
    _check_once(named, "its header names")
    held = set(archive.namelist()) - {_HEADER}
    if held != set(named):
        name = min(held ^ set(named))
        raise ValueError(f"it has no {name!r:.40}" if name in named else f"its header does not name {name!r:.40}")
    _check_room(archive.infolist(), size)
    for name in named:
        _check_array(archive, name)


def _check_once(names: list[str], who: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{who} {repeated[0]!r:.40} more than once")


def _check_room(entries: Iterable[zipfile.ZipInfo], size: int) -> None:
    """Refuses entries that are compressed, lie outside of a file of this size, or lie on top of each other in it."""
    room = size
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ValueError(f"{entry.filename!r:.40} is compressed, or of two sizes; our files are not compressed")
        room -= entry.file_size
        if room < 0 or not 0 <= entry.header_offset < size:
            raise ValueError(f"{entry.filename!r:.40} does not fit into the {size} bytes of the file")


def _check_array(archive: zipfile.ZipFile, name: str) -> None:
    """Refuses an array that does not hold numbers, or whose shape and type do not fill its entry to the byte."""
    with archive.open(name) as entry:
        start = io.BytesIO(entry.read(_ARRAY_HEADER_LIMIT))
    try:
        version = np.lib.format.read_magic(start)
        if version != (1, 0):
            raise ValueError(f"it is in version {version} of NumPy's format, not in (1, 0)")
        shape, _, dtype = np.lib.format.read_array_header_1_0(start)
    except Exception as error:  # NumPy hands text from the file to Python's parser, which raises many things
        raise ValueError(f"{name} is not an array: {error}") from error
    if dtype.kind not in "biufc":
        raise ValueError(f"{name} holds values of type {dtype}, not numbers")
    n_bytes = archive.getinfo(name).file_size - start.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != n_bytes:
        raise ValueError(f"{name} has {n_bytes} bytes, which is not an array of shape {shape} and type {dtype}")


def _entry_of(number: int) -> str:
    return f"{number}.npy"


def _take_out(node: Any, tensors: list[Tensor]) -> Any:
    """The tree with each tensor replaced by its number; the tensors are added to the list."""
    if isinstance(node, Tensor):
        tensors.append(node)
        return {_TENSOR: len(tensors) - 1}
    if isinstance(node, dict):
        if _TENSOR in node:
            raise ValueError(f"the key {_TENSOR!r} stands for a tensor in an archive; call it something else")
        return {str(key): _take_out(value, tensors) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_take_out(value, tensors) for value in node]
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    raise TypeError(f"an archive holds tensors, numbers and strings; got {type(node).__name__}")


def _numbers(node: Any) -> Iterator[int]:
    """The numbers of the tensors in a tree that :func:`_take_out` made."""
    if isinstance(node, dict) and _TENSOR in node:
        number = node[_TENSOR]
        if len(node) > 1 or type(number) is not int:
            raise ValueError(f"{node!r:.40} is not the number of a tensor")
        yield number
    elif isinstance(node, (dict, list)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from _numbers(value)


def _put_back(node: Any, archive: zipfile.ZipFile) -> Any:
    """The same tree, changed in place: each tensor stands where its number did."""
    if isinstance(node, dict) and _TENSOR in node:
        with archive.open(_entry_of(node[_TENSOR])) as entry:  # at its end, the checksum is compared
            return torch.from_numpy(np.lib.format.read_array(entry, allow_pickle=False))
    if isinstance(node, (dict, list)):
        for place, value in node.items() if isinstance(node, dict) else enumerate(node):
            node[place] = _put_back(value, archive)
    return node
