"""A van within one process: for a worker and a server that share a container.

Large arrays are handed over by reference, as shared memory does it between processes: the receiver gets a read-only
view of the sender's array.  Small ones are copied, which is cheaper than to keep them alive.

Source: Proteus §3.1 (one process on each machine, with workers and servers in it).
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import threading
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue

import numpy as np

from eps.core.types import Address
from eps.errors import ConfigError, EpsError, PeerUnavailableError
from eps.net.arrays.api import TRAFFIC, Handler, Limits, Message, Waiting, aligned_copy
from eps.net.arrays.connection import PendingRequests
from eps.net.arrays.frames import check_message, sealed, unsealed
from eps.net.arrays.sockets import Reply, handle
from eps.net.calls.error_codec import decode_error, encode_error

logger = logging.getLogger(__name__)

#: Name of this transport.
PROCESS = "process"
#: Larger arrays are handed over by reference.
LENT_BYTES = 4096
_JOIN_S = 5.0
#: How long :meth:`InProcessConnection.read_available` waits for a reply.
_PATIENCE_MS = 20


class InProcessVan:
    """Connects the listeners and connections of one object; two such objects know nothing of each other."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._listeners: dict[Address, InProcessListener] = {}
        self._free_ports = itertools.count(1)

    #: No other process can read the arrays of :meth:`empty`.
    lends = False

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array."""
        return np.empty(shape, dtype)

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> InProcessListener:
        """Accept connections; the ports are this object's own and unrelated to those of the system."""
        with self._lock:
            address = Address(host, port)
            while address.port == 0 or (port == 0 and address in self._listeners):
                address = Address(host, next(self._free_ports))
        return self.listen_at(address, handler)

    def listen_at(self, address: Address, handler: Handler) -> InProcessListener:
        """Accept connections at an address that another van may use, too.

        Raises
        ------
        ConfigError
            Another listener of this object has the address.
        """
        with self._lock:
            if address in self._listeners:
                raise ConfigError(f"cannot listen on {address}: another listener does")
            listener = self._listeners[address] = InProcessListener(self, address, handler)
        return listener

    def serves(self, address: Address) -> bool:
        """Return whether a listener of this object has the address."""
        with self._lock:
            return address in self._listeners

    def connect(self, address: Address, timeout_s: float = 10.0) -> InProcessConnection:
        """Connect to a listener of this object."""
        with self._lock:
            listener = self._listeners.get(address)
            connection = InProcessConnection(listener, self._limits) if listener is not None else None
        if connection is None:
            raise PeerUnavailableError(f"no process listens on {address}")
        connection.start()
        return connection

    def forget(self, address: Address) -> None:
        """Remove a listener that has closed."""
        with self._lock:
            self._listeners.pop(address, None)


class InProcessListener:
    """A handler and the connections to it."""

    def __init__(self, van: InProcessVan, address: Address, handler: Handler) -> None:
        self._van = van
        self._address = address
        self.handler = handler
        self._lock = threading.Lock()
        self._connections: set[InProcessConnection] = set()

    @property
    def address(self) -> Address:
        """The address to connect to."""
        return self._address

    def add(self, connection: InProcessConnection) -> None:
        """Add a connection, which ends with the listener."""
        with self._lock:
            self._connections.add(connection)

    def discard(self, connection: InProcessConnection) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._connections.discard(connection)

    def close(self) -> None:
        """Close all connections."""
        self._van.forget(self._address)
        with self._lock:
            connections = sorted(self._connections, key=id)
        for connection in connections:
            connection.end(f"{self._address} has closed")


class InProcessConnection:
    """A queue of requests and a thread that passes them to the handler.

    An event descriptor is readable while replies wait, so that one thread can wait for this connection and others.
    """

    transport = PROCESS

    def __init__(self, listener: InProcessListener, limits: Limits) -> None:
        self._listener = listener
        self._limits = limits
        self._pending = PendingRequests()
        self._order = threading.Lock()
        self._requests: SimpleQueue[tuple[int, Message] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"eps-van-process-{listener.address}", daemon=True)
        #: Guards the descriptor, which is -1 once it is closed.
        self._closing = threading.Lock()
        self._came_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        listener.add(self)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether either end has closed the connection."""
        return self._pending.closed

    def request(self, message: Message) -> Future[Message]:
        """Send a request."""
        check_message(message, self._limits)
        with self._order:
            request_id, future = self._pending.add()
            self._requests.put((request_id, _handed_over(message)))
        TRAFFIC.sent(message)
        return future

    def post(self, message: Message) -> Waiting:
        """Send a request whose outcome the connection's thread, or that of the replying handler, sets."""
        check_message(message, self._limits)
        with self._order:
            request_id, waiting = self._pending.add_waiting()
            self._requests.put((request_id, _handed_over(message)))
        TRAFFIC.sent(message)
        return waiting

    @property
    def replies(self) -> InProcessConnection:
        """The connection itself."""
        return self

    @property
    def buffered(self) -> bool:
        """Whether there are replies that the descriptor does not show: never."""
        return False

    def fileno(self) -> int:
        """Return the descriptor that is readable when a reply has come; -1 once the connection is closed."""
        return self._came_fd

    def read_available(self) -> None:
        """Wait some milliseconds for a reply, and clear the descriptor."""
        poller = select.poll()
        with self._closing:
            if self._came_fd < 0:
                return
            poller.register(self._came_fd, select.POLLIN)
        poller.poll(_PATIENCE_MS)
        with self._closing, suppress(BlockingIOError):
            if self._came_fd >= 0:
                os.eventfd_read(self._came_fd)

    def close(self) -> None:
        """Fail outstanding requests and end the thread."""
        self.end("the connection was closed")
        with self._closing:
            if self._came_fd >= 0:
                os.close(self._came_fd)
                self._came_fd = -1

    def end(self, reason: str) -> None:
        """Fail outstanding requests with ``reason`` and end the thread."""
        self._pending.fail_all(reason)
        self._wake()
        self._requests.put(None)
        self._listener.discard(self)
        # A thread that another thread has not started yet ends as soon as it starts.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                logger.warning("a handler of %s still runs %s s after the close", self._listener.address, _JOIN_S)

    def _wake(self) -> None:
        with self._closing:
            if self._came_fd >= 0:
                os.eventfd_write(self._came_fd, 1)

    def _run(self) -> None:
        while (entry := self._requests.get()) is not None:
            request_id, message = entry
            if self.closed:
                return
            handle(self._listener.handler, message, Reply(self._deliver, request_id))

    def _deliver(self, request_id: int, outcome: Message | EpsError) -> None:
        if isinstance(outcome, Message):
            check_message(outcome, self._limits)
            self._pending.resolve(request_id, _handed_over(outcome))
        else:
            # Through the codec: both ends must not share an exception, and it loses here what it loses elsewhere.
            self._pending.resolve(request_id, decode_error(encode_error(outcome)))
        self._wake()


def _handed_over(message: Message) -> Message:
    """Return the message as the receiver gets it."""
    sent = sealed(message)
    found = Message(sent.header, tuple(map(_handed_over_array, sent.arrays)), sent.seal)
    return found if message.seal is None else unsealed(found)


def _handed_over_array(array: np.ndarray) -> np.ndarray:
    if array.nbytes <= LENT_BYTES:
        return aligned_copy(array)
    lent = array.view()
    lent.flags.writeable = False
    return lent
