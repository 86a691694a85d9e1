"""The resource manager on YARN, with a cluster that does what the test says; the contract suite has the ordinary."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from eps.cluster.api import Allocated, ContainerEvent, ContainerRequest, EvictionWarning, Exited, Running
from eps.cluster.yarn.allocation import PREEMPTED, WANTED_BACK, Limits, Placement
from eps.cluster.yarn.killed_containers import KILLED
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.resources import HANGS_EXIT_CODE, NUM_STOPPERS, MasterEndpoint, Timing, YarnResourceManager
from eps.cluster.yarn.types import FinalStatus, LocalFile, host_of
from eps.errors import DeadlineError, PeerUnavailableError, ResourceError
from eps.job.yarn.am import JobResources
from eps.system.waits import wait_for
from tests.fakes.yarn import FakeNm, FakeYarn

DEADLINE_S = 20.0
FAST = Timing(idle_s=0.05, busy_s=0.01)
TEMPLATE = LaunchTemplate(
    {
        "worker": RoleTemplate("python -m eps.cluster.container", {"A": "1"}, {"env": LocalFile("hdfs://h/e", 5, 6)}),
        # On nodes of another label: an ask of another number.
        "gold": RoleTemplate("python", placement=Placement("gold")),
    },
    b"tokens",
)

Make = Callable[..., YarnResourceManager]


@pytest.fixture
def yarn() -> FakeYarn:
    return FakeYarn()


@pytest.fixture
def make(yarn: FakeYarn, no_leftovers: None) -> Iterator[Make]:
    made: list[YarnResourceManager] = []

    def make(timing: Timing = FAST, limits: Limits | None = None, **settings: Any) -> YarnResourceManager:
        made.append(YarnResourceManager(*yarn.clients(), TEMPLATE, timing=timing, limits=limits, **settings))
        return made[-1]

    yield make
    for manager in made:
        manager.close()


def name(number: int) -> str:
    return f"container-{number:04d}"


def number_of(container_id: str) -> int:
    return int(container_id.removeprefix("container-"))


def request(manager: YarnResourceManager, *numbers: int, role: str = "worker") -> None:
    for number in numbers:
        manager.request(ContainerRequest(name(number), role, env={"EPS_MASTER_ADDRESS": "h:1"}))


def collect(manager: YarnResourceManager, kind: type, *numbers: int) -> list[ContainerEvent]:
    """Return events until each of the containers has had one of ``kind``."""
    events: list[ContainerEvent] = []
    missing, end_s = {name(number) for number in numbers}, time.monotonic() + DEADLINE_S
    while missing:
        assert manager.wait(end_s - time.monotonic()), f"no {kind.__name__} of {missing} after {events}"
        for event in manager.poll():
            events.append(event)
            if isinstance(event, kind):
                missing.discard(event.container_id)
    return events


def run(manager: YarnResourceManager, *numbers: int, role: str = "worker") -> dict[str, int]:
    """Run containers; return their pids."""
    request(manager, *numbers, role=role)
    events = collect(manager, Running, *numbers)
    return {event.container_id: event.pid for event in events if isinstance(event, Running)}


def reason_of(events: list[ContainerEvent]) -> str:
    (exited,) = [event for event in events if isinstance(event, Exited)]
    return exited.reason


# ---- the ordinary


def test_a_container_is_launched_with_its_roles_template_and_tokens(yarn: FakeYarn, make: Make) -> None:
    manager = make(place=MasterEndpoint("am-host", 4711, "http://am-host:8080"))
    run(manager, 3)
    launch = yarn.named(name(3)).launch
    assert launch is not None and launch.command.startswith("exec python -m eps.cluster.container 1><LOG_DIR>/stdout")
    assert launch.env["EPS_MASTER_ADDRESS"] == "h:1" and launch.env["EPS_CONTAINER_ID"] == name(3)
    assert launch.env["EPS_HOST"] == yarn.named(name(3)).grant.host and launch.env["A"] == "1"
    assert launch.files == TEMPLATE.roles["worker"].files and launch.credentials == b"tokens"
    assert yarn.place == ("am-host", 4711, "http://am-host:8080") and yarn.num_registered == 1


def test_beats_say_how_far_the_job_is(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    manager.fraction_done = 0.25
    yarn.wait_for("the progress to be said")
    assert yarn.progress == 0.25


def test_how_far_a_job_is_counts_its_clock_and_nothing_else_that_changes(yarn: FakeYarn, no_leftovers: None) -> None:
    manager = JobResources(*yarn.clients(), TEMPLATE, timing=FAST)
    manager.iterations = 10
    manager.beat(8, clock=3)
    yarn.wait_for("the progress to be said")
    manager.close()
    assert yarn.progress == 0.3


def test_the_jobs_page_may_come_later_than_its_master(yarn: FakeYarn, make: Make) -> None:
    manager = make(place=MasterEndpoint("am-host", 4711))
    manager.show_page("http://am-host:8080")
    yarn.wait_for("the page to be said")
    assert yarn.place == ("am-host", 4711, "http://am-host:8080")


def test_room_is_what_was_free_for_a_while_since_others_were_given_some(yarn: FakeYarn, make: Make) -> None:
    manager = make(limits=Limits(quiet_s=1000.0))
    run(manager, 1)
    yarn.wait_for("the room to be told")
    assert manager.room() == {}
    # Of a role whose size is not known one is tried in the end.
    soon = make(limits=Limits(quiet_s=0.01))
    soon.adopt({})
    wait_for(lambda: soon.room() == {"worker": 1, "gold": 1}, DEADLINE_S, "room")


def test_a_wish_does_not_wait_for_the_next_beat(yarn: FakeYarn, make: Make) -> None:
    manager = make(Timing(idle_s=1000.0, busy_s=0.01))
    run(manager, 1)
    manager.release(name(1))
    assert reason_of(collect(manager, Exited, 1)) == "was released"


def test_beats_get_rarer_while_nothing_is_new(yarn: FakeYarn, make: Make) -> None:
    manager = make(Timing(idle_s=1000.0, busy_s=125.0))

    def pauses(*pauses_s: float) -> None:
        for pause_s in pauses_s:
            wait_for(lambda: manager._pace.pause_s == pause_s, DEADLINE_S, f"a pause of {pause_s} s")  # noqa: B023
            manager._beat_now.set()

    pauses(250.0, 500.0, 1000.0)
    run(manager, 1)
    pauses(125.0, 250.0, 500.0)
    wait_for(lambda: manager._pace.pause_s == 1000.0, DEADLINE_S, "the longest pause")
    # Nothing is said, and something heard.
    yarn.crash(name(1))
    manager._beat_now.set()
    pauses(125.0)
    assert reason_of(collect(manager, Exited, 1)) == "was ended by SIGKILL"


def test_what_is_granted_beyond_a_request_is_given_back(yarn: FakeYarn, make: Make) -> None:
    yarn.surplus = 2
    manager = make()
    run(manager, 1)
    run(manager, 2)
    yarn.surplus = 0
    yarn.wait_for("the surplus to be given back", 3)
    assert len(yarn.released) == 4 and len(yarn.containers) == 2
    assert yarn.said_asks == [1, 1] and not manager.wait(0.0)


def test_a_grant_that_crosses_with_its_withdrawal_is_given_back(yarn: FakeYarn, make: Make) -> None:
    manager = make(Timing(idle_s=1000.0, busy_s=1000.0))
    yarn.hold = True
    yarn.wait_for("the first beat", 0)
    request(manager, 1)
    with yarn.lock:
        assert yarn.lock.wait_for(lambda: len(yarn.outstanding()) == 1, DEADLINE_S)
        # Granted, but not heard of, when the withdrawal is made.
        yarn.hold = False
        yarn._grant()
    assert manager.withdraw(name(1))
    with yarn.lock:
        assert yarn.lock.wait_for(lambda: not yarn.containers and len(yarn.released) == 1, DEADLINE_S)
    assert [type(event) for event in manager.poll()] == [Exited]


def test_a_killed_container_is_ended_by_its_node(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    run(manager, 1)
    manager.kill(name(1))
    assert reason_of(collect(manager, Exited, 1)) == "was killed by the job master"
    manager.kill(name(1))
    assert not yarn.containers


# ---- rare events


def test_a_preempted_container_is_warned_of_and_ends_as_preempted(yarn: FakeYarn, make: Make) -> None:
    manager = make(limits=Limits(preemption_s=8.0))
    run(manager, 1, 2)
    yarn.preempt(name(1), strict=True)
    yarn.preempt(name(2))
    warnings = collect(manager, EvictionWarning, 1, 2)
    assert warnings == [
        EvictionWarning(name(number), pytest.approx(8.0), reason, for_others=True)
        for number, reason in ((1, PREEMPTED), (2, WANTED_BACK))
    ]
    # One drains in time, the other does not.
    manager.release(name(1))
    yarn.take(name(2))
    reasons = {e.container_id: e.reason for e in collect(manager, Exited, 1, 2) if isinstance(e, Exited)}
    assert reasons[name(1)] == "was released" and "preempted" in reasons[name(2)]


def test_containers_of_a_lost_node_end(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    run(manager, 1)
    yarn.lose_node(yarn.named(name(1)).grant.node)
    assert "lost with its node node-" in reason_of(collect(manager, Exited, 1))


def test_containers_of_a_lost_node_end_also_where_yarn_says_nothing_of_them(yarn: FakeYarn, make: Make) -> None:
    manager = make(limits=Limits(lost_node_s=0.05))
    run(manager, 1)
    yarn.lose_node(yarn.named(name(1)).grant.node, silently=True)
    assert "lost with its node node-" in reason_of(collect(manager, Exited, 1))


def test_a_process_that_fails_tells_its_last_words(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    run(manager, 1)
    yarn.crash(name(1), 1, "Last 4096 bytes of stderr :\nImportError: no eps\n")
    assert collect(manager, Exited, 1)[-1] == Exited(name(1), 1, "exited with code 1: ImportError: no eps")


def test_a_container_is_taken_whose_node_cannot_be_reached_and_not_one_that_its_node_refuses(
    yarn: FakeYarn, make: Make
) -> None:
    manager = make()
    yarn.fail_start(name(1), "connection refused", PeerUnavailableError)
    yarn.fail_start(name(2), "no such user")
    request(manager, 1, 2)
    ended = {e.container_id: e.taken for e in collect(manager, Exited, 1, 2) if isinstance(e, Exited)}
    assert ended == {name(1): True, name(2): False}


def test_a_host_that_was_avoided_gets_containers_again_once_its_node_is_back(yarn: FakeYarn, make: Make) -> None:
    (node,) = yarn.capacity = dict(list(yarn.capacity.items())[:1])
    manager = make(limits=Limits(start_failures=1))
    yarn.fail_start(name(1), "no disk")
    request(manager, 1)
    collect(manager, Exited, 1)
    request(manager, 2)
    yarn.wait_for("the host to be avoided")
    assert yarn.blacklist == {host_of(node)} and not yarn.containers
    yarn.bring_back(node)
    assert collect(manager, Running, 2)[-1] == Running(name(2), yarn.named(name(2)).grant.pid, host_of(node))
    assert not yarn.blacklist


@pytest.mark.parametrize("lost", [False, True])
def test_a_container_that_was_killed_is_taken_where_its_node_cannot_be_reached_and_not_where_it_hung(
    yarn: FakeYarn, make: Make, lost: bool
) -> None:
    """Whatever comes first: what YARN says of what was given back, or that the node cannot be reached."""
    manager = make()
    run(manager, *range(1, 9))
    there = {container.grant.node for container in yarn.containers.values()}
    if lost:
        for node in there:
            yarn.cut_off(node)
    for number in range(1, 9):
        manager.kill(name(number))
    events = collect(manager, Exited, *range(1, 9))
    assert {event.taken for event in events if isinstance(event, Exited)} == {lost}
    yarn.wait_for("what comes later")
    assert not manager.wait(0.0) and not yarn.containers


def test_a_killed_container_is_taken_where_its_node_takes_the_call_and_says_nothing(
    yarn: FakeYarn, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that hangs as a whole."""
    go_on = threading.Event()
    monkeypatch.setattr(FakeNm, "stop", lambda self, container, node: go_on.wait(DEADLINE_S))
    manager = make(limits=Limits(answer_s=0.05))
    run(manager, 1)
    manager.kill(name(1))
    (end,) = collect(manager, Exited, 1)
    go_on.set()
    assert isinstance(end, Exited) and end.taken and "lost with its node node-" in end.reason


def test_a_container_that_hung_is_not_taken_for_lost_while_others_of_a_lost_machine_hold_up_who_tells_its_node(
    yarn: FakeYarn, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    del yarn.capacity["node-3:8041"]
    go_on, asked, stop = threading.Event(), threading.Semaphore(0), FakeNm.stop

    def hangs(self: FakeNm, container: str, node: str) -> None:
        if node != "node-1:8041":
            return stop(self, container, node)
        asked.release()
        assert go_on.wait(DEADLINE_S)
        raise DeadlineError("node-1 does not answer")

    monkeypatch.setattr(FakeNm, "stop", hangs)
    manager = make(limits=Limits(answer_s=1000.0))
    run(manager, *range(1, 2 * NUM_STOPPERS + 7))
    names: dict[str, list[str]] = {}
    for container in yarn.containers.values():
        names.setdefault(container.grant.node, []).append(container.container_id)
    lost, hung = names["node-1:8041"], names["node-2:8041"][0]
    assert len(lost) > NUM_STOPPERS
    for container_id in lost:
        manager.kill(container_id)
    for _ in range(NUM_STOPPERS):
        assert asked.acquire(timeout=DEADLINE_S)
    manager.kill(hung)
    yarn.wait_for("all of them to be released")
    # Only those that were told.
    manager._check_deadlines(time.monotonic() + 2000.0)
    ends = collect(manager, Exited, *map(number_of, lost))
    assert all(isinstance(end, Exited) and end.taken for end in ends)
    assert {end.container_id for end in ends} == set(lost)
    go_on.set()
    (end,) = collect(manager, Exited, number_of(hung))
    assert isinstance(end, Exited) and not end.taken and end.reason == KILLED
    assert not asked.acquire(blocking=False), "who is told to end the rest of a lost machine's waits in vain"


def test_a_request_that_is_never_granted_says_what_yarn_has_left(yarn: FakeYarn, make: Make) -> None:
    yarn.hold = True
    manager = make(limits=Limits(grant_s=0.05))
    request(manager, 1)
    reason = reason_of(collect(manager, Exited, 1))
    assert "not granted within 0.05 s" in reason and "49152 MB and 48 vcores left for this job" in reason
    yarn.hold = False
    run(manager, 2)
    assert len(yarn.containers) == 1


def test_a_request_that_yarn_refuses_ends_and_others_go_on(yarn: FakeYarn, make: Make) -> None:
    yarn.labels["node-1:8041"] = "gold"
    manager = make()
    run(manager, 1, role="gold")
    yarn.refuse_asks("the queue may not use that label", 1)
    request(manager, 2, role="gold")
    request(manager, 4, 5)
    collect(manager, Running, 4, 5)
    yarn.refuse_asks("the queue may not use that label")
    request(manager, 6)
    assert reason_of(collect(manager, Exited, 6)) == "was refused by YARN: the queue may not use that label"
    yarn.refuse_asks("")
    run(manager, 3)
    assert yarn.started() == {name(1), name(3), name(4), name(5)}


def test_a_refusal_of_what_was_said_before_the_silence_hits_that_and_nothing_else(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    run(manager, 1)
    yarn.refuse_asks("the queue may not use that label", 2)
    yarn.be_silent("connection refused")
    request(manager, 2, role="gold")
    yarn.wait_for_unheard(2)
    request(manager, 3)
    yarn.wait_for_unheard(1)
    yarn.be_silent("")
    events = collect(manager, Exited, 2)
    assert reason_of(events) == "was refused by YARN: the queue may not use that label"
    if not any(isinstance(event, Running) and event.container_id == name(3) for event in events):
        collect(manager, Running, 3)


def test_a_node_that_answers_oddly_after_a_takeover_keeps_its_container(yarn: FakeYarn, make: Make) -> None:
    known = run(make(), 1)
    yarn.odd_answer = ResourceError("the node knows no such container")
    assert make().adopt(known) == known


def test_a_resource_manager_that_starts_again_is_told_what_is_outstanding(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    run(manager, 1)
    yarn.hold = True
    request(manager, 2)
    yarn.wait_for("the request to be said")
    yarn.restart()
    yarn.hold = False
    assert [type(e) for e in collect(manager, Running, 2)] == [Allocated, Running]
    assert yarn.num_registered == 2 and yarn.said_asks == [1, 1, 1]
    assert yarn.started() == {name(1), name(2)}


def test_a_silent_resource_manager_is_noticed_and_what_was_wished_is_said_later(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    run(manager, 1)
    yarn.be_silent("connection refused")
    request(manager, 2)
    manager.release(name(1))
    manager._heard_s -= 100.0
    assert manager.silent_s() > 99.0
    assert manager.poll() == []
    yarn.be_silent("")
    collect(manager, Running, 2)
    yarn.wait_for("the end to be heard")
    assert manager.silent_s() == 0.0
    assert yarn.started() == {name(2)}


def test_an_attempt_that_yarn_ends_is_heard_of_after_everything_before(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    run(manager, 1)
    yarn.end_attempt("the application was killed by its user")
    events: list[ContainerEvent] = []
    with pytest.raises(ResourceError, match="killed by its user"):
        while True:
            assert manager.wait(DEADLINE_S)
            events += manager.poll()
    assert events == [Exited(name(1), None, "was ended with the job")]
    # The master goes its way to the end, and nobody is left to be told.
    manager.end_job(1, "killed", "by its user")


def test_whoever_ends_with_its_attempt_hears_of_it_before_anything_is_said_of_its_containers(
    yarn: FakeYarn, make: Make
) -> None:
    heard: list[tuple[str, list[ContainerEvent]]] = []
    told = threading.Event()

    def ended(reason: str) -> None:
        heard.append((reason, manager.poll()))
        told.set()

    manager = make(on_ended=ended)
    run(manager, 1)
    yarn.end_attempt("another attempt has begun")
    assert told.wait(DEADLINE_S)
    assert heard == [("another attempt has begun", [])]


def test_a_request_is_given_up_in_time_while_the_resource_manager_is_silent(
    yarn: FakeYarn, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(limits=Limits(grant_s=0.3))
    run(manager, 1)
    yarn.be_silent("connection refused")
    monkeypatch.setattr(manager, "silent_s", lambda: 100.0)
    request(manager, 2)
    reason = reason_of(collect(manager, Exited, 2))
    assert "was not granted within 0.3 s" in reason and "the ResourceManager has not answered for 100 s" in reason
    # What it grants when it answers again is nobody's.
    yarn.be_silent("")
    yarn.wait_for("the withdrawal to be said", 3)
    assert yarn.started() == {name(1)} and len(yarn.containers) == 1 and not yarn.outstanding()


def test_nodes_that_do_not_answer_hold_up_no_container_that_is_to_start(
    yarn: FakeYarn, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make()
    run(manager, *range(1, NUM_STOPPERS + 2))
    go_on, asked = threading.Event(), threading.Semaphore(0)

    def hangs(self: FakeNm, container: str, node: str) -> None:
        asked.release()
        assert go_on.wait(DEADLINE_S)

    monkeypatch.setattr(FakeNm, "stop", hangs)
    for number in range(1, NUM_STOPPERS + 2):
        manager.kill(name(number))
    assert asked.acquire(timeout=DEADLINE_S)
    run(manager, NUM_STOPPERS + 2)
    go_on.set()


# ---- the next attempt


def test_the_next_attempt_adopts_what_runs_and_asks_again_for_what_does_not(yarn: FakeYarn, make: Make) -> None:
    first = make()
    known = run(first, 1, 2)
    # Granted when the first attempt died, and never started.
    unstarted = yarn.grant_unheard()
    yarn.cut_off(yarn.named(name(2)).grant.node)
    first.close()
    second = make()
    assert second.adopt({**known, name(9): 99}) == known and all(known.values())
    pids = run(second, 3)
    assert unstarted in yarn.released
    # Numbered by attempt: a container of this one is none of the first.
    assert pids[name(3)] > 10**6
    second.release(name(1))
    assert reason_of(collect(second, Exited, 1)) == "was released"


def test_what_ran_before_and_nobody_knows_is_given_back(yarn: FakeYarn, make: Make) -> None:
    first = make()
    run(first, 1)
    first.close()
    second = make()
    assert second.adopt({}) == {}
    wait_for(lambda: not yarn.containers, DEADLINE_S, "the container to be given back")
    assert not second.wait(0.0)


def test_what_ends_before_it_is_adopted_is_heard_of(yarn: FakeYarn, make: Make) -> None:
    first = make()
    known = run(first, 1, 2)
    first.close()
    second = make()
    yarn.crash(name(1), 7)
    yarn.wait_for("the end to be heard")
    yarn.odd_answer = ResourceError("the node knows no such container")
    assert second.poll() == [] and second.adopt(known) == known
    assert collect(second, Exited, 1) == [Exited(name(1), 7, "exited with code 7")]


def test_a_container_of_the_attempt_before_that_is_found_late_is_given_back(yarn: FakeYarn, make: Make) -> None:
    manager = make()
    late = yarn.find_late()
    yarn.wait_for("it to be given back", 3)
    assert yarn.released == [late] and not yarn.containers and not manager.wait(0.0)


# ---- the end


@pytest.mark.parametrize(
    ("state", "status"),
    [("finished", FinalStatus.SUCCEEDED), ("failed", FinalStatus.FAILED), ("killed", FinalStatus.KILLED)],
)
def test_yarn_hears_how_the_job_ended(yarn: FakeYarn, make: Make, state: str, status: FinalStatus) -> None:
    manager = make()
    run(manager, 1)
    yarn.hold = True
    request(manager, 2)
    manager.end_job(0, state, "a sentence")
    assert yarn.ended == (status, "a sentence")
    assert sorted(e.container_id for e in collect(manager, Exited, 1, 2)) == [name(1), name(2)]
    assert not yarn.containers and manager.silent_s() == 0.0


def test_a_job_ends_although_yarn_does_not_say_that_its_containers_have(yarn: FakeYarn, make: Make) -> None:
    manager = make(replace(FAST, farewell_s=0.1))
    run(manager, 1)
    with yarn.lock:
        yarn.containers.clear()
    manager.end_job(0, "finished")
    assert yarn.ended is not None
    assert reason_of(collect(manager, Exited, 1)) == "was released"


def test_a_resource_manager_that_starts_again_at_the_end_hears_of_it(yarn: FakeYarn, make: Make) -> None:
    manager = make(replace(FAST, farewell_s=0.0))
    run(manager, 1)
    yarn.restart()
    manager.end_job(0, "finished")
    assert yarn.ended is not None and yarn.num_registered == 2


def test_an_end_that_nobody_hears_of_is_told(yarn: FakeYarn, make: Make) -> None:
    manager = make(replace(FAST, farewell_s=0.0, unregister_s=0.1))
    yarn.be_silent("connection refused")
    with pytest.raises(DeadlineError, match=r"not answered for 0\.1 s.*the job has finished"):
        manager.end_job(0, "finished")


# ---- an owner thread that hangs


class Hang:
    """What is called where the owner thread hangs."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.called = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self.called.set()


def test_an_owner_thread_that_falls_silent_ends_the_process_once(yarn: FakeYarn, make: Make) -> None:
    hang = Hang()
    manager = make(replace(FAST, owner_s=0.1), on_hang=hang)
    # Before the first beat nobody counts.
    yarn.wait_for("beats without an owner's", 20)
    assert not hang.reasons
    manager.beat(1)
    assert hang.called.wait(DEADLINE_S)
    assert hang.reasons == ["the job master's owner thread was silent for 0.1 s"]


def test_it_is_noticed_also_while_the_resource_manager_is_silent(yarn: FakeYarn, make: Make) -> None:
    hang = Hang()
    manager = make(replace(FAST, owner_s=0.1), on_hang=hang)
    yarn.be_silent("connection refused")
    manager.beat(1)
    assert hang.called.wait(DEADLINE_S)


def test_patience_and_the_end_of_the_job_keep_the_process(yarn: FakeYarn, make: Make) -> None:
    hang = Hang()
    manager = make(replace(FAST, owner_s=0.05), on_hang=hang)
    manager.beat(1, patience_s=1000.0)
    yarn.wait_for("more beats than the usual patience", 20)
    manager.end_job(0, "finished")
    assert not hang.reasons


def test_the_process_ends_at_once_without_what_it_would_do_at_its_end() -> None:
    code = (
        "import atexit; from eps.cluster.yarn.resources import end_process\n"
        "atexit.register(print, 'not this')\n"
        "try: end_process('it hangs')\n"
        "finally: print('nor this')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60.0)
    assert found.returncode == HANGS_EXIT_CODE and found.stdout == "" and "it hangs" in found.stderr
