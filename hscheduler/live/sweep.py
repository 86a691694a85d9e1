"""A sweep of real jobs: it draws the points, submits the trials to a scheduler, and makes the report.

The scheduler is its own, of simulated nodes on this host, or that of a service or an application on YARN.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from eps.errors import ConfigError, EpsError, StorageError
from eps.spec.job_spec import JobSpec
from eps.storage.jobdir import JobDir, check_job_name, list_jobs
from eps.system import interrupt
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.live.points import Points, Rungs, points_of
from hscheduler.live.reporting import report_of
from hscheduler.live.scheduler import LiveScheduler, LiveSettings, OnEvent
from hscheduler.live.submission import AGAIN, Submission, attempt_id, is_retryable, lacked_space
from hscheduler.record.api import SchedulerRecord
from hscheduler.simulator.workload import Arrival
from hscheduler.spec import Spec, request_of

logger = logging.getLogger(__name__)

#: What a scheduler calls a sweep without a name.
SWEEP = "sweep"
#: Longest pause between checks of the trials, seconds.
_LOOK_S = 1.0
#: A trial that failed because the disk was full is tried again after so many seconds, then twice as many, ...
SPACE_PAUSE_S = 2.0
#: ... and so many such failures do not count as attempts.
MOST_WITHOUT_SPACE = 8
#: Seconds for the record to store an event before the caller gives up.
SETTLE_TIMEOUT_S = 30.0


def trial_prefix(name: str) -> str:
    """Return the common prefix of the ids of a sweep's trials; the name is empty if it has none."""
    return f"{name}-trial-" if name else "trial-"


def jobs_of(name: str) -> list[JobDir]:
    """Return the jobs under ``EPS_HOME`` that have the names of trials of a sweep."""
    named = re.compile(rf"{re.escape(trial_prefix(name))}\d+({AGAIN}\d+)?", re.ASCII)
    return [job for job in list_jobs() if named.fullmatch(job.name)]


def trial_id(name: str, number: int) -> str:
    """Return the id of a sweep's ``number``-th trial, counted from 1, which is also the id of its first job."""
    return f"{trial_prefix(name)}{number}"


def check_names(spec: Spec, name: str) -> None:
    """Check that the jobs of a sweep can have names.

    Raises
    ------
    ConfigError
        The name of the sweep is too long, or has other characters than names of jobs.
    """
    try:
        # The longest name of a job that the sweep can have.
        check_job_name(attempt_id(trial_id(name, spec.sweep.trials), spec.sweep.retries + MOST_WITHOUT_SPACE + 1))
    except ConfigError:
        raise ConfigError(
            f"sweep is {name!r}, but must have only letters, digits, '.', '_' and '-', and be short: the names "
            "of its jobs start with it and have at most 64 characters"
        ) from None


def _settings_of(spec: Spec, policy: str) -> LiveSettings:
    return LiveSettings(policy, spec.sweep.seed, restart_s=max(0.0, spec.sweep.kill_restart_s))


def report_of_record(spec: Spec, policy: str, name: str, record: SchedulerRecord) -> dict[str, Any]:
    """Return the report of a sweep that does not run, from its record.

    Raises
    ------
    ConfigError, StorageError
        As :class:`LiveScheduler`.
    """
    settings = _settings_of(spec.under(policy), policy)
    scheduler = LiveScheduler(spec.cluster.capacities(), settings, record=record, attaches=False)
    try:
        return report_of(scheduler, name, spec)
    finally:
        scheduler.close(leave=True)


@dataclass
class _Trial:
    """A point, and the jobs that tried it."""

    job_id: str
    spec: JobSpec
    attempts: list[Submission] = field(default_factory=list)
    is_reported: bool = False
    #: Its values at rungs that the source of points knows.
    told: Rungs = ()
    #: Whether the latest attempt was cancelled because it took too long.
    is_cancelled: bool = False


class Sweep:
    """One sweep from its first point to its report.

    Parameters
    ----------
    spec : Spec
    policy : str
    on_event : callable, optional
        Called after every event with the seconds since the start, the event and the commands that followed from it.
    points : Points, optional
        By default those of the sweep's algorithm.
    name : str
        Of the sweep, in a scheduler that may have others; the names of its jobs begin with it.  Empty: it has none, and
        is the only one.
    objective : bytes, optional
        Trials are calls of this pickled callable, each with its point, instead of jobs of EPS.

    Raises
    ------
    ConfigError
        The algorithm needs a package that is not installed.
    """

    def __init__(
        self,
        spec: Spec,
        policy: str,
        on_event: OnEvent | None = None,
        points: Points | None = None,
        name: str = "",
        objective: bytes | None = None,
    ) -> None:
        self._objective = objective
        self.points: dict[str, dict[str, Any]] = {}
        self._asked, self.spec = spec, spec.under(policy)
        self.name, self._is_named, self._trial_name = name or SWEEP, bool(name), partial(trial_id, name)
        self._on_event = on_event
        self._source = points_of(spec) if points is None else points
        # The ranking of its jobs comes with the event that opens it.
        self._settings = _settings_of(spec, policy)
        #: Seconds from the sweep's start at which trials arrive, unless they arrive when they can start.
        self._arrivals = Arrival(spec.sweep.mean_gap_s()).times_s(Random(f"arrivals:{spec.sweep.seed}"))
        self._due_s = next(self._arrivals)
        #: Whether trials arrive when they can start.  If no point of the space works, all are refused at once.
        self._waits_for_room = self.spec.opened(name).coming is not None
        self._trials: list[_Trial] = []
        #: The jobs of all trials.
        self._jobs: dict[str, Submission] = {}
        self._most = spec.sweep.trials
        #: The report when the record was closed.
        self._last: dict[str, Any] | None = None
        #: Set when a job is over.
        self._news = threading.Event()
        self.scheduler: LiveScheduler | None = None

    def run(self, record: SchedulerRecord | None = None) -> dict[str, Any]:
        """Run all points; return the report.  An interrupt ends the remaining jobs.

        Parameters
        ----------
        record : SchedulerRecord, optional
            Closed with the sweep.  A sweep that it has continues; interrupted jobs resume from their checkpoints when
            the sweep continues.

        Raises
        ------
        ConfigError, StorageError
            As :class:`LiveScheduler`.
        RuntimeError
            The scheduler failed.
        """
        scheduler = LiveScheduler(
            self.spec.cluster.capacities(),
            self._settings,
            self._take,
            record,
            objective=self._objective,
            has_names=self._is_named,
        )
        self.scheduler = scheduler
        is_interrupted = False
        try:
            if self.name not in scheduler.registry.sweeps:
                scheduler.open_sweep(self.spec.opened(self.name))
                scheduler.settle(SETTLE_TIMEOUT_S)
            self.feed(scheduler)
            scheduler.check()
            if record is not None:
                self._last = self.report()
        except BaseException:
            is_interrupted = record is not None
            if is_interrupted:
                with suppress(EpsError):
                    self._last = self.report()
            raise
        finally:
            try:
                # Also if a second interrupt comes meanwhile: jobs that end here would end for good.
                scheduler.close(leave=is_interrupted, interrupt=is_interrupted)
            finally:
                if record is None:
                    self._report_rest()
        return self.report()

    def feed(self, scheduler: LiveScheduler) -> None:
        """Submit all points to a scheduler in which the sweep is open; return when all trials are over.

        If the scheduler was restarted and has trials of this sweep, the sweep continues them.  The caller must
        :meth:`wake` it whenever a job is over.

        Raises
        ------
        RuntimeError
            The scheduler ended.
        """
        self._restore_trials(scheduler)
        self.scheduler = scheduler
        opened = self.spec.opened(self.name)
        if scheduler.registry.sweeps.get(self.name) != opened:
            # For example, the sweep could not resume before, and no room was kept for its trials.
            scheduler.open_sweep(opened)
        for _ in self._trials:
            self._due_s = next(self._arrivals)
        while True:
            interrupt.check()
            self._news.clear()
            scheduler.check()
            if self.name in scheduler.registry.closed:
                self._most = len(self._trials)
            # Asked before results go to the source: so it knows those that made room for the trial.
            left_s, submitted = self._arrives_in_s(scheduler), len(self._jobs)
            for trial in self._trials:
                if not trial.is_reported:
                    self._look_at(trial, scheduler)
            if len(self._jobs) > submitted:
                # A retry may have taken the containers: ask again.
                continue
            over = sum(trial.is_reported for trial in self._trials)
            if over >= self._most:
                return
            paused = sum(trial.attempts[-1].is_paused for trial in self._trials)
            if not self._may_submit(over + paused):
                left_s = _LOOK_S
            elif left_s <= 0:
                self._submit(scheduler)
                continue
            self._news.wait(min(_LOOK_S, left_s))

    def _arrives_in_s(self, scheduler: LiveScheduler) -> float:
        """Return the seconds until the next trial arrives, if any is left; infinity if it cannot start yet."""
        if not self._waits_for_room:
            return scheduler.registry.opened_s.get(self.name, 0.0) + self._due_s - scheduler.now_s()
        return 0.0 if len(self._trials) < self._most and scheduler.wants_trial(self.name) else math.inf

    def _restore_trials(self, scheduler: LiveScheduler) -> None:
        """Restore the trials that the scheduler knows from before its restart."""
        found = {each.job_id: each for each in scheduler.look_ups.submissions(self.name)}
        while (job_id := self._trial_name(len(self._trials) + 1)) in found:
            first = found[job_id]
            self.points[job_id] = dict(first.point)
            self._source.restore(job_id, dict(first.point))
            trial = _Trial(job_id, first.spec)
            while (again := attempt_id(job_id, len(trial.attempts) + 1)) in found:
                trial.attempts.append(found[again])
                self._jobs[again] = found[again]
            self._trials.append(trial)

    def wake(self) -> None:
        """Check the trials now."""
        self._news.set()

    def report(self) -> dict[str, Any]:
        """Return the report at this moment; from any thread.  Raises as :func:`report_of`."""
        assert self.scheduler is not None
        if self._last is None:
            try:
                return report_of(self.scheduler, self.name, self._asked)
            except StorageError:
                # The record may have been closed meanwhile.
                if self._last is None:
                    raise
        return self._last

    def name_of(self, job_id: str) -> str:
        """Return a job's name under ``EPS_HOME``; empty if it is not known yet."""
        submission = self._jobs.get(job_id)
        return "" if submission is None else submission.name

    def result_of(self, job_id: str) -> float | None:
        """Return a job's final value of the sweep's metric; None unless it finished."""
        submission = self._jobs.get(job_id)
        return None if submission is None else submission.loss

    def _may_submit(self, resting: int) -> bool:
        """Return whether another trial may arrive; ``resting`` is the number of those that are over or paused."""
        submitted, limit = len(self._trials), self.spec.sweep.parallelism
        return submitted < self._most and (not limit or submitted - resting < limit)

    def _submit(self, scheduler: LiveScheduler) -> None:
        job_id = self._trial_name(len(self._trials) + 1)
        self._due_s = next(self._arrivals)
        self._tell_rungs()
        try:
            self.points[job_id] = point = self._source.ask(job_id)
        except StopIteration as end:
            self._most, why = len(self._trials), str(end) or "there are no more points"
            logger.warning("the sweep ends after %d of %d trials: %s", self._most, self.spec.sweep.trials, why)
            # Its stopping rule must not wait for more.
            scheduler.open_sweep(dataclasses.replace(self.spec.opened(self.name), trials=self._most))
            return
        try:
            trial = _Trial(job_id, self.spec.job_spec(point))
            self._try(trial, scheduler)
        except ConfigError as error:
            trial = _Trial(job_id, self.spec.job_spec())
            why = f"its settings cannot work: {error}"
            trial.attempts.append(scheduler.refuse(job_id, self.name, trial.spec, why, point))
        self._trials.append(trial)

    def _tell_rungs(self) -> None:
        """Tell the source of points the values at rungs that it does not know."""
        for trial in self._trials:
            rungs = trial.attempts[-1].rungs
            if not trial.is_reported and rungs and rungs != trial.told:
                trial.told = rungs
                self._source.tell_rungs(trial.job_id, rungs)

    def _try(self, trial: _Trial, scheduler: LiveScheduler) -> None:
        job_id = attempt_id(trial.job_id, len(trial.attempts) + 1)
        request = request_of(trial.spec, job_id, self.name, self.spec.cluster)
        self._jobs[job_id] = submission = scheduler.submit(
            e.JobSubmitted(request), trial.spec, self.points[trial.job_id]
        )
        trial.attempts.append(submission)
        trial.is_cancelled = False

    def _look_at(self, trial: _Trial, scheduler: LiveScheduler) -> None:
        """Report the result of a trial, retry it, or end it if it takes too long."""
        submission, limit_s = trial.attempts[-1], self.spec.sweep.trial_timeout_s
        if not submission.is_over:
            timeline = scheduler.registry.timeline
            record = timeline.trials.get(submission.job_id)
            # It has no size before all its members run; until then YARN may still look for containers.
            if not limit_s or record is None or not record.sizes or submission.is_paused or trial.is_cancelled:
                return
            if timeline.ran_s(scheduler.now_s()) - timeline.ran_s(record.sizes[0][0]) - record.rested_s > limit_s:
                trial.is_cancelled = True
                scheduler.cancel(submission.job_id, f"it took longer than {limit_s:g} s (trial_timeout_s)")
            return
        if self._is_to_retry(trial, scheduler):
            if scheduler.now_s() >= self._again_at_s(trial, scheduler):
                self._try(trial, scheduler)
        else:
            self._report(trial)

    def _report(self, trial: _Trial) -> None:
        """Tell the source the result of a trial: that of its latest attempt."""
        trial.is_reported, submission = True, trial.attempts[-1]
        killed = submission.is_stopped and submission.phase is Phase.KILLED
        value = submission.stopped_with if killed else submission.loss
        if submission.has_diverged:
            self._source.tell(trial.job_id, None, killed=True)
        else:
            self._source.tell(trial.job_id, value, killed, submission.rungs)

    def _report_rest(self) -> None:
        """Report the trials that an error ended; in a study of the user's they would seem to run for ever."""
        try:
            for trial in self._trials:
                if not trial.is_reported:
                    self._report(trial)
            # The error came before the latest point had a job.
            for job_id in list(self.points)[len(self._trials) :]:
                self._source.tell(job_id, None)
        except Exception as error:
            # The caller raises the error that ended the sweep.
            logger.warning("trials that were ended are not reported: %s: %s", type(error).__name__, error)

    def _is_to_retry(self, trial: _Trial, scheduler: LiveScheduler) -> bool:
        last = trial.attempts[-1]
        if self.name in scheduler.registry.closed or not (is_retryable(last) or lacked_space(last)):
            return False
        counted = len(trial.attempts) - min(MOST_WITHOUT_SPACE, sum(map(lacked_space, trial.attempts)))
        return counted <= self.spec.sweep.retries

    def _again_at_s(self, trial: _Trial, scheduler: LiveScheduler) -> float:
        """Return when to try a trial again: at once, unless the disk was full."""
        last = trial.attempts[-1]
        if not lacked_space(last):
            return 0.0
        record = scheduler.registry.timeline.trials.get(last.job_id)
        failed_s = 0.0 if record is None or record.finished_s is None else record.finished_s
        return failed_s + math.ldexp(SPACE_PAUSE_S, sum(map(lacked_space, trial.attempts)) - 1)

    def _take(self, now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        if self._on_event is not None:
            self._on_event(now_s, event, commands)
        if any(isinstance(command, e.JobOver | e.EndJob | e.TrialWanted) for command in commands):
            self.wake()
