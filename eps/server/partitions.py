"""The partitions of a server: initial values, memory, and registered key sets.

Source: Li et al. 2014 (Parameter Server), section 3.4 (key caching).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from eps.core import server_events as s
from eps.errors import ProtocolError, StorageError, TransferError
from eps.net.arrays.api import Van
from eps.net.arrays.memory import give_back
from eps.net.messages.exchange import PullPart, PushPart
from eps.server.partition_store import PartitionStore
from eps.spec.runtime import Runtime
from eps.storage.checkpoint import CheckpointStore, Manifest
from eps.storage.jobdir import JobDir

#: Bytes of key sets that a server caches; a worker resends an evicted set.
MOST_KEYSET_BYTES = 512 << 20
#: A key set is evicted if no worker used it for this many clocks: those of drawn batches are used at one clock.
KEYSET_CLOCKS = 16
#: Bytes of a row.  A partition's version keeps the memory of its whole row alive.
ROW_BYTES = 4 << 20


class KeySets:
    """Key sets by partition and digest.  Not thread-safe; the server's lock guards it.

    Parameters
    ----------
    keep_clocks : int
        Clocks without use after which a set is evicted.
    period_clocks : int
        Clocks after which the set of a split that does not draw batches comes again.
    """

    def __init__(self, keep_clocks: int = KEYSET_CLOCKS, period_clocks: int = 1) -> None:
        #: Each with the clock of its last use; the least recently used first.
        self._known: OrderedDict[tuple[int, bytes], tuple[np.ndarray, int]] = OrderedDict()
        self._size_bytes = 0
        self._keep_clocks, self._period_clocks = keep_clocks, period_clocks
        #: The latest clock of a part.
        self._clock = 0

    def fill_in(self, part: PushPart | PullPart) -> bool:
        """Add the keys of its key set to a part; return False if the set is unknown.

        Raises
        ------
        ProtocolError
            Keys without a digest.
        """
        if part.keys is not None and not part.keyset:
            raise ProtocolError(f"a part of partition {part.partition} has keys but no digest of them")
        if not part.keyset:
            return True
        self._clock = max(self._clock, part.clock if isinstance(part, PushPart) else part.min_clock)
        name = part.partition, part.keyset
        if name not in self._known:
            if part.keys is None:
                return False
            self.register(*name, part.keys)
        part.keys = self._known[name][0]
        self._known[name] = part.keys, self._clock
        self._known.move_to_end(name)
        return True

    def register(self, partition: int, digest: bytes, keys: np.ndarray) -> None:
        """Cache a key set; evict those without use for long, and the least recently used if there are too many."""
        if (partition, digest) in self._known:
            return
        # Copied, because the received array keeps its whole message in memory.
        self._known[partition, digest] = keys.copy(), self._clock
        self._size_bytes += keys.nbytes
        while len(self._known) > 1:
            oldest, (forgotten, used) = next(iter(self._known.items()))
            if self._size_bytes <= MOST_KEYSET_BYTES and used >= self._clock - self._keep_clocks:
                break
            del self._known[oldest]
            self._size_bytes -= forgotten.nbytes

    def of(self, partition: int) -> dict[bytes, np.ndarray]:
        """Return the key sets of a partition that may come again, by digest: those of drawn batches do not."""
        since = self._clock - self._period_clocks
        return {
            digest: keys
            for (owner, digest), (keys, used) in self._known.items()
            if owner == partition and used >= since
        }

    def forget(self, partition: int) -> None:
        """Forget the key sets of a partition."""
        for name in [name for name in self._known if name[0] == partition]:
            self._size_bytes -= self._known.pop(name)[0].nbytes


class _Row:
    """Partitions that share memory, allocated when the first of them needs it."""

    def __init__(self) -> None:
        self.length = 0
        self.memory: np.ndarray | None = None


class Rows:
    """Memory for the parameters after a step, by partition and clock; contiguous for small partitions.

    Contiguous partitions are sent as one array (``eps.net.messages.exchange``) and allocated at once.  For small
    partitions, allocating, lending and describing an array takes longer than the step.  Without it a clock of small
    partitions takes 1.07 to 1.19 times as long (64 of 1,000 keys, 12 of 10,000 keys; shared memory).

    The server's lock guards it; two of its threads may request memory.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Keys [start, stop) of each partition of the job.
    here : collection of int
        The partitions of this server; changes over time.
    empty : callable
        Returns memory for a number of float32.
    """

    def __init__(
        self, ranges: Sequence[tuple[int, int]], here: Collection[int], empty: Callable[[int], np.ndarray]
    ) -> None:
        self._ranges = ranges
        self._here = here
        self._empty = empty
        self._lock = threading.Lock()
        self._clock: int | None = None
        #: Partitions without memory for the current clock -> their row and offset.
        self._places: dict[int, tuple[_Row, int]] = {}

    def memory(self, partition: int, clock: int) -> np.ndarray:
        """Return uninitialised memory, shape (keys of the partition,), float32, for its parameters after ``clock``.

        Partitions and clocks may come in any order; only requests for the same clock are contiguous.
        """
        start, stop = self._ranges[partition]
        with self._lock:
            if self._clock is None or clock > self._clock:
                self._clock = clock
                self._places = self._layout()
            row, at = self._places.pop(partition, (None, 0)) if clock == self._clock else (None, 0)
            if row is None:
                return self._empty(stop - start)
            if row.memory is None:
                row.memory = self._empty(row.length)
            return row.memory[at : at + stop - start]

    def restart(self) -> None:
        """Restart with the next requested clock, which may be an earlier one."""
        self._clock = None

    def _layout(self) -> dict[int, tuple[_Row, int]]:
        places: dict[int, tuple[_Row, int]] = {}
        row = _Row()
        for partition in sorted(self._here):
            start, stop = self._ranges[partition]
            if row.length and 4 * (row.length + stop - start) > ROW_BYTES:
                row = _Row()
            places[partition] = row, row.length
            row.length += stop - start
        return places


def initial_values(runtime: Runtime, start: int, stop: int) -> np.ndarray:
    """Return the values of the keys [start, stop) at clock 0, float32.

    Raises
    ------
    StorageError
        The file with the initial parameters is missing or has another size.
    """
    if not runtime.spec.training.init:
        return runtime.key_space.initial_values(start, stop, runtime.spec.seed)
    path = JobDir(runtime.job_dir).initial
    try:
        flat = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: cannot read the initial parameters: {error}") from error
    if flat.shape != (runtime.key_space.num_keys,):
        raise StorageError(f"{path} has {flat.shape} values; the model has {runtime.key_space.num_keys} keys")
    return np.array(flat[start:stop], dtype=np.float32)


def counters(manifest: Manifest) -> dict[int, s.Counters]:
    """Return the progress of each partition, from a checkpoint's manifest."""
    return {p.partition: s.Counters(p.next_clock, p.applied, p.duplicates_refused) for p in manifest.parts}


def load_partitions(
    store: CheckpointStore, name: str, held: Sequence[int], runtime: Runtime, empty: Callable[[int], np.ndarray]
) -> tuple[dict[int, PartitionStore], dict[int, s.Counters]]:
    """Return the partitions ``held`` from the checkpoint ``name``, and the progress of every partition in it.

    Raises
    ------
    StorageError
        The checkpoint or a needed file of it is missing or damaged.
    """
    manifest = store.manifest(name)
    found = {partition: load_partition(store, manifest, partition, runtime, empty)[0] for partition in held}
    return found, counters(manifest)


def load_partition(
    store: CheckpointStore,
    manifest: Manifest,
    partition: int,
    runtime: Runtime,
    empty: Callable[[int], np.ndarray] | None = None,
) -> tuple[PartitionStore, s.Counters]:
    """Return a partition from a checkpoint.  Has no side effects, so a running server may call it.

    Parameters
    ----------
    store : CheckpointStore
    manifest : Manifest
        Of a checkpoint of this job; see :meth:`~eps.storage.checkpoint.CheckpointStore.latest_valid`.
    partition : int
    runtime : Runtime
    empty : callable, optional
        See :class:`~eps.server.partition_store.PartitionStore`.

    Raises
    ------
    StorageError
        The partition's file is missing or damaged, or contains another partition.
    """
    memory = () if empty is None else (empty,)
    loaded = PartitionStore(runtime, partition, None, *memory)
    try:
        loaded.install(store.read_part(manifest, partition))
    except TransferError as error:
        raise StorageError(f"checkpoint {manifest.name}: {error}") from error
    return loaded, counters(manifest)[partition]


class Partitions:
    """Partitions by number.  The server's lock guards it; only :meth:`empty`, :meth:`new` and
    :meth:`copied` are thread-safe.

    Parameters
    ----------
    runtime : Runtime
    van : Van
        Allocates the memory from which parameters are sent.
    """

    def __init__(self, runtime: Runtime, van: Van) -> None:
        self._runtime = runtime
        self._van = van
        self.stores: dict[int, PartitionStore] = {}
        # Each part of the splits has its own key set, which comes again after a clock of each part.
        self.keysets = KeySets(KEYSET_CLOCKS + runtime.model.parts, runtime.model.parts)
        #: Partitions restored from a checkpoint that are not in use yet.
        self._restored: dict[int, PartitionStore] = {}
        self._rows = Rows(runtime.ranges, self.stores, self.empty)

    def empty(self, length: int) -> np.ndarray:
        """Return memory for ``length`` float32, from which the van sends with the fewest copies."""
        return self._van.empty(length, np.float32)

    def new(self, partition: int, values: np.ndarray | None) -> PartitionStore:
        """Return a partition that is not in use yet."""
        return PartitionStore(self._runtime, partition, values, self.empty, partial(self._rows.memory, partition))

    def copied(self, partition: int, kept: Sequence[np.ndarray]) -> PartitionStore:
        """Return a partition that is not in use yet, from a copy of ``kept``."""
        state, values, *others = kept
        mine = self.empty(len(values))
        np.copyto(mine, values)
        found = self.new(partition, None)
        found.install([state.copy(), mine, *(array.copy() for array in others)])
        return found

    def set_restored(self, stores: dict[int, PartitionStore]) -> None:
        """Set the partitions that were restored from the checkpoint of a start or rollback."""
        self._restored = stores
        self._rows.restart()

    def create(self, partition: int, kept: Sequence[np.ndarray] | None = None) -> None:
        """Create a partition for a start or rollback: from its checkpoint, its seed, or a copy of ``kept``.

        ``kept`` comes from :meth:`~eps.server.partition_store.PartitionStore.snapshot`.
        """
        found = self._restored.pop(partition, None)
        if kept is not None:
            found = self.copied(partition, kept)
        elif found is None:
            start, stop = self._runtime.ranges[partition]
            found = self.new(partition, initial_values(self._runtime, start, stop))
        self.stores[partition] = found

    def drop(self, partition: int) -> None:
        """Free a partition and its key sets."""
        self.stores.pop(partition, None)
        self.keysets.forget(partition)

    def give_back(self) -> None:
        """Return freed memory to the system, if no partition is left."""
        if not self.stores:
            give_back()
