"""Job masters, by YARN's list of applications: how they are found, queried in parallel, and understood."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from eps.core.types import Address
from eps.errors import EpsError, PeerUnavailableError, StorageError
from eps.storage.jobdir import JobDir
from hscheduler.core.resources import Role
from hscheduler.yarn import masters as module
from hscheduler.yarn.masters import AT_ONCE, AskedMasters, Masters, facts_of
from hscheduler.yarn.plan import Facts
from hscheduler.yarn.wire import Application
from tests.hscheduler.yarn_world import container, running, waiting

JOB = dataclasses.replace(running(1, {}), host="127.0.0.11", port=4711)


class FakeStaged:
    """Fake of :class:`eps.job.yarn.staged_jobs.StagedJobs`."""

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
    found.keep([JOB])
    assert not staged.forgotten
    found.close()
    assert staged.forgotten == [JOB.application_id] and staged.closed


def test_unreadable_job_is_reported_once_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged, told = FakeStaged(tmp_path), list[str]()
    staged.error = StorageError("Permission denied")
    found = masters(staged, told)
    for _ in range(3):
        with pytest.raises(StorageError, match="Permission denied"):
            found.status(JOB)
    assert len(staged.asked) == 1 and not told, "its master may have just started"
    monkeypatch.setattr(module, "FIND_AGAIN_S", 0.0)
    for _ in range(3):
        with pytest.raises(StorageError, match="Permission denied"):
            found.status(JOB)
    assert len(staged.asked) == 4
    assert told == [f"{JOB} cannot be shrunk: its job master cannot be queried: Permission denied"]
    staged.error = None
    found.job(JOB)


# ---- answers


def status(**changes: object) -> dict[str, Any]:
    """Return a status as a job master reports it."""
    members = [
        {"name": "server-1", "role": "server", "container": "container-0099", "granted": container(1, 2)},
        {"name": "worker-1", "role": "worker", "container": "container-0098", "granted": container(1, 3)},
        {"name": "worker-3", "role": "worker", "container": "container-0096", "granted": ""},
    ]
    return {"state": "running", "clock": 100, "plan": None, "queued": [], "members": members} | changes


@pytest.mark.parametrize(("feedback_iteration", "given"), [(100, True), (101, False)])
def test_job_masters_report_what_yarn_does_not_know(feedback_iteration: int, given: bool) -> None:
    found = facts_of(status(), running(1, {"n1:1": 3}), feedback_iteration)
    roles = {container(1, 2): Role.SERVER, container(1, 3): Role.WORKER}
    assert found == Facts(given, roles), "a container that was not granted has no member"


def test_nothing_is_taken_from_a_job_on_reliable_and_transient_containers() -> None:
    found = facts_of(status(tiers={"stage": 1}), running(1, {"n1:1": 3}), 1)
    assert found is not None and not found.roles


@pytest.mark.parametrize("changes", [{"plan": {"plan_id": 3}}, {"queued": [{"plan_id": 4}]}])
def test_job_whose_size_changes_gives_nothing_more(changes: dict[str, object]) -> None:
    found = facts_of(status(**changes), JOB, 1)
    assert found is not None and not found.may_shrink


def test_starting_jobs_are_marked_and_ended_jobs_give_nothing() -> None:
    assert facts_of(status(state="starting", clock=0), JOB, 1) == Facts(False, {}, may_shrink=False, starting=True)
    assert facts_of(status(state="finished"), JOB, 1) is None


# ---- in parallel


class Answering:
    """Job masters of which some hang until they are released, and some do not answer."""

    def __init__(self) -> None:
        self.hanging: set[str] = set()
        self.asked: list[str] = []
        self.go = threading.Event()
        self.error: EpsError | None = None
        self.status = status()

    def __call__(self, application: Application) -> dict[str, Any]:
        """Answer with a status."""
        self.asked.append(application.application_id)
        if application.application_id in self.hanging:
            self.go.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return self.status


#: Longer than any test.
DEADLINE_S = 30.0


@pytest.fixture
def answering() -> Iterator[Answering]:
    made = Answering()
    yield made
    made.go.set()


def test_a_round_neither_waits_for_hanging_masters_nor_queries_them_again(answering: Answering) -> None:
    slow, quick = running(1, {}), running(2, {})
    answering.hanging = {slow.application_id}
    ask = AskedMasters(1, answering, round_s=0.2)
    for _ in range(3):
        assert ask.facts([slow, quick, waiting(3)]).keys() == {quick.application_id}
    assert answering.asked.count(slow.application_id) == 1 and len(set(answering.asked)) == 2
    answering.go.set()
    deadline_s = time.monotonic() + DEADLINE_S
    while ask.facts([slow, quick]).keys() != {slow.application_id, quick.application_id}:
        assert time.monotonic() < deadline_s
    ask.close()


def test_a_late_master_goes_last(answering: Answering) -> None:
    """All slots hang, so a master that answers is not queried in that round, and goes first in the next one."""
    hang = [running(number, {}) for number in range(1, AT_ONCE + 1)]
    late, quick = running(AT_ONCE + 1, {}), running(AT_ONCE + 2, {})
    answering.hanging = {job.application_id for job in hang}
    ask = AskedMasters(1, answering, round_s=0.2)
    assert not ask.facts([*hang, late])
    answering.go.set()
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := ask.facts([late, quick])):
        assert time.monotonic() < deadline_s
    assert quick.application_id in found
    assert answering.asked.index(quick.application_id) < answering.asked.index(late.application_id)
    ask.close()


def test_master_without_an_answer_or_a_status_is_unknown(answering: Answering) -> None:
    ask = AskedMasters(1, answering)
    answering.status = {"state": "running"}
    assert ask.facts([running(1, {})]) == {}
    answering.error = PeerUnavailableError("silent")
    assert ask.facts([running(1, {})]) == {}
    ask.close()
