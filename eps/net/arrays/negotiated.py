"""The van of a job: two members that connect choose the best transport between them.

Members connect over TCP with TLS, or over a Unix socket if the job is on one host.  A listener's greeting offers its
other addresses.  The connector takes the first transport that works:

1.  none, if both are in one process: arrays are handed over (:mod:`.in_process`);
2.  shared memory and 3. Unix sockets, if both are on one host;
4.  TCP, in a job whose members are on several hosts.

gRPC is not offered: between hosts it needs a port as TCP does, and a round trip of 100 floats takes 15 times as long
(369 us against 24 us on loopback).

Source: design section 2 (the data plane is a van); the measurements of performance.md, sections 2 and 5.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from eps.core.types import Address
from eps.errors import AuthenticationError, ConfigError, EpsError, PeerUnavailableError, ProtocolError
from eps.net.arrays.api import Connection, Handler, Limits, Message, ReplyTo
from eps.net.arrays.connection import SocketConnection
from eps.net.arrays.in_process import PROCESS, InProcessListener, InProcessVan
from eps.net.arrays.sockets import SHARED_MEMORY, TCP, UNIX, SocketListener, SocketVan
from eps.net.security.credentials import NO_SECURITY, Security
from eps.pb import data_pb2 as pb

logger = logging.getLogger(__name__)

#: Best first.
WAYS = (SHARED_MEMORY, UNIX, TCP)
AUTO = "auto"
#: Share of the connect timeout that one transport may take.
_MOST_OF_TIME = 0.5


def host_id() -> str:
    """Return boot and network namespace; processes with equal values can connect over an abstract Unix socket."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        # Unknown: treat every other process as being on another host.
        return ""


class NegotiatedVan:
    """A van that chooses the transport of each connection.

    Parameters
    ----------
    security : Security
    ways : str
        ``auto``, or the only transport to use: ``shm``, ``unix`` or ``tcp``.  A job of one host has no TCP.
    limits : Limits, optional
    within : InProcessVan, optional
        Shared by the vans of the members in this process, which then need no transport among themselves.

    Raises
    ------
    ConfigError
        The transport is unknown or not available in this job.
    """

    def __init__(
        self,
        security: Security = NO_SECURITY,
        ways: str = AUTO,
        limits: Limits | None = None,
        within: InProcessVan | None = None,
    ) -> None:
        self._security = security
        self._within = within
        self._listeners: weakref.WeakSet[NegotiatedListener] = weakref.WeakSet()
        # Traffic within a host needs no encryption.  Members of a job between hosts share no folder (on YARN each has
        # its own), so they use abstract sockets and prove the token.
        within_host = security if security.is_local else replace(security, tls=None, sockets=None)
        self._vans = {way: SocketVan(way, within_host, limits) for way in (SHARED_MEMORY, UNIX)}
        if not security.is_local:
            self._vans[TCP] = SocketVan(TCP, security, limits)
        #: Transport of the first connection, even if data uses another.
        self._front = UNIX if security.is_local else TCP
        self._ways = tuple(way for way in WAYS if way in self._vans)
        #: Called with a peer's address and the transport, after each new connection; must not block.
        self.on_reached: Callable[[Address, str], None] = lambda address, way: None
        self.restrict_to(ways)

    def restrict_to(self, ways: str) -> None:
        """Use only this transport from now on; a member learns its job's settings after it began to listen.

        Closes the listeners of other transports: unused ports should not be open to strangers.

        Raises
        ------
        ConfigError
            The transport is unknown or not available in this job.
        """
        if ways not in (AUTO, *WAYS):
            raise ConfigError(f"van is {ways!r}, but must be {AUTO} or one of {', '.join(WAYS)}")
        if ways == TCP and self._security.is_local:
            raise ConfigError("van is 'tcp', but the processes of this job are on one host: use auto, shm or unix")
        if ways != AUTO:
            self._ways = (ways,)
            for listener in list(self._listeners):
                listener.restrict_to(ways)

    @property
    def lends(self) -> bool:
        """Whether shared memory is one of the transports."""
        return SHARED_MEMORY in self._ways

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array, in shared memory if this van has it."""
        return self._vans[SHARED_MEMORY].empty(shape, dtype) if self.lends else np.empty(shape, dtype)

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> NegotiatedListener:
        """Accept connections on all transports of this van."""
        others: dict[str, SocketListener] = {}
        gate = _Gate(handler, self._front, self._front in self._ways)
        try:
            for way in self._ways:
                if way != self._front:
                    others[way] = self._vans[way].listen(handler, host)
            hello = _meeting(others, self._ways)
            front = self._vans[self._front].listen(gate, host, port, hello)
        except BaseException:
            for listener in others.values():
                listener.close()
            raise
        inner = [] if self._within is None else [self._within.listen_at(front.address, handler)]
        found = NegotiatedListener(front, others, gate, inner)
        self._listeners.add(found)
        return found

    def connect(self, address: Address, timeout_s: float = 10.0) -> Connection:
        """Connect over the best available transport."""
        if self._within is not None and self._within.serves(address):
            self.on_reached(address, PROCESS)
            return self._within.connect(address)
        deadline_s = time.monotonic() + timeout_s
        first, hello = self._vans[self._front].meet(address, timeout_s)
        found: SocketConnection | None = None
        reasons: list[str] = []
        try:
            for way, place in self._ways_to(hello):
                if place is None:
                    found = first
                    break
                left_s = max(0.1, (deadline_s - time.monotonic()) * _MOST_OF_TIME)
                try:
                    found = self._vans[way].connect(place, left_s)
                    break
                except AuthenticationError:
                    raise
                except EpsError as error:
                    logger.info("%s cannot be reached over %s: %s", address, way, error)
                    reasons.append(f"{way}: {error}")
        finally:
            if found is not first:
                first.close()
        if found is None:
            raise PeerUnavailableError(f"{address} offers no transport of this van ({'; '.join(reasons) or 'none'})")
        # Check this line first if a job is slow.
        logger.info(
            "connected to %s over %s%s", address, found.transport, f", not {'; '.join(reasons)}" if reasons else ""
        )
        self.on_reached(address, found.transport)
        return found

    def _ways_to(self, hello: bytes) -> Sequence[tuple[str, Address | None]]:
        """Return the transports to try, best first, with addresses; None stands for the connection that brought
        ``hello``.

        Raises
        ------
        ProtocolError
            The greeting is malformed.
        """
        try:
            meeting = pb.Meeting.FromString(hello)
        except DecodeError as error:
            raise ProtocolError(f"the greeting of a listener is malformed: {error}") from error
        here = self._security.is_local or (meeting.host_id != "" and meeting.host_id == host_id())
        offers = {offer.transport: offer for offer in meeting.offers}
        found: list[tuple[str, Address | None]] = []
        for way in self._ways:
            if way not in offers or (way != TCP and not here):
                continue
            found.append((way, None if way == self._front else Address(offers[way].host, offers[way].port)))
        return found


def _meeting(others: Mapping[str, SocketListener], ways: Sequence[str]) -> bytes:
    """Return a greeting with the addresses of a member."""
    meeting = pb.Meeting(host_id=host_id())
    for way in ways:
        other = others.get(way)
        if other is None:
            # The connection that brings the greeting.
            meeting.offers.add(transport=way)
        else:
            meeting.offers.add(transport=way, host=other.address.host, port=other.address.port)
    return meeting.SerializeToString()


class _Gate:
    """The handler of the first connection; refuses data if that must use another transport."""

    def __init__(self, handler: Handler, way: str, is_open: bool) -> None:
        self._handler = handler
        self.way = way
        self.is_open = is_open

    def __call__(self, message: Message, reply: ReplyTo) -> None:
        if not self.is_open:
            raise ProtocolError(f"this member takes no data over {self.way}")
        self._handler(message, reply)


class NegotiatedListener:
    """All listeners of one member."""

    def __init__(
        self,
        front: SocketListener,
        others: dict[str, SocketListener],
        gate: _Gate,
        within: Sequence[InProcessListener] = (),
    ) -> None:
        self._front = front
        self._gate = gate
        self._within = within
        #: By transport.
        self._others = others

    @property
    def address(self) -> Address:
        """The address for the first connection."""
        return self._front.address

    def restrict_to(self, way: str) -> None:
        """Close the listeners of other transports, except the one for first connections."""
        for other in [other for other in self._others if other != way]:
            self._others.pop(other).close()
        self._gate.is_open = way == self._gate.way
        self._front.hello = _meeting(self._others, (way,))

    def close(self) -> None:
        """Close all connections and release all resources."""
        for inner in self._within:
            inner.close()
        for listener in (self._front, *self._others.values()):
            listener.close()
