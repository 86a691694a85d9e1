"""The job master's end of the members' sessions: it receives reports, sends orders and notices silent members."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from eps.core import events as e
from eps.core.members import Masters, SilenceWatch, container_of
from eps.core.messages import Order, Shutdown
from eps.core.types import Address, MemberId
from eps.errors import PeerUnavailableError, ProtocolError
from eps.net.control.report_queue import BEAT_S
from eps.net.messages.codec import order_to_pb, report_from_pb
from eps.pb import control_pb2 as pb

#: Limit of the age that a report claims on arrival.
OLDEST_REPORT_S = 60.0

logger = logging.getLogger(__name__)


class _Stream:
    """One stream of one container.

    Reports are buffered until the job has named the container.  They are still read at once, because reading them shows
    that the member is alive.

    Parameters
    ----------
    put : callable
        Takes events, in order; never blocks.
    """

    def __init__(self, put: Callable[..., None]) -> None:
        #: Orders in their wire form; None ends the stream.
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._put = put
        self._lock = threading.Lock()
        self._admitted = self._ended = False
        #: Reports that arrived before the job named the container.
        self._early: list[e.Event] = []

    def admit(self) -> None:
        """Pass on the container's reports from now on, and the buffered ones; idempotent."""
        with self._lock:
            if not self._ended:
                self._admitted = True
                self._put(*self._early)
                self._early = []

    def take(self, events: list[e.Event]) -> bool:
        """Pass on or buffer reports; return False if the stream has ended and drops them."""
        with self._lock:
            if self._ended:
                return False
            if self._admitted:
                self._put(*events)
            else:
                self._early += events
            return True

    def end(self) -> None:
        """Close the stream once all queued orders are sent; drop later reports."""
        with self._lock:
            self._ended, self._early = True, []
        self.outgoing.put(None)


class Sessions:
    """The streams of all members: reports become events, orders go to their members.

    An order to many members is serialised once, because a membership grows with the job.

    Parameters
    ----------
    put : callable
        Takes events; never blocks.
    job_json : str
        The job's settings, sent with the welcome.
    author : Masters
        Has the generation of this master and the number of events that it has processed.
    now : callable
        Returns seconds of a monotonic clock.
    beat_s : float, seconds
        Interval of heartbeats to a member that gets no orders.
    """

    def __init__(
        self,
        put: Callable[..., None],
        job_json: str,
        author: Masters,
        now: Callable[[], float] = time.monotonic,
        beat_s: float = BEAT_S,
    ) -> None:
        self._put = put
        self._job_json = job_json
        self._author = author
        self._now = now
        self._beat_s = beat_s
        self._lock = threading.Lock()
        self._lines: dict[str, _Stream] = {}
        self._seat_of: dict[MemberId, str] = {}
        self._watch = SilenceWatch()
        #: Kind -> the last order of that kind, its bytes, its author's (generation, step), its bytes with both.
        self._serialised: dict[type[Order], tuple[Order, bytes, tuple[int, int], bytes]] = {}

    def register(self, server: grpc.Server) -> None:
        """Add the members' service to ``server``."""
        # Unlike the generated code it sends orders that are already bytes.
        attach = grpc.stream_stream_rpc_method_handler(self.Attach, pb.Reports.FromString)
        service = pb.DESCRIPTOR.services_by_name["MemberSession"].full_name
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Attach": attach})])

    def Attach(self, reports: Iterator[pb.Reports], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Serve one member's stream."""
        first = next(reports, None)
        if first is None or not first.reports or first.reports[0].WhichOneof("kind") != "hello":
            raise ProtocolError("a session must begin with hello")
        hello = first.reports[0].hello
        if hello.generation > self._author.generation:
            raise PeerUnavailableError(
                f"this job master is of generation {self._author.generation}; {hello.name or hello.container_id} has "
                f"heard of generation {hello.generation}"
            )
        line, container_id = _Stream(self._put), hello.container_id
        with self._lock:
            before, self._lines[container_id] = self._lines.get(container_id), line
            self._watch.attached(container_id, self._now())
        if before is not None:
            before.end()
        context.add_callback(line.end)
        address, heard = Address(hello.address.host, hello.address.port), (hello.heard_generation, hello.heard_step)
        self._put(e.MemberRegistered(container_id, address, hello.pid, *heard))
        threading.Thread(
            target=self._read, args=(container_id, line, first.reports[1:], reports), name="reports", daemon=True
        ).start()
        try:
            while True:
                try:
                    order = line.outgoing.get(timeout=self._beat_s)
                except queue.Empty:
                    order = pb.Order(generation=self._author.generation).SerializeToString()
                if order is None:
                    return
                yield order
        finally:
            with self._lock:
                if self._lines.get(container_id) is line:
                    del self._lines[container_id]
                    self._watch.broke(container_id, self._now())

    def _read(self, container_id: str, line: _Stream, first: Iterable[pb.Report], reports: Iterator[Any]) -> None:
        try:
            # The reports that came with the hello.
            self._receive(line, first)
            for batch in reports:
                with self._lock:
                    self._watch.heard(container_id, self._now())
                if not self._receive(line, batch.reports):
                    break
        except ProtocolError as error:
            logger.warning("M %s sent an invalid report: %s", container_id, error)
        except grpc.RpcError as error:
            logger.debug("M the session of %s broke: %s", container_id, error)
        except Exception:
            # grpc ends the iterator of a cancelled stream with a bare Exception.
            logger.debug("M the session of %s ended", container_id, exc_info=True)
        line.outgoing.put(None)

    def _receive(self, line: _Stream, reports: Iterable[pb.Report]) -> bool:
        # The claimed age is limited, so that a wrong one cannot distort the history.
        return line.take(
            [e.ReportReceived(report_from_pb(r), min(max(0.0, r.age_s), OLDEST_REPORT_S)) for r in reports]
        )

    def name(self, seat: str, name: MemberId, servers: Iterable[Address] = ()) -> None:
        """Send a registered process its name, the job's settings and the addresses of the servers."""
        with self._lock:
            self._seat_of[name] = seat
            line = self._lines.get(seat)
        if line is not None:
            generation = self._author.generation
            welcome = pb.Welcome(name=name, generation=generation, job_json=self._job_json)
            for address in servers:
                welcome.servers.add(host=address.host, port=address.port)
            order = pb.Order(welcome=welcome, generation=generation, step=self._author.steps)
            line.outgoing.put(order.SerializeToString())
            line.admit()

    def send(self, to: MemberId, order: Order) -> None:
        """Queue an order; without a session it is dropped, and derived again when the member connects."""
        with self._lock:
            seat = self._seat_of.get(to, "")
            line = self._lines.get(seat)
            if isinstance(order, Shutdown) and seat != container_of(seat):
                # The next member of that process registers when it can.
                self._watch.forget(seat)
        if line is not None:
            line.outgoing.put(self._order(order))

    def dismiss(self, container_id: str, reason: str) -> None:
        """Order a process that the job no longer uses to exit, if it has a session; ignore its further reports.

        If it connects again, it registers again and is dismissed again.
        """
        with self._lock:
            lines = [self._lines.pop(seat) for seat in list(self._lines) if container_of(seat) == container_id]
            self._watch.forget(container_id)
        for line in lines:
            line.outgoing.put(self._order(Shutdown(reason)))
            line.end()

    def expect(self, seats: Iterable[str]) -> None:
        """Expect members that an earlier master knew to connect; those that do not count as silent."""
        with self._lock:
            for seat in seats:
                self._watch.expect(seat, self._now())

    def forget(self, container_id: str) -> None:
        """Stop watching a container that has ended, and order its process to exit.

        The process may still run if its NodeManager was lost.
        """
        with self._lock:
            self._watch.forget(container_id)
            lines = [line for seat, line in self._lines.items() if container_of(seat) == container_id]
        for line in lines:
            line.outgoing.put(self._order(Shutdown("its container has ended")))
            line.outgoing.put(None)

    def silent(self, timeout_s: float) -> list[tuple[str, str]]:
        """Return (container, reason) of the newly silent ones, each once; call it several times a second.

        See :meth:`eps.core.members.SilenceWatch.silent`.
        """
        with self._lock:
            return self._watch.silent(self._now(), timeout_s)

    def _order(self, order: Order) -> bytes:
        author = self._author.generation, self._author.steps
        last = self._serialised.get(type(order))
        if last is not None and last[0] == order:
            _, content, before, whole = last
            if before == author:
                return whole
        else:
            content = order_to_pb(order, 0, 0).SerializeToString()
        # Protobuf allows the fields of a message in any order.
        whole = content + pb.Order(generation=author[0], step=author[1]).SerializeToString()
        self._serialised[type(order)] = order, content, author, whole
        return whole

    def close(self) -> None:
        """End every stream."""
        with self._lock:
            lines = list(self._lines.values())
        for line in lines:
            line.outgoing.put(None)
