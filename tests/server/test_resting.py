"""Members that have nothing to do: what they held in shared memory is given back, by both ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address
from eps.data.splitfile import SplitData
from eps.net.arrays.sockets import SocketVan
from eps.server.shell import ServerShell
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import DataShape, Runtime
from eps.system.waits import wait_for
from eps.worker.shell import make_shell
from tests.net.raw_peers import TOKEN, shared_mappings

TIMEOUT_S = 20.0
S1, S2, W1 = "server-1", "server-2", "worker-1"
#: So many that all arrays that matter are lent.
SPLITS, ROWS, FEATURES = 2, 4, 60_000
ITERATIONS = 6


class Data:
    """Splits that are always in memory."""

    def activate(self, split: int) -> SplitData:
        X = np.random.default_rng(split).normal(size=(ROWS, FEATURES)).astype(np.float32)
        y = np.arange(ROWS, dtype=np.int32) % 2
        return SplitData(X, y, FEATURES, None, X[:0], y[:0])

    def keep_active(self, splits: object) -> None:
        """Nothing: they are made when they are asked for."""

    def load_initial(self, split: int) -> None:
        """Nothing."""

    def close_plan(self, plan_id: int, keep: bool) -> None:
        """Nothing."""

    def describe(self) -> str:
        return ""


class Job:
    """Two servers, of which the first has all partitions, and a worker; each has a van, and memory, of its own."""

    def __init__(self) -> None:
        spec = JobSpec.from_dict(
            {"splits": SPLITS, "partitions": 2, "iterations": ITERATIONS, "servers": 2, "workers": 1}
        )
        shape = DataShape(FEATURES, 2, (ROWS,) * SPLITS, sparse=False, test_rows=0, split_checksums=("",) * SPLITS)
        runtime = Runtime("job", spec, shape, Path("unused"), Path("unused"))
        self.vans = {name: SocketVan("shm", TOKEN) for name in (S1, S2, W1)}
        self.reports: list[m.Report] = []
        self.shells = {name: ServerShell(runtime, name, self.vans[name], self.reports.append) for name in (S1, S2)}
        self.listeners = {name: self.vans[name].listen(shell.handle) for name, shell in self.shells.items()}
        addresses = {W1: Address("x", 1)} | {name: found.address for name, found in self.listeners.items()}
        table, splits = PartitionTable((S1, S1), ((), ())), SplitTable.of((W1,) * SPLITS)
        self.first = Membership(1, -1, (W1,), (S1, S2), table, splits, addresses)
        for shell in self.shells.values():
            shell.on_order(m.UpdateMembership(0, self.first))
        self.said: list[m.Report] = []
        say = lambda report, can_wait=False: self.said.append(report)  # noqa: E731
        self.worker = make_shell(runtime, W1, self.vans[W1], Data(), say)  # type: ignore[arg-type]
        self.worker.on_order(m.UpdateMembership(0, self.first))
        self._thread = threading.Thread(target=self.worker.loop.run, daemon=True)
        self._thread.start()

    def grant(self, horizon: int) -> None:
        self.worker.on_order(m.GrantHorizon(horizon, -1, self.worker.state.memberships.newest.version))

    def train(self, horizon: int) -> None:
        """Let the worker train up to this clock."""
        self.grant(horizon)
        wait_for(lambda: self.worker.state.duties.clock == horizon + 1, TIMEOUT_S, f"clock {horizon + 1}")

    def back_to_the_start(self) -> Membership:
        return replace(self.first, version=2, split_clocks=(-1,) * SPLITS, recovery=1, incarnation=1, goes_back=True)

    def size_bytes(self, name: str) -> int:
        arena = self.vans[name].arena
        assert arena is not None
        gc.collect()
        return arena.size_bytes

    def close(self) -> None:
        self.worker.stop()
        self._thread.join(TIMEOUT_S)
        self.worker.close()
        for listener in self.listeners.values():
            listener.close()
        for shell in self.shells.values():
            shell.close()


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_a_worker_that_has_finished_gives_back_its_memory_and_that_of_the_servers(job: Job) -> None:
    gc.collect()
    before = len(shared_mappings())
    job.train(ITERATIONS - 2)
    assert job.size_bytes(W1) and job.size_bytes(S1)
    assert len(shared_mappings()) == before + 3, "server-1 has its own from the beginning"
    job.grant(ITERATIONS)
    wait_for(lambda: job.worker.state.duties.finished, TIMEOUT_S, "the worker to finish")
    wait_for(lambda: not job.size_bytes(W1), TIMEOUT_S, "the worker to give back what it had")
    wait_for(lambda: len(shared_mappings()) == before, TIMEOUT_S, "nothing but the server's own to be mapped")


def test_a_server_whose_partitions_left_gives_back_its_memory(job: Job) -> None:
    job.train(2)
    assert job.size_bytes(S1)
    targets = tuple(m.Target(partition, S2, job.first.addresses[S2]) for partition in (0, 1))
    job.shells[S1].on_order(m.SendPartitions(1, targets))
    sent = lambda: sum(isinstance(report, m.PartitionSent) for report in job.reports) == 2  # noqa: E731
    wait_for(sent, TIMEOUT_S, "server-2 to have both")
    second = replace(job.first, version=2, from_clock=3, partitions=PartitionTable((S2, S2), ((), ())))
    for shell in job.shells.values():
        shell.on_order(m.UpdateMembership(1, second))
    job.worker.on_order(m.UpdateMembership(1, second))
    job.train(4)
    assert job.size_bytes(S1) and job.size_bytes(S2)
    for shell in job.shells.values():
        shell.on_order(m.ReleasePlan(1))
    wait_for(lambda: not job.size_bytes(S1), TIMEOUT_S, "server-1 to give back what it had")
    assert job.size_bytes(S2), "which trains"
    job.train(ITERATIONS - 1)


def test_a_server_that_leaves_does_not_wait_for_the_iteration_that_others_have_begun_without_it(job: Job) -> None:
    job.train(2)
    targets = tuple(m.Target(partition, S2, job.first.addresses[S2]) for partition in (0, 1))
    job.shells[S1].on_order(m.SendPartitions(1, targets))
    sent = lambda: sum(isinstance(report, m.PartitionSent) for report in job.reports) == 2  # noqa: E731
    wait_for(sent, TIMEOUT_S, "server-2 to have both")
    second = replace(job.first, version=2, from_clock=3, partitions=PartitionTable((S2, S2), ((), ())))
    for shell in job.shells.values():
        shell.on_order(m.UpdateMembership(1, second))
    job.worker.on_order(m.UpdateMembership(1, second))
    with job.shells[S2]._lock:
        # Pulls from server-2 have to wait.
        job.grant(3)
        wait_for(lambda: job.worker.loop._round is not None, TIMEOUT_S, "clock 3 to begin")
        job.worker.on_order(m.ReleasePlan(1))
        released = m.PlanReleased(W1, 1) in job.said
        clock = job.worker.state.duties.clock
    job.train(3)
    assert (released, clock) == (True, 3)


def test_a_server_that_goes_back_keeps_its_memory_for_what_it_begins_with(job: Job) -> None:
    job.train(2)
    arena = job.vans[S1].arena
    assert arena is not None
    gone: list[int] = []
    arena.on_segment_gone(gone.append)
    again = job.back_to_the_start()
    job.shells[S1].on_order(m.UpdateMembership(0, again))
    assert job.shells[S1]._state.incarnation == 1 and not gone


def test_a_worker_at_rest_computes_again_where_the_job_goes_back(job: Job) -> None:
    job.grant(ITERATIONS)
    wait_for(lambda: job.worker.state.duties.finished and not job.size_bytes(W1), TIMEOUT_S, "the worker to rest")
    again = job.back_to_the_start()
    for shell in job.shells.values():
        shell.on_order(m.UpdateMembership(0, again))
    job.worker.on_order(m.UpdateMembership(0, again))
    assert not job.worker.state.duties.finished
    job.train(2)
    assert job.size_bytes(W1)
    job.grant(ITERATIONS)
    wait_for(lambda: job.worker.state.duties.finished and not job.size_bytes(W1), TIMEOUT_S, "the worker to rest again")
