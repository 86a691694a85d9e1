"""A scheduler that crashes at any moment, and the next one with its record: no order is repeated or lost."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from eps.errors import ConfigError, StorageError
from eps.spec.job_spec import JobSpec
from hscheduler.core import events as e
from hscheduler.core.decisions import Decision
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Resources, Role
from hscheduler.core.rungs import Stopping
from hscheduler.live import recorder
from hscheduler.live import scheduler as live
from hscheduler.live.job_state import Seat
from hscheduler.live.placement import container_settings
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.live.submission import Submission
from hscheduler.policies.placing import start_in_what_is_free
from hscheduler.record.api import Entry
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.spec import ClusterSpec
from tests.hscheduler.toy import UNIT, nodes, request
from tests.hscheduler.world import FEEDBACK_AT, ITERATIONS, RUNGS, Died, FakeLive, World
from tests.threads import at_once
from tests.tiers import of_tier, sample

TRIALS = 5
TIMEOUT_S = 10.0


class DyingRecord(SqliteRecord):
    """A record whose process may be killed before and after each write."""

    world: World

    def append(self, entries: Sequence[Entry], *, durable: bool) -> None:
        self.world.moment()
        super().append(entries, durable=durable)
        self.world.moment()


def run(
    policy: str, directory: Path, dies_at: int, monkeypatch: pytest.MonkeyPatch, stop: str = ""
) -> tuple[World, LiveScheduler]:
    """Run a sweep whose scheduler crashes once, or never; return the world and the last scheduler."""
    world = World(dies_at)

    def fake(job_id: str, launch: Any, metric: str, iteration: int, say: Any, *rest: Any) -> Any:
        return FakeLive(world, job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    # Threads that die are expected here.
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    while True:
        record = DyingRecord(directory / "record.sqlite")
        record.world = world
        try:
            settings = LiveSettings(policy, feedback_iteration=FEEDBACK_AT, threshold=2)
            scheduler = LiveScheduler(nodes(3), settings, record=record)
        except Died:
            record.close()
            continue
        if stop:
            stopping = Stopping(stop, 2, RUNGS[0])
            scheduler.open_sweep(e.SweepOpened("sweep", stopping=stopping, trials=TRIALS))
        if drive(world, scheduler):
            return world, scheduler
        record.close()


def rests(scheduler: LiveScheduler) -> bool:
    """Wait until a scheduler is idle; return False if it crashed."""
    while True:
        taken = threading.Event()
        scheduler._events.put(taken.set)
        while not taken.wait(0.01):
            if not scheduler._loop.thread.is_alive():
                return False
        # Events from its own thread are queued behind.
        if not len(scheduler._events):
            return True


def drive(world: World, scheduler: LiveScheduler) -> bool:
    """Submit all trials and let jobs iterate until all are over; return False if the scheduler crashed."""
    for _ in range(20 * ITERATIONS):
        for number in range(TRIALS):
            job_id = f"t{number}"
            if scheduler.look_ups.submission(job_id) is None:
                scheduler.submit(e.JobSubmitted(request(job_id, most_workers=4, most_servers=2)), JobSpec())
            if not rests(scheduler):
                return False
        if all(each.is_over for each in scheduler.look_ups.submissions()):
            return True
        world.tick()
    raise AssertionError("the sweep does not end")


@pytest.mark.parametrize("policy", ("elastic", "kill", "static-stop"))
def test_a_scheduler_may_crash_at_every_step_of_a_decision(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    undisturbed, scheduler = run(policy, tmp_path, 0, monkeypatch)
    scheduler.close()
    assert undisturbed.deaths == 0 and undisturbed.moments > 60
    moments = range(1, undisturbed.moments + 1)
    for dies_at in of_tier(pytestconfig, sample(moments, 25), list(moments)):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        world, scheduler = run(policy, directory, dies_at, monkeypatch)
        assert world.deaths == 1
        assert scheduler.leaked() == 0
        # The stopping rule's choice depends on which jobs were training at the same time.
        phases = {each.phase for each in scheduler.look_ups.submissions()}
        assert Phase.FINISHED in phases and phases <= {Phase.FINISHED, Phase.KILLED}
        for job_id, job in world.jobs.items():
            assert job.ended is not None, f"{job_id} runs, and the record lacks it"
            starts = [order for order in job.done.values() if isinstance(order, e.StartJob)]
            assert job.starts == len(starts)
        scheduler.close()


@pytest.mark.parametrize("stop", ("sha", "asha"))
def test_a_scheduler_may_crash_while_trials_are_paused(
    stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    undisturbed, scheduler = run("static", tmp_path, 0, monkeypatch, stop)
    scheduler.close()
    assert undisturbed.deaths == 0 and sum(job.starts for job in undisturbed.jobs.values()) > TRIALS
    # Each moment takes some tenths of a second.
    moments = range(1, undisturbed.moments + 1)
    for dies_at in of_tier(pytestconfig, sample(moments, 8), list(moments)):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        world, scheduler = run("static", directory, dies_at, monkeypatch, stop)
        assert world.deaths == 1
        assert scheduler.leaked() == 0
        finished = [each.job_id for each in scheduler.look_ups.submissions() if each.phase is Phase.FINISHED]
        assert "t0" in finished, "the best of all"
        if stop == "sha":
            assert finished == ["t0"], "which trials go on depends on nothing else"
        for job_id, job in world.jobs.items():
            assert job.ended is not None, f"{job_id} runs, and the record lacks it"
            assert job.starts == sum(isinstance(order, e.StartJob) for order in job.done.values())
        scheduler.close()


def record_of(directory: Path) -> SqliteRecord:
    return SqliteRecord(directory / "record.sqlite")


def test_a_record_resumes_only_with_its_settings(tmp_path: Path) -> None:
    LiveScheduler(nodes(2), LiveSettings("elastic"), record=record_of(tmp_path)).close()
    with pytest.raises(ConfigError, match=r"'elastic' .*not 'static'"):
        LiveScheduler(nodes(2), LiveSettings("static"), record=record_of(tmp_path))
    with pytest.raises(ConfigError, match=r"2 of .* \(not 3 of "):
        LiveScheduler(nodes(3), LiveSettings("elastic"), record=record_of(tmp_path))


def test_a_record_with_another_container_size_is_refused_with_its_flags(tmp_path: Path) -> None:
    size = ClusterSpec(container_memory="512MiB", container_vcores=1)
    small = LiveSettings("elastic", job_settings=container_settings(size, "docker"))
    LiveScheduler(nodes(2), small, record=record_of(tmp_path)).close()
    other = LiveSettings("elastic", job_settings=container_settings(ClusterSpec(), "docker"))
    with pytest.raises(ConfigError, match=r"512MiB \(not 4096MiB\)"):
        LiveScheduler(nodes(2), other, record=record_of(tmp_path))
    told = (
        r"with --on docker \(not local\), --container-memory 512MiB \(not unset\), --container-vcores 1 \(not unset\):"
    )
    with pytest.raises(ConfigError, match=told):
        LiveScheduler(nodes(2), LiveSettings("elastic"), record=record_of(tmp_path))


def test_different_settings_without_a_flag_are_described_too(tmp_path: Path) -> None:
    here = LiveSettings("elastic", job_settings={"on": "docker", "image": "a"})
    LiveScheduler(nodes(1), here, record=record_of(tmp_path)).close()
    other = replace(here, job_settings={"on": "docker", "image": "b"})
    told = r"created with job_settings {'on': 'docker', 'image': 'a'} \(not {'on': 'docker', 'image': 'b'}\): use"
    with pytest.raises(ConfigError, match=told):
        LiveScheduler(nodes(1), other, record=record_of(tmp_path))
    renamed = {f"{name}-renamed": capacity for name, capacity in nodes(1).items()}
    with pytest.raises(ConfigError, match=r"created with nodes {'node0': \[\d+, \d+\]} \(not {'node0-renamed': "):
        LiveScheduler(renamed, here, record=record_of(tmp_path))


def test_a_record_with_another_number_of_orders_is_refused(tmp_path: Path) -> None:
    LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path)).close()
    record = record_of(tmp_path)
    record.append([Entry(1.0, e.NodeCame("more", Resources(1, 1024)), given=4)], durable=False)
    record.close()
    with pytest.raises(StorageError, match=r"4 .* NodeCame .* to 0"):
        LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))


def test_a_record_that_leads_to_other_orders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LiveJob", lambda job_id, *rest: FakeLive(World(0), job_id, rest[3]))
    scheduler = one(tmp_path)
    scheduler.submit(e.JobSubmitted(request("a")), JobSpec())
    scheduler.settle(TIMEOUT_S)
    scheduler.close(leave=True)

    def of_another_version(view: Any) -> Decision:
        decision = start_in_what_is_free(view, view.queue[0]) if view.queue else None
        if decision is None:
            return Decision()
        (start,) = decision.actions
        return Decision((replace(start, places=start.places[::-1]),), "as before")

    monkeypatch.setitem(live.POLICIES, "elastic", of_another_version)
    with pytest.raises(StorageError, match=r"1 .* to other"):
        replayed(tmp_path)


def test_time_continues_from_the_record(tmp_path: Path) -> None:
    scheduler = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))
    scheduler.close()
    record = record_of(tmp_path)
    record.append([Entry(5000.0, e.NodeCame("more", UNIT))], durable=False)
    record.close()
    again = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))
    assert again.now_s() >= 5000.0
    again.close()


def test_a_wall_clock_that_is_set_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))
    wall_s = time.time()
    monkeypatch.setattr(time, "time", lambda: wall_s + 1e6)
    assert scheduler.now_s() < 1000.0
    scheduler.close(leave=True)
    again = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))
    assert again.now_s() < 1000.0
    again.close()


@pytest.mark.parametrize("goes_on", (True, False))
def test_time_without_a_scheduler_counts_unless_the_machine_rebooted(
    goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s, which = [1000.0], ["one"]
    monkeypatch.setattr(time, "monotonic", lambda: at_s[0])
    for module in (live, recorder):
        monkeypatch.setattr(module, "boot_id", lambda: which[0])
    scheduler = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))
    at_s[0] += 30.0
    scheduler.open_sweep(e.SweepOpened("s"))
    scheduler.settle(TIMEOUT_S)
    scheduler.close(leave=True)
    which[0] = "one" if goes_on else "two"
    # A reboot sets the clock to 0.
    at_s[0] = 1500.0 if goes_on else 7.0
    again = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))
    assert again.now_s() == (500.0 if goes_on else 30.0)
    again.close(leave=True)
    at_s[0] += 20.0
    third = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(tmp_path))
    assert third.now_s() == (520.0 if goes_on else 50.0), "the time of this start counts from here on"
    third.close()


def replayed(directory: Path) -> LiveScheduler:
    """Return the state to which the record of one node's scheduler leads."""
    scheduler = LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(directory), attaches=False)
    scheduler.close(leave=True)
    return scheduler


def one(directory: Path) -> LiveScheduler:
    return LiveScheduler(nodes(1), LiveSettings("elastic"), record=record_of(directory))


def test_the_event_of_a_retry_names_the_attempt_before(tmp_path: Path) -> None:
    scheduler = one(tmp_path)
    for job_id in ("a", "a-again-1", "b"):
        scheduler.submit(e.JobSubmitted(request(job_id, 16)), JobSpec())
    scheduler.settle(TIMEOUT_S)
    scheduler.close()
    jobs = replayed(tmp_path).state.jobs
    assert [job.request.retry_of for job in jobs.values()] == ["", "a", ""]


def test_a_job_that_was_refused_may_be_cancelled(tmp_path: Path) -> None:
    scheduler = one(tmp_path)
    refused = scheduler.refuse("a", "s", JobSpec(), "it cannot work")
    scheduler.cancel("a", "enough")
    scheduler.settle(TIMEOUT_S)
    scheduler.check()
    scheduler.close()
    assert refused.phase is Phase.FAILED and refused.why == "it cannot work"
    found = replayed(tmp_path).look_ups.submission("a")
    assert found is not None and found.why == "it cannot work"


def test_an_id_submitted_twice_at_once_is_used_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    made = live.Submission

    def together(*args: Any) -> Any:
        both.wait(TIMEOUT_S)
        return made(*args)

    scheduler = one(tmp_path)
    monkeypatch.setattr(live, "Submission", together)
    # The job is larger than the cluster, so nothing starts.
    outcomes = at_once(2, lambda _: scheduler.submit(e.JobSubmitted(request("a", 16)), JobSpec()))
    scheduler.settle(TIMEOUT_S)
    assert [type(outcome) for outcome in outcomes].count(ConfigError) == 1 and len(
        scheduler.look_ups.submissions()
    ) == 1
    scheduler.close()


@pytest.mark.parametrize(
    ("job_id", "point", "message"),
    (
        ("a", {"rate": math.nan}, "must be JSON"),
        ("a b", {}, "must be 1 to 64 letters"),
        ("../a", {}, "must be 1 to 64 letters"),
        ("a" * 65, {}, "must be 1 to 64 letters"),
    ),
)
def test_jobs_that_could_not_be_recorded_or_started_are_refused_at_once(
    job_id: str, point: dict[str, Any], message: str, tmp_path: Path
) -> None:
    scheduler = one(tmp_path)
    with pytest.raises(ConfigError, match=message):
        scheduler.submit(e.JobSubmitted(request(job_id, 16)), JobSpec(), point)
    with pytest.raises(ConfigError, match="must be JSON"):
        scheduler.open_sweep(e.SweepOpened("s"), {"job": {"learning_rate": math.inf}})
    scheduler.settle(TIMEOUT_S)
    assert scheduler.look_ups.submissions() == [] and scheduler.registry.tables == {}
    scheduler.close()


def test_a_job_is_not_over_because_its_scheduler_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: SqliteRecord, entries: Sequence[Entry], *, durable: bool) -> None:
        raise AssertionError("this should never be")

    scheduler = one(tmp_path)
    monkeypatch.setattr(SqliteRecord, "append", broken)
    submission = scheduler.submit(e.JobSubmitted(request("a", 16)), JobSpec())
    with pytest.raises(RuntimeError, match="should never be"):
        scheduler.settle(TIMEOUT_S)
    assert submission.wait(TIMEOUT_S), "no thread waits for ever"
    assert scheduler.has_ended and not submission.is_over
    scheduler.close(leave=True)


def test_a_start_ordered_during_the_close_is_left_to_the_next_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = one(tmp_path)
    scheduler._add(scheduler._new_submission("a", "s", JobSpec(), {}))
    stop = scheduler._loop.stop

    def after_one_more() -> None:
        monkeypatch.setattr(scheduler._loop, "stop", stop)
        taken = threading.Event()
        scheduler._events.put(e.JobSubmitted(request("a")))
        scheduler._events.put(taken.set)
        assert taken.wait(TIMEOUT_S)
        stop()

    monkeypatch.setattr(scheduler._loop, "stop", after_one_more)
    scheduler.close(leave=True)
    assert replayed(tmp_path).state.jobs["a"].phase is Phase.STARTING


def test_members_are_restored_only_for_held_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, found = World(0), []

    def fake(job_id: str, launch: Any, metric: str, feedback: int, say: Any, *rest: Any) -> Any:
        return FakeLive(world, job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    monkeypatch.setattr(FakeLive, "restore", lambda self, iteration, members, *rest: found.append(members))
    scheduler = one(tmp_path)
    scheduler.submit(e.JobSubmitted(request("a")), JobSpec())
    scheduler.settle(TIMEOUT_S)
    first, second = (c.container_id for c in scheduler.state.containers(scheduler.state.jobs["a"], Role.WORKER))
    scheduler._events.put(e.MembersFound("a", ((first, "worker-1"), (second, "worker-2"))))
    scheduler._events.put(e.ContainersGone("a", (first,)))
    scheduler.settle(TIMEOUT_S)
    scheduler.close(leave=True)
    one(tmp_path).close(leave=True)
    # Another job has the other container, or will have it soon: it is not a replacement of a lost member.
    assert found == [{second: Seat("worker-2", Role.WORKER)}]


def test_a_snapshot_has_all_that_is_known_of_a_submission() -> None:
    known = Submission(
        "a", "s", "job-a", JobSpec(iterations=7), {"l2": 0.5}, Phase.KILLED, "why", 0.5, 0.25, [(3, 0.75)], True, None,
        True, True, 9, 2.0,
    )  # fmt: skip
    told = json.loads(json.dumps(known.values()))
    assert {each.name for each in fields(known)} - {"report", "_over"} == told.keys()
    found = Submission.of_values(told)
    assert replace(found, _over=known._over) == known and found.is_over


def test_times_without_a_scheduler_are_known_after_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at_s[0])
    for _ in range(3):
        scheduler = one(tmp_path)
        scheduler.refuse(f"job-{at_s[0]:g}", "s", JobSpec(), "it cannot work")
        scheduler.settle(TIMEOUT_S)
        down = list(scheduler.registry.timeline.down)
        scheduler.close(leave=True)
        at_s[0] += 100.0
    assert down == [(0.0, 100.0), (100.0, 200.0)]
