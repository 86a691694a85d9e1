"""Memory that another process on this host can read where it lies: the shared-memory transport's arrays.  L2.

An :class:`Arena` is a process's own; it hands out arrays whose memory lies in anonymous files (``memfd_create``).  To
send one, a connection passes the file's descriptor once (``SCM_RIGHTS``) and from then on only says where the array
lies; nothing is copied.  The memory is used again when this process has dropped the array and every peer that it was
lent to has given it back.  There is no name in any file system: the kernel frees a segment with its last descriptor
and mapping, also after ``kill -9``.

What a connection had lent when it ended is used again once the process at its other end is gone, for until then that
process may be reading it.

Small blocks are cut from segments of :data:`SLAB_BYTES`, which cost only the pages that are touched; large ones have a
segment each.  Sizes are rounded up to an eighth of a power of two, so that a freed block fits the next request.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import math
import mmap
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from eps.errors import FrameError

SLAB_BYTES = 64 << 20
#: A block above it is a segment of its own.
MOST_SLAB_BLOCK_BYTES = 16 << 20
#: Freed blocks with a segment of their own that are kept for the next request, in bytes; their pages are warm.
MOST_IDLE_BYTES = 1 << 30
_PAGE_BYTES = mmap.PAGESIZE
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4


def rounded_bytes(size_bytes: int) -> int:
    """Return the size of the block for a request: whole pages, and at most an eighth more than asked."""
    size_bytes = max(_PAGE_BYTES, -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES)
    step = max(_PAGE_BYTES, 1 << max(0, size_bytes.bit_length() - 4))
    return -(-size_bytes // step) * step


def address_of(buffer: mmap.mmap) -> int:
    """Return where a writable mapping lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Segment:
    """An anonymous file of this process, mapped."""

    __slots__ = ("__weakref__", "address", "dedicated", "descriptor", "mapping", "number", "size_bytes", "used_bytes")

    def __init__(self, number: int, size_bytes: int, dedicated: bool) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.dedicated = dedicated
        self.used_bytes = 0
        self.descriptor = os.memfd_create(f"eps-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
            # A reader can rely on every page: no peer can cut the file under it.
            fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
            self.mapping = mmap.mmap(self.descriptor, size_bytes)
        except BaseException:
            os.close(self.descriptor)
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
                # No such call, or no descriptor left: it cannot be told.
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
    """The owner of an array's memory: an object that NumPy takes an array from, and that notices when it is gone."""

    __slots__ = ("__array_interface__", "__weakref__", "_freed", "_place", "readers", "segment")

    def __init__(self, segment: Segment, offset: int, size_bytes: int, block_bytes: int, freed: deque[_Freed]) -> None:
        self.segment = segment
        #: Who may still be reading it when the array is gone.
        self.readers: tuple[Reader, ...] = ()
        self._place = (segment, offset, block_bytes)
        self._freed = freed
        self.__array_interface__ = {
            "data": (segment.address + offset, False),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        # May run anywhere, also inside the arena's own lock: it only leaves a note.
        self._freed.append((*self._place, self.readers))


#: Segment, offset and bytes of a block whose array is gone, and who may still be reading it.
_Freed = tuple[Segment, int, int, tuple[Reader, ...]]


class Arena:
    """Arrays in shared memory.  Thread-safe; costs nothing before the first array.

    Not to be used across a fork: the child would share the parent's memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_number = 1
        self._slab: Segment | None = None
        #: Block size -> free places of that size.
        self._free: dict[int, list[tuple[Segment, int]]] = {}
        self._idle_bytes = 0
        self._freed: deque[_Freed] = deque()
        #: Blocks of slabs that somebody may still be reading.
        self._read: list[_Freed] = []
        #: By address, for finding the segment of an array.
        self._addresses: list[int] = []
        self._segments: list[weakref.ref[Segment]] = []
        #: Called with the number of a segment that is given back to the system.
        self._listeners: list[Callable[[int], None]] = []

    def empty(self, size_bytes: int) -> np.ndarray:
        """Return an uninitialised array, shape (size_bytes,), uint8, on a page boundary.

        Raises
        ------
        MemoryError
            The system has no memory or no descriptor for a new segment.
        """
        block_bytes = rounded_bytes(size_bytes)
        with self._lock:
            self._collect()
            places = self._free.get(block_bytes)
            if not places and self._read:
                self._look_at_readers()
                places = self._free.get(block_bytes)
            if places:
                segment, offset = places.pop()
                if segment.dedicated:
                    self._idle_bytes -= block_bytes
            else:
                segment, offset = self._cut(block_bytes)
        return np.asarray(_Block(segment, offset, size_bytes, block_bytes, self._freed))

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
        if not self._addresses:
            return None
        address = array.__array_interface__["data"][0]
        with self._lock:
            index = bisect.bisect_right(self._addresses, address) - 1
            segment = self._segments[index]() if index >= 0 else None
        if segment is None or address + array.nbytes > segment.address + segment.size_bytes:
            return None
        return segment, address - segment.address

    @staticmethod
    def retire(array: np.ndarray, reader: Reader) -> None:
        """See to it that the memory of ``array`` is not used again while ``reader`` may be reading it."""
        owner: object = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, _Block):
            owner.readers += (reader,)

    def on_segment_gone(self, listener: Callable[[int], None]) -> None:
        """Have ``listener`` called with the number of each segment that no array will lie in any more."""
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
        with self._lock:
            return sum(segment.size_bytes for ref in self._segments if (segment := ref()) is not None)

    def _cut(self, block_bytes: int) -> tuple[Segment, int]:
        if block_bytes > MOST_SLAB_BLOCK_BYTES:
            return self._new_segment(block_bytes, dedicated=True), 0
        slab = self._slab
        if slab is None or slab.used_bytes + block_bytes > slab.size_bytes:
            slab = self._slab = self._new_segment(SLAB_BYTES, dedicated=False)
        offset = slab.used_bytes
        slab.used_bytes += block_bytes
        return slab, offset

    def _new_segment(self, size_bytes: int, dedicated: bool) -> Segment:
        try:
            segment = Segment(self._next_number, size_bytes, dedicated)
        except OSError as error:
            raise MemoryError(f"no shared memory of {size_bytes} bytes: {error}") from error
        self._next_number += 1
        self._forget_dead()
        index = bisect.bisect_left(self._addresses, segment.address)
        self._addresses.insert(index, segment.address)
        self._segments.insert(index, weakref.ref(segment))
        return segment

    def _forget_dead(self) -> None:
        alive = [(address, ref) for address, ref in zip(self._addresses, self._segments, strict=True) if ref()]
        self._addresses = [address for address, _ in alive]
        self._segments = [ref for _, ref in alive]

    def _collect(self) -> None:
        """Take in the blocks whose arrays are gone."""
        while self._freed:
            segment, offset, block_bytes, readers = freed = self._freed.popleft()
            if readers and not segment.dedicated:
                self._read.append(freed)
                continue
            if segment.dedicated:
                # One that may still be read goes as a whole; the other peers are told that it is gone.
                if readers or self._idle_bytes + block_bytes > MOST_IDLE_BYTES:
                    for listener in self._listeners:
                        listener(segment.number)
                    continue
                self._idle_bytes += block_bytes
            self._free.setdefault(block_bytes, []).append((segment, offset))

    def _look_at_readers(self) -> None:
        """Take in the blocks whose readers have gone."""
        still_read = []
        for freed in self._read:
            segment, offset, block_bytes, readers = freed
            if all(reader.gone for reader in readers):
                self._free.setdefault(block_bytes, []).append((segment, offset))
            else:
                still_read.append(freed)
        self._read = still_read


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
            # Writable only so that ctypes gives its address; the arrays over it are read-only.
            self._mapping = mmap.mmap(descriptor, size_bytes)
        except (OSError, ValueError) as error:
            raise FrameError(f"a segment of {size_bytes} bytes cannot be mapped: {error}") from error
        self.address = address_of(self._mapping)
        self.size_bytes = size_bytes


class Lease:
    """Memory of a peer that an array here lies in; gives it back when the last view of the array is gone."""

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
