"""Apply the events of a schedule to one running job, each at its clock."""

from __future__ import annotations

import signal
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from eps.core.reconfig import Operation
from eps.errors import DeadlineError, EpsError, JobFinishedError, PeerUnavailableError
from eps.job.client import Job
from eps.system import interrupt
from tools.chaos.evictor import announce
from tools.chaos.processes import master_pid, send
from tools.chaos.schedule import NETWORK_KINDS, ChaosEvent, Kind

#: Interval at which the job's clock is queried.
LOOK_S = 0.02
#: Timeout of a query: a master that was just killed does not answer; the last status is used then.
PATIENCE_S = 0.4
#: Time for which a change is retried while no master answers.
CHANGE_TIMEOUT_S = 20.0
#: Time for a job to end after its supervisor was killed.
ENDED_S = 15.0
#: With this many members of a role or fewer, one is added instead of removed.
FEWEST = 2


class Network(Protocol):
    """Delays or drops the packets of processes."""

    def disturb(self, kind: Kind, pid: int) -> None:
        """Begin to delay or drop the packets of a process."""

    def refresh(self) -> None:
        """Include new connections of the disturbed processes."""

    def calm(self, pid: int) -> None:
        """Stop to delay or drop the packets of a process."""


@dataclass
class _Pending:
    """A change of size that no master has accepted yet."""

    event: ChaosEvent
    operation: Operation
    request_id: str
    give_up_s: float


class Player:
    """Plays one schedule against one job.

    Parameters
    ----------
    job : Job
    events : sequence of ChaosEvent
        Sorted by clock.
    most : mapping
        Role -> largest number of members.
    network : Network, optional
        Needed for delays and partitions.
    """

    def __init__(self, job: Job, events: Sequence[ChaosEvent], most: dict[str, int], network: Network | None) -> None:
        #: The job; replaced by a new object after a resume.
        self.job = job
        self._events = list(events)
        self._most = most
        self._network = network
        # A second client, which does not wait for the next master.
        self._watch = Job(job.directory, patience_s=PATIENCE_S)
        self._status: dict[str, Any] = {}
        #: The highest clock seen, so that a rollback does not repeat events.
        self._clock = -1
        self._until: list[tuple[float, ChaosEvent, int]] = []
        self._pending: list[_Pending] = []
        self._hit: set[int] = set()
        #: ``KIND-ROLE`` -> number of events.
        self.done: Counter[str] = Counter()
        self.refused = 0
        #: A sentence for each event, with the job's clock.
        self.story: list[str] = []

    def run(self, deadline_s: float) -> bool:
        """Apply events until the job has ended; return False if ``time.monotonic()`` reaches ``deadline_s`` first."""
        try:
            while self.job.running:
                interrupt.check()
                if time.monotonic() >= deadline_s:
                    return False
                self._look()
                self._end_what_is_over()
                self._ask_again()
                while self._events and self._events[0].clock <= self._clock:
                    self._play(self._events.pop(0))
                if self._network is not None:
                    self._network.refresh()
                time.sleep(LOOK_S)
            return True
        finally:
            self._watch.close()
            if self._network is not None:
                for _, event, pid in self._until:
                    if event.kind in NETWORK_KINDS:
                        self._network.calm(pid)

    def _look(self) -> None:
        with suppress(PeerUnavailableError, DeadlineError):
            self._status = self._watch.status(timeout_s=2.0)
            if self._status["state"] == "running":
                self._clock = max(self._clock, self._status["clock"])

    def _alive(self, role: str) -> list[dict[str, Any]]:
        members = [m for m in self._status.get("members", []) if m["role"] == role and m["pid"] and m["host"]]
        return [m for m in members if m["pid"] not in self._hit]

    def _play(self, event: ChaosEvent) -> None:
        if event.kind in (Kind.ADD, Kind.REMOVE):
            self._change(event)
            return
        if event.kind is Kind.RESUME:
            self._resume(event)
            return
        if event.kind is Kind.EVICT:
            self._evict(event)
            return
        name, pid = self._victim(event)
        if not pid:
            self._refuse(event, "there is no such process")
            return
        if event.kind in NETWORK_KINDS:
            assert self._network is not None
            self._network.disturb(event.kind, pid)
        elif not send(self.job.directory, pid, signal.SIGKILL if event.kind is Kind.KILL else signal.SIGSTOP):
            self._refuse(event, f"{name} has ended already")
            return
        if event.kind is Kind.KILL or (event.kind is Kind.STOP and event.lasts_s is None):
            self._hit.add(pid)
        elif event.lasts_s is not None:
            self._until.append((time.monotonic() + event.lasts_s, event, pid))
        self._note(event, f"{event.kind} {name}, process {pid}")

    def _evict(self, event: ChaosEvent) -> None:
        alive = self._alive(event.role)
        if not alive:
            self._refuse(event, "there is no such process")
            return
        member = alive[event.place % len(alive)]
        announce(self.job.directory.path, [member["container"]], event.lasts_s or 0.0)
        self._note(event, f"the container of {member['name']} is to be taken away")

    def _resume(self, event: ChaosEvent) -> None:
        """Kill the supervisor, which ends all processes of the job, and resume the job."""
        if not self.job.running:
            self._refuse(event, "there is no such process")
            return
        self.job.kill_at_once()
        try:
            self.job.wait(ENDED_S)
        except DeadlineError as error:
            # If it never ends, the time limit of the job finds that.
            self._refuse(event, str(error))
            return
        self._watch.close()
        self.job.close()
        begun: list[str] = []
        try:
            self.job = Job.resume(self.job.name, on_begin=lambda text, _: begun.append(text))
        except JobFinishedError:
            # It had just finished.
            self._refuse(event, "the job has finished")
        else:
            self._note(event, f"{event.kind} after SIGKILL of the supervisor; {begun[0]}")
        finally:
            self._watch = Job(self.job.directory, patience_s=PATIENCE_S)
        self._status = {}

    def _victim(self, event: ChaosEvent) -> tuple[str, int]:
        if event.role == "master":
            pid = master_pid(self.job.directory)
            return ("master", pid) if pid not in self._hit else ("master", 0)
        alive = self._alive(event.role)
        if not alive:
            return event.role, 0
        victim = alive[event.place % len(alive)]
        return str(victim["name"]), int(victim["pid"])

    def _note(self, event: ChaosEvent, text: str) -> None:
        self.done[f"{event.kind}-{event.role}"] += 1
        lasts = (
            f" {'in' if event.kind is Kind.EVICT else 'for'} {event.lasts_s:g} s" if event.lasts_s is not None else ""
        )
        self.story.append(f"at clock {self._clock}: {text}{lasts}")

    def _refuse(self, event: ChaosEvent, why: str) -> None:
        self.refused += 1
        self.story.append(f"at clock {self._clock}: no {event.kind} of a {event.role}: {why}")

    def _end_what_is_over(self) -> None:
        now_s = time.monotonic()
        for entry in [entry for entry in self._until if entry[0] <= now_s]:
            self._until.remove(entry)
            _, event, pid = entry
            if event.kind is Kind.STOP:
                send(self.job.directory, pid, signal.SIGCONT)
            elif self._network is not None:
                self._network.calm(pid)

    # ---- changes of size

    def _change(self, event: ChaosEvent) -> None:
        count = len(self._alive(event.role))
        adds = event.kind is Kind.ADD
        if adds and count >= self._most[event.role]:
            adds = False
        elif not adds and count <= FEWEST:
            adds = True
        operation = Operation(f"{'add' if adds else 'remove'}-{event.role}s")
        pending = _Pending(event, operation, uuid.uuid4().hex, time.monotonic() + CHANGE_TIMEOUT_S)
        if not self._ask(pending):
            self._pending.append(pending)

    def _ask_again(self) -> None:
        self._pending = [pending for pending in self._pending if not self._ask(pending)]

    def _ask(self, pending: _Pending) -> bool:
        """Request a change; return False if it must be retried."""
        event, operation = pending.event, pending.operation
        try:
            self._watch.change(operation, 1, wait=False, request_id=pending.request_id)
        except (PeerUnavailableError, DeadlineError) as error:
            if time.monotonic() < pending.give_up_s:
                return False
            self._refuse(event, str(error))
        except EpsError as error:
            self._refuse(event, str(error))
        else:
            kind = Kind.ADD if operation.adds else Kind.REMOVE
            self._note(ChaosEvent(event.clock, kind, event.role, event.place), str(operation))
        return True
