"""Where simulated runs are kept: in a folder, so that an interrupted simulation can be continued, or in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class RunStore:
    """An array of runs, ``(n, …)``, that is filled run by run and that knows which runs are still missing.

    The folder holds ``runs.npy`` (a plain NumPy array, which is memory-mapped), ``done.npy`` (one flag for each run)
    and ``settings.json``. If the folder is opened again with the same settings, the runs in it are kept and the others
    can be added. If it is opened with other settings, an error is raised.

    :param folder: where the runs are kept. It is made if it does not exist. None keeps the runs in memory only.
    :param shape: the shape of the array, ``(n, …)``.
    :param settings: everything that the values of the runs depend on, in types that JSON knows.
    :param dtype: the type of the array.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> store = RunStore(folder, (3, 2), {"seed": 0})
    >>> store.write(1, np.ones(2))
    >>> RunStore(folder, (3, 2), {"seed": 0}).missing()
    [0, 2]
    """

    runs: np.ndarray  #: all runs, ``(n, …)``; the values of a missing run mean nothing

    def __init__(
        self, folder: str | Path | None, shape: Sequence[int], settings: Mapping[str, Any], *, dtype: str = "float32"
    ) -> None:
        if folder is None:
            self.runs, self._done = np.empty(shape, dtype), np.zeros(shape[0], dtype=bool)
        else:
            self.runs, self._done = _open_folder(Path(folder), tuple(shape), settings, dtype)

    def missing(self) -> list[int]:
        """The numbers of the runs that have not been written yet."""
        return np.flatnonzero(~self._done).tolist()

    def write(self, run: int, values: np.ndarray) -> None:
        """Writes one run.

        The run's flag is set only after the run itself has reached the disk. A crash in between leaves the run missing.
        """
        for array, value in ((self.runs, values), (self._done, True)):
            array[run] = value
            if isinstance(array, np.memmap):
                array.flush()


def _open_folder(
    folder: Path, shape: tuple[int, ...], settings: Mapping[str, Any], dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """The runs and their flags, mapped from the folder's files. The files are made if they do not exist."""
    described = json.dumps({"shape": list(shape), "dtype": dtype, **settings}, sort_keys=True, indent=1)
    known = folder / "settings.json"
    if not known.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.lib.format.open_memmap(folder / "runs.npy", "w+", dtype, shape).flush()
        np.lib.format.open_memmap(folder / "done.npy", "w+", "bool", shape[:1]).flush()
        # settings.json comes last and appears in one step: where it exists, the other two files are complete
        partial = known.with_suffix(".partial")
        partial.write_text(described, encoding="utf-8")
        os.replace(partial, known)
    elif known.read_text(encoding="utf-8") != described:
        raise ValueError(
            f"{folder} holds runs made with other settings than these: compare its settings.json, or choose another"
            " folder"
        )
    return np.load(folder / "runs.npy", mmap_mode="r+"), np.load(folder / "done.npy", mmap_mode="r+")
