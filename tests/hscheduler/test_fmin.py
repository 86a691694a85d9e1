"""Hyperopt's fmin with a scheduler that is lost while it searches."""

from __future__ import annotations

import threading

import pytest

import eps
from eps.config import JobSpec
from eps.errors import PeerUnavailableError
from eps.jobspec_file import RunRequest
from hscheduler.core import events as e
from hscheduler.live.scheduler import Submission

TIMEOUT_S = 20.0


class LostService:
    """Takes one job and is never heard of again."""

    def __init__(self) -> None:
        self.has_job = threading.Event()
        self.asked_to_cancel = threading.Event()

    def open_sweep(self, opened: e.SweepOpened) -> None:
        pass

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        return Submission(submitted.request.job_id, submitted.request.sweep, "name", spec)

    def wait(self, submission: Submission) -> None:
        self.has_job.set()
        self.asked_to_cancel.wait(TIMEOUT_S)
        raise PeerUnavailableError("H-scheduler does not answer")

    def cancel(self, job_id: str, why: str) -> None:
        self.asked_to_cancel.set()
        raise PeerUnavailableError("H-scheduler does not answer")

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        pass


def test_what_stopped_a_search_is_told_also_where_its_jobs_cannot_be_ended() -> None:
    hyperopt = pytest.importorskip("hyperopt")
    import numpy as np

    from hscheduler.live.trials import HTrials

    service = LostService()

    def objective(number: int) -> float:
        if number == 0:
            eps.run(data="sklearn:digits", model="softmax")
        assert service.has_job.wait(TIMEOUT_S)
        raise ZeroDivisionError("of all things")

    trials = HTrials(service, parallelism=2, points_to_evaluate=[{"number": 0}, {"number": 1}])
    with pytest.raises(ZeroDivisionError):
        hyperopt.fmin(
            objective,
            hyperopt.hp.choice("number", [0, 1]),
            hyperopt.rand.suggest,
            2,
            trials=trials,
            rstate=np.random.default_rng(1),
            verbose=False,
        )
    states = [document["state"] for document in trials._dynamic_trials]
    assert states == [hyperopt.JOB_STATE_ERROR] * 2, "nothing is left that seems to run"
