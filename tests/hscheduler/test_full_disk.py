"""A record that cannot be written for a while: events have no effect before they are written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eps.errors import ResourceError
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live import recorder
from hscheduler.live.inbox import Inbox
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.record.ended_jobs import Database
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
from tests.hscheduler.toy import nodes, request
from tests.hscheduler.world import World

TIMEOUT_S = 10.0


class Disk:
    """A disk that is full, or reports it only when a write is made durable."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self.is_full = self.fails_to_sync = False

        transaction = Database.transaction

        @contextmanager
        def full(database: Database, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
            with transaction(database, durable=durable) as connection:
                yield connection
                if self.is_full or (durable and self.fails_to_sync):
                    self.refused += 1
                    raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(Database, "transaction", full)

    def refuses_again(self) -> None:
        """Wait for two more failed writes."""
        before = self.refused
        wait_for(lambda: self.refused > before + 1, TIMEOUT_S, "the next try")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(recorder, "_RETRY_S", 0.02)
    return Disk(monkeypatch)


def scheduler_of(directory: Path) -> LiveScheduler:
    return LiveScheduler(nodes(1), LiveSettings(), record=SqliteRecord(directory / "record.sqlite"))


@pytest.fixture
def scheduler(world: World, disk: Disk, tmp_path: Path) -> Iterator[LiveScheduler]:
    scheduler = scheduler_of(tmp_path)
    scheduler.submit(e.JobSubmitted(request("t1", most_workers=2, most_servers=1)), JobSpec())
    scheduler.settle(TIMEOUT_S)
    # The events of its start come later.
    scheduler.settle(TIMEOUT_S)
    yield scheduler
    scheduler.close()


@pytest.mark.parametrize("fault", ("is_full", "fails_to_sync"))
def test_events_wait_while_the_disk_is_full(
    fault: str, scheduler: LiveScheduler, disk: Disk, world: World, tmp_path: Path
) -> None:
    # Progress that no decision depends on is written late; it survives a failed write.
    for number in range(8):
        scheduler._events.put(e.Iterated("t1", 1 + number, (0.25,)))
    scheduler.settle(TIMEOUT_S)
    setattr(disk, fault, True)
    scheduler.cancel("t1", "enough")
    disk.refuses_again()
    with pytest.raises(ResourceError, match=r"disk is full.*running jobs continue"):
        scheduler.settle(TIMEOUT_S)
    with pytest.raises(ResourceError, match="retry once the record can be written"):
        scheduler.check_room()
    # Events that were not written had no effect.
    assert scheduler.state.jobs["t1"].phase is Phase.EARLY_FEEDBACK and world.jobs["t1"].ended is None
    scheduler.check()
    setattr(disk, fault, False)
    submission = scheduler.look_ups.submission("t1")
    assert submission is not None and submission.wait(TIMEOUT_S)
    scheduler.settle(TIMEOUT_S)
    scheduler.check_room()
    scheduler.submit(e.JobSubmitted(request("t2")), JobSpec())
    scheduler.settle(TIMEOUT_S)
    scheduler.close(leave=True)
    again = scheduler_of(tmp_path)
    assert again.state.jobs["t1"].phase is Phase.KILLED and again.state.jobs["t2"].phase.runs
    assert again.registry.timeline.trials["t1"].speeds == {(2, 1): (8, 2.0)}
    again.close()


def test_waiting_events_are_bounded_and_none_is_lost(
    scheduler: LiveScheduler, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.is_full = True
    scheduler._events.put(e.Iterated("t1", 1, (0.5,), ((0.0, 1, 1.0),)))
    disk.refuses_again()
    for iteration in range(2, 3_001):
        scheduler._events.put(e.Iterated("t1", iteration, (iteration / 1e4,), ((0.0, iteration, 1 / iteration),)))
        if iteration == 100:
            scheduler._events.put(e.FeedbackGiven("t1", 0.25))
        if iteration % 10 == 0:
            # The same for every call.
            with pytest.raises(ResourceError, match="only the latest is kept"):
                scheduler.settle(TIMEOUT_S)
    scheduler.close_sweep("sweep", "enough")
    scheduler._events.put(e.JobEnded("t1", Phase.FINISHED, loss=0.5))
    wait_for(lambda: len(scheduler._events) <= 5, TIMEOUT_S, "the events to be merged")
    # Queued: its progress before its feedback, the feedback, its progress after it, the sweep's end, and the job's.
    assert len(scheduler._events) <= 5
    disk.is_full = False
    submission = scheduler.look_ups.submission("t1")
    assert submission is not None and submission.wait(TIMEOUT_S)
    scheduler.settle(TIMEOUT_S)
    assert sum("events wait, and EPS retries" in record.message for record in caplog.records) == 1
    trial = scheduler.registry.timeline.trials["t1"]
    assert (submission.phase, submission.loss, trial.feedback, trial.iteration) == (Phase.FINISHED, 0.5, 0.25, 3_000)
    losses = [(iteration, loss) for _, iteration, loss in trial.curve.points()]
    assert losses[0] == (1, 1.0) and losses[-1] == (3_000, 1 / 3_000) and 20 < len(losses) <= 101
    assert all(loss == 1 / iteration for iteration, loss in losses)
    scheduler.close(leave=True)
    again = scheduler_of(tmp_path)
    assert again.state.jobs["t1"].phase is Phase.FINISHED and again.state.jobs["t1"].iteration == 3_000
    assert again.registry.closed == {"sweep": "enough"}
    again.close()


def test_events_of_a_job_keep_their_order_when_some_are_merged() -> None:
    now_s = [0.0]
    inbox = Inbox(lambda: now_s[0])
    called: list[str] = []
    for at_s, item in enumerate(
        [
            e.Iterated("a", 1, (0.1,) * 8, ((0.5, 1, 3.0),)),
            e.Iterated("b", 7, (0.7,)),
            e.Iterated("a", 2, (0.2,) * 8, ((0.25, 2, 2.0),)),
            e.GrowthDone("a", (("c1", "worker-1"),)),
            e.Iterated("a", 3, (0.3,)),
            lambda: called.append("asked"),
            e.CancelAsked("b", "enough"),
            e.Iterated("b", 8, (0.8,)),
            e.Iterated("a", 4, (0.4,)),
            e.CancelAsked("a", "enough"),
            None,
        ]
    ):
        now_s[0] = float(at_s)
        inbox.put(item)
    now_s[0] = 10.0
    found = []
    while len(inbox):
        item = inbox.get()
        if callable(item):
            item()
        found.append("asked" if callable(item) else item)
    assert found == [
        # Losses keep the time of their report while they wait.
        e.Iterated("a", 2, (0.1,) * 2 + (0.2,) * 8, ((10.5, 1, 3.0), (8.25, 2, 2.0))),
        e.Iterated("b", 7, (0.7,)),
        e.GrowthDone("a", (("c1", "worker-1"),)),
        e.Iterated("a", 4, (0.3, 0.4)),
        "asked",
        e.CancelAsked("b", "enough"),
        e.Iterated("b", 8, (0.8,)),
        e.CancelAsked("a", "enough"),
        None,
    ]
    assert called == ["asked"]


def test_a_scheduler_can_be_left_while_the_disk_is_full(
    scheduler: LiveScheduler, disk: Disk, world: World, tmp_path: Path
) -> None:
    disk.is_full = True
    scheduler.cancel("t1", "enough")
    disk.refuses_again()
    scheduler.close(leave=True)
    disk.is_full = False
    again = scheduler_of(tmp_path)
    assert again.state.jobs["t1"].phase is Phase.EARLY_FEEDBACK, "it was never written"
    again.close()


def test_a_service_refuses_new_jobs_while_the_disk_is_full(world: World, disk: Disk, tmp_path: Path) -> None:
    directory = ServiceDir(tmp_path / "service")
    with Service(directory, ServiceSettings(nodes=2)) as service, SchedulerClient(directory) as client:
        client.submit_job("t1", JobSpec())
        disk.is_full = True
        service.scheduler._events.put(e.FeedbackGiven("t1", 0.5))
        disk.refuses_again()
        with pytest.raises(ResourceError, match="disk is full"):
            client.submit_job("t2", JobSpec())
        with pytest.raises(ResourceError, match="disk is full"):
            client.run_sweep({"sweep": {"trials": 1, "algorithm": "random"}}, "s")
        with pytest.raises(ResourceError, match="disk is full"):
            client.open_sweep(e.SweepOpened("mine"))
        # Questions are answered meanwhile.
        assert [job["job_id"] for job in client.jobs()[0]] == ["t1"]
        assert client.job("t1")["phase"] == "early feedback"
        disk.is_full = False
        wait_for(lambda: client.job("t1")["phase"] == "training", TIMEOUT_S, "what was told meanwhile")
        assert client.submit_job("t2", JobSpec()).job_id == "t2"
        client.cancel("t2", "enough")
