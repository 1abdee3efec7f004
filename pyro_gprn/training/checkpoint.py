"""The state of a training run in a file, so that a run that was stopped can go on from there."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.archive import read_archive, reading, write_archive

_KIND = "checkpoint"


class Checkpoint:
    """A file for the states of training runs, each stored with the run's identity.

    Most files hold one run. A run that goes on from the result of another, say a warm start, is kept beside that one,
    so that a program that is started again finds both.

    :param path: the file. Its folder must exist; the file need not.
    :param identity: what the result of the run depends on: its settings, and its data as a :func:`digest`. A file that
        holds other runs only is refused.
    :param after: the identity of the run that this one goes on from. A file that holds that run is not refused.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "fit.checkpoint"
    >>> Checkpoint(path, {"seed": 0}).save({"step": 20})
    >>> Checkpoint(path, {"seed": 0}).load()
    {'step': 20}
    >>> Checkpoint(path, {"seed": 1}, after={"seed": 0}).load() is None
    True
    >>> Checkpoint(path, {"seed": 1}).load()
    Traceback (most recent call last):
    ValueError: ... is the checkpoint of another fit, with another seed: delete it or choose another file
    """

    def __init__(
        self, path: str | Path, identity: Mapping[str, Any], *, after: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self.identity = Path(path), dict(identity)
        self._after = None if after is None else dict(after)
        self._has_warned = False
        self._others: list[dict[str, Any]] | None = None  # the other runs in the file; None before it is read
        if self.path.is_dir():
            raise IsADirectoryError(f"the checkpoint must be a file, but {self.path} is a folder")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {self.path.parent} for the checkpoint {self.path.name}")

    def load(self) -> dict[str, Any] | None:
        """Returns the state of this run that was saved last, or None if there is none yet."""
        runs = self._read()
        with reading(self.path):
            ours = next((run for run in runs if run["identity"] == self.identity), None)
        self._others = [run for run in runs if run is not ours]
        if ours is not None:
            return ours["state"]
        if runs and not any(run["identity"] == self._after for run in runs):
            found = runs[-1]["identity"]
            differing = sorted(key for key in self.identity | found if self.identity.get(key) != found.get(key))
            raise ValueError(
                f"{self.path} is the checkpoint of another fit, with another {', '.join(differing)}:"
                " delete it or choose another file"
            )
        return None

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        content = read_archive(self.path, _KIND)
        with reading(self.path):
            runs = content["runs"]
            for run in runs:
                for name in ("identity", "state"):
                    if not isinstance(run[name], dict):
                        raise TypeError(f"its {name} is a {type(run[name]).__name__}, not a dict")
            return list(runs)

    def save(self, state: dict[str, Any]) -> None:
        """Writes the state of this run in place of the one before.

        If the file cannot be written, say because the disk is full, the old file stays and training goes on: there is
        one warning, and the next call tries again.

        :param state: dicts and lists of tensors, numbers, strings, booleans and None.
        """
        if self._others is None:
            self.load()
        try:
            ours = {"identity": self.identity, "state": state}
            write_archive(self.path, _KIND, {"runs": [*(self._others or []), ours]})
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"the checkpoint {self.path} could not be written ({error}): training goes on without it",
                    stacklevel=2,
                )


def digest(*tensors: Tensor) -> str:
    """Returns a fingerprint of tensors: it differs if any value, shape or type does.

    >>> digest(torch.ones(2)) == digest(torch.ones(2))
    True
    >>> digest(torch.ones(2)) == digest(torch.ones(2, dtype=torch.float64))
    False
    """
    summary = hashlib.sha256()
    for tensor in tensors:
        summary.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        for row in torch.atleast_1d(tensor.detach()):  # row by row: a copy of all of Y may not fit into memory
            summary.update(np.ascontiguousarray(row.cpu().numpy()).data)
    return summary.hexdigest()
