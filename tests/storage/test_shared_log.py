"""The event log in a store: what :mod:`tests.storage.test_wal` shows of the one in a directory, and its fencing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.errors import StorageError
from eps.master.state_log import HEAL_S, StateLog
from eps.storage.shared_log import SharedLog
from eps.storage.wal import LOG_HEAD, Replay, frame
from tests.fakes.storage import LoggedStorage
from tests.sim.mortal import assert_same
from tests.storage.test_state_log import trained

RECORDS = tuple(f"record {n}".encode() * (n + 1) for n in range(5))
LOG = "state/log-00000000"


@pytest.fixture
def storage() -> LoggedStorage:
    return LoggedStorage()


def must_not_be() -> None:
    raise AssertionError("this master was taken for one that another has taken over from")


def opened(storage: LoggedStorage, on_superseded: Callable[[], None] = must_not_be) -> SharedLog:
    return SharedLog.open(storage, "state", on_superseded)


def written(storage: LoggedStorage, *records: bytes, on_superseded: Callable[[], None] = must_not_be) -> SharedLog:
    log = opened(storage, on_superseded)
    log.snapshot(b"state")
    for record in records:
        log.append(record)
    return log


def test_a_new_log_is_empty(storage: LoggedStorage) -> None:
    log = opened(storage)
    assert log.recovered == Replay(None, ())
    with pytest.raises(StorageError, match="no snapshot has begun"):
        log.append(b"x")
    assert storage.files == {}


def test_a_log_gives_back_the_last_snapshot_and_what_came_after_it(storage: LoggedStorage) -> None:
    log = opened(storage)
    for n in range(4):
        log.snapshot(b"state", b"%d" % n)
        for record in RECORDS[: n + 1]:
            log.append(record)
    log.sync()
    assert storage.names("state") == ["log-00000002", "log-00000003", "snapshot-00000002", "snapshot-00000003"]
    found = opened(storage).recovered
    assert (found.snapshot, found.records, found.dropped) == ((b"state", b"3"), RECORDS[:4], ())
    assert 0 <= found.age_s < 60


def test_each_master_goes_on_where_the_one_before_was_lost(storage: LoggedStorage) -> None:
    log = written(storage, RECORDS[0])
    for n in range(1, 5):
        log = opened(storage)
        assert log.recovered.records == RECORDS[:n]
        log.append(RECORDS[n])
    assert opened(storage).recovered.records == RECORDS


def test_a_master_that_was_taken_over_from_writes_no_more(storage: LoggedStorage) -> None:
    told = []
    first = written(storage, RECORDS[0], on_superseded=lambda: told.append(True))
    second = opened(storage)
    with pytest.raises(StorageError, match="not open for this process"):
        first.append(b"decided by somebody who is not the master any more")
    assert told == [True]
    for method in (first.begin, first.snapshot):
        with pytest.raises(StorageError, match="another job master has taken over"):
            method()
    second.append(RECORDS[1])
    assert opened(storage).recovered.records == RECORDS[:2]


def test_two_that_take_over_at_once_do_not_both_go_on(storage: LoggedStorage) -> None:
    written(storage, RECORDS[0])
    fence = storage.fence
    told: list[bool] = []
    faster: list[SharedLog] = []

    def late(path: str) -> None:
        # The other one is faster by that much.
        storage.fence = fence  # type: ignore[method-assign]
        faster.append(opened(storage, lambda: told.append(True)))
        faster[0].append(RECORDS[1])
        fence(path)

    storage.fence = late  # type: ignore[method-assign]
    slower = opened(storage)
    assert slower.recovered.records == RECORDS[:2]
    with pytest.raises(StorageError):
        faster[0].append(RECORDS[2])
    assert told == [True]


def test_one_that_never_gets_a_log_that_stays_gives_up(storage: LoggedStorage) -> None:
    written(storage, RECORDS[0])
    fence = storage.fence

    def late(path: str) -> None:
        number = int(path[-8:]) + 1
        storage.append(f"state/log-{number:08d}")
        fence(path)

    storage.fence = late  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="another job master writes this log"):
        opened(storage)


def test_wherever_the_last_record_is_torn_it_is_dropped_and_the_log_goes_on(storage: LoggedStorage) -> None:
    written(storage, *RECORDS)
    whole = storage.files[LOG]
    for size in range(len(whole) - len(frame(RECORDS[-1])) - 7, len(whole)):
        storage.files = {name: data for name, data in storage.files.items() if "log" not in name}
        storage.files[LOG] = whole[:size]
        log = opened(storage)
        assert log.recovered.records == RECORDS[:-1]
        assert "record 5 is damaged" in log.recovered.dropped[0] and LOG in log.recovered.dropped[0]
        log.append(b"next")
        assert opened(storage).recovered.records == (*RECORDS[:-1], b"next")


def test_damage_that_other_records_follow_is_an_error(storage: LoggedStorage) -> None:
    written(storage, *RECORDS)
    data = bytearray(storage.files[LOG])
    data[len(LOG_HEAD) + 20] ^= 1
    storage.files[LOG] = bytes(data)
    with pytest.raises(StorageError, match="record 1 is damaged, and others follow it"):
        opened(storage)


def test_a_log_that_is_missing_is_an_error(storage: LoggedStorage) -> None:
    written(storage, RECORDS[0])
    for record in RECORDS[1:3]:
        opened(storage).append(record)
    del storage.files["state/log-00000001"]
    with pytest.raises(StorageError, match="log 1 is missing"):
        opened(storage)


def test_the_snapshot_before_is_taken_where_the_last_is_damaged(storage: LoggedStorage) -> None:
    log = written(storage, RECORDS[0])
    log.snapshot(b"later")
    log.append(RECORDS[1])
    storage.files["state/snapshot-00000001"] = b"EPSSNAP1 and nothing that can be read"
    found = opened(storage).recovered
    assert (found.snapshot, found.records) == ((b"state",), RECORDS[:2])
    assert "snapshot-00000001" in found.dropped[0]


@pytest.mark.parametrize("gap_can_be_marked", [True, False])
def test_nothing_is_restored_from_a_log_that_misses_records(storage: LoggedStorage, gap_can_be_marked: bool) -> None:
    log = written(storage, RECORDS[0])
    storage.appends_fail = True
    storage.read_only = not gap_can_be_marked
    with pytest.raises(StorageError, match="not open"):
        log.append(RECORDS[1])
    storage.appends_fail = storage.read_only = False
    with pytest.raises(StorageError, match="not open"):
        log.append(RECORDS[2])
    if gap_can_be_marked:
        with pytest.raises(StorageError, match="records are missing"):
            opened(storage)
    log.snapshot(b"whole")
    log.append(RECORDS[3])
    found = opened(storage).recovered
    assert (found.snapshot, found.records) == ((b"whole",), (RECORDS[3],))


def test_a_gap_that_could_not_be_marked_is_marked_before_the_log_goes_on(storage: LoggedStorage) -> None:
    log = written(storage, RECORDS[0])
    storage.read_only = True
    with pytest.raises(StorageError):
        log.append(RECORDS[1])
    storage.read_only = False
    storage.unsynced.add("state/snapshot-00000001")
    storage.room_bytes = 16
    with pytest.raises(StorageError):
        log.snapshot(b"a state that the store has no room for")
    storage.room_bytes = None
    with pytest.raises(StorageError, match="records are missing"):
        opened(storage)


def test_a_master_without_a_directory_is_what_the_one_before_was() -> None:
    storage = LoggedStorage()
    master = trained(20)
    log = StateLog(opened(storage), snapshot_events=4)
    log.begin(master.state, master.now_s)
    for clock in range(20, 40):
        event = e.ReportReceived(m.ClockReported("worker-1", clock, (m.SplitResult(0, 1, 1.0),)))
        log.record(event, master.now_s + 0.001)
        master.step(event)
        log.keep_short(master.state, master.now_s)
    log.sync(master.now_s)
    found = StateLog(opened(storage)).restore()
    assert found is not None and found.away_s < 60
    assert_same(found.state, master.state)


def test_a_master_goes_on_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    storage = LoggedStorage()
    master = trained(5)
    log = StateLog(opened(storage))
    log.begin(master.state, master.now_s)
    storage.read_only = True
    log.record(e.Tick(), master.now_s)
    assert "not open" in log.error
    log.keep_short(master.state, master.now_s + HEAL_S)
    assert log.error
    storage.read_only = False
    log.keep_short(master.state, master.now_s + 2 * HEAL_S)
    assert not log.error and "logged again" in caplog.text


@pytest.mark.parametrize("step", ["fence", "append"])
def test_one_that_begins_another_log_while_it_is_taken_over_from_loses_nothing_and_is_superseded(
    storage: LoggedStorage, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    first = written(storage, b"one", on_superseded=lambda: told.append(True))
    act = getattr(storage, step)

    def late(path: str) -> Any:
        monkeypatch.setattr(storage, step, act)
        first.begin()
        first.append(b"two")
        return act(path)

    monkeypatch.setattr(storage, step, late)
    second = opened(storage)
    assert second.recovered.records == (b"one", b"two")
    second.append(b"three")
    with pytest.raises(StorageError):
        first.append(b"four")
    assert told == [True]
    assert opened(storage).recovered.records == (b"one", b"two", b"three")
