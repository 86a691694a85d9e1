"""Memory of a process that uses a van: arrays that other processes of this host read in place, and tuning.

An :class:`Arena` belongs to one process and creates arrays in anonymous files (``memfd_create``).  To send one, a
connection passes the file's descriptor once (``SCM_RIGHTS``) and afterwards only the array's position; nothing is
copied.  The memory is reused once this process has freed the array and every borrowing peer has returned it.  The files
have no names: the kernel frees a segment with its last descriptor and mapping, also after ``kill -9``.

Arrays that were lent when a connection ended are reused once the peer process has exited; until then it may read them.

Small blocks are cut from segments of :data:`SLAB_BYTES`, which cost only the pages that are touched; large blocks have
their own segment.  Sizes are rounded up to an eighth of a power of two, so that a freed block fits the next request.
Each clock of training then reuses the warm pages of the previous one; first touches are the expensive part.  If no free
block fits, free neighbours in a slab are joined.

An arena returns an empty segment to the system in three cases: it was idle for :data:`MOST_IDLE_S`; idle segments
exceed the recent peak of use; the process rests (:meth:`Arena.rest`).

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
#: A larger block gets its own segment.
MOST_SLAB_BLOCK_BYTES = 16 << 20
#: Bytes of idle segments that an arena keeps for the next request.  It always keeps as much as the recent peak of use.
MOST_IDLE_BYTES = 1 << 30
#: How long an arena keeps an idle segment, and the period of "recent".  Longer than a clock of training.
MOST_IDLE_S = 300.0
_PAGE_BYTES = mmap.PAGESIZE
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_MADV_POPULATE_WRITE = 23
#: Bytes that one system call touches; limits how long other threads that map memory wait.
_TOUCH_BYTES = 4 << 20


def rounded_bytes(size_bytes: int) -> int:
    """Return the block size for a request: whole pages, at most an eighth more than requested."""
    size_bytes = max(_PAGE_BYTES, -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES)
    step = max(_PAGE_BYTES, 1 << max(0, size_bytes.bit_length() - 4))
    return -(-size_bytes // step) * step


def address_of(buffer: mmap.mmap) -> int:
    """Return the address of a mapping."""
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


class Segment:
    """A mapped anonymous file of this process."""

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
        #: Bytes of blocks with arrays; ``idle_since_s`` is the time since it is 0.
        self.used_bytes = 0
        self.idle_since_s = 0.0
        self.descriptor = os.memfd_create(f"eps-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # Sealed: no peer can truncate the file under a reader.
            fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
            self.mapping = mmap.mmap(self.descriptor, size_bytes)
        except BaseException:
            # Closed only once: the number may be reused for another file.
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)
            raise
        self.address = address_of(self.mapping)

    def __del__(self) -> None:
        # The mapping is freed with its last array; only this object owns the descriptor.
        descriptor = getattr(self, "descriptor", -1)
        if descriptor >= 0:
            os.close(descriptor)


class Reader:
    """A process that may still read lent memory.

    Parameters
    ----------
    pid : int
        0 if unknown: then it may read for ever.
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
                # No such system call, or no descriptor left: the process's end cannot be detected.
                return

    @property
    def gone(self) -> bool:
        """Whether the process has ended, and its mappings with it."""
        if not self._gone and self._descriptor >= 0:
            poller = select.poll()
            poller.register(self._descriptor, select.POLLIN)
            self._gone = bool(poller.poll(0))
        return self._gone

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _Block:
    """The owner of an array's memory: NumPy creates the array from it, and frees it with the array's last view."""

    __slots__ = ("__array_interface__", "__weakref__", "_notes", "_place", "readers", "segment")

    def __init__(self, segment: Segment, offset: int, size_bytes: int, block_bytes: int, notes: _Notes) -> None:
        self.segment = segment
        #: Processes that may read it after the array is freed.
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
        # May run anywhere, also while the arena's lock is held, so it only appends a note.
        self._notes.freed.append((*self._place, self.readers))
        if self._notes.resting:
            # The arena processes notes at the next request, which a resting arena may never get.
            self._notes.collect()


#: (segment, offset, bytes, processes that may still read it) of a freed block.
_Freed = tuple[Segment, int, int, tuple[Reader, ...]]


class _Notes:
    """Freed blocks, to be processed by the arena; holds only a weak reference to it."""

    __slots__ = ("_arena", "freed", "resting")

    def __init__(self, arena: Arena) -> None:
        self._arena = weakref.ref(arena)
        self.freed: deque[_Freed] = deque()
        #: Whether the arena keeps no freed memory.
        self.resting = False

    def collect(self) -> None:
        arena = self._arena()
        if arena is not None:
            arena.collect()


class Arena:
    """Arrays in shared memory.  Thread-safe; costs nothing before the first array.

    Do not use it across a fork: the child would share the parent's memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_number = 1
        #: Block size -> free blocks of that size.
        self._free: dict[int, list[tuple[Segment, int]]] = {}
        #: Number -> segment for small blocks.
        self._slabs: dict[int, Segment] = {}
        #: Parts of slabs in no list of :attr:`_free`: bytes, number, offset, smallest first.
        self._extents: list[tuple[int, int, int]] = []
        #: Number -> segment without arrays, longest idle first.
        self._idle: dict[int, Segment] = {}
        self._idle_bytes = 0
        #: Bytes of segments with arrays: now, the peak of this period, and that of the previous one.
        self._busy_bytes = self._most_busy_bytes = self._most_before_bytes = 0
        #: End of the period of :data:`MOST_IDLE_S`.
        self._most_until_s = 0.0
        self._notes = _Notes(self)
        #: Blocks of slabs that a peer may still be reading.
        self._read: list[_Freed] = []
        #: Addresses of segments, ascending, and the segments.  Replaced, never changed, so it can be read without the
        #: lock.
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
            The system has no memory or descriptor for a new segment.
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
                # Last, so that a segment that fits this request is not dropped first.
                most_lately_bytes = max(self._most_before_bytes, self._most_busy_bytes)
                self._release(max(MOST_IDLE_BYTES, most_lately_bytes - self._busy_bytes), now_s)
        return np.asarray(_Block(segment, offset, size_bytes, block_bytes, self._notes))

    def rest(self) -> None:
        """Return unused memory to the system now and, until the next request, each block as soon as it is freed."""
        self._notes.resting = True
        with self._lock:
            self._look_at_readers()
            self._give_back()
        # Blocks that were freed meanwhile found the lock held.
        self.collect()

    def collect(self) -> None:
        """Return freed memory to the system if the arena rests.  Never blocks: may be called anywhere."""
        while self._notes.resting and self._notes.freed and self._lock.acquire(blocking=False):
            try:
                self._give_back()
            finally:
                self._lock.release()

    def array(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array of a shape and type."""
        kind = np.dtype(dtype)
        count = shape if isinstance(shape, int) else math.prod(shape)
        return self.empty(count * kind.itemsize).view(kind).reshape(shape)

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Return a C-contiguous copy in shared memory."""
        copied = self.array(array.shape, array.dtype)
        np.copyto(copied, array)
        return copied

    def find(self, array: np.ndarray) -> tuple[Segment, int] | None:
        """Return the segment of an array and the offset in it; None for other memory."""
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
        """Prevent reuse of the memory of ``array`` until ``reader`` has exited."""
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
        """Undo :meth:`on_segment_gone`."""
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, touched or not."""
        return sum(segment.size_bytes for ref in self._table[1] if (segment := ref()) is not None)

    # ---- called with the lock held

    def _place(self, block_bytes: int) -> tuple[Segment, int]:
        """Return a place for a block: a freed block of its size, a part of a slab, or a new segment."""
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
            # From the front: the end of a slab may be untouched.
            bisect.insort(self._extents, (found_bytes - block_bytes, number, offset + block_bytes))
        return self._slabs[number], offset

    def _join_neighbours(self) -> None:
        """Convert the free blocks of slabs to extents, and join neighbours."""
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
        # Dropped segments are removed: this one may have the address of one of them.
        alive = [(address, ref) for address, ref in zip(*self._table, strict=True) if ref() is not None]
        bisect.insort(alive, (segment.address, weakref.ref(segment)), key=lambda entry: entry[0])
        self._table = [address for address, _ in alive], [ref for _, ref in alive]
        return segment

    def _take_in(self, now_s: float) -> None:
        """Process the blocks whose arrays were freed."""
        freed = self._notes.freed
        while freed:
            segment, offset, block_bytes, readers = note = freed.popleft()
            segment.used_bytes -= block_bytes
            if not segment.used_bytes:
                self._busy_bytes -= segment.size_bytes
            if readers and segment.dedicated:
                # A peer may read it: the arena drops the segment, and connections notify the other peers.
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
        """Count a segment that had no arrays as used."""
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
        # A peer that still reads keeps its own mapping.
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
#: The arenas of this process.
_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()


def rest_all() -> None:
    """Call :meth:`Arena.rest` of every arena of this process."""
    with _arenas_lock:
        arenas = list(_arenas)
    for arena in arenas:
        arena.rest()


class Mapping:
    """A peer's segment, mapped read-only."""

    __slots__ = ("_mapping", "address", "size_bytes")

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        """Map a descriptor that a peer passed; the caller closes it.

        Raises
        ------
        FrameError
            It is not a segment of that size, or the peer could truncate it.
        """
        try:
            seals = fcntl.fcntl(descriptor, _F_GET_SEALS)
            found_bytes = os.fstat(descriptor).st_size
        except OSError as error:
            raise FrameError(f"the descriptor of a segment is invalid: {error}") from error
        if not seals & _SEAL_SHRINK or found_bytes != size_bytes or size_bytes < 1:
            raise FrameError(f"a segment of {size_bytes} bytes has {found_bytes} bytes or can be truncated")
        try:
            # Read-only: this process cannot change memory that the peer uses.
            self._mapping = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise FrameError(f"a segment of {size_bytes} bytes cannot be mapped: {error}") from error
        self.address = address_of(self._mapping)
        self.size_bytes = size_bytes


class Lease:
    """Borrowed memory of a peer under an array; returned when the array's last view is freed."""

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
    """Keep freed buffers in the process instead of returning their pages to the system.

    glibc maps every block above a threshold (32 MiB at most) anew, and the page faults cost more than the copy itself:
    streams of 1 MiB frames speed up from 1.3 to 2.0 GB/s with these settings.  In a virtual machine whose host reclaims
    free pages it is far worse: the first touch of 2 GB took between 0.1 and 10 s.  One malloc arena only: those of
    other threads must map blocks above their heap size of 64 MiB.  Call once, early, in every process that uses a van.

    Returns
    -------
    bool
        False if the C library has no ``mallopt`` or refused a setting; only speed depends on it.
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
    """Let the system allocate the memory of ``array`` now; its content is lost.

    The first access to a page costs far more than later ones, in a virtual machine as much as copying a hundred pages.
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
            # Linux before 5.14 lacks this.
            array.fill(0)
            return


def descriptor_limit() -> int:
    """Return the maximum number of descriptors that this process and its children can have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def raise_descriptor_limit() -> None:
    """Raise this process's descriptor limit to its maximum: each segment of shared memory holds one or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def give_back() -> None:
    """Return freed memory to the system, if this process will not need it again.

    Shared memory that is freed later is returned at once (:meth:`Arena.rest`).
    """
    rest_all()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
