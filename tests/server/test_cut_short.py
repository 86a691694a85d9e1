"""Hand-overs that are cut short by members that are lost: real shells and a real training loop in one process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.recovery import Inquiry, take_over
from eps.core.types import Address
from eps.data.splitfile import SplitData
from eps.net.arrays.api import Message, ReplyTo
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.exchange import PullPart, PushPart, build_exchange, parse_reply
from eps.server.shell import ServerShell
from eps.spec.runtime import Runtime
from eps.system.waits import wait_for
from eps.worker.shell import make_shell
from tests.server import test_shell, test_training_in_process

TIMEOUT_S = 10.0
S1, S2, W1, W2, W3 = "server-1", "server-2", "worker-1", "worker-2", "worker-3"


class Data:
    """Data whose splits are all in memory."""

    def __init__(self) -> None:
        self._splits = test_training_in_process.make_splits(False)

    def activate(self, split: int) -> SplitData:
        return self._splits[split]

    def keep_active(self, wanted: object) -> None:
        pass

    def load_initial(self, split: int) -> None:
        pass

    def close_plan(self, plan_id: int, keep: bool) -> None:
        pass

    def describe(self) -> str:
        return ""


class Servers:
    """Two servers and their connections."""

    def __init__(self, runtime: Runtime, workers: Sequence[str], splits: int) -> None:
        self.runtime, self.van = runtime, InProcessVan()
        self.reports: dict[str, list[m.Report]] = {S1: [], S2: []}
        self.shells = {n: ServerShell(runtime, n, self.van, self.reports[n].append) for n in (S1, S2)}
        self.open = threading.Event()
        self.open.set()
        self.listeners = {S1: self.van.listen(self._slow), S2: self.van.listen(self.shells[S2].handle)}
        addresses = {name: Address("x", 1) for name in workers}
        addresses.update({name: listener.address for name, listener in self.listeners.items()})
        active = [workers[s * len(workers) // splits] for s in range(splits)]
        table = PartitionTable((S1, S1), ((), ()))
        self.first = Membership(1, -1, tuple(workers), (S1, S2), table, SplitTable.of(active), addresses)
        self.order(m.UpdateMembership(0, self.first), S1, S2)

    def _slow(self, message: Message, reply: ReplyTo) -> None:
        """Let server-1 take in what carries arrays only while the gate is open."""
        handle = self.shells[S1].handle
        if self.open.is_set() or not message.arrays:
            handle(message, reply)
        else:
            threading.Thread(target=lambda: (self.open.wait(), handle(message, reply)), daemon=True).start()

    def order(self, order: m.Order, *names: str) -> None:
        for name in names:
            self.shells[name].on_order(order)

    def commit_move(self, from_clock: int) -> Membership:
        """Let partition 0 go to server-2 from a clock on."""
        self.order(m.SendPartitions(1, (m.Target(0, S2, self.first.addresses[S2]),)), S1)
        caught_up = lambda: any(isinstance(r, m.PartitionSent) for r in self.reports[S1])  # noqa: E731
        wait_for(caught_up, TIMEOUT_S, "server-2 to have partition 0")
        table = PartitionTable((S2, S1), ((), ()))
        second = replace(self.first, version=2, from_clock=from_clock, partitions=table)
        self.order(m.UpdateMembership(1, second), S1, S2)
        return second

    def inventory(self, number: int, *names: str) -> dict[str, m.Inventory]:
        return {name: self.shells[name]._state.inventory(number, 0) for name in names}

    def close(self) -> None:
        self.open.set()
        for listener in self.listeners.values():
            listener.close()
        for shell in self.shells.values():
            shell.close()


def push(servers: Servers, to: str, partition: int, clock: int, split: int) -> None:
    runtime = servers.runtime
    start, stop = runtime.ranges[partition]
    total = np.empty(0, runtime.grid.dtype)
    if clock >= 0:
        total = np.arange(1, stop - start + 1).astype(runtime.grid.dtype) * test_shell.UNITS * (split + 1)
    maxima = np.full(runtime.grid.num_blocks(stop - start), 4.0, np.float32)
    part = PushPart(partition, clock, (split,), 10, total, maxima)
    connection = servers.van.connect(servers.first.addresses[to])
    parse_reply(connection.request(build_exchange([part], [])).result(TIMEOUT_S))


def trained(cut_short: bool) -> tuple[dict[int, bytes], dict[int, tuple[int, int, int]]]:
    """Return the parameters and the ledger of a job; cut short, a partition comes back in the middle of a clock."""
    runtime = test_shell.make_runtime(iterations=6, servers=2, workers=2, followers=1)
    servers = Servers(runtime, (W1, W2), 2)
    try:
        for clock in range(-1, 2):
            for partition, split in ((0, 0), (0, 1), (1, 0), (1, 1)):
                push(servers, S1, partition, clock, split)
        if cut_short:
            second = servers.commit_move(from_clock=4)
            push(servers, S1, 0, 2, 0)
            # The other worker is lost and never sends its share.
            found = {**servers.inventory(1, S1, S2), W1: m.Inventory(W1, 1, 2)}
            third = take_over(second, Inquiry(1, {W2: "lost"}, found), runtime.settings)
            assert third is not None and third.partitions.owners == (S2, S1)
            servers.order(m.UpdateMembership(1, third), S1, S2)
            servers.listeners[S2].close()
            found = {**servers.inventory(2, S1), W1: m.Inventory(W1, 2, 2)}
            fourth = take_over(third, Inquiry(2, {S2: "lost"}, found), runtime.settings)
            assert fourth is not None and fourth.partitions.owners == (S1, S1) and fourth.from_clock == 2
            servers.order(m.UpdateMembership(1, fourth), S1)
        for clock in range(2, 6):
            for partition, split in ((0, 0), (0, 1), (1, 0), (1, 1)):
                push(servers, S1, partition, clock, split)
        connection = servers.van.connect(servers.first.addresses[S1])
        answer = connection.request(build_exchange([], [PullPart(p, 6) for p in (0, 1)])).result(TIMEOUT_S)
        values = {pull.partition: pull.values.tobytes() for pull in parse_reply(answer)[1]}
        return values, {p: store.ledger() for p, store in servers.shells[S1]._partitions.stores.items()}
    finally:
        servers.close()


def test_a_partition_that_comes_back_in_the_middle_of_a_clock_begins_its_sum_anew() -> None:
    assert trained(cut_short=True) == trained(cut_short=False)


def test_a_worker_pushes_a_clock_to_the_copy_that_lacks_it_also_where_it_has_read_the_next_one_elsewhere() -> None:
    runtime = test_training_in_process.make_runtime(
        False, partitions=2, servers=2, workers=1, followers=1, optimizer="sgd"
    )
    servers = Servers(runtime, (W1,), runtime.settings.num_splits)
    worker = make_shell(runtime, W1, servers.van, Data(), lambda report, can_wait=False: None)  # type: ignore[arg-type]
    worker.on_order(m.UpdateMembership(0, servers.first))
    ended: list[Exception] = []

    def run() -> None:
        try:
            worker.loop.run()
        except Exception as error:
            ended.append(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        worker.on_order(m.GrantHorizon(3, -1, 1))
        wait_for(lambda: worker.state.duties.clock == 4, TIMEOUT_S, "clock 4")
        second = servers.commit_move(from_clock=4)
        worker.on_order(m.UpdateMembership(1, second))
        servers.open.clear()
        worker.on_order(m.GrantHorizon(5, 4, 2))
        read = lambda: worker.loop._next is not None and 0 in worker.loop._next.computation.parameters.arrived  # noqa: E731
        wait_for(read, TIMEOUT_S, "partition 0 of clock 5 to come from server-2")
        servers.listeners[S2].close()
        found = {**servers.inventory(1, S1), W1: worker.state.inventory(1)}
        third = take_over(second, Inquiry(1, {S2: "lost"}, found), runtime.settings)
        assert third is not None and third.partitions.owners == (S1, S1) and third.from_clock == 4
        servers.order(m.UpdateMembership(1, third), S1)
        worker.on_order(m.UpdateMembership(1, third))
        servers.open.set()
        worker.on_order(m.GrantHorizon(6, 4, 3))
        wait_for(lambda: bool(ended) or worker.state.duties.clock == 7, TIMEOUT_S, "clock 7")
        assert not ended, ended
        partitions = servers.shells[S1]._state.partitions
        wait_for(
            lambda: {p.clocks.completed for p in partitions.values()} == {7}, TIMEOUT_S, "server-1 to have clock 6"
        )
    finally:
        worker.stop()
        servers.close()


def test_a_newcomer_whose_first_splits_are_those_of_a_lost_worker_begins_where_that_one_ended() -> None:
    runtime = test_training_in_process.make_runtime(False, partitions=2, servers=2, workers=2, followers=1)
    servers = Servers(runtime, (W1, W2), runtime.settings.num_splits)
    newcomer = make_shell(runtime, W3, servers.van, Data(), lambda report, can_wait=False: None)  # type: ignore[arg-type]
    ended: list[Exception] = []

    def run() -> None:
        try:
            newcomer.loop.run()
        except Exception as error:
            ended.append(error)

    # All of clock -1 that worker-2 owed was counted before it was lost; of worker-1's nothing was.
    mine, lost = ([s for s in range(4) if servers.first.splits.active[s] == name] for name in (W1, W2))
    for partition, split in itertools.product(range(2), lost):
        push(servers, S1, partition, -1, split)
    taken_over = replace(
        servers.first,
        version=2,
        workers=(W1, W3),
        splits=SplitTable.of([W3 if split in lost else W1 for split in range(4)]),
        split_clocks=tuple(0 if split in lost else -1 for split in range(4)),
        addresses={**servers.first.addresses, W3: Address("x", 3)},
        recovery=1,
    )
    servers.order(m.UpdateMembership(1, taken_over), S1, S2)
    newcomer.on_order(m.UpdateMembership(1, taken_over))
    threading.Thread(target=run, daemon=True).start()
    try:
        newcomer.on_order(m.GrantHorizon(0, -1, 2))
        for partition, split in itertools.product(range(2), mine):
            push(servers, S1, partition, -1, split)
        wait_for(lambda: bool(ended) or newcomer.state.duties.clock == 1, TIMEOUT_S, "clock 1")
        assert not ended, ended
        for partition, split in itertools.product(range(2), mine):
            push(servers, S1, partition, 0, split)
        partitions = servers.shells[S1]._state.partitions.values()
        wait_for(lambda: {p.clocks.completed for p in partitions} == {1}, TIMEOUT_S, "server-1 to have clock 0")
    finally:
        newcomer.stop()
        servers.close()


def test_a_split_that_several_partitions_miss_is_computed_again_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = test_training_in_process.make_runtime(False, partitions=2, servers=2, workers=1, followers=1)
    servers = Servers(runtime, (W1,), runtime.settings.num_splits)
    gradient, gradients = runtime.model.loss_and_gradient, []
    monkeypatch.setattr(runtime.model, "loss_and_gradient", lambda *args: (gradients.append(1), gradient(*args))[1])
    worker = make_shell(runtime, W1, servers.van, Data(), lambda report, can_wait=False: None)  # type: ignore[arg-type]
    worker.on_order(m.UpdateMembership(0, servers.first))
    for partition in range(2):
        # As a lost worker left them: a sum of all splits cannot be added to what is there.
        push(servers, S1, partition, -1, 0)
    running = threading.Thread(target=worker.loop.run, daemon=True)
    running.start()
    try:
        worker.on_order(m.GrantHorizon(-1, -1, 1))
        wait_for(lambda: worker.state.duties.clock == 0 or not running.is_alive(), TIMEOUT_S, "clock 0")
        partitions = servers.shells[S1]._state.partitions.values()
        wait_for(lambda: {p.clocks.completed for p in partitions} == {0}, TIMEOUT_S, "server-1 to have clock -1")
        # All four in a sum, and three of them one by one.
        assert len(gradients) == 4 + 3
    finally:
        worker.stop()
        servers.close()
