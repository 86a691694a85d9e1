"""The observer of a service's scheduler: news for clients."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hscheduler.core import events as e
from hscheduler.core.state import Scheduler
from hscheduler.live.scheduler import Observe
from hscheduler.reports.news import failures, jobs_of, sentences

#: Most news kept for clients that connect later.
MOST_NEWS = 10_000


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
    """Observes a service's scheduler.

    Parameters
    ----------
    then : callable, optional
        Called with each event after this.
    """

    def __init__(self, then: Observe | None = None) -> None:
        self._then = then
        self.board = NewsBoard()
        #: Called after the end of each job.
        self.wake: Callable[[], None] = lambda: None
        #: Job -> its name under ``EPS_HOME``; empty if unknown.
        self.name_of: Callable[[str], str] = lambda job_id: ""

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event and the commands that followed."""
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
