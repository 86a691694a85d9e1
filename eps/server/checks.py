"""Validation of pushes, pulls, updates and snapshots, before anything is done with them.

A peer that sends an invalid message gets an error; the partition and all other peers are unaffected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from eps.errors import ProtocolError
from eps.net.messages.exchange import PullPart, PushPart, keyset_digest
from eps.pb import data_pb2 as pb
from eps.server.partition_store import UpdateData
from eps.spec.runtime import Runtime

_FLOAT32 = np.dtype(np.float32)
_LARGEST_BITS = np.finfo(np.float32).max.view(np.uint32)


def check_parts(runtime: Runtime, parts: Iterable[PushPart | PullPart]) -> None:
    """Raise ProtocolError unless the job has the partitions, and attached keys belong to them."""
    ranges = runtime.ranges
    for part in parts:
        if part.partition >= len(ranges):
            raise ProtocolError(f"a part for partition {part.partition}; the job has {len(ranges)} partitions")
        if part.keys is not None:
            _check_keys(part.partition, ranges[part.partition], part.keyset, part.keys)


def _check_keys(partition: int, bounds: tuple[int, int], digest: bytes, keys: np.ndarray) -> None:
    start, stop = bounds
    if len(keys) and not (start <= keys[0] and keys[-1] < stop):
        rule = f"which has {start} to {stop - 1}"
        raise ProtocolError(f"keys {keys[0]} to {keys[-1]} for partition {partition}, {rule}")
    if keyset_digest(keys) != digest:
        raise ProtocolError(f"keys for partition {partition} do not match their digest")


def divided(arrays: Sequence[np.ndarray], num_keysets: int) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
    """Split the arrays of a message into those of the snapshot and the keys of its key sets.

    Raises
    ------
    ProtocolError
        Fewer arrays than key sets, or key sets that are not int64 in one dimension.
    """
    if num_keysets > len(arrays):
        raise ProtocolError(f"a snapshot of {len(arrays)} arrays with {num_keysets} key sets")
    keysets = arrays[len(arrays) - num_keysets :]
    if any(keys.dtype != np.int64 or keys.ndim != 1 for keys in keysets):
        raise ProtocolError("a snapshot has key sets that are not one-dimensional int64")
    return arrays[: len(arrays) - num_keysets], keysets


def check_keysets(runtime: Runtime, partition: int, digests: Sequence[bytes], keysets: Sequence[np.ndarray]) -> None:
    """Check the key sets of a snapshot, before any of them is registered.

    Parameters
    ----------
    runtime : Runtime
    partition : int
        The snapshot's; :func:`check_snapshot` must have accepted it.
    digests : sequence of bytes
        The snapshot's names of the key sets.
    keysets : sequence of ndarray
        From :func:`divided`: each int64, shape (k,).

    Raises
    ------
    ProtocolError
        Keys are not ascending and unique, are outside the partition, or do not match their digest.
    """
    if len(digests) != len(keysets):
        raise ProtocolError(f"a snapshot has {len(keysets)} key sets, but names {len(digests)}")
    for digest, keys in zip(digests, keysets, strict=True):
        if not np.all(keys[1:] > keys[:-1]):
            raise ProtocolError(f"a snapshot of partition {partition} has keys that are not ascending and unique")
        _check_keys(partition, runtime.ranges[partition], digest, keys)


def check_pushes(runtime: Runtime, pushes: Sequence[PushPart]) -> None:
    """Raise ProtocolError unless the arrays of pushes have the types and sizes of their partitions.

    Keys must be filled in before.
    """
    ranges, reproducible, block_keys = runtime.ranges, runtime.settings.reproducible, runtime.grid.block_keys
    dtype = runtime.grid.dtype if reproducible else _FLOAT32
    for push in pushes:
        start, stop = ranges[push.partition]
        size = stop - start if push.keys is None else len(push.keys)
        if reproducible and push.clock < 0:
            size = 0
        total, maxima = push.total, push.maxima
        if total.dtype != dtype or total.shape != (size,):
            raise _misfit(push, "sum", total, dtype, size)
        blocks = -(-(stop - start) // block_keys) if reproducible else 0
        if maxima.dtype != _FLOAT32 or maxima.shape != (blocks,):
            raise _misfit(push, "maxima", maxima, _FLOAT32, blocks)
        if push.raw:
            _check_raw(runtime, push, blocks)
    # All at once, because one by one this would dominate the check.
    if pushes and not _are_magnitudes(np.concatenate([push.maxima for push in pushes])):
        bad = next(push.partition for push in pushes if not _are_magnitudes(push.maxima))
        raise ProtocolError(f"a push to partition {bad} has maxima that are negative, infinite or NaN")


def _are_magnitudes(maxima: np.ndarray) -> bool:
    # As bits, magnitudes keep their order, and negative, infinite and NaN values are larger than all of them.
    return bool(np.maximum.reduce(maxima.view(np.uint32), initial=0) <= _LARGEST_BITS)


def _check_raw(runtime: Runtime, push: PushPart, blocks: int) -> None:
    for split, block, values in push.raw:
        if split not in push.splits or not 0 <= block < blocks:
            raise ProtocolError(f"a push to partition {push.partition}: raw block {block} of split {split} is invalid")
        expected = _keys_in_block(runtime, push, block)
        if len(values) != expected:
            raise ProtocolError(f"block {block} of partition {push.partition} has {expected} keys, not {len(values)}")


def _keys_in_block(runtime: Runtime, push: PushPart, block: int) -> int:
    start, stop = runtime.ranges[push.partition]
    size = runtime.key_space.block_keys
    first = start + block * size
    last = min(first + size, stop)
    if push.keys is None:
        return last - first
    a, b = np.searchsorted(push.keys, (first, last))
    return int(b - a)


def _misfit(push: PushPart, name: str, array: np.ndarray, dtype: np.dtype, size: int) -> ProtocolError:
    return ProtocolError(
        f"a push to partition {push.partition} has {name} {array.dtype}{array.shape}; expected {dtype}({size},)"
    )


def check_snapshot(runtime: Runtime, header: pb.PartitionSnapshot | pb.PartitionCut) -> None:
    """Raise ProtocolError unless the job has the partition, and the clocks, one for each split, are valid.

    :meth:`eps.server.partition_store.PartitionStore.install` checks its arrays.
    """
    if isinstance(header, pb.PartitionCut):
        what, clock = "a cut", header.clock
    else:
        what, clock = "a snapshot", header.completed
    _check_transferred(runtime, what, header.partition)
    settings = runtime.settings
    if len(header.next_clock) != settings.num_splits:
        raise ProtocolError(
            f"{what} of partition {header.partition} has the clocks of {len(header.next_clock)} splits; "
            f"the job has {settings.num_splits}"
        )
    clocks = [clock, *header.next_clock]
    if not all(settings.seeded_clock <= clock <= settings.iterations for clock in clocks):
        raise ProtocolError(
            f"{what} of partition {header.partition} is of clocks {min(clocks)} to {max(clocks)}; "
            f"the job has {settings.seeded_clock} to {settings.iterations}"
        )


def check_update(runtime: Runtime, header: pb.PartitionUpdate, arrays: Sequence[np.ndarray]) -> None:
    """Raise ProtocolError unless an owner's update has splits, keys and arrays that fit its partition.

    Called before the pure state counts the update, because a counted update must be applicable.
    """
    partition, settings = header.partition, runtime.settings
    _check_transferred(runtime, "an update", partition)
    what = f"an update of partition {partition}"
    if len(arrays) != 2 + header.sparse:
        raise ProtocolError(f"{what} came with {len(arrays)} arrays; expected {2 + header.sparse}")
    if not settings.seeded_clock <= header.clock < settings.iterations:
        raise ProtocolError(
            f"{what} is of clock {header.clock}; the job has {settings.seeded_clock} to {settings.iterations - 1}"
        )
    splits = header.splits
    if len(set(splits)) != len(splits) or not all(0 <= split < settings.num_splits for split in splits):
        raise ProtocolError(
            f"{what} is of splits {list(splits)}; the job has 0 to {settings.num_splits - 1}, each named once"
        )
    if not (math.isfinite(header.rate_scale) and header.rate_scale >= 0.0):
        raise ProtocolError(f"{what} has a rate scale of {header.rate_scale}; expected a finite number >= 0")
    start, stop = runtime.ranges[partition]
    size = 0 if header.clock < 0 else stop - start
    if header.sparse:
        keys = arrays[2]
        if keys.dtype != np.int64 or keys.ndim != 1:
            raise ProtocolError(f"{what} has keys {keys.dtype}{keys.shape}; expected one-dimensional int64")
        if len(keys) and not (0 <= keys[0] and keys[-1] < size and np.all(keys[1:] > keys[:-1])):
            raise ProtocolError(f"{what} has keys that are not ascending from 0 to {size - 1}")
        size = len(keys)
    blocks = runtime.grid.num_blocks(stop - start) if settings.reproducible else 0
    for name, array, dtype, length in (
        ("gradient", arrays[0], _FLOAT32, size),
        ("exponents", arrays[1], np.dtype(np.int16), blocks),
    ):
        if array.dtype != dtype or array.shape != (length,):
            raise ProtocolError(f"{what} has {name} {array.dtype}{array.shape}; expected {dtype}({length},)")


def _check_transferred(runtime: Runtime, what: str, partition: int) -> None:
    if not 0 <= partition < len(runtime.ranges):
        raise ProtocolError(f"{what} of partition {partition}; the job has {len(runtime.ranges)} partitions")


def update_data(header: pb.PartitionUpdate, arrays: Sequence[np.ndarray]) -> UpdateData:
    """Return the data of an owner's update; :func:`check_update` must have accepted it."""
    return UpdateData(arrays[0], arrays[2] if header.sparse else None, arrays[1], header.rate_scale)
