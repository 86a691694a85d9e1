"""Partitions that leave a server, and the updates after them, on an ordered stream to each follower.

Source: EPS §3.1.2 (server-to-server transmission beside training), §3.3 Fig. 12; design section 5 (followers).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.server_state import ServerState
from eps.core.types import Address, MemberId
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, TakenOverError
from eps.net.arrays.api import Message, Peers, Seal
from eps.net.messages import exchange as x
from eps.server.partition_store import UpdateData
from eps.server.partitions import Partitions

logger = logging.getLogger(__name__)

#: Bytes that may wait for a follower; beyond it, workers wait: a slow follower slows training and never fills memory.
MOST_WAITING_BYTES = 256 << 20
SEND_TIMEOUT_S = 120.0
#: Times that a message is sent before its follower is given up.
ATTEMPTS = 4
RECONNECT_S = 0.1
#: Messages on the way at the same time: while one is installed over there, the next one travels and the one after it
#: gets its checksum here.
WINDOW = 3


@dataclass(slots=True, eq=False)
class Transfer:
    """A snapshot, an update or a promotion on its way to a follower."""

    message: Message
    size_bytes: int
    #: What its acknowledgement tells the server's state.
    acked: s.UpdateAcked | None = None
    sent: Future[Message] | None = None


class FollowerStream:
    """Sends snapshots, updates and promotions to one follower, in order, beside training.

    One thread iterates over :meth:`acknowledged`, which sends.  A message with a seal is sealed there, so that
    checksums cost the training nothing.  One stream serves every partition that goes to the follower for a plan: an
    update that it refuses because it owns that partition now (:class:`~eps.errors.TakenOverError`) is dropped, never
    counted as acknowledged, and ends nothing.

    Parameters
    ----------
    peers : Peers
    address : Address
        Of the follower.
    plan_id, to
        The plan and the follower, for :class:`~eps.core.server_events.SendingFailed`.
    """

    def __init__(self, peers: Peers, address: Address, plan_id: int = 0, to: MemberId = "") -> None:
        self._peers = peers
        self.address = address
        self._plan_id, self._to = plan_id, to
        self._changed = threading.Condition()
        self._waiting: deque[Transfer] = deque()
        self._waiting_bytes = 0
        self._stopped = False

    def send(self, transfer: Transfer) -> None:
        """Queue a transfer; never blocks.  After the end of the stream it does nothing."""
        with self._changed:
            if not self._stopped:
                self._waiting.append(transfer)
                self._waiting_bytes += transfer.size_bytes
                self._changed.notify_all()

    def wait_for_room(self) -> s.SendingFailed | None:
        """Wait until the follower has caught up so far that more may be queued; call without any lock.

        Returns
        -------
        SendingFailed or None
            The stream has ended here, because the follower took too long.
        """
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._stopped or self._waiting_bytes <= MOST_WAITING_BYTES, SEND_TIMEOUT_S
            )
        if room:
            return None
        return self.fail(DeadlineError(f"{self.address} did not take what waits for it within {SEND_TIMEOUT_S:g} s"))

    def acknowledged(self) -> Iterator[Transfer | s.SendingFailed]:
        """Send until the stream is stopped; yield each transfer that the follower has acknowledged.

        If something cannot be sent, yield ``SendingFailed`` last, unless :meth:`wait_for_room` has returned it.
        """
        try:
            yield from self._send_all()
        except Exception as error:
            if not isinstance(error, EpsError):
                # No memory for a message, say: a stream that ends without a word would hold up every pull for good.
                logger.exception("sending to %s failed", self.address)
            failed = self.fail(error)
            if failed is not None:
                yield failed

    def fail(self, error: Exception) -> s.SendingFailed | None:
        """End the stream; return what the state is to be told, or None where the stream had ended before."""
        with self._changed:
            if self._stopped:
                return None
            self._stop()
        why = str(error) if isinstance(error, EpsError) else f"{type(error).__name__}: {error}"
        logger.warning("sending to %s for plan %d failed: %s", self._to or self.address, self._plan_id, why)
        return s.SendingFailed(self._plan_id, self._to, why)

    def stop(self) -> None:
        """Send nothing more; what waits is dropped."""
        with self._changed:
            self._stop()

    def _send_all(self) -> Iterator[Transfer]:
        """Send until the stream is stopped.

        Raises
        ------
        PeerUnavailableError
            The follower cannot be reached after :data:`ATTEMPTS` attempts.
        EpsError
            It did not answer in time, or refused something else than an update of a partition that it owns.
        """
        attempts = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._waiting)
                if self._stopped:
                    return
                window = list(itertools.islice(self._waiting, WINDOW))
            acknowledged = True
            try:
                for transfer in window:
                    if transfer.sent is None:
                        transfer.sent = self._peers.to(self.address).request(transfer.message)
                # Those behind it are looked at when it is their turn.
                self._await(window[0])
            except PeerUnavailableError as error:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise
                logger.info("the connection to %s broke: %s", self.address, error)
                with self._changed:
                    # What arrives twice is dropped there.
                    for transfer in self._waiting:
                        transfer.sent = None
                    if self._changed.wait_for(lambda: self._stopped, RECONNECT_S):
                        return
                continue
            except TakenOverError as error:
                # Of this partition the next membership tells, if this server is still of the job.  It begins no new
                # stream for the others: they go on with this one.
                logger.warning("%s", error)
                acknowledged = False
            attempts = 0
            with self._changed:
                if self._stopped:
                    return
            if acknowledged:
                yield window[0]
            with self._changed:
                if self._waiting:
                    self._waiting_bytes -= self._waiting.popleft().size_bytes
                self._changed.notify_all()

    def _await(self, transfer: Transfer) -> None:
        assert transfer.sent is not None
        try:
            transfer.sent.result(SEND_TIMEOUT_S)
        except TimeoutError as error:
            raise DeadlineError(f"{self.address} did not answer within {SEND_TIMEOUT_S:g} s") from error

    def _stop(self) -> None:
        """Stop; called with the lock."""
        self._stopped = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._changed.notify_all()


class Followers:
    """The streams to the followers of one server's partitions.

    Called with the server's lock held.

    Parameters
    ----------
    state : ServerState
        Read, never stepped.
    partitions : Partitions
    peers : Peers
    """

    def __init__(self, state: ServerState, partitions: Partitions, peers: Peers) -> None:
        self._state = state
        self._partitions = partitions
        self._peers = peers
        #: Where servers listen.
        self.addresses: dict[MemberId, Address] = {}
        #: By plan and follower.
        self._streams: dict[tuple[int, MemberId], FollowerStream] = {}
        #: Streams that no thread drives yet.
        self.begun: deque[FollowerStream] = deque()
        self._last_update: dict[int, UpdateData] = {}

    # ---- commands

    def send_snapshot(self, command: s.SendSnapshot) -> None:
        """Copy a partition now and send the copy."""
        partition, plan_id, counters = command.partition, command.plan_id, command.counters
        blob, size_bytes = self._partitions.stores[partition].snapshot()
        # The registration moves with the partition: no worker has to send its keys again.
        keysets = self._partitions.keysets.of(partition)
        header = x.simple(
            "snapshot",
            plan_id=plan_id,
            partition=partition,
            sequence=command.sequence,
            completed=counters.completed,
            next_clock=counters.next_clock,
            applied=counters.applied,
            duplicates_refused=counters.duplicates_refused,
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
            name = self._state.name
            sent = m.PartitionSent(name, acked.plan_id, acked.partition, transfer.size_bytes, seal.left)
            return replace(acked, sent=sent)
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

    def stop(self) -> None:
        """Send nothing more."""
        for stream in self._streams.values():
            stream.stop()

    def _stream(self, plan_id: int, to: MemberId) -> FollowerStream:
        if (plan_id, to) not in self._streams:
            stream = self._streams[plan_id, to] = FollowerStream(self._peers, self.addresses[to], plan_id, to)
            self.begun.append(stream)
        return self._streams[plan_id, to]
