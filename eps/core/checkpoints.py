"""Checkpoints of a job while it trains, and the export of its model at the end.  Pure.

A checkpoint is the state of every partition at one clock.  It is ordered for a clock beyond the horizon, which no
worker has started: so no worker has to wait.  Each server copies a partition when the partition reaches the clock, and
writes the copy while training continues.  A server that is already past the clock reports so, and the checkpoint is
skipped.  Only one is written at a time; those that come due meanwhile are skipped, not queued.  When the containers of
all servers are about to be preempted, an extra checkpoint is taken: if no replacement comes in time, the job rolls
back to it.

Under SSP and ASP partitions have no common clock.  Each is copied once every split has contributed the clocks before,
and records for each split what was applied.  A resumed job begins at the smallest of these clocks, and servers refuse
what they have already applied.  Deviation: not a snapshot of one moment, but nothing is lost or applied twice.

Source: design section 4 ("a checkpoint is a follower that writes to storage"); Elnozahy et al., "A survey of
rollback-recovery protocols" (2002), section 2.2: coordinated and non-blocking.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from eps.core import events as e
from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.recovery import RestorePoint
from eps.core.types import MemberId, Role

#: An order is resent to the owners of missing parts after this time.
RESEND_S = 1.0
#: A checkpoint fails if it is incomplete this long after its clock: a server that should write it is lost.
PATIENCE_S = 600.0
#: The command to finish a checkpoint is repeated after this time, because a restarted job master does not know it.
FINISH_AGAIN_S = 30.0
#: A failed checkpoint before a preemption of all servers is ordered again after this time.
HURRY_AGAIN_S = 1.0
#: How many outcomes the report keeps, the latest; the counts include all.
MOST_OUTCOMES = 100


def checkpoint_name(epoch: int, clock: int) -> str:
    """Return the name of a checkpoint; names sort by epoch, then clock."""
    return f"{epoch:04d}-{clock:08d}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """When checkpoints are due: at an interval in clocks or seconds, or at certain clocks and in seconds; or never."""

    clocks: int = 0
    seconds: float = 0.0
    #: Ascending.
    at: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.clocks or self.seconds or self.at)

    def next_clock(self, after: int, first: int) -> int | None:
        """Return the clock of the next checkpoint; None if there is none.

        Parameters
        ----------
        after : int
            Clock of the one before.
        first : int
            First possible clock.  A clock of :attr:`at` that is missed moves here.
        """
        if self.clocks:
            return -(-max(first, after + 1) // self.clocks) * self.clocks
        return next((max(first, clock) for clock in self.at if clock > after), None)


@dataclass(frozen=True, slots=True)
class CheckpointOutcome:
    """The result of a checkpoint."""

    clock: int
    #: ``complete``, ``skipped`` or ``failed``.
    state: str
    reason: str = ""
    size_bytes: int = 0
    #: From its order to its end.
    seconds: float = 0.0


Part = TypeVar("Part", m.CheckpointPartWritten, m.CutStaged)


@dataclass
class Ordered(Generic[Part]):
    """A checkpoint or a cut whose partitions the servers were ordered to copy."""

    number: int
    clock: int
    parts: dict[int, Part] = field(default_factory=dict)
    #: When every split had contributed the clocks before.
    reached_s: float = math.inf
    #: The membership version whose servers received the order, and when.
    _version: int = 0
    _sent_s: float = 0.0

    def note(self, completed: int, now_s: float) -> None:
        """Note the first incomplete clock."""
        if completed > self.clock:
            self.reached_s = min(self.reached_s, now_s)

    def missing(self, num_partitions: int) -> list[int]:
        """Return the partitions that are not copied yet."""
        return [p for p in range(num_partitions) if p not in self.parts]

    def receivers(self, membership: Membership, now_s: float) -> Sequence[MemberId]:
        """Return to whom the order is sent now: to all servers of a new membership, then to owners of missing parts."""
        is_new = membership.version != self._version
        if not is_new and now_s - self._sent_s < RESEND_S:
            return ()
        self._version, self._sent_s = membership.version, now_s
        owners = membership.partitions.owners
        return membership.servers if is_new else sorted({owners[p] for p in self.missing(len(owners))})


@dataclass
class Pending(Ordered[m.CheckpointPartWritten]):
    """The checkpoint that is being written."""

    ordered_s: float = 0.0
    #: When the command to finish it was given.
    finishing_s: float | None = None
    #: Which server waits for the checkpoint storage, and why; cleared when a part is written.
    waits: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointContext:
    """The facts about a job that checkpoints depend on, at one moment."""

    membership: Membership
    horizon: int
    #: How many clocks beyond the fastest worker are granted.
    lookahead: int
    completed: int
    #: Time of the latest warning if the containers of all servers are about to be preempted, else None.
    servers_warned_s: float | None
    #: The job's requested size, all pending changes included; on two tiers, all containers and the reliable ones.
    size: Mapping[Role, int]


@dataclass
class Timetable:
    """Decides when the next checkpoint is due, and at which clock."""

    schedule: Schedule
    #: Clocks that the job trains.
    iterations: int
    #: The last clock at which one was ordered or skipped, and when.
    _considered: int = 0
    _last_s: float | None = None
    #: When the last one was ordered, and when the latest complete one was.
    _ordered_s: float = -math.inf
    _complete_s: float = -math.inf

    def begin(self, clock: int, now_s: float) -> None:
        """Restart the schedule at a clock."""
        self._considered, self._last_s = clock, now_s

    def completed(self, ordered_s: float) -> None:
        """Record the order time of the latest complete checkpoint."""
        self._complete_s = ordered_s

    def due(self, job: CheckpointContext, now_s: float, *, writes: bool) -> int | None:
        """Return the clock of a checkpoint that is due, or None.

        Parameters
        ----------
        job : CheckpointContext
        writes : bool
            Whether one is being written: then the due one is skipped.
        """
        if not self.schedule:
            return None
        if self._last_s is None:
            self._last_s = now_s
        hurries = not writes and self._hurries(job.servers_warned_s, now_s)
        clock = self._clock(job, now_s, hurries=hurries)
        if clock is not None:
            self._considered, self._last_s = clock, now_s
            self._ordered_s = self._ordered_s if writes else now_s
        return clock

    def due_s(self, job: CheckpointContext) -> float:
        """Return when the next checkpoint is due if no event comes before; infinity if none will be."""
        if not self.schedule:
            return math.inf
        if self._last_s is None:
            return -math.inf
        if self._clock(job, self._last_s, hurries=False) is not None:
            return -math.inf
        return self._last_s + (self.schedule.seconds or math.inf)

    def _hurries(self, warned_s: float | None, now_s: float) -> bool:
        """Return whether to order one at once, because all servers are about to be preempted.

        Derived from the warnings, so it stays true until a checkpoint ordered after them is complete, or until a server
        without a warning joins.  A checkpoint that is being written finishes first.
        """
        if warned_s is None or self._complete_s >= warned_s:
            return False
        # A checkpoint that cannot be written now is not tried at every clock.
        return self._ordered_s < warned_s or now_s - self._ordered_s >= HURRY_AGAIN_S

    def _clock(self, job: CheckpointContext, now_s: float, *, hurries: bool) -> int | None:
        """Return the clock for a checkpoint that is ordered now, or None.

        The clock lies one lookahead beyond the horizon, so that the order arrives before any worker does.  The window
        is as wide as the steps of the horizon: no multiple of ``clocks`` is missed while ``lookahead`` is constant.
        When ``lookahead`` grows after the first measured iterations, the multiples before the new window are skipped.
        """
        first = max(job.horizon, 0) + job.lookahead
        assert self._last_s is not None
        if hurries or now_s - self._last_s >= (self.schedule.seconds or math.inf):
            clock = max(first, self._considered + 1)
        else:
            wanted = self.schedule.next_clock(self._considered, first)
            if wanted is None or wanted > max(job.horizon, 0) + 2 * job.lookahead:
                return None
            clock = wanted
        return clock if clock < self.iterations else None


@dataclass
class Checkpoints:
    """Orders checkpoints and tracks their results."""

    timetable: Timetable
    num_partitions: int
    #: How many complete checkpoints to keep; at least 1.
    keep: int = 2
    #: See :mod:`eps.storage.checkpoint`.
    epoch: int = 1
    pending: Pending | None = None
    #: The latest outcomes, oldest first.
    outcomes: list[CheckpointOutcome] = field(default_factory=list)
    #: Outcomes of all checkpoints, by state.
    counts: dict[str, int] = field(default_factory=lambda: {"complete": 0, "skipped": 0, "failed": 0})
    size_bytes: int = 0
    seconds: float = 0.0
    #: Clock of the latest complete one; None if there is none.
    latest_clock: int | None = None
    #: Checkpoints that the job can roll back to, oldest first; may begin with one of an earlier run.
    complete: list[RestorePoint] = field(default_factory=list)
    _next_id: int = 1

    @property
    def error(self) -> str:
        """The error of the last checkpoint that was not skipped; empty if it succeeded."""
        for outcome in reversed(self.outcomes):
            if outcome.state != "skipped":
                return outcome.reason
        return ""

    # ---- what happens

    def hear(
        self, report: m.CheckpointPartWritten | m.CheckpointPartFailed | m.CheckpointPartWaits, now_s: float
    ) -> list[e.Command]:
        """Record a server's report; reports about other checkpoints are stale and ignored."""
        pending = self.pending
        if pending is None or report.checkpoint_id != pending.number or pending.finishing_s is not None:
            return []
        if isinstance(report, m.CheckpointPartWritten):
            if report.partition not in pending.parts:
                pending.parts[report.partition], pending.waits = report, ""
            return []
        if report.partition in pending.parts:
            return []
        where = f"{report.name}, partition {report.partition}: {report.message}"
        if isinstance(report, m.CheckpointPartWaits):
            pending.waits = where
            return []
        return list(self._end("skipped" if report.late else "failed", where, now_s))

    def finished(
        self, event: e.CheckpointDone | e.CheckpointFailed | e.CheckpointWaits, now_s: float
    ) -> list[e.Command]:
        """Record the result of the last step of a checkpoint, or that it waits."""
        if self.pending is None or event.checkpoint_id != self.pending.number:
            return []
        if isinstance(event, e.CheckpointWaits):
            self.pending.waits = event.message
            return []
        if isinstance(event, e.CheckpointFailed):
            return list(self._end("failed", event.message, now_s))
        self.latest_clock = self.pending.clock
        self.timetable.completed(self.pending.ordered_s)
        first_clock = min(part.clock for part in self.pending.parts.values())
        self.complete.append(RestorePoint(checkpoint_name(self.epoch, self.pending.clock), first_clock))
        del self.complete[: -self.keep]
        # Only now: before this, the job may have to roll back to an earlier one.
        return [*self._end("complete", "", now_s), e.RemoveEarlier(event.checkpoint_id)]

    def abandon(self, reason: str, now_s: float) -> list[e.Command]:
        """Fail the checkpoint that is being written, because one of its servers is lost."""
        if self.pending is None or self.pending.finishing_s is not None:
            # All parts are written: no server is needed any more.
            return []
        return list(self._end("failed", reason, now_s))

    def restores(self, membership: Membership, name: str) -> bool:
        """Return whether a membership begins with that checkpoint, after a rollback or a resume."""
        resumed = membership.version == 1 and any(start.checkpoint == name for start in self.complete)
        return resumed or (membership.goes_back and membership.checkpoint == name)

    def unusable(self, name: str, why: str, now_s: float) -> list[e.Command]:
        """Exclude a checkpoint that a member could not read from later rollbacks."""
        self.complete = [start for start in self.complete if start.checkpoint != name]
        # Jobs roll back to the latest checkpoint, so that is the unusable one.
        self.timetable.completed(-math.inf)
        return [e.Journal({"kind": "checkpoint", "state": "unusable", "name": name, "reason": why, "at_s": now_s})]

    def taken_over(self) -> None:
        """Repeat the command to finish a checkpoint, because a restart of the master may have lost it."""
        if self.pending is not None:
            self.pending.finishing_s, self.pending.waits = None, ""

    def resend_order(self, name: MemberId, owned: Iterable[int]) -> list[e.Command]:
        """Resend the current checkpoint's order to a server that owns missing parts."""
        pending = self.pending
        if pending is None or pending.finishing_s is not None or set(owned) <= pending.parts.keys():
            return []
        return [self._order_to(name, pending)]

    def roll_back(self, epoch: int, clock: int, now_s: float) -> list[e.Command]:
        """Start a new epoch at the clock of an earlier checkpoint."""
        why = f"the job rolled back to clock {clock}"
        commands = [] if self.pending is None else list(self._end("failed", why, now_s))
        self.epoch = epoch
        self.timetable.begin(clock, now_s)
        return commands

    def _end(self, state: str, reason: str, now_s: float) -> Iterator[e.Command]:
        pending = self.pending
        assert pending is not None
        self.pending = None
        size_bytes = sum(part.size_bytes for part in pending.parts.values())
        self._note(CheckpointOutcome(pending.clock, state, reason, size_bytes, round(now_s - pending.ordered_s, 6)))
        if state == "complete":
            self.size_bytes += size_bytes
            self.seconds += now_s - pending.ordered_s
        else:
            yield e.DiscardCheckpoint(self.epoch, pending.clock)
        record = {"kind": "checkpoint", "state": state, "clock": pending.clock, "epoch": self.epoch}
        details = {"bytes": size_bytes} if state == "complete" else {"reason": reason}
        yield e.Journal({**record, **details, "at_s": round(now_s, 6)})

    def _note(self, outcome: CheckpointOutcome) -> None:
        self.counts[outcome.state] += 1
        self.outcomes.append(outcome)
        del self.outcomes[:-MOST_OUTCOMES]

    @property
    def is_idle(self) -> bool:
        """Return whether none is scheduled and none is being written."""
        return not self.timetable.schedule and self.pending is None

    # ---- what to do

    def advance(self, job: CheckpointContext, now_s: float) -> list[e.Command]:
        """Order a due checkpoint, resend orders, or finish a written checkpoint, as far as possible now."""
        clock = self.timetable.due(job, now_s, writes=self.pending is not None)
        if clock is not None and self.pending is not None:
            self._note(CheckpointOutcome(clock, "skipped", f"the checkpoint of clock {self.pending.clock} is running"))
        elif clock is not None:
            self.pending = Pending(self._next_id, clock, ordered_s=now_s)
            self._next_id += 1
        if self.pending is None:
            return []
        return list(self._pursue(self.pending, job, now_s))

    def _pursue(self, pending: Pending, job: CheckpointContext, now_s: float) -> Iterator[e.Command]:
        membership, completed = job.membership, job.completed
        pending.note(completed, now_s)
        if missing := pending.missing(self.num_partitions):
            if now_s - pending.reached_s >= PATIENCE_S:
                yield from self._end("failed", f"partitions {missing} were not written in {PATIENCE_S:g} s", now_s)
                return
            for name in pending.receivers(membership, now_s):
                yield self._order_to(name, pending)
            return
        # The results of the clocks before belong to the checkpoint.
        if completed < min(part.clock for part in pending.parts.values()):
            return
        if pending.finishing_s is None or now_s - pending.finishing_s >= FINISH_AGAIN_S:
            pending.finishing_s = now_s
            workers, servers = job.size[Role.WORKER], job.size[Role.SERVER]
            parts = tuple(pending.parts[p] for p in range(self.num_partitions))
            # By name, so that damaged checkpoints do not count as kept.
            kept = tuple(start.checkpoint for start in self.complete[max(0, len(self.complete) - self.keep + 1) :])
            yield e.FinishCheckpoint(
                pending.number, self.epoch, pending.clock, parts, workers, servers, completed, kept
            )

    def validate(self) -> None:
        """Assert the invariants of the checkpoints."""
        assert len(self.complete) <= self.keep and sum(self.counts.values()) >= len(self.outcomes)
        if self.pending is not None:
            assert self.pending.number < self._next_id and self.pending.clock < self.timetable.iterations
            parts = self.pending.parts
            assert self.pending.finishing_s is None or len(parts) == self.num_partitions

    def restore_point(self, seeded_clock: int) -> RestorePoint:
        """Return where a job that lost parameters restarts: its latest checkpoint, or its seed."""
        return self.complete[-1] if self.complete else RestorePoint("", seeded_clock)

    def _order_to(self, name: MemberId, pending: Pending) -> e.Send:
        return e.Send(name, m.TakeCheckpoint(pending.number, pending.clock, self.epoch))


#: Pause before a failed export is repeated, and the number of tries.
EXPORT_AGAIN_S = 0.5
MOST_EXPORTS = 4


class ExportPhase(StrEnum):
    """The state of a job's export."""

    #: The job is training or has ended.
    CLOSED = "closed"
    RUNNING = "running"
    #: The last export failed; the next one starts soon.
    FAILED = "failed"


class Export:
    """The exports of a job, one at a time."""

    def __init__(self) -> None:
        #: Results of the export that ended the job (:class:`eps.core.events.ExportDone`); empty before.
        self.found: Mapping[str, Any] = {}
        #: Number of the current or latest export.
        self._number = 0
        self._phase = ExportPhase.CLOSED
        #: When the next export starts after a failure.
        self._retry_s = 0.0

    def counts(self, number: int) -> bool:
        """Return whether the job waits for this export; exports from before a rollback are void."""
        return self._phase is not ExportPhase.CLOSED and number == self._number

    def start(self) -> list[e.Command]:
        """Start the next export."""
        self._number, self._phase = self._number + 1, ExportPhase.RUNNING
        return [e.StartExport(self._number)]

    def done(self, event: e.ExportDone) -> bool:
        """Record that an export is complete; return whether that ends the job."""
        if not self.counts(event.number):
            return False
        self.found = event.found or {}
        return True

    def failed(self, event: e.ExportFailed, now_s: float) -> str:
        """Record that an export failed; return why that ends the job, or an empty text if it is retried."""
        if not self.counts(event.number):
            return ""
        if self._number >= MOST_EXPORTS:
            return event.message
        # If a server ended meanwhile, another one now has its partitions.
        self._phase, self._retry_s = ExportPhase.FAILED, now_s + EXPORT_AGAIN_S
        return ""

    def due(self, now_s: float) -> list[e.Command]:
        """Retry a failed export when its pause is over."""
        return self.start() if self._phase is ExportPhase.FAILED and now_s >= self._retry_s else []

    def restarted(self) -> list[e.Command]:
        """Restart the open export: the process of the earlier master ended with it."""
        return [e.StartExport(self._number)] if self._phase is not ExportPhase.CLOSED else []

    def close(self) -> None:
        """Ignore exports from now on, because the job has ended or trains again."""
        self._phase = ExportPhase.CLOSED

    def validate(self) -> None:
        """Assert that the job waits for no export before the first was started."""
        assert self._number >= 1 or self._phase is ExportPhase.CLOSED
