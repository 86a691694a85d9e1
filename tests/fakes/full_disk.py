"""A disk that is full for this process: no file grows beyond a limit."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_beyond(limit_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond ``limit_bytes``.

    For a few lines of a test, never for a fixture: what the test runner writes between the steps of a test goes to a
    file as well, where somebody keeps its output.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
