"""Vans over TCP sockets, Unix sockets, and Unix sockets with shared memory; and their answering end.

Members of a job on one host listen on Unix sockets in its socket folder, which only its user can enter.  In a job
between hosts, members on the same host use an abstract Unix socket, whose address begins with ``@``: it has a name but
no file, and ends with its listener.

When two ends connect, each proves to the other that it has the job's token: a challenge each way, before any frame.
The four messages have fixed lengths, so that a stranger cannot make an end allocate memory::

    connector -> listener    magic "EPSH" | version u8 | zero u8[3] | nonce[32]
    listener  -> connector   nonce[32] | proof[32]     of both nonces, as the listener
    connector -> listener    proof[32]                 of both nonces, as the connector
    listener  -> connector   the frame HELLO: requests are accepted

A proof is an HMAC with the token as its key.  It includes the role, so that no end can be made to answer its own
challenge, and the transport, so that no proof can be relayed to another one.  The token itself is never sent.

Source: the challenge-response of RFC 5802 (SCRAM) and RFC 2195, with mutual proof.  Deviation: no channel binding; TLS
protects against an attacker who can change packets.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from eps.core.types import Address
from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    EpsError,
    FrameError,
    PeerUnavailableError,
    ProtocolError,
    RpcError,
)
from eps.net.arrays.api import TRAFFIC, Handler, Limits, Message, ReplyTo
from eps.net.arrays.connection import SocketConnection
from eps.net.arrays.frames import FIRST, HEAD_START, Kind, described_lengths, parse_frame_header, whole
from eps.net.arrays.memory import Arena
from eps.net.arrays.reader import StreamReader
from eps.net.arrays.wires import PlainWire, TlsWire, Wire, peer_of, prepare, receive_exactly
from eps.net.arrays.writer import LEND_BYTES, Lender, MessageWriter, StreamWriter
from eps.net.calls.error_codec import encode_error
from eps.net.security.credentials import NO_SECURITY, TLS_NAME, JobToken, Security, SocketPath
from eps.system.logs import LimitedLog

logger = logging.getLogger(__name__)

TCP, UNIX, SHARED_MEMORY = "tcp", "unix", "shm"
TRANSPORTS = (SHARED_MEMORY, UNIX, TCP)
_JOIN_S = 5.0
# Looking up an enumeration member takes ten times as long.
_REPLY = Kind.REPLY
_BACKLOG = 512
#: Longest greeting of a listener, in bytes.
MOST_HELLO_BYTES = 16 * 1024
_HELLO_LIMITS = Limits(max_header_bytes=MOST_HELLO_BYTES, max_arrays=0)
#: Maximum number of handshakes at a time.  One more replaces the oldest, so that strangers hold few threads.
_MOST_STRANGERS = 64

MAGIC = b"EPSH"
VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
CHALLENGE_BYTES = 8 + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES
#: Time limit for all of the handshake.
HANDSHAKE_TIMEOUT_S = 10.0

_PREFIX = MAGIC + bytes([VERSION, 0, 0, 0])
_LISTENER, _CONNECTOR = b"eps van listener", b"eps van connector"
#: Both ends use this token if none is required, so that the messages stay the same.
_OPEN = JobToken(b"no token is asked")


class SocketVan:
    """A van over one kind of socket.

    Parameters
    ----------
    transport : str
        ``tcp``, ``unix`` or ``shm``: a Unix socket, with large arrays in shared memory.
    security : Security
        Both ends must prove its token.  With TLS, connections are encrypted and there is no shared memory.
    limits : Limits, optional
    arena : Arena, optional
        Shared memory to lend from; by default the van creates one.
    max_connections : int
        Maximum connections per listener; more are refused.

    Raises
    ------
    ConfigError
        The transport is unknown, or is shared memory with TLS.
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
        """Whether the transport has shared memory."""
        return self.arena is not None

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array, which this van can send without a copy if it is large enough to be lent."""
        if self.arena is not None:
            size_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
            if size_bytes >= LEND_BYTES:
                return self.arena.array(shape, dtype)
        return np.empty(shape, dtype)

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0, hello: bytes = b"") -> SocketListener:
        """Accept connections; ``host`` may be the name of an abstract Unix socket, with ``@`` before it."""
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
        """Connect to a listener; a refused connection fails at once, whatever ``timeout_s``."""
        return self.meet(address, timeout_s)[0]

    def meet(self, address: Address, timeout_s: float = 10.0) -> tuple[SocketConnection, bytes]:
        """Connect as :meth:`connect` does; return the connection and the listener's greeting."""
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
            # OverflowError, ValueError: a peer may offer an invalid name or port.
            raise PeerUnavailableError(f"no process listens on {address}: {error}") from error
        try:
            wire, hello = self._greet(sock, deadline_s)
        except EpsError as error:
            sock.close()
            raise type(error)(f"{address}: {error}") from error
        except OSError as error:
            sock.close()
            raise PeerUnavailableError(f"{address} closed the connection: {error}") from error
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
            # Wrapping moved the descriptor out of the caller's socket.
            sock.close()
            raise

    def _prove(self, sock: socket.socket, deadline_s: float) -> tuple[Wire, bytes]:
        handshake = ConnectorHandshake(self.security.token, self.transport)
        sock.sendall(handshake.challenge())
        sock.sendall(handshake.proof(receive_exactly(sock, ANSWER_BYTES, deadline_s)))
        # The listener has proved the token.  If it closes the connection here, it is closing or full.
        hello = _hello_of(sock, deadline_s)
        return _wire_of(sock, self.transport), hello


def _hello_of(sock: socket.socket, deadline_s: float) -> bytes:
    """Return a listener's greeting."""
    head = receive_exactly(sock, HEAD_START, deadline_s)
    try:
        _, flags, request_id, _ = parse_frame_header(head, {int(Kind.HELLO): Kind.HELLO})
        hello_bytes, _ = described_lengths(head, _HELLO_LIMITS)
    except FrameError as error:
        raise ProtocolError(f"the listener's greeting is malformed: {error}") from None
    said = b"" if not hello_bytes else receive_exactly(sock, hello_bytes, deadline_s)
    if (flags, request_id) != (FIRST, 0) or head + said != b"".join(
        bytes(piece) for piece in whole(Message(said), 0, Kind.HELLO)
    ):
        raise ProtocolError("the listener's greeting is malformed")
    return said


def _connect_tcp(address: Address, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((address.host, address.port), timeout_s)
    # Before the TLS handshake: its short messages would each wait for an acknowledgement.
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
    if isinstance(sock, ssl.SSLSocket):
        return TlsWire(sock)
    return PlainWire(sock, passes_descriptors=transport == SHARED_MEMORY)


def _end(sock: socket.socket) -> None:
    """Shut down a connection during its handshake; its thread closes the socket."""
    try:
        # The plain method: TLS's would drop the session that the thread uses.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        # It was shut down already.
        return


class SocketListener:
    """A listening socket, with a thread for each connection.

    Attributes
    ----------
    hello : bytes
        Greeting for connecting members, at most :data:`MOST_HELLO_BYTES`.
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
        """The address to connect to."""
        return self._address

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError as error:
                if self._closed:
                    return
                # Out of descriptors, or the peer has disconnected already.  Connected members must not be affected.
                self._failures.warning("%s cannot accept a connection: %s", self._address, error)
                threading.Event().wait(0.05)
                continue
            peer = peer_of(sock)
            if peer is not None and peer[1] not in (0, os.geteuid()):
                self._refusals.warning(
                    "a connection to %s was refused: its peer runs as user %s", self._address, peer[1]
                )
                sock.close()
                continue
            with self._lock:
                # Threads of disconnected strangers may still run.
                full = len(self._threads) - len(self._served) >= 2 * _MOST_STRANGERS
                if full or len(self._served) >= self._van.max_connections or self._closed:
                    sock.close()
                    continue
                if len(self._strangers) >= _MOST_STRANGERS:
                    # A member proves itself at once, so the oldest stranger is not a member.
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    self._crowds.warning(
                        "%d connections to %s have not proved the token: the oldest is closed for a new one",
                        _MOST_STRANGERS,
                        self._address,
                    )
                    _end(oldest)
                self._strangers[sock] = None
                thread = threading.Thread(target=self._run, args=(sock,), name="eps-van-serve", daemon=True)
                try:
                    # Inside the lock: a closing listener joins only threads that were started.
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
        """Return the wire of a peer that has proved the token; else close the socket and return None."""
        deadline_s = time.monotonic() + HANDSHAKE_TIMEOUT_S
        wrapped = sock
        try:
            prepare(sock)
            if self._context is not None:
                sock.settimeout(HANDSHAKE_TIMEOUT_S)
                ssl_socket = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                wrapped = ssl_socket
                with self._lock:
                    # From here on the wrapped socket must be shut down.
                    if self._closed:
                        raise PeerUnavailableError("the listener is closed")
                    if sock not in self._strangers:
                        raise PeerUnavailableError(
                            f"it is the oldest of more than {_MOST_STRANGERS} unproved connections"
                        )
                    self._strangers = {wrapped if one is sock else one: None for one in self._strangers}
                ssl_socket.do_handshake()
            handshake = ListenerHandshake(self._van.security.token, self._van.transport)
            wrapped.sendall(handshake.answer(receive_exactly(wrapped, CHALLENGE_BYTES, deadline_s)))
            handshake.check(receive_exactly(wrapped, PROOF_BYTES, deadline_s))
            wrapped.settimeout(max(0.001, deadline_s - time.monotonic()))
            wrapped.sendall(b"".join(bytes(piece) for piece in whole(Message(self.hello), 0, Kind.HELLO)))
            return _wire_of(wrapped, self._van.transport)
        except (EpsError, OSError, ValueError) as error:
            self._refusals.warning("a connection to %s was refused: %s", self._address, error)
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
        """Close all connections and release all resources."""
        with self._lock:
            self._closed = True
            served, strangers, threads = list(self._served), list(self._strangers), list(self._threads)
        try:
            self._listening.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            logger.debug("%s was no longer listening: %s", self._address, error)
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
    """The answering end of a connection; its thread reads requests and calls the handler.

    An answering thread sends what the socket takes and never waits, since it may have replies for other peers.  While
    more than ``max_outgoing_bytes`` are queued for a peer, its further requests are not read.  A peer that takes
    nothing for long is disconnected.
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
        """Serve requests until either end closes the connection."""
        try:
            while True:
                if self._writer.waiting_bytes > self._most_waiting_bytes:
                    self._writer.await_taken()
                received = self._reader.read()
                if received is not None:
                    _, request_id, message = received
                    # Free the message now, not at the next request.
                    received = None
                    handle(self._handler, message, Reply(self._answer, request_id))
                    del message
        except FrameError as error:
            logger.warning("a connection was closed, its peer sent a malformed message: %s", error)
        except DeadlineError as error:
            logger.warning("a connection was closed, its peer does not read its replies: %s", error)
        except EpsError as error:
            logger.debug("a connection was closed: %s", error)
        except MemoryError as error:
            logger.warning("a connection was closed, out of memory for its message: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        """Release all resources; call it when no thread reads."""
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


class Reply:
    """The answer to one request, over any transport.

    Parameters
    ----------
    deliver : callable
        Sends (request id, message or error) to the requester; drops it if the requester has disconnected.
    request_id : int
    """

    __slots__ = ("_answered", "_deliver", "_request_id")
    #: One lock for all replies, held for two steps: cheaper than a lock for each.
    _lock = threading.Lock()

    def __init__(self, deliver: Callable[[int, Message | EpsError], None], request_id: int) -> None:
        self._deliver = deliver
        self._request_id = request_id
        self._answered = False

    def send(self, message: Message) -> None:
        """Answer the request."""
        self._answer(message)

    def fail(self, error: EpsError) -> None:
        """Answer the request with an error."""
        self._answer(error)

    def _answer(self, outcome: Message | EpsError) -> None:
        with self._lock:
            if self._answered:
                raise ProtocolError("the request was answered before: a request has exactly one answer")
            self._answered = True
        if isinstance(outcome, Message):
            TRAFFIC.sent(outcome)
        try:
            self._deliver(self._request_id, outcome)
        except (ProtocolError, MemoryError):
            # The message was refused before a byte was sent: the requester still waits.
            self._answered = False
            raise


def handle(handler: Handler, message: Message, reply: ReplyTo) -> None:
    """Call ``handler``; if it raises, answer with the error, so that the requester does not wait for ever."""
    TRAFFIC.received(message)
    try:
        handler(message, reply)
    except Exception as error:
        if not isinstance(error, EpsError):
            logger.exception("the handler of a data-plane request failed")
            error = RpcError(f"the handler failed with {type(error).__name__}: {error}")
        try:
            reply.fail(error)
        except ProtocolError:
            logger.warning("the handler failed after it had answered: %s", error)


class ConnectorHandshake:
    """The connector's side of the handshake.

    Parameters
    ----------
    token : JobToken or None
    transport : str
        Name of the transport; part of the proofs.
    """

    def __init__(self, token: JobToken | None, transport: str) -> None:
        self._token = token or _OPEN
        self._transport = transport.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def challenge(self) -> bytes:
        """Return the first message."""
        return _PREFIX + self._nonce

    def proof(self, answer: bytes) -> bytes:
        """Check the listener's answer; return the third message.

        Raises
        ------
        AuthenticationError
            The listener does not have the job's token.
        """
        nonce, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not self._token.proves(proof, _LISTENER, self._transport, self._nonce, nonce):
            raise AuthenticationError("the listener does not know the job's token")
        return self._token.proof(_CONNECTOR, self._transport, self._nonce, nonce)


class ListenerHandshake:
    """The listener's side of the handshake; parameters are those of :class:`ConnectorHandshake`."""

    def __init__(self, token: JobToken | None, transport: str) -> None:
        self._token = token or _OPEN
        self._transport = transport.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._peers_nonce = b""

    def answer(self, challenge: bytes) -> bytes:
        """Return the second message.

        Raises
        ------
        AuthenticationError
            The data is not a challenge of this version.
        """
        if not challenge.startswith(_PREFIX):
            raise AuthenticationError(f"a connection begins with {challenge[:8]!r}, but must begin with {_PREFIX!r}")
        self._peers_nonce = challenge[len(_PREFIX) :]
        proof = self._token.proof(_LISTENER, self._transport, self._peers_nonce, self._nonce)
        return self._nonce + proof

    def check(self, proof: bytes) -> None:
        """Check the third message.

        Raises
        ------
        AuthenticationError
            The connector does not have the job's token.
        """
        if not self._token.proves(proof, _CONNECTOR, self._transport, self._peers_nonce, self._nonce):
            raise AuthenticationError("the peer does not know the job's token")
