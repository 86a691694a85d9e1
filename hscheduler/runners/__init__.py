"""The three places where a sweep is run: in this process, by a service, as an application of YARN.

Commands and ``hscheduler.sweep`` choose one of them; what they show, write and return is the same for all three.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.errors import ConfigError, JobNotFoundError, ResourceError, StorageError
from eps.hadoop.conf import HadoopConf, environment_configuration, read_configuration
from eps.job.yarn.submit import end_submitted
from eps.storage.locations import open_storage
from eps.system import interrupt
from hscheduler.application.follow import KILL_S, ApplicationDir, Ended, Following, bring, remove
from hscheduler.application.orders import SWEEP
from hscheduler.application.submit import submit_sweep
from hscheduler.core import events as e
from hscheduler.live.checks import check_sweep
from hscheduler.live.placement import placed
from hscheduler.live.points import Points
from hscheduler.live.scheduler import OnEvent
from hscheduler.live.sweep import Sweep
from hscheduler.reports.news import failures, sentences
from hscheduler.service.client import SchedulerClient
from hscheduler.spec import Spec

#: What has no name before it is submitted.
_NAME = "the sweep"


@dataclass(frozen=True)
class Viewers:
    """Who is told while a sweep runs: each is called with lines, on any thread."""

    #: Where it runs, and what can be done with it there.
    where: Callable[[str], None]
    #: What happens.
    news: Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What a sweep that has ended, or was interrupted, has brought."""

    #: None where there is none.
    report: dict[str, Any] | None
    #: Why it did not come to its end.
    error: Exception | None = None
    #: What went wrong besides, as sentences.
    problems: tuple[str, ...] = ()
    #: What there is to know, as sentences.
    hints: tuple[str, ...] = ()


class Interrupted(KeyboardInterrupt):
    """A sweep was interrupted: what ran was ended, unless the outcome says otherwise."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class Runner(Protocol):
    """A sweep in one of the places."""

    def run(self, viewers: Viewers) -> Outcome:
        """Run the sweep to its end.

        Raises
        ------
        EpsError
            It cannot begin.
        Interrupted
            As this process was.
        """


class Here:
    """A sweep whose scheduler is in this process, and whose jobs are on this host.

    Parameters
    ----------
    spec : Spec
    policy : str
    points : Points, optional
        As of :class:`~hscheduler.live.sweep.Sweep`.

    Attributes
    ----------
    viewers : list of OnEvent
        Called after every event; may grow until the sweep runs.
    """

    def __init__(self, spec: Spec, policy: str, points: Points | None = None) -> None:
        spec = placed(spec, None)
        check_sweep(spec)
        self.viewers: list[OnEvent] = []
        self.sweep = Sweep(spec, policy, self._show, points)

    def run(self, viewers: Viewers) -> Outcome:
        """Run the sweep; what is left of it when it is interrupted is ended.  See :class:`Runner`."""

        def tell(now_s: float, event: e.Event, commands: list[e.Command]) -> None:
            for line in failures(commands, self.sweep.name_of) + sentences(event, commands):
                viewers.news(f"{now_s:8.2f} s  {line}")

        self.viewers.append(tell)
        try:
            return Outcome(self.sweep.run())
        except KeyboardInterrupt as error:
            found = self.report()
            hints = ("interrupted: no trial had begun",) if found is None else ()
            raise Interrupted(Outcome(found, hints=hints)) from error
        except Exception as error:
            found = self.report()
            if found is None:
                raise
            return Outcome(found, error)

    def report(self) -> dict[str, Any] | None:
        """Return the report as it is now; None before the sweep has begun."""
        return None if self.sweep.scheduler is None else self.sweep.report()

    def _show(self, now_s: float, event: e.Event, commands: list[e.Command]) -> None:
        for viewer in self.viewers:
            viewer(now_s, event, commands)


class InService:
    """A sweep that a service runs, which decides by its own policy.

    Parameters
    ----------
    client : SchedulerClient
    tables : mapping
        Of the sweep's file, with paths that the service finds; see :meth:`hscheduler.spec.Spec.tables`.
    flags : str
        By which other commands find the service, with a space before them.
    name : str, optional
        Of the sweep; default: one that is new.
    """

    def __init__(self, client: SchedulerClient, tables: Mapping[str, Any], flags: str, name: str = "") -> None:
        self._client = client
        self.name = client.run_sweep(tables, name)
        #: How other commands show and end the sweep.
        self.where = f"hscheduler jobs {self.name}{flags} shows it, hscheduler kill {self.name}{flags} ends it"
        #: Why the same file under the same name is not run once more; empty where it runs.
        self.was_over = ""
        if name and client.report(name)[1]:
            self.was_over = f"sweep {name} was submitted before and is over; another --name runs it again"

    def run(self, viewers: Viewers) -> Outcome:
        """Show the sweep to its end; it goes on when this is interrupted.  See :class:`Runner`."""
        try:
            if self.was_over:
                return Outcome(self._client.report(self.name)[0], hints=(self.was_over,))
            viewers.where(f"the service runs sweep {self.name}; {self.where}")
            for news in self._client.watch(self.name):
                viewers.news(f"{news.at_s:8.2f} s  {news.text}")
            return Outcome(self._client.report(self.name)[0])
        except KeyboardInterrupt as error:
            raise Interrupted(Outcome(None, hints=(f"it goes on; {self.where}",))) from error


class OnYarn:
    """A sweep as an application of YARN, which ends when this process is interrupted.

    Parameters
    ----------
    spec : Spec
    policy : str
    """

    def __init__(self, spec: Spec, policy: str) -> None:
        self._spec, self._policy = spec, policy

    def run(self, viewers: Viewers) -> Outcome:
        """Submit the application, show it to its end and fetch what it has left.  See :class:`Runner`."""
        with interrupt.before_submission(_NAME):
            conf = environment_configuration()
            spec = placed(self._spec, "yarn")
            check_sweep(spec)
            client = YarnClient(conf)
        # Nothing else on this host stands for the application: it ends with this process.
        with closing(client), interrupt.interrupt_on_signals():
            known = ApplicationDir.new_sweep()
            with known.service.lock():
                application = _submitted(spec, self._policy, known, client, conf)
                line = f"{application.application_id} runs the sweep: {_how(known, application)}"
                return _to_its_end(known, application, client, conf, line, viewers)


class Again:
    """A sweep that was submitted to YARN before: followed again, or what it has left.

    Parameters
    ----------
    known : ApplicationDir
    """

    def __init__(self, known: ApplicationDir) -> None:
        self._known = known

    def run(self, viewers: Viewers) -> Outcome:
        """Follow the application to its end and fetch what it has left.  See :class:`Runner`.

        Raises
        ------
        ConfigError
            Another process here follows it.
        JobNotFoundError
            Nothing is left of it.
        """
        known = self._known
        if known.service.is_running():
            raise ConfigError(f"resume is {known.sweep_id!r}, but must be a sweep that no other process here follows")
        with known.service.lock():
            application, ended = known.application(), known.kept()
            if application is None:
                raise JobNotFoundError(f"there is no sweep {known.sweep_id!r} any more")
            if ended is not None:
                remove(known)
                return _outcome(ended, application)
            if not application.shared:
                raise JobNotFoundError(f"nothing is left of sweep {known.sweep_id}, neither here nor on the cluster")
            conf = read_configuration(Path(application.conf_dir))
            with closing(YarnClient(conf)) as client, interrupt.interrupt_on_signals():
                line = f"{application.application_id} is the sweep; while it runs: {_how(known, application)}"
                return _to_its_end(known, application, client, conf, line, viewers)


def _submitted(spec: Spec, policy: str, known: ApplicationDir, client: Client, conf: HadoopConf) -> Application:
    try:
        with interrupt.before_submission(_NAME):
            return submit_sweep(spec, policy, known.job, client, conf)
    except BaseException:
        if not known.job.is_on_yarn():
            # YARN has nothing of it.
            shutil.rmtree(known.path, ignore_errors=True)
        raise


def _how(known: ApplicationDir, application: Application) -> str:
    """Return what can be done with an application that is followed."""
    ends = f"Ctrl-C, or yarn application -kill {application.application_id}, ends it"
    shows = f"hscheduler jobs{known.service.flag} shows it"
    return f"{ends}; {shows}; {known.how_again} follows it again where this process is killed"


def _to_its_end(
    known: ApplicationDir, application: Application, client: Client, conf: HadoopConf, line: str, viewers: Viewers
) -> Outcome:
    """Show an application until it has ended, from ``line`` on, and fetch what it has left."""
    try:
        shared = open_storage(application.shared, conf=conf)
    except BaseException:
        end_submitted(client, application, "nothing could follow it")
        raise
    following = Following(application, client, known.service, shared, _noting(viewers.news))
    try:
        _noting(viewers.where)(line)
        ended = following.run()
        return _outcome(ended, application, bring(known, shared, ended))
    except KeyboardInterrupt as error:
        interrupt.discard_closed_output()
        try:
            ended = following.end("interrupted")
        except StorageError as lost:
            stays = f"what it has left stays at {shared.describe('')}: {known.how_again} fetches it"
            raise Interrupted(Outcome(None, problems=(f"interrupted; {lost}; {stays}",))) from error
        problem = bring(known, shared, ended)
        problems = () if ended.is_over else (f"YARN has not ended {application.application_id} within {KILL_S:g} s",)
        hints = () if ended.reports else ("interrupted: no trial had begun",)
        problems = (*problems, *([problem] if problem else ()))
        raise Interrupted(Outcome(ended.reports.get(SWEEP), problems=problems, hints=hints)) from error
    except StorageError as error:
        told = f"what {application.application_id} has left cannot be read: {error}"
        raise StorageError(f"{told}; {known.how_again} tries again") from error


def _noting(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Return what tells lines, and takes the end of whoever reads them for an interrupt."""

    def told(line: str) -> None:
        try:
            tell(line)
        except BrokenPipeError:
            # This may be the thread of the news.
            interrupt.note()

    return told


def _outcome(ended: Ended, application: Application, problem: str = "") -> Outcome:
    report, name = ended.reports.get(SWEEP), application.application_id
    problems, error = (problem,) if problem else (), None
    if ended.state != "finished":
        said = f"{name} {ended.state}: {ended.reason}"
        if report is None:
            error = ResourceError(said)
        else:
            problems = (said, *problems)
    has_failed = report is not None and any(trial["phase"] == "failed" for trial in report["trials"])
    hints = (f"what its containers wrote: yarn logs -applicationId {name}",)
    return Outcome(report, error, problems, hints if has_failed or ended.state == "failed" else ())
