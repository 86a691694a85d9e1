"""Runs of sums and steps, on one thread and on two: the same bits, the same errors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address
from eps.errors import EpsError
from eps.ml import kernels
from eps.ml.optim import OPTIMIZERS
from eps.net.arrays.api import ReplyTo
from eps.net.arrays.in_process import InProcessVan
from eps.net.messages.exchange import PullPart, PushPart, build_exchange, parse_reply
from eps.server.commands import Arithmetic, Command
from eps.server.open_requests import PendingExchange, PushRequest
from eps.server.partition_store import PartitionStore
from eps.server.partitions import initial_values
from eps.server.shell import ServerShell
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime

TIMEOUT_S = 10.0
PARTITIONS, SPLITS, CLOCKS = 5, 3, 3


class NoReply:
    """A reply that is dropped."""

    def send(self, message: object) -> None:
        raise AssertionError("nothing is answered here")


def make_runtime(**settings: object) -> Runtime:
    values = {"splits": SPLITS, "partitions": PARTITIONS, "iterations": CLOCKS, "workers": 1, "servers": 1}
    spec = JobSpec.from_dict({"model": "linear", **values, **settings})
    shape = DataShape(9000, 1, (10,) * SPLITS, sparse=False, test_rows=0, split_checksums=("",) * SPLITS)
    return Runtime("job", spec, shape, Path("unused"), Path("unused"))


def pushed(runtime: Runtime, clock: int, split: int) -> list[PushPart]:
    """Return what a worker with one split pushes: the same for all that ask."""
    rng = np.random.default_rng((clock + 1) * SPLITS + split)
    parts = []
    for partition, (start, stop) in enumerate(runtime.ranges):
        size, blocks = stop - start, runtime.grid.num_blocks(stop - start)
        maxima, raw = np.full(blocks, 4.0, np.float32), ()
        if not runtime.settings.reproducible:
            total, maxima = rng.normal(size=size).astype(np.float32), np.empty(0, np.float32)
        elif clock < 0:
            total = np.empty(0, runtime.grid.dtype)
        else:
            total = rng.integers(-(2**20), 2**20, size).astype(runtime.grid.dtype)
            if partition == 1:
                size_of_first = min(size, runtime.grid.block_keys)
                raw = ((split, 0, rng.normal(size=size_of_first).astype(np.float32)),)
        parts.append(PushPart(partition, clock, (split,), 10, total, maxima, b"", None, raw))
    return parts


def batch(parts: list[PushPart], first: bool, last: bool, followed: bool = False) -> list[Command]:
    """Return the sums and steps that the state makes of a worker's pushes."""
    pending = PendingExchange(cast(ReplyTo, NoReply()), parts, [], deque())
    commands: list[Command] = []
    for part in parts:
        commands.append(s.Accumulate(PushRequest(pending, part), part.partition, part.clock, part.splits, first))
        if last:
            commands.append(s.StepPartition(part.partition, part.clock, followed))
    return commands


def trained(runtime: Runtime, cores: int | None, is_followed: bool) -> tuple[list[bytes], list[bytes]]:
    """Return the parameters, and all that is kept or that followers would get; without cores one by one."""
    stores = {p: PartitionStore(runtime, p, initial_values(runtime, a, b)) for p, (a, b) in enumerate(runtime.ranges)}
    work = Arithmetic(cores)
    kept = []
    for clock in range(runtime.settings.first_clock, CLOCKS):
        for split in range(SPLITS):
            commands = batch(pushed(runtime, clock, split), split == 0, split == SPLITS - 1, is_followed)
            runs = [commands] if cores is not None else [[command] for command in commands]
            found = [update for run in runs for update in work.run(run, stores)]
            for command, update in zip(commands, found, strict=True):
                if isinstance(command, s.StepPartition):
                    assert (update is not None) == (is_followed or clock < 0)
                if update is not None:
                    kept += [update.gradient.tobytes(), update.exponents.tobytes()]
    work.close()
    kept += [array.tobytes() for store in stores.values() for array in store.snapshot()[0]]
    return [store.export().tobytes() for store in stores.values()], kept


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("reproducible", [True, False], ids=["reproducible", "plain"])
@pytest.mark.parametrize("is_followed", [False, True], ids=["alone", "followed"])
def test_bits_are_the_same_together_and_on_two_threads(
    optimizer: str, reproducible: bool, is_followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr("eps.server.commands.SHARED_BYTES", 0)
    runtime = make_runtime(optimizer=optimizer, reproducible=reproducible, l1=0.001)
    found = {}
    for choice in ("numpy", "numba"):
        monkeypatch.setenv(kernels.VARIABLE, choice)
        for cores in (None, 1, 2):
            found[choice, cores] = trained(runtime, cores, is_followed)
    expected = found["numpy", None]
    assert [name for name, one in found.items() if one != expected] == []


@dataclass
class Recorded:
    """A partition that records its operations."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    together: threading.Barrier | None = None
    fails: bool = False

    def accumulate(self, push: PushPart, first_of_clock: bool, is_last: bool = False) -> None:
        self.calls.append(("add", push.splits, is_last))

    def step(self, clock: int, keep_gradient: bool) -> None:
        self.calls.append(("step", clock))
        if self.together is not None:
            # The barrier breaks, and the test fails, unless two threads reach it.
            self.together.wait(TIMEOUT_S)
        if self.fails and threading.current_thread().name.startswith("arithmetic"):
            raise ValueError("of the second thread")


@pytest.fixture
def two_partitions(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[int, Recorded], list[Command]]]:
    monkeypatch.setattr("eps.server.commands.SHARED_BYTES", 1)
    parts = [PushPart(p, 0, (0,), 1, np.zeros(4, np.int32), np.zeros(1, np.float32)) for p in (0, 1)]
    together = threading.Barrier(2)
    yield {p: Recorded(together=together) for p in (0, 1)}, batch(parts, True, True)


ALL = [("add", (0,), True), ("step", 0)]


def test_two_threads_work_at_the_same_time(two_partitions: tuple[dict[int, Recorded], list[Command]]) -> None:
    stores, commands = two_partitions
    work = Arithmetic(2)
    assert work.run(commands, cast(Any, stores)) == [None] * 4
    assert all(store.calls == ALL for store in stores.values())
    work.close()


def test_error_of_the_second_thread_is_raised(two_partitions: tuple[dict[int, Recorded], list[Command]]) -> None:
    stores, commands = two_partitions
    for store in stores.values():
        store.fails = True
    work = Arithmetic(2)
    with pytest.raises(ValueError, match="of the second thread"):
        work.run(commands, cast(Any, stores))
    work.close()


def test_one_thread_does_all_where_the_system_has_no_second(
    two_partitions: tuple[dict[int, Recorded], list[Command]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, commands = two_partitions
    for store in stores.values():
        store.together = None
    work = Arithmetic(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        work.run(commands, cast(Any, stores))
    assert all(store.calls == ALL for store in stores.values())
    work.close()
    for store in stores.values():
        store.calls = []
    work.run(commands, cast(Any, stores))
    assert all(store.calls == ALL for store in stores.values())


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("why", ["one core", "little to do", "others compute"])
def test_one_thread_does_all_where_two_would_not_pay(
    why: str,
    two_partitions: tuple[dict[int, Recorded], list[Command]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores, commands = two_partitions
    for store in stores.values():
        store.together = threading.Barrier(1)
    if why == "little to do":
        monkeypatch.setattr("eps.server.commands.SHARED_BYTES", 33)
    started = set(threading.enumerate())
    work = Arithmetic(1 if why == "one core" else 2)
    if why == "others compute":
        commands = [command for command in commands if not isinstance(command, s.StepPartition)]
    work.run(commands, cast(Any, stores))
    assert set(threading.enumerate()) == started
    work.close()


def test_a_sum_without_its_step_is_complete_when_the_run_ends(
    two_partitions: tuple[dict[int, Recorded], list[Command]],
) -> None:
    stores, commands = two_partitions
    for store in stores.values():
        store.together = None
    work = Arithmetic(2)
    work.run(commands[:3], cast(Any, stores))
    assert stores[0].calls == ALL and stores[1].calls == [("add", (0,), False)]
    work.close()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Runtime, Any, ServerShell, list[m.Report]]]:
    monkeypatch.setattr("eps.server.commands.SHARED_BYTES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    runtime, van = make_runtime(optimizer="sgd"), InProcessVan()
    reports: list[m.Report] = []
    shell = ServerShell(runtime, "server-1", van, reports.append)
    listener = van.listen(shell.handle)
    connection = van.connect(listener.address)
    addresses = {"worker-1": Address("localhost", 1), "server-1": listener.address}
    table, splits = PartitionTable(("server-1",) * PARTITIONS), SplitTable.of(("worker-1",) * SPLITS)
    shell.on_order(m.UpdateMembership(0, Membership(1, -1, ("worker-1",), ("server-1",), table, splits, addresses)))
    yield runtime, connection, shell, reports
    connection.close()
    listener.close()
    shell.close()


def test_server_answers_what_two_threads_computed(served: tuple[Runtime, Any, ServerShell, list[m.Report]]) -> None:
    runtime, connection, _, reports = served
    expected, _ = trained(runtime, None, False)
    for clock in range(-1, CLOCKS):
        for split in range(SPLITS):
            message = build_exchange(pushed(runtime, clock, split), [])
            connection.request(message).result(TIMEOUT_S)
    pulls = [PullPart(p, CLOCKS) for p in range(PARTITIONS)]
    _, answers = parse_reply(connection.request(build_exchange([], pulls)).result(TIMEOUT_S))
    assert [answer.values.tobytes() for answer in answers] == expected
    assert m.MemberFailed not in map(type, reports)


def test_error_of_the_second_thread_is_reported_and_raised(
    served: tuple[Runtime, Any, ServerShell, list[m.Report]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, connection, _, reports = served
    together, plain_step = threading.Barrier(2), PartitionStore.step
    stepped = []

    def step(store: PartitionStore, clock: int, keep_gradient: bool = True) -> Any:
        if store.partition < 2:
            together.wait(TIMEOUT_S)
        if threading.current_thread().name.startswith("arithmetic"):
            raise MemoryError("no room in the second thread")
        stepped.append(store.partition)
        return plain_step(store, clock, keep_gradient)

    for split in range(SPLITS - 1):
        connection.request(build_exchange(pushed(runtime, -1, split), [])).result(TIMEOUT_S)
    monkeypatch.setattr(PartitionStore, "step", step)
    with pytest.raises(EpsError, match="the second thread"):
        connection.request(build_exchange(pushed(runtime, -1, SPLITS - 1), [])).result(TIMEOUT_S)
    failed = [report for report in reports if isinstance(report, m.MemberFailed)]
    assert [(report.kind, report.message) for report in failed] == [("MemoryError", "no room in the second thread")]
    assert stepped and set(stepped) < set(range(PARTITIONS))


def test_what_cannot_be_begun_is_reported_too(
    served: tuple[Runtime, Any, ServerShell, list[m.Report]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, connection, shell, reports = served

    def run(commands: object) -> None:
        raise MemoryError("no room to begin")

    monkeypatch.setattr(shell._commands, "run", run)
    with pytest.raises(EpsError, match="no room to begin"):
        connection.request(build_exchange(pushed(runtime, -1, 0), [])).result(TIMEOUT_S)
    failed = [report for report in reports if isinstance(report, m.MemberFailed)]
    assert [(report.kind, report.message) for report in failed] == [("MemoryError", "no room to begin")]
