"""Jobs whose containers are to be taken away at the steps of their plans, and mostly are."""

from __future__ import annotations

from typing import Any

from eps.core import events as e
from eps.core.reconfig import Phase
from eps.core.types import Role
from tests.sim.job import TAKEN, SimJob

#: Deadlines: none at all, shorter than most drains, about as long, long enough, and never reached.
DEADLINES_S = (0.0, 0.05, 0.4, 2.0, 10.0, 1000.0)
#: A warning comes within this time after the step for which it was drawn.
WARNED_WITHIN_S = 0.1


class EvictingJob(SimJob):
    """A job some of whose containers are taken away after a warning: of members, of newcomers, of who leaves already.

    Parameters
    ----------
    warnings : float
        Probability of an announced eviction after a step of a plan, or between two.
    most : int
        Limit of announcements.
    deadlines_s : tuple of float, seconds
        Deadlines to draw from.
    """

    def __init__(
        self,
        *details: Any,
        warnings: float = 0.4,
        most: int = 5,
        deadlines_s: tuple[float, ...] = DEADLINES_S,
        **more: Any,
    ) -> None:
        super().__init__(*details, **more)
        self._warnings = warnings
        self._most = most
        self._deadlines_s = deadlines_s
        self._step = ""

    def on_event(self, event: e.Event) -> None:
        super().on_event(event)
        driver = self.master.plans.flight.driver
        recovers = self.master.recovery.inquiry is not None
        step = f"{driver.plan.change.operation} {driver.plan.phase}" if driver is not None else f"recovers {recovers}"
        number = driver.plan.plan_id if driver is not None else 0
        if self._step == f"{number} {step}":
            return
        self._step = f"{number} {step}"
        if self.master.looks_for_room and self.chance(0.5):
            self.at(self.share(), self._see_room)
        # Most plans are aborted for a drain while they can be.
        early = driver is None or driver.plan.phase in (Phase.PROPOSED, Phase.PREPARED)
        if self._most and self.chance(self._warnings * (0.25 if early else 1.0)):
            self._most -= 1
            delay_s = self.share() * self._random.choice((0.0, WARNED_WITHIN_S))
            self.at(delay_s, lambda: self._announce(step))

    def _announce(self, step: str) -> None:
        here = sorted(set(self._requested) - self._exited)
        if not here:
            return
        self.count(step)
        count = min(len(here), self._random.choice((1, 1, 2, 3, len(here))))
        deadlines_s = {c: self._random.choice(self._deadlines_s) for c in self._random.sample(here, count)}
        # A container that has ended is not announced, although the messages may cross.
        deadlines_s.update(dict.fromkeys(sorted(self._exited)[-1:], 1.0))
        self.warn(deadlines_s)
        if self.chance(0.3):
            self.at(self.share(), lambda: self.warn(dict.fromkeys(deadlines_s, 1000.0)))
        # An announced eviction is not always carried out.
        for container_id, deadline_s in deadlines_s.items() if self.chance(0.8) else ():
            self.at(deadline_s, lambda c=container_id: self.take_away(c))

    def _see_room(self) -> None:
        """Report free capacity, whether or not the job still looks for it."""
        self.count("room")
        self._on_container(e.RoomSeen({role: self._random.randint(0, 2) for role in Role}))

    def warn(self, deadlines_s: dict[str, float]) -> None:
        """Announce the eviction of containers together, often for other applications."""
        warnings = tuple(
            e.ContainerWarning(c, deadline_s, for_others=self.chance(0.5)) for c, deadline_s in deadlines_s.items()
        )
        self._on_container(e.ContainersWarned(warnings))

    def take_away(self, container_id: str) -> None:
        """End a container with all processes in it."""
        if container_id in self._exited:
            return
        self.count("taken away")
        processes = self.inside(container_id)
        if not processes:
            self.on_process_ended(container_id, TAKEN)
        for process in processes:
            process.end(TAKEN)
