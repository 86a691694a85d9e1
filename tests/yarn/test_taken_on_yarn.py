"""What a real YARN takes, and what is gone on with: a node under a sweep's job, a job that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eps
from eps.cluster.yarn.rest import RestClient
from eps.errors import JobExistsError
from eps.hadoop.conf import environment_configuration
from eps.job.client import Job
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import read_json
from eps.storage.claims import Claim
from eps.storage.locations import open_storage
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.live.on_yarn import container_settings, yarn_cluster
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.live.yarn_nodes import YarnNodes
from hscheduler.spec import ClusterSpec, request_of
from tests.fakes.slow_model import SlowModel
from tests.yarn.hadoop import PATIENCE_S, Hadoop
from tests.yarn.test_jobs_on_yarn import JOB, hosts_of, reach

pytestmark = pytest.mark.usefixtures("no_leftovers")


def test_a_decommissioned_node_is_not_counted_with_and_what_ran_there_is_given_back_elsewhere(on_yarn: Hadoop) -> None:
    settings: dict[str, Any] = {**JOB, "workers": 3, "servers": 2, "iterations": 100_000, "stretch_s": 0.02}
    cluster = yarn_cluster(ClusterSpec(container_memory="512MiB"))
    live = LiveSettings("static", job_settings=container_settings(cluster))
    with LiveScheduler(cluster.capacities(), live) as scheduler, YarnNodes.of_environment(scheduler, cluster):
        spec = JobSpec(**settings)
        submission = scheduler.submit(e.JobSubmitted(request_of(spec, "t1", "s", cluster.container())), spec)
        wait_for(lambda: submission.has_started, 2 * PATIENCE_S, "the start")
        with Job.find(submission.name) as job:
            reach(job, 2)
            # Six containers are never on one node of four; one that has not the master.
            master, hosts = (read_json(job.directory.master_json) or {})["host"], hosts_of(job)
            node = next(host for host in sorted(hosts) if host != master)
            on_yarn.decommission(node, 60)
            try:
                wait_for(lambda: job.status()["evictions"]["drained"] >= 1, PATIENCE_S, f"{node} to be drained")
                # On the two that are left there is room for all six.
                wait_for(lambda: size_of(job) == (3, 2), PATIENCE_S, "what was taken to be given back")
                assert node not in hosts_of(job)
                assert len(scheduler.ask(scheduler.state.ledger.in_use)) == 2
            finally:
                on_yarn.recommission(node)
            wait_for(lambda: len(scheduler.ask(scheduler.state.ledger.in_use)) == 3, PATIENCE_S, "the node again")
            evictions, losses = job.status()["evictions"], job.status()["losses"]
        scheduler.cancel("t1", "enough")
        scheduler.wait(submission, PATIENCE_S)
        told = scheduler.ask(lambda: [decision.sentence for decision in scheduler.registry.history.decisions])
    assert evictions["lost"] == 0 and losses == []
    reason = f"is on node {node}, which is decommissioned within 60 s"
    assert {each["reason"] for each in evictions["members"]} == {reason}
    assert f"node {node} is being decommissioned: the cluster has 2 nodes left" in told
    lost = [k for k, sentence in enumerate(told) if sentence.startswith("t1 loses ") and reason in sentence]
    again = [k for k, sentence in enumerate(told) if "again, which the cluster took" in sentence and reason in sentence]
    assert lost and again and min(again) > min(lost)


def size_of(job: Job) -> tuple[int, int]:
    status = job.status()
    return status["workers"], status["servers"]


def test_a_job_that_was_stopped_goes_on_from_its_checkpoint_where_its_labels_say(
    on_yarn: Hadoop, tmp_path: Path
) -> None:
    local = eps.run(**JOB)
    # A model of one's own: each container has its file elsewhere.
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
    assert own is not None and len(open_storage(own.folder).names("")) >= 2, "whose it is, and a checkpoint"
    told: list[str] = []
    with Job.resume("stopped", on_begin=lambda text, warnings: told.append(text)) as job:
        reach(job, 12)
        servers = {m["host"] for m in job.status()["members"] if m["role"] == "server"}
        kinds = execution_types(job)
        slow.hurry()
        report = job.wait(PATIENCE_S)
    assert stopped["state"] == "killed" and "goes on at clock" in told[0]
    assert report["state"] == "finished" and report["model_sha256"] == local["model_sha256"]
    assert [entry["clock"] for entry in report["history"]] == [entry["clock"] for entry in local["history"]]
    assert open_storage(own.folder).names("") == [], "nobody goes on with a job that has finished"
    assert servers == {on_yarn.nodes[-1]}, "the node with the label"
    # The master and two servers; two workers.
    assert sorted(kinds) == ["GUARANTEED"] * 3 + ["OPPORTUNISTIC"] * 2


def execution_types(job: Job) -> list[str]:
    """Return the execution type of each of a job's containers, as the nodes tell."""
    import requests

    number = (job.directory.record().yarn.application or {})["application_id"].removeprefix("application_")
    client = RestClient(environment_configuration())
    found = []
    for node in client.nodes():
        answer = requests.get(f"http://{node.http_address}/ws/v1/node/containers", timeout=PATIENCE_S).json()
        for container in (answer.get("containers") or {}).get("container", []):
            if f"_{number}_" in container["id"] and container["state"] == "RUNNING":
                found.append(container["executionType"])
    client.close()
    return found


def test_opportunistic_workers_make_room_for_guaranteed_containers_and_change_no_bit(
    on_yarn: Hadoop, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--every-hadoop"):
        pytest.skip("only with --every-hadoop: tests/cluster/test_yarn_roles.py has it on a fake")
    settings: dict[str, Any] = {**JOB, "iterations": 150, "servers": 1}
    local = eps.run(**settings)
    modest = {**settings, "stretch_s": 0.05, "execution": "worker=opportunistic"}
    with Job.start(**modest, on="yarn", name="modest") as job:
        reach(job, 3)
        # Its master and its server leave ten of twelve vcores.
        firm = {**JOB, "workers": 8, "servers": 1, "iterations": 100_000}
        with Job.start(**firm, on="yarn", name="firm") as other:
            wait_for(lambda: job.status()["losses"], PATIENCE_S, "a worker to make room")
            other.kill("enough")
        report = job.wait(PATIENCE_S)
    assert report["model_sha256"] == local["model_sha256"]
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)
    for loss in report["losses"]:
        assert (
            loss["name"].startswith("worker-") and "was ended to make room for a guaranteed container" in loss["reason"]
        )
