"""A live job over a fake job that the test controls."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from eps.errors import JobFinishedError, JobNotFoundError, PlanError
from eps.job.master_link import Progress
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.record import End
from hscheduler.core import events as e
from hscheduler.core.resources import Container, Role
from hscheduler.live import job as live
from hscheduler.live.job_state import Seat
from tests.hscheduler.toy import UNIT

TIMEOUT_S = 30.0
MEMBERS = {"c1": "worker-1", "c2": "worker-2", "c3": "server-1"}
SEATS = {"c1": Seat("worker-1", Role.WORKER), "c2": Seat("worker-2", Role.WORKER), "c3": Seat("server-1", Role.SERVER)}


def told_of(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the members of a job's status; a member's name begins with its role."""
    return [{"name": name, "role": name.split("-")[0]} for name in names]


class FakeJob:
    """Fake of ``eps.job.client.Job``; every ``find`` returns the same job."""

    def __init__(self) -> None:
        self.news: SimpleQueue[Progress | None] = SimpleQueue()
        self.changes: list[tuple[str, Any]] = []
        self.refuse: dict[str, list[Exception]] = {}
        self.holds_up: threading.Event | None = None
        self.entered = threading.Event()
        self.killed = threading.Event()
        self.waited = threading.Event()
        self.killed_because = ""
        self.report = {"state": "finished", "reason": "", "history": [], "changes": []}
        self.names = ["worker-1", "worker-2", "server-1"]
        self.committed_clock = 0
        self.cancelled: set[int] = set()
        self.is_committed = False
        self.started: list[RunRequest] = []
        self.resumed: list[tuple[int, int]] = []
        self.request_ids: list[str] = []
        self.watched_after: list[int] = []
        self.is_missing = False
        self.running = True
        nowhere = Path("/nonexistent")
        self.directory = SimpleNamespace(
            ended=lambda: None if self.running or not self.outcome else End(**self.outcome),
            report=nowhere / "report.json",
            is_on_yarn=lambda: False,
        )
        self.outcome: dict[str, Any] = {}

    # Class methods that LiveJob calls.
    def start_request(self, request: RunRequest, *, detach: bool, warm: None) -> FakeJob:
        self.started.append(request)
        self.is_missing = False
        self.tell("running")
        return self

    def resume(self, name: str, workers: int, servers: int, *, detach: bool, warm: None) -> FakeJob:
        self.resumed.append((workers, servers))
        self.running = True
        self.killed.clear()
        self.news = SimpleQueue()
        self.tell("running")
        return self

    def find(self, name: str) -> FakeJob:
        if self.is_missing:
            raise JobNotFoundError(f"there is no job {name}")
        return self

    # Methods that LiveJob calls.
    def change(self, operation: str, what: Any, *, wait: bool, request_id: str, manager: str) -> dict[str, Any]:
        assert not wait
        self.changes.append((str(operation), what))
        self.request_ids.append(request_id)
        self.entered.set()
        for error in self.refuse.get(str(operation), [])[:1]:
            self.refuse[str(operation)].pop(0)
            raise error
        return {"plan_id": len(self.changes), "phase": "queued"}

    def plan(self, plan_id: int, wait_s: float) -> dict[str, Any]:
        operation, what = self.changes[plan_id - 1]
        found = {"plan_id": plan_id, "operation": operation, "committed_clock": self.committed_clock, "reason": ""}
        if self.holds_up is not None and not self.holds_up.wait(wait_s):
            return {**found, "phase": "proposed"}
        if self.killed.is_set():
            raise JobFinishedError("it has ended")
        if plan_id in self.cancelled:
            return {**found, "phase": "aborted", "reason": "cancelled"}
        kind = operation.split("-")[1].rstrip("s")
        added = [f"{kind}-{10 + k}" for k in range(what)] if isinstance(what, int) else []
        return {**found, "phase": "released", "added": added}

    def cancel(self, plan_id: int) -> None:
        if self.is_committed:
            raise PlanError("the plan is committed")
        self.cancelled.add(plan_id)
        if self.holds_up is not None:
            self.holds_up.set()

    def status(self) -> dict[str, Any]:
        return {"members": told_of(self.names)}

    def watch(self, after_clock: int) -> Iterator[Progress]:
        self.watched_after.append(after_clock)
        while (progress := self.news.get(timeout=TIMEOUT_S)) is not None:
            yield progress

    def wait(self, timeout_s: float) -> dict[str, Any]:
        self.waited.set()
        return self.report

    def kill(self, why: str, timeout_s: float) -> None:
        if not self.killed.is_set():
            self.killed_because = why
            self.report = {**self.report, "state": "killed", "reason": why}
            self.killed.set()
            self.news.put(None)
            if self.holds_up is not None:
                self.holds_up.set()

    def kill_at_once(self) -> None:
        self.kill("at once", 0.0)

    def close(self) -> None:
        pass

    # Methods for tests.
    def tell(self, state: str, *history: dict[str, Any]) -> None:
        self.news.put(Progress({"state": state, "members": told_of(self.names)}, history))

    def finish(self) -> None:
        self.killed.set()
        self.news.put(None)


class Watched:
    """A live job and the events that it reports."""

    def __init__(self, fake: FakeJob, metric: str = "loss") -> None:
        self.fake = fake
        self.said: SimpleQueue[e.Event] = SimpleQueue()
        self.job = live.LiveJob("a", live.Launch("sweep-a", JobSpec(workers=2, servers=1)), metric, 10, self.said.put)
        self.given = 0
        self.members: dict[str, str] = {}

    def obey(self, order: e.Order, number: int = 0) -> None:
        """Give the job an order, with the next number or with that of an earlier order."""
        self.given += 1
        self.job.obey(number or self.given, order)

    def next(self, kind: type) -> Any:
        """Return the next event except MembersFound; it must be of a type."""
        while isinstance(event := self.said.get(timeout=TIMEOUT_S), e.MembersFound):
            self.members = dict(event.members)
        assert isinstance(event, kind), event
        return event

    def start(self) -> None:
        self.obey(e.StartJob("a", containers(("c1", "w"), ("c2", "w"), ("c3", "s")), False))
        self.next(e.JobStarted)

    def silent(self) -> bool:
        try:
            while isinstance(self.said.get_nowait(), e.MembersFound):
                pass
        except Empty:
            return True
        return False


def containers(*places: tuple[str, str]) -> tuple[Container, ...]:
    roles = {"w": Role.WORKER, "s": Role.SERVER}
    return tuple(Container(name, "a", roles[role], UNIT, "node") for name, role in places)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    fake = FakeJob()
    monkeypatch.setattr(
        live, "Job", SimpleNamespace(start_request=fake.start_request, resume=fake.resume, find=fake.find)
    )
    found = Watched(fake)
    yield found
    found.job.close()
    assert not found.job.is_alive


def entries(first: int, count: int, each_s: float, begin_s: float = 0.0) -> list[dict[str, Any]]:
    return [{"clock": first + k, "loss": 1.0, "seconds": begin_s + each_s * (k + 1)} for k in range(count)]
