"""A network as the real one is, with the real shells of workers, and servers that send as theirs do.

A connection delivers in order and completely until it breaks.  A break fails its outstanding requests; messages that
had arrived before are still processed.  Messages of different connections overtake each other.  Sessions with the
master are such connections, too, and live as long as their process.  Processes repeat only what ``eps.server``,
``eps.worker`` and ``eps.master`` repeat:

- the master repeats orders whose effect is missing (``Job``, every ``RESEND_S``);
- a worker sends the parts of an exchange again, by the newest route, when the connection broke, a part was refused, or
  the reply left without them;
- a server whose stream to a follower breaks reports ``TransferFailed``, as does a worker whose split does not arrive.

This mode proves that these few repeats are enough, for every order of messages and every break: no job waits for ever,
and its model is that of the oracle.  :mod:`tests.sim.hostile` demands more of the core, and does not use the shells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from eps.core import events as e
from eps.core import messages as m
from eps.core import server_events as s
from eps.core.reconfig import Phase
from eps.core.types import Address, MemberId
from eps.worker.wire import Sent
from tests.sim.process import SimProcess
from tests.sim.server import SimServer
from tests.sim.wire import (
    Again,
    Answers,
    Arrival,
    Cut,
    Done,
    Exchange,
    Failed,
    Fenced,
    Passed,
    Promote,
    Push,
    Pushed,
    Snapshot,
    SplitCopy,
    Stale,
    Update,
    Vanished,
)
from tests.sim.worker import SimWire, SimWorker, answers_of, parts_of

#: A break happens within this time after the message for which it was drawn.
BREAK_WITHIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Breaks:
    """Probabilities that connections break, for each request."""

    #: On a connection of a worker to a server.
    exchange: float = 0.0
    #: On a connection that carries a partition or a split.
    transfer: float = 0.0


class SimConnection:
    """A connection from one process to a listener."""

    def __init__(self, process: FaithfulProcess, address: Address) -> None:
        self.address = address
        self.closed = False
        self.outstanding: dict[int, tuple[object, Callable[[Any], None]]] = {}
        self._process = process
        self._net = process.net
        self._requests = process.job.line()
        self._replies = process.job.line()
        self._next_uid = 0

    def request(self, body: object, on_reply: Callable[[Any], None]) -> None:
        """Send a request; ``on_reply`` gets exactly one reply, or ``Vanished`` where the connection breaks before."""
        self._next_uid += 1
        uid = self._next_uid
        self.outstanding[uid] = (body, on_reply)
        listener = self._process.job.listener(self.address)
        if listener is None:
            self.break_()
            return

        def answer(reply: object) -> None:
            self._replies.send(lambda: self._take(uid, reply))

        self._requests.send(lambda: listener.on_request(body, answer) if listener.alive else None)

    def _take(self, uid: int, reply: object) -> None:
        found = self.outstanding.pop(uid, None)
        if found is not None and self._process.alive:
            found[1](reply)

    def break_(self, share: float = 0.0) -> None:
        """Fail outstanding requests; the listener still receives some of the messages in flight."""
        if self.closed:
            return
        self.closed = True
        self._requests.cut(share)
        self._replies.cut()
        failed, self.outstanding = list(self.outstanding.values()), {}
        for _, on_reply in failed:
            self._net.at(self._net.now_s, lambda f=on_reply: f(Vanished()) if self._process.alive else None)


class FaithfulProcess(SimProcess):
    """Sends once, on connections."""

    def start(self) -> None:
        self._up, self._down = self.job.line(), self.job.line()
        self.connections: dict[Address, SimConnection] = {}
        registered = e.MemberRegistered(self.seat, self.address, 1)
        if self.job.registers():
            self._up.send(lambda: self.job.on_event(registered))

    def vanish(self) -> None:
        super().vanish()
        for connection in self.connections.values():
            connection.break_(share=1.0)
        # Its last messages may not have been sent.
        self._up.cut(self.job.share())
        for process in self.job.processes.values():
            if isinstance(process, FaithfulProcess) and self.address in process.connections:
                process.connections[self.address].break_()

    def deliver(self, action: Callable[[], None]) -> None:
        self._down.send(action)

    def report(self, report: m.Report) -> None:
        self._up.send(lambda: self.job.on_event(e.ReportReceived(report)))

    def ask(self, address: Address, body: object, on_reply: Callable[[Any], None]) -> None:
        """Send a request on the connection to an address, which is made when there is none."""
        found = self.connections.get(address)
        if found is None or found.closed:
            found = self.connections[address] = SimConnection(self, address)
        found.request(body, on_reply)
        breaks = self.job.breaks
        if self.job.chance(breaks.exchange if isinstance(body, Exchange) else breaks.transfer):
            connection, share = found, self.job.share()
            self.net.after(BREAK_WITHIN_S * self.job.share(), lambda: self._maybe_break(connection, share))

    def _maybe_break(self, connection: SimConnection, share: float) -> None:
        if connection.closed or not self.alive:
            return
        carried = [b for b, _ in connection.outstanding.values() if isinstance(b, Snapshot | Update | Promote)]
        decided = any(b.plan_id and self.job.plan_of(b.plan_id).phase is Phase.COMMITTED for b in carried)
        self.job.count("broke after the commit" if decided else "broke")
        self.job.note(self.name, f"the connection to {connection.address} breaks")
        connection.break_(share)

    def keep(self, addresses: Collection[Address]) -> None:
        """Close the connections to all other addresses."""
        for address in [a for a in self.connections if a not in addresses]:
            self.connections.pop(address).break_(share=1.0)


# ---- servers


class Pending:
    """Twin of ``eps.server.open_requests.PendingExchange``."""

    def __init__(self, exchange: Exchange, reply: Callable[[object], None], on_hurried: Callable[[], None]) -> None:
        self._reply = reply
        self._on_hurried = on_hurried
        kinds = [(type(part), part.partition) for part in exchange.parts]
        assert kinds and len(set(kinds)) == len(kinds), f"two parts of one kind for one partition: {kinds}"
        self._answers: list[object] = [None] * len(kinds)
        self._taken_in = self._hurried = self._answered = False

    def settle(self, number: int, answer: object) -> None:
        refused = isinstance(answer, Stale | Failed | Again | Passed)
        self._hurried |= refused or (isinstance(answer, Pushed) and not answer.accepted)
        self._answers[number] = answer
        self._maybe_answer()

    def taken_in(self) -> None:
        self._taken_in = True
        self._maybe_answer()

    def _maybe_answer(self) -> None:
        missing = any(answer is None for answer in self._answers)
        if self._answered or not self._taken_in or (missing and not self._hurried):
            return
        self._answered = True
        if missing:
            self._on_hurried()
        self._reply(Answers(tuple(answer or Again() for answer in self._answers)))


class FollowerStream:
    """Twin of ``eps.server.followers.FollowerStream``."""

    def __init__(self, server: FaithfulServer, address: Address, failed: Callable[[], None]) -> None:
        self._server = server
        self._address = address
        self._failed = failed
        self._queue: deque[tuple[object, Callable[[], None]]] = deque()
        self._stopped = self._busy = False

    def send(self, body: object, done: Callable[[], None] = lambda: None) -> None:
        if not self._stopped:
            self._queue.append((body, done))
            self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        body, done = self._queue[0]

        def answered(reply: object) -> None:
            # An answer after the stop still counts.
            if isinstance(reply, Done):
                done()
                if not self._stopped:
                    self._queue.popleft()
                    self._busy = False
                    self._next()
            elif not self._stopped:
                self.stop()
                if not isinstance(reply, Fenced):
                    self._failed()

        self._server.ask(self._address, body, answered)

    def stop(self) -> None:
        self._stopped = True
        self._queue.clear()


class FaithfulServer(FaithfulProcess, SimServer):
    """Takes exchanges apart, answers them when their parts are settled, and reports what it cannot send."""

    def on_request(self, body: object, reply: Callable[[Any], None]) -> None:
        assert self.name, "nobody knows a process that has no name yet"
        if not isinstance(body, Exchange):
            self.take_in(Arrival(body, reply))
            return
        pending = Pending(body, reply, lambda: self.job.count("reply left early"))
        pushes, pulls = list[s.PushArrived](), list[s.PullArrived]()
        for number, part in enumerate(body.parts):
            arrival = Arrival(part, lambda answer, n=number: pending.settle(n, answer))
            if part.incarnation != self.state.incarnation:
                arrival.reply(Stale(self.state.membership))
            elif isinstance(part, Push):
                self.note_results(part)
                pushes.append(s.PushArrived(arrival, part.partition, part.clock, part.splits))
            else:
                pulls.append(s.PullArrived(arrival, part.partition, part.min_clock))
        self.step(s.ExchangeArrived(tuple(pushes), tuple(pulls)))
        pending.taken_in()

    def on_order(self, order: m.Order) -> None:
        super().on_order(order)
        if isinstance(order, m.ReleasePlan) and self.state.membership is not None:
            self.keep(set(self.state.membership.addresses.values()))

    def asks(self, address: Address) -> bool:
        return address in self.connections and bool(self.connections[address].outstanding)

    def make_stream(self, plan_id: int, to: MemberId, address: Address) -> FollowerStream:
        def failed() -> None:
            self.job.count("transfer failed")
            self.step(s.SendingFailed(plan_id, to, "it does not answer"))

        return FollowerStream(self, address, failed)

    def send_cut(self, address: Address, body: Cut, done: Callable[[], None], failed: Callable[[], None]) -> None:
        self.ask(address, body, lambda reply: done() if isinstance(reply, Done) else failed())

    def step(self, event: s.ServerEvent) -> None:
        if self.alive:
            super().step(event)


# ---- workers


class FaithfulWire(SimWire):
    """Messages of a worker on connections, each in one piece."""

    worker: FaithfulWorker

    def carry(self, message: Sent) -> None:
        exchange, parts = self.expect(message), parts_of(message)

        def answered(reply: object) -> None:
            answers = None
            if isinstance(reply, Answers):
                answers = answers_of(parts, reply.replies)
                again = any(isinstance(answer, Again | Stale) for answer in reply.replies)
            if answers is None or again:
                self.worker.job.count("sent again")
            self.come(exchange, message, answers)

        self.worker.ask(message.address, Exchange(tuple(parts)), answered)

    def carry_early(self, address: Address, push: Push) -> None:
        self.worker.ask(address, Exchange((push,)), lambda reply: None)

    def keep(self, addresses: Iterable[Address]) -> None:
        left = self.used - set(addresses)
        self.used -= left
        self.worker.keep(set(self.worker.connections) - left)


class FaithfulWorker(FaithfulProcess, SimWorker):
    """The shell of a worker, and a twin of its datasets and transfers."""

    def make_wire(self) -> FaithfulWire:
        return FaithfulWire(self)

    def send(self, plan_id: int, target: m.Target) -> None:
        if plan_id in self.closed:
            return

        def answered(reply: object) -> None:
            if not isinstance(reply, Done) and plan_id not in self.closed:
                self.job.count("transfer failed")
                message = f"split {target.item} could not be sent to {target.target}"
                self.report(m.TransferFailed(self.name, plan_id, message))

        assert target.item in self.disk, f"{self.name} shall send split {target.item}, which it lacks"
        self.ask(target.address, SplitCopy(plan_id, target.item), answered)

    def load(self, plan_id: int, split: int) -> None:
        assert split in self.disk, f"{self.name} shall load split {split}, which it lacks"
        # On a thread of its own, while orders are taken.
        received = m.SplitReceived(self.name, plan_id, split, 0)
        self.net.after(self.net.delay_s(), lambda: self.report(received) if self.alive else None)

    def on_request(self, body: object, reply: Callable[[Any], None]) -> None:
        assert self.name and isinstance(body, SplitCopy)
        if body.plan_id in self.closed:
            reply(Failed(f"plan {body.plan_id} has ended"))
            return
        held = self.disk.setdefault(body.split, body.plan_id)
        # A master that dies may take the abort of an earlier plan with it: then the split of that plan is still here.
        aborted = held and self.job.plan_of(held).phase is Phase.ABORTED
        assert held == body.plan_id or aborted, f"{self.name} is sent split {body.split}, which it has from plan {held}"
        self.report(m.SplitReceived(self.name, body.plan_id, body.split, 8))
        reply(Done())
