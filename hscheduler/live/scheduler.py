"""H-scheduler live, in this process: a thread that owns the state, and the jobs that it commands.

Whoever submits a job gets a :class:`Submission` and waits for it; sweeps and Hyperopt's trials do.  With a journal it
can be started again after it was killed: its jobs go on meanwhile, and it takes them up where they are.

Source: EPS §5.1; style section 16 (one owner thread; events in, commands out).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, BinaryIO

from eps.client import Job, deliver
from eps.config import JobSpec
from eps.errors import ConfigError, DeadlineError, EpsError, StorageError
from eps.jobspec_file import RunRequest
from eps.spare import SpareSupervisor
from eps.storage.jobdir import check_job_name
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.outstanding import Numbered, Outstanding
from hscheduler.core.record import Record
from hscheduler.core.resources import Resources
from hscheduler.core.state import Scheduler
from hscheduler.live.job import END_TIMEOUT_S, LiveJob
from hscheduler.live.journal import TIME_DIGITS, Entry, EventJournal, Header, check_writable
from hscheduler.policies import POLICIES

logger = logging.getLogger(__name__)

#: How often jobs write checkpoints that may be ended and started again, where they do not say.
CHECKPOINT_EVERY = "1s"
#: Who waits for the scheduler looks this often whether it is well.
_LOOK_S = 0.5
#: Called with the seconds since the beginning, an event and what it brought about; on the scheduler's thread.
OnEvent = Callable[[float, e.Event, list[e.Command]], None]
#: The same with the state as it was left.
Observe = Callable[[float, e.Event, list[e.Command], Scheduler], None]


@dataclass(frozen=True)
class LiveSettings:
    """How a live scheduler treats its jobs."""

    policy: str = "elastic"
    seed: int = 0
    #: ``loss``, or a metric of the test data; of sweeps that do not say.
    metric: str = "loss"
    #: Of sweeps that do not say.
    feedback_iteration: int = 100
    #: A declared delay of restarts under the ``kill`` policy, seconds; 0.0 is what they take.
    restart_s: float = 0.0
    #: Jobs in the training phase, of sweeps that do not say; None: as many as fit the cluster as they ask.
    threshold: int | None = None


@dataclass
class Submission:
    """A job that was submitted, from the submitter's side."""

    job_id: str
    sweep: str
    #: Of the job under ``EPS_HOME``.
    name: str
    spec: JobSpec
    #: Of the space that its sweep searches.
    point: Mapping[str, Any] = field(default_factory=dict)
    #: How it ended; None before.
    phase: Phase | None = None
    why: str = ""
    #: Its metric at the end, or None where it did not finish.
    loss: float | None = None
    #: Its metric at the feedback iteration, where it came so far.
    feedback: float | None = None
    #: The job's own report, where it ran and ended; see :meth:`LiveScheduler.report_of`.
    report: dict[str, Any] | None = None
    #: Whether its processes were up once.
    has_started: bool = False
    #: Whether the policy ended it, for good.
    is_stopped: bool = False
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, or its scheduler is; return False where neither is within ``timeout_s`` seconds."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """True once it has ended, however; not where only its scheduler has."""
        return self.phase is not None

    def end(self, phase: Phase) -> None:
        """Note how it ended, and let go of who waits for that."""
        self.phase = phase
        self._over.set()

    def beside(self) -> dict[str, Any]:
        """Return what a journal needs to make it again."""
        return {"name": self.name, "spec": json.loads(self.spec.to_json()), "point": dict(self.point)}


class LiveScheduler:
    """A scheduler with real jobs of this host.  Its methods may be called from any thread.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity; simulated: all processes run here.
    settings : LiveSettings
    on_event : callable, optional
    journal : EventJournal, optional
        Where it goes on, or begins; its jobs are detached then, and outlive this process.
    observe : callable, optional
        Called as ``on_event``, with the state as the event left it; also, at first, for those of the journal.
    takes_up : bool
        Go on with the jobs of the journal; else it is only looked at, and nothing is to be submitted.

    Raises
    ------
    ConfigError
        The journal was begun with other nodes or settings.
    StorageError
        The journal does not lead to what was ordered when it was written.
    """

    def __init__(
        self,
        nodes: Mapping[str, Resources],
        settings: LiveSettings,
        on_event: OnEvent | None = None,
        journal: EventJournal | None = None,
        observe: Observe | None = None,
        takes_up: bool = True,
    ) -> None:
        self.settings = settings
        self.record = Record()
        self.state = Scheduler(nodes, POLICIES[settings.policy], settings.seed, settings.threshold)
        #: What sweeps said of how their jobs are ranked.
        self.sweeps: dict[str, e.SweepOpened] = {}
        #: Of sweeps that this process finds the points of: the tables of their files.
        self.tables: dict[str, Mapping[str, Any]] = {}
        #: When sweeps were opened.
        self.opened_s: dict[str, float] = {}
        self._on_event, self._observe = on_event, observe
        self._events: SimpleQueue[e.Event | threading.Event | None] = SimpleQueue()
        self._submissions: dict[str, Submission] = {}
        #: Held while one is added, so that an id is used once whoever submits.
        self._submitting = threading.Lock()
        self._jobs: dict[str, LiveJob] = {}
        #: Sweeps of which no more jobs are wanted, and why.
        self.closed: dict[str, str] = {}
        self._outstanding = Outstanding()
        self._cancelled: set[str] = set()
        #: Held while a job is made for a start, so that none is made for who has closed it all.
        self._starting = threading.Lock()
        self._spare = SpareSupervisor()
        self._failed: BaseException | None = None
        self._closed = self._leaves = False
        self._journal = journal
        #: Keeps the names of these jobs apart from those of other schedulers.
        self._tag = uuid.uuid4().hex[:6]
        self._began_s = time.monotonic()
        if journal is not None:
            self._recover(nodes, journal)
            for job_id in self._outstanding.there() if takes_up else ():
                self._take_up(job_id)
        self._thread = threading.Thread(target=self._serve, name="h-scheduler", daemon=True)
        self._thread.start()

    # ---- going on after a restart

    def _recover(self, nodes: Mapping[str, Resources], journal: EventJournal) -> None:
        sizes = {node: [capacity.vcores, capacity.memory_mb] for node, capacity in nodes.items()}
        settings = self.settings
        header = Header(
            settings.policy, settings.seed, sizes, settings.threshold, settings.restart_s, self._tag, time.time()
        )
        if journal.header is None:
            journal.begin(header)
            return
        before = journal.header
        asked = dataclasses.replace(header, tag=before.tag, began_unix_s=before.began_unix_s)
        if asked != before:
            differ = [name for name, value in vars(before).items() if getattr(asked, name) != value]
            told = ", ".join(f"{name} {getattr(before, name)!r} (not {getattr(asked, name)!r})" for name in differ)
            raise ConfigError(f"{journal.path} was begun with {told}: go on with that, or with another directory")
        self._tag = before.tag
        last_s = 0.0
        for entry in journal.entries():
            if isinstance(entry.event, e.JobSubmitted | e.JobRefused):
                self._remember(entry)
            elif isinstance(entry.event, e.SweepOpened) and entry.beside:
                self.tables[entry.event.sweep] = entry.beside["tables"]
            given, checksum = self._outstanding.given, self._outstanding.checksum
            if (entry.given, entry.checksum) != (given, checksum):
                raise StorageError(
                    f"{journal.path}: {entry.given} orders had been given before {type(entry.event).__name__} at "
                    f"{entry.at_s:.3f} s, but what stands there leads to "
                    + (f"{given}" if given != entry.given else "others")
                )
            commands, _ = self._advance(entry.at_s, entry.event)
            if self._observe is not None:
                self._observe(entry.at_s, entry.event, commands, self.state)
            last_s = entry.at_s
        # Clocks that were set back must not let time run backwards.
        self._began_s = time.monotonic() - max(last_s, time.time() - before.began_unix_s)

    def _remember(self, entry: Entry) -> None:
        event = entry.event
        assert isinstance(event, e.JobSubmitted | e.JobRefused)
        job_id, sweep = (
            (event.request.job_id, event.request.sweep)
            if isinstance(event, e.JobSubmitted)
            else (event.job_id, event.sweep)
        )
        values = entry.beside
        self._submissions[job_id] = Submission(
            job_id, sweep, str(values["name"]), JobSpec.from_dict(values["spec"], "journal"), dict(values["point"])
        )

    def _take_up(self, job_id: str) -> None:
        """Go on with a job that was started, or was about to be, before this process was."""
        job = self.state.jobs[job_id]
        live = self._jobs[job_id] = self._live(self._submissions[job_id])
        # What it has let go of since it said who is where is somebody else's by now.
        members = {place: name for place, name in job.members.items() if self.state.ledger.hold(place) is not None}
        live.go_on(job.iteration, members, job.feedback is not None, self._outstanding.has_started(job_id))
        for number, order in self._outstanding.of(job_id):
            live.obey(number, order)

    def now_s(self) -> float:
        """Return the seconds since it began."""
        return time.monotonic() - self._began_s

    def open_sweep(self, opened: e.SweepOpened, tables: Mapping[str, Any] | None = None) -> None:
        """Say how a sweep's jobs are ranked; with a journal, ``tables`` are kept: those of the sweep's file."""
        if tables is not None:
            if self._journal is not None:
                check_writable({"tables": tables}, f"sweep {opened.sweep!r}")
            self.tables[opened.sweep] = tables
        self._events.put(opened)

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec, point: Mapping[str, Any] | None = None) -> Submission:
        """Submit a job; its size is the scheduler's to choose.

        Raises
        ------
        ConfigError
            There has been a job of that id, none can have it, or it comes with something that no file can hold.
        RuntimeError
            The scheduler has ended.
        """
        request = submitted.request
        submission = self._new_submission(request.job_id, request.sweep, spec, point)
        self._events.put(submitted)
        return submission

    def _new_submission(self, job_id: str, sweep: str, spec: JobSpec, point: Mapping[str, Any] | None) -> Submission:
        self.check()
        submission = Submission(job_id, sweep, self.name_of(job_id), spec, dict(point or {}))
        if self._journal is not None:
            check_writable(submission.beside(), f"job {job_id!r}")
        with self._submitting:
            if job_id in self._submissions:
                raise ConfigError(f"job id is {job_id!r}, but must be one that was never used with this scheduler")
            self._submissions[job_id] = submission
        return submission

    def name_of(self, job_id: str) -> str:
        """Return the name that a job has under ``EPS_HOME``.

        Raises
        ------
        ConfigError
            None can be made of that id.
        """
        return check_job_name(f"sweep-{self._tag}-{job_id}")

    def refuse(
        self, job_id: str, sweep: str, spec: JobSpec, why: str, point: Mapping[str, Any] | None = None
    ) -> Submission:
        """Take a job that cannot work: it has failed.  Raises as :meth:`submit`."""
        submission = self._new_submission(job_id, sweep, spec, point)
        self._events.put(e.JobRefused(job_id, sweep, why))
        return submission

    def submission(self, job_id: str) -> Submission | None:
        """Return a job that was submitted, or None."""
        return self._submissions.get(job_id)

    def submissions(self, sweep: str = "") -> list[Submission]:
        """Return the jobs that were submitted, of one sweep or of all, in their order."""
        return [each for each in list(self._submissions.values()) if not sweep or each.sweep == sweep]

    def cancel(self, job_id: str, why: str) -> None:
        """End a job; harmless if it is over.

        Raises
        ------
        ConfigError
            There is none of that id.
        """
        if job_id not in self._submissions:
            raise ConfigError(f"job id is {job_id!r}, but there is no such job")
        self._events.put(e.CancelAsked(job_id, why))

    def close_sweep(self, sweep: str, why: str) -> None:
        """End a sweep: its jobs are ended, and no more of it are wanted.  Harmless when repeated."""
        self._events.put(e.SweepClosed(sweep, why))
        for each in self.submissions(sweep):
            if not each.is_over:
                self._events.put(e.CancelAsked(each.job_id, why))

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

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        """Copy report and model of a job that is over to where its user wants them.

        Raises
        ------
        StorageError
            They cannot be written.
        """
        deliver(Job.find(submission.name), request)

    def report_of(self, submission: Submission) -> dict[str, Any] | None:
        """Return the own report of a job that is over; None where it never ran, or nothing is there any more."""
        has_run = submission.has_started or submission.phase is Phase.FINISHED
        if submission.report is None and has_run:
            with suppress(EpsError):
                return Job.find(submission.name).report()
        return submission.report

    def open_model(self, submission: Submission) -> BinaryIO:
        """Return the trained model of a job that finished, open for reading.

        Raises
        ------
        JobNotFoundError
            Nothing of it is there.
        StorageError
            It has no model.
        """
        try:
            return Job.find(submission.name).directory.model.open("rb")
        except OSError as error:
            told = error.strerror or error
            raise StorageError(f"job {submission.job_id!r} has no trained model: {told}") from error

    def settle(self, timeout_s: float) -> None:
        """Wait until everything that was said so far is taken, and in the journal.

        Raises
        ------
        DeadlineError
            It is not within ``timeout_s`` seconds.
        RuntimeError
            The scheduler has ended.
        """
        taken, deadline_s = threading.Event(), time.monotonic() + timeout_s
        self._events.put(taken)
        while not taken.wait(min(_LOOK_S, max(0.0, deadline_s - time.monotonic()))):
            self.check()
            if time.monotonic() > deadline_s:
                raise DeadlineError(f"H-scheduler has not taken what it was told within {timeout_s:g} s")

    def leaked(self) -> int:
        """Return how many containers are held; 0 when all jobs are over."""
        return len(self.state.ledger.all())

    def close(self, *, leave: bool = False) -> None:
        """End all jobs and wait for their processes; harmless when repeated.

        Parameters
        ----------
        leave : bool
            Leave the jobs as they are, for a scheduler that goes on with the same journal.
        """
        with self._starting:
            if self._closed:
                return
            # Before anybody sees that it is closed.
            self._leaves = leave
            self._closed = True
            jobs = list(self._jobs.values())
        if leave:
            # What they say from now on, they will say again.
            self._stop()
        # All at once: each takes some tenths of a second.
        ends = [threading.Thread(target=job.leave if leave else job.close, name=f"close {job.name}") for job in jobs]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
        self._stop()
        self._spare.close()
        if self._journal is not None:
            self._journal.close()

    def _stop(self) -> None:
        self._events.put(None)
        self._thread.join(END_TIMEOUT_S)

    def __enter__(self) -> LiveScheduler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- the owner's thread

    @property
    def has_ended(self) -> bool:
        """True once it has failed, or was closed: what its jobs do is not known any more."""
        return self._closed or self._failed is not None

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
            if isinstance(event, threading.Event):
                event.set()
                continue
            try:
                self._step(event)
            except Exception as error:
                logger.exception("an event could not be taken: %s", event)
                self._failed = error
                break
        # Whoever waits for them finds out that nobody will tell.
        for submission in list(self._submissions.values()):
            submission._over.set()

    def _step(self, event: e.Event) -> None:
        if isinstance(event, e.CancelAsked) and event.job_id not in self.state.jobs:
            # It was refused: it was over before.
            return
        now_s = round(self.now_s(), TIME_DIGITS)
        self._write(now_s, event)
        commands, orders = self._advance(now_s, event)
        for number, order in orders:
            self._obey(number, order)
        if self._observe is not None:
            self._observe(now_s, event, commands, self.state)
        if self._on_event is not None:
            try:
                self._on_event(now_s, event, commands)
            except Exception as error:
                # As where whoever read what it prints has gone.
                logger.warning("events are shown no more: %s: %s", type(error).__name__, error)
                self._on_event = None

    def _write(self, now_s: float, event: e.Event) -> None:
        """Write an event before anything is done about it."""
        if self._journal is None:
            return
        if isinstance(event, e.Iterated) and self.state.is_idle_news(event):
            self._journal.hold(now_s, event)
            return
        beside: dict[str, Any] = {}
        if isinstance(event, e.JobSubmitted | e.JobRefused):
            job_id = event.request.job_id if isinstance(event, e.JobSubmitted) else event.job_id
            beside = self._submissions[job_id].beside()
        elif isinstance(event, e.SweepOpened) and event.sweep in self.tables:
            beside = {"tables": self.tables[event.sweep]}
        given = self._outstanding
        self._journal.append(Entry(now_s, event, beside, given.given, given.checksum))

    def _advance(self, now_s: float, event: e.Event) -> tuple[list[e.Command], list[Numbered]]:
        """Let the state take an event; return what is to be done, and the orders of it with their numbers."""
        commands = self.state.step(event)
        self.record.take(now_s, event, commands, self.state)
        orders = self._outstanding.take(event, commands)
        match event:
            case e.SweepOpened(sweep):
                self.sweeps[sweep] = event
                self.opened_s.setdefault(sweep, now_s)
            case e.SweepClosed(sweep, why):
                self.closed.setdefault(sweep, why)
            case e.JobStarted(job_id):
                self._submissions[job_id].has_started = True
            case e.CancelAsked(job_id, _):
                self._cancelled.add(job_id)
            case e.FeedbackGiven(job_id, value):
                self._submissions[job_id].feedback = value
            case e.JobEnded(job_id, _, _, feedback) if feedback is not None:
                self._submissions[job_id].feedback = feedback
        for command in commands:
            match command:
                case e.EndJob(job_id, restarts, _):
                    self._submissions[job_id].is_stopped = not restarts and job_id not in self._cancelled
                case e.JobOver(job_id, phase, why):
                    self._over(self._submissions[job_id], phase, why)
        return commands, orders

    def _over(self, submission: Submission, phase: Phase, why: str) -> None:
        job, live = self.state.jobs.get(submission.job_id), self._jobs.get(submission.job_id)
        if job is not None:
            submission.loss = job.loss
        if live is not None:
            live.retire()
            # With a journal it runs for long, and reports are read where they are asked for.
            submission.report = live.report if self._journal is None else None
            live.report = None
        submission.why = why
        submission.end(phase)

    def _obey(self, number: int, order: e.Order) -> None:
        job_id = order.job_id
        if isinstance(order, e.StartJob):
            with self._starting:
                # Nothing is started for who closes it all.
                if job_id not in self._jobs and not self._closed:
                    self._jobs[job_id] = self._live(self._submissions[job_id])
        if job_id in self._jobs:
            self._jobs[job_id].obey(number, order)
        elif not self._leaves:
            # Of one that is left the order stands in the journal, for the next scheduler.
            self._events.put(e.JobEnded(job_id, Phase.KILLED, "H-scheduler ends"))

    def _live(self, submission: Submission) -> LiveJob:
        spec, settings = submission.spec, self.settings
        if settings.policy == "kill" and not spec.checkpoint_every:
            # It goes on from there.
            spec = dataclasses.replace(spec, checkpoint_every=CHECKPOINT_EVERY)
        sweep = self.sweeps.get(submission.sweep, e.SweepOpened(submission.sweep))
        return LiveJob(
            submission.job_id,
            submission.name,
            spec,
            sweep.metric or settings.metric,
            sweep.feedback_iteration or settings.feedback_iteration,
            self._events.put,
            settings.restart_s,
            detached=self._journal is not None,
            manager=f"H-scheduler {self._tag}",
            spare=self._spare,
        )
