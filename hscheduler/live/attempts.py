"""When a job that failed is tried again, as another job of the same point.

Source: the paper is silent about jobs that fail.
"""

from __future__ import annotations

from eps.errors import DIVERGED
from hscheduler.core.jobs import Phase
from hscheduler.live.scheduler import Submission


def worth_another(submission: Submission) -> bool:
    """Return whether a job failed in a way that another one of the same settings may not.

    That is one that ran and did not diverge: what cannot be started, or asks for more than there is, will do so again;
    what a policy or a user has ended has not failed.
    """
    return submission.phase is Phase.FAILED and submission.has_started and DIVERGED not in submission.why


def attempt_id(job_id: str, number: int) -> str:
    """Return the id of the job that is the ``number``-th attempt of a trial, counted from 1."""
    return job_id if number == 1 else f"{job_id}-again-{number - 1}"
