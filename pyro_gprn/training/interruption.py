"""Ctrl-C while something is being fitted: it ends early, at the best that was reached, and nothing is lost."""

from __future__ import annotations

import signal
import threading
import warnings
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
        self.message: str | None = None  #: what was cut short, for the warning at the end

    def request(self) -> None:
        """Asks for an early end."""
        self.is_requested = True

    def tell(self, message: str, *, instead: bool = False) -> None:
        """Says what was cut short: the first to speak is heard, unless a later one speaks ``instead``."""
        if self.message is None or instead:
            self.message = message


#: That of the fit in work, by thread: fits inside it (folds of a search) share it.
_current = threading.local()


@contextmanager
def noticed_interrupts() -> Iterator[Interruption]:
    """Notes the first Ctrl-C instead of raising ``KeyboardInterrupt``, so that what is inside can end in good order.

    A second Ctrl-C raises it as usual. Inside another of these contexts the outer one's interruption is shared, so that
    one Ctrl-C ends everything, with one warning. Only the main thread hears of Ctrl-C; in others nothing changes.
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
    if interruption.message is not None:
        warnings.warn(interruption.message, stacklevel=4)
