"""A server's shell over the in-process van: what it does with good and bad messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address, Role
from eps.errors import EpsError, ProtocolError
from eps.ml.grid import GROWTH_BITS
from eps.net.arrays.api import Connection, Message
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.exchange import (
    PullAnswer,
    PullPart,
    PushAnswer,
    PushPart,
    build_exchange,
    keyset_digest,
    parse_header,
    parse_reply,
    simple,
)
from eps.server.commands import SUMS
from eps.server.partition_store import PartitionStore
from eps.server.partitions import KeySets
from eps.server.shell import ServerShell
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime
from eps.system.waits import wait_for

TIMEOUT_S = 10.0
NUM_FEATURES = 7
#: Grid units that every split contributes to every key.
UNITS = 1 << 20


def make_runtime(**settings: object) -> Runtime:
    spec = JobSpec.from_dict(
        {
            "model": "linear",
            "optimizer": "sgd",
            "splits": 2,
            "partitions": 2,
            "iterations": 3,
            "workers": 1,
            "servers": 1,
            **settings,
        }
    )
    shape = DataShape(NUM_FEATURES, 1, (10, 10), sparse=False, test_rows=0, split_checksums=("", ""))
    return Runtime("job", spec, shape, Path("unused"), Path("unused"))


class Rig:
    """One server, a connection to it, and what it reported."""

    def __init__(self, runtime: Runtime, van: InProcessVan | None = None) -> None:
        self.runtime = runtime
        self.reports: list[m.Report] = []
        self.van = van = van or InProcessVan()
        self.shell = ServerShell(runtime, "server-1", van, self.reports.append)
        self.listener = van.listen(self.shell.handle)
        self.connection: Connection = van.connect(self.listener.address)
        workers, servers = ("worker-1",), ("server-1",)
        addresses = {"worker-1": Address("localhost", 1), "server-1": self.listener.address}
        membership = Membership(
            1, -1, workers, servers, PartitionTable(servers * 2), SplitTable.of(workers * 2), addresses
        )
        self.shell.on_order(m.UpdateMembership(0, membership))

    def exchange(
        self, pushes: list[PushPart] | None = None, pulls: list[PullPart] | None = None
    ) -> tuple[list[PushAnswer], list[PullAnswer]]:
        message = build_exchange(pushes or [], pulls or [])
        return parse_reply(self.connection.request(message).result(TIMEOUT_S))

    def push(self, partition: int, clock: int, split: int, total: np.ndarray, samples: int = 10) -> PushPart:
        start, stop = self.runtime.ranges[partition]
        blocks = self.runtime.grid.num_blocks(stop - start)
        maxima = np.full(blocks, 4.0, np.float32)
        return PushPart(partition, clock, (split,), samples, total, maxima)

    def no_sum(self) -> np.ndarray:
        return np.empty(0, self.runtime.grid.dtype)

    def ones(self, partition: int) -> np.ndarray:
        start, stop = self.runtime.ranges[partition]
        return np.full(stop - start, UNITS, self.runtime.grid.dtype)

    def train_first_clock(self) -> None:
        """Take the clock that only measures, and clock 0, on both partitions."""
        for partition in (0, 1):
            for split in (0, 1):
                self.exchange([self.push(partition, -1, split, self.no_sum())])
            for split in (0, 1):
                self.exchange([self.push(partition, 0, split, self.ones(partition))])


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(make_runtime())
    yield made
    made.connection.close()
    made.listener.close()
    made.shell.close()


def test_parameters_of_all_partitions_travel_as_one_array(rig: Rig) -> None:
    rig.train_first_clock()
    reply = rig.connection.request(build_exchange([], [PullPart(p, 1) for p in (0, 1)])).result(TIMEOUT_S)
    assert len(reply.arrays) == 2 and len(reply.arrays[0]) == NUM_FEATURES + 1
    alone = [rig.exchange(pulls=[PullPart(p, 1)])[1][0].values for p in (0, 1)]
    for together, one in zip(parse_reply(reply)[1], alone, strict=True):
        assert together.values.tobytes() == one.tobytes() and one.any()


def test_every_command_of_the_state_is_carried_out_in_one_place(rig: Rig) -> None:
    table = rig.shell._commands.table
    assert not set(table) & set(SUMS) and {*table, *SUMS} == set(get_args(s.ServerCommand))


def test_pull_is_answered_when_every_split_has_contributed(rig: Rig) -> None:
    waiting = rig.connection.request(build_exchange([], [PullPart(0, 0)]))
    rig.exchange([rig.push(0, -1, 0, rig.no_sum())])
    assert not waiting.done()
    rig.exchange([rig.push(0, -1, 1, rig.no_sum())])
    _, pulls = parse_reply(waiting.result(TIMEOUT_S))
    assert pulls[0].clock == 0 and len(pulls[0].values) == len(rig.ones(0))


def test_step_divides_by_the_samples_of_the_clock(rig: Rig) -> None:
    rig.train_first_clock()
    before, after = (rig.exchange(pulls=[PullPart(0, clock)])[1][0] for clock in (0, 1))
    exponent = int(before.exponents[0]) + GROWTH_BITS - rig.runtime.grid.value_bits
    gradient = 2 * UNITS * 2.0**exponent / 20
    assert np.allclose(before.values - after.values, rig.runtime.spec.learning_rate * gradient, rtol=1e-6)


def test_version_before_stays_readable_until_the_next_clock_begins(rig: Rig) -> None:
    rig.train_first_clock()
    assert np.array_equal(rig.exchange(pulls=[PullPart(0, 0)])[1][0].values, np.zeros(len(rig.ones(0)), np.float32))
    rig.exchange([rig.push(0, 1, 0, rig.ones(0))])
    refused = rig.exchange(pulls=[PullPart(0, 0)])[1][0].refusal
    assert refused is not None and refused.passed


def test_push_sent_twice_is_applied_once(rig: Rig) -> None:
    rig.train_first_clock()
    again = rig.exchange([rig.push(0, 0, 1, rig.ones(0))])[0][0]
    assert again.have == (1,) and again.accepted
    header = parse_header(rig.connection.request(Message(simple("export_request", partition=0))).result(TIMEOUT_S))
    assert (header.export_reply.applied, header.export_reply.duplicates_refused) == (2, 1)
    assert header.export_reply.applied_twice == 0


def test_sum_that_mixes_old_and_new_splits_is_not_used(rig: Rig) -> None:
    rig.exchange([rig.push(0, -1, 0, rig.no_sum())])
    start, stop = rig.runtime.ranges[0]
    both = PushPart(0, -1, (0, 1), 20, rig.no_sum(), np.ones(rig.runtime.grid.num_blocks(stop - start), np.float32))
    answer = rig.exchange([both])[0][0]
    assert answer.have == (0,) and not answer.accepted


@pytest.mark.parametrize("case", ["short", "type", "maxima", "negative", "partition", "raw"])
def test_push_of_the_wrong_shape_is_refused_and_harms_nobody(rig: Rig, case: str) -> None:
    good = rig.push(0, 0, 0, rig.ones(0))
    bad = {
        "short": lambda: PushPart(0, 0, (0,), 10, good.total[:-1], good.maxima),
        "type": lambda: PushPart(0, 0, (0,), 10, good.total.astype(np.float32), good.maxima),
        "maxima": lambda: PushPart(0, 0, (0,), 10, good.total, good.maxima[:-1]),
        "negative": lambda: PushPart(0, 0, (0,), 10, good.total, -good.maxima),
        "partition": lambda: PushPart(9, 0, (0,), 10, good.total, good.maxima),
        "raw": lambda: PushPart(0, 0, (0,), 10, good.total, good.maxima, raw=((0, 0, np.ones(9, np.float32)),)),
    }[case]()
    with pytest.raises(ProtocolError, match="partition"):
        rig.exchange([bad])
    rig.train_first_clock()
    assert not [report for report in rig.reports if isinstance(report, m.MemberFailed)]


@pytest.mark.parametrize(("clock", "splits"), [(2, (0,)), (99, (0,)), (0, (7,)), (0, ())])
def test_push_of_a_clock_or_split_that_cannot_be_is_refused(rig: Rig, clock: int, splits: tuple[int, ...]) -> None:
    good = rig.push(0, 0, 0, rig.ones(0))
    answer = rig.exchange([PushPart(0, clock, splits, 10, good.total, good.maxima)])[0][0]
    assert answer.refusal is not None and answer.refusal.error


def test_pull_past_the_last_clock_is_refused(rig: Rig) -> None:
    refusal = rig.exchange(pulls=[PullPart(0, 4)])[1][0].refusal
    assert refusal is not None and "the last is 3" in refusal.error


def test_unknown_keyset_is_asked_for_and_a_wrong_digest_is_refused(rig: Rig) -> None:
    keys = np.array([0, 1], np.int64)
    digest = keyset_digest(keys)
    refusal = rig.exchange(pulls=[PullPart(0, -1, digest)])[1][0].refusal
    assert refusal is not None and refusal.unknown_keyset
    assert len(rig.exchange(pulls=[PullPart(0, -1, digest, keys)])[1][0].values) == 2
    assert len(rig.exchange(pulls=[PullPart(0, -1, digest)])[1][0].values) == 2
    with pytest.raises(ProtocolError, match="digest"):
        rig.exchange(pulls=[PullPart(0, -1, digest, keys[:1])])


def test_partition_that_is_elsewhere_is_refused_with_the_current_version() -> None:
    van = InProcessVan()
    shell = ServerShell(make_runtime(), "server-1", van, lambda report: None)
    listener = van.listen(shell.handle)
    connection = van.connect(listener.address)
    _, pulls = parse_reply(connection.request(build_exchange([], [PullPart(1, 0)])).result(TIMEOUT_S))
    assert pulls[0].refusal is not None and pulls[0].refusal.retry
    connection.close()
    listener.close()


@pytest.mark.parametrize("header", [b"", b"\xff\xff\xff", simple("done"), simple("exchange_reply")])
def test_message_that_is_no_request_gets_an_error(rig: Rig, header: bytes) -> None:
    with pytest.raises(EpsError):
        rig.connection.request(Message(header)).result(TIMEOUT_S)
    rig.train_first_clock()


def test_sum_that_is_not_used_ends_the_wait_of_the_pull_beside_it(rig: Rig) -> None:
    rig.exchange([rig.push(0, -1, 0, rig.no_sum())])
    start, stop = rig.runtime.ranges[0]
    both = PushPart(0, -1, (0, 1), 20, rig.no_sum(), np.ones(rig.runtime.grid.num_blocks(stop - start), np.float32))
    # The pull waits for clock 0, which waits for what the worker sends only when it has the answer to the push.
    pushes, pulls = rig.exchange([both], [PullPart(0, 0)])
    assert pushes[0].have == (0,) and not pushes[0].accepted
    assert pulls[0].refusal is not None and pulls[0].refusal.retry
    rig.exchange([rig.push(0, -1, 1, rig.no_sum())])
    assert rig.exchange(pulls=[PullPart(0, 0)])[1][0].refusal is None


def test_transfer_to_somebody_who_is_not_there_is_reported(rig: Rig) -> None:
    target = m.Target(0, "server-2", Address("localhost", 1))
    rig.shell.on_order(m.UpdateLists(7, (m.Newcomer("server-2", target.address, frozenset({Role.SERVER})),)))
    rig.shell.on_order(m.SendPartitions(7, (target,)))
    wait_for(lambda: any(isinstance(r, m.TransferFailed) for r in rig.reports), TIMEOUT_S, "the report of a failure")
    rig.train_first_clock()


def test_follower_that_does_not_answer_holds_up_no_order(rig: Rig) -> None:
    asked = threading.Event()
    van = rig.van
    # It takes a message and never answers.
    silent = van.listen(lambda message, reply: asked.set())
    rig.shell.on_order(m.UpdateLists(7, (m.Newcomer("server-2", silent.address, frozenset({Role.SERVER})),)))
    rig.shell.on_order(m.SendPartitions(7, (m.Target(0, "server-2", silent.address),)))
    assert asked.wait(TIMEOUT_S)
    rig.train_first_clock()
    rig.shell.on_order(m.AbortPlan(7))
    assert rig.exchange(pulls=[PullPart(0, 1)])[1][0].clock == 1
    silent.close()


def test_push_waits_only_for_the_followers_of_its_own_partition(rig: Rig) -> None:
    silent = rig.van.listen(lambda message, reply: None)
    rig.shell.on_order(m.UpdateLists(7, (m.Newcomer("server-2", silent.address, frozenset({Role.SERVER})),)))
    rig.shell.on_order(m.SendPartitions(7, (m.Target(0, "server-2", silent.address),)))
    followers = rig.shell._followers
    assert followers.streams_of([0, 1]) == followers.streams_of([0]) == list(followers._streams.values())
    assert len(followers._streams) == 1 and followers.streams_of([1]) == []
    rig.shell.on_order(m.AbortPlan(7))
    silent.close()


def test_update_that_is_refused_as_taken_over_holds_up_no_other_partition_of_that_follower() -> None:
    runtime, van = make_runtime(iterations=20, followers=1, servers=2), InProcessVan()
    shells = {name: ServerShell(runtime, name, van, lambda report: None) for name in ("server-1", "server-2")}
    listeners = {name: van.listen(shell.handle) for name, shell in shells.items()}
    owner, heir = shells["server-1"], shells["server-2"]
    connection = van.connect(listeners["server-1"].address)

    def train(clock: int, *partitions: int) -> None:
        for partition in partitions:
            start, stop = runtime.ranges[partition]
            total = np.full(stop - start if clock >= 0 else 0, UNITS, runtime.grid.dtype)
            maxima = np.full(runtime.grid.num_blocks(stop - start), 4.0, np.float32)
            for split in (0, 1):
                message = build_exchange([PushPart(partition, clock, (split,), 10, total, maxima)], [])
                connection.request(message).result(TIMEOUT_S)
        stream = owner._followers._streams[0, "server-2"]
        wait_for(lambda: stream._waiting_bytes == 0, TIMEOUT_S, "the updates to be answered")

    workers, servers = ("worker-1", "worker-2"), ("server-1", "server-2")
    addresses = {"worker-1": Address("x", 1), "worker-2": Address("x", 2)}
    addresses |= {name: listener.address for name, listener in listeners.items()}
    table = PartitionTable(("server-1", "server-1"), (("server-2",), ("server-2",)))
    first = Membership(1, -1, workers, servers, table, SplitTable.of(workers), addresses)
    for shell in shells.values():
        shell.on_order(m.UpdateMembership(0, first))
    train(-1, 0, 1)
    # Partition 0 is to go to its follower at clock 10; then a worker is lost, and it goes there at once.
    table = PartitionTable(("server-2", "server-1"), ((), ("server-2",)))
    promised = replace(first, version=2, from_clock=10, partitions=table)
    for shell in shells.values():
        shell.on_order(m.UpdateMembership(3, promised))
    heirs = SplitTable.of(("worker-1", "worker-1"))
    taken_over = replace(promised, version=3, from_clock=0, workers=("worker-1",), splits=heirs, recovery=1)
    taken_over = replace(taken_over, split_clocks=(0, 0))
    heir.on_order(m.UpdateMembership(3, taken_over))
    # On its way when the worker was lost; the owner does not know yet.
    train(0, 0, 1)
    assert owner._state.partitions[0].followers["server-2"].acked == 1
    owner.on_order(m.UpdateMembership(3, taken_over))
    train(1, 1)
    pulled = connection.request(build_exchange([], [PullPart(1, 2)])).result(TIMEOUT_S)
    assert parse_reply(pulled)[1][0].clock == 2 and heir._state.partitions[1].clocks.completed == 2
    connection.close()
    for name in servers:
        listeners[name].close()
        shells[name].close()


def test_training_goes_on_where_a_checkpoint_finds_no_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def no_room(store: PartitionStore) -> None:
        raise MemoryError("no room for a copy")

    monkeypatch.setattr(PartitionStore, "snapshot", no_room)
    rig.shell.on_order(m.TakeCheckpoint(1, 1, 1))
    rig.train_first_clock()
    for split in (0, 1):
        rig.exchange([rig.push(0, 1, split, rig.ones(0))])
    assert rig.exchange(pulls=[PullPart(0, 2)])[1][0].clock == 2
    wait_for(lambda: m.CheckpointPartFailed in map(type, rig.reports), TIMEOUT_S, "the report of a failed part")
    assert m.MemberFailed not in map(type, rig.reports)


def test_key_sets_without_use_for_some_clocks_are_evicted() -> None:
    cache = KeySets(keep_clocks=3)

    def use(number: int, clock: int, with_keys: bool) -> bool:
        keys = np.array([number], np.int64)
        return cache.fill_in(PullPart(0, clock, keyset_digest(keys), keys if with_keys else None))

    assert use(0, 0, True) and use(1, 0, True)
    # A batch has a set of its own at every clock; set 0 is used all the time.
    assert all(use(clock + 10, clock, True) and use(0, clock, False) for clock in range(9))
    # A partition moves with those that may come again: used at the current clock or the one before.
    assert {int(keys[0]) for keys in cache.of(0).values()} == {0, 17, 18}
    assert [number for number in range(19) if use(number, 8, False)] == [0, 15, 16, 17, 18]


def test_key_sets_beyond_the_bound_are_forgotten_and_asked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eps.server.partitions.MOST_KEYSET_BYTES", 16)
    first, second = np.array([0, 1], np.int64), np.array([1, 2], np.int64)
    rig.exchange(pulls=[PullPart(0, -1, keyset_digest(first), first)])
    rig.exchange(pulls=[PullPart(0, -1, keyset_digest(second), second)])
    refusal = rig.exchange(pulls=[PullPart(0, -1, keyset_digest(first))])[1][0].refusal
    assert refusal is not None and refusal.unknown_keyset
    assert len(rig.exchange(pulls=[PullPart(0, -1, keyset_digest(second))])[1][0].values) == 2
