"""A member's reports to its job master, in order; reports that can wait are sent in batches.

A report of a clock wakes two gRPC threads at either end.  That costs a third of a millisecond of processor time, a
tenth of a short iteration.  Most are not urgent, since the horizon is granted in advance.  So they may linger; each
carries its age, so that the job's history stays exact.

The queue keeps reports that a master may have lost when it died, and resends them to the next one:

* reports of clocks until the master has recorded them;
* reports of a plan until it has ended;
* the failure or eviction of this member, and the last transport to each peer.

All other reports answer orders, which the master repeats.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from eps.core import messages as m
from eps.core.progress import MAX_LOOKAHEAD_CLOCKS
from eps.net.messages.codec import report_to_pb
from eps.pb import control_pb2 as pb

#: Longest delay of a report that can wait; less than half of the lookahead that masters grant.
LINGER_S = 0.02
#: Heartbeats that a member sends within the deadline for its silence.
BEATS = 6
#: Heartbeat interval with the default deadline of three seconds.
BEAT_S = 0.5
#: Maximum number of kept reports.  A worker is ahead of its master's knowledge by at most the lookahead.  Under SSP and
#: ASP a later grant may refer to a much earlier clock, but so many reports ago it was delivered.
MOST_KEPT = 16 * MAX_LOOKAHEAD_CLOCKS


@dataclass(slots=True)
class _Entry:
    message: pb.Report
    made_s: float
    key: _Key | None


@dataclass(frozen=True, slots=True)
class _Key:
    """Identifies a report: a later one of the same key replaces it."""

    kind: str
    #: Clock or plan.
    number: int
    about: Hashable = None


def _key(report: m.Report) -> _Key | None:
    """Return the key of a report to keep; None for others."""
    kind = type(report).__name__
    match report:
        case m.ClockReported(_, clock, results):
            return _Key("clock", clock, tuple([result.split for result in results]))
        case m.PartitionSent(_, plan_id, item) | m.PartitionCaughtUp(_, plan_id, item):
            return _Key("plan", plan_id, (kind, item))
        case m.SplitReceived(_, plan_id, item) | m.PartitionPromoted(_, plan_id, item):
            return _Key("plan", plan_id, (kind, item))
        case m.TransferFailed(_, plan_id, message):
            return _Key("plan", plan_id, (kind, message))
        case m.MemberFailed(_, _, message):
            return _Key("end", 0, message)
        case m.PeerReached(_, peer):
            return _Key("way", 0, peer)
        case m.EvictionWarned():
            return _Key("warned", 0)
    return None


class ReportQueue:
    """Reports to send.  Any thread may add; one line (a stream to a master) at a time takes them.

    Parameters
    ----------
    now : callable
        A steady clock, in seconds.
    beat_s : float, seconds
        Heartbeat interval: an empty batch is sent after this time without a report.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, beat_s: float = BEAT_S) -> None:
        self._now = now
        self.beat_s = beat_s
        self._changed = threading.Condition()
        self._waiting: list[_Entry] = []
        #: Sent and perhaps not recorded, oldest first.
        self._kept: dict[_Key, _Entry] = {}
        self._urgent = False
        self._closed = False
        #: Number of the current line; earlier lines get nothing.
        self._line = 0

    def put(self, report: m.Report, *, can_wait: bool = False) -> None:
        """Add a report without blocking.  An urgent one is sent at once, with those before it."""
        entry = _Entry(report_to_pb(report), self._now(), _key(report))
        with self._changed:
            first = not self._waiting
            self._waiting.append(entry)
            if not can_wait:
                self._urgent = True
            # A lingering line sends this report without another notification.
            if first or not can_wait:
                self._changed.notify_all()

    def recorded(self, completed: int) -> None:
        """Drop kept reports of clocks below ``completed``: the master has recorded them."""
        self._forget(lambda key: key.kind == "clock" and key.number < completed)

    def plan_ended(self, plan_id: int) -> None:
        """Drop kept reports of plans up to this one: the master no longer needs them."""
        self._forget(lambda key: key.kind == "plan" and key.number <= plan_id)

    def _forget(self, over: Callable[[_Key], bool]) -> None:
        with self._changed:
            for key in [key for key in self._kept if over(key)]:
                del self._kept[key]

    def close(self) -> None:
        """End :meth:`batches` once all queued reports were taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def cut(self) -> None:
        """End the current line and keep the queue open: later reports wait for the next line."""
        with self._changed:
            self._line += 1
            self._changed.notify_all()

    def batches(self, hello: pb.Report | None = None) -> Iterator[pb.Reports]:
        """Begin a line: return an iterator of batches to send until :meth:`close`; empty ones are heartbeats.

        Earlier lines end.  Kept reports are resent, in order, before new ones.

        Parameters
        ----------
        hello : pb.Report, optional
            Sent first, in its own batch.
        """
        with self._changed:
            self._line += 1
            self._waiting = [*self._kept.values(), *self._waiting]
            self._urgent = self._urgent or bool(self._kept)
            self._kept = {}
            self._changed.notify_all()
            return self._taken(self._line, hello)

    def _taken(self, line: int, hello: pb.Report | None) -> Iterator[pb.Reports]:
        if hello is not None:
            yield pb.Reports(reports=[hello])
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._closed or line != self._line, self.beat_s)
                if self._waiting and line == self._line:
                    self._changed.wait_for(lambda: self._urgent or self._closed or line != self._line, LINGER_S)
                if line != self._line or (self._closed and not self._waiting):
                    return
                taken, self._waiting, self._urgent = self._waiting, [], False
                self._keep(taken)
            batch, now_s = pb.Reports(), self._now()
            for entry in taken:
                entry.message.age_s = now_s - entry.made_s
                batch.reports.append(entry.message)
            yield batch

    def _keep(self, taken: list[_Entry]) -> None:
        for entry in taken:
            if entry.key is not None:
                # A later report replaces an earlier one of the same key, at the end.
                self._kept.pop(entry.key, None)
                self._kept[entry.key] = entry
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
