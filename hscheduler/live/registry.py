"""The state, orders and submissions that follow from a scheduler's events; and look-ups of current and past jobs.

When the record is compacted, ended jobs leave the registry, except the latest ones.  No decision depends on them, and
the record's table has them.  Three things stay: the early feedback of jobs that finished, which stopping rules count;
how each sweep ranks its jobs; and the sweep's file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.codec import decoded, encoded
from hscheduler.core.cohort import Rule
from hscheduler.core.decisions import Policy
from hscheduler.core.jobs import Phase
from hscheduler.core.outstanding import Numbered, Outstanding
from hscheduler.core.state import Scheduler
from hscheduler.core.timeline import DecisionRecord, Timeline, TrialRecord
from hscheduler.live.submission import Submission, trial_of
from hscheduler.record.api import Entry
from hscheduler.record.ended_jobs import Decided, EndedJob, Rows

#: Ended jobs that stay in the registry.
LATEST_OVER = 100
_OF_THE_CORE = ("state", "timeline", "outstanding", "sweeps", "opened_s", "closed", "ended", "cancelled")


@dataclass
class Registry:
    """Everything that follows from a scheduler's events; only the thread that owns it changes it."""

    state: Scheduler
    timeline: Timeline = field(default_factory=Timeline)
    outstanding: Outstanding = field(default_factory=Outstanding)
    #: Sweep -> how its jobs are ranked.
    sweeps: dict[str, e.SweepOpened] = field(default_factory=dict)
    #: Sweep -> when it was opened.
    opened_s: dict[str, float] = field(default_factory=dict)
    #: Sweeps that were ended -> the reason.
    closed: dict[str, str] = field(default_factory=dict)
    #: Sweeps with a file whose trials are all over: they need not be resumed.
    ended: dict[str, None] = field(default_factory=dict)
    #: Jobs that a user cancelled.
    cancelled: set[str] = field(default_factory=set)
    #: Sweep -> tables of its file, for sweeps whose points this process generates.
    tables: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)

    def entry(self, at_s: float, event: e.Event) -> Entry:
        """Return the entry to record for an event before it is taken."""
        details: dict[str, Any] = {}
        if isinstance(event, e.JobSubmitted | e.JobRefused):
            details = self.submissions[event.job_id].details()
        elif isinstance(event, e.SweepOpened) and event.sweep in self.tables:
            details = {"tables": self.tables[event.sweep]}
        return Entry(at_s, event, details, self.outstanding.given, self.outstanding.checksum)

    def take(self, entry: Entry) -> tuple[list[e.Command], list[Numbered]]:
        """Take an event; return the commands, and the orders among them with their numbers."""
        event = entry.event
        if isinstance(event, e.JobSubmitted | e.JobRefused) and event.job_id not in self.submissions:
            self.submissions[event.job_id] = _submission_of(event, entry.details)
        elif isinstance(event, e.SweepOpened) and entry.details:
            self.tables[event.sweep] = entry.details["tables"]
        commands = self.state.step(event)
        self.timeline.take(entry.at_s, event, commands, self.state)
        orders = self.outstanding.take(event, commands)
        match event:
            case e.SweepOpened(sweep):
                self.sweeps[sweep] = event
                self.opened_s.setdefault(sweep, entry.at_s)
            case e.SweepClosed(sweep, why):
                self.closed.setdefault(sweep, why)
            case e.JobStarted(job_id):
                self.submissions[job_id].has_started = True
            case e.CancelAsked(job_id, _):
                self.cancelled.add(job_id)
            case e.FeedbackGiven(job_id, value):
                self.submissions[job_id].feedback = value
            case e.RungReached(job_id):
                self._note_rungs(self.submissions[job_id])
            case e.JobEnded(job_id, _, _, feedback) if feedback is not None:
                self.submissions[job_id].feedback = feedback
        for command in commands:
            match command:
                case e.EndJob(job_id, restarts, _, after):
                    self.submissions[job_id].is_stopped = not restarts and not self._is_cancelled(job_id)
                    self.submissions[job_id].is_paused = after > 0
                case e.StartJob(job_id):
                    self.submissions[job_id].is_paused = False
                case e.JobOver(job_id, phase, why):
                    self._over(self.submissions[job_id], phase, why)
        return commands, orders

    def _is_cancelled(self, job_id: str) -> bool:
        """Return whether a user ended a job, or its sweep."""
        return job_id in self.cancelled or self.submissions[job_id].sweep in self.closed

    def _over(self, submission: Submission, phase: Phase, why: str) -> None:
        job = self.state.jobs.get(submission.job_id)
        if job is not None:
            submission.loss = job.loss
            # A paused job ends without an order.
            is_ended_paused = job.stopped_at is not None and submission.is_paused
            submission.is_stopped |= is_ended_paused and not self._is_cancelled(submission.job_id)
        submission.why, submission.is_paused = why, False
        submission.end(phase)

    def _note_rungs(self, submission: Submission) -> None:
        job = self.state.jobs[submission.job_id]
        rungs = self.state.rungs(job)
        submission.rungs = [(rungs.at(number) or 0, value) for number, value in enumerate(job.rungs)]

    # ---- the snapshot of a record, and its table of ended jobs

    def snapshot(self) -> dict[str, Any]:
        """Return the registry as JSON values, without jobs and sweeps whose first event is still queued."""
        return {
            "core": encoded({name: getattr(self, name) for name in _OF_THE_CORE}),
            "tables": {name: tables for name, tables in self.tables.items() if name in self.sweeps},
            "submissions": [self.submissions[job_id].values() for job_id in self.timeline.trials],
        }

    @classmethod
    def of_snapshot(cls, snapshot: Mapping[str, Any], policy: Policy, rules: Mapping[str, Rule]) -> Registry:
        """Return the registry that :meth:`snapshot` described.

        Raises
        ------
        KeyError, TypeError, ValueError
            The values are not a snapshot.
        """
        submissions = [Submission.of_values(values) for values in snapshot["submissions"]]
        return cls(
            **decoded(snapshot["core"], policy, rules),
            tables=dict(snapshot["tables"]),
            submissions={each.job_id: each for each in submissions},
        )

    def evictable(self) -> list[str]:
        """Return the ended jobs that may leave: all but the latest."""
        trials = self.timeline.trials.items()
        ends = {job_id: trial.finished_s for job_id, trial in trials if trial.finished_s is not None}
        for job_id in self.outstanding.there():
            # A job whose master's node was lost is over, but has not reported its end: keep it.
            ends.pop(job_id, None)
        return sorted(ends, key=ends.__getitem__)[: max(0, len(ends) - LATEST_OVER)]

    def rows(self, jobs: Collection[str], find: Callable[[str], Submission | None]) -> list[EndedJob]:
        """Return the rows with which a record keeps ended jobs.

        Parameters
        ----------
        jobs : collection of str
        find : callable
            Returns any job, also one that has left.
        """
        rows = []
        for job_id in jobs:
            submission, trial = self.submissions[job_id], self.timeline.trials[job_id]
            submission.iteration, submission.arrived_s = trial.iteration, trial.arrived_s
            trial_id = trial_of(job_id, find)
            rows.append(EndedJob(job_id, trial_id, trial.sweep, trial.phase, submission.values(), trial))
        return rows

    def decided(self) -> list[Decided]:
        """Return the decisions, each with every sweep that it concerned."""
        trials = self.timeline.trials
        # Decisions that the table has already may concern jobs that have left.
        return [
            (sweep, decision)
            for decision in self.timeline.decisions
            for sweep in sorted({trials[job_id].sweep for job_id in decision.jobs if job_id in trials})
        ]

    def without(self, jobs: Iterable[str]) -> Registry:
        """Return a copy without some ended jobs."""
        core = deepcopy({name: getattr(self, name) for name in _OF_THE_CORE})
        found = Registry(**core, tables=dict(self.tables), submissions=dict(self.submissions))
        found.forget(jobs)
        return found

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop ended jobs, and all but the latest decisions, which the record has."""
        jobs = list(jobs)
        self.timeline.forget(jobs, self.state)
        for job_id in jobs:
            if job_id in self.state.jobs:
                self.state.forget(job_id)
            del self.submissions[job_id]
            self.cancelled.discard(job_id)


def _submission_of(event: e.JobSubmitted | e.JobRefused, details: Mapping[str, Any]) -> Submission:
    spec = JobSpec.from_dict(details["spec"], "record")
    return Submission(event.job_id, event.sweep, str(details["name"]), spec, dict(details["point"]))


class LookUps:
    """Look-ups of jobs, including those that have left the registry; for any thread.

    Parameters
    ----------
    registry : Registry
    rows : Rows, optional
        The record's table of ended jobs.  None: no job leaves the registry.
    """

    def __init__(self, registry: Registry, rows: Rows | None) -> None:
        self._registry, self._rows = registry, rows

    def submission(self, job_id: str) -> Submission | None:
        """Return a job that was submitted, or None."""
        found = self._registry.submissions.get(job_id)
        if found is None and self._rows is not None and (row := self._rows.ended_job(job_id)) is not None:
            found = Submission.of_values(row.submission)
        return found

    def submissions(self, sweep: str = "") -> list[Submission]:
        """Return the submitted jobs of one sweep, or of all; first those that have left."""
        # In this order: a job may leave between the two look-ups, and is then in both.
        here = self.current(sweep)
        return list({each.job_id: each for each in (*self.past(sweep), *here)}.values())

    def current(self, sweep: str = "") -> list[Submission]:
        """Return the jobs in the registry, of one sweep or of all."""
        return [each for each in list(self._registry.submissions.values()) if not sweep or each.sweep == sweep]

    def past(self, sweep: str = "") -> list[Submission]:
        """Return the jobs that have left, of one sweep or of all."""
        return [Submission.of_values(row.submission) for row in self._past(sweep)]

    def has_sweep(self, sweep: str) -> bool:
        """Return whether a sweep was opened, or has had a job."""
        here = sweep in self._registry.sweeps or bool(self.current(sweep))
        return here or bool(self.counts(sweep)[0])

    def first_id(self, prefix: str) -> str:
        """Return the id of a job that starts with ``prefix``; empty if there was none."""
        here = next((job_id for job_id in list(self._registry.submissions) if job_id.startswith(prefix)), "")
        return here or ("" if self._rows is None else self._rows.first_id(prefix))

    def trials(self, sweep: str) -> list[TrialRecord]:
        """Return the trial records of a sweep's jobs that have left."""
        return [row.trial for row in self._past(sweep)]

    def decisions(self, sweep: str) -> list[DecisionRecord]:
        """Return the recorded decisions about a sweep's jobs."""
        return [] if self._rows is None else self._rows.decisions(sweep)

    def counts(self, sweep: str = "") -> tuple[Counter[Phase], Counter[tuple[str, Phase]]]:
        """Return the numbers of jobs that have left, by how they ended, and of trials, by sweep and how they ended."""
        return (Counter(), Counter()) if self._rows is None else self._rows.counts(sweep)

    def num_over(self, sweep: str) -> int:
        """Return how many jobs of a sweep are over; a job that is leaving at this moment may be missing."""
        return self.num_left(sweep) + sum(each.is_over for each in self.current(sweep))

    def num_left(self, sweep: str) -> int:
        """Return how many jobs of a sweep have left."""
        return 0 if self._rows is None else self._rows.num_jobs(sweep)

    def _past(self, sweep: str) -> list[EndedJob]:
        return [] if self._rows is None else self._rows.ended_jobs(sweep)
