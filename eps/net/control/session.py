"""A member's session with its job master, over successive masters: reports out, orders in, both in order.

The session uses one bidirectional stream at a time.  If it breaks, the member keeps working.  The session searches for
the next master, attaches to it and resends the reports that may be lost.  Both ends send heartbeats; the session leaves
a hung master once a newer one exists.

Source: EPS §5.2 (workers and servers keep a heartbeat channel to the ApplicationMaster); design sections 2 and 4.
Fencing by a number that grows with every master: Chubby's sequencers (Burrows, OSDI 2006, section 2.4).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from eps.core import messages as m
from eps.core.messages import MemberFailed, Order, Report
from eps.core.types import Address
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, RpcError
from eps.net.calls.call import channel, error_of
from eps.net.control.finder import MasterPlace, MasterSearch
from eps.net.control.report_queue import BEAT_S, BEATS, ReportQueue
from eps.net.messages.codec import order_from_pb
from eps.net.security.credentials import NO_SECURITY, Security
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import MemberSessionStub

logger = logging.getLogger(__name__)

WELCOME_TIMEOUT_S = 60.0
#: A member that has not heard from any master for this long exits.
MASTER_PATIENCE_S = 60.0
#: A master that is silent for this long may have been replaced.
SILENCE_S = 3.0
#: A stream of at least this duration worked.  A member whose sleep took this much longer was suspended.
LASTED_S = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts of a session, in seconds."""

    #: Silence on an open stream before the session looks for another master.
    silence_s: float = SILENCE_S
    #: Time without any master before the session ends.
    master_s: float = MASTER_PATIENCE_S
    #: Heartbeat interval.
    beat_s: float = BEAT_S

    @classmethod
    def of_job(cls, member_timeout_s: float, master_timeout_s: float) -> Patience:
        """Return the timeouts that follow from a job's deadlines."""
        return cls(member_timeout_s, master_timeout_s, member_timeout_s / BEATS)


class OrderInbox:
    """The orders of a job's masters, in order; orders of replaced masters are dropped.

    Attributes
    ----------
    generation : int
        The highest known generation of a master.
    heard : (int, int)
        Generation and step of the last order.
    heard_s : float, seconds
        Time of the last message of a master, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.heard = 0, 0
        self.heard_s = time.monotonic()
        self._orders: queue.SimpleQueue[tuple[int, Order] | None] = queue.SimpleQueue()

    def hear(self, message: pb.Order) -> bool:
        """Record a message; return False if its master was replaced."""
        if message.generation < self.generation:
            return False
        self.generation, self.heard_s = message.generation, time.monotonic()
        if message.WhichOneof("kind") is not None:
            self.heard = message.generation, message.step
        return True

    def put(self, generation: int, order: Order) -> None:
        """Queue an order for :meth:`take`."""
        self._orders.put((generation, order))

    def end(self) -> None:
        """Make :meth:`take` return None after the queued orders."""
        self._orders.put(None)

    def take(self) -> Order | None:
        """Wait for the next order; return None at the end."""
        while (entry := self._orders.get()) is not None:
            generation, order = entry
            # A newer master may have come while the order waited.
            if generation >= self.generation:
                return order
        return None


class MemberSession:
    """The session of one member with the masters of its job.

    Parameters
    ----------
    master : str
        ``host:port`` or ``unix:NAME`` of the first job master.
    container_id : str
        The container of this process, by which the master knows it.
    address : Address
        Address of this member's data plane.
    security : Security
        The job's.
    find : callable, optional
        Returns the address of the latest master, or None.  By default the session ends with its first stream.
    patience : Patience
    """

    def __init__(
        self,
        master: str,
        container_id: str,
        address: Address,
        pid: int,
        security: Security = NO_SECURITY,
        *,
        find: Callable[[], MasterPlace | None] | None = None,
        patience: Patience = Patience(),
    ) -> None:
        self._first = MasterPlace(master)
        self._hello = pb.Hello(container_id=container_id, pid=pid)
        self._hello.address.host, self._hello.address.port = address.host, address.port
        self._security = security
        self._search = None if find is None else MasterSearch(find)
        self._patience = patience
        self._outgoing = ReportQueue(beat_s=patience.beat_s)
        self._inbox = OrderInbox()
        self._welcome = threading.Event()
        self._welcomed: pb.Welcome | None = None
        self._failure: EpsError | None = None
        self._on_order: Callable[[Order], None] | None = None
        self._stream: Any = None
        #: Set to end the session: by ``Shutdown``, by :meth:`close`, or by an error.
        self._over = threading.Event()
        self._reader: threading.Thread | None = None

    def be_patient(self, patience: Patience) -> None:
        """Set the timeouts; a member learns its job's settings from the welcome."""
        self._patience = patience
        self._outgoing.beat_s = patience.beat_s

    @property
    def generation(self) -> int:
        """The highest known generation of a master."""
        return self._inbox.generation

    def open(
        self, on_order: Callable[[Order], None], on_end: Callable[[EpsError | None], None]
    ) -> Callable[[], pb.Welcome]:
        """Attach to the master; return a function that waits for its welcome.

        Parameters
        ----------
        on_order : callable
            Called on one thread with each order, in order; further orders wait until it returns.  ``Shutdown`` does not
            wait and comes on another thread.
        on_end : callable
            Called once when the session has ended: with the error, or None after ``Shutdown`` or :meth:`close`.
        """
        self._on_order = on_order
        self._inbox.heard_s = time.monotonic()
        self._reader = threading.Thread(target=self._run, args=(on_end,), name="session", daemon=True)
        self._reader.start()
        threading.Thread(target=self._obey_all, name="orders", daemon=True).start()
        if self._search is not None:
            threading.Thread(target=self._watch, args=(self._search.find,), name="session-watch", daemon=True).start()
        return self._wait_for_welcome

    def _wait_for_welcome(self) -> pb.Welcome:
        if not self._welcome.wait(WELCOME_TIMEOUT_S):
            raise DeadlineError(f"the job master did not welcome this member within {WELCOME_TIMEOUT_S:g} s")
        if self._welcomed is None:
            raise self._failure or PeerUnavailableError("the job master ended the session before its welcome")
        return self._welcomed

    def report(self, report: Report, *, can_wait: bool = False) -> None:
        """Queue a report without blocking.  One that can wait may be sent together with later ones."""
        self._outgoing.put(report, can_wait=can_wait)

    def warn(self, notice_s: float, reason: str) -> bool:
        """Report that this process's container will be taken away; return False if no master has this member.

        Parameters
        ----------
        notice_s : float
        reason : str
            Why, as a phrase that follows the container's name.
        """
        if self._welcomed is None or self._over.is_set():
            return False
        self.report(m.EvictionWarned(self._welcomed.name, notice_s, reason))
        return True

    # ---- the session's thread

    def _run(self, on_end: Callable[[EpsError | None], None]) -> None:
        place: MasterPlace | None = self._first
        error: EpsError | None = None
        while place is not None:
            began_s = time.monotonic()
            error, final = self._attend(place)
            if self._over.is_set() or final or self._search is None:
                break
            if time.monotonic() - began_s >= LASTED_S:
                self._search.on_lasted()
            logger.warning("the session with the job master broke (%s); looking for the next one", error)
            deadline_s = self._inbox.heard_s + self._patience.master_s
            place = self._search.next(place, self._inbox.generation, deadline_s, self._over)
        if self._over.is_set():
            error = None
        elif place is None:
            error = PeerUnavailableError(f"no job master for {self._patience.master_s:g} s; the last error: {error}")
        self._over.set()
        self._failure = error
        self._inbox.end()
        self._welcome.set()
        on_end(error)

    def _attend(self, place: MasterPlace) -> tuple[EpsError, bool]:
        """Attach to a master and read orders until the stream ends; return the reason, and whether it is final."""
        self._inbox.generation = max(self._inbox.generation, place.generation)
        try:
            connection = channel(place.address, self._security)
        except EpsError as error:
            return error, True
        why: EpsError
        stream = MemberSessionStub(connection).Attach(self._outgoing.batches(self._introduction()))
        self._stream = stream
        try:
            if self._over.is_set():
                # The session was closed before the stream was visible.
                stream.cancel()
            for message in stream:
                self._hear(message)
            return PeerUnavailableError("the job master ended the session"), False
        except grpc.RpcError as rpc_error:
            why = error_of(rpc_error, "the session with the job master")
            # Before the welcome a refusal is final.  Later another process may have the port of a dead master.
            return why, self._welcomed is None and not isinstance(why, RpcError)
        except EpsError as broken:
            return broken, True
        finally:
            self._stream = None
            self._outgoing.cut()
            stream.cancel()
            connection.close()

    def _introduction(self) -> pb.Report:
        hello = pb.Hello(generation=self._inbox.generation)
        hello.MergeFrom(self._hello)
        hello.name = self._welcomed.name if self._welcomed is not None else ""
        hello.heard_generation, hello.heard_step = self._inbox.heard
        return pb.Report(hello=hello)

    def _hear(self, message: pb.Order) -> None:
        if not self._inbox.hear(message):
            return
        kind = message.WhichOneof("kind")
        if kind is None:
            return
        if kind == "welcome":
            if self._welcomed is not None:
                logger.info("attached again to the job master, generation %d", message.generation)
            self._welcomed = self._welcomed or message.welcome
            self._welcome.set()
            return
        order = order_from_pb(message)
        match order:
            case m.GrantHorizon():
                self._outgoing.recorded(order.completed)
            case m.ReleasePlan() | m.AbortPlan():
                self._outgoing.plan_ended(order.plan_id)
            case m.Shutdown():
                # Not behind orders that may take long or block for ever.
                self._over.set()
                self._obey(order)
                return
        self._inbox.put(message.generation, order)

    # ---- the orders' thread

    def _obey_all(self) -> None:
        while (order := self._inbox.take()) is not None:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        assert self._on_order is not None
        try:
            self._on_order(order)
        except Exception as error:
            # The master must know of any error: it decides whether a plan or the job ends.
            logger.exception("order %s failed", type(order).__name__)
            name = self._welcomed.name if self._welcomed is not None else ""
            self.report(MemberFailed(name, type(error).__name__, f"{type(order).__name__}: {error}"))

    # ---- the watch's thread

    def _watch(self, find: Callable[[], MasterPlace | None]) -> None:
        """Cancel a silent stream once there is a newer master, or after :attr:`Patience.master_s`."""
        before_s = time.monotonic()
        while not self._over.wait(pause_s := min(self._patience.beat_s, self._patience.silence_s / 4)):
            now_s = time.monotonic()
            if now_s - before_s > pause_s + LASTED_S:
                # This process or the machine was suspended: the silence is not the master's.
                self._inbox.heard_s = now_s
            before_s = now_s
            stream, silent_s = self._stream, now_s - self._inbox.heard_s
            if stream is None or silent_s < self._patience.silence_s:
                continue
            found = find()
            if silent_s >= self._patience.master_s or (found is not None and found.generation > self._inbox.generation):
                logger.warning("the job master has been silent for %.1f s", silent_s)
                stream.cancel()

    def close(self) -> None:
        """Send queued reports, end the stream and release all resources."""
        self._over.set()
        self._outgoing.close()
        reader = self._reader
        if reader is not None and reader.is_alive() and threading.current_thread() is not reader:
            reader.join(2.0)
            stream = self._stream
            if stream is not None:
                stream.cancel()
                reader.join(2.0)
