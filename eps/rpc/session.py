"""A member's session with its job master: reports go out, orders come in, in order.

One bidirectional stream.  A reader thread hands orders to ``on_order`` one at a time; reports are queued and never
block the caller.  L2.

Source: EPS §5.2 (workers and servers keep a heartbeat channel to the ApplicationMaster); design section 2.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import grpc

from eps.core.messages import MemberFailed, Order, Report
from eps.core.types import Address
from eps.errors import DeadlineError, EpsError, PeerUnavailableError
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import MemberSessionStub
from eps.rpc.call import channel, error_of
from eps.rpc.codec import order_from_pb
from eps.rpc.report_queue import ReportQueue
from eps.rpc.security import NO_SECURITY, Security

logger = logging.getLogger(__name__)

WELCOME_TIMEOUT_S = 60.0


class MemberSession:
    """The stream between one member and the job master.

    Parameters
    ----------
    master : str
        ``host:port`` of the job master.
    container_id : str
        The container that this process runs in; the master knows it by this.
    address : Address
        Where this member's data plane listens.
    security : Security
        Of the job.
    """

    def __init__(
        self, master: str, container_id: str, address: Address, pid: int, security: Security = NO_SECURITY
    ) -> None:
        self._channel = channel(master, security)
        self._outgoing = ReportQueue()
        self._welcome = threading.Event()
        self._welcomed: pb.Welcome | None = None
        self._failure: EpsError | None = None
        self._on_order: Callable[[Order], None] | None = None
        self._on_end: Callable[[EpsError | None], None] | None = None
        hello = pb.Report(hello=pb.Hello(container_id=container_id, pid=pid))
        hello.hello.address.host, hello.hello.address.port = address.host, address.port
        self._outgoing.put_message(hello)
        self._closed = False
        self._stream = MemberSessionStub(self._channel).Attach(self._outgoing.batches())
        self._reader = threading.Thread(target=self._read, name="session", daemon=True)

    def open(
        self, on_order: Callable[[Order], None], on_end: Callable[[EpsError | None], None]
    ) -> Callable[[], pb.Welcome]:
        """Start reading; return a function that waits for the master's welcome.

        Parameters
        ----------
        on_order : callable
            Called on the session's thread with each order, in order; orders before it returns wait.
        on_end : callable
            Called once when the stream ends: with the error, or None after :meth:`close`.
        """
        self._on_order, self._on_end = on_order, on_end
        self._reader.start()
        return self._wait_for_welcome

    def _wait_for_welcome(self) -> pb.Welcome:
        if not self._welcome.wait(WELCOME_TIMEOUT_S):
            raise DeadlineError(f"the job master did not welcome this member within {WELCOME_TIMEOUT_S:g} s")
        if self._welcomed is None:
            raise self._failure or PeerUnavailableError("the job master ended the session before its welcome")
        return self._welcomed

    def report(self, report: Report, *, can_wait: bool = False) -> None:
        """Queue a report; returns at once.  One that nobody waits for may be sent together with later ones."""
        self._outgoing.put(report, can_wait=can_wait)

    def _read(self) -> None:
        error: EpsError | None = None
        try:
            for message in self._stream:
                if message.WhichOneof("kind") == "welcome":
                    self._welcomed = message.welcome
                    self._welcome.set()
                elif self._on_order is not None:
                    self._obey(order_from_pb(message))
        except grpc.RpcError as rpc_error:
            error = error_of(rpc_error, "the session with the job master")
        except EpsError as broken:
            error = broken
        self._failure = error
        self._welcome.set()
        if self._on_end is not None:
            self._on_end(None if self._closed else error or PeerUnavailableError("the job master ended the session"))

    def _obey(self, order: Order) -> None:
        assert self._on_order is not None
        try:
            self._on_order(order)
        except Exception as error:
            # Whatever went wrong, the master must know: it decides whether a plan or the job ends.
            logger.exception("order %s failed", type(order).__name__)
            name = self._welcomed.name if self._welcomed is not None else ""
            self.report(MemberFailed(name, type(error).__name__, f"{type(order).__name__}: {error}"))

    def close(self) -> None:
        """Say what is queued, end the stream and give everything back."""
        self._closed = True
        self._outgoing.close()
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join(2.0)
        self._stream.cancel()
        self._channel.close()
