"""The largest memory that this process has held."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


def forget_peak() -> None:
    """Lets :func:`peak_memory` begin again, on Linux. Elsewhere it goes on from when the process started."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float | None:
    """The largest resident memory of this process in MiB since :func:`forget_peak`. None if nothing is known of it.

    >>> forget_peak()
    >>> peak_memory() > 50
    True
    """
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), None)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
