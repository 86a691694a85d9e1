"""Jobs whose members crash at the steps of their plans."""

from __future__ import annotations

from typing import Any

from eps.core import events as e
from eps.core.types import MemberId
from tests.sim.job import SimJob

#: A crash happens within this time after the step for which it was drawn, perhaps in the middle of its effects.
CRASH_WITHIN_S = 0.1


class CrashingJob(SimJob):
    """A job whose plans lose members as they go on: those that come, that leave and that only take part.

    Parameters
    ----------
    crashes : float
        Probability of a crash after a step of a plan.
    most : int
        Limit of crashes: a job fails after many without a completed clock in between.
    """

    def __init__(self, *details: Any, crashes: float = 0.4, most: int = 5, **more: Any) -> None:
        super().__init__(*details, **more)
        self._crashes = crashes
        self._most = most
        self._step: tuple[int, str] = (0, "")

    def on_event(self, event: e.Event) -> None:
        super().on_event(event)
        driver = self.master.plans.flight.driver
        if driver is None or self._step == (driver.plan.plan_id, driver.plan.phase):
            return
        self._step = driver.plan.plan_id, driver.plan.phase
        here = [n for n in driver.concerned if n in self._named and self.process_of(n).alive]
        if self._most and here and self.chance(self._crashes):
            self._most -= 1
            name, delay_s = self._random.choice(here), self.share() * self._random.choice((0.0, CRASH_WITHIN_S))
            what = f"{driver.plan.change.operation} {driver.plan.phase}"
            self.at(delay_s, lambda: self._crash(name, what))

    def _crash(self, name: MemberId, what: str) -> None:
        if self.process_of(name).alive:
            self.count(what)
            self.kill(name)
