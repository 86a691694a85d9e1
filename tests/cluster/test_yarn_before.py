"""A resumption whose submission was killed outright: the job is as it was when YARN turns out to have none of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import JobNotFoundError, StorageError
from eps.job.status import ended_report, ended_status
from eps.storage.jobdir import JobDir
from eps.storage.record import Phase
from tests.cluster.attendant_world import FINISHED, REPORT, RUNNING, Follow, ScriptedClient
from tests.cluster.attendant_world import follow as follow
from tests.cluster.attendant_world import job as job
from tests.cluster.attendant_world import quick as quick
from tests.cluster.attendant_world import shared as shared
from tests.cluster.attendant_world import staged as staged
from tests.fakes.records import note_ended
from tests.fakes.storage import MemoryStorage

REFUSED = dataclasses.replace(
    REPORT, state="FAILED", final_status="FAILED", diagnostics="ada may not submit to queue root.default"
)
UNKNOWN = JobNotFoundError("no such application")
ENDED = {"state": "failed", "reason": "training diverged", "exit_code": 3, "time_s": 1.0}


@pytest.fixture
def killed(job: JobDir, shared: MemoryStorage, staged: Application, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """A job that had failed; whoever started it again was killed while YARN was asked to take it."""
    monkeypatch.setattr("eps.job.yarn.inquiry.FORGOTTEN_S", 0.0)
    shared.files = {"job.zip": b"secrets"}
    note_ended(job, ENDED)
    job.report.write_text(json.dumps({**ENDED, "clock": 40}))
    job.model.write_bytes(b"npz")
    job.note(phase=Phase.SUBMITTED, end=None, former=job.record())
    return job


def is_as_it_was(job: JobDir) -> bool:
    """Return whether a job has what it had; what is noted of an application that may run is not looked at."""
    end = job.record().end
    found = end is not None and end.reason == ENDED["reason"] and end.exit_code == 3 and end.time_s == 1.0
    assert job.record().former is None
    assert found == job.model.exists() == job.report.exists(), "all of it, or nothing"
    return found


def test_a_job_whose_resumption_yarn_never_had_is_as_it_was(
    killed: JobDir, follow: Follow, staged: Application
) -> None:
    assert follow(ScriptedClient(UNKNOWN)) == 3
    assert is_as_it_was(killed)
    assert (ended_status(killed)["reason"], ended_report(killed)["clock"]) == ("training diverged", 40)
    assert killed.is_forgotten(), "it may have it all the same: who starts the job again asks"
    assert Application.read(killed) == staged, "nothing else knows what was brought for it"


def test_a_job_whose_resumption_yarn_had_is_what_became_of_that(killed: JobDir, follow: Follow) -> None:
    def look() -> None:
        assert killed.record().former is None and not killed.model.exists(), "as soon as that is known"

    assert follow(ScriptedClient(RUNNING, look, UNKNOWN)) == 1
    assert not is_as_it_was(killed) and "YARN does not know" in ended_status(killed)["reason"]


@pytest.mark.parametrize("left", ["state/log-1", "results/journal.jsonl"])
def test_a_job_whose_resumption_began_is_what_became_of_that(
    killed: JobDir, shared: MemoryStorage, follow: Follow, left: str
) -> None:
    """A ResourceManager that has lost its state knows nothing of it, but what its master did is there."""
    shared.files[left] = b"{}"
    assert follow(ScriptedClient(UNKNOWN)) == 1
    assert not is_as_it_was(killed) and "YARN does not know" in ended_status(killed)["reason"]


@pytest.mark.parametrize("before", [(), (REPORT,)], ids=["refused", "killed while it waited"])
def test_a_job_whose_resumption_ended_before_its_master_began_is_as_it_was(
    killed: JobDir, shared: MemoryStorage, follow: Follow, before: tuple[ApplicationReport, ...]
) -> None:
    assert follow(ScriptedClient(*before, REFUSED)) == 3
    assert is_as_it_was(killed)
    assert killed.is_settled() and not killed.is_forgotten(), "YARN knows that it has ended"
    assert not shared.files, "nobody needs what was brought for it"


@pytest.mark.parametrize("left", ["state/log-1", "results/journal.jsonl"])
def test_a_job_whose_resumption_began_unseen_is_what_became_of_that(
    killed: JobDir, shared: MemoryStorage, follow: Follow, left: str
) -> None:
    """Nobody attended to it while it ran."""
    shared.files[left] = b"{}"
    assert follow(ScriptedClient(REFUSED)) == 1
    assert not is_as_it_was(killed) and ended_status(killed)["reason"] == REFUSED.diagnostics


def test_a_job_whose_resumption_finished_is_not_as_it_was(killed: JobDir, follow: Follow) -> None:
    """Also where whatever it had left was removed since."""
    assert follow(ScriptedClient(FINISHED)) == 1
    assert not is_as_it_was(killed) and "did not leave its model" in ended_status(killed)["reason"]


def test_where_the_cluster_is_away_it_is_found_out_later_whether_it_began(
    killed: JobDir, shared: MemoryStorage, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(folder: str) -> list[str]:
        raise StorageError("the NameNode is in safe mode")

    with monkeypatch.context() as patch:
        patch.setattr(shared, "names", away)
        follow(ScriptedClient(UNKNOWN))
    assert not killed.is_settled() and killed.model.exists()
    follow(ScriptedClient(AssertionError("YARN has said what it knows")))
    assert is_as_it_was(killed) and killed.is_settled() and killed.is_forgotten()
