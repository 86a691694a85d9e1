"""Partitions that leave a server, and the updates after them: what goes to which follower.

Source: EPS §3.1.2 (server-to-server transmission beside training), §3.3 Fig. 12; design section 5 (followers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.server_state import ServerState
from eps.core.types import Address, MemberId
from eps.net.arrays.api import Message, Seal
from eps.net.arrays.peers import Peers
from eps.net.messages import exchange as x
from eps.server.follower_stream import FollowerStream, Transfer
from eps.server.partition_store import UpdateData
from eps.server.partitions import Partitions


class Followers:
    """The streams to the followers of one server's partitions.

    Called with the server's lock held.

    Parameters
    ----------
    state : ServerState
        Read, never stepped.
    partitions : Partitions
    peers : Peers
    report : callable
        Takes what the job master is to be told.
    """

    def __init__(
        self, state: ServerState, partitions: Partitions, peers: Peers, report: Callable[[m.Report], None]
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._peers = peers
        self._report = report
        #: Where servers listen.
        self.addresses: dict[MemberId, Address] = {}
        #: By plan and follower.
        self._streams: dict[tuple[int, MemberId], FollowerStream] = {}
        #: Streams that no thread drives yet.
        self.begun: deque[FollowerStream] = deque()
        #: Plan and partition -> what is to be said of a snapshot that its follower has; and what was said.
        self._snapshots: dict[tuple[int, int], m.PartitionSent] = {}
        self._snapshots_sent: dict[tuple[int, int], m.PartitionSent] = {}
        self._last_update: dict[int, UpdateData] = {}

    # ---- commands

    def send_snapshot(self, command: s.SendSnapshot) -> None:
        """Copy a partition now and send the copy."""
        partition, plan_id = command.partition, command.plan_id
        blob, size_bytes = self._partitions.stores[partition].snapshot()
        # The registration moves with the partition: no worker has to send its keys again.
        keysets = self._partitions.keysets.of(partition)
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
        message = Message(header, (*blob, *keysets.values()), Seal())
        acked = s.UpdateAcked(plan_id, partition, command.to, command.sequence)
        self._stream(plan_id, command.to).send(Transfer(message, size_bytes, acked))

    def send_update(self, command: s.SendUpdate) -> None:
        """Send the update that was kept for a partition."""
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
        self._stream(command.plan_id, command.to).send(Transfer(message, message.size_bytes, acked))

    def send_promote(self, command: s.SendPromote) -> None:
        """Tell a follower that it owns a partition."""
        header = x.simple("promote", plan_id=command.plan_id, partition=command.partition, sequence=command.sequence)
        self._stream(command.plan_id, command.to).send(Transfer(Message(header), len(header)))

    def stop_sending(self, command: s.StopSending) -> None:
        """End the stream to a follower, unless other partitions go on being sent there for the plan."""
        if not self._state.sends(command.plan_id, command.to):
            stream = self._streams.pop((command.plan_id, command.to), None)
            if stream is not None:
                stream.stop()

    def report_sent(self, command: s.ReportSent) -> None:
        """Tell the job master that a follower has a snapshot."""
        name = command.plan_id, command.partition
        sent = self._snapshots_sent[name] = self._snapshots.pop(name)
        self._report(sent)

    def repeat_report(self, command: s.RepeatSnapshotReport) -> None:
        """Tell it again, if it was told."""
        sent = self._snapshots_sent.get((command.plan_id, command.partition))
        if sent is not None:
            self._report(sent)

    # ---- beside commands

    def keep_update(self, partition: int, update: UpdateData) -> None:
        """Keep an update for the commands that send it, which come with the step's own."""
        self._last_update[partition] = update

    def forget_updates(self) -> None:
        """Drop the updates: they have been queued, and what is acknowledged is memory for the next one."""
        self._last_update.clear()

    def note(self, transfer: Transfer | s.SendingFailed) -> s.UpdateAcked | s.SendingFailed | None:
        """Take what a stream yields; return what the state is to be told."""
        if isinstance(transfer, s.SendingFailed):
            return transfer
        acked, seal = transfer.acked, transfer.message.seal
        if acked is not None and seal is not None:
            self._snapshots[acked.plan_id, acked.partition] = m.PartitionSent(
                self._state.name, acked.plan_id, acked.partition, transfer.size_bytes, seal.left
            )
        return acked

    def streams_of(self, partitions: Iterable[int]) -> list[FollowerStream]:
        """Return the streams that pushes to ``partitions`` will add to: one that is slow slows no other partition."""
        if not self._streams:
            return []
        found = {}
        for partition in partitions:
            state = self._state.partitions.get(partition)
            for to, follower in () if state is None else state.followers.items():
                stream = self._streams.get((follower.plan_id, to))
                if stream is not None:
                    found[follower.plan_id, to] = stream
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
            stream = self._streams[plan_id, to] = FollowerStream(self._peers, self.addresses[to], plan_id, to)
            self.begun.append(stream)
        return self._streams[plan_id, to]
