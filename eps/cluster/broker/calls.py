"""What a job's master and the broker of its containers say to each other (proto/eps/pb/broker.proto).

Both sides may say everything twice: wishes and news are numbered, so that a call whose answer was lost is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc

from eps.cluster.api import Allocated, ContainerEvent, ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.broker.share import EndContainers, KillContainer, ReleaseContainer, WantContainer, Wish
from eps.core.types import Address
from eps.errors import EpsError, PeerUnavailableError, ProtocolError
from eps.net.calls.call import call, channel, serve
from eps.net.security.credentials import Security
from eps.pb import broker_pb2 as pb
from eps.pb.broker_pb2_grpc import ContainerBrokerServicer, ContainerBrokerStub, add_ContainerBrokerServicer_to_server

#: An answer to a call that does not wait for news is there within this.
CALL_TIMEOUT_S = 10.0
#: Masters of one job that call at the same time, with what each of them calls.
MOST_CALLS = 16

_make_stub: Callable[[grpc.Channel], ContainerBrokerStub] = ContainerBrokerStub


class Desk(Protocol):
    """Where one job's masters, one after the other, ask for containers.

    All but :meth:`open` raise TakenOverError where another master has come since.
    """

    def open(self, session: str) -> Mapping[str, int]:
        """Take a new master; return the containers that run already -> pid."""

    def wish(self, session: str, wishes: Sequence[tuple[int, Wish]]) -> None:
        """Take wishes with their numbers, those that were taken before once only."""

    def hear(self, session: str, after: int, wait_s: float) -> Sequence[tuple[int, ContainerEvent]]:
        """Return the events after a number, as soon as there is one; none after ``wait_s`` seconds."""


class _Servicer(ContainerBrokerServicer):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def Open(self, request: pb.OpenContainersRequest, context: grpc.ServicerContext) -> pb.OpenContainersReply:
        return pb.OpenContainersReply(adopted=dict(self._desk.open(request.session)))

    def Wish(self, request: pb.WishContainersRequest, context: grpc.ServicerContext) -> pb.WishContainersReply:
        self._desk.wish(request.session, [(each.number, _wish_of(each)) for each in request.wishes])
        return pb.WishContainersReply()

    def Hear(self, request: pb.HearContainersRequest, context: grpc.ServicerContext) -> pb.HearContainersReply:
        found = self._desk.hear(request.session, request.after, request.wait_s)
        return pb.HearContainersReply(news=[_news(number, event) for number, event in found])


def serve_desk(desk: Desk, security: Security, host: str = "127.0.0.1") -> tuple[grpc.Server, Address]:
    """Let the master of one job at a desk; the caller ends the server.

    Raises as :func:`eps.net.calls.call.serve`.
    """
    servicer = _Servicer(desk)
    return serve(
        lambda server: add_ContainerBrokerServicer_to_server(servicer, server),
        host,
        max_workers=MOST_CALLS,
        security=security,
    )


class BrokerLine:
    """A master's line to the broker of its containers.  Thread-safe; errors as of :func:`eps.net.calls.call.call`.

    Parameters
    ----------
    address : Address or str
    security : Security
        Of the job.
    """

    def __init__(self, address: Address | str, security: Security) -> None:
        self._channel = channel(address, security)
        self._stub = _make_stub(self._channel)

    def open(self, session: str) -> dict[str, int]:
        """Begin; return the containers that run already -> pid."""
        request = pb.OpenContainersRequest(session=session)
        return dict(self._call(self._stub.Open, request, CALL_TIMEOUT_S, "open the broker of the containers").adopted)

    def wish(self, session: str, wishes: Sequence[tuple[int, Wish]]) -> None:
        """Say wishes with their numbers."""
        request = pb.WishContainersRequest(session=session, wishes=[_wish(number, wish) for number, wish in wishes])
        self._call(self._stub.Wish, request, CALL_TIMEOUT_S, "tell the broker of the containers")

    def hear(self, session: str, after: int, wait_s: float) -> list[tuple[int, ContainerEvent]]:
        """Return the events after a number, as soon as there is one; none after ``wait_s`` seconds."""
        request = pb.HearContainersRequest(session=session, after=after, wait_s=wait_s)
        reply = self._call(self._stub.Hear, request, wait_s + CALL_TIMEOUT_S, "hear the broker of the containers")
        return [(news.number, _event_of(news)) for news in reply.news]

    def close(self) -> None:
        """End it, and the calls over it; harmless when repeated."""
        self._channel.close()

    @staticmethod
    def _call(method: Callable[..., Any], request: Any, timeout_s: float, what: str) -> Any:
        try:
            return call(method, request, timeout_s, what)
        except ValueError as error:
            # What gRPC says where another thread has closed the channel in this very moment.
            if isinstance(error, EpsError):
                raise
            raise PeerUnavailableError(f"{what}: the line was closed") from error


def _wish(number: int, wish: Wish) -> pb.ContainerWish:
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
                ),
            )
        case ReleaseContainer(container_id):
            return pb.ContainerWish(number=number, release=container_id)
        case KillContainer(container_id):
            return pb.ContainerWish(number=number, kill=container_id)
        case EndContainers():
            return pb.ContainerWish(number=number, end_all=True)


def _wish_of(message: pb.ContainerWish) -> Wish:
    match message.WhichOneof("wish"):
        case "want":
            want = message.want
            return WantContainer(
                ContainerRequest(want.container_id, want.role, want.memory_mb, want.vcores, dict(want.env))
            )
        case "release":
            return ReleaseContainer(message.release)
        case "kill":
            return KillContainer(message.kill)
        case "end_all":
            return EndContainers()
        case _:
            raise ProtocolError(f"wish {message.number} is none that is known here")


def _news(number: int, event: ContainerEvent) -> pb.ContainerNews:
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


def _event_of(message: pb.ContainerNews) -> ContainerEvent:
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
            raise ProtocolError(f"news {message.number} are none that are known here")
