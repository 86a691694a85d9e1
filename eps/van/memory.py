"""Tuning of a process that uses a van: the C library's allocator, and the number of descriptors.  L2."""

from __future__ import annotations

import ctypes
import resource

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def tune_malloc() -> bool:
    """Keep freed buffers in the process instead of giving their pages back to the system.

    glibc maps every block above a threshold (32 MiB at most) anew, and the page faults cost more than the copy itself:
    streams of 1 MiB frames go from 1.3 to 2.0 GB/s with these settings.  In a virtual machine whose host takes free
    pages back it is far worse: the first touch of 2 GB took between 0.1 and 10 s.  One arena, because another thread's
    can only map what is larger than a heap of 64 MiB.  Call once, early, in every process that uses a van.

    Returns
    -------
    bool
        False where the C library has no ``mallopt``, or refused a setting; nothing depends on it but speed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = (
        (_M_MMAP_MAX, 0),
        (_M_ARENA_MAX, 1),
        (_M_TRIM_THRESHOLD, -1),
        (_M_TOP_PAD, 64 << 20),
    )
    return all([mallopt(option, value) == 1 for option, value in settings])


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may have: each segment of shared memory holds one or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def give_back() -> None:
    """Return freed memory to the system after all: this process will not need it again."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
