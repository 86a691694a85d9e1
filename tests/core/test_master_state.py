"""The job master, act by act: requests, queueing, cancelling, losses, horizons, ends."""

from __future__ import annotations

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.master_state import GROWTH_PATIENCE_S, MasterState
from eps.core.reconfig import Change, Operation, Phase
from eps.core.settings import CoreSettings, Trigger
from eps.errors import EpsError, JobFinishedError, PlanError, UnknownMemberError
from tests.core.scripted import ScriptedMaster

ADD_WORKER, ADD_SERVER = Change(Operation.ADD_WORKERS, 1), Change(Operation.ADD_SERVERS, 1)
REMOVE_WORKER, REMOVE_SERVER = Change(Operation.REMOVE_WORKERS, 1), Change(Operation.REMOVE_SERVERS, 1)


def job(iterations: int = 100, triggers: tuple[Trigger, ...] = ()) -> ScriptedMaster:
    settings = CoreSettings(num_splits=6, num_partitions=4, iterations=iterations, reproducible=False)
    return ScriptedMaster(settings, 3, 2, triggers)


def running(iterations: int = 100, triggers: tuple[Trigger, ...] = ()) -> ScriptedMaster:
    master = job(iterations, triggers)
    master.start()
    return master


def refusal(answer: e.Answer) -> EpsError:
    assert answer.error is not None
    return answer.error


# ---- start


def test_first_containers_are_asked_for_and_the_start_is_journaled_first() -> None:
    master = job()

    commands = master.state.start(0.0)

    assert isinstance(commands[0], e.Journal) and commands[0].sync
    assert [c.role.value for c in commands[1:]] == ["worker"] * 3 + ["server"] * 2


def test_job_runs_when_everybody_has_acknowledged_the_first_membership() -> None:
    master = job()
    master._take(master.state.start(0.0))
    for name in sorted(master.state.members):
        master.register(name)
    states = [master.state.state]
    for name in master.membership.members:
        states.append(master.state.state)
        master.report(m.MembershipAcked(name, 1))

    assert set(states) == {JobState.STARTING}
    assert master.state.state is JobState.RUNNING
    assert {to for to, _ in master.sent(m.GrantHorizon)} == {"worker-1", "worker-2", "worker-3"}


def test_registering_twice_is_harmless() -> None:
    master = running()

    master.register("worker-1")

    assert master.last == [e.Name(master.container_of("worker-1"), "worker-1")]
    assert len(master.state.memberships) == 1


def test_process_that_nobody_asked_for_is_released() -> None:
    master = running()

    commands = master.step(e.MemberRegistered("container-9999", master.address_of("x"), 1))

    assert commands == [e.ReleaseContainer("container-9999")]


@pytest.mark.parametrize(("workers", "servers"), [(0, 1), (7, 1), (1, 0), (1, 5)])
def test_size_that_cannot_be_is_refused_at_the_start(workers: int, servers: int) -> None:
    with pytest.raises(PlanError, match="need 1 to"):
        MasterState(CoreSettings(6, 4, 10), workers, servers)


def test_container_that_is_lost_at_the_start_fails_the_job() -> None:
    master = job()
    master._take(master.state.start(0.0))

    master.exit("server-1", "no image")

    assert (master.state.state, master.state.reason) == (JobState.FAILED, "server-1 ended unexpectedly: no image")


def test_change_is_refused_while_the_job_starts() -> None:
    master = job()
    master._take(master.state.start(0.0))

    assert "still starting" in str(refusal(master.request(ADD_WORKER)))


# ---- requests


def test_same_request_gets_the_same_answer_and_one_plan() -> None:
    master = running()

    first = master.request(ADD_WORKER, request_id="r")
    again = master.request(ADD_WORKER, request_id="r")

    assert first == again
    assert list(master.state.plans) == [1]


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
        "add-servers=1: adds server-3, removes nobody",
        "partition 0: server-1 -> server-3",
        "partition 2: server-2 -> server-3",
    ]
    assert not master.state.plans and master.state.driver is None
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

    master.exit("worker-4", "lost")

    assert (first.phase, second.phase) == (Phase.ABORTED, Phase.ABORTED)
    assert "worker-4 is not a worker of the job" in second.reason


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
        assert "has ended already: released" in str(answer.error)
    else:
        assert answer.error is None
        assert (plan.phase, plan.reason) == (Phase.ABORTED, "cancelled")
        assert master.membership is before, "an aborted plan leaves no trace"
        if stage != "queued":
            told = {to for to, order in master.sent(m.AbortPlan)}
            assert told == set(before.members)
            assert not set(plan.added) & set(master.state.members)
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

    assert {(to, order.plan_id) for to, order in again} == {(name, 1) for name in master.state.memberships[0].members}
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
    assert growth.reason == "still waiting for containers when remove-workers=1 was asked"
    assert shrink.phase is Phase.PREPARED


def test_removal_waits_for_an_addition_that_has_its_containers() -> None:
    master = running()
    growth, shrink = master.ask(ADD_WORKER), master.ask(REMOVE_WORKER)
    master.launch("worker-4")

    master.tick(10 * GROWTH_PATIENCE_S)

    assert (growth.phase, shrink.phase) == (Phase.PROPOSED, Phase.QUEUED)


def test_addition_waits_behind_an_addition_that_waits_for_containers() -> None:
    master = running()
    first, second = master.ask(ADD_WORKER), master.ask(ADD_SERVER)

    master.tick(10 * GROWTH_PATIENCE_S)

    assert (first.phase, second.phase) == (Phase.PROPOSED, Phase.QUEUED)


def test_container_that_comes_after_its_plan_was_aborted_is_released() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    container = master.container_of("worker-4")
    master.step(e.CancelRequested("cancel", plan.plan_id))

    commands = master.step(e.MemberRegistered(container, master.address_of("worker-4"), 1))

    assert commands == [e.ReleaseContainer(container)]
    assert master.step(e.ContainerExited(container, "released")) == []


# ---- members that are lost


def test_newcomer_lost_before_commit_aborts_the_plan_and_training_goes_on() -> None:
    master = running()
    plan = master.ask(Change(Operation.ADD_SERVERS, 2))
    master.register("server-3")
    survivor = master.container_of("server-3")

    master.exit("server-4", "out of memory")

    assert (plan.phase, plan.reason) == (Phase.ABORTED, "server-4 ended before it took part: out of memory")
    assert e.ReleaseContainer(survivor) in master.last
    assert master.state.state is JobState.RUNNING


@pytest.mark.parametrize("name", ["worker-2", "server-1"])
def test_member_lost_fails_the_job_with_its_name(name: str) -> None:
    master = running()

    master.exit(name, "signal 9")

    assert master.state.state is JobState.FAILED
    assert master.state.reason == f"{name} ended unexpectedly: signal 9"
    assert master.last[-1] == e.EndJob(JobState.FAILED, master.state.reason)


def test_newcomer_lost_after_commit_fails_the_job() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    master.register("worker-4")
    master.acknowledge_lists()
    master.copy()
    assert plan.phase is Phase.COMMITTED

    master.exit("worker-4", "signal 9")

    assert (master.state.state, master.state.reason) == (JobState.FAILED, "worker-4 ended unexpectedly: signal 9")


def test_member_that_leaves_and_is_lost_before_it_is_drained_fails_the_job() -> None:
    master = running()
    master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()

    master.exit("worker-3", "signal 9")

    assert (master.state.state, master.state.reason) == (JobState.FAILED, "worker-3 ended unexpectedly: signal 9")


def test_member_that_leaves_is_told_to_end_as_soon_as_it_is_drained() -> None:
    master = running()
    master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-3",)))
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()

    master.report(m.PlanReleased("worker-3", 1))

    assert e.Send("worker-3", m.Shutdown("removed from the job")) in master.last


def test_late_report_of_an_earlier_plan_does_not_end_a_member() -> None:
    """The same member answers plan 1 again, late, while plan 2 is about to remove it."""
    master = running()
    master.carry_out(ADD_WORKER)
    master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-3",)))

    master.report(m.PlanReleased("worker-3", 1))

    assert not [c for c in master.last if isinstance(c, e.Send) and isinstance(c.order, m.Shutdown)]


def test_member_that_failed_fails_the_job_and_a_newcomer_only_its_plan() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    master.register("worker-4")

    master.report(m.MemberFailed("worker-4", "DataError", "bad row"))
    state = master.state.state
    master.report(m.MemberFailed("worker-1", "DataError", "bad row"))

    assert (plan.phase, plan.reason, state) == (Phase.ABORTED, "worker-4: DataError: bad row", JobState.RUNNING)
    assert (master.state.state, master.state.reason) == (JobState.FAILED, "worker-1: bad row")


def test_partition_that_arrives_damaged_aborts_the_plan() -> None:
    master = running()
    plan = master.ask(REMOVE_SERVER)
    master.acknowledge_lists()

    master.report(m.PartitionSent("server-2", 1, 2, 10, "aa"))
    master.report(m.PartitionCaughtUp("server-1", 1, 2, "bb"))

    assert plan.phase is Phase.ABORTED
    assert plan.reason == "partition 2 left with checksum aa and arrived with bb"
    assert master.state.state is JobState.RUNNING


def test_plan_fails_with_the_job_and_the_queue_too() -> None:
    master = running()
    plans = [master.ask(ADD_WORKER), master.ask(ADD_SERVER)]

    master.exit("server-1", "signal 9")

    assert [p.phase for p in plans] == [Phase.ABORTED, Phase.ABORTED]
    assert all("the job failed" in p.reason for p in plans)


# ---- commit


def test_commit_is_on_disk_before_anybody_hears_of_it_and_holds_after_the_horizon() -> None:
    master = running()
    plan = master.ask(REMOVE_SERVER)
    master.acknowledge_lists()
    horizon = master.state.horizon
    master.all.clear()

    master.copy()

    assert plan.commit_clock == horizon + 1 == master.membership.from_clock
    committed = next(c for c in master.all if isinstance(c, e.Journal) and c.record["kind"] == "committed")
    sends = [c for c in master.all if isinstance(c, e.Send)]
    assert committed.sync
    assert {type(c.order) for c in sends} == {m.UpdateMembership}
    assert master.all.index(committed) < min(master.all.index(c) for c in sends)


def test_late_plans_may_share_a_commit_clock_and_the_later_holds() -> None:
    """No worker was granted anything between the two commits."""
    master = running()

    first, second = master.carry_out(ADD_WORKER), master.carry_out(REMOVE_WORKER)

    assert first.commit_clock == second.commit_clock
    assert [v.version for v in master.state.memberships] == [1, 2, 3]


def test_worker_that_leaves_is_granted_the_clocks_that_it_owes() -> None:
    master = running()
    master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-2",)))
    master.acknowledge_lists()
    master.copy()
    master.sent(m.GrantHorizon)

    master.tick()

    assert {to for to, _ in master.sent(m.GrantHorizon)} == {"worker-1", "worker-2", "worker-3"}


# ---- horizons and the last iteration


def test_horizon_is_never_granted_twice_and_never_shrinks() -> None:
    master = running(iterations=20)
    for clock in range(15):
        master.now_s += 0.2
        master.clock(clock)
    horizons = [c.order.horizon for c in master.all if isinstance(c, e.Send) and isinstance(c.order, m.GrantHorizon)]

    assert horizons == sorted(horizons)
    assert len(horizons) == 3 * len(set(horizons)), "each once for each of the three workers"


def test_last_iteration_waits_for_an_undecided_change() -> None:
    master = running(iterations=6)
    plan = master.ask(ADD_WORKER)
    for clock in range(5):
        master.now_s += 1.0
        master.clock(clock)
    held = master.state.horizon

    master.step(e.CancelRequested("cancel", plan.plan_id))

    assert (held, master.state.horizon) == (4, 6)


def test_change_is_refused_once_the_last_iteration_is_granted() -> None:
    master = running(iterations=4)
    for clock in range(2):
        master.now_s += 1.0
        master.clock(clock)
    assert master.state.horizon >= 3

    error = refusal(master.request(ADD_WORKER))

    assert isinstance(error, JobFinishedError)
    assert "the last iteration (3) has been granted already" in str(error)


def test_unacknowledged_horizon_is_said_again() -> None:
    master = running()
    master.sent(m.GrantHorizon)

    master.tick()

    assert {order for _, order in master.sent(m.GrantHorizon)} == {m.GrantHorizon(master.state.horizon, 0, 1)}


def test_member_that_connects_again_hears_everything_that_it_has_not_acknowledged() -> None:
    master = running()
    master.ask(REMOVE_SERVER)
    master.report(m.ListsUpdated("worker-1", 1))
    master.sent(m.UpdateLists)

    master.step(e.MemberConnected("worker-1"))
    told_worker = [type(order) for _, order in master.sent(object)]
    master.step(e.MemberConnected("server-1"))
    told_server = [type(order) for _, order in master.sent(object)]

    assert told_worker == [m.UpdateMembership, m.GrantHorizon]
    assert told_server == [m.UpdateMembership, m.UpdateLists]


def test_orders_are_said_again_only_to_those_that_did_not_answer() -> None:
    master = running()
    master.ask(REMOVE_SERVER)
    for name in ("worker-1", "worker-2", "server-1"):
        master.report(m.ListsUpdated(name, 1))
    master.sent(m.UpdateLists)

    master.tick()

    assert {to for to, _ in master.sent(m.UpdateLists)} == {"worker-3", "server-2"}


# ---- triggers


def test_change_is_asked_at_its_clock() -> None:
    master = running(triggers=(Trigger(2, ADD_WORKER),))
    master.clock(0)
    before = len(master.state.plans)

    master.clock(1)

    assert before == 0
    assert master.state.plans[1].phase is Phase.PROPOSED


def test_change_at_the_last_possible_clock_still_happens() -> None:
    master = running(iterations=4, triggers=(Trigger(3, ADD_WORKER),))
    for clock in range(3):
        master.now_s += 1.0
        master.clock(clock)

    assert master.state.horizon == 2, "the last iteration waits for the trigger"
    assert master.state.plans[1].phase is Phase.PROPOSED


def test_change_at_a_clock_that_is_impossible_by_then_is_recorded_as_aborted() -> None:
    master = running(triggers=(Trigger(1, Change(Operation.REMOVE_WORKERS, 3)),))

    master.clock(0)

    assert master.state.plans[1].phase is Phase.ABORTED
    assert "must keep at least one" in master.state.plans[1].reason


def test_triggers_of_one_clock_are_asked_in_order() -> None:
    master = running(triggers=(Trigger(1, ADD_WORKER), Trigger(1, ADD_SERVER)))

    master.clock(0)

    assert [p.change for p in master.state.plans.values()] == [ADD_WORKER, ADD_SERVER]


# ---- ends


def finished(master: ScriptedMaster, iterations: int) -> None:
    for clock in range(iterations + 1):
        master.now_s += 1.0
        master.clock(clock)


def test_job_exports_then_finishes() -> None:
    master = running(iterations=3)

    finished(master, 3)
    exporting = master.state.state, list(master.last)
    master.step(e.ExportDone())

    assert exporting[0] is JobState.EXPORTING and e.StartExport() in exporting[1]
    assert (master.state.state, master.state.reason) == (JobState.FINISHED, "")
    assert {to for to, _ in master.sent(m.Shutdown)} == set(master.membership.members)
    assert master.last[-1] == e.EndJob(JobState.FINISHED, "")


@pytest.mark.parametrize("exported", [False, True])
def test_finished_job_refuses_changes(exported: bool) -> None:
    master = running(iterations=3)
    finished(master, 3)
    if exported:
        master.step(e.ExportDone())

    error = refusal(master.request(ADD_WORKER))

    assert isinstance(error, JobFinishedError)


def test_model_that_cannot_be_written_fails_the_job() -> None:
    master = running(iterations=3)
    finished(master, 3)

    master.step(e.ExportFailed("disk full"))

    assert (master.state.state, master.state.reason) == (JobState.FAILED, "disk full")


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_loss_that_is_not_finite_fails_the_job(loss: float) -> None:
    master = running()
    master.clock(0)

    master.clock(1, loss_sum=loss)

    assert master.state.state is JobState.FAILED
    assert master.state.reason.startswith("the loss at clock 1 is ")
    assert "try a smaller learning rate" in master.state.reason


def test_divergence_may_be_allowed() -> None:
    master = running()
    master.state._stop_on_divergence = False

    master.clock(0, loss_sum=float("nan"))

    assert master.state.state is JobState.RUNNING


def test_killed_job_aborts_what_is_undecided_and_ends_everybody() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    master.register("worker-4")
    master.sent(m.Shutdown)

    master.step(e.KillRequested("enough"))

    assert plan.phase is Phase.ABORTED
    assert {to for to, _ in master.sent(m.Shutdown)} == {*master.membership.members, "worker-4"}
    assert (master.state.state, master.state.reason) == (JobState.KILLED, "enough")


def test_nothing_happens_after_the_end_but_answers() -> None:
    master = running()
    master.step(e.KillRequested("enough"))

    assert master.step(e.Tick()) == []
    assert master.step(e.ReportReceived(m.MembershipAcked("worker-1", 1))) == []
    assert isinstance(refusal(master.request(ADD_WORKER)), JobFinishedError)
    assert isinstance(refusal(master.step(e.CancelRequested("c", 1))[0]), JobFinishedError)
    late = master.step(e.MemberRegistered("container-0001", master.address_of("x"), 1))
    assert late == [e.ReleaseContainer("container-0001")]


def test_job_does_not_finish_while_a_plan_is_on_its_way() -> None:
    master = running(iterations=4)
    plan = master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    finished(master, 4)
    waiting = master.state.state

    master.acknowledge_membership()
    master.release()

    assert plan.commit_clock is not None and plan.commit_clock <= 4
    assert (waiting, plan.phase, master.state.state) == (JobState.RUNNING, Phase.RELEASED, JobState.EXPORTING)
