"""A service in this process, whose jobs are records: what it keeps to when things go wrong around it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eps.config import JobSpec
from eps.errors import ConfigError, DeadlineError, StorageError
from eps.master_link import wait_for
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live import scheduler as live
from hscheduler.live.journal import Entry, EventJournal
from hscheduler.live.scheduler import LiveScheduler, LiveSettings, Submission
from hscheduler.live.sweep import Sweep
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings, past_report
from hscheduler.service.server import SchedulerService
from hscheduler.service.sweeps import Sweeps
from hscheduler.spec import ClusterSpec, Spec
from tests.hscheduler.world import FakeLive, World

TIMEOUT_S = 20.0
TABLES: dict[str, Any] = {"sweep": {"trials": 1, "algorithm": "random"}}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(0)

    def fake(job_id: str, name: str, spec: Any, metric: str, iteration: int, say: Any, *rest: Any, **more: Any) -> Any:
        return FakeLive(world, job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    return world


@pytest.fixture
def directory(tmp_path: Path) -> ServiceDir:
    return ServiceDir(tmp_path / "service")


def scheduler_of(directory: ServiceDir) -> LiveScheduler:
    directory.path.mkdir(exist_ok=True)
    return LiveScheduler(ClusterSpec().capacities(), LiveSettings(), journal=EventJournal(directory.journal))


@pytest.fixture
def scheduler(world: World, directory: ServiceDir) -> Iterator[LiveScheduler]:
    with scheduler_of(directory) as found:
        yield found


@pytest.fixture
def sweeps(scheduler: LiveScheduler) -> Iterator[Sweeps]:
    found = Sweeps(scheduler, ClusterSpec())
    yield found
    scheduler.close(leave=True)
    found.close()
    assert not any(thread.is_alive() for thread in found._threads.values())


def submitted(scheduler: LiveScheduler, sweep: str) -> None:
    wait_for(lambda: bool(scheduler.submissions(sweep)), TIMEOUT_S, f"the first trial of {sweep}")


# ---- sweeps


def test_a_sweep_has_one_thread_however_often_it_is_taken_up(scheduler: LiveScheduler, sweeps: Sweeps) -> None:
    sweeps.run("a", TABLES)
    (thread,) = sweeps._threads.values()
    sweeps.go_on()
    sweeps.run("a", TABLES)
    assert list(sweeps._threads.values()) == [thread]


def test_a_sweep_whose_beginning_took_too_long_is_begun_when_it_is_asked_for_again(
    scheduler: LiveScheduler, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(timeout_s: float) -> None:
        raise DeadlineError("not within a second")

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "settle", late)
        with pytest.raises(DeadlineError):
            sweeps.run("a", TABLES)
    sweeps.run("a", TABLES)
    submitted(scheduler, "a")


def test_names_of_sweeps_and_jobs_are_kept_apart(scheduler: LiveScheduler, sweeps: Sweeps) -> None:
    sweeps.run("a", TABLES)
    with pytest.raises(ConfigError, match="job id is 'a-trial-7', but must be another: sweep 'a' has such ids"):
        sweeps.check_job_id("a-trial-7")
    sweeps.check_job_id("b-trial-7")
    scheduler.refuse("b-trial-7", "mine", JobSpec(), "why not")
    for name, message in (
        ("", "that no other sweep has"),
        ("jobs", "that no other sweep has"),
        ("mine", "that no other sweep has"),
        ("b", "there has been a job 'b-trial-7'"),
        ("c d", "must be 1 to 64 letters"),
        ("c" * 40, "must be 1 to 64 letters"),
    ):
        with pytest.raises(ConfigError, match=message):
            sweeps.run(name, TABLES)
    assert list(scheduler.tables) == ["a"]


def test_a_sweep_that_cannot_go_on_does_not_keep_others_from_it(scheduler: LiveScheduler, sweeps: Sweeps) -> None:
    scheduler.open_sweep(e.SweepOpened("a"), {"sweep": {"algorithm": "by-magic"}})
    scheduler.open_sweep(e.SweepOpened("b"), TABLES)
    scheduler.settle(TIMEOUT_S)
    sweeps.go_on()
    submitted(scheduler, "b")
    assert "by-magic" in sweeps.states()["a"] and not sweeps.has_ended("a")
    assert "a" not in scheduler.closed


def test_a_sweep_goes_on_after_its_scheduler_was_closed(
    world: World, directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(directory)
    sweeps = Sweeps(scheduler, ClusterSpec())
    sweeps.run("a", TABLES)
    submitted(scheduler, "a")
    stop = scheduler._stop

    def after_the_sweep() -> None:
        sweeps.close()
        stop()

    monkeypatch.setattr(scheduler, "_stop", after_the_sweep)
    scheduler.close(leave=True)
    assert not sweeps.has_ended("a") and sweeps.states() == {"a": "running"}
    with scheduler_of(directory) as again:
        assert again.closed == {}
        assert not again.state.jobs["a-trial-1"].phase.ended


def test_of_a_sweep_that_was_ended_no_trial_is_tried_again(scheduler: LiveScheduler, sweeps: Sweeps) -> None:
    sweeps.run("a", {"sweep": {**TABLES["sweep"], "retries": 1}})
    submitted(scheduler, "a")
    scheduler._events.put(e.SweepClosed("a", "enough"))
    scheduler._events.put(e.JobEnded("a-trial-1", Phase.FAILED, "it crashed"))
    wait_for(lambda: sweeps.has_ended("a"), TIMEOUT_S, "the end of the sweep")
    assert len(scheduler.submissions("a")) == 1


def test_the_next_job_of_a_trial_that_failed_as_it_was_told_to_end_can_be_told_so_too() -> None:
    def submit(submitted: e.JobSubmitted, spec: JobSpec, point: object) -> Submission:
        return Submission(submitted.request.job_id, "a", "name", spec)

    told: list[str] = []
    scheduler: Any = SimpleNamespace(submit=submit, cancel=lambda job_id, why: told.append(job_id), closed={"a": "why"})
    sweep = Sweep(Spec.of(TABLES), "elastic", name="a")
    sweep._submit(scheduler)
    sweep._end_all(scheduler)
    sweep._try(sweep._trials[0], scheduler)
    sweep._end_all(scheduler)
    assert told == ["a-trial-1", "a-trial-1-again-1"]


def test_what_is_submitted_while_a_sweep_is_ended_is_ended(
    scheduler: LiveScheduler, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = scheduler.submit

    def late(*args: Any) -> Any:
        scheduler.close_sweep("a", "enough")
        scheduler.settle(TIMEOUT_S)
        return submit(*args)

    monkeypatch.setattr(scheduler, "submit", late)
    sweeps.run("a", TABLES)
    wait_for(lambda: sweeps.has_ended("a"), TIMEOUT_S, "the end of the sweep")
    (job,) = scheduler.submissions("a")
    assert job.phase is Phase.KILLED and job.why == "enough"


# ---- the service


def settings(**more: Any) -> ServiceSettings:
    return ServiceSettings(nodes=4, **more)


def test_a_service_that_is_left_by_an_exception_leaves_its_jobs(
    world: World, directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(FakeLive, "close", lambda self: ends.append("ended"))
    monkeypatch.setattr(FakeLive, "leave", lambda self: ends.append("left"))
    with pytest.raises(ZeroDivisionError), Service(directory, settings()) as service:
        with SchedulerClient(directory) as client:
            client.submit_job("a", JobSpec())
        assert not service.scheduler.state.jobs["a"].phase.ended
        raise ZeroDivisionError
    assert ends == ["left"]


def test_a_service_that_cannot_begin_leaves_nothing_behind(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings()) as service:
        taken = service.address.port
        other = ServiceDir(directory.path.parent / "other")
        with pytest.raises(ConfigError, match="cannot listen"):
            Service(other, settings(port=taken))
        alive = [thread for thread in threading.enumerate() if thread.name == "h-scheduler"]
        assert alive == [service.scheduler._thread]
    with Service(other, settings()) as service:
        service.scheduler.check()


def test_sweeps_of_a_service_that_ended_its_jobs_have_ended(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        client.run_sweep(TABLES, "a")
        submitted(service.scheduler, "a")
    with Service(directory, settings()) as service:
        assert service.scheduler.closed == {"a": "H-scheduler ends"}
        wait_for(lambda: service.sweeps.has_ended("a"), TIMEOUT_S, "the end of the sweep")


def test_a_job_whose_service_failed_is_waited_for_until_there_is_another(
    world: World, directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: EventJournal, entry: Entry) -> None:
        raise StorageError("no space left on device")

    service = Service(directory, settings())
    with SchedulerClient(directory, give_up_s=TIMEOUT_S) as client:
        job = client.submit_job("a", JobSpec())
        waiting = threading.Thread(target=client.wait, args=(job,), daemon=True)
        waiting.start()
        with monkeypatch.context() as patch:
            patch.setattr(EventJournal, "append", full)
            service.scheduler.cancel("a", "one more event")
            wait_for(lambda: service.scheduler.has_ended, TIMEOUT_S, "the failure")
        waiting.join(0.5)
        assert waiting.is_alive() and not job.is_over
        service.leave()
        service.close()
        with Service(directory, settings()):
            client.cancel("a", "enough")
            waiting.join(TIMEOUT_S)
            assert job.phase is Phase.KILLED and job.why == "enough"


def test_a_job_that_is_submitted_twice_at_once_is_one_job(
    world: World, directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    found: list[object] = []
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        known = SchedulerService._known

        def known_a_little_later(self: SchedulerService, job_id: str) -> Any:
            answer = known(self, job_id)
            # Both calls look before one of them goes on, unless they take turns.
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)
            return answer

        monkeypatch.setattr(SchedulerService, "_known", known_a_little_later)

        def submit() -> None:
            try:
                found.append(client.submit_job("a", JobSpec()).job_id)
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=submit) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        service.scheduler.check()
    assert found == ["a", "a"]


def test_the_report_of_jobs_without_a_sweep_is_there_when_their_service_is_gone(
    world: World, directory: ServiceDir
) -> None:
    with Service(directory, settings()), SchedulerClient(directory) as client:
        client.submit_job("a", JobSpec())
    assert [trial["job_id"] for trial in past_report(directory, "jobs")["trials"]] == ["a"]
