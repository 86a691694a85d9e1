"""Partitions that leave a server, and the updates after them: what goes to which follower, and what is said of it.

Called with the server's lock held, but for what streams call back.

Source: EPS §3.1.2 (server-to-server transmission beside training), §3.3 Fig. 12; design section 5 (followers).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.server_state import ServerState
from eps.core.types import Address, MemberId
from eps.errors import EpsError
from eps.net.arrays.api import Message, Seal
from eps.net.arrays.peers import Peers
from eps.net.messages import exchange as x
from eps.server.follower_stream import FollowerStream
from eps.server.partition_store import PartitionStore, UpdateData

logger = logging.getLogger(__name__)


class Outgoing:
    """The streams to followers of one server.

    Parameters
    ----------
    state : ServerState
    stores : mapping of int to PartitionStore
        The partitions here, as they change.
    keysets : mapping of (int, bytes) to ndarray
        The key sets that are registered here: those of a partition move with it.
    peers : Peers
    lock : RLock
        The server's.
    report : callable
        Takes what the job master is to be told.
    soon : callable
        Takes what is to be done with the lock held, and returns at once: a stream does not wait for the lock.
    step : callable
        Takes what followers have acknowledged; called with the lock held.
    """

    def __init__(
        self,
        state: ServerState,
        stores: Mapping[int, PartitionStore],
        keysets: Mapping[tuple[int, bytes], np.ndarray],
        peers: Peers,
        lock: threading.RLock,
        report: Callable[[m.Report], None],
        soon: Callable[[Callable[[], None]], None],
        step: Callable[[s.ServerEvent], None],
    ) -> None:
        self._state = state
        self._stores = stores
        self._keysets = keysets
        self._peers = peers
        self._lock = lock
        self._report = report
        self._soon = soon
        self._step = step
        #: By plan and follower.
        self._streams: dict[tuple[int, MemberId], FollowerStream] = {}
        #: Plan and partition -> what is to be said of a snapshot that its follower has; and what was said.
        self._snapshots: dict[tuple[int, int], m.PartitionSent] = {}
        self._snapshots_sent: dict[tuple[int, int], m.PartitionSent] = {}
        self._last_update: dict[int, UpdateData] = {}

    def do(self, command: s.ServerCommand) -> None:
        """Carry out what concerns followers; ignore anything else."""
        match command:
            case s.SendSnapshot():
                self._send_snapshot(command)
            case s.SendUpdate():
                self._send_update(command)
            case s.SendPromote(plan_id, partition, to, sequence):
                header = x.simple("promote", plan_id=plan_id, partition=partition, sequence=sequence)
                self._stream(plan_id, to).send(lambda: Message(header), len(header))
            case s.RepeatSnapshotReport(plan_id, partition, _):
                sent = self._snapshots_sent.get((plan_id, partition))
                if sent is not None:
                    self._report(sent)
            case s.ReportSent(plan_id, partition):
                sent = self._snapshots_sent[plan_id, partition] = self._snapshots.pop((plan_id, partition))
                self._report(sent)
            case s.StopSending(plan_id, _, to):
                # Other partitions may go on being sent there.
                if not self._state.sends(plan_id, to):
                    stream = self._streams.pop((plan_id, to), None)
                    if stream is not None:
                        stream.stop()

    def keep_update(self, partition: int, update: UpdateData) -> None:
        """Keep an update for the commands that send it on, which come with the step's own."""
        self._last_update[partition] = update

    def forget_updates(self) -> None:
        """Drop the updates: they have been queued, and what is acknowledged is memory for the next one."""
        self._last_update.clear()

    def streams_of(self, partitions: Iterable[int]) -> list[FollowerStream]:
        """Return the streams that pushes to ``partitions`` will add to: one that is slow slows no other partition."""
        if not self._streams:
            return []
        found = {}
        for partition in partitions:
            state = self._state.partitions.get(partition)
            for to, plan_id in () if state is None else state.followers.items():
                stream = self._streams.get((plan_id, to))
                if stream is not None:
                    found[plan_id, to] = stream
        return list(found.values())

    def forget(self, plan_id: int) -> None:
        """Drop what was kept for a plan that has ended."""
        self._snapshots = {name: sent for name, sent in self._snapshots.items() if name[0] != plan_id}
        self._snapshots_sent = {name: sent for name, sent in self._snapshots_sent.items() if name[0] != plan_id}

    def stop(self) -> None:
        """Send nothing more."""
        for stream in self._streams.values():
            stream.stop()

    def _stream(self, plan_id: int, to: MemberId) -> FollowerStream:
        if (plan_id, to) not in self._streams:

            def failed(error: EpsError) -> None:
                logger.warning("sending to %s for plan %d failed: %s", to, plan_id, error)
                # The plan that brought a standing follower may have ended long ago.
                with self._lock:
                    needed_by = 0 if self._state.counts_on(plan_id, to) else plan_id
                self._report(m.TransferFailed(self._state.name, needed_by, f"sending to {to} failed: {error}", to))

            self._streams[plan_id, to] = FollowerStream(self._peers, address_of(self._state, to), failed)
        return self._streams[plan_id, to]

    def _send_snapshot(self, command: s.SendSnapshot) -> None:
        blob, size_bytes = self._stores[command.partition].snapshot()
        name, plan_id, partition = self._state.name, command.plan_id, command.partition
        keysets = {digest: keys for (of, digest), keys in self._keysets.items() if of == partition}
        header = x.simple(
            "snapshot",
            plan_id=plan_id,
            partition=partition,
            sequence=command.sequence,
            completed=command.completed,
            next_clock=command.next_clock,
            applied=command.applied,
            duplicates_refused=command.duplicates_refused,
            keysets=tuple(keysets),
        )
        # Its checksum is taken when it is sent, by the stream's thread.
        seal = Seal()
        message = Message(header, (*blob, *keysets.values()), seal)

        def done() -> None:
            self._snapshots[plan_id, partition] = m.PartitionSent(name, plan_id, partition, size_bytes, seal.left)
            self._step(s.UpdateAcked(plan_id, partition, command.to, command.sequence))

        self._stream(plan_id, command.to).send(lambda: message, size_bytes, lambda: self._soon(done))

    def _send_update(self, command: s.SendUpdate) -> None:
        update = self._last_update[command.partition]
        header = x.simple(
            "update",
            plan_id=command.plan_id,
            partition=command.partition,
            sequence=command.sequence,
            clock=command.clock,
            splits=command.splits,
            rate_scale=update.rate_scale,
            sparse=update.keys is not None,
        )
        keys = () if update.keys is None else (update.keys,)
        message = Message(header, (update.gradient, update.exponents, *keys))
        acked = s.UpdateAcked(command.plan_id, command.partition, command.to, command.sequence + 1)
        stream = self._stream(command.plan_id, command.to)
        stream.send(lambda: message, message.size_bytes, lambda: self._soon(lambda: self._step(acked)))


def address_of(state: ServerState, name: MemberId) -> Address:
    """Return where a member listens."""
    address = state.addresses[name]
    assert isinstance(address, Address)
    return address
