"""Files of published data sets: found in a folder of the user's, in the cache, or downloaded; checked every time."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The environment variable that names a folder to look in first.
FOLDER_VARIABLE = "PYRO_GPRN_DATA"
#: How often a download that failed is tried again.
RETRIES = 2


@dataclass(frozen=True)
class RemoteFile:
    """A published file, pinned by its checksum.

    :param path: of the file below a folder of data sets, ``"jura/X.txt"``.
    :param address: where to download it; None for what is only published inside a package.
    :param checksum: ``"sha256:…"``, or ``"git-blob:…"`` for the name under which git stores the content. None where
        none is known: then only the commit in the address pins the file.
    :param package: the Python package that it is published in, ``"name==version"``, if it is.
    :param resource: and its path in there.
    """

    path: str
    address: str | None
    checksum: str | None
    package: str | None = None
    resource: str = ""


def checksum_of(path: Path, algorithm: str) -> str:
    """The checksum of a file, as :class:`RemoteFile` writes it.

    :param path: the file.
    :param algorithm: ``"sha256"``, or ``"git-blob"``: SHA-1 of ``"blob LENGTH\\0"`` and the content.
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
    """Where the file is on this machine, downloaded if need be.

    Looked for in the folder that ``PYRO_GPRN_DATA`` names, in the package that publishes it if that is installed (no
    code of which is run), then in the user's cache; a file in the cache that has changed is downloaded again, one
    anywhere else is refused. Only the cache and the download need the extra ``data``.
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
    """The file in the cache, after a download if need be; what fails the check never gets there."""
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
        registry={file.path: None},  # the downloader checks: pooch does not know git's checksum
        urls={file.path: address},
        retry_if_failed=RETRIES,
    )
    try:
        store.fetch(file.path, downloader=_downloader(file, pooch.HTTPDownloader(progressbar=sys.stderr.isatty())))
    except OSError as error:  # requests' errors are OSErrors
        raise FileNotFoundError(_not_found(file, cached, error)) from error
    return cached


def _downloader(file: RemoteFile, http: Callable[[str, Any, Any], None]) -> Callable[[str, str, Any], None]:
    """A downloader as pooch wants one, that checks what ``http``, one of pooch's own, brings."""

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
