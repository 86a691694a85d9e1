"""Keeps a server's copies of partitions at the clocks of cuts, and sends them to the BackupPSs.

The pure state decides which copies are kept; see ``eps.core.cuts``.

Source: Proteus §3.2 (BackupPSs, updated in the background), §3.3 (rollback).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.types import MemberId
from eps.errors import DeadlineError, TransferError
from eps.net.arrays.api import Message, Peers, Seal
from eps.net.arrays.frames import checksum_of
from eps.net.messages import exchange as x
from eps.pb import data_pb2 as pb
from eps.server.copier import Copier
from eps.server.partition_store import PartitionStore, Snapshot, changed_keys, with_changes

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class CutOrder:
    """The order of a cut, and the incarnation in which it arrived."""

    cut_id: int
    kept: int
    backups: tuple[m.Target, ...]
    incarnation: int


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """A copy of a partition that its owner and its BackupPS have."""

    clock: int
    arrays: Snapshot

    def changes(self, arrays: Snapshot) -> tuple[Snapshot, str] | None:
        """Return the keys that differ from the copy, and the checksum of all; None if that is not smaller."""
        changed = changed_keys(arrays, self.arrays)
        return None if changed is None else (changed, checksum_of(b"", arrays))


class CutCopies:
    """The copies on one server, of its own partitions and as BackupPS.

    Called with the server's lock held, unless stated otherwise.

    Parameters
    ----------
    name : str
        The server's.
    partitions : mapping of int to PartitionStore
    peers : Peers
    lock : lock
        The server's.
    report : callable
        Sends a report to the job master.

    Attributes
    ----------
    copier : Copier
        Copies the partitions of this server.
    """

    def __init__(
        self,
        name: MemberId,
        partitions: Mapping[int, PartitionStore],
        peers: Peers,
        lock: threading.Lock,
        report: Callable[[m.Report], None],
    ) -> None:
        self._name = name
        self._peers = peers
        self._lock = lock
        #: By partition and clock: the number of the cut, 0 for an owner's copy, and the copy; None until it is made.
        self._kept: dict[tuple[int, int], tuple[int, Snapshot | None]] = {}
        #: Partition -> clock and BackupPS of the latest copy that was sent.
        self._sent: dict[int, tuple[int, MemberId]] = {}
        self.copier: Copier[CutOrder, s.CopyForCut] = Copier("cut", name, self, partitions, lock, report)

    # ---- orders and commands

    def order(self, order: m.TakeCut, incarnation: int) -> None:
        """Start a cut, or repeat its reports; call without the lock."""
        self.copier.order(CutOrder(order.cut_id, order.kept, order.backups, incarnation))

    def take(self, command: s.CopyForCut) -> None:
        """Copy a partition before anything changes it, keep the copy and send it."""
        self._kept[command.partition, command.clock] = command.cut_id, None
        self.copier.take(command)

    def store(self, partition: int, clock: int, arrays: Snapshot) -> None:
        """Keep an owner's copy."""
        self._kept[partition, clock] = 0, arrays

    def drop(self, command: s.DropCut) -> None:
        """Free a copy."""
        self._kept.pop((command.partition, command.clock), None)

    def find(self, partition: int, clock: int) -> Snapshot | None:
        """Return a copy, which must not be changed; None if it is not kept."""
        return self._kept.get((partition, clock), (0, None))[1]

    def copy_on(self, server: MemberId, partition: int) -> KeptCopy | None:
        """Return the latest copy that was sent to this BackupPS; None if there is none, or it is not kept here."""
        clock, backup = self._sent.get(partition, (0, ""))
        found = self.find(partition, clock) if backup == server else None
        return None if found is None else KeptCopy(clock, found)

    # ---- the copier's sink

    def copied(self, command: s.CopyForCut, arrays: Snapshot) -> None:
        """Keep a new copy, unless it was dropped meanwhile."""
        key = command.partition, command.clock
        if key in self._kept and self._kept[key][0] == command.cut_id:
            self._kept[key] = command.cut_id, arrays

    def deliver(self, order: CutOrder, command: s.CopyForCut, arrays: Snapshot) -> m.Report:
        """Send a copy to its BackupPS, unless that is this server; called without the lock."""
        partition = command.partition
        backup = m.backup_of(partition, self._name, order.backups)
        # Under BSP the values lie in the memory of the parameters, which the next steps reuse; the copy stays for long.
        state, values, *others = arrays
        arrays = (state, values.copy(), *others)
        with self._lock:
            self.copied(command, arrays)
        size_bytes = 0 if backup.target == self._name else self._send(order, command, arrays, backup)
        with self._lock:
            self._sent[partition] = command.clock, backup.target
        completed = command.counters.completed
        return m.CutStaged(self._name, command.cut_id, partition, backup.target, size_bytes, completed)

    def failure(self, number: int, partition: int, why: str, late: bool) -> m.Report:
        """Return the report of a partition that was not copied or sent."""
        return m.CutFailed(self._name, number, partition, why)

    def received(self, part: pb.PartitionCut | pb.PartitionSnapshot, arrays: Snapshot) -> Snapshot:
        """Return the whole copy that a message describes; call without the lock.

        Raises
        ------
        TransferError
            The message has changed keys only, and this server lacks the copy that they change.
        """
        if not part.changed_only:
            return arrays
        with self._lock:
            base = self.find(part.partition, part.kept)
        if base is None:
            raise TransferError(f"{self._name} keeps no copy of partition {part.partition} at clock {part.kept}")
        found = with_changes(base, arrays)
        if checksum_of(b"", found) != part.checksum:
            raise TransferError(f"{self._name} has another copy of partition {part.partition} at clock {part.kept}")
        return found

    def _send(self, order: CutOrder, command: s.CopyForCut, arrays: Snapshot, backup: m.Target) -> int:
        """Send a copy, or the keys that have changed since the committed cut; return the number of bytes.

        Raises
        ------
        EpsError
            The BackupPS is unreachable, did not answer in time, or refuses the copy.
        """
        with self._lock:
            base = self.find(command.partition, order.kept)
        changes = None if base is None else KeptCopy(order.kept, base).changes(arrays)
        if changes is not None:
            try:
                return self._request(order, command, backup, *changes)
            except TransferError as error:
                logger.info("S[%s] the whole partition is sent: %s", self._name, error)
        return self._request(order, command, backup, arrays)

    def _request(
        self, order: CutOrder, command: s.CopyForCut, backup: m.Target, arrays: Snapshot, checksum: str = ""
    ) -> int:
        """Send these arrays; with the checksum of the whole copy if they are only the changed keys."""
        header = x.simple(
            "cut",
            incarnation=order.incarnation,
            cut_id=command.cut_id,
            partition=command.partition,
            clock=command.clock,
            kept=order.kept,
            next_clock=command.counters.next_clock,
            applied=command.counters.applied,
            duplicates_refused=command.counters.duplicates_refused,
            changed_only=bool(checksum),
            checksum=checksum,
        )
        message = Message(header, tuple(arrays), Seal())
        try:
            self._peers.to(backup.address).request(message).result(SEND_TIMEOUT_S)
        except TimeoutError as error:
            raise DeadlineError(f"{backup.target} did not answer within {SEND_TIMEOUT_S:g} s") from error
        return message.size_bytes
