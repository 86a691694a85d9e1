"""Orders that jobs have not answered yet; a restarted scheduler sends them again.

Each order has a number, so that a job recognises an order that it gets twice.

Source: style section 16 (events in, commands out; what is repeated has an identity).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

from hscheduler.core import events as e

Numbered = tuple[int, e.Order]


class Outstanding:
    """The orders of all jobs, from the events and commands of the scheduler's state."""

    def __init__(self) -> None:
        self.given = 0
        #: Checksum of all orders so far: tells different sequences of the same length apart.
        self.checksum = 0
        self._orders: dict[str, list[Numbered]] = {}
        #: Jobs that have started and have not ended.
        self._there: set[str] = set()
        #: Job -> container to release -> number of the order.
        self._to_release: dict[str, dict[str, int]] = {}

    def take(self, event: e.Event, commands: Sequence[e.Command]) -> list[Numbered]:
        """Drop the orders that an event answers, and add those among its commands; return the new ones."""
        self._answered(event)
        new = []
        for command in commands:
            if isinstance(command, e.Order):
                self.given += 1
                self.checksum = zlib.crc32(_told(command), self.checksum)
                new.append((self.given, command))
                self._orders.setdefault(command.job_id, []).append(new[-1])
                if isinstance(command, e.ShrinkJob):
                    releases = self._to_release.setdefault(command.job_id, {})
                    releases.update(dict.fromkeys(command.containers, self.given))
        return new

    def of(self, job_id: str) -> list[Numbered]:
        """Return the unanswered orders of a job, oldest first."""
        return list(self._orders.get(job_id, ()))

    def there(self) -> list[str]:
        """Return the jobs that may have processes: they have started, or have unanswered orders."""
        return sorted(self._there | {job_id for job_id, orders in self._orders.items() if orders})

    def has_started(self, job_id: str) -> bool:
        """Return whether a job has reported its start and not its end."""
        return job_id in self._there

    def _answered(self, event: e.Event) -> None:
        match event:
            case e.JobStarted(job_id):
                self._there.add(job_id)
                self._drop(job_id, e.StartJob)
            case e.GrowthDone(job_id) | e.GrowthFailed(job_id, _, _):
                self._drop(job_id, e.GrowJob)
            case e.ContainersGone(job_id, containers) | e.ShrinkFailed(job_id, containers, _):
                # A job answers a shrink container by container.
                left = self._to_release.get(job_id, {})
                for container_id in containers:
                    number = left.pop(container_id, None)
                    if number is not None and number not in left.values():
                        self._orders[job_id] = [each for each in self._orders[job_id] if each[0] != number]
            case e.JobEnded(job_id, _, _):
                self._there.discard(job_id)
                self._orders.pop(job_id, None)
                self._to_release.pop(job_id, None)

    def _drop(self, job_id: str, kind: type[e.Order]) -> None:
        """Drop the first order of a kind: a job answers orders in the order in which it got them."""
        orders = self._orders.get(job_id, [])
        for at, (_, order) in enumerate(orders):
            if isinstance(order, kind):
                del orders[at]
                return


def _told(order: e.Order) -> bytes:
    """Return the content of an order for the checksum, without the wording of its reason."""
    return repr(replace(order, why="") if isinstance(order, e.EndJob) else order).encode()
