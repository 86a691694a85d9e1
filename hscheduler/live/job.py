"""One real job of H-scheduler: starts it, changes its size, watches it, ends it.

A thread of the job runs a loop.  It passes news to :class:`~hscheduler.live.job_state.JobState`, reports the resulting
events to the scheduler, and carries out the next action.  While a change of size is in progress the loop polls it, so
it blocks nothing else.  A second thread reads the progress that the job's master sends.  After an unexpected error the
job is killed and reported as failed.

Source: EPS §5.1 (the scheduler calls the four operations of each job's master).
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from eps.cluster.supervisor.fork_server import ForkServer
from eps.cluster.supervisor.start import WarmSupervisor, kill_supervisor
from eps.errors import (
    DeadlineError,
    EpsError,
    JobFinishedError,
    JobNotFoundError,
    PeerUnavailableError,
    TrainingError,
    UnknownMemberError,
)
from eps.job.client import ChangeRecord, Job
from eps.job.master_link import Progress
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.atomic import read_json
from eps.storage.jobdir import find_job
from eps.storage.record import SUPERVISOR_KILLED
from eps.system.waits import wait_for
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.resources import Role
from hscheduler.core.rungs import NO_RUNGS, Rungs
from hscheduler.live import job_state
from hscheduler.live.job_state import Action, HistoryReader, JobState, Seat

logger = logging.getLogger(__name__)

#: The reason of a job that its scheduler ended when it closed.
ENDS = "H-scheduler ends"
#: After an order to end, a job has this long before its processes are killed.
END_TIMEOUT_S = 10.0
#: The same on another host: first its results are downloaded.
END_ELSEWHERE_TIMEOUT_S = 60.0
#: Seconds from the loss of a recorded job's processes until it counts as failed.  Whatever kills all processes of this
#: host kills this one meanwhile, and the next scheduler resumes the job from its checkpoint.
LOST_GRACE_S = 1.0
#: How long a poll of a change waits; orders that arrive meanwhile wait for it.
_LOOK_S = 0.1
#: Pause between polls, if the master answers at once.
_PAUSE_S = 0.02
#: Called with a job's name and how it has ended.
BeforeEnd = Callable[[str, Phase], None]


def do_nothing(name: str, phase: Phase) -> None:
    """Leave a job's results where they are."""


@dataclass(frozen=True)
class Launch:
    """How a job is started."""

    #: The job's name under ``EPS_HOME``.
    name: str
    #: The numbers of workers and servers, or of reliable containers, are replaced by the granted containers.
    spec: JobSpec
    #: The job keeps running when this process ends.
    detached: bool = False
    #: Only this requester may change the job's size: one scheduler grants its containers.
    manager: str = "H-scheduler"
    #: Forks supervisors that have imported their modules; without it a job waits for the imports.
    forks: ForkServer | None = None
    #: Called before the job's end is reported, to save results where they outlive this process.  If it raises, a job
    #: that finished has failed.
    before_end: BeforeEnd = do_nothing

    @property
    def hosts(self) -> bool:
        """Whether each of its containers hosts a worker and a server."""
        return bool(self.spec.tiers.reliable)

    def start(self, places: Mapping[Role, Sequence[str]], *, again: bool) -> Job:
        """Start the job from its seed; ``again`` if an interrupted start may have left files."""
        workers, servers = len(places[Role.WORKER]), len(places[Role.SERVER])
        size = {"reliable": workers} if self.hosts else {"workers": workers, "servers": servers}
        spec = self.spec.with_settings(**size)
        # A record that lost its last entries in a power failure may have forgotten a start, which left checkpoints.
        request = RunRequest.of_spec(spec, self.name, anew=again or self.detached, manager=self.manager)
        return Job.start_request(request, detach=self.detached, warm=self._warm())

    def resume(self, places: Mapping[Role, Sequence[str]]) -> Job:
        """Resume the job from its checkpoint."""
        resume = partial(Job.resume, self.name, detach=self.detached, warm=self._warm())
        workers, servers = len(places[Role.WORKER]), len(places[Role.SERVER])
        return resume(reliable=workers) if self.hosts else resume(workers=workers, servers=servers)

    def is_there(self, resumes: bool) -> bool:
        """Return whether an earlier process has carried out the order to start."""
        try:
            found = Job.find(self.name)
        except EpsError:
            return False
        with closing(found):
            # A restart follows a kill.  A job with any other end ended after the start.
            state = (read_json(found.directory.report) or {}).get("state") or end_of(found)
            return found.running or (state is not None and not (resumes and state == "killed"))

    def _warm(self) -> WarmSupervisor | None:
        # A supervisor runs local jobs only.
        return None if self.forks is None or self.spec.on != "local" else self.forks.take()


def end_of(job: Job) -> str | None:
    """Return how a job ended; None if no process recorded its end."""
    end = job.directory.ended()
    return None if end is None or end.is_lost else end.state


def interrupt_job(name: str, timeout_s: float) -> None:
    """Kill the supervisor of a job on this host, and with it all processes, as a crash of the machine would.

    Raises
    ------
    DeadlineError
        The job still runs after ``timeout_s`` seconds.
    StorageError
        Its record cannot be read.
    """
    try:
        directory = find_job(name)
    except JobNotFoundError:
        # Its start was not carried out.
        return

    def has_ended() -> bool:
        # Repeat: a supervisor that is just starting cannot be found yet.
        kill_supervisor(directory, signal.SIGKILL)
        return not directory.is_running()

    wait_for(has_ended, timeout_s, f"the end of job {name!r}")
    directory.settle()


#: News for the loop: an order with its number, progress, the last report, the error that ended the watch, or a function
#: to call.  None means: exit once the job does not run.
_News = tuple[int, e.Order] | Progress | dict[str, Any] | Exception | Callable[[], None]


class LiveJob:
    """A job of this host.  Any thread may call its methods; all but ``leave`` and ``close`` return at once.

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
        A declared delay of a restart, from the order to end until the end is reported; 0.0 adds no delay.
    rungs : Rungs
        Iterations at which the stopping rule judges the job.
    """

    def __init__(
        self,
        job_id: str,
        launch: Launch,
        metric: str,
        feedback_iteration: int,
        say: Callable[[e.Event], None],
        restart_s: float = 0.0,
        rungs: Rungs = NO_RUNGS,
    ) -> None:
        self.name = launch.name
        self._launch, self._say, self._restart_s = launch, say, restart_s
        reading = HistoryReader(job_id, metric, feedback_iteration, rungs, launch.spec.iterations)
        self._state = JobState(job_id, launch.name, reading, launch.hosts)
        self._end_timeout_s = END_TIMEOUT_S if launch.spec.on == "local" else END_ELSEWHERE_TIMEOUT_S
        self._news: SimpleQueue[_News | None] = SimpleQueue()
        self._job: Job | None = None
        #: Set when the sweep ends; the job ends in any stage.
        self._closing = threading.Event()
        #: The loop exits and leaves the job as it is.
        self._leaving = False
        #: Set with either: the end of the job is not held back any more.
        self._hurries = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"job {self.name}", daemon=True)
        self._watcher: threading.Thread | None = None
        self._thread.start()

    def obey(self, number: int, order: e.Order) -> None:
        """Queue an order.

        Parameters
        ----------
        number : int
            Identifies the order: repeating one carries it out once.
        order : Order
        """
        self._news.put((number, order))

    def restore(
        self, iteration: int, seats: Mapping[str, Seat], has_feedback: bool, has_started: bool, num_rungs: int = 0
    ) -> None:
        """Attach to a job that another process may have started; call this before any order.

        Parameters
        ----------
        iteration : int
            Completed iterations.
        seats : mapping
            Container -> its member.
        has_feedback : bool
            Its early feedback is known.
        has_started : bool
            The job has started; else an order to start it follows.
        num_rungs : int
            How many rungs it has reached, as far as is known.
        """
        self._news.put(partial(self._state.restore, iteration, seats, has_feedback, has_started, num_rungs))

    @property
    def is_alive(self) -> bool:
        """Whether one of its threads runs; the loop runs until the job is retired, left or closed."""
        return self._thread.is_alive() or (self._watcher is not None and self._watcher.is_alive())

    def retire(self) -> None:
        """Let the loop exit once the job does not run; a job that still runs is ended."""
        self._news.put(None)

    def leave(self) -> None:
        """Stop watching the job, which keeps running, after the current action."""
        self._leaving = True
        self._hurries.set()
        self._news.put(None)
        self._thread.join(2 * self._end_timeout_s)

    def interrupt(self) -> None:
        """Stop watching the job, and kill its processes without a recorded end: the next scheduler resumes it."""
        self.leave()
        try:
            interrupt_job(self.name, self._end_timeout_s)
        except EpsError as error:
            logger.warning("%s: %s", self.name, error)
        if self._watcher is not None:
            self._watcher.join(2 * self._end_timeout_s)

    def close(self) -> None:
        """End the job, in any stage, and wait for its threads."""
        self._closing.set()
        self._hurries.set()
        self._news.put(None)
        self._thread.join(2 * self._end_timeout_s)
        if self._thread.is_alive():
            # Its master may not answer.
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
                    # The queue is empty.
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
        """Carry out the next action; return how long to wait for news, None for as long as it takes."""
        left_s = self._state.pause_left_s(time.monotonic())
        if (action := self._state.next_action()) is None:
            return left_s
        self._carry_out(action)
        return _PAUSE_S if isinstance(action, job_state.Poll) else 0.0

    def _tell(self, events: Sequence[e.Event]) -> None:
        for event in events:
            self._say(self._before_end(event) if isinstance(event, e.JobEnded) else event)

    def _before_end(self, ended: e.JobEnded) -> e.JobEnded:
        """Run the ``before_end`` of the launch; return the end to report."""
        try:
            self._launch.before_end(self.name, ended.phase)
        except Exception as error:
            why = f"its results could not be saved: {_reason_of(error)}"
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
                    self._tell(state.progressed(status, history))
                case Exception():
                    _log(news, f"{self.name} cannot be watched any more")
                    self._kill(_reason_of(news))
                    self._tell(state.lost(_reason_of(news)))
                case dict():
                    is_lost = self._launch.detached and news.get("reason") == SUPERVISOR_KILLED
                    wait_s = max(state.waits_s(news, self._restart_s, now_s), LOST_GRACE_S if is_lost else 0.0)
                    self._hurries.wait(wait_s)
                    if not self._leaving:
                        self._tell(state.ended(news))
                case _:
                    news()
        except Exception as error:
            if isinstance(news, dict):
                # No further news will come from this job.
                _log(error, f"the report of {self.name} cannot be read")
                self._tell(state.lost(_reason_of(error)))
            else:
                self._give_up(_reason_of(error))

    def _give_up(self, why: str) -> None:
        """End a job after an unexpected error."""
        logger.exception("%s: %s", self.name, why)
        # If it runs, its end is reported once it has ended.
        self._tell(self._state.give_up(why))

    def _carry_out(self, action: Action) -> None:
        try:
            match action:
                case job_state.Start():
                    self._start(action)
                case job_state.Attach():
                    self._attach(action)
                case job_state.Kill(why):
                    self._kill(why)
                case job_state.Answer():
                    self._tell(self._state.resize.answered())
                case _:
                    self._change(action)
        except Exception as error:
            if isinstance(action, job_state.Attach):
                self._give_up(f"it could not be resumed: {_reason_of(error)}")
            else:
                self._give_up(f"{_name_of(action)} failed: {type(error).__name__}: {error}")

    def _start(self, start: job_state.Start) -> None:
        launch = self._launch
        is_there = start.may_be_there and launch.is_there(start.resumes)
        try:
            if self._closing.is_set():
                raise TrainingError(ENDS)
            if self._job is not None:
                # The previous attempt has ended, and is not watched any more.
                self._job.close()
                self._job = None
            if is_there:
                self._job = Job.find(self.name)
            elif start.resumes:
                self._job = launch.resume(start.places)
            else:
                self._job = launch.start(start.places, again=start.may_be_there)
        except EpsError as error:
            self._tell(self._state.start_failed(f"it could not be started: {error}"))
            return
        self._begin(start, is_resumed=start.resumes and not is_there)

    def _attach(self, attach: job_state.Attach) -> None:
        found = Job.find(self.name)
        is_lost = not found.running and end_of(found) is None
        if is_lost:
            # Its processes left no end, for example because the machine crashed.
            found.close()
            found = self._launch.resume(attach.places)
        self._job = found
        self._begin(attach, is_resumed=is_lost)

    def _begin(self, start: job_state.Start | job_state.Attach, *, is_resumed: bool) -> None:
        self._tell(self._state.started(start, is_resumed=is_resumed))
        after_clock = self._state.reading.seen_clock
        self._watcher = threading.Thread(
            target=self._watch, args=(after_clock,), name=f"watch {self.name}", daemon=True
        )
        self._watcher.start()

    def _change(self, action: Action) -> None:
        """Request a change of size, poll it, or abort it."""
        assert self._job is not None
        resize, job = self._state.resize, self._job
        try:
            match action:
                case job_state.Request(operation, what, request_id):
                    record: ChangeRecord = job.change(
                        operation, what, wait=False, request_id=request_id, manager=self._launch.manager
                    )
                    self._tell(resize.changed(record))
                case job_state.Poll(plan_id):
                    self._tell(resize.changed(job.plan(plan_id, _LOOK_S)))
                case job_state.Cancel(plan_id):
                    try:
                        job.cancel(plan_id)
                    except EpsError as error:
                        # The growth has committed; the shrink follows it.
                        logger.info("%s: plan %d goes on: %s", self.name, plan_id, error)
        except JobFinishedError:
            logger.info("%s ended before the request reached it: %s", self.name, action)
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
                # Job.find would first download its results, and wait for that.
                return
            # On a connection of its own: the other one may be waiting for an answer.
            with closing(Job.find(self.name)) as job:
                job.kill(why, self._end_timeout_s)
        except EpsError as error:
            logger.warning("%s: %s; killing its processes", self.name, error)
            if self._job is not None:
                self._job.kill_at_once()

    # ---- news

    def _watch(self, after_clock: int) -> None:
        """Pass the master's news to the loop until the job has ended, then its report."""
        try:
            with closing(Job.find(self.name)) as job:
                for progress in job.watch(after_clock):
                    self._news.put(progress)
                self._news.put(job.wait(self._end_timeout_s))
        except Exception as error:
            self._news.put(error)


def _reason_of(error: Exception) -> str:
    return str(error) if isinstance(error, EpsError) else f"{type(error).__name__}: {error}"


def _log(error: Exception, what: str) -> None:
    """Log an error; those of EPS without a traceback, because the job's end reports the reason."""
    if isinstance(error, EpsError):
        logger.info("%s: %s", what, error)
    else:
        logger.error("%s", what, exc_info=error)


def _name_of(action: Action) -> str:
    """Return the name of the scheduler's order that an action carries out."""
    match action:
        case job_state.Request(operation, what):
            return "GrowJob" if operation.adds or "+" in str(what) else "ShrinkJob"
        case job_state.Start():
            return "StartJob"
    return type(action).__name__
