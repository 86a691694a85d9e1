"""Containers that a real YARN takes from jobs, and a stopped job that resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cluster.yarn.client import YarnClient
from eps.errors import JobExistsError
from eps.hadoop.conf import environment_configuration
from eps.job.client import Job
from eps.storage.claims import Claim
from eps.storage.locations import open_storage
from eps.system.waits import wait_for
from tests.fakes.slow_model import SlowModel
from tests.yarn.hadoop import PATIENCE_S, Hadoop
from tests.yarn.test_jobs_on_yarn import JOB, reach

pytestmark = pytest.mark.usefixtures("no_leftovers")


def test_a_stopped_job_resumes_from_its_checkpoint_on_its_labels(on_yarn: Hadoop, tmp_path: Path) -> None:
    local = eps.run(**JOB)
    # A user's own model: each container has its file in another folder.
    slow = SlowModel(tmp_path)
    settings: dict[str, Any] = {
        **JOB, "on": "yarn", "checkpoint_every": "10", "label": "server=transient", "execution": "worker=opportunistic",
    }  # fmt: skip
    with Job.start(**{**settings, "model": slow.setting}, name="stopped") as job:
        wait_for(lambda: (job.status()["checkpoints"].get("latest_clock") or 0) >= 10, PATIENCE_S, "a checkpoint")
        with pytest.raises(JobExistsError, match="is running"):
            Job.resume("stopped")
        job.kill("enough")
        stopped = job.wait(PATIENCE_S)
        own = Claim.read(job.directory)
    assert own is not None and len(open_storage(own.folder).names("")) >= 2, "its owner, and a checkpoint"
    told: list[str] = []
    with Job.resume("stopped", on_begin=lambda text, warnings: told.append(text)) as job:
        reach(job, 12)
        servers = {m["host"] for m in job.status()["members"] if m["role"] == "server"}
        kinds = execution_types(job)
        slow.hurry()
        report = job.wait(PATIENCE_S)
    assert stopped["state"] == "killed" and "resumes at clock" in told[0]
    assert report["state"] == "finished" and report["model_sha256"] == local["model_sha256"]
    assert [entry["clock"] for entry in report["history"]] == [entry["clock"] for entry in local["history"]]
    assert open_storage(own.folder).names("") == [], "a finished job cannot be resumed"
    assert servers == {on_yarn.nodes[-1]}, "the node with the label"
    # The master and two servers; two workers.
    assert sorted(kinds) == ["GUARANTEED"] * 3 + ["OPPORTUNISTIC"] * 2


@pytest.mark.parametrize("stage_rule", ["1", "2"])
def test_transient_containers_that_yarn_takes_are_drained_before(
    on_yarn: Hadoop, tmp_path: Path, stage_rule: str
) -> None:
    """Another queue preempts one of a job on two tiers, and then their node is decommissioned."""
    settings: dict[str, Any] = {**JOB, "iterations": 500, "splits": 12}
    local = eps.run(**settings)
    slow, spot = SlowModel(tmp_path, 0.05), on_yarn.nodes[-1]
    tiers = {name: value for name, value in settings.items() if name not in ("workers", "servers")}
    tiers |= {"reliable": 2, "transient": 2, "label": "transient=transient", "stage_rule": stage_rule}

    def transient(number: int) -> bool:
        """Return whether so many transient containers take part."""
        return int(job.status()["tiers"]["stages"][-1]["transient"]) == number

    with Job.start(**{**tiers, "model": slow.setting}, on="yarn", name="tiers") as job:
        reach(job, 3)
        wait_for(lambda: job.status()["tiers"]["stage"] == int(stage_rule), PATIENCE_S, f"stage {stage_rule}")
        members = job.status()["members"]
        assert {each["host"] for each in members if each["tier"] == "transient"} == {spot}
        # The node has 4 vcores, and each of the two containers 2 of them; the other queue has a share of 2.
        taking: dict[str, Any] = {**JOB, "workers": 1, "servers": 1, "iterations": 100_000, "label": "worker=transient"}
        with Job.start(**taking, on="yarn", queue="batch", name=f"taking-{stage_rule}") as other:
            wait_for(lambda: transient(1), PATIENCE_S, "a transient container to be given back")
            reach(other, 1)
            other.kill("enough")
        assert job.status()["evictions"]["drained"] == 1
        assert job.scale(transient=+1)["phase"] == "released" and transient(2)
        on_yarn.decommission(spot, 120)
        try:
            wait_for(lambda: transient(0), PATIENCE_S, "the transient containers to be drained")
            wait_for(lambda: job.status()["evictions"]["drained"] == 3, PATIENCE_S, "their release")
            slow.hurry()
            report = job.wait(PATIENCE_S)
        finally:
            on_yarn.recommission(spot)
    assert report["model_sha256"] == local["model_sha256"]
    assert (report["losses"], report["evictions"]["lost"], report["tiers"]["rolled_back"]) == ([], 0, 0)
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)


def execution_types(job: Job) -> list[str]:
    """Return the execution type of each of a job's containers, as the nodes report it."""
    import requests

    number = (job.directory.record().yarn.application or {})["application_id"].removeprefix("application_")
    client = YarnClient(environment_configuration())
    found = []
    for node in client.nodes():
        answer = requests.get(f"http://{node.http_address}/ws/v1/node/containers", timeout=PATIENCE_S).json()
        for container in (answer.get("containers") or {}).get("container", []):
            if f"_{number}_" in container["id"] and container["state"] == "RUNNING":
                found.append(container["executionType"])
    client.close()
    return found


@pytest.mark.tier("all")
@pytest.mark.parametrize(
    ("size", "workers"),
    [
        # The guaranteed containers of the job, its master's among them, leave ten of twelve vcores, or nine.
        ({"workers": 2, "servers": 1, "execution": "worker=opportunistic"}, 8),
        ({"reliable": 1, "transient": 3, "execution": "transient=opportunistic"}, 7),
    ],
    ids=["workers", "transient"],
)
def test_opportunistic_containers_yield_to_guaranteed_ones_and_change_no_bit(
    on_yarn: Hadoop, size: dict[str, Any], workers: int
) -> None:
    settings: dict[str, Any] = {**JOB, "iterations": 150, "splits": 12}
    local = eps.run(**settings)
    modest = {name: value for name, value in settings.items() if name not in ("workers", "servers")}
    with Job.start(**modest, **size, stretch_s=0.05, on="yarn", name="modest") as job:
        reach(job, 3)
        firm = {**JOB, "workers": workers, "servers": 1, "iterations": 100_000}
        with Job.start(**firm, on="yarn", name=f"firm-{workers}") as other:
            wait_for(lambda: job.status()["losses"], PATIENCE_S, "a worker to make room")
            other.kill("enough")
        report = job.wait(PATIENCE_S)
    assert report["model_sha256"] == local["model_sha256"]
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)
    for loss in report["losses"]:
        assert loss["name"].startswith("worker-") or "transient" in size
        assert "was ended to make room for a guaranteed container" in loss["reason"]
