"""Plans, evictions, recovery and checkpoints alone: each told in values what it must know of the others."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import HURRY_AGAIN_S, CheckpointContext, Checkpoints, Schedule, Timetable
from eps.core.evictions import EvictionOutcome, Evictions
from eps.core.members import Member, MemberPhase
from eps.core.membership import Membership, PartitionTable, SplitTable
from eps.core.plans import CANCELLED, REGAIN_PATIENCE_S, RETRIES, PlanContext, Plans
from eps.core.reconfig import Change, Operation, Phase, Plan, Purpose, Trigger
from eps.core.recovery import INCIDENT_S, MOST_INCIDENTS, Loss, LossOutcome, Recovery
from eps.core.types import Address, CoreSettings, Role
from eps.errors import EpsError, PlanError

SETTINGS = CoreSettings(6, 4, 100, reproducible=False)
WORKERS, SERVERS = ("worker-1", "worker-2", "worker-3"), ("server-1", "server-2")
JOB = Membership(
    1,
    0,
    WORKERS,
    SERVERS,
    PartitionTable(("server-1", "server-1", "server-2", "server-2")),
    SplitTable.of(("worker-1", "worker-1", "worker-2", "worker-2", "worker-3", "worker-3")),
    {name: Address(name, 1) for name in (*WORKERS, *SERVERS)},
)


def member(name: str, phase: MemberPhase = MemberPhase.LAUNCHED) -> Member:
    role, _, rank = name.partition("-")
    address = Address(name, 1) if phase is MemberPhase.REGISTERED else None
    return Member(name, f"c-{name}", frozenset({Role(role)}), int(rank), phase=phase, address=address)


def lose(recovery: Recovery, name: str, now_s: float, *, own: bool = True, silent: bool = False) -> None:
    recovery.lost(member(name), Loss(name, "crashed", 3, now_s), own=own, silent=silent, starts=False)
    recovery.validate()


NOW = PlanContext(JOB, {Role.WORKER: 4, Role.SERVER: 3}, completed=5, horizon=7, exports=False, now_s=10.0)
ADD, REMOVE = Change(Operation.ADD_WORKERS, 2), Change(Operation.REMOVE_WORKERS, 1)


def ask(plans: Plans, change: Change, request_id: str = "r", job: PlanContext = NOW) -> e.Answer:
    answer = plans.request(e.ChangeRequested(request_id, change), job)[-1]
    plans.validate()
    assert isinstance(answer, e.Answer)
    return answer


def proposed(change: Change, purpose: Purpose = Purpose.ASKED) -> tuple[Plans, Plan]:
    plans = Plans(SETTINGS)
    plan, _ = plans.ask(change, purpose, NOW)
    plans.propose(plan, NOW)
    plans.validate()
    return plans, plan


# ---- plans


def test_a_request_that_is_repeated_gets_the_answer_that_it_had() -> None:
    plans = Plans(SETTINGS)
    first, again, other = ask(plans, ADD), ask(plans, ADD), ask(plans, REMOVE)

    assert first == again and len(plans.queue) == 1
    assert isinstance(other.error, PlanError) and "asked for add-workers=2" in str(other.error)


@pytest.mark.parametrize(
    "job",
    [replace(NOW, membership=None), replace(NOW, exports=True), replace(NOW, horizon=99), replace(NOW, completed=100)],
)
def test_a_change_that_comes_too_early_or_too_late_is_refused(job: PlanContext) -> None:
    plans = Plans(SETTINGS)
    assert isinstance(ask(plans, ADD, job=job).error, EpsError) and not plans.all


def test_a_removal_is_proposed_stepped_committed_after_the_horizon_and_released() -> None:
    plans, plan = proposed(REMOVE)
    driver, phases = plans.flight.driver, [plan.phase]
    assert driver is not None and plan.removed == ("worker-3",)

    def step() -> None:
        while (stepped := plans.step(7, 11.0)) is not None:
            phases.append(plan.phase)
            assert (stepped.committed is plan) == (plan.phase is Phase.COMMITTED)
            assert (stepped.released is plan) == (plan.phase is Phase.RELEASED)
            plans.validate()

    step()
    for name in JOB.members:
        plans.flight.hear(m.ListsUpdated(name, plan.turn))
    step()
    for move in driver.transfer.split_moves:
        plans.flight.hear(m.SplitReceived(move.target, plan.turn, move.item, 10))
    step()
    assert plan.commit_clock == 8 and plan.membership is not None and plan.membership.workers == WORKERS[:2]
    assert plans.flight.turn_of_membership() == plan.turn and plans.flight.leaving() == ("worker-3",)
    for name in JOB.members:
        plans.flight.hear(m.MembershipAcked(name, 2))
    step()
    told = [command for name in JOB.members for command in plans.flight.hear(m.PlanReleased(name, plan.turn))]
    assert told == [e.Send("worker-3", m.Shutdown("removed from the job"))]
    assert plans.flight.exited("worker-3") and not plans.flight.exited("worker-1")
    step()

    assert (
        phases == [phase for phase in Phase if phase not in (Phase.QUEUED, Phase.ABORTED)]
        and plans.flight.driver is None
    )


def test_a_plan_is_aborted_as_long_as_it_is_not_committed_and_members_hear_of_it() -> None:
    plans, plan = proposed(ADD)
    assert plans.cancel(plan.plan_id) is plan and isinstance(plans.cancel(9), PlanError)
    commands = plans.abort(plan, CANCELLED, 11.0)
    plans.validate()

    assert [c.to for c in commands if isinstance(c, e.Send)] == list(JOB.members)
    assert plans.cancel(plan.plan_id) is None, "it was cancelled before"
    assert plans.flight.orders(["worker-1"]) == [("worker-1", m.AbortPlan(plan.turn))]


def test_newcomers_are_followed_until_they_register() -> None:
    plans, plan = proposed(ADD)
    driver = plans.flight.driver
    assert driver is not None and plan.added == ("worker-4", "worker-5")
    for name in plan.added:
        assert plans.flight.adding(name) is plan and plans.flight.follow(member(name), 11.0)
    assert plan.barriers_s["B1"] == 11.0 and plans.step(7, 12.0) is None
    for name in plan.added:
        plans.flight.follow(member(name, MemberPhase.REGISTERED), 12.0)
    assert plans.step(7, 12.0) is not None and plan.phase is Phase.PREPARED
    assert not plans.flight.follow(member("worker-1"), 12.0) and not plans.flight.follow(None, 12.0)


@pytest.mark.parametrize("granted", [0, 1])
def test_a_request_of_lent_members_goes_on_with_what_was_granted_in_time(granted: int) -> None:
    plans, plan = proposed(ADD, Purpose.REGAIN)
    for name in plan.added[:granted]:
        plans.flight.follow(member(name, MemberPhase.GRANTED), 10.0)
    late = replace(NOW, now_s=10.0 + REGAIN_PATIENCE_S)
    reason, without = plans.late(late)

    assert plans.late(NOW) == ("", ())
    assert (bool(reason), without) == ((False, ("worker-5",)) if granted else (True, ()))


@pytest.mark.parametrize("purpose", RETRIES, ids=str)
def test_what_the_job_asks_for_itself_is_asked_for_later_each_time_that_it_fails(purpose: Purpose) -> None:
    plans, now_s, tried_s = Plans(SETTINGS), 10.0, list[float]()
    while len(tried_s) < 5:
        commands = plans.ask_own(ADD, purpose, replace(NOW, now_s=now_s))
        if commands:
            tried_s.append(now_s)
            plans.abort(plans.queue[0], "no room", now_s)
        now_s += 0.25
    first_s, _ = RETRIES[purpose]

    assert [later - earlier for earlier, later in itertools.pairwise(tried_s)] == [first_s * 2**k for k in range(4)]


def test_what_made_way_is_asked_for_again_at_once() -> None:
    plans = Plans(SETTINGS)
    plans.ask_own(ADD, Purpose.REPLACE, NOW)
    plans.abort(plans.queue[0], "it made way", 10.0, failed=False)

    assert plans.is_due(Purpose.REPLACE, 10.0) and plans.ask_own(ADD, Purpose.REPLACE, NOW)


def test_changes_of_clocks_are_asked_in_order_and_hold_the_last_clock_back() -> None:
    plans = Plans(SETTINGS, [Trigger(20, REMOVE), Trigger(5, ADD)])
    while (trigger := plans.due_trigger(NOW.completed)) is not None:
        plans.fire(trigger, NOW)

    assert [plan.change for plan in plans.queue] == [ADD] and plans.all[1].asked_at == 5
    assert plans.undecided and [trigger.clock for trigger in plans.triggers] == [20]


# ---- evictions


def test_an_eviction_is_open_until_it_has_an_outcome() -> None:
    evictions = Evictions()
    for name, in_s in (("worker-1", 5.0), ("server-1", 9.0), ("server-2", 9.0)):
        evictions.warn((name,), frozenset({Role.WORKER}), e.ContainerWarning(f"c-{name}", in_s), 10.0)
        evictions.validate()
    going = evictions.next_to_drain(JOB), evictions.servers_warned_s(JOB)
    evictions.end("c-worker-1", EvictionOutcome.DRAINED, 16.0, took_part=True)
    evictions.validate()

    assert going == (("worker-1",), 10.0) and evictions.next_to_drain(JOB) == SERVERS
    assert evictions.of("worker-1") is None and evictions.end("c-9", EvictionOutcome.LOST, 16.0, took_part=True) == []
    evictions.end("c-server-1", EvictionOutcome.LOST, 16.0, took_part=True)
    over, commands = evictions.settle(["c-worker-3"], 16.0)
    assert [(each.name, each.outcome, each.lost) for each in over] == [
        ("worker-1", EvictionOutcome.LATE, False),
        ("server-1", EvictionOutcome.LOST, True),
        ("server-2", EvictionOutcome.WITHDRAWN, False),
    ]
    assert [c.record["member"] for c in commands if isinstance(c, e.Journal)] == ["server-2"]
    assert evictions.settle([], 17.0) == ([], [])


# ---- recovery


def test_a_recovery_asks_the_rest_and_ends_with_a_membership() -> None:
    recovery = Recovery(0)
    lose(recovery, "worker-1", 10.0)
    assert recovery.must_ask == "worker-1 ended unexpectedly: crashed"
    asked = [name for name, _ in recovery.begin(JOB, False, 7)]
    assert asked == ["worker-2", "worker-3"] and not recovery.must_ask
    lose(recovery, "worker-2", 11.0)
    recovery.begin(JOB, False, 7)
    recovery.add("worker-4", Role.WORKER)
    recovery.validate()
    question = m.TakeInventory(2, 7)
    assert recovery.orders(JOB) == [("worker-3", question)]
    assert recovery.hear(m.Inventory("worker-3", 1), JOB) == []
    assert recovery.orders(JOB) == [("worker-3", question)], "an answer to the first says too little"
    assert recovery.hear(m.Inventory("worker-3", 2), JOB) == [(name, question) for name in SERVERS]
    assert recovery.hear(m.Inventory("server-1", 2), JOB) == [], "the other was asked already"
    assert recovery.orders(JOB) == [("server-2", question)]
    assert recovery.is_newcomer("worker-4") and recovery.registered("worker-4", Address("w4", 1))
    after = replace(JOB, version=2, workers=("worker-3",), split_clocks=(3,) * 6)
    recovery.end(JOB, after, 3, 12.0)

    assert recovery.inquiry is None and recovery.orders(JOB) == []
    assert [(loss.name, str(loss.outcome)) for loss in recovery.losses] == [
        ("worker-1", "taken-over"),
        ("worker-2", "taken-over"),
    ]


# ---- checkpoints


def test_a_checkpoint_is_ordered_beyond_the_horizon_and_finished_when_all_is_written() -> None:
    checkpoints = Checkpoints(Timetable(Schedule(clocks=10), 100), 4)
    job = CheckpointContext(JOB, horizon=7, lookahead=2, completed=5, servers_warned_s=None, size={r: 2 for r in Role})
    orders = [c for c in checkpoints.advance(job, 1.0) if isinstance(c, e.Send)]
    checkpoints.validate()
    assert [order.to for order in orders] == list(SERVERS) and checkpoints.pending is not None
    clock, number = checkpoints.pending.clock, checkpoints.pending.number
    assert clock == 10 and checkpoints.resend_order("server-1", [0, 1])
    for partition in range(4):
        part = m.CheckpointPartWritten("server-1", number, partition, "f", 1, "c", (clock,) * 6, clock, 0)
        checkpoints.hear(part, 2.0)
    early = checkpoints.advance(replace(job, completed=9), 3.0)
    (finish,) = checkpoints.advance(replace(job, completed=10), 3.0)
    checkpoints.validate()
    checkpoints.finished(e.CheckpointDone(number), 4.0)
    checkpoints.validate()

    assert early == [] and isinstance(finish, e.FinishCheckpoint) and (finish.workers, finish.servers) == (2, 2)
    assert checkpoints.restore_point(0).clock == 10 and checkpoints.counts["complete"] == 1


NOTHING_WARNED = CheckpointContext(JOB, 7, 2, 5, None, {role: 2 for role in Role})


@pytest.mark.parametrize(
    ("schedule", "due"),
    [
        (Schedule(), [None] * 4),
        # The first multiple of ten beyond horizon and lookahead, as soon as it is near.
        (Schedule(clocks=10), [10, None, 20, None]),
        # The clock next beyond them, every three seconds.
        (Schedule(seconds=3.0), [None, None, 18, None]),
        # At clock 10, and when there was none for three seconds.
        (Schedule(seconds=3.0, at=(10,)), [10, None, 18, None]),
    ],
)
def test_a_checkpoint_is_due_by_clocks_or_by_seconds(schedule: Schedule, due: list[int | None]) -> None:
    timetable = Timetable(schedule, 100)
    moments = [(7, 1.0), (9, 2.0), (16, 4.0), (17, 4.5)]
    found = [timetable.due(replace(NOTHING_WARNED, horizon=at), now_s, writes=False) for at, now_s in moments]

    assert found == due


def test_a_checkpoint_is_due_at_once_when_every_server_goes_until_one_is_complete() -> None:
    timetable, warned = Timetable(Schedule(clocks=50), 100), replace(NOTHING_WARNED, servers_warned_s=10.0)
    at = [(10.0, False), (10.1, False), (10.0 + HURRY_AGAIN_S, False), (12.0, True)]
    hurried = [timetable.due(warned, now_s, writes=writes) for now_s, writes in at]
    timetable.completed(11.0)

    assert hurried == [9, None, 10, None] and timetable.due(warned, 20.0, writes=False) is None
    timetable.completed(-math.inf)
    assert timetable.due(warned, 20.0, writes=False) == 11, "the latest cannot be read"


# ---- what cannot be


@pytest.mark.parametrize("break_it", ["queue", "two at a time", "ended", "turn", "abort of a later turn"])
def test_validate_finds_plans_that_cannot_be(break_it: str) -> None:
    plans, plan = proposed(ADD)
    waiting, _ = plans.ask(REMOVE, Purpose.ASKED, NOW)
    plans.validate()
    match break_it:
        case "queue":
            plans.queue.clear()
        case "two at a time":
            plans.queue.remove(waiting)
            waiting.enter(Phase.PROPOSED, 11.0)
        case "ended":
            plan.enter(Phase.ABORTED, 11.0)
        case "turn":
            plan.turn += 1
        case "abort of a later turn":
            plans.flight._aborted = plan.turn + 1
    with pytest.raises(AssertionError):
        plans.validate()


@pytest.mark.parametrize("break_it", ["over and open", "forgotten", "container"])
def test_validate_finds_evictions_that_cannot_be(break_it: str) -> None:
    evictions = Evictions()
    evictions.warn(("worker-1",), frozenset({Role.WORKER}), e.ContainerWarning("c-1", 5.0), 10.0)
    match break_it:
        case "over and open":
            evictions.all[0].end(EvictionOutcome.LOST, 11.0)
        case "forgotten":
            evictions._open.clear()
        case "container":
            evictions.all[0].container_id = "c-2"
    with pytest.raises(AssertionError):
        evictions.validate()


@pytest.mark.parametrize("break_it", ["number", "no role", "a lost one answered", "nothing to ask about"])
def test_validate_finds_recoveries_that_cannot_be(break_it: str) -> None:
    recovery = Recovery(0)
    lose(recovery, "worker-1", 10.0)
    recovery.begin(JOB, False, 7)
    recovery.add("worker-4", Role.WORKER)
    recovery.validate()
    assert recovery.inquiry is not None
    match break_it:
        case "number":
            recovery.inquiry.number += 1
        case "no role":
            recovery.inquiry.roles.clear()
        case "a lost one answered":
            recovery.inquiry.inventories["worker-1"] = m.Inventory("worker-1", 1)
        case "nothing to ask about":
            recovery.must_ask = "why"
    with pytest.raises(AssertionError):
        recovery.validate()


# ---- losses


def test_a_silent_member_counts_against_the_job_when_its_container_ended_by_itself() -> None:
    fatal = []
    for taken in (False, True):
        recovery = Recovery(0)
        for number in range(MOST_INCIDENTS):
            lose(recovery, "worker-1", INCIDENT_S * number, silent=True)
            assert not recovery.fatal
            recovery.container_ended("c-worker-1", 0, INCIDENT_S * number, taken=taken, starts=False)
            recovery.begin(JOB, False, 7)
        fatal.append(bool(recovery.fatal))

    assert fatal == [True, False]


def test_a_loss_that_ends_the_job_is_not_recovered_from() -> None:
    recovery = Recovery(0)
    for number in range(MOST_INCIDENTS - 1):
        lose(recovery, "worker-1", INCIDENT_S * number)
        recovery.begin(JOB, False, 7)
    lose(recovery, "worker-2", INCIDENT_S * MOST_INCIDENTS)

    assert recovery.fatal.startswith("worker-2 (c-worker-2) ended unexpectedly: crashed; ") and not recovery.must_ask
    assert recovery.losses[-1].outcome is LossOutcome.OPEN
