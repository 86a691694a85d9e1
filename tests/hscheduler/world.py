"""Jobs in memory that outlive their schedulers, as real jobs do; they identify an order by its number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live.job_state import Seat

ITERATIONS = 40
STEP = 5
FEEDBACK_AT = 10
#: Iterations at which a stopping rule may judge a job; a scheduler whose rule does not ignores them.
RUNGS = (10, 20)


class Died(BaseException):
    """Stands for the end of the scheduler's process."""


@dataclass
class WorldJob:
    """A job's processes."""

    containers: set[str] = field(default_factory=set)
    iteration: int = 0
    ended: Phase | None = None
    done: dict[int, e.Order] = field(default_factory=dict)
    starts: int = 0


class World:
    """The existing jobs, of any scheduler."""

    def __init__(self, dies_at: int) -> None:
        self.jobs: dict[str, WorldJob] = {}
        self.watchers: dict[str, FakeLive] = {}
        self.moments = 0
        self.deaths = 0
        #: Events while jobs iterate.
        self.told: list[tuple[Callable[[e.Event], None], e.Event]] | None = None
        self._dies_at = dies_at

    def moment(self) -> None:
        """Mark a moment at which the process may be killed."""
        self.moments += 1
        if self.moments == self._dies_at:
            self.deaths += 1
            raise Died

    def tick(self) -> None:
        """Let all jobs iterate while their scheduler is idle; it gets the events afterwards, in a fixed order."""
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
    """Fake of a live job of one scheduler."""

    def __init__(self, world: World, job_id: str, say: Callable[[e.Event], None]) -> None:
        self.name = job_id
        self.is_alive = True
        self._has_told_end = False
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

    def restore(
        self, iteration: int, seats: Mapping[str, Seat], has_feedback: bool, has_started: bool, num_rungs: int
    ) -> None:
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
        for rung in RUNGS:
            if job.iteration >= rung:
                self._say(e.RungReached(self._job_id, rung, float(self._job_id[1:])))
        if job.iteration >= ITERATIONS and job.ended is None:
            job.ended = Phase.FINISHED
        if job.ended is not None:
            self._tell_end(job.ended)

    def _tell_end(self, phase: Phase) -> None:
        """Report the end of an attempt, once."""
        if not self._has_told_end:
            self._has_told_end = True
            self._say(e.JobEnded(self._job_id, phase, loss=0.5 if phase is Phase.FINISHED else None))

    def obey(self, number: int, order: e.Order) -> None:
        self._world.moment()
        job = self.job
        again = number in job.done
        if again:
            assert job.done[number] == order, "a number identifies one order"
        job.done[number] = order
        match order:
            case e.StartJob(_, containers):
                self._has_told_end = False
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
                assert again or job.containers >= set(containers), (
                    "a job holds the containers that it is ordered to release"
                )
                job.containers -= set(containers)
                self._world.moment()
                self._say(e.ContainersGone(self._job_id, containers))
            case e.EndJob(_, _, _, after):
                if job.ended is None:
                    job.ended, job.containers = Phase.KILLED, set()
                    job.iteration = after or job.iteration
                self._world.moment()
                self._tell_end(job.ended)

    def retire(self) -> None:
        pass

    def close(self) -> None:
        pass

    leave = close
