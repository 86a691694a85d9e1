"""Partitions from a checkpoint: for a server that starts, and for one whose job goes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from eps.core.server_events import Counters
from eps.errors import StorageError, TransferError
from eps.server.partition_store import PartitionStore
from eps.spec.runtime import Runtime
from eps.storage.checkpoint import CheckpointStore, Manifest


def counters(manifest: Manifest) -> dict[int, Counters]:
    """Return what a checkpoint says of each partition beside its arrays."""
    return {p.partition: Counters(p.next_clock, p.applied, p.duplicates_refused) for p in manifest.parts}


def load_partitions(
    store: CheckpointStore, name: str, held: Sequence[int], runtime: Runtime, empty: Callable[[int], np.ndarray]
) -> tuple[dict[int, PartitionStore], dict[int, Counters]]:
    """Return the partitions ``held`` as the checkpoint ``name`` holds them, and what it says of every partition.

    Raises
    ------
    StorageError
        The checkpoint, or the file of one of them, is missing or damaged.
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
) -> tuple[PartitionStore, Counters]:
    """Return a partition as a checkpoint holds it.  Touches nothing else, so a server that runs may call it.

    Parameters
    ----------
    store : CheckpointStore
    manifest : Manifest
        Of a checkpoint of this job; see :meth:`~eps.storage.checkpoint.CheckpointStore.latest_valid`.
    partition : int
    runtime : Runtime
    empty : callable, optional
        As of :class:`~eps.server.partition_store.PartitionStore`.

    Raises
    ------
    StorageError
        Its file is missing or damaged, or holds another partition.
    """
    memory = () if empty is None else (empty,)
    loaded = PartitionStore(runtime, partition, None, *memory)
    try:
        loaded.install(store.read_part(manifest, partition))
    except TransferError as error:
        raise StorageError(f"checkpoint {manifest.name}: {error}") from error
    return loaded, counters(manifest)[partition]
