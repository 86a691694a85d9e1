"""Jobs on a YARN with faults: masters, members and their sessions are real, the cluster is a fake with processes.

``tests/yarn`` tests some of them on a real Hadoop, where each takes longer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eps
from eps.cluster.yarn.application import ENDED_FILE, PAGE_FILE, RESULTS, STATE
from eps.cluster.yarn.attempt import SUPERSEDED
from eps.cluster.yarn.resources import Timing
from eps.cluster.yarn.types import Resource
from eps.core.reconfig import OPERATIONS, Operation
from eps.core.recovery import MOST_INCIDENTS_AT_START
from eps.errors import EpsError, PlanError
from eps.spec.model_file import read_model
from eps.storage.atomic import read_json
from eps.system.waits import wait_for
from tests.fakes.running_yarn import CAPACITY, MORE_NODES, NODES, PATIENCE_S, RunningYarn, wake
from tests.fakes.storage import AWAY
from tests.fakes.webhdfs import FakeHdfs
from tests.integration.test_kill_in_plans import PHASES
from tests.tiers import tier_of
from tools.chaos.trap import MASTER, MASTER_LATE

pytestmark = pytest.mark.usefixtures("no_leftovers")

JOB: dict[str, Any] = {
    "data": "sklearn:digits", "model": "softmax", "test": "0.2", "iterations": 500, "workers": 2, "servers": 2,
    "splits": 4, "partitions": 4,
}  # fmt: skip

ON_TIERS = {name: value for name, value in JOB.items() if name not in ("workers", "servers")}

Begin = Callable[..., RunningYarn]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of the undisturbed job on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPS_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        return eps.run(name="undisturbed", **JOB)


@pytest.fixture
def begin(home: Path, tmp_path: Path) -> Iterator[Begin]:
    """Return a function that starts the job on a cluster of its own; it is slow until its report is requested."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            RunningYarn(tmp_path / "yarn", name="troubled", **{**JOB, **settings})
        )


def judge(report: dict[str, Any], undisturbed: dict[str, Any], phases: tuple[str, ...] = ()) -> None:
    """Check that a job has the undisturbed model's bits, and that its changes of size ended like this."""
    assert report["state"] == "finished", report["reason"]
    assert report["model_sha256"] == undisturbed["model_sha256"]
    ledger = report["ledger"]
    assert (ledger["lost"], ledger["applied_twice"], ledger["applied"]) == (0, 0, ledger["expected"])
    asked = [change["phase"] for change in report["changes"] if change["operation"] not in ("follow", "drain")]
    assert tuple(asked[: len(phases)]) == phases, report["changes"]


def everybody_is_used(yarn: RunningYarn, size: int) -> None:
    """Check that the application has the containers of the job's members, and no other."""

    def used() -> bool:
        members = {member["container"] for member in yarn.job.status()["members"]}
        with yarn.lock:
            everyone_runs = yarn.started() == members and len(yarn.containers) == size
            return everyone_runs and not yarn.outstanding()

    wait_for(used, PATIENCE_S, "each container to have a member")


# ---- containers of two tiers


@pytest.mark.parametrize("stage_rule", ["1", "2"])
def test_containers_of_two_tiers_come_go_and_fail_without_a_different_bit(
    home: Path, tmp_path: Path, undisturbed: dict[str, Any], stage_rule: str
) -> None:
    def there(transient: int) -> bool:
        return int(yarn.job.status()["tiers"]["stages"][-1]["transient"]) == transient

    size = {"reliable": 2, "transient": 2, "stage_rule": stage_rule}
    with RunningYarn(tmp_path / "yarn", name="tiers", **ON_TIERS, **size) as yarn:
        yarn.reach(1)
        wait_for(lambda: there(2), PATIENCE_S, "both transient containers")
        wait_for(lambda: yarn.job.status()["tiers"]["stage"] == int(stage_rule), PATIENCE_S, f"stage {stage_rule}")
        members = yarn.job.status()["members"]
        first, second = sorted({each["container"] for each in members if each["tier"] == "transient"})
        with yarn.lock:
            yarn.preempt(first)
        wait_for(lambda: there(1), PATIENCE_S, "a transient container to be drained")
        # Without a warning.
        with yarn.lock:
            yarn.take(second)
        wait_for(lambda: there(0), PATIENCE_S, "the loss to be noticed")
        assert yarn.job.scale(transient=+2)["phase"] == "released" and there(2)
        with yarn.lock:
            assert {(ask.resource.memory_mb, ask.resource.vcores) for ask in yarn.asks.values()} == {(2048, 2)}
        yarn.master().send(signal.SIGKILL)
        wait_for(lambda: status_of(yarn).get("generation") == 2, PATIENCE_S, "the next job master")
        report = yarn.report()
    judge(report, undisturbed)
    assert report["evictions"]["drained"] == 1


@pytest.mark.tier("all")
def test_a_job_on_two_tiers_starts_with_the_containers_that_it_gets(
    home: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    # Each node holds one of the four, and one node the job master.
    room = Resource(2560, 16)
    with RunningYarn(tmp_path / "yarn", capacity=room, name="tiers", **ON_TIERS, reliable=1, transient=3) as yarn:
        assert yarn.reach(1)["workers"] == 2
        yarn.master().send(signal.SIGKILL)
        wait_for(lambda: status_of(yarn).get("generation") == 2, PATIENCE_S, "the next job master")
        with yarn.lock:
            yarn.capacity[NODES[0]] = CAPACITY
        wait_for(lambda: status_of(yarn).get("workers") == 4, PATIENCE_S, "the others")
        report = yarn.report()
    judge(report, undisturbed)


# ---- the job master


def test_a_job_starts_with_fewer_members_and_gets_the_rest_later(begin: Begin, undisturbed: dict[str, Any]) -> None:
    # Two nodes hold one worker each.
    room = Resource(4096, 16)
    yarn = begin(capacity=room, workers=3, memory_mb="512,worker=2560", container_timeout_s=2.0, grow_back_s=1.0)
    status = yarn.reach(1)
    assert (status["workers"], status["servers"]) == (2, 2) and status["began_without"]["worker"] == 1
    with yarn.lock:
        yarn.capacity[NODES[0]] = CAPACITY
    wait_for(lambda: not any(yarn.job.status()["began_without"].values()), PATIENCE_S, "the third worker")
    everybody_is_used(yarn, 5)
    report = yarn.report()
    judge(report, undisturbed)
    assert (report["losses"], report["generation"]) == ([], 1)


def test_the_master_of_a_submitted_job_writes_results_to_hdfs_and_not_to_local_paths(
    begin: Begin, tmp_path: Path
) -> None:
    pytest.importorskip("hdfs")
    with FakeHdfs() as hdfs:
        hdfs.make_folders("/results", "755")
        yarn = begin(report=f"webhdfs://{hdfs.authority}/results/r.json", export=str(tmp_path / "m.npz"))
        report = yarn.report()
        assert json.loads(hdfs.find("/results/r.json").content) == report
    assert not (tmp_path / "m.npz").exists()
    # Its outcome, independent of its client.
    page = (yarn.shared / RESULTS / PAGE_FILE).read_text()
    assert f"<title>{yarn.job.name}: finished</title>" in page and '"report.json"' in page and '"live":false' in page
    assert "M " in (yarn.shared / RESULTS / "master.log").read_text()


def test_a_job_ends_cleanly_before_yarn_ends_it_for_its_lifetime(begin: Begin) -> None:
    yarn = begin(lifetime_s=15.0)
    yarn.reach(1)
    wait_for(lambda: yarn.ended is not None, PATIENCE_S, "its lifetime to pass")
    ended = read_json(yarn.shared / RESULTS / ENDED_FILE)
    assert ended == {"state": "killed", "exit_code": 1, "reason": "its lifetime of 15 s has passed"}
    report = read_json(yarn.shared / RESULTS / "report.json")
    assert report is not None and report["clock"] >= 1 and (yarn.shared / RESULTS / PAGE_FILE).exists()


def test_a_master_killed_in_every_phase_of_every_plan_changes_no_bit_and_leaks_no_container(
    begin: Begin, undisturbed: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    """One job goes through all operations; its master is killed in each phase, before or after its orders."""
    every = tier_of(pytestconfig) == "all"
    operations = (*OPERATIONS, Operation.FOLLOW, Operation.DRAIN)
    traps = [
        f"{operation}:{phase}:{victim}"
        for operation in operations
        for number, phase in enumerate(PHASES)
        for victim in ((MASTER, MASTER_LATE) if every else (MASTER, MASTER_LATE)[number % 2 :][:1])
    ]
    at = ("20:add-workers=1", "40:add-servers=1", "60:remove-workers=1", "80:remove-servers=1")
    yarn = begin(traps=",".join(traps), at=at)

    def sprung(operation: str) -> int:
        return len(list((yarn.shared / "traps").glob(f"{operation}:*")))

    of_each = len(traps) // len(operations)
    for operation in (*OPERATIONS, Operation.FOLLOW):
        wait_for(lambda: sprung(operation) == of_each, PATIENCE_S, f"the traps of {operation}")  # noqa: B023
    # YARN announces a preemption once, to the running attempt.
    killed = of_each * (len(OPERATIONS) + 1)
    wait_for(lambda: status_of(yarn).get("generation") == 1 + killed, PATIENCE_S, "a job master that stays")
    with yarn.lock:
        yarn.preempt(min(yarn.started()))
    wait_for(lambda: sprung("drain") == of_each, PATIENCE_S, "the traps of the drain")
    everybody_is_used(yarn, 4)
    report = yarn.report()
    judge(report, undisturbed, ("released",) * 4)
    assert report["losses"] == [], "no member was lost with a master"
    assert report["evictions"]["drained"] == 1
    # The first attempt, and one after each kill.
    assert report["generation"] == 1 + len(traps)


def test_a_master_killed_as_soon_as_the_job_has_finished_leaves_model_and_report(
    begin: Begin, undisturbed: dict[str, Any]
) -> None:
    """Its members were ordered to end, and they hold the model."""
    yarn = begin(dies_at_end=True)
    report = yarn.report()
    judge(report, undisturbed)
    assert (yarn.shared / "died-at-end").exists() and report["generation"] == 2
    digest = hashlib.sha256()
    for tensor in read_model(yarn.shared / RESULTS / "model.npz").tensors.values():
        digest.update(np.ascontiguousarray(tensor, dtype="<f4").tobytes())
    assert digest.hexdigest() == undisturbed["model_sha256"]


def test_a_store_that_hangs_longer_than_a_master_may_ends_no_master(begin: Begin, undisturbed: dict[str, Any]) -> None:
    yarn = begin()
    yarn.reach(20)
    until_s = time.monotonic() + 1.5 * Timing().owner_s
    with (yarn.shared / STATE / ".fence").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Requests of clients are answered meanwhile.
        wait_for(
            lambda: status_of(yarn).get("generation") == 1 and time.monotonic() > until_s, PATIENCE_S, "the watchdog"
        )
    report = yarn.report()
    judge(report, undisturbed)
    assert report["generation"] == 1


@pytest.mark.tier("all")
def test_a_master_lost_while_nothing_can_be_logged_ends_the_job_and_says_how_to_resume(begin: Begin) -> None:
    """The gap cannot be marked either, for example while all of HDFS restarts."""
    yarn = begin()
    yarn.reach(10)
    away = yarn.shared / STATE / AWAY
    away.touch()
    # The job trains on, and changes its size.
    assert yarn.job.add_workers(1)["phase"] == "released"
    status = yarn.reach(yarn.job.status()["clock"] + 10)
    assert "away" in status["storage_error"] and status["workers"] == 3
    master = yarn.master()
    assert master.send(signal.SIGSTOP)
    away.unlink()
    assert master.send(signal.SIGKILL)
    wait_for(lambda: yarn.ended is not None, PATIENCE_S, "the application to end")
    wait_for(lambda: not yarn.master().is_alive(), PATIENCE_S, "its master to end")
    ended = read_json(yarn.shared / RESULTS / ENDED_FILE)
    assert ended is not None and ended["state"] == "failed"
    assert "records are missing" in ended["reason"] and "eps resume" in ended["reason"]


@pytest.mark.parametrize("wakes", ["late", "early"])
def test_a_master_that_hung_and_wakes_after_its_timeout_exits_and_does_no_harm(
    begin: Begin, undisturbed: dict[str, Any], wakes: str
) -> None:
    yarn = begin()
    yarn.reach(20)
    hung, name = yarn.master(), f"am-{yarn.attempt}"
    assert hung.send(signal.SIGSTOP)
    if wakes == "early":
        # YARN has given up the attempt and not started the next one.
        yarn.expire_attempt()
        wake(hung)
        wait_for(lambda: name in yarn.statuses, PATIENCE_S, "it to end")
        yarn.begin_attempt()
    else:
        yarn.begin_attempt()
        yarn.master()
        wait_for(lambda: status_of(yarn).get("generation") == 2, PATIENCE_S, "the next job master")
        wake(hung)
        wait_for(lambda: name in yarn.statuses, PATIENCE_S, "it to end")
    assert yarn.statuses[name] == SUPERSEDED
    assert yarn.job.add_workers(1)["phase"] == "released"
    report = yarn.report()
    judge(report, undisturbed, ("released",))
    assert (report["generation"], report["losses"]) == (2, [])


def status_of(yarn: RunningYarn) -> dict[str, Any]:
    """Return the job's status; nothing if no master answers, for example because it hangs."""
    try:
        return yarn.job.status(timeout_s=2.0)
    except EpsError:
        return {}


# ---- nodes


def test_orphaned_members_of_a_lost_node_exit(begin: Begin, undisturbed: dict[str, Any]) -> None:
    """Its NodeManager was killed: the containers run on, and YARN counts them as ended once it notices."""
    yarn = begin()
    yarn.reach(20)
    node = NODES[1]
    orphans = [yarn.process(name) for name in yarn.on(node)]
    assert orphans
    yarn.kill_node(node, with_containers=False)
    # No member counts as lost before YARN notices.
    clock = yarn.job.status()["clock"]
    assert yarn.reach(clock + 10)["losses"] == []
    yarn.lose_node(node)
    wait_for(lambda: not any(orphan.is_alive() for orphan in orphans), PATIENCE_S, "the orphans to end themselves")
    everybody_is_used(yarn, 4)
    report = yarn.report()
    judge(report, undisturbed)
    assert len(report["losses"]) == len(orphans)
    assert all("lost with its node" in loss["reason"] for loss in report["losses"])


def test_a_job_that_loses_a_node_with_its_containers_returns_to_its_size(
    begin: Begin, undisturbed: dict[str, Any]
) -> None:
    yarn = begin()
    yarn.reach(20)
    lost = len(yarn.on(NODES[1]))
    yarn.kill_node(NODES[1], with_containers=True)
    wait_for(lambda: len(status_of(yarn).get("losses", ())) == lost, PATIENCE_S, "its members to be missed")
    everybody_is_used(yarn, 4)
    # YARN's late report on them changes nothing.
    yarn.lose_node(NODES[1])
    report = yarn.report()
    judge(report, undisturbed)
    assert len(report["losses"]) == lost


@pytest.mark.tier("all")
def test_a_job_that_loses_several_nodes_during_its_start_starts_eventually(begin: Begin) -> None:
    """YARN notices a lost node after minutes.  Its silent members are killed before; that is no failed start."""
    first, *others, last = MORE_NODES
    one, none = Resource(1024, 1), Resource(0, 0)
    yarn = begin(capacity=none, nodes=MORE_NODES, workers=3, iterations=20)
    with yarn.lock:
        yarn.capacity[first] = one
    for node in (*others, last):
        with yarn.lock:
            yarn.capacity[node] = one
        host = node.partition(":")[0]
        wait_for(lambda: host in hosts_of(yarn), PATIENCE_S, f"a member on {host}")  # noqa: B023
        if node != last:
            yarn.kill_node(node, with_containers=True)
            # Members that were launched earlier would be lost with the node.
            wait_for(lambda: host not in hosts_of(yarn), PATIENCE_S, f"the member on {host} to be missed")  # noqa: B023
    with yarn.lock:
        yarn.capacity[first] = CAPACITY
    report = yarn.report()
    assert (report["state"], report["generation"]) == ("finished", 1), report["reason"]
    # As many failures as would end a starting job if its members had exited by themselves.
    assert len(report["losses"]) >= len(others) == MOST_INCIDENTS_AT_START


def hosts_of(yarn: RunningYarn) -> set[str]:
    """Return the hosts of the members that have registered."""
    return {member["host"] for member in status_of(yarn).get("members", ())}


def test_a_master_whose_node_is_lost_is_superseded(begin: Begin, undisturbed: dict[str, Any]) -> None:
    """Its NodeManager was killed and it runs on: YARN has ended its attempt and not started the next one."""
    yarn = begin()
    yarn.reach(20)
    orphan = yarn.master()
    yarn.kill_node(NODES[0], with_containers=False)
    yarn.expire_attempt()
    yarn.lose_node(NODES[0])
    wait_for(lambda: not orphan.is_alive(), PATIENCE_S, "the master of the lost node to end itself")
    yarn.begin_attempt()
    report = yarn.report()
    judge(report, undisturbed)
    assert report["generation"] == 2
    assert len(report["losses"]) == 2 and not any("killed" in loss["reason"] for loss in report["losses"])


# ---- the ResourceManager


def test_an_unreachable_resourcemanager_costs_nothing_and_grants_afterwards(
    begin: Begin, undisturbed: dict[str, Any]
) -> None:
    yarn = begin()
    yarn.reach(10)
    yarn.be_silent("connection refused")
    asked = yarn.job.change("add-workers", 1, wait=False)
    status = yarn.reach(yarn.job.status()["clock"] + 30)
    assert status["plan"]["plan_id"] == asked["plan_id"] and status["plan"]["phase"] == "proposed"
    yarn.restart()
    yarn.be_silent("")
    wait_for(lambda: yarn.job.plan(asked["plan_id"])["phase"] == "released", PATIENCE_S, "the worker to be added")
    everybody_is_used(yarn, 5)
    report = yarn.report()
    judge(report, undisturbed, ("released",))
    assert (report["losses"], report["generation"]) == ([], 1)


@pytest.mark.parametrize("why", ["full", "silent"])
def test_a_container_that_is_never_granted_ends_its_plan_and_the_job_goes_on(
    begin: Begin, undisturbed: dict[str, Any], why: str
) -> None:
    yarn = begin(container_timeout_s=4.0)
    yarn.reach(10)
    if why == "full":
        yarn.hold = True
    else:
        yarn.be_silent("connection refused")
    with pytest.raises(PlanError) as found:
        yarn.job.add_workers(1)
    said = {"full": "; YARN has ", "silent": "the ResourceManager has not answered for"}[why]
    assert "was not granted within 4 s: it asks for" in str(found.value) and said in str(found.value)
    yarn.hold = False
    yarn.be_silent("")
    assert yarn.job.add_workers(1)["phase"] == "released"
    everybody_is_used(yarn, 5)
    report = yarn.report()
    judge(report, undisturbed, ("aborted", "released"))
    assert report["losses"] == []
