"""Memory that is ready before partitions come, and arrays that are kept or copied once when they have come."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from eps.core import messages as m
from eps.net.arrays import memory
from eps.net.arrays.api import Message
from eps.net.arrays.frames import checksum_of
from eps.net.arrays.in_process import InProcessVan
from eps.net.arrays.sockets import SHARED_MEMORY, SocketVan
from eps.server.incoming import Preparations, own_arrays
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime

TIMEOUT_S = 10.0
DONE = m.ListsUpdated("server-2", 1)


def make_runtime(**settings: object) -> Runtime:
    spec = JobSpec.from_dict(
        {"model": "linear", "optimizer": "adam", "splits": 2, "partitions": 2, "workers": 1, "servers": 1, **settings}
    )
    shape = DataShape(9000, 1, (10, 10), sparse=False, test_rows=0, split_checksums=("", ""))
    return Runtime("job", spec, shape, Path("unused"), Path("unused"))


def received(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return arrays as a socket leaves them: one after the other in one piece of memory."""
    payload = np.concatenate([array.view(np.uint8) for array in arrays])
    found, at = [], 0
    for array in arrays:
        found.append(payload[at : at + array.nbytes].view(array.dtype))
        at += array.nbytes
    return tuple(found)


def lies_in(array: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.shares_memory(array, other))


def test_parameters_that_came_alone_are_kept_where_they_are() -> None:
    values = np.arange(5000, dtype=np.float32)
    state, big = received(np.array([3, 4], np.int64), values)
    (kept_state, kept), checksum = own_arrays(Message(b"head", (state, big)), InProcessVan())
    assert lies_in(kept, big) and kept.flags.writeable
    # It would keep the parameters' memory for sixteen bytes.
    assert not lies_in(kept_state, state)
    assert checksum == checksum_of(b"head", [np.array([3, 4], np.int64), values])


def test_parameters_that_came_with_slots_do_not_keep_the_memory_of_both() -> None:
    values, slot = (np.full(5000, x, np.float32) for x in (1, 2))
    arrays = received(values, slot)
    taken, checksum = own_arrays(Message(b"", arrays), InProcessVan())
    assert not any(lies_in(mine, theirs) for mine in taken for theirs in arrays)
    assert [array.tobytes() for array in taken] == [values.tobytes(), slot.tobytes()]
    assert checksum == checksum_of(b"", [values, slot])


def test_lent_array_is_copied_once_and_the_copy_is_what_is_checked() -> None:
    lent = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
    lent.flags.writeable = False
    (mine,), checksum = own_arrays(Message(b"", (lent,)), InProcessVan())
    assert mine.flags.writeable and not lies_in(mine, lent)
    assert checksum == checksum_of(b"", [lent]) == checksum_of(b"", [mine])


def test_parameters_lie_in_memory_that_is_lent_where_the_van_has_it() -> None:
    van = SocketVan(SHARED_MEMORY)
    assert van.arena is not None
    values, slot = (np.full(20_000, x, np.float32) for x in (1, 2))
    (mine, my_slot), _ = own_arrays(Message(b"", (values, slot)), van)
    assert van.arena.find(mine) is not None
    assert van.arena.find(my_slot) is None


def test_empty_arrays_are_taken_in_too() -> None:
    taken, checksum = own_arrays(Message(b"", (np.empty(0, np.float32), np.empty(0, np.int16))), InProcessVan())
    assert [array.shape for array in taken] == [(0,), (0,)]
    assert checksum == checksum_of(b"", [])


def test_server_that_nothing_comes_to_is_ready_at_once() -> None:
    reports: list[m.Report] = []
    Preparations(make_runtime(), InProcessVan(), reports.append).begin(DONE, ())
    assert reports == [DONE]


def test_order_that_is_repeated_meanwhile_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, ready = threading.Event(), threading.Event(), threading.Semaphore(0)

    def slow(array: np.ndarray) -> None:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        memory.touch(array)

    monkeypatch.setattr("eps.server.incoming.touch", slow)
    preparations = Preparations(make_runtime(), InProcessVan(), lambda report: ready.release())
    preparations.begin(DONE, (0, 1))
    assert begun.wait(TIMEOUT_S)
    preparations.begin(DONE, (0, 1))
    go_on.set()
    assert ready.acquire(timeout=TIMEOUT_S)
    assert not ready.acquire(blocking=False)
    # The answer was lost: this order comes again and is answered without touching anything.
    preparations.begin(DONE, (0, 1))
    assert ready.acquire(blocking=False)
    preparations.stop()


def test_server_without_memory_ahead_says_that_it_is_ready_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(array: np.ndarray) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr("eps.server.incoming.touch", none_left)
    ready = threading.Event()
    preparations = Preparations(make_runtime(), InProcessVan(), lambda report: ready.set())
    preparations.begin(DONE, (0,))
    assert ready.wait(TIMEOUT_S)
    preparations.stop()


@pytest.mark.parametrize("length", [0, 1, 5000, 3 << 20])
def test_touched_memory_is_writable(length: int) -> None:
    array = np.empty(length, np.float32)
    memory.touch(array)
    array.fill(1)
    assert array.sum(dtype=np.float64) == length
