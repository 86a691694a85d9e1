"""An arena: which memory it hands out again, and which it gives back to the system, and when."""

from __future__ import annotations

import itertools
import os
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from eps.net.arrays import memory as arena_module
from eps.net.arrays.api import MIB
from eps.net.arrays.memory import MOST_SLAB_BLOCK_BYTES, SLAB_BYTES, Arena, Reader, give_back
from tests.net.raw_peers import DEADLINE_S, shared_mappings

#: A block of this size is a segment of its own.
LARGE_BYTES = 20 * MIB


def place_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("size_bytes", [MIB, LARGE_BYTES])
def test_what_was_dropped_is_given_back_by_a_process_that_rests(size_bytes: int) -> None:
    arena = Arena()
    before = len(shared_mappings())
    held = [arena.empty(size_bytes) for _ in range(10)]
    gone: list[int] = []
    arena.on_segment_gone(gone.append)
    held.clear()
    assert len(shared_mappings()) > before
    give_back()
    assert (arena.size_bytes, len(shared_mappings())) == (0, before)
    assert gone, "a peer is to be told"


@pytest.mark.parametrize("size_bytes", [MIB, LARGE_BYTES])
def test_what_is_dropped_while_a_process_rests_is_given_back_at_once(size_bytes: int) -> None:
    arena = Arena()
    held = [arena.empty(size_bytes) for _ in range(3)]
    arena.rest()
    last = held.pop()[10:]
    held.clear()
    assert arena.size_bytes == (SLAB_BYTES if size_bytes == MIB else LARGE_BYTES), "one view is still there"
    last[0] = 1
    del last
    assert arena.size_bytes == 0


def test_the_next_array_ends_the_rest() -> None:
    arena = Arena()
    arena.rest()
    array = arena.empty(LARGE_BYTES)
    place = place_of(array)
    del array
    assert arena.size_bytes == LARGE_BYTES
    assert place_of(arena.empty(LARGE_BYTES)) == place


def test_a_slab_of_which_only_a_lost_peer_may_be_reading_is_given_back_by_a_process_that_rests() -> None:
    arena = Arena()
    array = arena.empty(MIB)
    Arena.retire(array, Reader(os.getpid()))
    place = place_of(array)
    del array
    assert place_of(arena.empty(MIB)) != place
    arena.rest()
    assert arena.size_bytes == 0


def test_small_arrays_of_changing_sizes_take_little_more_memory_than_is_in_use() -> None:
    arena, chance = Arena(), random.Random(1)
    for _ in range(5000):
        size_bytes = int(2 ** chance.uniform(15, 24))
        live = [arena.empty(size_bytes) for _ in range(4)]
        del live
        # Of 16 MiB, a slab holds three whole ones beside what was cut before.
        assert arena.size_bytes <= 3 * SLAB_BYTES


def test_arrays_of_any_sizes_in_any_order_never_share_memory() -> None:
    arena, chance = Arena(), random.Random(2)
    live: dict[int, np.ndarray] = {}
    for number in range(4000):
        if len(live) > 40 or (live and chance.random() < 0.4):
            marker = chance.choice(list(live))
            array = live.pop(marker)
            assert array[0] == array[-1] == marker
            del array
        # The ends: who overlaps it wrote on one of them, or has one of its own inside.
        array = arena.empty(8 * int(2 ** chance.uniform(9, 18))).view(np.int64)
        array[0] = array[-1] = number
        live[number] = array
    spans = sorted((place_of(array), place_of(array) + array.nbytes) for array in live.values())
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))


def test_a_clock_finds_the_memory_of_the_one_before_however_much_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "MOST_IDLE_BYTES", 0)
    sizes = [40_000, MIB, MIB, MOST_SLAB_BLOCK_BYTES, LARGE_BYTES, 3 * LARGE_BYTES] * 8
    arena = Arena()
    gone: list[int] = []
    arena.on_segment_gone(gone.append)
    seen: list[set[int]] = []
    for _ in range(5):
        # A version is written while the one before is still read; then both are dropped, and nothing is in use.
        before = [arena.empty(size_bytes) for size_bytes in sizes]
        after = [arena.empty(size_bytes) for size_bytes in sizes]
        seen.append({place_of(array) for array in (*before, *after)})
        del before, after
    assert not gone
    assert all(places == seen[0] for places in seen), "no page is touched for the first time"


def test_a_segment_that_was_not_needed_for_long_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena()
    held = [arena.empty(size_bytes) for size_bytes in (MIB, LARGE_BYTES, 2 * LARGE_BYTES)]
    held.clear()
    arena.empty(MIB)
    assert arena.size_bytes == SLAB_BYTES + 3 * LARGE_BYTES
    monkeypatch.setattr(arena_module, "MOST_IDLE_S", 0.0)
    kept = arena.empty(MIB)
    assert arena.size_bytes == SLAB_BYTES
    del kept
    arena.empty(LARGE_BYTES)
    assert arena.size_bytes == LARGE_BYTES, "slabs too"


def test_slabs_that_no_array_lies_in_count_as_memory_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "MOST_IDLE_BYTES", 2 * SLAB_BYTES)
    arena = Arena()
    held = [arena.empty(MOST_SLAB_BLOCK_BYTES) for _ in range(6 * SLAB_BYTES // MOST_SLAB_BLOCK_BYTES)]
    assert arena.size_bytes == 6 * SLAB_BYTES
    held.clear()
    held = [arena.empty(SLAB_BYTES) for _ in range(6)]
    assert arena.size_bytes == (6 + 2) * SLAB_BYTES


def test_an_array_is_found_wherever_segments_came_and_went() -> None:
    arena, chance = Arena(), random.Random(3)
    live: list[np.ndarray] = []
    for _ in range(300):
        live.append(arena.empty(chance.choice((50_000, LARGE_BYTES, 2 * LARGE_BYTES))))
        if len(live) > 5:
            live.pop(chance.randrange(len(live)))
        if chance.random() < 0.1:
            arena.rest()
        for array in live:
            found = arena.find(array[4096:])
            assert found is not None and found[0].address + found[1] == place_of(array) + 4096
    assert arena.find(np.zeros(100_000)) is None


def test_threads_may_ask_drop_and_rest_at_the_same_time() -> None:
    arena, go_on = Arena(), threading.Event()

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        live: list[np.ndarray] = []
        for _ in range(400):
            array = arena.empty(chance.choice((40_000, 400_000, LARGE_BYTES)))
            array[0] = array[-1] = seed
            live.append(array)
            del array
            if len(live) > 4:
                dropped = live.pop(chance.randrange(len(live)))
                assert dropped[0] == dropped[-1] == seed

    def rest() -> None:
        while not go_on.wait(0):
            arena.rest()

    with ThreadPoolExecutor(4) as pool:
        resting = pool.submit(rest)
        try:
            for done in [pool.submit(ask, seed) for seed in range(3)]:
                done.result(DEADLINE_S)
        finally:
            go_on.set()
        resting.result(DEADLINE_S)
    arena.rest()
    assert arena.size_bytes == 0


def test_an_arena_that_rests_does_not_outlive_its_owner() -> None:
    arena = Arena()
    array = arena.empty(LARGE_BYTES)
    arena.rest()
    known = weakref.ref(arena)
    del arena
    assert known() is None
    array[0] = 1
    del array
