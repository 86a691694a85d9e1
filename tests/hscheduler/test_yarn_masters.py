"""Job masters by what YARN says of their applications: found, found again, and left alone where that is in vain."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from eps.core.types import Address
from eps.errors import EpsError, StorageError
from eps.storage.jobdir import JobDir
from hscheduler.live import yarn_facts
from hscheduler.live.yarn_facts import Masters
from tests.hscheduler.yarn_world import running

JOB = dataclasses.replace(running(1, {}), host="127.0.0.11", port=4711)


class FakeStaged:
    """Stands for :class:`eps.job.yarn.elsewhere.StagedJobs`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked: list[Address] = []
        self.forgotten: list[str] = []
        self.error: EpsError | None = None
        self.closed = False

    def directory(self, application_id: str, name: str, user: str, master: Address) -> JobDir:
        """Return a directory."""
        self.asked.append(master)
        if self.error is not None:
            raise self.error
        return JobDir(self._folder / name)

    def forget(self, application_id: str) -> None:
        """Note it."""
        self.forgotten.append(application_id)

    def close(self) -> None:
        """Note it."""
        self.closed = True


def masters(staged: FakeStaged, told: list[str]) -> Masters:
    return Masters(cast(Any, staged), told.append)


def test_master_is_found_once_and_again_when_it_has_moved(tmp_path: Path) -> None:
    staged = FakeStaged(tmp_path)
    found = masters(staged, [])
    first = found.job(JOB)
    assert found.job(JOB) is first
    assert found.job(dataclasses.replace(JOB, port=5000)) is not first
    assert staged.asked == [Address("127.0.0.11", 4711), Address("127.0.0.11", 5000)]
    found.keep(frozenset({JOB.application_id}))
    assert not staged.forgotten
    found.close()
    assert staged.forgotten == [JOB.application_id] and staged.closed


def test_job_that_cannot_be_read_is_said_once_and_tried_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, told = FakeStaged(tmp_path), list[str]()
    staged.error = StorageError("Permission denied")
    found = masters(staged, told)
    for _ in range(3):
        with pytest.raises(StorageError, match="Permission denied"):
            found.status(JOB)
    assert len(staged.asked) == 1 and not told, "its master may have begun a moment ago"
    monkeypatch.setattr(yarn_facts, "FIND_AGAIN_S", 0.0)
    for _ in range(3):
        with pytest.raises(StorageError, match="Permission denied"):
            found.status(JOB)
    assert len(staged.asked) == 4
    assert told == [f"{JOB} is left alone: Permission denied"]
    staged.error = None
    found.job(JOB)
