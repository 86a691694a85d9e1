"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be.  Where that is a finaliser, or a callback that
a library guards, the exception is printed or dropped, and the program goes on.  Here it is noted as well, and whoever
does something long asks from time to time whether there was one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_told = False


@contextmanager
def noted() -> Iterator[None]:
    """Note interrupts while this lasts; where somebody else handles them, or on another thread, nothing changes."""
    global _told
    _told = False
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check() -> None:
    """Raise KeyboardInterrupt where there was one; not for what tidies up after it."""
    if _told:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> None:
    global _told
    _told = True
    raise KeyboardInterrupt
