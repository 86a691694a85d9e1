"""A scheduler that dies at any moment, and the next one with its journal: nothing is done twice, nothing is forgotten.

The jobs here are records in memory that outlive their schedulers, as real ones do; they know an order by its number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from eps.config import JobSpec
from eps.errors import ConfigError, StorageError
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Resources
from hscheduler.live import scheduler as live
from hscheduler.live.journal import Entry, EventJournal
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from tests.hscheduler.toy import UNIT, nodes, request

TRIALS = 5
ITERATIONS = 40
STEP = 5
FEEDBACK_AT = 10


class Died(BaseException):
    """The scheduler's process is gone."""


@dataclass
class WorldJob:
    """A job's processes."""

    containers: set[str] = field(default_factory=set)
    iteration: int = 0
    ended: Phase | None = None
    done: dict[int, e.Order] = field(default_factory=dict)
    starts: int = 0


class World:
    """The jobs that there are, whoever their scheduler is."""

    def __init__(self, dies_at: int) -> None:
        self.jobs: dict[str, WorldJob] = {}
        self.watchers: dict[str, FakeLive] = {}
        self.moments = 0
        self.deaths = 0
        #: What is said while jobs iterate.
        self.told: list[tuple[Callable[[e.Event], None], e.Event]] | None = None
        self._dies_at = dies_at

    def moment(self) -> None:
        """A moment at which the process may be killed."""
        self.moments += 1
        if self.moments == self._dies_at:
            self.deaths += 1
            raise Died

    def tick(self) -> None:
        """Let all jobs iterate, while their scheduler rests; it hears of it afterwards, in one order."""
        self.told = []
        for job_id, job in self.jobs.items():
            watcher = self.watchers.get(job_id)
            if job.ended is None and job.containers and watcher is not None:
                job.iteration += STEP
                watcher.tell_how_far()
        told, self.told = self.told, None
        for say, event in told:
            say(event)


class FakeLive:
    """Stands in for a live job of one scheduler."""

    def __init__(self, world: World, job_id: str, say: Callable[[e.Event], None]) -> None:
        self.report: dict[str, Any] | None = None
        self.name = job_id
        self._world, self._job_id, self._speak = world, job_id, say
        world.watchers[job_id] = self

    def _say(self, event: e.Event) -> None:
        if self._world.told is None:
            self._speak(event)
        else:
            self._world.told.append((self._speak, event))

    @property
    def job(self) -> WorldJob:
        return self._world.jobs.setdefault(self._job_id, WorldJob())

    def go_on(self, iteration: int, members: Mapping[str, str], has_feedback: bool, has_started: bool) -> None:
        if has_started:
            self._take_up()

    def _take_up(self) -> None:
        self._say(e.JobStarted(self._job_id))
        self.tell_how_far()

    def tell_how_far(self) -> None:
        job = self.job
        if job.iteration:
            self._say(e.Iterated(self._job_id, job.iteration, (0.1,) * 3))
        if job.iteration >= FEEDBACK_AT:
            self._say(e.FeedbackGiven(self._job_id, float(self._job_id[1:])))
        if job.iteration >= ITERATIONS and job.ended is None:
            job.ended = Phase.FINISHED
        if job.ended is not None:
            self._say(e.JobEnded(self._job_id, job.ended, loss=0.5))

    def obey(self, number: int, order: e.Order) -> None:
        self._world.moment()
        job = self.job
        again = number in job.done
        if again:
            assert job.done[number] == order, "a number is of one order"
        job.done[number] = order
        match order:
            case e.StartJob(_, containers):
                if not again:
                    job.starts += 1
                    job.ended = None
                    job.containers = {each.container_id for each in containers}
                self._world.moment()
                self._take_up()
            case e.GrowJob(_, containers):
                if not again:
                    job.containers |= {each.container_id for each in containers}
                self._world.moment()
                self._say(e.GrowthDone(self._job_id))
            case e.ShrinkJob(_, containers):
                assert again or job.containers >= set(containers), "what a job is to release it has"
                job.containers -= set(containers)
                self._world.moment()
                self._say(e.ContainersGone(self._job_id, containers))
            case e.EndJob():
                if job.ended is None:
                    job.ended, job.containers = Phase.KILLED, set()
                self._world.moment()
                self._say(e.JobEnded(self._job_id, job.ended))

    def retire(self) -> None:
        pass

    def close(self) -> None:
        pass

    leave = close


class DyingJournal(EventJournal):
    """A journal whose process may be killed before and after it writes."""

    world: World

    def append(self, entry: Entry) -> None:
        self.world.moment()
        super().append(entry)
        self.world.moment()


def run(policy: str, directory: Path, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> tuple[World, LiveScheduler]:
    """Run a sweep whose scheduler dies once, or never; return what became of it."""
    world = World(dies_at)

    def fake(
        job_id: str, name: str, spec: JobSpec, metric: str, iteration: int, say: Any, *rest: Any, **more: Any
    ) -> Any:
        return FakeLive(world, job_id, say)

    monkeypatch.setattr(live, "LiveJob", fake)
    # A thread that died is what this is about.
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    while True:
        journal = DyingJournal(directory / "journal")
        journal.world = world
        try:
            settings = LiveSettings(policy, feedback_iteration=FEEDBACK_AT, threshold=2)
            scheduler = LiveScheduler(nodes(3), settings, journal=journal)
        except Died:
            journal.close()
            continue
        if drive(world, scheduler):
            return world, scheduler
        journal.close()


def rests(scheduler: LiveScheduler) -> bool:
    """Wait until a scheduler has nothing more to do; return False where it died."""
    while True:
        taken = threading.Event()
        scheduler._events.put(taken)
        while not taken.wait(0.01):
            if not scheduler._thread.is_alive():
                return False
        # What is said on its own thread comes behind.
        if scheduler._events.empty():
            return True


def drive(world: World, scheduler: LiveScheduler) -> bool:
    """Submit all trials and let jobs iterate until all are over; return False where the scheduler died."""
    for _ in range(20 * ITERATIONS):
        for number in range(TRIALS):
            job_id = f"t{number}"
            if scheduler.submission(job_id) is None:
                scheduler.submit(e.JobSubmitted(request(job_id, most_workers=4, most_servers=2)), JobSpec())
            if not rests(scheduler):
                return False
        if all(each.is_over for each in scheduler.submissions()):
            return True
        world.tick()
    raise AssertionError("the sweep does not end")


@pytest.mark.parametrize("policy", ("elastic", "kill", "static-stop"))
def test_a_scheduler_may_die_at_every_step_of_a_decision(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, scheduler = run(policy, tmp_path, 0, monkeypatch)
    scheduler.close()
    assert undisturbed.deaths == 0 and undisturbed.moments > 60
    for dies_at in range(1, undisturbed.moments + 1):
        directory = tmp_path / str(dies_at)
        directory.mkdir()
        world, scheduler = run(policy, directory, dies_at, monkeypatch)
        assert world.deaths == 1
        assert scheduler.leaked() == 0
        # Which of them the stopping rule ends depends on which were in training together.
        phases = {each.phase for each in scheduler.submissions()}
        assert Phase.FINISHED in phases and phases <= {Phase.FINISHED, Phase.KILLED}
        for job_id, job in world.jobs.items():
            assert job.ended is not None, f"{job_id} runs, and nobody knows it"
            starts = [order for order in job.done.values() if isinstance(order, e.StartJob)]
            assert job.starts == len(starts)
        scheduler.close()


def journal_of(directory: Path) -> EventJournal:
    return EventJournal(directory / "journal")


def test_a_journal_goes_on_with_what_it_was_begun_with(tmp_path: Path) -> None:
    LiveScheduler(nodes(2), LiveSettings("elastic"), journal=journal_of(tmp_path)).close()
    with pytest.raises(ConfigError, match=r"was begun with policy 'elastic' \(not 'static'\): go on with that"):
        LiveScheduler(nodes(2), LiveSettings("static"), journal=journal_of(tmp_path))
    with pytest.raises(ConfigError, match="was begun with nodes"):
        LiveScheduler(nodes(3), LiveSettings("elastic"), journal=journal_of(tmp_path))


def test_a_journal_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    LiveScheduler(nodes(1), LiveSettings("elastic"), journal=journal_of(tmp_path)).close()
    journal = journal_of(tmp_path)
    journal.append(Entry(1.0, e.NodeCame("more", Resources(1, 1024)), given=4))
    journal.close()
    with pytest.raises(StorageError, match=r"4 orders had been given before NodeCame .* leads to 0"):
        LiveScheduler(nodes(1), LiveSettings("elastic"), journal=journal_of(tmp_path))


def test_time_goes_on_where_it_was(tmp_path: Path) -> None:
    scheduler = LiveScheduler(nodes(1), LiveSettings("elastic"), journal=journal_of(tmp_path))
    scheduler.close()
    journal = journal_of(tmp_path)
    journal.append(Entry(5000.0, e.NodeCame("more", UNIT)))
    journal.close()
    again = LiveScheduler(nodes(1), LiveSettings("elastic"), journal=journal_of(tmp_path))
    assert again.now_s() >= 5000.0
    again.close()
