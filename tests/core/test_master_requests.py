"""Changes that are asked of a job master: answered, queued, cancelled, triggered, given up."""

from __future__ import annotations

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.plans import GROWTH_PATIENCE_S, REGISTRATION_PATIENCE_S
from eps.core.reconfig import ENDED, Change, Operation, Phase, Plan, Purpose, Trigger
from eps.core.size import Borrower
from eps.core.types import Role
from eps.errors import UnknownMemberError
from eps.master.records import change_entry, live_entry
from tests.core.scripted import (
    ADD_SERVER,
    ADD_WORKER,
    REMOVE_SERVER,
    REMOVE_WORKER,
    REPLACE_S,
    refusal,
    running,
)
from tests.core.test_evictions import carry_on

# ---- requests


def test_same_request_gets_the_same_answer_and_one_plan() -> None:
    master = running()

    first = master.request(ADD_WORKER, request_id="r")
    again = master.request(ADD_WORKER, request_id="r")

    assert first == again
    assert list(master.state.plans.all) == [1]


@pytest.mark.parametrize("beginning", ["replace", "replace-given", "replace-room", "evict", "follow", "lend", "at-7"])
def test_request_id_of_a_client_says_nothing_about_its_change(beginning: str) -> None:
    master = running()

    answer = master.request(REMOVE_WORKER, request_id=f"{beginning}-1")
    plan = master.state.plans.all[answer.plan_id]
    asked = master.state.size.asked(master.state.plans.open)
    carry_on(master)

    assert plan.phase is Phase.RELEASED and asked == master.state.size.wanted == {Role.WORKER: 2, Role.SERVER: 2}
    assert not any(master.state.size.lent[Borrower.OTHERS].values())
    told = change_entry(plan, [], master.now_s)
    assert (told["asked_by"], told["purpose"], told["asked_at"]) == ("user", "", None)
    master.tick(REPLACE_S)
    master.tick(REPLACE_S)
    assert len(master.state.plans.all) == 1, "nobody is asked for in its place"


def test_request_id_that_asked_for_another_change_is_refused_and_keeps_its_first_answer() -> None:
    master = running()
    first = master.request(ADD_WORKER, request_id="r")

    other = master.request(REMOVE_WORKER, request_id="r")

    assert str(refusal(other)) == "request id 'r' asked for add-workers=1, not for remove-workers=1"
    assert master.request(ADD_WORKER, request_id="r") == first
    assert list(master.state.plans.all) == [1]


def test_refused_request_may_be_asked_again() -> None:
    master = running()
    removal = Change(Operation.REMOVE_WORKERS, 1, ("worker-4",))

    refused = master.request(removal, request_id="r")
    master.carry_out(ADD_WORKER)
    accepted = master.request(removal, request_id="r")

    assert isinstance(refusal(refused), UnknownMemberError)
    assert accepted.error is None


def test_changes_are_judged_by_who_will_be_there() -> None:
    master = running()
    master.ask(Change(Operation.REMOVE_WORKERS, 2))

    too_many = master.request(REMOVE_WORKER)
    grown = master.request(Change(Operation.ADD_WORKERS, 5))
    named = master.request(Change(Operation.REMOVE_WORKERS, 1, ("worker-4",)))

    assert "the job has 1 worker and must keep at least one" in str(refusal(too_many))
    assert grown.error is None
    assert named.error is None, "worker-4 will be there"


def test_dry_run_says_what_would_move_and_changes_nothing() -> None:
    master = running()

    answer = master.request(ADD_SERVER, dry_run=True)

    assert answer.text.splitlines() == [
        "add-servers=1: adds server-3, removes none",
        "partition 0: server-1 -> server-3",
        "partition 2: server-2 -> server-3",
    ]
    assert not master.state.plans.all and master.state.plans.flight.driver is None
    assert not [c for c in master.last if not isinstance(c, e.Answer)]


def test_dry_run_tells_moves_that_send_nothing() -> None:
    master = running()
    master.carry_out(ADD_WORKER)

    answer = master.request(Change(Operation.REMOVE_WORKERS, 1, ("worker-4",)), dry_run=True)

    assert "(inactive copy there: nothing is sent)" in answer.text


def test_dry_run_behind_another_change_does_not_pretend_to_know_the_moves() -> None:
    master = running()
    master.ask(ADD_SERVER)

    assert "1 changes come first" in master.request(ADD_WORKER, dry_run=True).text


def test_changes_queue_and_one_is_on_its_way_at_a_time() -> None:
    master = running()
    plans = [master.ask(change) for change in (ADD_SERVER, ADD_WORKER, REMOVE_SERVER)]
    assert [p.phase for p in plans] == [Phase.PROPOSED, Phase.QUEUED, Phase.QUEUED]

    master.register("server-3")
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    master.release()

    assert [p.phase for p in plans] == [Phase.RELEASED, Phase.PROPOSED, Phase.QUEUED]
    assert plans[1].added == ("worker-4",)


def test_queued_change_that_became_impossible_is_aborted_with_the_reason() -> None:
    master = running()
    first = master.ask(ADD_WORKER)
    second = master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-4",)))
    third = master.ask(REMOVE_SERVER)

    master.exit("worker-4", "lost")

    assert (first.phase, second.phase) == (Phase.ABORTED, Phase.ABORTED)
    assert "worker-4 is not a worker of the job" in second.reason
    assert master.driver.plan is third, "at once"


def test_numbers_are_never_used_again() -> None:
    master = running()
    master.ask(ADD_WORKER)
    master.exit("worker-4")

    assert master.ask(ADD_WORKER).added == ("worker-5",)


# ---- cancelling


STAGES = ("queued", "proposed", "prepared", "lists-updated", "committed", "switched", "released")


@pytest.mark.parametrize(
    ("change", "stage"),
    [
        (change, stage)
        for change in (ADD_SERVER, ADD_WORKER, REMOVE_SERVER, REMOVE_WORKER)
        for stage in STAGES
        # A removal needs no containers, so it is prepared at once.
        if change.operation.adds or stage != "proposed"
    ],
    ids=str,
)
def test_plan_is_cancelled_before_commit_and_rolls_forward_after(change: Change, stage: str) -> None:
    master = running()
    if stage == "queued":
        master.ask(ADD_SERVER)
    plan = master.ask(change)
    acts = [
        lambda: [master.register(n) for n in plan.added],
        master.acknowledge_lists,
        master.copy,
        master.acknowledge_membership,
        master.release,
    ]
    while plan.phase != stage:
        acts.pop(0)()
        assert acts or plan.phase == stage
    before = master.membership

    commands = master.step(e.CancelRequested("cancel", plan.plan_id))

    answer = next(c for c in commands if isinstance(c, e.Answer))
    if stage in ("committed", "switched"):
        assert "is committed at clock" in str(answer.error) and plan.phase == stage
    elif stage == "released":
        assert "has already ended: released" in str(answer.error)
    else:
        assert answer.error is None
        assert (plan.phase, plan.reason) == (Phase.ABORTED, "cancelled")
        again = master.step(e.CancelRequested("again", plan.plan_id))
        assert next(c for c in again if isinstance(c, e.Answer)).error is None, "its first answer may have been lost"
        assert master.membership is before, "an aborted plan leaves no trace"
        if stage != "queued":
            told = {to for to, order in master.sent(m.AbortPlan)}
            assert told == set(before.members)
            assert not set(plan.added) & set(master.state.members.by_name)
            assert len([c for c in commands if isinstance(c, e.ReleaseContainer)]) == len(plan.added)


def test_cancelling_a_plan_that_is_not_there_is_refused() -> None:
    master = running()

    commands = master.step(e.CancelRequested("cancel", 7))

    assert "there is no plan 7; the job has plans 1 to 0" in str(refusal(commands[0]))


def test_cancelling_the_plan_on_its_way_starts_the_next() -> None:
    master = running()
    first, second = master.ask(ADD_SERVER), master.ask(REMOVE_WORKER)

    master.step(e.CancelRequested("cancel", first.plan_id))

    assert second.phase is Phase.PREPARED


def test_abort_is_said_again_until_a_later_plan_is_released() -> None:
    """An abort has no acknowledgement, so a member that missed it must hear it again."""
    master = running()
    plan = master.ask(REMOVE_SERVER)
    master.step(e.CancelRequested("cancel", plan.plan_id))
    master.sent(m.AbortPlan)

    master.tick()
    again = master.sent(m.AbortPlan)
    master.carry_out(REMOVE_WORKER)
    master.tick()
    later = master.sent(m.AbortPlan)

    assert {(to, order.plan_id) for to, order in again} == {
        (name, 1) for name in master.state.members.memberships[0].members
    }
    assert later == []


# ---- containers that do not come


def test_removal_aborts_an_addition_that_waits_for_containers() -> None:
    master = running()
    growth, shrink = master.ask(ADD_WORKER), master.ask(REMOVE_WORKER)

    master.tick(GROWTH_PATIENCE_S / 2)
    waiting = growth.phase
    master.tick(GROWTH_PATIENCE_S)

    assert waiting is Phase.PROPOSED
    assert growth.phase is Phase.ABORTED
    assert growth.reason == "still waiting for containers when remove-workers=1 was requested"
    assert shrink.phase is Phase.PREPARED


def test_removal_waits_for_an_addition_that_has_its_containers() -> None:
    master = running()
    growth, shrink = master.ask(ADD_WORKER), master.ask(REMOVE_WORKER)
    master.launch("worker-4")

    master.tick(10 * GROWTH_PATIENCE_S)

    assert (growth.phase, shrink.phase) == (Phase.PROPOSED, Phase.QUEUED)


def test_newcomer_that_has_its_container_and_does_not_register_aborts_its_plan() -> None:
    master = running()
    plan = master.ask(Change(Operation.ADD_WORKERS, 2))
    master.register("worker-4")
    master.step(e.ContainerGranted(master.container_of("worker-5")))

    master.tick(REGISTRATION_PATIENCE_S - 1.0)
    waiting = plan.phase
    master.tick(1.0)

    assert waiting is Phase.PROPOSED
    assert (plan.phase, plan.reason) == (Phase.ABORTED, "waited 60 s for worker-5 to register")
    assert e.ReleaseContainer(master.container_of("worker-5")) in master.last
    assert {to for to, _ in master.sent(m.Shutdown)} == {"worker-4"}, "worker-5 has no session to hear it"


def test_newcomer_has_its_time_to_register_from_when_it_got_its_container() -> None:
    """Found in review: a growth may have waited for containers for longer than that."""
    master = running()
    plan = master.ask(Change(Operation.ADD_WORKERS, 2))
    master.launch("worker-4")
    master.tick(10 * REGISTRATION_PATIENCE_S)

    master.launch("worker-5")
    master.tick(REGISTRATION_PATIENCE_S - 1.0)
    waiting = plan.phase
    # A repeated report of a known launch changes nothing.
    master.launch("worker-5")
    master.tick(1.0)

    assert waiting is Phase.PROPOSED
    assert plan.reason == "waited 60 s for worker-4 to register"


def test_removal_waits_for_an_addition_whose_processes_start_slowly() -> None:
    master = running()
    growth, shrink = master.ask(Change(Operation.ADD_WORKERS, 2)), master.ask(REMOVE_WORKER)
    for name in growth.added:
        master.step(e.ContainerGranted(master.container_of(name)))

    master.tick(10 * GROWTH_PATIENCE_S)

    assert (growth.phase, shrink.phase) == (Phase.PROPOSED, Phase.QUEUED)
    assert "B1" not in growth.barriers_s


def test_addition_waits_behind_an_addition_that_waits_for_containers() -> None:
    master = running()
    first, second = master.ask(ADD_WORKER), master.ask(ADD_SERVER)

    master.tick(10 * GROWTH_PATIENCE_S)

    assert (first.phase, second.phase) == (Phase.PROPOSED, Phase.QUEUED)


def test_a_change_says_what_it_waits_for_and_for_how_long() -> None:
    master = running()
    growth, behind = master.ask(Change(Operation.ADD_WORKERS, 2)), master.ask(ADD_SERVER)
    master.tick(3.0)

    def waits(plan: Plan) -> tuple[str, float]:
        entry = live_entry(master.state, plan, max(plan.reached_s.values()) + 3.0)
        return entry["waits_for"], entry["waited_s"]

    assert (waits(growth), waits(behind)) == (("2 containers", 3.0), (f"plan {growth.plan_id}", 3.0))
    master.launch("worker-4")
    assert waits(growth)[0] == "1 container"
    master.launch("worker-5")
    assert waits(growth)[0] == "worker-4 to register, and 1 more"
    master.register("worker-4")
    assert waits(growth)[0] == "worker-5 to register"
    growth.enter(Phase.ABORTED, 9.0)
    assert waits(growth)[0] == ""


def test_what_a_change_cost_is_settled_when_an_iteration_has_ended_since() -> None:
    """The iteration in progress may still be delayed further."""
    master = running()
    for clock in range(-1, 2):
        master.clock(clock)
    plan = master.carry_out(ADD_WORKER)
    completed_s = master.state.progress.history.completed_s
    assert plan.phase is Phase.RELEASED and not change_entry(plan, completed_s, master.now_s)["settled"]
    master.tick(10.0)
    assert change_entry(plan, completed_s, master.now_s)["pause_s"] == 0.0
    master.clock(master.state.progress.completed)
    found = change_entry(plan, completed_s, master.now_s)
    assert found["settled"] and found["pause_s"] > 9.0


def test_addition_without_containers_does_not_hold_the_last_iteration_for_ever() -> None:
    master = running(iterations=4)
    plan = master.ask(Change(Operation.ADD_WORKERS, 2))
    master.launch("worker-4")
    for clock in range(2):
        master.clock(clock)
    master.tick(10 * GROWTH_PATIENCE_S)
    early = plan.phase, master.state.progress.horizon
    master.clock(2)

    master.tick()

    assert early == (Phase.PROPOSED, 2)
    assert (plan.phase, plan.reason) == (
        Phase.ABORTED,
        "still waiting for containers when only the last iteration was left",
    )
    assert master.state.progress.horizon == 4


def test_replacement_that_has_its_containers_does_not_hold_the_last_iteration() -> None:
    master = running(iterations=6)
    master.clock(0)
    master.lose("worker-1")
    master.recover(clock=1)
    master.tick(REPLACE_S)
    (plan,) = [plan for plan in master.state.plans.all.values() if plan.purpose is Purpose.REPLACE]
    master.launch(plan.added[0])
    for clock in range(1, 4):
        master.clock(clock)
    early = plan.phase, master.state.progress.horizon
    master.clock(4)

    master.tick()

    assert early == (Phase.PROPOSED, 4), "until then it may still come in time"
    assert (plan.phase, plan.reason) == (
        Phase.ABORTED,
        "only the last iteration was left, which needs no further members",
    )
    assert master.state.progress.horizon == 6, "and nobody is asked for again"
    assert list(master.state.plans.all) == [plan.plan_id]


def test_addition_that_has_its_containers_holds_the_last_iteration() -> None:
    master = running(iterations=4)
    plan = master.ask(ADD_WORKER)
    master.launch("worker-4")
    for clock in range(3):
        master.clock(clock)

    master.tick(REGISTRATION_PATIENCE_S - 1.0)

    assert (plan.phase, master.state.progress.horizon) == (Phase.PROPOSED, 2)


def test_addition_that_was_asked_a_moment_ago_holds_the_last_iteration() -> None:
    master = running(iterations=4, triggers=(Trigger(3, ADD_WORKER),))
    for clock in range(3):
        master.clock(clock)

    master.tick(GROWTH_PATIENCE_S / 2)

    assert master.state.plans.all[1].phase is Phase.PROPOSED


def test_container_that_comes_after_its_plan_was_aborted_is_released() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    container = master.container_of("worker-4")
    master.step(e.CancelRequested("cancel", plan.plan_id))

    commands = master.step(e.MemberRegistered(container, master.address_of("worker-4"), 1))

    assert commands == [e.ReleaseContainer(container)]
    assert master.step(e.ContainerExited(container, "released")) == []


# ---- triggers


def test_change_that_was_asked_for_beforehand_gives_way_like_any_other_and_is_told_of_as_such() -> None:
    master = running(triggers=(Trigger(2, ADD_SERVER), Trigger(3, REMOVE_WORKER)))
    for clock in range(3):
        master.clock(clock)
    master.tick(GROWTH_PATIENCE_S)
    growth, shrink = master.state.plans.all.values()
    entries = [change_entry(plan, (), master.now_s) for plan in (growth, shrink, master.ask(ADD_WORKER))]

    assert growth.phase is Phase.ABORTED and shrink.phase not in ENDED
    assert [entry["asked_at"] for entry in entries] == [2, 3, None]
    assert {(entry["asked_by"], entry["purpose"]) for entry in entries} == {("user", "")}


def test_change_is_asked_at_its_clock() -> None:
    master = running(triggers=(Trigger(2, ADD_WORKER),))
    master.clock(0)
    before = len(master.state.plans.all)

    master.clock(1)

    assert before == 0
    assert master.state.plans.all[1].phase is Phase.PROPOSED


def test_change_at_the_last_possible_clock_still_happens() -> None:
    master = running(iterations=4, triggers=(Trigger(3, ADD_WORKER),))
    for clock in range(3):
        master.now_s += 1.0
        master.clock(clock)

    assert master.state.progress.horizon == 2, "the last iteration waits for the trigger"
    assert master.state.plans.all[1].phase is Phase.PROPOSED


def test_change_at_a_clock_that_is_impossible_by_then_is_recorded_as_aborted() -> None:
    master = running(triggers=(Trigger(1, Change(Operation.REMOVE_WORKERS, 3)),))

    master.clock(0)

    assert master.state.plans.all[1].phase is Phase.ABORTED
    assert "must keep at least one" in master.state.plans.all[1].reason


def test_triggers_of_one_clock_are_asked_in_order() -> None:
    master = running(triggers=(Trigger(1, ADD_WORKER), Trigger(1, ADD_SERVER)))

    master.clock(0)

    assert [p.change for p in master.state.plans.all.values()] == [ADD_WORKER, ADD_SERVER]
