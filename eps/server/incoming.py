"""Receives partitions: prepares their memory before they arrive, and stores their arrays afterwards.

The first touch of new memory is expensive, far more than sending, checking and copying a byte.  So a low-priority
thread touches the memory before the partitions are sent, while the job trains.  Received arrays are kept in place, or
copied once into prepared memory.  Without it the arrival of 240 MB takes 9 to 20 times as long (a virtual machine; 2 to
9 s against 0.25 to 0.55 s).

Source: EPS §3.1.2 (server-to-server transmission beside training), Fig. 6 (the new server is prepared first).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from eps.core import messages as m
from eps.net.arrays.api import Message, Van
from eps.net.arrays.frames import Checksum
from eps.net.arrays.memory import MOST_IDLE_BYTES, touch
from eps.server.partition_store import PartitionStore
from eps.spec.runtime import Runtime

logger = logging.getLogger(__name__)

#: Upper bound for the small arrays of a snapshot, in float32.
_SMALL_KEYS = 16 << 10
#: Most memory that is prepared, in bytes: the process does not retain more when it is freed.
MOST_READY_BYTES = MOST_IDLE_BYTES
#: Longest preparation, for which a plan waits: on a busy machine training may leave little time.
MOST_READY_S = 5.0
#: Niceness of the thread that touches memory: training has priority.
_NICE = 19
#: Size of copied pieces, so that a piece is still in the cache when its checksum is computed.
_PIECE_BYTES = 1 << 18
#: A received array is kept in place if at most this share of its memory holds other data.
_MOST_WASTE = 1 / 16


class Preparations:
    """Prepares memory for the partitions of each plan that adds this server.

    Parameters
    ----------
    runtime : Runtime
    van : Van
    report : callable
        Sends a report to the job master.
    """

    def __init__(self, runtime: Runtime, van: Van, report: Callable[[m.Report], None]) -> None:
        self._runtime = runtime
        self._van = van
        self._report = report
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        self._done: set[int] = set()
        self._stopped = False

    def begin(self, done: m.ListsUpdated, partitions: Sequence[int]) -> None:
        """Report ``done`` when the arrays of ``partitions`` can be received; at once if nothing is to be prepared.

        A repeated order is answered when the preparation ends.
        """
        plan_id = done.plan_id
        with self._lock:
            if plan_id in self._under_way:
                return
            if partitions and plan_id not in self._done:
                self._under_way.add(plan_id)
                thread = threading.Thread(target=self._run, args=(done, tuple(partitions)), name="prepare", daemon=True)
                thread.start()
                return
        self._report(done)

    def stop(self) -> None:
        """Stop the preparation."""
        self._stopped = True

    def _run(self, done: m.ListsUpdated, partitions: Sequence[int]) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            self._touch(partitions)
        except (MemoryError, OSError) as error:
            # Arrival is only slower without, if there is memory at all.
            logger.warning("memory for plan %d was not prepared: %s", done.plan_id, error)
        finally:
            with self._lock:
                self._under_way.discard(done.plan_id)
                self._done.add(done.plan_id)
            self._report(done)

    def _touch(self, partitions: Sequence[int]) -> None:
        """Touch and free the memory of snapshots and first steps; later allocations of these sizes reuse it."""
        runtime, van = self._runtime, self._van
        slots = len(runtime.optimizer.initial_slots(np.empty(0, np.float32), None))
        dense = runtime.settings.bsp and not runtime.sparse
        # All of it is allocated before any is freed, so that no memory is touched twice.
        first: list[np.ndarray] = []
        versions: list[np.ndarray] = []
        sums: list[np.ndarray] = []
        room_bytes = MOST_READY_BYTES
        for start, stop in (runtime.ranges[partition] for partition in partitions):
            length = stop - start
            room_bytes -= 4 * length * (1 + slots + 2 * dense)
            if room_bytes < 0:
                break
            # Unless the van lends memory, parameters are received together with small arrays.
            first.append(van.empty(length if van.lends else length + length // 64 + _SMALL_KEYS, np.float32))
            first += [np.empty(length, np.float32) for _ in range(slots)]
            if dense:
                versions.append(van.empty(length, np.float32))
                sums.append(np.empty(length, np.float32))
        deadline_s = time.monotonic() + MOST_READY_S
        # In the order of use.
        for array in (*first, *versions, *sums):
            if self._stopped or time.monotonic() > deadline_s:
                break
            touch(array)
        if partitions:
            # Loads the kernels, which happens with the first partition.
            PartitionStore(runtime, partitions[0], None)


def own_arrays(message: Message, van: Van | None) -> tuple[list[np.ndarray], str]:
    """Return the arrays of a snapshot as this server's own, and the checksum of their message.

    Parameters
    ----------
    message : Message
        As received; the caller must not use its arrays afterwards.
    van : Van or None
        Sends the parameters later; None if they are only kept.

    Returns
    -------
    arrays : list of ndarray
        Writable.  The first of float32, the parameters, lies where ``van`` sends with the fewest copies.
    checksum : str
        See :func:`eps.net.arrays.frames.checksum_of`.  Computed on arrival if possible, otherwise here from the stored
        arrays.
    """
    arrays, arrived = message.arrays, "" if message.seal is None else message.seal.arrived
    checksum = Checksum(message.header)
    taken = []
    # The van's memory is scarce: only the parameters, which others read, are stored in it.
    parameters = next((array for array in arrays if array.dtype == np.float32), None)
    for array in arrays:
        if _keepable(array, van):
            if not arrived:
                checksum.add(array)
            taken.append(array)
            continue
        mine = van.empty(array.shape, array.dtype) if van is not None and array is parameters else np.empty_like(array)
        source, target = array.reshape(-1).view(np.uint8), mine.reshape(-1).view(np.uint8)
        for start in range(0, source.size, _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            np.copyto(piece, source[start : start + _PIECE_BYTES])
            if not arrived:
                checksum.add(piece)
        taken.append(mine)
    return taken, arrived or checksum.hexdigest()


def _keepable(array: np.ndarray, van: Van | None) -> bool:
    """Return whether an array can stay where it was received: in private memory that holds little else."""
    if (van is not None and van.lends) or not array.flags.writeable or array.ndim != 1 or not array.nbytes:
        return False
    whole: np.ndarray = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return (whole.nbytes - array.nbytes) <= array.nbytes * _MOST_WASTE
