"""A journal that is begun anew: what follows from it is what follows from the whole, whenever, and whatever fails."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eps.errors import ConfigError, StorageError
from eps.spec.job_spec import JobSpec
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core import snapshot
from hscheduler.core.decisions import Decision
from hscheduler.core.jobs import Phase
from hscheduler.core.record import Record
from hscheduler.core.state import Scheduler
from hscheduler.live import journal as journals
from hscheduler.live import known
from hscheduler.live.journal import TIME_DIGITS, Entry, EventJournal, Header
from hscheduler.live.known import Known
from hscheduler.live.past import Past
from hscheduler.live.reporting import report_of
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.live.submission import Submission
from hscheduler.policies import POLICIES
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
from hscheduler.simulator import engine
from hscheduler.simulator.run import simulate
from hscheduler.spec import Spec
from tests.hscheduler.test_killed_scheduler import DyingJournal, run
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
    """Forget nearly every job that is over, and nearly all that was decided."""
    monkeypatch.setattr(known, "LATEST_OVER", 1)
    monkeypatch.setattr("hscheduler.core.record.LATEST_DECISIONS", 2)


def take(found: Known, at_s: float, event: e.Event) -> list[e.Command]:
    """Let a scheduler without jobs take an event, as a live one does."""
    if isinstance(event, e.JobEvent) and event.job_id not in found.state.jobs:
        return []
    if isinstance(event, e.JobSubmitted):
        found.submissions[event.job_id] = Submission(event.job_id, event.sweep, f"name-{event.job_id}", JobSpec())
    elif isinstance(event, e.SweepOpened):
        found.sweeps[event.sweep] = event
    commands = found.state.step(event)
    found.record.take(at_s, event, commands, found.state)
    found.outstanding.take(event, commands)
    for command in commands:
        if isinstance(command, e.JobOver):
            found.submissions[command.job_id].end(command.phase)
    return commands


def anew(found: Known, past: Past, policy: str) -> Known:
    """Return what is known after the journal was begun anew, and a restart."""
    found.forget(past)
    return Known.of_snapshot(json.loads(json.dumps(found.snapshot())), POLICIES[policy])


def there(found: Known) -> dict[str, Any]:
    """Return the jobs that are gone on with after a restart, and what they were told."""
    jobs = [job_id for job_id in found.outstanding.there() if not found.state.jobs[job_id].phase.ended]
    return {job_id: found.outstanding.of(job_id) for job_id in jobs}


def both(happened: Happened, made: Callable[[], Known], policy: str, past: Past, lot: Random) -> tuple[Known, Known]:
    """Have events taken by a scheduler that knows all of them, and by one that is begun anew now and then."""
    whole, compacted = made(), made()
    cuts = {len(happened) - 1, *lot.sample(range(len(happened)), 8)}
    for number, (at_s, event) in enumerate(happened):
        assert take(compacted, at_s, event) == take(whole, at_s, event), (number, event)
        assert compacted.outstanding.checksum == whole.outstanding.checksum
        assert there(compacted) == there(whole)
        if number in cuts:
            compacted = anew(compacted, past, policy)
    return whole, compacted


def events_of(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> Happened:
    """Return what happens in a simulated sweep."""
    happened: Happened = []

    class Tap(Record):
        def take(self, now_s: float, event: e.Event, commands: Any, scheduler: Scheduler) -> None:
            happened.append((round(now_s, TIME_DIGITS), event))
            super().take(now_s, event, commands, scheduler)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "Record", Tap)
        simulate(Spec.of({**SPEC, "sweep": {**SPEC["sweep"], "seed": seed}}), policy)
    return happened


@pytest.mark.usefixtures("few_are_kept")
@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(2))
def test_a_simulated_sweep_is_decided_as_from_the_whole_journal(
    policy: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = events_of(policy, seed, monkeypatch)
    past = Past(tmp_path / "past")

    def made() -> Known:
        return Known(Scheduler(Spec.of(SPEC).cluster.capacities(), POLICIES[policy], seed))

    whole, compacted = both(happened, made, policy, past, Random(f"{policy}:{seed}"))
    # Nothing of the past is lost: what is forgotten is found there, as it is known from the whole.
    trials = {trial.job_id: trial for trial in past.trials("sweep")}
    assert len(trials) == 13 and trials.keys().isdisjoint(compacted.state.jobs)
    assert {**trials, **compacted.record.trials} == whole.record.trials
    decisions = dict.fromkeys([*past.decisions("sweep"), *compacted.record.decisions])
    assert list(decisions) == whole.record.decisions
    assert {each.job_id: each.phase for each in past.submissions("sweep")} == {
        job_id: whole.submissions[job_id].phase for job_id in trials
    }
    past.close()


@pytest.mark.usefixtures("few_are_kept")
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_random_histories_with_faults_are_decided_as_from_the_whole_journal(policy: str, tmp_path: Path) -> None:
    past = Past(tmp_path / "past")
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

        def made(capacities: Any = capacities, seed: int = seed) -> Known:
            return Known(Scheduler(capacities, POLICIES[policy], seed))

        both(happened, made, policy, past, history.draw)
    past.close()


# ---- whatever fails


class Killed(BaseException):
    """The process is gone."""


#: What is asked of the operating system when a journal is begun anew.
CALLS = ("open", "fdopen", "fchmod", "fsync", "replace", "stat", "close", "unlink")


@contextmanager
def failing(at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the ``at``-th call fail, counted from 0; yield the calls."""
    called: list[str] = []

    def patched(name: str, real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            called.append(name)
            if len(called) == at + 1:
                raise error
            return real(*args, **more)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, patched(name, getattr(os, name)))
        yield called


def restarted(path: Path) -> Known:
    """Return what the journal of a scheduler without jobs leads to."""
    with EventJournal(path) as opened:
        found = Known(Scheduler(Spec.of(SPEC).cluster.capacities(), POLICIES["elastic"]))
        if opened.snapshot is not None:
            found = Known.of_snapshot(opened.snapshot, POLICIES["elastic"])
        for entry in opened.entries():
            assert (entry.given, entry.checksum) == (found.outstanding.given, found.outstanding.checksum)
            take(found, entry.at_s, entry.event)
    return found


def written(opened: EventJournal, found: Known, happened: Happened) -> None:
    """Let events happen that are written, as a keeper does it."""
    for at_s, event in happened:
        entry = Entry(at_s, event, given=found.outstanding.given, checksum=found.outstanding.checksum)
        try:
            opened.append(entry)
        except StorageError:
            opened.begin_anew(HEADER, found.snapshot())
            opened.append(entry)
        take(found, at_s, event)


@pytest.mark.usefixtures("few_are_kept")
@pytest.mark.parametrize("is_killed", (False, True))
def test_at_every_moment_one_of_the_two_is_there_whole(
    is_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = events_of("elastic", 0, monkeypatch)
    before, after, rest = happened[:60], happened[60:90], happened[90:]
    for at in count():
        directory = tmp_path / str(at)
        directory.mkdir()
        path, past = directory / "journal", Past(directory / "past")
        opened = EventJournal(path)
        opened.begin(HEADER)
        found = Known(Scheduler(Spec.of(SPEC).cluster.capacities(), POLICIES["elastic"]))
        written(opened, found, before)
        found.forget(past)
        error = Killed() if is_killed else OSError(errno.ENOSPC, "no space left on device")
        with failing(at, error, monkeypatch) as called, suppress(StorageError, Killed):
            opened.begin_anew(HEADER, found.snapshot())
        if is_killed:
            opened.close()
            opened = EventJournal(path)
            list(opened.entries())
            assert not list(directory.glob(".journal*")), "nothing is left of the other one"
        written(opened, found, after)
        opened.close()
        again = restarted(path)
        for at_s, event in rest:
            assert take(again, at_s, event) == take(found, at_s, event)
        past.close()
        if len(called) <= at:
            break
    assert at > 10, "each call has failed once"


@pytest.mark.usefixtures("few_are_kept", "grows")
@pytest.mark.parametrize("policy", ("elastic", "kill"))
def test_a_scheduler_may_die_whenever_its_journal_is_begun_anew(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[None] = []

    def begin_anew(self: DyingJournal, *args: Any) -> None:
        begins.append(self.world.moment())
        EventJournal.begin_anew(self, *args)
        self.world.moment()

    monkeypatch.setattr(DyingJournal, "begin_anew", begin_anew, raising=False)
    undisturbed, scheduler = run(policy, tmp_path, 0, monkeypatch)
    scheduler.close()
    assert len(begins) > 5 and len(scheduler.submissions()) == 5 and len(scheduler.state.jobs) < 5
    for dies_at in range(1, undisturbed.moments + 1, 9):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        world, scheduler = run(policy, directory, dies_at, monkeypatch)
        assert world.deaths == 1 and scheduler.leaked() == 0
        assert {each.phase for each in scheduler.submissions()} <= {Phase.FINISHED, Phase.KILLED}
        for job in world.jobs.values():
            assert job.ended is not None
            assert job.starts == sum(isinstance(order, e.StartJob) for order in job.done.values())
        scheduler.close()


# ---- what is past


@pytest.fixture
def grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin the journal anew every few events."""
    monkeypatch.setattr(journals, "GROWN_BYTES", 1000)
    monkeypatch.setattr(journals, "GROWN_TIMES", 1)


def scheduler_of(directory: Path) -> LiveScheduler:
    return LiveScheduler(nodes(2), LiveSettings(), journal=EventJournal(directory / "journal"))


def ended(scheduler: LiveScheduler, number: int) -> None:
    """Submit a job, and let it end."""
    scheduler.submit(e.JobSubmitted(request(f"t{number}")), JobSpec(), {"number": number})
    scheduler.settle(TIMEOUT_S)
    scheduler._events.put(e.Iterated(f"t{number}", 7, (0.1,)))
    scheduler._events.put(e.JobEnded(f"t{number}", Phase.FINISHED, loss=0.5))
    scheduler.settle(TIMEOUT_S)


class SlowToRead(dict[str, Any]):
    """A dictionary that waits for ``goes_on`` in the middle of being read."""

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
def test_a_journal_is_begun_anew_while_others_speak_of_sweeps(tmp_path: Path, kind: str) -> None:
    scheduler = scheduler_of(tmp_path)
    scheduler.open_sweep(e.SweepOpened("early"), {"sweep": {"trials": 1}})
    SAID[kind](scheduler, "early")
    scheduler.settle(TIMEOUT_S)
    slow = SlowToRead(getattr(scheduler, kind))
    setattr(scheduler, kind, slow)
    keeper = scheduler._keeper
    assert keeper is not None

    def speak(scheduler: LiveScheduler) -> None:
        assert slow.inside.wait(TIMEOUT_S)
        speaker = threading.Thread(target=SAID[kind], args=(scheduler, "late"), daemon=True)
        speaker.start()
        # It waits for the scheduler, or has spoken.
        speaker.join(0.2)
        slow.goes_on.set()
        speaker.join(TIMEOUT_S)
        assert not speaker.is_alive()

    def begin_anew(scheduler: LiveScheduler) -> None:
        scheduler.ask(keeper._begin_anew)

    both = (begin_anew, speak)
    assert at_once(2, lambda number: both[number](scheduler)) == [None, None]
    scheduler.settle(TIMEOUT_S)
    assert set(getattr(scheduler, kind)) == {"early", "late"}
    scheduler.close(leave=True)


@pytest.mark.usefixtures("world", "few_are_kept", "grows")
def test_a_journal_and_what_is_read_of_it_do_not_grow_with_the_jobs_that_are_over(tmp_path: Path) -> None:
    scheduler = scheduler_of(tmp_path)
    for number in range(60):
        ended(scheduler, number)
    assert (tmp_path / "journal").stat().st_size < 30_000
    assert len(scheduler.state.jobs) < 10 and len(scheduler.record.trials) < 10
    scheduler.close(leave=True)
    again = scheduler_of(tmp_path)
    assert len(again.state.jobs) < 10
    # Everything about them is known as before.
    assert {each.job_id for each in again.submissions("sweep")} == {f"t{number}" for number in range(60)}
    assert set(again.job_ids()) == {each.job_id for each in again.submissions()}
    found = again.submission("t3")
    assert found is not None and found.is_over and found.wait(0.0)
    assert (found.phase, found.loss, found.iteration, found.point) == (Phase.FINISHED, 0.5, 7, {"number": 3})
    told = report_of(again, "sweep")
    assert [trial["job_id"] for trial in told["trials"]] == [f"t{number}" for number in range(60)]
    assert told["completed"] == 60 and told["trials"][3]["loss"] == 0.5 and told["trials"][3]["point"] == {"number": 3}
    assert sum("t3 starts" in decision["sentence"] for decision in told["decisions"]) == 1
    assert len(report_of(again, "")["trials"]) < 10, "of everything, what is not forgotten"
    with pytest.raises(ConfigError, match="must be one that was never used with this scheduler"):
        again.submit(e.JobSubmitted(request("t3")), JobSpec())
    again.cancel("t3", "too late")
    # What crossed with its end does no harm.
    again._events.put(e.GrowthDone("t3"))
    again.settle(TIMEOUT_S)
    again.close()


@pytest.mark.usefixtures("world", "few_are_kept", "grows")
def test_jobs_are_not_forgotten_where_their_past_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Past, *args: Any) -> None:
        raise StorageError("database or disk is full")

    scheduler = scheduler_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Past, "keep", full)
        for number in range(10):
            ended(scheduler, number)
    assert len(scheduler.state.jobs) == 10
    for number in range(10, 20):
        ended(scheduler, number)
    assert len(scheduler.state.jobs) < 10 and len(scheduler.submissions()) == 20
    scheduler.close()


@pytest.mark.usefixtures("world", "few_are_kept", "grows")
def test_a_service_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    directory = ServiceDir(tmp_path / "service")
    tables = {
        "sweep": {"trials": 6, "algorithm": "random"},
        "space": {"learning_rate": {"uniform": [0.1, 1]}},
        # Data that is there is enough: nobody reads it.
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
        # More, so that it is begun anew once more.
        for number in range(3):
            client.submit_job(f"t{number}", JobSpec())
        wait_for(lambda: _runs(service, "t0"), TIMEOUT_S, "the last job to run")
        told, _ = client.report("a")
        service.leave()
    with Service(directory, ServiceSettings()) as service, SchedulerClient(directory) as client:
        assert "a-trial-1" not in service.scheduler.state.jobs and _runs(service, "t0")
        # Its threads need not look at it once more.
        assert service.sweeps.has_ended("a") and not service.sweeps._threads
        assert client.run_sweep(tables, "a") == "a" and not service.sweeps._threads
        found, has_ended = client.report("a")
        assert has_ended and found["best"] == told["best"] and found["spec"]["sweep"] == told["spec"]["sweep"]
        assert [trial["loss"] for trial in found["trials"]] == [1.0 / number for number in range(1, 7)]
        assert found["decisions"] == told["decisions"]
        assert client.job("a-trial-1")["phase"] == "finished" and client.job("a-trial-1")["arrived_s"] is not None
        assert {job["job_id"] for job in client.jobs("a")[0]} == {f"a-trial-{number}" for number in range(1, 7)}
        look = service.observer.view.look()
        rows = {row.job_id: row for row in look.rows}
        assert rows["t0"].phase is Phase.EARLY_FEEDBACK and rows["t0"].workers > 0
        assert look.num_decisions == service.scheduler.state.number_of_decision and look.used_vcores > 0
        with pytest.raises(ConfigError, match="that no other sweep has"):
            client.run_sweep({"sweep": {"trials": 2}}, "a")


def _runs(service: Service, job_id: str) -> bool:
    job = service.scheduler.state.jobs.get(job_id)
    return job is not None and job.phase.runs


# ---- snapshots


def test_what_a_snapshot_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="no snapshot can be taken of a Known"):
        snapshot.take({"state": Known(Scheduler({}, lambda view: Decision()))})
    found = snapshot.take(Record())
    found["kinds"]["Record"].append("colour")
    with pytest.raises(ValueError, match="as this code takes them, but of a Record with colour"):
        snapshot.restore(found)
