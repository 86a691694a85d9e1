"""A preempted job leaves the capacity to others, and grows back when they no longer want it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eps.core import events as e
from eps.core.evictions import EvictionOutcome
from eps.core.plans import REGAIN_PATIENCE_S
from eps.core.reconfig import Change, Operation, Phase, Plan, Purpose
from eps.core.size import Borrower
from eps.core.types import MemberId, Role
from eps.master.state_log import StateLog
from tests.core.scripted import ADD_SERVER, ADD_WORKER, REMOVE_WORKER, REPLACE_S, ScriptedMaster, running
from tests.core.test_evictions import carry_on, drains, managed, outcomes, warn
from tests.core.test_master_recovery import replacements, trained

#: Headroom without a limit.
PLENTY = {Role.WORKER: 9, Role.SERVER: 9}


def preempted(*names: MemberId) -> ScriptedMaster:
    """Return a job of three workers and two servers of which some have left for others."""
    master = running()
    warn(master, *names, for_others=True)
    carry_on(master)
    return master


def see(master: ScriptedMaster, fits: dict[Role, int]) -> None:
    """Report headroom once the job asks for it."""
    for _ in range(100):
        if master.state.looks_for_room:
            break
        master.tick(REPLACE_S)
    assert master.state.looks_for_room
    master.step(e.RoomSeen(fits))


def regain(master: ScriptedMaster) -> Plan:
    """Return the plan by which the job grows back with unlimited headroom."""
    see(master, PLENTY)
    return master.driver.plan


def returns(master: ScriptedMaster) -> list[Plan]:
    return [p for p in master.state.plans.all.values() if p.purpose is Purpose.REGAIN]


def test_what_others_are_to_get_is_not_asked_for_again() -> None:
    master = preempted("worker-1", "worker-2", "server-1")
    for _ in range(100):
        master.tick(REPLACE_S)

    assert outcomes(master) == dict.fromkeys(("worker-1", "worker-2", "server-1"), EvictionOutcome.DRAINED)
    assert not replacements(master) and master.state.plans.flight.driver is None
    assert master.state.size.lent[Borrower.OTHERS] == {Role.WORKER: 2, Role.SERVER: 1}
    assert master.state.size.wanted == {Role.WORKER: 3, Role.SERVER: 2}, "its users asked for that"


def test_job_grows_back_one_role_after_the_other_by_what_fits() -> None:
    master = preempted("worker-1", "worker-2", "server-1")
    asked = []
    for fits in ({Role.WORKER: 1, Role.SERVER: 1}, PLENTY, PLENTY):
        see(master, fits)
        asked.append(carry_on(master).change)

    assert asked == [ADD_WORKER, ADD_WORKER, ADD_SERVER] and returns(master) == replacements(master)
    assert {role: len(master.membership.of_role(role)) for role in Role} == master.state.size.wanted
    assert not any(master.state.size.lent[Borrower.OTHERS].values()) and not master.state.looks_for_room


def test_room_that_fits_nobody_is_not_asked_for() -> None:
    master = preempted("server-1")
    see(master, {Role.WORKER: 3})

    assert master.state.plans.flight.driver is None and master.state.size.lent[Borrower.OTHERS][Role.SERVER] == 1


@pytest.mark.parametrize(("clocks", "looks"), [(6, True), (7, False)])
def test_room_is_looked_for_as_long_as_a_member_that_comes_has_work(clocks: int, looks: bool) -> None:
    master = running(iterations=10)
    warn(master, "worker-1", for_others=True)
    carry_on(master)
    trained(master, clocks)
    master.tick(REPLACE_S)

    assert master.state.looks_for_room == looks


def test_room_that_was_seen_while_something_else_changes_counts_nowhere() -> None:
    master = preempted("worker-1")
    other = master.ask(ADD_SERVER)
    master.step(e.RoomSeen(PLENTY))
    carry_on(master)
    master.tick(REPLACE_S)

    assert other.phase is Phase.RELEASED and not returns(master)
    assert master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 1


def test_request_that_others_were_faster_than_is_taken_back() -> None:
    """While it stood it would take what others are given."""
    master = preempted("worker-1")
    see(master, PLENTY)
    (first,) = returns(master)
    container = master.container_of(first.added[0])
    master.tick(REGAIN_PATIENCE_S - 0.5)
    waiting = first.phase
    master.tick(0.6)
    soon = master.state.looks_for_room
    see(master, PLENTY)

    assert waiting is Phase.PROPOSED and first.phase is Phase.ABORTED and "no room is free" in first.reason
    assert e.ReleaseContainer(container) in master.all and not soon
    assert len(returns(master)) == 2


def test_container_that_was_granted_in_time_is_waited_for() -> None:
    master = preempted("worker-1")
    see(master, PLENTY)
    plan = master.driver.plan
    master.step(e.ContainerGranted(master.container_of(plan.added[0])))
    master.tick(2 * REGAIN_PATIENCE_S)
    carry_on(master)

    assert plan.phase is Phase.RELEASED


def test_job_that_is_preempted_again_on_its_way_back_makes_way() -> None:
    master = preempted("worker-1")
    see(master, PLENTY)
    back = master.driver.plan
    warn(master, "server-1", for_others=True)
    drain = carry_on(master)

    assert back.phase is Phase.ABORTED and drain.removed == ("server-1",)
    assert master.state.size.lent[Borrower.OTHERS] == {Role.WORKER: 1, Role.SERVER: 1}


def test_newcomer_that_is_preempted_stays_away() -> None:
    master = preempted("worker-1")
    see(master, PLENTY)
    warn(master, *master.driver.plan.added, for_others=True)
    for _ in range(100):
        master.tick(REPLACE_S)

    assert len(returns(master)) == 1 == len(replacements(master))
    assert master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 1


def test_who_is_lost_is_replaced_at_once_whatever_others_got() -> None:
    master = running(followers=1)
    warn(master, "worker-1", for_others=True)
    carry_on(master)
    master.lose("worker-2")
    master.recover()
    master.tick(REPLACE_S)

    assert [p.change for p in replacements(master)] == [ADD_WORKER] and not returns(master)
    assert master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 1


def test_who_was_taken_before_he_could_leave_is_not_replaced_either() -> None:
    master = running(followers=1)
    warn(master, "worker-1", in_s=0.0, for_others=True)
    master.lose("worker-1")
    master.recover()
    master.tick(REPLACE_S)

    assert outcomes(master) == {"worker-1": EvictionOutcome.LOST} and not replacements(master)
    see(master, PLENTY)
    assert [p.change for p in returns(master)] == [ADD_WORKER]


def test_who_left_for_another_reason_is_replaced_at_once() -> None:
    master = running()
    warn(master, "worker-1")
    warn(master, "worker-2", for_others=True)
    carry_on(master)
    master.tick(REPLACE_S)

    assert [p.change for p in replacements(master)] == [ADD_WORKER] and master.state.size.lent[Borrower.OTHERS][
        Role.WORKER
    ] == 1


def test_second_warning_may_say_that_others_are_to_get_the_room() -> None:
    master = running()
    warn(master, "worker-1", in_s=60.0)
    warn(master, "worker-1", in_s=15.0, for_others=True)
    carry_on(master)
    master.tick(REPLACE_S)

    assert len(drains(master)) == 1 and not replacements(master)


def test_last_of_a_role_is_replaced_by_the_drain_and_nobody_is_missing_afterwards() -> None:
    master = running()
    warn(master, *master.membership.servers, for_others=True)
    plan = carry_on(master)

    assert len(plan.added) == 1 and plan.removed == ("server-1", "server-2")
    assert master.state.size.lent[Borrower.OTHERS] == {Role.WORKER: 0, Role.SERVER: 1}


@pytest.mark.parametrize("change", [REMOVE_WORKER, Change(Operation.REMOVE_WORKERS, 1, ("worker-2",))], ids=str)
def test_user_who_wants_the_job_smaller_has_it_stay_small(change: Change) -> None:
    master = preempted("worker-1")
    master.carry_out(change)

    # One of three was given, one was removed: two are wanted, and one is there.
    assert master.state.size.wanted[Role.WORKER] == 2 and master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 1
    see(master, PLENTY)
    carry_on(master)
    assert len(master.membership.workers) == 2 and not any(master.state.size.lent[Borrower.OTHERS].values())


def test_user_who_asks_for_more_gets_it_whatever_others_got() -> None:
    master = preempted("worker-1")
    plan = master.carry_out(ADD_WORKER)

    assert plan.phase is Phase.RELEASED
    assert master.state.size.wanted[Role.WORKER] == 4 and master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 1


def test_job_whose_size_somebody_manages_looks_for_no_room() -> None:
    master = managed()
    warn(master, "worker-1", for_others=True)
    carry_on(master)
    master.tick(REPLACE_S)
    master.step(e.RoomSeen(PLENTY))

    assert not master.state.looks_for_room and not returns(master)
    assert master.state.size.wanted[Role.WORKER] == 2


def test_next_master_knows_what_others_got(tmp_path: Path) -> None:
    master = preempted("worker-1")
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)
    log.record(e.Tick(), master.now_s)
    log.close()
    restored = StateLog(tmp_path / "state").restore()

    assert restored is not None and restored.state.size.lent[Borrower.OTHERS] == {Role.WORKER: 1, Role.SERVER: 0}
