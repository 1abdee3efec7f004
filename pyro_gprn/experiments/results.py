"""A file of results: one line of JSON for each cell of a grid of runs, added as soon as the cell is done."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

#: What a line is about: a frozen dataclass whose fields are among the line's.
Cell = TypeVar("Cell")
#: The packages that results depend on.
PACKAGES = ("pyro-gprn", "pyro-ppl", "torch", "numpy", "scipy", "scikit-learn")


def append(path: Path, result: dict[str, Any]) -> None:
    """Adds a line, on a line of its own even if the last one was cut off.

    :param path: the file; it is made, with its folder, if it does not exist.
    :param result: the fields of the line, in types that JSON knows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(result, ensure_ascii=False).encode() + b"\n"
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read() != b"\n":
                line = b"\n" + line
        file.write(line)


def read(path: Path, cell: type[Cell]) -> dict[Cell, dict[str, Any]]:
    """The results so far. Of several lines about one cell the last counts, and a line that was cut off does not.

    :param path: the file. There are no results if it does not exist.
    :param cell: the class of the cells.

    >>> import tempfile
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Run:
    ...     method: str
    ...     seed: int
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> append(path, {"method": "mean", "seed": 0, "error": 0.3})
    >>> with path.open("a") as file:
    ...     _ = file.write('{"method": "mean", "se')
    >>> append(path, {"method": "mean", "seed": 1, "error": 0.2})
    >>> [(run.seed, result["error"]) for run, result in read(path, Run).items()]
    [(0, 0.3), (1, 0.2)]
    """
    names = [field.name for field in fields(cell)]  # type: ignore[arg-type]
    found = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            result = json.loads(line)
        except ValueError:  # not JSON, or cut off in the middle of a character
            continue
        found[cell(**{name: result[name] for name in names})] = result
    return found


def versions() -> dict[str, str]:
    """The versions of what results depend on.

    >>> versions()["pyro-ppl"] >= "1.9"
    True
    """
    packages = {name: version(name) for name in PACKAGES}
    return {"commit": _commit(), "python": platform.python_version(), **packages}


def _commit() -> str:
    """The commit that the code is at; empty outside a clone."""
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
