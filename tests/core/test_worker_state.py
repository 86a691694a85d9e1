"""The splits and clocks that a worker may compute next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from eps.core import messages as m
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.types import Address, CoreSettings
from eps.core.worker_state import Confirmation, Duties, Kept, Work, WorkerState

BSP = CoreSettings(num_splits=4, num_partitions=2, iterations=10, reproducible=False)


def membership(
    version: int, from_clock: int, active: tuple[str, ...], owners: tuple[str, ...] = ("server-1", "server-1")
) -> Membership:
    workers, servers = tuple(sorted(set(active))), tuple(sorted(set(owners)))
    addresses = {name: Address(name, 1) for name in workers + servers}
    return Membership(version, from_clock, workers, servers, PartitionTable(owners), SplitTable.of(active), addresses)


V1 = membership(1, 0, ("worker-1", "worker-1", "worker-2", "worker-2"))
#: Split 1 goes to worker-3, partition 1 to server-2, both from clock 3.
V2 = membership(2, 3, ("worker-1", "worker-3", "worker-2", "worker-2"), ("server-1", "server-2"))
#: worker-1 leaves.
V3 = membership(3, 5, ("worker-2", "worker-3", "worker-2", "worker-3"), ("server-1", "server-2"))


class CheckedWorker(WorkerState):
    """The state of a worker whose every step is validated."""


def _checked(step: Callable[..., Any]) -> Callable[..., Any]:
    def checked(state: CheckedWorker, *args: Any) -> Any:
        found = step(state, *args)
        state.validate()
        return found

    return checked


for name in ("on_membership", "inventory", "released", "begin", "keep", "read", "pushed", "passed", "end"):
    setattr(CheckedWorker, name, _checked(getattr(WorkerState, name)))


def worker(name: str = "worker-1", settings: CoreSettings = BSP, horizon: int = 20) -> Duties:
    state = Duties(name, settings)
    state.on_membership(V1)
    state.on_grant(m.GrantHorizon(horizon, 0, 1))
    return state


def whole(name: str = "worker-1", settings: CoreSettings = BSP, horizon: int = 20) -> WorkerState:
    """Return the whole state of a worker."""
    state = CheckedWorker(name, settings)
    state.on_membership(V1)
    state.duties.on_grant(m.GrantHorizon(horizon, 0, 1))
    return state


def finish(state: Duties, clock: int) -> None:
    """Compute and push a clock."""
    state.computed(clock, state.due_at(clock))
    assert state.done(clock)
    state.validate()


def test_worker_waits_for_a_membership_then_for_the_horizon() -> None:
    state = Duties("worker-1", BSP)
    before = state.next_work()
    state.on_membership(V1)
    without = state.next_work(), state.waits_for()
    state.on_grant(m.GrantHorizon(0, 0, 1))

    assert before is None
    assert without == (None, "the horizon to reach clock 0; it is -1")
    assert state.next_work() == Work(0, (0, 1), 0)


def test_worker_computes_up_to_the_horizon_and_not_beyond() -> None:
    state = worker(horizon=2)
    for clock in range(3):
        assert state.next_work() == Work(clock, (0, 1), clock)
        finish(state, clock)

    assert state.next_work() is None


def test_membership_is_acknowledged_each_time_and_an_old_one_changes_nothing() -> None:
    state = worker()
    state.on_membership(V2)

    assert state.on_membership(V2) == m.MembershipAcked("worker-1", 2)
    assert state.on_membership(V1) == m.MembershipAcked("worker-1", 1)
    assert state.memberships.newest is V2
    assert len(state.memberships) == 2


def test_horizon_counts_only_with_the_membership_that_came_with_it() -> None:
    state = worker(horizon=2)
    state.on_grant(m.GrantHorizon(9, 0, 2))
    without = state.horizon
    state.on_membership(V2)

    assert (without, state.horizon) == (2, 9)


def test_grants_and_memberships_in_any_order_lead_to_the_same_horizon() -> None:
    arrivals = [m.GrantHorizon(2, 0, 1), m.GrantHorizon(4, 0, 2), m.GrantHorizon(6, 0, 3), V1, V2, V3]
    for order in permutations(arrivals):
        versions = [v.version for v in order if isinstance(v, Membership)]
        if versions != sorted(versions):
            continue
        state = Duties("worker-1", BSP)
        for arrival in order:
            if isinstance(arrival, Membership):
                state.on_membership(arrival)
            else:
                state.on_grant(arrival)
            known = state.memberships.version
            assert state.horizon <= 2 * known, "never beyond what the memberships known allow"
        assert state.horizon == 6


def test_splits_change_hands_at_one_clock() -> None:
    donor, receiver = worker(), Duties("worker-3", BSP)
    for state in (donor, receiver):
        state.on_membership(V2)
    receiver.on_grant(m.GrantHorizon(20, 0, 2))

    assert [donor.active_at(c) for c in (2, 3)] == [(0, 1), (0,)]
    assert receiver.next_work() == Work(3, (1,), 3)


def test_splits_to_come_are_needed_in_memory_already() -> None:
    state = worker("worker-2")
    state.on_membership(V2)
    state.on_membership(V3)

    assert state.needed() == (0, 2, 3)
    assert Duties("worker-9", BSP).needed() == ()


def test_bsp_requests_go_where_the_clock_says_and_others_where_the_newest_membership_says() -> None:
    bsp = worker()
    ssp = worker(settings=replace(BSP, staleness=2))
    for state in (bsp, ssp):
        state.on_membership(V2)

    assert [bsp.memberships.route(c).partitions.owners[1] for c in (2, 3)] == ["server-1", "server-2"]
    assert [ssp.memberships.route(c).partitions.owners[1] for c in (2, 3)] == ["server-2", "server-2"]


def test_worker_that_leaves_owes_the_clocks_before() -> None:
    state = worker()
    state.on_membership(V2)
    state.on_membership(V3)
    seen = []
    while (work := state.next_work()) is not None:
        seen.append((work.clock, state.left))
        finish(state, work.clock)

    assert seen == [(clock, False) for clock in range(5)]
    assert state.left and not state.finished


def test_memberships_that_no_longer_matter_are_forgotten() -> None:
    state = worker("worker-2")
    for value in (V2, V3):
        state.on_membership(value)
    versions = []
    for clock in range(6):
        versions.append([v.version for v in state.memberships])
        finish(state, clock)

    assert versions == [[1, 2, 3]] * 3 + [[2, 3]] * 2 + [[3]]


def test_later_of_two_memberships_of_one_clock_holds() -> None:
    state = worker()
    state.on_membership(V2)
    state.on_membership(replace(V3, from_clock=3))

    assert state.memberships.at(3).version == 3
    finish(state, 0)
    finish(state, 1)
    finish(state, 2)
    assert state.left


def test_worker_is_finished_when_the_final_parameters_are_measured() -> None:
    state = worker()
    for clock in range(11):
        assert not state.finished
        work = state.next_work()
        assert work is not None and work.min_clock == clock
        finish(state, clock)

    assert state.finished and state.next_work() is None


def test_clocks_are_done_in_order() -> None:
    with pytest.raises(AssertionError):
        finish(worker(), 3)


def test_clock_list_names_the_servers_of_the_newest_membership() -> None:
    state = worker()
    state.on_membership(V2)

    assert state.memberships.clock_list({0: 4}) == {"server-1": 4, "server-2": 0}


@pytest.mark.parametrize(("staleness", "min_clocks"), [(0, [0, 1, 2, 3]), (2, [0, 0, 0, 1]), (-1, [0, 0, 0, 0])])
def test_work_says_how_stale_its_reads_may_be(staleness: int, min_clocks: list[int]) -> None:
    state = worker(settings=replace(BSP, staleness=staleness))
    seen = []
    for clock in range(4):
        work = state.next_work()
        assert work is not None
        seen.append(work.min_clock)
        finish(state, clock)

    assert seen == min_clocks


def test_a_plans_commit_that_comes_late_keeps_no_worker_from_being_released_that_left_before_it() -> None:
    """A member was lost before the plan's clock: the recovery's membership holds at once, with who leaves left out."""
    state = whole("worker-1")
    state.on_membership(V2)
    state.on_membership(V3, 7)
    state.releases.ask(7)
    before = state.released()
    after = replace(membership(4, 2, V3.splits.active), split_clocks=(2, 2, 2, 2), recovery=1)
    state.on_membership(after, 7)
    state.on_membership(V3, 7)

    assert before == []
    assert state.duties.left and state.duties.clock == 2
    assert state.released() == [m.PlanReleased("worker-1", 7)]


def test_a_plan_is_released_once_its_clock_has_come_and_at_once_where_it_is_asked_again() -> None:
    state = whole("worker-1")
    state.on_membership(V2, 7)
    state.releases.ask(7)
    for clock in range(V2.from_clock):
        assert state.released() == []
        finish(state.duties, clock)
    released, again = state.released(), state.released()
    state.releases.ask(7)

    assert (released, again) == ([m.PlanReleased("worker-1", 7)], [])
    assert state.released() == released


# ---- what is under way, and what is kept


def computed(state: WorkerState, clock: int, splits: tuple[int, ...] = (0, 1)) -> Kept:
    """Compute a clock, and keep what it gave."""
    kept = Kept(clock, splits, m.ClockReported(state.name, clock, (), 0), "arrays")
    state.keep(kept)
    return kept


def test_what_is_computed_is_reported_once_and_pushed_to_the_owners_that_lack_it() -> None:
    state = whole()
    kept = computed(state, 0)

    assert state.outbox.untold() == [kept.report] and state.outbox.untold() == []
    state.outbox.on_held(1, 0, (0, 1))
    state.outbox.on_held(0, 0, (1,))
    assert state.outbox.unpushed() == [kept] and state.outbox.missing(kept) == [0], "one split is not the whole"
    state.outbox.on_pushed([kept])
    assert state.outbox.unpushed() == [] and len(state.outbox) == 1
    state.read(1)
    assert len(state.outbox) == 0 and state.read_clock == 1


def test_partition_that_was_read_has_everything_of_the_clocks_before_under_bsp_only() -> None:
    for settings, missing in ((BSP, [0]), (replace(BSP, staleness=2), [0, 1])):
        state = whole(settings=settings)
        kept = computed(state, 0)
        state.outbox.on_read(1, 1)
        assert state.outbox.missing(kept) == missing


def test_without_bsp_what_every_owner_has_is_not_kept() -> None:
    state = whole(settings=replace(BSP, staleness=2))
    first, second = computed(state, 0), computed(state, 1)
    state.outbox.on_pushed([first])

    assert state.outbox.unpushed(0) == [] and state.outbox.unpushed() == [second]


def test_partition_that_has_a_clock_is_not_taken_to_have_those_before() -> None:
    state = whole(settings=replace(BSP, staleness=2))
    first, second, third = (computed(state, clock) for clock in range(3))
    state.outbox.on_held(1, 1, (0, 1))

    assert [state.outbox.missing(kept) for kept in (first, second, third)] == [[0, 1], [0], [0, 1]]


def test_parameters_are_asked_for_ahead_as_far_as_the_horizon_for_the_same_splits_alone() -> None:
    state = whole(horizon=3)
    state.on_membership(V2)

    assert [state.read_ahead(clock, (0, 1)) for clock in range(4)] == [1, 2, None, None]
    assert state.read_ahead(2, (0,)) == 3 and state.read_ahead(3, (0,)) is None


def test_clock_that_was_complete_when_it_was_read_is_done_and_nothing_is_kept_of_it() -> None:
    """A lost worker had pushed what its heir was to compute."""
    state = whole()
    for clock in range(2):
        computed(state, clock)
        state.passed(Work(clock, (0, 1), clock))
        assert len(state.outbox) == 0 and state.duties.clock == clock + 1


def test_loss_of_an_owner_makes_its_partitions_be_pushed_again_by_the_new_owner() -> None:
    state = whole(horizon=0)
    state.on_membership(replace(V2, from_clock=0))
    kept = computed(state, 0)
    state.outbox.on_pushed([kept])
    assert state.duties.done(0)

    lost = replace(membership(3, 0, V2.splits.active), split_clocks=(0, 0, 0, 0), recovery=1)
    assert state.memberships.newest.partitions.owners == ("server-1", "server-2")
    state.on_membership(lost)

    assert state.outbox.missing(kept) == [1]
    assert state.begin() == Work(0, (), 0), "though clock 1 is not granted"


def test_nothing_begins_between_an_inventory_and_the_membership_that_takes_over() -> None:
    state = whole()
    assert state.begin() == Work(0, (0, 1), 0)
    epoch = state.epoch
    assert state.inventory(1) == m.Inventory("worker-1", 1, -1)
    assert state.inventory(1) == m.Inventory("worker-1", 1, -1)
    assert state.epoch == epoch + 1, "an inventory that is asked for again interrupts nothing"
    state.end()
    assert state.begin() is None
    state.on_membership(replace(membership(2, 0, V1.splits.active), split_clocks=(0, 0, 0, 0), recovery=1))
    assert state.epoch == epoch + 2 and state.begin() == Work(0, (0, 1), 0)


def test_worker_that_leaves_reads_once_more_where_a_follower_could_lack_what_it_pushed() -> None:
    for followers in (0, 1):
        state = whole(settings=replace(BSP, followers=followers))
        state.on_membership(V2)
        state.on_membership(replace(V3, from_clock=3), 7)
        state.releases.ask(7)
        for clock in range(3):
            computed(state, clock, state.duties.due_at(clock))
            assert state.duties.done(clock)
        assert state.duties.left and len(state.outbox) == 3
        if followers:
            assert state.released() == [] and state.begin() == Confirmation(3)
            state.read(3)
            state.end()
        assert state.begin() is None
        assert state.released() == [m.PlanReleased("worker-1", 7)]


def test_plan_is_released_beside_an_exchange_that_has_nothing_to_do_with_the_clocks_before() -> None:
    state = whole()
    state.on_membership(V2, 7)
    for clock in range(3):
        finish(state.duties, clock)
    kept = computed(state, 2, (0,))
    assert state.begin() == Work(3, (0,), 3)
    state.releases.ask(7)
    assert state.released() == [], "what was computed before is not pushed everywhere"
    state.outbox.on_pushed([kept])
    assert state.released() == [m.PlanReleased("worker-1", 7)]


@pytest.mark.parametrize(
    "break_it", ["memberships", "takes over", "clock", "empty", "nowhere", "kept", "read", "epoch"]
)
def test_validate_finds_what_cannot_be(break_it: str) -> None:
    state = whole()
    state.on_membership(V2)
    assert state.begin() == Work(0, (0, 1), 0)
    kept = computed(state, 0)
    match break_it:
        case "memberships":
            state.memberships.add(V1)
        case "takes over":
            state.memberships.add(replace(V3, split_clocks=(5,) * 4, recovery=1))
        case "clock":
            state.duties.clock = BSP.iterations + 2
        case "empty":
            state.outbox.add(replace(kept, splits=()))
        case "nowhere":
            kept.held.add(BSP.num_partitions)
        case "kept":
            state.read_clock = 1
        case "read":
            state.outbox.forget_all()
            state.read_clock = BSP.iterations + 2
        case "epoch":
            state.epoch -= 1
    with pytest.raises(AssertionError):
        state.validate()
