"""The job master when members are lost, act by act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.plans import REGISTRATION_PATIENCE_S, STANDING
from eps.core.reconfig import Change, Operation, Phase, Plan, Purpose
from eps.core.recovery import INCIDENT_S, MOST_INCIDENTS, LossOutcome
from eps.core.types import Role
from eps.master.records import sizes_entry
from tests.core.scripted import (
    ADD_SERVER,
    ADD_WORKER,
    REMOVE_SERVER,
    REMOVE_WORKER,
    REPLACE_S,
    ScriptedMaster,
    refusal,
    running,
)


def protected(iterations: int = 100) -> ScriptedMaster:
    """Return a running job with a follower of each partition."""
    return running(iterations, followers=1)


def trained(master: ScriptedMaster, clocks: int) -> None:
    for clock in range(master.state.progress.completed, clocks):
        master.now_s += 1.0
        master.clock(clock)


def replacements(master: ScriptedMaster) -> list[Plan]:
    return [p for p in master.state.plans.all.values() if p.purpose.keeps_size]


# ---- the course of a recovery


def test_nothing_is_granted_and_no_plan_goes_on_until_everybody_acknowledged_who_takes_over() -> None:
    master = running()
    trained(master, 1)
    master.lose("worker-2")
    plan = master.ask(ADD_SERVER)
    phases = [plan.phase]
    master.answer_inventories(clock=1)
    master.sent(object)
    for name in master.membership.members[:-1]:
        master.report(m.MembershipAcked(name, 2))
        phases.append(plan.phase)
    waiting = master.sent(m.GrantHorizon | m.UpdateLists)

    master.report(m.MembershipAcked(master.membership.members[-1], 2))

    assert (set(phases), waiting) == ({Phase.QUEUED}, [])
    assert plan.phase is Phase.PROPOSED


def test_who_takes_over_is_on_disk_before_anybody_hears_of_it() -> None:
    master = running()
    master.lose("worker-2")
    master.all.clear()

    master.answer_inventories()

    (record,) = [c for c in master.all if isinstance(c, e.Journal) and c.record["kind"] == "taken-over"]
    told = [c for c in master.all if isinstance(c, e.Send) and isinstance(c.order, m.UpdateMembership)]
    assert record.sync and (record.record["lost"], record.record["version"]) == (["worker-2"], 2)
    assert {c.to for c in told} == {"worker-1", "worker-3", "server-1", "server-2"}
    assert master.all.index(record) < min(master.all.index(c) for c in told)


def test_sizes_have_losses_and_forget_clocks_that_were_rolled_back() -> None:
    master = running()
    trained(master, 5)
    first = sizes_entry(master.state.members.memberships)
    master.lose("worker-2")
    master.answer_inventories(clock=5)
    lost = sizes_entry(master.state.members.memberships)
    later = replace(master.membership, workers=("worker-1",), from_clock=3)

    assert (first, lost) == ([[0, 3, 2]], [[0, 3, 2], [5, 2, 2]])
    assert sizes_entry([*master.state.members.memberships, later]) == [[0, 3, 2], [3, 1, 2]]
    # Back to the start.
    assert sizes_entry([*master.state.members.memberships, replace(later, from_clock=-1)]) == [[0, 1, 2]]


def test_questions_and_the_answer_to_them_are_said_again_until_heard() -> None:
    master = running()
    master.lose("worker-2")
    master.report(master.inventory("worker-1"))
    master.sent(object)
    master.tick()
    workers = {to for to, _ in master.sent(m.TakeInventory)}
    master.report(master.inventory("worker-3"))
    master.report(master.inventory("server-2"))
    master.sent(object)
    master.tick()
    servers = {to for to, _ in master.sent(m.TakeInventory)}
    master.report(master.inventory("server-1"))
    master.report(m.MembershipAcked("worker-1", 2))
    master.sent(object)

    master.tick()

    assert (workers, servers) == ({"worker-3"}, {"server-1"})
    assert {to for to, _ in master.sent(m.UpdateMembership)} == {"worker-3", "server-1", "server-2"}


def test_member_that_connects_during_a_recovery_is_asked_again() -> None:
    master = running()
    master.lose("worker-2")
    for name in ("worker-1", "worker-3"):
        master.report(master.inventory(name))
    master.sent(object)

    master.register("server-1")

    assert ("server-1", m.TakeInventory(1, 0)) in [(to, order) for to, order in master.sent(m.TakeInventory)]


def test_results_that_servers_remember_are_recorded() -> None:
    """A worker was lost after its push and before its report left."""
    master = running()
    others = tuple(m.SplitResult(s, 1, 1.0) for s in range(4))
    master.report(m.ClockReported("worker-1", 0, others))
    master.lose("worker-3")
    remembered = m.ClockReported("server-1", 0, tuple(m.SplitResult(s, 1, 1.0) for s in (4, 5)))
    recovery = master.state.recovery.inquiry
    assert recovery is not None
    held = master.inventory("server-1", clock=1)
    master.report(m.Inventory("server-1", recovery.number, partitions=held.partitions, results=(remembered,)))

    for name in ("worker-1", "worker-2", "server-2"):
        master.report(master.inventory(name, clock=1))

    assert master.state.progress.completed == 1


# ---- several losses


def test_loss_during_a_recovery_begins_it_again_without_either() -> None:
    master = protected()
    master.lose("worker-2")
    early = [master.inventory(name) for name in ("worker-1", "worker-3", "server-1", "server-2")]
    master.report(early[0])

    master.lose("server-1")
    for report in early:
        master.report(report)
    waiting = master.state.recovery.inquiry is not None
    master.recover()

    assert waiting, "what was answered before says too little"
    assert master.membership.members == ("worker-1", "worker-3", "server-2")
    assert set(master.membership.partitions.owners) == {"server-2"}
    assert master.journaled("taken-over")[0]["lost"] == ["server-1", "worker-2"]


def test_loss_before_everybody_acknowledged_the_last_recovery_is_recovered_from() -> None:
    master = protected()
    master.lose("worker-2")
    master.answer_inventories()
    master.report(m.MembershipAcked("worker-1", 2))

    master.lose("server-2")
    master.recover()

    assert [v.version for v in master.state.members.memberships] == [1, 2, 3]
    assert master.membership.members == ("worker-1", "worker-3", "server-1")
    assert master.state.state is JobState.RUNNING


def test_losses_in_a_row_leave_the_job_to_whoever_is_left() -> None:
    master = protected()
    for clock, name in enumerate(("worker-1", "server-1", "worker-3"), start=1):
        trained(master, clock)
        master.lose(name)
        master.recover(clock=clock)

    assert master.membership.members == ("worker-2", "server-2")
    assert set(master.membership.splits.active) == {"worker-2"}
    assert master.state.recovery.inquiry is None


def test_job_whose_members_end_again_and_again_without_a_clock_between_gives_up_and_says_why() -> None:
    master = protected()
    for _ in range(MOST_INCIDENTS):
        assert master.state.state is JobState.RUNNING
        master.now_s += INCIDENT_S
        master.lose(master.membership.workers[0])
        if master.state.recovery.inquiry is not None and master.state.state is JobState.RUNNING:
            master.answer_inventories()
            for name in (
                list(master.state.recovery.inquiry.newcomers) if master.state.recovery.inquiry is not None else ()
            ):
                master.register(name)
            master.acknowledge()

    assert master.state.state is JobState.FAILED
    assert f"{MOST_INCIDENTS} failures without one complete clock between them" in master.state.reason
    assert len(master.journaled("lost")) == MOST_INCIDENTS


def test_losses_with_complete_clocks_between_them_never_end_a_job() -> None:
    master = running(iterations=400)
    for number in range(2 * MOST_INCIDENTS):
        trained(master, 2 * number + 2)
        master.lose(master.membership.workers[0])
        recovery = master.state.recovery.inquiry
        assert recovery is not None
        for name in list(recovery.newcomers):
            master.register(name)
        master.recover(clock=master.state.progress.completed)
        for plan in replacements(master):
            if plan.phase is Phase.PROPOSED:
                for name in plan.added:
                    master.register(name)
                master.acknowledge_lists()
                master.copy()
                master.acknowledge_membership()
                master.release()
        master.tick(REPLACE_S)

    assert master.state.state is JobState.RUNNING


# ---- no member of a role is left


@pytest.mark.parametrize("role", Role)
def test_role_of_which_nobody_is_left_gets_a_newcomer_and_the_job_goes_on_with_it(role: Role) -> None:
    master = protected()
    for name in master.membership.of_role(role):
        master.lose(name)

    master.answer_inventories()
    recovery = master.state.recovery.inquiry
    assert recovery is not None
    (newcomer,) = recovery.newcomers
    asked = master.commands(e.RequestContainer)[-1]
    at_once = master.state.waits_for(master.now_s)
    later = master.state.waits_for(master.now_s + 12)
    outcomes = {loss.outcome for loss in master.state.recovery.losses}
    master.launch(newcomer)
    launched = master.state.waits_for(master.now_s + 5)
    master.register(newcomer)

    assert (at_once, later) == ("", f"waits for 1 container, asked for 12 s ago: {newcomer}")
    assert launched == f"waits for {newcomer} to register"
    assert master.state.waits_for(master.now_s + 12) == ""
    assert outcomes == {LossOutcome.OPEN}, "nobody took over before there is somebody"
    came_of = LossOutcome.ROLLED_BACK if role is Role.SERVER else LossOutcome.TAKEN_OVER
    assert {(loss.outcome, loss.back_to is None) for loss in master.state.recovery.losses} == {
        (came_of, role is Role.WORKER)
    }
    assert asked == e.RequestContainer(master.container_of(newcomer), frozenset({role}))
    assert master.membership.of_role(role) == (newcomer,)
    assert master.membership.goes_back is (role is Role.SERVER)


def test_newcomer_of_a_recovery_that_is_lost_is_replaced() -> None:
    master = protected()
    for name in master.membership.servers:
        master.lose(name)
    master.answer_inventories()
    assert master.state.recovery.inquiry is not None
    (first,) = master.state.recovery.inquiry.newcomers

    master.lose(first)
    (second,) = master.state.recovery.inquiry.newcomers
    master.register(second)

    assert second != first and master.membership.servers == (second,)
    came_of = {loss.name: loss.outcome for loss in master.state.recovery.losses}
    assert came_of.pop(first) is LossOutcome.REPLACED, "it had nothing that somebody could take over"
    assert set(came_of.values()) == {LossOutcome.ROLLED_BACK}


def test_newcomer_of_a_recovery_that_never_registers_is_replaced() -> None:
    master = protected()
    for name in master.membership.servers:
        master.lose(name)
    master.answer_inventories()
    assert master.state.recovery.inquiry is not None
    (first,) = master.state.recovery.inquiry.newcomers
    container = master.container_of(first)

    master.tick(after_s=2 * REGISTRATION_PATIENCE_S)
    unlaunched = list(master.state.recovery.inquiry.newcomers)
    master.launch(first)
    master.tick(after_s=REGISTRATION_PATIENCE_S / 2)
    patient = list(master.state.recovery.inquiry.newcomers)
    master.tick(after_s=REGISTRATION_PATIENCE_S / 2)
    (second,) = master.state.recovery.inquiry.newcomers

    assert unlaunched == patient == [first], "who has no container yet is waited for"
    assert e.ReleaseContainer(container) in master.last and second != first
    assert master.journaled("lost")[-1]["reason"] == f"did not register within {REGISTRATION_PATIENCE_S:g} s"
    assert master.step(e.ContainerExited(container, "released")) == []
    master.register(second)
    assert master.membership.servers == (second,)


# ---- what cannot be taken over


def test_job_without_followers_that_loses_a_server_begins_again_and_everything_is_measured_again() -> None:
    master = running()
    trained(master, 5)
    assert master.state.progress.horizon > 5
    master.lose("server-2")

    master.recover(clock=5)

    assert master.membership.goes_back and (master.membership.incarnation, master.membership.from_clock) == (1, 0)
    assert master.state.progress.completed == 0 and not master.state.progress.history
    assert master.journaled("rolled-back")[0]["incarnation"] == 1
    assert master.state.progress.horizon == 1, "granted anew"


def test_reports_of_an_earlier_incarnation_do_not_count() -> None:
    master = running()
    master.lose("server-2")
    master.recover()

    master.clock(0)
    before = master.state.progress.completed
    results = tuple(m.SplitResult(s, 1, 1.0) for s in range(6))
    master.report(m.ClockReported("worker-1", 0, results, incarnation=1))

    assert (before, master.state.progress.completed) == (0, 1)


def test_loss_while_a_job_goes_back_makes_it_go_back_once_more() -> None:
    """Then members hold data of two incarnations."""
    master = running()
    trained(master, 2)
    master.lose("server-2")
    master.answer_inventories(clock=2)
    assert master.membership.goes_back
    master.report(m.MembershipAcked("worker-1", 2))

    master.lose("worker-3")
    master.recover(clock=2)

    assert master.membership.goes_back and master.membership.incarnation == 2
    assert master.membership.members == ("worker-1", "worker-2", "server-1")


def exporting(iterations: int = 3, followers: int = 0) -> ScriptedMaster:
    master = running(iterations, followers=followers)
    trained(master, iterations + 1)
    assert master.state.state is JobState.EXPORTING
    return master


def test_job_that_goes_back_while_its_model_is_written_trains_and_writes_it_again() -> None:
    master = exporting(iterations=1)
    master.lose("server-2")
    master.recover(clock=1)
    states = [master.state.state]

    master.step(e.ExportDone({"model_sha256": "before"}, number=1))
    states.append(master.state.state)
    found = [master.state.export.found]
    results = tuple(m.SplitResult(s, 1, 1.0) for s in range(6))
    for clock in range(2):
        master.now_s += 1.0
        master.report(m.ClockReported("worker-1", clock, results, incarnation=1))
    again = [c for c in master.last if isinstance(c, e.StartExport)]
    master.step(e.ExportDone({"model_sha256": "before"}, number=1))
    states.append(master.state.state)
    found.append(master.state.export.found)
    master.step(e.ExportDone({"model_sha256": "after"}, number=2))
    master.step(e.ExportDone({"model_sha256": "before"}, number=1))

    assert states == [JobState.RUNNING, JobState.RUNNING, JobState.EXPORTING], "what was before does not count"
    assert found == [{}, {}] and master.state.export.found == {"model_sha256": "after"}
    assert again == [e.StartExport(2)] and master.state.state is JobState.FINISHED


def test_job_whose_server_is_lost_while_its_model_is_written_writes_it_from_the_followers() -> None:
    master = exporting(followers=1)
    master.lose("server-2")
    master.step(e.ExportFailed("server-2 cannot be reached", 1))
    master.recover(clock=3)

    master.tick()
    again = [c for c in master.last if isinstance(c, e.StartExport)]
    master.step(e.ExportDone(number=2))

    assert again == [e.StartExport(2)] and master.state.state is JobState.FINISHED


# ---- plans and losses


@pytest.mark.parametrize("change", [ADD_WORKER, ADD_SERVER, REMOVE_WORKER, REMOVE_SERVER], ids=str)
@pytest.mark.parametrize("lost", ["worker-1", "server-1"])
@pytest.mark.parametrize("at", [Phase.PROPOSED, Phase.PREPARED, Phase.LISTS_UPDATED, Phase.COMMITTED, Phase.SWITCHED])
def test_loss_at_any_step_of_a_plan_ends_it_one_way_or_the_other(change: Change, lost: str, at: Phase) -> None:
    master = protected()
    plan = master.ask(change)

    def register() -> None:
        for name in plan.added:
            master.register(name)

    acts: list[Callable[[], None]] = [
        register,
        master.acknowledge_lists,
        master.copy,
        master.acknowledge_membership,
    ]
    for act in acts:
        if plan.phase is at or list(Phase).index(plan.phase) > list(Phase).index(at):
            break
        act()
    undecided = plan.undecided

    master.lose(lost)
    recovery = master.state.recovery.inquiry
    assert recovery is not None
    for name in list(recovery.newcomers):
        master.register(name)
    master.recover()
    if master.state.plans.flight.driver is not None and master.state.plans.flight.driver.plan is plan:
        if plan.phase is Phase.COMMITTED:
            master.acknowledge_membership()
        master.release()

    assert plan.phase is (Phase.ABORTED if undecided else Phase.RELEASED), plan.phase
    assert lost not in master.membership.members
    assert master.state.state is JobState.RUNNING
    master.membership.validate()


def test_member_that_leaves_hears_who_takes_over_until_it_has_acknowledged() -> None:
    """Found by simulation: it still owes what is pushed to the lost server's heir."""
    master = protected()
    master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    master.lose("server-2")
    master.recover()
    master.sent(object)

    master.tick()
    told = {to for to, _ in master.sent(m.UpdateMembership)}
    master.report(m.MembershipAcked("worker-3", master.membership.version))
    master.tick()

    assert told == {"worker-3"}
    assert not master.sent(m.UpdateMembership)


def test_member_that_leaves_and_was_released_is_not_told_who_takes_over() -> None:
    """Found by simulation: it owes nothing more, and may be released at the same time."""
    master = protected()
    master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    master.report(m.PlanReleased("worker-3", 1))
    master.lose("server-2")
    master.sent(object)
    master.recover()

    told = {to for to, _ in master.sent(m.UpdateMembership)}
    assert told == set(master.membership.members) and "worker-3" not in told


@pytest.mark.parametrize("answered", [False, True])
def test_server_that_leaves_is_lost_as_long_as_a_worker_waits_for_its_last_answer(answered: bool) -> None:
    """Found by simulation: the worker repeats the request to that server, and no process tells it to stop."""
    master = protected()
    plan = master.ask(REMOVE_SERVER)
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    (leaves,) = plan.removed
    workers = master.membership.workers
    for name in (leaves, *(workers if answered else workers[1:])):
        master.report(m.PlanReleased(name, plan.turn))
    master.exit(leaves, taken=True)

    assert (master.state.recovery.inquiry is None) == answered
    assert [loss.name for loss in master.state.recovery.losses] == ([] if answered else [leaves])
    if not answered:
        master.recover()
    master.report_released()
    assert plan.phase is Phase.RELEASED


def test_member_that_connects_again_is_not_told_that_an_undecided_plan_is_committed() -> None:
    """Found by simulation: it would keep what the plan brought, and take no more of it."""
    master = running()
    master.ask(REMOVE_WORKER)
    master.sent(object)

    master.register("worker-1")

    assert [order.plan_id for _, order in master.sent(m.UpdateMembership)] == [0]


# ---- the size that was asked for


def test_lost_members_are_replaced_up_to_the_size_that_was_asked_for() -> None:
    master = running()
    master.carry_out(ADD_WORKER)
    trained(master, 1)
    master.lose("worker-1", "worker-2")
    master.recover(clock=1)
    master.tick(REPLACE_S)

    (plan,) = replacements(master)
    assert (plan.change, plan.added) == (Change(Operation.ADD_WORKERS, 2), ("worker-5", "worker-6"))


def test_what_was_removed_on_request_is_not_replaced() -> None:
    master = running()
    master.carry_out(REMOVE_WORKER)

    for _ in range(3):
        master.tick(REPLACE_S)

    assert not replacements(master)


def test_replacement_that_fails_is_asked_for_again_and_not_more_often_than_once_in_a_while() -> None:
    master = running()
    master.lose("worker-1")
    master.recover()
    master.tick(0.0)
    (first,) = replacements(master)

    master.lose(first.added[0])
    early = replacements(master)
    for _ in range(4):
        # Longer each time that it fails.
        master.tick(REPLACE_S)

    assert first.phase is Phase.ABORTED and early == [first]
    assert [p.phase for p in replacements(master)] == [Phase.ABORTED, Phase.PROPOSED]


def test_replacement_does_not_change_the_size_that_is_asked_for() -> None:
    master = running()
    for _ in range(2):
        master.lose(master.membership.workers[0])
        master.recover()
        master.tick(REPLACE_S)
        plan = replacements(master)[-1]
        for name in plan.added:
            master.register(name)
        master.acknowledge_lists()
        master.copy()
        master.acknowledge_membership()
        master.release()
        trained(master, master.state.progress.completed + 1)

    assert len(master.membership.workers) == master.state.size.wanted[Role.WORKER] == 3


def test_nothing_is_replaced_when_the_job_is_about_to_end() -> None:
    master = running(iterations=4)
    trained(master, 2)
    master.lose("worker-1")
    master.recover(clock=2)

    master.tick(REPLACE_S)

    assert not replacements(master)


# ---- followers


def test_partitions_without_a_follower_get_one() -> None:
    master = protected()
    master.lose("server-2")
    master.recover()
    master.tick(REPLACE_S)
    (plan,) = replacements(master)
    master.register("server-3")
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    master.release()

    master.tick(REPLACE_S)
    follow = master.driver.plan
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    master.release()

    assert plan.phase is Phase.RELEASED
    assert follow.purpose is Purpose.FOLLOW and follow.change.operation is Operation.FOLLOW
    assert follow.phase is Phase.RELEASED and (follow.added, follow.removed) == ((), ())
    table = master.membership.partitions
    assert all(len(table.followers_of(p)) == 1 and table.owners[p] not in table.followers_of(p) for p in range(4))


def test_partitions_that_moved_are_given_followers_with_the_end_of_the_plan() -> None:
    master = protected()
    master.ask(ADD_SERVER)
    master.register("server-3")
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    master.report_released()

    assert master.driver.plan.change.operation is Operation.FOLLOW
    assert {to for to, _ in master.sent(m.UpdateLists)} == set(master.membership.members), "it begins at once"


def test_job_with_one_server_or_without_followers_asked_for_gets_none() -> None:
    lonely = protected()
    lonely.carry_out(REMOVE_SERVER)
    plain = running()
    for master in (lonely, plain):
        master.tick(REPLACE_S)
        assert not [p for p in master.state.plans.all.values() if p.change.operation is Operation.FOLLOW]


def test_partition_that_moves_to_its_follower_is_not_sent() -> None:
    master = protected()
    plan = master.ask(REMOVE_SERVER)
    master.acknowledge_lists()

    assert plan.phase is Phase.COMMITTED, "every partition is there already"
    assert set(master.driver.sent.values()) == {STANDING}
    assert plan.bytes_moved == 0


def test_second_plan_for_followers_finds_nothing_to_do() -> None:
    master = protected()

    plan = master.ask(Change(Operation.FOLLOW, 1))

    assert (plan.phase, plan.reason) == (Phase.ABORTED, "every partition has its follower")


def test_requests_are_answered_while_a_job_recovers() -> None:
    master = protected()
    master.lose("server-2")

    answer = master.request(ADD_WORKER)
    unknown = master.step(e.CancelRequested("cancel", 99))

    assert answer.error is None
    assert "there is no plan 99" in str(refusal(unknown[0]))
