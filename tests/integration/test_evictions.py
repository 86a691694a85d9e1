"""Real local containers that are evicted after a warning: with enough time, with too little, and without a master.

:mod:`tools.chaos.evictor` takes them: the job master hears of it from its resource manager, as on a cluster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.core.reconfig import Operation
from eps.ml.models.dnn import Dnn
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.jobs import JobRequest
from hscheduler.core.resources import NOTHING, Resources
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from tests.fakes.slow_model import SlowModel
from tests.integration.conftest import RunUndisturbed
from tests.integration.test_kill_in_plans import JOB
from tests.integration.test_operations import TIMEOUT_S, wait_for_clock
from tools.chaos.evictor import REASON, announce
from tools.chaos.master import chaos_master
from tools.chaos.processes import master_pid

#: Enough time for a drain on a busy machine.
AMPLE_S = 120.0


def take_away(job: eps.Job, names: Sequence[str], in_s: float) -> None:
    containers = {member["name"]: member["container"] for member in job.status()["members"]}
    announce(job.directory.path, [containers[name] for name in names], in_s)


def wait_for_outcome(job: eps.Job, outcome: str, number: int) -> None:
    wait_for(lambda: job.status()["evictions"][outcome] >= number, TIMEOUT_S, f"{number} {outcome}")


@pytest.fixture
def undisturbed(run_undisturbed: RunUndisturbed) -> dict[str, Any]:
    """Return the report of the job without evictions."""
    return run_undisturbed(**JOB)


@pytest.fixture
def slow(tmp_path: Path) -> SlowModel:
    """Return the job's model: its calls are slow enough for all of it."""
    return SlowModel(tmp_path, 0.01, like=Dnn)


def test_evicted_containers_change_no_bit(home: Path, undisturbed: dict[str, Any], slow: SlowModel) -> None:
    with chaos_master(), eps.Job.start(name="evicted", **{**JOB, "model": slow.setting}) as job:
        wait_for_clock(job, 5)
        take_away(job, ["worker-1", "server-1"], AMPLE_S)
        wait_for_outcome(job, "drained", 2)
        take_away(job, ["worker-2"], 0.0)
        wait_for_outcome(job, "lost", 1)
        take_away(job, ["server-2"], AMPLE_S)
        os.kill(master_pid(job.directory), signal.SIGKILL)
        wait_for_outcome(job, "drained", 3)
        wait_for(lambda: sizes(job) == (3, 3), TIMEOUT_S, "what was taken to be replaced")
        slow.hurry()
        report = job.wait(TIMEOUT_S)

    assert report["model_sha256"] == undisturbed["model_sha256"]
    ledger = report["ledger"]
    assert (ledger["lost"], ledger["applied_twice"], ledger["applied"]) == (0, 0, ledger["expected"])
    assert [loss["name"] for loss in report["losses"]] == ["worker-2"]
    found: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in report["evictions"]["members"]}
    assert {name: entry["outcome"] for name, entry in found.items()} == {
        "worker-1": "drained", "server-1": "drained", "worker-2": "lost", "server-2": "drained"
    }  # fmt: skip
    assert found["worker-1"]["plan_id"] == found["server-1"]["plan_id"], "one plan for both"
    assert set(report["evictions"]["drain_s"]) == {
        str(c["plan_id"]) for c in report["changes"] if c["operation"] == Operation.DRAIN and c["phase"] == "released"
    }
    assert report["generation"] == 2
    assert [len(report["membership"][-1][role]) for role in ("workers", "servers")] == [3, 3], "replaced"


def test_the_scheduler_replaces_containers_taken_from_its_jobs(
    home: Path, undisturbed: dict[str, Any], slow: SlowModel
) -> None:
    spec = JobSpec().with_settings(**{**JOB, "model": slow.setting})
    one = Resources(1, 1024)
    asked = JobRequest("t1", "s", 3, 3, one, one, one, most_workers=3, most_servers=3)
    with chaos_master(), LiveScheduler({"node": Resources(7, 7 * 1024)}, LiveSettings("static")) as scheduler:
        submission = scheduler.submit(e.JobSubmitted(asked), spec)
        wait_for(lambda: submission.has_started, TIMEOUT_S, "the start")
        job = eps.Job.find(submission.name)
        wait_for_clock(job, 5)
        take_away(job, ["worker-1", "server-1"], AMPLE_S)
        # The job had every container of the cluster, so the new ones replace those.
        wait_for(lambda: sizes(job) == (3, 3) and job.status()["evictions"]["drained"] == 2, TIMEOUT_S, "both again")
        take_away(job, ["worker-2"], 0.0)
        wait_for_outcome(job, "lost", 1)
        wait_for(lambda: sizes(job) == (3, 3), TIMEOUT_S, "the worker again")
        job.close()
        slow.hurry()
        scheduler.wait(submission, TIMEOUT_S)
        told = scheduler.ask(lambda: [decision.sentence for decision in scheduler.registry.timeline.decisions])
        assert scheduler.leaked() == 0
    report = eps.Job.find(submission.name).report()
    assert report["model_sha256"] == undisturbed["model_sha256"]
    why = f"its container {REASON}"
    assert sum(each.startswith("t1 loses ") and each.endswith(f": {why}") for each in told) >= 2
    assert sum("again, which the cluster took" in each and why in each for each in told) >= 2
    changes = [(change["operation"], change["asked_by"]) for change in report["changes"] if change["added"]]
    assert {operation for operation, _ in changes} == {"add-workers", "add-servers"}
    assert {asked_by for _, asked_by in changes} == {"user"}, "the job itself replaces no member"


def test_the_scheduler_replaces_what_is_taken_of_a_trial_on_containers_that_host_both(
    home: Path, undisturbed: dict[str, Any], slow: SlowModel
) -> None:
    """One of two is evicted with a warning; one crashes, and the job itself begins another in its place."""
    given = {name: value for name, value in JOB.items() if name not in ("workers", "servers")}
    spec = JobSpec().with_settings(**{**given, "model": slow.setting, "reliable": 2})
    one = Resources(1, 1024)
    asked = JobRequest("t1", "s", 2, 0, one, one, NOTHING, most_workers=2, most_servers=0)
    with chaos_master(), LiveScheduler({"node": Resources(2, 2048)}, LiveSettings("static")) as scheduler:
        submission = scheduler.submit(e.JobSubmitted(asked), spec)
        wait_for(lambda: submission.has_started, TIMEOUT_S, "the start")
        job = eps.Job.find(submission.name)
        wait_for_clock(job, 5)
        first, second = "container-0001", "container-0002"
        announce(job.directory.path, [first], AMPLE_S)
        wait_for(lambda: containers(job) == {second, "container-0003"}, TIMEOUT_S, "another container")
        os.kill(next(m["pid"] for m in job.status()["members"] if m["container"] == second), signal.SIGKILL)
        wait_for(lambda: containers(job) == {"container-0003", "container-0004"}, TIMEOUT_S, "the crashed one again")
        job.close()
        slow.hurry()
        scheduler.wait(submission, TIMEOUT_S)
        told = scheduler.ask(lambda: [decision.sentence for decision in scheduler.registry.timeline.decisions])
        assert scheduler.leaked() == 0
    report = eps.Job.find(submission.name).report()
    assert report["model_sha256"] == undisturbed["model_sha256"]
    assert f"t1 loses 1 container: its container {REASON}" in told
    assert f"t1 gets 1 container again, which the cluster took (its container {REASON})" in told
    asked_by = [change["asked_by"] for change in report["changes"] if change.get("containers", {}).get("added")]
    assert asked_by == ["user", "job"], "it restores only what crashed"


def containers(job: eps.Job) -> set[str]:
    """Return the containers whose worker and server take part."""
    status = job.status()
    found = {str(member["container"]) for member in status["members"]}
    return found if sizes(job) == (2, 2) and not status["plan"] else set()


def sizes(job: eps.Job) -> tuple[int, int]:
    status = job.status()
    return status["workers"], status["servers"]
