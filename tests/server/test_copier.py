"""A server that copies for checkpoints: what it keeps, what it writes, what it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import pytest

from eps.core import messages as m
from eps.core import server_events as s
from eps.server.copier import CheckpointSink, Copier
from eps.server.partition_store import PartitionStore
from eps.storage.api import Storage, tell
from eps.storage.checkpoint import CheckpointStore, read_part
from eps.storage.locations import open_storage
from eps.system.waits import wait_for
from tests.fakes.storage import MemoryStorage
from tests.fakes.webhdfs import FakeHdfs

TIMEOUT_S = 10.0
ORDER = m.TakeCheckpoint(1, 5, 1)


class SlowStorage(MemoryStorage):
    """A storage that waits for the test before each file."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    @contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        self.begun.set()
        assert self.go.wait(TIMEOUT_S)
        with super().write(path) as file:
            yield file


@dataclass
class Partition:
    """One of a rig's."""

    rig: Rig
    number: int

    def snapshot(self) -> tuple[tuple[np.ndarray, ...], int]:
        self.rig.snapshots.append(self.number)
        if self.number in self.rig.too_large:
            raise MemoryError("no room for a copy")
        return (np.array([self.rig.values[self.number]], np.float32),), 4


class Rig:
    """A writer over three partitions of one value each."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.values = [10.0, 20.0, 30.0]
        self.snapshots: list[int] = []
        #: Copies that do not fit into memory.
        self.too_large: set[int] = set()
        self.reports: list[m.Report] = []
        self.lock = threading.Lock()
        self.partitions = cast(dict[int, PartitionStore], {number: Partition(self, number) for number in range(3)})
        self.writer = self.copier(self.reports.append)

    def copier(self, report: Callable[[m.Report], None]) -> Copier[m.TakeCheckpoint, s.TakeSnapshot]:
        self.store = CheckpointStore(self.storage)
        sink = CheckpointSink("server-1", self.store, report)
        return Copier("checkpoint", "server-1", sink, self.partitions, self.lock, report)

    def take(self, *partitions: int, checkpoint_id: int = 1) -> None:
        with self.lock:
            for partition in partitions:
                self.writer.take(s.TakeSnapshot(checkpoint_id, partition, s.Counters((5, 5), 10, 1)))

    def step(self, partition: int) -> None:
        """Change a partition like the server's shell."""
        with self.lock:
            self.writer.before_change(partition)
            self.values[partition] += 1.0

    def wait_for_reports(self, count: int) -> list[m.Report]:
        wait_for(lambda: len(self.reports) >= count, TIMEOUT_S, f"{count} reports")
        return self.reports

    def written(self, report: m.Report, checkpoint: str = "0001-00000005") -> float:
        assert isinstance(report, m.CheckpointPartWritten)
        path = f"{checkpoint}.partial/{report.file}"
        return float(read_part(self.storage, path, report.size_bytes, report.checksum)[0][0])


@pytest.fixture
def slow() -> Iterator[Rig]:
    storage = SlowStorage()
    rig = Rig(storage)
    yield rig
    storage.go.set()
    rig.writer.close()


def release(rig: Rig) -> None:
    assert isinstance(rig.storage, SlowStorage)
    rig.storage.go.set()


def test_partitions_are_written_as_they_were_whatever_changes_them_meanwhile(slow: Rig) -> None:
    slow.writer.order(ORDER)
    slow.take(0, 1, 2)
    assert isinstance(slow.storage, SlowStorage) and slow.storage.begun.wait(TIMEOUT_S)
    # One is copied and being written; one is about to change; the third lies as it is.
    assert slow.snapshots == [0]
    for _ in range(2):
        slow.step(0)
        slow.step(1)
    assert slow.snapshots == [0, 1]
    release(slow)
    reports = slow.wait_for_reports(3)
    assert sorted(slow.written(report) for report in reports) == [10.0, 20.0, 30.0]
    assert slow.snapshots == [0, 1, 2]
    first = reports[0]
    assert isinstance(first, m.CheckpointPartWritten)
    assert (first.name, first.next_clock, first.applied, first.duplicates_refused) == ("server-1", (5, 5), 10, 1)


def test_what_is_being_written_is_waited_for_at_the_end_and_nothing_else_is_begun(slow: Rig) -> None:
    slow.writer.order(ORDER)
    slow.take(0, 1)
    assert isinstance(slow.storage, SlowStorage) and slow.storage.begun.wait(TIMEOUT_S)
    closing = threading.Thread(target=slow.writer.close, args=(TIMEOUT_S,))
    closing.start()
    wait_for(lambda: slow.writer._closed, TIMEOUT_S, "the end")
    release(slow)
    closing.join(TIMEOUT_S)
    assert [slow.written(report) for report in slow.reports] == [10.0]


def test_a_datanode_that_is_waited_for_is_asked_for_nothing_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hdfs")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    with FakeHdfs(datanodes=0) as fake:
        storage = open_storage(f"webhdfs://{fake.authority}/c", patience_s=100 * TIMEOUT_S)
        rig = Rig(storage)
        rig.writer.order(ORDER)
        rig.take(0, 1)
        assert isinstance(rig.wait_for_reports(1)[0], m.CheckpointPartWaits)
        rig.writer.close(TIMEOUT_S)
        assert rig.writer._thread is not None and not rig.writer._thread.is_alive()
        failed = rig.reports[-1]
        assert isinstance(failed, m.CheckpointPartFailed) and "the server is ending" in failed.message


def test_an_order_that_comes_again_is_answered_again(slow: Rig) -> None:
    release(slow)
    slow.writer.order(ORDER)
    slow.take(0)
    slow.writer.skip(s.SkipSnapshot(1, 1, "it was late"))
    before = list(slow.wait_for_reports(2))
    slow.writer.order(ORDER)
    assert sorted(map(str, slow.reports[2:])) == sorted(map(str, before))
    assert slow.reports.count(m.CheckpointPartFailed("server-1", 1, 1, "it was late", late=True)) == 2


def test_a_full_device_is_reported_and_the_next_checkpoint_is_written(slow: Rig) -> None:
    release(slow)
    slow.storage.room_bytes = 10
    slow.writer.order(ORDER)
    slow.take(0)
    (failed,) = slow.wait_for_reports(1)
    assert isinstance(failed, m.CheckpointPartFailed) and not failed.late
    assert "No space left" in failed.message and "000.server-1.part" in failed.message
    slow.step(0)
    slow.storage.room_bytes = None
    slow.writer.order(m.TakeCheckpoint(2, 9, 1))
    slow.take(0, checkpoint_id=2)
    assert slow.written(slow.wait_for_reports(2)[1], "0001-00000009") == 11.0


def test_what_the_store_waits_for_is_reported(slow: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    write_part = slow.store.write_part

    def waiting(*args: Any) -> tuple[int, str]:
        tell("hdfs://lake/w: cannot be written for now: why")
        return write_part(*args)

    monkeypatch.setattr(slow.store, "write_part", waiting)
    release(slow)
    slow.writer.order(ORDER)
    slow.take(2)
    told, report = slow.wait_for_reports(2)
    assert told == m.CheckpointPartWaits("server-1", 1, 2, "hdfs://lake/w: cannot be written for now: why")
    assert slow.written(report) == 30.0


def test_a_failure_frees_what_waits_and_a_later_order_forgets_an_earlier_one(slow: Rig) -> None:
    slow.writer.order(ORDER)
    slow.take(0, 1, 2)
    assert isinstance(slow.storage, SlowStorage) and slow.storage.begun.wait(TIMEOUT_S)
    slow.writer.order(m.TakeCheckpoint(2, 9, 1))
    slow.writer.order(ORDER)
    slow.step(1)
    assert slow.snapshots == [0]
    release(slow)
    # The write in progress belongs to an old checkpoint; the master ignores its outcome.
    assert len(slow.wait_for_reports(1)) == 1


def test_nothing_is_written_of_what_is_forgotten(slow: Rig) -> None:
    slow.writer.order(ORDER)
    slow.take(0, 1)
    assert isinstance(slow.storage, SlowStorage) and slow.storage.begun.wait(TIMEOUT_S)
    slow.writer.forget()
    release(slow)
    assert len(slow.wait_for_reports(1)) == 1 and slow.snapshots == [0]


def no_room(partition: int, checkpoint_id: int = 1) -> m.CheckpointPartFailed:
    return m.CheckpointPartFailed("server-1", checkpoint_id, partition, "MemoryError: no room for a copy", late=False)


def test_partition_that_cannot_be_copied_is_reported_and_the_next_checkpoint_is_written(slow: Rig) -> None:
    release(slow)
    slow.too_large = {0}
    slow.writer.order(ORDER)
    slow.take(0)
    assert slow.wait_for_reports(1) == [no_room(0)]
    slow.too_large = set()
    slow.writer.order(m.TakeCheckpoint(2, 9, 1))
    slow.take(0, checkpoint_id=2)
    assert slow.written(slow.wait_for_reports(2)[1], "0001-00000009") == 10.0


def test_training_goes_on_where_a_copy_that_it_would_change_cannot_be_made(slow: Rig) -> None:
    slow.writer.order(ORDER)
    slow.take(0, 1, 2)
    assert isinstance(slow.storage, SlowStorage) and slow.storage.begun.wait(TIMEOUT_S)
    slow.too_large = {1}
    slow.step(1)
    slow.step(2)
    assert slow.values == [10.0, 21.0, 31.0]
    # The checkpoint has failed: nothing of it waits any more, and the order that comes again is answered.
    assert slow.reports == [no_room(1)] and slow.snapshots == [0, 1]
    slow.writer.order(ORDER)
    assert slow.reports == [no_room(1), no_room(1)]
    release(slow)
    assert slow.wait_for_reports(3)[2].partition == 0  # type: ignore[union-attr]


def test_writer_whose_thread_cannot_be_started_says_so_and_tries_again(
    slow: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(slow)

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    slow.writer.order(ORDER)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        slow.take(0)
    failed = m.CheckpointPartFailed("server-1", 1, 0, "RuntimeError: can't start new thread", late=False)
    assert slow.reports == [failed]
    slow.writer.order(m.TakeCheckpoint(2, 9, 1))
    slow.take(0, checkpoint_id=2)
    assert slow.written(slow.wait_for_reports(2)[1], "0001-00000009") == 10.0


def test_writer_goes_on_after_a_report_that_could_not_be_made() -> None:
    failing = [True]

    def report(said: m.Report) -> None:
        if failing.pop():
            raise MemoryError("no room for a report")
        failing.append(False)
        rig.reports.append(said)

    rig = Rig(MemoryStorage())
    rig.writer = rig.copier(report)
    rig.writer.order(ORDER)
    rig.take(0)
    wait_for(lambda: not failing, TIMEOUT_S, "a report that could not be made")
    failing.append(False)
    rig.take(1)
    assert rig.written(rig.wait_for_reports(1)[0]) == 20.0
    rig.writer.close()
