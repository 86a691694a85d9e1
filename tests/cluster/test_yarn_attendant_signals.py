"""What stands for a job on YARN when it is told to end: the application goes, and nobody hangs."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.yarn.application import COPY_BYTES, Application
from eps.cluster.yarn.types import ApplicationReport
from eps.job.yarn import attendant as module
from eps.job.yarn.ending import wish
from eps.storage.jobdir import JobDir
from tests.cluster.attendant_world import (
    AWAY,
    FINISHED,
    ID,
    KILLED,
    PATIENCE_S,
    RUNNING,
    Follow,
    ScriptedClient,
)
from tests.cluster.attendant_world import follow as follow
from tests.cluster.attendant_world import job as job
from tests.cluster.attendant_world import quick as quick
from tests.cluster.attendant_world import shared as shared
from tests.cluster.attendant_world import staged as staged
from tests.fakes.storage import MemoryStorage

#: What is raised where a finaliser runs is lost, and comes again.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Gone(ScriptedClient):
    """A ResourceManager that is gone, and takes connections: no answer comes."""

    def report(self, application_id: str) -> ApplicationReport:
        found = super().report(application_id)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(PATIENCE_S)
        return found


@pytest.mark.parametrize("hangs", [True, False])
def test_a_signal_ends_it_soon_where_the_cluster_is_gone_and_the_next_one_goes_on(
    job: JobDir, follow: Follow, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)

    class Refusing(ScriptedClient):
        def kill(self, application_id: str, diagnostics: str = "") -> None:
            raise AWAY

    stop: Any = lambda: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    began_s = time.monotonic()
    client = Gone(RUNNING) if hangs else Refusing(RUNNING, stop, AWAY)
    assert follow(client) == 1
    assert time.monotonic() - began_s < PATIENCE_S and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert job.ended() is None and not job.record().pid and client.killed == []
    # The next one is not told again.
    following = ScriptedClient(RUNNING)
    assert follow(following) == 1
    assert following.killed == [f"SIGTERM ended who attended to it on {socket.gethostname()}"]
    assert not job.ending_json.exists(), "it has ended"


def test_a_signal_ends_it_soon_where_nothing_can_be_fetched(
    job: JobDir, shared: MemoryStorage, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)

    def hang(folder: str) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(PATIENCE_S)

    monkeypatch.setattr(shared, "names", hang)
    assert follow(ScriptedClient(KILLED)) == 1
    assert job.ended() is None, "whoever asks next has another one fetch it"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many seconds pass, after which the timer of whoever was told to end goes off."""
    now_s = time.monotonic()
    monkeypatch.setattr(module, "STOP_S", PATIENCE_S)
    monkeypatch.setattr(module, "AGAIN_S", PATIENCE_S)
    said = SimpleNamespace(monotonic=lambda: now_s, time=time.time, strftime=time.strftime, localtime=time.localtime)
    monkeypatch.setattr(module, "time", said)

    def passes(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        os.kill(os.getpid(), signal.SIGALRM)

    return passes


def test_a_signal_does_not_end_it_while_results_come_however_long_they_take(
    job: JobDir,
    shared: MemoryStorage,
    follow: Follow,
    monkeypatch: pytest.MonkeyPatch,
    passes: Callable[[float], None],
) -> None:
    model = bytes(3 * COPY_BYTES)
    shared.files.update({f"results/{name}": model for name in ("history.jsonl", "model.npz", "report.json")})
    shared.files["results/ended.json"] = b'{"state": "finished", "exit_code": 0, "reason": "done"}'

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            passes(0.7 * PATIENCE_S)
            return super().read(size)

    @contextmanager
    def read(path: str) -> Iterator[Any]:
        yield Slow(shared.files[path])

    monkeypatch.setattr(shared, "read", read)
    assert follow(ScriptedClient(RUNNING, lambda: os.kill(os.getpid(), signal.SIGTERM), FINISHED)) == 0
    ended = job.ended()
    assert ended is not None and (ended.state, ended.reason) == ("finished", "done")
    assert job.model.read_bytes() == model


@pytest.mark.parametrize("when", ["noted", "noting", "logs"])
def test_who_is_told_to_end_when_all_is_fetched_gives_nothing_up_but_logs_and_what_is_on_the_cluster(
    job: JobDir,
    shared: MemoryStorage,
    follow: Follow,
    staged: Application,
    monkeypatch: pytest.MonkeyPatch,
    passes: Callable[[float], None],
    when: str,
) -> None:
    state, code = ("failed", 1) if when == "logs" else ("finished", 0)
    shared.files["results/ended.json"] = json.dumps({"state": state, "exit_code": code, "reason": "done"}).encode()

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        passes(2 * PATIENCE_S)

    def hang(what: object) -> None:
        stop()
        pytest.fail("it had its time")

    def close(job: JobDir, *words: Any) -> None:
        stop()
        really(job, *words)

    really = JobDir.close

    if when == "noted":
        monkeypatch.setattr(shared, "remove", hang)
    elif when == "noting":
        monkeypatch.setattr(JobDir, "close", close)
    else:
        monkeypatch.setattr("eps.job.yarn.logs.fetch_logs", hang)
    assert follow(ScriptedClient(RUNNING, FINISHED)) == code
    ended = job.ended()
    assert ended is not None and (ended.state, ended.reason) == (state, "done")
    assert not job.ending_json.exists() and not job.record().pid
    assert ("job.zip" in shared.files) == (when == "noted"), "eps prune finds it"


def test_a_wish_is_for_one_application(job: JobDir, follow: Follow) -> None:
    wish(job, "application_1_0002", "enough")
    client = ScriptedClient(RUNNING, RUNNING, FINISHED)
    assert follow(client) == 0 and client.killed == []
    wish(job, ID, "enough")
    wish(job, ID, "and more")
    client = ScriptedClient(RUNNING)
    assert follow(client) == 1 and client.killed == ["enough"]
    ended = job.ended()
    assert ended is not None and (ended.state, ended.reason) == ("killed", "enough")


def test_a_signal_ends_the_application(job: JobDir, follow: Follow) -> None:
    client = ScriptedClient(RUNNING, lambda: os.kill(os.getpid(), signal.SIGTERM), RUNNING)
    assert follow(client) == 1
    reason = f"SIGTERM ended who attended to it on {socket.gethostname()}"
    assert client.killed == [reason]
    ended = job.ended()
    assert ended is not None and (ended.state, ended.reason) == ("killed", reason)


def test_a_kill_that_yarn_has_lost_is_said_again(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResourceManager that is started again before it has written the kill down brings the application back."""
    monkeypatch.setattr(module, "KILL_AGAIN_S", 0.005)

    class Forgetful(ScriptedClient):
        def kill(self, application_id: str, diagnostics: str = "") -> None:
            if len(self.killed) < 2:
                self.killed.append(diagnostics)
            else:
                super().kill(application_id, diagnostics)

    client = Forgetful(RUNNING, lambda: os.kill(os.getpid(), signal.SIGTERM), RUNNING)
    assert follow(client) == 1
    assert len(client.killed) == 3 and len(set(client.killed)) == 1


def test_who_is_named_as_the_one_to_signal_is_ready_for_it(job: JobDir, follow: Follow) -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((job.record().pid, signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL))

    assert not job.record().pid
    assert follow(ScriptedClient(look, RUNNING, FINISHED)) == 0
    assert seen == [(os.getpid(), True)]


def test_a_client_that_is_gone_takes_its_application_along(job: JobDir, follow: Follow) -> None:
    read_fd, write_fd = os.pipe()
    client = ScriptedClient(RUNNING, lambda: os.close(write_fd), RUNNING)
    assert follow(client, read_fd) == 1
    assert client.killed == ["its client is gone"]
