"""What a service shows of its scheduler: news for who watches, and the figures behind its metrics."""

from __future__ import annotations

from collections.abc import Callable

from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.core.record import Record
from hscheduler.core.state import Scheduler
from hscheduler.reports.news import failures, jobs_of, sentences
from hscheduler.reports.view import SweepView
from hscheduler.service.news import NewsBoard


class Observer:
    """Takes the events of a scheduler, those of its journal first; on the scheduler's thread.

    Parameters
    ----------
    policy : str
    """

    def __init__(self, policy: str) -> None:
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
        self._sweeps: dict[str, str] = {}

    def look_back(self, record: Record, state: Scheduler) -> None:
        """Take what was before the events of the journal, where that was begun anew; of it there are no news."""
        self._sweeps.update((trial.job_id, trial.sweep) for trial in record.trials.values())
        self.view.look_back(record, state)

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event and what it brought about."""
        if isinstance(event, e.JobSubmitted | e.JobRefused):
            self._sweeps[event.job_id] = event.sweep
        self.view.take(now_s, event, commands, state)
        texts = failures(commands, self.name_of) + sentences(event, commands)
        if any(isinstance(command, e.JobOver) for command in commands):
            self.wake()
        elif not texts:
            return
        found = (self._sweeps.get(job_id) for job_id in jobs_of(event, commands))
        self.board.put(now_s, texts, frozenset(filter(None, found)))
