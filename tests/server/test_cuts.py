"""Cuts on two servers: an owner copies its partitions and sends them, a BackupPS keeps them, both restore them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.cuts import cut_name
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address
from eps.errors import EpsError, TakenOverError, TransferError
from eps.net.arrays.api import Message, ReplyTo, Seal
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.exchange import PushPart, build_exchange, keyset_digest, parse_header, parse_reply, simple
from eps.pb import data_pb2 as pb
from eps.server.partition_store import changed_keys, with_changes
from eps.server.shell import ServerShell
from eps.spec.runtime import Runtime
from eps.system.waits import wait_for
from tests.server.test_shell import TIMEOUT_S, UNITS, make_runtime

OWNER, BACKUP = "server-1", "server-2"
PARTITIONS, SPLITS = (0, 1), (0, 1)
NOWHERE = Address("nowhere", 9)
#: Enough that arrays are lent instead of copied, and the share of keys that one push changes.
NUM_FEATURES, SHARE = 3000, 0.05
#: Values that are equal or not to themselves and to each other, whatever their bits.
SPECIAL = np.array([0.0, -0.0, np.nan, 1.0], np.float32)

Bits = list[bytes]


def bits(arrays: object) -> Bits:
    return [array.tobytes() for array in arrays]  # type: ignore[attr-defined]


class Pair:
    """An ActivePS that owns both partitions, and a BackupPS; pushes are drawn from the clock and the split."""

    def __init__(self, **settings: object) -> None:
        runtime = make_runtime(iterations=20, servers=2, **settings)
        self.runtime: Runtime = replace(runtime, shape=replace(runtime.shape, num_features=NUM_FEATURES))
        self.van = InProcessVan()
        self.reports: list[m.Report] = []
        self.shells = {name: ServerShell(self.runtime, name, self.van, self.reports.append) for name in (OWNER, BACKUP)}
        #: Cleared by tests in which the BackupPS answers late.
        self.answers = threading.Event()
        self.answers.set()
        self.received: list[Message] = []
        self.listeners = {
            OWNER: self.van.listen(self.shells[OWNER].handle),
            BACKUP: self.van.listen(self._handle_late),
        }
        self.addresses = {name: listener.address for name, listener in self.listeners.items()}
        self.membership = self.owned_by(OWNER, OWNER)
        self.announce(self.membership)

    def _handle_late(self, message: Message, reply: ReplyTo) -> None:
        assert self.answers.wait(TIMEOUT_S)
        self.received.append(message)
        self.shells[BACKUP].handle(message, reply)

    def owned_by(self, *owners: str) -> Membership:
        workers, addresses = ("worker-1",), {"worker-1": Address("localhost", 1), **self.addresses}
        splits = SplitTable.of(workers * len(SPLITS))
        return Membership(1, -1, workers, (OWNER, BACKUP), PartitionTable(owners), splits, addresses)

    def announce(self, membership: Membership) -> None:
        self.membership = membership
        for shell in self.shells.values():
            shell.on_order(m.UpdateMembership(0, membership))

    def roll_back(self, clock: int, *owners: str) -> None:
        known = self.membership
        found = self.owned_by(*owners)
        self.announce(
            replace(
                found,
                version=known.version + 1,
                incarnation=known.incarnation + 1,
                checkpoint=cut_name(clock),
                goes_back=True,
            )
        )

    def order(self, cut_id: int, clock: int, kept: int = -1, backups: tuple[str, ...] = (BACKUP,)) -> None:
        targets = tuple(m.Target(place, name, self.addresses.get(name, NOWHERE)) for place, name in enumerate(backups))
        for shell in self.shells.values():
            shell.on_order(m.TakeCut(cut_id, clock, kept, targets))

    def push(self, partition: int, clock: int, split: int) -> PushPart:
        runtime, draw = self.runtime, np.random.default_rng((partition, clock + 1, split))
        start, stop = runtime.ranges[partition]
        keys, keyset = None, b""
        if runtime.sparse:
            keys = np.arange(start, stop, dtype=np.int64)[draw.random(stop - start) < SHARE]
            keyset = keyset_digest(keys)
        length = stop - start if keys is None else len(keys)
        total, maxima = np.zeros(length, np.float32), np.empty(0, np.float32)
        if runtime.settings.bsp:
            total = np.zeros(0 if clock < 0 else length, runtime.grid.dtype)
            maxima = np.full(runtime.grid.num_blocks(stop - start), 4.0, np.float32)
        nonzero = draw.random(len(total)) < (SHARE if keys is None else 1.0)
        total[nonzero] = draw.integers(-UNITS, UNITS, nonzero.sum())
        return PushPart(partition, clock, (split,), 10, total, maxima, keyset, keys)

    def train(self, *clocks: int, partitions: tuple[int, ...] = PARTITIONS, splits: tuple[int, ...] = SPLITS) -> None:
        for clock in clocks:
            for partition in partitions:
                owner = self.membership.partitions.owners[partition]
                for split in splits:
                    message = build_exchange(
                        [self.push(partition, clock, split)], [], incarnation=self.membership.incarnation
                    )
                    connection = self.shells[OWNER]._peers.to(self.addresses[owner])
                    pushes, _ = parse_reply(connection.request(message).result(TIMEOUT_S))
                    assert pushes[0].accepted and not pushes[0].have

    def store(self, partition: int) -> Bits:
        """Return the bits of the partition, at its owner."""
        return bits(
            self.shells[self.membership.partitions.owners[partition]]._partitions.stores[partition].snapshot()[0]
        )

    def kept(self, name: str) -> dict[tuple[int, int], Bits]:
        """Return the bits of the copies that a server keeps, by partition and clock."""
        shell = self.shells[name]
        with shell._lock:
            found = {key: arrays for key, (_, arrays) in shell._cuts._kept.items() if arrays is not None}
            known = {(p, clock) for p, kept in shell._state._served.cuts.items() for clock in kept}
        assert set(found) <= known
        return {key: bits(arrays) for key, arrays in found.items()}

    def staged(self, cut_id: int) -> list[m.CutStaged]:
        return [r for r in self.reports if isinstance(r, m.CutStaged) and r.cut_id == cut_id]

    def wait_for_cut(self, cut_id: int) -> None:
        wait_for(lambda: len(self.staged(cut_id)) >= 2, TIMEOUT_S, f"cut {cut_id}, reports {self.reports}")

    def parts(self) -> list[pb.PartitionCut]:
        """Return the parts that the BackupPS received."""
        return [header.cut for header in map(parse_header, self.received) if header.HasField("cut")]

    def move(self) -> None:
        """Have both partitions sent to the BackupPS for a plan."""
        to = tuple(m.Target(partition, BACKUP, self.addresses[BACKUP]) for partition in PARTITIONS)
        self.shells[OWNER].on_order(m.SendPartitions(1, to))

    def wait_for_move(self) -> list[m.PartitionSent]:
        def sent() -> list[m.PartitionSent]:
            return [report for report in self.reports if isinstance(report, m.PartitionSent)]

        wait_for(lambda: len(sent()) == len(PARTITIONS), TIMEOUT_S, f"the move, reports {self.reports}")
        arrived = {r.partition: r.checksum for r in self.reports if isinstance(r, m.PartitionCaughtUp)}
        assert arrived == {report.partition: report.checksum for report in sent()}
        return sent()

    def snapshots(self) -> list[pb.PartitionSnapshot]:
        """Return the snapshots that the BackupPS received."""
        return [header.snapshot for header in map(parse_header, self.received) if header.HasField("snapshot")]

    def is_followed(self) -> bool:
        """Return whether the BackupPS has the bits of the owner."""
        there = self.shells[BACKUP]._partitions.stores
        return all(p in there and bits(there[p].snapshot()[0]) == self.store(p) for p in PARTITIONS)

    def failures(self) -> list[m.CutFailed]:
        return [report for report in self.reports if isinstance(report, m.CutFailed)]

    def close(self) -> None:
        self.answers.set()
        for listener in self.listeners.values():
            listener.close()
        for shell in self.shells.values():
            shell.close()
        assert not [report for report in self.reports if isinstance(report, m.MemberFailed)]


JOBS: dict[str, dict[str, object]] = {
    "dense": {"optimizer": "adam"},
    "sgd": {"optimizer": "sgd"},
    "sparse": {"optimizer": "adam", "l2": 0.001},
    "asp": {"optimizer": "momentum", "consistency": "asp"},
}


@pytest.fixture(params=JOBS)
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    if request.param == "sparse":
        monkeypatch.setattr(Runtime, "sparse", True)
    made = Pair(**JOBS[request.param])
    yield made
    made.close()


@pytest.fixture
def dense() -> Iterator[Pair]:
    made = Pair(**JOBS["dense"])
    yield made
    made.close()


def first(pair: Pair) -> int:
    """Return the first clock of the job."""
    return pair.runtime.settings.first_clock


def test_cut_is_staged_and_committed_and_restored_on_both_servers(pair: Pair) -> None:
    pair.order(1, 2)
    pair.train(*range(first(pair), 2))
    at_2 = {(p, 2): pair.store(p) for p in PARTITIONS}
    pair.wait_for_cut(1)
    assert {(r.name, r.holder, r.clock) for r in pair.staged(1)} == {(OWNER, BACKUP, 2)}
    assert all(report.size_bytes > 0 for report in pair.staged(1))
    pair.train(2, 3)
    assert pair.kept(OWNER) == pair.kept(BACKUP) == at_2
    # The order of the next cut commits this one.
    pair.order(2, 4, kept=2)
    at_4 = {(p, 4): pair.store(p) for p in PARTITIONS}
    pair.wait_for_cut(2)
    assert pair.kept(OWNER) == pair.kept(BACKUP) == {**at_2, **at_4}
    pair.train(4, 5)
    undisturbed = [pair.store(p) for p in PARTITIONS]
    pair.roll_back(2, OWNER, BACKUP)
    assert pair.kept(OWNER) == pair.kept(BACKUP) == at_2
    assert {(p, 2): pair.store(p) for p in PARTITIONS} == at_2
    pair.train(2, 3, 4, 5)
    assert [pair.store(p) for p in PARTITIONS] == undisturbed
    # The copies are still those of the cut.
    pair.roll_back(2, BACKUP, BACKUP)
    assert {(p, 2): pair.store(p) for p in PARTITIONS} == at_2


def test_keys_that_changed_since_the_committed_cut_have_the_bits_of_a_whole_copy(pair: Pair) -> None:
    pair.train(*range(first(pair), 0))
    kept = -1
    for cut_id, clock in enumerate((1, 2, 4, 5), start=1):
        pair.order(cut_id, clock, kept)
        pair.train(*range(max(kept, 0), clock))
        pair.wait_for_cut(cut_id)
        assert pair.kept(OWNER) == pair.kept(BACKUP)
        assert all(pair.kept(BACKUP)[p, clock] == pair.store(p) for p in PARTITIONS)
        kept = clock
        if cut_id == 2:
            # The copies stay, so the next parts are again changed keys.
            pair.roll_back(kept, OWNER, OWNER)
    changed_only = [part.changed_only for part in pair.parts()]
    assert changed_only == [False, False] + [True] * 6
    smaller = max(report.size_bytes for report in pair.staged(4))
    assert smaller < 0.7 * min(report.size_bytes for report in pair.staged(1))


@pytest.mark.parametrize("which", ["missing", "different"])
def test_whole_partition_is_sent_if_its_backup_lacks_the_copy_that_changed(pair: Pair, which: str) -> None:
    pair.train(*range(first(pair), 1))
    pair.order(1, 1)
    pair.wait_for_cut(1)
    cuts = pair.shells[BACKUP]._cuts
    if which == "missing":
        cuts._kept.clear()
    else:
        cut_id, arrays = cuts._kept[0, 1]
        state, values, *others = arrays or ()
        cuts._kept[0, 1] = cut_id, (state, values + 1, *others)
    pair.order(2, 2, kept=1)
    pair.train(1)
    pair.wait_for_cut(2)
    assert [pair.kept(BACKUP)[p, 2] for p in PARTITIONS] == [pair.store(p) for p in PARTITIONS]
    again = [True, False] * 2 if which == "missing" else [True, False, True]
    assert [part.changed_only for part in pair.parts()] == [False, False, *again]


def test_a_partition_moves_to_its_backup_as_the_keys_that_changed_since_the_cut(pair: Pair) -> None:
    pair.train(*range(first(pair), 1))
    pair.order(1, 1)
    pair.wait_for_cut(1)
    whole = min(report.size_bytes for report in pair.staged(1))
    pair.train(1)
    pair.move()
    sent = pair.wait_for_move()
    assert [part.changed_only for part in pair.snapshots()] == [True, True]
    assert max(report.size_bytes for report in sent) < 0.7 * whole
    # The copies of the cut stay as they were, and updates follow.
    assert pair.is_followed() and pair.kept(OWNER) == pair.kept(BACKUP)
    pair.train(2)
    wait_for(pair.is_followed, TIMEOUT_S, "the updates of clock 2")


@pytest.mark.parametrize("which", ["missing", "different"])
def test_a_whole_partition_moves_to_a_backup_that_lacks_the_copy_and_no_update_comes_before_it(
    pair: Pair, which: str
) -> None:
    pair.train(*range(first(pair), 1))
    pair.order(1, 1)
    pair.wait_for_cut(1)
    cuts = pair.shells[BACKUP]._cuts
    for key, (cut_id, (state, values, *others)) in list(cuts._kept.items()):  # type: ignore[misc]
        if which == "missing":
            del cuts._kept[key]
        else:
            cuts._kept[key] = cut_id, (state, values + 1, *others)
    pair.train(1)
    pair.answers.clear()
    pair.move()
    pair.train(2, 3)
    pair.answers.set()
    pair.wait_for_move()
    assert sorted((part.partition, part.changed_only) for part in pair.snapshots()) == [
        (partition, changed_only) for partition in PARTITIONS for changed_only in (False, True)
    ]
    wait_for(pair.is_followed, TIMEOUT_S, "the updates of clocks 2 and 3")


def test_changed_keys_are_those_whose_bits_differ() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        size, num_slots, has_clocks = int(random.integers(1, 50)), int(random.integers(0, 3)), random.random() < 0.5

        def drawn(size: int = size, num_slots: int = num_slots, has_clocks: bool = has_clocks) -> list[np.ndarray]:
            # Few values, so that some are equal; among them are zeros of both signs and NaN.
            per_key = [random.choice(SPECIAL, size) for _ in range(1 + num_slots)]
            last = random.integers(0, 2, size if has_clocks else 0).astype(np.int32)
            small = [random.integers(0, 9, n).astype(kind) for n, kind in ((2, "<i8"), (3, "<i2"), (4, "<i8"))]
            return [small[0], per_key[0], small[1], small[2], last, *per_key[1:]]

        base, after = drawn(), drawn()
        same = random.random(size) < 0.7
        for i in (1, *range(4, len(base))):
            if len(base[i]):
                after[i][same] = base[i][same]
        changed = changed_keys(after, base)
        if changed is not None:
            assert sum(a.nbytes for a in changed) < sum(a.nbytes for a in after)
            assert bits(with_changes(base, changed)) == bits(after)


@pytest.mark.parametrize(
    "changed",
    [
        [0, [1.0, 2.0], 0, 0, [], [2, 1]],
        [0, [1.0, 2.0], 0, 0, [], [0, 5]],
        [0, [1.0, 2.0], 0, 0, [], [-1, 1]],
        [0, [1.0], 0, 0, [], [1, 2]],
        [0, 0, 0, [], [1]],
        [[]],
    ],
)
def test_changed_keys_that_do_not_fit_are_refused(changed: list[object]) -> None:
    base = [np.zeros(n, np.float32) for n in (1, 5, 1, 1, 0)]
    arrays = [np.array(part, np.float32) for part in changed[:-1]]
    with pytest.raises(TransferError, match="changed keys"):
        with_changes(base, [*arrays, np.array(changed[-1], np.int32)])


def test_copies_stay_as_they_were_while_training_goes_on(pair: Pair) -> None:
    pair.train(*range(first(pair), 2))
    at_2 = {(p, 2): pair.store(p) for p in PARTITIONS}
    pair.answers.clear()
    pair.order(1, 2)
    # The BackupPS does not answer: one partition is on its way, the other waits for it.
    pair.train(2, 3, 4)
    assert not pair.staged(1)
    pair.answers.set()
    pair.wait_for_cut(1)
    assert pair.kept(OWNER) == pair.kept(BACKUP) == at_2


def test_partition_whose_backup_is_its_owner_is_not_sent(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    dense.order(1, 2)
    dense.wait_for_cut(1)
    dense.roll_back(2, OWNER, BACKUP)
    dense.received.clear()
    # The BackupPS owns a partition itself, until a plan moves that again.
    dense.order(2, 3, kept=2)
    dense.train(2)
    dense.wait_for_cut(2)
    assert {(r.name, r.partition, r.holder, r.size_bytes > 0) for r in dense.staged(2)} == {
        (OWNER, 0, BACKUP, True),
        (BACKUP, 1, BACKUP, False),
    }
    assert dense.kept(BACKUP)[1, 3] == dense.store(1) and (1, 3) not in dense.kept(OWNER)
    assert [part.partition for part in dense.parts()] == [0]


def test_partitions_of_a_server_that_keeps_copies_stay_with_it(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    dense.order(1, 2, backups=(BACKUP, OWNER))
    dense.wait_for_cut(1)
    assert {(r.partition, r.holder, r.size_bytes) for r in dense.staged(1)} == {(0, OWNER, 0), (1, OWNER, 0)}
    assert set(dense.kept(OWNER)) == {(0, 2), (1, 2)} and not dense.kept(BACKUP) and not dense.received


def test_partitions_are_kept_in_turns_by_several_backups(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    dense.order(1, 2, backups=(BACKUP, "server-9"))
    wait_for(lambda: bool(dense.failures()) and bool(dense.staged(1)), TIMEOUT_S, "a failure and a copy")
    # Nobody answers as server-9.
    assert [(r.partition, r.holder) for r in dense.staged(1)] == [(0, BACKUP)]
    assert [failed.partition for failed in dense.failures()] == [1]


def test_copy_of_a_voided_cut_is_not_kept_for_another_cut_of_that_clock(dense: Pair) -> None:
    """After a rollback a cut may have the clock of one whose copy is still on its way."""
    dense.train(-1, 0, 1)
    at_2 = dense.store(0)
    taken = s.CopyForCut(1, 0, 2, s.Counters((2, 2), 4))
    arrays = dense.shells[OWNER]._partitions.stores[0].snapshot()[0]
    cuts = dense.shells[OWNER]._cuts
    with dense.shells[OWNER]._lock:
        cuts._kept[0, 2] = 1, None
        cuts.copied(taken, arrays)
        kept = cuts.find(0, 2)
        assert kept is not None and bits(kept) == at_2
        # Another cut of the same clock has begun; its copy is not made yet.
        cuts._kept[0, 2] = 2, None
        cuts.copied(taken, arrays)
        assert cuts.find(0, 2) is None
        cuts.drop(s.DropCut(0, 2))


def test_repeated_order_repeats_the_reports(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    for _ in range(2):
        dense.order(1, 2)
        dense.wait_for_cut(1)
    assert len(dense.staged(1)) == 4 and len(dense.received) == 2


def test_unreachable_backup_fails_the_cut_and_the_next_one_succeeds(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    dense.order(1, 2, backups=("server-9",))
    wait_for(lambda: bool(dense.failures()), TIMEOUT_S, "a failure")
    failed = dense.failures()[0]
    assert (failed.name, failed.cut_id) == (OWNER, 1) and "nowhere" in failed.message
    dense.order(2, 3)
    # The failed cut's copies are freed.
    assert not dense.kept(OWNER)
    dense.train(2)
    dense.wait_for_cut(2)
    assert dense.kept(OWNER) == dense.kept(BACKUP) == {(p, 3): dense.store(p) for p in PARTITIONS}


def test_partition_that_is_past_the_clock_fails_the_cut(dense: Pair) -> None:
    dense.train(-1, 0, 1, 2)
    dense.order(1, 2)
    assert {(f.partition, f.cut_id) for f in dense.failures()} == {(0, 1), (1, 1)}
    assert not dense.kept(OWNER)


def test_copy_that_does_not_fit_into_memory_fails_the_cut_and_training_continues(
    dense: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense.train(-1, 0, 1)
    stores = dense.shells[OWNER]._partitions.stores
    for store in stores.values():
        monkeypatch.setattr(store, "snapshot", lambda: ([][1], 0))
    dense.order(1, 2)
    wait_for(lambda: bool(dense.failures()), TIMEOUT_S, "a failure")
    monkeypatch.undo()
    dense.train(2)
    dense.order(2, 3)
    dense.wait_for_cut(2)
    assert dense.kept(BACKUP) == {(p, 3): dense.store(p) for p in PARTITIONS}


def test_new_order_voids_copies_of_the_earlier_cut_that_were_not_sent(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    dense.answers.clear()
    dense.order(1, 2)
    dense.train(2)
    dense.order(2, 4)
    assert not dense.kept(OWNER)
    dense.answers.set()
    dense.train(3)
    dense.wait_for_cut(2)
    assert dense.kept(OWNER) == dense.kept(BACKUP) == {(p, 4): dense.store(p) for p in PARTITIONS}
    assert len(dense.received) <= 3


def test_all_copies_are_freed_when_no_cut_is_needed(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    dense.order(1, 2)
    dense.wait_for_cut(1)
    for shell in dense.shells.values():
        shell.on_order(m.DropCuts(1))
        assert not shell._cuts._kept
    assert not dense.kept(OWNER) and not dense.kept(BACKUP)


def test_part_that_arrives_when_no_cut_is_needed_any_more_is_refused(dense: Pair) -> None:
    dense.train(-1, 0, 1)
    dense.answers.clear()
    dense.order(1, 2)
    for shell in dense.shells.values():
        shell.on_order(m.DropCuts(1))
    dense.answers.set()
    # Those of a later cut are not.
    dense.order(2, 3)
    dense.train(2)
    dense.wait_for_cut(2)
    assert not dense.staged(1) and {failed.cut_id for failed in dense.failures()} <= {1}
    assert dense.kept(OWNER) == dense.kept(BACKUP) == {(p, 3): dense.store(p) for p in PARTITIONS}
    with pytest.raises(TakenOverError, match="a later cut than 1"):
        send_cut(dense)
    # A repeated or late order to drop the first cut changes nothing.
    for shell in dense.shells.values():
        shell.on_order(m.DropCuts(1))
    assert set(dense.kept(OWNER)) == set(dense.kept(BACKUP)) == {(0, 3), (1, 3)}


def send_cut(pair: Pair, seal: bool = True, num_arrays: int = 99, **changed: object) -> None:
    """Send the owner's partition 0 to the BackupPS, with some fields of the header changed."""
    arrays = pair.shells[OWNER]._partitions.stores[0].snapshot()[0][:num_arrays]
    fields = dict(incarnation=0, cut_id=1, partition=0, clock=2, kept=-1, next_clock=(2, 2), applied=4)
    message = Message(simple("cut", **{**fields, **changed}), arrays, Seal() if seal else None)
    pair.shells[OWNER]._peers.to(pair.addresses[BACKUP]).request(message).result(TIMEOUT_S)


@pytest.mark.parametrize(
    ("changed", "error", "reason"),
    [
        ({"incarnation": 1}, TakenOverError, "another incarnation"),
        ({"cut_id": 0}, TakenOverError, "a later cut than 0"),
        ({"partition": 7}, EpsError, "a cut of partition 7; the job has 2"),
        ({"next_clock": (2,)}, EpsError, "the clocks of 1 splits"),
        ({"clock": 99}, EpsError, "of clocks 2 to 99"),
        ({"num_arrays": 4}, TransferError, "came as 4 arrays"),
        ({"seal": False}, TransferError, "without a checksum"),
    ],
)
def test_unusable_parts_of_a_cut_are_refused(
    dense: Pair, changed: dict[str, object], error: type[EpsError], reason: str
) -> None:
    dense.train(-1, 0, 1)
    send_cut(dense)
    before = dense.kept(BACKUP)
    with pytest.raises(error, match=reason):
        send_cut(dense, **changed)  # type: ignore[arg-type]
    assert dense.kept(BACKUP) == before != {}
