"""The training loop of a worker.

It connects three parts: which clock is due (state), how to compute it (program), how to exchange it (plane).  Each
clock is a :class:`Round`: read the parameters, compute, push.  :meth:`TrainingLoop.advance` does what can be done now;
it neither sleeps nor starts a thread.  :meth:`TrainingLoop.run` waits between its calls.

The loop's thread owns the arrays; the session's thread only changes the pure state, under one lock.  All code of
:mod:`eps.worker` that waits or reads the time is in :class:`Wakeup` or in a wire, so that a simulation can replace it.

Source: EPS §2.2 Fig. 1b (six steps), §3.1.4 (active and inactive dataset), Figs 7, 8 and 11; design section 6.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import Address, MemberId
from eps.core.worker_state import Begun, Confirmation, Kept, Work, WorkerState
from eps.errors import DeadlineError
from eps.worker.compute import Computation, Contribution, Program

logger = logging.getLogger(__name__)

#: How long a worker waits for its master to grant the next clock.
HORIZON_DEADLINE_S = 3600.0

#: A worker that is closer to its horizon than this sends its reports at once.
NEAR_HORIZON_CLOCKS = 3


class Wakeup:
    """Lock, clock and wakeup that the session's thread and the loop's thread of a worker share.

    Parameters
    ----------
    now_s : callable
        The clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        #: Held while the state is used.
        self.lock = threading.Condition()
        #: Counts the notifications; -1 once the worker must stop.
        self._news = 0
        #: The count that the loop has seen.
        self._seen = 0

    def tell(self) -> None:
        """Wake the loop, because the state has changed."""
        with self.lock:
            if self._news >= 0:
                self._news += 1
                self.lock.notify_all()

    def stop(self) -> None:
        """Make the loop end soon."""
        with self.lock:
            self._news = -1
            self.lock.notify_all()

    def look(self) -> bool:
        """Return whether the loop should continue; clears earlier notifications."""
        with self.lock:
            self._seen = self._news
            return self._seen >= 0

    def wait(self, until_s: float) -> None:
        """Wait for a notification, at most until a time of the clock."""
        with self.lock:
            self.lock.wait_for(lambda: self._news != self._seen, max(0.0, until_s - self.now_s()))


class Progress(Enum):
    """The progress of an exchange."""

    UNDER_WAY = "under way"
    #: Everything is pushed and pulled.
    COMPLETE = "complete"
    #: The requested clock is complete everywhere: a lost worker had pushed what was to be computed.
    PASSED = "passed"


class Exchange(Protocol):
    """Contributions that are pushed, and parameters that are read, together."""

    @property
    def put(self) -> Sequence[Kept]:
        """The contributions."""

    @property
    def due_s(self) -> float:
        """The time at which :meth:`advance` must be called even if no answer arrives, on the worker's clock."""

    def advance(self) -> Progress:
        """Send what is due and process arrived answers; may wait a short time.

        Raises
        ------
        ProtocolError
            A peer reports a violation of the protocol.
        DeadlineError, PeerUnavailableError
            The exchange timed out; the message says what is missing.
        """


class ParameterPlane(Protocol):
    """Pushes the contributions of one worker and reads its parameters.  For one thread, except :meth:`prepare`."""

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Start connecting to peers in advance; for any thread."""

    def follow(self, membership: Membership) -> None:
        """Disconnect from peers that have left; call between exchanges."""

    def exchange(self, put: Sequence[Kept], get: Computation | None, clock: int, min_clock: int) -> Exchange:
        """Start an exchange; an earlier, unfinished one is void.

        Parameters
        ----------
        put : sequence of Kept
            Contributions that some peer may lack.
        get : Computation or None
            Receives the parameters; None if none are needed.
        clock : int
            Of those parameters.
        min_clock : int
            Clocks that must be complete in them.
        """

    def rest(self) -> None:
        """Release everything that peers could use: nothing more is exchanged unless members are lost."""

    def close(self) -> None:
        """Close the connections."""


class Reporter(Protocol):
    """Sends reports to the job master; a report that ``can_wait`` may be batched with later ones."""

    def __call__(self, report: m.Report, *, can_wait: bool = False) -> None:
        """Queue ``report``; return at once."""


class Stage(Enum):
    """The stage of a round."""

    READ = "reads its parameters"
    COMPUTE = "computes"
    PUSH = "pushes, and reads the parameters of the next clock"
    CONFIRM = "reads once more before it leaves"


@dataclass(eq=False)
class Round:
    """One clock of a worker, from reading its parameters to the end of its push."""

    work: Work | Confirmation
    begun: Begun
    stage: Stage
    computation: Computation | None = None
    #: The result of the computation, until it is kept.
    contribution: Contribution | None = None
    #: The current exchange.
    exchange: Exchange | None = None
    #: Until when the computation is extended (``stretch_s``).
    until_s: float = 0.0


class NextParameters(NamedTuple):
    """Parameters that are arriving, and the computation that uses them."""

    begun: Begun
    #: Partition -> the server that it is read from.
    owners: Sequence[MemberId]
    computation: Computation


class TrainingLoop:
    """Computes the clocks that a worker owes.

    Parameters
    ----------
    state : WorkerState
    wakeup : Wakeup
    program : Program
    plane : ParameterPlane
    report : Reporter
    """

    def __init__(
        self, state: WorkerState, wakeup: Wakeup, program: Program, plane: ParameterPlane, report: Reporter
    ) -> None:
        self.state = state
        self._wakeup = wakeup
        self.program = program
        self._plane = plane
        self._report = report
        self._round: Round | None = None
        #: The next clock's parameters, as far as they have arrived.
        self._next: NextParameters | None = None
        #: When the worker became idle.
        self._idle_s: float | None = None

    def run(self) -> None:
        """Compute what is due until the worker must stop."""
        while (due_s := self.advance()) is not None:
            # An exchange waits by itself, for answers.
            if self._round is None or self._round.exchange is None:
                self._wakeup.wait(due_s)

    def advance(self) -> float | None:
        """Advance the round as far as possible now.

        Returns
        -------
        float or None
            When there is something to do even if nothing arrives, on the worker's clock; None if the worker must stop.

        Raises
        ------
        EpsError
            From the plane or the program.
        DeadlineError
            The master granted no clock for too long.
        """
        while True:
            if not self._wakeup.look():
                return None
            with self._wakeup.lock:
                if self._round is not None and self._is_void(self._round):
                    logger.info("W[%s] restarts after a loss of members: %s", self.state.name, self._round.work)
                    self._end()
                if self._round is None:
                    self._begin()
            if self._round is None:
                return self._rest()
            self._idle_s = None
            due_s = self._drive(self._round)
            if due_s is not None:
                return due_s

    def _is_void(self, current: Round) -> bool:
        """Return whether a round must restart; called with the lock held."""
        return self.state.is_void(current.work, current.begun, current.stage is Stage.COMPUTE)

    def _begin(self) -> None:
        """Start the next round, if one is due; called with the lock held."""
        work = self.state.begin()
        if work is None:
            return
        stage = Stage.CONFIRM if isinstance(work, Confirmation) else Stage.READ if work.splits else Stage.PUSH
        self._round = Round(work, self.state.now, stage)

    def _end(self) -> None:
        """End a round; called with the lock held."""
        self._round = None
        self.state.end()
        self._report_released()

    def _report_released(self) -> None:
        for report in self.state.released():
            self._report(report)

    def _rest(self) -> float:
        """Release what is not needed while nothing is due; return when the wait times out."""
        now_s = self._wakeup.now_s()
        with self._wakeup.lock:
            rests = self.state.rest()
            self._report_released()
        if rests:
            # Other processes write the model now and need the memory.
            self._next = None
            self.program.forget()
            self._plane.rest()
        if rests or self.state.stands_by:
            self._idle_s = None
            return now_s + HORIZON_DEADLINE_S
        if self._idle_s is None:
            self._idle_s = now_s
        if now_s - self._idle_s >= HORIZON_DEADLINE_S:
            raise DeadlineError(f"waited {HORIZON_DEADLINE_S:g} s for {self.state.duties.waits_for()}")
        return self._idle_s + HORIZON_DEADLINE_S

    # ---- a round

    def _drive(self, current: Round) -> float | None:
        """Take one step of a round; return when the next is due, or None if at once."""
        match current.stage:
            case Stage.READ:
                return self._read(current)
            case Stage.COMPUTE:
                return self._compute(current)
            case Stage.PUSH:
                return self._push(current)
            case Stage.CONFIRM:
                return self._confirm(current)

    def _read(self, current: Round) -> float | None:
        """Read the parameters of the clock; then compute."""
        work = current.work
        assert isinstance(work, Work)
        if current.exchange is None:
            self._load(work)
            computation = current.computation = self._computation_of(work.clock, current)
            if computation.complete:
                current.stage = Stage.COMPUTE
                return None
            self._exchange(current, work.clock, computation, work.clock, work.min_clock)
        return self._continue_exchange(current)

    def _load(self, work: Work) -> None:
        """Load the splits of a clock, and switch to the membership that is in force at it."""
        with self._wakeup.lock:
            newest = self.state.memberships.newest
        if newest.from_clock <= work.clock:
            self._plane.follow(newest)
        if self.program.splits != work.splits:
            self.program.load(work.splits)
            with self._wakeup.lock:
                # Includes splits that later orders need.
                needed = self.state.duties.needed()
            logger.info("W[%s] clock %d: %s", self.state.name, work.clock, self.program.keep(needed))

    def _computation_of(self, clock: int, current: Round) -> Computation:
        """Return the computation that receives the parameters of a clock; reuses one that was started before.

        Under BSP a version has the same bits on every server.  After a loss, parameters from a lost owner are still
        read again: the new owner may have an earlier version, and reaches this one once all have pushed again.
        """
        with self._wakeup.lock:
            owners = self.state.memberships.route(clock).partitions.owners
        if self._next is not None and self.program.is_for(self._next.computation, clock):
            begun, found = self._next.begun, self._next.computation
            is_whole = found.complete and (begun == current.begun or self.state.read_clock >= clock)
            if begun.incarnation == current.begun.incarnation and (is_whole or self.state.settings.bsp):
                if not is_whole:
                    found.read_again({p for p, owner in enumerate(owners) if owner != self._next.owners[p]})
                    self._next = NextParameters(current.begun, owners, found)
                return found
        self._next = NextParameters(current.begun, owners, self.program.begin(clock))
        return self._next.computation

    def _compute(self, current: Round) -> float | None:
        """Compute; keep the result, then push it."""
        work = current.work
        assert isinstance(work, Work)
        if current.contribution is None:
            computation, self._next = current.computation, None
            assert computation is not None
            if work.clock >= self.state.settings.iterations:
                self._finish(current, work, self.program.measure(computation))
                return None
            current.contribution = computation.finish()
            current.computation = None
            current.until_s = self._wakeup.now_s() + self.program.pause_s(current.contribution)
        contribution = current.contribution
        if self._wakeup.now_s() < current.until_s:
            return current.until_s
        with self._wakeup.lock:
            if self._is_void(current):
                return None
            report = m.ClockReported(self.state.name, work.clock, contribution.results, current.begun.incarnation)
            self.state.keep(Kept(work.clock, contribution.splits, report, contribution))
            current.contribution = None
            current.stage = Stage.PUSH
        return None

    def _finish(self, current: Round, work: Work, results: tuple[m.SplitResult, ...]) -> None:
        """Report the results of the final parameters."""
        with self._wakeup.lock:
            if not self._is_void(current):
                self._report(m.ClockReported(self.state.name, work.clock, results, current.begun.incarnation))
                self.state.measured(work)
            self._end()

    def _push(self, current: Round) -> float | None:
        """Push the contribution and, if possible, request the next clock's parameters together with it."""
        work = current.work
        assert isinstance(work, Work)
        clock = work.clock
        if current.exchange is None:
            with self._wakeup.lock:
                if self._is_void(current):
                    return None
                if not self.program.splits:
                    # A newcomer's first splits start later: a lost worker had pushed this clock's.
                    self.state.pushed(clock)
                    self._end()
                    return None
                ahead = self.state.read_ahead(clock, self.program.splits)
            current.computation = None if ahead is None else self._computation_of(ahead, current)
            min_clock = self.state.settings.min_clock_to_read(clock + 1)
            self._exchange(current, clock, current.computation, clock + 1, min_clock)
        return self._continue_exchange(current)

    def _confirm(self, current: Round) -> float | None:
        """Before leaving, wait until every owner's parameters of the next clock include the pushes."""
        clock = current.work.clock
        if current.exchange is None:
            read = self.program.begin(clock)
            read.drop_splits()
            self._exchange(current, clock, read, clock, clock)
        return self._continue_exchange(current)

    def _exchange(self, current: Round, up_to: int, get: Computation | None, clock: int, min_clock: int) -> None:
        """Start pushing what some owner lacks of the clocks up to ``up_to``, and reading ``clock``."""
        with self._wakeup.lock:
            # Owners cannot accept later clocks before those that this worker inherited from a lost one.
            put = self.state.outbox.unpushed(up_to)
        current.exchange = self._plane.exchange(put, get, clock, min_clock)
        with self._wakeup.lock:
            for report in self.state.outbox.untold():
                # The report leads to the next grant: with few granted clocks left, it is needed at once.
                self._report(report, can_wait=self.state.duties.horizon - report.clock > NEAR_HORIZON_CLOCKS)

    def _continue_exchange(self, current: Round) -> float | None:
        """Advance the current exchange, and process its result."""
        exchange = current.exchange
        assert exchange is not None
        progress = exchange.advance()
        if progress is Progress.UNDER_WAY:
            return exchange.due_s
        with self._wakeup.lock:
            if not self._is_void(current):
                current.exchange = None
                if progress is Progress.COMPLETE:
                    self.state.outbox.on_pushed(exchange.put)
                self._end_exchange(current, progress)
        return None

    def _end_exchange(self, current: Round, progress: Progress) -> None:
        """Continue the round after its exchange; called with the lock held."""
        work, computation = current.work, current.computation
        if isinstance(work, Confirmation):
            # If the clock has passed, an answer was lost, and the others continued without this worker.
            self.state.read(work.clock)
            self._end()
        elif progress is Progress.PASSED:
            logger.info("W[%s] clock %d: is complete everywhere", self.state.name, work.clock)
            self.state.passed(work)
            self._end()
        elif current.stage is Stage.READ:
            self.state.read(work.clock)
            current.stage = Stage.COMPUTE
        else:
            if computation is not None:
                self.state.read(computation.clock)
            self.state.pushed(work.clock)
            self._end()
