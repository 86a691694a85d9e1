"""The job master's end of the members' sessions."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from eps.core import events as e
from eps.core.messages import Order
from eps.core.types import Address, MemberId
from eps.errors import ProtocolError
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import MemberSessionServicer
from eps.rpc.codec import order_to_pb, report_from_pb

#: No report is taken to be older than this when it arrives.
OLDEST_REPORT_S = 60.0

logger = logging.getLogger(__name__)


class Sessions(MemberSessionServicer):
    """Streams of all members: reports become events, orders go to whoever they are for.

    Parameters
    ----------
    put : callable
        Takes events; never blocks.
    job_json : str
        The job's settings, sent with the welcome.
    generation : int
        Of this master.
    """

    def __init__(self, put: Callable[..., None], job_json: str, generation: int) -> None:
        self._put = put
        self._job_json = job_json
        self._generation = generation
        self._lock = threading.Lock()
        self._outgoing: dict[str, queue.SimpleQueue[pb.Order | None]] = {}
        self._container_of: dict[MemberId, str] = {}

    def Attach(self, reports: Iterator[pb.Reports], context: grpc.ServicerContext) -> Iterator[pb.Order]:
        """Serve one member's stream."""
        first = next(reports, None)
        if first is None or not first.reports or first.reports[0].WhichOneof("kind") != "hello":
            raise ProtocolError("a session must begin with hello")
        hello = first.reports[0].hello
        outgoing: queue.SimpleQueue[pb.Order | None] = queue.SimpleQueue()
        with self._lock:
            self._outgoing[hello.container_id] = outgoing
        context.add_callback(lambda: outgoing.put(None))
        reader = threading.Thread(
            target=self._read, args=(hello.container_id, reports, outgoing), name="reports", daemon=True
        )
        self._put(e.MemberRegistered(hello.container_id, Address(hello.address.host, hello.address.port), hello.pid))
        self._receive(first.reports[1:])
        reader.start()
        while True:
            order = outgoing.get()
            if order is None:
                return
            yield order

    def _read(self, container_id: str, reports: Iterator[Any], outgoing: queue.SimpleQueue[pb.Order | None]) -> None:
        try:
            for batch in reports:
                self._receive(batch.reports)
        except ProtocolError as error:
            logger.warning("M %s said something that is no report: %s", container_id, error)
        except grpc.RpcError as error:
            logger.debug("M the session of %s broke: %s", container_id, error)
        except Exception:
            # grpc ends the iterator of a cancelled stream with a bare Exception.
            logger.debug("M the session of %s ended", container_id, exc_info=True)
        outgoing.put(None)

    def _receive(self, reports: Iterable[pb.Report]) -> None:
        # A member's word about time is taken within reason only: the history must stay a history.
        self._put(*[e.ReportReceived(report_from_pb(r), min(max(0.0, r.age_s), OLDEST_REPORT_S)) for r in reports])

    def name(self, container_id: str, name: MemberId, servers: Iterable[Address] = ()) -> None:
        """Tell a registered process its name, the job's settings, and where the servers are."""
        with self._lock:
            self._container_of[name] = container_id
            outgoing = self._outgoing.get(container_id)
        if outgoing is not None:
            welcome = pb.Welcome(name=name, generation=self._generation, job_json=self._job_json)
            for address in servers:
                welcome.servers.add(host=address.host, port=address.port)
            outgoing.put(pb.Order(welcome=welcome, generation=self._generation))

    def send(self, to: MemberId, order: Order) -> None:
        """Queue an order; one for a member without a session is dropped, and derived again when it connects."""
        with self._lock:
            outgoing = self._outgoing.get(self._container_of.get(to, ""))
        if outgoing is not None:
            outgoing.put(order_to_pb(order, self._generation))

    def close(self) -> None:
        """End every stream."""
        with self._lock:
            for outgoing in self._outgoing.values():
                outgoing.put(None)
