"""Writes a server's partitions of a checkpoint while training continues.

A partition is copied at the checkpoint's clock in one of two ways: by the writer's thread, or earlier if something is
about to change it.  Between the end of a clock and the next step, while workers compute, nothing changes it.  So
usually only one copy is in memory at a time.

Files are written and synced on one low-priority thread, without the server's lock.

Training does not depend on it: any error here fails the checkpoint, is reported as ``CheckpointPartFailed``, and stops
neither the thread nor the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.checkpoints import checkpoint_name
from eps.core.types import MemberId
from eps.errors import EpsError, StorageError
from eps.server.partition_store import PartitionStore
from eps.storage.api import telling
from eps.storage.checkpoint import CheckpointStore, part_name
from eps.system import interrupt

logger = logging.getLogger(__name__)

#: Niceness of the writer's thread: training has priority.
NICENESS = 10


@dataclass
class _Queued:
    """A partition to write, with its copy once that is made."""

    command: s.TakeSnapshot
    arrays: Sequence[np.ndarray] | None = None


class CheckpointWriter:
    """Writes the partitions of the current checkpoint.

    Parameters
    ----------
    name : str
        The server's.
    store : CheckpointStore
    partitions : mapping of int to PartitionStore
        The partitions of this server; changes over time.
    lock : lock
        Guards the arrays of the partitions, and this object.
    report : callable
        Sends a report to the job master; called with or without ``lock``, never blocks.
    """

    def __init__(
        self,
        name: MemberId,
        store: CheckpointStore,
        partitions: Mapping[int, PartitionStore],
        lock: threading.Lock,
        report: Callable[[m.Report], None],
    ) -> None:
        self._name = name
        self._store = store
        self._partitions = partitions
        self._work = threading.Condition(lock)
        self._report = report
        self._order: m.TakeCheckpoint | None = None
        self._queued: dict[int, _Queued] = {}
        #: Reports about the checkpoint, repeated when its order is repeated.
        self._sent: dict[int, m.CheckpointPartWritten | m.CheckpointPartFailed] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def order(self, order: m.TakeCheckpoint) -> None:
        """Start the checkpoint of an order; a repeated order repeats the reports."""
        with self._work:
            if self._order is not None and order.checkpoint_id < self._order.checkpoint_id:
                return
            if self._order is None or order.checkpoint_id > self._order.checkpoint_id:
                self._order = order
                self._queued.clear()
                self._sent.clear()
            again = list(self._sent.values())
        for report in again:
            self._report(report)

    def take(self, command: s.TakeSnapshot) -> None:
        """Queue a partition for writing; called with the lock held.  Failures are reported."""
        self._queued[command.partition] = _Queued(command)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            try:
                thread.start()
            except Exception as error:
                self._fail(command, error)
                return
            self._thread = thread
        self._work.notify_all()

    def skip(self, command: s.SkipSnapshot) -> None:
        """Report that a partition is past the clock; called with the lock held."""
        self._send(m.CheckpointPartFailed(self._name, command.checkpoint_id, command.partition, command.why, late=True))

    def before_change(self, partition: int) -> None:
        """Copy a queued partition that is about to change; called with the lock held.

        Never raises: if memory is short, the partition is dropped from the queue, and that is reported.
        """
        waiting = self._queued.get(partition)
        if waiting is not None and waiting.arrays is None:
            try:
                waiting.arrays = self._partitions[partition].snapshot()[0]
            except Exception as error:
                self._fail(waiting.command, error)

    def forget(self) -> None:
        """Drop the current checkpoint, because the job rolls back to an earlier one."""
        with self._work:
            self._queued.clear()

    def close(self, patience_s: float = 0.0) -> None:
        """Stop writing; wait up to ``patience_s`` seconds for the current write."""
        with self._work:
            self._closed = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(patience_s)

    # ---- the writer's thread

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            # On Linux niceness belongs to threads.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._work:
                self._work.wait_for(lambda: self._closed or bool(self._queued))
                if self._closed:
                    return
                # Copied partitions first: they hold memory.
                partition = min(self._queued, key=lambda p: (self._queued[p].arrays is None, p))
                self.before_change(partition)
                waiting, order = self._queued.pop(partition, None), self._order
            if waiting is None:
                # The copy failed.
                continue
            assert order is not None and waiting.arrays is not None
            try:
                self._write(order, waiting.command, waiting.arrays)
            except Exception:
                # The reports are repeated when the order is.
                logger.exception("S[%s] checkpoint of clock %d: partition %d", self._name, order.clock, partition)

    def _write(self, order: m.TakeCheckpoint, command: s.TakeSnapshot, arrays: Sequence[np.ndarray]) -> None:
        partition, file = command.partition, part_name(command.partition, self._name)
        try:
            name = checkpoint_name(order.epoch, order.clock)
            with (
                interrupt.stopped_by(self._check_open),
                telling(
                    lambda why: self._report(m.CheckpointPartWaits(self._name, command.checkpoint_id, partition, why))
                ),
            ):
                size_bytes, checksum = self._store.write_part(name, file, arrays)
        except Exception as error:
            with self._work:
                self._fail(command, error)
            return
        report = m.CheckpointPartWritten(
            self._name,
            command.checkpoint_id,
            partition,
            file,
            size_bytes,
            checksum,
            command.counters.next_clock,
            command.counters.applied,
            command.counters.duplicates_refused,
        )
        with self._work:
            self._send(report)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("the server is ending, so the checkpoint is not written")

    def _fail(self, command: s.TakeSnapshot, error: Exception) -> None:
        """Report a partition that cannot be written, and drop the checkpoint; called with the lock held."""
        why = str(error) if isinstance(error, EpsError) else f"{type(error).__name__}: {error}"
        logger.warning(
            "S[%s] checkpoint %d, partition %d: %s", self._name, command.checkpoint_id, command.partition, why
        )
        # The checkpoint has failed, so copies of its other partitions only waste memory.
        failed = command.checkpoint_id
        self._queued = {p: v for p, v in self._queued.items() if v.command.checkpoint_id != failed}
        self._send(m.CheckpointPartFailed(self._name, command.checkpoint_id, command.partition, why, late=False))

    def _send(self, report: m.CheckpointPartWritten | m.CheckpointPartFailed) -> None:
        """Send a report and remember it; called with the lock held."""
        if self._order is not None and report.checkpoint_id == self._order.checkpoint_id:
            self._sent[report.partition] = report
        self._report(report)
