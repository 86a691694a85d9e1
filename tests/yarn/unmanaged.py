"""A job master's resources on a real YARN with an unmanaged master; runs in the process with Java."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from eps.cluster.api import ContainerEvent, ContainerRequest, Exited, ResourceManager, Running
from eps.cluster.yarn.allocation import Limits, Placement
from eps.cluster.yarn.hadoop.client import _context
from eps.cluster.yarn.hadoop.master import HadoopAm, HadoopNm, open_master
from eps.cluster.yarn.hadoop.records import java_application_id
from eps.cluster.yarn.launch import LOG_STREAMS, LaunchTemplate, RoleTemplate
from eps.cluster.yarn.resources import MasterEndpoint, Timing, YarnResourceManager
from eps.cluster.yarn.types import ApplicationReport, Launch, LocalFile, Resource, Submission
from eps.hadoop.bridge import java, jbool
from tests.fakes.yarn import KINDS
from tests.yarn.in_java import DEADLINE_S, client, kill, rmadmin, session

#: Short heartbeats, so that tests wait for YARN only; the watchdog of their thread never fires, even on a busy machine.
FAST = Timing(idle_s=0.2, busy_s=0.05, owner_s=1e6)
#: The program in a container: it writes its process id if its environment is as given, and sleeps.
SLEEPER = """
import os, sys, time
folder, odd = sys.argv[1:]
assert os.environ["ODD"] == odd, (os.environ["ODD"], odd)
with open(os.path.join(folder, os.environ["EPS_CONTAINER_ID"]), "w") as file:
    file.write(str(os.getpid()))
time.sleep(1000)
"""
#: Characters that a shell would interpret.
ODD = """a "b" 'c' $HOME `d` \\ {e} %f"""
#: The application that tests share, while it runs.
_application = ""


def application() -> str:
    """Return a running application, that of the previous test if it still runs."""
    global _application
    if not _application or client().report(_application).ended:
        _application = client().new_application()
        nothing = Launch("the master runs elsewhere")
        submission = Submission("a test", nothing, Resource(128, 1), tags=("eps.test",))
        context = _context(java_application_id(_application), submission)
        context.setUnmanagedAM(jbool(True))
        with session().errors(f"{_application} cannot be submitted"):
            client()._client.submitApplication(context)
    return _application


@lru_cache
def am_token(application: str) -> tuple[Any, Any]:
    """Return the token of an unmanaged application master, and its attempt's id.

    YARN gives each once, before its master registers.
    """
    token = None

    def is_there() -> bool:
        nonlocal token
        token = client()._client.getAMRMToken(java_application_id(application))
        return token is not None

    wait_until(is_there, f"the token of {application}")
    report = client()._client.getApplicationReport(java_application_id(application))
    return token, report.getCurrentApplicationAttemptId()


@lru_cache
def node_tokens(application: str) -> Any:
    """Return the store of an application master's node tokens, which is the same after a restart."""
    return java("org.apache.hadoop.yarn.client.api.NMTokenCache")()


def open_unmanaged_master(application: str) -> tuple[HadoopAm, HadoopNm]:
    """Return both interfaces of YARN for an application master that runs here.

    A second call with kept containers takes them over, like the next attempt of a master in a container.
    """
    token, attempt = am_token(application)
    user = java("org.apache.hadoop.security.UserGroupInformation").createRemoteUser(str(attempt))
    user.addToken(token)
    return as_user(user, lambda: open_master(session(), node_tokens(application)))


def as_user(user: Any, work: Callable[[], tuple[HadoopAm, HadoopNm]]) -> tuple[HadoopAm, HadoopNm]:
    """Call ``work`` as a user of Hadoop (``UserGroupInformation``): its connections belong to that user."""
    import jpype

    found = []
    # Python can implement only interfaces of Java, and the class needs a running machine.
    name = "java.security.PrivilegedExceptionAction"
    run = jpype.JOverride(lambda _: found.append(work()))
    user.doAs(jpype.JObject(jpype.JImplements(name)(type("Action", (), {"run": run}))(), name))
    return found[0]


def sleepers(folder: Path) -> LaunchTemplate:
    """Return a template whose containers leave their process ids in a folder; those of ``broken`` cannot start,
    and those of ``gold`` want a label that no node has."""
    command = shlex.join([sys.executable, "-S", "-c", SLEEPER, str(folder), ODD])
    missing = LocalFile(f"{session().get('fs.defaultFS')}/missing", 1, 1)
    roles = {role: RoleTemplate(command, {"ODD": ODD}) for role in KINDS}
    broken = replace(roles["worker"], files={"missing": missing})
    return LaunchTemplate({**roles, "broken": broken, "gold": RoleTemplate("true", placement=Placement("gold"))})


class YarnBackend:
    """The contract suite's access to YARN."""

    can_evict = True

    def __init__(self, folder: Path, max_containers: int = 0, limits: Limits | None = None) -> None:
        self.folder = folder
        self.max_containers = max_containers
        self.limits = limits
        self.manager: ResourceManager = self._open()
        self._leaving = False

    def _open(self) -> YarnResourceManager:
        self.application = application()
        am, nm = open_unmanaged_master(self.application)
        return YarnResourceManager(
            am,
            nm,
            sleepers(self.folder),
            MasterEndpoint("127.0.0.1", 4711, "http://127.0.0.1:4712"),
            timing=FAST,
            limits=self.limits,
            max_containers=self.max_containers,
        )

    def pid(self, container_id: str) -> int:
        """Return the process of a container, which runs on this host."""
        path, text = self.folder / container_id, ""
        wait_until(lambda: path.is_file() and path.read_text() != "", f"{container_id} to say its process id")
        text = path.read_text()
        return int(text)

    def crash(self, event: Running) -> None:
        os.kill(self.pid(event.container_id), signal.SIGKILL)

    def broken_request(self) -> ContainerRequest:
        return ContainerRequest("c-broken", "broken")

    def evict(self, container_id: str, deadline_s: float) -> None:
        grants = [r.grant for r in self.manager._allocation._records.values() if r.request.container_id == container_id]  # type: ignore[attr-defined]
        self._exclude(grants[0].host + "\n")
        self._leaving = True
        rmadmin("-refreshNodes", "-g", str(int(deadline_s)), "-server")

    def _exclude(self, text: str) -> None:
        Path(session().get("yarn.resourcemanager.nodes.exclude-path")).write_text(text)

    def restart(self) -> ResourceManager:
        self.manager.close()
        self.manager = self._open()
        return self.manager

    def stop(self) -> None:
        """Leave the application without containers for the next test; forget it if it has ended."""
        global _application
        if self._leaving:
            self._exclude("")
            rmadmin("-refreshNodes")
        manager = self.manager
        assert isinstance(manager, YarnResourceManager)
        if manager._left.is_set():
            # YARN may report it late.
            _application = ""
        elif not manager._closed:
            with manager._lock:
                manager._allocation.end()
                manager._pass_on()
            allocation = manager._allocation
            # A pending request would be granted to the next test.
            wait_until(lambda: not allocation.has_containers and not allocation.has_turn, "its containers to end")
        manager.close()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; poll."""
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s, f"waited for {what}"
        time.sleep(0.02)


def collect(manager: ResourceManager, kind: type[ContainerEvent], *names: str) -> list[ContainerEvent]:
    """Return events until each container has had one of ``kind``."""
    events: list[ContainerEvent] = []
    missing, end_s = set(names), time.monotonic() + DEADLINE_S
    while missing:
        assert manager.wait(end_s - time.monotonic()), f"no {kind.__name__} of {missing} after {events}"
        for event in manager.poll():
            events.append(event)
            if isinstance(event, kind):
                missing.discard(event.container_id)
    return events


def reasons(events: list[ContainerEvent]) -> dict[str, str]:
    """Return the reasons of the containers' ends."""
    return {event.container_id: event.reason for event in events if isinstance(event, Exited)}


def contract(name: str, folder: Path) -> None:
    """Run one test of the contract suite."""
    from tests.contract import test_resources_contract as suite

    made: list[Any] = []

    def start(max_containers: int = 0) -> Any:
        made.append(YarnBackend(folder, max_containers))
        return made[-1]

    try:
        getattr(suite, name)(start)
    finally:
        for backend in made:
            backend.stop()


def end_application() -> None:
    """End the application that the tests share."""
    if _application:
        kill(_application)


def in_a_container(root: Path) -> tuple[ApplicationReport, dict[str, Any]]:
    """Run an application master in a container; return its final status and message."""
    env = {name: os.environ[name] for name in ("HADOOP_CONF_DIR", "JAVA_HOME") if name in os.environ}
    command = f"exec {shlex.quote(sys.executable)} -m tests.yarn.am_script {LOG_STREAMS}"
    launch = Launch(command, {**env, "PYTHONPATH": str(root)})
    application = client().new_application()
    client().submit(application, Submission("a test", launch, Resource(512, 1), tags=("eps.test",), max_attempts=2))
    try:
        wait_until(lambda: client().report(application).ended, f"{application} to end")
    finally:
        kill(application)
    report = client().report(application)
    assert report.diagnostics.startswith("{"), report
    return report, json.loads(report.diagnostics)
