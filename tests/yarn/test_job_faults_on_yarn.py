"""Whole jobs on a real YARN in trouble: the model has the bits of a local job, and every container is somebody's.

``tests/integration/test_yarn_in_trouble.py`` has more of it, in a fraction of the time: there the cluster is a fake.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import eps
from eps.core.reconfig import Operation, Phase
from eps.errors import EpsError, PlanError
from eps.job.client import Job
from eps.system.waits import wait_for
from tests.fakes.slow_model import SlowModel
from tests.processes import kill_all
from tests.yarn.hadoop import PATIENCE_S, Hadoop
from tests.yarn.test_jobs_on_yarn import application_of, hosts_of, master_host, master_of, reach
from tests.yarn.trapped_am import interpreter
from tools.chaos.trap import MASTER, MASTER_LATE

pytestmark = pytest.mark.usefixtures("no_leftovers")

JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "softmax", "iterations": 500, "workers": 2, "servers": 2, "splits": 4,
    "memory_mb": "512",
}  # fmt: skip
MASTER_EXPIRY = "yarn.am.liveness-monitor.expiry-interval-ms"

Begin = Callable[..., Job]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give the report of the job on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPS_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        return eps.run(name="undisturbed", **JOB)


@pytest.fixture
def slow(tmp_path: Path, request: pytest.FixtureRequest) -> SlowModel:
    """Give the job's model: it takes its time until it is told to hurry."""
    # Until a node is missed, and all that ran there is replaced, a busy machine may need a minute.
    return SlowModel(tmp_path, 0.2 if request.node.get_closest_marker("tier") else 0.02)


@pytest.fixture
def begin(on_yarn: Hadoop, slow: SlowModel) -> Iterator[Begin]:
    """Give a function that starts the job, and returns when it trains."""
    with ExitStack() as stack:

        def start(name: str, **settings: Any) -> Job:
            settings = {**JOB, "model": slow.setting, **settings}
            # What a job of the same name has left on HDFS is its own.
            job = stack.enter_context(Job.start(**settings, on="yarn", name=f"{name}-{secrets.token_hex(3)}"))
            reach(job, 5)
            return job

        yield start


def judge(job: Job, slow: SlowModel, undisturbed: dict[str, Any]) -> dict[str, Any]:
    """Let a job come to its end, and see that it has the bits of the undisturbed one; return its report."""
    slow.hurry()
    report = job.wait(PATIENCE_S)
    assert report["state"] == "finished", report["reason"]
    assert report["model_sha256"] == undisturbed["model_sha256"]
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)
    return report


def status_of(job: Job) -> dict[str, Any]:
    """Return a job's status; nothing where nobody answers."""
    try:
        return job.status(timeout_s=2.0)
    except EpsError:
        return {}


def everybody_is_used(hadoop: Hadoop, job: Job, size: int) -> None:
    """See that a job has so many members, and YARN no container of it that is nobody's."""

    def used() -> bool:
        app = hadoop.rest(f"/ws/v1/cluster/apps/{application_of(job)}")["app"]
        members = [member for member in status_of(job).get("members", []) if member["host"]]
        return len(members) == size and app["runningContainers"] == size + 1

    hadoop.wait_until(used, "each container to be somebody's")


def node_to_lose(job: Job) -> str:
    """Return the node with the most workers, then the most members, of those on which the job master is not."""
    master = master_host(job)
    there = [(member["host"], member["name"].startswith("worker")) for member in job.status()["members"]]
    hosts = sorted({host for host, _ in there} - {master})
    return max(hosts, key=lambda host: (there.count((host, True)), there.count((host, False))))


def pids(job: Job) -> dict[str, int]:
    return {member["name"]: member["pid"] for member in job.status()["members"]}


def test_a_resource_manager_that_is_killed_costs_nothing_and_grants_afterwards(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    job = begin("rm-away")
    before = pids(job)
    # It takes what is said in its last moments along: an ask that it has heard, and not answered.
    on_yarn.stop("resourcemanager")
    asked = job.change("add-workers", 1, wait=False)
    reach(job, job.status()["clock"] + 5)
    on_yarn.kill("resourcemanager")
    reach(job, job.status()["clock"] + 5)
    assert job.plan(asked["plan_id"])["phase"] == "proposed"
    on_yarn.restart("resourcemanager")
    wait_for(lambda: job.plan(asked["plan_id"])["phase"] == "released", PATIENCE_S, "the worker to be granted")
    after = pids(job)
    assert after.keys() - before.keys() == {"worker-3"} and {name: after[name] for name in before} == before
    everybody_is_used(on_yarn, job, 5)
    report = judge(job, slow, undisturbed)
    assert (report["losses"], report["generation"]) == ([], 1)


def test_a_master_killed_in_phases_of_a_plan_comes_back_and_what_is_never_granted_is_given_up(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    plan = Operation.ADD_SERVERS
    traps = f"{plan}:{Phase.PREPARED}:{MASTER_LATE},{plan}:{Phase.COMMITTED}:{MASTER}"
    # No two workers have room on one node.
    memory_mb = "512,worker=2100"
    job = begin("mortal", python=interpreter(tmp_path, traps), memory_mb=memory_mb, container_timeout_s=3.0)
    before = pids(job)
    asked = job.change(plan, 1, wait=False)
    wait_for(lambda: status_of(job).get("generation") == 3, PATIENCE_S, "the third job master")
    assert len(list((tmp_path / "traps").iterdir())) == 2
    wait_for(lambda: job.plan(asked["plan_id"])["phase"] == "released", PATIENCE_S, "the plan to be carried out")
    after = pids(job)
    assert after.keys() - before.keys() == {"server-3"} and {name: after[name] for name in before} == before
    everybody_is_used(on_yarn, job, 5)
    with pytest.raises(PlanError, match=r"within 3 s: .* 2100 MB"):
        job.add_workers(2)
    everybody_is_used(on_yarn, job, 5)
    report = judge(job, slow, undisturbed)
    assert report["losses"] == []
    assert [c["phase"] for c in report["changes"] if c["operation"] != "follow"] == ["released", "aborted"]


# ---- what takes long


@pytest.mark.tier("all")
def test_a_job_outlives_the_only_data_node_and_its_master_can_be_lost_afterwards(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    """``tests/storage/test_log_storage.py`` has the log of that master with a fake HDFS."""
    job = begin("no-data-node")
    before = pids(job)
    on_yarn.kill("datanode")
    try:
        wait_for(lambda: bool(status_of(job).get("storage_error")), PATIENCE_S, "its log to fail")
        reach(job, job.status()["clock"] + 5)
    finally:
        on_yarn.restart("datanode")
    wait_for(lambda: status_of(job).get("storage_error") == "", PATIENCE_S, "its log to go on")
    reach(job, job.status()["clock"] + 5)
    assert status_of(job)["generation"] == 1 and pids(job) == before
    assert master_of(job).send(signal.SIGKILL)
    wait_for(lambda: status_of(job).get("generation") == 2, PATIENCE_S, "the next job master")
    wait_for(lambda: pids(job) == before, PATIENCE_S, "its members, who are who they were")
    report = judge(job, slow, undisturbed)
    assert (report["generation"], report["losses"]) == (2, [])


@pytest.mark.tier("all")
def test_members_of_a_node_whose_nodemanager_was_killed_end_themselves(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    job = begin("orphans")
    master = master_host(job)
    node = next(host for host in sorted(hosts_of(job)) if host != master)
    lost = [member for member in job.status()["members"] if member["host"] == node]
    orphans = on_yarn.containers(node)
    assert lost and orphans
    on_yarn.kill(on_yarn.daemon_of(node))
    try:
        on_yarn.wait_until(lambda: on_yarn.node_states()[node] == "LOST", f"{node} to be missed")
        wait_for(lambda: not any(each.is_alive() for each in orphans), PATIENCE_S, "the orphans to end themselves")
        everybody_is_used(on_yarn, job, 4)
        report = judge(job, slow, undisturbed)
    finally:
        on_yarn.restart(on_yarn.daemon_of(node))
    assert {loss["name"] for loss in report["losses"]} == {member["name"] for member in lost}
    assert all("was lost with its node" in loss["reason"] for loss in report["losses"])


@pytest.mark.tier("all")
@pytest.mark.parametrize(
    ("number", "settings"),
    [
        # No node has room for the master and the only worker: that goes with the node, and nobody is left to take over.
        (signal.SIGKILL, {"workers": 1, "servers": 2, "memory_mb": "512,master=1500,worker=2600"}),
        (signal.SIGSTOP, {"workers": 4, "servers": 3}),
    ],
    ids=["gone", "hangs"],
)
def test_a_job_that_loses_a_node_with_all_that_ran_there_comes_back_to_its_size(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any], number: signal.Signals,
    settings: dict[str, Any],
) -> None:  # fmt: skip
    job = begin("node-lost", **settings)
    where = {member["name"]: member["host"] for member in job.status()["members"]}
    node = node_to_lose(job)
    struck = on_yarn.strike_node(node, number)
    try:
        on_yarn.wait_until(lambda: on_yarn.node_states()[node] == "LOST", f"{node} to be missed")
        everybody_is_used(on_yarn, job, len(where))
        assert node not in hosts_of(job)
        for process in struck:
            # What hung wakes, and finds that others are in its place.
            process.send(signal.SIGCONT)
        wait_for(lambda: not any(process.is_alive() for process in struck[1:]), PATIENCE_S, "what ran there to end")
        report = judge(job, slow, undisturbed)
    finally:
        kill_all(struck)
        on_yarn.restart(on_yarn.daemon_of(node))
    assert {loss["name"] for loss in report["losses"]} >= {name for name, host in where.items() if host == node}


@pytest.mark.tier("all")
def test_a_master_whose_nodemanager_was_killed_makes_way_for_the_next(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    """It goes on, an orphan, until YARN misses the node; the next attempt comes after that."""
    job = begin("orphan-master")
    orphan, node = master_of(job), master_host(job)
    on_yarn.kill(on_yarn.daemon_of(node))
    try:
        wait_for(lambda: not orphan.is_alive(), PATIENCE_S, "the master of the lost node to end itself")
        wait_for(lambda: status_of(job).get("generation") == 2, PATIENCE_S, "the next job master")
        everybody_is_used(on_yarn, job, 4)
        judge(job, slow, undisturbed)
    finally:
        on_yarn.restart(on_yarn.daemon_of(node))


@pytest.mark.tier("all")
def test_a_master_whose_node_hung_wakes_and_harms_nothing(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    job = begin("wakes")
    hung, node = master_of(job), master_host(job)
    struck = on_yarn.strike_node(node, signal.SIGSTOP)
    try:
        wait_for(lambda: status_of(job).get("generation") == 2, PATIENCE_S, "the next job master")
        clock = status_of(job).get("clock", 0)
        # Nobody there ends it: its NodeManager hangs still.
        assert hung.send(signal.SIGCONT)
        wait_for(lambda: not hung.is_alive(), PATIENCE_S, "the one that hung to end itself")
        for process in struck:
            process.send(signal.SIGCONT)
        everybody_is_used(on_yarn, job, 4)
        reach(job, clock + 5)
        assert job.add_workers(1)["phase"] == "released"
        report = judge(job, slow, undisturbed)
    finally:
        kill_all(struck)
        on_yarn.restart(on_yarn.daemon_of(node))
    assert report["generation"] == 2


@pytest.mark.tier("all")
def test_a_master_that_yarn_misses_is_followed_by_one_that_finds_everybody(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    properties = on_yarn.cluster.settings.properties
    # One that starts on a busy machine is not missed.
    on_yarn.reconfigure(properties=(*properties, (MASTER_EXPIRY, "30000")))
    try:
        job = begin("hangs")
        before, hung = pids(job), master_of(job)
        assert hung.send(signal.SIGSTOP)
        # Its node works, and is told to end it.
        wait_for(lambda: not hung.is_alive(), PATIENCE_S, "the one that hangs to be ended")
        wait_for(lambda: status_of(job).get("generation") == 2, PATIENCE_S, "the next job master")
        assert job.add_workers(1)["phase"] == "released"
        after = pids(job)
        assert {name: after[name] for name in before} == before
        everybody_is_used(on_yarn, job, 5)
        report = judge(job, slow, undisturbed)
        assert (report["generation"], report["losses"]) == (2, [])
    finally:
        on_yarn.reconfigure(properties=properties)
