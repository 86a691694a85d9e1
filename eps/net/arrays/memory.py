"""Tuning of a process that uses a van: what memory it keeps, and the number of descriptors.  L2."""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys

import numpy as np

from eps.net.arrays import arena

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8
_MADV_POPULATE_WRITE = 23
#: Pages that one call of the system gives, in bytes: no other thread that maps memory waits long for it.
_TOUCH_BYTES = 4 << 20


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


def touch(array: np.ndarray) -> None:
    """Have the system give ``array`` its memory now; what is in it is not kept.

    The first access to a page costs far more than any later one, in a virtual machine as much as the copy of a hundred.
    One call for many pages costs less than a fault for each, and other threads run meanwhile.
    """
    start = array.__array_interface__["data"][0]
    first, stop = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, start + array.nbytes
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        array.fill(0)
        return
    for at in range(first, stop, _TOUCH_BYTES):
        size_bytes = min(_TOUCH_BYTES, stop - at)
        if madvise(ctypes.c_void_p(at), ctypes.c_size_t(size_bytes), _MADV_POPULATE_WRITE):
            # A kernel before Linux 5.14.
            array.fill(0)
            return


def descriptor_limit() -> int:
    """Return how many descriptors this process, and those that it starts, may have at most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as it may have: each segment of shared memory holds one or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def give_back() -> None:
    """Return freed memory to the system after all: this process will not need it again.

    What is freed later is returned at once where it is shared (:meth:`eps.net.arrays.arena.Arena.rest`).
    """
    arena.rest_all()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
