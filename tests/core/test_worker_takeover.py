"""The work that a worker repeats after losses of members."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import UNBOUNDED, CoreSettings
from eps.core.worker_state import Duties, Kept, Work, WorkerState
from tests.core.test_worker_state import BSP, V1, finish, membership, worker
from tests.core.test_worker_state import whole as whole_worker
from tests.tiers import rotating

SSP = CoreSettings(num_splits=4, num_partitions=2, iterations=10, staleness=2, reproducible=False)
ASP = CoreSettings(num_splits=4, num_partitions=2, iterations=10, staleness=UNBOUNDED, reproducible=False)
W1, W2, W3 = "worker-1", "worker-2", "worker-3"


def takeover(
    version: int,
    active: tuple[str, ...],
    clocks: int | tuple[int, ...],
    *,
    incarnation: int = 0,
    goes_back: bool = False,
) -> Membership:
    """Return what holds after a loss; ``clocks``: where each split begins."""
    starts = (clocks,) * 4 if isinstance(clocks, int) else clocks
    found = membership(version, min(starts), active)
    return replace(found, split_clocks=starts, recovery=version, incarnation=incarnation, goes_back=goes_back)


ALL_HERE = (W1, W1, W1, W1)


def test_splits_taken_over_are_due_at_the_clock_that_is_under_way_without_those_that_are_computed() -> None:
    state = worker()
    finish(state, 0)
    state.computed(1, (0, 1))

    state.on_membership(takeover(2, ALL_HERE, 1))

    assert state.next_work() == Work(1, (2, 3), 1)


def test_clock_is_not_done_where_a_loss_left_something_of_it_meanwhile() -> None:
    state = worker()
    state.computed(0, (0, 1))
    state.on_membership(takeover(2, ALL_HERE, 0))

    before = state.done(0)
    state.computed(0, (2, 3))

    assert (before, state.done(0), state.clock) == (False, True, 1)


def test_clock_is_not_done_where_a_loss_left_something_of_an_earlier_one_meanwhile() -> None:
    state = worker()
    for clock in range(2):
        finish(state, clock)
    state.computed(2, (0, 1))

    state.on_membership(takeover(2, ALL_HERE, 1))

    assert state.clock == 1 and not state.done(2)
    assert state.next_work() == Work(1, (2, 3), 1)


def test_own_splits_are_not_computed_again_for_a_clock_that_was_done() -> None:
    """They are kept and pushed again; only what the lost worker owed is computed."""
    state = worker()
    for clock in range(3):
        finish(state, clock)

    state.on_membership(takeover(2, ALL_HERE, 2))

    assert state.next_work() == Work(2, (2, 3), 2)
    finish(state, 2)
    assert state.next_work() == Work(3, (0, 1, 2, 3), 3)


def test_what_the_lost_worker_had_contributed_everywhere_is_not_due() -> None:
    state = worker(settings=SSP)
    state.computed(0, (0, 1))

    state.on_membership(takeover(2, ALL_HERE, (0, 0, 1, 1)))

    assert state.due_at(0) == () and state.done(0)
    assert state.next_work() == Work(1, (0, 1, 2, 3), 0)


def test_worker_that_is_ahead_of_what_it_takes_over_goes_back_to_catch_up() -> None:
    """SSP: the lost worker was two clocks behind."""
    state = worker(settings=SSP)
    for clock in range(3):
        finish(state, clock)

    state.on_membership(takeover(2, ALL_HERE, (3, 3, 1, 2)))
    worked = []
    while (work := state.next_work()) is not None and work.clock < 4:
        worked.append((work.clock, work.splits))
        finish(state, work.clock)

    assert worked == [(1, (2,)), (2, (2, 3)), (3, (0, 1, 2, 3))]


def test_clocks_at_which_every_split_here_is_further_are_left_out() -> None:
    state = worker(settings=ASP)
    for clock in range(5):
        finish(state, clock)

    state.on_membership(takeover(2, ALL_HERE, (5, 5, 1, 5)))
    worked = []
    while (work := state.next_work()) is not None and work.clock < 6:
        worked.append(work.clock)
        state.computed(work.clock, work.splits)
        state.done(work.clock)

    assert worked == [1, 2, 3, 4, 5]


def test_heir_does_again_what_a_second_loss_took_from_where_the_first_had_left_it() -> None:
    """Found by simulation: an owner had it, its follower not yet, and the worker that had pushed it was lost before."""
    state = worker(settings=SSP)
    state.computed(0, (0, 1))
    state.on_membership(takeover(2, (W1, W1, W1, W3), (0, 0, 1, 1)))
    before = state.due_at(0)

    state.on_membership(takeover(3, ALL_HERE, (0, 0, 0, 1)))

    assert (before, state.due_at(0)) == ((), (2,))


def test_nothing_is_computed_again_for_clocks_before_one_that_was_read_since_the_servers_were_asked() -> None:
    """Servers were at clock 1; then the pushes of lost worker-2 arrived, and worker-1 read clock 2."""
    state = whole_worker(horizon=9)
    for clock in range(2):
        finish(state.duties, clock)
    state.read(2)

    state.on_membership(takeover(2, ALL_HERE, 1))

    assert state.duties.next_work() == Work(2, (0, 1, 2, 3), 2)


def test_membership_that_was_to_hold_later_holds_at_once_after_a_loss() -> None:
    """A plan gave split 1 to this worker from clock 5; the loss makes that so at clock 3."""
    state = worker("worker-2")
    for clock in range(3):
        finish(state, clock)
    state.on_membership(membership(2, 5, (W1, W2, W2, W2)))

    state.on_membership(takeover(3, (W2, W2, W2, W2), 3))

    assert len(state.memberships) == 1
    assert state.next_work() == Work(3, (0, 1, 2, 3), 3)


def test_worker_that_learns_of_the_job_by_a_takeover_begins_with_it() -> None:
    whole = WorkerState(W3, BSP)
    state = whole.duties

    whole.on_membership(takeover(2, (W3, W3, W2, W2), (4, 4, 4, 4)))
    state.on_grant(m.GrantHorizon(9, 4, 2))

    assert state.next_work() == Work(4, (0, 1), 4)
    assert whole.read_clock == 3


def test_worker_that_leaves_has_nothing_to_do_once_others_took_over() -> None:
    state = worker()
    for clock in range(3):
        finish(state, clock)
    state.on_membership(membership(2, 4, (W2, W2, W2, W3)))

    state.on_membership(takeover(3, (W2, W2, W2, W2), 3))

    assert state.left and state.next_work() is None


def test_job_that_goes_back_begins_anew_and_nothing_of_before_counts() -> None:
    state = whole_worker(horizon=9)
    duties = state.duties
    for clock in range(6):
        finish(duties, clock)
    state.read_clock = 5

    state.on_membership(takeover(2, (W1, W1, W2, W2), (2, 2, 3, 3), incarnation=1, goes_back=True))
    late = duties.horizon, duties.next_work()
    duties.on_grant(m.GrantHorizon(12, 6, 1))
    void = duties.horizon
    duties.on_grant(m.GrantHorizon(4, 2, 2))

    assert (late, void, duties.horizon) == ((1, None), 1, 4)
    assert (state.memberships.incarnation, state.read_clock, state.memberships.recovery) == (1, 1, 2)
    assert duties.next_work() == Work(2, (0, 1), 2)


def test_leaving_worker_that_hears_of_a_rollback_only_by_a_later_takeover_forgets_what_was_before() -> None:
    """Otherwise it would push contributions of the earlier incarnation as those of the newest."""
    state = whole_worker()
    work = state.begin()
    assert isinstance(work, Work)
    report = m.ClockReported(W1, work.clock, (), 0)
    state.keep(Kept(work.clock, work.splits, report, "content"))
    state.end()

    state.on_membership(takeover(4, (W2, W2, W2, W2), 0, incarnation=1))

    assert len(state.outbox) == 0 and state.outbox.untold() == []
    assert (state.leaves, state.read_clock, state.begin()) == (True, -1, None)


@pytest.mark.parametrize("goes_back", [False, True])
def test_what_is_computed_counts_after_a_takeover_unless_the_job_goes_back_and_what_is_read_does_not(
    goes_back: bool,
) -> None:
    state = whole_worker()
    work = state.begin()
    assert work == Work(0, (0, 1), 0)
    begun = state.now
    before = [state.is_void(work, begun, computes) for computes in (False, True)]
    state.on_membership(takeover(2, ALL_HERE, 0, incarnation=int(goes_back), goes_back=goes_back))

    assert before == [False, False]
    assert [state.is_void(work, begun, computes) for computes in (False, True)] == [True, goes_back]


def test_clock_under_way_is_void_where_its_splits_owe_an_earlier_one_after_a_takeover() -> None:
    """SSP: a plan gave split 2 to this worker from clock 3; the worker that left is lost and owed clock 2."""
    state = whole_worker(settings=SSP)
    state.on_membership(membership(2, 3, (W1, W1, W1, W2)))
    for clock in range(3):
        finish(state.duties, clock)
    work = state.begin()
    assert work == Work(3, (0, 1, 2), 1)
    begun = state.now

    state.on_membership(takeover(3, ALL_HERE, (3, 3, 2, 3)))

    assert state.is_void(work, begun, computes=True)
    state.end()
    assert state.begin() == Work(2, (2,), 0)


def test_clock_under_way_counts_where_only_other_splits_owe_an_earlier_one_after_a_takeover() -> None:
    state = whole_worker(settings=SSP)
    for clock in range(3):
        finish(state.duties, clock)
    work = state.begin()
    assert work == Work(3, (0, 1), 1)

    begun = state.now
    state.on_membership(takeover(2, ALL_HERE, (3, 3, 2, 3)))

    assert not state.is_void(work, begun, computes=True)


def test_takeover_is_acknowledged_each_time_and_counts_once() -> None:
    state = worker()
    state.computed(0, (0, 1))
    news = takeover(2, ALL_HERE, 0)
    state.on_membership(news)
    state.computed(0, (2, 3))

    assert state.on_membership(news) == m.MembershipAcked(W1, 2)
    assert state.on_membership(V1) == m.MembershipAcked(W1, 1)
    assert state.due_at(0) == () and state.memberships.newest is news


def test_plan_after_a_takeover_holds_from_its_own_clock() -> None:
    state = worker()
    state.on_membership(takeover(2, ALL_HERE, 0))
    state.on_membership(membership(3, 2, (W1, W3, W1, W3)))
    for clock in range(2):
        assert state.next_work() == Work(clock, (0, 1, 2, 3), clock)
        finish(state, clock)

    assert state.next_work() == Work(2, (0, 2), 2)


@pytest.mark.parametrize("settings", [BSP, SSP, ASP])
def test_any_losses_leave_no_clock_of_any_split_out(settings: CoreSettings) -> None:
    """Workers at random speeds; members are lost, and everything counts that was done before its owner was lost."""
    for seed in rotating(300):
        random = Random(seed)
        names = [W1, W2, W3]
        active = tuple(random.choice(names) for _ in range(4))
        active = (W1, *active[1:])
        first = membership(1, 0, active)
        states = {n: Duties(n, settings) for n in first.workers}
        done = {(split): 0 for split in range(4)}
        for state in states.values():
            state.on_membership(first)
            state.on_grant(m.GrantHorizon(9, 0, 1))
        version = 1
        for _ in range(400):
            if not states:
                break
            if len(states) > 1 and random.random() < 0.03:
                del states[random.choice(sorted(states))]
                version += 1
                left = sorted(states)
                active = tuple(h if h in states else random.choice(left) for h in active)
                starts = (min(done.values()),) * 4 if settings.bsp else tuple(done[s] for s in range(4))
                for state in states.values():
                    state.on_membership(takeover(version, active, starts))
                continue
            state = states[random.choice(sorted(states))]
            work = state.next_work()
            if work is None or work.clock >= settings.iterations:
                continue
            if work.splits and min(done.values()) < work.min_clock:
                continue
            state.computed(work.clock, work.splits)
            for split in work.splits:
                assert work.clock <= done[split], f"seed {seed}: clock {done[split]} of split {split} is left out"
                done[split] = max(done[split], work.clock + 1)
            state.done(work.clock)
        assert set(done.values()) == {10}, f"seed {seed}: {done}"
