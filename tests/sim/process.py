"""What a simulated server and worker have in common: a name, orders, reports and requests that are sent again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eps.core import events as e
from eps.core import messages as m
from eps.core.types import Address, MemberId, Role
from tests.sim.wire import Done, Request, Vanished

if TYPE_CHECKING:
    from tests.sim.job import SimJob

TICK_S = 0.1
#: An unanswered request is sent again after this long.
PATIENCE_S = 0.25


@dataclass(eq=False, slots=True)
class Outgoing:
    """A request that waits for its answer."""

    request: Request
    address: Address
    sent_s: float
    on_answer: Callable[[Any], None]


class SimProcess:
    """A process in a container, from its start to its end."""

    role: Role

    def __init__(self, job: SimJob, container_id: str, address: Address) -> None:
        self.job = job
        self.net = job.net
        self.container_id = container_id
        self.address = address
        self.name: MemberId = ""
        self.alive = True
        self.outgoing: dict[int, Outgoing] = {}
        self._next_uid = 0
        self.tick()

    # ---- life

    def tick(self) -> None:
        if not self.alive:
            return
        if not self.name:
            registered = e.MemberRegistered(self.container_id, self.address, 1)
            self.net.send(lambda: self.job.on_event(registered))
        else:
            for waiting in list(self.outgoing.values()):
                if self.net.now_s - waiting.sent_s >= PATIENCE_S:
                    self.send_again(waiting)
            self.on_tick()
        self.net.after(TICK_S, self.tick)

    def on_tick(self) -> None:
        """Say again what the role has not got an answer to."""

    def on_name(self, name: MemberId) -> None:
        if self.alive and not self.name:
            self.name = name
            self.on_named()

    def on_named(self) -> None:
        raise NotImplementedError

    def end(self, reason: str) -> None:
        if self.alive:
            self.alive = False
            self.outgoing.clear()
            self.net.after(0.01, lambda: self.job.on_process_ended(self.container_id, reason))

    # ---- control plane

    def receive(self, order: m.Order) -> None:
        if not self.alive or not self.name:
            return
        self.job.note(self.name, order)
        if isinstance(order, m.Shutdown):
            self.before_end(order.reason)
            self.end("ended")
        else:
            self.on_order(order)

    def before_end(self, reason: str) -> None:
        """Check what must be true of a process that is told to end."""

    def on_order(self, order: m.Order) -> None:
        raise NotImplementedError

    def report(self, report: m.Report) -> None:
        self.net.send(lambda: self.job.on_event(e.ReportReceived(report)))

    # ---- data plane

    def ask(self, address: Address, body: object, on_answer: Callable[[Any], None]) -> Outgoing:
        """Send a request, again and again until it is answered."""
        self._next_uid += 1
        waiting = Outgoing(Request(self, self._next_uid, body), address, 0.0, on_answer)
        self.outgoing[waiting.request.uid] = waiting
        self.send_again(waiting)
        return waiting

    def tell(self, address: Address, body: object) -> None:
        """Send a request once; somebody else sees to it that it is sent again."""
        request = Request(self, 0, body)
        self.net.send(lambda: self.job.deliver(address, request))

    def send_again(self, waiting: Outgoing) -> None:
        waiting.sent_s = self.net.now_s
        request, address = waiting.request, waiting.address
        self.net.send(lambda: self.job.deliver(address, request))

    def on_request(self, request: Request) -> None:
        raise NotImplementedError

    def answer(self, request: Request, reply: object) -> None:
        sender, uid = request.sender, request.uid
        self.net.send(lambda: sender.on_reply(uid, reply))

    def on_reply(self, uid: int, reply: object) -> None:
        waiting = self.outgoing.get(uid) if self.alive else None
        if waiting is None:
            return
        if self.rerouted(waiting, reply):
            return
        del self.outgoing[uid]
        waiting.on_answer(reply)

    def rerouted(self, waiting: Outgoing, reply: object) -> bool:
        """Whether the reply means that the request must go elsewhere; if so, it is on its way."""
        return False


class Stream:
    """Messages to one follower: the next leaves when the one before is acknowledged."""

    def __init__(self, process: SimProcess, address: Address) -> None:
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
                assert isinstance(reply, Done), reply
                done()
                self._next()

            self._head = self._process.ask(self._address, body, answered)

    def stop(self) -> None:
        self._queue.clear()
        if self._head is not None:
            self._process.outgoing.pop(self._head.request.uid, None)
            self._head = None
