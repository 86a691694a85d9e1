"""The training loop of a worker: it connects what is due (state), how it is computed (program), and with whom (plane).

One clock after the other is a :class:`Round`: read the parameters, compute, push.  :meth:`TrainingLoop.advance` does
what can be done now; it neither sleeps nor starts a thread.  :meth:`TrainingLoop.run` waits between its calls.

The loop's thread owns the arrays; the session's thread only changes the pure state, under one lock.  Everything in
:mod:`eps.worker` that waits or reads the time does it in :class:`Wakeup`, or in a wire: a simulation gives others.

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

#: Closer to its horizon than this, a worker's reports do not linger.
NEAR_HORIZON_CLOCKS = 3


class Wakeup:
    """What the session's thread and the loop's thread of a worker share, beside its state.

    Parameters
    ----------
    now_s : callable
        The clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        #: Held while the state is used.
        self.lock = threading.Condition()
        #: Counts what the session's thread says; -1 once it says that the worker is to stop.
        self._news = 0
        #: Of that, how much the loop has seen.
        self._seen = 0

    def tell(self) -> None:
        """Wake the loop: the state has changed."""
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
        """Return whether the loop is to go on; what was told before wakes it no more."""
        with self.lock:
            self._seen = self._news
            return self._seen >= 0

    def wait(self, until_s: float) -> None:
        """Wait for news, at most until a time of the clock."""
        with self.lock:
            self.lock.wait_for(lambda: self._news != self._seen, max(0.0, until_s - self.now_s()))


class Progress(Enum):
    """How far an exchange is."""

    UNDER_WAY = "under way"
    #: Everything is put, and everything has come.
    COMPLETE = "complete"
    #: The clock that was asked for is complete everywhere: a lost worker had put what was to be computed.
    PASSED = "passed"


class Exchange(Protocol):
    """Contributions that are put and parameters that are got, together."""

    @property
    def put(self) -> Sequence[Kept]:
        """The contributions."""

    @property
    def due_s(self) -> float:
        """When :meth:`advance` has something to do though no answer comes; by the worker's clock."""

    def advance(self) -> Progress:
        """Send what is due and take what has come; may wait for it, but not long.

        Raises
        ------
        ProtocolError
            A peer says that a part breaks the protocol.
        DeadlineError, PeerUnavailableError
            The exchange is given up; says what is missing.
        """


class ParameterPlane(Protocol):
    """Puts the contributions of one worker, and gets its parameters.  Used by the worker's thread, but for prepare."""

    def prepare(self, addresses: Iterable[Address]) -> None:
        """Begin to connect to peers, before an exchange waits for them; any thread."""

    def follow(self, membership: Membership) -> None:
        """Part from peers that are no members any more; between exchanges."""

    def exchange(self, put: Sequence[Kept], get: Computation | None, clock: int, min_clock: int) -> Exchange:
        """Begin an exchange; what is under way of the one before is void.

        Parameters
        ----------
        put : sequence of Kept
            What some peer may lack.
        get : Computation or None
            Where parameters go; None asks for none.
        clock : int
            Of those parameters.
        min_clock : int
            Clocks that must be complete in them.
        """

    def rest(self) -> None:
        """Give everything back that peers could use: nothing is exchanged, unless members are lost."""

    def close(self) -> None:
        """Close the connections."""


class Reporter(Protocol):
    """Says something to the job master; what can wait may be sent together with what follows."""

    def __call__(self, report: m.Report, *, can_wait: bool = False) -> None:
        """Queue ``report``; return at once."""


class Stage(Enum):
    """What a round is at."""

    READ = "reads its parameters"
    COMPUTE = "computes"
    PUSH = "pushes, and reads the parameters of the next clock"
    CONFIRM = "reads once more before it leaves"


@dataclass(eq=False)
class Round:
    """One clock of a worker, from its parameters to the end of its push."""

    work: Work | Confirmation
    begun: Begun
    stage: Stage
    computation: Computation | None = None
    #: What was computed.
    contribution: Contribution | None = None
    #: What is under way.
    exchange: Exchange | None = None
    #: Until when the computation lasts, though it takes less (``stretch_s``).
    until_s: float = 0.0


class Coming(NamedTuple):
    """Parameters that come, and what is computed with them meanwhile."""

    begun: Begun
    #: Partition -> the server that it was asked of.
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
        #: The parameters of the clock that follows, as far as they have come.
        self._next: Coming | None = None
        #: Since when there has been nothing to do.
        self._idle_s: float | None = None

    def run(self) -> None:
        """Compute what is owed until the worker is told to stop."""
        while (due_s := self.advance()) is not None:
            # An exchange waits by itself, for answers.
            if self._round is None or self._round.exchange is None:
                self._wakeup.wait(due_s)

    def advance(self) -> float | None:
        """Do everything that can be done now.

        Returns
        -------
        float or None
            When there is something to do though nothing comes, by the worker's clock; None: told to stop.

        Raises
        ------
        EpsError
            What the plane or the program raises.
        DeadlineError
            The master has granted no clock for too long.
        """
        while True:
            if not self._wakeup.look():
                return None
            with self._wakeup.lock:
                if self._round is not None and self._is_void(self._round):
                    logger.info("W[%s] begins again, members were lost: %s", self.state.name, self._round.work)
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
        """Return whether a round must begin again; called with the lock held."""
        return self.state.is_void(current.begun, current.stage is Stage.COMPUTE)

    def _begin(self) -> None:
        """Begin what is to be done now, if there is something; called with the lock held."""
        work = self.state.begin()
        if work is None:
            return
        stage = Stage.CONFIRM if isinstance(work, Confirmation) else Stage.READ if work.splits else Stage.PUSH
        self._round = Round(work, self.state.now, stage)

    def _end(self) -> None:
        """End a round; called with the lock held."""
        self._round = None
        self.state.end()
        self._say_released()

    def _say_released(self) -> None:
        for report in self.state.released():
            self._report(report)

    def _rest(self) -> float:
        """Do what can be done while nothing is due; return when the wait is too long."""
        now_s = self._wakeup.now_s()
        with self._wakeup.lock:
            rests = self.state.rest()
            self._say_released()
        if rests:
            # The model is written now, by others: what this process held for computing is theirs.
            self._next = None
            self.program.forget()
            self._plane.rest()
        if self._idle_s is None or rests:
            self._idle_s = now_s
        if now_s - self._idle_s >= HORIZON_DEADLINE_S:
            raise DeadlineError(f"waited {HORIZON_DEADLINE_S:g} s for {self.state.duties.waits_for()}")
        return self._idle_s + HORIZON_DEADLINE_S

    # ---- a round

    def _drive(self, current: Round) -> float | None:
        """Do one thing of a round; return when there is something to do, or None where that is at once."""
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
        """Have the parameters of the clock come; go on to compute."""
        work = current.work
        assert isinstance(work, Work)
        if current.exchange is None:
            self._load(work)
            computation = current.computation = self._coming(work.clock, current)
            if computation.complete:
                current.stage = Stage.COMPUTE
                return None
            self._exchange(current, work.clock, computation, work.clock, work.min_clock)
        return self._go_on(current)

    def _load(self, work: Work) -> None:
        """Make the splits of a clock ready, and follow the membership that holds for it."""
        with self._wakeup.lock:
            newest = self.state.memberships.newest
        if newest.from_clock <= work.clock:
            self._plane.follow(newest)
        if self.program.splits != work.splits:
            self.program.load(work.splits)
            with self._wakeup.lock:
                # What orders have made needed by now stays, too.
                needed = self.state.duties.needed()
            logger.info("W[%s] clock %d: %s", self.state.name, work.clock, self.program.keep(needed))

    def _coming(self, clock: int, current: Round) -> Computation:
        """Return where the parameters of a clock go: with what has come of them already, where that began before.

        Under BSP a version has the same bits on every server.  After a loss, what a lost owner had sent is read again
        all the same: the new owner may have an earlier version, and has this one when all have pushed to it again.
        """
        with self._wakeup.lock:
            owners = self.state.memberships.route(clock).partitions.owners
        if self._next is not None and self.program.is_for(self._next.computation, clock):
            begun, found = self._next.begun, self._next.computation
            is_whole = found.complete and (begun == current.begun or self.state.read_clock >= clock)
            if begun.incarnation == current.begun.incarnation and (is_whole or self.state.settings.bsp):
                if not is_whole:
                    found.read_again({p for p, owner in enumerate(owners) if owner != self._next.owners[p]})
                    self._next = Coming(current.begun, owners, found)
                return found
        self._next = Coming(current.begun, owners, self.program.begin(clock, current.begun.epoch))
        return self._next.computation

    def _compute(self, current: Round) -> float | None:
        """Compute; keep what was computed, and go on to push it."""
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
            current.until_s = self._wakeup.now_s() + self.program.pause_s(work.splits)
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
        """Report what was measured with the final parameters."""
        with self._wakeup.lock:
            if not self._is_void(current):
                self._report(m.ClockReported(self.state.name, work.clock, results, current.begun.incarnation))
                self.state.measured(work)
            self._end()

    def _push(self, current: Round) -> float | None:
        """Push what was computed, and ask for the parameters of the next clock together with it where that can be."""
        work = current.work
        assert isinstance(work, Work)
        clock = work.clock
        if current.exchange is None:
            with self._wakeup.lock:
                if self._is_void(current):
                    return None
                if not self.program.splits:
                    # The first splits of a newcomer begin later: a lost worker had pushed this clock's.
                    self.state.pushed(clock)
                    self._end()
                    return None
                ahead = self.state.read_ahead(clock, self.program.splits)
            current.computation = None if ahead is None else self._coming(ahead, current)
            min_clock = self.state.settings.min_clock_to_read(clock + 1)
            self._exchange(current, clock, current.computation, clock + 1, min_clock)
        return self._go_on(current)

    def _confirm(self, current: Round) -> float | None:
        """Wait, before leaving, until what was pushed is in the parameters of the next clock everywhere."""
        clock = current.work.clock
        if current.exchange is None:
            read = self.program.begin(clock, current.begun.epoch)
            read.drop_splits()
            self._exchange(current, clock, read, clock, clock)
        return self._go_on(current)

    def _exchange(self, current: Round, up_to: int, get: Computation | None, clock: int, min_clock: int) -> None:
        """Begin to push what some owner lacks of the clocks up to ``up_to``, and to read ``clock``."""
        with self._wakeup.lock:
            # Of what was computed for a later clock than a lost worker left to this one, nothing can be taken yet.
            put = self.state.outbox.unpushed(up_to)
        current.exchange = self._plane.exchange(put, get, clock, min_clock)
        with self._wakeup.lock:
            for report in self.state.outbox.untold():
                # The next grant follows from this report: the fewer clocks are granted, the sooner it is wanted.
                self._report(report, can_wait=self.state.duties.horizon - report.clock > NEAR_HORIZON_CLOCKS)

    def _go_on(self, current: Round) -> float | None:
        """Let an exchange go on; take in what it came to."""
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
                self._take_in(current, progress)
        return None

    def _take_in(self, current: Round, progress: Progress) -> None:
        """Go on after a complete exchange; called with the lock held."""
        work, computation = current.work, current.computation
        if isinstance(work, Confirmation):
            # Where the clock has passed, an answer was lost, and the others went on without the one that leaves.
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
