"""The commands of a job master that takes over from another."""

from __future__ import annotations

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.job import ENDED_AWAY
from eps.core.members import MISSING
from eps.core.reconfig import Change, Operation
from eps.core.types import Address, Role
from tests.core.scripted import ScriptedMaster, running

ADD_WORKER = Change(Operation.ADD_WORKERS, 1)


def restart(master: ScriptedMaster, generation: int = 2, without: tuple[str, ...] = ()) -> list[e.Command]:
    """Let another process take over; all launched members run, except ``without``."""
    records = master.state.members.by_name.values()
    pids = {r.container: r.pid for r in records if r.launched and r.name not in without}
    return [c for c in master.step(e.MasterRestarted(generation, pids)) if not isinstance(c, e.Journal)]


def test_the_next_master_has_the_next_generation_and_journals_it() -> None:
    master = running()
    commands = master.step(e.MasterRestarted(2, {}))
    assert master.state.masters.generation == 2
    journaled = [c for c in commands if isinstance(c, e.Journal)]
    assert (journaled[0].record["kind"], journaled[0].record["generation"], journaled[0].sync) == ("restarted", 2, True)


def test_where_everybody_runs_nothing_is_asked_for() -> None:
    master = running()
    assert restart(master) == []
    assert master.state.state is JobState.RUNNING


def test_a_master_finds_a_container_by_the_pid_of_the_resource_manager_though_its_process_says_another() -> None:
    master = running()
    master.ask(ADD_WORKER)
    container_id = master.container_of("worker-4")
    assert container_id not in master.state.members.pids()
    master.step(e.ContainerLaunched(container_id, 17))
    master.step(e.MemberRegistered(container_id, Address("host", 4), 4711))
    assert master.state.members.by_name["worker-4"].pid == 4711
    assert master.state.members.pids()[container_id] == 17
    # The master after the next one finds it as well.
    others = {r.container: r.pid for r in master.state.members.by_name.values()}
    master.step(e.MasterRestarted(2, others | master.state.members.pids()))
    assert master.state.members.pids()[container_id] == 17


def test_a_container_that_was_never_launched_is_asked_for_again() -> None:
    master = running()
    master.ask(ADD_WORKER)
    container_id = master.container_of("worker-4")
    assert restart(master) == [e.RequestContainer(container_id, frozenset({Role.WORKER}))]


def test_a_newcomer_that_ended_meanwhile_aborts_its_plan() -> None:
    master = running()
    master.ask(ADD_WORKER)
    master.step(e.ContainerLaunched(master.container_of("worker-4"), 7))
    restart(master, without=("worker-4",))
    plan = master.state.plans.all[1]
    assert plan.ended and plan.reason == f"worker-4 ended before it took part: {ENDED_AWAY}"


def test_a_member_that_ended_meanwhile_counts_as_one_that_ended() -> None:
    master = running()
    restart(master, without=("server-1",))
    assert "server-1" not in master.state.members.by_name


def test_a_container_that_the_job_does_not_know_is_released() -> None:
    master = running()
    commands = master.step(e.MasterRestarted(2, {"container-9999": 1}))
    assert e.ReleaseContainer("container-9999") in commands


def test_an_export_that_was_on_its_way_is_started_again() -> None:
    master = running(iterations=3)
    for clock in range(4):
        master.now_s += 1.0
        master.clock(clock)
    assert master.state.state is JobState.EXPORTING
    assert restart(master) == [e.StartExport(1)]


def test_after_the_end_every_container_is_released_and_the_end_said_again() -> None:
    master = running()
    master.step(e.KillRequested("enough"))
    containers = [r.container for r in master.state.members.by_name.values()]
    commands = restart(master)
    assert commands == [*map(e.ReleaseContainer, containers), e.EndJob(JobState.KILLED, "enough")]


def test_orders_are_said_again_at_the_next_tick() -> None:
    master = running()
    restart(master)
    master.sent(m.GrantHorizon)
    master.step(e.Tick())
    assert {to for to, _ in master.sent(m.GrantHorizon)} == {"worker-1", "worker-2", "worker-3"}


def test_a_member_that_attaches_again_is_not_told_that_a_plan_in_flight_is_decided() -> None:
    """Members close a plan with the membership that carries its number, and then send nothing for it any more."""
    master = running()
    master.ask(ADD_WORKER)
    master.register("worker-4")
    master.acknowledge_lists()
    restart(master)
    master.sent(m.UpdateMembership)
    master.register("worker-1")
    assert [(to, order.plan_id) for to, order in master.sent(m.UpdateMembership)] == [("worker-1", 0)]
    master.copy()
    assert master.driver.plan.membership is not None
    master.register("worker-1")
    assert {order.plan_id for _, order in master.sent(m.UpdateMembership)} == {1}


# ---- what a member has heard, and the records do not say


def attach(master: ScriptedMaster, name: str, generation: int, step: int) -> None:
    """Let a member register again that has heard an order of this generation, which followed so many events."""
    container_id = master.state.members.by_name[name].container
    master.step(e.MemberRegistered(container_id, master.address_of(name), 1, generation, step))


def is_ended_by(master: ScriptedMaster, name: str) -> bool:
    """Return whether the job has ended because a member has heard of more than its master knows."""
    if master.state.state is JobState.RUNNING:
        return False
    assert (master.state.state, master.state.reason) == (JobState.FAILED, MISSING.format(who=name))
    return True


@pytest.mark.parametrize("more", [0, 1])
def test_a_member_that_has_heard_of_more_than_the_records_say_ends_the_job(more: int) -> None:
    master = running()
    steps = master.state.masters.steps
    restart(master)
    # What this master takes in is nothing that the one before has told.
    master.tick()
    attach(master, "worker-2", 1, steps)
    attach(master, "worker-1", 1, steps + more)
    assert is_ended_by(master, "worker-1") is bool(more)


@pytest.mark.parametrize("more", [0, 1])
def test_what_a_member_has_heard_before_the_last_master_counts_as_well(more: int) -> None:
    master = running()
    steps = master.state.masters.steps
    restart(master)
    master.tick()
    restart(master, generation=3)
    attach(master, "server-1", 1, steps + more)
    assert is_ended_by(master, "server-1") is bool(more)


def test_a_member_that_opens_its_session_again_has_heard_of_nothing_that_its_master_does_not_know() -> None:
    master = running()
    attach(master, "worker-1", 1, master.state.masters.steps)
    restart(master)
    attach(master, "worker-1", 1, 0)
    attach(master, "worker-1", 2, master.state.masters.steps)
    assert not is_ended_by(master, "worker-1")


def test_a_member_that_has_heard_another_master_of_the_same_generation_ends_the_job() -> None:
    master = running()
    restart(master)
    for _ in range(3):
        master.tick()
    # The log lacks that the master before took over, and this one has progressed meanwhile.
    attach(master, "worker-1", 2, master.state.masters.steps - 2)
    assert is_ended_by(master, "worker-1")


@pytest.mark.parametrize("heard", [2, 3])
def test_a_member_that_heard_an_unlogged_master_is_a_witness_two_masters_later(heard: int) -> None:
    master = running()
    steps = master.state.masters.steps
    # This state knows nothing of the one that worker-1 has heard: another was of its generation, or none.
    restart(master)
    for _ in range(50):
        master.tick()
    restart(master, generation=4)
    attach(master, "worker-2", 1, steps)
    attach(master, "worker-1", heard, steps + 5)
    assert is_ended_by(master, "worker-1")


def test_what_a_process_has_heard_that_is_not_of_the_job_does_not_matter() -> None:
    master = running()
    restart(master)
    commands = master.step(e.MemberRegistered("container-9999", master.address_of("worker-1"), 1, 1, 10_000))
    assert commands == [e.ReleaseContainer("container-9999")]
