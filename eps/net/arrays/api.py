"""The data plane's interface: messages of NumPy arrays, connections, listeners, vans; counters of messages.

A :class:`Van` carries a :class:`Message` (a few opaque header bytes and any number of arrays) from one process to
another and a reply back.  Implementations plug in here and nowhere else; one is done when it passes
``tests/contract/test_van_contract.py``.  What every van owes:

1.  Requests of one connection reach the handler in the order of ``request`` calls, one at a time; connections are
    independent of each other: a handler that blocks holds up its own connection only.
2.  Many requests may be outstanding on a connection, and replies may come in any order.
3.  A received array is C-contiguous and aligned to its items; one that was copied starts on a 64-byte boundary.  It
    may lie in the sender's memory, and is read-only then: those of a request are valid until it is answered, those of
    a reply as long as they are referenced.  A handler that keeps or changes one makes a copy.
4.  A van may read the arrays of a message after ``request`` or ``send`` has returned, without a copy of its own.
    The sender leaves them unchanged: those of a request until it is answered, those of a reply for good.
    Give :meth:`Message.copied` where that cannot be promised.  Arrays of :meth:`Van.empty` travel with the fewest
    copies that the transport allows.
5.  A peer that sends nonsense loses at most its own connection.
6.  Both ends know that the other belongs to the job before a message is taken.
7.  A message with a :class:`Seal` carries a checksum of the header and arrays that were sent.  The receiver, not the
    van, compares it with what arrived.
8.  ``close`` leaves nothing of a connection, listener or van behind: no thread, no channel, no file descriptor.

Source: design section 2 (data plane); the word is ps-lite's.
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

#: Array types a van carries, by their NumPy code; the position is the number on the wire.
DTYPES: tuple[np.dtype[Any], ...] = tuple(np.dtype(code) for code in ("u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8"))
#: Most dimensions of an array; 0 (a scalar array) is allowed.
MAX_DIMS = 4
#: Received arrays start on this boundary: a cache line, and enough for any vector load.
ALIGNMENT_BYTES = 64

MIB = 1 << 20
#: What an array adds to the description of a message.
ARRAY_DESCRIPTION_BYTES = 40


@dataclass(slots=True, eq=False)
class Seal:
    """A checksum of a message that travels behind its arrays: XXH3 (64 bits) in hexadecimal (:mod:`.frames`)."""

    #: Checksum of what was sent.  The sender has it after sending, the receiver takes it from the message.
    left: str = ""
    #: At the receiver, checksum of what arrived; empty where the arrays lie in the sender's memory, unread so far.
    arrived: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One message: header bytes, which the van does not interpret, and arrays.

    Not comparable: arrays have no single truth value.
    """

    header: bytes = b""
    #: Each C-contiguous, of a type in :data:`DTYPES`, with at most :data:`MAX_DIMS` dimensions.
    arrays: tuple[np.ndarray, ...] = ()
    #: Where given, the sending thread takes a checksum of the message.
    seal: Seal | None = None

    @property
    def size_bytes(self) -> int:
        """Header and array bytes together."""
        return len(self.header) + sum(array.nbytes for array in self.arrays)

    def copied(self) -> Message:
        """Return the same message with arrays of its own, for a sender that goes on changing its arrays."""
        return Message(self.header, tuple(aligned_copy(array) for array in self.arrays), self.seal)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a van accepts from a peer and queues for one; checked before memory is reserved."""

    max_header_bytes: int = MIB // 2
    #: Header, description and arrays of one message, as laid out on the wire.
    max_message_bytes: int = 2048 * MIB
    #: Arrays of one message.
    max_arrays: int = 1024
    #: Bytes queued for sending on one connection.  Above it a requester waits, and a listener reads no further requests
    #: of a peer that does not take its replies.  One message is always admitted.
    max_outgoing_bytes: int = 256 * MIB


class ReplyTo(Protocol):
    """Answers one request, exactly once, from any thread."""

    def send(self, message: Message) -> None:
        """Answer the request; never waits for the peer.  Does nothing where it has disconnected.

        Raises
        ------
        ProtocolError
            The request was answered before, or the message is not one that a van carries.
        """

    def fail(self, error: EpsError) -> None:
        """Answer the request with an error: the requester's future raises one of the same class."""


#: Called on a thread of the connection, in the order of arrival there; may reply at once or later.
Handler = Callable[[Message, ReplyTo], None]


class Waiting:
    """The outcome of a posted request; a tenth of the cost of a future.

    Attributes
    ----------
    outcome : Message, EpsError or None
        None until it is there.
    """

    outcome: Message | EpsError | None = None

    def set_result(self, outcome: Message | EpsError) -> None:
        """Set the outcome."""
        self.outcome = outcome

    set_exception = set_result

    def result(self) -> Message:
        """Return the reply that has come, or raise the error that came in its place."""
        if isinstance(self.outcome, Message):
            return self.outcome
        raise self.outcome or DeadlineError("the reply has not come")


class ReplySource(Protocol):
    """Replies to the posted requests of one connection, which the waiting thread reads."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reply comes; -1 where there is none."""

    @property
    def buffered(self) -> bool:
        """True if :meth:`read_available` finds something although the descriptor may not be readable."""

    def read_available(self) -> None:
        """Read the replies that have come, and set the outcomes of their requests; wait some milliseconds for one."""


class Connection(Protocol):
    """A way to one listener.  Safe to use from several threads."""

    @property
    def transport(self) -> str:
        """The transport it uses: ``shm``, ``unix`` or ``tcp``."""

    @property
    def replies(self) -> ReplySource:
        """Where to read the replies to posted requests; :class:`eps.net.arrays.connection.Replies` does."""

    def request(self, message: Message) -> Future[Message]:
        """Send a request; the future holds the reply, or raises the handler's error.

        Callbacks of the future run on a thread of the connection: they must be short, and must neither close the
        connection nor wait for another reply of it.  The future cannot be cancelled.

        Raises
        ------
        PeerUnavailableError
            The connection is closed or broken.  Also raised by the futures of requests that it left unanswered.
        ProtocolError
            The message is not one that a van carries.
        DeadlineError
            The connection's outgoing queue stayed full.
        """

    def post(self, message: Message) -> Waiting:
        """Send a request whose reply the caller reads from :attr:`replies`: the fastest way to a reply.

        Raises what :meth:`request` raises.
        """

    def close(self) -> None:
        """Fail outstanding requests and release all resources.  May be called more than once."""

    @property
    def closed(self) -> bool:
        """True after ``close``, and as soon as the connection is known to be broken."""


class Listener(Protocol):
    """Takes connections for a handler."""

    @property
    def address(self) -> Address:
        """Where to connect; has the port that the system chose for port 0."""

    def close(self) -> None:
        """Close all connections and release all resources; waits a few seconds for running handlers."""


class Van(Protocol):
    """A transport, or several."""

    @property
    def lends(self) -> bool:
        """True where arrays of :meth:`empty` lie in memory of a kind that other processes can read."""

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array in the memory that is cheapest to send from."""

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> Listener:
        """Take connections at ``host:port``.

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
            The listener refuses us.
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

    Messages are counted as what they are, header bytes and arrays, on any transport: the same
    job counts the same over TCP, where they are copied, and over shared memory, where they stay where they lie.

    On the way of every small message, so without a lock: an addition below is one step to CPython's interpreter lock.

    Attributes
    ----------
    messages_out, bytes_out, messages_in, bytes_in : int
    """

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out")

    def __init__(self) -> None:
        self.messages_out = self.bytes_out = self.messages_in = self.bytes_in = 0

    def sent(self, message: Message) -> None:
        """Count a request or a reply that leaves."""
        # Message.size_bytes, without its generator: this is on the way of every small message.
        size_bytes = len(message.header)
        for array in message.arrays:
            size_bytes += array.nbytes
        self.messages_out += 1
        self.bytes_out += size_bytes

    def received(self, message: Message) -> None:
        """Count a request or a reply that came."""
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


#: Of this process.
TRAFFIC = Traffic()


class Peers:
    """Connections by address, made when first needed."""

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
        # Outside the lock: a peer that does not answer must not hold up those for other peers.
        made = self._van.connect(address)
        with self._lock:
            known = self._connections.get(address)
            found, surplus = (made, known) if known is None or known.closed else (known, made)
            self._connections[address] = found
        if surplus is not None:
            # One that broke still holds what it lent; or another thread was faster.
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
        """Close them all."""
        self.keep(())
