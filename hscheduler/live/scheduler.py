"""H-scheduler live, in this process: a thread that owns the state, and the jobs that it commands.

Whoever submits a job gets a :class:`Submission` and waits for it; sweeps and Hyperopt's trials do.  With a journal it
can be started again after it was killed: its jobs go on meanwhile, and it takes them up where they are.

Source: EPS §5.1; style section 16 (one owner thread; events in, commands out).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from eps.errors import ConfigError, DeadlineError
from eps.job.client import SpareSupervisor
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import check_job_name
from hscheduler.core import events as e
from hscheduler.core.decisions import needs_of
from hscheduler.core.jobs import Phase
from hscheduler.core.outstanding import Numbered, Outstanding
from hscheduler.core.record import Record
from hscheduler.core.resources import Resources
from hscheduler.core.state import Scheduler
from hscheduler.live.asking import ANSWER_TIMEOUT_S, Question, asked
from hscheduler.live.backlog import Backlog, Item
from hscheduler.live.clock import boot
from hscheduler.live.ending import end_all
from hscheduler.live.held import TIME_DIGITS
from hscheduler.live.job import END_TIMEOUT_S, LiveJob
from hscheduler.live.journal import Entry, EventJournal, Header, check_writable
from hscheduler.live.keeper import Keeper
from hscheduler.live.known import Known
from hscheduler.live.on_yarn import check_place
from hscheduler.live.past import Past
from hscheduler.live.places import Seat
from hscheduler.live.results import deliver_results
from hscheduler.live.submission import Submission
from hscheduler.policies import POLICIES

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

#: How often jobs write checkpoints that may be ended, and go on from there, where they do not say.
CHECKPOINT_EVERY = "1s"
#: What restarts take, for policies that weigh them: to the end of a job, where no delay is declared, and from there to
#: its next iteration.  Measured: 1.7 s in the mean of 30 (benchmarks/results/paper/compare.json).
RESTART_ENDS_S, RESTART_BEGINS_S = 0.7, 1.0
#: Who waits for the scheduler looks this often whether it is well.
_LOOK_S = 0.5
#: Called with the seconds since the beginning, an event and what it brought about; on the scheduler's thread.
OnEvent = Callable[[float, e.Event, list[e.Command]], None]
#: The same with the state as it was left.
Observe = Callable[[float, e.Event, list[e.Command], Scheduler], None]
#: Called with what is known of a past whose events nobody has any more.
LookBack = Callable[[Record, Scheduler], None]


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
    #: Settings that every job has, whoever submits it: where jobs run, and how large containers are.
    job_settings: Mapping[str, str] = field(default_factory=dict)


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
    look_back : callable, optional
        Called before the events of the journal, where that was begun anew.
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
        look_back: LookBack | None = None,
    ) -> None:
        self.settings = settings
        self.record = Record()
        self.state = Scheduler(nodes, POLICIES[settings.policy], settings.seed, settings.threshold)
        #: What sweeps said of how their jobs are ranked.
        self.sweeps: dict[str, e.SweepOpened] = {}
        #: Of sweeps that this process finds the points of: the tables of their files.
        self.tables: dict[str, Mapping[str, Any]] = {}
        #: Has what changed of the cluster told before it returns; None where the nodes are simulated.
        self.look_at_cluster: Callable[[], None] | None = None
        #: When sweeps were opened.
        self.opened_s: dict[str, float] = {}
        self._on_event, self._observe, self._look_back = on_event, observe, look_back
        #: Events, and what is to be called between two of them; None is the end.
        self._events: SimpleQueue[Item] = SimpleQueue()
        #: Those that wait behind an event that cannot be written.
        self._later = Backlog()
        self._submissions: dict[str, Submission] = {}
        #: Held while one is added, so that an id is used once whoever submits.
        self._submitting = threading.Lock()
        self._jobs: dict[str, LiveJob] = {}
        #: Sweeps of which no more jobs are wanted, and why.
        self.closed: dict[str, str] = {}
        #: Sweeps with a file whose trials are all over.
        self.ended: dict[str, None] = {}
        self._outstanding = Outstanding()
        self._cancelled: set[str] = set()
        #: Held while a job is made for a start, so that none is made for who has closed it all.
        self._starting = threading.Lock()
        self._spare = SpareSupervisor()
        self._failed: BaseException | None = None
        self._closed = self._leaves = False
        #: Keeps the names of these jobs apart from those of other schedulers.
        self._tag = uuid.uuid4().hex[:6]
        self._began_s = time.monotonic()
        self._keeper: Keeper | None = None
        if journal is not None:
            self._keeper = self._recover(nodes, journal)
            if takes_up:
                self._keeper.begin_anew_if_grown()
            for job_id in self._outstanding.there() if takes_up else ():
                self._take_up(job_id)
        self._thread = threading.Thread(target=self._serve, name="h-scheduler", daemon=True)
        self._thread.start()

    # ---- going on after a restart

    def _recover(self, nodes: Mapping[str, Resources], journal: EventJournal) -> Keeper:
        sizes = {node: [capacity.vcores, capacity.memory_mb] for node, capacity in nodes.items()}
        header = Header(nodes=sizes, tag=self._tag, boot=boot(), began_s=self._began_s, **vars(self.settings))
        keeper = Keeper(journal, header, self._known, self._answer)
        self._tag = keeper.header.tag
        keeper.replay(POLICIES[self.settings.policy], self._take_known, self._replay)
        self._began_s = keeper.header.began_s
        return keeper

    def _replay(self, entry: Entry) -> None:
        if isinstance(entry.event, e.JobSubmitted | e.JobRefused):
            self._remember(entry)
        elif isinstance(entry.event, e.SweepOpened) and entry.beside:
            self.tables[entry.event.sweep] = entry.beside["tables"]
        commands, _ = self._advance(entry.at_s, entry.event)
        if self._observe is not None:
            self._observe(entry.at_s, entry.event, commands, self.state)

    def _remember(self, entry: Entry) -> None:
        event = entry.event
        assert isinstance(event, e.JobSubmitted | e.JobRefused)
        values = entry.beside
        spec = JobSpec.from_dict(values["spec"], "journal")
        self._submissions[event.job_id] = Submission(
            event.job_id, event.sweep, str(values["name"]), spec, dict(values["point"])
        )

    def _take_up(self, job_id: str) -> None:
        """Go on with a job that was started, or was about to be, before this process was."""
        job = self.state.jobs[job_id]
        live = self._jobs[job_id] = self._live(self._submissions[job_id])
        # What it has let go of since it said who is where is somebody else's by now.
        roles = {container.container_id: container.role for container in self.state.ledger.of_job(job_id)}
        seats = {place: Seat(name, roles[place]) for place, name in job.members.items() if place in roles}
        live.go_on(job.iteration, seats, job.feedback is not None, self._outstanding.has_started(job_id))
        for number, order in self._outstanding.of(job_id):
            live.obey(number, order)

    def _known(self) -> Known:
        return Known(
            self.state,
            self.record,
            self._outstanding,
            self.sweeps,
            self.opened_s,
            self.closed,
            self.ended,
            self._cancelled,
            self.tables,
            self._submissions,
        )

    def _take_known(self, known: Known) -> None:
        self.state, self.record, self._outstanding = known.state, known.record, known.outstanding
        self.sweeps, self.opened_s, self.tables = known.sweeps, known.opened_s, known.tables
        self.closed, self.ended, self._cancelled = known.closed, known.ended, known.cancelled
        self._submissions = known.submissions
        if self._look_back is not None:
            self._look_back(self.record, self.state)

    def now_s(self) -> float:
        """Return the seconds since it began, on a clock that nobody sets (see :mod:`hscheduler.live.clock`)."""
        return time.monotonic() - self._began_s

    def open_sweep(self, opened: e.SweepOpened, tables: Mapping[str, Any] | None = None) -> None:
        """Say how a sweep's jobs are ranked, and keep the tables of its file, if it has one.  Raises as :meth:`ask`."""
        if tables is not None:
            if self._keeper is not None:
                check_writable({"tables": tables}, f"sweep {opened.sweep!r}")
            self.ask(lambda: self.tables.update({opened.sweep: tables}))
        self._events.put(opened)

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec, point: Mapping[str, Any] | None = None) -> Submission:
        """Submit a job; its size is the scheduler's to choose.

        Raises
        ------
        ConfigError
            There has been a job of that id, none can have it, or it comes with something that no file can hold; or it
            is one on YARN, and this is no application there.
        RuntimeError
            The scheduler has ended.
        """
        check_place(spec, self.settings.job_settings)
        restart_s = max(RESTART_ENDS_S, self.settings.restart_s) + RESTART_BEGINS_S
        request = dataclasses.replace(submitted.request, iterations=spec.iterations, restart_s=restart_s)
        submission = self._new_submission(request.job_id, request.sweep, spec, point)
        self._events.put(e.JobSubmitted(request))
        return submission

    def _new_submission(self, job_id: str, sweep: str, spec: JobSpec, point: Mapping[str, Any] | None) -> Submission:
        self.check()
        submission = Submission(job_id, sweep, self.name_of(job_id), spec, dict(point or {}))
        if self._keeper is not None:
            check_writable(submission.beside(), f"job {job_id!r}")
        with self._submitting:
            if self.submission(job_id) is not None:
                raise ConfigError(f"job id is {job_id!r}, but must be one that was never used with this scheduler")
            self._submissions[job_id] = submission
        return submission

    def name_of(self, job_id: str) -> str:
        """Return the name that a job has under ``EPS_HOME``, by which :func:`eps.storage.jobdir.find_job` knows it.

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
        found = self._submissions.get(job_id)
        return self._keeper.past.submission(job_id) if found is None and self._keeper is not None else found

    def submissions(self, sweep: str = "", *, past: bool = True) -> list[Submission]:
        """Return the jobs that were submitted, of one sweep or of all; those that are past first, where asked for."""
        # In this order: meanwhile one may become past.
        here = [each for each in list(self._submissions.values()) if not sweep or each.sweep == sweep]
        before = self._keeper.past.submissions(sweep) if past and self._keeper is not None else []
        return list({each.job_id: each for each in (*before, *here)}.values())

    def job_ids(self) -> list[str]:
        """Return the ids of all jobs that were ever submitted."""
        here = list(self._submissions)
        return here if self._keeper is None else [*self._keeper.past.job_ids(), *here]

    @property
    def past(self) -> Past | None:
        """What has been forgotten; None without a journal."""
        return None if self._keeper is None else self._keeper.past

    def cancel(self, job_id: str, why: str) -> None:
        """End a job; harmless if it is over.

        Raises
        ------
        ConfigError
            There is none of that id.
        """
        if self.submission(job_id) is None:
            raise ConfigError(f"job id is {job_id!r}, but there is no such job")
        self._events.put(e.CancelAsked(job_id, why))

    def close_sweep(self, sweep: str, why: str) -> None:
        """End a sweep: its jobs are ended, and no more of it are wanted.  Harmless when repeated."""
        self._events.put(e.SweepClosed(sweep, why))
        # At once, though the event may wait: whoever asks now whether it takes jobs is told no.
        with suppress(DeadlineError):
            self.ask(lambda: self.closed.setdefault(sweep, why))
        for each in self.submissions(sweep, past=False):
            if not each.is_over:
                self._events.put(e.CancelAsked(each.job_id, why))

    def note_end(self, sweep: str) -> None:
        """Note that all trials of a sweep with a file are over, and no more will come."""
        self._events.put(lambda: self.ended.setdefault(sweep))

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
        deliver_results(submission, request)

    def settle(self, timeout_s: float) -> None:
        """Wait until everything that was said so far is taken, and in the journal.

        Raises
        ------
        DeadlineError
            It is not within ``timeout_s`` seconds.
        ResourceError
            The journal cannot be written just now.
        RuntimeError
            The scheduler has ended.
        """
        # Before there is one more that waits, as often as it is asked.
        self.check_room()
        taken, deadline_s = threading.Event(), time.monotonic() + timeout_s
        self._events.put(taken.set)
        while not taken.wait(min(_LOOK_S, max(0.0, deadline_s - time.monotonic()))):
            self.check()
            self.check_room()
            if time.monotonic() > deadline_s:
                raise DeadlineError(f"H-scheduler has not taken what it was told within {timeout_s:g} s")

    def ask(self, question: Callable[[], _T]) -> _T:
        """Return what a question finds out on the scheduler's thread, between two events.

        Raises
        ------
        DeadlineError
            It is not answered within :data:`ANSWER_TIMEOUT_S` seconds.
        """
        return asked(self._thread, self._events.put, question, ANSWER_TIMEOUT_S)

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
            if self._keeper is not None:
                self._keeper.end()
            jobs = [job for job in self._jobs.values() if job.is_alive]
        if leave:
            # What they say from now on, they will say again.
            self._stop()
        elif self._keeper is None:
            # What a journal holds was decided by the policy that it names.
            self._events.put(self.state.rest)
        end_all([job.leave if leave else job.close for job in jobs])
        self._stop()
        self._spare.close()
        if self._keeper is not None:
            self._keeper.close()

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

    def check_room(self) -> None:
        """Raise ResourceError while nothing new can be asked for: its journal cannot be written."""
        if self._keeper is not None:
            self._keeper.check_room()

    def _serve(self) -> None:
        while True:
            event = self._later.get(self.now_s()) if self._later else self._events.get()
            if event is None:
                break
            if callable(event):
                event()
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

    def _answer(self, wait_s: float) -> None:
        """Answer questions for so long while an event cannot be written; everything else waits behind it."""
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0.0:
            try:
                item = self._events.get(timeout=left_s)
            except Empty:
                return
            if isinstance(item, Question):
                item()
            else:
                self._later.put(item, self.now_s())

    def _step(self, event: e.Event) -> None:
        if isinstance(event, e.JobEvent) and event.job_id not in self.state.jobs:
            # It was over before: refused, or forgotten.
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
        for job_id in () if self._keeper is None else self._keeper.begin_anew_if_grown():
            self._jobs.pop(job_id, None)

    def _write(self, now_s: float, event: e.Event) -> None:
        """Write an event before anything is done about it."""
        if self._keeper is None:
            return
        if isinstance(event, e.Iterated) and self.state.is_idle_news(event):
            self._keeper.hold(now_s, event)
            return
        beside: dict[str, Any] = {}
        if isinstance(event, e.JobSubmitted | e.JobRefused):
            beside = self._submissions[event.job_id].beside()
        elif isinstance(event, e.SweepOpened) and event.sweep in self.tables:
            beside = {"tables": self.tables[event.sweep]}
        given = self._outstanding
        self._keeper.append(Entry(now_s, event, beside, given.given, given.checksum))

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
            submission.report = live.report if self._keeper is None else None
            live.report = None
        submission.why = why
        submission.end(phase)

    def tell(self, event: e.NodeEvent) -> None:
        """Take what happened to a node."""
        self._events.put(event)

    def _hear(self, event: e.Event) -> None:
        """Take what a job says, on a thread of the job."""
        look = self.look_at_cluster
        if isinstance(event, e.ContainersGone) and event.why and look is not None:
            # A node may have gone: what ran there is not given back on it.
            look()
        self._events.put(event)

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
        settings = self.settings
        spec = dataclasses.replace(submission.spec, **settings.job_settings)  # type: ignore[arg-type]
        if needs_of(POLICIES[settings.policy]).checkpoints and not spec.checkpoint_every:
            spec = dataclasses.replace(spec, checkpoint_every=CHECKPOINT_EVERY)
        sweep = self.sweeps.get(submission.sweep, e.SweepOpened(submission.sweep))
        return LiveJob(
            submission.job_id,
            submission.name,
            spec,
            sweep.metric or settings.metric,
            sweep.feedback_iteration or settings.feedback_iteration,
            self._hear,
            settings.restart_s,
            detached=self._keeper is not None,
            manager=f"H-scheduler {self._tag}",
            spare=self._spare,
        )
