"""What a job has lent follows from its plans: what is taken at another's word is due again, once."""

from __future__ import annotations

from pathlib import Path

from eps.core import events as e
from eps.core.plans import REGAIN_PATIENCE_S
from eps.core.reconfig import Change, Operation, Phase, Plan, Purpose
from eps.core.size import Borrower
from eps.core.types import Role
from eps.master.state_log import StateLog
from tests.core.scripted import ADD_SERVER, ADD_WORKER, REMOVE_SERVER, REMOVE_WORKER, REPLACE_S, ScriptedMaster, running
from tests.core.test_evictions import carry_on, warn

TWO_WORKERS = Change(Operation.REMOVE_WORKERS, 2)


def owed(master: ScriptedMaster) -> tuple[int, int]:
    """Return how many workers and servers a job is to have again."""
    found = master.state.size.lent[Borrower.QUEUE]
    return found[Role.WORKER], found[Role.SERVER]


def asked(master: ScriptedMaster, change: Change, purpose: Purpose = Purpose.LEND, request_id: str = "") -> Plan:
    answer = master.request(change, purpose=purpose, request_id=request_id)
    assert answer.error is None, answer.error
    return master.state.plans.all[answer.plan_id]


def carried_out(master: ScriptedMaster, change: Change, purpose: Purpose = Purpose.LEND) -> Plan:
    plan = asked(master, change, purpose)
    carry_on(master)
    assert plan.phase is Phase.RELEASED
    return plan


def test_what_was_taken_is_owed_until_it_has_come_back() -> None:
    master = running()
    plan = asked(master, TWO_WORKERS)
    assert owed(master) == (0, 0), "not before it is committed"
    carry_on(master)
    carried_out(master, REMOVE_SERVER)
    assert plan.phase is Phase.RELEASED and owed(master) == (2, 1)
    carried_out(master, ADD_WORKER)
    assert owed(master) == (1, 1)
    carried_out(master, ADD_SERVER)
    carried_out(master, ADD_WORKER)
    assert owed(master) == (0, 0)
    assert master.state.size.wanted == {Role.WORKER: 3, Role.SERVER: 2}


def test_who_asks_by_hand_has_it_back_that_way_and_what_its_users_removed_stays_away() -> None:
    master = running()
    carried_out(master, REMOVE_WORKER, Purpose.ASKED)
    assert owed(master) == (0, 0)
    carried_out(master, REMOVE_WORKER)
    carried_out(master, REMOVE_SERVER)
    carried_out(master, Change(Operation.ADD_WORKERS, 3), Purpose.ASKED)
    assert owed(master) == (0, 1)


def test_what_is_not_granted_in_time_is_withdrawn_and_owed_still() -> None:
    master = running()
    carried_out(master, REMOVE_WORKER)
    plan = asked(master, ADD_WORKER)
    container = master.container_of(plan.added[0])
    master.tick(REGAIN_PATIENCE_S - 0.5)
    assert plan.phase is Phase.PROPOSED
    master.tick(0.6)
    assert plan.phase is Phase.ABORTED and "no room is free" in plan.reason
    assert e.ReleaseContainer(container) in master.all and owed(master) == (1, 0)


def test_what_is_granted_in_part_comes_back_in_part_and_the_rest_is_owed_still() -> None:
    master = running()
    carried_out(master, TWO_WORKERS)
    plan = asked(master, Change(Operation.ADD_WORKERS, 2), request_id="r")
    before = master.state.size.asked(master.state.plans.open)[Role.WORKER]
    master.step(e.ContainerGranted(master.container_of(plan.added[0])))
    master.tick(REGAIN_PATIENCE_S)
    after = master.state.size.asked(master.state.plans.open)[Role.WORKER]
    again = asked(master, Change(Operation.ADD_WORKERS, 2), request_id="r")
    carry_on(master)
    assert plan is again and plan.phase is Phase.RELEASED and plan.added == ("worker-4",)
    assert (before, after, master.state.size.wanted[Role.WORKER]) == (3, 2, 3) and owed(master) == (1, 0)


def test_same_request_of_two_at_once_is_one_change() -> None:
    master = running()
    carried_out(master, REMOVE_WORKER)
    first, second = (asked(master, ADD_WORKER, request_id="r") for _ in range(2))
    carry_on(master)
    assert first is second and len(master.membership.workers) == 3


def test_job_that_takes_back_by_itself_what_it_was_preempted_of_has_no_more_than_it_had() -> None:
    master = running()
    carried_out(master, REMOVE_WORKER)
    warn(master, "worker-1", for_others=True)
    carry_on(master)
    assert owed(master) == (1, 0) and master.state.size.lent[Borrower.OTHERS][Role.WORKER] == 1
    regain = asked(master, ADD_WORKER)
    carry_on(master)
    assert regain.phase is Phase.RELEASED
    for _ in range(20):
        master.tick(REPLACE_S)
        if master.state.looks_for_room:
            master.step(e.RoomSeen({Role.WORKER: 9, Role.SERVER: 9}))
        if master.state.plans.flight.driver is not None:
            carry_on(master)
    assert len(master.membership.workers) == 3 and owed(master) == (0, 0)
    assert not any(master.state.size.lent[Borrower.OTHERS].values())


def test_what_is_lost_and_replaced_is_not_lent() -> None:
    master = running(followers=1)
    carried_out(master, REMOVE_WORKER)
    master.lose("worker-1")
    master.recover()
    master.tick(REPLACE_S)
    carry_on(master)
    assert len(master.membership.workers) == 2 and owed(master) == (1, 0)


def test_next_master_knows_what_is_owed(tmp_path: Path) -> None:
    master = running()
    carried_out(master, TWO_WORKERS)
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)
    log.record(e.Tick(), master.now_s)
    log.close()
    restored = StateLog(tmp_path / "state").restore()
    assert restored is not None
    assert restored.state.size.lent[Borrower.QUEUE] == {Role.WORKER: 2, Role.SERVER: 0}
