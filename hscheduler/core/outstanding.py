"""Which orders a job was given and has not answered yet: what a scheduler that was started again gives once more.

Orders are numbered as they are given, so that an order that is given twice can be known as one.

Source: style section 16 (events in, commands out; whatever is repeated has an identity).
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
        #: A checksum of all of them: others, though as many, have another one.
        self.checksum = 0
        self._orders: dict[str, list[Numbered]] = {}
        #: Jobs that have been started and have not ended.
        self._there: set[str] = set()
        #: Job -> container that it is to release -> the number of that order.
        self._to_release: dict[str, dict[str, int]] = {}

    def take(self, event: e.Event, commands: Sequence[e.Command]) -> list[Numbered]:
        """Take what an event answered, and the commands that it brought; return the orders among them."""
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
        """Return the orders that a job has not answered, oldest first."""
        return list(self._orders.get(job_id, ()))

    def there(self) -> list[str]:
        """Return the jobs that may have processes, or are about to: those with a start that has not ended."""
        return sorted(self._there | {job_id for job_id, orders in self._orders.items() if orders})

    def has_started(self, job_id: str) -> bool:
        """Return whether a job has said that it started, and not that it ended since."""
        return job_id in self._there

    def _answered(self, event: e.Event) -> None:
        match event:
            case e.JobStarted(job_id):
                self._there.add(job_id)
                self._drop(job_id, e.StartJob)
            case e.GrowthDone(job_id) | e.GrowthFailed(job_id, _, _):
                self._drop(job_id, e.GrowJob)
            case e.ContainersGone(job_id, containers) | e.ShrinkFailed(job_id, containers, _):
                # A shrink is answered container by container.
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
        """Drop the first order of a kind: a job answers in the order in which it was told."""
        orders = self._orders.get(job_id, [])
        for at, (_, order) in enumerate(orders):
            if isinstance(order, kind):
                del orders[at]
                return


def _told(order: e.Order) -> bytes:
    """Return what an order is; why it is given may be said in other words."""
    return repr(replace(order, why="") if isinstance(order, e.EndJob) else order).encode()
