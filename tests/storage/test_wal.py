"""The event log: what it gives back whole, what it drops, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eps.errors import StorageError
from eps.storage.wal import LOG_HEAD, EventLog, Replay, frame
from tests.fakes.full_disk import no_file_beyond
from tests.fakes.power import Disk
from tests.tiers import rotating

RECORDS = tuple(f"record {n}".encode() * (n + 1) for n in range(5))


def written(path: Path, *records: bytes, state: bytes = b"state") -> Path:
    """Return the only log file of a new directory with these records."""
    log = EventLog.open(path)
    log.snapshot(state)
    for record in records:
        log.append(record)
    log.close()
    (file,) = path.glob("log-*")
    return file


def opened(path: Path) -> Replay:
    log = EventLog.open(path)
    log.close()
    return log.recovered


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    assert opened(tmp_path / "log") == Replay(None, ())
    with pytest.raises(StorageError, match="no snapshot"):
        EventLog.open(tmp_path / "log").append(b"x")


def test_a_log_gives_back_the_last_snapshot_and_what_came_after_it(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    for n in range(4):
        log.snapshot(b"state", b"%d" % n)
        for record in RECORDS[: n + 1]:
            log.append(record)
    log.sync()
    log.close()
    found = opened(tmp_path)
    assert (found.snapshot, found.records, found.dropped) == ((b"state", b"3"), RECORDS[:4], ())
    assert 0 <= found.age_s < 60
    assert sorted(os.listdir(tmp_path)) == ["log-00000002", "log-00000003", "snapshot-00000002", "snapshot-00000003"]


def test_a_log_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    written(tmp_path, *RECORDS[:2])
    log = EventLog.open(tmp_path)
    log.append(RECORDS[2])
    log.close()
    assert opened(tmp_path).records == RECORDS[:3]


def test_a_record_is_there_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.snapshot(b"state")
    log.append(b"x")
    assert opened(tmp_path).records == (b"x",)
    log.close()


def test_wherever_the_last_record_is_torn_it_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    file = written(tmp_path, *RECORDS)
    whole = file.read_bytes()
    for size in range(len(whole) - len(frame(RECORDS[-1])) + 1, len(whole)):
        file.write_bytes(whole[:size])
        log = EventLog.open(tmp_path)
        assert log.recovered.records == RECORDS[:-1]
        assert "record 5 is damaged" in log.recovered.dropped[0] and str(file) in log.recovered.dropped[0]
        log.append(b"next")
        log.close()
        assert opened(tmp_path).records == (*RECORDS[:-1], b"next")


def test_whichever_bit_of_the_last_record_is_flipped_it_is_dropped(tmp_path: Path) -> None:
    file = written(tmp_path, *RECORDS)
    whole = file.read_bytes()
    for at in range(len(whole) - len(frame(RECORDS[-1])), len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        file.write_bytes(data)
        found = opened(tmp_path)
        assert found.records == RECORDS[:-1] and len(found.dropped) == 1, at


def test_a_tail_of_zeros_is_dropped(tmp_path: Path) -> None:
    file = written(tmp_path, *RECORDS)
    with file.open("ab") as f:
        f.write(bytes(100))
    assert opened(tmp_path).records == RECORDS


def test_whichever_bit_in_the_middle_is_flipped_is_an_error_with_file_and_offset(tmp_path: Path) -> None:
    file = written(tmp_path, *RECORDS)
    whole = file.read_bytes()
    start = len(LOG_HEAD) + len(frame(RECORDS[0]))
    for at in range(start, start + len(frame(RECORDS[1]))):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        file.write_bytes(data)
        with pytest.raises(StorageError, match=rf"{file}: offset {start}: .* 2 "):
            EventLog.open(tmp_path)


def test_damage_at_the_end_of_a_log_that_another_follows_is_an_error(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.snapshot(b"0")
    log.append(b"x" * 20)
    log.begin()
    log.close()
    first = tmp_path / "log-00000000"
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"log-00000000: offset 8"):
        EventLog.open(tmp_path)


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty"])
def test_a_damaged_snapshot_gives_way_to_the_one_before_it_and_the_logs_since(tmp_path: Path, damage: str) -> None:
    log = EventLog.open(tmp_path)
    for n in range(3):
        log.snapshot(b"state %d" % n, b"more")
        log.append(b"record %d" % n)
    log.close()
    last = tmp_path / "snapshot-00000002"
    whole = last.read_bytes()
    flipped = whole[:30] + bytes([whole[30] ^ 4]) + whole[31:]
    last.write_bytes({"torn": whole[:-1], "flipped": flipped, "empty": b""}[damage])
    log = EventLog.open(tmp_path)
    found = log.recovered
    assert (found.snapshot, found.records) == ((b"state 1", b"more"), (b"record 1", b"record 2"))
    assert len(found.dropped) == 1 and str(last) in found.dropped[0]
    log.snapshot(b"state 3")
    log.close()
    assert opened(tmp_path).snapshot == (b"state 3",)


def test_a_snapshot_that_lost_parts_is_damaged(tmp_path: Path) -> None:
    written(tmp_path, state=b"x" * 10)
    (file,) = tmp_path.glob("snapshot-*")
    file.write_bytes(file.read_bytes()[: -len(frame(b"x" * 10))])
    with pytest.raises(StorageError, match="no snapshot can be read"):
        EventLog.open(tmp_path)


def test_a_log_that_is_missing_between_others_is_an_error(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.snapshot(b"0")
    log.begin()
    log.begin()
    log.close()
    (tmp_path / "log-00000001").unlink()
    with pytest.raises(StorageError, match="log-00000001: is missing"):
        EventLog.open(tmp_path)


def test_a_snapshot_may_be_written_long_after_its_log_began(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.snapshot(b"0")
    log.append(b"a")
    number = log.begin()
    log.append(b"b")
    assert (opened(tmp_path).snapshot, opened(tmp_path).records) == ((b"0",), (b"a", b"b"))
    log.write_snapshot(number, [b"0 and a"])
    assert (opened(tmp_path).snapshot, opened(tmp_path).records) == ((b"0 and a",), (b"b",))
    log.close()


def test_a_process_that_died_before_its_first_snapshot_left_nothing(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.begin()
    log.close()
    for size in range(len(LOG_HEAD)):
        (tmp_path / "log-00000000").write_bytes(LOG_HEAD[:size])
        assert opened(tmp_path) == Replay(None, ())


def test_a_full_disk_stops_the_log_and_nothing_can_be_restored_from_it(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.snapshot(b"state")
    with no_file_beyond(2000):
        with pytest.raises(StorageError, match=r"log-00000000: .*written"):
            for _ in range(10):
                log.append(b"x" * 300)
        assert "File too large" in log.error
        with pytest.raises(StorageError, match="cannot be written"):
            log.append(b"small")
        with pytest.raises(StorageError):
            log.sync()
        with pytest.raises(StorageError, match="records are missing"):
            EventLog.open(tmp_path)
        with pytest.raises(StorageError, match="cannot be written"):
            log.snapshot(b"x" * 5000)
        assert log.error
        with pytest.raises(StorageError, match="records are missing"):
            EventLog.open(tmp_path)
    log.snapshot(b"healed")
    assert log.error == ""
    log.append(b"y")
    log.close()
    assert (opened(tmp_path).snapshot, opened(tmp_path).records) == ((b"healed",), (b"y",))


def test_a_snapshot_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.snapshot(b"state")
    log.append(b"a")
    with no_file_beyond(2000):
        with pytest.raises(StorageError):
            log.snapshot(b"x" * 5000)
    log.append(b"b")
    log.close()
    assert (opened(tmp_path).snapshot, opened(tmp_path).records) == ((b"state",), (b"a", b"b"))


def test_a_directory_that_cannot_be_made_or_is_gone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot be opened"):
        EventLog.open(tmp_path / "file" / "log")
    log = EventLog.open(tmp_path / "log")
    log.snapshot(b"state")
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        log.snapshot(b"state")
    log.close()


@given(st.lists(st.sampled_from(("append", "append", "snapshot", "begin", "write", "open")), max_size=40))
def test_random_histories_come_back_whole_wherever_the_process_ends(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    path = tmp_path_factory.mktemp("log")
    log = EventLog.open(path)
    said: list[bytes] = []
    log.snapshot(b"")
    late: list[tuple[int, bytes]] = []
    for n, what in enumerate([*steps, "open"]):
        said.append(b"%d," % n)
        log.append(said[-1])
        if what == "snapshot":
            log.snapshot(b"", b"".join(said))
            late.clear()
        elif what == "begin":
            late.append((log.begin(), b"".join(said)))
        elif what == "write" and late:
            number, state = late.pop(0)
            log.write_snapshot(number, [b"", state])
        elif what == "open":
            log.close()
            log = EventLog.open(path)
            assert log.recovered.snapshot is not None
            assert b"".join((*log.recovered.snapshot, *log.recovered.records)) == b"".join(said)
            late.clear()
    log.close()


def test_a_sync_sees_to_the_snapshot_and_the_names_as_well(tmp_path: Path) -> None:
    log = EventLog.open(tmp_path)
    log.snapshot(b"state", sync=False)
    assert {path.name for path in log._loose} == {"snapshot-00000000", "log-00000000"}
    log.sync()
    assert not log._loose
    log.snapshot(b"state")
    assert {path.name for path in log._loose} == {"log-00000000", "log-00000001"}
    (tmp_path / "log-00000000").unlink()
    log.sync()
    log.close()


def test_where_the_power_fails_all_that_was_synced_comes_back_and_no_record_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 0
    for seed in rotating(60):
        random = Random(seed)
        path = tmp_path / str(seed)
        path.mkdir()
        disk = Disk(path, monkeypatch)
        log = EventLog.open(path)
        said: list[bytes] = []
        log.snapshot(b"", sync=False)
        log.sync()
        synced = 0
        late: list[tuple[int, bytes]] = []
        for n in range(random.randrange(1, 60)):
            said.append(b"%d," % n)
            log.append(said[-1])
            what = random.random()
            if what < 0.1:
                log.sync()
                synced = len(said)
            elif what < 0.2 and not late:
                # One at a time, as the master does.
                late.append((log.begin(), b"".join(said)))
            elif what < 0.3 and late:
                number, state = late.pop()
                log.write_snapshot(number, [b"", state])
                # It includes all earlier records.
                synced = max(synced, state.count(b","))
        log.close()
        disk.lose_power(random)
        found = EventLog.open(path)
        assert found.recovered.snapshot is not None
        came_back = b"".join((*found.recovered.snapshot, *found.recovered.records))
        assert came_back in [b"".join(said[:n]) for n in range(synced, len(said) + 1)], seed
        lost += came_back != b"".join(said)
        found.append(b"more")
        found.close()
        disk.close()
    assert lost > 20, "of most histories something is lost"
