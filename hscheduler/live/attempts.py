"""When a job that failed is tried again, as another job of the same point.

Source: the paper is silent about jobs that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from eps.errors import DIVERGED
from hscheduler.core.jobs import Phase
from hscheduler.live.submission import Submission
from hscheduler.reports.history import NO_SUCH_METRIC

_AGAIN = "-again-"


def worth_another(submission: Submission) -> bool:
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
    return trial if all(other is not None and _is_again(first, other) for other in others) else job_id


def attempts_of(submissions: Iterable[Submission]) -> dict[str, list[str]]:
    """Return the ids of each trial's jobs, the first one first, by the trial's; as a journal has them, too.

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
            if not _is_again(first, again):
                break
            found[job_id].append(again.job_id)
            others.add(again.job_id)
    return found


def _is_again(first: Submission, other: Submission) -> bool:
    return (other.sweep, other.spec, other.point) == (first.sweep, first.spec, first.point)
