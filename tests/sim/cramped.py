"""Jobs that are granted no container beyond the room that they have, of which others take some."""

from __future__ import annotations

from typing import Any

from eps.core.types import MemberId, Role
from tests.sim.evicting import EvictingJob
from tests.sim.job import TAKEN


class CrampedJob(EvictingJob):
    """A job whose requests wait for the end of one of its own containers.

    Parameters
    ----------
    room : int
        Containers that may be there at once.
    """

    def __init__(self, *details: Any, room: int, **more: Any) -> None:
        super().__init__(*details, warnings=0.0, **more)
        self._room = room
        self._waiting: list[str] = []
        self._there: set[str] = set()
        #: The fewest workers and servers that any membership had.
        self.fewest = dict.fromkeys(Role, room)

    def _grant(self, container_id: str) -> None:
        self._waiting.append(container_id)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and len(self._there) < self._room:
            self._there.add(self._waiting[0])
            super()._grant(self._waiting.pop(0))

    def on_process_ended(self, container_id: str, reason: str) -> None:
        """Let whoever waits have the room, as far as it is still the job's."""
        super().on_process_ended(container_id, reason)
        if container_id in self._waiting:
            self._waiting.remove(container_id)
        self._there.discard(container_id)
        self._serve()

    def take_room(self, names: tuple[MemberId, ...], deadline_s: float | None) -> None:
        """Give the room of members to others, for good; announced so long before, or not at all."""
        containers = [self.master.members[name].container_id for name in names]
        if deadline_s is not None:
            self.warn(dict.fromkeys(containers, deadline_s))
        self.at(deadline_s or 0.0, lambda: self._take(containers))

    def _take(self, containers: list[str]) -> None:
        # Whoever has left by then has given as much.
        self._room -= len(containers)
        for container_id in containers:
            if container_id not in self._exited:
                self.processes[container_id].end(TAKEN)

    def _check_copies(self) -> None:
        super()._check_copies()
        assert self.master.membership is not None
        for role in Role:
            self.fewest[role] = min(self.fewest[role], len(self.master.membership.of_role(role)))
