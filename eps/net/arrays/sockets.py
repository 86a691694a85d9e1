"""The vans over sockets of this system: TCP, Unix, and Unix with shared memory.  L2.

Members of a job on one host listen on Unix sockets in the folder of its sockets, which only its user can enter.  In a
job between hosts, members that meet on one of them use an abstract Unix socket, an address that begins with ``@``: it
has a name, no file, and goes with its listener.  All prove the job's token to each other (``handshake.py``).
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from contextlib import suppress

import numpy as np

from eps.core.types import Address
from eps.errors import (
    ConfigError,
    DeadlineError,
    EpsError,
    FrameError,
    PeerUnavailableError,
    ProtocolError,
)
from eps.net.arrays.api import Handler, Limits, Message
from eps.net.arrays.arena import Arena
from eps.net.arrays.frames import FIRST, HEAD_START, Kind, described_lengths, parse_frame_header, whole
from eps.net.arrays.handshake import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    HANDSHAKE_TIMEOUT_S,
    PROOF_BYTES,
    ConnectorHandshake,
    ListenerHandshake,
)
from eps.net.arrays.lending import LEND_BYTES, Lender
from eps.net.arrays.pending import Reply, handle
from eps.net.arrays.requester import SocketConnection
from eps.net.arrays.sending import MessageWriter
from eps.net.arrays.stream import StreamReader
from eps.net.arrays.wires import PlainWire, Wire, peer_of, prepare, receive_exactly
from eps.net.arrays.writer import StreamWriter
from eps.net.calls.error_codec import encode_error
from eps.net.security.credentials import NO_SECURITY, TLS_NAME, Security, SocketPath
from eps.system.logs import LimitedLog

logger = logging.getLogger(__name__)

TCP, UNIX, SHARED_MEMORY = "tcp", "unix", "shm"
TRANSPORTS = (SHARED_MEMORY, UNIX, TCP)
_JOIN_S = 5.0
# Looking a member of an enumeration up takes ten times as long.
_REPLY = Kind.REPLY
_BACKLOG = 512
#: What a listener may say when it greets, in bytes.
MOST_HELLO_BYTES = 16 * 1024
_HELLO_LIMITS = Limits(max_header_bytes=MOST_HELLO_BYTES, max_arrays=0)
#: Connections whose handshake is under way: the oldest is ended for another, as strangers cannot take more threads.
_MOST_STRANGERS = 64


class SocketVan:
    """A van over one kind of socket.

    Parameters
    ----------
    transport : str
        ``tcp``, ``unix`` or ``shm``: a Unix socket whose large arrays stay in shared memory.
    security : Security
        Its token is asked of both ends; with TLS, connections are wrapped, and there is no shared memory.
    limits : Limits, optional
    arena : Arena, optional
        Shared memory to lend from; one of the van's own by default.
    max_connections : int
        To one listener; a further one is refused.

    Raises
    ------
    ConfigError
        The transport is unknown, or shared memory was asked for together with TLS.
    """

    def __init__(
        self,
        transport: str,
        security: Security = NO_SECURITY,
        limits: Limits | None = None,
        arena: Arena | None = None,
        max_connections: int = 1024,
    ) -> None:
        if transport not in TRANSPORTS:
            raise ConfigError(f"transport is {transport!r}, but must be one of {', '.join(TRANSPORTS)}")
        if transport == SHARED_MEMORY and security.tls is not None:
            raise ConfigError("shared memory passes descriptors, which TLS cannot carry: use unix or tcp with TLS")
        self.transport = transport
        self.security = security
        self.limits = limits or Limits()
        self.arena = (arena or Arena()) if transport == SHARED_MEMORY else None
        self.max_connections = max_connections

    @property
    def lends(self) -> bool:
        """True over shared memory."""
        return self.arena is not None

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array that this van sends without a copy."""
        if self.arena is not None:
            size_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
            if size_bytes >= LEND_BYTES:
                return self.arena.array(shape, dtype)
        return np.empty(shape, dtype)

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0, hello: bytes = b"") -> SocketListener:
        """Take connections; ``host`` may be the name of an abstract Unix socket, with ``@`` before it."""
        address = Address(host, port)
        if self.transport == TCP:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
        else:
            family = socket.AF_UNIX
            if self.security.is_local:
                address = self.security.new_socket()
            elif not host.startswith("@"):
                address = Address(f"@eps-{secrets.token_hex(12)}", port)
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            if family == socket.AF_UNIX:
                with self._unix_path(address) as path:
                    listening.bind(path)
            else:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind((host, port))
                address = Address(host, listening.getsockname()[1])
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise ConfigError(f"cannot listen on {address}: {error}") from error
        return SocketListener(self, listening, address, handler, hello)

    def connect(self, address: Address, timeout_s: float = 10.0) -> SocketConnection:
        """Connect to a listener; a refused connection fails at once, with any ``timeout_s``."""
        return self.meet(address, timeout_s)[0]

    def meet(self, address: Address, timeout_s: float = 10.0) -> tuple[SocketConnection, bytes]:
        """Connect as :meth:`connect`; return the connection, and what the listener said when it greeted."""
        deadline_s = time.monotonic() + timeout_s
        unix = address.is_unix or address.host.startswith("@")
        if unix == (self.transport == TCP):
            raise ConfigError(f"{address} is not an address for {self.transport}")
        try:
            if unix:
                with self._unix_path(address) as path:
                    sock = _connect_unix(path, timeout_s)
            else:
                sock = _connect_tcp(address, timeout_s)
        except (OSError, OverflowError, ValueError) as error:
            # The last two: a name or a port that is none, as a peer may offer it.
            raise PeerUnavailableError(f"nobody listens on {address}: {error}") from error
        try:
            wire, hello = self._greet(sock, deadline_s)
        except EpsError as error:
            sock.close()
            raise type(error)(f"{address}: {error}") from error
        except OSError as error:
            sock.close()
            raise PeerUnavailableError(f"{address} ended the connection: {error}") from error
        return SocketConnection(wire, str(address), self.transport, self.limits, self.arena), hello

    def _unix_path(self, address: Address) -> SocketPath:
        return self.security.socket_path(address) if address.is_unix else SocketPath("\0" + address.host[1:])

    def _greet(self, sock: socket.socket, deadline_s: float) -> tuple[Wire, bytes]:
        context = self.security.ssl_context(server_side=False)
        if context is not None:
            sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            sock = context.wrap_socket(sock, server_hostname=TLS_NAME)
        try:
            return self._prove(sock, deadline_s)
        except BaseException:
            # Wrapped, it is not the caller's socket any more.
            sock.close()
            raise

    def _prove(self, sock: socket.socket, deadline_s: float) -> tuple[Wire, bytes]:
        handshake = ConnectorHandshake(self.security.token, self.transport)
        sock.sendall(handshake.challenge())
        sock.sendall(handshake.proof(receive_exactly(sock, ANSWER_BYTES, deadline_s)))
        # It has proved the same token: where it ends here, it is closing or full.
        hello = _hello_of(sock, deadline_s)
        return _wire_of(sock, self.transport), hello


def _hello_of(sock: socket.socket, deadline_s: float) -> bytes:
    """Return what a listener says when it greets."""
    head = receive_exactly(sock, HEAD_START, deadline_s)
    try:
        _, flags, request_id, _ = parse_frame_header(head, {int(Kind.HELLO): Kind.HELLO})
        hello_bytes, _ = described_lengths(head, _HELLO_LIMITS)
    except FrameError as error:
        raise ProtocolError(f"the listener does not greet as one: {error}") from None
    said = b"" if not hello_bytes else receive_exactly(sock, hello_bytes, deadline_s)
    if (flags, request_id) != (FIRST, 0) or head + said != b"".join(
        bytes(piece) for piece in whole(Message(said), 0, Kind.HELLO)
    ):
        raise ProtocolError("the listener does not greet as one")
    return said


def _connect_tcp(address: Address, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((address.host, address.port), timeout_s)
    # Before TLS shakes hands: its short messages would each wait for an acknowledgement.
    prepare(sock)
    return sock


def _connect_unix(path: str, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _wire_of(sock: socket.socket, transport: str) -> Wire:
    if type(sock) is socket.socket:
        return PlainWire(sock, passes_descriptors=transport == SHARED_MEMORY)
    from eps.net.arrays.tls_wire import wire_of

    return wire_of(sock)


def _end(sock: socket.socket) -> None:
    """End the connection of a stranger; its thread, which uses the socket, gives it back."""
    try:
        # The plain one: that of TLS would take the session from under the thread that uses it.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        # It has ended already.
        return


def peer_uid(sock: socket.socket) -> int | None:
    """Return the user id of the peer of a Unix socket, of this machine; None of any other socket."""
    found = peer_of(sock)
    return None if found is None else found[1]


class SocketListener:
    """A listening socket, and a thread for each connection to it.

    Attributes
    ----------
    hello : bytes
        What members hear when they connect, at most :data:`MOST_HELLO_BYTES`.
    """

    def __init__(
        self, van: SocketVan, listening: socket.socket, address: Address, handler: Handler, hello: bytes
    ) -> None:
        self.hello = hello
        self._van = van
        self._listening = listening
        self._address = address
        self._handler = handler
        self._context = van.security.ssl_context(server_side=True)
        self._lock = threading.Lock()
        self._refusals = LimitedLog(logger)
        self._crowds = LimitedLog(logger)
        self._failures = LimitedLog(logger)
        self._closed = False
        #: Oldest first.
        self._strangers: dict[socket.socket, None] = {}
        self._served: set[_Served] = set()
        self._threads: set[threading.Thread] = set()
        self._acceptor = threading.Thread(target=self._accept, name=f"eps-van-accept-{address}", daemon=True)
        self._acceptor.start()

    @property
    def address(self) -> Address:
        """Where to connect."""
        return self._address

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError as error:
                if self._closed:
                    return
                # Out of descriptors, or a peer that had gone already: connected members must not suffer from it.
                self._failures.warning("%s cannot take a connection: %s", self._address, error)
                threading.Event().wait(0.05)
                continue
            uid = peer_uid(sock)
            if uid not in (None, 0, os.geteuid()):
                self._refusals.warning("a connection to %s is refused: its peer is of user %s", self._address, uid)
                sock.close()
                continue
            with self._lock:
                # Of those that were ended for another, the threads are still ending.
                full = len(self._threads) - len(self._served) >= 2 * _MOST_STRANGERS
                if full or len(self._served) >= self._van.max_connections or self._closed:
                    sock.close()
                    continue
                if len(self._strangers) >= _MOST_STRANGERS:
                    # A member proves itself in no time: it is not the one that has been here longest.
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    self._crowds.warning(
                        "of %d connections to %s that have not proved the token, the oldest is ended for another",
                        _MOST_STRANGERS,
                        self._address,
                    )
                    _end(oldest)
                self._strangers[sock] = None
                thread = threading.Thread(target=self._run, args=(sock,), name="eps-van-serve", daemon=True)
                try:
                    # Inside the lock: a listener that is closed joins only threads that were started.
                    thread.start()
                except RuntimeError as error:
                    self._failures.warning("%s cannot serve a connection: %s", self._address, error)
                    self._strangers.pop(sock, None)
                    sock.close()
                    continue
                self._threads.add(thread)

    def _run(self, sock: socket.socket) -> None:
        try:
            wire = self._meet(sock)
            if wire is not None:
                self._serve(wire)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _meet(self, sock: socket.socket) -> Wire | None:
        """Return the wire of a peer that has proved the token; None, and nothing is left, where it has not."""
        deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
        wrapped = sock
        try:
            prepare(sock)
            if self._context is not None:
                sock.settimeout(HANDSHAKE_TIMEOUT_S)
                ssl_socket = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                wrapped = ssl_socket
                with self._lock:
                    # From here on it is the wrapped one that can be ended.
                    if self._closed:
                        raise PeerUnavailableError("the listener is closed")
                    if sock not in self._strangers:
                        raise PeerUnavailableError(f"it is the oldest of more than {_MOST_STRANGERS} strangers")
                    self._strangers = {wrapped if one is sock else one: None for one in self._strangers}
                ssl_socket.do_handshake()
            handshake = ListenerHandshake(self._van.security.token, self._van.transport)
            wrapped.sendall(handshake.answer(receive_exactly(wrapped, CHALLENGE_BYTES, deadline_s)))
            handshake.check(receive_exactly(wrapped, PROOF_BYTES, deadline_s))
            wrapped.settimeout(max(0.001, deadline_s - time.monotonic()))
            wrapped.sendall(b"".join(bytes(piece) for piece in whole(Message(self.hello), 0, Kind.HELLO)))
            return _wire_of(wrapped, self._van.transport)
        except (EpsError, OSError, ValueError) as error:
            self._refusals.warning("a connection to %s is refused: %s", self._address, error)
            wrapped.close()
            return None
        finally:
            with self._lock:
                for stranger in (sock, wrapped):
                    self._strangers.pop(stranger, None)

    def _serve(self, wire: Wire) -> None:
        served = _Served(wire, self._handler, self._van.limits, self._van.arena)
        with self._lock:
            closed = self._closed
            if not closed:
                self._served.add(served)
        if closed:
            served.close()
            return
        try:
            served.run()
        finally:
            with self._lock:
                self._served.discard(served)

    def close(self) -> None:
        """End all connections and give everything back."""
        with self._lock:
            self._closed = True
            served, strangers, threads = list(self._served), list(self._strangers), list(self._threads)
        try:
            self._listening.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            logger.debug("%s was not listening any more: %s", self._address, error)
        self._listening.close()
        if self._address.is_unix:
            with suppress(OSError, EpsError), self._van.security.socket_path(self._address) as path:
                os.unlink(path)
        for sock in strangers:
            _end(sock)
        for connection in served:
            connection.end()
        deadline_s = time.monotonic() + _JOIN_S
        for thread in [self._acceptor, *threads]:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - time.monotonic()))


class _Served:
    """The answering end of a connection; its thread reads and calls the handler.

    Replies leave on the thread that gives them as far as the socket takes them, and never make it wait: it may have
    those of other peers to give.  While more than ``max_outgoing_bytes`` wait for a peer to take them, none of its
    further requests are read; one that takes nothing for long is lost.
    """

    def __init__(self, wire: Wire, handler: Handler, limits: Limits, arena: Arena | None) -> None:
        self._wire = wire
        self._handler = handler
        self._lender = None if arena is None else Lender(arena, wire.peer_pid, limits)
        self._reader = StreamReader(
            wire,
            limits,
            (Kind.REQUEST,),
            lending=arena is not None,
            on_release=None if self._lender is None else self._lender.give_back,
        )
        self._most_waiting_bytes = limits.max_outgoing_bytes
        self._writer = StreamWriter(wire, limits, "eps-van-reply", self._broken, senders_wait=False)
        self._replies = MessageWriter(self._writer, limits, self._lender)

    def run(self) -> None:
        """Serve until the peer or the listener has had enough."""
        try:
            while True:
                if self._writer.waiting_bytes > self._most_waiting_bytes:
                    self._writer.await_taken()
                received = self._reader.read()
                if received is not None:
                    _, request_id, message = received
                    # Not held until the next request comes.
                    received = None
                    handle(self._handler, message, Reply(self._answer, request_id))
                    del message
        except FrameError as error:
            logger.warning("a connection is ended, its peer sent what is not a message: %s", error)
        except DeadlineError as error:
            logger.warning("a connection is ended, its peer does not take what it asked for: %s", error)
        except EpsError as error:
            logger.debug("a connection has ended: %s", error)
        except MemoryError as error:
            logger.warning("a connection is ended, there is no memory for its message: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        """Give everything back; no thread reads any more."""
        self._wire.shut_down()
        self._writer.close()
        self._wire.close()
        self._reader.close()
        if self._lender is not None:
            self._lender.close()

    def end(self) -> None:
        """Wake the threads that wait for the peer."""
        self._wire.shut_down()

    def _broken(self, reason: str) -> None:
        logger.debug("a reply was not sent: %s", reason)
        self._wire.shut_down()

    def _answer(self, request_id: int, outcome: Message | EpsError) -> None:
        kind = _REPLY
        if not isinstance(outcome, Message):
            outcome, kind = Message(encode_error(outcome)), Kind.ERROR
        self._replies.send(outcome, request_id, kind)
