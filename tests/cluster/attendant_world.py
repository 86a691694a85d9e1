"""A job on YARN whose client's side is under test, and a YARN that answers by a script."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import PeerUnavailableError
from eps.job.yarn import attendant as module
from eps.job.yarn.attendant import STOP_SIGNALS, Attendant
from eps.storage.jobdir import JobDir, create_job_dir
from tests.fakes.records import note_settings
from tests.fakes.storage import MemoryStorage

ID = "application_1_0001"
#: More than anything here takes.
PATIENCE_S = 60.0
REPORT = ApplicationReport(
    ID, "a9a", "EPS", "ada", "default", "ACCEPTED", "UNDEFINED", "", "", -1, "", 0.0, (), 1, 0, 0
)
RUNNING = dataclasses.replace(REPORT, state="RUNNING", host="127.0.0.11", rpc_port=4711)
FINISHED = dataclasses.replace(RUNNING, state="FINISHED", final_status="SUCCEEDED")
KILLED = dataclasses.replace(REPORT, state="KILLED", final_status="KILLED", diagnostics="Application killed by ada")
AWAY = PeerUnavailableError("no ResourceManager can be reached")


class ScriptedClient:
    """Answers with one report after the other; a callable among them is called on the way to the next."""

    def __init__(self, *script: Any) -> None:
        self._script = list(script)
        self.killed: list[str] = []

    def report(self, application_id: str) -> ApplicationReport:
        assert application_id == ID
        while True:
            found = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            if isinstance(found, Exception):
                raise found
            if isinstance(found, ApplicationReport):
                return found
            found()

    def kill(self, application_id: str, diagnostics: str = "") -> None:
        self.killed.append(diagnostics)
        self._script.append(KILLED)
        del self._script[:-1]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "ASK_S", 0.001)
    monkeypatch.setattr(module, "ASK_SLOWER_S", 0.001)
    # Logs are fetched by a command of Hadoop, which has a test of its own.
    monkeypatch.setattr("eps.job.yarn.logs.fetch_logs", lambda job: [])
    handlers = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGALRM)}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobDir]:
    directory, lock = create_job_dir("a9a", tmp_path)
    note_settings(directory, workers=2, servers=1, iterations=9)
    yield directory
    lock.close()


@pytest.fixture
def shared() -> MemoryStorage:
    """Where the job leaves what it brings: a model, whatever else."""
    found = MemoryStorage()
    found.files["results/model.npz"] = b"npz"
    return found


Follow = Callable[..., int]


@pytest.fixture
def follow(job: JobDir, shared: MemoryStorage) -> Follow:
    def follow(client: ScriptedClient, tied_fd: int | None = None, address: str = "") -> int:
        return Attendant(job, ID, client, shared, tied_fd, address).run()  # type: ignore[arg-type]

    return follow


@pytest.fixture
def staged(job: JobDir, shared: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> Application:
    """Where the job keeps what it shares: its secrets, and results."""
    monkeypatch.setattr(Application, "storage", lambda application: shared)
    application = Application(ID, "hdfs://nn:1/user/ada/.eps/jobs/a9a-1", "/etc/hadoop", "rest")
    application.write(job)
    shared.files.update({"job.zip": b"secrets", "results/report.json": b"{}", "state/log-1": b"x"})
    return application
