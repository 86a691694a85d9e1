"""Runners of sweeps: in this process, in a service, or as an application on YARN.

Commands and ``hscheduler.sweep`` choose a runner.  Output, reports and results are the same for all.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.errors import ConfigError, DeadlineError, EpsError, JobNotFoundError, ResourceError, StorageError
from eps.hadoop.conf import HadoopConf, environment_configuration, read_configuration
from eps.job.yarn.submit import end_submitted
from eps.job.yarn.sweeps import read_outcome
from eps.storage.atomic import PUBLIC_MODE, write_json_atomic
from eps.storage.locations import open_storage
from eps.system import interrupt
from hscheduler.application.monitor import KILL_S, ApplicationDir, Ended, Monitor, fetch_results, remove_remote_files
from hscheduler.application.submit import submit_again, submit_sweep
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.live.checks import check_sweep, warnings_of
from hscheduler.live.job_results import final_metrics
from hscheduler.live.placement import placed
from hscheduler.live.points import Points
from hscheduler.live.reporting import look_of
from hscheduler.live.scheduler import LiveScheduler, OnEvent
from hscheduler.live.sweep import SWEEP, Sweep, check_names
from hscheduler.reports.news import failures, sentences
from hscheduler.reports.report import point_text, stopping_rule
from hscheduler.reports.view import Look, Row
from hscheduler.runners.report_writer import ReportWriter
from hscheduler.service.client import SchedulerClient
from hscheduler.service.recorded_sweep import RecordedSweep, SweepState
from hscheduler.spec import Spec

logger = logging.getLogger(__name__)

#: Name in messages before the sweep has an id.
_NAME = "the sweep"


@dataclass(frozen=True)
class Viewers:
    """Callbacks that show lines to the user while a sweep runs; called on any thread."""

    #: Shows where the sweep runs, and how to control it.
    where: Callable[[str], None]
    #: Shows events.
    news: Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The result of a sweep that has ended or was interrupted."""

    #: None if no trial has started, or if the sweep continues in a service.
    report: dict[str, Any] | None
    #: The error that ended the sweep.
    error: Exception | None = None
    #: Other problems, as sentences.
    problems: tuple[str, ...] = ()
    #: Hints for the user, as sentences.
    hints: tuple[str, ...] = ()
    #: Where the results stay if a file of the user cannot be written, and what writes it; empty: nowhere.
    kept: str = ""


class Interrupted(KeyboardInterrupt):
    """A sweep was interrupted and its jobs were ended, unless the outcome says otherwise."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class Runner(Protocol):
    """Runs one sweep."""

    def run(self, viewers: Viewers) -> Outcome:
        """Run the sweep to its end.

        Raises
        ------
        EpsError
            The sweep cannot start.
        Interrupted
            The user interrupted this process.
        """


class Here:
    """A sweep with the scheduler in this process and its jobs on this host.

    Parameters
    ----------
    spec : Spec
    policy : str
    points : Points, optional
        Source of points; default: the algorithm of the spec.
    place : RecordedSweep, optional
        The folder in which the sweep is recorded; the caller holds its lock.  A sweep that the folder has continues.
        None: the sweep has no record, and its jobs end with this process.
    report : Path, optional
        File to which the report is written while the sweep runs, besides that in the folder.
    objective : bytes, optional
        Trials are calls of this pickled callable, each with its point, instead of jobs of EPS; the spec says so, too.
    has_space : bool
        Points come from the spec's space, which must not be empty then.

    Attributes
    ----------
    viewers : list of OnEvent
        Called after every event.  Append to it before :meth:`run`.

    Raises
    ------
    ConfigError, StorageError
        The sweep cannot run, or the folder cannot be used.
    """

    def __init__(
        self,
        spec: Spec,
        policy: str,
        points: Points | None = None,
        place: RecordedSweep | None = None,
        report: Path | None = None,
        objective: bytes | None = None,
        has_space: bool = True,
    ) -> None:
        self.policy, spec = policy, placed(spec, None)
        is_new = place is None or not place.settings_path.exists()
        if is_new:
            if place is not None:
                check_names(spec, place.name)
            check_sweep(spec, has_space=has_space)
            _warn(spec, policy)
        self.viewers: list[OnEvent] = []
        self.sweep = Sweep(spec, policy, self._show, points, "" if place is None else place.name, objective)
        self._place, self._more = place, [] if report is None or not _is_replaced(report) else [report]
        settings = self.sweep.spec.sweep
        #: The latest look at it.
        self._look = Look(
            policy=policy,
            metric=settings.metric,
            direction=Direction(settings.direction),
            name="" if place is None else place.name,
            stop=stopping_rule(policy, self.sweep.spec),
            trials=settings.trials,
            knows_iterations=not spec.is_callable or "iterations" in spec.job,
        )
        #: Rows of ended jobs.
        self._ended: dict[str, Row] = {}
        if place is not None and is_new:
            place.begin(policy, spec, objective)

    def look(self) -> Look:
        """Return what a terminal shows now: the last that was seen, while the scheduler does not answer."""
        if self.sweep.scheduler is not None:
            # The record may have been closed.
            with suppress(DeadlineError, StorageError):
                self._look = look_of(self.sweep.scheduler, self._look, self.sweep.name, self._ended)
        return self._look

    def run(self, viewers: Viewers) -> Outcome:
        """Run the sweep; an interrupt ends its jobs, a recorded sweep can be resumed.  See :class:`Runner`."""

        def tell(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
            lines = failures(commands, self.sweep.name_of) + sentences(event, commands, self.sweep.result_of)
            if isinstance(event, e.JobSubmitted) and (point := self.sweep.points.get(event.request.job_id)):
                lines = [f"{event.request.job_id}: {point_text(point)}", *lines]
            for line in lines:
                viewers.news(f"{now_s:8.2f} s  {line}")

        self.viewers.append(tell)
        try:
            return self._saved(_tested(self._run(), self.sweep.spec.sweep.final_test))
        except KeyboardInterrupt as error:
            raise Interrupted(self._stopped()) from error
        except Exception as error:
            if self.sweep.scheduler is None:
                raise
            return replace(self._stopped(), error=error)

    def report(self) -> dict[str, Any] | None:
        """Return the current report, with its name if it is recorded; None before the sweep has started."""
        return None if self.sweep.scheduler is None else self._titled(self.sweep.report(), SweepState.RUNNING)

    def _run(self) -> dict[str, Any]:
        if self._place is None:
            return self.sweep.run()
        place = self._place
        writer = ReportWriter(self.report, [place.report_path, *self._more])
        self.viewers.append(lambda now_s, event, commands: writer.note())
        # A signal of the terminal or the system interrupts the jobs, too: they are not tied to this process.
        with interrupt.interrupt_on_signals(), closing(place.open_record()) as record, writer:
            return self.sweep.run(record)

    def _saved(self, outcome: Outcome) -> Outcome:
        """Write the final report to the sweep's folder."""
        if self._place is None:
            return outcome
        outcome = replace(outcome, report=self._titled(outcome.report, SweepState.ENDED), kept=self._place.kept())
        try:
            write_json_atomic(self._place.report_path, outcome.report, mode=PUBLIC_MODE)
        except StorageError as error:
            return replace(outcome, problems=(*outcome.problems, f"{error}; {outcome.kept}"))
        return outcome

    def _stopped(self) -> Outcome:
        """Return the outcome of a sweep that was interrupted, or whose scheduler failed."""
        found = self._titled(self.report(), SweepState.INTERRUPTED)
        hints = ("interrupted: no trial had started",) if found is None else ()
        if self._place is None:
            return Outcome(found, hints=hints)
        if found is not None:
            # Only for the list of sweeps: the record has all of it.
            with suppress(StorageError):
                write_json_atomic(self._place.report_path, found, mode=PUBLIC_MODE)
        resumes = f"{self._place.resume_command} continues it, with every result"
        return Outcome(found, hints=(*hints, resumes), kept=self._place.kept())

    def _titled(self, report: dict[str, Any] | None, state: SweepState) -> dict[str, Any] | None:
        return report if report is None or self._place is None else self._place.titled(report, state)

    def stop_trial(self, trial: str, why: str) -> None:
        """End a trial.  Raises as :meth:`LiveScheduler.cancel_trial`, also if the sweep has not started."""
        self._started().cancel_trial(trial, why)

    def stop(self, why: str) -> None:
        """End the sweep: its trials end, and :meth:`run` returns its report.

        Raises
        ------
        ConfigError
            The sweep has not started.
        """
        self._started().close_sweep(self.sweep.name, why)

    def _started(self) -> LiveScheduler:
        if self.sweep.scheduler is None:
            raise ConfigError("the sweep has not started")
        return self.sweep.scheduler

    def _show(self, now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        for viewer in list(self.viewers):
            try:
                viewer(now_s, event, commands)
            except Exception as error:
                # For example a closed pipe on standard output: the report is written all the same.
                logger.warning("events are not shown any more: %s: %s", type(error).__name__, error)
                self.viewers.remove(viewer)


def _warn(spec: Spec, policy: str) -> None:
    for sentence in warnings_of(spec, policy):
        logger.warning("%s", sentence)


class ResumedHere(Here):
    """A sweep that was recorded on this host.

    Parameters
    ----------
    place : RecordedSweep
        Its folder; the caller holds its lock.
    report : Path, optional
        As of :class:`Here`.
    """

    def __init__(self, place: RecordedSweep, report: Path | None = None) -> None:
        # Before anything else: a record of another version is refused at once.
        place.open_record().close()
        policy, spec = place.settings()
        super().__init__(spec, policy, place=place, report=report, objective=place.objective())


class Over:
    """A recorded sweep that has ended: its outcome is its report."""

    def __init__(self, place: RecordedSweep) -> None:
        self._place = place

    def run(self, viewers: Viewers) -> Outcome:
        """Return the report.  See :class:`Runner`."""
        return Outcome(self._place.latest_report(), kept=self._place.kept())


def _is_replaced(path: Path) -> bool:
    """Return whether a report replaces the last one at a path; a pipe or a terminal gets the final one only."""
    return not (path.is_char_device() or path.is_fifo())


def _tested(report: dict[str, Any], data: str) -> Outcome:
    """Return a report with the metrics of its best model on ``data``; the sweep has its results without them."""
    if not data or report["best"] is None:
        return Outcome(report)
    try:
        found = final_metrics(report, data)
    except EpsError as error:
        return Outcome(report, problems=(f"the best model could not be evaluated on final_test: {error}",))
    return Outcome({**report, "best": {**report["best"], "test": found}})


class InService:
    """A sweep that a service runs under its own policy.

    Parameters
    ----------
    client : SchedulerClient
    tables : mapping
        Tables of the sweep's file, with paths on the service's host; see :meth:`hscheduler.spec.Spec.tables`.
    flags : str
        Flags with which other commands find the service, with a leading space.
    name : str, optional
        Name of the sweep; default: a new one.
    """

    def __init__(self, client: SchedulerClient, tables: Mapping[str, Any], flags: str, name: str = "") -> None:
        self._client = client
        self.name = client.run_sweep(tables, name)
        #: Commands that show and end the sweep.
        self.where = f"hscheduler jobs {self.name}{flags} shows it, hscheduler kill {self.name}{flags} ends it"
        #: Why nothing runs: the same sweep was submitted before and has ended.  Empty otherwise.
        self.was_over = ""
        if name and client.report(name)[1]:
            self.was_over = f"sweep {name} was submitted before and has ended; use another --name to run it again"

    def run(self, viewers: Viewers) -> Outcome:
        """Show the sweep to its end; it continues if this is interrupted.  See :class:`Runner`."""
        try:
            if self.was_over:
                return Outcome(self._client.report(self.name)[0], hints=(self.was_over,))
            viewers.where(f"the service runs sweep {self.name}; {self.where}")
            for news in self._client.watch(self.name):
                viewers.news(f"{news.at_s:8.2f} s  {news.text}")
            return Outcome(self._client.report(self.name)[0])
        except KeyboardInterrupt as error:
            raise Interrupted(Outcome(None, hints=(f"the sweep continues; {self.where}",))) from error


class OnYarn:
    """A sweep as an application on YARN.  An interrupt of this process ends it.

    Parameters
    ----------
    spec : Spec
    policy : str
    name : str
        Of the sweep on this machine; empty: a new id.
    """

    def __init__(self, spec: Spec, policy: str, name: str = "") -> None:
        self._spec, self._policy, self._name = spec, policy, name

    def run(self, viewers: Viewers) -> Outcome:
        """Submit the application, follow it to its end and fetch its results.  See :class:`Runner`."""
        with interrupt.before_submission(_NAME):
            conf = environment_configuration()
            spec = placed(self._spec, "yarn")
            check_sweep(spec)
            _warn(spec, self._policy)
            client = YarnClient(conf)
        # Ends of this process end the application: no other process here follows it.
        with closing(client), interrupt.interrupt_on_signals():
            known = ApplicationDir.new_sweep(self._name)
            with known.service.lock():
                application = _submitted(spec, self._policy, known, client, conf)
                line = f"{application.application_id} runs the sweep: {_how(known, application)}"
                return _follow(known, application, client, conf, line, viewers)


class Resumed:
    """A sweep that was submitted to YARN earlier.  If its application ended before it, another one continues it.

    Parameters
    ----------
    known : ApplicationDir
    """

    def __init__(self, known: ApplicationDir) -> None:
        self._known = known

    def run(self, viewers: Viewers) -> Outcome:
        """Follow the application to its end and fetch its results.  See :class:`Runner`.

        Raises
        ------
        ConfigError
            Another process on this machine follows the sweep.
        JobNotFoundError
            The sweep has no results, neither here nor on the cluster.
        """
        known = self._known
        if known.service.is_running():
            raise ConfigError(f"resume is {known.sweep_id!r}, but another process on this machine follows that sweep")
        with known.service.lock():
            application, ended = known.application(), known.saved()
            if application is None:
                raise JobNotFoundError(f"sweep {known.sweep_id!r} was removed")
            if ended is not None:
                remove_remote_files(known)
                return _outcome(known, ended, application)
            if not application.shared:
                raise JobNotFoundError(f"sweep {known.sweep_id} has no results, neither here nor on the cluster")
            conf = read_configuration(Path(application.conf_dir))
            with closing(YarnClient(conf)) as client, interrupt.interrupt_on_signals():
                does = "runs"
                if _was_cut_off(application, client):
                    application, does = submit_again(application, known.job, client, conf), "continues"
                line = f"{application.application_id} {does} the sweep: {_how(known, application)}"
                return _follow(known, application, client, conf, line, viewers)


def _was_cut_off(application: Application, client: Client) -> bool:
    """Return whether an application ended before its sweep; one that YARN has forgotten counts as ended."""
    with suppress(JobNotFoundError):
        if not client.report(application.application_id).ended:
            return False
    return read_outcome(application.storage()) is None


def _submitted(spec: Spec, policy: str, known: ApplicationDir, client: Client, conf: HadoopConf) -> Application:
    try:
        with interrupt.before_submission(_NAME):
            return submit_sweep(spec, policy, known.job, client, conf)
    except BaseException:
        if not known.job.is_on_yarn():
            # YARN does not know the application.
            shutil.rmtree(known.path, ignore_errors=True)
        raise


def _how(known: ApplicationDir, application: Application) -> str:
    """Return the commands that control an application."""
    ends = f"Ctrl-C, or yarn application -kill {application.application_id}, interrupts it"
    shows = f"hscheduler jobs{known.service.flag} shows it"
    return f"{ends}; {shows}; {known.follow_command} continues it, or follows it again if this process is killed"


def _follow(
    known: ApplicationDir, application: Application, client: Client, conf: HadoopConf, line: str, viewers: Viewers
) -> Outcome:
    """Show ``line``, follow an application to its end, and fetch its results."""
    try:
        shared = open_storage(application.shared, conf=conf)
    except BaseException:
        end_submitted(client, application, "nothing could follow it")
        raise
    monitor = Monitor(application, client, known.service, shared, _interrupt_on_closed_pipe(viewers.news))
    try:
        _interrupt_on_closed_pipe(viewers.where)(line)
        ended = monitor.run()
        return _outcome(known, ended, application, fetch_results(known, shared, ended))
    except KeyboardInterrupt as error:
        interrupt.discard_closed_output()
        try:
            ended = monitor.end("interrupted")
        except StorageError as lost:
            stays = f"its results stay at {shared.describe('')}: {known.follow_command} fetches them"
            raise Interrupted(Outcome(None, problems=(f"interrupted; {lost}; {stays}",))) from error
        problem = fetch_results(known, shared, ended)
        problems = () if ended.is_over else (f"{application.application_id} did not end within {KILL_S:g} s",)
        hints = [] if ended.reports else ["interrupted: no trial had started"]
        hints += [known.resumes] * ended.can_resume
        problems = (*problems, *([problem] if problem else ()))
        raise Interrupted(Outcome(ended.reports.get(SWEEP), problems=problems, hints=tuple(hints))) from error
    except StorageError as error:
        told = f"the results of {application.application_id} cannot be read: {error}"
        raise StorageError(f"{told}; {known.follow_command} tries again") from error


def _interrupt_on_closed_pipe(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return ``tell``, with a closed pipe treated as an interrupt."""

    def told(line: str) -> None:
        try:
            tell(line)
        except BrokenPipeError:
            # Not raised here: this may be the thread that shows news.
            interrupt.note()

    return told


def _outcome(known: ApplicationDir, ended: Ended, application: Application, problem: str = "") -> Outcome:
    report, name = ended.reports.get(SWEEP), application.application_id
    problems, error = (problem,) if problem else (), None
    if ended.state != "finished":
        said = f"{name} {ended.state}: {ended.reason}"
        if report is None:
            error = ResourceError(said)
        else:
            problems = (said, *problems)
    has_failed = report is not None and any(trial["phase"] == "failed" for trial in report["trials"])
    hints = [f"logs of its containers: yarn logs -applicationId {name}"] * (has_failed or ended.state == "failed")
    hints += [known.resumes] * ended.can_resume
    return Outcome(report, error, problems, tuple(hints))
