"""Members of a job on a cluster look for its next master without a high load on the store of its address."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from eps.errors import StorageError
from eps.net.control import finder
from eps.net.control.finder import (
    FIRST_PAUSE_S,
    GREATEST_PART,
    LEAST_PART,
    LONGEST_PAUSE_S,
    PATIENCE_S,
    MasterPlace,
    Seldom,
    master_finder,
)
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import MASTER_FILE, JobDir
from eps.storage.locations import RemotePath

POLL_S = finder.POLL_S


class Store:
    """A cluster's file system that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.content: bytes | None = None
        self.number = 0

    def place(self, generation: int) -> None:
        self.number += 1
        self.content = json.dumps({"host": "127.0.0.11", "port": 4711, "generation": generation}).encode()

    def status(self, path: str) -> Any:
        self.asked.append("status")
        if self.content is None:
            raise StorageError(f"{path}: there is none")
        return self.number

    @contextmanager
    def read(self, path: str) -> Iterator[BinaryIO]:
        assert path == MASTER_FILE and self.content is not None
        self.asked.append("read")
        yield io.BytesIO(self.content)

    def names(self, folder: str) -> list[str]:
        self.asked.append("list")
        return [MASTER_FILE]


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def looks(seed: int, seconds: float, clock: Clock) -> list[float]:
    """Return when a member looks that asks as often as sessions do."""
    found: list[float] = []
    ask = Seldom(lambda: found.append(clock.now_s), clock, random.Random(seed))
    for _ in range(int(seconds / POLL_S)):
        ask()
        clock.now_s += POLL_S
    return found


def test_a_member_looks_seldom_and_ever_more_seldom() -> None:
    found = looks(1, 60.0, Clock())
    pauses = [after - before for before, after in pairwise(found)]
    assert min(pauses) >= LEAST_PART * FIRST_PAUSE_S
    assert max(pauses) <= GREATEST_PART * LONGEST_PAUSE_S + 2 * POLL_S
    assert 60.0 / (GREATEST_PART * LONGEST_PAUSE_S) <= len(found) < 60.0


def test_members_that_lost_the_same_master_do_not_look_at_the_same_moment() -> None:
    first = [looks(seed, 2.0, Clock())[0] for seed in range(100)]
    most = max(sum(1 for moment in first if abs(moment - start) < POLL_S / 2) for start in first)
    assert most < 20, first


def test_after_a_while_without_a_question_the_pauses_are_short_again() -> None:
    clock, found = Clock(), []
    ask = Seldom(lambda: found.append(clock.now_s), clock, random.Random(3))
    for _ in range(2):
        found.clear()
        for _ in range(100):
            ask()
            clock.now_s += POLL_S
        assert len(found) >= 2
        clock.now_s += 3600.0


def test_a_look_asks_for_one_thing_and_not_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, patience = Store(), []

    def opened(where: RemotePath, *, public: bool = False, patience_s: float | None = None) -> Store:
        patience.append(patience_s)
        return store

    monkeypatch.setattr(RemotePath, "storage", opened)
    clock = Clock()
    monkeypatch.setattr("eps.net.control.finder.time.monotonic", clock)
    monkeypatch.setattr(finder, "Seldom", lambda look: Seldom(look, clock))
    job = JobDir(tmp_path)
    job.note(yarn={"shared": "hdfs://nn:8020/x/jobs/a9a-1"})
    find = master_finder(tmp_path)
    assert patience == [PATIENCE_S] and not store.asked

    def found_after_a_while() -> MasterPlace | None:
        clock.now_s += GREATEST_PART * LONGEST_PAUSE_S
        return find()

    find()
    assert found_after_a_while() is None and store.asked == ["status"]
    store.place(2)
    store.asked.clear()
    assert found_after_a_while() == MasterPlace("127.0.0.11:4711", 2) and store.asked == ["status", "read"]
    store.asked.clear()
    for _ in range(5):
        assert found_after_a_while() == MasterPlace("127.0.0.11:4711", 2)
    assert store.asked == ["status"] * 5
    store.place(3)
    assert found_after_a_while() == MasterPlace("127.0.0.11:4711", 3)


def test_a_folder_that_hosts_share_is_read_as_the_jobs_own(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    JobDir(tmp_path).note(yarn={"shared": str(shared)})
    find = master_finder(tmp_path)
    assert find() is None
    write_json_atomic(shared / MASTER_FILE, {"host": "h", "port": 1, "generation": 4}, sync=False)
    assert find() == MasterPlace("h:1", 4)
