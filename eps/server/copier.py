"""Copies a server's partitions for a checkpoint or a cut while training continues.

A partition is copied at the ordered clock in one of two ways: by the copier's thread, or earlier if something is about
to change it.  Between the end of a clock and the next step, while workers compute, nothing changes it.  So usually only
one copy is being made at a time.

One low-priority thread delivers the copies, one after another, without the server's lock: to the checkpoint storage
(:class:`CheckpointSink`), or to the partition's BackupPS (``eps.server.cuts``).

Training does not depend on it: any error here fails the checkpoint or cut, is reported, and stops neither the thread
nor the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

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

#: Niceness of a copier's thread: training has priority.
NICENESS = 10

Order = TypeVar("Order")
Take = TypeVar("Take", s.TakeSnapshot, s.CopyForCut)
GivenOrder = TypeVar("GivenOrder", contravariant=True)
GivenTake = TypeVar("GivenTake", contravariant=True)


class Sink(Protocol[GivenOrder, GivenTake]):
    """Where copies go."""

    def copied(self, command: GivenTake, arrays: Sequence[np.ndarray]) -> None:
        """Receive a new copy; called with the server's lock held."""

    def deliver(self, order: GivenOrder, command: GivenTake, arrays: Sequence[np.ndarray]) -> m.Report:
        """Store or send a copy, on the copier's thread; return the report."""

    def failure(self, number: int, partition: int, why: str, late: bool) -> m.Report:
        """Return the report of a partition that was not copied or delivered.

        ``late`` says that it was past the clock when the order arrived.
        """


@dataclass
class _Queued(Generic[Take]):
    """A partition to deliver, with its copy once that is made."""

    command: Take
    arrays: Sequence[np.ndarray] | None = None


class Copier(Generic[Order, Take]):
    """Copies the partitions of the current checkpoint or cut.

    Parameters
    ----------
    what : str
        ``checkpoint`` or ``cut``: orders, commands and reports have its number as ``checkpoint_id`` or ``cut_id``.
    name : str
        The server's.
    sink : Sink
    partitions : mapping of int to PartitionStore
        The partitions of this server; changes over time.
    lock : lock
        Guards the arrays of the partitions, and this object.
    report : callable
        Sends a report to the job master; called with or without ``lock``, never blocks.
    """

    def __init__(
        self,
        what: str,
        name: MemberId,
        sink: Sink[Order, Take],
        partitions: Mapping[int, PartitionStore],
        lock: threading.Lock,
        report: Callable[[m.Report], None],
    ) -> None:
        self._what = what
        self._number: Callable[[Any], int] = attrgetter(f"{what}_id")
        self._name = name
        self._sink: Sink[Order, Take] = sink
        self._partitions = partitions
        self._work = threading.Condition(lock)
        self._report = report
        self._order: Order | None = None
        #: Partitions to deliver.
        self.queued: dict[int, _Queued[Take]] = {}
        #: Reports about the order by partition, repeated when it is repeated.
        self._sent: dict[int, m.Report] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def order(self, order: Order) -> None:
        """Start with an order; a repeated one repeats the reports."""
        with self._work:
            known, number = self._order, self._number(order)
            if known is not None and number < self._number(known):
                return
            if known is None or number > self._number(known):
                self._order = order
                self.queued.clear()
                self._sent.clear()
            again = list(self._sent.values())
        for report in again:
            self._report(report)

    def take(self, command: Take) -> None:
        """Queue a partition for delivery; called with the lock held.  Failures are reported."""
        if not self._is_current(command):
            # A later order, or a rollback, is about to reach the server's state.
            return
        self.queued[command.partition] = _Queued(command)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._what, daemon=True)
            try:
                thread.start()
            except Exception as error:
                self._fail(command, error)
                return
            self._thread = thread
        self._work.notify_all()

    def skip(self, command: s.SkipSnapshot | s.SkipCut) -> None:
        """Report that a partition is past the clock; called with the lock held."""
        partition = command.partition
        self._send(partition, self._sink.failure(self._number(command), partition, command.why, late=True))

    def before_change(self, partition: int) -> None:
        """Copy a queued partition that is about to change; called with the lock held.

        Never raises: if memory is short, the partition is dropped from the queue, and that is reported.
        """
        waiting = self.queued.get(partition)
        if waiting is not None and waiting.arrays is None:
            try:
                arrays = self._partitions[partition].snapshot()[0]
                self._sink.copied(waiting.command, arrays)
                waiting.arrays = arrays
            except Exception as error:
                self._fail(waiting.command, error)

    def forget(self) -> None:
        """Drop the current order, because the job rolls back."""
        with self._work:
            self._order = None
            self.queued.clear()
            self._sent.clear()

    def close(self, patience_s: float = 0.0) -> None:
        """Stop; wait up to ``patience_s`` seconds for the current delivery."""
        with self._work:
            self._closed = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(patience_s)

    # ---- the thread

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            # On Linux niceness belongs to threads.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._work:
                self._work.wait_for(lambda: self._closed or bool(self.queued))
                if self._closed:
                    return
                # Copied partitions first: they hold memory.
                partition = min(self.queued, key=lambda p: (self.queued[p].arrays is None, p))
                self.before_change(partition)
                waiting, order = self.queued.pop(partition, None), self._order
            if waiting is None:
                # The copy failed.
                continue
            assert order is not None and waiting.arrays is not None
            try:
                self._deliver(order, waiting.command, waiting.arrays)
            except Exception:
                # The reports are repeated when the order is.
                logger.exception("S[%s] %s %d: partition %d", self._name, self._what, self._number(order), partition)
            # Its memory can be reused while this thread waits.
            waiting = None

    def _deliver(self, order: Order, command: Take, arrays: Sequence[np.ndarray]) -> None:
        try:
            with interrupt.stopped_by(self._check_open):
                report = self._sink.deliver(order, command, arrays)
        except Exception as error:
            with self._work:
                self._fail(command, error)
            return
        with self._work:
            self._send(command.partition, report)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"the server is ending, so the {self._what} is not written")

    def _is_current(self, numbered: object) -> bool:
        return self._order is not None and self._number(numbered) == self._number(self._order)

    def _fail(self, command: Take, error: Exception) -> None:
        """Report a partition that cannot be delivered, and drop the others; called with the lock held."""
        why = str(error) if isinstance(error, EpsError) else f"{type(error).__name__}: {error}"
        number, partition = self._number(command), command.partition
        logger.warning("S[%s] %s %d, partition %d: %s", self._name, self._what, number, partition, why)
        # The checkpoint or cut has failed, so copies of its other partitions only waste memory.
        if self._is_current(command):
            self.queued.clear()
        self._send(partition, self._sink.failure(number, partition, why, late=False))

    def _send(self, partition: int, report: m.Report) -> None:
        """Send a report and remember it; called with the lock held."""
        if self._is_current(report):
            self._sent[partition] = report
        self._report(report)


class CheckpointSink:
    """Writes copies to the checkpoint storage; files are synced.

    Parameters
    ----------
    name : str
        The server's.
    store : CheckpointStore
    report : callable
        Sends a report to the job master.
    """

    def __init__(self, name: MemberId, store: CheckpointStore, report: Callable[[m.Report], None]) -> None:
        self._name = name
        self._store = store
        self._report = report

    def copied(self, command: s.TakeSnapshot, arrays: Sequence[np.ndarray]) -> None:
        """Do nothing: only the queue keeps the copy."""

    def deliver(self, order: m.TakeCheckpoint, command: s.TakeSnapshot, arrays: Sequence[np.ndarray]) -> m.Report:
        """Write a copy."""
        name, number, partition, counters = self._name, command.checkpoint_id, command.partition, command.counters
        file = part_name(partition, name)
        with telling(lambda why: self._report(m.CheckpointPartWaits(name, number, partition, why))):
            written = self._store.write_part(checkpoint_name(order.epoch, order.clock), file, arrays)
        return m.CheckpointPartWritten(
            name,
            number,
            partition,
            file,
            *written,
            counters.next_clock,
            counters.applied,
            counters.duplicates_refused,
        )

    def failure(self, number: int, partition: int, why: str, late: bool) -> m.Report:
        """Return the report of a partition that was not written."""
        return m.CheckpointPartFailed(self._name, number, partition, why, late)
