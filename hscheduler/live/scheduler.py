"""H-scheduler live, in this process: a thread that owns the state, and the jobs that it commands.

Whoever submits a job gets a :class:`Submission` and waits for it; sweeps and Hyperopt's trials do.

Source: EPS §5.1; style section 16 (one owner thread; events in, commands out).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from eps.config import JobSpec
from eps.errors import ConfigError, DeadlineError
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.record import Record
from hscheduler.core.resources import Resources
from hscheduler.core.state import Scheduler
from hscheduler.live.job import END_TIMEOUT_S, LiveJob
from hscheduler.policies import POLICIES

logger = logging.getLogger(__name__)

#: How often jobs write checkpoints that may be ended and started again, where they do not say.
CHECKPOINT_EVERY = "1s"
#: Called with the seconds since the beginning, an event and what it brought about; on the scheduler's thread.
OnEvent = Callable[[float, e.Event, list[e.Command]], None]


@dataclass(frozen=True)
class LiveSettings:
    """How a live scheduler treats its jobs."""

    policy: str = "elastic"
    seed: int = 0
    #: ``loss``, or a metric of the test data.
    metric: str = "loss"
    feedback_iteration: int = 100
    #: A declared delay of restarts under the ``kill`` policy, seconds; 0.0 is what they take.
    restart_s: float = 0.0


@dataclass
class Submission:
    """A job that was submitted, from the submitter's side."""

    job_id: str
    #: Of the job under ``EPS_HOME``.
    name: str
    spec: JobSpec
    #: How it ended; None before.
    phase: Phase | None = None
    why: str = ""
    #: Its metric at the end, or None where it did not finish.
    loss: float | None = None
    #: Its metric at the feedback iteration, where it came so far.
    feedback: float | None = None
    #: The job's own report, where it ran.
    report: dict[str, Any] | None = None
    #: Whether the policy ended it, for good.
    is_stopped: bool = False
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; return False where it is not within ``timeout_s`` seconds."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """True once it has ended, however."""
        return self._over.is_set()


class LiveScheduler:
    """A scheduler with real jobs of this host.  Its methods may be called from any thread.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity; simulated: all processes run here.
    settings : LiveSettings
    on_event : callable, optional
    """

    def __init__(self, nodes: Mapping[str, Resources], settings: LiveSettings, on_event: OnEvent | None = None) -> None:
        self.settings = settings
        self.record = Record()
        self.state = Scheduler(nodes, POLICIES[settings.policy], settings.seed)
        self._on_event = on_event
        self._events: SimpleQueue[e.Event | None] = SimpleQueue()
        self._submissions: dict[str, Submission] = {}
        self._jobs: dict[str, LiveJob] = {}
        #: Keeps the names of these jobs apart from those of other schedulers.
        self._tag = uuid.uuid4().hex[:6]
        self._cancelled: set[str] = set()
        #: Held while a job is made for a start, so that none is made for who has closed it all.
        self._starting = threading.Lock()
        self._failed: BaseException | None = None
        self._closed = False
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="h-scheduler", daemon=True)
        self._thread.start()

    def now_s(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self._began_s

    def open_sweep(self, opened: e.SweepOpened) -> None:
        """Say how a sweep's jobs are ranked."""
        self._events.put(opened)

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec) -> Submission:
        """Submit a job; its size is the scheduler's to choose.

        Raises
        ------
        ConfigError
            There has been a job of that id.
        RuntimeError
            The scheduler has ended.
        """
        submission = self._new_submission(submitted.request.job_id, spec)
        self._events.put(submitted)
        return submission

    def _new_submission(self, job_id: str, spec: JobSpec) -> Submission:
        self.check()
        if job_id in self._submissions:
            raise ConfigError(f"job id is {job_id!r}, but must be one that was never used with this scheduler")
        submission = self._submissions[job_id] = Submission(job_id, f"sweep-{self._tag}-{job_id}", spec)
        return submission

    def refuse(self, job_id: str, sweep: str, spec: JobSpec, why: str) -> Submission:
        """Take a job that cannot work: it has failed.  Raises as :meth:`submit`."""
        submission = self._new_submission(job_id, spec)
        self._events.put(e.JobRefused(job_id, sweep, why))
        return submission

    def cancel(self, job_id: str, why: str) -> None:
        """End a job; harmless if it is over.

        Raises
        ------
        ConfigError
            There is none of that id.
        """
        if job_id not in self._submissions:
            raise ConfigError(f"job id is {job_id!r}, but there is no such job")
        self._cancelled.add(job_id)
        self._events.put(e.CancelAsked(job_id, why))

    def wait(self, submission: Submission, timeout_s: float | None = None) -> None:
        """Wait until a job is over.

        Raises
        ------
        DeadlineError
            It is not within ``timeout_s`` seconds.
        RuntimeError
            The scheduler has ended.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not submission.wait(1.0 if deadline_s is None else max(0.0, min(1.0, deadline_s - time.monotonic()))):
            self.check()
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise DeadlineError(f"the end of {submission.job_id}: not within {timeout_s:g} s")

    def leaked(self) -> int:
        """Return how many containers are held; 0 when all jobs are over."""
        return len(self.state.ledger.all())

    def close(self) -> None:
        """End all jobs and wait for their processes; harmless when repeated."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
            jobs = list(self._jobs.values())
        # All at once: each takes some tenths of a second.
        closers = [threading.Thread(target=job.close, name=f"close {job.name}") for job in jobs]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        self._events.put(None)
        self._thread.join(END_TIMEOUT_S)

    def __enter__(self) -> LiveScheduler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- the owner's thread

    def check(self) -> None:
        """Raise RuntimeError where the scheduler has failed, or was closed."""
        if self._failed is not None:
            raise RuntimeError(f"H-scheduler failed: {self._failed}") from self._failed
        if self._closed:
            raise RuntimeError("H-scheduler has ended")

    def _serve(self) -> None:
        while True:
            event = self._events.get()
            if event is None:
                break
            try:
                self._step(event)
            except Exception as error:
                logger.exception("an event could not be taken: %s", event)
                self._failed = error
                break
        for submission in list(self._submissions.values()):
            submission._over.set()

    def _step(self, event: e.Event) -> None:
        commands = self.state.step(event)
        now_s = self.now_s()
        self.record.take(now_s, event, commands, self.state)
        if isinstance(event, e.FeedbackGiven):
            self._submissions[event.job_id].feedback = event.value
        elif isinstance(event, e.JobEnded) and event.feedback is not None:
            self._submissions[event.job_id].feedback = event.feedback
        for command in commands:
            self._obey(command)
        if self._on_event is not None:
            try:
                self._on_event(now_s, event, commands)
            except Exception as error:
                # As where whoever read what it prints has gone.
                logger.warning("events are shown no more: %s: %s", type(error).__name__, error)
                self._on_event = None

    def _obey(self, command: e.Command) -> None:
        match command:
            case e.StartJob(job_id, _, _):
                with self._starting:
                    # Nothing is started for who closes it all.
                    if job_id not in self._jobs and not self._closed:
                        self._jobs[job_id] = self._live(self._submissions[job_id])
                if job_id in self._jobs:
                    self._jobs[job_id].obey(command)
                else:
                    self._events.put(e.JobEnded(job_id, Phase.KILLED, "H-scheduler ends"))
            case e.EndJob(job_id, restarts, _):
                self._submissions[job_id].is_stopped = not restarts and job_id not in self._cancelled
                self._jobs[job_id].obey(command)
            case e.GrowJob(job_id, _) | e.ShrinkJob(job_id, _):
                self._jobs[job_id].obey(command)
            case e.JobOver(job_id, phase, why):
                self._end(self._submissions[job_id], phase, why)
            case e.Explain():
                pass

    def _live(self, submission: Submission) -> LiveJob:
        spec, settings = submission.spec, self.settings
        if settings.policy == "kill" and not spec.checkpoint_every:
            # It goes on from there.
            spec = dataclasses.replace(spec, checkpoint_every=CHECKPOINT_EVERY)
        return LiveJob(
            submission.job_id,
            submission.name,
            spec,
            settings.metric,
            settings.feedback_iteration,
            self._events.put,
            settings.restart_s,
        )

    def _end(self, submission: Submission, phase: Phase, why: str) -> None:
        job = self._jobs.get(submission.job_id)
        if job is not None:
            job.retire()
            submission.loss, submission.report = job.loss, job.report
            self.record.trials[submission.job_id].resize_pause_s = job.pause_s
        submission.phase, submission.why = phase, why
        submission._over.set()
