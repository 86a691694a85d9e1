"""The socket interface of the transports, and its two implementations: plain and TLS.

One thread at a time reads a wire, and one thread at a time writes it; the two may differ.
"""

from __future__ import annotations

import array
import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from eps.errors import FrameError, PeerUnavailableError

Buffer = bytes | memoryview

#: A peer counts as lost if less than :data:`LEAST_BYTES` of a message are transferred in this time.
STALL_S = 20
#: More than the system's buffers can take in small pieces while the peer reads nothing.
LEAST_BYTES = 64 * 1024
#: The kernel's timeouts may fire this much early.
_TICK_S = 0.02
#: Maximum number of received descriptors whose segments have not arrived.
_MOST_DESCRIPTORS = 256
_DESCRIPTOR_BYTES = array.array("i").itemsize
_ANCILLARY_BYTES = socket.CMSG_SPACE(16 * _DESCRIPTOR_BYTES)
#: Pieces in one ``sendmsg``; the kernel's limit is 1024.
_MOST_PIECES = 512
_SOCKET_BUFFER_BYTES = 4 << 20
#: Linux: pid, uid and gid of the process that called ``connect``, or ``listen``.
_CREDENTIALS = struct.Struct("iII")
_TIMEVAL = struct.Struct("@ll")
#: TCP is fastest in pieces that stay in the cache between the two ends: 3.3 GB/s, against 2.3 with 40 MB per call.
_TCP_PIECE_BYTES = 1 << 20
#: Maximum that OpenSSL gets at once: it reports only whether it took all, not how much.
_TLS_PIECE_BYTES = 1 << 20
# Plain numbers: combining Python's flag objects costs as much as a small message.
_SEND, _SEND_NOW = int(socket.MSG_NOSIGNAL), int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
_WAIT_FOR_ALL, _CLOSE_ON_EXEC = int(socket.MSG_WAITALL), int(socket.MSG_CMSG_CLOEXEC)


class Wire(Protocol):
    """One connected socket."""

    #: Pid at the other end; 0 if unknown or on another host.
    peer_pid: int

    @property
    def pending(self) -> bool:
        """Whether there is data to receive although the descriptor may not be readable."""

    def fileno(self) -> int:
        """Return the descriptor, for ``poll``."""

    def receive(self, into: memoryview, whole: bool = False) -> int:
        """Receive at least one byte; return the count, or 0 at the timeout.

        If ``whole`` is true, ``into`` is the rest of a payload, and the wire may wait until it is full.  The timeout is
        :data:`STALL_S`, or that of :meth:`wait_at_most`.

        Raises
        ------
        PeerUnavailableError
            The peer has closed the connection.
        """

    def wait_at_most(self, patience_s: float) -> None:
        """Set the timeout of :meth:`receive`."""

    def send_now(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send what the socket takes without waiting; return the number of bytes.

        Raises
        ------
        OSError
            The connection is broken.
        """

    def send_some(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send, waiting for at most a part of :data:`STALL_S`; return the number of bytes, 0 if none were sent.

        Raises
        ------
        OSError
            The connection is broken, or the peer took nothing for :data:`STALL_S`.
        """

    def take_descriptor(self) -> int:
        """Remove and return the oldest received descriptor.

        Raises
        ------
        FrameError
            There is none.
        """

    def hung_up(self) -> bool:
        """Return whether the peer has closed the connection."""

    def shut_down(self) -> None:
        """Shut down both directions; wakes the threads that wait for this wire."""

    def close(self) -> None:
        """Close the descriptor; the wire is unusable afterwards."""


class Progress:
    """Distinguishes a slow peer from a lost one, while a message is transferred."""

    __slots__ = ("_passed_bytes", "_since_s")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Restart the clock."""
        self._since_s, self._passed_bytes = time.monotonic(), 0

    @property
    def overdue(self) -> bool:
        """Whether less than :data:`LEAST_BYTES` were transferred in :data:`STALL_S`."""
        return time.monotonic() - self._since_s >= STALL_S - _TICK_S

    def stalled(self, count: int) -> bool:
        """Count transferred bytes; return whether they were too few for the elapsed time."""
        self._passed_bytes += count
        if self._passed_bytes >= LEAST_BYTES:
            self.begin()
            return False
        return self.overdue


def hung_up(descriptor: int) -> bool:
    """Return whether the peer of a socket has closed the connection."""
    if descriptor < 0:
        return True
    poller = select.poll()
    poller.register(descriptor, select.POLLRDHUP)
    return bool(poller.poll(0))


def peer_of(sock: socket.socket) -> tuple[int, int] | None:
    """Return pid and user id of the peer of a Unix socket; None for other sockets."""
    if sock.family != socket.AF_UNIX:
        return None
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


class PlainWire:
    """A stream socket without encryption.

    Parameters
    ----------
    sock : socket
        Connected; owned by this object.
    passes_descriptors : bool
        A Unix socket that is used with shared memory.
    """

    def __init__(self, sock: socket.socket, passes_descriptors: bool = False) -> None:
        prepare(sock)
        sock.settimeout(None)
        # Timeouts of the kernel avoid a poll before each call.
        self._sock = sock
        self.wait_at_most(STALL_S)
        # A part of :data:`STALL_S`, so that the sender can measure progress.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(STALL_S / 4))
        self._passes = passes_descriptors
        peer = peer_of(sock)
        unix, self.peer_pid = peer is not None, 0 if peer is None else peer[0]
        #: Maximum bytes per call.
        self._piece_bytes = sys.maxsize if unix else _TCP_PIECE_BYTES
        self._whole_flags = _WAIT_FOR_ALL if unix else 0
        self._descriptors: deque[int] = deque()

    @property
    def pending(self) -> bool:
        """False: the descriptor shows all available data."""
        return False

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._sock.fileno()

    def receive(self, into: memoryview, whole: bool = False) -> int:
        """Receive."""
        try:
            if self._passes and not whole:
                count, ancillary, _, _ = self._sock.recvmsg_into((into,), _ANCILLARY_BYTES, _CLOSE_ON_EXEC)
                if ancillary:
                    self._keep(ancillary)
            else:
                if len(into) > self._piece_bytes:
                    into = into[: self._piece_bytes]
                count = self._sock.recv_into(into, 0, self._whole_flags if whole else 0)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerUnavailableError(f"the connection broke: {error}") from error
        if count == 0:
            raise PeerUnavailableError("the peer closed the connection")
        return count

    def wait_at_most(self, patience_s: float) -> None:
        """Set the timeout of :meth:`receive`."""
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(patience_s))
        except OSError:
            # The wire is closed; the next call raises.
            return

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_BYTES])
                self._descriptors.extend(found)
        if len(self._descriptors) > _MOST_DESCRIPTORS:
            raise FrameError(f"more than {_MOST_DESCRIPTORS} descriptors arrived without their segments")

    def take_descriptor(self) -> int:
        """Remove and return the oldest received descriptor."""
        if not self._descriptors:
            raise FrameError("a segment arrived without its descriptor")
        return self._descriptors.popleft()

    def send_now(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send without waiting."""
        try:
            if len(pieces) == 1 and not descriptors and len(pieces[0]) <= self._piece_bytes:
                return self._sock.send(pieces[0], _SEND_NOW)
            return self._send(pieces, descriptors, _SEND_NOW)
        except BlockingIOError:
            return 0

    def send_some(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send."""
        try:
            return self._send(pieces, descriptors, _SEND)
        except BlockingIOError:
            return 0

    def _send(self, pieces: Sequence[Buffer], descriptors: Sequence[int], flags: int) -> int:
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            return self._sock.sendmsg(pieces, [rights], flags)
        if len(pieces) == 1:
            piece = pieces[0]
            if len(piece) > self._piece_bytes:
                piece = memoryview(piece)[: self._piece_bytes]
            return self._sock.send(piece, flags)
        if self._piece_bytes < sys.maxsize:
            pieces = _beginning(pieces, self._piece_bytes)
        return self._sock.sendmsg(pieces[:_MOST_PIECES], (), flags)

    def hung_up(self) -> bool:
        """Return whether the peer has closed the connection."""
        return hung_up(self._sock.fileno())

    def shut_down(self) -> None:
        """End the connection."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It has ended already.
            return

    def close(self) -> None:
        """Close the descriptors."""
        self._sock.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())


class TlsWire:
    """A socket under TLS.

    Two threads may not use an OpenSSL connection at once.  So every call is made under a lock and never blocks; waiting
    is done on the socket, outside the lock.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        prepare(sock)
        sock.settimeout(0)
        self._sock = sock
        #: Nothing is lent under TLS.
        self.peer_pid = 0
        self._patience_s: float = STALL_S
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._sock.fileno()

    def receive(self, into: memoryview, whole: bool = False) -> int:
        """Receive."""
        count = 0
        deadline_s = time.monotonic() + self._patience_s
        while count < (len(into) if whole else 1):
            try:
                got = self._receive(into[count:], deadline_s)
            except (OSError, ValueError) as error:
                raise PeerUnavailableError(f"the connection broke: {error}") from error
            if got is None:
                return count
            if got == 0:
                raise PeerUnavailableError("the peer closed the connection")
            count += got
        return count

    def _receive(self, into: memoryview, deadline_s: float) -> int | None:
        """Receive available data; return None at the deadline."""
        while True:
            try:
                with self._lock:
                    return self._sock.recv_into(into)
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            if not self._wait(events, deadline_s):
                return None

    def wait_at_most(self, patience_s: float) -> None:
        """Set the timeout of :meth:`receive`."""
        self._patience_s = patience_s

    @property
    def pending(self) -> bool:
        """Whether OpenSSL holds decrypted bytes that are no longer in the socket."""
        with self._lock:
            return self._sock.fileno() >= 0 and self._sock.pending() > 0

    def _wait(self, events: int, deadline_s: float) -> bool:
        poller = select.poll()
        try:
            poller.register(self._sock.fileno(), events)
        except ValueError as error:
            # The descriptor is closed.
            raise OSError(f"the connection was closed: {error}") from error
        return bool(poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000))

    def take_descriptor(self) -> int:
        """Refuse: TLS cannot carry descriptors."""
        raise FrameError("a segment arrived over TLS, which cannot carry descriptors")

    def send_now(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send the first piece, or its beginning, without waiting.

        If it returns 0, a part of the TLS record may have been sent: call :meth:`send_some` next, with the same pieces.
        """
        try:
            with self._lock:
                return self._sock.send(memoryview(pieces[0])[:_TLS_PIECE_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except ValueError as error:
            raise OSError(f"the connection was closed: {error}") from error

    def send_some(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send the first piece, or its beginning."""
        # The same memory at each attempt: a partly sent record must be repeated with the same bytes.
        piece = memoryview(pieces[0])[:_TLS_PIECE_BYTES]
        deadline_s = time.monotonic() + STALL_S
        while True:
            try:
                with self._lock:
                    return self._sock.send(piece)
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ValueError as error:
                raise OSError(f"the connection was closed: {error}") from error
            if not self._wait(events, deadline_s):
                raise TimeoutError(f"the peer took nothing for {STALL_S} s")
            if events == select.POLLOUT:
                # The socket has room again, so the peer has read something.
                deadline_s = time.monotonic() + STALL_S

    def hung_up(self) -> bool:
        """Return whether the peer has closed the connection."""
        return hung_up(self._sock.fileno())

    def shut_down(self) -> None:
        """Shut down without TLS's ``close_notify``: waiting threads must wake now."""
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the descriptor."""
        self._sock.close()


def _timeval(time_s: float) -> bytes:
    return _TIMEVAL.pack(int(time_s), int(time_s % 1 * 1e6))


def _beginning(pieces: Sequence[Buffer], most_bytes: int) -> Sequence[Buffer]:
    """Return the first ``most_bytes`` of ``pieces``."""
    room = most_bytes
    for i, piece in enumerate(pieces):
        if len(piece) >= room:
            return [*pieces[:i], memoryview(piece)[:room]]
        room -= len(piece)
    return pieces


def prepare(sock: socket.socket) -> None:
    """Set the socket options of every connection of a job."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Detect a lost machine after half a minute.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


def receive_exactly(sock: socket.socket, size_bytes: int, deadline_s: float) -> bytes:
    """Return ``size_bytes`` bytes from a socket (plain or TLS) before it becomes a wire.

    Parameters
    ----------
    deadline_s : float, seconds
        On the monotonic clock.

    Raises
    ------
    PeerUnavailableError
        The deadline passed, or the peer closed the connection.
    """
    content = bytearray()
    while len(content) < size_bytes:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise PeerUnavailableError(f"the handshake timed out after {len(content)} of {size_bytes} bytes")
        sock.settimeout(left_s)
        try:
            piece = sock.recv(size_bytes - len(content))
        except OSError as error:
            raise PeerUnavailableError(f"the handshake failed: {error}") from error
        if not piece:
            raise PeerUnavailableError("the peer closed the connection during the handshake")
        content += piece
    return bytes(content)


def advanced(pieces: Sequence[Buffer], count: int) -> list[Buffer]:
    """Return the rest of ``pieces`` after ``count`` bytes."""
    left = list(pieces)
    skipped = 0
    while skipped < len(left) and count >= len(left[skipped]):
        count -= len(left[skipped])
        skipped += 1
    left = left[skipped:]
    if count:
        left[0] = memoryview(left[0])[count:]
    return left
