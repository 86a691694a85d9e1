"""An application from the side of whoever submitted it: its folder here, what happens in it, what it has left.

::

    EPS_HOME/sweeps/ID, or the directory of a service (hscheduler serve --state)
    ├── lock          held (flock) by the process that follows the application, from before it is submitted on
    ├── job.json      which application it is, and what it keeps on the cluster, from before YARN knows of it on; and
    │                 how it ended, when what it has left was fetched
    ├── tls/          certificates by which its service and that one's callers know each other
    ├── service.json  where that listens
    └── reports/      the report of each sweep
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import unquote

from eps.cluster.yarn.application import RESULTS, Application, remove_staged
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.outcome import outcome
from eps.cluster.yarn.types import ApplicationReport
from eps.core.types import Address
from eps.errors import ConfigError, EpsError, JobNotFoundError, StorageError
from eps.job.yarn.remote import Inquiry, why_waiting
from eps.job.yarn.shared_application import JOBS
from eps.job.yarn.sweeps import REPORTS, list_sweeps, read_outcome, report_file, sweeps_dir
from eps.storage.api import Storage
from eps.storage.atomic import read_json, write_bytes_atomic, write_json_atomic
from eps.storage.jobdir import JobDir, JobLock, jobs_dir, readable
from eps.storage.locations import RemotePath
from eps.storage.record import End, Phase
from eps.system import interrupt
from eps.system.home import make_private
from hscheduler.application.orders import SERVICE_FILE, SWEEP, staged
from hscheduler.reports.report import closed
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.sweeps import ALONE

logger = logging.getLogger(__name__)

#: How often YARN is asked.
ASK_S = 0.5
#: A service that is silent for so long is looked for anew.
GIVE_UP_S = 5.0
#: YARN ends an application that was interrupted within this, or what it has on the cluster stays there.
KILL_S = 20.0
#: Characters of YARN's word on what an application waits for.
LONGEST_WHY = 160
#: What is said last is shown still.
_JOIN_S = 3.0


@dataclass(frozen=True)
class Ended:
    """How an application ended."""

    state: str
    reason: str
    #: Sweep -> its report; none of one that had no job.
    reports: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    #: False where YARN does not know it any more, and it has not said itself that it has ended: it may run.
    is_over: bool = True


# ---- here


@dataclass(frozen=True)
class ApplicationDir:
    """The folder of one application on this machine."""

    path: Path

    @classmethod
    def new_sweep(cls) -> ApplicationDir:
        """Make the folder of a sweep that is to be submitted, with certificates.

        Raises
        ------
        ConfigError
            The package that makes them is missing.
        StorageError
            It cannot be made.
        """
        found = cls(sweeps_dir() / secrets.token_hex(6))
        try:
            make_private(found.path)
        except OSError as error:
            raise StorageError(f"{found.path}: cannot be made: {error.strerror or error}") from error
        found.service.security(between_hosts=True)
        return found

    @property
    def sweep_id(self) -> str:
        """What the sweep is called here."""
        return self.path.name

    @property
    def service(self) -> ServiceDir:
        """The folder as that of the application's service, for its clients."""
        return ServiceDir(self.path)

    @property
    def job(self) -> JobDir:
        """The folder as that of a job, of which it has lock, certificates, and how it ended."""
        return JobDir(self.path)

    @property
    def how_again(self) -> str:
        """The command that follows the application again."""
        if self.service.is_sweep:
            return f"hscheduler sweep --resume {self.sweep_id}"
        return f"hscheduler serve --on yarn{self.service.flag}"

    def application(self) -> Application | None:
        """Return which application it is; None where none was submitted.

        Raises
        ------
        StorageError
            The note cannot be read.
        """
        return Application.read(self.job)

    def keep(self, ended: Ended) -> None:
        """Keep how the application ended, and its reports: soon nobody else knows.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        for sweep, report in ended.reports.items():
            target = self.path / report_file(sweep)
            target.parent.mkdir(exist_ok=True)
            if target.exists() and read_json(target) != report:
                # The report of an earlier application with this folder.
                aside = (self.path / report_file(f"{sweep}~{number}") for number in count(1))
                target.rename(next(path for path in aside if not path.exists()))
            write_json_atomic(target, report)
        self.job.note(phase=Phase.ENDED, end=End(ended.state, ended.reason))

    def kept(self) -> Ended | None:
        """Return what was kept; None where nothing was.

        Raises
        ------
        StorageError
            It cannot be read.
        """
        found = self.job.record().end
        if found is None:
            return None
        return Ended(found.state, found.reason, self.kept_reports())

    def kept_reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports that were kept, by sweep.  Raises as :meth:`kept`."""
        paths = sorted((self.path / REPORTS).glob("*.json"))
        return {unquote(path.stem): dict(found) for path in paths if (found := read_json(path)) is not None}


def known_sweeps() -> Iterator[ApplicationDir]:
    """Yield the sweeps that were submitted from this machine, whose folder is still there; what changed last first."""
    found = [ApplicationDir(each.path) for each in list_sweeps() if each.job_json.exists()]
    yield from sorted(found, key=lambda each: (-each.job.changed_s(), each.sweep_id))


def known_sweep(name: str) -> ApplicationDir:
    """Return the sweep of an id, or of an application.

    Raises
    ------
    JobNotFoundError
        There is none here.
    StorageError
        It is not known which application one is.
    """
    for each in known_sweeps():
        if name == each.sweep_id:
            return each
    for each in known_sweeps():
        application = each.application()
        if application is not None and name == application.application_id:
            return each
    raise JobNotFoundError(f"there is no sweep {name!r} under {sweeps_dir()}: hscheduler sweeps lists them")


def say_where(directory: ServiceDir) -> None:
    """Note in the directory of a service on YARN where that listens now, unless a process here follows it.

    Raises
    ------
    StorageError
        The record cannot be read, or the note not be written.
    """
    application = None if directory.is_running() else Application.read(JobDir(directory.path))
    if application is not None and application.shared:
        # Where the cluster cannot be asked, it listens where it did.
        with suppress(EpsError):
            place = place_of(application.storage())
            if place is not None:
                directory.say_where(place, 0)


def staged_for(directory: ServiceDir, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a sweep's tables with places that a service on YARN finds, as of :func:`staged`.

    Raises
    ------
    ConfigError
        A file cannot be read, or a model is in one.
    StorageError
        The cluster does not take one.
    """
    application = Application.read(JobDir(directory.path))
    if application is None or not application.shared:
        return tables
    found, models = staged(tables, RemotePath.parse(application.shared).parent.parent / "cache")
    for file in models.values():
        told = "a service on YARN has no file of this host: hscheduler sweep --on yarn brings it"
        raise ConfigError(f"model is in {file}, but {told}")
    return found


def place_of(shared: Storage) -> Address | None:
    """Return where the service of an application's latest attempt listens; None before it does.

    Parameters
    ----------
    shared : Storage
        The application's folder in the cluster's file system.
    """
    try:
        if SERVICE_FILE not in shared.names(""):
            return None
        with shared.read(SERVICE_FILE) as file:
            found = json.loads(file.read())
        return Address(str(found["host"]), int(found["port"]))
    except (StorageError, ValueError, KeyError, TypeError) as error:
        # It is looked for again; whether the application has ended YARN says.
        logger.info("%s: %r", shared.describe(SERVICE_FILE), error)
        return None


# ---- while it runs


class Following:
    """Follows one application until it has ended.

    Parameters
    ----------
    application : Application
    client : Client
    directory : ServiceDir
        With the certificates of the application's service.  This process holds its lock, so that commands which find
        the service by it wait for it.
    shared : Storage
        The application's folder in the cluster's file system.
    tell : callable
        Called with each line that whoever watches is to see; on any thread.
    sweep : str, optional
        The sweep whose news are told; None: no news.
    """

    def __init__(
        self,
        application: Application,
        client: Client,
        directory: ServiceDir,
        shared: Storage,
        tell: Callable[[str], None],
        sweep: str | None = SWEEP,
    ) -> None:
        self.application, self._client, self._directory = application, client, directory
        self.shared, self._tell, self._sweep = shared, tell, sweep
        #: Where its service listens, and its page at YARN's proxy; None and empty before it does.
        #: Where the service listens, and of which attempt that was read.
        self.place: Address | None = None
        self._attempt = 0
        self.page = ""
        self._said = ""
        self._inquiry = Inquiry(client, application.application_id)
        self._news: SchedulerClient | None = None
        self._watcher: threading.Thread | None = None
        #: Nothing more is to be heard of it.
        self._over = threading.Event()
        self._pause = threading.Event()

    def run(self) -> Ended:
        """Follow the application; return how it ended.

        Raises
        ------
        KeyboardInterrupt
            Somebody interrupts: the application goes on.
        StorageError
            It has ended, and what it has left to say how cannot be read.
        """
        while (ended := self._look()) is None:
            self._pause.wait(ASK_S)
        return ended

    def until_it_listens(self) -> Ended | None:
        """Return None as soon as the service listens, or how the application ended before.  Raises as :meth:`run`."""
        while (ended := self._look()) is None and self.place is None:
            self._pause.wait(ASK_S)
        return ended

    def end(self, why: str) -> Ended:
        """Have YARN end the application; return what there was of it.  One that does not end in time may run.

        Raises
        ------
        StorageError
            What it has left cannot be read.
        """
        # The stored reports miss the latest seconds.
        latest = self._latest_reports()
        name = self.application.application_id
        try:
            self._client.kill(name, why)
        except JobNotFoundError:
            pass
        except EpsError as error:
            logger.warning("%s may run (yarn application -kill %s ends it): %s", name, name, error)
        self._close()
        is_over = self._ends_within(KILL_S)
        found = {**self.left_reports(), **latest}
        return Ended("killed", why, _closed(found, why) if is_over else found, is_over)

    def _latest_reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports of sweeps with jobs that run or wait; none if the service does not answer."""
        if self.place is None:
            return {}
        try:
            with SchedulerClient(self._directory, give_up_s=GIVE_UP_S) as client:
                sweeps = {str(job["sweep"]) for job in client.jobs_going_on()[0]}
                return {sweep: client.report(sweep)[0] for sweep in sweeps}
        except EpsError as error:
            logger.info("%s", error)
            return {}

    def left_reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports that the application has left on the cluster, by sweep.

        Raises
        ------
        StorageError
            One cannot be read, or is none.
        """
        found: dict[str, dict[str, Any]] = {}
        for name in self.shared.names(REPORTS):
            if name.startswith(".") or not name.endswith(".json"):
                # A temporary file, of a master that was lost while it wrote.
                continue
            with self.shared.read(f"{REPORTS}/{name}") as file:
                content = file.read()
            try:
                found[unquote(name.removesuffix(".json"))] = {**json.loads(content)}
            except (ValueError, TypeError) as error:
                where = self.shared.describe(f"{REPORTS}/{name}")
                raise StorageError(f"{where}: is no report of a sweep: {error!r}") from None
        return found

    def _ends_within(self, seconds: float) -> bool:
        """Return whether the application has ended, as soon as it has: YARN ends its containers first."""
        until_s = time.monotonic() + seconds
        # One that YARN has forgotten may run.
        while (report := self._report()) is None or not report.ended or self._inquiry.is_unknown:
            if time.monotonic() >= until_s:
                return False
            self._pause.wait(ASK_S)
        return True

    def _report(self) -> ApplicationReport | None:
        """Return what YARN says; None where it cannot be asked now, which passes: it restarts, or fails over."""
        try:
            return self._inquiry.report()
        except EpsError as error:
            self._say(str(error))
            return None

    def _look(self) -> Ended | None:
        """Look how the application is; return how it ended, None while it may run."""
        interrupt.check()
        report = self._report()
        if report is None:
            return None
        if report.ended:
            return self._ended(report)
        if report.state == "RUNNING":
            if self.place is None or report.attempt != self._attempt:
                self._find(report)
        else:
            why = shorten(why_waiting(report.diagnostics), LONGEST_WHY, placeholder=" ...")
            self._say(f"{report.application_id} is {report.state}" + (f": {why}" if why else ""))
        return None

    def _find(self, report: ApplicationReport) -> None:
        """Look where the service of the latest attempt listens, and have its news told."""
        place = place_of(self.shared)
        if place is None or place == self.place:
            return
        if self.place is not None:
            self._say(f"the master was lost, and jobs go on from their checkpoints; the next one listens on {place}")
        self._attempt, self.place, self.page = report.attempt, place, report.tracking_url
        self._directory.say_where(place, 0)
        if self._watcher is None and self._sweep is not None:
            self._say(f"the sweep's page, while it runs: {self.page}")
            self._news = SchedulerClient(self._directory, give_up_s=GIVE_UP_S)
            self._watcher = threading.Thread(
                target=self._watch, args=(self._news, self._sweep), name="news", daemon=True
            )
            self._watcher.start()

    def _watch(self, client: SchedulerClient, sweep: str) -> None:
        seen = 0
        while not self._over.is_set():
            try:
                for news in client.watch(sweep):
                    if news.number > seen:
                        seen = news.number
                        self._tell(f"{news.at_s:8.2f} s  {news.text}")
                return
            except EpsError as error:
                # Another attempt may follow; whether the application has ended YARN says.
                logger.info("%s", error)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(text)

    def _ended(self, report: ApplicationReport) -> Ended:
        self._close()
        state, reason, _ = outcome(report)
        is_over = not self._inquiry.is_unknown
        word, reports = read_outcome(self.shared), self.left_reports()
        if word is not None:
            return Ended(word[0], word[1], reports)
        return Ended(state, reason, _closed(reports, reason) if is_over else reports, is_over)

    def _close(self) -> None:
        if self._watcher is not None and self._news is not None:
            self._watcher.join(_JOIN_S)
            self._over.set()
            self._news.close()


def _closed(reports: Mapping[str, dict[str, Any]], why: str) -> dict[str, dict[str, Any]]:
    return {sweep: closed(report, why) for sweep, report in reports.items()}


# ---- what it has left


def bring(known: ApplicationDir, shared: Storage, ended: Ended) -> str:
    """Fetch what an application has left on the cluster, and remove it there; return what is wrong, as a sentence.

    No process but this knows of it: where it cannot be fetched, or may run, it stays, and the sentence says what to do.
    """
    stays = f"what it has left stays at {shared.describe('')}"
    try:
        for sweep, report in ended.reports.items():
            _fetch(shared, sweep, report)
        if not ended.is_over:
            return f"{stays}: YARN no longer knows the application, which may still run; {known.how_again} looks again"
        known.keep(ended)
    except EpsError as error:
        return f"{stays}, for it cannot be fetched: {error}; {known.how_again} fetches it"
    remove(known)
    return ""


def remove(known: ApplicationDir) -> None:
    """Remove what an application has on the cluster, of which nothing is needed any more; warn where it stays."""
    try:
        remove_staged(known.job)
    except EpsError as error:
        told = f"what it has on the cluster stays there, for it cannot be removed: {error}"
        logger.warning("%s; %s tries again", told, known.how_again)


def _fetch(shared: Storage, sweep: str, report: Mapping[str, Any]) -> None:
    """Bring the model of a sweep's best trial, and what trials that failed have left; of jobs of no sweep everything.

    Raises
    ------
    StorageError
        Of one it cannot be brought, or the best has left no model; of the others it was.
    """
    best = None if report["best"] is None else report["best"]["job_id"]
    lost: list[str] = []
    for trial in report["trials"]:
        has_model = trial["job_id"] == best or (sweep == ALONE and trial["phase"] == "finished")
        if not trial["name"] or not (has_model or sweep == ALONE or trial["phase"] == "failed"):
            continue
        try:
            fetch_job(shared, trial["name"], has_model=has_model)
        except StorageError as error:
            lost.append(f"{trial['job_id']}: {error}")
    if lost:
        raise StorageError("; ".join(lost))


def fetch_job(shared: Storage, name: str, *, has_model: bool = False) -> Path | None:
    """Bring what a job has left into a directory of that name under ``EPS_HOME``; return it, None if there is nothing.

    Parameters
    ----------
    shared : Storage
    name : str
    has_model : bool
        Its model must be there.

    Raises
    ------
    StorageError
        It cannot be read, or written here; or its model is not there.
    """
    folder = f"{JOBS}/{name}/{RESULTS}"
    names = shared.names(folder)
    job = JobDir(jobs_dir() / name)
    if has_model and job.model.name not in names:
        raise StorageError(f"its model is not there: {shared.describe(folder)} has no {job.model.name}")
    if not names:
        return None
    try:
        make_private(job.logs)
    except OSError as error:
        raise StorageError(f"{job.logs}: cannot be made: {error.strerror or error}") from error
    for each in names:
        target = job.log(each.removesuffix(".log")) if each.endswith(".log") else job.path / each
        if target not in (job.report, job.model) and target.parent != job.logs:
            # A temporary file, of a master that was lost while it wrote.
            continue
        with shared.read(f"{folder}/{each}") as file:
            write_bytes_atomic(target, file.read(), sync=False)
    report = readable(job.report)
    with JobLock(job.lock):
        job.close(End(str(report.get("state", "killed")), str(report.get("reason", ""))))
    return job.path
