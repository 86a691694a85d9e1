"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be.  Inside a finaliser, or a callback that a
library guards, the exception is printed or dropped, and the program continues.  This module also records the interrupt
in a flag; long operations poll it with :func:`check`.
They poll :func:`raise_if_stopped` for requests to stop from other sources.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar

_told = False
#: The callback of :func:`raise_if_stopped`.
_look: ContextVar[Callable[[], None]] = ContextVar("look", default=lambda: None)


@contextmanager
def noted() -> Iterator[None]:
    """Record interrupts inside the block.

    No effect on other threads, or if another SIGINT handler is installed.
    """
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


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Treat the first SIGTERM or SIGHUP inside the block as an interrupt; no effect on other threads.

    Later ones do nothing: a shell repeats the SIGHUP of its terminal, and the interrupted program is cleaning up.
    Ignored signals stay ignored, as ``nohup`` requires.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, _interrupt_once)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def telling(text: str) -> Iterator[None]:
    """Add ``text`` as a note to a KeyboardInterrupt that leaves the block, unless the exception already has notes.

    Parameters
    ----------
    text : str
        What the interrupted operation left behind.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(text)
        raise


def before_submission(name: str) -> AbstractContextManager[None]:
    """Say on an interrupt inside the block that nothing was submitted under this name; see :func:`telling`."""
    return telling(f"{name}: interrupted; nothing was submitted")


@contextmanager
def stopped_by(look: Callable[[], None]) -> Iterator[None]:
    """Make :func:`raise_if_stopped` call ``look`` inside the block, on this thread.

    Parameters
    ----------
    look : callable
        Raises if the operation is to stop.  Called often, also by threads that work for this one.
    """
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def raise_if_stopped() -> None:
    """Raise the error of :func:`stopped_by`'s callback if the current operation is to stop."""
    _look.get()()


def note() -> None:
    """Record an interrupt where the exception would be lost, as on another thread; :func:`check` raises it."""
    global _told
    _told = True


def discard_closed_output() -> None:
    """Discard, without an error, further output to a pipe without a reader or to a closed terminal."""
    for stream in (sys.stdout, sys.stderr):
        # The streams of tests, or of a process without standard streams, have no descriptor.
        with suppress(OSError, ValueError, AttributeError):
            poller = select.poll()
            poller.register(stream.fileno(), 0)
            if poller.poll(0):
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())


def check() -> None:
    """Raise KeyboardInterrupt if an interrupt was recorded; not for code that cleans up after one."""
    if _told:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> None:
    global _told
    _told = True
    raise KeyboardInterrupt


def _interrupt_once(number: int, frame: object) -> None:
    if not _told:
        _interrupt(number, frame)
