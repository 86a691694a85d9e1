"""A worker's connections to servers: messages out, answers in, in any order.

Source: EPS §2.2 Fig. 1b steps 1, 5 and 6, Fig. 7; design section 2 (data plane).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from eps.core import messages as m
from eps.core.types import Address, MemberId
from eps.errors import EpsError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import Connection, Van
from eps.net.arrays.connection import Replies
from eps.net.arrays.memory import give_back
from eps.net.messages.codec import results_to_pb
from eps.net.messages.exchange import Lean, PullAnswer, PullPart, PushAnswer, PushPart, build_exchange, parse_reply
from eps.pb import control_pb2

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
#: Longest wait for answers, after which the loop checks what else has changed.
LOOK_S = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """One message to a server."""

    server: MemberId
    address: Address
    pushes: tuple[PushPart, ...]
    pulls: tuple[PullPart, ...]
    incarnation: int
    #: Of the newest membership when it was sent.
    version: int
    #: Results of the pushes' clocks, which servers keep.
    results: Sequence[m.ClockReported] = ()


#: Answers to the parts of one message; None if the server was unreachable or disconnected before it answered.
Answers = tuple[list[PushAnswer], list[PullAnswer]] | None


class Wire(Protocol):
    """Carries messages to servers.  For one thread, except :meth:`prepare`."""

    def begin(self) -> None:
        """Forget earlier messages; their answers are ignored."""

    def send(self, message: Sent) -> None:
        """Send a message once its server is connected."""

    def next(self, timeout_s: float) -> tuple[Sent, Answers] | None:
        """Return the next answer, or None if none arrived in time; may return None early.

        Raises
        ------
        ProtocolError
            The answer is invalid.
        """

    def waiting(self) -> list[Sent]:
        """Return the unanswered messages."""

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Start connecting in advance; returns at once, for any thread."""

    def keep(self, addresses: Iterable[Address]) -> None:
        """Close the connections to all other addresses; call between exchanges."""

    def rest(self) -> None:
        """Close every connection and return memory to the system."""

    def close(self) -> None:
        """Close every connection; the wire cannot be used afterwards."""


class ServerWire:
    """The :class:`Wire` over a van.

    Parameters
    ----------
    van : Van
    lean : Lean
        What messages omit.
    longest : int
        Keys of the largest partition.
    """

    def __init__(self, van: Van, lean: Lean, longest: int) -> None:
        self._van = van
        self._lean = lean
        self._longest = longest
        self._connections: dict[Address, Connection] = {}
        #: Connections in progress, for a plan or for waiting messages.
        self._connecting: dict[Address, Future[Connection]] = {}
        self._lock = threading.Lock()
        self._connector = ThreadPoolExecutor(2, thread_name_prefix="connect")
        #: A separate pool, so that exchanges do not wait for slow newcomers.
        self._preparer = ThreadPoolExecutor(4, thread_name_prefix="prepare")
        self._replies: Replies[Sent] = Replies()
        #: Messages whose server is not connected yet, by address.
        self._queued: dict[Address, list[Sent]] = {}
        self._lost: deque[Sent] = deque()
        self._results: tuple[Sequence[m.ClockReported], list[control_pb2.ClockReported]] = (), []

    def begin(self) -> None:
        """Forget earlier messages; their answers are ignored."""
        self._replies = Replies()
        self._queued.clear()
        self._lost.clear()

    def send(self, message: Sent) -> None:
        """Send a message, or queue it until its server is connected."""
        if any(lost.address == message.address for lost in self._lost):
            # Unreachable now: further tries would delay messages to other servers.
            self._lost.append(message)
            return
        connection = self._connections.get(message.address)
        if connection is not None and connection.closed:
            self._connections.pop(message.address).close()
            connection = None
        if connection is not None and message.address not in self._queued:
            self._post(message, connection)
            return
        self._queued.setdefault(message.address, []).append(message)
        if connection is None:
            with self._lock:
                found = self._connecting.get(message.address)
                # If it has not started, it queues behind slow newcomers: cancel it and use the other pool.
                if found is None or found.cancel():
                    self._connecting[message.address] = self._connect(self._connector, message.address)
            self._collect()

    def _connect(self, pool: ThreadPoolExecutor, address: Address) -> Future[Connection]:
        return pool.submit(self._van.connect, address, CONNECT_TIMEOUT_S)

    def _post(self, message: Sent, connection: Connection) -> None:
        if message.results is not self._results[0]:
            self._results = message.results, [results_to_pb(report) for report in message.results]
        built = build_exchange(
            message.pushes,
            message.pulls,
            self._lean,
            incarnation=message.incarnation,
            results=self._results[1] if message.pushes else (),
        )
        try:
            self._replies.request(message, connection, built)
        except ProtocolError:
            raise
        except EpsError as error:
            # Its port may belong to another process by now; the next membership has the server's address.
            logger.info("%s is unreachable: %s", message.server, error)
            self._lost.append(message)

    def _collect(self) -> None:
        """Send messages whose connections are made; fail those whose connections failed."""
        for address in list(self._queued):
            with self._lock:
                connecting = self._connecting.get(address)
                if connecting is None or not connecting.done():
                    continue
                del self._connecting[address]
            messages = self._queued.pop(address)
            try:
                self._connections[address] = connecting.result()
            except (EpsError, CancelledError) as error:
                logger.info("%s is unreachable: %s", messages[0].server, error)
                self._lost.extend(messages)
                continue
            for message in messages:
                self._post(message, self._connections[address])

    def next(self, timeout_s: float) -> tuple[Sent, Answers] | None:
        """Return the next answer, or None."""
        if self._queued:
            self._collect()
        if self._lost:
            return self._lost.popleft(), None
        timeout_s = min(timeout_s, LOOK_S)
        if self._queued and not len(self._replies):
            with self._lock:
                connecting = [self._connecting[address] for address in self._queued]
            wait(connecting, timeout_s, FIRST_COMPLETED)
            return None
        answered = self._replies.next(timeout_s)
        if answered is None:
            return None
        message, future = answered
        try:
            return message, parse_reply(future.result(), self._longest)
        except PeerUnavailableError as error:
            logger.info("%s disconnected: %s", message.server, error)
            return message, None

    def waiting(self) -> list[Sent]:
        """Return the unanswered messages."""
        queued = [message for messages in self._queued.values() for message in messages]
        return [*self._replies.tags, *queued, *self._lost]

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Start connecting; returns at once, for any thread."""
        with self._lock:
            for address in addresses:
                if address not in self._connecting and address not in self._connections:
                    self._connecting[address] = self._connect(self._preparer, address)

    def keep(self, addresses: Iterable[Address]) -> None:
        """Close the connections to all other addresses."""
        wanted = set(addresses)
        for address in [found for found in self._connections if found not in wanted]:
            self._connections.pop(address).close()
        with self._lock:
            dropped = [self._connecting.pop(found) for found in list(self._connecting) if found not in wanted]
        for connecting in dropped:
            connecting.add_done_callback(_close_made)

    def rest(self) -> None:
        """Close every connection, which ends loans and mappings of servers' memory; return memory to the system."""
        self.begin()
        self.keep(())
        give_back()

    def close(self) -> None:
        """Close every connection; the wire cannot be used afterwards."""
        with self._lock:
            dropped, self._connecting = list(self._connecting.values()), {}
        for connecting in dropped:
            connecting.add_done_callback(_close_made)
        for pool in (self._connector, self._preparer):
            pool.shutdown(wait=False, cancel_futures=True)
        for connection in self._connections.values():
            try:
                connection.close()
            except EpsError as error:
                logger.debug("closing a connection: %s", error)


def _close_made(connecting: Future[Connection]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
