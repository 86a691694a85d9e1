"""The training loop over a plane that is no server, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address, CoreSettings
from eps.core.worker_state import Kept, WorkerState
from eps.errors import DeadlineError
from eps.worker.loop import HORIZON_DEADLINE_S, NEAR_HORIZON_CLOCKS, Progress, TrainingLoop, Wakeup
from tests.core.test_worker_state import V1, V2, V3

SETTINGS = CoreSettings(num_splits=4, num_partitions=2, iterations=3, reproducible=False)
W1 = "worker-1"


@dataclass(eq=False)
class Contribution:
    """The contribution of some splits."""

    clock: int
    splits: tuple[int, ...]

    @property
    def results(self) -> tuple[m.SplitResult, ...]:
        return tuple(m.SplitResult(split, 1, 0.5) for split in self.splits)


@dataclass(eq=False)
class Computation:
    """A computation of one clock; complete when the plane says so."""

    clock: int
    splits: tuple[int, ...]
    complete: bool = False
    dropped: bool = False
    again: set[int] = field(default_factory=set)

    def read_again(self, partitions: set[int]) -> None:
        self.again |= partitions
        self.complete = self.complete and not partitions

    def finish(self) -> Contribution:
        assert self.complete and not self.dropped
        return Contribution(self.clock, self.splits)

    def drop_splits(self) -> None:
        self.dropped = True


class Program:
    """A program that computes nothing, for a scripted time."""

    def __init__(self) -> None:
        self.splits: tuple[int, ...] = ()
        self.pause = 0.0

    def load(self, splits: tuple[int, ...]) -> None:
        self.splits = splits

    def keep(self, splits: tuple[int, ...]) -> str:
        return f"{splits}"

    def begin(self, clock: int) -> Computation:
        return Computation(clock, self.splits)

    def is_for(self, computation: Computation, clock: int) -> bool:
        return computation.clock == clock and computation.splits == self.splits

    def pause_s(self, contribution: Contribution) -> float:
        return self.pause

    def measure(self, computation: Computation) -> tuple[m.SplitResult, ...]:
        return tuple(m.SplitResult(split, 1, 0.1) for split in computation.splits)

    def forget(self) -> None:
        self.splits = ()


@dataclass(eq=False)
class Exchange:
    """A recorded exchange of the plane."""

    plane: Plane
    put: Sequence[Kept]
    get: Computation | None
    clock: int
    due_s: float = 60.0

    def advance(self) -> Progress:
        progress = self.plane.progress
        if progress is Progress.COMPLETE and self.get is not None:
            self.get.complete = True
        return progress


class Plane:
    """A plane whose progress is scripted by the test."""

    def __init__(self) -> None:
        self.progress = Progress.COMPLETE
        self.exchanges: list[Exchange] = []
        self.followed: list[int] = []
        self.rests = 0

    def prepare(self, addresses: Iterable[Address]) -> None:
        raise AssertionError("the loop prepares nothing")

    def follow(self, membership: Membership) -> None:
        self.followed.append(membership.version)

    def exchange(self, put: Sequence[Kept], get: Computation | None, clock: int, min_clock: int) -> Exchange:
        self.exchanges.append(Exchange(self, put, get, clock))
        return self.exchanges[-1]

    def rest(self) -> None:
        self.rests += 1

    def close(self) -> None:
        raise AssertionError("the loop closes nothing")


class Worker:
    """A loop, its state, and what it reported."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 0.0
        self.state = WorkerState(W1, replace(SETTINGS, **settings))
        self.wakeup = Wakeup(lambda: self.now_s)
        self.program, self.plane = Program(), Plane()
        self.said: list[tuple[m.Report, bool]] = []
        program: Any = self.program
        plane: Any = self.plane
        say = lambda report, can_wait=False: self.said.append((report, can_wait))  # noqa: E731
        self.loop = TrainingLoop(self.state, self.wakeup, program, plane, say)

    def grant(self, horizon: int) -> None:
        self.state.duties.on_grant(m.GrantHorizon(horizon, 0, self.state.memberships.version))

    def clocks(self) -> list[int]:
        return [report.clock for report, _ in self.said if isinstance(report, m.ClockReported)]


def started(horizon: int = 20, **settings: Any) -> Worker:
    worker = Worker(**settings)
    worker.state.on_membership(V1)
    worker.grant(horizon)
    return worker


def takeover(version: int = 2, clock: int = 0, **changes: Any) -> Membership:
    return replace(V1, version=version, from_clock=clock, split_clocks=(clock,) * 4, recovery=version - 1, **changes)


def test_every_clock_is_pushed_with_the_pull_of_the_next_until_the_model_is_measured() -> None:
    worker = started()
    assert worker.loop.advance() == HORIZON_DEADLINE_S
    asked = [([kept.clock for kept in x.put], x.get.clock if x.get else None) for x in worker.plane.exchanges]
    assert asked == [([], 0), ([0], 1), ([1], 2), ([2], 3)]
    assert worker.clocks() == [0, 1, 2, 3]
    assert worker.state.duties.finished and worker.plane.rests == 1 and worker.program.splits == ()


def test_report_waits_for_others_unless_the_horizon_is_near() -> None:
    worker = started(horizon=NEAR_HORIZON_CLOCKS + 1, iterations=9)
    worker.loop.advance()
    assert [can_wait for _, can_wait in worker.said] == [True] + [False] * (NEAR_HORIZON_CLOCKS + 1)


def test_worker_that_is_granted_no_clock_gives_up_and_says_what_it_waits_for() -> None:
    worker = started(horizon=0)
    assert worker.loop.advance() == HORIZON_DEADLINE_S
    worker.now_s = 10.0
    assert worker.loop.advance() == HORIZON_DEADLINE_S
    worker.now_s = HORIZON_DEADLINE_S
    with pytest.raises(DeadlineError, match=r"3600 s .* clock 1; .* 0"):
        worker.loop.advance()


def test_a_spare_worker_and_one_of_an_open_recovery_wait_as_long_as_the_master() -> None:
    spare, stopped = Worker(), started(horizon=0)
    stopped.state.inventory(1)
    for worker in (spare, stopped):
        for hours in range(3):
            worker.now_s = hours * HORIZON_DEADLINE_S
            assert worker.loop.advance() == (hours + 1) * HORIZON_DEADLINE_S
    stopped.state.on_membership(takeover())
    assert stopped.loop.advance() == 3 * HORIZON_DEADLINE_S, "its deadline begins now"


def test_loop_ends_when_it_is_told_to() -> None:
    worker = started(horizon=0)
    worker.wakeup.stop()
    worker.wakeup.tell()
    assert worker.loop.advance() is None
    worker.loop.run()


def test_computation_lasts_as_long_as_the_program_says() -> None:
    worker = started()
    worker.program.pause = 2.0
    assert worker.loop.advance() == 2.0
    worker.now_s = 1.0
    assert worker.loop.advance() == 2.0 and worker.clocks() == []
    worker.now_s = 2.0
    assert worker.loop.advance() == 4.0 and worker.clocks() == [0]


def test_loss_of_members_beside_a_computation_does_not_void_it_but_a_return_to_a_checkpoint_does() -> None:
    for goes_back, reported in ((False, [0]), (True, [])):
        worker = started()
        worker.program.pause = 2.0
        worker.loop.advance()
        worker.state.inventory(1)
        worker.state.on_membership(takeover(goes_back=goes_back, incarnation=int(goes_back)))
        worker.grant(20)
        worker.plane.progress = Progress.UNDER_WAY
        worker.now_s = 2.0
        worker.loop.advance()
        assert worker.clocks() == reported
        assert worker.plane.exchanges[-1].clock == (0 if goes_back else 1)


def test_splits_of_a_lost_worker_are_computed_before_the_clock_goes_on() -> None:
    worker = started()
    worker.program.pause = 2.0
    worker.loop.advance()
    addresses = {name: address for name, address in V1.addresses.items() if name != "worker-2"}
    worker.state.on_membership(takeover(workers=(W1,), splits=SplitTable.of((W1,) * 4), addresses=addresses))
    worker.now_s = 2.0
    assert worker.loop.advance() == 4.0
    assert worker.program.splits == (2, 3) and worker.state.duties.clock == 0
    # What is computed goes with the read that the other splits need, and nothing of the next clock.
    last = worker.plane.exchanges[-1]
    assert ([kept.splits for kept in last.put], last.clock) == ([(0, 1)], 0)


def test_exchange_begins_again_after_a_loss_with_what_has_come_unless_the_job_goes_back() -> None:
    for goes_back in (False, True):
        worker = started()
        worker.plane.progress = Progress.UNDER_WAY
        worker.loop.advance()
        first = worker.plane.exchanges[-1].get
        worker.state.inventory(1)
        assert worker.loop.advance() == HORIZON_DEADLINE_S, "nothing begins before a membership takes over"
        worker.state.on_membership(takeover(goes_back=goes_back, incarnation=int(goes_back)))
        worker.grant(20)
        worker.loop.advance()
        assert len(worker.plane.exchanges) == 2
        assert (worker.plane.exchanges[-1].get is first) is not goes_back
        assert not first.again, "its owners are those of before"


@pytest.mark.parametrize("complete", [False, True])
def test_what_a_lost_owner_had_sent_is_read_again(complete: bool) -> None:
    """The new owner may have an earlier version, also where all had come before the exchange was known to be over."""
    worker = started()
    worker.plane.progress = Progress.UNDER_WAY
    worker.loop.advance()
    first = worker.plane.exchanges[-1].get
    first.complete = complete
    table = PartitionTable(("server-2", V1.partitions.owners[1]))
    worker.state.inventory(1)
    addresses = {name: Address(name, 1) for name in (*V1.workers, *V2.servers)}
    worker.state.on_membership(takeover(partitions=table, servers=V2.servers, addresses=addresses))
    worker.grant(20)
    worker.loop.advance()
    assert worker.plane.exchanges[-1].get is first
    assert first.again == {0}


def test_without_bsp_parameters_that_came_in_part_are_read_again_after_a_loss() -> None:
    worker = started(staleness=2)
    worker.plane.progress = Progress.UNDER_WAY
    worker.loop.advance()
    worker.state.on_membership(takeover())
    worker.loop.advance()
    first, second = worker.plane.exchanges
    assert first.get is not second.get


def test_clock_that_has_passed_is_not_computed() -> None:
    worker = started(horizon=1)
    worker.plane.progress = Progress.PASSED
    worker.loop.advance()
    assert worker.state.duties.clock == 2 and worker.clocks() == []


def test_worker_that_leaves_reads_once_more_and_then_releases_its_plan() -> None:
    worker = started(followers=1)
    worker.state.on_membership(V2)
    worker.state.on_membership(replace(V3, from_clock=3), 7)
    worker.state.releases.ask(7)
    worker.grant(20)
    worker.loop.advance()
    last = worker.plane.exchanges[-1]
    assert last.clock == 3 and last.put == [] and last.get is not None and last.get.dropped
    assert worker.said[-1] == (m.PlanReleased(W1, 7), False) and worker.plane.rests == 1


def test_membership_is_followed_when_its_clock_comes() -> None:
    worker = started(iterations=9)
    worker.state.on_membership(V2)
    worker.loop.advance()
    assert worker.plane.followed and set(worker.plane.followed) == {2}
    first = worker.state.memberships.newest.from_clock
    assert len(worker.plane.followed) == SETTINGS.first_clock + 9 + 1 - first
