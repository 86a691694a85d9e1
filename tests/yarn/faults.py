"""The functions of ``test_yarn_faults.py`` that run in the process with Java."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from unittest.mock import ANY

import pytest

from eps.cluster.api import ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.yarn.allocation import PREEMPTED, WANTED_BACK, Limits
from eps.cluster.yarn.killed_containers import KILLED
from eps.cluster.yarn.log_storage import HadoopLogStorage
from eps.cluster.yarn.resources import YarnResourceManager
from eps.cluster.yarn.types import ClusterNode, Launch, Resource, Submission
from eps.errors import ConfigError, EpsError, JobNotFoundError, PeerUnavailableError, ResourceError, StorageError
from eps.storage.locations import RemotePath
from eps.storage.shared_log import SharedLog
from eps.storage.wal import Replay
from tests.yarn.in_java import DEADLINE_S, client, dfsadmin, kill, rmadmin, session
from tests.yarn.unmanaged import YarnBackend, collect, reasons, wait_until

#: Objects that outlive the test's first call.
_begun: list[YarnBackend] = []
_logs: list[SharedLog] = []


def want(manager: YarnResourceManager, *names: str, memory_mb: int = 128) -> None:
    for name in names:
        manager.request(ContainerRequest(name, "worker", memory_mb=memory_mb))


def manager_of(backend: YarnBackend) -> YarnResourceManager:
    assert isinstance(backend.manager, YarnResourceManager)
    return backend.manager


def own_memory_mb(node: ClusterNode) -> int:
    """Return a node's configured memory for containers."""
    with urllib.request.urlopen(f"http://{node.http_address}/ws/v1/node/info", timeout=DEADLINE_S) as answer:
        return int(json.load(answer)["nodeInfo"]["totalPmemAllocatedContainersMB"])


def preempted(folder: Path) -> None:
    """Shrink nodes to nothing: YARN warns of the preemption of their containers, and takes them after the wait."""
    backend = YarnBackend(folder, limits=Limits(preemption_s=3.0))
    manager = manager_of(backend)
    try:
        want(manager, "c-1", "c-2")
        collect(manager, Running, "c-1", "c-2")
        # A node forgets an order to end a container that it has not started yet.
        assert all(map(backend.pid, ("c-1", "c-2")))
        used = [node for node in client().nodes() if node.num_containers]
        for node in used:
            rmadmin("-updateNodeResource", node.node, "64", "1", "3000")
        try:
            warnings = collect(manager, EvictionWarning, "c-1", "c-2")
            assert [w.deadline_s for w in warnings] == pytest.approx([3.0, 3.0]), warnings
            assert {w.reason for w in warnings} <= {PREEMPTED, WANTED_BACK}, warnings
            # One is released in time, the other is killed.
            manager.release("c-1")
            ended = reasons(collect(manager, Exited, "c-1", "c-2"))
            assert ended["c-1"] == "was released" and "was preempted" in ended["c-2"], ended
        finally:
            for node in used:
                rmadmin("-updateNodeResource", node.node, str(node.capacity.memory_mb), str(node.capacity.vcores))
            # A node that must start a container before it knows its new size would queue it for ever.
            wait_until(lambda: all(own_memory_mb(node) == node.capacity.memory_mb for node in used), "nodes to grow")
    finally:
        backend.stop()


def wish_before_the_restart(folder: Path) -> None:
    """Run a container, and request another one that fits no node."""
    backend = YarnBackend(folder)
    manager = manager_of(backend)
    want(manager, "c-1")
    collect(manager, Running, "c-1")
    assert backend.pid("c-1")
    # All memory of a node, of which c-1 has taken some.
    want(manager, *(f"c-big-{n}" for n in range(3)), memory_mb=4096)
    wait_until(lambda: not manager._allocation.has_turn, "the requests to be said")
    _begun.append(backend)


def after_the_restart() -> None:
    """Check that the container still runs, and that the request is still pending."""
    backend = _begun.pop()
    manager = manager_of(backend)
    try:
        events = collect(manager, Running, "c-big-0", "c-big-1")
        assert not reasons(events), events
        os.kill(backend.pid("c-1"), 0)
        wait_until(lambda: manager.silent_s() == 0.0, "beats to be answered")
        manager.release("c-1")
        assert reasons(collect(manager, Exited, "c-1")) == {"c-1": "was released"}
        # Now the last one fits.
        collect(manager, Running, "c-big-2")
    finally:
        backend.stop()


def run_two(folder: Path) -> str:
    """Run containers; return the host of the second."""
    backend = YarnBackend(folder)
    manager = manager_of(backend)
    want(manager, "c-1", "c-2")
    hosts = {e.container_id: e.host for e in collect(manager, Running, "c-1", "c-2") if isinstance(e, Running)}
    _begun.append(backend)
    return hosts["c-2"]


def kill_one_of_a_node_that_works() -> None:
    """Kill a silent container: its node reports that it hung, though YARN reports only a release."""
    manager = manager_of(_begun[-1])
    manager.kill("c-1")
    (end,) = collect(manager, Exited, "c-1")
    assert isinstance(end, Exited) and not end.taken and end.reason == KILLED


def kill_one_of_a_node_that_is_lost() -> None:
    """Kill a silent container long before YARN notices that its node is lost."""
    backend = _begun.pop()
    manager = manager_of(backend)
    try:
        manager.kill("c-2")
        (end,) = collect(manager, Exited, "c-2")
        assert isinstance(end, Exited) and end.taken and "was lost with its node" in end.reason
    finally:
        backend.stop()


def refused_ask(folder: Path) -> None:
    """Request an unknown label, and check that other requests are not affected."""
    backend = YarnBackend(folder)
    manager = manager_of(backend)
    try:
        manager.request(ContainerRequest("c-gold", "gold"))
        want(manager, "c-beside")
        events = collect(manager, Exited, "c-gold")
        ended = reasons(events)
        assert "was refused by YARN" in ended["c-gold"] and "the node label cannot be used" in ended["c-gold"], ended
        assert "\n" not in ended["c-gold"]
        if not any(isinstance(event, Running) for event in events):
            collect(manager, Running, "c-beside")
    finally:
        backend.stop()


def killed_by_its_user(folder: Path) -> None:
    """Kill the application from outside, like ``yarn application -kill``."""
    backend = YarnBackend(folder)
    manager = manager_of(backend)
    try:
        want(manager, "c-1")
        collect(manager, Running, "c-1")
        kill(backend.application, "enough")
        with pytest.raises(ResourceError, match="ended this attempt"):
            while manager.wait(DEADLINE_S):
                manager.poll()
        wait_until(lambda: client().report(backend.application).ended, "YARN to say so itself")
        report = client().report(backend.application)
        assert report.final_status == "KILLED" and "enough" in report.diagnostics, report
    finally:
        backend.stop()


def refused_submissions() -> None:
    """Submit invalid applications."""
    launch = Launch("true")
    for submission, words in (
        (Submission("x", launch, Resource(128, 1), queue="nope"), ("nope", "yarn queue -list")),
        (Submission("x", launch, Resource(900_000, 1)), ("900000", "request less memory")),
        (Submission("x", launch, Resource(128, 1), label="gold"), ("label",)),
    ):
        with pytest.raises(ConfigError) as found:
            client().submit(client().new_application(), submission)
        text = str(found.value)
        assert "\n" not in text and all(word in text for word in words), text
    with pytest.raises(JobNotFoundError):
        client().report("application_1_0001")
    with pytest.raises(ConfigError, match="no application id"):
        client().report("application_x")


def nobody_listens() -> None:
    """Connect to a ResourceManager that does not exist."""
    from eps.cluster.yarn.hadoop.client import HadoopClient
    from eps.hadoop.bridge import place_of
    from eps.hadoop.conf import HadoopConf
    from eps.hadoop.session import HadoopSession

    there = os.environ["HADOOP_CONF_DIR"]
    address = "127.0.0.1:1"
    prefix = "yarn.resourcemanager."
    settings = {"address": address, "connect.max-wait.ms": "400", "connect.retry-interval.ms": "200"}
    away = HadoopSession(settings={prefix + name: value for name, value in settings.items()})
    away.place = place_of(HadoopConf({"yarn.resourcemanager.address": address}, there))
    asking = HadoopClient(away)
    with pytest.raises(PeerUnavailableError) as found:
        asking.new_application()
    text = str(found.value)
    for word in (":1,", "the ResourceManager should listen", f"according to yarn.resourcemanager.address in {there}"):
        assert word in text, text
    asking.close()


def safe_mode() -> None:
    """Write while HDFS is in safe mode."""
    from eps.cluster.yarn.hadoop.files import HadoopFiles

    found = HadoopFiles(session())
    dfsadmin("-safemode", "enter")
    try:
        with pytest.raises(StorageError, match="HDFS is in safe mode"):
            found.open(f"{session().get('fs.defaultFS')}/while-safe")
    finally:
        dfsadmin("-safemode", "leave")


def logs() -> None:
    """Write a log, open it as the next writer, and read it."""
    from eps.cluster.yarn.hadoop.files import HadoopFiles

    found = HadoopFiles(session())
    folder = RemotePath.parse(f"{session().get('fs.defaultFS')}/user/{session().user}/a-test")
    log = str(folder / "log")
    try:
        stream = found.open(log)
        stream.write(b"one ")
        stream.write(b"two ")
        stream.sync()
        with pytest.raises(StorageError):
            found.open(log)
        # Its writer counts as lost.
        found.take_over(log)
        with pytest.raises(EpsError):
            stream.write(b"late")
            stream.sync()
        assert (folder / "log").read_bytes() == b"one two "
    finally:
        folder.parent.storage().remove(folder.name)


def log_of_a_master() -> None:
    """Create the log of a job master."""
    log = SharedLog.open(_log_store(), "state", _must_not_be)
    log.snapshot(b"state")
    log.append(b"one")
    _logs.append(log)


def log_without_data_node() -> None:
    """Check that failed writes leave nothing while HDFS has no DataNode, and that the gap is marked."""
    with pytest.raises(StorageError, match="log-00000000"):
        _logs[0].append(b"two")
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be written"):
            _logs[0].snapshot(b"meanwhile")
    assert _log_store().names("state") == ["gap-00000000", "log-00000000", "snapshot-00000000"]


def log_afterwards() -> None:
    """Check that the log continues, and that the next writer gets all records and is the only writer."""
    first, store, told = _logs.pop(), _log_store(), list[bool]()
    first._on_superseded = lambda: told.append(True)
    try:
        first.snapshot(b"whole")
        first.append(b"three")
        # Files that were not closed must not be needed: their writer lost its DataNode.
        assert SharedLog.open(store, "state", _must_not_be).recovered == Replay((b"whole",), (b"three",), (), ANY)
        with pytest.raises(StorageError, match="another job master"):
            first.append(b"late")
        assert told == [True]
        # A fence closes the log whose writer lost its DataNode, so that it can be read.
        store.fence("state/log-00000000")
        with store.read("state/log-00000000") as file:
            assert b"one" in file.read()
    finally:
        store.remove("")


def _log_store() -> HadoopLogStorage:
    from eps.cluster.yarn.hadoop.files import HadoopFiles

    folder = RemotePath.parse(f"{session().get('fs.defaultFS')}/user/{session().user}/a-log")
    return HadoopLogStorage(HadoopFiles(session()), folder.storage(patience_s=1.0))


def _must_not_be() -> None:
    raise AssertionError("this master was taken for one that another has taken over from")


def tokens() -> None:
    """Remove the tokens that speak for the application master, or for the user."""
    from eps.hadoop.bridge import java, jbytes
    from eps.hadoop.tokens import (
        AM_TOKEN,
        CLIENT_TOKEN,
        obtain_tokens,
        pack,
        tokens_for_containers,
        without_resource_manager,
    )

    text, token = java("org.apache.hadoop.io.Text"), java("org.apache.hadoop.security.token.Token")
    credentials = java("org.apache.hadoop.security.Credentials")()
    for kind in (AM_TOKEN, CLIENT_TOKEN, "HDFS_DELEGATION_TOKEN"):
        alias = text(f"{kind}@somewhere")
        credentials.addToken(alias, token(jbytes(b"who"), jbytes(b"secret"), text(kind), alias))
    handed_on = pack(without_resource_manager(credentials))
    assert handed_on.startswith(b"HDTS") and b"HDFS_DELEGATION_TOKEN" in handed_on
    assert AM_TOKEN.encode() not in handed_on and CLIENT_TOKEN.encode() not in handed_on
    assert credentials.numberOfTokens() == 3, "this process still holds them all"
    # A cluster that asks for no proof gives none.
    assert obtain_tokens(session()) == b"" and tokens_for_containers(session()) == b""
