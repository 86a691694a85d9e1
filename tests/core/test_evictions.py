"""The job master when containers will be taken away, act by act."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.evictions import EvictionOutcome, counts
from eps.core.plans import GROWTH_PATIENCE_S
from eps.core.reconfig import Change, Operation, Phase, Plan
from eps.core.recovery import MOST_INCIDENTS
from eps.core.types import CoreSettings, MemberId, Role
from eps.master.state_log import StateLog
from tests.core.scripted import (
    ADD_SERVER,
    ADD_WORKER,
    DRAIN_AGAIN_S,
    REMOVE_WORKER,
    REPLACE_S,
    ScriptedMaster,
    running,
    starting,
)
from tests.core.test_master_recovery import replacements, trained

DEADLINE_S = 15.0


def warn(
    master: ScriptedMaster,
    *names: MemberId,
    in_s: float = DEADLINE_S,
    reason: str = "is preempted",
    for_others: bool = False,
) -> None:
    """Announce that the containers of members will be taken away, all at once."""
    warnings = tuple(e.ContainerWarning(master.container_of(name), in_s, reason, for_others) for name in names)
    master.step(e.ContainersWarned(warnings))


def drains(master: ScriptedMaster) -> list[Plan]:
    return [p for p in master.state.plans.all.values() if p.change.operation is Operation.DRAIN]


def carry_on(master: ScriptedMaster) -> Plan:
    """Take the plan in flight to its release."""
    plan = master.driver.plan
    for name in plan.added:
        master.register(name)
    master.acknowledge_lists()
    if plan.undecided:
        master.copy()
    master.acknowledge_membership()
    master.release()
    return plan


def outcomes(master: ScriptedMaster) -> dict[MemberId, EvictionOutcome]:
    return {eviction.name: eviction.outcome for eviction in master.state.evictions.all}


def managed() -> ScriptedMaster:
    """Return a running job whose size a scheduler decides: three workers, two servers."""
    master = ScriptedMaster(CoreSettings(6, 4, 100, reproducible=False), 3, 2, managed=True)
    master.start()
    return master


# ---- who leaves, and how


def test_member_on_a_warned_container_leaves_by_name_and_is_replaced_afterwards() -> None:
    master = running()
    warn(master, "worker-1")
    plan = carry_on(master)
    master.tick(REPLACE_S)

    assert (plan.change.operation, plan.removed, plan.added) == (Operation.DRAIN, ("worker-1",), ())
    assert plan.phase is Phase.RELEASED and not master.state.recovery.losses
    assert [p.change for p in replacements(master)] == [ADD_WORKER]
    assert master.state.size.wanted == {Role.WORKER: 3, Role.SERVER: 2}
    assert outcomes(master) == {"worker-1": EvictionOutcome.DRAINED}


def test_member_that_reports_a_warning_is_drained_like_one_of_the_cluster() -> None:
    master = running()
    master.report(m.EvictionWarned("worker-9", 120.0, "got SIGTERM"))
    assert not master.state.evictions.all, "no such member"
    warned = m.EvictionWarned("worker-1", 120.0, "got SIGTERM")
    # It was on its way for two seconds; a second one, as of the next session, changes nothing.
    master.step(e.ReportReceived(warned, age_s=2.0))
    master.report(warned)
    (eviction,) = master.state.evictions.all
    assert (eviction.names, eviction.reason) == (("worker-1",), "got SIGTERM")
    assert eviction.deadline_s - eviction.warned_s == pytest.approx(118.0)
    assert master.state.plans.flight.plan is not None and master.state.plans.flight.plan.removed == ("worker-1",)


def test_workers_and_servers_that_are_warned_together_leave_by_one_plan() -> None:
    master = running()
    warn(master, "worker-2", "server-1", "worker-3")
    moves = master.driver.transfer
    plan = carry_on(master)

    assert drains(master) == [plan] and set(plan.removed) == {"worker-2", "worker-3", "server-1"}
    assert {v.source for v in moves.partition_moves} == {"server-1"}
    assert {v.source for v in moves.split_moves} == {"worker-2", "worker-3"}
    assert master.membership.members == ("worker-1", "server-2")
    assert [v.version for v in master.state.members.memberships] == [1, 2], "one commit"


def test_partition_and_split_of_one_number_are_told_apart() -> None:
    master = running()
    warn(master, "worker-1", "server-1")
    master.acknowledge_lists()
    plan, transfer = master.driver.plan, master.driver.transfer
    for move in transfer.split_moves:
        master.report(m.SplitReceived(move.target, plan.turn, move.item, 100))
    waits = master.driver.missing()

    assert {v.item for v in transfer.partition_moves} & {v.item for v in transfer.split_moves}
    assert waits == [f"partition {v.item} to be copied to {v.target}" for v in transfer.partition_moves]


def test_server_of_a_drain_ends_only_when_workers_are_past_their_last_exchange_with_it() -> None:
    master = running()
    warn(master, "worker-1", "server-1")
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    plan = master.driver.plan
    for name in ("server-1", "worker-1"):
        master.report(m.PlanReleased(name, plan.turn))
    early = [to for to, _ in master.sent(m.Shutdown)]
    for name in ("worker-2", "worker-3"):
        master.report(m.PlanReleased(name, plan.turn))

    assert early == ["worker-1"]
    assert [to for to, _ in master.sent(m.Shutdown)] == ["server-1"]


def test_warnings_that_come_one_after_the_other_are_drained_together_while_nothing_is_decided() -> None:
    master = running()
    warn(master, "worker-1")
    warn(master, "server-1")
    first, second = drains(master)

    assert first.phase is Phase.ABORTED and "cancelled to drain worker-1, server-1" in first.reason
    assert set(second.removed) == {"worker-1", "server-1"} and second.phase is Phase.PREPARED
    assert {v.plan_id for v in master.state.evictions.all} == {second.plan_id}


# ---- other plans


@pytest.mark.parametrize("change", [ADD_WORKER, ADD_SERVER, REMOVE_WORKER], ids=str)
def test_change_that_is_not_committed_makes_way(change: Change) -> None:
    master = running()
    plan = master.ask(change)
    warn(master, "worker-1")

    assert plan.phase is Phase.ABORTED
    assert plan.reason == "cancelled to drain worker-1, whose containers will be taken away"
    assert master.driver.plan.removed == ("worker-1",)


def test_change_that_is_committed_is_finished_first() -> None:
    master = running()
    plan = master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    warn(master, "server-1")
    during = master.driver.plan
    master.acknowledge_membership()
    master.release()

    assert during is plan and plan.phase is Phase.RELEASED
    assert master.driver.plan.removed == ("server-1",), "at once"


def test_change_that_waits_comes_after_the_drain_and_members_know_it_for_the_later_one() -> None:
    """Members ignore a plan with a lower number."""
    master = running()
    first = master.ask(ADD_WORKER)
    waiting = master.ask(ADD_SERVER)
    warn(master, "worker-1")
    drain = carry_on(master)

    assert first.phase is Phase.ABORTED and drain.plan_id > waiting.plan_id
    assert master.driver.plan is waiting and waiting.turn > drain.turn == drain.plan_id
    carry_on(master)
    assert waiting.phase is Phase.RELEASED


def test_removal_on_request_that_takes_the_warned_ones_along_is_left_alone() -> None:
    master = running()
    plan = master.ask(Change(Operation.REMOVE_WORKERS, 2, ("worker-1", "worker-2")))
    warn(master, "worker-1")
    carry_on(master)

    assert plan.phase is Phase.RELEASED and not drains(master)
    assert [(v.outcome, v.plan_id) for v in master.state.evictions.all] == [(EvictionOutcome.DRAINED, plan.plan_id)]


def test_addition_whose_newcomer_is_warned_is_aborted() -> None:
    master = running()
    plan = master.ask(Change(Operation.ADD_WORKERS, 2))
    container = master.container_of("worker-4")
    master.register("worker-4")
    warn(master, "worker-4")

    assert plan.reason == "the container of worker-4 will be taken away"
    assert e.ReleaseContainer(container) in master.last and not drains(master)
    assert outcomes(master) == {"worker-4": EvictionOutcome.WITHDRAWN}


def test_followers_that_made_way_are_asked_for_again_without_the_delay_of_what_failed() -> None:
    master = running(followers=1)
    master.lose("server-2")
    master.recover()
    master.tick(REPLACE_S)
    (replacement,) = replacements(master)
    warn(master, "worker-1")
    carry_on(master)
    master.tick(REPLACE_S)

    assert replacement.phase is Phase.ABORTED and len(replacements(master)) > 1


# ---- the last of a role


@pytest.mark.parametrize("role", Role)
def test_nobody_leaves_who_is_the_last_of_a_role_before_somebody_is_there_instead(role: Role) -> None:
    master = running()
    names = master.membership.of_role(role)
    warn(master, *names)
    plan = master.driver.plan
    (newcomer,) = plan.added
    waiting = (plan.phase, master.driver.missing())
    master.register(newcomer)
    carry_on(master)

    assert waiting == (Phase.PROPOSED, [f"{newcomer} to register"])
    assert master.membership.of_role(role) == (newcomer,) and plan.removed == names
    assert len(drains(master)) == 1 and set(outcomes(master).values()) == {EvictionOutcome.DRAINED}


def test_who_needs_nobody_in_his_place_does_not_wait_for_who_does() -> None:
    master = running()
    warn(master, "worker-2", *master.membership.servers)
    first = carry_on(master)
    second = master.driver.plan

    assert (first.removed, first.added) == (("worker-2",), ())
    assert (second.removed, second.added) == (("server-1", "server-2"), ("server-3",))


def test_addition_on_its_way_serves_for_the_last_of_its_role() -> None:
    master = running()
    plan = master.ask(ADD_SERVER)
    warn(master, *master.membership.servers)
    carry_on(master)

    assert plan.phase is Phase.RELEASED
    assert (master.driver.plan.removed, master.driver.plan.added) == (("server-1", "server-2"), ())


@pytest.mark.parametrize("all_of", [[Role.WORKER], [Role.SERVER], list(Role)], ids=["workers", "servers", "both"])
@pytest.mark.parametrize("change", [ADD_WORKER, ADD_SERVER], ids=str)
def test_addition_serves_for_the_last_of_its_own_role_alone(all_of: list[Role], change: Change) -> None:
    master = running()
    plan = master.ask(change)
    warn(master, *(name for role in all_of for name in master.membership.of_role(role)))

    assert (master.driver.plan is plan) == (change.operation.role in all_of)
    assert plan.ended or not drains(master)


def test_drain_that_waits_for_a_container_gives_way_to_a_removal_and_comes_back() -> None:
    master = running()
    warn(master, *master.membership.servers)
    first = master.driver.plan
    shrink = master.ask(REMOVE_WORKER)
    master.tick(GROWTH_PATIENCE_S)
    going = master.driver.plan
    master.tick(2 * DRAIN_AGAIN_S)
    still = master.driver.plan
    carry_on(master)

    assert first.phase is Phase.ABORTED and going is still is shrink and shrink.phase is Phase.RELEASED
    assert master.driver.plan.removed == ("server-1", "server-2")


def test_drain_without_containers_does_not_hold_the_job_for_ever() -> None:
    master = running(iterations=4)
    warn(master, *master.membership.servers)
    trained(master, 3)
    held = master.state.progress.horizon
    master.tick(GROWTH_PATIENCE_S)
    trained(master, 5)

    assert held == 2 and drains(master)[0].reason.endswith("when only the last iteration was left")
    assert master.state.state is JobState.EXPORTING


# ---- who decides about the size


def test_job_whose_size_somebody_manages_stays_smaller() -> None:
    master = managed()
    warn(master, "worker-1", "server-1")
    carry_on(master)
    for _ in range(3):
        master.tick(REPLACE_S)

    assert not replacements(master)
    assert master.state.size.wanted == {Role.WORKER: 2, Role.SERVER: 1}


def test_managed_job_keeps_one_of_each_role() -> None:
    master = managed()
    warn(master, *master.membership.workers)
    carry_on(master)
    master.tick(REPLACE_S)

    assert master.membership.workers == ("worker-4",) and not replacements(master)
    assert master.state.size.wanted[Role.WORKER] == 1


def test_managed_job_does_not_take_again_what_was_taken_before_it_could_be_drained() -> None:
    master = managed()
    warn(master, "worker-1", in_s=0.0)
    master.lose("worker-1")
    master.recover()
    master.tick(REPLACE_S)

    assert not replacements(master) and master.state.size.wanted[Role.WORKER] == 2


# ---- too late, taken back, said again


def test_member_that_is_taken_away_before_it_could_leave_is_recovered_from_and_replaced() -> None:
    master = running(followers=1)
    warn(master, "server-1", "worker-1", in_s=0.01)
    plan = master.driver.plan
    master.lose("server-1")
    master.recover()
    master.tick(DRAIN_AGAIN_S)
    again = master.driver.plan
    carry_on(master)

    assert plan.phase is Phase.ABORTED and again.removed == ("worker-1",)
    assert outcomes(master) == {"server-1": EvictionOutcome.LOST, "worker-1": EvictionOutcome.LATE}
    assert master.state.size.wanted == {Role.WORKER: 3, Role.SERVER: 2} and not master.membership.goes_back
    assert counts(master.state.evictions.all) == {
        "asked": 2, "warned": 0, "drained": 0, "late": 1, "lost": 1, "withdrawn": 0
    }  # fmt: skip


def test_members_that_were_announced_to_end_never_end_a_job_however_many() -> None:
    master = running(followers=1)
    for _ in range(2 * MOST_INCIDENTS):
        name = master.membership.workers[0]
        warn(master, name, in_s=0.0)
        master.lose(name)
        master.answer_inventories()
        for newcomer in (
            list(master.state.recovery.inquiry.newcomers) if master.state.recovery.inquiry is not None else ()
        ):
            master.register(newcomer)
        master.acknowledge()

    assert master.state.state is JobState.RUNNING


def test_warning_that_is_repeated_changes_nothing_but_an_earlier_deadline() -> None:
    master = running()
    warn(master, "worker-1", in_s=10.0)
    plan, eviction = master.driver.plan, master.state.evictions.all[0]
    at_s = eviction.deadline_s
    warn(master, "worker-1", in_s=60.0)
    later = eviction.deadline_s
    assert eviction.reason == "is preempted"
    warn(master, "worker-1", in_s=1.0, reason="is on a node that leaves")
    earlier = eviction.deadline_s
    assert eviction.reason == "is on a node that leaves", "that of the deadline that counts"
    master.tick(5.0)
    warn(master, "worker-1", in_s=60.0)

    assert master.driver.plan is plan and len(master.state.evictions.all) == 1
    assert later == at_s > earlier
    assert eviction.deadline_s > master.now_s, "the one before was not kept"
    assert len(master.journaled("warned")) == 1


def test_warning_for_what_leaves_or_has_left_is_harmless() -> None:
    master = running()
    plan = master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    warn(master, "worker-3")
    master.acknowledge_membership()
    master.release()
    warn(master, "worker-3")
    master.step(e.ContainersWarned((e.ContainerWarning("nobody", 1.0),)))

    assert plan.phase is Phase.RELEASED and not drains(master)
    (eviction,) = master.state.evictions.all
    assert (eviction.name, eviction.outcome, eviction.plan_id) == ("worker-3", EvictionOutcome.DRAINED, 1)


def test_warning_for_what_has_left_takes_nothing_from_the_others_that_come_with_it() -> None:
    master = running()
    warnings = (e.ContainerWarning(container, DEADLINE_S) for container in ("nobody", master.container_of("worker-1")))
    master.step(e.ContainersWarned(tuple(warnings)))

    assert master.driver.plan.removed == ("worker-1",)


def test_request_that_was_never_launched_is_withdrawn_and_made_again() -> None:
    master = starting()
    master.request_containers()
    before = master.container_of("worker-1")
    warn(master, "worker-1")
    after = master.container_of("worker-1")
    for name in sorted(master.state.members.by_name):
        master.register(name)

    assert after != before and e.ReleaseContainer(before) in master.all
    assert master.commands(e.RequestContainer)[-1] == e.RequestContainer(after, frozenset({Role.WORKER}))
    assert outcomes(master) == {"worker-1": EvictionOutcome.WITHDRAWN}
    assert master.membership.workers == ("worker-1", "worker-2", "worker-3") and not master.state.recovery.losses


def test_newcomer_of_a_recovery_is_asked_for_again_unless_it_runs() -> None:
    master = running()
    master.lose(*master.membership.servers)
    master.answer_inventories()
    assert master.state.recovery.inquiry is not None
    (name,) = master.state.recovery.inquiry.newcomers
    before = master.container_of(name)
    warn(master, name)
    after = master.container_of(name)
    master.launch(name)
    warn(master, name)
    same = master.container_of(name)
    master.register(name)
    master.acknowledge()

    assert before != after == same and e.ReleaseContainer(before) in master.all
    assert master.membership.servers == (name,)
    assert master.driver.plan.removed == (name,), "it is drained as soon as the job goes on"


def test_member_that_is_warned_while_the_job_starts_is_drained_when_it_runs() -> None:
    master = starting()
    master.request_containers()
    master.launch("worker-2")
    warn(master, "worker-2")
    for name in sorted(master.state.members.by_name):
        master.register(name)
    waiting = master.state.plans.flight.driver
    master.acknowledge()

    assert waiting is None and master.driver.plan.removed == ("worker-2",)


@pytest.mark.parametrize("iterations", [3, 4])
def test_nothing_is_drained_once_the_last_iteration_is_granted(iterations: int) -> None:
    """It does not matter whether the measurement after it is granted, too."""
    master = running(iterations)
    trained(master, 2)
    granted = master.state.progress.horizon
    warn(master, "worker-1")
    trained(master, iterations + 1)

    assert granted == 3 and not drains(master) and master.state.state is JobState.EXPORTING
    assert outcomes(master) == {"worker-1": EvictionOutcome.WARNED}


# ---- a drain that fails


def test_drain_that_fails_is_tried_again_after_longer_and_longer() -> None:
    master = running()
    warn(master, "server-1")
    tried_s = []
    for number in range(1, 4):
        tried_s.append(master.now_s)
        master.acknowledge_lists()
        master.report(m.TransferFailed("server-1", master.driver.plan.turn, "the connection broke"))
        while len(drains(master)) == number:
            master.tick(0.05)
    first, second = (later - before for before, later in pairwise(tried_s))

    assert DRAIN_AGAIN_S <= first < second
    carry_on(master)
    assert outcomes(master) == {"server-1": EvictionOutcome.DRAINED}


def test_next_change_goes_on_while_a_drain_waits_to_be_tried_again() -> None:
    master = running()
    warn(master, "server-1")
    waiting = master.ask(ADD_WORKER)
    master.acknowledge_lists()
    master.report(m.TransferFailed("server-1", master.driver.plan.turn, "the connection broke"))
    meanwhile = master.driver.plan
    master.tick(DRAIN_AGAIN_S)

    assert meanwhile is waiting and waiting.phase is Phase.ABORTED
    assert master.driver.plan.removed == ("server-1",)


def test_loss_of_another_during_a_drain_only_delays_it() -> None:
    master = running(followers=1)
    warn(master, "worker-1")
    master.lose("worker-2")
    master.recover()
    master.tick(DRAIN_AGAIN_S)

    assert [p.phase for p in drains(master)] == [Phase.ABORTED, Phase.PREPARED]


# ---- what is remembered and told


def test_state_that_is_read_again_drains_what_was_announced_before(tmp_path: Path) -> None:
    master = running()
    plan = master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    warn(master, "server-1")
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)
    log.close()
    log = StateLog(tmp_path / "state")
    restored = log.restore()
    log.close()
    assert restored is not None
    master.state = restored.state
    running_now = {record.container: 1 for record in master.state.members.by_name.values()}
    master.step(e.MasterRestarted(2, running_now))
    for name in sorted(master.state.members.by_name):
        master.register(name)
    master.acknowledge_membership()
    master.release()

    assert master.state.plans.all[plan.plan_id].phase is Phase.RELEASED
    assert master.driver.plan.removed == ("server-1",)
    eviction = master.state.evictions.of("server-1")
    assert eviction is not None and eviction.reason == "is preempted"


def test_journal_says_what_was_announced_and_what_came_of_it() -> None:
    master = running()
    warn(master, "worker-1")
    plan = carry_on(master)
    (warned,), (evicted,) = master.journaled("warned"), master.journaled("evicted")

    assert (warned["member"], warned["in_s"], warned["reason"]) == ("worker-1", DEADLINE_S, "is preempted")
    assert (evicted["outcome"], evicted["plan"]) == ("drained", plan.plan_id)
    assert evicted["seconds"] == pytest.approx(master.now_s - warned["at_s"], abs=1e-6)


def test_no_clock_is_granted_that_nobody_could_begin_while_a_drain_is_not_committed() -> None:
    master = running(iterations=400)
    for clock in range(8):
        master.clock(clock)
        master.tick(0.1)
    before = master.state.progress.horizon - master.state.progress.completed
    warn(master, "worker-1")
    for clock in range(8, 16):
        master.clock(clock)
        master.tick(0.1)
    during = master.state.progress.horizon - master.state.progress.completed
    carry_on(master)
    for clock in range(16, 20):
        master.clock(clock)
        master.tick(0.1)

    assert (before, during) == (2, 1)
    assert master.state.progress.horizon - master.state.progress.completed == 2
