"""A checkpoint is read as it was written, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from eps.core.checkpoints import checkpoint_name
from eps.core.messages import CheckpointPartWritten
from eps.core.progress import ClockHistory, ClockRecord
from eps.errors import ConfigError, StorageError
from eps.storage.checkpoint import CheckpointStore, Manifest, part_name, read_part, write_part
from eps.storage.local import LocalStorage
from tests.fakes.storage import MemoryStorage, PowerCut, VolatileStorage

JOB = {"optimizer": "adam", "parameters": 100}
HISTORY = ClockHistory([ClockRecord(0, 10, 0.1 + 0.2, (1.5, 2.0), 0.25), ClockRecord(1, 10, float("inf"), (), 0.5)])


def arrays_of(partition: int) -> list[np.ndarray]:
    rng = np.random.default_rng(partition)
    return [
        np.array([3, 9], np.int64),
        rng.normal(size=50).astype(np.float32),
        np.empty(0, np.int32),
        rng.integers(-9, 9, 7).astype(np.int16),
    ]


def make(
    store: CheckpointStore, clock: int, *, epoch: int = 1, kept: Collection[str] | None = None, partitions: int = 2
) -> Manifest:
    """Make a checkpoint; None keeps every one that is there."""
    name, parts = checkpoint_name(epoch, clock), []
    for partition in range(partitions):
        file = part_name(partition, "server-1")
        size_bytes, checksum = store.write_part(name, file, arrays_of(partition + clock))
        parts.append(
            CheckpointPartWritten("server-1", 1, partition, file, size_bytes, checksum, (clock, clock), 2 * clock, 0)
        )
    kept = store.names() if kept is None else kept
    made = store.finish(Manifest(epoch, clock, JOB, tuple(parts), 2, 1, clock, ""), HISTORY)
    store.remove_earlier(made.name, kept)
    return made


def flip(storage: MemoryStorage, path: str, at: int) -> None:
    data = bytearray(storage.files[path])
    data[at] ^= 1
    storage.files[path] = bytes(data)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def store(storage: MemoryStorage) -> CheckpointStore:
    return CheckpointStore(storage)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = CheckpointStore(LocalStorage(tmp_path / "checkpoints"))
    made = make(store, 40)
    found, damaged = store.latest_valid(JOB)
    assert found == made and damaged == () and found is not None
    assert store.history(found) == HISTORY and found.first_clock == 40
    for partition in range(2):
        for mine, theirs in zip(arrays_of(partition + 40), store.read_part(found, partition), strict=True):
            assert mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes() and theirs.flags.writeable
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["0001-00000040"]


def test_every_torn_or_flipped_byte_of_a_part_is_found(storage: MemoryStorage) -> None:
    size_bytes, checksum = write_part(storage, "part", arrays_of(1))
    whole = storage.files["part"]
    assert len(whole) == size_bytes
    for at in range(size_bytes):
        storage.files["part"] = whole[:at]
        with pytest.raises(StorageError, match=r"(truncated|damaged)"):
            read_part(storage, "part", size_bytes, checksum)
        storage.files["part"] = whole
        flip(storage, "part", at)
        with pytest.raises(StorageError, match="part: "):
            read_part(storage, "part", size_bytes, checksum)
    storage.files["part"] = whole + b"\0"
    with pytest.raises(StorageError, match="damaged"):
        read_part(storage, "part", size_bytes, checksum)


def test_a_part_of_another_version_of_eps_is_refused(storage: MemoryStorage) -> None:
    size_bytes, checksum = write_part(storage, "part", arrays_of(1))
    storage.files["part"] = b"EPSPART1" + storage.files["part"][8:]
    with pytest.raises(StorageError, match="part: was written by another version of EPS"):
        read_part(storage, "part", size_bytes, checksum)


def test_a_part_of_another_time_is_not_the_manifests(storage: MemoryStorage) -> None:
    _, checksum = write_part(storage, "one", arrays_of(1))
    size_bytes, _ = write_part(storage, "two", arrays_of(2))
    with pytest.raises(StorageError, match="the manifest says"):
        read_part(storage, "two", size_bytes, checksum)


@pytest.mark.parametrize("file", ["manifest.json", "history.jsonl", "000.server-1.part", "001.server-1.part"])
@pytest.mark.parametrize("damage", ["torn", "flipped", "gone"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    store: CheckpointStore, storage: MemoryStorage, file: str, damage: str
) -> None:
    make(store, 10)
    make(store, 20)
    path = f"0001-00000020/{file}"
    if damage == "torn":
        storage.files[path] = storage.files[path][:-5]
    elif damage == "flipped":
        flip(storage, path, len(storage.files[path]) // 2)
    else:
        del storage.files[path]
    found, damaged = store.latest_valid(JOB)
    assert found is not None and found.clock == 10
    assert len(damaged) == 1 and path in damaged[0]


def test_every_flipped_byte_of_a_manifest_is_found_or_means_nothing(
    store: CheckpointStore, storage: MemoryStorage
) -> None:
    made = make(store, 10)
    path = "0001-00000010/manifest.json"
    for at in range(len(storage.files[path])):
        flip(storage, path, at)
        try:
            # A blank between two words may become another.
            assert store.manifest(made.name) == made
        except StorageError as error:
            assert path in str(error)
        flip(storage, path, at)


def test_no_valid_checkpoint_is_none_and_says_why(store: CheckpointStore, storage: MemoryStorage) -> None:
    assert store.latest_valid(JOB) == (None, ())
    make(store, 10)
    flip(storage, "0001-00000010/manifest.json", 30)
    found, damaged = store.latest_valid(JOB)
    assert found is None and len(damaged) == 1


def test_a_checkpoint_of_another_job_is_refused_with_the_difference(store: CheckpointStore) -> None:
    make(store, 10)
    with pytest.raises(ConfigError, match=r"'adam', .* 'sgd'"):
        store.latest_valid({**JOB, "optimizer": "sgd"})


def test_a_checkpoint_under_a_wrong_name_is_refused(store: CheckpointStore, storage: MemoryStorage) -> None:
    make(store, 10)
    storage.rename("0001-00000010", "0001-00000099")
    with pytest.raises(StorageError, match="manifest of 0001-00000010"):
        store.manifest("0001-00000099")


def test_names_are_sorted_the_latest_first_by_epoch_and_clock(store: CheckpointStore) -> None:
    for epoch, clock in ((1, 10), (2, 15), (1, 30)):
        make(store, clock, epoch=epoch)
    assert store.names() == ["0002-00000015", "0001-00000030", "0001-00000010"] and store.last_epoch() == 2


def test_a_new_checkpoint_stays_with_those_that_are_named_and_every_other_earlier_one_goes(
    store: CheckpointStore,
) -> None:
    for clock in (10, 20, 30):
        make(store, clock)
    make(store, 15, epoch=2, kept=("0001-00000020",))
    assert store.names() == ["0002-00000015", "0001-00000020"]
    make(store, 25, epoch=2, kept=())
    assert store.names() == ["0002-00000025"]


def test_a_damaged_checkpoint_takes_no_place_of_a_good_one(store: CheckpointStore, storage: MemoryStorage) -> None:
    make(store, 40)
    make(store, 50)
    flip(storage, "0001-00000050/000.server-1.part", 100)
    good, damaged = store.latest_valid(JOB)
    assert good is not None and good.clock == 40 and len(damaged) == 1
    make(store, 60, epoch=2, kept=(good.name,))
    assert store.names() == ["0002-00000060", "0001-00000040"]
    assert [store.verify(name).clock for name in store.names()] == [60, 40]


def test_a_checkpoint_is_complete_whatever_cannot_be_removed(
    store: CheckpointStore, storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    for clock in (10, 20):
        make(store, clock)
    storage.stuck.add("0001-00000010")
    made = make(store, 30, kept=())
    assert store.verify(made.name) == made and store.names() == [made.name, "0001-00000010"]
    assert "0001-00000010: cannot be removed" in caplog.text
    storage.stuck.clear()
    make(store, 40, kept=(made.name,))
    assert store.names() == ["0001-00000040", made.name]


def test_to_finish_again_removes_nothing_later(store: CheckpointStore) -> None:
    early = make(store, 20)
    late = make(store, 30)
    assert store.finish(dataclasses.replace(early, history=""), HISTORY) == early
    store.remove_earlier(early.name, ())
    assert store.names() == [late.name, early.name]


def test_a_checkpoint_in_its_place_is_complete_also_where_its_name_cannot_be_made_durable(
    store: CheckpointStore, storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    first = make(store, 10)
    storage.unsynced.add("0001-00000020")
    second = make(store, 20, kept=())
    assert store.verify(second.name) == second and "0001-00000020: cannot be synced" in caplog.text
    assert store.names() == [second.name, first.name], "the one before stays while the new name may still be lost"
    third = make(store, 30, kept=(second.name,))
    assert store.names() == [third.name, second.name]


def test_a_checkpoint_that_cannot_be_moved_to_its_place_has_failed(
    store: CheckpointStore, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: str, target: str) -> None:
        raise StorageError(f"{folder}: cannot be renamed to {target}: Input/output error")

    make(store, 10)
    monkeypatch.setattr(storage, "rename", refuse)
    with pytest.raises(StorageError, match="0001-00000020: Input"):
        make(store, 20, kept=())
    assert store.names() == ["0001-00000010"]


def test_what_was_begun_is_no_checkpoint_and_is_removed(store: CheckpointStore, storage: MemoryStorage) -> None:
    make(store, 10)
    store.write_part("0001-00000020", part_name(0, "server-1"), arrays_of(0))
    store.write_part("0001-00000030", part_name(0, "server-1"), arrays_of(0))
    assert store.names() == ["0001-00000010"]
    store.remove_leftovers(before="0001-00000030")
    assert storage.names("") == ["0001-00000010", "0001-00000030.partial"]
    store.discard("0001-00000030")
    assert storage.names("") == ["0001-00000010"]


def test_to_finish_twice_is_harmless(store: CheckpointStore) -> None:
    made = make(store, 10)
    assert store.finish(dataclasses.replace(made, history=""), HISTORY) == made


def test_parts_that_vanished_make_no_checkpoint(store: CheckpointStore, storage: MemoryStorage) -> None:
    made = make(store, 10)
    storage.remove(made.name)
    with pytest.raises(StorageError, match="disappeared"):
        store.finish(made, HISTORY)
    assert store.names() == []


def test_a_full_device_leaves_nothing_that_counts(store: CheckpointStore, storage: MemoryStorage) -> None:
    make(store, 10)
    storage.room_bytes = 100
    with pytest.raises(StorageError, match="No space left"):
        make(store, 20)
    storage.room_bytes, storage.read_only = None, True
    with pytest.raises(StorageError, match="Read-only"):
        make(store, 20)
    assert store.names() == ["0001-00000010"] and store.latest_valid(JOB)[0] is not None


def test_arrays_are_written_from_where_they_lie(tmp_path: Path) -> None:
    """Beyond the arrays themselves writing and reading take no memory that grows with them."""
    import tracemalloc

    storage, big = LocalStorage(tmp_path), [np.zeros(4 << 20, np.float32)]
    tracemalloc.start()
    size_bytes, checksum = write_part(storage, "part", big)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.reset_peak()
    read_part(storage, "part", size_bytes, checksum)
    assert tracemalloc.get_traced_memory()[1] < big[0].nbytes + (4 << 20)
    tracemalloc.stop()


def keep_one(storage: MemoryStorage, repeated: bool) -> None:
    """Take three checkpoints of which one is kept; another master says each ``repeated`` command again."""
    for clock in (10, 20, 30):
        store = CheckpointStore(storage)
        made = make(store, clock, kept=storage.names(""))
        if repeated:
            store = CheckpointStore(storage)
            store.finish(dataclasses.replace(made, history=""), HISTORY)
        store.remove_earlier(made.name, ())


@pytest.mark.parametrize("repeated", [False, True], ids=["one master", "another master"])
@pytest.mark.parametrize("unsynced", ["", "0001-00000020", "0001-00000030"])
def test_whenever_the_power_fails_a_checkpoint_is_whole_though_only_one_is_kept(unsynced: str, repeated: bool) -> None:
    begun = MemoryStorage()
    make(CheckpointStore(begun), 1)
    for cut_at in count():
        storage = VolatileStorage(cut_at)
        storage.files = dict(begun.files)
        storage.unsynced = {unsynced} - {""}
        with suppress(PowerCut):
            keep_one(storage, repeated)
        ended = storage.steps < cut_at
        storage.lose_power()
        found, _ = CheckpointStore(storage).latest_valid(JOB)
        assert found is not None, f"nothing is whole after step {cut_at}"
        if ended:
            break
    assert cut_at > 20
    if not unsynced:
        assert len(CheckpointStore(storage).names()) == (4 if repeated else 1)
