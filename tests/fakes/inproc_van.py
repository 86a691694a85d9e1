"""A van within one process.

Arrays are copied once, when they are handed over, so that both ends own theirs as they do between processes.
"""

from __future__ import annotations

import itertools
import logging
import threading
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np

from eps.core.types import Address
from eps.errors import ConfigError, EpsError, PeerUnavailableError
from eps.net.arrays.api import Handler, Limits, Message, Waiting
from eps.net.arrays.connection import PendingRequests
from eps.net.arrays.frames import check_message, sealed, unsealed
from eps.net.arrays.sockets import Reply, handle
from eps.net.calls.error_codec import decode_error, encode_error

logger = logging.getLogger(__name__)

_JOIN_S = 5.0


class InProcessVan:
    """Connects listeners and connections of one object; two of them know nothing of each other."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._lock = threading.Lock()
        self._listeners: dict[Address, InProcessListener] = {}
        self._free_ports = itertools.count(1)

    lends = False

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array; what is sent is copied whatever memory it has."""
        return np.empty(shape, dtype)

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> InProcessListener:
        """Take connections; the ports are this object's own and have nothing to do with the system's."""
        with self._lock:
            address = Address(host, port)
            while address.port == 0 or (port == 0 and address in self._listeners):
                address = Address(host, next(self._free_ports))
            if address in self._listeners:
                raise ConfigError(f"cannot listen on {address}: another listener does")
            listener = InProcessListener(self, address, handler)
            self._listeners[address] = listener
        return listener

    def connect(self, address: Address, timeout_s: float = 10.0) -> InProcessConnection:
        """Connect to a listener of this object."""
        with self._lock:
            listener = self._listeners.get(address)
            connection = InProcessConnection(listener, self._limits) if listener is not None else None
        if connection is None:
            raise PeerUnavailableError(f"no process listens on {address}")
        connection.start()
        return connection

    def _forget(self, address: Address) -> None:
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
        """Where to connect."""
        return self._address

    def add(self, connection: InProcessConnection) -> None:
        """Remember a connection, to end it with the listener."""
        with self._lock:
            self._connections.add(connection)

    def discard(self, connection: InProcessConnection) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._connections.discard(connection)

    def close(self) -> None:
        """End all connections."""
        self._van._forget(self._address)
        with self._lock:
            connections = sorted(self._connections, key=id)
        for connection in connections:
            connection.end(f"{self._address} has closed")


class InProcessConnection:
    """One queue of requests and one thread that hands them to the handler."""

    transport = "inproc"

    def __init__(self, listener: InProcessListener, limits: Limits) -> None:
        self._listener = listener
        self._limits = limits
        self._pending = PendingRequests()
        #: Set when outcomes have come that :meth:`read_available` has not noticed.
        self._came = threading.Event()
        self._order = threading.Lock()
        self._requests: SimpleQueue[tuple[int, Message] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"eps-van-inproc-{listener.address}", daemon=True)
        listener.add(self)

    def start(self) -> None:
        """Begin to hand requests over."""
        self._thread.start()

    @property
    def closed(self) -> bool:
        """True after ``close`` of either end."""
        return self._pending.closed

    def request(self, message: Message) -> Future[Message]:
        """Send a request."""
        check_message(message, self._limits)
        with self._order:
            request_id, future = self._pending.add()
            self._requests.put((request_id, _handed_over(message)))
        return future

    def post(self, message: Message) -> Waiting:
        """Send a request whose outcome the listener's thread sets."""
        check_message(message, self._limits)
        with self._order:
            request_id, waiting = self._pending.add_waiting()
            self._requests.put((request_id, _handed_over(message)))
        return waiting

    @property
    def replies(self) -> InProcessConnection:
        """Where to wait for outcomes."""
        return self

    @property
    def buffered(self) -> bool:
        """True if replies have come since the last look."""
        return self._came.is_set()

    def fileno(self) -> int:
        """Return that there is no descriptor."""
        return -1

    def read_available(self) -> None:
        """Wait until a reply comes, or the connection ends, or for some milliseconds."""
        if self._came.wait(0.02):
            self._came.clear()

    def close(self) -> None:
        """Fail what is outstanding and end the thread."""
        self.end("the connection was closed")

    def end(self, reason: str) -> None:
        """Fail what is outstanding with ``reason`` and end the thread."""
        self._pending.fail_all(reason)
        self._came.set()
        self._requests.put(None)
        self._listener.discard(self)
        # One that was not started yet, by another thread that connects, ends as soon as it is.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                logger.warning("a handler of %s still runs %s s after the close", self._listener.address, _JOIN_S)

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
            # Through the codec, so that an error which would not cross a process boundary does not cross here.
            self._pending.resolve(request_id, decode_error(encode_error(outcome)))
        self._came.set()


def _handed_over(message: Message) -> Message:
    copied = sealed(message).copied()
    return copied if message.seal is None else unsealed(copied)
