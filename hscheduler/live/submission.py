"""A job that was submitted, from the submitter's side, and which jobs are attempts of one trial.

A job that failed may be tried again, as another job of the same point.

Source: the paper is silent about jobs that fail.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eps.errors import DIVERGED
from eps.spec.job_spec import JobSpec
from hscheduler.core.codec import spelt
from hscheduler.core.jobs import Phase
from hscheduler.reports.history import NO_SUCH_METRIC

_AGAIN = "-again-"


@dataclass
class Submission:
    """A job that was submitted, from the submitter's side."""

    job_id: str
    sweep: str
    #: Of the job under ``EPS_HOME``.
    name: str
    spec: JobSpec
    #: Of the space that its sweep searches.
    point: Mapping[str, Any] = field(default_factory=dict)
    #: How it ended; None before.
    phase: Phase | None = None
    why: str = ""
    #: Its metric at the end, or None where it did not finish.
    loss: float | None = None
    #: Its metric at the feedback iteration, where it came so far.
    feedback: float | None = None
    #: The job's own report, where it ran and ended; see :func:`hscheduler.live.job_results.own_report`.
    report: dict[str, Any] | None = None
    #: Whether its processes were up once.
    has_started: bool = False
    #: Whether the policy ended it, for good.
    is_stopped: bool = False
    #: Iterations complete and when it arrived, of one that the scheduler's state has forgotten.
    iteration: int = 0
    arrived_s: float | None = None
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, or its scheduler is; return False where neither is within ``timeout_s`` seconds."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """True once it has ended, however; not where only its scheduler has."""
        return self.phase is not None

    def end(self, phase: Phase) -> None:
        """Note how it ended, and let go of who waits for that."""
        self.phase = phase
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Let go of who waits for it: nobody will tell how it ends."""
        self._over.set()

    def values(self) -> dict[str, Any]:
        """Return all that is known of it but its report, as JSON says it; see :meth:`of_values`."""
        known = {name: getattr(self, name) for name in ("job_id", "sweep", "why", "has_started", "is_stopped")}
        numbers = {name: getattr(self, name) for name in ("loss", "feedback")}
        return {
            **known,
            **{name: None if value is None else spelt(value) for name, value in numbers.items()},
            **self.beside(),
            "phase": self.phase,
            "iteration": self.iteration,
            "arrived_s": self.arrived_s,
        }

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Submission:
        """Return the one that :meth:`values` told of.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is of another version.
        """
        known = {**values, "phase": None, "spec": JobSpec.from_dict(values["spec"], "record")}
        for name in ("loss", "feedback"):
            known[name] = None if values[name] is None else float(values[name])
        found = cls(**known)
        if values["phase"] is not None:
            found.end(Phase(values["phase"]))
        return found

    def beside(self) -> dict[str, Any]:
        """Return what stands of it beside the event that submits it."""
        return {"name": self.name, "spec": json.loads(self.spec.to_json()), "point": dict(self.point)}


def is_retryable(submission: Submission) -> bool:
    """Return whether a job failed in a way that another one of the same settings may not.

    That is one that ran and did not diverge: what cannot be started, or asks for more than there is, will do so again;
    so does one without the metric that it is ranked by; what a policy or a user has ended has not failed.
    """
    if submission.phase is not Phase.FAILED or not submission.has_started:
        return False
    return not any(sign in submission.why for sign in (DIVERGED, NO_SUCH_METRIC))


def attempt_id(job_id: str, number: int) -> str:
    """Return the id of the job that is the ``number``-th attempt of a trial, counted from 1."""
    return job_id if number == 1 else f"{job_id}{_AGAIN}{number - 1}"


def trial_of(job_id: str, find: Callable[[str], Submission | None]) -> str:
    """Return the id of the trial that a job is an attempt of, as :func:`attempts_of` counts them.

    Parameters
    ----------
    job_id : str
    find : callable
        Returns the job of an id; None where there is none.
    """
    trial, _, number = job_id.rpartition(_AGAIN)
    first = find(trial) if trial and number.isdecimal() and job_id == attempt_id(trial, int(number) + 1) else None
    if first is None or trial_of(trial, find) != trial:
        return job_id
    others = (find(attempt_id(trial, attempt)) for attempt in range(2, int(number) + 2))
    return trial if all(other is not None and _is_retry(first, other) for other in others) else job_id


def attempts_of(submissions: Iterable[Submission]) -> dict[str, list[str]]:
    """Return the ids of each trial's jobs, the first one first, by the trial's; as a record has them, too.

    An attempt has its trial's settings and point: other jobs whose users gave them such names are trials.
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
