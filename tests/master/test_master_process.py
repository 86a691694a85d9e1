"""A job master in this process, with a resource manager that only listens."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eps.cluster.api import ContainerEvent, ContainerRequest
from eps.core import events as e
from eps.core.checkpoints import ExportPhase
from eps.core.events import JobState
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.size import Borrower
from eps.core.types import Address, Role
from eps.errors import ConfigError, PlanError, StorageError
from eps.job.status import ended_status
from eps.master import export, main
from eps.master.export import Exported
from eps.master.main import Master
from eps.master.records import Ledger
from eps.master.resources import Pulse
from eps.master.service import MOST_REASON, Announcements
from eps.master.state_log import StateLog
from eps.pb import control_pb2 as pb
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime
from eps.storage import atomic
from eps.storage.api import Storage, tell
from eps.storage.atomic import read_json
from eps.storage.checkpoint import CheckpointStore
from eps.storage.hdfs import HdfsStorage
from eps.storage.jobdir import JobDir
from eps.storage.local import LocalStorage
from eps.storage.wal import EventLog
from eps.system.waits import wait_for
from tests.fakes.resources import FakeResourceManager
from tests.fakes.storage import put
from tests.fakes.webhdfs import FakeHdfs
from tests.storage.hdfs_world import fake as fake
from tests.storage.hdfs_world import storage as storage

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

    def is_exporting(self, number: int = 1) -> None:
        """Let the job be trained, and wait for the export of that number."""
        state = self.master._job.state
        state.members.membership, state.state = MEMBERSHIP, JobState.EXPORTING
        state.export._number, state.export._phase = number, ExportPhase.RUNNING

    def said(self) -> e.Event | None:
        """Return the next event that the job master has not heard of; None where there is none."""
        try:
            return self.master.events._queue.get_nowait()
        except queue.Empty:
            return None

    def wait_for_beats(self) -> None:
        """Return when the supervisor has heard twice of the master from now on."""
        heard = len(self.resources.beats)
        wait_for(lambda: len(self.resources.beats) >= heard + 2, TIMEOUT_S, "two beats of the job master")

    def close(self) -> None:
        # The thread that listens to the resource manager ends with the last container.
        if self.resources.ended is not None and not self.resources.gone:
            wait_for(lambda: not self.master._containers, TIMEOUT_S, "the end of the containers")
        self.master._job.log.close()
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
    rig.master.events.put(e.KillRequested("enough"))
    assert rig.master.run() == 1
    assert waited == [slow]
    assert read_json(rig.directory.report)["state"] == "killed"


@pytest.mark.parametrize("slow", ["status", "log"])
def test_job_on_a_disk_that_stalls_beats_while_it_waits(rig: Rig, slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is synced: a write waits, too, for a disk that has no room for what is to be written later."""
    waited: list[str] = []

    def stalls() -> None:
        if not waited:
            waited.append(slow)
            rig.wait_for_beats()

    def atomic_writer(path: Path, **options: Any) -> Any:
        if path == rig.directory.status_json:
            stalls()
        return write_atomic(path, **options)

    def record(log: StateLog, event: e.Event, now_s: float) -> None:
        stalls()
        log_event(log, event, now_s)

    write_atomic, log_event = atomic.atomic_writer, StateLog.record
    patches: dict[str, tuple[Any, str, Any]] = {
        "status": (atomic, "atomic_writer", atomic_writer),
        "log": (StateLog, "record", record),
    }
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(*patches[slow])
    rig.master.events.put(e.ContainerExited("container-0001", "gone"), e.KillRequested("enough"))
    assert rig.master.run() == 1
    assert waited == [slow]


def test_beats_do_not_wait_behind_the_commands_of_one_event(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []
    request = rig.resources.request

    def takes_long(what: ContainerRequest) -> None:
        requested.append(what.container_id)
        wait_for(lambda: len(rig.resources.beats) >= len(requested), TIMEOUT_S, "a beat for this command")
        request(what)

    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(rig.resources, "request", takes_long)
    rig.master.events.put(e.KillRequested("enough"))
    assert rig.master.run() == 1
    assert requested == ["container-0001", "container-0002"]


def test_nothing_beats_for_an_owner_thread_that_hangs() -> None:
    beats: list[None] = []

    def looks(pulse: Pulse) -> int:
        before = len(beats)
        for _ in range(3):
            pulse.look()
        return len(beats) - before

    pulse = Pulse(lambda: beats.append(None), 1.0)
    pulse.look()
    assert looks(pulse) == 0
    pulse.note()
    assert looks(pulse) == 1
    with pulse.patience(TIMEOUT_S):
        assert looks(pulse) == 3
    assert looks(pulse) == 1
    with pulse.patience(0.0):
        assert looks(pulse) == 0


def test_supervisor_hears_at_once_how_far_the_job_of_a_new_master_is() -> None:
    """One that is killed within its first half second does not count as one that brought the job no further."""
    beats: list[None] = []
    pulse = Pulse(lambda: beats.append(None), 3600.0)
    pulse.start()
    wait_for(lambda: bool(beats), TIMEOUT_S, "the first beat")
    pulse.stop()
    assert len(beats) == 1


def test_seconds_of_a_job_that_has_ended_go_on_where_those_of_the_running_one_were(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time until its first iteration counts in both."""
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(rig.master._job, "_started_s", rig.master._job._started_s - 60.0)
    before_s = rig.master.status()["elapsed_s"]
    rig.master.events.put(e.KillRequested("enough"))
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


def test_job_ends_where_its_resource_manager_fails_in_a_way_that_nobody_foresaw(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> list[ContainerEvent]:
        raise KeyError("State")

    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(rig.resources, "poll", fails)
    # Else a master that hears of no container any more would run for ever.
    deadline = threading.Timer(TIMEOUT_S, rig.master.events.put, [e.KillRequested("nothing was noticed")])
    deadline.start()
    assert rig.master.run() == 1
    deadline.cancel()
    # Nobody hears of their end any more.
    rig.master._containers._there.clear()
    report = read_json(rig.directory.report)
    assert report["state"] == "failed" and "KeyError: 'State'" in report["reason"]


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("AddWorkers", pb.AddRequest(count=10**9, request_id="r")),
        ("AddServers", pb.AddRequest(count=0, request_id="r")),
        ("AddServers", pb.AddRequest(count=1)),
        ("AddWorkers", pb.AddRequest(count=1, request_id="x" * 10_000)),
        ("RemoveWorkers", pb.RemoveRequest(count=2**32 - 1, dry_run=True)),
        ("RemoveServers", pb.RemoveRequest(names=["server-1", "x" * 10_000], request_id="r")),
        ("RemoveWorkers", pb.RemoveRequest(names=[f"worker-{n}" for n in range(1, 10_002)], request_id="r")),
    ],
)
def test_request_that_no_job_can_fulfil_is_refused_before_it_is_logged(
    rig: Rig, method: str, request_of: pb.AddRequest | pb.RemoveRequest
) -> None:
    with pytest.raises((ConfigError, PlanError)):
        getattr(rig.master._endpoint.service, method)(request_of, None)
    assert rig.said() is None


def test_master_of_a_job_that_has_ended_tells_of_no_progress(rig: Rig) -> None:
    """Else masters that die one after the other while they write the report would be started again for ever."""
    rig.master._beat()
    rig.master._ended = e.EndJob(JobState.FINISHED, "")
    rig.master._beat()
    assert len(set(rig.resources.beats)) == 1


def test_master_beats_the_clock_and_beside_it_what_also_changes_with_the_size(rig: Rig) -> None:
    state = rig.master._job.state
    state.progress.completed = 3
    state.members.memberships = [MEMBERSHIP] * 5
    rig.master._beat()
    before = rig.resources.beats[-1]
    state.members.memberships = [MEMBERSHIP] * 6
    rig.master._beat()
    assert rig.resources.clock == 3 and rig.resources.beats[-1] != before


def test_reason_to_end_a_job_is_kept_in_part(rig: Rig) -> None:
    rig.master._endpoint.service.Kill(pb.KillRequest(reason="x" * 100_000), None)
    said = rig.said()
    assert isinstance(said, e.KillRequested) and said.reason == "x" * MOST_REASON


def test_container_of_a_member_that_nobody_can_reach_is_killed(rig: Rig) -> None:
    """Of one that was only given back, a resource manager does not ask whether its machine is lost."""
    rig.master._execute(rig.master._job.first_commands)
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
    rig.master._job.log.close()
    with monkeypatch.context() as disk:
        disk.setattr(EventLog, "append", lambda log, record: log._give_up("the disk is away"))
        disk.setattr(EventLog, "_mark_gap", lambda log: None)
        lost, resources = rig.next_master(store)
        lost.events.put(e.KillRequested("enough"))
        lost.run()
    again, more = rig.next_master(store)
    again._job.log.close()
    for each in (resources, more):
        each.close()

    assert "the disk is away" in lost.status()["storage_error"]
    assert [each.status()["generation"] for each in (rig.master, lost, again)] == [1, 2, 3]


def test_master_that_takes_over_asks_for_the_containers_that_its_log_has_seen_running(rig: Rig) -> None:
    assert rig.resources.known == {}
    rig.master._job.step(e.ContainerLaunched("container-0001", 17))
    again, resources = rig.next_master(None)
    again._job.log.close()
    resources.close()
    assert resources.known == {"container-0001": 17}


@pytest.mark.parametrize("shared", [False, True])
def test_generation_of_a_first_master_that_could_log_nothing_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    store = LocalStorage(tmp_path / "shared") if shared else None
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    with monkeypatch.context() as disk:
        disk.setattr(StateLog, "begin", lambda log, state, now_s: log._fail("the disk is away", now_s))
        rig = Rig(tmp_path)
        lost, resources = rig.next_master(store)
        lost.events.put(e.KillRequested("enough"))
        lost.run()
    again, more = rig.next_master(store)
    for each in (rig.master, again):
        each._job.log.close()
    for listening in (rig.resources, resources, more):
        listening.close()

    assert "the disk is away" in lost.status()["storage_error"]
    assert [each.status()["generation"] for each in (lost, again)] == [1, 2]


def found(digest: str) -> Exported:
    return Exported(digest, Ledger(), {})


def done(digest: str, number: int) -> e.ExportDone:
    return e.ExportDone(dataclasses.asdict(found(digest)), number)


def test_export_of_what_was_before_a_job_went_back_never_overwrites_the_one_that_counts(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = rig.master._job.state
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def made(*details: Any) -> Exported:
        name = threading.current_thread().name
        begun.set()
        assert name != "first" or go_on.wait(TIMEOUT_S)
        written.append(name)
        return found(name)

    monkeypatch.setattr(export, "export", made)
    rig.is_exporting()
    threads = [
        threading.Thread(target=rig.master._exporter.export, args=(number,), name=name)
        for number, name in ((1, "first"), (2, "second"), (3, "third"))
    ]
    threads[0].start()
    assert begun.wait(TIMEOUT_S)
    # The job has gone back and come to its end twice, while the first one still writes.
    state.members.membership = dataclasses.replace(MEMBERSHIP, incarnation=1)
    state.export._number = 3
    threads[2].start()
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert written == ["first", "third"]
    # Nobody waits for the first one any more.
    assert [rig.said() for _ in range(2)] == [done("third", 3), None]


def test_model_that_cannot_be_brought_is_brought_again_and_not_made_again_unless_the_job_went_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "hdfs://lake/model.npz: cannot be written for now: safe mode"
    made: list[int] = []
    told: list[str] = []

    def make(runtime: Runtime, membership: Membership, *_: Any) -> Exported:
        made.append(membership.incarnation)
        return found(str(membership.incarnation))

    def bring() -> None:
        told.append(rig.master.status()["storage_error"])
        if len(told) == 1:
            tell(why)
            raise StorageError(f"{why}; retried for 60 s")

    monkeypatch.setattr(export, "export", make)
    monkeypatch.setattr(rig.master._exporter, "_bring", bring)
    rig.is_exporting(1)
    rig.master._exporter.export(1)
    failed = rig.said()
    assert isinstance(failed, e.ExportFailed) and why in failed.message
    rig.is_exporting(2)
    rig.master._exporter.export(2)
    # While it is tried again what it waits for is still said.
    assert (told, rig.master.status()["storage_error"]) == (["", why], "")
    assert (made, rig.said()) == ([0], done("0", 2))
    rig.is_exporting(3)
    rig.master._job.state.members.membership = dataclasses.replace(MEMBERSHIP, incarnation=1)
    rig.master._exporter.export(3)
    assert (made, rig.said()) == ([0, 1], done("1", 3))


def test_job_that_is_killed_while_its_model_waits_for_hdfs_has_brought_nothing_when_hdfs_is_back(
    rig: Rig, fake: FakeHdfs, storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever attends to the job has removed by then what it has there."""
    fake.fault("MKDIRS", "error", name="SafeModeException", message="Name node is in safe mode.", left=1 << 30)
    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(export, "export", lambda *_: found(""))
    monkeypatch.setattr(rig.master._exporter, "_bring", lambda: put(storage, "results/model.npz", b"model"))
    end_job = rig.resources.end_job

    def hdfs_is_back(*words: Any) -> None:
        fake.faults.clear()
        end_job(*words)

    monkeypatch.setattr(rig.resources, "end_job", hdfs_is_back)
    rig.is_exporting()
    others = threading.enumerate()
    rig.master._exporter.start(1)
    (thread,) = [each for each in threading.enumerate() if each.name == "export" and each not in others]
    wait_for(lambda: "safe mode" in rig.master.status()["storage_error"], TIMEOUT_S, "what it waits for to be said")
    rig.master.events.put(e.KillRequested("enough"))
    assert rig.master.run() == 1
    thread.join(TIMEOUT_S)
    assert not thread.is_alive() and list(fake.nodes) == ["/"]
    assert read_json(rig.directory.report)["state"] == "killed" and not rig.master.status()["storage_error"]


def test_job_ends_when_what_a_datanode_was_asked_for_is_done(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    order: list[str] = []
    begun = threading.Event()
    end_job = rig.resources.end_job

    def bring() -> None:
        begun.set()
        wait_for(lambda: rig.master._ended is not None, TIMEOUT_S, "the job to be killed")
        rig.wait_for_beats()
        order.append("brought")

    def ends(*words: Any) -> None:
        order.append("ended")
        end_job(*words)

    monkeypatch.setattr(main, "FAREWELL_S", 0.0)
    monkeypatch.setattr(export, "export", lambda *_: found(""))
    monkeypatch.setattr(rig.master._exporter, "_bring", bring)
    monkeypatch.setattr(rig.resources, "end_job", ends)
    rig.is_exporting()
    rig.master._exporter.start(1)
    assert begun.wait(TIMEOUT_S)
    rig.master._exporter.close(0.0)
    assert "has not ended within 0 s" in caplog.text
    rig.master.events.put(e.KillRequested("enough"))
    assert rig.master.run() == 1
    assert order == ["brought", "ended"]


def test_job_that_made_room_for_others_hears_of_room_and_no_other_job_does(rig: Rig) -> None:
    master, state = rig.master, rig.master._job.state
    state.members.membership, state.state = MEMBERSHIP, JobState.RUNNING
    rig.resources.free_room = {"worker": 2, "server": 0}
    master._containers.look_for_room(state)
    assert master.events._queue.empty()
    state.size.lent[Borrower.OTHERS][Role.WORKER] = 1
    master._containers.look_for_room(state)
    assert master.events._queue.get_nowait() == e.RoomSeen({Role.WORKER: 2})
    rig.resources.free_room = {"worker": 0}
    master._containers.look_for_room(state)
    assert master.events._queue.empty()
