"""Whole jobs on a real YARN with faults: the model has the bits of a local job, and no container is orphaned.

``tests/integration/test_yarn_in_trouble.py`` tests more faults in less time, on a fake cluster.
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
    """Return the report of the job on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPS_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        return eps.run(name="undisturbed", **JOB)


@pytest.fixture
def slow(tmp_path: Path, request: pytest.FixtureRequest) -> SlowModel:
    """Return the job's model: its calls are slow until a test hurries them."""
    # A busy machine may need a minute to notice a lost node and to replace its members.
    return SlowModel(tmp_path, 0.2 if request.node.get_closest_marker("tier") else 0.02)


@pytest.fixture
def begin(on_yarn: Hadoop, slow: SlowModel) -> Iterator[Begin]:
    """Return a function that starts the job, and returns once it trains."""
    with ExitStack() as stack:

        def start(name: str, **settings: Any) -> Job:
            settings = {**JOB, "model": slow.setting, **settings}
            # Files of an earlier job with the same name on HDFS stay that job's.
            job = stack.enter_context(Job.start(**settings, on="yarn", name=f"{name}-{secrets.token_hex(3)}"))
            reach(job, 5)
            return job

        yield start


def judge(job: Job, slow: SlowModel, undisturbed: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a job, check that it has the undisturbed model's bits, and return its report."""
    slow.hurry()
    report = job.wait(PATIENCE_S)
    assert report["state"] == "finished", report["reason"]
    assert report["model_sha256"] == undisturbed["model_sha256"]
    assert (report["ledger"]["lost"], report["ledger"]["applied_twice"]) == (0, 0)
    return report


def status_of(job: Job) -> dict[str, Any]:
    """Return a job's status; nothing if the master does not answer."""
    try:
        return job.status(timeout_s=2.0)
    except EpsError:
        return {}


def everybody_is_used(hadoop: Hadoop, job: Job, size: int) -> None:
    """Check that a job has this many members, and that each of its containers on YARN has a member."""

    def used() -> bool:
        app = hadoop.rest(f"/ws/v1/cluster/apps/{application_of(job)}")["app"]
        members = [member for member in status_of(job).get("members", []) if member["host"]]
        return len(members) == size and app["runningContainers"] == size + 1

    hadoop.wait_until(used, "each container to have a member")


def node_to_lose(job: Job) -> str:
    """Return the node with the most workers, then the most members, among those without the job master."""
    master = master_host(job)
    there = [(member["host"], member["name"].startswith("worker")) for member in job.status()["members"]]
    hosts = sorted({host for host, _ in there} - {master})
    return max(hosts, key=lambda host: (there.count((host, True)), there.count((host, False))))


def pids(job: Job) -> dict[str, int]:
    return {member["name"]: member["pid"] for member in job.status()["members"]}


def test_a_killed_resourcemanager_costs_nothing_and_grants_afterwards(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    job = begin("rm-away")
    before = pids(job)
    # A ResourceManager loses the requests that it has received and not answered.
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
    # Only one worker fits on a node.
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


# ---- slow tests


@pytest.mark.tier("all")
def test_a_job_outlives_the_only_data_node_and_its_master_can_be_lost_afterwards(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    """``tests/storage/test_log_storage.py`` tests that master's log with a fake HDFS."""
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
        # The master and the only worker fit on no common node, so the worker is lost alone, and no other worker takes
        # over.
        (signal.SIGKILL, {"workers": 1, "servers": 2, "memory_mb": "512,master=1500,worker=2600"}),
        (signal.SIGSTOP, {"workers": 4, "servers": 3}),
    ],
    ids=["gone", "hangs"],
)
def test_a_job_that_loses_a_node_with_its_containers_returns_to_its_size(
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
            # The hung processes wake, and find that they were replaced.
            process.send(signal.SIGCONT)
        wait_for(lambda: not any(process.is_alive() for process in struck[1:]), PATIENCE_S, "what ran there to end")
        report = judge(job, slow, undisturbed)
    finally:
        kill_all(struck)
        on_yarn.restart(on_yarn.daemon_of(node))
    assert {loss["name"] for loss in report["losses"]} >= {name for name, host in where.items() if host == node}


@pytest.mark.tier("all")
def test_a_master_whose_nodemanager_was_killed_is_superseded(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    """The master runs on as an orphan until YARN notices the lost node; then the next attempt starts."""
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
        # No process on its node ends it: its NodeManager still hangs.
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
def test_a_silent_master_is_superseded_by_one_that_finds_all_members(
    on_yarn: Hadoop, begin: Begin, slow: SlowModel, undisturbed: dict[str, Any]
) -> None:
    properties = on_yarn.cluster.settings.properties
    # A master that starts on a busy machine must not time out.
    on_yarn.reconfigure(properties=(*properties, (MASTER_EXPIRY, "30000")))
    try:
        job = begin("hangs")
        before, hung = pids(job), master_of(job)
        assert hung.send(signal.SIGSTOP)
        # Its node works, and is ordered to end it.
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
