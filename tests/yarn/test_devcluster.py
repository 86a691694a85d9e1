"""``eps devcluster`` with the real Hadoop: its output, what survives a fault, and what it notices."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from tests.processes import Process
from tests.yarn.conftest import devcluster
from tests.yarn.hadoop import PATIENCE_S, Hadoop


def status(hadoop: Hadoop) -> tuple[int, dict[str, str]]:
    """Return the exit code of ``eps devcluster status``, and the state of each daemon."""
    done = subprocess.run(
        devcluster("status", hadoop.home, "--json"), capture_output=True, text=True, timeout=PATIENCE_S
    )
    return done.returncode, {one["name"]: one["state"] for one in json.loads(done.stdout)["daemons"]}


def test_status_shows_every_daemon_running(hadoop: Hadoop) -> None:
    expected = 0, dict.fromkeys(hadoop.cluster.settings.daemons, "running")
    # On a busy machine a daemon may be late with its answer.
    hadoop.wait_until(lambda: status(hadoop) == expected, "every daemon to answer")
    assert len(expected[1]) == 6
    assert hadoop.node_states() == dict.fromkeys(("127.0.0.11", "127.0.0.12", "127.0.0.13"), "RUNNING")


def test_last_node_has_the_label_and_queues_share_the_cluster(hadoop: Hadoop) -> None:
    entries = hadoop.rest("/ws/v1/cluster/get-node-to-labels")["nodeToLabels"]["entry"]
    assert {entry["key"].partition(":")[0] for entry in entries} == {"127.0.0.13"}
    queues = hadoop.rest("/ws/v1/cluster/scheduler")["scheduler"]["schedulerInfo"]["queues"]["queue"]
    assert {queue["queueName"]: (queue["capacity"], queue["maxCapacity"]) for queue in queues} == {
        "default": (50.0, 100.0),
        "batch": (50.0, 100.0),
    }


def test_killed_nodemanager_is_lost_within_seconds_and_returns(hadoop: Hadoop) -> None:
    hadoop.kill("nodemanager-2")
    killed = time.monotonic()
    try:
        hadoop.wait_until(lambda: hadoop.node_states().get("127.0.0.12") == "LOST", "the node to be lost", 60.0)
        assert time.monotonic() - killed < 60.0
        expected = 1, dict.fromkeys(hadoop.cluster.settings.daemons, "running") | {"nodemanager-2": "ended"}
        # On a busy machine a daemon may be late with its answer.
        hadoop.wait_until(lambda: status(hadoop) == expected, "the status to say so and nothing else")
    finally:
        # The tests after this one need the node.
        hadoop.restart("nodemanager-2")
    assert hadoop.node_states() == dict.fromkeys(hadoop.nodes, "RUNNING")


def test_application_and_its_container_outlive_the_resourcemanager(hadoop: Hadoop) -> None:
    new = hadoop.rest("/ws/v1/cluster/apps/new-application", {})["application-id"]
    hadoop.rest("/ws/v1/cluster/apps", submission(new))
    hadoop.wait_until(lambda: len(sleepers(hadoop)) == 1, "the application's container to run")
    before = sleepers(hadoop)
    hadoop.kill("resourcemanager")
    hadoop.restart("resourcemanager")
    found = hadoop.rest(f"/ws/v1/cluster/apps/{new}")["app"]
    assert (found["name"], found["state"]) == ("outlives", "ACCEPTED")
    attempts = hadoop.rest(f"/ws/v1/cluster/apps/{new}/appattempts")["appAttempts"]["appAttempt"]
    assert len(attempts) == 1
    assert sleepers(hadoop) == before
    hadoop.run_cli("yarn", "application", "-kill", new)
    hadoop.wait_until(lambda: not sleepers(hadoop), "the container to be killed")


def submission(application_id: str) -> dict[str, object]:
    """Return an application that waits, and whose master never registers."""
    return {
        "application-id": application_id,
        "application-name": "outlives",
        "max-app-attempts": 1,
        "resource": {"memory": 128, "vCores": 1},
        "am-container-spec": {"commands": {"command": "exec sleep 1234567"}},
    }


def sleepers(hadoop: Hadoop) -> list[Process]:
    """Return the processes of that application's container."""
    every = [process for node in hadoop.nodes for process in hadoop.containers(node)]
    return [process for process in every if "sleep\x001234567" in cmdline(process.pid)]


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
