"""A submitted job, as its submitter sees it; and which jobs are attempts of the same trial.

A failed job may be retried, as another job with the same point.

Source: the paper is silent about jobs that fail.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eps.errors import DIVERGED
from eps.spec.job_spec import JobSpec
from hscheduler.core.codec import spelt
from hscheduler.core.jobs import Phase
from hscheduler.reports.history import NO_SUCH_METRIC

#: In the ids of further attempts.
AGAIN = "-again-"
_NO_SPACE = os.strerror(errno.ENOSPC)
#: Values of a submission that are recorded as they are.
_FLAGS = ("job_id", "sweep", "why", "has_started", "is_stopped", "is_paused")


@dataclass
class Submission:
    """A submitted job, as its submitter sees it."""

    job_id: str
    sweep: str
    #: The job's name under ``EPS_HOME``.
    name: str
    spec: JobSpec
    #: The point in the space that its sweep searches.
    point: Mapping[str, Any] = field(default_factory=dict)
    #: How it ended; None until then.
    phase: Phase | None = None
    why: str = ""
    #: Its final metric; None unless it finished.
    loss: float | None = None
    #: Its metric at the feedback iteration; None before.
    feedback: float | None = None
    #: (iteration, metric) at each rung that it has reached.
    rungs: list[tuple[int, float]] = field(default_factory=list)
    #: Whether the stopping rule has paused it.
    is_paused: bool = False
    #: The job's own report, if it came from a service; see :func:`hscheduler.live.job_results.own_report`.
    report: dict[str, Any] | None = None
    #: Whether its processes have ever run.
    has_started: bool = False
    #: Whether the policy ended it, and will not restart it.
    is_stopped: bool = False
    #: Completed iterations and time of arrival of a job that has left the scheduler's state.
    iteration: int = 0
    arrived_s: float | None = None
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job or its scheduler has ended; return False if neither ends within ``timeout_s`` seconds."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended.  It stays False if only the scheduler has."""
        return self.phase is not None

    def end(self, phase: Phase) -> None:
        """Note how the job ended, and wake the waiting threads."""
        self.phase = phase
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake the threads that wait for the end, also if the scheduler ended and will not report it."""
        self._over.set()

    @property
    def has_diverged(self) -> bool:
        """Whether it was ended because its training diverged: its metric then says nothing about its point."""
        return self.phase is Phase.KILLED and DIVERGED in self.why

    @property
    def stopped_with(self) -> float | None:
        """Its latest metric that a stopping rule has seen: at its last rung, else its early feedback."""
        return self.rungs[-1][1] if self.rungs else self.feedback

    def values(self) -> dict[str, Any]:
        """Return everything but the report, as JSON values; see :meth:`of_values`."""
        known = {name: getattr(self, name) for name in _FLAGS}
        numbers = {name: getattr(self, name) for name in ("loss", "feedback")}
        return {
            **known,
            **{name: None if value is None else spelt(value) for name, value in numbers.items()},
            **self.details(),
            "rungs": [[iteration, spelt(value)] for iteration, value in self.rungs],
            "phase": self.phase,
            "iteration": self.iteration,
            "arrived_s": self.arrived_s,
        }

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Submission:
        """Return the submission that :meth:`values` described.

        Raises
        ------
        KeyError, TypeError, ValueError
            The values are of another version.
        """
        known = {**values, "phase": None, "spec": JobSpec.from_dict(values["spec"], "record")}
        for name in ("loss", "feedback"):
            known[name] = None if values[name] is None else float(values[name])
        known["rungs"] = [(int(iteration), float(value)) for iteration, value in values.get("rungs", ())]
        found = cls(**known)
        if values["phase"] is not None:
            found.end(Phase(values["phase"]))
        return found

    def details(self) -> dict[str, Any]:
        """Return the values that are recorded with the event that submits the job."""
        return {"name": self.name, "spec": json.loads(self.spec.to_json()), "point": dict(self.point)}


def is_retryable(submission: Submission) -> bool:
    """Return whether another job with the same settings may succeed after this one failed.

    That needs a job that ran, did not diverge, and had the metric by which it is ranked.  A job that could not start,
    or that requested more than the cluster has, would fail again.  A job that a rule, a policy or a user ended has not
    failed.
    """
    if submission.phase is not Phase.FAILED or not submission.has_started or submission.is_stopped:
        return False
    return not any(sign in submission.why for sign in (DIVERGED, NO_SUCH_METRIC))


def lacked_space(submission: Submission) -> bool:
    """Return whether a job failed because the disk was full."""
    return submission.phase is Phase.FAILED and _NO_SPACE in submission.why


def attempt_id(job_id: str, number: int) -> str:
    """Return the id of a trial's ``number``-th attempt, counted from 1."""
    return job_id if number == 1 else f"{job_id}{AGAIN}{number - 1}"


def trial_of(job_id: str, find: Callable[[str], Submission | None]) -> str:
    """Return the id of the trial that a job is an attempt of, consistent with :func:`attempts_of`.

    Parameters
    ----------
    job_id : str
    find : callable
        Returns the job with an id, or None.
    """
    trial, _, number = job_id.rpartition(AGAIN)
    first = find(trial) if trial and number.isdecimal() and job_id == attempt_id(trial, int(number) + 1) else None
    if first is None or trial_of(trial, find) != trial:
        return job_id
    others = (find(attempt_id(trial, attempt)) for attempt in range(2, int(number) + 2))
    return trial if all(other is not None and _is_retry(first, other) for other in others) else job_id


def attempt_before(submission: Submission, find: Callable[[str], Submission | None]) -> str:
    """Return the id of the attempt that a new job follows; empty for a trial's first.  ``find`` as of ``trial_of``."""
    job_id = submission.job_id
    trial = trial_of(job_id, lambda other: submission if other == job_id else find(other))
    return "" if trial == job_id else attempt_id(trial, int(job_id.rpartition(AGAIN)[2]))


def attempts_of(submissions: Iterable[Submission]) -> dict[str, list[str]]:
    """Return the job ids of each trial, in the order of attempts, by the trial's id.

    An attempt has its trial's settings and point.  Other jobs whose users chose such ids are trials of their own.
    """
    known = {each.job_id: each for each in submissions}
    found: dict[str, list[str]] = {}
    others: set[str] = set()
    for job_id, first in known.items():
        if job_id in others:
            continue
        found[job_id] = [job_id]
        while (again := known.get(attempt_id(job_id, len(found[job_id]) + 1))) is not None:
            if not _is_retry(first, again):
                break
            found[job_id].append(again.job_id)
            others.add(again.job_id)
    return found


def _is_retry(first: Submission, other: Submission) -> bool:
    return (other.sweep, other.spec, other.point) == (first.sweep, first.spec, first.point)
