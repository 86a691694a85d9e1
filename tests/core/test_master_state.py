"""The job master, act by act: its start, losses, commits, horizons and ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.checkpoints import EXPORT_AGAIN_S, MOST_EXPORTS
from eps.core.events import JobState
from eps.core.job import Job
from eps.core.reconfig import Change, Operation, Phase
from eps.core.recovery import INCIDENT_S
from eps.core.size import REQUEST_S
from eps.core.types import CoreSettings, Role
from eps.errors import JobFinishedError, PlanError
from tests.core.scripted import (
    ADD_SERVER,
    ADD_WORKER,
    REMOVE_SERVER,
    REMOVE_WORKER,
    ScriptedMaster,
    refusal,
    running,
    starting,
)

# ---- start


def test_first_containers_are_asked_for_and_the_start_is_journaled_first() -> None:
    master = starting()

    commands = master.request_containers()

    assert isinstance(commands[0], e.Journal) and commands[0].sync
    assert [[*c.roles] for c in master.commands(e.RequestContainer)] == [[Role.WORKER]] * 3 + [[Role.SERVER]] * 2


def test_job_runs_when_everybody_has_acknowledged_the_first_membership() -> None:
    master = starting()
    master.request_containers()
    for name in sorted(master.state.members.by_name):
        master.register(name)
    states = [master.state.state]
    for name in master.membership.members:
        states.append(master.state.state)
        master.report(m.MembershipAcked(name, 1))

    assert set(states) == {JobState.STARTING}
    assert master.state.state is JobState.RUNNING
    assert {to for to, _ in master.sent(m.GrantHorizon)} == {"worker-1", "worker-2", "worker-3"}


def test_member_that_registers_again_is_told_its_name_and_where_the_job_stands() -> None:
    master = running()

    master.register("worker-1")

    told = [e.Name(master.container_of("worker-1"), "worker-1")]
    told += [e.Send("worker-1", m.UpdateMembership(0, master.membership))]
    told += [e.Send("worker-1", m.GrantHorizon(master.state.progress.horizon, master.state.progress.completed, 1))]
    assert master.last == told
    assert len(master.state.members.memberships) == 1


def test_member_that_is_lost_counts_as_ended_for_the_reason_given() -> None:
    master = running()

    master.step(e.MemberLost(master.container_of("worker-1"), "said nothing for 3 s"))

    assert master.state.recovery.inquiry is not None and master.state.recovery.inquiry.lost == {
        "worker-1": "said nothing for 3 s"
    }
    (record,) = master.journaled("lost")
    assert (record["member"], record["reason"]) == ("worker-1", "said nothing for 3 s")


def test_end_of_a_lost_members_process_changes_nothing_any_more() -> None:
    master = running()
    master.step(e.ChangeRequested("a", ADD_WORKER))
    newcomer = next(iter(set(master.state.members.by_name) - set(master.membership.members)))
    container = master.container_of(newcomer)

    master.step(e.MemberLost(container, "said nothing for 3 s"))
    lost = master.last
    master.step(e.ContainerExited(container, "was ended by SIGKILL"))

    assert master.state.plans.all[1].phase is Phase.ABORTED and lost
    assert (master.state.state, master.last) == (JobState.RUNNING, [])


def test_process_that_nobody_asked_for_is_released() -> None:
    master = running()

    commands = master.step(e.MemberRegistered("container-9999", master.address_of("x"), 1))

    assert commands == [e.ReleaseContainer("container-9999")]


@pytest.mark.parametrize(("workers", "servers"), [(0, 1), (7, 1), (1, 0), (1, 5)])
def test_size_that_cannot_be_is_refused_at_the_start(workers: int, servers: int) -> None:
    with pytest.raises(PlanError, match="need 1 to"):
        Job(CoreSettings(6, 4, 10), workers, servers)


def test_container_that_is_lost_at_the_start_is_asked_for_again() -> None:
    master = starting()
    master.request_containers()
    first = master.container_of("server-1")

    master.exit("server-1", "no image")
    at_once = master.last
    master.tick(after_s=REQUEST_S)

    assert master.state.state is JobState.STARTING
    assert master.container_of("server-1") != first and not any(isinstance(c, e.RequestContainer) for c in at_once)
    assert master.last[-1] == e.RequestContainer(master.container_of("server-1"), frozenset({Role.SERVER}))


def test_job_whose_containers_are_lost_at_the_start_again_and_again_fails() -> None:
    master = starting()
    master.request_containers()

    for _ in range(3):
        master.now_s += INCIDENT_S
        master.launch("server-1")
        container = master.container_of("server-1")
        master.exit("server-1", "no image")

    also = "; 3 failures without one complete clock between them"
    assert (master.state.state, master.state.reason) == (
        JobState.FAILED,
        f"server-1 ({container}) ended unexpectedly: no image{also}",
    )


def test_change_is_refused_while_the_job_starts() -> None:
    master = starting()
    master.request_containers()

    assert "still starting" in str(refusal(master.request(ADD_WORKER)))


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
def test_job_that_loses_a_member_asks_everybody_else_what_is_left(name: str) -> None:
    master = running()
    master.sent(object)

    master.lose(name)

    assert master.state.state is JobState.RUNNING
    workers, servers = (
        {n for n in names if n != name} for names in (master.membership.workers, master.membership.servers)
    )
    assert {to for to, _ in master.sent(m.TakeInventory)} == workers
    for worker in workers:
        assert not master.sent(m.TakeInventory)
        master.report(master.inventory(worker))
    assert {to for to, _ in master.sent(m.TakeInventory)} == servers


def test_newcomer_lost_after_commit_is_taken_over_from_and_its_plan_goes_on() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    master.register("worker-4")
    master.acknowledge_lists()
    master.copy()
    assert plan.phase is Phase.COMMITTED

    master.lose("worker-4")
    master.recover()

    assert master.membership.workers == ("worker-1", "worker-2", "worker-3")
    assert plan.phase is Phase.SWITCHED
    master.report_released()
    assert plan.phase is Phase.RELEASED


def test_member_that_leaves_and_is_lost_before_it_is_drained_is_taken_over_from() -> None:
    master = running()
    plan = master.ask(REMOVE_WORKER)
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()

    master.lose("worker-3")
    master.recover()
    master.report_released()

    assert (plan.phase, master.membership.workers) == (Phase.RELEASED, ("worker-1", "worker-2"))
    assert master.membership.takes_over


def test_member_that_leaves_is_told_to_end_as_soon_as_it_is_drained() -> None:
    master = running()
    master.ask(Change(Operation.REMOVE_WORKERS, 1, ("worker-3",)))
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()

    master.report(m.PlanReleased("worker-3", 1))

    assert e.Send("worker-3", m.Shutdown("removed from the job")) in master.last


def test_server_that_leaves_ends_only_when_every_worker_is_past_its_last_exchange_with_it() -> None:
    """Found by simulation: an answer that got lost is asked for again at the server that leaves."""
    master = running()
    master.ask(Change(Operation.REMOVE_SERVERS, 1, ("server-2",)))
    master.acknowledge_lists()
    master.copy()
    master.acknowledge_membership()
    master.sent(m.Shutdown)

    told = []
    for name in ("server-2", "worker-1", "worker-2", "worker-3"):
        master.report(m.PlanReleased(name, 1))
        told.append(master.sent(m.Shutdown))

    assert told == [[], [], [], [("server-2", m.Shutdown("removed from the job"))]]


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


def test_undecided_plan_is_aborted_by_a_loss_and_those_that_wait_come_later() -> None:
    master = running()
    plans = [master.ask(ADD_WORKER), master.ask(ADD_SERVER)]

    master.lose("server-1")

    assert [p.phase for p in plans] == [Phase.ABORTED, Phase.QUEUED]
    assert plans[0].reason == "server-1 ended unexpectedly: signal 9"
    master.recover()
    assert plans[1].phase is Phase.PROPOSED


def test_plan_fails_with_the_job_and_the_queue_too() -> None:
    master = running()
    plans = [master.ask(ADD_WORKER), master.ask(ADD_SERVER)]

    master.report(m.MemberFailed("server-1", "DataError", "bad row"))

    assert [p.phase for p in plans] == [Phase.ABORTED, Phase.ABORTED]
    assert all("the job failed" in p.reason for p in plans)


# ---- commit


def test_commit_is_on_disk_before_anybody_hears_of_it_and_holds_after_the_horizon() -> None:
    master = running()
    plan = master.ask(REMOVE_SERVER)
    master.acknowledge_lists()
    horizon = master.state.progress.horizon
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
    assert [v.version for v in master.state.members.memberships] == [1, 2, 3]


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
    held = master.state.progress.horizon

    master.step(e.CancelRequested("cancel", plan.plan_id))

    assert (held, master.state.progress.horizon) == (4, 6)


def test_change_is_refused_once_the_last_iteration_is_granted() -> None:
    master = running(iterations=4)
    for clock in range(2):
        master.now_s += 1.0
        master.clock(clock)
    assert master.state.progress.horizon >= 3

    error = refusal(master.request(ADD_WORKER))

    assert isinstance(error, JobFinishedError)
    assert "the last iteration (3) has already been granted" in str(error)


def test_unacknowledged_horizon_is_said_again() -> None:
    master = running()
    master.sent(m.GrantHorizon)

    master.tick()

    assert {order for _, order in master.sent(m.GrantHorizon)} == {m.GrantHorizon(master.state.progress.horizon, 0, 1)}


def test_member_that_connects_again_hears_everything_that_it_has_not_acknowledged() -> None:
    master = running()
    master.ask(REMOVE_SERVER)
    master.report(m.ListsUpdated("worker-1", 1))
    master.sent(m.UpdateLists)

    master.register("worker-1")
    told_worker = [type(order) for _, order in master.sent(object)]
    master.register("server-1")
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


def test_export_that_fails_is_tried_again_and_a_late_answer_to_an_earlier_one_is_ignored() -> None:
    master = running(iterations=3)
    finished(master, 3)

    master.step(e.ExportFailed("no route to server-2", 1))
    states = [master.state.state]
    master.tick(after_s=EXPORT_AGAIN_S)
    again = [c for c in master.last if isinstance(c, e.StartExport)]
    master.step(e.ExportFailed("no route to server-2", 1))
    master.step(e.ExportDone(number=1))
    states.append(master.state.state)
    master.step(e.ExportDone(number=2))

    assert states == [JobState.EXPORTING, JobState.EXPORTING] and again == [e.StartExport(2)]
    assert master.state.state is JobState.FINISHED


def test_model_that_cannot_be_written_again_and_again_fails_the_job() -> None:
    master = running(iterations=3)
    finished(master, 3)

    for number in range(1, MOST_EXPORTS + 1):
        assert master.state.state is JobState.EXPORTING
        master.step(e.ExportFailed("disk full", number))
        master.tick()

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
    master.state.progress.stop_on_divergence = False

    master.clock(0, loss_sum=float("nan"))

    assert master.state.state is JobState.RUNNING


def test_killed_job_aborts_what_is_undecided_and_ends_everybody() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)
    master.register("worker-4")
    master.sent(m.Shutdown)

    master.step(e.KillRequested("enough"))

    assert (plan.phase, plan.reason) == (Phase.ABORTED, "the job killed: enough")
    assert {to for to, _ in master.sent(m.Shutdown)} == {*master.membership.members, "worker-4"}
    assert (master.state.state, master.state.reason) == (JobState.KILLED, "enough")


def test_job_to_which_nobody_gives_containers_any_more_fails() -> None:
    master = running()
    plan = master.ask(ADD_WORKER)

    master.step(e.ResourcesLost("the engine is away"))

    assert plan.phase is Phase.ABORTED
    assert {to for to, _ in master.sent(m.Shutdown)} == set(master.membership.members)
    assert (master.state.state, master.state.reason) == (JobState.FAILED, "the engine is away")


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


def test_ways_between_members_are_those_taken_last_between_members_that_are_there() -> None:
    master = running()
    for peer, way in (("server-1", "shm"), ("server-2", "unix"), ("server-2", "tcp"), ("somebody", "tcp")):
        master.report(m.PeerReached("worker-1", master.address_of(peer), way))
    master.report(m.PeerReached("worker-9", master.address_of("server-1"), "shm"))
    assert master.state.members.by_name["worker-1"].ways == {"server-1": "shm", "server-2": "tcp"}
    master.lose("server-2")
    master.report(m.PeerReached("worker-1", master.address_of("server-1"), "unix"))
    assert master.state.members.by_name["worker-1"].ways == {"server-1": "unix"}


@pytest.mark.parametrize("break_it", ["it begins too late", "the last clock is granted", "newcomer", "member"])
def test_validate_finds_parts_that_contradict_each_other(break_it: str) -> None:
    master = running(iterations=12)
    plan = master.ask(ADD_WORKER)
    state = master.state
    state.validate()
    match break_it:
        case "it begins too late":
            late = replace(master.membership, version=2, from_clock=state.progress.horizon + 2)
            state.members.adopt(late, waits=False)
        case "the last clock is granted":
            state.progress.horizon = 11
        case "newcomer":
            state.members.dismiss(plan.added, "why")
        case "member":
            state.members.dismiss(["worker-1"], "why")
            state.members.held[Role.WORKER] -= 1
            state.size.settle(state.members.held)
    with pytest.raises(AssertionError):
        state.validate()
