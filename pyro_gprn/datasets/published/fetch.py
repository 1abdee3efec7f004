"""Files of published data sets: where they are on this machine, or how they get there.

A file may be in a folder that the user names, in an installed package or in the cache, or it is downloaded. Wherever it
comes from, its checksum is compared with the published one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The environment variable with the folder in which a file is looked for first.
FOLDER_VARIABLE = "PYRO_GPRN_DATA"
#: How many times a download is tried again after it has failed.
RETRIES = 2


@dataclass(frozen=True)
class RemoteFile:
    """A published file and its checksum.

    :param path: the path of the file inside a folder of data sets, such as ``"jura/X.txt"``.
    :param address: the address from which it is downloaded. None if it is published inside a Python package only.
    :param checksum: ``"sha256:…"``, or ``"git-blob:…"`` with the name under which git stores the content. None if no
        checksum is known; the file is then not checked.
    :param package: the Python package, as ``"name==version"``, inside which the file is published. None if there is no
        such package.
    :param resource: the path of the file inside that package.
    """

    path: str
    address: str | None
    checksum: str | None
    package: str | None = None
    resource: str = ""


def checksum_of(path: Path, algorithm: str) -> str:
    """The checksum of a file, in the form of :class:`RemoteFile`.

    :param path: the file.
    :param algorithm: ``"sha256"``, or ``"git-blob"`` for the SHA-1 of ``"blob LENGTH\\0"`` followed by the content.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "hello"
    >>> _ = path.write_bytes(b"hello\\n")
    >>> checksum_of(path, "git-blob")
    'git-blob:ce013625030ba8dba906f756967f9e9ca394464a'
    """
    if algorithm == "git-blob":
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"{algorithm}:{digest.hexdigest()}"


def fetch(file: RemoteFile) -> Path:
    """The path of the file on this machine. The file is downloaded if it is not there.

    It is looked for in three places: in the folder that the environment variable ``PYRO_GPRN_DATA`` names; in the
    package that publishes it, if that is installed (no code of the package is run); and in the user's cache. If the
    file in the cache has another checksum than the published one, it is downloaded again. If a file in one of the other
    two places has, an error is raised. Only the cache and the download need the extra ``data``.

    :param file: the published file.

    >>> fetch(RemoteFile("jura/X.txt", "https://…/X.txt", "sha256:…"))  # doctest: +SKIP
    PosixPath('/home/me/.cache/pyro-gprn/jura/X.txt')
    """
    for found in (_own_copy(file), _installed_copy(file)):
        if found is not None and found.exists():
            _check(file, found)
            return found
    if file.address is None:
        raise FileNotFoundError(_not_found(file))
    return _cached_copy(file, file.address)


def _own_copy(file: RemoteFile) -> Path | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser() / file.path if folder else None


def _installed_copy(file: RemoteFile) -> Path | None:
    if file.package is None:
        return None
    package = importlib.util.find_spec(file.package.partition("==")[0])
    return None if package is None or package.origin is None else Path(package.origin).parent / file.resource


def _matches(file: RemoteFile, path: Path) -> bool:
    return file.checksum is None or checksum_of(path, file.checksum.partition(":")[0]) == file.checksum


def _check(file: RemoteFile, path: Path) -> None:
    if not _matches(file, path):
        raise ValueError(
            f"{path} is not the published {file.path}, whose checksum is {file.checksum}. Remove it, or replace it by"
            f" {_where_from(file)}"
        )


def _cached_copy(file: RemoteFile, address: str) -> Path:
    """The path of the file in the cache. If it is not there, or has changed, it is downloaded.

    A download whose checksum is wrong is not put into the cache.
    """
    try:
        import platformdirs
        import pooch
    except ImportError as error:
        raise ImportError(_extra_missing(file)) from error
    cache = Path(platformdirs.user_cache_dir("pyro-gprn"))
    cached = cache / file.path
    if cached.exists() and _matches(file, cached):
        return cached
    cached.unlink(missing_ok=True)
    store = pooch.create(
        path=cache,
        base_url="",
        registry={file.path: None},  # no checksum here, as pooch does not know git's; _downloader checks it
        urls={file.path: address},
        retry_if_failed=RETRIES,
    )
    try:
        store.fetch(file.path, downloader=_downloader(file, pooch.HTTPDownloader(progressbar=sys.stderr.isatty())))
    except OSError as error:  # the errors of requests, which pooch uses, are OSErrors
        raise FileNotFoundError(_not_found(file, cached, error)) from error
    return cached


def _downloader(file: RemoteFile, http: Callable[[str, Any, Any], None]) -> Callable[[str, str, Any], None]:
    """A downloader for pooch that checks the checksum of what was downloaded.

    :param http: the downloader of pooch that does the download itself.
    """

    def download(address: str, target: str, store: Any) -> None:
        http(address, target, store)
        if not _matches(file, Path(target)):
            raise ValueError(f"{address} is not the {file.path} it was: its checksum should be {file.checksum}")

    return download


def _where_from(file: RemoteFile) -> str:
    return file.address or f"{file.resource} of the package {file.package} (pip download --no-deps {file.package})"


def _not_found(file: RemoteFile, cached: Path | None = None, error: OSError | None = None) -> str:
    own = _own_copy(file)
    what = f"could not be downloaded ({error})" if error else f"has no address; pip install {file.package} brings it"
    return (
        f"{file.path} {what}.\n"
        f"Looked for before: {own if own else f'{FOLDER_VARIABLE} is not set'}{f'; {cached}' if cached else ''}.\n"
        f"On a machine with internet try again. Or fetch {_where_from(file)} by other means, put it in a folder as"
        f" {file.path}, and set the environment variable {FOLDER_VARIABLE} to that folder."
    )


def _extra_missing(file: RemoteFile) -> str:
    return (
        f"downloading {file.path} needs pooch and platformdirs: pip install 'pyro-gprn[data]'. Or set the environment"
        f" variable {FOLDER_VARIABLE} to a folder that holds it ({_where_from(file)})"
    )
