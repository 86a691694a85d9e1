"""The four operations on a running job, by Python: real processes.

Source: EPS §3.2, §3.3, §5.2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.errors import ConfigError, JobExistsError, JobFinishedError, PlanError, UnknownMemberError
from eps.system.waits import wait_for
from tests.integration.conftest import asked_phases

TIMEOUT_S = 120.0
ENDLESS = {"data": "sklearn:digits", "model": "softmax", "iterations": 1_000_000, "splits": 6, "partitions": 6}


@contextmanager
def endless() -> Iterator[eps.Job]:
    """Run a job of two workers and two servers that would train for hours."""
    with eps.Job.start(name="endless", workers=2, servers=2, **ENDLESS) as started:
        wait_for_clock(started, 1)
        yield started


@pytest.fixture
def job(home: Path) -> Iterator[eps.Job]:
    """Return such a job."""
    with endless() as started:
        yield started


def wait_for_clock(job: eps.Job, clock: int) -> None:
    for progress in job.watch():
        if progress.status["clock"] >= clock:
            return
    raise AssertionError(f"the job ended before clock {clock}: {job.status()['reason']}")


def names(job: eps.Job, role: str) -> list[str]:
    return [member["name"] for member in job.status()["members"] if member["role"] == role]


def ended(job: eps.Job, change: dict[str, Any]) -> dict[str, Any]:
    record = job.plan(change["plan_id"], wait_s=TIMEOUT_S)
    assert record["phase"] in ("released", "aborted"), record
    return record


def test_members_join_and_leave_and_hold_equal_shares(job: eps.Job) -> None:
    added = job.add_workers(2)
    assert (added["phase"], added["names"]) == ("released", ["worker-3", "worker-4"])
    assert job.add_servers(1)["names"] == ["server-3"]
    assert job.remove_workers(["worker-1"])["phase"] == "released"
    assert job.remove_servers(1)["names"] == ["server-3"]
    status = job.status()
    assert names(job, "worker") == ["worker-2", "worker-3", "worker-4"]
    assert names(job, "server") == ["server-1", "server-2"]
    held = {member["name"]: len(member["holds"]) for member in status["members"]}
    assert held == {"worker-2": 2, "worker-3": 2, "worker-4": 2, "server-1": 3, "server-2": 3}
    # The job also requests followers itself.
    assert status["membership_version"] >= 5
    before = status["clock"]
    wait_for_clock(job, before + 10)


def test_names_are_never_reused(job: eps.Job) -> None:
    assert job.add_workers(1)["names"] == ["worker-3"]
    job.remove_workers(["worker-3"])
    assert job.add_workers(1)["names"] == ["worker-4"]


def test_removing_a_worker_that_was_added_sends_nothing(job: eps.Job) -> None:
    assert job.add_workers(1)["bytes_moved"] > 0
    assert job.remove_workers(1)["bytes_moved"] == 0


def test_same_request_id_adds_nothing_twice(job: eps.Job) -> None:
    first = job.add_workers(1, request_id="once")
    second = job.add_workers(1, request_id="once")
    assert first["plan_id"] == second["plan_id"]
    assert names(job, "worker") == ["worker-1", "worker-2", "worker-3"]


def test_concurrent_changes_happen_one_after_the_other(job: eps.Job) -> None:
    asked = [job.add_workers(1, wait=False), job.add_servers(1, wait=False), job.remove_workers(1, wait=False)]
    finished = [ended(job, change) for change in asked]
    assert [change["phase"] for change in finished] == ["released"] * 3
    clocks = [change["committed_clock"] for change in finished]
    assert clocks == sorted(clocks)


def test_addition_that_waits_for_containers_is_aborted_by_a_removal(home: Path) -> None:
    with eps.Job.start(name="full", workers=2, servers=1, max_containers=3, **ENDLESS) as job:
        wait_for_clock(job, 1)
        growth = job.add_workers(1, wait=False)
        shrink = job.remove_workers(1)
        assert shrink["phase"] == "released"
        aborted = ended(job, growth)
        assert aborted["phase"] == "aborted" and "remove-workers=1" in aborted["reason"]
        assert job.add_workers(1)["phase"] == "released"


def test_cancel_aborts_an_uncommitted_change_and_leaves_no_trace(home: Path) -> None:
    with eps.Job.start(name="full", workers=2, servers=1, max_containers=3, **ENDLESS) as job:
        wait_for_clock(job, 1)
        growth = job.add_workers(1, wait=False)
        job.cancel(growth["plan_id"])
        assert ended(job, growth)["reason"] == "cancelled"
        # A retry, as after a lost answer: it counts once.
        assert job.cancel(growth["plan_id"]) == growth["plan_id"]
        with pytest.raises(PlanError, match="no pending change"):
            job.cancel()
        assert names(job, "worker") == ["worker-1", "worker-2"]
        assert job.status()["membership_version"] == 1


def test_name_that_is_running_is_refused(job: eps.Job) -> None:
    with pytest.raises(JobExistsError, match="endless"):
        eps.Job.start(name="endless", **ENDLESS)


def test_change_on_a_finished_job_is_refused(home: Path) -> None:
    eps.run(name="short", data="sklearn:iris", model="softmax", iterations=3)
    with pytest.raises((JobFinishedError, PlanError)):
        eps.Job.find("short").add_workers(1)


def test_last_iteration_waits_for_late_changes(home: Path) -> None:
    report = eps.run(
        name="late", data="sklearn:iris", model="softmax", iterations=10, at=["9:add-workers=2", "9:remove-servers=1"]
    )
    assert asked_phases(report) == ["released", "released"]
    assert report["clock"] == 10


def test_a_worker_holds_no_memory_of_workers_that_left(home: Path) -> None:
    with eps.Job.start(name="tidy", workers=1, servers=1, **ENDLESS) as job:
        wait_for_clock(job, 1)
        pid = next(member["pid"] for member in job.status()["members"] if member["role"] == "worker")
        held = lambda: (len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")))  # noqa: E731
        for _ in range(2):
            job.add_workers(1)
            job.remove_workers(1)
        descriptors, threads = held()
        for _ in range(4):
            job.add_workers(1)
            job.remove_workers(1)
        # Each of the four changes would add one of both.
        few = lambda: held()[0] < descriptors + 4 and held()[1] < threads + 4  # noqa: E731
        wait_for(few, TIMEOUT_S, f"no more than {descriptors} descriptors and {threads} threads, but has {held()}")


# ---- at the end of the file: one job is enough for all refused changes, and it ends with the file


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[eps.Job]:
    """Return a job whose changes are all refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPS_HOME", str(tmp_path_factory.mktemp("untouched")))
        with endless() as started:
            yield started


@pytest.mark.parametrize(
    ("operation", "argument", "error", "text"),
    [
        ("remove_workers", 2, PlanError, "at least one"),
        ("remove_servers", ["server-1", "server-2"], PlanError, "at least one"),
        ("remove_workers", ["worker-9"], UnknownMemberError, "worker-9"),
        ("remove_workers", ["server-1"], UnknownMemberError, "server-1"),
        ("add_workers", 5, PlanError, "6 splits"),
        ("add_servers", 5, PlanError, "6 partitions"),
        ("add_workers", 0, ConfigError, "at least 1"),
    ],
)
def test_change_that_would_break_the_job_is_refused(
    untouched: eps.Job, operation: str, argument: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        getattr(untouched, operation)(argument)
    assert untouched.status()["membership_version"] == 1
