"""Real jobs on reliable and transient containers: one process for a worker and a server, taken away and added."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.errors import ConfigError, PlanError, UnknownMemberError
from eps.storage.atomic import read_json
from eps.system.waits import wait_for
from tests.fakes.supervised import Watch
from tests.integration.conftest import RunUndisturbed, processes_with
from tests.integration.test_operations import TIMEOUT_S, wait_for_clock

JOB: dict[str, Any] = {"data": "sklearn:digits", "model": "softmax", "splits": 12, "batch_size": 200}


def transient(job: eps.Job) -> int:
    return int(job.status()["tiers"]["stages"][-1]["transient"])


def test_transient_containers_come_go_and_fail_without_a_different_bit(
    home: Path, run_undisturbed: RunUndisturbed
) -> None:
    at = ["30:evict=all", "60:scale=transient+3", "110:fail=all", "130:evict=1", "140:transient=+1"]
    tiers = {"reliable": 2, "transient": 2, "stage_rule": "1"}
    report = eps.run(name="tiers", **tiers, iterations=160, at=at, followers=1, **JOB)
    assert report["model_sha256"] == run_undisturbed(iterations=160, **JOB)["model_sha256"]
    assert report["ledger"]["lost"] == report["ledger"]["applied_twice"] == 0
    found = report["tiers"]
    stages = [(entry["reliable"], entry["transient"]) for entry in found["stages"]]
    # Containers that fail at once may be noticed one after the other.
    assert stages[:3] == [(2, 2), (2, 0), (2, 3)] and stages[-2:] == [(2, 0), (2, 1)]
    assert (found["stage"], found["rolled_back"], found["largest_lag"], found["consistent_clock"]) == (1, 0, 0, 160)
    assert (found["largest_lag_s"], found["lag_missed"]) == (0, "")
    assert report["evictions"]["drained"] == 2
    refused = [change for change in report["changes"] if change["operation"] == "evict"]
    assert [change["reason"] for change in refused] == ["the job has no transient container"]


def test_a_worker_and_a_server_of_one_process_need_no_socket(home: Path) -> None:
    with eps.Job.start(name="pair", reliable=1, iterations=100_000, **JOB) as job:
        wait_for_clock(job, 5)
        (server, worker) = sorted(job.status()["members"], key=lambda member: member["role"])
        assert worker["ways"] == {server["name"]: "process"} and worker["pid"] == server["pid"]
        with pytest.raises(PlanError, match=r"transient=\+2"):
            job.add_workers(1)


def test_containers_are_added_removed_and_replaced_while_a_job_trains(home: Path) -> None:
    with eps.Job.start(name="live", reliable=2, iterations=100_000, **JOB) as job:
        wait_for_clock(job, 5)
        added = job.scale(transient=+2)
        assert added["added"] == ["worker-3", "worker-4"] and transient(job) == 2
        removed = job.scale(transient=-1, reliable=+1)
        assert removed["removed"] == ["worker-4"] and removed["added"] == ["worker-5", "server-5"]
        victim = next(member for member in job.status()["members"] if member["name"] == "server-1")
        os.kill(victim["pid"], signal.SIGKILL)

        def replaced() -> bool:
            found = job.status()
            return found["servers"] == 3 and found["tiers"]["stages"][-1]["reliable"] == 3 and bool(found["losses"])

        wait_for(replaced, TIMEOUT_S, "the reliable container to be replaced")
        with pytest.raises(PlanError, match="has 1 transient"):
            job.scale(transient=-2)


def test_reliable_containers_come_by_number_and_leave_by_name_without_a_different_bit(
    home: Path, run_undisturbed: RunUndisturbed
) -> None:
    """A job begins in one container, and ends in others."""
    paced = {**JOB, "iterations": 200, "stretch_s": 0.002}
    with eps.Job.start(name="named", reliable=1, **paced) as job:
        wait_for_clock(job, 5)
        added = job.scale(reliable=+2)
        assert added["containers"] == {"added": ["container-0002", "container-0003"], "removed": []}
        removed = job.scale(containers=["container-1", "container-0003"])
        assert removed["asked"] == "containers=-container-0001,container-0003"
        assert removed["containers"]["removed"] == ["container-0001", "container-0003"]
        assert {member["container"] for member in job.status()["members"]} == {"container-0002"}
        with pytest.raises(UnknownMemberError, match="container-0003: not a container of the job"):
            job.scale(containers=["container-3"])
        with pytest.raises(PlanError, match="at least one reliable"):
            job.scale(containers=["container-2"])
        report = job.wait(TIMEOUT_S)
    assert report["model_sha256"] == run_undisturbed(**paced)["model_sha256"]
    assert report["ledger"]["lost"] == report["ledger"]["applied_twice"] == 0
    assert [(entry["reliable"], entry["transient"]) for entry in report["tiers"]["stages"]] == [(1, 0), (3, 0), (1, 0)]


def test_a_stopped_job_resumes_on_another_number_of_reliable_containers(home: Path) -> None:
    with eps.Job.start(name="other", reliable=1, iterations=400, checkpoint_every="5", **JOB) as job:
        wait_for_clock(job, 10)
        job.kill()
    with pytest.raises(ConfigError, match="it resumes with as many as it had"):
        eps.Job.resume("other", workers=2)
    with eps.Job.resume("other", reliable=3) as job:
        report = job.wait(TIMEOUT_S)
    assert report["state"] == "finished"
    assert [entry["reliable"] for entry in report["tiers"]["stages"]] == [3]


@pytest.mark.parametrize("rule", ["1", "2"])
def test_a_container_that_gets_sigterm_is_drained_before_it_ends(
    home: Path, run_undisturbed: RunUndisturbed, rule: str
) -> None:
    settings = {**JOB, "iterations": 400}
    tiers = {"reliable": 2, "transient": 2, "stage_rule": rule, "stretch_s": 0.002}
    with eps.Job.start(name="signalled", **tiers, **settings) as job:
        wait_for(lambda: str(job.status()["tiers"]["stage"]) == rule, TIMEOUT_S, f"stage {rule}")
        wait_for_clock(job, 20)
        members = {member["name"]: member for member in job.status()["members"]}
        # One of each tier.
        for name in ("server-1", "server-3"):
            os.kill(members[name]["pid"], signal.SIGTERM)
        report = job.wait()
    assert report["model_sha256"] == run_undisturbed(**settings)["model_sha256"]
    evictions = report["evictions"]
    assert (evictions["asked"], evictions["drained"], report["losses"]) == (2, 2, [])
    assert {each["reason"] for each in evictions["members"]} == {"got SIGTERM"}
    last = report["tiers"]["stages"][-1]
    assert (last["reliable"], last["transient"]) == (2, 1), "the job replaces reliable containers"


def test_a_second_sigterm_ends_a_container_at_once(home: Path) -> None:
    with eps.Job.start(name="twice", reliable=2, iterations=100_000, **JOB) as job:
        wait_for_clock(job, 5)
        victim = next(member["pid"] for member in job.status()["members"] if member["name"] == "server-2")
        master = read_json(job.directory.master_json)
        assert master is not None
        watch = Watch(victim)
        # A master that is stopped drains nothing.
        os.kill(master["pid"], signal.SIGSTOP)
        assert handles(victim, signal.SIGTERM)
        os.kill(victim, signal.SIGTERM)
        wait_for(lambda: not handles(victim, signal.SIGTERM), TIMEOUT_S, "the first SIGTERM to be handled")
        os.kill(victim, signal.SIGTERM)
        watch.wait()
        os.kill(master["pid"], signal.SIGCONT)
        wait_for(lambda: bool(job.status()["losses"]), TIMEOUT_S, "the loss")


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    (line,) = [text for text in Path(f"/proc/{pid}/status").read_text().splitlines() if text.startswith("SigCgt")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_the_only_reliable_container_is_replaced_before_it_ends(home: Path) -> None:
    with eps.Job.start(name="alone", reliable=1, transient=1, iterations=100_000, followers=0, **JOB) as job:
        wait_for_clock(job, 5)
        victim = next(member for member in job.status()["members"] if member["name"] == "server-1")
        os.kill(victim["pid"], signal.SIGTERM)
        wait_for(lambda: job.status()["evictions"]["drained"] == 1, TIMEOUT_S, "the container to be drained")
        found = job.status()
        assert (found["losses"], found["went_back"]) == ([], [])
        assert "server-1" not in {member["name"] for member in found["members"]}


# ---- stages 2 and 3: containers that can be taken away own the partitions

#: Long enough for some cuts.
PACED = {**JOB, "splits": 6, "iterations": 200}
STRETCH_S = 0.005


def pids(job: eps.Job, tier: str) -> list[int]:
    return sorted({member["pid"] for member in job.status()["members"] if member["tier"] == tier})


def wait_for_stage(job: eps.Job, stage: int) -> None:
    wait_for(lambda: job.status()["tiers"]["stage"] == stage, TIMEOUT_S, f"stage {stage}")


def kill_at_once(victims: list[int]) -> None:
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def check_rolled_back(report: dict[str, Any]) -> None:
    """The job rolled back to a cut, by the lag at most, and no update is lost or repeated."""
    ledger, tiers = report["ledger"], report["tiers"]
    assert report["state"] == "finished", report["reason"]
    assert (ledger["lost"], ledger["applied_twice"], ledger["applied"]) == (0, 0, ledger["expected"])
    assert {back["start"] for back in report["went_back"]} == {"cut"}, report["went_back"]
    lost = [back["clock"] - back["to_clock"] for back in report["went_back"]]
    assert tiers["rolled_back"] == sum(lost) and max(lost) <= tiers["largest_lag"]
    assert 0 < tiers["largest_lag_s"] < report["elapsed_s"] and (tiers["lag_s"], tiers["lag_missed"]) == (0, "")


@pytest.mark.parametrize("rule", ["2", pytest.param("3", marks=pytest.mark.tier("all"))])
def test_partitions_on_transient_containers_survive_their_loss(
    home: Path, run_undisturbed: RunUndisturbed, rule: str
) -> None:
    at = ["60:fail=1", "90:evict=1", "120:transient=+1", "150:fail=all", "160:transient=+1", "190:evict=all"]
    tiers = {"reliable": 1, "transient": 3, "stage_rule": rule, "stretch_s": STRETCH_S}
    report = eps.run(name="stages", at=at, **tiers, **PACED)
    assert report["model_sha256"] == run_undisturbed(**PACED)["model_sha256"]
    check_rolled_back(report)
    assert {entry["stage"] for entry in report["tiers"]["stages"]} == {1, int(rule)}


@pytest.mark.tier("all")
@pytest.mark.parametrize("consistency", ["ssp:1", "asp"])
def test_stale_reads_do_not_harm_cuts(home: Path, consistency: str) -> None:
    tiers = {"reliable": 1, "transient": 3, "stage_rule": "2", "stretch_s": STRETCH_S}
    report = eps.run(name="stale", at=["70:fail=1", "130:fail=all"], consistency=consistency, **tiers, **PACED)
    check_rolled_back(report)


@pytest.mark.parametrize("master", [False, pytest.param(True, marks=pytest.mark.tier("all"))])
def test_all_transient_containers_are_killed_at_once(home: Path, run_undisturbed: RunUndisturbed, master: bool) -> None:
    """Also while no job master runs: the next one has the committed cut from its log."""
    tiers = {"reliable": 1, "transient": 2, "stage_rule": "2", "stretch_s": STRETCH_S}
    with eps.Job.start(name="at-once", **tiers, **PACED) as job:
        wait_for_stage(job, 2)
        wait_for_clock(job, 70)
        victims = pids(job, "transient")
        found = read_json(job.directory.master_json)
        assert found is not None and len(victims) == 2
        kill_at_once([found["pid"], *victims] if master else victims)
        report = job.wait(TIMEOUT_S)
    assert report["model_sha256"] == run_undisturbed(**PACED)["model_sha256"]
    check_rolled_back(report)
    assert report["tiers"]["stage"] == 1 and report["generation"] == 1 + master


@pytest.mark.tier("all")
def test_reliable_containers_that_are_lost_in_stage_2_are_replaced_and_nothing_is_lost(
    home: Path, run_undisturbed: RunUndisturbed
) -> None:
    tiers = {"reliable": 2, "transient": 3, "stage_rule": "2", "stretch_s": STRETCH_S}
    with eps.Job.start(name="reliable", **tiers, **PACED) as job:
        wait_for_stage(job, 2)
        wait_for_clock(job, 40)
        kill_at_once(pids(job, "reliable"))
        report = job.wait(TIMEOUT_S)
    assert report["model_sha256"] == run_undisturbed(**PACED)["model_sha256"]
    assert (report["went_back"], report["tiers"]["rolled_back"]) == ([], 0)
    last = report["tiers"]["stages"][-1]
    assert (last["stage"], last["reliable"], last["transient"]) == (2, 2, 3)


@pytest.mark.tier("all")
@pytest.mark.parametrize("checkpoint_every", [None, "20"])
def test_a_job_that_loses_all_containers_begins_from_its_checkpoint_or_its_seed(
    home: Path, run_undisturbed: RunUndisturbed, checkpoint_every: str | None
) -> None:
    """First every container, then the whole job, which is resumed."""
    tiers = {"reliable": 1, "transient": 2, "stage_rule": "2", "stretch_s": STRETCH_S}
    more = {"checkpoint_every": checkpoint_every} if checkpoint_every else {}
    job = eps.Job.start(name="nothing-left", **tiers, **more, **PACED)
    wait_for_stage(job, 2)
    wait_for_clock(job, 50)
    kill_at_once(pids(job, "reliable") + pids(job, "transient"))
    wait_for(lambda: bool(job.status()["went_back"]), TIMEOUT_S, "the job to roll back")
    (back,) = job.status()["went_back"]
    assert back["start"] == ("checkpoint" if checkpoint_every else "seed")
    wait_for_clock(job, 60)
    job.kill_at_once()
    job.close()
    wait_for(lambda: not processes_with(str(home)), TIMEOUT_S, "every process to end with its supervisor")
    with eps.Job.resume("nothing-left") as resumed:
        report = resumed.wait(TIMEOUT_S)
    assert report["state"] == "finished", report["reason"]
    assert report["model_sha256"] == run_undisturbed(**PACED)["model_sha256"]
    ledger = report["ledger"]
    assert (ledger["lost"], ledger["applied_twice"], ledger["applied"]) == (0, 0, ledger["expected"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"transient": 2}, "at least one reliable"),
        ({"reliable": 1, "workers": 3}, "leave workers out"),
        ({"reliable": 1, "at": ["3:add-workers=1"]}, "--workers and --servers"),
        ({"at": ["3:evict=all"]}, "--reliable and --transient"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(home: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        eps.Job.start(**{"iterations": 10, **JOB, **settings})
