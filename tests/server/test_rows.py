"""The memory layout of a server's parameters after a step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from eps.server.partitions import ROW_BYTES, Rows
from eps.system.waits import wait_for
from tests.threads import TIMEOUT_S, SeenLock

RANGES = [(0, 10), (10, 30), (30, 35), (35, 40)]


class Memory:
    """Reserves memory and records it."""

    def __init__(self) -> None:
        self.made: list[np.ndarray] = []

    def __call__(self, length: int) -> np.ndarray:
        self.made.append(np.zeros(length, np.float32))
        return self.made[-1]


def test_partitions_of_a_clock_lie_side_by_side_in_their_order() -> None:
    memory = Memory()
    rows = Rows(RANGES, {3, 0, 1}, memory)
    for clock in (4, 5):
        for partition in (1, 3, 0):
            rows.memory(partition, clock)[:] = 10 * clock + partition
    assert [made.tolist() for made in memory.made] == [
        [40.0] * 10 + [41.0] * 20 + [43.0] * 5,
        [50.0] * 10 + [51.0] * 20 + [53.0] * 5,
    ]


def test_nobody_gets_memory_that_another_has() -> None:
    memory, here = Memory(), {0, 1}
    rows = Rows(RANGES, here, memory)
    given = [rows.memory(0, 4), rows.memory(0, 4)]
    here.add(2)
    # One that came later, one of the clock before, and one that leaves others behind.
    given += [rows.memory(2, 4), rows.memory(1, 3), rows.memory(1, 4), rows.memory(0, 5), rows.memory(1, 4)]
    assert [len(values) for values in given] == [10, 10, 5, 20, 20, 10, 20]
    for i, one in enumerate(given):
        assert not any(np.shares_memory(one, other) for other in given[i + 1 :])


def test_large_partitions_share_no_memory_with_others() -> None:
    size = ROW_BYTES // 4
    memory = Memory()
    rows = Rows([(0, size), (size, size + 8), (size + 8, size + 16)], (0, 1, 2), memory)
    rows.memory(1, 0)
    assert [len(made) for made in memory.made] == [16]
    rows.memory(2, 0)
    assert len(rows.memory(0, 0)) == size and [len(made) for made in memory.made] == [16, size]


def test_after_going_back_they_lie_side_by_side_again() -> None:
    memory = Memory()
    rows = Rows(RANGES, {0, 1}, memory)
    rows.memory(0, 8)
    rows.restart()
    for partition in (0, 1):
        rows.memory(partition, 3)
    assert [len(made) for made in memory.made] == [30, 30]


def test_two_threads_get_places_in_one_row() -> None:
    memory, lock, here = Memory(), SeenLock(), list[int]()

    def empty(length: int) -> np.ndarray:
        here.append(length)
        # Where nothing keeps the other thread out, it comes here too.
        wait_for(lambda: lock.waited.is_set() or len(here) == 2, TIMEOUT_S, "the other thread")
        return memory(length)

    rows = Rows(RANGES, {0, 1}, empty)
    rows._lock = lock  # type: ignore[assignment]
    with ThreadPoolExecutor(2) as threads:
        given = [future.result(TIMEOUT_S) for future in [threads.submit(rows.memory, p, 0) for p in (0, 1)]]
    assert len(memory.made) == 1 and not np.shares_memory(*given)
