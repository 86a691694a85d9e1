"""A server's shell: receives messages and orders, steps the pure state, and has its commands executed.

One lock guards the state and the arrays.  Bytes are received outside it and sent by the van's threads, so the next push
arrives while the last one is added.  No thread waits for another process while it holds the lock.
Source: EPS §2.2 Fig. 1c, §3.1.2 (server-to-server transmission), §3.2 Figs 6 and 9, §3.3 Fig. 12.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership, cut_clock
from eps.core.server_state import ServerState
from eps.core.types import MemberId, Role
from eps.errors import ProtocolError, StorageError, TransferError
from eps.net.arrays.api import Message, Peers, ReplyTo, Van
from eps.net.messages import exchange as x
from eps.net.messages.codec import results_from_pb
from eps.pb import data_pb2 as pb
from eps.server.checks import check_keysets, check_parts, check_pushes, check_snapshot, check_update, divided
from eps.server.commands import Commands
from eps.server.copier import CheckpointSink, Copier
from eps.server.cuts import CutCopies
from eps.server.followers import Followers, FollowerStream, Transfer
from eps.server.incoming import Preparations, own_arrays
from eps.server.open_requests import PendingExchange, PullRequest, PushRequest, TransferRequest
from eps.server.partition_store import PartitionStore
from eps.server.partitions import Partitions, load_partitions
from eps.spec.runtime import Runtime
from eps.storage.checkpoint import open_checkpoints
from eps.storage.local import LocalStorage

logger = logging.getLogger(__name__)

#: Longest wait of an ending server for an HDFS write; less than the job master waits for its members.
WRITING_S = 2.0


class ServerShell:
    """State, arrays and connections of one server."""

    def __init__(self, runtime: Runtime, name: MemberId, van: Van, report: Callable[[m.Report], None]) -> None:
        self._runtime = runtime
        self._van = van
        self._report = report
        self._checkpoints = open_checkpoints(runtime.checkpoints)
        self._peers = Peers(van)
        self._lock = threading.Lock()
        self._state = ServerState(name, runtime.settings)
        self._partitions = Partitions(runtime, van)
        self._followers = Followers(self._state, self._partitions, self._peers)
        stores = self._partitions.stores
        sink = CheckpointSink(name, self._checkpoints, report)
        self._writer = Copier("checkpoint", name, sink, stores, self._lock, report)
        self._cuts = CutCopies(name, stores, self._peers, self._lock, report)
        self._commands = Commands(self._state, self._partitions, self._followers, self._writer, self._cuts, report)
        self._preparations = Preparations(runtime, van, report)
        #: Results of streams that the state has not processed yet.
        self._acknowledged: deque[Transfer | s.SendingFailed] = deque()

    # ---- orders of the master

    def on_order(self, order: m.Order) -> None:
        """Execute an order of the job master."""
        match order:
            case m.UpdateLists(plan_id, added, coming):
                with self._lock:
                    self._followers.addresses.update({entry.name: entry.address for entry in added})
                self._preparations.begin(m.ListsUpdated(self._state.name, plan_id), coming)
            case m.UpdateMembership(plan_id, membership):
                self._on_membership(plan_id, membership)
            case m.SendPartitions(plan_id, transfers):
                # One at a time, so that training continues between the copies.
                for target in transfers:
                    with self._lock:
                        self._followers.addresses[target.target] = target.address
                    self._take(s.SendOrdered(plan_id, target.item, target.target))
            case m.AbortPlan(plan_id):
                self._take(s.PlanAborted(plan_id))
            case m.ReleasePlan(plan_id):
                self._take(s.PlanReleaseOrdered(plan_id))
                with self._lock:
                    known = self._state.membership
                self._peers.keep(() if known is None else known.addresses.values())
            case m.TakeInventory(recovery, from_clock):
                with self._lock:
                    self._report(self._state.inventory(recovery, from_clock))
            case m.TakeCheckpoint(checkpoint_id, clock):
                self._writer.order(order)
                self._take(s.CheckpointOrdered(checkpoint_id, clock))
            case m.TakeCut(cut_id, clock, kept):
                self._cuts.order(order, self._state.incarnation)
                self._take(s.CutOrdered(cut_id, clock, kept))
            case m.DropCuts(cut_id):
                self._cuts.copier.forget()
                self._take(s.CutsDropped(cut_id))
            case _:
                logger.debug("order %s does not concern a server", type(order).__name__)

    def _on_membership(self, plan_id: int, membership: Membership) -> None:
        with self._lock:
            self._followers.addresses.update(membership.addresses)
        # The master repeats what is not acknowledged, also to members that reconnect: only the first one restores.
        first = membership.version == 1 and self._state.membership is None
        counters: Mapping[int, s.Counters] = {}
        if first or (membership.goes_back and membership.version > self._state.version):
            name = self._runtime.start.checkpoint if first else membership.checkpoint
            try:
                counters = self._restore(name, membership.partitions.held_by(self._state.name))
            except StorageError as error:
                self._report(m.CheckpointUnusable(self._state.name, name, str(error)))
                return
        self._take(s.MembershipArrived(plan_id, membership, counters))
        if membership.takes_over:
            # A cut may still wait for an answer of a lost BackupPS.
            self._peers.keep(membership.addresses.values())
        with self._lock:
            clocks = self._state.clock_list()
        # The three lists of EPS Figs 1c, 4 and 9.
        logger.info(
            "S[%s] v=%d from clock %d: server list %s, worker list %s, clock list %s",
            self._state.name,
            membership.version,
            membership.from_clock,
            membership.holdings(Role.SERVER),
            membership.holdings(Role.WORKER),
            clocks,
        )

    def _restore(self, checkpoint: str, held: Sequence[int]) -> Mapping[int, s.Counters]:
        """Restore the partitions for a start or a rollback; for a cut, this server has their copies.

        Servers that join later, or leave, restore nothing; for a later one the checkpoint may be deleted already.

        Raises
        ------
        StorageError
            The checkpoint, or a part that this server needs, is missing or damaged.
        """
        self._writer.forget()
        self._cuts.copier.forget()
        stores: dict[int, PartitionStore] = {}
        counters: Mapping[int, s.Counters] = {}
        if checkpoint and held and cut_clock(checkpoint) is None:
            # Without the lock, and before any current partition is dropped.
            stores, counters = load_partitions(
                self._checkpoints, checkpoint, held, self._runtime, self._partitions.empty
            )
        with self._lock:
            self._partitions.set_restored(stores)
        return counters

    # ---- the data plane

    def handle(self, message: Message, reply: ReplyTo) -> None:
        """Process a data-plane message, on a thread of its connection."""
        header = x.parse_header(message)
        match header.WhichOneof("kind"):
            case "exchange":
                self._on_exchange(header.exchange, message, reply)
            case "snapshot":
                self._on_snapshot(header, message, reply)
            case "cut":
                self._on_cut(header, message, reply)
            case "update":
                update = header.update
                check_update(self._runtime, update, message.arrays)
                event = s.UpdateArrived(
                    TransferRequest(reply, header, message),
                    update.plan_id,
                    update.partition,
                    update.sequence,
                    update.clock,
                    tuple(update.splits),
                )
                self._take(event)
            case "promote":
                part = header.promote
                request = TransferRequest(reply, header, message)
                self._take(s.PromoteArrived(request, part.plan_id, part.partition, part.sequence))
            case "export_request":
                self._on_export(header.export_request.partition, reply)
            case kind:
                raise ProtocolError(f"a server does not answer messages of kind {kind!r}")

    def _on_exchange(self, exchange: pb.Exchange, message: Message, reply: ReplyTo) -> None:
        pushes, pulls = x.parse_exchange(exchange, message.arrays, self._runtime.longest_partition)
        pending = PendingExchange(reply, pushes, pulls, self._commands.deferred, self._runtime.lean)
        check_parts(self._runtime, [*pushes, *pulls])
        keysets = self._partitions.keysets
        with self._lock:
            known = [push for push in pushes if not push.keyset or keysets.fill_in(push)]
            known_pulls = [pull for pull in pulls if not pull.keyset or keysets.fill_in(pull)]
            streams = self._followers.streams_of([push.partition for push in known])
        check_pushes(self._runtime, known)
        for stream in streams:
            failed = stream.wait_for_room()
            if failed is not None:
                self._take(failed)
        event = s.ExchangeArrived(
            tuple([s.PushArrived(PushRequest(pending, p), p.partition, p.clock, p.splits) for p in known]),
            tuple([s.PullArrived(PullRequest(pending, p), p.partition, p.min_clock) for p in known_pulls]),
        )
        try:
            with self._lock:
                if exchange.incarnation != self._state.incarnation:
                    # It belongs to another incarnation of the parameters.
                    pending.refuse_others([], [], self._commands.stale())
                else:
                    if len(known) + len(known_pulls) < len(pushes) + len(pulls):
                        pending.refuse_others(known, known_pulls, pb.Refusal(unknown_keyset=True))
                    for results in exchange.results:
                        self._step(s.ResultsArrived(results_from_pb(results)))
                    self._step(event)
                pending.taken_in()
        finally:
            self._send_deferred()

    def _on_snapshot(self, header: pb.DataHeader, message: Message, reply: ReplyTo) -> None:
        part = header.snapshot
        # Changed keys are no parameters yet.
        arrays, found = self._receive(part, message, None if part.changed_only else self._van)
        blob, keysets = divided(arrays, len(part.keysets))
        check_keysets(self._runtime, part.partition, part.keysets, keysets)
        # Without the lock, so that the partitions served here do not wait for the copy.
        if part.changed_only:
            store = self._partitions.copied(part.partition, self._cuts.received(part, blob))
        else:
            store = self._partitions.new(part.partition, None)
            store.install(blob)
        with self._lock:
            for digest, keys in zip(part.keysets, keysets, strict=True):
                self._partitions.keysets.register(part.partition, digest, keys)
        # Without its arrays, because lent arrays stay lent until the request is answered.
        request = TransferRequest(reply, header, Message(), store)
        self._take(
            s.SnapshotArrived(
                request,
                part.plan_id,
                part.partition,
                part.sequence,
                s.Counters(tuple(part.next_clock), part.applied, part.duplicates_refused),
                found,
            )
        )

    def _on_cut(self, header: pb.DataHeader, message: Message, reply: ReplyTo) -> None:
        part = header.cut
        own, _ = self._receive(part, message, None)
        arrays = self._cuts.received(part, own)
        # Checks the arrays.
        self._partitions.new(part.partition, None).install(arrays)
        request = TransferRequest(reply, header, Message(arrays=tuple(arrays)))
        counters = s.Counters(tuple(part.next_clock), part.applied, part.duplicates_refused)
        self._take(
            s.CutArrived(request, part.incarnation, part.cut_id, part.partition, part.clock, part.kept, counters)
        )

    def _receive(
        self, part: pb.PartitionSnapshot | pb.PartitionCut, message: Message, van: Van | None
    ) -> tuple[list[np.ndarray], str]:
        """Check a copy of a partition; return its arrays and their checksum (see :func:`own_arrays`)."""
        check_snapshot(self._runtime, part)
        seal = message.seal
        if seal is None:
            raise TransferError(f"partition {part.partition} came without a checksum")
        arrays, found = own_arrays(message, van)
        if found != seal.left:
            raise TransferError(f"partition {part.partition} left with checksum {seal.left} and arrived with {found}")
        return arrays, found

    def _on_export(self, partition: int, reply: ReplyTo) -> None:
        with self._lock:
            store = self._partitions.stores.get(partition)
            if store is None:
                raise ProtocolError(f"{self._state.name} does not hold partition {partition}")
            values = store.export()
            applied, lost, twice = store.ledger()
            state = self._state.partitions[partition]
            header = x.simple(
                "export_reply",
                clock=state.clocks.completed,
                applied=applied,
                duplicates_refused=state.clocks.duplicates_refused,
                lost=lost,
                applied_twice=twice,
            )
        reply.send(Message(header, (values,)))

    # ---- events

    def _take(self, *events: s.ServerEvent) -> None:
        """Process events and execute the resulting commands; call without the lock."""
        try:
            with self._lock:
                self._step(*events)
        finally:
            # Also if a later command failed: earlier ones have complete answers.
            self._send_deferred()

    def _step(self, *events: s.ServerEvent) -> None:
        """Process events as :meth:`_take` does, with the lock held.

        Also processes acknowledgements of followers: their own thread may wait for the lock for long, and the next
        partition of a move waits behind it.
        """
        try:
            for event in events:
                self._commands.run(self._state.step(event))
            while self._acknowledged:
                noted = self._followers.note(self._acknowledged.popleft())
                if noted is not None:
                    self._commands.run(self._state.step(noted))
        except Exception as error:
            # A partition may be half changed: the job cannot continue with this server and must know why.
            logger.exception("a command of the server's state failed")
            self._report(m.MemberFailed(self._state.name, type(error).__name__, str(error)))
            raise

    def _send_deferred(self) -> None:
        """Send complete answers and start new streams, without the lock."""
        for queue in (self._commands.deferred, self._followers.begun):
            while queue:
                try:
                    due = queue.popleft()
                except IndexError:
                    # Another thread took it.
                    break
                if isinstance(due, FollowerStream):
                    self._begin(due)
                else:
                    due.send()

    # ---- threads beside those of connections

    def _begin(self, stream: FollowerStream) -> None:
        thread = threading.Thread(target=self._drive, args=(stream,), name=f"follower-{stream.address}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The system has no thread left.
            failed = stream.fail(error)
            if failed is not None:
                self._take(failed)

    def _drive(self, stream: FollowerStream) -> None:
        """Send a stream's transfers, and pass its acknowledgements to the state."""
        try:
            for found in stream.acknowledged():
                self._acknowledged.append(found)
                self._take()
        except Exception:
            # The job master knows of the failure and shuts this server down.
            logger.exception("the stream to %s has failed", stream.address)
            stream.stop()

    # ---- the end

    def end_writing(self) -> None:
        """Stop writing the checkpoint, before the process ends.

        An HDFS write is awaited, because a DataNode could finish it after the job master has cleaned up.  Local writes
        end with the process.
        """
        self._writer.close(0.0 if isinstance(self._checkpoints.storage, LocalStorage) else WRITING_S)

    def close(self) -> None:
        """Stop sending and close the connections to other servers."""
        with self._lock:
            self._followers.stop()
        self._preparations.stop()
        self._writer.close()
        self._cuts.copier.close()
        self._commands.close()
        self._peers.close()
