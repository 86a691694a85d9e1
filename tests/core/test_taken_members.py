"""Repeated crashes of members end a job; containers that the cluster takes never do."""

from __future__ import annotations

from eps.core import events as e
from eps.core.events import JobState
from eps.core.recovery import INCIDENT_S, MOST_INCIDENTS, MOST_INCIDENTS_AT_START
from tests.core.scripted import ScriptedMaster, running, starting

NAMES = ("worker-1", "worker-2", "worker-3", "server-1", "server-2")


def begun(*names: str) -> ScriptedMaster:
    """Return a job that starts, and whose members of these names have registered."""
    master = starting()
    master.request_containers()
    for name in names:
        master.register(name)
    return master


def start(master: ScriptedMaster) -> None:
    """Register all members that a job waits for; it runs afterwards."""
    for name in NAMES:
        master.register(name)
    master.acknowledge()


def lose_the_first_worker(master: ScriptedMaster, *, taken: bool) -> None:
    """End one worker of a job that runs, and let it recover without a clock."""
    master.now_s += INCIDENT_S
    master.exit(master.membership.workers[0], "was preempted" if taken else "was ended by SIGSEGV", taken=taken)
    if master.state.state is JobState.RUNNING and master.state.recovery.inquiry is not None:
        master.answer_inventories()
        for name in list(master.state.recovery.inquiry.newcomers) if master.state.recovery.inquiry is not None else ():
            master.register(name)
        master.acknowledge()


def fall_silent(master: ScriptedMaster, *names: str, taken: bool = False) -> None:
    """Let members fall silent one after the other; then their containers are killed, or were taken."""
    master.now_s += INCIDENT_S
    containers = [master.container_of(name) for name in names]
    for container in containers:
        master.step(e.MemberLost(container, "was silent for 3 s"), after_s=0.3)
    for container in containers:
        master.step(e.ContainerExited(container, "was killed by the job master", taken))


# ---- while the job starts


def test_containers_that_are_taken_while_a_job_starts_do_not_end_it() -> None:
    master = begun()
    for _ in range(2 * MOST_INCIDENTS_AT_START):
        master.launch("worker-3")
        master.exit("worker-3", "was ended to make room for a guaranteed container", taken=True)
    start(master)
    assert master.state.state is JobState.RUNNING


def test_machine_that_is_lost_with_the_master_while_a_job_starts_does_not_end_it() -> None:
    master = begun("worker-1", "worker-2", "worker-3", "server-1")
    master.launch("server-2")
    left = master.state.members.by_name["worker-1"]
    master.step(e.MasterRestarted(2, {left.container: left.pid}))
    start(master)
    assert master.state.state is JobState.RUNNING and len(master.journaled("lost")) == 4


def test_machine_that_falls_silent_with_its_members_while_a_job_starts_is_one_incident() -> None:
    master = begun("worker-1", "worker-2", "worker-3", "server-1")
    for _ in range(MOST_INCIDENTS_AT_START - 1):
        fall_silent(master, "worker-1", "worker-2", "worker-3", "server-1")
        for name in ("worker-1", "worker-2", "worker-3", "server-1"):
            master.register(name)
    assert master.state.state is JobState.STARTING
    fall_silent(master, "worker-1")
    assert master.state.state is JobState.FAILED and "was silent for 3 s; 3 failures" in master.state.reason


def test_member_counts_by_how_its_container_ended_not_by_its_silence_that_was_noticed_first() -> None:
    master = begun()
    for _ in range(2 * MOST_INCIDENTS_AT_START):
        master.register("worker-1")
        fall_silent(master, "worker-1", taken=True)
    assert master.state.state is JobState.STARTING


def test_members_that_crash_together_are_one_incident_and_end_the_job_when_that_happens_again() -> None:
    master = begun(*NAMES[:-1])
    for _ in range(MOST_INCIDENTS_AT_START):
        assert master.state.state is JobState.STARTING
        master.now_s += INCIDENT_S
        for name in ("worker-1", "worker-2", "worker-3"):
            master.launch(name)
        last = master.container_of("worker-1")
        for name in ("worker-1", "worker-2", "worker-3"):
            master.exit(name, "was ended by SIGSEGV")
    assert master.state.state is JobState.FAILED
    assert master.state.reason == (
        f"worker-1 ({last}) ended unexpectedly: was ended by SIGSEGV; "
        "3 failures without one complete clock between them"
    )


def test_what_is_taken_excuses_no_crash() -> None:
    master = begun()
    for number in range(2 * MOST_INCIDENTS_AT_START - 1):
        assert master.state.state is JobState.STARTING
        master.now_s += INCIDENT_S
        master.launch("server-1")
        master.exit("server-1", "ended", taken=number % 2 == 1)
    assert master.state.state is JobState.FAILED and "3 failures without one complete clock" in master.state.reason


# ---- while it runs


def test_members_that_are_taken_without_a_warning_do_not_end_a_job() -> None:
    master = running(followers=1)
    for _ in range(2 * MOST_INCIDENTS):
        lose_the_first_worker(master, taken=True)
    assert master.state.state is JobState.RUNNING


def test_members_that_crash_end_a_job_as_soon_whatever_is_taken_between() -> None:
    master = running(followers=1)
    lost = 0
    while master.state.state is JobState.RUNNING:
        lose_the_first_worker(master, taken=lost % 2 == 1)
        lost += 1
    assert (
        lost == 2 * MOST_INCIDENTS - 1
        and f"{MOST_INCIDENTS} failures without one complete clock" in master.state.reason
    )


def test_silent_member_counts_when_its_container_has_ended() -> None:
    master = running(followers=1)
    for _ in range(MOST_INCIDENTS):
        master.now_s += INCIDENT_S
        name = master.membership.workers[0]
        container = master.container_of(name)
        master.step(e.MemberLost(container, "was silent for 3 s"))
        assert master.state.state is JobState.RUNNING
        master.answer_inventories()
        inquiry = master.state.recovery.inquiry
        for newcomer in list(inquiry.newcomers) if inquiry is not None else ():
            master.register(newcomer)
        master.acknowledge()
        master.step(e.ContainerExited(container, "was killed by the job master"))
    assert master.state.state is JobState.FAILED and "was silent for 3 s; 12 failures" in master.state.reason
