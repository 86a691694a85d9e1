"""The event log in a store: what :mod:`tests.storage.test_wal` shows of the one in a directory, and its fencing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.errors import StorageError
from eps.master.state_log import HEAL_S, StateLog
from eps.storage.shared_log import SharedLog
from eps.storage.wal import LOG_HEAD, Replay, frame
from tests.core.scripted import ADD_WORKER, running
from tests.fakes.storage import LoggedStorage
from tests.sim.mortal import assert_same, keep_short
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
    with pytest.raises(StorageError, match="no snapshot"):
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
    with pytest.raises(StorageError, match="another job master has"):
        first.append(b"decided by somebody who is not the master any more")
    assert told == [True]
    for method in (first.begin, first.snapshot):
        with pytest.raises(StorageError, match="another job master has"):
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
        number = int(storage.names("state")[-2][-8:]) + 1
        storage.append(f"state/log-{number:08d}", LOG_HEAD)
        fence(path)

    storage.fence = late  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="another job master is"):
        opened(storage)


def test_wherever_the_last_record_is_torn_it_is_dropped_and_the_log_goes_on(storage: LoggedStorage) -> None:
    written(storage, *RECORDS)
    whole = storage.files[LOG]
    for size in range(len(whole) - len(frame(RECORDS[-1])) - 7, len(whole)):
        storage.files = {name: data for name, data in storage.files.items() if "log" not in name}
        storage.files[LOG] = whole[:size]
        log = opened(storage)
        assert log.recovered.records == RECORDS[:-1]
        # The first says who wrote it.
        assert "record 6 is damaged" in log.recovered.dropped[0] and LOG in log.recovered.dropped[0]
        log.append(b"next")
        assert opened(storage).recovered.records == (*RECORDS[:-1], b"next")


def test_damage_that_other_records_follow_is_an_error(storage: LoggedStorage) -> None:
    written(storage, *RECORDS)
    data = bytearray(storage.files[LOG])
    data[len(LOG_HEAD) + 20] ^= 1
    storage.files[LOG] = bytes(data)
    with pytest.raises(StorageError, match="record 1 is damaged, "):
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


def test_nothing_is_restored_from_a_log_that_misses_records(storage: LoggedStorage) -> None:
    log = written(storage, RECORDS[0])
    storage.appends_fail = True
    with pytest.raises(StorageError, match="not open"):
        log.append(RECORDS[1])
    storage.appends_fail = False
    with pytest.raises(StorageError, match="not open"):
        log.append(RECORDS[2])
    with pytest.raises(StorageError, match="records are missing"):
        opened(storage)
    log.snapshot(b"whole")
    log.append(RECORDS[3])
    found = opened(storage).recovered
    assert (found.snapshot, found.records) == ((b"whole",), (RECORDS[3],))


def test_a_master_that_is_restored_without_what_nobody_could_note_as_missing_ends_when_it_hears_of_it(
    storage: LoggedStorage,
) -> None:
    master = running()
    log = StateLog(opened(storage))
    log.begin(master.state, master.now_s)
    act = master.step

    def step(event: e.Event, after_s: float = 0.001) -> list[e.Command]:
        log.record(event, master.now_s + after_s)
        return act(event, after_s)

    master.step = step  # type: ignore[method-assign]
    master.tick()
    logged = master.state.masters.steps
    storage.read_only = True
    master.carry_out(ADD_WORKER)
    assert master.membership.version == 2 and "not open" in log.error
    storage.read_only = False
    # Its node is lost before it tries again.
    found = StateLog(opened(storage)).restore()
    assert found is not None
    assert found.state.membership is not None and found.state.membership.version == 1
    assert found.state.masters.steps == logged < master.state.masters.steps
    containers = dict.fromkeys(master.state.members.by_seat, 1)
    found.state.step(e.MasterRestarted(2, containers), found.now_s)
    known = found.state.members.by_name["worker-1"]
    assert known.address is not None
    last_heard = e.MemberRegistered(known.container, known.address, 1, 1, master.state.masters.steps)
    commands = found.state.step(last_heard, found.now_s)
    (end,) = (command for command in commands if isinstance(command, e.EndJob))
    assert end.state is JobState.FAILED
    assert "records are missing" in end.reason and "worker-1" in end.reason and "eps resume" in end.reason


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
        keep_short(log, master.state, master.now_s)
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
    keep_short(log, master.state, master.now_s + HEAL_S)
    assert log.error
    storage.read_only = False
    keep_short(log, master.state, master.now_s + 2 * HEAL_S)
    assert not log.error and "logged again" in caplog.text


@pytest.mark.parametrize("step", ["fence", "append"])
def test_one_that_begins_another_log_while_it_is_taken_over_from_loses_nothing_and_is_superseded(
    storage: LoggedStorage, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    first = written(storage, b"one", on_superseded=lambda: told.append(True))
    act = getattr(storage, step)

    def late(*words: Any) -> Any:
        monkeypatch.setattr(storage, step, act)
        first.begin()
        first.append(b"two")
        return act(*words)

    monkeypatch.setattr(storage, step, late)
    second = opened(storage)
    assert second.recovered.records == (b"one", b"two")
    second.append(b"three")
    with pytest.raises(StorageError):
        first.append(b"four")
    assert told == [True]
    assert opened(storage).recovered.records == (b"one", b"two", b"three")


def lost_contents(storage: LoggedStorage, log: SharedLog) -> None:
    """Break the file of a log, and check that the log notices."""
    storage.without_contents = True
    with pytest.raises(StorageError):
        log.append(RECORDS[1])
    assert log.error


@pytest.mark.parametrize("tries", [1, 3])
def test_a_log_whose_store_takes_only_names_for_a_while_goes_on_afterwards_and_the_next_master_has_all_of_it(
    storage: LoggedStorage, tries: int
) -> None:
    log = written(storage, RECORDS[0])
    lost_contents(storage, log)
    for _ in range(tries):
        with pytest.raises(StorageError, match="no DataNode is there"):
            log.snapshot(b"meanwhile")
    storage.without_contents = False
    log.snapshot(b"whole")
    assert not log.error
    log.append(RECORDS[2])
    found = opened(storage).recovered
    assert (found.snapshot, found.records, found.dropped) == ((b"whole",), (RECORDS[2],), ())


def test_that_records_are_missing_is_noted_where_only_names_are_taken(storage: LoggedStorage) -> None:
    lost_contents(storage, written(storage, RECORDS[0]))
    assert storage.names("state") == ["gap-00000000", "log-00000000", "snapshot-00000000"]
    storage.without_contents = False
    with pytest.raises(StorageError, match="records are missing"):
        opened(storage)


@pytest.mark.parametrize("error", [False, True], ids=["while all is well", "while it mends itself"])
def test_a_log_that_was_begun_without_an_answer_is_not_taken_for_anothers(storage: LoggedStorage, error: bool) -> None:
    log = written(storage, RECORDS[0])
    if error:
        lost_contents(storage, log)
        storage.without_contents = False
    storage.unanswered = 2
    for _ in range(2):
        with pytest.raises(StorageError, match="no answer"):
            log.snapshot(b"later")
    if not error:
        # What it had begun before is whole, and goes on.
        log.append(RECORDS[1])
        assert opened(storage).recovered.records == RECORDS[:2]
        return
    log.snapshot(b"later")
    log.append(RECORDS[2])
    found = opened(storage).recovered
    assert (found.snapshot, found.records) == ((b"later",), (RECORDS[2],))


def test_a_torn_end_before_logs_that_were_begun_in_vain_is_dropped(storage: LoggedStorage) -> None:
    log = written(storage, *RECORDS)
    storage.unanswered = 1
    with pytest.raises(StorageError, match="no answer"):
        log.begin()
    storage.files[LOG] = storage.files[LOG][:-1]
    assert opened(storage).recovered.records == RECORDS[:-1]


def test_a_store_that_does_not_answer_is_asked_for_nothing_that_may_take_long(
    storage: LoggedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(storage, RECORDS[0])
    storage.appends_fail = True

    def silent(folder: str) -> list[str]:
        raise StorageError(f"{folder}: cannot be listed: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "names", silent)
        with pytest.raises(StorageError, match="not open"):
            log.append(RECORDS[1])
    assert "gap-00000000" not in storage.names("state")
    storage.appends_fail, storage.room_bytes = False, 16
    with pytest.raises(StorageError):
        log.snapshot(b"a state that the store has no room for")
    assert "gap-00000000" in storage.names("state"), "it is noted as soon as that is possible"


def test_a_log_that_was_begun_without_an_answer_and_cannot_be_read_now_ends_nobody(storage: LoggedStorage) -> None:
    log = written(storage, RECORDS[0])
    storage.unanswered = 1
    with pytest.raises(StorageError, match="no answer"):
        log.begin()
    lost_contents(storage, log)
    assert "gap-00000000" in storage.names("state")
    storage.without_contents = False
    log.snapshot(b"whole")
    assert opened(storage).recovered.snapshot == (b"whole",)


def test_a_log_that_another_master_begins_in_the_place_of_one_that_was_tried_in_vain_is_not_ones_own(
    storage: LoggedStorage,
) -> None:
    told: list[bool] = []
    first = written(storage, RECORDS[0], on_superseded=lambda: told.append(True))
    storage.without_contents = True
    with pytest.raises(StorageError, match="no DataNode is there"):
        first.begin()
    storage.without_contents = False
    second = opened(storage)
    assert storage.names("state")[:2] == ["log-00000000", "log-00000001"]
    with pytest.raises(StorageError, match="another job master has"):
        first.begin()
    assert told == [True]
    second.append(RECORDS[1])
    assert opened(storage).recovered.records == RECORDS[:2]


def test_every_log_that_is_read_is_closed_for_its_writer_first(storage: LoggedStorage) -> None:
    log = written(storage, RECORDS[0])
    storage.unanswered = 1
    with pytest.raises(StorageError, match="no answer"):
        log.begin()
    # Its process is killed; neither is closed.
    storage.unclosed = {"state/log-00000000", "state/log-00000001"}
    assert opened(storage).recovered.records == RECORDS[:1]


def test_whoever_cannot_write_because_it_is_being_taken_over_from_leaves_no_gap_to_the_next(
    storage: LoggedStorage,
) -> None:
    told: list[bool] = []
    first = written(storage, RECORDS[0], on_superseded=lambda: told.append(True))
    # The next one has not begun a log of its own yet.
    storage.fence(LOG)
    with pytest.raises(StorageError, match="another job master has"):
        first.append(RECORDS[1])
    assert told == [True]
    assert opened(storage).recovered.records == RECORDS[:1]


def test_one_that_is_fenced_while_it_notes_a_gap_does_not_go_on(
    storage: LoggedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    first = written(storage, RECORDS[0], on_superseded=lambda: told.append(True))
    mark = storage.mark

    def late(path: str) -> None:
        mark(path)
        storage.fence(LOG)

    monkeypatch.setattr(storage, "mark", late)
    storage.appends_fail = True
    with pytest.raises(StorageError, match="another job master has"):
        first.append(RECORDS[1])
    assert told == [True]
    with pytest.raises(StorageError, match="records are missing"):
        opened(storage)


def test_a_job_master_outlives_a_store_without_contents_and_can_be_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = LoggedStorage()
    master = trained(5)
    log = StateLog(opened(storage))
    log.begin(master.state, master.now_s)
    log.record(e.Tick(), master.now_s)
    storage.without_contents = True
    now_s = master.now_s
    for _ in range(4):
        log.record(e.Tick(), now_s)
        keep_short(log, master.state, now_s)
        assert log.error
        now_s += 60.0
    storage.without_contents = False
    keep_short(log, master.state, now_s)
    assert not log.error and caplog.text.count("logged again") == 1
    log.close()
    storage.unclosed = set(storage.names("state"))
    found = StateLog(opened(storage)).restore()
    assert found is not None
    assert_same(found.state, master.state)
