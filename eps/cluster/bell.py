"""A descriptor that wakes a thread which waits for news of a backend.  L2."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from eps.errors import ResourceError


class Bell:
    """A descriptor that is readable from :meth:`ring` to :meth:`hush`, or while one of ``others`` is.

    One thread may wait while others ring.  It must not be rung, or hushed, after it was closed.

    Parameters
    ----------
    others : int
        Descriptors that bring news by themselves.
    """

    def __init__(self, *others: int) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = select.epoll()
        for fd in (self._fd, *others):
            self._ready.register(fd, select.EPOLLIN)

    def ring(self) -> None:
        """Let :meth:`wait` return, now and until it is hushed."""
        os.eventfd_write(self._fd, 1)

    def hush(self) -> None:
        """Let :meth:`wait` block again; harmless where it does."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until there is news; return False at the timeout.

        Give a timeout where another thread may close this object: closing does not wake a wait.

        Raises
        ------
        ResourceError
            It is closed.
        """
        try:
            return bool(self._ready.poll(timeout_s))
        except ValueError:
            raise ResourceError("the resource manager is closed") from None

    def fileno(self) -> int:
        """Return a descriptor that is readable while there is news."""
        return self._ready.fileno()

    def close(self) -> None:
        """Give the descriptors back; harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._ready.close()
            os.close(fd)


class Belled:
    """Wait on a resource manager's wakeup descriptor."""

    _bell: Bell

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until :meth:`poll` has something to say; return False at the timeout.

        Give a timeout where another thread may close this object: closing does not wake a wait.

        Raises
        ------
        ResourceError
            The manager is closed.
        """
        return self._bell.wait(timeout_s)

    def fileno(self) -> int:
        """Return a descriptor that is readable while :meth:`poll` has something to say."""
        return self._bell.fileno()
