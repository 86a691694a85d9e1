"""What a simulated server and worker have in common: a container, a name, orders, reports and an end.

How messages travel is left to :mod:`tests.sim.hostile` and :mod:`tests.sim.faithful`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eps.core import messages as m
from eps.core.types import Address, MemberId, Role

if TYPE_CHECKING:
    from tests.sim.job import SimJob


class SimProcess:
    """A process in a container, from its start to its end."""

    role: Role

    def __init__(self, job: SimJob, seat: str, address: Address) -> None:
        self.job = job
        self.net = job.net
        #: Its container, with its role if it shares that.
        self.seat = seat
        self.address = address
        self.name: MemberId = ""
        #: All names that it was told; it keeps the first, and takes orders for each.
        self.names: set[MemberId] = set()
        self.alive = True
        self.start()

    # ---- life

    def start(self) -> None:
        """Register with the master."""
        raise NotImplementedError

    def on_name(self, name: MemberId) -> None:
        self.names.add(name)
        if self.alive and not self.name:
            self.name = name
            self.on_named()

    def on_named(self) -> None:
        raise NotImplementedError

    def end(self, reason: str) -> None:
        """End at once; the master hears of it from the resource manager."""
        if self.alive:
            self.vanish()
            self.net.after(0.01, lambda: self.job.on_process_ended(self.seat, reason))

    def vanish(self) -> None:
        """Crash without a message."""
        self.alive = False

    # ---- control plane

    def deliver(self, action: Callable[[], None]) -> None:
        """Let something that the master says arrive here."""
        raise NotImplementedError

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
        """Check what must be true of a process that gets the order to end."""

    def on_order(self, order: m.Order) -> None:
        raise NotImplementedError

    def report(self, report: m.Report) -> None:
        raise NotImplementedError

    # ---- data plane

    def asks(self, address: Address) -> bool:
        """Return whether this process waits for an answer from there."""
        raise NotImplementedError

    def on_request(self, body: object, reply: Callable[[Any], None]) -> None:
        """Take a request; ``reply`` is called at most once."""
        raise NotImplementedError
