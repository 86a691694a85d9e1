"""Jobs that share an application: what the next attempt of it begins them from, and what is left of each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eps.cluster.yarn.application import JOB_ARCHIVE, RESULTS, MasterOrders
from eps.core.types import Address
from eps.errors import StorageError
from eps.job.client import Job
from eps.job.launch import prepare_job
from eps.job.resume import prepare_resume
from eps.job.yarn import shared_application
from eps.job.yarn.shared_application import JOBS, SharedApplication
from eps.job.yarn.submit import with_job
from eps.master.service import Announcements
from eps.net.security.credentials import Security
from eps.spec.file import RunRequest
from eps.spec.runtime import Runtime
from eps.storage.jobdir import MASTER_FILE, JobDir, create_job_dir
from eps.storage.local import LocalStorage
from eps.storage.locations import RemotePath
from tests.fakes.webhdfs import FakeHdfs

MODEL = "from eps.ml.models import Softmax\n\n\nclass Mine(Softmax):\n    pass\n"
DIGITS = {"name": "one", "data": "sklearn:digits", "model": "softmax", "checkpoint_every": "9"}


class FakeBroker:
    def __init__(self) -> None:
        self.removed: list[str] = []

    def add(self, job: str, security: Security, max_containers: int) -> Address:
        return Address("127.0.0.1", 1)

    def remove(self, job: str) -> None:
        self.removed.append(job)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[RemotePath]:
    """Give an application's folder in the cluster's file system."""
    monkeypatch.setenv("EPS_HDFS_PATIENCE_S", "20")
    with FakeHdfs() as fake:
        yield RemotePath("webhdfs", fake.authority, "/sweeps/one")


def place(shared: RemotePath, broker: Any = None) -> SharedApplication:
    orders = MasterOrders(str(shared), "python", {}, {})
    return SharedApplication(orders, shared.parent, "attempt-1", "127.0.0.1", broker or FakeBroker(), {})


def test_the_next_attempt_resumes_a_job_from_what_was_brought_for_its_containers(
    shared: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "first"))
    settings: dict[str, Any] = {
        "data": "sklearn:digits",
        "model": f"{tmp_path}/mine.py:Mine",
        "checkpoint_every": "9",
    }
    where = str(shared / shared_application.CHECKPOINTS)
    prepared = prepare_job(RunRequest.from_values({**settings, "name": "one", "checkpoint_dir": where}))
    orders = with_job(prepared, MasterOrders(str(shared), "python", {}, {}), shared / JOBS / "one", shared.parent)
    prepared.lock.close()
    assert list(orders.files) == ["eps-job"]
    token = prepared.directory.read_token()
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "second"))
    assert place(shared).restore() == ["one"]
    there = JobDir(tmp_path / "second" / "jobs" / "one")
    assert there.read_token() == token and there.token.stat().st_mode & 0o077 == 0
    resumed = prepare_resume("one")
    resumed.prepared.lock.close()
    runtime = Runtime.of_job(there)
    assert resumed.manifest is None and runtime.job_dir == there.path
    assert runtime.spec.model == f"{there.path}/model-code/mine.py:Mine"
    assert str(runtime.dataset_dir).startswith(str(shared.parent)), "no data is prepared again"


def test_masters_of_a_job_that_begins_again_are_counted_anew(
    shared: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    folder = (shared / JOBS / "one").storage()
    with folder.write(MASTER_FILE) as file:
        file.write(b'{"host": "h", "port": 1, "generation": 3}')
    where = str(shared / shared_application.CHECKPOINTS)
    prepared = prepare_job(RunRequest.from_values({**DIGITS, "checkpoint_dir": where}))
    place(shared)._begin(prepared)
    prepared.lock.close()
    assert Announcements(prepared.directory, folder).generation == 0
    assert JOB_ARCHIVE in folder.names("")


def test_a_job_that_was_over_is_known_by_its_report(
    shared: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lock = create_job_dir("one", tmp_path / "first")
    lock.close()
    job.report.write_text('{"state": "finished"}')
    job.model.write_bytes(b"model")
    job.log("master").write_text("words")
    place(shared).upload_results(job)
    results = (shared / JOBS / "one").storage()
    assert results.names(RESULTS) == ["model.npz", "report.json"]
    place(shared).upload_results(job, logs=True)
    assert results.names(RESULTS) == ["master.log", "model.npz", "report.json"]
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "second"))
    again = place(shared)
    again.restore()
    assert JobDir(tmp_path / "second" / "jobs" / "one").ended().state == "finished"
    with again.open_model("one") as file:
        assert file.read() == b"model", "what it has trained stays there"
    with pytest.raises(StorageError), again.open_model("two"):
        pass


class Ordered(LocalStorage):
    """Knows in which order what was written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written: list[str] = []

    def write(self, path: str) -> Any:
        self.written.append(path.rpartition("/")[2])
        return super().write(path)


def test_the_report_by_which_a_job_is_known_to_have_ended_is_left_last(shared: RemotePath, tmp_path: Path) -> None:
    job, lock = create_job_dir("one", tmp_path)
    lock.close()
    for path in (job.report, job.model, job.log("master")):
        path.write_text("content")
    store, found = Ordered(tmp_path / "shared"), place(shared)
    folder: Any = SimpleNamespace(storage=lambda: store)
    found._folder = lambda name: folder
    found.upload_results(job, logs=True)
    assert store.written == ["master.log", "model.npz", "report.json"]


def test_what_a_run_before_has_left_does_not_end_the_next(
    shared: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path))
    folder = (shared / JOBS / "one").storage()
    with folder.write(f"{RESULTS}/report.json") as file:
        file.write(b'{"state": "killed"}')
    where = str(shared / shared_application.CHECKPOINTS)
    prepared = prepare_job(RunRequest.from_values({**DIGITS, "checkpoint_dir": where}))
    place(shared)._begin(prepared)
    prepared.lock.close()
    assert folder.names(RESULTS) == []


@pytest.mark.parametrize("is_own", [True, False])
def test_of_a_job_that_finished_the_next_attempt_knows_its_report_alone(
    shared: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "first"))
    where = shared / shared_application.CHECKPOINTS / "attempt-1" if is_own else shared.parent / "mine"
    prepared = prepare_job(RunRequest.from_values({**DIGITS, "checkpoint_dir": str(where)}))
    for name in ("one", "two"):
        with where.storage().write(f"{name}/manifest") as file:
            file.write(b"weights")
    found, job = place(shared), prepared.directory
    found._begin(prepared)
    prepared.lock.close()
    job.report.write_text('{"state": "finished", "history": []}')
    job.model.write_bytes(b"model")
    found.upload_results(job)
    found.forget(job)
    folder = (shared / JOBS / "one").storage()
    assert JOB_ARCHIVE not in folder.names("") and folder.names(RESULTS) == ["model.npz", "report.json"]
    assert where.storage().names("") == (["two"] if is_own else ["one", "two"])
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "second"))
    assert place(shared).restore() == ["one"]
    # Its end may not have been said yet.
    with Job.find("one") as there:
        assert list(there.watch()) == [] and there.wait(0.0)["state"] == "finished"
    place(shared).forget(JobDir(tmp_path / "second" / "jobs" / "one"))


def test_containers_are_given_back_once_and_their_roles_go(shared: RemotePath) -> None:
    broker = FakeBroker()
    found = place(shared, broker)
    found.end("one")
    assert broker.removed == [], "nothing was started"
    role: Any = object()
    found._roles.update({"one/worker": role, "one/server": role, "one-again-1/worker": role})
    found._begun.add("one")
    found.end("one")
    found.end("one")
    assert broker.removed == ["one"] and set(found._roles) == {"one-again-1/worker"}


def test_only_the_master_of_an_application_stands_for_a_place(shared: RemotePath) -> None:
    found, seen = place(shared), []
    assert shared_application.current() is None
    with shared_application.hosting(found):
        # Jobs are started on threads of their own.
        thread = threading.Thread(target=lambda: seen.append(shared_application.current()))
        thread.start()
        thread.join()
    assert seen == [found] and shared_application.current() is None
