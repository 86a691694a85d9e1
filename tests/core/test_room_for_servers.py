"""The job master when all of its servers are taken away and none is granted: a worker gives its room for one."""

from __future__ import annotations

import pytest

from eps.core import events as e
from eps.core.events import JobState
from eps.core.evictions import gives_room
from eps.core.master_evictions import DRAIN_AGAIN_S, ROOM_PATIENCE_S
from eps.core.reconfig import Change, Operation, Phase
from eps.core.settings import CoreSettings
from eps.core.types import MemberId, Role
from eps.master.records import change_entry
from tests.core.scripted import ScriptedMaster, running
from tests.core.test_evictions import carry_on, drains, managed, outcomes, warn
from tests.core.test_master_recovery import replacements

SERVERS = ("server-1", "server-2")


def wait(master: ScriptedMaster, for_s: float) -> None:
    """Let time pass in ticks."""
    for _ in range(round(4 * for_s)):
        master.tick(0.25)


def bereft(*, for_others: bool = False) -> ScriptedMaster:
    """Return a job whose servers were all taken away, with a server asked for and not granted."""
    master = running()
    warn(master, *SERVERS, in_s=0.0, for_others=for_others)
    for name in SERVERS:
        master.exit(name, "was preempted", taken=True)
    assert master.state.recovery is not None and list(master.state.recovery.newcomers) == ["server-4"]
    master.all.clear()
    return master


def released(master: ScriptedMaster) -> list[str]:
    return [c.container_id for c in master.commands(e.ReleaseContainer)]


# ---- who gives its room


@pytest.mark.parametrize(
    ("workers", "going", "found"),
    [
        (("worker-1", "worker-2"), (), "worker-2"),
        (("worker-2", "worker-10"), (), "worker-10"),
        (("worker-1", "worker-2", "worker-3"), ("worker-3",), "worker-2"),
        (("worker-1", "worker-2"), ("worker-2",), None),
        (("worker-1",), (), None),
        ((), (), None),
    ],
)
def test_newest_worker_that_stays_gives_its_room_and_never_the_last(
    workers: tuple[MemberId, ...], going: tuple[MemberId, ...], found: MemberId | None
) -> None:
    assert gives_room(workers, going) == found


# ---- before the servers are gone


def test_where_a_server_stays_the_partitions_go_there_and_no_room_is_waited_for() -> None:
    master = running()
    warn(master, "server-1", for_others=True)
    plan = carry_on(master)
    wait(master, 4 * ROOM_PATIENCE_S)

    assert (plan.removed, plan.added) == (("server-1",), ())
    assert set(master.membership.partitions.owners) == {"server-2"} and len(master.membership.workers) == 3


def test_worker_gives_its_room_for_a_server_before_all_of_them_are_taken_away() -> None:
    master = running()
    warn(master, *SERVERS, for_others=True)
    first = master.driver.plan
    wait(master, ROOM_PATIENCE_S - 0.5)
    still = master.driver.plan is first
    wait(master, 1.0)
    removal = carry_on(master)
    master.tick(DRAIN_AGAIN_S)
    drain = carry_on(master)

    assert still and first.phase is Phase.ABORTED
    assert removal.change == Change(Operation.REMOVE_WORKERS, 1, ("worker-3",))
    assert drain.phase is Phase.RELEASED and drain.removed == SERVERS
    assert master.membership.members == ("worker-1", "worker-2", "server-4")
    assert not master.state.losses, "nobody was lost, and nothing is computed again"
    assert {outcomes(master)[name].value for name in SERVERS} == {"drained"}
    assert master.state.wanted == {Role.WORKER: 3, Role.SERVER: 2}, "its users asked for that"
    told = [change_entry(plan, (), master.now_s) for plan in (first, removal, drain)]
    assert [(entry["asked_by"], entry["purpose"]) for entry in told] == [
        ("job", "eviction"),
        ("job", "room"),
        ("job", "eviction"),
    ]


def test_server_has_its_time_to_be_granted_the_room_however_long_the_worker_took_to_leave() -> None:
    master = running()
    warn(master, *SERVERS, in_s=120.0, for_others=True)
    wait(master, ROOM_PATIENCE_S + 0.5)
    wait(master, 4 * ROOM_PATIENCE_S)
    carry_on(master)
    drain = master.driver.plan
    wait(master, 2 * ROOM_PATIENCE_S)
    still = master.driver.plan is drain
    wait(master, 0.5)

    assert still and drain.change.operation is Operation.DRAIN
    assert master.driver.plan.change == Change(Operation.REMOVE_WORKERS, 1, ("worker-2",))


def test_worker_that_gave_its_room_is_asked_for_again_only_where_nobody_else_waits() -> None:
    asked = []
    for for_others in (True, False):
        master = running()
        warn(master, *SERVERS, for_others=for_others)
        wait(master, ROOM_PATIENCE_S + 0.5)
        carry_on(master)
        master.tick(DRAIN_AGAIN_S)
        carry_on(master)
        wait(master, 4.0)
        asked.append([p.change.operation for p in replacements(master) if p.phase is Phase.PROPOSED])

    assert asked == [[], [Operation.ADD_WORKERS]]


def test_server_that_is_granted_in_time_costs_no_worker() -> None:
    master = running()
    warn(master, *SERVERS)
    master.step(e.ContainerGranted(master.container_of("server-3")))
    wait(master, 4 * ROOM_PATIENCE_S)
    carry_on(master)

    assert len(drains(master)) == 1 and len(master.membership.workers) == 3


# ---- when they are gone


def test_worker_gives_its_room_for_a_server_when_all_are_lost_and_none_is_granted() -> None:
    master = bereft()
    wait(master, ROOM_PATIENCE_S)
    before = released(master)
    wait(master, 0.5)
    given = released(master)
    master.register("server-4")
    master.recover()

    assert (before, given) == ([], [master.container_of("worker-3")])
    assert master.state.state is JobState.RUNNING and master.state.recovery is None
    assert master.membership.members == ("worker-1", "worker-2", "server-4")
    assert master.state.losses[-1].reason == "gave its container up for a server: none was granted within 3 s"


def test_more_workers_give_theirs_after_longer_and_never_the_last() -> None:
    master = bereft()
    number = []
    for _ in range(20):
        wait(master, ROOM_PATIENCE_S)
        number.append(len(released(master)))

    assert number[:5] == [0, 1, 1, 2, 2] and number[-1] == 2
    assert "worker-1" in master.state.members and master.state.state is JobState.RUNNING


def test_server_whose_container_is_launched_costs_no_worker_however_long_it_takes() -> None:
    master = bereft()
    master.launch("server-4")
    wait(master, 4 * ROOM_PATIENCE_S)

    assert released(master) == []


def test_server_whose_container_is_granted_and_slow_to_start_costs_no_worker() -> None:
    master = bereft()
    master.step(e.ContainerGranted(master.container_of("server-4")))
    wait(master, 4 * ROOM_PATIENCE_S)

    assert released(master) == [] and not master.state.members["server-4"].launched


def test_what_was_given_for_others_is_not_asked_for_again_after_the_recovery() -> None:
    master = bereft(for_others=True)
    wait(master, ROOM_PATIENCE_S + 0.5)
    master.register("server-4")
    master.recover()
    wait(master, 4.0)

    assert not replacements(master) and master.state.given == {Role.WORKER: 1, Role.SERVER: 1}


def test_workers_that_give_their_room_count_for_no_crash() -> None:
    master = ScriptedMaster(CoreSettings(40, 4, 100, reproducible=False), 40, 2)
    master.start()
    for name in SERVERS:
        master.exit(name, "was preempted", taken=True)
    wait(master, 1000 * ROOM_PATIENCE_S)

    assert master.state.state is JobState.RUNNING and len(released(master)) > 20


# ---- who does not


def test_job_whose_size_somebody_manages_keeps_its_workers() -> None:
    master = managed()
    for name in SERVERS:
        master.exit(name, "was preempted", taken=True)
    wait(master, 4 * ROOM_PATIENCE_S)

    assert released(master) == []


def test_worker_stays_where_no_server_could_be_in_its_place() -> None:
    settings = CoreSettings(6, 4, 100, reproducible=False)
    master = ScriptedMaster(settings, 3, 2, interchangeable=(Role.SERVER,))
    master.start()
    warn(master, *SERVERS)
    wait(master, 4 * ROOM_PATIENCE_S)

    assert len(drains(master)) == 1 and len(master.membership.workers) == 3
