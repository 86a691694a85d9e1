"""Memory of a process that uses a van: arrays that another process on this host reads where they lie, and tuning.

An :class:`Arena` belongs to one process and makes arrays whose memory lies in anonymous files (``memfd_create``).  To
send one, a connection passes the file's descriptor once (``SCM_RIGHTS``) and from then on only says where the array
lies; nothing is copied.  The memory is reused when this process has freed the array and every peer that borrowed it
has returned it.  There is no name in any file system: the kernel frees a segment with its last descriptor
and mapping, also after ``kill -9``.

Arrays that were lent when a connection ended are reused once the process at its other end has exited; until then that
process may read them.

Small blocks are cut from segments of :data:`SLAB_BYTES`, which cost only the pages that are touched; large ones have a
segment each.  Sizes are rounded up to an eighth of a power of two, so that a freed block fits the next request: a clock
of training asks for the memory of the one before, whose pages are warm, and first touches are what is expensive here.
Free neighbours in a slab become one where no free block fits.

An arena returns a segment without arrays to the system in three cases: it was idle for :data:`MOST_IDLE_S`; idle
segments exceed what was in use at the same time lately; the process rests (:meth:`Arena.rest`).

Source: P. Wilson et al., "Dynamic Storage Allocation: A Survey and Critical Review", 1995 (deferred coalescing with
lists of exact sizes, best fit).
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import math
import mmap
import os
import resource
import select
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from eps.errors import FrameError

SLAB_BYTES = 64 << 20
#: A block above it is a segment of its own.
MOST_SLAB_BLOCK_BYTES = 16 << 20
#: Most bytes of idle segments that an arena keeps for the next request.  It keeps as much as was in use at the same
#: time lately in any case.
MOST_IDLE_BYTES = 1 << 30
#: How long an arena keeps an idle segment; also what "lately" means.  Longer than a clock of training.
MOST_IDLE_S = 300.0
_PAGE_BYTES = mmap.PAGESIZE
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_MADV_POPULATE_WRITE = 23
#: Bytes that one system call touches: other threads that map memory do not wait long for it.
_TOUCH_BYTES = 4 << 20


def rounded_bytes(size_bytes: int) -> int:
    """Return the size of the block for a request: whole pages, and at most an eighth more than asked."""
    size_bytes = max(_PAGE_BYTES, -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES)
    step = max(_PAGE_BYTES, 1 << max(0, size_bytes.bit_length() - 4))
    return -(-size_bytes // step) * step


def address_of(buffer: mmap.mmap) -> int:
    """Return where a mapping lies."""
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


class Segment:
    """An anonymous file of this process, mapped."""

    __slots__ = (
        "__weakref__",
        "address",
        "dedicated",
        "descriptor",
        "idle_since_s",
        "mapping",
        "number",
        "size_bytes",
        "used_bytes",
    )

    def __init__(self, number: int, size_bytes: int, dedicated: bool) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.dedicated = dedicated
        #: Of the blocks that arrays lie in; where it is 0, since when.
        self.used_bytes = 0
        self.idle_since_s = 0.0
        self.descriptor = os.memfd_create(f"eps-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # A reader can rely on every page: no peer can cut the file under it.
            fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
            self.mapping = mmap.mmap(self.descriptor, size_bytes)
        except BaseException:
            # Closed once: by then its number may be that of another file.
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)
            raise
        self.address = address_of(self.mapping)

    def __del__(self) -> None:
        # The mapping goes with its last array; the descriptor has no owner but this object.
        descriptor = getattr(self, "descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)


class Reader:
    """A process that may be reading memory that it was lent.

    Parameters
    ----------
    pid : int
        0 where it is not known: then it may be reading for ever.
    """

    __slots__ = ("_descriptor", "_gone")

    def __init__(self, pid: int) -> None:
        self._descriptor, self._gone = -1, False
        if pid > 0:
            try:
                self._descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone = True
            except OSError:
                # No such call, or no descriptor left: its end cannot be noticed.
                return

    @property
    def gone(self) -> bool:
        """True once the process has ended, and its mappings with it."""
        if not self._gone and self._descriptor >= 0:
            poller = select.poll()
            poller.register(self._descriptor, select.POLLIN)
            self._gone = bool(poller.poll(0))
        return self._gone

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _Block:
    """The owner of an array's memory: NumPy makes the array from it, and frees it with the array's last view."""

    __slots__ = ("__array_interface__", "__weakref__", "_notes", "_place", "readers", "segment")

    def __init__(self, segment: Segment, offset: int, size_bytes: int, block_bytes: int, notes: _Notes) -> None:
        self.segment = segment
        #: Processes that may still read it after the array is freed.
        self.readers: tuple[Reader, ...] = ()
        self._place = (segment, offset, block_bytes)
        self._notes = notes
        self.__array_interface__ = {
            "data": (segment.address + offset, False),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        # May run anywhere, also inside the arena's own lock: it appends a note, and waits for nothing.
        self._notes.freed.append((*self._place, self.readers))
        if self._notes.resting:
            # The arena takes in notes when an array is requested, which will not happen here.
            self._notes.collect()


#: Segment, offset and bytes of a block whose array was freed, and the processes that may still read it.
_Freed = tuple[Segment, int, int, tuple[Reader, ...]]


class _Notes:
    """Blocks that were freed, for the arena to take in; does not keep the arena alive."""

    __slots__ = ("_arena", "freed", "resting")

    def __init__(self, arena: Arena) -> None:
        self._arena = weakref.ref(arena)
        self.freed: deque[_Freed] = deque()
        #: The arena keeps no freed memory for the next request.
        self.resting = False

    def collect(self) -> None:
        arena = self._arena()
        if arena is not None:
            arena.collect()


class Arena:
    """Arrays in shared memory.  Thread-safe; costs nothing before the first array.

    Not to be used across a fork: the child would share the parent's memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_number = 1
        #: Block size -> free places of that size.
        self._free: dict[int, list[tuple[Segment, int]]] = {}
        #: Number -> segment that small blocks are cut from.
        self._slabs: dict[int, Segment] = {}
        #: Their parts that are in no list of :attr:`_free`: bytes, number, offset, smallest first.
        self._extents: list[tuple[int, int, int]] = []
        #: Number -> segment that no array lies in, longest first.
        self._idle: dict[int, Segment] = {}
        self._idle_bytes = 0
        #: Bytes of segments with arrays: now, the most in this period, and the most in the period before.
        self._busy_bytes = self._most_busy_bytes = self._most_before_bytes = 0
        #: When the period ends; it lasts :data:`MOST_IDLE_S`.
        self._most_until_s = 0.0
        self._notes = _Notes(self)
        #: Blocks of slabs that a peer may still be reading.
        self._read: list[_Freed] = []
        #: Where segments begin, ascending, and the segments.  Never changed, always replaced: read without the lock.
        self._table: tuple[list[int], list[weakref.ref[Segment]]] = ([], [])
        #: Called with the number of each segment that the arena drops.
        self._listeners: list[Callable[[int], None]] = []
        with _arenas_lock:
            _arenas.add(self)

    def empty(self, size_bytes: int) -> np.ndarray:
        """Return an uninitialised array, shape (size_bytes,), uint8, on a page boundary.

        Raises
        ------
        MemoryError
            The system has no memory or no descriptor for a new segment.
        """
        block_bytes = rounded_bytes(size_bytes)
        with self._lock:
            self._notes.resting = False
            now_s = time.monotonic()
            self._take_in(now_s)
            segment, offset = self._place(block_bytes)
            if not segment.used_bytes:
                self._count_busy(segment, now_s)
            segment.used_bytes += block_bytes
            if self._idle:
                # Last: a segment that fits this request must not be dropped just before.
                most_lately_bytes = max(self._most_before_bytes, self._most_busy_bytes)
                self._release(max(MOST_IDLE_BYTES, most_lately_bytes - self._busy_bytes), now_s)
        return np.asarray(_Block(segment, offset, size_bytes, block_bytes, self._notes))

    def rest(self) -> None:
        """Return unused memory to the system now and, until the next request, each block as soon as it is freed."""
        self._notes.resting = True
        with self._lock:
            self._look_at_readers()
            self._give_back()
        # Blocks that were freed meanwhile found the lock taken.
        self.collect()

    def collect(self) -> None:
        """Return freed memory to the system, where the arena rests.  Never waits: may be called anywhere."""
        while self._notes.resting and self._notes.freed and self._lock.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._lock.release()

    def array(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array of a shape and a type."""
        kind = np.dtype(dtype)
        count = shape if isinstance(shape, int) else math.prod(shape)
        return self.empty(count * kind.itemsize).view(kind).reshape(shape)

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Return a C-contiguous copy in shared memory."""
        copied = self.array(array.shape, array.dtype)
        np.copyto(copied, array)
        return copied

    def find(self, array: np.ndarray) -> tuple[Segment, int] | None:
        """Return the segment that an array lies in, and where; None for other memory."""
        addresses, segments = self._table
        if not addresses:
            return None
        address = array.__array_interface__["data"][0]
        index = bisect.bisect_right(addresses, address) - 1
        segment = segments[index]() if index >= 0 else None
        if segment is None or address + array.nbytes > segment.address + segment.size_bytes:
            return None
        return segment, address - segment.address

    @staticmethod
    def retire(array: np.ndarray, reader: Reader) -> None:
        """Keep the memory of ``array`` from being reused while ``reader`` may read it."""
        owner: object = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, _Block):
            owner.readers += (reader,)

    def on_segment_gone(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the number of each segment that the arena drops."""
        with self._lock:
            self._listeners.append(listener)

    def forget_listener(self, listener: Callable[[int], None]) -> None:
        """End :meth:`on_segment_gone`."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, touched or not."""
        return sum(segment.size_bytes for ref in self._table[1] if (segment := ref()) is not None)

    # ---- called with the lock held

    def _place(self, block_bytes: int) -> tuple[Segment, int]:
        """Return a place for a block: a freed one of its size, else one cut from a slab, or a segment of its own."""
        places = self._free.get(block_bytes)
        if not places and self._read:
            self._look_at_readers()
            places = self._free.get(block_bytes)
        if places:
            return places.pop()
        if block_bytes > MOST_SLAB_BLOCK_BYTES:
            return self._new_segment(block_bytes, dedicated=True), 0
        at = bisect.bisect_left(self._extents, (block_bytes, 0, 0))
        if at == len(self._extents):
            self._join_neighbours()
            at = bisect.bisect_left(self._extents, (block_bytes, 0, 0))
        if at == len(self._extents):
            slab = self._new_segment(SLAB_BYTES, dedicated=False)
            self._slabs[slab.number] = slab
            self._extents.append((SLAB_BYTES, slab.number, 0))
        found_bytes, number, offset = self._extents.pop(at)
        if found_bytes > block_bytes:
            # From the front: the end of a slab may never have been touched.
            bisect.insort(self._extents, (found_bytes - block_bytes, number, offset + block_bytes))
        return self._slabs[number], offset

    def _join_neighbours(self) -> None:
        """Turn the free blocks of slabs into extents, and join neighbours."""
        places = [(number, offset, size_bytes) for size_bytes, number, offset in self._extents]
        for size_bytes in [size_bytes for size_bytes in self._free if size_bytes <= MOST_SLAB_BLOCK_BYTES]:
            places += [(segment.number, offset, size_bytes) for segment, offset in self._free.pop(size_bytes)]
        places.sort()
        joined: list[tuple[int, int, int]] = []
        for number, offset, size_bytes in places:
            if joined and joined[-1][1] == number and joined[-1][2] + joined[-1][0] == offset:
                joined[-1] = joined[-1][0] + size_bytes, number, joined[-1][2]
            else:
                joined.append((size_bytes, number, offset))
        joined.sort()
        self._extents = joined

    def _new_segment(self, size_bytes: int, dedicated: bool) -> Segment:
        try:
            segment = Segment(self._next_number, size_bytes, dedicated)
        except OSError as error:
            raise MemoryError(f"no shared memory of {size_bytes} bytes: {error}") from error
        self._next_number += 1
        # Without dropped segments: this one may lie where one of them was.
        alive = [(address, ref) for address, ref in zip(*self._table, strict=True) if ref() is not None]
        bisect.insort(alive, (segment.address, weakref.ref(segment)), key=lambda entry: entry[0])
        self._table = [address for address, _ in alive], [ref for _, ref in alive]
        return segment

    def _take_in(self, now_s: float) -> None:
        """Take in the blocks whose arrays were freed."""
        freed = self._notes.freed
        while freed:
            segment, offset, block_bytes, readers = note = freed.popleft()
            segment.used_bytes -= block_bytes
            if not segment.used_bytes:
                self._busy_bytes -= segment.size_bytes
            if readers and segment.dedicated:
                # A peer may read it: the arena drops the segment, and connections tell the other peers.
                self._tell_gone(segment)
                continue
            if readers:
                self._read.append(note)
            else:
                self._free.setdefault(block_bytes, []).append((segment, offset))
            if not segment.used_bytes:
                segment.idle_since_s = now_s
                self._idle[segment.number] = segment
                self._idle_bytes += segment.size_bytes

    def _count_busy(self, segment: Segment, now_s: float) -> None:
        """Count a segment as used, which had no arrays."""
        if self._idle.pop(segment.number, None) is not None:
            self._idle_bytes -= segment.size_bytes
        self._busy_bytes += segment.size_bytes
        if now_s >= self._most_until_s:
            self._most_until_s = now_s + MOST_IDLE_S
            self._most_before_bytes, self._most_busy_bytes = self._most_busy_bytes, 0
        self._most_busy_bytes = max(self._most_busy_bytes, self._busy_bytes)

    def _give_back(self) -> None:
        now_s = time.monotonic()
        self._take_in(now_s)
        self._release(0, now_s)

    def _release(self, most_bytes: int, now_s: float) -> None:
        """Drop idle segments: those beyond ``most_bytes``, and old ones."""
        going: set[int] = set()
        for segment in self._idle.values():
            if self._idle_bytes <= most_bytes and now_s - segment.idle_since_s < MOST_IDLE_S:
                break
            going.add(segment.number)
            self._idle_bytes -= segment.size_bytes
            self._tell_gone(segment)
        if not going:
            return
        self._free = {
            size_bytes: kept
            for size_bytes, places in self._free.items()
            if (kept := [place for place in places if place[0].number not in going])
        }
        self._extents = [extent for extent in self._extents if extent[1] not in going]
        # A peer that still reads has it mapped.
        self._read = [note for note in self._read if note[0].number not in going]
        for number in going:
            self._slabs.pop(number, None)
            del self._idle[number]

    def _tell_gone(self, segment: Segment) -> None:
        for listener in self._listeners:
            listener(segment.number)

    def _look_at_readers(self) -> None:
        """Free the blocks whose readers have exited."""
        still_read = []
        for note in self._read:
            segment, offset, block_bytes, readers = note
            if all(reader.gone for reader in readers):
                self._free.setdefault(block_bytes, []).append((segment, offset))
            else:
                still_read.append(note)
        self._read = still_read


_arenas_lock = threading.Lock()
#: Of this process.
_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def rest_all() -> None:
    """Have every arena of this process rest: see :meth:`Arena.rest`."""
    with _arenas_lock:
        arenas = list(_arenas)
    for arena in arenas:
        arena.rest()


class Mapping:
    """A peer's segment, mapped for reading."""

    __slots__ = ("_mapping", "address", "size_bytes")

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        """Map a descriptor that came from a peer; the caller closes it.

        Raises
        ------
        FrameError
            It is not a segment of that size that can be relied on.
        """
        try:
            seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
            found_bytes = os.fstat(descriptor).st_size
        except OSError as error:
            raise FrameError(f"a descriptor that came as a segment is none: {error}") from error
        if not seals & _SEAL_SHRINK or found_bytes != size_bytes or size_bytes < 1:
            raise FrameError(f"a segment of {size_bytes} bytes was announced, but has {found_bytes} or can be cut")
        try:
            # Read-only: no array of this process, and no stray write, can change what the peer still uses.
            self._mapping = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise FrameError(f"a segment of {size_bytes} bytes cannot be mapped: {error}") from error
        self.address = address_of(self._mapping)
        self.size_bytes = size_bytes


class Lease:
    """Memory of a peer that an array here lies in; returns it when the array's last view is freed."""

    __slots__ = ("__array_interface__", "__weakref__", "_mapping", "_number", "_returned")

    def __init__(
        self,
        mapping: Mapping,
        offset: int,
        dtype: np.dtype,
        shape: tuple[int, ...],
        number: int,
        returned: deque[int] | None,
    ) -> None:
        self._mapping = mapping
        self._number = number
        self._returned = returned
        self.__array_interface__ = {
            "data": (mapping.address + offset, True),
            "shape": shape,
            "typestr": dtype.str,
            "version": 3,
        }

    def __del__(self) -> None:
        if self._returned is not None:
            self._returned.append(self._number)


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
    """Have the system give ``array`` its memory now; its content is lost.

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
    """Return freed memory to the system: this process will not need it again.

    Shared memory that is freed later returns at once (:meth:`Arena.rest`).
    """
    rest_all()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
