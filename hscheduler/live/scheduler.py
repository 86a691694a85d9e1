"""H-scheduler live, in this process: a thread that owns the state, and the jobs that it commands.

The submitter of a job gets a :class:`~hscheduler.live.submission.Submission` and waits for its end; sweeps and
Hyperopt's trials are submitters.  A scheduler with a record can restart after a crash: its jobs keep running meanwhile,
and the new scheduler attaches to them.

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
from math import gcd
from typing import TYPE_CHECKING, Any, TypeVar

from eps.cluster.supervisor.fork_server import ForkServer
from eps.errors import ConfigError, DeadlineError, StorageError
from eps.job.client import Job
from eps.job.entry_points import ENTRY_POINTS
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import deliver_results
from eps.storage.jobdir import JobDir, check_job_name, job_dir
from hscheduler.core import events as e
from hscheduler.core.decisions import needs_of
from hscheduler.core.jobs import Phase
from hscheduler.core.outstanding import Numbered
from hscheduler.core.resources import Resources
from hscheduler.core.rungs import Rungs, Stopping
from hscheduler.core.state import Scheduler
from hscheduler.live.inbox import ANSWER_TIMEOUT_S, Inbox, ask_owner
from hscheduler.live.job import END_TIMEOUT_S, ENDS, BeforeEnd, Launch, LiveJob, do_nothing
from hscheduler.live.job_state import Seat
from hscheduler.live.placement import check_place, hosted, runs_on_yarn
from hscheduler.live.recorder import Recorder, boot_id, check_writable
from hscheduler.live.registry import LookUps, Registry
from hscheduler.live.submission import Submission, attempt_before, attempts_of
from hscheduler.policies import POLICIES
from hscheduler.record.api import TIME_DIGITS, Entry, Header, SchedulerRecord
from hscheduler.stopping import RULES

if TYPE_CHECKING:
    from hscheduler.live.callable_job import CallableJob

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Interval of the checkpoints of jobs that a policy may stop and resume, unless they set one.
CHECKPOINT_EVERY = "1s"
#: The same of recorded jobs, also at their early feedback; from there they resume after a crash or an interrupt.
RECORDED_EVERY = "30s"
#: Checkpoints from one rung to the next, for a policy that restarts jobs.
MOST_BETWEEN_RUNGS = 10
#: Jobs that are ended in parallel; more would not free a host sooner.
MOST_ENDED_AT_ONCE = 16
#: Duration of a restart, for policies that weigh it: until the job has ended, if no delay is declared, and from there
#: to its next iteration.  Measured: 1.7 s in the mean of 30 (benchmarks/results/paper/compare.json).
RESTART_ENDS_S, RESTART_BEGINS_S = 0.7, 1.0
#: Seconds between checks whether the scheduler still runs, while a caller waits for it.
_LOOK_S = 0.5
#: Called on the scheduler's thread with the seconds since the start, an event and the commands that followed from it.
OnEvent = Callable[[float, e.Event, list[e.Command]], None]
#: The same with the state after the event.
Observe = Callable[[float, e.Event, list[e.Command], Scheduler], None]


@dataclass(frozen=True)
class LiveSettings:
    """Settings of a live scheduler."""

    policy: str = "elastic"
    seed: int = 0
    #: ``loss``, or a metric of the test data; for sweeps that do not set one.
    metric: str = "loss"
    #: For sweeps that do not set one.
    feedback_iteration: int = 100
    #: A declared delay of restarts under the ``kill`` policy, seconds; 0.0 adds none.
    restart_s: float = 0.0
    #: Largest number of jobs in the training phase, for sweeps that do not set one; None: as many as the cluster holds
    #: at their requested size.
    threshold: int | None = None
    #: Stopping rule of sweeps that do not set one; empty: that of the policy.
    stop: str = ""
    #: Settings that every job gets: where jobs run, and the size of containers.
    job_settings: Mapping[str, str] = field(default_factory=dict)


def end_all(ends: Sequence[Callable[[], None]]) -> None:
    """End jobs, many in parallel: each takes some tenths of a second."""
    with ThreadPoolExecutor(MOST_ENDED_AT_ONCE, "end") as pool:
        for ended in [pool.submit(end) for end in ends]:
            if (error := ended.exception()) is not None:
                logger.error("a job could not be ended", exc_info=error)


def checkpoints_at(rungs: Rungs, iterations: int, *, restarts: bool) -> str:
    """Return the setting ``checkpoint_every`` with a checkpoint at each rung.

    Parameters
    ----------
    rungs : Rungs
        Those of ``sha`` or ``asha``.
    iterations : int
        Of the job.
    restarts : bool
        The policy restarts jobs, too, from their latest checkpoint: take more of them, :data:`MOST_BETWEEN_RUNGS` or
        fewer before the first rung.
    """
    if not restarts:
        return ",".join(str(at) for at in rungs.until(iterations).all())
    least = -(-rungs.first // MOST_BETWEEN_RUNGS)
    return str(next(every for every in range(least, rungs.first + 1) if rungs.first % every == 0))


def evaluated_every(judged_at: int, most: int) -> int:
    """Return after how many iterations to evaluate, at most, so that a trial's metric is known when it is judged.

    Parameters
    ----------
    judged_at : int
        A trial is judged at multiples of it.
    most : int
    """
    return next(every for every in range(most, 0, -1) if judged_at % every == 0)


def manager_of(tag: str) -> str:
    """Return the manager of the jobs that a scheduler with this tag starts."""
    return f"H-scheduler {tag}"


def is_managed(job: JobDir, tag: str) -> bool:
    """Return whether a scheduler with this tag started a job."""
    with suppress(StorageError):
        return (job.record().runtime or {}).get("manager") == manager_of(tag)
    return False


class Fleet:
    """The jobs of one scheduler.  All methods but :meth:`close` run on the scheduler's thread.

    Parameters
    ----------
    settings : LiveSettings
    tag : str
        Distinguishes the names of these jobs from those of other schedulers.
    is_recorded : bool
        The jobs outlive this process, and their reports are read on request.
    say : callable
        Takes events, from any thread.
    settle : callable
        Waits until the scheduler's thread has taken all events so far; not for that thread.
    before_end : callable
        As of :class:`~hscheduler.live.job.Launch`.
    objective : bytes, optional
        Jobs are calls of this pickled callable, each with its point, instead of jobs of EPS.
    """

    def __init__(
        self,
        settings: LiveSettings,
        tag: str,
        is_recorded: bool,
        say: Callable[[e.Event], None],
        settle: Callable[[], None],
        before_end: BeforeEnd,
        objective: bytes | None = None,
    ) -> None:
        self._objective, self._settle = objective, settle
        self._settings, self._tag, self._is_recorded, self._say = settings, tag, is_recorded, say
        self._before_end = before_end
        self._jobs: dict[str, LiveJob | CallableJob] = {}
        #: Held while a job is added or removed, so that none is added after :meth:`close`.
        self._starting = threading.Lock()
        self._forks = ForkServer(ENTRY_POINTS)
        self._closed = self._leaves = False

    def restore(self, registry: Registry, job_id: str) -> None:
        """Attach to a job that an earlier scheduler process started or was about to start."""
        job, outstanding = registry.state.jobs[job_id], registry.outstanding
        live = self._jobs[job_id] = self._live(registry, registry.submissions[job_id])
        # Containers that it has released since the last MembersFound belong to other jobs.
        roles = {container.container_id: container.role for container in registry.state.ledger.of_job(job_id)}
        seats = {place: Seat(name, roles[place]) for place, name in job.members.items() if place in roles}
        has_started, num_rungs = outstanding.has_started(job_id), len(job.rungs)
        live.restore(job.iteration, seats, job.feedback is not None, has_started, num_rungs)
        for number, order in outstanding.of(job_id):
            live.obey(number, order)

    def obey(self, registry: Registry, orders: Iterable[Numbered]) -> None:
        """Pass orders to jobs; return at once."""
        for number, order in orders:
            job_id = order.job_id
            if isinstance(order, e.StartJob):
                with self._starting:
                    # After the close no job starts.
                    if job_id not in self._jobs and not self._closed:
                        self._jobs[job_id] = self._live(registry, registry.submissions[job_id])
            if job_id in self._jobs:
                self._jobs[job_id].obey(number, order)
            elif not self._leaves:
                # If the jobs keep running, the next scheduler finds the order in the record.
                self._say(e.JobEnded(job_id, Phase.KILLED, ENDS))

    def retire(self, job_id: str) -> None:
        """Stop watching a job that is over."""
        if (live := self._jobs.get(job_id)) is not None:
            live.retire()

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop jobs that are over."""
        with self._starting:
            for job_id in jobs:
                self._jobs.pop(job_id, None)

    def close(self, *, leave: bool, interrupt: bool = False) -> Callable[[], None] | None:
        """Start no more jobs; return a function that ends, leaves or interrupts all jobs and waits for their threads.

        Return None if the fleet was closed before.

        Parameters
        ----------
        leave : bool
            Leave the jobs to the next scheduler.
        interrupt : bool
            With ``leave``: kill the processes of the jobs; the next scheduler resumes them from their checkpoints.
        """
        with self._starting:
            if self._closed:
                return None
            # Set this first: other threads read it once the fleet is closed.
            self._leaves = leave
            self._closed = True
            jobs = [job for job in self._jobs.values() if job.is_alive]

        def end() -> None:
            end_all([job.close if not leave else job.interrupt if interrupt else job.leave for job in jobs])
            self._forks.close()

        return end

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def _live(self, registry: Registry, submission: Submission) -> LiveJob | CallableJob:
        settings, state = self._settings, registry.state
        rungs = state.rungs(state.jobs[submission.job_id])
        sweep = registry.sweeps.get(submission.sweep, e.SweepOpened(submission.sweep))
        metric = sweep.metric or settings.metric
        feedback_iteration = sweep.feedback_iteration or settings.feedback_iteration
        if self._objective is not None:
            # Imported late: other sweeps do not need cloudpickle.
            from hscheduler.live.callable_job import CallableJob

            return CallableJob(
                submission.job_id,
                submission.name,
                self._objective,
                submission.point,
                metric,
                feedback_iteration,
                rungs,
                self._say,
                self._settle,
            )
        spec = hosted(submission.spec.with_settings(**settings.job_settings))
        if metric != "loss" and not spec.training.eval_every:
            judged_at = gcd(feedback_iteration, rungs.first)
            spec = spec.with_settings(eval_every=evaluated_every(judged_at, spec.evaluation_clocks))
        restarts, pauses = needs_of(POLICIES[settings.policy]).checkpoints, state.pauses(submission.sweep)
        if (restarts or pauses) and not spec.checkpoint_every:
            # HDFS serves others, too.
            usual = RECORDED_EVERY if spec.on == "yarn" else CHECKPOINT_EVERY
            every = checkpoints_at(rungs, spec.iterations, restarts=restarts) if pauses else usual
            if self._is_recorded and not restarts:
                every = ",".join(filter(None, (every, RECORDED_EVERY)))
            spec = spec.with_settings(checkpoint_every=every)
        elif self._is_recorded and not spec.checkpoint_every:
            spec = spec.with_settings(checkpoint_every=f"{feedback_iteration},{RECORDED_EVERY}")
        manager = manager_of(self._tag)
        return LiveJob(
            submission.job_id,
            Launch(submission.name, spec, self._is_recorded, manager, self._forks, self._before_end),
            metric,
            feedback_iteration,
            self._say,
            settings.restart_s,
            rungs,
        )


class Loop:
    """The thread that owns a scheduler's state: it takes events one after the other.

    Parameters
    ----------
    registry : Registry
    fleet : Fleet
    inbox : Inbox
    now_s : callable
        Returns the scheduler's time.
    recorder : Recorder, optional
    observe, on_event : callable, optional
    """

    def __init__(
        self,
        registry: Registry,
        fleet: Fleet,
        inbox: Inbox,
        now_s: Callable[[], float],
        recorder: Recorder | None,
        observe: Observe | None,
        on_event: OnEvent | None,
    ) -> None:
        self._registry, self._fleet, self._inbox, self._now_s = registry, fleet, inbox, now_s
        self._recorder, self._observe, self._on_event = recorder, observe, on_event
        #: The error that ended the loop.
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._serve, name="h-scheduler", daemon=True)

    def stop(self) -> None:
        """End the loop after all queued events."""
        self._inbox.put(None)
        self.thread.join(END_TIMEOUT_S)

    def compact(self) -> None:
        """Compact the record if that is due, and drop the ended jobs that it has then."""
        if self._recorder is None:
            return
        self._recorder.compact_if_grown()
        if evicted := self._recorder.pop_evicted():
            self._fleet.forget(evicted)

    def _serve(self) -> None:
        while (event := self._inbox.get()) is not None:
            if callable(event):
                event()
                continue
            try:
                self._step(event)
            except Exception as error:
                if self._fleet.is_closed and isinstance(error, StorageError):
                    # The next scheduler with the record finds what its last events missed.
                    logger.warning("%s", error)
                else:
                    logger.exception("the scheduler failed on event %s", event)
                self.failed = error
                break
        # Wake the threads that wait for a job: they find that the scheduler has ended.
        for submission in list(self._registry.submissions.values()):
            submission.wake_waiters()

    def _step(self, event: e.Event) -> None:
        registry, state = self._registry, self._registry.state
        if isinstance(event, e.JobEvent) and event.job_id not in state.jobs:
            # The job is over: refused, or dropped.
            return
        now_s = round(self._now_s(), TIME_DIGITS)
        entry = registry.entry(now_s, event)
        if self._recorder is not None:
            # Record the event before it has any effect.
            if isinstance(event, e.Iterated) and state.is_idle_news(event):
                self._recorder.hold(now_s, event)
            else:
                self._recorder.append(entry)
        commands, orders = registry.take(entry)
        for command in commands:
            if isinstance(command, e.JobOver):
                self._fleet.retire(command.job_id)
        self._fleet.obey(registry, orders)
        # For people: without the times in which no scheduler ran.
        ran_s = registry.timeline.ran_s(now_s)
        if self._observe is not None:
            self._observe(ran_s, event, commands, state)
        if self._on_event is not None:
            try:
                self._on_event(ran_s, event, commands)
            except Exception as error:
                # For example a closed pipe on standard output.
                logger.warning("events are not printed any more: %s: %s", type(error).__name__, error)
                self._on_event = None
        self.compact()


class LiveScheduler:
    """A scheduler with real jobs of this host.  Any thread may call its methods.

    Parameters
    ----------
    nodes : mapping
        Name -> capacity; simulated: all processes run here.
    settings : LiveSettings
    on_event : callable, optional
    record : SchedulerRecord, optional
        Events are written to it, after those that it holds were replayed.  Jobs are detached then, and outlive this
        process.
    observe : callable, optional
        Sees all events: first, before the scheduler's thread starts, those that are replayed from the record.
    attaches : bool
        Attach to the jobs of the record.  Otherwise the record is only read, and no job may be submitted.
    before_end : callable, optional
        Called on a job's thread before its end is reported, as of :class:`~hscheduler.live.job.Launch`.
    objective : bytes, optional
        Jobs are calls of this pickled callable, each with its point, instead of jobs of EPS.
    has_names : bool
        Whether ids of jobs are their names under ``EPS_HOME``; else names have a prefix, as always on YARN.

    Raises
    ------
    ConfigError
        The record was created with other nodes or settings.
    StorageError
        The events of the record do not lead to the orders that it notes.
    """

    def __init__(
        self,
        nodes: Mapping[str, Resources],
        settings: LiveSettings,
        on_event: OnEvent | None = None,
        record: SchedulerRecord | None = None,
        observe: Observe | None = None,
        attaches: bool = True,
        before_end: BeforeEnd = do_nothing,
        objective: bytes | None = None,
        has_names: bool = True,
    ) -> None:
        self.settings = settings
        #: Whether a job's name under ``EPS_HOME`` is its id.  Jobs on YARN have a folder for each application, from
        #: which only results come here.
        self.names_are_ids = has_names and not runs_on_yarn(settings.job_settings)
        #: Queues the changes of the cluster's nodes; None if the nodes are simulated.
        self.look_at_cluster: Callable[[], None] | None = None
        #: Keeps the names of these jobs apart from those of other schedulers.
        self._tag = uuid.uuid4().hex[:6]
        self._began_s = time.monotonic()
        self._events = Inbox(self.now_s)
        recorder: Recorder | None = None
        policy = POLICIES[settings.policy]
        #: What follows from the events.  Only the scheduler's thread changes it.
        stopping = Stopping(settings.stop, grace_iterations=settings.feedback_iteration)
        self.registry = Registry(Scheduler(nodes, policy, RULES, settings.seed, settings.threshold, stopping))
        if record is not None:
            sizes = {node: [capacity.vcores, capacity.memory_mb] for node, capacity in nodes.items()}
            header = Header(nodes=sizes, tag=self._tag, boot=boot_id(), began_s=self._began_s, **vars(settings))
            recorder = Recorder(record, header, self._events.answer)
            self._tag = recorder.header.tag

            def take(entry: Entry, commands: list[e.Command], state: Scheduler) -> None:
                if observe is not None:
                    observe(entry.at_s, entry.event, commands, state)

            self.registry = recorder.recover(self.registry, policy, RULES, take)
            self._began_s = recorder.header.began_s
        #: When it began, in seconds since 1970; after a restart of the host, about.
        self.began_at = time.time() - self.now_s()
        #: Look-ups of current and past jobs.
        self.look_ups = LookUps(self.registry, None if record is None else record.rows)
        self._recorder = recorder
        self._fleet = Fleet(
            settings, self._tag, record is not None, self._on_job_event, self._wait_until_taken, before_end, objective
        )
        self._loop = Loop(self.registry, self._fleet, self._events, self.now_s, recorder, observe, on_event)
        if attaches:
            self.registry.timeline.resume(round(self.now_s(), TIME_DIGITS))
            self._loop.compact()
            for job_id in self.registry.outstanding.there():
                self._fleet.restore(self.registry, job_id)
        self._loop.thread.start()

    @property
    def state(self) -> Scheduler:
        """The scheduler's state; only its thread may read it while it runs."""
        return self.registry.state

    def now_s(self) -> float:
        """Return the seconds since the start, on a monotonic clock."""
        return time.monotonic() - self._began_s

    # ---- jobs and sweeps

    def open_sweep(self, opened: e.SweepOpened, tables: Mapping[str, Any] | None = None) -> None:
        """Set how a sweep's jobs are ranked, and keep the tables of its file, if any.  Raises as :meth:`ask`."""
        if tables is not None:
            if self._recorder is not None:
                check_writable({"tables": tables}, f"sweep {opened.sweep!r}")
            self.ask(lambda: self.registry.tables.update({opened.sweep: tables}))
        self._events.put(opened)

    def submit(self, submitted: e.JobSubmitted, spec: JobSpec, point: Mapping[str, Any] | None = None) -> Submission:
        """Submit a job; the scheduler chooses its size.

        Raises
        ------
        ConfigError
            The id was used before or makes no valid job name; the point cannot be written as JSON; or the job would run
            on YARN, and this scheduler does not.
        DeadlineError
            As :meth:`ask`.
        RuntimeError
            The scheduler has ended.
        """
        check_place(spec, self.settings.job_settings)
        restart_s = max(RESTART_ENDS_S, self.settings.restart_s) + RESTART_BEGINS_S
        request = dataclasses.replace(submitted.request, iterations=spec.iterations, restart_s=restart_s)
        submission = self._new_submission(request.job_id, request.sweep, spec, point)
        request = dataclasses.replace(request, retry_of=attempt_before(submission, self.look_ups.submission))
        self._add(submission)
        self._events.put(e.JobSubmitted(request))
        return submission

    def refuse(
        self, job_id: str, sweep: str, spec: JobSpec, why: str, point: Mapping[str, Any] | None = None
    ) -> Submission:
        """Accept a job that cannot work, as failed.  Raises as :meth:`submit`."""
        submission = self._new_submission(job_id, sweep, spec, point)
        self._add(submission)
        self._events.put(e.JobRefused(job_id, sweep, why))
        return submission

    def _new_submission(self, job_id: str, sweep: str, spec: JobSpec, point: Mapping[str, Any] | None) -> Submission:
        self.check()
        submission = Submission(job_id, sweep, self._free_name(job_id), spec, dict(point or {}))
        if self._recorder is not None:
            check_writable(submission.details(), f"job {job_id!r}")
        return submission

    def _add(self, submission: Submission) -> None:
        job_id = submission.job_id

        def add() -> None:
            if self.look_ups.submission(job_id) is not None:
                raise ConfigError(f"job id is {job_id!r}, which this scheduler has already used: choose another one")
            self.registry.submissions[job_id] = submission

        self.ask(add)

    def name_of(self, job_id: str) -> str:
        """Return a job's name under ``EPS_HOME``: its id, unless other schedulers have jobs with such ids.

        Raises
        ------
        ConfigError
            The id makes no valid job name.
        """
        return check_job_name(job_id if self.names_are_ids else f"sweep-{self._tag}-{job_id}")

    def _free_name(self, job_id: str) -> str:
        """Return the name of a new job.  Raises as :meth:`name_of`, and ConfigError if another job has the name."""
        name = self.name_of(job_id)
        if self.look_ups.submission(job_id) is None and job_dir(name).path.exists():
            told = f"which a job in {job_dir(name).path.parent} has: choose another one, or remove that job"
            raise ConfigError(f"job id is {job_id!r}, {told} (eps prune {name})")
        return name

    def cancel(self, job_id: str, why: str) -> None:
        """End a job; do nothing if it is over.

        Raises
        ------
        ConfigError
            There is no job with this id.
        """
        if self.look_ups.submission(job_id) is None:
            raise ConfigError(f"job id is {job_id!r}, but there is no such job")
        self._events.put(e.CancelAsked(job_id, why))

    def cancel_trial(self, trial_id: str, why: str) -> None:
        """End the latest job of a trial, which is not retried.

        Raises
        ------
        ConfigError
            There is no such trial, or it has ended.
        """
        jobs = attempts_of(self.look_ups.current()).get(trial_id)
        if jobs is None:
            raise ConfigError(f"trial is {trial_id!r}, but there is no such trial")
        last = self.look_ups.submission(jobs[-1])
        if last is None or last.is_over:
            raise ConfigError(f"{trial_id} has ended")
        self.cancel(jobs[-1], why)

    def close_sweep(self, sweep: str, why: str) -> None:
        """End a sweep: its jobs end, also those that are submitted later.  Idempotent."""
        self._events.put(e.SweepClosed(sweep, why))

    def note_end(self, sweep: str) -> None:
        """Note that all trials of a sweep with a file are over, and no more will come."""
        self._events.put(lambda: self.registry.ended.setdefault(sweep))

    def wants_trial(self, sweep: str) -> bool:
        """Return whether the next trial of a sweep could start now; False, too, while the scheduler cannot answer."""
        with suppress(DeadlineError):
            return self.ask(lambda: self.state.wants_trial(sweep))
        return False

    def tell(self, event: e.NodeEvent) -> None:
        """Queue an event of a node."""
        self._events.put(event)

    def wait(self, submission: Submission, timeout_s: float | None = None) -> None:
        """Wait until a job is over.

        Raises
        ------
        DeadlineError
            The job is not over within ``timeout_s`` seconds.
        RuntimeError
            The scheduler has ended.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not submission.wait(1.0 if deadline_s is None else max(0.0, min(1.0, deadline_s - time.monotonic()))):
            self.check()
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise DeadlineError(f"{submission.job_id} has not ended within {timeout_s:g} s")

    def deliver(self, submission: Submission, request: RunRequest) -> None:
        """Copy report and model of an ended job to the paths that its user named.

        Raises
        ------
        StorageError
            They cannot be written.
        """
        deliver_results(Job.find(submission.name).directory, request)

    def settle(self, timeout_s: float) -> None:
        """Wait until all events queued so far are processed and recorded.

        Raises
        ------
        DeadlineError
            They are not within ``timeout_s`` seconds.
        ResourceError
            The record cannot be written now.
        RuntimeError
            The scheduler has ended.
        """
        # Check first: otherwise each retry would queue one more item.
        self.check_room()
        taken, deadline_s = threading.Event(), time.monotonic() + timeout_s
        self._events.put(taken.set)
        while not taken.wait(min(_LOOK_S, max(0.0, deadline_s - time.monotonic()))):
            self.check()
            self.check_room()
            if time.monotonic() > deadline_s:
                raise DeadlineError(f"H-scheduler has not processed its queued events within {timeout_s:g} s")

    def ask(self, question: Callable[[], _T]) -> _T:
        """Return the result of a question on the scheduler's thread, between two events.

        Raises
        ------
        DeadlineError
            There is no answer within :data:`~hscheduler.live.inbox.ANSWER_TIMEOUT_S` seconds.
        """
        return ask_owner(self._loop.thread, self._events.put, question, ANSWER_TIMEOUT_S)

    def leaked(self) -> int:
        """Return how many containers are held; 0 once all jobs are over."""
        return len(self.state.ledger.all())

    # ---- close

    def close(self, *, leave: bool = False, interrupt: bool = False) -> None:
        """End all jobs and wait for their threads.  Idempotent.

        Parameters
        ----------
        leave : bool
            Leave the jobs running, for the next scheduler with the same record.
        interrupt : bool
            With ``leave``: kill their processes; the next scheduler resumes them from their checkpoints.
        """
        if (end := self._fleet.close(leave=leave, interrupt=interrupt)) is None:
            return
        if self._recorder is not None:
            self._recorder.end()
        if leave:
            # Later events of the jobs are lost here; the jobs repeat them to the next scheduler.
            self._loop.stop()
        elif self._recorder is None:
            # Without a record nothing is to be decided any more.  A record must hold only decisions of its policy.
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
        """Whether the scheduler failed or was closed; then its jobs' progress is unknown."""
        return self._fleet.is_closed or self._loop.failed is not None

    def check(self) -> None:
        """Raise RuntimeError if the scheduler failed or was closed."""
        if self._loop.failed is not None:
            raise RuntimeError(f"H-scheduler failed: {self._loop.failed}") from self._loop.failed
        if self._fleet.is_closed:
            raise RuntimeError("H-scheduler has ended")

    def check_room(self) -> None:
        """Raise ResourceError while no job can be accepted because the record cannot be written."""
        if self._recorder is not None:
            self._recorder.check_room()

    def _wait_until_taken(self) -> None:
        """Wait until the scheduler has taken all events so far, or will take none; on the thread of a job."""
        taken = threading.Event()
        self._events.put(taken.set)
        while not taken.wait(_LOOK_S) and not self.has_ended:
            pass

    def _on_job_event(self, event: e.Event) -> None:
        """Queue an event of a job, on the job's thread."""
        look = self.look_at_cluster
        if isinstance(event, e.ContainersGone) and event.why and look is not None:
            # The node may be lost: report that first, so that its containers do not count as free.
            look()
        self._events.put(event)
