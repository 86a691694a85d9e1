"""A job master in this process, with a resource manager that only listens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.config import JobSpec
from eps.core import events as e
from eps.core.events import JobState
from eps.core.membership import Membership
from eps.core.tables import PartitionTable, SplitTable
from eps.core.types import Address, Role
from eps.ended import ended_status
from eps.master import main
from eps.master.export import Exported
from eps.master.main import Master
from eps.master.place import Announcements
from eps.master.records import Ledger
from eps.master.state_log import StateLog
from eps.master_link import wait_for
from eps.runtime import DataShape, Runtime
from eps.storage.api import Storage
from eps.storage.atomic import read_json
from eps.storage.checkpoint import CheckpointStore
from eps.storage.jobdir import JobDir
from eps.storage.local import LocalStorage
from eps.storage.wal import EventLog
from tests.fakes.resources import FakeResourceManager

TIMEOUT_S = 30.0
MEMBERSHIP = Membership(
    1,
    -1,
    ("worker-1",),
    ("server-1",),
    PartitionTable(("server-1",)),
    SplitTable.of(("worker-1",)),
    {"worker-1": Address("a", 1), "server-1": Address("b", 2)},
)


class Rig:
    """A job master of one worker and one server that never say anything."""

    def __init__(self, path: Path) -> None:
        settings = {"model": "linear", "optimizer": "sgd", "splits": 1, "partitions": 1, "iterations": 3}
        spec = JobSpec.from_dict({**settings, "workers": 1, "servers": 1, "member_timeout_s": 1.0})
        shape = DataShape(7, 1, (10,), sparse=False, test_rows=0, split_checksums=("",))
        self.directory = JobDir(path)
        self.resources = FakeResourceManager()
        self.master = Master(Runtime("job", spec, shape, path, path), self.directory, self.resources)

    def next_master(self, store: Storage | None) -> tuple[Master, FakeResourceManager]:
        """Return another one that takes over, which says in ``store``, too, where it listens."""
        announcements, resources = Announcements(self.directory, store), FakeResourceManager()
        return Master(self.master._runtime, self.directory, resources, announcements=announcements), resources

    def wait_for_beats(self) -> None:
        """Return when the supervisor has heard twice of the master from now on."""
        heard = len(self.resources.beats)
        wait_for(lambda: len(self.resources.beats) >= heard + 2, TIMEOUT_S, "two beats of the job master")

    def close(self) -> None:
        # The thread that listens to the resource manager ends with the last container.
        if self.resources.ended is not None and not self.resources.gone:
            wait_for(lambda: not self.master._containers, TIMEOUT_S, "the end of the containers")
        self.master._log.close()
        self.master._slow.shutdown()
        self.resources.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "job")
    yield made
    made.close()


@pytest.mark.parametrize("slow", ["checkpoints", "log"])
def test_job_that_ends_on_a_slow_disk_beats_while_it_waits(
    rig: Rig, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []
    kind, name = {"checkpoints": (CheckpointStore, "remove_leftovers"), "log": (StateLog, "close")}[slow]
    as_ever: Callable[..., None] = getattr(kind, name)

    def takes_long(*arguments: Any) -> None:
        if rig.master._ended is not None and not waited:
            waited.append(slow)
            rig.wait_for_beats()
        as_ever(*arguments)

    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(kind, name, takes_long)
    rig.master.put(e.KillRequested("enough"))
    assert rig.master.run() == 1
    assert waited == [slow]
    assert read_json(rig.directory.report)["state"] == "killed"


def test_seconds_of_a_job_that_has_ended_go_on_where_those_of_the_running_one_were(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time until its first iteration counts in both."""
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(rig.master, "_started_s", rig.master._started_s - 60.0)
    before_s = rig.master.status()["elapsed_s"]
    rig.master.put(e.KillRequested("enough"))
    assert rig.master.run() == 1
    assert before_s >= 60.0 and ended_status(rig.directory)["elapsed_s"] >= before_s


def test_job_whose_resource_manager_is_gone_for_good_fails_with_its_sentence(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    rig.resources.gone = "the engine has not answered for 300 s: start it"
    assert rig.master.run() == 1
    report = read_json(rig.directory.report)
    assert (report["state"], report["reason"]) == ("failed", rig.resources.gone)
    assert rig.resources.ended == (1, "failed", rig.resources.gone)


def test_container_of_a_member_that_nobody_can_reach_is_killed(rig: Rig) -> None:
    """Of one that was only given back, a resource manager does not ask whether its machine is lost."""
    rig.master._execute(rig.master._first_commands)
    worker, server = rig.resources.running
    rig.master._execute([e.KillContainer(server)])

    assert rig.resources.running == [worker] and not rig.resources.released


@pytest.mark.parametrize("shared", [False, True])
def test_generation_of_a_master_that_could_log_nothing_is_not_used_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    """Members that have heard of both could not tell which of the two is the later one."""
    store = LocalStorage(tmp_path / "shared") if shared else None
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    rig.master._log.close()
    with monkeypatch.context() as disk:
        disk.setattr(EventLog, "append", lambda log, record: log._give_up("the disk is away"))
        disk.setattr(EventLog, "_mark_gap", lambda log: None)
        lost, resources = rig.next_master(store)
        lost.put(e.KillRequested("enough"))
        lost.run()
    again, more = rig.next_master(store)
    again._log.close()
    again._slow.shutdown()
    for each in (resources, more):
        each.close()

    assert "the disk is away" in lost.status()["storage_error"]
    assert [each.status()["generation"] for each in (rig.master, lost, again)] == [1, 2, 3]


def test_export_of_what_was_before_a_job_went_back_never_overwrites_the_one_that_counts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = rig.master._state
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def export(*details: Any) -> Exported:
        name = threading.current_thread().name
        begun.set()
        assert name != "first" or go_on.wait(TIMEOUT_S)
        written.append(name)
        return Exported(name, Ledger(), {})

    monkeypatch.setattr(main, "export", export)
    state.membership, state.state, state._export = MEMBERSHIP, JobState.EXPORTING, 1
    threads = [
        threading.Thread(target=rig.master._export, args=(number,), name=name)
        for number, name in ((1, "first"), (2, "second"), (3, "third"))
    ]
    threads[0].start()
    assert begun.wait(TIMEOUT_S)
    # The job has gone back and come to its end twice, while the first one still writes.
    state._export = 3
    threads[2].start()
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert written == ["first", "third"]
    said = [rig.master._events.get_nowait() for _ in written]
    assert [(event.number, event.found["model_sha256"]) for event in said] == [(1, "first"), (3, "third")]  # type: ignore[union-attr,index]


def test_job_that_made_room_for_others_hears_of_room_and_no_other_job_does(rig: Rig) -> None:
    master, state = rig.master, rig.master._state
    state.membership, state.state = MEMBERSHIP, JobState.RUNNING
    rig.resources.free_room = {"worker": 2, "server": 0}
    master._look_for_room()
    assert master._events.empty()
    state.given[Role.WORKER] = 1
    master._look_for_room()
    assert master._events.get_nowait() == e.RoomSeen({Role.WORKER: 2})
    rig.resources.free_room = {"worker": 0}
    master._look_for_room()
    assert master._events.empty()
