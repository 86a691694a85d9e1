"""A service in this process, whose jobs are records in memory; mostly its behaviour on failures."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eps.errors import ConfigError, DeadlineError, PeerUnavailableError
from eps.job.yarn import shared_application
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import create_job_dir, jobs_dir
from eps.system.waits import wait_for
from hscheduler import cli
from hscheduler.cli.commands import sweep
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction, Job, Phase
from hscheduler.core.rungs import Stopping
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.pb import scheduler_pb2 as pb
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings, past_report
from hscheduler.service.observer import NewsBoard
from hscheduler.service.server import SchedulerService
from hscheduler.service.sweeps import Sweeps
from hscheduler.simulator.run import simulate
from hscheduler.spec import ClusterSpec, Spec
from tests.hscheduler.world import RUNGS, FakeLive, World
from tests.threads import SeenLock, at_once

TIMEOUT_S = 20.0
#: For calls that ignore their context.
ANYBODY: Any = None
#: The data need only exist: no job reads it.
TABLES: dict[str, Any] = {"sweep": {"trials": 1, "algorithm": "random"}, "job": {"data": __file__}}


@pytest.fixture
def directory(tmp_path: Path) -> ServiceDir:
    return ServiceDir(tmp_path / "service")


def scheduler_of(directory: ServiceDir) -> LiveScheduler:
    directory.path.mkdir(exist_ok=True)
    return LiveScheduler(ClusterSpec().capacities(), LiveSettings(), record=SqliteRecord(directory.record))


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
    wait_for(lambda: bool(scheduler.look_ups.submissions(sweep)), TIMEOUT_S, f"the first trial of {sweep}")


# ---- sweeps


def test_a_sweep_that_is_resumed_twice_has_one_thread(scheduler: LiveScheduler, sweeps: Sweeps) -> None:
    sweeps.run("a", TABLES)
    (thread,) = sweeps._threads.values()
    sweeps.resume()
    sweeps.run("a", TABLES)
    assert list(sweeps._threads.values()) == [thread]


@pytest.mark.parametrize(("on", "of_all"), [("yarn", {}), ("local", {"on": "yarn"})])
def test_a_local_service_refuses_jobs_on_yarn(
    directory: ServiceDir, world: World, on: str, of_all: dict[str, str]
) -> None:
    cluster = ClusterSpec(container_memory="512MiB")
    with LiveScheduler(cluster.capacities(), LiveSettings(job_settings=of_all)) as scheduler:
        sweeps = Sweeps(scheduler, cluster)
        service = SchedulerService(scheduler, cluster, NewsBoard(), sweeps)
        wrong = {"data": __file__, "on": on, "workers": 1, "servers": 1}
        for submit in (
            lambda: sweeps.run("a", {**TABLES, "job": wrong}),
            lambda: service.SubmitJob(pb.SubmitJobRequest(job_id="one", settings_json=json.dumps(wrong)), ANYBODY),
        ):
            with pytest.raises(ConfigError, match="serve --on yarn"):
                submit()
        assert not scheduler.registry.tables and not scheduler.look_ups.submissions()
        place: Any = object()
        with shared_application.hosting(place):
            service.SubmitJob(pb.SubmitJobRequest(job_id="one", settings_json=json.dumps(wrong)), ANYBODY)
        assert [each.job_id for each in scheduler.look_ups.submissions()] == ["one"]


def test_a_sweep_whose_start_timed_out_starts_on_a_retry(
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


def test_names_of_sweeps_and_jobs_are_kept_apart(
    scheduler: LiveScheduler, sweeps: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    sweeps.run("a", TABLES)
    with pytest.raises(ConfigError, match=r"'a-trial-7', .* 'a'"):
        sweeps.check_job_id("a-trial-7")
    sweeps.check_job_id("b-trial-7")
    scheduler.refuse("b-trial-7", "mine", JobSpec(), "why not")
    # Jobs of an earlier sweep, under EPS_HOME.
    for job in ("d-trial-2", "mine-too"):
        create_job_dir(job)[1].close()
    with pytest.raises(ConfigError, match=r"'mine-too', which a job in .* has: choose another one, or remove that job"):
        scheduler.refuse("mine-too", "mine", JobSpec(), "why not")
    for name, message in (
        ("", "must be an unused name"),
        ("jobs", "must be an unused name"),
        ("mine", "must be an unused name"),
        ("b", "job 'b-trial-7' exists"),
        ("d", "job 'd-trial-2' exists"),
        ("c d", "sweep is 'c d', but must have only letters, digits"),
        ("über", "sweep is 'über', but must have only letters, digits"),
        ("c" * 60, "be short: the names of its jobs start with it and have at most 64 characters"),
    ):
        with pytest.raises(ConfigError, match=message):
            sweeps.run(name, TABLES)
    assert list(scheduler.registry.tables) == ["a"]


def test_a_sweep_that_cannot_resume_does_not_block_others(scheduler: LiveScheduler, sweeps: Sweeps) -> None:
    scheduler.open_sweep(e.SweepOpened("a"), {"sweep": {"algorithm": "by-magic"}})
    scheduler.open_sweep(e.SweepOpened("b"), TABLES)
    scheduler.settle(TIMEOUT_S)
    sweeps.resume()
    submitted(scheduler, "b")
    assert "by-magic" in sweeps.states()["a"] and not sweeps.has_ended("b")
    assert sweeps.has_ended("a"), "the waiting thread is woken"
    assert "a" not in {*scheduler.registry.closed, *scheduler.registry.ended}, "the next service may resume it"


def test_a_sweep_resumes_after_its_scheduler_was_closed(
    world: World, directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(directory)
    sweeps = Sweeps(scheduler, ClusterSpec())
    sweeps.run("a", TABLES)
    submitted(scheduler, "a")
    stop = scheduler._loop.stop

    def after_the_sweep() -> None:
        sweeps.close()
        stop()

    monkeypatch.setattr(scheduler._loop, "stop", after_the_sweep)
    scheduler.close(leave=True)
    assert not sweeps.has_ended("a") and sweeps.states() == {"a": "running"}
    with scheduler_of(directory) as again:
        assert again.registry.closed == {}
        assert not again.state.jobs["a-trial-1"].phase.ended


def test_no_trial_of_an_ended_sweep_is_retried(scheduler: LiveScheduler, sweeps: Sweeps) -> None:
    sweeps.run("a", {**TABLES, "sweep": {**TABLES["sweep"], "retries": 1}})
    submitted(scheduler, "a")
    scheduler._events.put(e.SweepClosed("a", "enough"))
    scheduler._events.put(e.JobEnded("a-trial-1", Phase.FAILED, "it crashed"))
    wait_for(lambda: sweeps.has_ended("a"), TIMEOUT_S, "the end of the sweep")
    assert len(scheduler.look_ups.submissions("a")) == 1


def test_a_trial_submitted_while_its_sweep_is_ended_is_ended(
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
    (job,) = scheduler.look_ups.submissions("a")
    assert job.phase is Phase.KILLED and job.why == "enough"


# ---- the service


def settings(**more: Any) -> ServiceSettings:
    return ServiceSettings(nodes=4, **more)


def test_an_exception_in_a_service_leaves_its_jobs_running(
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


def test_a_sweep_that_was_killed_is_not_opened_again(world: World, directory: ServiceDir) -> None:
    why = "sweep is '{}', but must be open: it was ended \\(killed on request\\)"
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        client.open_sweep(e.SweepOpened("opened"))
        client.submit_job("a", JobSpec(), "only named")
        for sweep in ("opened", "only named"):
            client.cancel(sweep, "")
            with pytest.raises(ConfigError, match=why.format(sweep)):
                client.open_sweep(e.SweepOpened(sweep))
        client.open_sweep(e.SweepOpened("another"))
        service.leave()
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        with pytest.raises(ConfigError, match=why.format("opened")):
            client.open_sweep(e.SweepOpened("opened"))
        assert "only named" not in service.scheduler.registry.sweeps and "another" in service.scheduler.registry.sweeps


def test_a_sweep_of_a_client_has_its_stopping_rule(world: World, directory: ServiceDir) -> None:
    opened = e.SweepOpened("s", stopping=Stopping("asha", 2, RUNGS[0]), trials=3, stop_diverged=False)
    with Service(directory, settings(stop="median")) as service, SchedulerClient(directory) as client:
        for each in (opened, opened, replace(opened, trials=2)):
            client.open_sweep(each)
        assert service.scheduler.registry.sweeps["s"] == replace(opened, trials=2), "its number of trials may change"
        with pytest.raises(ConfigError, match="was opened with other settings before"):
            client.open_sweep(replace(opened, stopping=Stopping("sha", 2, RUNGS[0])))
        with pytest.raises(ConfigError, match="stop is 'halving'"):
            client.open_sweep(e.SweepOpened("t", stopping=Stopping("halving")))
        client.submit_job("a", JobSpec(), "s")
        client.submit_job("b", JobSpec(), "another")
        with pytest.raises(ConfigError, match="sweep 'another' has jobs already: open it before its first job"):
            client.open_sweep(replace(opened, sweep="another"))
        rules = service.scheduler.ask(lambda: [service.scheduler.state.rungs(job) for job in jobs_of(service)])
        assert [each.eta for each in rules] == [2, 0], "the other has the service's rule"
    with pytest.raises(ConfigError, match="stop is 'halving'"):
        settings(stop="halving")


def jobs_of(service: Service) -> list[Job]:
    return list(service.scheduler.state.jobs.values())


def test_a_service_that_cannot_start_leaves_no_files(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings(host="127.0.0.1")) as service:
        taken = service.address.port
        other = ServiceDir(directory.path.parent / "other")
        with pytest.raises(ConfigError, match="cannot listen"):
            Service(other, settings(host="127.0.0.1", port=taken))
        assert not other.record.exists(), "settings of a failed start do not bind the next one"
        alive = [thread for thread in threading.enumerate() if thread.name == "h-scheduler"]
        assert alive == [service.scheduler._loop.thread]
    with Service(other, settings()) as service:
        service.scheduler.check()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--web", "99999999"], "web is 99999999, but must be a port"),
        (["--web", "-5"], "web is -5, but must be a port"),
        (["--listen", "192.0.2.1:0"], "cannot listen on 192.0.2.1:0"),
        (["--threshold", "-1"], "threshold is -1, but must be at least 0"),
        (["--feedback-iteration", "0"], "--feedback-iteration is 0, but must be at least 1"),
    ],
)
def test_a_start_with_invalid_settings_leaves_no_record(
    flags: list[str], why: str, directory: ServiceDir, capsys: pytest.CaptureFixture[str], handlers: None
) -> None:
    assert cli.main(["serve", "--state", str(directory.path), *flags]) == 2
    printed = capsys.readouterr()
    assert why in printed.err and "Traceback" not in printed.err and not printed.out
    assert not directory.record.exists()


@pytest.fixture
def handlers() -> Iterator[None]:
    """Undo a service's signal handlers, and end a service that is not meant to start."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}

    def too_late(number: int, frame: object) -> None:
        raise AssertionError(f"it has not ended within {TIMEOUT_S:g} s")

    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sweeps_of_a_service_that_was_ended_have_ended(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        client.run_sweep(TABLES, "a")
        submitted(service.scheduler, "a")
    with Service(directory, settings()) as service:
        assert service.scheduler.registry.closed == {"a": "H-scheduler ends"}
        wait_for(lambda: service.sweeps.has_ended("a"), TIMEOUT_S, "the end of the sweep")


def test_a_client_waits_for_the_next_service_after_a_failure(
    world: World, directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SqliteRecord, entries: Any, *, durable: bool) -> None:
        raise AssertionError("this should never be")

    def attempted(*args: Any) -> Any:
        try:
            return attempt(*args)
        except PeerUnavailableError as error:
            in_vain.append(error)
            raise

    in_vain: list[PeerUnavailableError] = []
    service = Service(directory, settings())
    with SchedulerClient(directory, give_up_s=TIMEOUT_S) as client:
        attempt = client._connection._attempted
        monkeypatch.setattr(client._connection, "_attempted", attempted)
        job = client.submit_job("a", JobSpec())
        waiting = threading.Thread(target=client.wait, args=(job,), daemon=True)
        waiting.start()
        with monkeypatch.context() as patch:
            patch.setattr(SqliteRecord, "append", broken)
            service.scheduler.cancel("a", "one more event")
            wait_for(lambda: service.scheduler.has_ended, TIMEOUT_S, "the failure")
        wait_for(lambda: len(in_vain) >= 2 or not waiting.is_alive(), TIMEOUT_S, "the client to try again")
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
    made, known, turns = SchedulerService.__init__, SchedulerService._known, SeenLock()
    looks, numbers = list[str](), count()

    def make(self: SchedulerService, *args: Any) -> None:
        made(self, *args)
        self._submitting = turns  # type: ignore[assignment]

    def known_to_both(self: SchedulerService, job_id: str) -> Any:
        answer = known(self, job_id)
        so_many = 2 if next(numbers) < 2 else 4
        looks.append(job_id)
        # Without a lock both calls would check before one of them continues.
        wait_for(lambda: turns.waited.is_set() or len(looks) >= so_many, TIMEOUT_S, "the other call")
        return answer

    monkeypatch.setattr(SchedulerService, "__init__", make)
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        monkeypatch.setattr(SchedulerService, "_known", known_to_both)

        found = at_once(2, lambda _: client.submit_job("a", JobSpec()).job_id)
        service.scheduler.check()
    assert found == ["a", "a"]


def test_jobs_without_a_sweep_are_reported_after_their_service_ended(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings()), SchedulerClient(directory) as client:
        client.submit_job("a", JobSpec())
    assert [trial["job_id"] for trial in past_report(directory, "jobs")["trials"]] == ["a"]
    with pytest.raises(ConfigError, match=r"'mine', .* of jobs$"):
        past_report(directory, "mine")


def retry_a_trial(service: Service, client: SchedulerClient) -> None:
    """Run the sweep ``a``, whose first trial crashes, until it is tried again."""
    client.run_sweep({**TABLES, "sweep": {**TABLES["sweep"], "retries": 1}}, "a")
    submitted(service.scheduler, "a")
    (first,) = service.scheduler.look_ups.submissions("a")
    # A job that never started is not retried.
    wait_for(lambda: first.has_started, TIMEOUT_S, "the first try")
    service.scheduler._events.put(e.JobEnded("a-trial-1", Phase.FAILED, "it crashed"))
    wait_for(lambda: len(service.scheduler.look_ups.submissions("a")) == 2, TIMEOUT_S, "the second try")


def test_the_attempts_of_a_trial_are_one_trial_also_from_the_record(world: World, directory: ServiceDir) -> None:
    spec = JobSpec()
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        retry_a_trial(service, client)
        # Two jobs that users named like attempts are two trials.
        for job_id, each in (("b", spec), ("b-again-1", JobSpec(iterations=7))):
            client.submit_job(job_id, each)
        running, _ = client.report("")
        service.leave()
    of_users = [["b"], ["b-again-1"]]
    for found, others in (
        (running, of_users),
        (past_report(directory, ""), of_users),
        (past_report(directory, "a"), []),
    ):
        tries = [[each["job_id"] for each in trial["attempts"]] for trial in found["trials"]]
        assert tries[0] == ["a-trial-1", "a-trial-1-again-1"]
        assert tries[1:] == others
        assert found["trials"][0]["name"].endswith("again-1")


def test_kill_ends_the_latest_job_of_a_trial(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        retry_a_trial(service, client)
        assert client.cancel("a-trial-1", "enough") == ["a-trial-1-again-1"]
        service.leave()


def test_the_model_of_a_job_that_ended_in_an_earlier_attempt_is_found_on_the_cluster(
    world: World, directory: ServiceDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPS_HOME", str(tmp_path / "home"))
    left = tmp_path / "left.npz"
    left.write_bytes(b"what it was trained to")
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        client.submit_job("a", JobSpec())
        submission = service.scheduler.look_ups.submission("a")
        assert submission is not None
        (jobs_dir() / submission.name).mkdir(parents=True)
        place: Any = SimpleNamespace(open_model=lambda name: left.open("rb"))
        with shared_application.hosting(place):
            service.scheduler._events.put(e.JobEnded("a", Phase.FINISHED, loss=0.5))
            service.scheduler.settle(TIMEOUT_S)
            client.save_model("a", str(tmp_path / "model.npz"))
        assert (tmp_path / "model.npz").read_bytes() == left.read_bytes()


def test_sweeps_with_different_metrics_have_no_common_best_trial(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        assert client.report("")[0]["metric"] == "loss"
        for sweep, metric, direction, job_id in (
            ("a", "accuracy", Direction.MAXIMIZE, "t1"),
            ("b", "loss", Direction.MINIMIZE, "t2"),
        ):
            client.open_sweep(e.SweepOpened(sweep, direction, metric=metric))
            client.submit_job(job_id, JobSpec(), sweep)
            service.scheduler._events.put(e.JobEnded(job_id, Phase.FINISHED, loss=0.5))
            service.scheduler.settle(TIMEOUT_S)
            found, of_one = client.report("")[0], client.report(sweep)[0]
            assert of_one["best"] == {"job_id": job_id, "loss": 0.5, "metric": metric, "point": {}}
            if sweep == "a":
                assert (found["metric"], found["direction"], found["best"]) == (metric, direction, of_one["best"])
        assert (found["metric"], found["direction"], found["best"]) == ("result", "", None)


def test_a_killed_sweep_accepts_no_more_jobs(world: World, directory: ServiceDir) -> None:
    refusal = r"sweep is 'mine', but must be open: it was ended \(enough\)"
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        client.submit_job("a", JobSpec(), "mine")
        assert client.cancel("mine", "enough") == ["a"]
        with pytest.raises(ConfigError, match=refusal):
            client.submit_job("b", JobSpec(), "mine")
        # A repeated call returns the same job.
        assert client.submit_job("a", JobSpec(), "mine").job_id == "a"
        # Jobs without a sweep are ended together; new ones are accepted.
        client.submit_job("c", JobSpec())
        assert client.cancel("jobs", "enough") == ["c"]
        client.submit_job("d", JobSpec())
        assert [each.job_id for each in service.scheduler.look_ups.submissions()] == ["a", "c", "d"]
        service.leave()
    with (
        Service(directory, settings()),
        SchedulerClient(directory) as client,
        pytest.raises(ConfigError, match=refusal),
    ):
        client.submit_job("b", JobSpec(), "mine")


def test_news_with_invalid_text_reach_the_watchers(world: World, directory: ServiceDir) -> None:
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        client.submit_job("a", JobSpec())
        service.scheduler._events.put(e.JobEnded("a", Phase.FAILED, "it cannot read \udcff.npz"))
        news = client.watch()
        assert next(each.text for each in news if "failed" in each.text) == "a failed: it cannot read ?.npz"
        news.close()


def test_a_service_that_ends_stops_its_threads(
    world: World, directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(FakeLive, "close", lambda self: ends.append(self.name))
    with Service(directory, settings()) as service, SchedulerClient(directory) as client:
        for job_id in ("a", "b"):
            client.submit_job(job_id, JobSpec())
        # Its threads have exited.
        service.scheduler._fleet._jobs["a"].is_alive = False  # type: ignore[misc]
    assert ends == ["b"]


def test_the_reason_of_an_end_survives_a_restart(
    world: World, directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> str:
        assert cli.main(["why", "t1", "--state", str(directory.path)]) == 0
        return capsys.readouterr().out

    starts = "t1 starts with 2 workers and 1 server: they are free"
    with Service(directory, ServiceSettings(nodes=2)) as service:
        with SchedulerClient(directory) as client:
            client.submit_job("t1", JobSpec(workers=2, servers=1))
        service.scheduler._events.put(e.JobEnded("t1", Phase.FINISHED, loss=0.5))
        service.scheduler.settle(TIMEOUT_S)
        first = told()
        service.leave()
    assert first.startswith("t1 has ended (finished, loss 0.5)\n") and starts in first
    with Service(directory, ServiceSettings()) as service:
        assert told() == first
        service.leave()


@pytest.mark.parametrize("detach", (False, True))
def test_submitting_an_ended_sweep_again_is_refused(
    detach: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {"sweep": {"trials": 3}, "job": {"stretch_s": 0.01}}
    found = simulate(Spec.of(tables), "elastic")
    asked: list[str] = []

    class Client:
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def run_sweep(self, tables: Any, name: str) -> str:
            asked.append(name)
            return name or "sweep-new"

        def report(self, name: str) -> tuple[dict[str, Any], bool]:
            return found, True

        def watch(self, name: str) -> Iterator[Any]:
            asked.append("watch")
            return iter(())

    monkeypatch.setattr(sweep, "client_of", lambda args: Client())
    path = tmp_path / "sweep.toml"
    path.write_text("[sweep]\ntrials = 3\n[job]\nstretch_s = 0.01\n")
    words = ["sweep", str(path), "--state", str(tmp_path)]
    assert cli.main([*words, "--name", "mine", *(["--detach"] if detach else [])]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("sweep mine was submitted before and has ended; use another --name to run it again")
    assert ("hscheduler results mine" if detach else "best: ") in printed.out
    assert asked == ["mine"], "there is nothing to watch"
    # A sweep without a name is a new one.
    assert cli.main(words) == 0 and "was submitted before" not in capsys.readouterr().err
