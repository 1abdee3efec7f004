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
    """A file for the state of one training run, together with what that run is: its identity.

    :param path: the file. Its folder must exist; the file need not.
    :param identity: what the result of the run depends on: its settings, and its data as a :func:`digest`. A file that
        was written with another identity is not loaded, but refused.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "fit.checkpoint"
    >>> Checkpoint(path, {"seed": 0}).save({"step": 20})
    >>> Checkpoint(path, {"seed": 0}).load()
    {'step': 20}
    >>> Checkpoint(path, {"seed": 1}).load()
    Traceback (most recent call last):
    ValueError: ... is the checkpoint of another fit, with another seed: delete it or choose another file
    """

    def __init__(self, path: str | Path, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = Path(path), dict(identity)
        self._has_warned = False
        if self.path.is_dir():
            raise IsADirectoryError(f"the checkpoint must be a file, but {self.path} is a folder")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {self.path.parent} for the checkpoint {self.path.name}")

    def load(self) -> dict[str, Any] | None:
        """Returns the state that was saved last, or None if there is no file yet."""
        if not self.path.exists():
            return None
        content = read_archive(self.path, _KIND)
        with reading(self.path):
            for name in ("identity", "state"):
                if not isinstance(content[name], dict):
                    raise TypeError(f"its {name} is a {type(content[name]).__name__}, not a dict")
            identity, state = content["identity"], content["state"]
            differing = sorted(key for key in self.identity | identity if self.identity.get(key) != identity.get(key))
        if differing:
            raise ValueError(
                f"{self.path} is the checkpoint of another fit, with another {', '.join(differing)}:"
                " delete it or choose another file"
            )
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Writes a state in place of the one before.

        If the file cannot be written, say because the disk is full, the one before stays and the run is not stopped for
        it: there is one warning, and the next call tries again.

        :param state: dicts and lists of tensors, numbers, strings, booleans and None.
        """
        try:
            write_archive(self.path, _KIND, {"identity": self.identity, "state": state})
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
