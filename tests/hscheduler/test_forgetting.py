"""A record that cannot be resumed can be forgotten; and settings that must match the record."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eps._version import __version__
from eps.errors import ConfigError, StorageError
from eps.job.client import Job
from eps.storage.jobdir import JobLock, create_job_dir, list_jobs
from hscheduler import cli
from hscheduler.core import events as e
from hscheduler.live import scheduler as live
from hscheduler.live.scheduler import manager_of
from hscheduler.record.api import Entry
from hscheduler.record.sqlite import SqliteRecord, tag_of
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings, forget
from tests.hscheduler.world import FakeLive, World


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceDir:
    """Return the directory of a former service: with a running job, an ended one, and one of another service."""
    home = tmp_path / "home"
    monkeypatch.setenv("EPS_HOME", str(home))
    world = World(0)
    monkeypatch.setattr(live, "LiveJob", lambda job_id, *rest: FakeLive(world, job_id, rest[3]))
    directory = ServiceDir(tmp_path / "service")
    with Service(directory, ServiceSettings(nodes=2)) as service:
        service.leave()
        tag = service.scheduler._tag
    for name, manager in (("a", manager_of(tag)), ("b", manager_of(tag)), ("c", manager_of("other"))):
        job, lock = create_job_dir(name, home)
        job.note(runtime={"manager": manager})
        lock.close()
    return directory


def jobs_of(directory: ServiceDir) -> list[Path]:
    return [job.path for job in list_jobs(directory.path.parent / "home")]


def of_another_version(directory: ServiceDir) -> None:
    with closing(sqlite3.connect(directory.record, isolation_level=None)) as connection:
        connection.execute("UPDATE about SET format = '2-cafe'")


def append(directory: ServiceDir, entry: Entry) -> None:
    with closing(SqliteRecord(directory.record)) as record:
        record.append([entry], durable=False)


def that_leads_elsewhere(directory: ServiceDir) -> None:
    append(directory, Entry(1.0, e.SweepOpened("s"), given=7))


def that_cannot_be_taken(directory: ServiceDir) -> None:
    append(directory, Entry(1.0, e.JobStarted("ghost")))


def with_a_damaged_entry(directory: ServiceDir) -> None:
    with closing(sqlite3.connect(directory.record, isolation_level=None)) as connection:
        connection.execute("INSERT INTO entries (entry) VALUES ('what is this')")


@pytest.mark.parametrize(
    ("spoil", "message"),
    (
        (of_another_version, f"is in format 2-cafe, which eps {__version__} wrote; this is eps {__version__}"),
        (
            that_leads_elsewhere,
            "the record notes 7 orders before SweepOpened at 1.000 s, but its events lead to 0",
        ),
        (that_cannot_be_taken, "JobStarted at 1.000 s cannot be replayed: ValueError: unknown job ghost"),
        (with_a_damaged_entry, "an entry cannot be read: JSONDecodeError"),
    ),
)
def test_a_record_that_cannot_be_resumed_is_reported_with_its_running_jobs_and_the_remedy(
    spoil: Any, message: str, directory: ServiceDir
) -> None:
    spoil(directory)
    running, _, others = jobs_of(directory)
    with JobLock(running / "lock"), JobLock(others / "lock"), pytest.raises(StorageError) as told:
        Service(directory, ServiceSettings())
    text = str(told.value)
    assert message in text
    assert f"was not changed; its running jobs: {running.name}.\n" in text
    assert f"rename the record and start with an empty one: hscheduler serve --forget --state {directory.path}" in text


def test_forgetting_a_record_keeps_its_file_and_starts_an_empty_one(
    directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_another_version(directory)
    running, _, others = jobs_of(directory)
    locks = {path.name: JobLock(path / "lock") for path in (running, others)}

    def kill(self: Any, reason: str, timeout_s: float) -> None:
        assert "forget" in reason
        locks[self.name].close()

    monkeypatch.setattr(Job, "kill", kill)
    tag = tag_of(directory.record)
    told = forget(directory)
    aside = directory.path / f"record-{tag}.sqlite"
    assert told == f"ended {running.name}; the old record is {aside}"
    assert tag_of(aside) == tag and not directory.record.exists()
    assert "there was no record in" in forget(directory)
    with Service(directory, ServiceSettings(nodes=3)) as service, SchedulerClient(directory) as client:
        assert client.jobs()[0] == [] and service.scheduler._tag != tag
    locks[others.name].close()


def test_a_record_is_not_forgotten_while_a_job_cannot_be_ended(
    directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(self: Any, reason: str, timeout_s: float) -> None:
        raise StorageError("it cannot be reached")

    monkeypatch.setattr(Job, "kill", kill)
    with JobLock(jobs_of(directory)[0] / "lock"), pytest.raises(StorageError, match="cannot be reached"):
        forget(directory)
    assert directory.record.exists()


def test_jobs_of_an_unreadable_record_are_not_guessed(directory: ServiceDir) -> None:
    directory.record.write_bytes(b"what is this\n" + directory.record.read_bytes())
    running = jobs_of(directory)[0]
    with JobLock(running / "lock"):
        with pytest.raises(StorageError, match="eps list shows all"):
            Service(directory, ServiceSettings())
        assert forget(directory).startswith("ended no job; the old record is")
    assert (directory.path / "record-unknown.sqlite").exists()


def test_the_command_line_can_forget(directory: ServiceDir, monkeypatch: pytest.MonkeyPatch) -> None:
    of_another_version(directory)

    class Began(Exception):
        pass

    def service(directory: ServiceDir, settings: ServiceSettings) -> Any:
        raise Began if not directory.record.exists() else AssertionError("the record is there")

    monkeypatch.setattr("hscheduler.cli.commands.serve.Service", service)
    monkeypatch.setattr(
        "hscheduler.cli.commands.serve.signal", SimpleNamespace(signal=lambda *of: None, SIGTERM=15, SIGINT=2)
    )
    with pytest.raises(Began):
        cli.main(["serve", "--state", str(directory.path), "--forget"])


# ---- what a record was created with


@pytest.mark.parametrize(
    ("other", "message"),
    (
        ({"feedback_iteration": 50}, r"feedback_iteration 100 \(not 50\)"),
        ({"kill_restart_s": 2.0}, r"restart_s 0.0 \(not 2.0\)"),
        ({"policy": "static"}, r"policy 'elastic' \(not 'static'\)"),
    ),
)
def test_a_service_resumes_only_with_the_settings_of_its_record(
    other: dict[str, Any], message: str, directory: ServiceDir
) -> None:
    with pytest.raises(ConfigError, match=f"was created with {message}"):
        Service(directory, ServiceSettings(**other))


def test_settings_that_are_not_given_again_come_from_the_record(directory: ServiceDir) -> None:
    forget(directory)
    with Service(directory, ServiceSettings(feedback_iteration=7)) as service:
        service.leave()
    with Service(directory, ServiceSettings()) as service:
        assert service.scheduler.settings.feedback_iteration == 7
