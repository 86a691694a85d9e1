"""What a service shows of its scheduler: news for who watches, and the figures behind its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.core.state import Scheduler
from hscheduler.live.registry import LookUps, Registry
from hscheduler.reports.news import failures, jobs_of, sentences
from hscheduler.reports.view import SweepView
from hscheduler.service.news import NewsBoard

#: Called with the seconds since the beginning, an event, what it brought about, and the state as it was left.
Take = Callable[[float, e.Event, list[e.Command], Scheduler], None]


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
        self.view.look_back(registry.history, registry.state)
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
