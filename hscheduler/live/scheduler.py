"""H-scheduler live, in this process: a thread that owns the state, and the jobs that it commands.

Whoever submits a job gets a :class:`~hscheduler.live.submission.Submission` and waits for it; sweeps and Hyperopt's
trials do.  With a record it can be started again after it was killed: its jobs go on meanwhile, and it takes them up
where they are.

Source: EPS §5.1; style section 16 (one owner thread; events in, commands out).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from eps.errors import ConfigError, DeadlineError
from eps.job.client import SpareSupervisor
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import check_job_name
from hscheduler.core import events as e
from hscheduler.core.decisions import needs_of
from hscheduler.core.jobs import Phase
from hscheduler.core.outstanding import Numbered
from hscheduler.core.resources import Resources
from hscheduler.core.state import Scheduler
from hscheduler.live.inbox import ANSWER_TIMEOUT_S, Inbox, asked
from hscheduler.live.job import END_TIMEOUT_S, ENDS, BeforeEnd, Launch, LiveJob, nothing
from hscheduler.live.job_state import Seat
from hscheduler.live.on_yarn import check_place
from hscheduler.live.recorder import Recorder, boot, check_writable
from hscheduler.live.registry import LookUps, Registry
from hscheduler.live.results import deliver_results
from hscheduler.live.submission import Submission
from hscheduler.policies import POLICIES
from hscheduler.record.api import TIME_DIGITS, Entry, Header, SchedulerRecord

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

#: How often jobs write checkpoints that may be ended, and go on from there, where they do not say.
CHECKPOINT_EVERY = "1s"
#: Jobs that are ended at the same time; with more of them a host would not be ready sooner.
MOST_ENDED_AT_ONCE = 16
#: What restarts take, for policies that weigh them: to the end of a job, where no delay is declared, and from there to
#: its next iteration.  Measured: 1.7 s in the mean of 30 (benchmarks/results/paper/compare.json).
RESTART_ENDS_S, RESTART_BEGINS_S = 0.7, 1.0
#: Who waits for the scheduler looks this often whether it is well.
_LOOK_S = 0.5
#: Called with the seconds since the beginning, an event and what it brought about; on the scheduler's thread.
OnEvent = Callable[[float, e.Event, list[e.Command]], None]


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


class Observer(Protocol):
    """Sees what happens to a scheduler; on its thread, but for what is before."""

    def look_back(self, registry: Registry, look_ups: LookUps) -> None:
        """Take what was known before the first event, where the record had been compacted."""

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event and what it brought about, with the state as it left it; first those of the record."""

    def forget(self, jobs: Iterable[str]) -> None:
        """Let go of jobs that are over: the record has them."""


def end_all(ends: Sequence[Callable[[], None]]) -> None:
    """End jobs, many at the same time: each takes some tenths of a second."""
    with ThreadPoolExecutor(MOST_ENDED_AT_ONCE, "end") as pool:
        for ended in [pool.submit(end) for end in ends]:
            if (error := ended.exception()) is not None:
                logger.error("a job could not be ended", exc_info=error)


class Fleet:
    """The jobs of one scheduler; but for :meth:`close` on its thread.

    Parameters
    ----------
    settings : LiveSettings
    tag : str
        Keeps the names of these jobs apart from those of other schedulers.
    is_recorded : bool
        The jobs outlive this process, and their reports are read where somebody asks for them.
    say : callable
        Takes events, from any thread.
    before_end : callable
        As of :class:`~hscheduler.live.job.Launch`.
    """

    def __init__(
        self,
        settings: LiveSettings,
        tag: str,
        is_recorded: bool,
        say: Callable[[e.Event], None],
        before_end: BeforeEnd,
    ) -> None:
        self._settings, self._tag, self._is_recorded, self._say = settings, tag, is_recorded, say
        self._before_end = before_end
        self._jobs: dict[str, LiveJob] = {}
        #: Held while a job comes or goes, so that none is made for who has closed it all.
        self._starting = threading.Lock()
        self._spare = SpareSupervisor()
        self._closed = self._leaves = False

    def take_up(self, registry: Registry, job_id: str) -> None:
        """Go on with a job that was started, or was about to be, before this process was."""
        job, outstanding = registry.state.jobs[job_id], registry.outstanding
        live = self._jobs[job_id] = self._live(registry, registry.submissions[job_id])
        # Containers that it has released since the last MembersFound belong to other jobs.
        roles = {container.container_id: container.role for container in registry.state.ledger.of_job(job_id)}
        seats = {place: Seat(name, roles[place]) for place, name in job.members.items() if place in roles}
        live.go_on(job.iteration, seats, job.feedback is not None, outstanding.has_started(job_id))
        for number, order in outstanding.of(job_id):
            live.obey(number, order)

    def obey(self, registry: Registry, orders: Iterable[Numbered]) -> None:
        """Have jobs carry out orders; returns at once."""
        for number, order in orders:
            job_id = order.job_id
            if isinstance(order, e.StartJob):
                with self._starting:
                    # Nothing is started for who closes it all.
                    if job_id not in self._jobs and not self._closed:
                        self._jobs[job_id] = self._live(registry, registry.submissions[job_id])
            if job_id in self._jobs:
                self._jobs[job_id].obey(number, order)
            elif not self._leaves:
                # Of one that is left the order stands in the record, for the next scheduler.
                self._say(e.JobEnded(job_id, Phase.KILLED, ENDS))

    def bring_report(self, submission: Submission) -> None:
        """Give a job's own report to who submitted it, where it has ended."""
        live = self._jobs.get(submission.job_id)
        if live is not None and not self._is_recorded:
            submission.report = live.report

    def retire(self, job_id: str) -> None:
        """Let go of a job that is over."""
        if (live := self._jobs.get(job_id)) is not None:
            live.retire()
            live.report = None

    def forget(self, jobs: Iterable[str]) -> None:
        """Forget jobs that are over."""
        with self._starting:
            for job_id in jobs:
                self._jobs.pop(job_id, None)

    def close(self, *, leave: bool) -> Callable[[], None] | None:
        """Start nothing more; return what ends all jobs, or leaves them as they are, and waits for their processes.

        Returns None where it was closed before.
        """
        with self._starting:
            if self._closed:
                return None
            # Before anybody sees that it is closed.
            self._leaves = leave
            self._closed = True
            jobs = [job for job in self._jobs.values() if job.is_alive]

        def end() -> None:
            end_all([job.leave if leave else job.close for job in jobs])
            self._spare.close()

        return end

    @property
    def is_closed(self) -> bool:
        """True once it was closed."""
        return self._closed

    def _live(self, registry: Registry, submission: Submission) -> LiveJob:
        settings = self._settings
        spec = submission.spec.with_settings(**settings.job_settings)
        if needs_of(POLICIES[settings.policy]).checkpoints and not spec.checkpoint_every:
            spec = spec.with_settings(checkpoint_every=CHECKPOINT_EVERY)
        sweep = registry.sweeps.get(submission.sweep, e.SweepOpened(submission.sweep))
        manager = f"H-scheduler {self._tag}"
        return LiveJob(
            submission.job_id,
            Launch(submission.name, spec, self._is_recorded, manager, self._spare, self._before_end),
            sweep.metric or settings.metric,
            sweep.feedback_iteration or settings.feedback_iteration,
            self._say,
            settings.restart_s,
        )


class Loop:
    """The thread that owns the state of a scheduler: takes events one after the other.

    Parameters
    ----------
    registry : Registry
    fleet : Fleet
    inbox : Inbox
    now_s : callable
        Returns the scheduler's time.
    recorder : Recorder, optional
    observer : Observer, optional
    on_event : callable, optional
    """

    def __init__(
        self,
        registry: Registry,
        fleet: Fleet,
        inbox: Inbox,
        now_s: Callable[[], float],
        recorder: Recorder | None,
        observer: Observer | None,
        on_event: OnEvent | None,
    ) -> None:
        self._registry, self._fleet, self._inbox, self._now_s = registry, fleet, inbox, now_s
        self._recorder, self._observer, self._on_event = recorder, observer, on_event
        #: Why it takes nothing any more.
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, name="h-scheduler", daemon=True)

    def stop(self) -> None:
        """End it, after all that it was told."""
        self._inbox.put(None)
        self.thread.join(END_TIMEOUT_S)

    def compact(self) -> None:
        """Compact the record where that is due, and let go of what it has then."""
        if self._recorder is None:
            return
        self._recorder.compact_if_grown()
        if left := self._recorder.left():
            self._fleet.forget(left)
            if self._observer is not None:
                self._observer.forget(left)

    def _serve(self) -> None:
        while (event := self._inbox.get()) is not None:
            if callable(event):
                event()
                continue
            try:
                self._step(event)
            except Exception as error:
                logger.exception("an event could not be taken: %s", event)
                self.failed = error
                break
        # Whoever waits for them finds out that nobody will tell.
        for submission in list(self._registry.submissions.values()):
            submission.let_go()

    def _step(self, event: e.Event) -> None:
        registry, state = self._registry, self._registry.state
        if isinstance(event, e.JobEvent) and event.job_id not in state.jobs:
            # It was over before: refused, or forgotten.
            return
        now_s = round(self._now_s(), TIME_DIGITS)
        entry = registry.entry(now_s, event)
        if self._recorder is not None:
            # Before anything is done about it.
            if isinstance(event, e.Iterated) and state.is_idle_news(event):
                self._recorder.hold(now_s, event)
            else:
                self._recorder.append(entry)
        if isinstance(event, e.JobEnded):
            self._fleet.bring_report(registry.submissions[event.job_id])
        commands, orders = registry.take(entry)
        for command in commands:
            if isinstance(command, e.JobOver):
                self._fleet.retire(command.job_id)
        self._fleet.obey(registry, orders)
        if self._observer is not None:
            self._observer.take(now_s, event, commands, state)
        if self._on_event is not None:
            try:
                self._on_event(now_s, event, commands)
            except Exception as error:
                # As where whoever read what it prints has gone.
                logger.warning("events are shown no more: %s: %s", type(error).__name__, error)
                self._on_event = None
        self.compact()


class LiveScheduler:
    """A scheduler with real jobs of this host.  Its methods may be called from any thread.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity; simulated: all processes run here.
    settings : LiveSettings
    on_event : callable, optional
    record : SchedulerRecord, optional
        Where it goes on, or begins; its jobs are detached then, and outlive this process.
    observer : Observer, optional
    takes_up : bool
        Go on with the jobs of the record; else it is only looked at, and nothing is to be submitted.
    before_end : callable, optional
        Called on a thread of each job before its end is said, as of :class:`~hscheduler.live.job.Launch`.

    Raises
    ------
    ConfigError
        The record was begun with other nodes or settings.
    StorageError
        The record does not lead to what was ordered when it was written.
    """

    def __init__(
        self,
        nodes: Mapping[str, Resources],
        settings: LiveSettings,
        on_event: OnEvent | None = None,
        record: SchedulerRecord | None = None,
        observer: Observer | None = None,
        takes_up: bool = True,
        before_end: BeforeEnd = nothing,
    ) -> None:
        self.settings = settings
        #: Has what changed of the cluster told before it returns; None where the nodes are simulated.
        self.look_at_cluster: Callable[[], None] | None = None
        #: Keeps the names of these jobs apart from those of other schedulers.
        self._tag = uuid.uuid4().hex[:6]
        self._began_s = time.monotonic()
        self._events = Inbox(self.now_s)
        recorder: Recorder | None = None
        policy = POLICIES[settings.policy]
        #: What follows from the events; the scheduler's thread changes it.
        self.registry = Registry(Scheduler(nodes, policy, settings.seed, settings.threshold))
        if record is not None:
            sizes = {node: [capacity.vcores, capacity.memory_mb] for node, capacity in nodes.items()}
            header = Header(nodes=sizes, tag=self._tag, boot=boot(), began_s=self._began_s, **vars(settings))
            recorder = Recorder(record, header, self._events.answer)
            self._tag = recorder.header.tag

            def look_back(registry: Registry) -> None:
                if observer is not None:
                    observer.look_back(registry, LookUps(registry, record.rows))

            def take(registry: Registry, entry: Entry, commands: list[e.Command]) -> None:
                if observer is not None:
                    observer.take(entry.at_s, entry.event, commands, registry.state)

            self.registry = recorder.recover(self.registry, policy, look_back, take)
            self._began_s = recorder.header.began_s
        #: What is known of jobs.
        self.look_ups = LookUps(self.registry, None if record is None else record.rows)
        self._recorder = recorder
        self._fleet = Fleet(settings, self._tag, record is not None, self._hear, before_end)
        self._loop = Loop(self.registry, self._fleet, self._events, self.now_s, recorder, observer, on_event)
        if takes_up:
            self._loop.compact()
            for job_id in self.registry.outstanding.there():
                self._fleet.take_up(self.registry, job_id)
        self._loop.thread.start()

    @property
    def state(self) -> Scheduler:
        """The scheduler's state; only its thread may look at it while it runs."""
        return self.registry.state

    def now_s(self) -> float:
        """Return the seconds since it began, on a clock that nobody sets."""
        return time.monotonic() - self._began_s

    # ---- jobs and sweeps

    def open_sweep(self, opened: e.SweepOpened, tables: Mapping[str, Any] | None = None) -> None:
        """Say how a sweep's jobs are ranked, and keep the tables of its file, if it has one.  Raises as :meth:`ask`."""
        if tables is not None:
            if self._recorder is not None:
                check_writable({"tables": tables}, f"sweep {opened.sweep!r}")
            self.ask(lambda: self.registry.tables.update({opened.sweep: tables}))
        self._events.put(opened)

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec, point: Mapping[str, Any] | None = None) -> Submission:
        """Submit a job; its size is the scheduler's to choose.

        Raises
        ------
        ConfigError
            There has been a job of that id, none can have it, or it comes with something that no file can hold; or it
            is one on YARN, and this is no application there.
        DeadlineError
            As :meth:`ask`.
        RuntimeError
            The scheduler has ended.
        """
        check_place(spec, self.settings.job_settings)
        restart_s = max(RESTART_ENDS_S, self.settings.restart_s) + RESTART_BEGINS_S
        request = dataclasses.replace(submitted.request, iterations=spec.iterations, restart_s=restart_s)
        submission = self._new_submission(request.job_id, request.sweep, spec, point)
        self._events.put(e.JobSubmitted(request))
        return submission

    def refuse(
        self, job_id: str, sweep: str, spec: JobSpec, why: str, point: Mapping[str, Any] | None = None
    ) -> Submission:
        """Take a job that cannot work: it has failed.  Raises as :meth:`submit`."""
        submission = self._new_submission(job_id, sweep, spec, point)
        self._events.put(e.JobRefused(job_id, sweep, why))
        return submission

    def _new_submission(self, job_id: str, sweep: str, spec: JobSpec, point: Mapping[str, Any] | None) -> Submission:
        self.check()
        submission = Submission(job_id, sweep, self.name_of(job_id), spec, dict(point or {}))
        if self._recorder is not None:
            check_writable(submission.beside(), f"job {job_id!r}")

        def add() -> None:
            if self.look_ups.submission(job_id) is not None:
                raise ConfigError(f"job id is {job_id!r}, but must be one that was never used with this scheduler")
            self.registry.submissions[job_id] = submission

        self.ask(add)
        return submission

    def name_of(self, job_id: str) -> str:
        """Return the name that a job has under ``EPS_HOME``, by which :func:`eps.storage.jobdir.find_job` knows it.

        Raises
        ------
        ConfigError
            None can be made of that id.
        """
        return check_job_name(f"sweep-{self._tag}-{job_id}")

    def cancel(self, job_id: str, why: str) -> None:
        """End a job; harmless if it is over.

        Raises
        ------
        ConfigError
            There is none of that id.
        """
        if self.look_ups.submission(job_id) is None:
            raise ConfigError(f"job id is {job_id!r}, but there is no such job")
        self._events.put(e.CancelAsked(job_id, why))

    def close_sweep(self, sweep: str, why: str) -> None:
        """End a sweep: its jobs are ended, and no more of it are wanted.  Harmless when repeated."""
        self._events.put(e.SweepClosed(sweep, why))
        # At once, though the event may wait: whoever asks now whether it takes jobs is told no.
        with suppress(DeadlineError):
            self.ask(lambda: self.registry.closed.setdefault(sweep, why))
        for each in self.look_ups.here(sweep):
            if not each.is_over:
                self._events.put(e.CancelAsked(each.job_id, why))

    def note_end(self, sweep: str) -> None:
        """Note that all trials of a sweep with a file are over, and no more will come."""
        self._events.put(lambda: self.registry.ended.setdefault(sweep))

    def tell(self, event: e.NodeEvent) -> None:
        """Take what happened to a node."""
        self._events.put(event)

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
        """Wait until everything that was said so far is taken, and in the record.

        Raises
        ------
        DeadlineError
            It is not within ``timeout_s`` seconds.
        ResourceError
            The record cannot be written just now.
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
            It is not answered within :data:`~hscheduler.live.inbox.ANSWER_TIMEOUT_S` seconds.
        """
        return asked(self._loop.thread, self._events.put, question, ANSWER_TIMEOUT_S)

    def leaked(self) -> int:
        """Return how many containers are held; 0 when all jobs are over."""
        return len(self.state.ledger.all())

    # ---- its end

    def close(self, *, leave: bool = False) -> None:
        """End all jobs and wait for their processes; harmless when repeated.

        Parameters
        ----------
        leave : bool
            Leave the jobs as they are, for a scheduler that goes on with the same record.
        """
        if (end := self._fleet.close(leave=leave)) is None:
            return
        if self._recorder is not None:
            self._recorder.end()
        if leave:
            # What they say from now on, they will say again.
            self._loop.stop()
        elif self._recorder is None:
            # What a record holds was decided by the policy that it names.
            self._events.put(self.state.rest)
        end()
        self._loop.stop()
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> LiveScheduler:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def has_ended(self) -> bool:
        """True once it has failed, or was closed: what its jobs do is not known any more."""
        return self._fleet.is_closed or self._loop.failed is not None

    def check(self) -> None:
        """Raise RuntimeError where the scheduler has failed, or was closed."""
        if self._loop.failed is not None:
            raise RuntimeError(f"H-scheduler failed: {self._loop.failed}") from self._loop.failed
        if self._fleet.is_closed:
            raise RuntimeError("H-scheduler has ended")

    def check_room(self) -> None:
        """Raise ResourceError while nothing new can be asked for: its record cannot be written."""
        if self._recorder is not None:
            self._recorder.check_room()

    def _hear(self, event: e.Event) -> None:
        """Take what a job says, on a thread of the job."""
        look = self.look_at_cluster
        if isinstance(event, e.ContainersGone) and event.why and look is not None:
            # A node may have gone: what ran there is not given back on it.
            look()
        self._events.put(event)
