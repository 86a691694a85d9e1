"""A record that cannot be resumed, and settings that must match the record."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eps._version import __version__
from eps.errors import ConfigError, StorageError
from eps.storage.jobdir import JobLock, create_job_dir, list_jobs
from hscheduler.core import events as e
from hscheduler.live import scheduler as live
from hscheduler.live.scheduler import manager_of
from hscheduler.record.api import Entry
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
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
    assert "end these jobs (eps kill NAME), and start with another --state" in text


def test_jobs_of_an_unreadable_record_are_not_guessed(directory: ServiceDir) -> None:
    directory.record.write_bytes(b"what is this\n" + directory.record.read_bytes())
    with JobLock(jobs_of(directory)[0] / "lock"), pytest.raises(StorageError, match="eps list shows all"):
        Service(directory, ServiceSettings())


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
    directory.record.unlink()
    with Service(directory, ServiceSettings(feedback_iteration=7)) as service:
        service.leave()
    with Service(directory, ServiceSettings()) as service:
        assert service.scheduler.settings.feedback_iteration == 7
