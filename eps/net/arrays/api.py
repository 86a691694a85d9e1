"""The data plane's interface: messages of NumPy arrays, connections, listeners, vans; counters of messages.

A :class:`Van` carries a :class:`Message` (a few opaque header bytes and any number of arrays) from one process to
another, and a reply back.  An implementation is complete when it passes ``tests/contract/test_van_contract.py``.  Every
van guarantees:

1.  Requests of one connection reach the handler in the order of ``request`` calls, one at a time.  Connections are
independent: a handler that blocks delays its own connection only.
2.  Many requests may be outstanding on a connection, and replies may come in any order.
3.  A received array is C-contiguous and aligned to its items; a copied one starts on a 64-byte boundary.  It may lie in
the sender's memory and is read-only then.  Arrays of a request are valid until it is answered, those of a reply while
they are referenced.  A handler that keeps or changes an array makes a copy.
4.  A van may read the arrays of a message after ``request`` or ``send`` has returned.  The sender must not change
arrays of a request until it is answered, and never those of a reply.  A sender that cannot promise that sends
:meth:`Message.copied`.  Arrays of :meth:`Van.empty` are sent with the fewest copies that the transport allows.
5.  A malformed message costs the peer at most its own connection.
6.  Both ends are authenticated as members of the job before the first message.
7.  A message with a :class:`Seal` carries a checksum of its header and arrays.  The receiver, not the van, compares it
with what arrived.
8.  ``close`` releases everything of a connection, listener or van: threads, channels, file descriptors.

Source: design section 2 (data plane); the word van is ps-lite's.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from eps.core.types import Address
from eps.errors import DeadlineError, EpsError

#: Supported array types, by NumPy code; the index is the number on the wire.
DTYPES: tuple[np.dtype[Any], ...] = tuple(np.dtype(code) for code in ("u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"))
#: Maximum dimensions of an array; 0 (a scalar array) is allowed.
MAX_DIMS = 4
#: Alignment of received arrays: a cache line, enough for any vector load.
ALIGNMENT_BYTES = 64

MIB = 1 << 20
#: Length of an array's entry in the description of a message.
ARRAY_DESCRIPTION_BYTES = 40


@dataclass(slots=True, eq=False)
class Seal:
    """A checksum of a message, sent behind its arrays: XXH3 (64 bits) in hexadecimal (:mod:`.frames`)."""

    #: Checksum of the sent message.  The sender sets it while sending; the receiver reads it from the message.
    left: str = ""
    #: At the receiver, checksum of the received bytes; empty if the arrays lie in the sender's memory, not read yet.
    arrived: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Header bytes, which the van does not interpret, and arrays.

    Not comparable: arrays have no single truth value.
    """

    header: bytes = b""
    #: Each C-contiguous, of a type in :data:`DTYPES`, with at most :data:`MAX_DIMS` dimensions.
    arrays: tuple[np.ndarray, ...] = ()
    #: If given, the sending thread computes a checksum of the message.
    seal: Seal | None = None

    @property
    def size_bytes(self) -> int:
        """Header and array bytes together."""
        return len(self.header) + sum(array.nbytes for array in self.arrays)

    def copied(self) -> Message:
        """Return the message with copied arrays, for a sender that goes on changing its own."""
        return Message(self.header, tuple(aligned_copy(array) for array in self.arrays), self.seal)


@dataclass(frozen=True, slots=True)
class Limits:
    """A van's limits for received messages and for the outgoing queue; checked before memory is allocated."""

    max_header_bytes: int = MIB // 2
    #: Header, description and arrays of one message in their wire layout.
    max_message_bytes: int = 2048 * MIB
    #: Arrays of one message.
    max_arrays: int = 1024
    #: Bytes in the outgoing queue of one connection.  Above it a requester waits, and a listener stops reading requests
    #: of that peer.  A single message is always admitted.
    max_outgoing_bytes: int = 256 * MIB


class ReplyTo(Protocol):
    """The way to answer one request, exactly once, from any thread."""

    def send(self, message: Message) -> None:
        """Answer the request without waiting for the peer; no effect if the peer has disconnected.

        Raises
        ------
        ProtocolError
            The request was answered before, or a van cannot carry the message.
        """

    def fail(self, error: EpsError) -> None:
        """Answer with an error: the requester's future raises one of the same class."""


#: Called on a thread of the connection, in the order of arrival; may reply at once or later.
Handler = Callable[[Message, ReplyTo], None]


class Waiting:
    """The outcome of a posted request; costs a tenth of a future.

    Attributes
    ----------
    outcome : Message, EpsError or None
        None until it is set.
    """

    outcome: Message | EpsError | None = None

    def set_result(self, outcome: Message | EpsError) -> None:
        """Set the outcome."""
        self.outcome = outcome

    set_exception = set_result

    def result(self) -> Message:
        """Return the reply, or raise the error of the request."""
        if isinstance(self.outcome, Message):
            return self.outcome
        raise self.outcome or DeadlineError("the reply has not arrived")


class ReplySource(Protocol):
    """The replies to posted requests of one connection, read by the thread that waits for them."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reply comes; -1 if there is none."""

    @property
    def buffered(self) -> bool:
        """Whether :meth:`read_available` has data although the descriptor may not be readable."""

    def read_available(self) -> None:
        """Read arrived replies and set the outcomes of their requests; wait some milliseconds for the first."""


class Connection(Protocol):
    """A connection to one listener.  Thread-safe."""

    @property
    def transport(self) -> str:
        """The connection's transport: ``shm``, ``unix`` or ``tcp``."""

    @property
    def replies(self) -> ReplySource:
        """Source of the replies to posted requests, for :class:`eps.net.arrays.connection.Replies`."""

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the future holds the reply, or raises the handler's error.

        Callbacks of the future run on a thread of the connection.  They must be short, must not close the connection
        and must not wait for another of its replies.  The future cannot be cancelled.

        Raises
        ------
        PeerUnavailableError
            The connection is closed or broken; futures of unanswered requests raise it too.
        ProtocolError
            A van cannot carry the message.
        DeadlineError
            The outgoing queue of the connection stayed full.
        """

    def post(self, message: Message) -> Waiting:
        """Send a request whose reply the caller reads from :attr:`replies`: the fastest way to a reply.

        Raises the errors of :meth:`request`.
        """

    def close(self) -> None:
        """Fail outstanding requests and release all resources.  Idempotent."""

    @property
    def closed(self) -> bool:
        """Whether the connection was closed or is known to be broken."""


class Listener(Protocol):
    """Accept connections for a handler."""

    @property
    def address(self) -> Address:
        """The address to connect to, with the port that the system chose for port 0."""

    def close(self) -> None:
        """Close all connections and release all resources; wait a few seconds for running handlers."""


class Van(Protocol):
    """One or more transports."""

    @property
    def lends(self) -> bool:
        """Whether arrays of :meth:`empty` lie in memory that other processes can read."""

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array in the memory that is cheapest to send."""

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> Listener:
        """Accept connections at ``host:port``.

        Raises
        ------
        ConfigError
            The address cannot be listened on.
        """

    def connect(self, address: Address, timeout_s: float = 10.0) -> Connection:
        """Connect to a listener.

        Raises
        ------
        PeerUnavailableError
            No process listens there, or it did not answer within ``timeout_s`` seconds.
        ProtocolError
            The listener refuses the connection.
        """


def aligned_empty(size_bytes: int) -> np.ndarray:
    """Return ``size_bytes`` uninitialised bytes, shape (size_bytes,), uint8, that start on a 64-byte boundary."""
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    # Four times faster than ``raw.ctypes.data``, which shows in the latency of small messages.
    start = -ctypes.addressof(ctypes.c_char.from_buffer(raw.data)) % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous copy of ``array`` that starts on a 64-byte boundary."""
    copy = aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Traffic:
    """Counters of messages and their bytes on the data plane.

    Header bytes and array bytes are counted alike on any transport, whether TCP copies them or they stay in shared
    memory.

    Without a lock, since every small message is counted: each addition is one step under CPython's interpreter lock.

    Attributes
    ----------
    messages_out, bytes_out, messages_in, bytes_in : int
    """

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_out = self.bytes_out = self.messages_in = self.bytes_in = 0

    def sent(self, message: Message) -> None:
        """Count a sent request or reply."""
        # Message.size_bytes, without its generator: this is on the way of every small message.
        size_bytes = len(message.header)
        for array in message.arrays:
            size_bytes += array.nbytes
        self.messages_out += 1
        self.bytes_out += size_bytes

    def received(self, message: Message) -> None:
        """Count a received request or reply."""
        # Message.size_bytes, without its generator: this is on the way of every small message.
        size_bytes = len(message.header)
        for array in message.arrays:
            size_bytes += array.nbytes
        self.messages_in += 1
        self.bytes_in += size_bytes

    def __str__(self) -> str:
        return (
            f"data plane: {self.messages_out} messages of {self.bytes_out} bytes out, {self.messages_in} of "
            f"{self.bytes_in} in; {time.process_time():.3f} s of processor time"
        )


#: The counters of this process.
TRAFFIC = Traffic()


class Peers:
    """Connections by address, made on demand."""

    def __init__(self, van: Van) -> None:
        self._van = van
        self._lock = threading.Lock()
        self._connections: dict[Address, Connection] = {}

    def to(self, address: Address) -> Connection:
        """Return an open connection.

        Raises
        ------
        PeerUnavailableError
            No process listens there.
        """
        with self._lock:
            found = self._connections.get(address)
            if found is not None and not found.closed:
                return found
        # Outside the lock: an unresponsive peer must not delay calls for other peers.
        made = self._van.connect(address)
        with self._lock:
            known = self._connections.get(address)
            found, surplus = (made, known) if known is None or known.closed else (known, made)
            self._connections[address] = found
        if surplus is not None:
            # A broken connection still holds what it lent; or another thread connected first.
            surplus.close()
        return found

    def keep(self, addresses: Iterable[Address]) -> None:
        """Close the connections to all other addresses."""
        wanted = set(addresses)
        with self._lock:
            gone = [self._connections.pop(address) for address in list(self._connections) if address not in wanted]
        for connection in gone:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        self.keep(())
