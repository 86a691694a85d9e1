"""The plugin in an unmodified ResourceManager: jobs get YARN's own PreemptionMessage by a plan of H-scheduler."""

from __future__ import annotations

import dataclasses
import shlex
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hscheduler.core.resources import Role
from hscheduler.yarn.endpoint import PluginServer, secret_of
from hscheduler.yarn.plan import Facts, make_plan
from hscheduler.yarn.wire import Application, Plan, Snapshot
from tests.yarn.hadoop import Hadoop
from tests.yarn.plugin import Plugin, unfought

MEMBER_MB = MASTER_MB = 1024
RELEASED, PREEMPTED = "-100", "-102"


class Tiny:
    """An application of :file:`java/TinyMaster.java`."""

    def __init__(self, hadoop: Hadoop, plugin: Plugin, folder: Path, name: str, members: int, master_mb: int) -> None:
        folder.mkdir()
        self.folder, self._hadoop = folder, hadoop
        jars = str(Path(hadoop.class_path.split(":")[0]).parent / "*")
        java = [f"{hadoop.env['JAVA_HOME']}/bin/java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        words = ["-cp", f"{plugin.classes}:{hadoop.conf_dir}:{jars}", "TinyMaster", str(folder), str(members)]
        command = shlex.join([*java, *words, str(MEMBER_MB)])
        self.application_id = self._ask("/ws/v1/cluster/apps/new-application", {})["application-id"]
        body = {
            "application-id": self.application_id,
            "application-name": name,
            "application-type": "EPS",
            "queue": "default",
            "max-app-attempts": 1,
            "resource": {"memory": master_mb, "vCores": 1},
            "am-container-spec": {"commands": {"command": f"{command} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"}},
        }
        self._ask("/ws/v1/cluster/apps", body)

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        return self._hadoop.rest(path, body)

    @property
    def state(self) -> str:
        """The application's state in YARN."""
        return str(self._hadoop.rest(f"/ws/v1/cluster/apps/{self.application_id}")["app"]["state"])

    def lines(self, file: str) -> list[list[str]]:
        """Return its output, split into words."""
        path = self.folder / file
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        """Kill the application."""
        (self.folder / "stop").touch()
        try:
            self._hadoop.wait_until(lambda: self.state in ("FINISHED", "FAILED", "KILLED"), "it to end", 30.0)
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        url = f"{self._hadoop.rm_url}/ws/v1/cluster/apps/{self.application_id}/state"
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, b'{"state": "KILLED"}', head, method="PUT")
        urllib.request.urlopen(request, timeout=30.0).close()


class Planned:
    """The planner of the tests: it knows one job's roles, and also takes masters, which the plugin must refuse."""

    def __init__(self, giver: str, master: str) -> None:
        self._giver, self._master = giver, master
        self.taken: set[str] = set()

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return Algorithm 1's plan, with a job master's container added."""
        job = next(a for a in snapshot.applications if a.application_id == self._giver)
        facts = {self._giver: Facts(True, roles_of(job))}
        assert "nothing is taken from queue root.default: YARN's own" in make_plan(snapshot, facts).sentences[0]
        plan = make_plan(unfought(snapshot), facts)
        self.taken.update(plan.takes)
        return dataclasses.replace(plan, takes=(self._master, *plan.takes))


def roles_of(job: Application) -> dict[str, Role]:
    """Return roles: every third member is a server."""
    members = sorted(held.container_id for held in job.containers if not held.is_master)
    return {name: Role.WORKER if k % 3 else Role.SERVER for k, name in enumerate(members)}


@pytest.fixture
def giver(hadoop: Hadoop, plugin: Plugin, tmp_path: Path) -> Iterator[Tiny]:
    """Return a job that has the whole cluster."""

    def nodes() -> Any:
        return hadoop.rest("/ws/v1/cluster/nodes?states=RUNNING")["nodes"]["node"]

    # An application's containers become free a little after its end.
    hadoop.wait_until(lambda: not any(node["numContainers"] for node in nodes()), "other tests' containers to be gone")
    # Its master takes one of the cores.
    members = sum(min(node["availMemoryMB"] // MEMBER_MB, node["availableVirtualCores"]) for node in nodes()) - 1
    with closing(Tiny(hadoop, plugin, tmp_path / "giver", "giver", members, 512)) as job:
        hadoop.wait_until(lambda: len(job.lines("held")) == members, "the job to have the cluster")
        yield job


def test_waiting_job_starts_with_containers_that_yarn_preempts_from_another(
    hadoop: Hadoop, plugin: Plugin, giver: Tiny, tmp_path: Path
) -> None:
    ((master,),) = giver.lines("master")
    hosts = {name: host for name, host in giver.lines("held")}
    planned = Planned(giver.application_id, master)
    # H-scheduler has not answered so far, and nothing was preempted.
    assert not giver.lines("preempted")
    with PluginServer(planned, secret_of(plugin.secret_file), listening=plugin.socket.dup()):
        with closing(Tiny(hadoop, plugin, tmp_path / "first", "first", 0, MASTER_MB)) as first:
            hadoop.wait_until(lambda: first.state == "RUNNING", "the first to start")
            (asked,) = giver.lines("preempted")
            assert set(asked) == planned.taken
            assert hosts[asked[0]] != "127.0.0.13", "no job master could start with the label"
            hadoop.wait_until(lambda: [asked[0], RELEASED] in giver.lines("completed"), "it to be given back")
            # Containers that are not released are killed.
            (giver.folder / "stubborn").touch()
            with closing(Tiny(hadoop, plugin, tmp_path / "second", "second", 0, MASTER_MB)) as second:
                hadoop.wait_until(lambda: second.state == "RUNNING", "the second to start")
                _, killed = giver.lines("preempted")
                hadoop.wait_until(lambda: [killed[0], PREEMPTED] in giver.lines("completed"), "it to be killed")
    assert master not in {name for (name,) in giver.lines("preempted")}
    assert {name for (name,) in giver.lines("preempted")} == planned.taken
    assert giver.state == "RUNNING"
    log = hadoop.log("resourcemanager")
    assert f"H-scheduler takes back [{asked[0]}]: {first.application_id} (first) waits for its job master" in log
    assert f"{killed[0]} was not given back within 2000 ms: it is killed" in log
