"""The journal: what is written comes back, what is torn is dropped, what is damaged is an error."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from eps.errors import StorageError
from eps.storage.journal import Journal, Replay, encode_line, replay

RECORDS: list[dict[str, object]] = [
    {"kind": "started", "workers": 3},
    {"kind": "plan", "moves": [[1, "worker-1", "worker-2"]], "text": 'a"b\\c\nü'},
    {"kind": "committed", "at_s": 1.25, "nothing": None},
]


def write(path: Path, records: list[dict[str, object]] = RECORDS) -> bytes:
    with Journal(path) as journal:
        for record in records:
            journal.append(record, sync=record["kind"] == "committed")
    return path.read_bytes()


def test_what_was_appended_is_replayed_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = write(path)
    assert replay(path) == Replay(tuple(RECORDS), len(data))
    assert [json.loads(line)["record"] for line in data.splitlines()] == RECORDS


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert replay(tmp_path / "journal.jsonl") == Replay((), 0)


def test_a_journal_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path)
    with Journal(path) as journal:
        assert journal.recovered.records == tuple(RECORDS)
        journal.append({"kind": "ended"})
    assert replay(path).records == (*RECORDS, {"kind": "ended"})


def test_a_journal_torn_anywhere_in_its_last_line_loses_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = write(path)
    whole = len(data) - len(encode_line(RECORDS[-1]))
    for length in range(whole + 1, len(data)):
        path.write_bytes(data[:length])
        found = replay(path)
        assert found.records == tuple(RECORDS[:-1]) and found.size_bytes == whole
        assert f"line 3 has no end: dropped its {length - whole} bytes" in found.dropped


def test_a_torn_line_is_cut_off_before_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(write(path)[:-5])
    with Journal(path) as journal:
        assert "line 3" in journal.recovered.dropped
        journal.append({"kind": "again"})
    assert replay(path).records == (*RECORDS[:-1], {"kind": "again"})


def test_a_last_line_of_zeros_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = write(path)
    path.write_bytes(data + b"\0" * 4096)
    assert replay(path).records == tuple(RECORDS)
    assert "4096 bytes" in replay(path).dropped


def test_a_changed_bit_in_an_earlier_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    data = write(path)
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    rng = random.Random(7)
    for _ in range(200):
        at = rng.randrange(ends[1])
        if at in ends:
            continue
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        line = 1 + sum(end < at for end in ends)
        with pytest.raises(StorageError, match=rf"journal\.jsonl: line {line} "):
            replay(path)
        with pytest.raises(StorageError):
            Journal(path)


def test_a_record_that_is_not_json_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        for value in (float("nan"), {1, 2}, b"x"):
            with pytest.raises(StorageError, match="must be JSON"):
                journal.append({"value": value})
        journal.append({"kind": "fine"})
    assert replay(path).records == ({"kind": "fine"},)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"kind": "fine"})
        full = os.open("/dev/full", os.O_WRONLY)
        kept = os.dup(journal._fd)
        os.dup2(full, journal._fd)
        with pytest.raises(StorageError, match="No space left"):
            journal.append({"kind": "lost"})
        with pytest.raises(StorageError, match="nor its part removed"):
            journal.append({"kind": "later"})
        os.dup2(kept, journal._fd)
        os.close(full)
        os.close(kept)
    assert replay(path).records == ({"kind": "fine"},)


def test_a_closed_journal_refuses_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.close()
    journal.close()
    with pytest.raises(StorageError, match="closed"):
        journal.append({"kind": "late"})


def test_a_journal_in_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened"):
        Journal(tmp_path / "missing" / "journal.jsonl")
