"""One real job under H-scheduler: starts it, changes its size, watches it, ends it.

A loop on a thread of the job tells :class:`~hscheduler.live.job_state.JobState` what happens, says to the scheduler
what follows from that, and carries out what is to be done next; while a change of size is on its way it looks at that,
so nothing else waits for its end.  Another thread reads the news that the job's master sends.  What happens is said as
events of the scheduler's state, whatever it is: a job of which something unforeseen is found is killed, and said to
have failed.

Source: EPS §5.1 (the scheduler calls the four operations of each job's master).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from eps.cluster.supervisor.start import WarmSupervisor
from eps.errors import (
    DeadlineError,
    EpsError,
    JobFinishedError,
    PeerUnavailableError,
    TrainingError,
    UnknownMemberError,
)
from eps.job.client import ChangeRecord, Job, SpareSupervisor
from eps.job.master_link import Progress
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import read_json
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Role
from hscheduler.live import job_state
from hscheduler.live.job_state import Action, JobState, Reading, Seat

logger = logging.getLogger(__name__)

#: Why a job ended that its scheduler ended when it ended itself.
ENDS = "H-scheduler ends"
#: A job has this long to end after it was told to; then its processes are ended.
END_TIMEOUT_S = 10.0
#: One that is not of this host: what it leaves is fetched when its cluster says that it has ended.
END_ELSEWHERE_TIMEOUT_S = 60.0
#: A change that is on its way is looked at for so long at a time; what the job is told meanwhile waits for that.
_LOOK_S = 0.1
#: Where its master does not wait with the answer, so long after the last look.
_PAUSE_S = 0.02
#: Called with a job's name and how it has ended.
BeforeEnd = Callable[[str, Phase], None]


def nothing(name: str, phase: Phase) -> None:
    """Leave what a job has brought where it is."""


@dataclass(frozen=True)
class Launch:
    """How a job is started."""

    #: Under ``EPS_HOME``.
    name: str
    #: Its size is that of the containers that it is started in.
    spec: JobSpec
    #: It goes on when this process ends.
    detached: bool = False
    #: In whose name its size is changed; nobody else may: its containers are granted by one scheduler.
    manager: str = "H-scheduler"
    #: For the next job of this process; without one every job waits for the imports of its processes.
    spare: SpareSupervisor | None = None
    #: Called before its end is said: leaves what it has brought where that outlives this process.  A job that
    #: finished has failed where this raises.
    before_end: BeforeEnd = nothing

    def start(self, places: Mapping[Role, Sequence[str]], *, again: bool) -> Job:
        """Start the job from its seed; ``again`` where there may be what is left of a start that was cut short."""
        workers, servers = len(places[Role.WORKER]), len(places[Role.SERVER])
        spec = self.spec.with_settings(workers=workers, servers=servers)
        # Of a start that a record forgot when the power went there may be checkpoints.
        request = RunRequest.of_spec(spec, self.name, anew=again or self.detached, manager=self.manager)
        return Job.start_request(request, detach=self.detached, warm=self._warm())

    def resume(self, places: Mapping[Role, Sequence[str]]) -> Job:
        """Have the job go on from its checkpoint."""
        workers, servers = len(places[Role.WORKER]), len(places[Role.SERVER])
        return Job.resume(self.name, workers=workers, servers=servers, detach=self.detached, warm=self._warm())

    def is_there(self, resumes: bool) -> bool:
        """Return whether a start that was ordered before was carried out then."""
        try:
            found = Job.find(self.name)
        except EpsError:
            return False
        with closing(found):
            # Before a restart it was killed; what has ended in another way is what was started then.
            state = (read_json(found.directory.report) or {}).get("state") or end_of(found)
            return found.running or (state is not None and not (resumes and state == "killed"))

    def _warm(self) -> WarmSupervisor | None:
        # One of this host begins no job elsewhere.
        return None if self.spare is None or self.spec.on != "local" else self.spare.take()


def end_of(job: Job) -> str | None:
    """Return how a job ended; None where no process has seen that."""
    end = job.directory.ended()
    return None if end is None or end.is_lost else end.state


#: What the loop is told: an order with its number, news of the job, its last report, why it cannot be watched, or what
#: is to be called; None: it is to end as soon as the job is not there.
_News = tuple[int, e.Order] | Progress | dict[str, Any] | Exception | Callable[[], None]


class LiveJob:
    """A job of this host.  Its methods may be called from any thread, and return at once but for the last two.

    Parameters
    ----------
    job_id : str
        In the sweep.
    launch : Launch
    metric : str
        ``loss``, or a metric of the test data as the report's history names it.
    feedback_iteration : int
    say : callable
        Takes events, from any thread.
    restart_s : float, seconds
        A declared delay of a restart, from the order to end until the end is said; 0.0 is what it takes.
    """

    def __init__(
        self,
        job_id: str,
        launch: Launch,
        metric: str,
        feedback_iteration: int,
        say: Callable[[e.Event], None],
        restart_s: float = 0.0,
    ) -> None:
        self.name = launch.name
        #: Its own report, once it has ended.
        self.report: dict[str, Any] | None = None
        self._launch, self._say, self._restart_s = launch, say, restart_s
        self._state = JobState(job_id, launch.name, Reading(job_id, metric, feedback_iteration))
        self._end_timeout_s = END_TIMEOUT_S if launch.spec.on == "local" else END_ELSEWHERE_TIMEOUT_S
        self._news: SimpleQueue[_News | None] = SimpleQueue()
        self._job: Job | None = None
        #: The sweep ends: the job is to be ended, wherever it is.
        self._closing = threading.Event()
        #: Nobody is to do anything about it any more.
        self._leaving = False
        self._thread = threading.Thread(target=self._serve, name=f"job {self.name}", daemon=True)
        self._watcher: threading.Thread | None = None
        self._thread.start()

    def obey(self, number: int, order: e.Order) -> None:
        """Take an order.

        Parameters
        ----------
        number : int
            The same number again is the same order: it is carried out once.
        order : Order
        """
        self._news.put((number, order))

    def go_on(self, iteration: int, seats: Mapping[str, Seat], has_feedback: bool, has_started: bool) -> None:
        """Take up a job that another process may have started; before any order.

        Parameters
        ----------
        iteration : int
            How far it was.
        seats : mapping
            Container -> who is in it.
        has_feedback : bool
            Its early feedback is known.
        has_started : bool
            It is known to have started; else an order to start it follows.
        """
        self._news.put(partial(self._state.go_on, iteration, seats, has_feedback, has_started))

    @property
    def is_alive(self) -> bool:
        """Whether any of its threads is there: that of its loop is until it is let go of, or ended."""
        return self._thread.is_alive() or (self._watcher is not None and self._watcher.is_alive())

    def retire(self) -> None:
        """Let go of a job that is over, as soon as it is not there; one that is there yet is ended."""
        self._news.put(None)

    def leave(self) -> None:
        """Let go of the job, which goes on, after what it is told to do just now."""
        self._leaving = True
        self._news.put(None)
        self._thread.join(2 * self._end_timeout_s)

    def close(self) -> None:
        """End the job, wherever it is, and wait for its threads."""
        self._closing.set()
        self._news.put(None)
        self._thread.join(2 * self._end_timeout_s)
        if self._thread.is_alive():
            # As where its master does not answer.
            self._kill(ENDS)
        if self._watcher is not None:
            self._watcher.join(2 * self._end_timeout_s)

    # ---- the loop

    def _serve(self) -> None:
        wait_s: float | None = None
        is_to_end = False
        try:
            while not self._leaving and not (is_to_end and self._state.is_done):
                try:
                    news = self._news.get(timeout=wait_s)
                except Empty:
                    # All that was told is taken.
                    wait_s = self._act()
                    continue
                wait_s = 0.0
                if news is not None:
                    self._take(news)
                is_to_end |= news is None
                if is_to_end:
                    self._state.end(ENDS)
        finally:
            if self._job is not None:
                if not self._leaving and self._state.stage is not job_state.Stage.IDLE:
                    self._kill(ENDS)
                self._job.close()

    def _act(self) -> float | None:
        """Do what is to be done next; return after how long there may be more, or None where only news can bring it."""
        if (action := self._state.next_action()) is None:
            return None
        self._carry_out(action)
        return _PAUSE_S if isinstance(action, job_state.Look) else 0.0

    def _tell(self, events: Sequence[e.Event]) -> None:
        for event in events:
            self._say(self._left(event) if isinstance(event, e.JobEnded) else event)
            if isinstance(event, e.JobStarted) and self._launch.spare is not None:
                # For the next job, now that this one does without the processors that it takes.
                self._launch.spare.refill()

    def _left(self, ended: e.JobEnded) -> e.JobEnded:
        """Leave what the job has brought; return the end that is to be said."""
        try:
            self._launch.before_end(self.name, ended.phase)
        except Exception as error:
            why = f"what it has brought is not left: {_told(error)}"
            logger.warning("%s: %s", self.name, why)
            if ended.phase is Phase.FINISHED:
                return e.JobEnded(ended.job_id, Phase.FAILED, why, pause_s=ended.pause_s)
        return ended

    def _take(self, news: _News) -> None:
        state, now_s = self._state, time.monotonic()
        try:
            match news:
                case (number, order):
                    state.obey(number, order, now_s)
                case Progress(status, history):
                    self._tell(state.progressed(status, history, now_s))
                case Exception():
                    _log(news, f"{self.name} cannot be watched")
                    self._kill(_told(news))
                    self._tell(state.lost(_told(news), now_s))
                case dict():
                    self.report = news
                    self._closing.wait(state.waits_s(news, self._restart_s, now_s))
                    self._tell(state.ended(news, time.monotonic()))
                case _:
                    news()
        except Exception as error:
            if isinstance(news, dict):
                # Nothing more will be heard of it.
                _log(error, f"the report of {self.name} cannot be read")
                self._tell(state.lost(_told(error), now_s))
            else:
                self._give_up(_told(error))

    def _give_up(self, why: str) -> None:
        """End a job of which nobody knows how it is."""
        logger.exception("%s: %s", self.name, why)
        # Where it is there, its end is said when it has ended.
        self._tell(self._state.give_up(why))

    def _carry_out(self, action: Action) -> None:
        try:
            match action:
                case job_state.Start():
                    self._start(action)
                case job_state.TakeUp():
                    self._take_up(action)
                case job_state.Kill(why):
                    self._kill(why)
                case job_state.Answer():
                    self._tell(self._state.resize.answered())
                case _:
                    self._change(action)
        except Exception as error:
            if isinstance(action, job_state.TakeUp):
                self._give_up(f"it cannot go on: {_told(error)}")
            else:
                self._give_up(f"{_name_of(action)} failed: {type(error).__name__}: {error}")

    def _start(self, start: job_state.Start) -> None:
        launch = self._launch
        is_there = start.may_be_there and launch.is_there(start.resumes)
        try:
            if self._closing.is_set():
                raise TrainingError(ENDS)
            if self._job is not None:
                # The part before has ended, and nobody watches it any more.
                self._job.close()
                self._job = None
            if is_there:
                self._job = Job.find(self.name)
            elif start.resumes:
                self._job = launch.resume(start.places)
            else:
                self._job = launch.start(start.places, again=start.may_be_there)
        except EpsError as error:
            self._tell(self._state.not_begun(f"it could not be started: {error}"))
            return
        self._begin(start, is_resumed=start.resumes and not is_there)

    def _take_up(self, take_up: job_state.TakeUp) -> None:
        found = Job.find(self.name)
        is_lost = not found.running and end_of(found) is None
        if is_lost:
            # Without a word, with the machine, say.
            found.close()
            found = self._launch.resume(take_up.places)
        self._job = found
        self._begin(take_up, is_resumed=is_lost)

    def _begin(self, start: job_state.Start | job_state.TakeUp, *, is_resumed: bool) -> None:
        self._tell(self._state.begun(start, is_resumed=is_resumed))
        after_clock = self._state.reading.seen_clock
        self._watcher = threading.Thread(
            target=self._watch, args=(after_clock,), name=f"watch {self.name}", daemon=True
        )
        self._watcher.start()

    def _change(self, action: Action) -> None:
        """Ask for a change of size, look at it, or abort it."""
        assert self._job is not None
        resize, job = self._state.resize, self._job
        try:
            match action:
                case job_state.Ask(operation, what, request_id):
                    record: ChangeRecord = job.change(
                        operation, what, wait=False, request_id=request_id, manager=self._launch.manager
                    )
                    self._tell(resize.changed(record))
                case job_state.Look(plan_id):
                    self._tell(resize.changed(job.plan(plan_id, _LOOK_S)))
                case job_state.Cancel(plan_id):
                    try:
                        job.cancel(plan_id)
                    except EpsError as error:
                        # It is committed: the shrink comes after it.
                        logger.info("%s: plan %d goes on: %s", self.name, plan_id, error)
        except JobFinishedError:
            logger.info("%s ended before it was told: %s", self.name, action)
            resize.drop()
        except UnknownMemberError:
            self._tell(resize.replaced(job.status()))
        except (DeadlineError, PeerUnavailableError):
            if not resize.unknown():
                raise
        except EpsError as error:
            self._tell(resize.refused(str(error)))

    def _kill(self, why: str) -> None:
        try:
            if self._job is not None and self._job.directory.ended() is not None:
                # Whoever finds it would have fetched what it has left, and wait for that.
                return
            # Over a line of its own: one that waits for an answer may be in use.
            with closing(Job.find(self.name)) as job:
                job.kill(why, self._end_timeout_s)
        except EpsError as error:
            logger.warning("%s: %s; it is ended at once", self.name, error)
            if self._job is not None:
                self._job.kill_at_once()

    # ---- news

    def _watch(self, after_clock: int) -> None:
        """Tell the loop what the job's master says, until the job has ended, and then its report."""
        try:
            with closing(Job.find(self.name)) as job:
                for progress in job.watch(after_clock):
                    self._news.put(progress)
                self._news.put(job.wait(self._end_timeout_s))
        except Exception as error:
            self._news.put(error)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, EpsError) else f"{type(error).__name__}: {error}"


def _log(error: Exception, what: str) -> None:
    """Log an error, one of ours without a traceback: why a job failed is said to whoever watches."""
    if isinstance(error, EpsError):
        logger.info("%s: %s", what, error)
    else:
        logger.error("%s", what, exc_info=error)


def _name_of(action: Action) -> str:
    """Return the order that an action is of, as the scheduler calls it."""
    match action:
        case job_state.Ask(operation):
            return "GrowJob" if operation.adds else "ShrinkJob"
        case job_state.Start():
            return "StartJob"
    return type(action).__name__
