"""Who is told what a store waits for, besides the log: whoever shows people how a job is.  L2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: What :func:`tell` calls.
_tell: ContextVar[Callable[[str], None]] = ContextVar("tell", default=lambda text: None)


@contextmanager
def telling(to: Callable[[str], None]) -> Iterator[None]:
    """Have what is waited for on this thread told, while this lasts.

    Parameters
    ----------
    to : callable
        Takes what cannot be done for now, and why; called when a wait begins, and every few seconds of it.
    """
    token = _tell.set(to)
    try:
        yield
    finally:
        _tell.reset(token)


def tell(text: str) -> None:
    """Tell what cannot be done for now, as of :func:`telling`."""
    _tell.get()(text)
