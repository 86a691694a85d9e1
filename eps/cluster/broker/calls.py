"""The protocol between a job's master and the broker of its containers (proto/eps/pb/broker.proto).

Wishes and news are numbered, so that either side can repeat a call whose answer was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eps.cluster.api import Allocated, ContainerEvent, ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.broker.share import EndContainers, KillContainer, ReleaseContainer, WantContainer, Wish
from eps.core.types import Address
from eps.errors import EpsError, PeerUnavailableError, ProtocolError
from eps.net.calls.call import call, channel
from eps.net.security.credentials import Security
from eps.pb import broker_pb2 as pb
from eps.pb.broker_pb2_grpc import ContainerBrokerStub

#: Timeout of a call that does not wait for news.
CALL_TIMEOUT_S = 10.0


class BrokerClient:
    """A master's connection to the broker of its containers.  Thread-safe; errors are those of
    :func:`eps.net.calls.call.call`.

    Parameters
    ----------
    address : Address or str
    security : Security
        The job's.
    """

    def __init__(self, address: Address | str, security: Security) -> None:
        self._channel = channel(address, security)
        self._stub = ContainerBrokerStub(self._channel)

    def open(self, session: str) -> dict[str, int]:
        """Begin a session; return the running containers -> pid."""
        request = pb.OpenContainersRequest(session=session)
        return dict(self._call(self._stub.Open, request, CALL_TIMEOUT_S, "open the broker of the containers").adopted)

    def wish(self, session: str, wishes: Sequence[tuple[int, Wish]]) -> None:
        """Send numbered wishes."""
        request = pb.WishContainersRequest(
            session=session, wishes=[wish_to_pb(number, wish) for number, wish in wishes]
        )
        self._call(self._stub.Wish, request, CALL_TIMEOUT_S, "tell the broker of the containers")

    def hear(self, session: str, after: int, wait_s: float) -> list[tuple[int, ContainerEvent]]:
        """Return the events after a number, as soon as there is one; an empty list after ``wait_s`` seconds."""
        request = pb.HearContainersRequest(session=session, after=after, wait_s=wait_s)
        reply = self._call(self._stub.Hear, request, wait_s + CALL_TIMEOUT_S, "hear the broker of the containers")
        return [(news.number, event_from_pb(news)) for news in reply.news]

    def close(self) -> None:
        """Close the connection and abort its calls.  Idempotent."""
        self._channel.close()

    @staticmethod
    def _call(method: Callable[..., Any], request: Any, timeout_s: float, what: str) -> Any:
        try:
            return call(method, request, timeout_s, what)
        except ValueError as error:
            # gRPC raises this if another thread closes the channel at the same time.
            if isinstance(error, EpsError):
                raise
            raise PeerUnavailableError(f"{what}: the connection was closed") from error


def wish_to_pb(number: int, wish: Wish) -> pb.ContainerWish:
    """Return a numbered wish as a message."""
    match wish:
        case WantContainer(request):
            return pb.ContainerWish(
                number=number,
                want=pb.WantedContainer(
                    container_id=request.container_id,
                    role=request.role,
                    memory_mb=request.memory_mb,
                    vcores=request.vcores,
                    env=dict(request.env),
                    tier=request.tier,
                ),
            )
        case ReleaseContainer(container_id):
            return pb.ContainerWish(number=number, release=container_id)
        case KillContainer(container_id):
            return pb.ContainerWish(number=number, kill=container_id)
        case EndContainers():
            return pb.ContainerWish(number=number, end_all=True)


def wish_from_pb(message: pb.ContainerWish) -> Wish:
    """Return the wish in a message; raise ProtocolError if its type is unknown."""
    match message.WhichOneof("wish"):
        case "want":
            want = message.want
            return WantContainer(
                ContainerRequest(want.container_id, want.role, want.memory_mb, want.vcores, dict(want.env), want.tier)
            )
        case "release":
            return ReleaseContainer(message.release)
        case "kill":
            return KillContainer(message.kill)
        case "end_all":
            return EndContainers()
        case _:
            raise ProtocolError(f"wish {message.number} has an unknown type")


def event_to_pb(number: int, event: ContainerEvent) -> pb.ContainerNews:
    """Return a numbered event as a message."""
    news = pb.ContainerNews(number=number, container_id=event.container_id)
    match event:
        case Allocated():
            news.allocated = True
        case Running(_, pid, host):
            news.running.pid, news.running.host = pid, host
        case Exited(_, code, reason, taken):
            news.exited.reason, news.exited.taken = reason, taken
            if code is not None:
                news.exited.code = code
        case EvictionWarning(_, deadline_s, reason, for_others):
            news.warned.deadline_s, news.warned.reason, news.warned.for_others = deadline_s, reason, for_others
    return news


def event_from_pb(message: pb.ContainerNews) -> ContainerEvent:
    """Return the event in a message; raise ProtocolError if its type is unknown."""
    container_id = message.container_id
    match message.WhichOneof("news"):
        case "allocated":
            return Allocated(container_id)
        case "running":
            return Running(container_id, message.running.pid, message.running.host)
        case "exited":
            exited = message.exited
            code = exited.code if exited.HasField("code") else None
            return Exited(container_id, code, exited.reason, exited.taken)
        case "warned":
            warned = message.warned
            return EvictionWarning(container_id, warned.deadline_s, warned.reason, warned.for_others)
        case _:
            raise ProtocolError(f"news {message.number} has an unknown type")
