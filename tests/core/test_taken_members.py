"""Which ends of members end a job: those of its own making soon, those that the cluster has made only in the end."""

from __future__ import annotations

from eps.core import events as e
from eps.core.events import JobState
from eps.core.recovery import MOST_FRUITLESS, STARTING_NUM, STARTING_S, TAKEN_PATIENCE_S
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
    """Let everybody register that a job waits for; it runs afterwards."""
    for name in NAMES:
        master.register(name)
    master.acknowledge()


def lose_the_first_worker(master: ScriptedMaster, *, taken: bool) -> None:
    """End one worker of a job that runs, and let it recover without a clock."""
    master.exit(master.membership.workers[0], "was preempted" if taken else "was ended by SIGSEGV", taken=taken)
    if master.state.state is JobState.RUNNING and master.state.recovery is not None:
        master.answer_inventories()
        for name in list(master.state.recovery.newcomers) if master.state.recovery is not None else ():
            master.register(name)
        master.acknowledge()


def fall_silent(master: ScriptedMaster, *names: str, taken: bool = False) -> None:
    """Let members fall silent one after the other; then their containers are killed, or were taken."""
    containers = [master.container_of(name) for name in names]
    for container in containers:
        master.step(e.MemberLost(container, "was silent for 3 s"), after_s=0.3)
    for container in containers:
        master.step(e.ContainerExited(container, "was killed by the job master", taken))


# ---- while the job starts


def test_containers_that_are_taken_while_a_job_starts_do_not_end_it() -> None:
    master = begun()
    for _ in range(2 * STARTING_NUM):
        master.launch("worker-3")
        master.exit("worker-3", "was ended to make room for a guaranteed container", taken=True)
    start(master)
    assert master.state.state is JobState.RUNNING


def test_machine_that_is_lost_with_the_master_while_a_job_starts_does_not_end_it() -> None:
    master = begun("worker-1", "worker-2", "worker-3", "server-1")
    master.launch("server-2")
    left = master.state.members["worker-1"]
    master.step(e.MasterRestarted(2, {left.container_id: left.pid}))
    start(master)
    assert master.state.state is JobState.RUNNING and len(master.journaled("lost")) == 4


def test_machine_that_falls_silent_with_its_members_while_a_job_starts_is_one_incident() -> None:
    master = begun("worker-1", "worker-2", "worker-3", "server-1")
    for _ in range(STARTING_NUM - 1):
        fall_silent(master, "worker-1", "worker-2", "worker-3", "server-1")
        for name in ("worker-1", "worker-2", "worker-3", "server-1"):
            master.register(name)
    assert master.state.state is JobState.STARTING
    fall_silent(master, "worker-1")
    assert master.state.state is JobState.FAILED and "was silent for 3 s; 3 members" in master.state.reason


def test_member_counts_by_how_its_container_ended_not_by_its_silence_that_was_noticed_first() -> None:
    master = begun()
    for _ in range(2 * STARTING_NUM):
        master.register("worker-1")
        fall_silent(master, "worker-1", taken=True)
    assert master.state.state is JobState.STARTING


def test_members_that_crash_together_while_a_job_starts_end_it_at_once() -> None:
    master = begun(*NAMES[:-1])
    for name in ("worker-1", "worker-2", "worker-3"):
        master.exit(name, "was ended by SIGSEGV")
    assert master.state.state is JobState.FAILED
    assert master.state.reason.endswith("; 3 members ended like that without one complete clock between them")


def test_what_is_taken_excuses_no_crash() -> None:
    master = begun()
    for number in range(2 * STARTING_NUM - 1):
        assert master.state.state is JobState.STARTING
        master.launch("server-1")
        master.exit("server-1", "ended", taken=number % 2 == 1)
    assert master.state.state is JobState.FAILED and "3 members ended like that" in master.state.reason


def test_job_whose_containers_are_taken_for_ever_does_not_start_for_ever() -> None:
    master = begun()
    for _ in range(4):
        assert master.state.state is JobState.STARTING
        master.launch("worker-3")
        master.exit("worker-3", "was preempted", taken=True)
        master.now_s += STARTING_S / 3
    assert master.state.state is JobState.FAILED
    assert master.state.reason == (
        "worker-3 ended unexpectedly: was preempted; the cluster took members 4 times within 300 s "
        "without one complete clock between them"
    )


# ---- while it runs


def test_members_that_are_taken_without_a_warning_do_not_end_a_job() -> None:
    master = running(followers=1)
    for _ in range(2 * MOST_FRUITLESS):
        lose_the_first_worker(master, taken=True)
    assert master.state.state is JobState.RUNNING


def test_job_that_has_no_clock_for_all_that_is_taken_of_it_ends_at_a_deadline() -> None:
    master = running(followers=1)
    for _ in range(2 * MOST_FRUITLESS):
        master.now_s += TAKEN_PATIENCE_S / MOST_FRUITLESS
        lose_the_first_worker(master, taken=True)
        if master.state.state is not JobState.RUNNING:
            break
    assert master.state.state is JobState.FAILED
    assert f"the cluster took members {MOST_FRUITLESS + 1} times within 1800 s" in master.state.reason


def test_complete_clock_begins_the_deadline_again() -> None:
    master = running(iterations=400, followers=1)
    for clock in range(-1, 2 * MOST_FRUITLESS):
        master.now_s += TAKEN_PATIENCE_S / MOST_FRUITLESS
        master.clock(clock)
        lose_the_first_worker(master, taken=True)
    assert master.state.state is JobState.RUNNING


def test_members_that_crash_end_a_job_as_soon_whatever_is_taken_between() -> None:
    master = running(followers=1)
    lost = 0
    while master.state.state is JobState.RUNNING:
        lose_the_first_worker(master, taken=lost % 2 == 1)
        lost += 1
    assert lost == 2 * MOST_FRUITLESS - 1 and f"{MOST_FRUITLESS} members ended like that" in master.state.reason


def test_silent_member_counts_when_its_container_has_ended() -> None:
    master = running(followers=1)
    for _ in range(MOST_FRUITLESS):
        name = master.membership.workers[0]
        container = master.container_of(name)
        master.step(e.MemberLost(container, "was silent for 3 s"))
        assert master.state.state is JobState.RUNNING
        master.answer_inventories()
        for newcomer in list(master.state.recovery.newcomers) if master.state.recovery is not None else ():
            master.register(newcomer)
        master.acknowledge()
        master.step(e.ContainerExited(container, "was killed by the job master"))
    assert master.state.state is JobState.FAILED and "was silent for 3 s; 12 members" in master.state.reason
