"""A network that loses, repeats and reorders every message; processes repeat everything until it is answered.

This is harsher than anything that the real processes meet, and they do not behave like this: they send nothing again
that a connection has taken.  What it proves is a property of the core alone: every order, report and request is
idempotent, may come late, twice and in any order, and whatever has no acknowledgement is derived again from what is
missing (:mod:`tests.sim.faithful` is the mode that plays the real shells).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eps.core import events as e
from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.reconfig import Phase
from eps.core.types import Address, MemberId
from tests.sim.process import SimProcess
from tests.sim.server import SimServer
from tests.sim.wire import Done, Fenced, Snapshot, SplitCopy, Stale, Vanished
from tests.sim.worker import Part, SimWorker

TICK_S = 0.1
#: An unanswered request is sent again after this long.
PATIENCE_S = 0.25


@dataclass(eq=False, slots=True)
class Outgoing:
    """A request that waits for its answer."""

    uid: int
    body: Any
    address: Address
    sent_s: float
    on_answer: Callable[[Any], None]


class HostileProcess(SimProcess):
    """Sends again what is not answered."""

    def start(self) -> None:
        self.outgoing: dict[int, Outgoing] = {}
        self._next_uid = 0
        self._tick()

    def _tick(self) -> None:
        if not self.alive:
            return
        if not self.name:
            registered = e.MemberRegistered(self.container_id, self.address, 1)
            self.net.send(lambda: self.job.on_event(registered))
        else:
            for waiting in list(self.outgoing.values()):
                if self.net.now_s - waiting.sent_s >= PATIENCE_S:
                    self._send_again(waiting)
            self.on_tick()
        self.net.after(TICK_S, self._tick)

    def on_tick(self) -> None:
        """Say again what the role has not got an answer to."""

    def vanish(self) -> None:
        super().vanish()
        self.outgoing.clear()

    def deliver(self, action: Callable[[], None]) -> None:
        self.net.send(action)

    def report(self, report: m.Report) -> None:
        self.net.send(lambda: self.job.on_event(e.ReportReceived(report)))

    def asks(self, address: Address) -> bool:
        return any(waiting.address == address for waiting in self.outgoing.values())

    def ask(self, address: Address, body: object, on_answer: Callable[[Any], None]) -> Outgoing:
        """Send a request, again and again until it is answered."""
        self._next_uid += 1
        waiting = Outgoing(self._next_uid, body, address, 0.0, on_answer)
        self.outgoing[waiting.uid] = waiting
        self._send_again(waiting)
        return waiting

    def tell(self, address: Address, body: object) -> None:
        """Send a request once; somebody else sees to it that it is sent again."""
        self.net.send(lambda: self._arrive(address, 0, body))

    def _send_again(self, waiting: Outgoing) -> None:
        waiting.sent_s = self.net.now_s
        address, uid, body = waiting.address, waiting.uid, waiting.body
        self.net.send(lambda: self._arrive(address, uid, body))

    def _arrive(self, address: Address, uid: int, body: object) -> None:
        process = self.job.listener(address)

        def reply(answer: object) -> None:
            self.net.send(lambda: self._on_reply(uid, answer))

        if process is not None:
            process.on_request(body, reply)
        else:
            reply(Vanished())

    def _on_reply(self, uid: int, reply: object) -> None:
        waiting = self.outgoing.get(uid) if self.alive else None
        if waiting is None or self.rerouted(waiting, reply):
            return
        del self.outgoing[uid]
        waiting.on_answer(reply)

    def rerouted(self, waiting: Outgoing, reply: object) -> bool:
        """Whether the reply means that the request must go elsewhere; if so, it is on its way."""
        return False


class HostileStream:
    """Sends the head of the queue until it is acknowledged."""

    def __init__(self, process: HostileProcess, address: Address) -> None:
        self._process = process
        self._address = address
        self._queue: list[tuple[object, Callable[[], None]]] = []
        self._head: Outgoing | None = None

    def send(self, body: object, done: Callable[[], None] = lambda: None) -> None:
        self._queue.append((body, done))
        self._next()

    def _next(self) -> None:
        if self._head is None and self._queue:
            body, done = self._queue.pop(0)

            def answered(reply: object) -> None:
                self._head = None
                # A follower that vanished is the master's business; nothing more can be said to it.
                if isinstance(reply, Vanished):
                    self._queue.clear()
                    return
                if isinstance(reply, Fenced):
                    self._queue.clear()
                    return
                assert isinstance(reply, Done), reply
                done()
                self._next()

            self._head = self._process.ask(self._address, body, answered)

    def stop(self) -> None:
        self._queue.clear()
        if self._head is not None:
            self._process.outgoing.pop(self._head.uid, None)
            self._head = None


class HostileServer(HostileProcess, SimServer):
    """A server that sends a snapshot again when it is told to again."""

    def pass_on(self, body: object, address: Address, relay: Callable[[object], None]) -> None:
        self.ask(address, body, lambda reply: relay(Stale() if isinstance(reply, Vanished) else reply))

    def make_stream(self, plan_id: int, to: MemberId, address: Address) -> HostileStream:
        return HostileStream(self, address)

    def repeat_snapshot(self, snapshot: Snapshot, address: Address) -> None:
        self.tell(address, snapshot)


class HostileWorker(HostileProcess, SimWorker):
    """A worker that sends every part by itself, and its reports until they are recorded."""

    def on_named(self) -> None:
        super().on_named()
        self._closed: set[int] = set()
        self._unacked: list[m.ClockReported] = []

    def on_tick(self) -> None:
        for report in self._unacked:
            self.report(report)

    def owes(self) -> bool:
        return bool(self._unacked or self.outgoing)

    def say(self, report: m.ClockReported) -> None:
        self._unacked.append(report)
        self.report(report)

    def on_recorded(self, completed: int) -> None:
        self._unacked = [report for report in self._unacked if report.clock >= completed]

    # ---- splits

    def on_aborted(self, plan_id: int) -> None:
        self._closed.add(plan_id)
        self.disk = {s: brought for s, brought in self.disk.items() if brought != plan_id}

    def send_split(self, plan_id: int, target: m.Target) -> None:
        self.tell(target.address, SplitCopy(plan_id, target.item))

    def load_split(self, plan_id: int, split: int) -> None:
        if plan_id not in self._closed:
            self.report(m.SplitReceived(self.name, plan_id, split, 0, str(split)))

    def on_request(self, body: object, reply: Callable[[Any], None]) -> None:
        if not self.name or not isinstance(body, SplitCopy) or body.plan_id in self._closed:
            return
        held = self.disk.get(body.split, body.plan_id)
        if held != body.plan_id:
            stale = held and self.job.plan_of(held).phase is Phase.ABORTED
            late = self.job.plan_of(body.plan_id).ended
            assert stale or late, f"{self.name} is sent split {body.split}, which it has from plan {held}"
        # What no plan brought is not that plan's to take away.
        self.disk[body.split] = max(held, body.plan_id) if held else 0
        self.report(m.SplitReceived(self.name, body.plan_id, body.split, 8, str(body.split)))

    # ---- parts

    def _interrupt(self) -> None:
        super()._interrupt()
        # Nobody waits for these answers any more.
        self.outgoing.clear()

    def take_in(self, membership: Membership) -> m.MembershipAcked:
        incarnation = self.state.memberships.incarnation
        acked = super().take_in(membership)
        if self.state.memberships.incarnation > incarnation:
            self._unacked.clear()
        return acked

    def exchange(self, parts: list[Part]) -> None:
        for body, clock in parts:
            route = self.route(clock)
            owner = route.partitions.owners[body.partition]
            attempt = self._attempt
            self.ask(
                route.addresses[owner],
                body,
                lambda reply, b=body, c=clock, a=attempt: self.on_answer(b, c, reply, a),
            )

    def rerouted(self, waiting: Outgoing, reply: object) -> bool:
        if not isinstance(reply, Stale | Vanished):
            return False
        self.job.count("rerouted")
        newest = self.state.memberships.newest
        waiting.address = newest.addresses[newest.partitions.owners[waiting.body.partition]]
        waiting.sent_s = self.net.now_s
        return True
