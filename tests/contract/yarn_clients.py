"""What every client of YARN keeps, whatever is behind it: a real cluster, or the fake of the tests.

Each function has a cluster of three nodes of 4096 MB and 4 cores; the third has the label ``transient``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from eps.cluster.yarn.types import ALL_STATES, ApplicationReport, Launch, Resource, Submission
from eps.errors import EpsError, JobNotFoundError
from eps.system.waits import wait_for

#: Its master never registers: it waits, in a state that does not change.
WAITS = Submission("a client's test", Launch("exec sleep 1000"), Resource(128, 1), tags=("Kept",))
#: On a machine that is busy with other things.
DEADLINE_S = 240.0


def _ended(client: Any, application: str) -> ApplicationReport:
    wait_for(lambda: client.report(application).ended, DEADLINE_S, f"{application} to end")
    found = client.report(application)
    assert isinstance(found, ApplicationReport)
    return found


def submits_and_reports(client: Any, user: str, kill: Callable[[str, str], None]) -> None:
    """Submit an application, ask after it, and have ``kill`` end it."""
    assert client.user == user
    # A cluster that asks for no proof gives none.
    assert client.obtain_tokens() == b"" == client.obtain_tokens(["hdfs://127.0.0.1:8020"])
    application = client.new_application()
    with pytest.raises(JobNotFoundError):
        client.report(application.rpartition("_")[0] + "_9999")
    client.submit(application, WAITS)
    try:
        report = client.report(application)
        assert (report.application_id, report.name, report.application_type) == (application, WAITS.name, "EPS")
        # Some releases name the queue with those above it.
        assert (report.user, report.queue.rpartition(".")[2]) == (client.user, "default")
        assert report.tags == ("kept",)
        assert not report.ended and report.final_status == "UNDEFINED"
        assert (report.host, report.rpc_port, report.finished_ms) == ("", -1, 0)
    finally:
        kill(application, "enough of it")
    report = _ended(client, application)
    assert (report.state, report.final_status) == ("KILLED", "KILLED") and "enough of it" in report.diagnostics


def refuses_what_no_container_may_have(client: Any) -> None:
    """Submit one whose master is larger than any node."""
    application = client.new_application()
    with pytest.raises(EpsError) as found:
        client.submit(application, Submission("x", Launch("true"), Resource(900_000, 1)))
    assert "\n" not in str(found.value) and "memory" in str(found.value)
    with pytest.raises(JobNotFoundError):
        client.report(application)


def tells_nodes(client: Any) -> None:
    """Look at the nodes."""
    nodes = client.nodes()
    assert [node.node.partition(":")[0] for node in nodes] == ["127.0.0.11", "127.0.0.12", "127.0.0.13"]
    assert all(node.capacity == Resource(4096, 4) for node in nodes)
    assert [node.labels for node in nodes] == [(), (), ("transient",)]
    assert {node.state for node in nodes} == {"RUNNING"} and len(client.nodes(ALL_STATES)) >= 3
    assert not client.nodes(("LOST",))


def lists_and_kills(client: Any) -> None:
    """List applications, and end one twice."""
    application = client.new_application()
    with pytest.raises(JobNotFoundError):
        client.kill(application)
    client.submit(application, WAITS)
    try:
        assert application in [r.application_id for r in client.applications(tags=("kept",))]
        assert not client.applications(tags=("no-such-tag",)) and not client.applications(application_type="OTHER")
    finally:
        client.kill(application)
    assert _ended(client, application).state == "KILLED"
    assert application in [r.application_id for r in client.applications(states=("KILLED",))]
    assert application not in [r.application_id for r in client.applications(states=("RUNNING",))]
    client.kill(application)


def tells_queues(client: Any, most: Mapping[str, Resource]) -> None:
    """Look at the queues."""
    queue = client.queue("default")
    assert queue is not None and (queue.name, queue.state) == ("default", "RUNNING")
    assert "transient" in queue.labels or "*" in queue.labels
    assert (queue.largest, queue.most) == (Resource(4096, 4), most)
    assert queue.may_submit and queue.children == ()
    assert client.queue("no-such-queue") is None


def closes_twice(client: Any) -> None:
    """Close a client, and close it again."""
    client.close()
    client.close()
