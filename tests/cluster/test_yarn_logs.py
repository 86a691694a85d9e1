"""What ``eps logs`` proves with who it is on a cluster with Kerberos, and what it says where no logs can be had."""

from __future__ import annotations

import argparse
import subprocess
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from eps.cli import main
from eps.cli.commands import inspect
from eps.cluster.yarn.application import Application
from eps.errors import PeerUnavailableError, ResourceError, StorageError
from eps.hadoop.token_file import TOKEN_FILE_VARIABLE
from eps.job.master_link import NEXT_MASTER_S
from eps.job.yarn import log_looks, logs
from eps.storage.jobdir import JobDir, create_job_dir
from tests.fakes.full_disk import no_file_beyond
from tests.fakes.records import note_ended

SECURE = """<configuration><property><name>hadoop.security.authentication</name><value>kerberos</value></property>
</configuration>"""
SAID = """Container: container_1_0001_01_000001 on node_8041
LogType:stdout
LogContents:
begun
End of LogType:stdout
"""


class Command:
    """One that has printed."""

    def __init__(self, said: str = "", returncode: int = 0) -> None:
        self.returncode = returncode
        self._said = said

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def communicate(self, timeout: float) -> tuple[None, str]:
        return None, self._said


class Issuer:
    """A client of YARN that gives one token after the other."""

    def __init__(self) -> None:
        self.obtained = 0
        self.cancelled: list[bytes] = []
        self.closed = 0
        self.away = False

    def obtain_tokens(self) -> bytes:
        self.obtained += 1
        return b"token-%d" % self.obtained

    def cancel_tokens(self, tokens: bytes) -> None:
        if self.away:
            raise PeerUnavailableError("no ResourceManager can be reached")
        self.cancelled.append(tokens)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def managers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the ResourceManager listens: one word for each time that it is asked, and the last for all others."""
    found = [True]
    monkeypatch.setattr(log_looks, "listens", lambda place: found.pop(0) if len(found) > 1 else found[0])
    return found


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    found = Issuer()
    monkeypatch.setattr(logs, "open_client", lambda conf, kind: found)
    return found


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bytes]]:
    """Give the file of tokens that each command was given, and what was in it."""
    found: list[tuple[Path, bytes]] = []

    def run(words: Any, *, env: dict[str, str], stdout: BinaryIO, **_: Any) -> Any:
        path = Path(env[TOKEN_FILE_VARIABLE])
        found.append((path, path.read_bytes()))
        stdout.write(SAID.replace("begun\n", "begun\n" * len(found)).encode())
        return Command()

    monkeypatch.setattr(logs.subprocess, "Popen", run)
    monkeypatch.setattr(logs, "find_java", lambda: argparse.Namespace(command="java"))
    monkeypatch.setattr(logs, "class_path", lambda conf: ["hadoop.jar"])
    return found


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    (tmp_path / "core-site.xml").write_text(SECURE)
    directory, lock = create_job_dir("a9a")
    Application("application_1_0001", "hdfs://nn/x", str(tmp_path), "rest").write(directory)
    yield directory
    lock.close()


def test_a_command_has_one_set_of_tokens_and_cancels_it(
    job: JobDir, issuer: Issuer, proved: list[tuple[Path, bytes]]
) -> None:
    with logs.open_logs(job) as fetch:
        for number in range(1, 4):
            assert fetch() == ["master"] and job.log("master").read_text() == "begun\n" * number
        assert issuer.cancelled == []
    assert [tokens for _, tokens in proved] == [b"token-1"] * 3
    assert issuer.cancelled == [b"token-1"] and issuer.closed == 1
    assert not any(path.exists() for path, _ in proved)


def test_tokens_that_are_getting_old_are_replaced(
    job: JobDir, issuer: Issuer, proved: list[tuple[Path, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "REFRESH_S", -1.0)
    with logs.open_logs(job) as fetch:
        fetch()
        fetch()
    assert [tokens for _, tokens in proved] == [b"token-1", b"token-2"]
    assert issuer.cancelled == [b"token-1", b"token-2"]


def test_what_cannot_be_cancelled_keeps_nobody_from_reading(
    job: JobDir, issuer: Issuer, proved: list[tuple[Path, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    issuer.away = True
    assert logs.fetch_logs(job) == ["master"]
    assert "no ResourceManager can be reached" in caplog.text
    assert issuer.closed == 1 and not proved[0][0].exists()


def test_who_follows_the_logs_and_goes_away_leaves_no_token(
    job: JobDir, issuer: Issuer, proved: list[tuple[Path, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(inspect.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        inspect.logs(argparse.Namespace(name="a9a", member="", follow=True))
    assert rounds == [inspect.FOLLOW_REMOTE_S] * 3 and len(proved) == 3
    assert issuer.obtained == 1 and issuer.cancelled == [b"token-1"]


LINE = "10:00:01 I eps: " + 200 * "x" + "\n"
#: Of one log; the tests' limit is far below.
LINES = 100_000


def test_logs_that_are_larger_than_memory_are_brought(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed is never in this process as a whole."""
    (Path(Application.read(job).conf_dir) / "core-site.xml").write_text("<configuration/>")  # type: ignore[union-attr]
    placed = "M worker-1 is container_1_0001_01_000002 on node:1\n"

    def run(words: Any, *, stdout: BinaryIO, **_: Any) -> Any:
        for container, said in (("000001", placed), ("000002", LINE * LINES)):
            head = f"Container: container_1_0001_01_{container} on node_1\nLogType:stderr\nLogContents:\n"
            stdout.write(f"{head}{said}End of LogType:stderr\n".encode())
        tracemalloc.start()
        return Command()

    monkeypatch.setattr(logs.subprocess, "Popen", run)
    monkeypatch.setattr(logs, "find_java", lambda: argparse.Namespace(command="java"))
    monkeypatch.setattr(logs, "class_path", lambda conf: ["hadoop.jar"])
    try:
        assert logs.fetch_logs(job) == ["master", "worker-1"]
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert job.log("master").read_text() == placed
    assert job.log("worker-1").stat().st_size == len(LINE) * LINES > 20 << 20
    assert most_bytes < 4 << 20
    assert not list(job.path.glob(".logs-*"))


def test_a_disk_that_is_full_is_named_and_not_java(open_job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:

        def run(words: Any, *, stdout: BinaryIO, **_: Any) -> Any:
            stdout.write(SAID.replace("begun", 10_000 * "x").encode())
            stdout.flush()
            stack.enter_context(no_file_beyond(1000))
            return Command()

        monkeypatch.setattr(logs.subprocess, "Popen", run)
        with pytest.raises(StorageError, match=rf"{open_job.path}: the logs of job 'a9a' cannot be written: File too"):
            logs.fetch_logs(open_job)

    def find_java() -> argparse.Namespace:
        for path in open_job.path.glob(".logs-*"):
            path.rmdir()
        return argparse.Namespace(command="java")

    monkeypatch.setattr(logs, "find_java", find_java)
    with pytest.raises(
        StorageError, match=rf"{open_job.path}/\.logs-.*: the logs of job 'a9a' cannot be written: No such"
    ):
        logs.fetch_logs(open_job)
    assert not list(open_job.path.glob(".logs-*"))


@pytest.fixture
def uncollected(open_job: JobDir) -> Path:
    """Its cluster collects no logs; return the configuration that says so."""
    conf = Path(Application.read(open_job).conf_dir)  # type: ignore[union-attr]
    values = {"yarn.log-aggregation-enable": "false", "yarn.nodemanager.log-dirs": "/disk1/logs,/disk2/logs"}
    properties = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in values.items())
    (conf / "yarn-site.xml").write_text(f"<configuration>{properties}</configuration>")
    return conf


def test_where_logs_are_not_collected_it_is_said_at_once_where_they_lie(
    open_job: JobDir, uncollected: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hadoop's command asked every node, for a minute and more, and found none."""
    monkeypatch.setattr(JobDir, "is_running", lambda self: False)
    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: pytest.fail("it would find nothing"))
    (open_job.logs / "worker-1.log").write_text("begun\n")
    assert main(["logs", "a9a"]) == 1
    assert capsys.readouterr() == (
        "[worker-1] begun\n",
        "eps: the logs of application_1_0001 are not collected: yarn.log-aggregation-enable is false in "
        f"{uncollected}; what its containers wrote stays for a while on the nodes that they ran on, in "
        "application_1_0001 within /disk1/logs,/disk2/logs\n",
    )


@pytest.mark.usefixtures("uncollected")
def test_whoever_brings_the_logs_of_a_failed_job_asks_for_none_where_none_are_collected(
    open_job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is who attended to it: the job's lock is held as long."""
    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: Command())
    assert open_job.is_running() and logs.fetch_logs(open_job) == [], "its nodes have them while it runs"
    note_ended(open_job, {"state": "failed"})
    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: pytest.fail("it would find nothing"))
    with pytest.raises(ResourceError, match=r"application_1_0001 are not collected: .* within /disk1/logs,/disk2"):
        logs.fetch_logs(open_job)


SILENT = {"reason": "the ResourceManager has not answered since 10:00:00, and is waited for", "is_silent": True}


@pytest.fixture
def open_job(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    """Give one on a cluster that wants no proofs."""
    (Path(Application.read(job).conf_dir) / "core-site.xml").write_text("<configuration/>")  # type: ignore[union-attr]
    monkeypatch.setattr(logs, "find_java", lambda: argparse.Namespace(command="java"))
    monkeypatch.setattr(logs, "class_path", lambda conf: ["hadoop.jar"])
    return job


@pytest.fixture
def silent(open_job: JobDir, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its cluster is known not to answer; return what is said of its logs."""
    open_job.note(yarn={"waiting": SILENT})
    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: pytest.fail("it would wait for a minute"))
    return f"eps: the logs of job 'a9a' cannot be had now: {SILENT['reason']}\n"


@pytest.mark.parametrize("here", ["", "begun\n"])
@pytest.mark.parametrize("words", [[], ["worker-1"]])
def test_a_cluster_that_does_not_answer_is_not_asked_for_logs(
    open_job: JobDir, silent: str, words: list[str], here: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are here are shown all the same."""
    if here:
        (open_job.logs / "worker-1.log").write_text(here)
    assert main(["logs", "a9a", *words]) == 4
    shown = here if words or not here else f"[worker-1] {here}"
    assert capsys.readouterr() == (shown, silent)


def test_who_follows_logs_waits_for_a_cluster_that_does_not_answer(
    open_job: JobDir, silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (open_job.logs / "master.log").write_text("begun\n")
    rounds: list[float] = []

    def run(words: Any, *, stdout: BinaryIO, **_: Any) -> Any:
        stdout.write(SAID.replace("begun\n", "begun\nwent on\n").encode())
        monkeypatch.setattr(JobDir, "is_running", lambda self: False)
        return Command()

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            open_job.note(yarn={"waiting": None})
            monkeypatch.setattr(logs.subprocess, "Popen", run)

    monkeypatch.setattr(inspect.time, "sleep", sleep)
    assert main(["logs", "a9a", "--follow"]) == 0 and len(rounds) == 3
    assert capsys.readouterr() == ("[master] begun\n[master] went on\n", silent)


def test_a_cluster_that_is_found_not_to_answer_is_not_waited_for(
    open_job: JobDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed: list[Any] = []

    class Hanging(Command):
        def communicate(self, timeout: float) -> tuple[None, str]:
            assert open_job.record().yarn.waiting is None, "it is waited for"
            open_job.note(yarn={"waiting": SILENT})
            raise subprocess.TimeoutExpired("java", timeout)

        def kill(self) -> None:
            killed.append(self)

    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: Hanging())
    assert main(["logs", "a9a"]) == 4
    assert SILENT["reason"] in capsys.readouterr().err and len(killed) == 1


AWAY = "the logs of application_1_0001: waiting for the ResourceManager at localhost:8032, which does not answer"


class Waiting(Command):
    """One that has not printed yet, and takes half a second of a clock whenever it is looked at, for ``looks``."""

    def __init__(self, looks: int = 1 << 30) -> None:
        super().__init__()
        self.now_s, self.looks, self.killed = 0.0, looks, False

    def communicate(self, timeout: float) -> tuple[None, str]:
        self.now_s, self.looks = self.now_s + timeout, self.looks - 1
        if self.looks < 0:
            return super().communicate(timeout)
        raise subprocess.TimeoutExpired("java", timeout)

    def kill(self) -> None:
        self.killed = True

    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Waiting:
        said = argparse.Namespace(monotonic=lambda: self.now_s)
        for module in (logs, log_looks):
            monkeypatch.setattr(module, "time", said)
        monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: self)
        return self


def test_a_resourcemanager_that_is_gone_is_told_of_at_once_and_waited_for_as_long_as_a_job_master(
    open_job: JobDir, managers: list[bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the job goes on, so that nobody else misses it."""
    command, managers[:] = Waiting().clock(monkeypatch), [False]
    (open_job.logs / "master.log").write_text("begun\n")
    assert main(["logs", "a9a"]) == 4 and command.killed
    gone = "the logs of application_1_0001 cannot be had now: no ResourceManager answers at localhost:8032 for 10 s"
    assert capsys.readouterr() == ("[master] begun\n", f"eps: {AWAY}\neps: {gone}\n")
    assert command.now_s == NEXT_MASTER_S + logs.CHECK_S


def test_a_resourcemanager_that_comes_back_is_told_of_once(
    open_job: JobDir, managers: list[bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Waiting(30).clock(monkeypatch)
    managers[:] = [*[True] * 5, *[False] * 15, *[True] * 4, *[False] * 6]
    assert main(["logs", "a9a"]) == 0
    slow = "the logs of application_1_0001: waiting for YARN, which asks its nodes for them"
    assert capsys.readouterr() == ("", f"eps: {AWAY}\neps: {slow}\n")


NONE = "Can not find the logs for the application: application_1_0001 with the appOwner: root"


def test_a_job_that_waits_for_its_queue_has_no_logs_yet(
    open_job: JobDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    open_job.note(yarn={"waiting": {"reason": "application_1_0001 is ACCEPTED", "is_silent": False}})
    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: Command(NONE, 255))
    told = "eps: job 'a9a' has no logs yet: application_1_0001 is ACCEPTED\n"
    assert main(["logs", "a9a"]) == 4
    assert capsys.readouterr().err == told
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            (open_job.logs / "master.log").write_text("begun\n")
            open_job.note(yarn={"waiting": None})
            monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: Command())
            monkeypatch.setattr(JobDir, "is_running", lambda self: False)

    monkeypatch.setattr(inspect.time, "sleep", sleep)
    assert main(["logs", "a9a", "--follow"]) == 0
    found = capsys.readouterr()
    assert (found.err, found.out) == (told, "[master] begun\n") and len(rounds) == 2, "who follows waits for them"


def test_of_a_job_that_waits_for_its_queue_again_the_logs_of_its_former_run_are_shown(
    open_job: JobDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They make way for those of the next run, which are shown from their beginning."""
    (open_job.logs / "master.log").write_text("10:00:01 has begun\n10:00:09 fails\n")
    open_job.note(yarn={"waiting": {"reason": "application_1_0001 is ACCEPTED", "is_silent": False}})
    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: Command(NONE, 255))
    former = "[master] 10:00:01 has begun\n[master] 10:00:09 fails\n"
    told = "eps: job 'a9a' has no newer logs yet: application_1_0001 is ACCEPTED\n"
    assert main(["logs", "a9a"]) == 4
    assert capsys.readouterr() == (former, told)

    def run(words: Any, *, stdout: BinaryIO, **_: Any) -> Any:
        stdout.write(SAID.replace("begun\n", "11:00:01 has begun\n").encode())
        monkeypatch.setattr(JobDir, "is_running", lambda self: False)
        return Command()

    def sleep(seconds: float) -> None:
        monkeypatch.setattr(logs.subprocess, "Popen", run)

    monkeypatch.setattr(inspect.time, "sleep", sleep)
    assert main(["logs", "a9a", "--follow"]) == 0
    assert capsys.readouterr() == (f"{former}[master] 11:00:01 has begun\n", told)


def test_a_command_that_brings_nothing_new_is_run_less_and_less_often(
    job: JobDir, issuer: Issuer, proved: list[tuple[Path, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java virtual machine every few seconds would be another job's worth of work."""
    runs = []
    with logs.open_logs(job) as fetch:
        for look in range(40):
            if fetch():
                runs.append(look)
                # The next one prints the same.
                proved.clear()
        assert runs == [0, 1, 3, 7, 15, 23, 31, 39]
        monkeypatch.setattr(JobDir, "is_running", lambda self: False)
        assert fetch() == ["master"], "the last look is at all of it"


def test_who_asks_for_the_logs_of_a_job_that_nobody_attends_to_has_it_attended_to(
    open_job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would find out that its cluster does not answer, and who follows would stop at once."""
    attended: list[Path] = []
    monkeypatch.setattr(JobDir, "is_running", lambda self: False)
    monkeypatch.setattr("eps.job.yarn.former.attend_again", attended.append)
    monkeypatch.setattr(logs.subprocess, "Popen", lambda *_, **__: Command())
    assert main(["logs", "a9a"]) == 0 and attended == [open_job.path]
