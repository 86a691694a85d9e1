"""What every record of a scheduler does; an implementation is done when it passes."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, get_args

import pytest

from eps.cluster.yarn.log_storage import HadoopLogStorage
from eps.errors import StorageError
from hscheduler.core import codec
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, JobRequest, Phase
from hscheduler.core.resources import Resources
from hscheduler.core.rungs import Stopping
from hscheduler.core.timeline import DecisionRecord, TrialRecord
from hscheduler.record import api
from hscheduler.record.api import Entry, Header, SchedulerRecord, entry_of, entry_text
from hscheduler.record.ended_jobs import EndedJob
from hscheduler.record.log import LogRecord
from hscheduler.record.sqlite import SqliteRecord
from tests.fakes.hadoop_files import FakeHadoopFiles
from tests.fakes.storage import LoggedStorage
from tests.storage.test_log_storage import files as files
from tests.storage.test_log_storage import hdfs as hdfs
from tests.storage.test_log_storage import store as store

HEADER = Header("elastic", 3, {"n": [4, 16384]}, None, 0.0, 100, "loss", "abc123", "boot", 1e3, {"on": "docker"})
UNIT = Resources(1, 1024)
REQUEST = JobRequest("a", "s", 2, 1, UNIT, UNIT, UNIT, 8, 8)
EVENTS: tuple[e.Event, ...] = (
    e.SweepOpened("s", Direction.MAXIMIZE, None, "accuracy", 10, Stopping("asha", 4, 10, 90), 27),
    e.LossDiverged("a", "training diverged: its loss grew"),
    e.SweepClosed("s", "on request"),
    e.JobSubmitted(REQUEST),
    e.JobRefused("a", "s", "why\nnot"),
    e.JobStarted("a"),
    e.Iterated("a", 3, (0.25, 0.5), ((0.0, 3, math.inf),)),
    e.FeedbackGiven("a", -math.inf),
    e.RungReached("a", 30, 0.5),
    e.GrowthDone("a", (("c1", "worker-1"),)),
    e.GrowthFailed("a", ("c1",), "why"),
    e.ContainersGone("a", ("c1", "c2"), "the queue takes them"),
    e.ShrinkFailed("a", ("c1",), "why"),
    e.MembersFound("a", (("c1", "worker-1"), ("c2", "server-1"))),
    e.JobEnded("a", Phase.FINISHED, "", 0.5, 0.25, 0.125),
    e.CancelAsked("ä", "why"),
    e.NodeCame("n", UNIT),
    e.NodeLost("n"),
    e.NodeLeft("n", "node h was decommissioned"),
)
BEFORE = [Entry(float(number), event, {"spec": {"workers": 2}}, number, 7) for number, event in enumerate(EVENTS)]
AFTER = [Entry(99.5, e.JobStarted("b"))]
SNAPSHOT = {"core": [1.5, "x" * 100], "tables": {}}


class Place(Protocol):
    """Where a record is, whichever process has it."""

    def open(self) -> SchedulerRecord:
        """Open it as the next process does."""

    def fill(self, record: Any) -> None:
        """Let nothing more be written."""

    def empty(self, record: Any) -> None:
        """Let everything be written again."""

    def crashes(self, happen: Callable[[SchedulerRecord], None]) -> Iterator[SchedulerRecord]:
        """Yield what the next process finds, wherever the process dies at which something happens."""


class OnDisk:
    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0

    @property
    def path(self) -> Path:
        return self._folder / "record.sqlite"

    def open(self) -> SqliteRecord:
        return SqliteRecord(self.path)

    def fill(self, record: Any) -> None:
        ((pages,),) = record._database.query("PRAGMA page_count")
        record._database.query(f"PRAGMA max_page_count = {pages}")

    def empty(self, record: Any) -> None:
        record._database.query("PRAGMA max_page_count = 1000000")

    def crashes(self, happen: Callable[[SchedulerRecord], None]) -> Iterator[SchedulerRecord]:
        record = self.open()
        log = self.path.with_name(f"{self.path.name}-wal")
        first = log.stat().st_size
        happen(record)
        for size in (*range(first, log.stat().st_size, 997), log.stat().st_size):
            self._number += 1
            image = self._folder / f"crash-{self._number}" / self.path.name
            image.parent.mkdir()
            shutil.copy(self.path, image)
            image.with_name(log.name).write_bytes(log.read_bytes()[:size])
            yield SqliteRecord(image)
        record.close()


class KilledError(BaseException):
    """The process has ended here."""


class DyingStorage(LoggedStorage):
    """Its process ends at one call that changes something, before it or in the middle of it."""

    dies_at = -1

    def check(self) -> bool:
        """Return whether this call is cut short."""
        self.dies_at -= 1
        if self.dies_at == 0:
            raise KilledError
        self.dies_at -= 1
        return self.dies_at == 0

    def append(self, path: str, head: bytes) -> Any:
        is_cut = self.check()
        file = super().append(path, head)
        if is_cut:
            raise KilledError
        return file

    def check_append(self, path: str, writer: Any) -> None:
        super().check_append(path, writer)
        if self.check():
            self.files[path] += b"\xe5RC\x0a torn"
            raise KilledError

    def write(self, path: str) -> Any:
        if self.check():
            self.files[path] = b"EPSSNAP1 torn"
            raise KilledError
        return super().write(path)

    def remove(self, path: str) -> None:
        self.check()
        super().remove(path)


class OnHdfs:
    def __init__(self, folder: Path) -> None:
        self._folder, self.storage = folder, DyingStorage()
        self.superseded: list[int] = []
        self._number = 0

    def open(self) -> LogRecord:
        self._number += 1
        number, scratch = self._number, self._folder / f"rows-{self._number}.sqlite"
        return LogRecord(self.storage, "scheduler", scratch, lambda: self.superseded.append(number))

    def fill(self, record: Any) -> None:
        self.storage.appends_fail = True

    def empty(self, record: Any) -> None:
        self.storage.appends_fail = False

    def crashes(self, happen: Callable[[SchedulerRecord], None]) -> Iterator[SchedulerRecord]:
        before = dict(self.storage.files)
        for dies_at in range(1, 100):
            self.storage.files = dict(before)
            record = self.open()
            self.storage.dies_at = dies_at
            try:
                happen(record)
            except KilledError:
                self.storage.dies_at = -1
                yield self.open()
                continue
            self.storage.dies_at = -1
            yield self.open()
            return
        raise AssertionError("it does not come to an end")


@pytest.fixture(params=[OnDisk, OnHdfs])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    found: Place = request.param(tmp_path)
    return found


@pytest.fixture
def begun(place: Place) -> Place:
    record = place.open()
    record.begin(HEADER)
    for entry in BEFORE:
        record.append([entry], durable=False)
    record.close()
    return place


def read(record: SchedulerRecord) -> tuple[Any, list[Entry]]:
    """Return what a record leads to, and close it."""
    found = record.snapshot(), list(record.entries())
    record.close()
    return found


def ended(job_id: str, trial_id: str = "", sweep: str = "s", phase: Phase = Phase.FINISHED) -> EndedJob:
    trial = TrialRecord(job_id, sweep, 1.5, phase, speeds={(2, 1): (3, 0.5)})
    return EndedJob(job_id, trial_id or job_id, sweep, phase, {"name": f"sweep-{job_id}"}, trial)


def compact(record: SchedulerRecord) -> None:
    decisions = [("s", DecisionRecord(2.0, "second", ("a",))), ("s", DecisionRecord(1.0, "first", ("a", "b")))]
    record.compact(replace(HEADER, boot="next"), SNAPSHOT, [ended("a"), ended("b")], decisions)


def test_there_is_one_of_each_event() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(e.Event))


@pytest.mark.parametrize("event", [*EVENTS, e.JobEnded("a", Phase.KILLED)], ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event: e.Event) -> None:
    entry = Entry(1.5, event, {"spec": {"workers": 2}}, 7, 8)
    assert entry_of(entry_text(entry), "here") == entry


def test_nan_is_read_as_nan() -> None:
    found = entry_of(entry_text(Entry(0.0, e.FeedbackGiven("a", math.nan))), "here").event
    assert isinstance(found, e.FeedbackGiven) and math.isnan(found.value)


def test_what_json_cannot_say_is_no_fault_of_the_disk(begun: Place) -> None:
    record = begun.open()
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.append([Entry(0.0, e.JobStarted("a"), {"x": math.nan})], durable=False)
    record.close()


def test_a_record_begins_empty_and_is_read_as_it_was_written(place: Place) -> None:
    record = place.open()
    assert record.header is None and read(record) == (None, [])
    record = place.open()
    record.begin(HEADER)
    record.append(BEFORE[:3], durable=True)
    record.append(BEFORE[3:], durable=False)
    assert record.header == HEADER and record.entries_bytes > 0
    size = record.entries_bytes
    record.close()
    record.close()
    record = place.open()
    assert record.header == HEADER and record.entries_bytes == size and record.snapshot_bytes < 10
    assert read(record) == (None, BEFORE)


def test_a_process_that_is_killed_leaves_what_it_wrote_whole_or_not_at_all(begun: Place) -> None:
    found = [read(record) for record in begun.crashes(lambda record: record.append(BEFORE[:5], durable=True))]
    assert len(found) > 2
    assert all(snapshot is None for snapshot, _ in found)
    assert {len(entries) for _, entries in found} == {len(BEFORE), len(BEFORE) + 5}
    assert found[-1] == (None, [*BEFORE, *BEFORE[:5]])


def test_a_process_that_is_killed_as_it_compacts_leaves_what_was_or_what_is_to_be(begun: Place) -> None:
    before = after = 0
    for record in begun.crashes(compact):
        jobs, header = [each.job_id for each in record.rows.ended_jobs()], record.header
        assert header is not None
        if (found := read(record)) == (None, BEFORE):
            assert jobs == [] and header.boot == "boot"
            before += 1
        else:
            assert found == (SNAPSHOT, []) and jobs == ["a", "b"] and header.boot == "next"
            after += 1
    assert before and after


def test_what_is_compacted_is_found_and_what_comes_after_it_too(begun: Place) -> None:
    record = begun.open()
    compact(record)
    assert record.entries_bytes == 0 and record.snapshot_bytes > 100
    record.append(AFTER, durable=False)
    # Those that are there already stay as they are.
    again = [ended("a", phase=Phase.FAILED), ended("a-again-1", "a", phase=Phase.FAILED), ended("c", sweep="other")]
    record.compact(HEADER, {"second": True}, again, [("s", DecisionRecord(1.0, "first", ("a", "b")))])
    record.append(AFTER, durable=False)
    record.close()
    record = begun.open()
    rows = record.rows
    assert [each.job_id for each in rows.ended_jobs()] == ["a", "b", "a-again-1", "c"]
    assert rows.ended_jobs("other") == [ended("c", sweep="other")]
    assert rows.ended_job("a") == ended("a") and rows.ended_job("nobody") is None
    assert rows.first_id("a-") == "a-again-1" and rows.first_id("a-again-2") == rows.first_id("%") == ""
    assert [each.sentence for each in rows.decisions("s")] == ["first", "second"] and rows.decisions("other") == []
    phases = Counter({Phase.FINISHED: 3, Phase.FAILED: 1})
    assert rows.counts()[0] == phases
    trials = {("s", Phase.FAILED): 1, ("s", Phase.FINISHED): 1}
    assert rows.counts("s")[1] == trials and rows.counts()[1] == {**trials, ("other", Phase.FINISHED): 1}
    assert read(record) == ({"second": True}, AFTER)


def test_what_cannot_be_written_is_written_when_there_is_room(begun: Place) -> None:
    record = begun.open()
    large = Entry(1.0, e.CancelAsked("a", "x" * 50_000))
    begun.fill(record)
    for _ in range(3):
        with pytest.raises(StorageError, match="cannot be written"):
            record.append([large], durable=True)
    begun.empty(record)
    with suppress(StorageError):
        record.append(AFTER, durable=True)
        record.close()
    if isinstance(record, LogRecord):
        # Nobody knows how that ends which could not be written.
        record.compact(HEADER, SNAPSHOT, [], [])
        record.append(AFTER, durable=True)
        record.close()
        assert read(begun.open()) == (SNAPSHOT, AFTER)
    else:
        assert read(begun.open()) == (None, [*BEFORE, *AFTER])


def test_a_process_that_is_killed_while_nothing_can_be_written_is_followed_by_the_next(begun: Place) -> None:
    record = begun.open()
    begun.fill(record)
    with pytest.raises(StorageError):
        record.append([Entry(1.0, e.CancelAsked("a", "x" * 50_000))], durable=False)
    begun.empty(record)
    record.close()
    assert read(begun.open()) == (None, BEFORE)


def test_a_record_of_another_version_is_refused(begun: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(begun.open().entries()) if isinstance(begun, OnHdfs) else None
    with monkeypatch.context() as patch:
        patch.setattr(api, "FORMAT", "9-00000000")
        with pytest.raises(StorageError, match=r"format 4-\w+, .*eps"):
            begun.open()
    assert before in (None, BEFORE) and read(begun.open()) == (None, BEFORE)


def test_classes_with_other_fields_are_another_version() -> None:
    names = dict(codec._NAMES)
    assert codec._format_of(names) == codec.FORMAT
    assert codec._format_of({**names, "Job": (*names["Job"], "colour")}) != codec.FORMAT


def test_what_is_none_of_the_cores_values_is_refused() -> None:
    with pytest.raises(ValueError, match="a object"):
        codec.encoded({"state": object()})


def test_of_two_who_open_one_file_the_second_is_refused(tmp_path: Path) -> None:
    place = OnDisk(tmp_path)
    first = place.open()
    first.begin(HEADER)
    with pytest.raises(StorageError, match=r"record\.sqlite: another"):
        place.open()
    first.append(AFTER, durable=False)
    first.close()
    assert read(place.open()) == (None, AFTER)


def test_of_two_who_open_one_log_the_first_can_write_no_more(tmp_path: Path) -> None:
    place = OnHdfs(tmp_path)
    first = place.open()
    first.begin(HEADER)
    second = place.open()
    with pytest.raises(StorageError):
        first.append(AFTER, durable=False)
    with pytest.raises(StorageError, match="has taken over"):
        first.compact(HEADER, SNAPSHOT, [], [])
    assert place.superseded and set(place.superseded) == {1}
    second.append(AFTER, durable=True)
    second.close()
    assert read(place.open()) == (None, AFTER)


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record.sqlite").write_bytes(b"what is this\n" * 100)
    with pytest.raises(StorageError, match=r"record\.sqlite: .*datab"):
        OnDisk(tmp_path).open()


def test_a_record_on_hdfs_outlives_the_time_without_a_data_node(
    store: HadoopLogStorage, files: FakeHadoopFiles, tmp_path: Path
) -> None:
    superseded: list[int] = []

    def opened(number: int) -> LogRecord:
        return LogRecord(store, "scheduler", tmp_path / f"rows-{number}.sqlite", lambda: superseded.append(number))

    record = opened(1)
    record.begin(HEADER)
    record.append(BEFORE, durable=True)
    files.without_data_nodes = True
    for _ in range(2):
        with pytest.raises(StorageError):
            record.append(AFTER, durable=True)
        with pytest.raises(StorageError):
            compact(record)
        assert record.rows.ended_jobs() == [], "all of a compaction, or nothing"
    files.without_data_nodes = False
    compact(record)
    record.append(AFTER, durable=True)
    # The next attempt, while this one is there still.
    again = opened(2)
    assert [each.job_id for each in again.rows.ended_jobs()] == ["a", "b"] and read(again) == (SNAPSHOT, AFTER)
    with pytest.raises(StorageError):
        record.append(AFTER, durable=True)
    assert set(superseded) == {1}
