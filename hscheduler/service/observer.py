"""The observer of a service's scheduler: news for clients, and the figures of the metrics."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.core.state import Scheduler
from hscheduler.live.registry import LookUps, Registry
from hscheduler.reports.news import failures, jobs_of, sentences
from hscheduler.reports.view import SweepView

#: Most news kept for clients that connect later.
MOST_NEWS = 10_000
#: Called with the seconds since the start, an event, the commands that followed, and the new state.
Take = Callable[[float, e.Event, list[e.Command], Scheduler], None]


@dataclass(frozen=True)
class Item:
    """One sentence."""

    #: Grows with time, also across restarts of the service.
    number: int
    at_s: float
    text: str
    sweeps: frozenset[str]


class NewsBoard:
    """Numbered sentences for clients; thread-safe."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque(maxlen=MOST_NEWS)
        self._changed = threading.Condition()
        self._last = 0

    def put(self, at_s: float, texts: list[str], sweeps: frozenset[str]) -> None:
        """Add sentences about some sweeps, and wake all waiting clients, also without sentences."""
        with self._changed:
            for text in texts:
                # In microseconds since the start of the record, so that numbers grow across restarts.
                self._last = max(self._last + 1, int(at_s * 1e6))
                self._items.append(Item(self._last, at_s, text, sweeps))
            self._changed.notify_all()

    def after(self, number: int, sweep: str, wait_s: float) -> list[Item]:
        """Return the items after ``number`` of a sweep (empty: of all); wait at most ``wait_s`` seconds for one."""

        def found() -> list[Item]:
            return [item for item in self._items if item.number > number and (not sweep or sweep in item.sweeps)]

        with self._changed:
            items = found()
            if not items:
                self._changed.wait(wait_s)
                items = found()
            return items

    def wait(self, timeout_s: float) -> None:
        """Wait for the next :meth:`put`."""
        with self._changed:
            self._changed.wait(timeout_s)


class Observer:
    """Implements :class:`hscheduler.live.scheduler.Observer`.

    Parameters
    ----------
    policy : str
    then : callable, optional
        Called with each event after this.
    """

    def __init__(self, policy: str, then: Take | None = None) -> None:
        self._then = then
        self.board = NewsBoard()
        #: View of all jobs.  It has no best job, because sweeps may have different metrics.
        self.view = SweepView(
            policy,
            "",
            Direction.MINIMIZE,
            0,
            lambda job_id: 0,
            lambda job_id: None,
            lambda job_id: self.trial_of(job_id),
        )
        #: Called after the end of each job.
        self.wake: Callable[[], None] = lambda: None
        #: Job -> its name under ``EPS_HOME``; empty if unknown.
        self.name_of: Callable[[str], str] = lambda job_id: ""
        #: Job -> the trial of which it is an attempt.
        self.trial_of: Callable[[str], str] = lambda job_id: job_id

    def look_back(self, registry: Registry, look_ups: LookUps) -> None:
        """Take the state before the first event, without news about it."""
        self._look_ups = look_ups
        self.view.look_back(registry.timeline, registry.state)
        self.forget(())

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop ended jobs from the view."""
        self.view.forget(jobs, *self._look_ups.counts())

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event and the commands that followed."""
        self.view.take(now_s, event, commands, state)
        self._tell(now_s, event, commands, state)
        if self._then is not None:
            self._then(now_s, event, commands, state)

    def _tell(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        texts = failures(commands, self.name_of) + sentences(event, commands)
        is_over = any(isinstance(command, e.JobOver) for command in commands)
        if is_over or any(isinstance(command, e.TrialWanted) for command in commands):
            self.wake()
        if not (texts or is_over):
            return
        sweeps = {state.jobs[job_id].request.sweep for job_id in jobs_of(event, commands) & state.jobs.keys()}
        if isinstance(event, e.JobRefused):
            sweeps.add(event.sweep)
        self.board.put(now_s, texts, frozenset(sweeps))
