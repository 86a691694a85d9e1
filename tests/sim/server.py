"""A simulated server: ``ServerState`` as it is, over integers instead of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership
from eps.core.partition_state import Holding
from eps.core.server_state import ServerState
from eps.core.types import Address, MemberId, Role
from tests.sim.process import SimProcess
from tests.sim.wire import (
    PRIME,
    Arrival,
    Cut,
    Done,
    Failed,
    Fenced,
    Passed,
    Promote,
    Pull,
    Pulled,
    Push,
    Pushed,
    Snapshot,
    Stale,
    Update,
    initial_value,
    oracle,
    stepped,
)


@dataclass
class Store:
    """The stand-in for a partition's arrays, with its own record of added gradients."""

    value: int
    #: Per split, the next clock to be added; kept here independently of the state under test.
    ledger: list[int]
    previous: int | None = None
    total: int = 0
    arrived: set[int] = field(default_factory=set)
    #: Sum of the last step, for followers.
    last_total: int = 0

    @property
    def clock(self) -> int:
        return min(self.ledger)

    def add(self, clock: int, splits: tuple[int, ...]) -> None:
        for split in splits:
            assert self.ledger[split] == clock, f"split {split} of clock {clock} applied; ledger {self.ledger}"
            self.ledger[split] = clock + 1

    def step(self, total: int) -> None:
        self.previous, self.value = self.value, stepped(self.value, total)
        self.last_total = total


class Stream(Protocol):
    """Messages to one follower: the next leaves when the one before is acknowledged."""

    def send(self, body: object, done: Callable[[], None] = lambda: None) -> None: ...

    def stop(self) -> None: ...


class SimServer(SimProcess):
    """Executes the commands of ``ServerState`` on integers."""

    role = Role.SERVER
    state: ServerState

    def on_named(self) -> None:
        self.state = ServerState(self.name, self.job.settings)
        self.stores: dict[int, Store] = {}
        self.addresses: dict[MemberId, Address] = {}
        self._streams: dict[tuple[int, MemberId], Stream] = {}
        self._snapshots: dict[tuple[int, int], Snapshot] = {}
        self._promoted: set[tuple[int, int]] = set()
        #: Reports about the parts of the last ordered checkpoint.
        self._said: dict[int, m.CheckpointPartWritten | m.CheckpointPartFailed] = {}
        self._checkpoint = 0
        #: The last ordered cut, the reports about it, and the copies by partition and clock.
        self._cut: m.TakeCut | None = None
        self._cut_said: dict[int, m.CutStaged | m.CutFailed] = {}
        self.kept: dict[tuple[int, int], Store] = {}
        #: Parts of the checkpoint with which the last membership began, by partition.
        self._restored: Mapping[int, m.CheckpointPartWritten] = {}

    def step(self, event: s.ServerEvent) -> None:
        self.job.note(self.name, event)
        for command in self.state.step(event):
            self._do(command)
        self.state.validate()

    # ---- orders and requests

    def on_order(self, order: m.Order) -> None:
        match order:
            case m.UpdateLists(plan_id, added):
                self.addresses.update({n.name: n.address for n in added})
                self.report(m.ListsUpdated(self.name, plan_id))
            case m.UpdateMembership(plan_id, membership):
                self.addresses.update(membership.addresses)
                self.step(s.MembershipArrived(plan_id, membership, self._counters(membership)))
            case m.SendPartitions(plan_id, transfers):
                for target in transfers:
                    self.addresses[target.target] = target.address
                    self._repeat_snapshot(plan_id, target.item, target.target)
                    self.step(s.SendOrdered(plan_id, target.item, target.target))
            case m.AbortPlan(plan_id):
                self.step(s.PlanAborted(plan_id))
            case m.ReleasePlan(plan_id):
                self.step(s.PlanReleaseOrdered(plan_id))
            case m.TakeInventory(recovery, from_clock):
                self.report(self.state.inventory(recovery, from_clock))
            case m.TakeCheckpoint(checkpoint_id, clock):
                if checkpoint_id > self._checkpoint:
                    self._checkpoint, self._said = checkpoint_id, {}
                for report in self._said.values() if checkpoint_id == self._checkpoint else ():
                    self.report(report)
                self.step(s.CheckpointOrdered(checkpoint_id, clock))
            case m.TakeCut(cut_id, clock, kept):
                if self._cut is None or cut_id > self._cut.cut_id:
                    self._cut_said = {}
                for said in self._cut_said.values() if self._cut is not None and cut_id == self._cut.cut_id else ():
                    self.report(said)
                if self._cut is None or cut_id >= self._cut.cut_id:
                    # The owner of a partition may have changed, and with it the BackupPS.
                    self._cut = order
                self.step(s.CutOrdered(cut_id, clock, kept))
            case m.DropCuts(cut_id):
                self.step(s.CutsDropped(cut_id))

    def _counters(self, membership: Membership) -> dict[int, s.Counters]:
        """Return how far the partitions of the checkpoint are to which a membership goes back.

        As a real server does: one that joins later does not look for it, it may be gone by then.
        """
        if not (membership.goes_back and membership.version > self.state.version):
            return {}
        if not membership.partitions.held_by(self.name):
            self._restored = {}
            return {}
        if membership.cut is not None:
            self._restored = {}
            return {}
        self._restored = self.job.parts_of(membership.checkpoint)
        return {
            p: s.Counters(part.next_clock, part.applied, part.duplicates_refused) for p, part in self._restored.items()
        }

    def _write(self, report: m.CheckpointPartWritten | m.CheckpointPartFailed) -> None:
        """Report a partition of a checkpoint after the time that writing takes."""

        def written() -> None:
            if self.alive and report.checkpoint_id == self._checkpoint:
                self._said[report.partition] = report
                self.report(report)

        self.net.after(self.job.share() * 0.1, written)

    def _say(self, cut_id: int, report: m.CutStaged | m.CutFailed) -> None:
        if self.alive and self._cut is not None and cut_id == self._cut.cut_id:
            self._cut_said[report.partition] = report
            self.report(report)

    def _send_cut(self, command: s.CopyForCut) -> None:
        """Send the copy of a partition to its BackupPS, after a while."""
        cut_id, partition, store = command.cut_id, command.partition, self.kept[command.partition, command.clock]
        incarnation = self.state.incarnation

        def leaves() -> None:
            order = self._cut
            if not self.alive or order is None or order.cut_id != cut_id or incarnation != self.state.incarnation:
                return
            target = m.backup_of(partition, self.name, order.backups)
            staged = m.CutStaged(self.name, cut_id, partition, target.target, 8, command.counters.completed)
            if target.target == self.name:
                self._say(cut_id, staged)
                return
            body = Cut(incarnation, cut_id, partition, command.clock, order.kept, command.counters, store.value)
            failed = m.CutFailed(self.name, cut_id, partition, f"{target.target} did not take it")
            self.send_cut(target.address, body, lambda: self._say(cut_id, staged), lambda: self._say(cut_id, failed))

        self.net.after(self.job.share() * 0.1, leaves)

    def check_copy(self, partition: int, clock: int) -> None:
        """Assert that what is kept for a cut is what the oracle has at its clock."""
        kept = self.kept[partition, clock]
        assert min(kept.ledger) >= clock
        if self.job.settings.bsp:
            expected = oracle(replace(self.job.settings, iterations=clock))[partition]
            assert kept.value == expected, f"partition {partition} differs from the oracle at clock {clock}"
            assert set(kept.ledger) == {clock}

    def send_cut(self, address: Address, body: Cut, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Send a copy; calls one of the functions."""
        raise NotImplementedError

    def before_end(self, reason: str) -> None:
        if reason.startswith("removed"):
            assert not self.state.owned(), f"{self.name} ends while it owns {self.state.owned()}"
            watched = not self.job.releases_at_once and not self.job.taken_over
            asking = self.job.asking(self.address) if watched else []
            assert not asking, f"{self.name} ends while {asking} wait for its answers"

    def on_request(self, body: object, reply: Callable[[Any], None]) -> None:
        if self.name:
            self.take_in(Arrival(body, reply))

    def note_results(self, body: Push) -> None:
        """Workers say what they measured to servers too."""
        results = tuple(m.SplitResult(split, 1, 1.0) for split in body.splits)
        self.step(s.ResultsArrived(m.ClockReported("", body.clock, results, body.incarnation)))

    def take_in(self, arrival: Arrival) -> None:
        body = arrival.body
        if isinstance(body, Push | Pull) and body.incarnation != self.state.incarnation:
            arrival.reply(Stale(self.state.membership))
            return
        match body:
            case Push(partition, clock, splits, _):
                self.note_results(body)
                self.step(s.PushArrived(arrival, partition, clock, splits))
            case Pull(partition, min_clock):
                self.step(s.PullArrived(arrival, partition, min_clock))
            case Snapshot():
                where = body.plan_id, body.partition, body.sequence
                self.step(s.SnapshotArrived(arrival, *where, body.counters, str(body.value)))
            case Update(plan_id, partition, sequence, clock, splits, _):
                self.step(s.UpdateArrived(arrival, plan_id, partition, sequence, clock, splits))
            case Cut(incarnation, cut_id, partition, clock, kept, counters, _):
                self.step(s.CutArrived(arrival, incarnation, cut_id, partition, clock, kept, counters))
            case Promote(plan_id, partition, sequence, _):
                self.step(s.PromoteArrived(arrival, plan_id, partition, sequence))

    # ---- commands

    def _do(self, command: s.ServerCommand) -> None:
        match command:
            case s.CreatePartition(partition, int(cut)):
                assert partition not in self.stores
                kept = self.kept[partition, cut]
                self.check_copy(partition, cut)
                self.stores[partition] = Store(kept.value, list(kept.ledger))
            case s.CreatePartition(partition):
                assert partition not in self.stores
                part = self._restored.get(partition)
                if part is None:
                    ledger = [self.job.settings.first_clock] * self.job.settings.num_splits
                    self.stores[partition] = Store(initial_value(partition), ledger)
                else:
                    self.stores[partition] = Store(int(part.checksum), list(part.next_clock))
            case s.Accumulate(arrival, partition, clock, splits, first_of_clock):
                store = self.stores[partition]
                if first_of_clock:
                    # Something may be left from before the partition went to another owner: all of it is pushed again.
                    for split in store.arrived:
                        store.ledger[split] -= 1
                    store.total = 0
                    store.arrived.clear()
                assert first_of_clock == (not store.arrived) and not store.arrived & set(splits)
                store.add(clock, splits)
                store.arrived.update(splits)
                store.total = (store.total + arrival.body.total) % PRIME
                store.previous = None
            case s.StepPartition(partition, clock):
                store = self.stores[partition]
                assert len(store.arrived) == self.job.settings.num_splits and store.clock == clock + 1
                store.step(store.total)
                store.total = 0
                store.arrived.clear()
            case s.ApplyPush(arrival, partition, clock, splits):
                self.stores[partition].add(clock, splits)
                self.stores[partition].step(arrival.body.total)
            case s.AckPush(arrival, _, have, accepted):
                arrival.reply(Pushed(have, accepted))
            case s.AnswerPull(arrival, partition, clock):
                self._answer_pull(arrival, partition, clock)
            case s.Fail(arrival, why):
                arrival.reply(Failed(why))
            case s.RefusePassed(arrival):
                arrival.reply(Passed())
            case s.RefuseStale(arrival):
                self.job.count("refused")
                arrival.reply(Stale(self.state.membership))
            case s.DropPartition(partition):
                del self.stores[partition]
            case s.ReportToMaster(report):
                self.report(report)
            case s.TakeSnapshot(checkpoint_id, partition, counters):
                store = self.stores[partition]
                # Of a clock that is not complete some may have been added to the sum, which is not kept.  The state may
                # be further: a promotion copies the partition before it adds the pushes that were held.
                kept = tuple(clock - (split in store.arrived) for split, clock in enumerate(store.ledger))
                assert kept == counters.next_clock, "what is kept is what was applied"
                written = self.name, checkpoint_id, partition, self.name, 8, str(store.value)
                counted = counters.next_clock, counters.applied, counters.duplicates_refused
                self._write(m.CheckpointPartWritten(*written, *counted))
            case s.CopyForCut(_, partition, clock, counters):
                store = self.stores[partition]
                self.kept[partition, clock] = Store(store.value, list(counters.next_clock))
                self.check_copy(partition, clock)
                self._send_cut(command)
            case s.SkipCut(cut_id, partition, why):
                self._say(cut_id, m.CutFailed(self.name, cut_id, partition, why))
            case s.StoreCut(arrival, partition, clock):
                body = arrival.body
                self.kept[partition, clock] = Store(body.value, list(body.counters.next_clock))
                arrival.reply(Done())
            case s.DropCut(partition, clock):
                del self.kept[partition, clock]
            case s.SkipSnapshot(checkpoint_id, partition, why):
                self._write(m.CheckpointPartFailed(self.name, checkpoint_id, partition, why, late=True))
            case _:
                self._transfer(command)

    def _answer_pull(self, arrival: Arrival, partition: int, clock: int) -> None:
        store = self.stores[partition]
        asked = arrival.body.min_clock
        # The state may be further: a promotion answers what was held before it steps with the pushes that were held.
        if self.job.settings.bsp and clock == store.clock - 1:
            if store.previous is None:
                # A snapshot began the partition: only a delivery that nobody waits for any more asks for this.
                arrival.reply(Failed(f"the parameters of clock {clock} are not kept"))
            else:
                arrival.reply(Pulled(clock, store.previous, clock))
            return
        oldest = min(store.ledger) if not store.arrived else clock
        assert oldest >= asked, f"partition {partition}: {asked} was asked, {oldest} is there"
        assert clock == asked or not self.job.settings.bsp, "BSP reads exactly the version asked for"
        arrival.reply(Pulled(clock, store.value, oldest))

    def make_stream(self, plan_id: int, to: MemberId, address: Address) -> Stream:
        raise NotImplementedError

    def repeat_snapshot(self, snapshot: Snapshot, address: Address) -> None:
        """Send again what a follower has already, where the order to send it comes again."""

    def _repeat_snapshot(self, plan_id: int, partition: int, to: MemberId) -> None:
        state = self.state.partitions.get(partition)
        follower = None if state is None else state.followers.get(to)
        if follower is not None and follower.sent is not None and follower.plan_id == plan_id:
            self.repeat_snapshot(self._snapshots[plan_id, partition], self._address_of(to))

    def _transfer(self, command: s.ServerCommand) -> None:
        match command:
            case s.SendSnapshot():
                store = self.stores[command.partition]
                ledger = list(store.ledger)
                for split in store.arrived:
                    ledger[split] -= 1
                snapshot = Snapshot(
                    command.plan_id,
                    command.partition,
                    command.sequence,
                    command.counters,
                    store.value,
                    tuple(ledger),
                )
                key = command.plan_id, command.partition
                self._snapshots[key] = snapshot

                def done() -> None:
                    sent = m.PartitionSent(self.name, *key, 8, str(snapshot.value))
                    self.step(s.UpdateAcked(*key, command.to, command.sequence, sent))

                self._stream(command.plan_id, command.to).send(snapshot, done)
            case s.SendUpdate(plan_id, partition, to, sequence, clock, splits):
                total = self.stores[partition].last_total
                acked = s.UpdateAcked(plan_id, partition, to, sequence + 1)
                update = Update(plan_id, partition, sequence, clock, splits, total)
                self._stream(plan_id, to).send(update, lambda: self.step(acked))
            case s.SendPromote(plan_id, partition, to, sequence):
                value = self.stores[partition].value
                self._stream(plan_id, to).send(Promote(plan_id, partition, sequence, value))
            case s.StopSending(plan_id, _, to):
                if not self.state.sends(plan_id, to):
                    stream = self._streams.pop((plan_id, to), None)
                    if stream is not None:
                        stream.stop()
            case s.InstallSnapshot(arrival, partition):
                body = arrival.body
                self.stores[partition] = Store(body.value, list(body.ledger))
                arrival.reply(Done())
            case s.ApplyUpdate(arrival, partition, clock, splits):
                self.stores[partition].add(clock, splits)
                self.stores[partition].step(arrival.body.total)
                arrival.reply(Done())
            case s.RefuseUpdate(arrival):
                arrival.reply(Fenced())
            case s.DropUpdate(arrival):
                body = arrival.body
                if isinstance(body, Promote):
                    self._check_promoted(body)
                arrival.reply(Done())
            case _:
                raise AssertionError(command)

    def _check_promoted(self, body: Promote) -> None:
        """The first time: what is promoted is what the donor had, to the last update."""
        key, state = (body.plan_id, body.partition), self.state.partitions.get(body.partition)
        if key in self._promoted or state is None or state.holding is not Holding.OWNER or self.job.taken_over:
            return
        if state.plan_id == body.plan_id:
            self._promoted.add(key)
            assert self.stores[body.partition].value == body.value, "promoted with other parameters"

    def _address_of(self, name: MemberId) -> Address:
        return self.addresses[name]

    def _stream(self, plan_id: int, to: MemberId) -> Stream:
        if (plan_id, to) not in self._streams:
            self._streams[plan_id, to] = self.make_stream(plan_id, to, self._address_of(to))
        return self._streams[plan_id, to]
