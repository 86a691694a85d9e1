"""Coordinated cuts of a job whose partitions are owned by ActivePSs, and its consistent clock.  Pure.

A cut is a copy of every partition at one clock.  The owner keeps a copy, and sends it to the partition's BackupPS in
the background.  When the BackupPSs have all partitions, the cut is committed: its clock is the *consistent clock*.  If
an ActivePS is lost without warning, the job rolls back to it: owners that are left restore their own copies, BackupPSs
become the owners of the lost partitions.

Like a checkpoint, a cut is ordered for a clock that no worker has started, so no worker waits.  The next one is ordered
a while after the last one is committed, the longer the slower the network is; earlier if the consistent clock would
otherwise lag behind by more than its bound.  A BackupPS keeps the committed cut and the one that is being staged.

Source: Proteus §3.2 (BackupPSs), §3.3 ("roll-back to a state consistent with the current state of the BackupPSs").
Deviation: ActivePSs send the values of changed keys, not the sum of their changes.  Such sums would change bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import CheckpointContext, Ordered
from eps.core.membership import cut_name
from eps.core.recovery import RestorePoint
from eps.core.types import MemberId

#: A cut fails if no partition is staged for this long after its clock.
PATIENCE_S = 120.0
#: The next cut is ordered this long after the last one, and at least this many times as long as that one took.
PAUSE_S, PAUSE_SHARE = 0.5, 4.0
#: A cut is ordered so early that the bound of the lag holds if it takes this many times as long as the last one.
MARGIN = 2
#: A plan that needs a cut is aborted after this many failures in a row.
MOST_FAILURES = 3


class Lag:
    """How far the consistent clock is behind: what the job computes again if it loses an ActivePS now.

    Parameters
    ----------
    bound_s : float
        By how much it may lag behind; 0: by any time.  A cut that the bound needs is ordered without a pause.  If cuts
        take longer, the bound is missed; training goes on.
    """

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        #: The largest lag in clocks and in seconds, while ActivePSs owned partitions.
        self.largest, self.largest_s = 0, 0.0
        #: When the consistent clock was complete, or the job rolled back to it.
        self._since_s: float | None = None
        #: What the last cut took from its order to its commit.
        self._cut_s = 0.0

    def seconds(self, now_s: float) -> float:
        """Return the seconds since the consistent clock was complete."""
        return max(0.0, now_s - self._since_s) if self._since_s is not None else 0.0

    def note(self, clocks: int, now_s: float) -> None:
        """Note the current lag."""
        if self._since_s is None:
            # No cut could be taken: reliable containers are missing.
            self._since_s = now_s
        self.largest, self.largest_s = max(self.largest, clocks), max(self.largest_s, self.seconds(now_s))

    def restart(self, since_s: float | None) -> None:
        """Count from the time at which another clock is the consistent one, or from the next note."""
        self._since_s = since_s

    def took(self, seconds: float) -> None:
        """Note what a cut took from its order to its commit."""
        self._cut_s = seconds

    def needs_cut(self, now_s: float) -> bool:
        """Return whether the bound may be missed unless a cut is ordered now."""
        return self.bound_s > 0 and self.seconds(now_s) + MARGIN * self._cut_s >= self.bound_s

    def missed(self, now_s: float) -> str:
        """Return the bound that the lag exceeds, and what a cut takes; empty if it does not."""
        if not 0 < self.bound_s < self.seconds(now_s):
            return ""
        return f"max_lag_s is {self.bound_s:g}, but a cut takes {self._cut_s:.3g} s"


@dataclass(frozen=True, slots=True)
class Committed:
    """The latest committed cut."""

    #: The clock for which it was ordered, by which servers know it.
    clock: int
    point: RestorePoint
    #: The BackupPS of each partition.
    holders: tuple[MemberId, ...]


@dataclass
class Staging(Ordered[m.CutStaged]):
    """The cut that is being staged."""

    backups: tuple[m.Target, ...] = ()
    #: The smallest clock of the parts; infinity without one.
    first: float = inf
    ordered_s: float = 0.0
    #: When the clocks before were complete.
    complete_s: float | None = None
    #: When the latest partition was staged.
    news_s: float = 0.0


class Cuts:
    """Orders cuts and tracks which is committed.

    Parameters
    ----------
    num_partitions : int
    iterations : int
        Clocks that the job trains.
    max_lag_s : float
        See :class:`Lag`.
    """

    def __init__(self, num_partitions: int, iterations: int, max_lag_s: float = 0.0) -> None:
        self._num_partitions = num_partitions
        self._iterations = iterations
        self.committed: Committed | None = None
        self.staging: Staging | None = None
        #: How many were committed, and the bytes that were sent for them.
        self.count = self.size_bytes = 0
        self.lag = Lag(max_lag_s)
        self._next_id = 1
        self._next_s = 0.0
        #: How many failed in a row, and why the latest did.
        self._failures, self._failure = 0, ""
        #: The clock of the latest one.
        self._latest = -1
        #: Whether no cut is needed: none was ordered yet, or servers were told to drop their copies.
        self._is_over = True

    # ---- what happens

    def hear(self, report: m.CutStaged | m.CutFailed, now_s: float) -> None:
        """Record a server's report; reports about other cuts are stale and ignored."""
        staging = self.staging
        if staging is None or report.cut_id != staging.number or report.partition in staging.parts:
            return
        if isinstance(report, m.CutStaged):
            staging.parts[report.partition], staging.news_s = report, now_s
            staging.first = min(staging.first, report.clock)
        else:
            self.abandon(f"{report.name}, partition {report.partition}: {report.message}", now_s)

    def abandon(self, why: str, now_s: float) -> None:
        """Give up the cut that is being staged."""
        if self.staging is not None:
            self.staging = None
            self._failures, self._failure = self._failures + 1, why
            self._next_s = now_s + PAUSE_S

    def roll_back(self, checkpoint: str, completed: int, now_s: float) -> None:
        """Continue after a rollback: to the committed cut, which stays, or to a checkpoint, which makes it void.

        Parameters
        ----------
        completed : int
            The first incomplete clock before the rollback.
        """
        self.staging = None
        if self.committed is not None and checkpoint != self.committed.point.checkpoint:
            self.committed = None
        if self.committed is not None:
            self.note_lag(completed, now_s)
        self.lag.restart(now_s)
        self._next_s, self._latest = now_s, -1 if self.committed is None else self.committed.clock

    def forget(self, servers: Collection[MemberId]) -> list[e.Command]:
        """Need no cut any more."""
        if self._is_over:
            return []
        self.committed = self.staging = None
        self.lag.restart(None)
        self._failures, self._is_over = 0, True
        return [command for name in servers for command in self.dropped(name)]

    def dropped(self, name: MemberId) -> list[e.Command]:
        """Tell a server, perhaps again, that no cut is needed; nothing if one is."""
        return [e.Send(name, m.DropCuts(self._next_id - 1))] if self._is_over and self._next_id > 1 else []

    # ---- what to do

    def is_held_by(self, servers: Collection[MemberId]) -> bool:
        """Return whether there is a committed cut, all copies of which are on these servers."""
        return self.committed is not None and set(self.committed.holders) <= set(servers)

    def is_too_late(self, job: CheckpointContext) -> bool:
        """Return whether the job ends before another cut."""
        return self.staging is None and self._clock(job) is None

    @property
    def failure(self) -> str:
        """Why cuts fail; empty if they do not."""
        return self._failure if self._failures >= MOST_FAILURES else ""

    def advance(self, job: CheckpointContext, backups: tuple[m.Target, ...], now_s: float) -> list[e.Command]:
        """Order a cut that is due, resend orders, or commit a staged cut, as far as possible now.

        Parameters
        ----------
        backups : tuple of Target
            The servers on reliable containers that stay; may be empty.
        """
        if self.staging is not None and self.staging.backups != backups:
            # A cut must not be on a server that leaves, and each partition is where it was ordered.
            self.staging, self._next_s = None, now_s
        if self.staging is None:
            clock = self._clock(job)
            if clock is None or not backups or not self._is_due(now_s):
                return []
            self.staging = Staging(self._next_id, clock, backups=backups, ordered_s=now_s)
            self._latest = clock
            self._next_id, self._is_over = self._next_id + 1, False
        return list(self._pursue(self.staging, job, now_s))

    @property
    def consistent_clock(self) -> int:
        """The clock to which the job rolls back if it loses an ActivePS."""
        return self.committed.point.clock if self.committed is not None else 0

    def note_lag(self, completed: int, now_s: float) -> None:
        """Note by how much the job would roll back now; ``completed`` is the first incomplete clock."""
        self.lag.note(completed - self.consistent_clock, now_s)

    def _is_due(self, now_s: float) -> bool:
        """Return whether a cut is due: the pause is over, or the lag would exceed its bound."""
        if now_s >= self._next_s:
            return True
        # A cut that failed is not retried without a pause.
        return self.committed is not None and not self._failures and self.lag.needs_cut(now_s)

    def _clock(self, job: CheckpointContext) -> int | None:
        """Return the clock of a cut that is ordered now: no worker has started it; None if the job ends before."""
        clock = max(max(job.horizon, 0) + job.lookahead, self._latest + 1)
        return clock if clock < self._iterations else None

    def _pursue(self, staging: Staging, job: CheckpointContext, now_s: float) -> Iterator[e.Command]:
        staging.note(job.completed, now_s)
        if staging.complete_s is None and job.completed >= staging.clock:
            staging.complete_s = now_s
        if len(staging.parts) == self._num_partitions:
            # The results of the clocks before belong to the cut.
            if job.completed >= staging.first:
                self._commit(staging, int(staging.first), now_s)
        elif now_s - max(staging.reached_s, staging.news_s) >= PATIENCE_S:
            missing = staging.missing(self._num_partitions)
            self.abandon(f"partitions {missing} were not copied in {PATIENCE_S:g} s", now_s)
        elif receivers := staging.receivers(job.membership, now_s):
            kept = self.committed.clock if self.committed is not None else -1
            order = m.TakeCut(staging.number, staging.clock, kept, staging.backups)
            for name in receivers:
                yield e.Send(name, order)

    def _commit(self, staging: Staging, first: int, now_s: float) -> None:
        parts = [staging.parts[p] for p in range(self._num_partitions)]
        point = RestorePoint(cut_name(staging.clock), first)
        self.committed, self.staging = Committed(staging.clock, point, tuple(part.holder for part in parts)), None
        self.count, self._failures = self.count + 1, 0
        self.size_bytes += sum(part.size_bytes for part in parts)
        self._next_s = now_s + max(PAUSE_S, PAUSE_SHARE * (now_s - staging.reached_s))
        self.lag.took(now_s - staging.ordered_s)
        self.lag.restart(staging.complete_s)

    def validate(self) -> None:
        """Assert the invariants of the cuts."""
        if self.staging is not None:
            assert self.staging.number < self._next_id and self.staging.clock < self._iterations
            assert self.committed is None or self.committed.clock < self.staging.clock
        assert self.committed is None or len(self.committed.holders) == self._num_partitions
