"""What a job master says that takes over from another, on values."""

from __future__ import annotations

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.reconfig import Change, Operation
from eps.core.restart import ENDED_AWAY
from eps.core.types import Role
from tests.core.scripted import ScriptedMaster, running

ADD_WORKER = Change(Operation.ADD_WORKERS, 1)


def restart(master: ScriptedMaster, generation: int = 2, without: tuple[str, ...] = ()) -> list[e.Command]:
    """Let another process take over; everybody runs that was launched, but for ``without``."""
    records = master.state.members.values()
    pids = {r.container_id: r.pid for r in records if r.launched and r.name not in without}
    return [c for c in master.step(e.MasterRestarted(generation, pids)) if not isinstance(c, e.Journal)]


def test_the_next_master_has_the_next_generation_and_journals_it() -> None:
    master = running()
    commands = master.step(e.MasterRestarted(2, {}))
    assert master.state.generation == 2
    journaled = [c for c in commands if isinstance(c, e.Journal)]
    assert (journaled[0].record["kind"], journaled[0].record["generation"], journaled[0].sync) == ("restarted", 2, True)


def test_where_everybody_runs_nothing_is_asked_for() -> None:
    master = running()
    assert restart(master) == []
    assert master.state.state is JobState.RUNNING


def test_a_container_that_was_never_launched_is_asked_for_again() -> None:
    master = running()
    master.ask(ADD_WORKER)
    container_id = master.container_of("worker-4")
    assert restart(master) == [e.RequestContainer(container_id, Role.WORKER)]


def test_a_newcomer_that_ended_meanwhile_aborts_its_plan() -> None:
    master = running()
    master.ask(ADD_WORKER)
    master.step(e.ContainerLaunched(master.container_of("worker-4"), 7))
    restart(master, without=("worker-4",))
    plan = master.state.plans[1]
    assert plan.ended and plan.reason == f"worker-4 ended before it took part: {ENDED_AWAY}"


def test_a_member_that_ended_meanwhile_counts_as_one_that_ended() -> None:
    master = running()
    restart(master, without=("server-1",))
    assert "server-1" not in master.state.members


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
    containers = [r.container_id for r in master.state.members.values()]
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
