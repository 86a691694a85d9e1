"""Ordered streams to followers: snapshots of partitions, and the updates after them.

Source: EPS §3.1.2 (server-to-server transmission beside training), §3.3 Fig. 12; design section 5 (followers).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.server_state import ServerState
from eps.core.types import Address, MemberId
from eps.errors import DeadlineError, EpsError, PeerUnavailableError, TakenOverError, TransferError
from eps.net.arrays.api import Message, Peers, Seal
from eps.net.messages import exchange as x
from eps.server.cuts import KeptCopy
from eps.server.partition_store import Snapshot, UpdateData
from eps.server.partitions import Partitions

logger = logging.getLogger(__name__)

#: Bytes that may be queued for a follower.  Beyond it workers wait: a slow follower slows training but fills no memory.
MOST_WAITING_BYTES = 256 << 20
SEND_TIMEOUT_S = 120.0
#: How often a message is sent before the follower counts as unreachable.
ATTEMPTS = 4
RECONNECT_S = 0.1
#: Messages in flight: while the follower installs one, the next is on the wire, and the one after it gets its checksum
#: here.
WINDOW = 3


@dataclass(slots=True, eq=False)
class Transfer:
    """A snapshot, an update or a promotion that is sent to a follower."""

    message: Message
    size_bytes: int
    #: The event for the server's state when it is acknowledged.
    acked: s.UpdateAcked | None = None
    #: Returns a shorter message, which the follower may refuse; None if there is none.
    shorten: Callable[[], Message | None] | None = None
    #: What is sent if it refuses the shorter one, which is :attr:`message` then.
    whole: Message | None = None
    sent: Future[Message] | None = None

    def prepare(self) -> None:
        """Shorten the message if possible; takes long, so only the sending thread does it."""
        shorten, self.shorten = self.shorten, None
        shorter = None if shorten is None else shorten()
        if shorter is not None:
            self.message, self.whole = shorter, self.message

    def refused(self) -> bool:
        """Go back to the whole message; return whether that was another one."""
        if self.whole is None:
            return False
        self.message, self.whole, self.sent = self.whole, None, None
        return True


class FollowerStream:
    """Sends snapshots, updates and promotions to one follower, in order, while training continues.

    One thread iterates over :meth:`acknowledged`, which sends.  It also computes the checksums of messages with a seal,
    so that training does not wait for them.  One stream carries all partitions that go to the follower for a plan.  The
    follower refuses updates of a partition that it owns by now (:class:`~eps.errors.TakenOverError`); such an update is
    dropped, does not count as acknowledged, and the stream continues.

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
        """Queue a transfer; never blocks.  No effect once the stream has ended."""
        with self._changed:
            if not self._stopped:
                self._waiting.append(transfer)
                self._waiting_bytes += transfer.size_bytes
                self._changed.notify_all()

    def wait_for_room(self) -> s.SendingFailed | None:
        """Wait until the queue to the follower is short enough; call without any lock.

        Returns
        -------
        SendingFailed or None
            Not None if the follower took too long and this call ended the stream.
        """
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._stopped or self._waiting_bytes <= MOST_WAITING_BYTES, SEND_TIMEOUT_S
            )
        if room:
            return None
        return self.fail(DeadlineError(f"{self.address} did not receive queued updates within {SEND_TIMEOUT_S:g} s"))

    def acknowledged(self) -> Iterator[Transfer | s.SendingFailed]:
        """Send until the stream is stopped; yield each transfer that the follower has acknowledged.

        If sending fails, ``SendingFailed`` is yielded last, unless :meth:`wait_for_room` has returned it.
        """
        try:
            yield from self._send_all()
        except Exception as error:
            if not isinstance(error, EpsError):
                # For example a lack of memory.  A stream that ends silently would block every pull forever.
                logger.exception("sending to %s failed", self.address)
            failed = self.fail(error)
            if failed is not None:
                yield failed

    def fail(self, error: Exception) -> s.SendingFailed | None:
        """End the stream; return the event for the state, or None if the stream had ended before."""
        with self._changed:
            if self._stopped:
                return None
            self._stop()
        why = str(error) if isinstance(error, EpsError) else f"{type(error).__name__}: {error}"
        logger.warning("sending to %s for plan %d failed: %s", self._to or self.address, self._plan_id, why)
        return s.SendingFailed(self._plan_id, self._to, why)

    def stop(self) -> None:
        """End the stream; queued transfers are dropped."""
        with self._changed:
            self._stop()

    def _send_all(self) -> Iterator[Transfer]:
        """Send until the stream is stopped.

        Raises
        ------
        PeerUnavailableError
            The follower was unreachable in :data:`ATTEMPTS` attempts.
        EpsError
            It did not answer in time, or refused anything but an update of a partition that it owns.
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
                        transfer.prepare()
                        transfer.sent = self._peers.to(self.address).request(transfer.message)
                    if transfer.whole is not None:
                        # If it is refused, the updates after it must arrive after the whole snapshot.
                        break
                # Later ones are awaited after it.
                self._await(window[0])
            except PeerUnavailableError as error:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise
                logger.info("the connection to %s broke: %s", self.address, error)
                with self._changed:
                    # The receiver drops duplicates.
                    for transfer in self._waiting:
                        transfer.sent = None
                    if self._changed.wait_for(lambda: self._stopped, RECONNECT_S):
                        return
                continue
            except TransferError as error:
                if not window[0].refused():
                    raise
                logger.info("the whole partition is sent: %s", error)
                continue
            except TakenOverError as error:
                # The next membership takes this partition away, if this server is still in the job.  Other partitions
                # continue on this stream.
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
        """End the stream; called with the lock held."""
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
        #: Addresses of servers.
        self.addresses: dict[MemberId, Address] = {}
        #: By plan and follower.
        self._streams: dict[tuple[int, MemberId], FollowerStream] = {}
        #: Streams whose thread is not started yet.
        self.begun: deque[FollowerStream] = deque()
        self._last_update: dict[int, UpdateData] = {}

    # ---- commands

    def send_snapshot(self, command: s.SendSnapshot, kept: KeptCopy | None) -> None:
        """Copy a partition and send the copy; of a follower that has ``kept``, only the keys that changed since."""
        partition, plan_id, counters = command.partition, command.plan_id, command.counters
        blob, size_bytes = self._partitions.stores[partition].snapshot()
        # Key sets move with the partition, so that no worker has to resend its keys.
        keysets = self._partitions.keysets.of(partition)

        def message(arrays: Snapshot, **fields: object) -> Message:
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
                **fields,
            )
            # The stream's thread computes the checksum.
            return Message(header, (*arrays, *keysets.values()), Seal())

        def shorten() -> Message | None:
            changes = None if kept is None else kept.changes(blob)
            if kept is None or changes is None:
                return None
            return message(changes[0], changed_only=True, kept=kept.clock, checksum=changes[1])

        acked = s.UpdateAcked(plan_id, partition, command.to, command.sequence)
        self._stream(plan_id, command.to).send(Transfer(message(blob), size_bytes, acked, shorten))

    def send_update(self, command: s.SendUpdate) -> None:
        """Send the kept update of a partition."""
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
        """End the stream to a follower, unless it still carries other partitions for the plan."""
        if not self._state.sends(command.plan_id, command.to):
            stream = self._streams.pop((command.plan_id, command.to), None)
            if stream is not None:
                stream.stop()

    # ---- updates and streams

    def keep_update(self, partition: int, update: UpdateData) -> None:
        """Keep an update for the send commands that follow the step."""
        self._last_update[partition] = update

    def forget_updates(self) -> None:
        """Drop the kept updates: they are queued, and their memory can be reused once acknowledged."""
        self._last_update.clear()

    def note(self, transfer: Transfer | s.SendingFailed) -> s.UpdateAcked | s.SendingFailed | None:
        """Return the event for the state that follows from a result of a stream, or None."""
        if isinstance(transfer, s.SendingFailed):
            return transfer
        acked, seal = transfer.acked, transfer.message.seal
        if acked is not None and seal is not None:
            name = self._state.name
            saved_bytes = 0 if transfer.whole is None else transfer.whole.size_bytes - transfer.message.size_bytes
            size_bytes = transfer.size_bytes - saved_bytes
            sent = m.PartitionSent(name, acked.plan_id, acked.partition, size_bytes, seal.left)
            return replace(acked, sent=sent)
        return acked

    def streams_of(self, partitions: Iterable[int]) -> list[FollowerStream]:
        """Return the streams that carry updates of these partitions; only those slow down their pushes."""
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
        """End all streams."""
        for stream in self._streams.values():
            stream.stop()

    def _stream(self, plan_id: int, to: MemberId) -> FollowerStream:
        if (plan_id, to) not in self._streams:
            stream = self._streams[plan_id, to] = FollowerStream(self._peers, self.addresses[to], plan_id, to)
            self.begun.append(stream)
        return self._streams[plan_id, to]
