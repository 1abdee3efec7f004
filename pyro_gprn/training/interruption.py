"""Ctrl-C during a fit: the fit ends early, at the best that it has reached, and nothing is lost."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Tells a fit whether somebody has asked for an early end.

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
        """Notes what was cut short, for the warning. The first message is kept, or a later one ``instead``."""
        if self.message is None or instead:
            self.message = message


#: For each thread, the interruption of the fit under way; fits inside that one (folds of a search) share it.
_current = threading.local()


@contextmanager
def noticed_interrupts() -> Iterator[Interruption]:
    """Notes the first Ctrl-C instead of raising ``KeyboardInterrupt``, so that the code inside can end in good order.

    A second Ctrl-C raises it as usual. A context inside another shares the outer one's interruption, so that one Ctrl-C
    ends everything, with one warning. Only the main thread hears of Ctrl-C; in other threads nothing changes.
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
    # A program that ignores the signal, or handles it in a way that Python does not know of, is left alone.
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
