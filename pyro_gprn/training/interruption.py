"""Ctrl-C while something is being fitted: it ends early, at the best that was reached, and nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether somebody asked for an early end.

    >>> with noticed_interrupts() as interruption:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interruption.is_requested
    True
    """

    def __init__(self) -> None:
        self.is_requested = False

    def request(self) -> None:
        """Asks for an early end."""
        self.is_requested = True


#: That of the fit in work, by thread: fits inside it (folds of a search) share it.
_current = threading.local()


@contextmanager
def noticed_interrupts() -> Iterator[Interruption]:
    """Notes the first Ctrl-C instead of raising ``KeyboardInterrupt``, so that what is inside can end in good order.

    A second Ctrl-C raises it as usual. Inside another of these contexts the outer one's interruption is shared, so that
    one Ctrl-C ends everything. Only the main thread hears of Ctrl-C; in others nothing changes.
    """
    outer = getattr(_current, "interruption", None)
    if outer is not None:
        yield outer
        return
    interruption = Interruption()

    def note(number: int, frame: FrameType | None) -> None:
        interruption.request()
        signal.signal(signal.SIGINT, before)

    hears = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    # Somebody who ignores the signal, or handles it in a way that Python does not know of, is left alone.
    hears = hears and callable(before)
    if hears:
        signal.signal(signal.SIGINT, note)
    _current.interruption = interruption
    try:
        yield interruption
    finally:
        _current.interruption = None
        if hears and signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
