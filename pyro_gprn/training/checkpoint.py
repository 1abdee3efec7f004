"""Where a training run stands, on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_gprn.archive import read_archive, write_archive

_KIND = "checkpoint"


class Checkpoint:
    """A file with the state of one training run, which knows whose it is.

    :param path: the file.
    :param identity: what the run depends on (data by their :func:`digest`, settings). A file of another run is refused.

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

    def load(self) -> dict[str, Any] | None:
        """The state that was saved last; None when there is no file."""
        if not self.path.exists():
            return None
        content = read_archive(self.path, _KIND)
        differing = sorted(
            key for key in self.identity | content["identity"] if self.identity.get(key) != content["identity"].get(key)
        )
        if differing:
            raise ValueError(
                f"{self.path} is the checkpoint of another fit, with another {', '.join(differing)}:"
                " delete it or choose another file"
            )
        return content["state"]

    def save(self, state: dict[str, Any]) -> None:
        """Puts a state in the place of the one before."""
        write_archive(self.path, _KIND, {"identity": self.identity, "state": state})


def digest(*tensors: Tensor) -> str:
    """A fingerprint of values, shapes and types."""
    summary = hashlib.sha256()
    for tensor in tensors:
        summary.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        for row in torch.atleast_1d(tensor.detach()):  # row by row: Y may be large
            summary.update(np.ascontiguousarray(row.cpu().numpy()).data)
    return summary.hexdigest()
