"""What a service shows of its scheduler: news for who watches, and the figures behind its metrics."""

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

#: News that are kept for clients that come later.
MOST_NEWS = 10_000
#: Called with the seconds since the beginning, an event, what it brought about, and the state as it was left.
Take = Callable[[float, e.Event, list[e.Command], Scheduler], None]


@dataclass(frozen=True)
class Item:
    """One sentence."""

    #: Grows with time, also over restarts of the service.
    number: int
    at_s: float
    text: str
    sweeps: frozenset[str]


class NewsBoard:
    """Sentences with numbers; thread-safe."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque(maxlen=MOST_NEWS)
        self._changed = threading.Condition()
        self._last = 0

    def put(self, at_s: float, texts: list[str], sweeps: frozenset[str]) -> None:
        """Add sentences of some sweeps; without any, whoever waits looks up all the same."""
        with self._changed:
            for text in texts:
                # Microseconds: a service that was started again goes on counting where time is.
                self._last = max(self._last + 1, int(at_s * 1e6))
                self._items.append(Item(self._last, at_s, text, sweeps))
            self._changed.notify_all()

    def after(self, number: int, sweep: str, wait_s: float) -> list[Item]:
        """Return what is newer than ``number`` of a sweep (empty: of all), after at most ``wait_s`` seconds for it."""

        def found() -> list[Item]:
            return [item for item in self._items if item.number > number and (not sweep or sweep in item.sweeps)]

        with self._changed:
            items = found()
            if not items:
                self._changed.wait(wait_s)
                items = found()
            return items

    def wait(self, timeout_s: float) -> None:
        """Wait until there may be something new."""
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
        #: Of all jobs: sweeps may have metrics of their own, so none of them is the best here.
        self.view = SweepView(
            policy,
            "",
            Direction.MINIMIZE,
            0,
            lambda job_id: 0,
            lambda job_id: None,
            lambda job_id: self.trial_of(job_id),
        )
        #: Called whenever a job is over.
        self.wake: Callable[[], None] = lambda: None
        #: Job -> its name under ``EPS_HOME``; empty where that is not known, as in the past.
        self.name_of: Callable[[str], str] = lambda job_id: ""
        #: Job -> the trial that it is an attempt of; asked whenever somebody looks.
        self.trial_of: Callable[[str], str] = lambda job_id: job_id

    def look_back(self, registry: Registry, look_ups: LookUps) -> None:
        """Take what was before the first event; of it there are no news."""
        self._look_ups = look_ups
        self.view.look_back(registry.timeline, registry.state)
        self.forget(())

    def forget(self, jobs: Iterable[str]) -> None:
        """Let go of jobs that are over."""
        self.view.forget(jobs, *self._look_ups.counts())

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event and what it brought about."""
        self.view.take(now_s, event, commands, state)
        self._tell(now_s, event, commands, state)
        if self._then is not None:
            self._then(now_s, event, commands, state)

    def _tell(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        texts = failures(commands, self.name_of) + sentences(event, commands)
        if any(isinstance(command, e.JobOver) for command in commands):
            self.wake()
        elif not texts:
            return
        sweeps = {state.jobs[job_id].request.sweep for job_id in jobs_of(event, commands) & state.jobs.keys()}
        if isinstance(event, e.JobRefused):
            sweeps.add(event.sweep)
        self.board.put(now_s, texts, frozenset(sweeps))
