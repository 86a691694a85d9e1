"""Complete clocks, their measured results, and the horizon up to which workers may run ahead.

The master keeps every complete clock (:class:`ClockHistory`); a server keeps the results of the latest clocks
(:class:`LatestResults`).  Pure.

Source: EPS §2.2 step 4 (clocks advance together), design section 6 (horizon), section 5 (a lost worker's results are
identified by clock and split, and count once).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, isfinite
from typing import overload

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.messages import SplitResult
from eps.core.types import CoreSettings, MemberId
from eps.errors import DIVERGED, StorageError


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """One complete clock.  Sums are taken in split order, so their bits do not depend on which worker computed what."""

    clock: int
    samples: int
    loss_sum: float
    #: Element-wise sums of the splits' evaluations; empty if the clock was not evaluated.
    evaluation: tuple[float, ...]
    #: When the last split was reported, in seconds on the master's clock.
    completed_s: float

    @property
    def loss(self) -> float:
        """Mean loss over the samples of the clock, without penalties."""
        return self.loss_sum / self.samples if self.samples else 0.0


class ClockHistory(Sequence[ClockRecord]):
    """The complete clocks from 0 on, in order: record ``i`` is clock ``i``.

    A job of short iterations completes a hundred clocks a second.  Its master keeps them all, for the report, the
    pauses of plans and every checkpoint.  An object for each clock would take 250 bytes; columns take 32 bytes a clock,
    and 8 for each value of an evaluation.

    Parameters
    ----------
    records : iterable of ClockRecord
        The first clocks, from 0 on.
    """

    __slots__ = ("_evaluation_ends", "_evaluations", "_loss_sums", "_samples", "completed_s")

    def __init__(self, records: Iterable[ClockRecord] = ()) -> None:
        self._samples = array("q")
        self._loss_sums = array("d")
        #: When each clock was complete, in seconds on the master's clock; read-only.
        self.completed_s = array("d")
        #: The values of all evaluations in order of clocks, and where those of each clock end.
        self._evaluations = array("d")
        self._evaluation_ends = array("q")
        for record in records:
            self.append(record)

    def append(self, record: ClockRecord) -> None:
        """Add the next clock.

        Raises
        ------
        ValueError
            The record is of another clock.
        """
        if record.clock != len(self):
            raise ValueError(f"the record is of clock {record.clock}, but must be of clock {len(self)}")
        self._samples.append(record.samples)
        self._loss_sums.append(record.loss_sum)
        self.completed_s.append(record.completed_s)
        self._evaluations.extend(record.evaluation)
        self._evaluation_ends.append(len(self._evaluations))

    def truncate(self, clock: int) -> None:
        """Drop ``clock`` and all after it."""
        clock = min(max(0, clock), len(self))
        del self._evaluations[self._evaluations_begin(clock) :]
        for column in (self._samples, self._loss_sums, self.completed_s, self._evaluation_ends):
            del column[clock:]

    def last_evaluated(self) -> ClockRecord | None:
        """Return the last clock that was evaluated, or None."""
        for clock in range(len(self) - 1, -1, -1):
            if self._evaluation_ends[clock] != self._evaluations_begin(clock):
                return self[clock]
        return None

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, key: int) -> ClockRecord: ...

    @overload
    def __getitem__(self, key: slice) -> list[ClockRecord]: ...

    def __getitem__(self, key: int | slice) -> ClockRecord | list[ClockRecord]:
        if isinstance(key, slice):
            return [self._record(clock) for clock in range(*key.indices(len(self)))]
        clock = key + len(self) if key < 0 else key
        if not 0 <= clock < len(self):
            raise IndexError(f"clock {key} of {len(self)}")
        return self._record(clock)

    def __iter__(self) -> Iterator[ClockRecord]:
        return map(self._record, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClockHistory) and self.columns() == other.columns()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ClockHistory({self[:]!r})"

    def before(self, clock: int) -> ClockHistory:
        """Return a copy of the clocks before ``clock``; copies columns and creates no records."""
        end = min(max(0, clock), len(self))
        found = ClockHistory()
        found._samples = self._samples[:end]
        found._loss_sums = self._loss_sums[:end]
        found.completed_s = self.completed_s[:end]
        found._evaluations = self._evaluations[: self._evaluations_begin(end)]
        found._evaluation_ends = self._evaluation_ends[:end]
        return found

    def columns(self) -> list[bytes]:
        """Return the samples, loss sums, times, evaluations and their ends as bytes in native order."""
        return [column.tobytes() for column in self._columns()]

    @classmethod
    def from_columns(cls, columns: Iterable[bytes]) -> ClockHistory:
        """Return the history from the bytes of :meth:`columns`.

        Raises
        ------
        StorageError
            The columns are of different lengths.
        """
        found = cls()
        try:
            for column, data in zip(found._columns(), columns, strict=True):
                column.frombytes(data)
        except ValueError as error:
            raise StorageError(f"a history cannot be read: {error}") from error
        lengths = {len(c) for c in (found._samples, found._loss_sums, found.completed_s, found._evaluation_ends)}
        if len(lengths) != 1 or found._evaluations_begin(len(found)) != len(found._evaluations):
            raise StorageError(f"a history cannot be read: its columns have {sorted(lengths)} clocks")
        return found

    def _columns(self) -> tuple[array[int] | array[float], ...]:
        return self._samples, self._loss_sums, self.completed_s, self._evaluations, self._evaluation_ends

    def _evaluations_begin(self, clock: int) -> int:
        """Return where the values of ``clock`` begin; ``clock`` may be one past the last."""
        return self._evaluation_ends[clock - 1] if clock > 0 else 0

    def _record(self, clock: int) -> ClockRecord:
        values = self._evaluations[self._evaluations_begin(clock) : self._evaluation_ends[clock]]
        return ClockRecord(clock, self._samples[clock], self._loss_sums[clock], tuple(values), self.completed_s[clock])


#: How many clocks a server keeps: more than the master grants beyond what it has recorded.
MOST_CLOCKS = 512


class LatestResults:
    """The results of the latest clocks, by clock and split, as a server keeps them.

    A worker reports its results to the job master and sends them along with its push.  If it is lost before the report
    arrives, the master gets them from the servers.
    """

    def __init__(self) -> None:
        self._found: dict[int, dict[int, m.SplitResult]] = {}

    def add(self, report: m.ClockReported) -> None:
        """Store a report; results that are already known stay."""
        known = self._found.setdefault(report.clock, {})
        for result in report.results:
            known.setdefault(result.split, result)
        while len(self._found) > MOST_CLOCKS:
            del self._found[min(self._found)]

    def reports(self, name: MemberId, incarnation: int, from_clock: int) -> tuple[m.ClockReported, ...]:
        """Return everything from ``from_clock`` on as reports of ``name``, one for each clock, ascending."""
        return tuple(
            m.ClockReported(name, clock, tuple(results.values()), incarnation)
            for clock, results in sorted(self._found.items())
            if clock >= from_clock
        )

    def clear(self) -> None:
        """Drop everything, because the job rolls back."""
        self._found.clear()


#: How far the horizon stays ahead of the fastest worker, so that no worker waits for a grant, although reports are
#: delayed a little to be sent in batches.
LOOKAHEAD_S = 0.08
MIN_LOOKAHEAD_CLOCKS = 2
#: From this iteration time on, BSP needs only one granted clock: it arrives before a worker is half through its
#: iteration.  So plans commit one iteration earlier.
LONG_ITERATION_S = 0.5
MAX_LOOKAHEAD_CLOCKS = 256
#: How many iterations before a plan determine the usual duration, as their median.
USUAL_CLOCKS = 20


@dataclass
class Progress:
    """Collects the splits' results, completes clocks in order, and decides how far workers may run ahead."""

    settings: CoreSettings
    #: Whether a loss that is not finite ends the job.
    stop_on_divergence: bool = True
    #: Why the job cannot continue; empty while it can.
    fatal: str = ""
    #: The first clock that is not complete.
    completed: int = 0
    #: The highest clock with a reported split.
    fastest: int = 0
    #: The last clock granted to workers.
    horizon: int = 0
    #: Complete clocks from 0 on, in order; the last, at ``iterations``, evaluates the final parameters.
    history: ClockHistory = field(default_factory=ClockHistory)
    #: The last evaluated clock of the history.
    evaluated: ClockRecord | None = None
    _open: dict[int, dict[int, SplitResult]] = field(default_factory=dict)
    _latest_s: dict[int, float] = field(default_factory=dict)
    #: Smoothed seconds of an iteration; 0 before two are known.
    iteration_s: float = 0.0
    _last_s: float | None = None

    def __post_init__(self) -> None:
        self.completed = self.settings.first_clock
        self.fastest = self.horizon = self.settings.first_clock - 1

    def restore(self, history: ClockHistory) -> None:
        """Set the history of the clocks before the first one."""
        self.history = history.before(self.completed)
        self.evaluated = self.history.last_evaluated()

    def hear(self, report: m.ClockReported, incarnation: int, at_s: float) -> None:
        """Process a report; reports of another incarnation are ignored."""
        if report.incarnation == incarnation:
            self.add(report.clock, report.results, at_s)

    def add(self, clock: int, results: tuple[SplitResult, ...], at_s: float) -> list[ClockRecord]:
        """Add results; return the clocks that they complete.  Results that are already known are ignored.

        ``at_s`` is when they were computed.  A clock is complete when the last of its results was computed; the
        order in which reports arrive does not matter.
        """
        if clock < self.completed or clock > self.settings.iterations:
            return []
        known = self._open.setdefault(clock, {})
        for result in results:
            known.setdefault(result.split, result)
        self.fastest = max(self.fastest, clock)
        self._latest_s[clock] = max(at_s, self._latest_s.get(clock, at_s))
        done: list[ClockRecord] = []
        while len(self._open.get(self.completed, ())) == self.settings.num_splits:
            done.append(self._close(self.completed))
            self.completed += 1
        return done

    def _close(self, clock: int) -> ClockRecord:
        # Completion times are in order of clocks, even if reports took different times to arrive.
        at_s = max(self._latest_s.pop(clock), self._last_s or 0.0)
        results = [result for _, result in sorted(self._open.pop(clock).items())]
        evaluated = [r.evaluation for r in results if r.evaluation]
        record = ClockRecord(
            clock=clock,
            samples=sum(r.samples for r in results),
            loss_sum=sum(r.loss_sum for r in results),
            evaluation=tuple(sum(column) for column in zip(*evaluated, strict=True)),
            completed_s=at_s,
        )
        if clock >= 0:
            self.history.append(record)
            if record.evaluation:
                self.evaluated = record
        # Clock 0 takes no time: it has the gradients of clock -1.
        if self._last_s is not None and clock > 0:
            lasted_s = at_s - self._last_s
            self.iteration_s = lasted_s if self.iteration_s == 0.0 else 0.8 * self.iteration_s + 0.2 * lasted_s
        self._last_s = at_s
        if self.stop_on_divergence and not self.fatal and not isfinite(record.loss_sum):
            what = f"the loss at clock {clock} is {record.loss_sum}"
            self.fatal = f"{what}: {DIVERGED}; try a smaller learning rate"
        return record

    def roll_back(self, clock: int) -> None:
        """Drop ``clock`` and all after it, to be computed again."""
        self.completed, self.fastest, self.horizon = clock, clock - 1, clock - 1
        self._open.clear()
        self._latest_s.clear()
        self.history.truncate(clock)
        self.evaluated = self.history.last_evaluated()

    def next_clocks(self) -> tuple[int, ...]:
        """Return for each split its first clock without a known result."""
        found = []
        for split in range(self.settings.num_splits):
            clock = self.completed
            while split in self._open.get(clock, ()):
                clock += 1
            found.append(clock)
        return tuple(found)

    def grant(self, *, undecided: bool, hurried: bool) -> bool:
        """Move the horizon in steps, as far as allowed; return whether it moved.  See :meth:`wanted_horizon`."""
        wanted = self.wanted_horizon(undecided, hurried=hurried)
        step = max(1, self.lookahead // 2)
        at_cap = wanted >= self.settings.iterations or undecided
        moves = wanted > self.horizon and (at_cap or wanted >= self.horizon + step or wanted < 2)
        if moves:
            self.horizon = wanted
        return moves

    def orders(self, membership: Membership, leaving: Iterable[MemberId]) -> list[tuple[MemberId, m.Order]]:
        """Return the horizon as orders for the workers, and for leaving workers that owe clocks before a commit."""
        order = m.GrantHorizon(self.horizon, self.completed, membership.version)
        return [(name, order) for name in (*membership.workers, *leaving)]

    def validate(self) -> None:
        """Assert the invariants of clocks."""
        settings = self.settings
        assert self.completed - 1 <= self.fastest <= settings.iterations and self.horizon <= settings.iterations
        assert len(self.history) == max(0, self.completed), "the history is that of the complete clocks"
        assert all(clock >= self.completed for clock in self._open)

    @property
    def finished(self) -> bool:
        """Return whether the final parameters have been evaluated."""
        return self.completed > self.settings.iterations

    @property
    def lookahead(self) -> int:
        """The number of clocks that are granted beyond the fastest worker."""
        if self.iteration_s <= 0.0:
            return MIN_LOOKAHEAD_CLOCKS
        ahead = min(MAX_LOOKAHEAD_CLOCKS, ceil(LOOKAHEAD_S / self.iteration_s))
        return ahead if self._may_be_near(LONG_ITERATION_S) else max(MIN_LOOKAHEAD_CLOCKS, ahead)

    def _may_be_near(self, iteration_s: float) -> bool:
        return self.settings.bsp and self.iteration_s >= iteration_s

    def wanted_horizon(self, undecided: bool, *, hurried: bool = False) -> int:
        """Return the horizon to grant now.

        Parameters
        ----------
        undecided : bool
            Whether a change is queued, in flight or due at a clock: then the last training clock is not granted, so
            that the job cannot finish before the change is decided.
        hurried : bool
            Whether a plan should commit as soon as possible: then no clock is granted that no worker could start yet.
        """
        cap = self.settings.iterations - 2 if undecided else self.settings.iterations
        ahead = 1 if hurried and self._may_be_near(LOOKAHEAD_S) else self.lookahead
        return max(self.settings.first_clock, min(cap, max(self.fastest, self.completed) + ahead))


def pause_and_slowdown(
    completed_s: Sequence[float],
    begin_s: float,
    end_s: float,
    went_back_s: Sequence[float] = (),
    commit_clock: int | None = None,
) -> tuple[float, float]:
    """Return how much a plan delayed the iterations, in seconds.

    Parameters
    ----------
    completed_s : sequence of float
        Completion times of consecutive iterations, ascending.
    begin_s, end_s : float
        The plan's life, from proposed to released.
    went_back_s : sequence of float
        Times of rollbacks; intervals that contain one are not attributed to the plan.
    commit_clock : int, optional
        The first clock of the new size, by which an iteration takes as long as those after the plan.

    Returns
    -------
    pause_s : float
        How much longer an interval between two completed iterations that overlaps the plan's life took than usual, at
        most; at least 0.  Usual is the median of the twenty intervals before the plan; from ``commit_clock`` on that of
        the twenty after it, or of those before if there are none.  In the first iterations of a job there are none
        before: then those of the plan until ``commit_clock`` are usual.  Of the interval in which the plan began, only
        the part after that counts: earlier delays, such as an outage of the cluster, have other causes.
    slowdown_s : float
        The sum of all such excesses, positive and negative; at least 0.
    """
    # The interval that contains the beginning starts with the last completion before it.
    first = max(0, bisect_right(completed_s, begin_s) - 1)
    stop = min(len(completed_s), bisect_left(completed_s, end_s) + 1)
    during = list(enumerate(pairwise(completed_s[first:stop]), first + 1))
    if not during:
        return 0.0, 0.0
    before = sorted(b - a for a, b in pairwise(completed_s[max(0, first - USUAL_CLOCKS) : first + 1]))
    after = sorted(b - a for a, b in pairwise(completed_s[stop - 1 : stop + USUAL_CLOCKS]))
    own = sorted(b - a for clock, (a, b) in during if commit_clock is None or clock < commit_clock)
    old_s, new_s = (found[len(found) // 2] if found else 0.0 for found in (before or own, after or before or own))
    excess = [
        min(b - a - (old_s if commit_clock is None or clock < commit_clock else new_s), b - begin_s)
        for clock, (a, b) in during
        if not any(max(a, begin_s) < back_s <= b for back_s in went_back_s)
    ]
    return max(0.0, max(excess, default=0.0)), max(0.0, sum(excess))
