"""A scheduler's record: it leads to the state of the scheduler, after any compaction and any failure."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eps.errors import ConfigError, StorageError
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.jobs import JobRequest, Phase
from hscheduler.core.outstanding import Outstanding
from hscheduler.core.resources import Resources
from hscheduler.core.state import Scheduler
from hscheduler.core.timeline import Timeline
from hscheduler.live import recorder, registry
from hscheduler.live.inbox import HeldNews
from hscheduler.live.registry import LookUps, Registry
from hscheduler.live.reporting import look_of, report_of
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.live.submission import Submission
from hscheduler.policies import POLICIES
from hscheduler.record.api import TIME_DIGITS, Header, entry_of, entry_text
from hscheduler.record.ended_jobs import Rows
from hscheduler.record.log import LogRecord
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.reports.view import Look
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
from hscheduler.simulator import engine
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from hscheduler.stopping import RULES
from tests.fakes.storage import LoggedStorage
from tests.hscheduler.test_killed_scheduler import DyingRecord, run
from tests.hscheduler.test_random_histories import History
from tests.hscheduler.toy import nodes, request
from tests.threads import at_once

TIMEOUT_S = 10.0
HEADER = Header("elastic", 0, {"n": [4, 16384]}, None, 0.0, 100, "loss", "abc123", "boot", 1e3)
SPEC: dict[str, Any] = {
    "sweep": {"trials": 14, "threshold": 3, "arrival": "poisson:2s"},
    "job": {"workers": 2, "servers": 1, "iterations": 400, "stretch_s": 0.004},
}
Happened = list[tuple[float, e.Event]]


@pytest.fixture
def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep almost no ended jobs and decisions in the registry."""
    monkeypatch.setattr(registry, "LATEST_OVER", 1)
    monkeypatch.setattr("hscheduler.core.timeline.LATEST_DECISIONS", 2)


class Kept:
    """A scheduler without real jobs, and its record."""

    def __init__(self, folder: Path, made: Callable[[], Registry], policy: str) -> None:
        self.registry, self._policy = made(), POLICIES[policy]
        folder.mkdir(exist_ok=True)
        self.record = SqliteRecord(folder / "record.sqlite")
        self.record.begin(HEADER)

    def take(self, at_s: float, event: e.Event) -> list[e.Command]:
        return take(self.registry, at_s, event)

    def compact_and_restart(self) -> None:
        """Compact the record; continue with the same process, or with the next one."""
        over = self.registry.evictable()
        rows = self.registry.rows(over, LookUps(self.registry, self.record.rows).submission)
        self.record.compact(HEADER, self.registry.without(over).snapshot(), rows, self.registry.decided())
        self.registry.forget(over)
        found = Registry.of_snapshot(self.record.snapshot(), self._policy, RULES)
        assert found.snapshot() == self.registry.snapshot()
        self.registry = found


def take(found: Registry, at_s: float, event: e.Event) -> list[e.Command]:
    """Take an event without real jobs, as a live scheduler does."""
    if isinstance(event, e.JobEvent) and event.job_id not in found.state.jobs:
        return []
    if isinstance(event, e.JobSubmitted | e.JobRefused):
        found.submissions[event.job_id] = Submission(event.job_id, event.sweep, f"name-{event.job_id}", JobSpec())
    return found.take(entry_of(entry_text(found.entry(at_s, event)), "here"))[0]


def there(found: Registry) -> dict[str, Any]:
    """Return the jobs that a restart resumes, and their orders."""
    jobs = [job_id for job_id in found.outstanding.there() if not found.state.jobs[job_id].phase.ended]
    return {job_id: found.outstanding.of(job_id) for job_id in jobs}


def both(happened: Happened, made: Callable[[], Registry], policy: str, folder: Path, lot: Random) -> tuple[Any, Kept]:
    """Play events to two schedulers: one remembers all events, the other compacts its record now and then."""
    whole, compacted = made(), Kept(folder, made, policy)
    cuts = {len(happened) - 1, *lot.sample(range(len(happened)), 8)}
    for number, (at_s, event) in enumerate(happened):
        assert compacted.take(at_s, event) == take(whole, at_s, event), (number, event)
        assert compacted.registry.outstanding.checksum == whole.outstanding.checksum
        assert there(compacted.registry) == there(whole)
        if number in cuts:
            compacted.compact_and_restart()
    return whole, compacted


def events_of(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> Happened:
    """Return the events of a simulated sweep."""
    happened: Happened = []

    class Tap(Timeline):
        def take(self, now_s: float, event: e.Event, commands: Any, scheduler: Scheduler) -> None:
            happened.append((round(now_s, TIME_DIGITS), event))
            super().take(now_s, event, commands, scheduler)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "Timeline", Tap)
        simulate(Spec.of({**SPEC, "sweep": {**SPEC["sweep"], "seed": seed}}), policy)
    return happened


@pytest.mark.usefixtures("few_are_kept")
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(2))
def test_a_simulated_sweep_is_decided_as_from_all_events(
    policy: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = events_of(policy, seed, monkeypatch)

    def made() -> Registry:
        return Registry(Scheduler(Spec.of(SPEC).cluster.capacities(), POLICIES[policy], RULES, seed))

    whole, compacted = both(happened, made, policy, tmp_path, Random(f"{policy}:{seed}"))
    # Jobs that left are found in the table, with the values of the scheduler that remembers all.
    rows, left = compacted.record.rows, compacted.registry
    trials = {each.job_id: each.trial for each in rows.ended_jobs("sweep")}
    assert len(trials) == 13 and trials.keys().isdisjoint(left.state.jobs)
    assert {**trials, **left.timeline.trials} == whole.timeline.trials
    assert list(dict.fromkeys([*rows.decisions("sweep"), *left.timeline.decisions])) == whole.timeline.decisions
    assert {job_id: each.phase for job_id, each in whole.submissions.items() if job_id in trials} == {
        each.job_id: Submission.of_values(each.submission).phase for each in rows.ended_jobs()
    }
    compacted.record.close()


@pytest.mark.usefixtures("few_are_kept")
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_random_histories_with_faults_are_decided_as_from_all_events(policy: str, tmp_path: Path) -> None:
    for seed in range(4):
        history = History(policy, seed, 0.3)
        capacities, threshold = dict(history.toy.scheduler.ledger.capacity), seed % 4
        happened: Happened = [(0.0, e.SweepOpened(sweep, threshold=threshold or None)) for sweep in ("one", "two")]
        history.toy.scheduler.step(happened[0][1])
        history.toy.scheduler.step(happened[1][1])
        send = history.toy.send

        def noted(event: e.Event, send: Any = send, happened: Happened = happened) -> list[e.Command]:
            happened.append((float(len(happened)), event))
            return list(send(event))

        history.toy.send = noted  # type: ignore[method-assign]
        history.run(jobs=14)

        def made(capacities: Any = capacities, seed: int = seed) -> Registry:
            return Registry(Scheduler(capacities, POLICIES[policy], RULES, seed))

        _, kept = both(happened, made, policy, tmp_path / str(seed), history.draw)
        kept.record.close()


def test_entries_lead_to_the_schedulers_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if progress that no decision depends on is written late and merged."""
    for policy in sorted(POLICIES):
        happened, lot = events_of(policy, 3, monkeypatch), Random(policy)
        # A live job reports its progress far more often.
        for at in sorted((lot.randrange(len(happened)) for _ in range(300)), reverse=True):
            at_s, event = happened[at]
            if isinstance(event, e.Iterated):
                more = e.Iterated(event.job_id, event.iteration, (lot.random(),) * lot.randrange(12))
                happened.insert(at, (at_s, more))
        cuts = sorted(lot.sample(range(len(happened)), 12))
        original, waiting, held, entries = of_spec(policy, 3), dict[str, HeldNews](), 0, list[str]()
        for number, (at_s, event) in enumerate(happened):
            if isinstance(event, e.JobSubmitted):
                original.submissions[event.job_id] = Submission(event.job_id, "sweep", "name", JobSpec())
            entry = original.entry(at_s, event)
            if isinstance(event, e.Iterated) and original.state.is_idle_news(event):
                waiting.setdefault(event.job_id, HeldNews(event.job_id)).add(at_s, event)
                held += 1
            else:
                for each in sorted(waiting.values(), key=lambda each: each.at_s):
                    entries.append(entry_text(original.entry(each.at_s, each.event(each.at_s))))
                waiting.clear()
                entries.append(entry_text(entry))
            original.take(entry)
            if number in cuts:
                again = of_spec(policy, 3)
                for text in entries:
                    found = entry_of(text, "here")
                    assert (found.given, found.checksum) == (again.outstanding.given, again.outstanding.checksum)
                    again.take(found)
                assert summary(again) == summary(original)
        assert held > 50


def of_spec(policy: str, seed: int) -> Registry:
    return Registry(Scheduler(Spec.of(SPEC).cluster.capacities(), POLICIES[policy], RULES, seed))


def summary(found: Registry) -> Any:
    jobs = found.state.jobs.values()
    return (
        found.outstanding.checksum,
        [(job.job_id, job.phase, job.size, job.feedback, job.growing, job.why) for job in jobs],
        sorted(map(str, found.state.ledger.all())),
        [job.job_id for job in found.state.queue],
        found.timeline.decisions,
        found.timeline.trials,
        {job.job_id: found.outstanding.of(job.job_id) for job in jobs},
    )


UNIT = Resources(1, 1024)


def test_orders_are_outstanding_until_they_are_answered() -> None:
    found = Outstanding()
    start, grow = e.StartJob("a", (), False), e.GrowJob("a", ())
    shrink, end = e.ShrinkJob("a", ("c1", "c2")), e.EndJob("a", False, "why")
    assert found.take(e.JobSubmitted(JobRequest("a", "s", 2, 1, UNIT, UNIT, UNIT, 8, 8)), [start]) == [(1, start)]
    assert found.there() == ["a"] and not found.has_started("a")
    found.take(e.JobStarted("a"), [e.Explain("why", ("a",)), grow])
    found.take(e.Iterated("a", 1), [shrink])
    assert found.of("a") == [(2, grow), (3, shrink)] and found.has_started("a")
    found.take(e.ContainersGone("a", ("c1",)), [])
    found.take(e.GrowthDone("a"), [end])
    assert found.of("a") == [(3, shrink), (4, end)]
    found.take(e.ShrinkFailed("a", ("c2",), "why"), [])
    assert found.of("a") == [(4, end)]
    found.take(e.JobEnded("a", Phase.KILLED), [])
    assert found.of("a") == [] and found.there() == [] and found.given == 4


# ---- failures


@pytest.mark.usefixtures("few_are_kept", "grows")
@pytest.mark.parametrize("policy", ("elastic", "kill"))
def test_a_scheduler_may_crash_during_any_compaction(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[None] = []

    def compact(self: DyingRecord, *args: Any) -> None:
        begins.append(self.world.moment())
        SqliteRecord.compact(self, *args)
        self.world.moment()

    monkeypatch.setattr(DyingRecord, "compact", compact, raising=False)
    undisturbed, scheduler = run(policy, tmp_path, 0, monkeypatch)
    assert len(begins) > 5 and len(scheduler.look_ups.submissions()) == 5 and len(scheduler.state.jobs) < 5
    scheduler.close()
    for dies_at in range(1, undisturbed.moments + 1, 9):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        world, scheduler = run(policy, directory, dies_at, monkeypatch)
        assert world.deaths == 1 and scheduler.leaked() == 0
        assert {each.phase for each in scheduler.look_ups.submissions()} <= {Phase.FINISHED, Phase.KILLED}
        for job in world.jobs.values():
            assert job.ended is not None
            assert job.starts == sum(isinstance(order, e.StartJob) for order in job.done.values())
        scheduler.close()


# ---- ended jobs


@pytest.fixture
def grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact the record every few events."""
    monkeypatch.setattr(recorder, "GROWN_BYTES", 1000)
    monkeypatch.setattr(recorder, "GROWN_TIMES", 0)


def scheduler_of(directory: Path) -> LiveScheduler:
    return LiveScheduler(nodes(2), LiveSettings(), record=SqliteRecord(directory / "record.sqlite"))


def ended(scheduler: LiveScheduler, number: int) -> None:
    """Submit a job and end it."""
    scheduler.submit(e.JobSubmitted(request(f"t{number}")), JobSpec(), {"number": number})
    scheduler.settle(TIMEOUT_S)
    scheduler._events.put(e.Iterated(f"t{number}", 7, (0.1,)))
    scheduler._events.put(e.JobEnded(f"t{number}", Phase.FINISHED, loss=0.5))
    scheduler.settle(TIMEOUT_S)


class SlowToRead(dict[str, Any]):
    """A dictionary that waits for ``goes_on`` while it is read."""

    def __init__(self, items: dict[str, Any]) -> None:
        super().__init__(items)
        self.inside, self.goes_on = threading.Event(), threading.Event()

    def items(self) -> Any:
        for item in super().items():
            self.inside.set()
            assert self.goes_on.wait(TIMEOUT_S)
            yield item


SAID: dict[str, Callable[[LiveScheduler, str], None]] = {
    "closed": lambda scheduler, sweep: scheduler.close_sweep(sweep, "enough"),
    "tables": lambda scheduler, sweep: scheduler.open_sweep(e.SweepOpened(sweep), {"sweep": {"trials": 1}}),
    "ended": lambda scheduler, sweep: scheduler.note_end(sweep),
}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("kind", SAID)
def test_a_record_is_compacted_while_other_threads_open_sweeps(tmp_path: Path, kind: str) -> None:
    scheduler = scheduler_of(tmp_path)
    scheduler.open_sweep(e.SweepOpened("early"), {"sweep": {"trials": 1}})
    SAID[kind](scheduler, "early")
    scheduler.settle(TIMEOUT_S)
    slow = SlowToRead(getattr(scheduler.registry, kind))
    setattr(scheduler.registry, kind, slow)
    recorder = scheduler._recorder
    assert recorder is not None

    def speak(scheduler: LiveScheduler) -> None:
        assert slow.inside.wait(TIMEOUT_S)
        speaker = threading.Thread(target=SAID[kind], args=(scheduler, "late"), daemon=True)
        speaker.start()
        # It waits for the scheduler, or is done.
        speaker.join(0.2)
        slow.goes_on.set()
        speaker.join(TIMEOUT_S)
        assert not speaker.is_alive()

    def compact(scheduler: LiveScheduler) -> None:
        scheduler.ask(recorder._compact)

    both = (compact, speak)
    assert at_once(2, lambda number: both[number](scheduler)) == [None, None]
    scheduler.settle(TIMEOUT_S)
    assert set(getattr(scheduler.registry, kind)) == {"early", "late"}
    scheduler.close(leave=True)


@pytest.mark.usefixtures("world", "few_are_kept", "grows")
def test_ended_jobs_are_counted_without_reading_those_that_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(tmp_path)
    for number in range(12):
        ended(scheduler, number)
    assert len(scheduler.look_ups.current("sweep")) < 12
    monkeypatch.delattr(Rows, "_jobs")
    assert scheduler.look_ups.num_over("sweep") == 12 and scheduler.look_ups.num_over("other") == 0
    scheduler.close(leave=True)


@pytest.mark.usefixtures("world", "few_are_kept", "grows")
def test_the_record_and_its_reads_do_not_grow_with_ended_jobs(tmp_path: Path) -> None:
    scheduler = scheduler_of(tmp_path)
    for number in range(60):
        ended(scheduler, number)
    recorder = scheduler._recorder
    assert recorder is not None and recorder._record.entries_bytes + recorder._record.snapshot_bytes < 60_000
    assert len(scheduler.state.jobs) < 10 and len(scheduler.registry.timeline.trials) < 10
    scheduler.close(leave=True)
    again = scheduler_of(tmp_path)
    assert len(again.state.jobs) < 10
    # Look-ups return the same as before.
    assert {each.job_id for each in again.look_ups.submissions("sweep")} == {f"t{number}" for number in range(60)}
    found = again.look_ups.submission("t3")
    assert found is not None and found.is_over and found.wait(0.0)
    assert (found.phase, found.loss, found.iteration, found.point) == (Phase.FINISHED, 0.5, 7, {"number": 3})
    told = report_of(again, "sweep")
    assert [trial["job_id"] for trial in told["trials"]] == [f"t{number}" for number in range(60)]
    assert told["completed"] == 60 and told["trials"][3]["loss"] == 0.5 and told["trials"][3]["point"] == {"number": 3}
    assert sum("t3 starts" in decision["sentence"] for decision in told["decisions"]) == 1
    assert len(report_of(again, "")["trials"]) < 10, "everything that is not forgotten"
    with pytest.raises(ConfigError, match=r"'t3', .* already used"):
        again.submit(e.JobSubmitted(request("t3")), JobSpec())
    again.cancel("t3", "too late")
    # An event that crosses with the job's end has no effect.
    again._events.put(e.GrowthDone("t3"))
    again.settle(TIMEOUT_S)
    again.close()


@pytest.mark.usefixtures("world", "few_are_kept", "grows")
def test_jobs_stay_while_the_record_cannot_be_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: SqliteRecord, *args: Any) -> None:
        raise StorageError("database or disk is full")

    scheduler = scheduler_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteRecord, "compact", full)
        for number in range(10):
            ended(scheduler, number)
    assert len(scheduler.state.jobs) == 10
    for number in range(10, 20):
        ended(scheduler, number)
    assert len(scheduler.state.jobs) < 10 and len(scheduler.look_ups.submissions()) == 20
    scheduler.close()


@pytest.mark.usefixtures("world", "few_are_kept", "grows")
def test_a_service_resumes_from_a_snapshot(tmp_path: Path) -> None:
    directory = ServiceDir(tmp_path / "service")
    tables = {
        "sweep": {"trials": 6, "algorithm": "random"},
        "space": {"learning_rate": {"uniform": [0.1, 1]}},
        # The data need only exist: no job reads it.
        "job": {"data": __file__},
    }
    with Service(directory, ServiceSettings(nodes=2)) as service, SchedulerClient(directory) as client:
        client.run_sweep(tables, "a")
        for number in range(1, 7):
            job_id = f"a-trial-{number}"
            wait_for(lambda job_id=job_id: _runs(service, job_id), TIMEOUT_S, f"{job_id} to run")
            service.scheduler._events.put(e.FeedbackGiven(job_id, 1.0))
            service.scheduler._events.put(e.JobEnded(job_id, Phase.FINISHED, loss=1.0 / number))
        wait_for(lambda: service.sweeps.has_ended("a"), TIMEOUT_S, "the end of the sweep")
        # More events, for another compaction.
        for number in range(3):
            client.submit_job(f"t{number}", JobSpec())
        wait_for(lambda: _runs(service, "t0"), TIMEOUT_S, "the last job to run")
        told, _ = client.report("a")
        service.leave()
    with Service(directory, ServiceSettings()) as service, SchedulerClient(directory) as client:
        assert "a-trial-1" not in service.scheduler.state.jobs and _runs(service, "t0")
        # Its threads need not check it again.
        assert service.sweeps.has_ended("a") and not service.sweeps._threads
        assert client.run_sweep(tables, "a") == "a" and not service.sweeps._threads
        found, has_ended = client.report("a")
        assert has_ended and found["best"] == told["best"] and found["spec"]["sweep"] == told["spec"]["sweep"]
        assert [trial["loss"] for trial in found["trials"]] == [1.0 / number for number in range(1, 7)]
        assert found["decisions"] == told["decisions"]
        assert client.job("a-trial-1")["phase"] == "finished" and client.job("a-trial-1")["arrived_s"] is not None
        assert {job["job_id"] for job in client.jobs("a")[0]} == {f"a-trial-{number}" for number in range(1, 7)}
        look = look_of(service.scheduler, Look(metric=""))
        assert len(look.rows) < 6 and look.jobs[Phase.FINISHED] == 6
        trials = Counter(look.gone_trials) + Counter((row.sweep, row.phase) for row in look.rows)
        assert trials["a", Phase.FINISHED] == 6, "jobs that have left are counted"
        whole = look_of(service.scheduler, Look(metric="loss"), "a", {})
        assert [row.value for row in whole.rows] == [1.0 / number for number in range(1, 7)], "a terminal shows them"
        rows = {row.job_id: row for row in look.rows}
        assert rows["t0"].phase is Phase.EARLY_FEEDBACK and rows["t0"].workers > 0
        assert look.num_decisions == service.scheduler.state.number_of_decision and look.used_vcores > 0
        with pytest.raises(ConfigError, match="must be an unused name"):
            client.run_sweep({"sweep": {"trials": 2}}, "a")


@pytest.mark.usefixtures("world")
def test_the_next_attempt_resumes_from_the_shared_record_and_fences_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_RETRY_S", 0.02)
    storage, superseded = LoggedStorage(), threading.Event()

    def begun(attempt: int) -> tuple[Service, SchedulerClient]:
        directory = ServiceDir(tmp_path / str(attempt))
        directory.path.mkdir(mode=0o700)
        record = LogRecord(storage, "scheduler", directory.path / "rows.sqlite", superseded.set)
        return Service(directory, ServiceSettings(nodes=2), record=record), SchedulerClient(directory)

    first, client = begun(1)
    with client:
        client.submit_job("t1", JobSpec())
    second, client = begun(2)
    first.scheduler.cancel("t1", "enough")
    assert superseded.wait(TIMEOUT_S)
    first.leave()
    first.close()
    with client:
        assert client.job("t1")["phase"] == "early feedback", "an event that was not written has no effect"
        client.cancel("t1", "enough")
        wait_for(lambda: client.job("t1")["is_over"], TIMEOUT_S, "the end of the job")
    second.close()


def _runs(service: Service, job_id: str) -> bool:
    job = service.scheduler.state.jobs.get(job_id)
    return job is not None and job.phase.runs
