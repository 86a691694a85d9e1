"""The van of a job: when two members meet, they choose the best way between them.  L2.

A member's address is that of its gRPC server.  Who connects asks it first (``/eps.van/Meet``, a call like any other of
the control plane) how else it can be reached, and takes the first way that works:

1.  shared memory and 2. Unix sockets, where both are on one host;
3.  TCP with TLS, in a job whose members are on several hosts;
4.  gRPC streams, where nothing but gRPC passes between the two.

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
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from eps.core.types import Address
from eps.errors import (
    AuthenticationError,
    ConfigError,
    DeadlineError,
    EpsError,
    PeerUnavailableError,
    ProtocolError,
)
from eps.net.arrays.api import Connection, Handler, Limits, Listener, Message, ReplyTo
from eps.net.arrays.grpc_van import GRPC, MEET_METHOD, GrpcVan
from eps.net.arrays.sockets import SHARED_MEMORY, TCP, UNIX, SocketVan
from eps.net.calls import call as rpc
from eps.net.security.credentials import NO_SECURITY, Security
from eps.pb import data_pb2 as pb

logger = logging.getLogger(__name__)

#: Best first.
WAYS = (SHARED_MEMORY, UNIX, TCP, GRPC)
AUTO = "auto"
_MOST_OFFERS = 16
#: Share of the time to connect that one way may take.
_MOST_OF_TIME = 0.5


def host_id() -> str:
    """Return what two processes have in common that can meet on an abstract Unix socket: boot and network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        # No such thing here: nobody is taken to be on this host.
        return ""


class NegotiatedVan:
    """A van that is every other van.

    Parameters
    ----------
    security : Security
    ways : str
        ``auto``, or the only way to take: ``shm``, ``unix``, ``tcp`` or ``grpc``.  A job of one host has no TCP.
    limits : Limits, optional

    Raises
    ------
    ConfigError
        There is no such way.
    """

    def __init__(self, security: Security = NO_SECURITY, ways: str = AUTO, limits: Limits | None = None) -> None:
        self._security = security
        self._grpc = GrpcVan(security, limits)
        self._allows_grpc = True
        self._listeners: weakref.WeakSet[NegotiatedListener] = weakref.WeakSet()
        # What stays on a host needs no encryption.  Members of a job between hosts share no folder (on YARN each one
        # has its own): they meet on abstract sockets, where they prove the token to each other.
        within_host = security if security.is_local else replace(security, tls=None, sockets=None)
        self._sockets: dict[str, SocketVan] = {
            SHARED_MEMORY: SocketVan(SHARED_MEMORY, within_host, limits),
            UNIX: SocketVan(UNIX, within_host, limits),
        }
        if not security.is_local:
            self._sockets[TCP] = SocketVan(TCP, security, limits)
        #: Called with a peer's address and the way taken, after each connection that is made; must not wait.
        self.on_reached: Callable[[Address, str], None] = lambda address, way: None
        self.restrict_to(ways)

    def restrict_to(self, ways: str) -> None:
        """Take only this way from now on; a member knows its job's settings only after it listens.

        What listens in another way is closed: a port that nobody needs is one that a stranger may try.

        Raises
        ------
        ConfigError
            There is no such way.
        """
        if ways not in (AUTO, *WAYS):
            raise ConfigError(f"van is {ways!r}, but must be {AUTO} or one of {', '.join(WAYS)}")
        if ways == TCP and self._security.is_local:
            raise ConfigError(
                "van is 'tcp', but the processes of this job are on one host: use auto, shm, unix or grpc"
            )
        if ways != AUTO:
            self._sockets = {way: van for way, van in self._sockets.items() if way == ways}
            self._allows_grpc = ways == GRPC
            for listener in list(self._listeners):
                listener.restrict_to(ways)

    @property
    def lends(self) -> bool:
        """True while shared memory is one of the ways."""
        return SHARED_MEMORY in self._sockets

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
        """Return an uninitialised array: in shared memory, where this van has it."""
        shared = self._sockets.get(SHARED_MEMORY)
        return np.empty(shape, dtype) if shared is None else shared.empty(shape, dtype)

    def listen(self, handler: Handler, host: str = "127.0.0.1", port: int = 0) -> NegotiatedListener:
        """Take connections, in every way that this van has."""
        listeners: dict[str, Listener] = {}

        def take(message: Message, reply: ReplyTo) -> None:
            (handler if self._allows_grpc else _not_here)(message, reply)

        try:
            for way, van in self._sockets.items():
                listeners[way] = van.listen(handler, host)
            front = self._grpc.listen(take, host, port, lambda request: _meeting(listeners))
        except BaseException:
            for listener in listeners.values():
                listener.close()
            raise
        found = NegotiatedListener(front, listeners)
        self._listeners.add(found)
        return found

    def connect(self, address: Address, timeout_s: float = 10.0) -> Connection:
        """Connect in the best way there is."""
        deadline_s = time.monotonic() + timeout_s
        reasons: list[str] = []
        if self._sockets:
            meeting = self._meet(address, timeout_s)
            for way, place in self._ways(address, meeting):
                left_s = max(0.1, (deadline_s - time.monotonic()) * _MOST_OF_TIME)
                try:
                    return self._told(self._sockets[way].connect(place, left_s), address, reasons)
                except AuthenticationError:
                    raise
                except EpsError as error:
                    logger.info("%s cannot be reached by %s: %s", address, way, error)
                    reasons.append(f"{way}: {error}")
        if self._allows_grpc:
            if reasons:
                logger.warning("%s is reached by gRPC, the slowest way, because of %s", address, "; ".join(reasons))
            return self._told(self._grpc.connect(address, max(0.1, deadline_s - time.monotonic())), address, ())
        raise PeerUnavailableError(f"{address} offers no way that this van takes ({'; '.join(reasons) or 'none'})")

    def _told(self, connection: Connection, address: Address, in_vain: Sequence[str]) -> Connection:
        """Return ``connection``, and say which way it goes: whoever wonders at a slow job looks for that first."""
        instead = f", not by {'; '.join(in_vain)}" if in_vain else ""
        logger.info("%s is reached by %s%s", address, connection.transport, instead)
        self.on_reached(address, connection.transport)
        return connection

    def _meet(self, address: Address, timeout_s: float) -> pb.Meeting:
        channel: Any = rpc.channel(address, self._security)
        try:
            answer = channel.unary_unary(MEET_METHOD)(b"", timeout=timeout_s)
        except grpc.RpcError as error:
            found = rpc.error_of(error, f"meeting {address}")
            if isinstance(found, DeadlineError):
                found = PeerUnavailableError(f"{address} did not answer within {timeout_s:g} s")
            raise found from error
        finally:
            channel.close()
        try:
            return pb.Meeting.FromString(answer)
        except DecodeError as error:
            raise ProtocolError(f"{address} does not say how it can be reached: {error}") from error

    def _ways(self, address: Address, meeting: pb.Meeting) -> Sequence[tuple[str, Address]]:
        """Return the ways to try, best first."""
        here = self._security.is_local or (meeting.host_id != "" and meeting.host_id == host_id())
        offers = {offer.transport: offer for offer in meeting.offers[:_MOST_OFFERS]}
        found = []
        for way in WAYS:
            offer = offers.get(way)
            if offer is None or way not in self._sockets or (way != TCP and not here):
                continue
            found.append((way, Address(offer.host or address.host, offer.port)))
        return found


def _meeting(listeners: Mapping[str, Listener]) -> bytes:
    """Say how a member can be reached beside gRPC."""
    meeting = pb.Meeting(host_id=host_id())
    for way, listener in dict(listeners).items():
        # Whoever asks knows a name of this host already; one that it listens on may mean nothing elsewhere.
        name = "" if way == TCP else listener.address.host
        meeting.offers.add(transport=way, host=name, port=listener.address.port)
    return meeting.SerializeToString()


def _not_here(message: object, reply: object) -> None:
    raise ProtocolError("this member takes no data over gRPC")


class NegotiatedListener:
    """The listeners of one member."""

    def __init__(self, front: Listener, others: dict[str, Listener]) -> None:
        self._front = front
        #: By way; shared with who says how this member can be reached.
        self._others = others

    @property
    def address(self) -> Address:
        """Where to meet."""
        return self._front.address

    def restrict_to(self, way: str) -> None:
        """Close what listens in another way; where to meet stays."""
        for other in [other for other in self._others if other != way]:
            self._others.pop(other).close()

    def close(self) -> None:
        """End all connections and give everything back."""
        for listener in (self._front, *self._others.values()):
            listener.close()
