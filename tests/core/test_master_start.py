"""The job master until its first membership holds: what it waits for, and when that is given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from eps.core import events as e
from eps.core import messages as m
from eps.core.events import JobState
from eps.core.master_start import SMALLER_S, START_PATIENCE_S
from eps.core.reconfig import Operation
from eps.core.settings import CoreSettings
from eps.core.types import Role
from eps.master.state_log import StateLog
from tests.core.scripted import ScriptedMaster, starting
from tests.core.test_evictions import carry_on
from tests.core.test_room_for_others import see


def begun(*granted: str) -> ScriptedMaster:
    """Return a job of three workers and two servers that starts, of which only some were granted their containers."""
    master = starting()
    master.request_containers()
    for name in granted:
        master.step(e.ContainerGranted(master.container_of(name)))
    return master


def test_job_that_starts_says_which_containers_it_waits_for_and_since_when() -> None:
    master = begun("worker-1", "worker-2", "server-1")
    at_once = master.state.start_waits_for(0.5)
    later = master.state.start_waits_for(65.0)
    master.step(e.ContainerGranted(master.container_of("worker-3")))

    assert at_once == ""
    assert later == "waits for 2 containers, asked for 65 s ago: worker-3, server-2"
    assert master.state.start_waits_for(90.0) == "waits for 1 container, asked for 90 s ago: server-2"
    master.start()
    assert master.state.start_waits_for(90.0) == ""


def test_container_that_was_granted_late_has_all_of_its_time_to_register() -> None:
    master = begun("worker-1", "worker-2", "worker-3")
    master.tick(after_s=2 * START_PATIENCE_S)
    master.launch("server-2")
    master.tick(after_s=START_PATIENCE_S / 2)
    patient = master.state.state
    master.tick(after_s=START_PATIENCE_S / 2)

    assert patient is JobState.STARTING
    assert (master.state.state, master.state.reason) == (JobState.FAILED, "server-2 did not register within 300 s")


def test_job_that_fails_for_lack_of_a_container_says_that_it_was_never_granted() -> None:
    master = begun()
    for _ in range(3):
        master.exit("server-1", "was not granted within 4 s: it asks for 1024 MB and 1 vcore")

    assert master.state.state is JobState.FAILED
    assert master.state.reason == (
        "server-1 was never granted a container: the last one asked for was not granted within 4 s: "
        "it asks for 1024 MB and 1 vcore"
    )


# ---- with less than was asked for


def smaller(*, after_s: float = SMALLER_S) -> ScriptedMaster:
    """Return the same job when it has waited in vain for a worker and a server."""
    master = begun()
    for name in ("worker-1", "worker-2", "server-1"):
        master.register(name)
    master.tick(after_s=after_s)
    return master


def test_job_that_has_a_worker_and_a_server_begins_when_nothing_more_is_granted() -> None:
    master = smaller()
    waiting = [master.container_of(name) for name in ("worker-3", "server-2")]

    assert [e.ReleaseContainer(each) for each in waiting] == master.commands(e.ReleaseContainer)
    assert (master.membership.workers, master.membership.servers) == (("worker-1", "worker-2"), ("server-1",))
    master.acknowledge()
    assert master.state.state is JobState.RUNNING and not master.state.losses
    assert master.state.wanted == {Role.WORKER: 3, Role.SERVER: 2}, "its users asked for that"
    assert master.state.given == {Role.WORKER: 1, Role.SERVER: 1}


def test_what_it_lacks_is_asked_for_when_there_is_room_that_nobody_wants() -> None:
    master = smaller()
    master.acknowledge()
    for _ in range(10):
        master.tick()
    idle = master.state.driver
    for fits in ({Role.WORKER: 1}, {Role.SERVER: 5}):
        see(master, fits)
        carry_on(master)

    assert idle is None
    assert (master.membership.workers[-1], master.membership.servers[-1]) == ("worker-4", "server-3")
    assert not any(master.state.given.values()) and not master.state.looks_for_room
    assert [p.change.operation for p in master.state.plans.values()] == [Operation.ADD_WORKERS, Operation.ADD_SERVERS]


def test_every_grant_is_a_reason_to_wait_for_the_next() -> None:
    master = begun()
    for name in ("worker-1", "server-1", "worker-2"):
        master.tick(after_s=SMALLER_S - 1)
        master.register(name)
    master.tick(after_s=SMALLER_S - 1)
    waiting = master.state.membership
    master.tick(after_s=1.0)

    assert waiting is None and master.membership.members == ("worker-1", "worker-2", "server-1")


def test_job_that_has_all_of_one_role_only_gives_up_one_of_these_for_one_of_the_other() -> None:
    master = begun()
    for name in ("worker-1", "worker-2", "worker-3"):
        master.register(name)
    given_up = []
    for _ in range(3):
        master.tick(after_s=SMALLER_S / 2)
        before = len(master.commands(e.ReleaseContainer))
        master.tick(after_s=SMALLER_S / 2)
        given_up.append(len(master.commands(e.ReleaseContainer)) - before)
    (first, second) = master.commands(e.ReleaseContainer)
    told = [to for to, order in master.sent(m.Shutdown)]
    master.register("server-1")
    waiting = master.state.membership
    master.tick(after_s=SMALLER_S + 1)

    assert given_up == [1, 1, 0], "the last one stays"
    assert [first.container_id, second.container_id] == [master.container_of(f"worker-{n}") for n in (3, 2)]
    assert told == ["worker-3", "worker-2"] and master.step(e.ContainerExited(first.container_id, "was released")) == []
    assert waiting is None and master.membership.members == ("worker-1", "server-1") and not master.state.losses
    assert master.state.given == {Role.WORKER: 2, Role.SERVER: 1}


@pytest.mark.parametrize("granted", [(), ("worker-1",), ("server-1",)], ids=str)
def test_job_without_a_worker_or_without_a_server_waits(granted: tuple[str, ...]) -> None:
    master = begun(*granted)
    master.tick(after_s=10 * SMALLER_S)

    assert master.state.membership is None and not master.commands(e.ReleaseContainer)


def test_job_whose_size_somebody_manages_waits_for_all() -> None:
    master = ScriptedMaster(CoreSettings(6, 4, 100, reproducible=False), 3, 2, managed=True)
    master.request_containers()
    for name in ("worker-1", "server-1"):
        master.register(name)
    master.tick(after_s=10 * SMALLER_S)

    assert master.state.membership is None


def test_who_has_a_container_is_waited_for_while_others_are_given_up() -> None:
    master = begun("worker-1", "worker-2", "server-1")
    master.tick(after_s=SMALLER_S)
    waiting = master.state.membership
    for name in ("worker-1", "worker-2", "server-1"):
        master.register(name)

    assert waiting is None and master.membership.members == ("worker-1", "worker-2", "server-1")


def test_container_that_is_granted_when_it_was_taken_back_is_given_back() -> None:
    master = smaller()
    late = master.container_of("server-2")
    master.step(e.ContainerGranted(late))
    registered = master.step(e.MemberRegistered(late, master.address_of("x"), 1))
    ended = master.step(e.ContainerExited(late, "was withdrawn"))

    assert (registered, ended) == ([e.ReleaseContainer(late)], [])


def test_request_that_is_given_up_for_a_job_that_can_begin_is_no_loss() -> None:
    master = begun()
    for name in ("worker-1", "worker-2", "server-1"):
        master.register(name)
    for name in ("worker-3", "server-2"):
        master.exit(name, "was not granted within 4 s")

    assert master.membership.members == ("worker-1", "worker-2", "server-1") and not master.state.losses
    assert master.state.given == {Role.WORKER: 1, Role.SERVER: 1}


def test_next_master_asks_again_before_it_begins_with_less(tmp_path: Path) -> None:
    master = begun()
    for name in ("worker-1", "server-1"):
        master.register(name)
    log = StateLog(tmp_path / "state")
    log.begin(master.state, master.now_s)
    log.close()
    restored = StateLog(tmp_path / "state").restore()
    assert restored is not None
    running = {master.container_of(name): 1 for name in ("worker-1", "server-1")}
    restored.state.step(e.MasterRestarted(2, running), SMALLER_S)
    restored.state.step(e.Tick(), SMALLER_S + 1)
    waiting = restored.state.membership
    restored.state.step(e.Tick(), 2 * SMALLER_S)

    assert waiting is None
    assert restored.state.membership is not None and restored.state.membership.members == ("worker-1", "server-1")
