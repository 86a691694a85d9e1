"""A socket under TLS as a wire; imported only where a job uses TLS.  L2."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from eps.errors import FrameError, PeerUnavailableError
from eps.net.arrays.wires import STALL_S, Buffer, hung_up, prepare

#: Most that is given to OpenSSL at once: it says that it took all of it, or nothing of how much it took.
_PIECE_BYTES = 1 << 20


class TlsWire:
    """A socket under TLS.

    OpenSSL's connection may not be used by two threads at once, so every call of it is made under a lock and never
    waits; waiting is done on the socket, outside the lock.
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
                raise PeerUnavailableError("the peer ended the connection")
            count += got
        return count

    def _receive(self, into: memoryview, deadline_s: float) -> int | None:
        """Receive what there is; None where nothing came in time."""
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
        """Receive with this patience."""
        self._patience_s = patience_s

    @property
    def pending(self) -> bool:
        """True where OpenSSL holds bytes that the socket does not have any more."""
        with self._lock:
            return self._sock.fileno() >= 0 and self._sock.pending() > 0

    def _wait(self, events: int, deadline_s: float) -> bool:
        poller = select.poll()
        try:
            poller.register(self._sock.fileno(), events)
        except ValueError as error:
            # No descriptor any more.
            raise OSError(f"the connection was closed: {error}") from error
        return bool(poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000))

    def take_descriptor(self) -> int:
        """Refuse: descriptors do not travel under TLS."""
        raise FrameError("a segment came over TLS, which carries no descriptors")

    def send_now(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send the first piece, or its beginning, without waiting.

        Where it returns 0, a part of the record may have left: :meth:`send_some` must be next, with the same pieces.
        """
        try:
            with self._lock:
                return self._sock.send(memoryview(pieces[0])[:_PIECE_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except ValueError as error:
            raise OSError(f"the connection was closed: {error}") from error

    def send_some(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
        """Send the first piece, or its beginning."""
        # The same memory at each attempt: a record that was begun must be repeated with the very same bytes.
        piece = memoryview(pieces[0])[:_PIECE_BYTES]
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
                # The socket was full and has room again, so the peer has taken something.
                deadline_s = time.monotonic() + STALL_S

    def hung_up(self) -> bool:
        """Return True if the peer has gone."""
        return hung_up(self._sock.fileno())

    def shut_down(self) -> None:
        """End the connection, without TLS's farewell: threads that wait must wake now."""
        try:
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Give the descriptor back."""
        self._sock.close()


def wire_of(sock: socket.socket) -> TlsWire:
    """Return the wire of a socket that a TLS context has wrapped."""
    assert isinstance(sock, ssl.SSLSocket)
    return TlsWire(sock)
