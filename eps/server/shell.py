"""A server's shell: takes messages and orders in, asks the pure state, does what it says on the arrays.

One lock guards the state and the arrays.  Bytes are received outside it and sent by the van's threads, so that the next
push arrives while the last is added; nothing waits for another process while it is held.

Source: EPS §2.2 Fig. 1c, §3.1.2 (server-to-server transmission), §3.2 Figs 6 and 9, §3.3 Fig. 12.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership
from eps.core.server_state import ServerState
from eps.core.types import Address, MemberId, Role
from eps.errors import EpsError, ProtocolError, StorageError, TakenOverError, TransferError
from eps.net.arrays.api import Message, ReplyTo, Van
from eps.net.arrays.memory import give_back
from eps.net.arrays.peers import Peers
from eps.net.messages import exchange as x
from eps.net.messages.codec import membership_to_pb, results_from_pb
from eps.pb import data_pb2 as pb
from eps.server.arithmetic import Arithmetic, Found
from eps.server.checkpoint_writer import CheckpointWriter
from eps.server.checks import (
    check_keysets,
    check_parts,
    check_pushes,
    check_snapshot,
    check_update,
    divided,
    update_data,
)
from eps.server.errands import Errands
from eps.server.incoming import Preparations, take_in
from eps.server.initial import initial_values
from eps.server.outgoing import Outgoing, address_of
from eps.server.partition_store import PartitionStore, UpdateData
from eps.server.pending import PendingExchange, PullRequest, PushRequest, TransferRequest, key_of
from eps.server.restore import counters, load_partition
from eps.server.rows import Rows
from eps.spec.runtime import Runtime
from eps.storage.checkpoint import open_checkpoints
from eps.storage.local import LocalStorage

logger = logging.getLogger(__name__)

#: Bytes of key sets that a server remembers; a worker whose set was forgotten sends it again.
MOST_KEYSET_BYTES = 512 << 20
#: At its end a server waits so long for what a DataNode does: less than the job master waits for its members.
WRITING_S = 2.0


class ServerShell:
    """State, arrays and connections of one server."""

    def __init__(self, runtime: Runtime, name: MemberId, van: Van, report: Callable[[m.Report], None]) -> None:
        self._runtime = runtime
        self._checkpoints = open_checkpoints(runtime.checkpoints)
        #: Partitions of the checkpoint that the job begins with or goes back to, until they are in use.
        self._started_with: dict[int, PartitionStore] = {}
        self._state = ServerState(name, runtime.settings)
        self._stores: dict[int, PartitionStore] = {}
        self._keysets: OrderedDict[tuple[int, bytes], np.ndarray] = OrderedDict()
        self._keyset_bytes = 0
        self._van = van
        self._rows = Rows(runtime.ranges, self._stores, self._empty)
        self._peers = Peers(van)
        self._preparations = Preparations(runtime, van)
        self._checksums: dict[tuple[int, int], str] = {}
        self._report = report
        #: What sends the answers that wait for the lock's release.
        self._complete: deque[Callable[[], None]] = deque()
        self._forwards = ThreadPoolExecutor(2, thread_name_prefix="forward")
        #: Not those that pass parts on: nobody waits for newcomers that are slow to answer.
        self._meetings = ThreadPoolExecutor(2, thread_name_prefix="meet")
        self._lock = threading.RLock()
        self._errands = Errands(self._lock, self._send_complete)
        self._outgoing = Outgoing(
            self._state,
            self._stores,
            self._keysets,
            self._peers,
            self._lock,
            report,
            self._errands.bring,
            lambda event: self._execute(self._state.step(event)),
        )
        self._writer = CheckpointWriter(
            name, self._checkpoints, lambda partition: self._stores[partition].snapshot()[0], self._lock, report
        )
        self._arithmetic = Arithmetic(
            self._stores,
            lambda partition: bool(self._state.partitions[partition].followers),
            self._writer.before_change,
            runtime.longest_partition,
        )

    # ---- orders of the master

    def on_order(self, order: m.Order) -> None:
        """Take an order of the job master."""
        match order:
            case m.UpdateLists(plan_id, added, coming):
                with self._lock:
                    self._state.addresses.update({entry.name: entry.address for entry in added})
                self._meet([entry for entry in added if Role.SERVER in entry.roles])
                done = m.ListsUpdated(self._state.name, plan_id)
                self._preparations.begin(plan_id, coming, lambda: self._report(done))
            case m.UpdateMembership(plan_id, membership):
                with self._lock:
                    self._state.addresses.update(membership.addresses)
                try:
                    begins_with = self._begin_with(membership)
                except StorageError as error:
                    name = self._runtime.start.checkpoint if membership.version == 1 else membership.checkpoint
                    self._report(m.CheckpointUnusable(self._state.name, name, str(error)))
                    return
                self._step(s.MembershipArrived(plan_id, membership, begins_with))
                self._log_lists(membership)
            case m.SendPartitions(plan_id, transfers):
                # One at a time: training goes on between the copies that they begin with.
                for target in transfers:
                    self._step(s.SendOrdered(m.SendPartitions(plan_id, (target,))))
            case m.AbortPlan(plan_id):
                self._step(s.PlanAborted(plan_id))
            case m.ReleasePlan(plan_id, removed):
                self._step(s.PlanReleaseOrdered(plan_id, removed))
                self._forget(plan_id)
            case m.TakeInventory(recovery):
                with self._lock:
                    self._report(self._state.inventory(recovery))
            case m.TakeCheckpoint(checkpoint_id, clock):
                self._writer.order(order)
                self._step(s.CheckpointOrdered(checkpoint_id, clock))
            case _:
                logger.debug("order %s does not concern a server", type(order).__name__)

    def _meet(self, newcomers: Sequence[m.Newcomer]) -> None:
        """Connect to added servers while they get ready: the first partition does not wait for it."""
        for entry in newcomers:
            if entry.name != self._state.name:
                self._meetings.submit(self._try_to_meet, entry.address)

    def _try_to_meet(self, address: Address) -> None:
        try:
            self._peers.to(address)
        except EpsError as error:
            # Whoever sends something tries again, and says so where it fails.
            logger.info("%s cannot be reached yet: %s", address, error)

    # ---- the data plane

    def handle(self, message: Message, reply: ReplyTo) -> None:
        """Take a data-plane message (on a thread of its connection)."""
        header = x.parse_header(message)
        match header.WhichOneof("kind"):
            case "exchange":
                self._on_exchange(header.exchange, message, reply)
            case "snapshot":
                self._on_snapshot(header, message, reply)
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
                self._step(event)
            case "promote":
                part = header.promote
                request = TransferRequest(reply, header, message)
                self._step(s.PromoteArrived(request, part.plan_id, part.partition, part.sequence))
            case "export_request":
                self._on_export(header.export_request.partition, reply)
            case kind:
                raise ProtocolError(f"a server does not answer messages of kind {kind!r}")

    def _on_exchange(self, exchange: pb.Exchange, message: Message, reply: ReplyTo) -> None:
        pushes, pulls = x.parse_exchange(exchange, message.arrays, self._runtime.longest_partition)
        pending = PendingExchange(
            reply, pushes, pulls, self._runtime.lean, lambda done: self._complete.append(done.send)
        )
        check_parts(self._runtime, [*pushes, *pulls])
        with self._lock:
            known = [push for push in pushes if not push.keyset or self._fill_in_keys(push)]
            known_pulls = [pull for pull in pulls if not pull.keyset or self._fill_in_keys(pull)]
            streams = self._outgoing.streams_of([push.partition for push in known])
        check_pushes(self._runtime, known)
        for stream in streams:
            stream.wait_for_room()
        arrived: list[s.PushArrived | s.PullArrived] = [
            s.PushArrived(PushRequest(pending, push), push.partition, push.clock, push.splits) for push in known
        ]
        arrived += [s.PullArrived(PullRequest(pending, pull), pull.partition, pull.min_clock) for pull in known_pulls]
        with self._lock:
            if exchange.incarnation != self._state.incarnation:
                # What it says is of another history of the parameters.
                pending.refuse_others([], [], self._stale())
            else:
                if len(arrived) < len(pushes) + len(pulls):
                    pending.refuse_others(known, known_pulls, pb.Refusal(unknown_keyset=True))
                for results in exchange.results:
                    self._execute(self._state.step(s.ResultsArrived(results_from_pb(results))))
                self._execute(self._state.step(s.ExchangeArrived(tuple(arrived))))
            pending.taken_in()
        self._errands.run()
        self._send_complete()

    def _send_complete(self) -> None:
        """Send the answers that became complete; without the lock."""
        while self._complete:
            try:
                send = self._complete.popleft()
            except IndexError:
                # Another thread was faster.
                return
            send()

    def _fill_in_keys(self, part: x.PushPart | x.PullPart) -> bool:
        """Give a part the keys of its key set; return False where the set is not known."""
        name = key_of(part)
        if part.keys is not None and name not in self._keysets:
            self._register(name, part.keys)
        elif name not in self._keysets:
            return False
        self._keysets.move_to_end(name)
        part.keys = self._keysets[name]
        return True

    def _register(self, name: tuple[int, bytes], keys: np.ndarray) -> None:
        """Remember a key set; the longest unused ones are forgotten where there are too many."""
        # A copy of its own: the received one would keep the whole message in memory.
        self._keysets[name] = keys.copy()
        self._keyset_bytes += keys.nbytes
        while self._keyset_bytes > MOST_KEYSET_BYTES and len(self._keysets) > 1:
            _, forgotten = self._keysets.popitem(last=False)
            self._keyset_bytes -= forgotten.nbytes

    def _on_snapshot(self, header: pb.DataHeader, message: Message, reply: ReplyTo) -> None:
        part = header.snapshot
        check_snapshot(self._runtime, part)
        seal = message.seal
        if seal is None:
            raise TransferError(f"partition {part.partition} came without a checksum")
        arrays, found = take_in(message, self._van)
        if found != seal.left:
            raise TransferError(f"partition {part.partition} left as {seal.left} and arrived as {found}")
        # Outside the lock: the partitions that are served here wait for no copy.
        store = self._new_store(part.partition, None)
        blob, keysets = divided(arrays, len(part.keysets))
        check_keysets(self._runtime, part.partition, part.keysets, keysets)
        store.install(blob)
        with self._lock:
            # The registration moves with the partition: no worker has to send its keys again.
            for digest, keys in zip(part.keysets, keysets, strict=True):
                if (part.partition, digest) not in self._keysets:
                    self._register((part.partition, digest), keys)
        # Without its arrays: those that were lent would stay so until it is answered.
        request = TransferRequest(reply, header, Message(), found, store)
        self._step(
            s.SnapshotArrived(
                request,
                part.plan_id,
                part.partition,
                part.sequence,
                part.completed,
                tuple(part.next_clock),
                part.applied,
                part.duplicates_refused,
            )
        )

    def _on_export(self, partition: int, reply: ReplyTo) -> None:
        with self._lock:
            store = self._stores.get(partition)
            if store is None:
                raise ProtocolError(f"{self._state.name} does not hold partition {partition}")
            values = store.export()
            applied, lost, twice = store.ledger()
            state = self._state.partitions[partition]
            header = x.simple(
                "export_reply",
                clock=state.completed,
                applied=applied,
                duplicates_refused=state.duplicates_refused,
                lost=lost,
                applied_twice=twice,
            )
        reply.send(Message(header, (values,)))

    # ---- doing

    def _step(self, event: s.ServerEvent) -> None:
        try:
            with self._lock:
                self._execute(self._state.step(event))
        finally:
            # Also where a later command failed: these answers are of what was done before.
            self._errands.run()
            self._send_complete()

    def _execute(self, commands: list[s.ServerCommand]) -> None:
        try:
            found = self._arithmetic.ahead(commands)
            for position, command in enumerate(commands):
                if position in found:
                    self._conclude(command, found[position])
                else:
                    self._do(command)
        except Exception as error:
            # A partition may be half changed: the job cannot go on with this server, and must hear why.
            logger.exception("what the state said could not be done")
            self._report(m.MemberFailed(self._state.name, type(error).__name__, str(error)))
            raise
        # They have been queued: what a follower has acknowledged is memory for the next one.
        self._outgoing.forget_updates()

    def _conclude(self, command: s.ServerCommand, found: Found) -> None:
        """Do the rest of a sum or a step that was computed."""
        if isinstance(found, Exception):
            raise found
        if isinstance(command, s.StepPartition):
            self._keep_for_followers(command.partition, found)

    def _do(self, command: s.ServerCommand) -> None:
        match command:
            # The first three come for every partition at every clock: they are matched without their fields, which
            # takes half of the time.
            case s.Accumulate():
                self._arithmetic.do(command)
            case s.AckPush():
                answer = x.PushAnswer(command.partition, command.have, command.accepted)
                _push(command.request).exchange.settle(answer)
            case s.AnswerPull():
                self._answer_pull(command.request, command.partition, command.clock)
            case s.StepPartition():
                self._writer.before_change(command.partition)
                self._keep_for_followers(command.partition, self._arithmetic.do(command))
            case s.ApplyPush(request, partition, clock, _):
                self._writer.before_change(partition)
                update = self._stores[partition].apply_push(_push(request).part, clock)
                self._keep_for_followers(partition, update)
            case s.Fail(request, why):
                request.refuse(pb.Refusal(error=why))  # type: ignore[attr-defined]
            case s.RefusePassed(request):
                request.refuse(pb.Refusal(passed=True))  # type: ignore[attr-defined]
            case s.RefuseStale(request):
                request.refuse(self._stale())  # type: ignore[attr-defined]
            case s.Forward(request, _, to):
                self._forward(request, to)
            case s.CreatePartition(partition):
                self._stores[partition] = self._first_store(partition)
            case s.TakeSnapshot():
                self._writer.take(command)
            case s.SkipSnapshot():
                self._writer.skip(command)
            case s.ReportToMaster(report):
                self._report(report)
            case _:
                self._transfer(command)

    def _begin_with(self, membership: Membership) -> Mapping[int, s.Counters]:
        """Read what the job begins with, or goes back to, where this membership is the first of an incarnation.

        A server that joins later does not: the checkpoint may be gone by then.

        Raises
        ------
        StorageError
            The checkpoint, or a part of it that this server needs, is missing or damaged.
        """
        # Said again, it is nothing new: the master repeats what is not acknowledged, and to whoever attaches again.
        first = membership.version == 1 and self._state.membership is None
        if not first and not (membership.goes_back and membership.version > self._state.version):
            return {}
        name = self._runtime.start.checkpoint if first else membership.checkpoint
        self._writer.forget()
        with self._lock:
            self._rows.go_back()
        held = membership.partitions.held_by(self._state.name)
        if not name or not held:
            # One that leaves may hear of it when that checkpoint is not kept any more.
            self._started_with = {}
            return {}
        manifest = self._checkpoints.manifest(name)
        # Outside the lock, and before anything is given up for it.
        self._started_with = {
            partition: load_partition(self._checkpoints, manifest, partition, self._runtime, self._empty)[0]
            for partition in held
        }
        return counters(manifest)

    def _first_store(self, partition: int) -> PartitionStore:
        """Return a partition as the job begins, or goes back: from its checkpoint, or from its seed."""
        found = self._started_with.pop(partition, None)
        if found is not None:
            return found
        start, stop = self._runtime.ranges[partition]
        return self._new_store(partition, initial_values(self._runtime, start, stop))

    def _new_store(self, partition: int, values: np.ndarray | None) -> PartitionStore:
        after = partial(self._rows.memory, partition)
        return PartitionStore(self._runtime, partition, values, self._empty, after)

    def _empty(self, length: int) -> np.ndarray:
        return self._van.empty(length, np.float32)

    def _keep_for_followers(self, partition: int, update: UpdateData | None) -> None:
        """Keep an update for the commands that send it on, which come with the step's own."""
        if update is not None and self._state.partitions[partition].followers:
            self._outgoing.keep_update(partition, update)

    def _answer_pull(self, request: object, partition: int, clock: int) -> None:
        assert isinstance(request, PullRequest)
        store, part = self._stores[partition], request.part
        version = store.version_at(clock)
        if part.have_version == version and self._runtime.lean.skip_unchanged:
            empty = np.empty(0, np.float32)
            request.exchange.settle(
                x.PullAnswer(partition, clock, empty, store.exponents_at(clock), None, version, unchanged=True)
            )
            return
        try:
            values, exponents = store.pull(clock, part)
        except ProtocolError as error:
            # A late repeat of a pull that was answered long ago.
            request.refuse(pb.Refusal(error=str(error)))
            return
        request.exchange.settle(x.PullAnswer(partition, clock, values, exponents, None, version))

    def _forward(self, request: object, to: MemberId) -> None:
        """Pass one part on to the partition's owner and relay what it says; connecting may take a while."""
        assert isinstance(request, PushRequest | PullRequest)
        if isinstance(request, PushRequest):
            # Its message may be answered, and its memory used again, before it has left.
            request.part = request.part.copied()
        self._forwards.submit(self._pass_on, request, address_of(self._state, to), self._state.incarnation)

    def _pass_on(self, request: PushRequest | PullRequest, address: Address, incarnation: int) -> None:
        pushes = [request.part] if isinstance(request, PushRequest) else []
        pulls = [request.part] if isinstance(request, PullRequest) else []
        try:
            message = x.build_exchange(pushes, pulls, self._runtime.lean, incarnation=incarnation)
            future = self._peers.to(address).request(message)
        except Exception as error:
            # Whatever it is: a part without an answer would keep this server from being released.
            self._relay(request, error)
            return
        # Callbacks run on a thread of the connection and must not wait for the lock.
        future.add_done_callback(lambda done: self._forwards.submit(self._relay, request, done))

    def _relay(self, request: PushRequest | PullRequest, answer: Future[Message] | Exception) -> None:
        found: x.PushAnswer | x.PullAnswer | None = None
        try:
            if isinstance(answer, Future):
                pushed, pulled = x.parse_reply(answer.result())
                found = pushed[0] if pushed else pulled[0]
        except Exception as error:
            logger.info("a part that was passed on was not answered: %s", error)
        with self._lock:
            if found is None:
                request.refuse(self._stale())
            else:
                request.exchange.settle(found)
            self._execute(self._state.step(s.ForwardAnswered(request)))
        self._send_complete()

    def _stale(self) -> pb.Refusal:
        """Return the refusal of a part that was routed by an old membership, with the one in force."""
        refusal = pb.Refusal(retry=True)
        if self._state.membership is not None:
            refusal.membership.CopyFrom(membership_to_pb(self._state.membership))
        return refusal

    def _log_lists(self, membership: Membership) -> None:
        """Write the three lists of EPS Figs 1c, 4 and 9 to the log."""
        with self._lock:
            clocks = self._state.clock_list()
        logger.info(
            "S[%s] v=%d from clock %d: server list %s, worker list %s, clock list %s",
            self._state.name,
            membership.version,
            membership.from_clock,
            {entry.name: entry.holds for entry in membership.server_list()},
            {entry.name: entry.holds for entry in membership.worker_list()},
            clocks,
        )

    def _forget(self, plan_id: int) -> None:
        """Drop what was kept for a plan, and the connections to members that left."""
        with self._lock:
            self._outgoing.forget(plan_id)
            self._checksums = {name: found for name, found in self._checksums.items() if name[0] != plan_id}
            addresses = list(self._state.membership.addresses.values()) if self._state.membership else []
        self._peers.keep(addresses)

    # ---- transfers

    def _transfer(self, command: s.ServerCommand) -> None:
        match command:
            case s.InstallSnapshot(request, partition):
                assert isinstance(request, TransferRequest) and request.store is not None
                self._stores[partition] = request.store
                self._acknowledge(request)
            case s.ReportCaughtUp(plan_id, partition, request):
                if isinstance(request, TransferRequest):
                    self._checksums[plan_id, partition] = request.checksum
                checksum = self._checksums[plan_id, partition]
                self._report(m.PartitionCaughtUp(self._state.name, plan_id, partition, checksum))
            case s.ApplyUpdate(request, partition, clock, splits):
                assert isinstance(request, TransferRequest)
                update = update_data(request.header.update, request.message.arrays)
                self._stores[partition].apply_update(update, clock, splits)
                self._acknowledge(request)
            case s.RefuseUpdate(request):
                assert isinstance(request, TransferRequest)
                gone = TakenOverError(f"{self._state.name} owns partition {request.header.update.partition} now")
                self._complete.append(partial(request.refuse, gone))
            case s.DropUpdate(request):
                assert isinstance(request, TransferRequest)
                self._acknowledge(request)
            case s.DropPartition(partition):
                self._writer.before_change(partition)
                self._stores.pop(partition, None)
                for name in [name for name in self._keysets if name[0] == partition]:
                    self._keyset_bytes -= self._keysets.pop(name).nbytes
                # Unless others come in its place: they need as much.
                if not self._stores and all(state.dropped for state in self._state.partitions.values()):
                    give_back()
            case _:
                self._outgoing.do(command)

    def _acknowledge(self, request: TransferRequest) -> None:
        self._complete.append(request.acknowledge)

    def end_writing(self) -> None:
        """Write nothing more of a checkpoint, before the process ends.

        What a DataNode was asked for it would do when the job master has removed what is left: it is waited for.  What
        is written on this machine ends with the process.
        """
        self._writer.close(0.0 if isinstance(self._checkpoints.storage, LocalStorage) else WRITING_S)

    def close(self) -> None:
        """Stop sending and close the connections to other servers."""
        self._outgoing.stop()
        self._errands.close()
        self._preparations.stop()
        self._writer.close()
        self._arithmetic.close()
        for pool in (self._forwards, self._meetings):
            pool.shutdown(wait=False, cancel_futures=True)
        self._peers.close()


def _push(request: object) -> PushRequest:
    assert isinstance(request, PushRequest)
    return request
