"""A job whose master dies at random moments and is restored from its log.

In the lossy mode the master dies before it executes the commands of its last event, so the restored state lacks their
effects.  Members register again, as the real ones do with the next master.  Clients without an answer repeat their
request.  The restored state knows the orders that members report as received.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eps.core import events as e
from eps.core.job import Job
from eps.core.members import container_of
from eps.master.state_log import StateLog
from tests.sim.job import SimJob
from tests.sim.process import SimProcess

#: Members find the next master within this time.
FIND_S = 0.2
#: Masters that die in one job.  Each message that members repeat after a death may cause the next: with many
#: members, deaths would never end.
MOST_DEATHS = 40


class MortalJob(SimJob):
    """A job whose every event is logged.

    Parameters
    ----------
    directory : Path
        Of the log.
    deaths : float
        Probability that the master dies at an event.
    lossy : bool
        It dies before it executes its commands, and the next one is told so.  Otherwise the state alone is replaced, in
        the middle of everything, and nobody may notice.
    """

    def __init__(self, *details: Any, directory: Path, deaths: float, lossy: bool, **more: Any) -> None:
        super().__init__(*details, **more)
        self._directory = directory
        self._deaths = deaths
        self._lossy = lossy
        self._log = StateLog(directory, snapshot_events=20)
        self._begun = False
        self._registered: dict[str, e.MemberRegistered] = {}
        #: Generation and step of the last order of each container.
        self._heard: dict[str, tuple[int, int]] = {}

    def run(self, limit_s: float = 120.0) -> None:
        """Run the job to its end, and close its log."""
        try:
            super().run(limit_s)
        finally:
            self._log.close()

    def _execute(self, commands: Sequence[e.Command]) -> None:
        if not self._begun:
            self._begun = True
            self._log.begin(self.master, self.net.now_s)
        super()._execute(commands)

    def on_event(self, event: e.Event) -> None:
        """Log it; then let the master take it in, or die with it."""
        self._record(event)
        if isinstance(event, e.MemberRegistered):
            last = self._registered.get(event.seat)
            if last is not None and last.address != event.address:
                # The process of a host has begun another member, which has heard nothing.
                self._heard.pop(event.seat, None)
            self._registered[event.seat] = event
        dies = self.counted["master died"] < MOST_DEATHS and self.chance(self._deaths)
        if dies and self._lossy:
            self.note("master", event)
            self.note("master", "dies")
            self.master.step(event, self.net.now_s)
            self._take_over(event)
            if isinstance(event, e.ChangeRequested | e.CancelRequested):
                self.on_event(event)
            return
        super().on_event(event)
        self._keep_short()
        if dies:
            # Not in the middle of an event: commands of one may cause the next.
            self.net.after(0.0, self._restore)

    def _record(self, event: e.Event) -> None:
        self._log.record(event, self.net.now_s)
        assert not self._log.error

    def _keep_short(self) -> None:
        keep_short(self._log, self.master, self.net.now_s)

    def _restore(self) -> None:
        """Put the state that the log says in the place of the master's; they are the same."""
        restored = self._logged()
        assert_same(restored, self.master)
        self.master = restored

    def _logged(self) -> Job:
        """Return the state that the log says to the next master."""
        self.count("master died")
        self._log.close()
        self._log = StateLog(self._directory, snapshot_events=20)
        restored = self._log.restore()
        assert restored is not None and restored.now_s <= self.net.now_s
        return restored.state

    def _take_over(self, last: e.Event) -> None:
        self._restore()
        running = {container_of(seat): 1 for seat, process in self.processes.items() if process.alive}
        if isinstance(last, e.ContainerLaunched):
            # Here the process begins when its launch has been said.
            running[last.container_id] = 1
        self.on_event(e.MasterRestarted(self.master.masters.generation + 1, running))
        for seat in [seat for seat in self._registered if container_of(seat) in running]:
            registered = self._registered.get(seat)
            if registered is not None:
                generation, step = self._heard.get(seat, (0, 0))
                again = replace(registered, heard_generation=generation, heard_step=step)
                self.net.after(self.share() * FIND_S, lambda r=again: self._register_again(r))

    def heard_by(self, process: SimProcess) -> tuple[int, int]:
        return self._heard.get(process.seat, (0, 0))

    def _register_again(self, registered: e.MemberRegistered) -> None:
        process = self.processes[registered.seat]
        if process.alive and process.address == registered.address:
            self.on_event(registered)

    def _tell(self, seat: str, act: Callable[[SimProcess], None]) -> None:
        record = self.master.members.by_seat.get(seat)
        # Orders also go to processes that have not found this master yet: those do not receive them.
        if record is not None and record.generation == self.master.masters.generation:
            # Before it is there.
            self._heard[seat] = self.master.masters.generation, self.master.masters.steps
        super()._tell(seat, act)

    def _grant(self, container_id: str) -> None:
        # What was asked before the master died is granted all the same.
        if container_id not in self._granted_once:
            self._granted_once.add(container_id)
            super()._grant(container_id)

    @property
    def _granted_once(self) -> set[str]:
        return self.__dict__.setdefault("granted_once", set())


def keep_short(log: StateLog, state: Job, now_s: float) -> None:
    """Take a snapshot where one is due, as a master does between two events."""
    parts = log.due(state, now_s)
    if parts is not None:
        log.shorten(parts, now_s)


def assert_same(restored: Job, lived: Job) -> None:
    """Assert that two states are equal in everything, and that what is one object in one is one in the other."""
    _assert_equal("job", restored, lived)
    for member in restored.members.by_name.values():
        assert restored.members.by_seat[member.seat] is member
    for plan in restored.plans.queue:
        assert restored.plans.all[plan.plan_id] is plan
    if restored.plans.flight.driver is not None:
        assert restored.plans.all[restored.plans.flight.driver.plan.plan_id] is restored.plans.flight.driver.plan


def _assert_equal(what: str, ours: object, theirs: object) -> None:
    """Assert that two values are equal: a part in all that it has."""
    if type(ours).__eq__ is not object.__eq__ or not hasattr(ours, "__dict__"):
        assert ours == theirs, f"{what}: {ours} is not {theirs}"
        return
    mine, other = vars(ours), vars(theirs)
    assert mine.keys() == other.keys(), what
    for name in mine:
        _assert_equal(f"{what}.{name}", mine[name], other[name])
