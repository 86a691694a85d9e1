"""A network that loses, repeats and reorders every message; processes repeat everything until it is answered.

This is harsher than a real network.  Real processes also behave differently: they never repeat what a connection has
accepted.  The mode proves a property of the core alone.  Every order, report and request is idempotent, and may arrive
late, twice and in any order; an order without acknowledgement is derived again from what is missing.  The mode with the
real shells is :mod:`tests.sim.faithful`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from eps.core import events as e
from eps.core import messages as m
from eps.core.reconfig import Phase
from eps.core.types import Address, MemberId
from eps.worker.wire import Sent
from tests.sim.process import SimProcess
from tests.sim.server import SimServer
from tests.sim.wire import Cut, Done, Fenced, Push, Snapshot, SplitCopy, Stale, Vanished
from tests.sim.worker import SimWire, SimWorker, answers_of, parts_of

TICK_S = 0.1
#: An unanswered request is resent after this time.
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
    """A process that resends unanswered requests."""

    def start(self) -> None:
        self.outgoing: dict[int, Outgoing] = {}
        self._next_uid = 0
        self._tick()

    def _tick(self) -> None:
        if not self.alive:
            return
        if not self.name:
            registered = e.MemberRegistered(self.seat, self.address, 1)
            self.net.send(lambda: self.job.on_event(registered))
        else:
            for waiting in list(self.outgoing.values()):
                if self.net.now_s - waiting.sent_s >= PATIENCE_S:
                    self._send_again(waiting)
            self.on_tick()
        self.net.after(TICK_S, self._tick)

    def on_tick(self) -> None:
        """Resend the unanswered reports of the role."""

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
        """Send a request repeatedly until it is answered."""
        self._next_uid += 1
        waiting = Outgoing(self._next_uid, body, address, 0.0, on_answer)
        self.outgoing[waiting.uid] = waiting
        self._send_again(waiting)
        return waiting

    def tell(self, address: Address, body: object) -> None:
        """Send a request once; the master's repeated order sends it again."""
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
        waiting = self.outgoing.pop(uid, None) if self.alive else None
        if waiting is not None:
            waiting.on_answer(reply)


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
                # The master handles a vanished follower; nothing can be sent to it.
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
    """A server that sends a snapshot again if the order is repeated."""

    def make_stream(self, plan_id: int, to: MemberId, address: Address) -> HostileStream:
        return HostileStream(self, address)

    def repeat_snapshot(self, snapshot: Snapshot, address: Address) -> None:
        self.tell(address, snapshot)

    def send_cut(self, address: Address, body: Cut, done: Callable[[], None], failed: Callable[[], None]) -> None:
        self.ask(address, body, lambda reply: done() if isinstance(reply, Done) else failed())


class HostileWire(SimWire):
    """Messages of a worker part by part, each again and again until it is answered."""

    worker: HostileWorker

    def __init__(self, worker: HostileWorker) -> None:
        super().__init__(worker)
        self._asked: list[Outgoing] = []

    def begin(self) -> None:
        super().begin()
        # These answers are no longer needed.
        for waiting in self._asked:
            self.worker.outgoing.pop(waiting.uid, None)
        self._asked.clear()

    def carry(self, message: Sent) -> None:
        for part in message.pushes:
            self._carry_one(replace(message, pushes=(part,), pulls=()))
        for part in message.pulls:
            self._carry_one(replace(message, pushes=(), pulls=(part,)))

    def _carry_one(self, message: Sent) -> None:
        self._ask(self.expect(message), message, message.address)

    def _ask(self, exchange: int, message: Sent, address: Address) -> None:
        parts = parts_of(message)

        def answered(reply: object) -> None:
            lost = isinstance(reply, Stale | Vanished)
            self.worker.job.counted["rerouted"] += lost
            if lost and self.worker.job.releases_at_once:
                # A server may have left with a plan that this worker released too early; the newest owner knows.
                newest = self.worker.state.memberships.newest
                self._ask(exchange, message, newest.addresses[newest.partitions.owners[parts[0].partition]])
                return
            self.come(exchange, message, None if isinstance(reply, Vanished) else answers_of(parts, [reply]))

        self._asked.append(self.worker.ask(address, parts[0], answered))

    def carry_early(self, address: Address, push: Push) -> None:
        self.worker.tell(address, push)


class HostileWorker(HostileProcess, SimWorker):
    """The shell of a worker whose reports are repeated until they are recorded, and whose splits are sent again."""

    def on_named(self) -> None:
        super().on_named()
        self._unacked: list[m.ClockReported] = []
        #: Plan -> whether this worker leaves with it.
        self._leaves: dict[int, bool] = {}
        #: A leaving worker reports that once all its earlier reports are recorded.
        self._last: list[m.PlanReleased] = []

    def make_wire(self) -> HostileWire:
        return HostileWire(self)

    def on_tick(self) -> None:
        for report in self._unacked:
            super().report(report)
        if not self._owes():
            last, self._last = self._last, []
            for released in last:
                super().report(released)

    def _owes(self) -> bool:
        """Return whether this worker has reports that the master must receive before it may leave."""
        return bool(self._unacked or self.outgoing)

    def report(self, report: m.Report) -> None:
        if isinstance(report, m.ClockReported):
            self._unacked.append(report)
        if isinstance(report, m.PlanReleased) and self._leaves.get(report.plan_id) and self._owes():
            self._last.append(report)
        else:
            super().report(report)

    def before_end(self, reason: str) -> None:
        super().before_end(reason)
        assert not reason.startswith("removed") or not self._owes(), f"{self.name} ends too early"

    def on_order(self, order: m.Order) -> None:
        incarnation = self.state.memberships.incarnation
        match order:
            case m.GrantHorizon(_, completed, _):
                self._unacked = [report for report in self._unacked if report.clock >= completed]
            case m.ReleasePlan(plan_id):
                self._leaves[plan_id] = self.name not in self.state.memberships.newest.workers
                if self.job.releases_at_once and not self._leaves[plan_id]:
                    self.report(m.PlanReleased(self.name, plan_id))
                    return
            # The transferred splits may be lost; each repeat of the order sends them again.
            case m.SendSplits(plan_id, transfers):
                for target in transfers if plan_id not in self.closed else ():
                    assert target.item in self.disk, f"{self.name} shall send split {target.item}, which it lacks"
                    self.tell(target.address, SplitCopy(plan_id, target.item))
                return
            case m.LoadSplits(plan_id, splits):
                for split in splits if plan_id not in self.closed else ():
                    assert split in self.disk, f"{self.name} shall load split {split}, which it lacks"
                    self.report(m.SplitReceived(self.name, plan_id, split, 0))
                return
        super().on_order(order)
        if self.state.memberships.incarnation > incarnation:
            self._unacked.clear()

    # ---- splits

    def close_plan(self, plan_id: int, keep: bool) -> None:
        self.closed.add(plan_id)
        if not keep:
            self.disk = {split: brought for split, brought in self.disk.items() if brought != plan_id}

    def on_request(self, body: object, reply: Callable[[Any], None]) -> None:
        if not self.name or not isinstance(body, SplitCopy) or body.plan_id in self.closed:
            return
        held = self.disk.get(body.split, body.plan_id)
        if held != body.plan_id:
            stale = held and self.job.plan_of(held).phase is Phase.ABORTED
            late = self.job.plan_of(body.plan_id).ended
            assert stale or late, f"{self.name} is sent split {body.split}, which it has from plan {held}"
        # What no plan brought is not that plan's to take away.
        self.disk[body.split] = max(held, body.plan_id) if held else 0
        self.report(m.SplitReceived(self.name, body.plan_id, body.split, 8))
