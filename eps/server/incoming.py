"""Partitions that come to a server: their memory, ready before they do, and their arrays, taken in once they have.

A byte of new memory is expensive the first time that it is touched, far more than to send, to check and to copy it.  So
that is done before the partitions are sent, while the job trains and nothing waits, by a thread that yields to others;
and what arrives is kept where it was received, or copied once, into memory that is ready.  Without memory that is ready
the arrival of 240 MB takes 9 to 20 times as long (a virtual machine; 2 to 9 s against 0.25 to 0.55 s).

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

#: More than the small arrays of a snapshot take, in float32.
_SMALL_KEYS = 16 << 10
#: Most memory that is got ready, in bytes: what is freed beyond it does not stay with the process.
MOST_READY_BYTES = MOST_IDLE_BYTES
#: How long a plan waits for it: on a busy machine training may leave little time.
MOST_READY_S = 5.0
#: Of the thread that touches memory: training goes first.
_NICE = 19
#: A copied piece is still in the cache when it gets its checksum.
_PIECE_BYTES = 1 << 18
#: An array is kept where it was received if it is all but this part of what was received with it.
_MOST_WASTE = 1 / 16


class Preparations:
    """Gets memory ready for the partitions of each plan that adds this server.

    Parameters
    ----------
    runtime : Runtime
    van : Van
    report : callable
        Takes what the job master is to be told.
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
        """Report ``done`` when the arrays of ``partitions`` can be received; at once where nothing is to be done.

        An order that is repeated while its memory is being touched is answered when that is done.
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
        """Touch nothing more."""
        self._stopped = True

    def _run(self, done: m.ListsUpdated, partitions: Sequence[int]) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            self._touch(partitions)
        except (MemoryError, OSError) as error:
            # It only makes them come slower, if there is memory for them at all.
            logger.warning("no memory is ready ahead for plan %d: %s", done.plan_id, error)
        finally:
            with self._lock:
                self._under_way.discard(done.plan_id)
                self._done.add(done.plan_id)
            self._report(done)

    def _touch(self, partitions: Sequence[int]) -> None:
        """Touch and free the memory of snapshots and of the first steps; who asks for as much next gets it."""
        runtime, van = self._runtime, self._van
        slots = len(runtime.optimizer.initial_slots(np.empty(0, np.float32), None))
        dense = runtime.settings.bsp and not runtime.sparse
        # All of it is asked for before any is freed: the same memory is not to be touched twice.
        first: list[np.ndarray] = []
        versions: list[np.ndarray] = []
        sums: list[np.ndarray] = []
        room_bytes = MOST_READY_BYTES
        for start, stop in (runtime.ranges[partition] for partition in partitions):
            length = stop - start
            room_bytes -= 4 * length * (1 + slots + 2 * dense)
            if room_bytes < 0:
                break
            # What is received, where it is not lent, has small arrays beside the parameters.
            first.append(van.empty(length if van.lends else length + length // 64 + _SMALL_KEYS, np.float32))
            first += [np.empty(length, np.float32) for _ in range(slots)]
            if dense:
                versions.append(van.empty(length, np.float32))
                sums.append(np.empty(length, np.float32))
        deadline_s = time.monotonic() + MOST_READY_S
        # In the order of their use.
        for array in (*first, *versions, *sums):
            if self._stopped or time.monotonic() > deadline_s:
                break
            touch(array)
        if partitions:
            # The kernels of a partition are loaded with the first one.
            PartitionStore(runtime, partitions[0], None)


def take_in(message: Message, van: Van) -> tuple[list[np.ndarray], str]:
    """Return the arrays of a snapshot as this server's own, and the checksum of the message that brought them.

    Parameters
    ----------
    message : Message
        As it was received.  The caller does not use its arrays afterwards.
    van : Van

    Returns
    -------
    arrays : list of ndarray
        Writable.  The first of float32, the parameters, lies where the van sends from with the fewest copies.
    checksum : str
        That of :func:`eps.net.arrays.frames.checksum_of`: of what is kept, not of what was read, where it had to be
        taken here, and else what was taken while it came.
    """
    arrays, arrived = message.arrays, "" if message.seal is None else message.seal.arrived
    checksum = Checksum(message.header)
    taken = []
    # Only what is read by others is worth memory of the van.
    parameters = next((array for array in arrays if array.dtype == np.float32), None)
    for array in arrays:
        if _keepable(array, van):
            if not arrived:
                checksum.add(array)
            taken.append(array)
            continue
        mine = van.empty(array.shape, array.dtype) if array is parameters else np.empty_like(array)
        source, target = array.reshape(-1).view(np.uint8), mine.reshape(-1).view(np.uint8)
        for start in range(0, source.size, _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            np.copyto(piece, source[start : start + _PIECE_BYTES])
            if not arrived:
                checksum.add(piece)
        taken.append(mine)
    return taken, arrived or checksum.hexdigest()


def _keepable(array: np.ndarray, van: Van) -> bool:
    """Return whether an array lies in memory of this process that holds little else, of the kind that the van gives."""
    if van.lends or not array.flags.writeable or array.ndim != 1 or not array.nbytes:
        return False
    whole: np.ndarray = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    return (whole.nbytes - array.nbytes) <= array.nbytes * _MOST_WASTE
