"""Simulated runs on disk: written one by one, resumed after an interruption."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class RunStore:
    """An array of runs in a folder, ``(n, …)``, that fills up run by run and remembers which runs are there.

    The folder holds ``runs.npy`` (a plain NumPy array, memory-mapped), ``done.npy`` (a flag for each run) and
    ``settings.json``. Opened again with the same settings it goes on where it stopped; with other settings it refuses.

    :param folder: where; made if it is not there.
    :param shape: of all runs together, ``(n, …)``.
    :param settings: everything the runs depend on, as JSON can hold it.
    :param dtype: of the runs.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> store = RunStore(folder, (3, 2), {"seed": 0})
    >>> store.write(1, np.ones(2))
    >>> RunStore(folder, (3, 2), {"seed": 0}).missing()
    [0, 2]
    """

    def __init__(
        self, folder: str | Path, shape: Sequence[int], settings: Mapping[str, Any], *, dtype: str = "float32"
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        described = json.dumps({"shape": list(shape), "dtype": dtype, **settings}, sort_keys=True, indent=1)
        known = self.folder / "settings.json"
        if known.exists():
            if known.read_text(encoding="utf-8") != described:
                raise ValueError(
                    f"{self.folder} holds runs made with other settings than these: compare its settings.json, or"
                    " choose another folder"
                )
        else:
            np.lib.format.open_memmap(self.folder / "runs.npy", "w+", dtype, tuple(shape)).flush()
            np.lib.format.open_memmap(self.folder / "done.npy", "w+", "bool", (shape[0],)).flush()
            partial = known.with_suffix(".partial")
            partial.write_text(described, encoding="utf-8")
            os.replace(partial, known)  # last and at once: with settings.json there, the rest is whole
        self.runs = np.load(self.folder / "runs.npy", mmap_mode="r+")
        self._done = np.load(self.folder / "done.npy", mmap_mode="r+")

    def missing(self) -> list[int]:
        """The runs that are not there yet."""
        return np.flatnonzero(~self._done).tolist()

    def write(self, run: int, values: np.ndarray) -> None:
        """Puts one run in its place; only when it is on disk does it count as there."""
        self.runs[run] = values
        self.runs.flush()
        self._done[run] = True
        self._done.flush()
