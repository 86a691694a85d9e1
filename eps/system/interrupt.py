"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be.  Where that is a finaliser, or a callback that
a library guards, the exception is printed or dropped, and the program goes on.  Here it is noted as well, and whoever
does something long asks from time to time whether there was one.  Others than who has the terminal may want the end of
something long, too: that is asked for in the same way.
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
#: What :func:`heed` calls.
_look: ContextVar[Callable[[], None]] = ContextVar("look", default=lambda: None)


@contextmanager
def noted() -> Iterator[None]:
    """Note interrupts while this lasts; where another handler is set, or on another thread, nothing changes."""
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
def by_others_too() -> Iterator[None]:
    """Let the first SIGTERM or SIGHUP be an interrupt while this lasts; on another thread nothing changes.

    Those that follow are nothing: a shell repeats the SIGHUP of its terminal, and whoever is interrupted tidies up.
    What is ignored stays so, as ``nohup`` wants it.
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
    """Have whoever interrupts be told this, unless there is more to tell: notes of the exception.

    Parameters
    ----------
    text : str
        What became of what is done here.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(text)
        raise


def before_submission(name: str) -> AbstractContextManager[None]:
    """Have whoever interrupts be told that nothing was submitted of this name, as of :func:`telling`."""
    return telling(f"{name}: interrupted; nothing was submitted")


@contextmanager
def heeding(look: Callable[[], None]) -> Iterator[None]:
    """Have whoever does something long on this thread look, while this lasts, whether somebody wants its end.

    Parameters
    ----------
    look : callable
        Raises where somebody does; called often, and by threads that work for this one.
    """
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def heed() -> None:
    """Look whether somebody wants the end of what is done here, as of :func:`heeding`, whose error this raises."""
    _look.get()()


def note() -> None:
    """Note an interrupt where the exception would be lost, as on another thread: :func:`check` raises it."""
    global _told
    _told = True


def let_go_of_closed() -> None:
    """Drop what is written to a pipe without a reader, or to a terminal that is gone, without an error."""
    for stream in (sys.stdout, sys.stderr):
        # Of a test's, or of no process's, there is no descriptor.
        with suppress(OSError, ValueError, AttributeError):
            poller = select.poll()
            poller.register(stream.fileno(), 0)
            if poller.poll(0):
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), stream.fileno())


def check() -> None:
    """Raise KeyboardInterrupt where there was one; not for what tidies up after it."""
    if _told:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> None:
    global _told
    _told = True
    raise KeyboardInterrupt


def _interrupt_once(number: int, frame: object) -> None:
    if not _told:
        _interrupt(number, frame)
