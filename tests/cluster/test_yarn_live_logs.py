"""The logs of an application that runs, by the web servers of its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eps.cli.commands.inspect import LogReader
from eps.cluster.yarn.application import Application
from eps.errors import PeerUnavailableError
from eps.job.yarn.logs import LiveLogs, contents
from eps.storage.jobdir import JobDir, create_job_dir
from tests.fakes.resourcemanager import FakeResourceManager, resourcemanager

ID = "application_1700000000000_0007"
MASTER, WORKER = "container_e02_1700000000000_0007_01_000001", "container_e02_1700000000000_0007_01_000002"
STRANGER = "container_e02_1700000000000_0071_01_000002"
NODE = "/ws/v1/node/containers"
PLACED = f"M container-0001 is {WORKER} on node-1:8041\n"


class Cluster:
    """One node, and what is told of it."""

    def __init__(self, web: FakeResourceManager) -> None:
        self.web = web
        address = web.url.removeprefix("http://")
        nodes = [{"id": "n:1", "nodeHTTPAddress": address, "state": "RUNNING"}]
        web.answers["GET nodes"] = (200, {"nodes": {"node": nodes}})
        self.has(MASTER, WORKER, STRANGER)

    def has(self, *containers: str) -> None:
        found = [{"id": container, "state": "RUNNING"} for container in containers]
        self.web.answers[f"GET {NODE}"] = (200, {"containers": {"container": found}})

    def wrote(self, container: str, text: str) -> None:
        files = [{"fileName": "stderr", "fileSize": str(len(text))}, {"fileName": "stdout", "fileSize": "0"}]
        told = [{"containerId": container}, {"containerLogInfo": files, "containerId": container}]
        self.web.answers[f"GET {NODE}/{container}/logs"] = (200, {"containerLogsInfo": told})
        head = f"Container: {container} on n:1\nLogType:stderr\nLogLength:{len(text)}\n"
        said = f"{head}LogContents:\n{text}\nEnd of LogType:stderr.It runs\n"
        self.web.answers[f"GET {NODE}/{container}/logs/stderr"] = (200, said)

    def asked(self, container: str) -> int:
        return sum(path == f"{NODE}/{container}/logs/stderr" for _, path, _, _ in self.web.asked)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with resourcemanager() as web:
        yield Cluster(web)


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[JobDir]:
    address = cluster.web.url.removeprefix("http://")
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.webapp.address</name>"
        f"<value>{address}</value></property></configuration>"
    )
    directory, lock = create_job_dir("a9a", tmp_path)
    Application(ID, "hdfs://nn/x", str(tmp_path)).write(directory)
    yield directory
    lock.close()


@pytest.fixture
def live(job: JobDir) -> Iterator[LiveLogs]:
    found = LiveLogs(job)
    yield found
    found.close()


def test_who_follows_asks_the_nodes_for_what_is_new(cluster: Cluster, job: JobDir, live: LiveLogs) -> None:
    reader = LogReader(job.logs)
    cluster.wrote(MASTER, PLACED)
    cluster.wrote(WORKER, "W[worker-1] begins\n")
    assert live.download() == 2
    assert sorted(reader.new_lines()) == [f"[master] {PLACED}", "[worker-1] W[worker-1] begins\n"]
    assert live.download() == 2 and reader.new_lines() == [], "nothing is brought twice"
    cluster.wrote(WORKER, "W[worker-1] begins\nclock 1\nhalf a li")
    assert live.download() == 2, "its name was told by what was brought before"
    assert reader.new_lines() == ["[worker-1] clock 1\n"]
    assert (cluster.asked(MASTER), cluster.asked(WORKER), cluster.asked(STRANGER)) == (1, 2, 0)


def test_all_attempts_of_the_master_are_shown_in_their_order_or_one_of_them(job: JobDir) -> None:
    job.logs.mkdir(exist_ok=True)
    for name in ("master", "master-2", "master-10", "supervisor", "container-0001"):
        job.log(name).write_text(f"of {name}\n")
    every = ["of master\n", "[master-2] of master-2\n", "[master-10] of master-10\n"]
    assert LogReader(job.logs, "master").new_lines() == every
    assert LogReader(job.logs, "master-2").new_lines() == ["of master-2\n"]
    assert len(LogReader(job.logs).new_lines()) == 5


def test_logs_of_masters_of_a_run_before_go_when_those_of_a_later_one_come(
    cluster: Cluster, job: JobDir, live: LiveLogs
) -> None:
    job.logs.mkdir(exist_ok=True)
    job.log("master-2").write_text("of the run that was resumed\n")
    cluster.wrote(WORKER, "W[worker-1] begins\n")
    cluster.has(WORKER)
    live.download()
    assert job.log("master-2").exists(), "nothing is known of its masters yet"
    cluster.has(MASTER, WORKER)
    cluster.wrote(MASTER, PLACED)
    live.download()
    assert not job.log("master-2").exists() and job.log("master").read_text() == PLACED


def test_nodes_that_tell_nothing_are_an_error_and_a_container_that_ends_meanwhile_is_none(
    cluster: Cluster, job: JobDir, live: LiveLogs
) -> None:
    cluster.web.answers[f"GET {NODE}"] = (403, "no")
    with pytest.raises(PeerUnavailableError, match="no node serves its logs"):
        live.download()
    # Of the master there is no answer any more.
    cluster.has(STRANGER, MASTER, WORKER)
    cluster.wrote(WORKER, "W[worker-1] begins\n")
    assert live.download() == 2 and job.log(WORKER).exists()


def test_a_file_that_comes_in_pieces_is_what_the_node_says_how_long_it_is() -> None:
    said = b"Container: c on n:1\nLogType:stderr\nLogLength:11\nLogContents:\nhalf\na line\nEnd of LogType:stderr.\n"
    for size in (1, 7, len(said)):
        pieces = (said[at : at + size] for at in range(0, len(said), size))
        assert b"".join(contents(pieces)) == b"half\na line"
    with pytest.raises(ValueError, match="no length"):
        list(contents(iter([b"LogContents:\n"])))
