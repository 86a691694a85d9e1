"""The client's side of an application: its local folder, a monitor while it runs, and the download of its results.

::

    EPS_HOME/sweeps/ID, or the directory of a service (hscheduler serve --state)
    ├── lock          held (flock) from before the submission by the process that follows the application
    ├── job.json      the application and its folder on the cluster, written before YARN knows the application;
    │                 and how it ended, written when the results were fetched
    ├── tls/          certificates of its service and of the service's clients
    ├── service.json  the address of the service
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
from eps.system.home import DIRECTORY_MODE, make_private
from hscheduler.application.staged_files import SERVICE_FILE, stage
from hscheduler.live.sweep import SWEEP
from hscheduler.reports.report import closed
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir
from hscheduler.service.recorded_sweep import RecordedSweep, SweepState
from hscheduler.service.sweeps import ALONE

logger = logging.getLogger(__name__)

#: Seconds between two requests to YARN.
POLL_S = 0.5
#: Seconds without an answer of the service after which its address is looked up again.
GIVE_UP_S = 5.0
#: Seconds that YARN has to end a killed application; after that its files stay on the cluster.
KILL_S = 20.0
#: Most characters shown of YARN's diagnostics.
LONGEST_WHY = 160
#: Seconds for the last news to arrive.
_JOIN_S = 3.0


@dataclass(frozen=True)
class Ended:
    """How an application ended."""

    state: str
    reason: str
    #: Sweep -> report, for sweeps with at least one job.
    reports: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    #: False if the application may still run: YARN no longer knows it, and it has not recorded its end.
    is_over: bool = True
    #: The application ended before its sweep, or YARN has forgotten it: another one can continue the sweep.
    can_resume: bool = False


# ---- here


@dataclass(frozen=True)
class ApplicationDir:
    """The folder of one application on this machine."""

    path: Path

    @classmethod
    def new_sweep(cls, name: str = "") -> ApplicationDir:
        """Create the folder of a new sweep, with certificates.

        Parameters
        ----------
        name : str
            Its name on this machine; empty: a new id.

        Raises
        ------
        ConfigError
            A sweep has the name, or none can have it; or the package that makes certificates is missing.
        StorageError
            The folder cannot be created.
        """
        place = RecordedSweep.named(name or secrets.token_hex(6))
        found = cls(place.path)
        try:
            make_private(sweeps_dir())
            found.path.mkdir(mode=DIRECTORY_MODE)
        except FileExistsError:
            raise ConfigError(f"name is {name!r}, but must be an unused name: {place.how_to_free()}") from None
        except OSError as error:
            raise StorageError(f"{found.path}: cannot be created: {error.strerror or error}") from error
        found.service.security(between_hosts=True)
        return found

    @property
    def sweep_id(self) -> str:
        """Id of the sweep on this machine."""
        return self.path.name

    def changed_s(self) -> float:
        """Return when the folder last changed, as Unix time in seconds."""
        return self.job.changed_s()

    @property
    def service(self) -> ServiceDir:
        """The same folder, as the directory of the application's service."""
        return ServiceDir(self.path)

    @property
    def job(self) -> JobDir:
        """The same folder, as the directory of a job: lock, certificates, and the record of the end."""
        return JobDir(self.path)

    @property
    def resumes(self) -> str:
        """What continues a sweep whose application ended before it, and what removes it, as a sentence."""
        removes = f"eps prune sweeps/{self.sweep_id} --resumable removes it"
        return f"{self.follow_command} continues it, with every result; {removes}"

    @property
    def follow_command(self) -> str:
        """The command that follows the application again."""
        if self.service.is_sweep:
            return f"hscheduler sweep --resume {self.sweep_id}"
        return f"hscheduler serve --on yarn{self.service.flag}"

    def application(self) -> Application | None:
        """Return the application; None if none was submitted.

        Raises
        ------
        StorageError
            The record cannot be read.
        """
        return Application.read(self.job)

    def save(self, ended: Ended) -> None:
        """Save the reports of an application, and how it ended, unless another one can continue its sweep.

        Raises
        ------
        StorageError
            A file cannot be written.
        """
        for sweep, report in ended.reports.items():
            target = self.path / report_file(sweep)
            target.parent.mkdir(exist_ok=True)
            if target.exists() and read_json(target) != report and not self.service.is_sweep:
                # The report of an earlier application with this folder.
                aside = (self.path / report_file(f"{sweep}~{number}") for number in count(1))
                target.rename(next(path for path in aside if not path.exists()))
            write_json_atomic(target, report)
        if not ended.can_resume:
            # YARN forgets ended applications.
            self.job.note(phase=Phase.ENDED, end=End(ended.state, ended.reason))

    def saved(self) -> Ended | None:
        """Return what :meth:`save` saved; None before that.

        Raises
        ------
        StorageError
            A file cannot be read.
        """
        found = self.job.record().end
        if found is None:
            return None
        return Ended(found.state, found.reason, self.saved_reports())

    def saved_reports(self) -> dict[str, dict[str, Any]]:
        """Return the saved reports, by sweep.  Raises as :meth:`saved`."""
        paths = sorted((self.path / REPORTS).glob("*.json"))
        return {unquote(path.stem): dict(found) for path in paths if (found := read_json(path)) is not None}


def submitted_sweeps() -> Iterator[ApplicationDir]:
    """Yield the sweeps submitted from this machine whose folder still exists."""
    yield from (ApplicationDir(each.path) for each in list_sweeps() if each.job_json.exists())


def find_sweep(name: str) -> ApplicationDir:
    """Return the sweep with this id, or with this application.

    Raises
    ------
    JobNotFoundError
        No sweep on this machine has the name.
    StorageError
        The record of a sweep cannot be read.
    """
    for each in submitted_sweeps():
        if name == each.sweep_id:
            return each
    for each in submitted_sweeps():
        application = each.application()
        if application is not None and name == application.application_id:
            return each
    raise JobNotFoundError(f"there is no sweep {name!r} under {sweeps_dir()}: hscheduler sweeps lists them")


def write_address(directory: ServiceDir) -> None:
    """Update the address of a service on YARN in its directory, unless a local process follows it and does so.

    Raises
    ------
    StorageError
        The record cannot be read, or the address cannot be written.
    """
    application = None if directory.is_running() else Application.read(JobDir(directory.path))
    if application is not None and application.shared:
        # If the cluster does not answer, keep the last known address.
        with suppress(EpsError):
            place = place_of(application.storage())
            if place is not None:
                directory.write_address(place, 0)


def stage_for(directory: ServiceDir, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Upload the files of a sweep's tables for a service on YARN; return the tables as :func:`stage` does.

    Raises
    ------
    ConfigError
        A file cannot be read, or the model is in a local file.
    StorageError
        A file cannot be uploaded.
    """
    application = Application.read(JobDir(directory.path))
    if application is None or not application.shared:
        return tables
    found, models = stage(tables, RemotePath.parse(application.shared).parent.parent / "cache")
    for file in models.values():
        told = "a service on YARN cannot read: hscheduler sweep --on yarn uploads it"
        raise ConfigError(f"model is in {file}, which {told}")
    return found


def place_of(shared: Storage) -> Address | None:
    """Return the address of the service in the application's latest attempt; None until it listens.

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
        # The caller asks again, until YARN reports the end of the application.
        logger.info("%s: %r", shared.describe(SERVICE_FILE), error)
        return None


# ---- while it runs


class Monitor:
    """Follows one application until it ends.

    Parameters
    ----------
    application : Application
    client : Client
    directory : ServiceDir
        Has the certificates of the application's service.  This process holds its lock: that tells other commands that
        the service runs.
    shared : Storage
        The application's folder in the cluster's file system.
    tell : callable
        Shows a line to the user.  Called on any thread.
    sweep : str, optional
        The sweep whose news are shown; None: no news.
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
        #: Address of the service, None until it listens; the attempt that it is of; and the page at YARN's proxy.
        self.place: Address | None = None
        self._attempt = 0
        self.page = ""
        self._said = ""
        self._inquiry = Inquiry(client, application.application_id)
        self._news: SchedulerClient | None = None
        self._watcher: threading.Thread | None = None
        #: Set when no more news are wanted.
        self._stop_watching = threading.Event()

    def run(self) -> Ended:
        """Follow the application to its end; return how it ended.

        Raises
        ------
        KeyboardInterrupt
            The user interrupted.  The application continues.
        StorageError
            The application has ended, but its reports cannot be read.
        """
        while (ended := self._poll()) is None:
            time.sleep(POLL_S)
        return ended

    def wait_until_listening(self) -> Ended | None:
        """Wait until the service listens.  Return None, or how the application ended before.  Raises as :meth:`run`."""
        while (ended := self._poll()) is None and self.place is None:
            time.sleep(POLL_S)
        return ended

    def end(self, why: str) -> Ended:
        """Have YARN kill the application; return its reports.  After :data:`KILL_S` seconds it may still run.

        Raises
        ------
        StorageError
            Its reports cannot be read.
        """
        # The stored reports miss the latest seconds.
        latest = self._latest_reports()
        name = self.application.application_id
        try:
            self._client.kill(name, why)
        except JobNotFoundError:
            pass
        except EpsError as error:
            told = f"it could not be killed: {error}; try yarn application -kill {name}"
            logger.warning("%s may still run: %s", name, told)
        self._close()
        is_over = self._ends_within(KILL_S)
        return self._cut_off("killed", why, {**self.stored_reports(), **latest}, is_over)

    def _cut_off(self, state: str, why: str, reports: dict[str, dict[str, Any]], is_over: bool) -> Ended:
        """Return the end of an application that was killed, or that has not recorded its end."""
        can_resume = self._directory.is_sweep and read_outcome(self.shared) is None
        if can_resume:
            reports = {sweep: {**report, "state": str(SweepState.INTERRUPTED)} for sweep, report in reports.items()}
        elif is_over:
            reports = {sweep: closed(report, why) for sweep, report in reports.items()}
        return Ended(state, why, reports, is_over, can_resume)

    def _latest_reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports of sweeps with unfinished jobs; empty if the service does not answer."""
        if self.place is None:
            return {}
        try:
            with SchedulerClient(self._directory, give_up_s=GIVE_UP_S) as client:
                sweeps = {str(job["sweep"]) for job in client.unfinished_jobs()[0]}
                return {sweep: client.report(sweep)[0] for sweep in sweeps}
        except EpsError as error:
            logger.info("%s", error)
            return {}

    def stored_reports(self) -> dict[str, dict[str, Any]]:
        """Return the reports in the application's folder on the cluster, by sweep.

        Raises
        ------
        StorageError
            A file cannot be read, or is not a report.
        """
        found: dict[str, dict[str, Any]] = {}
        for name in self.shared.names(REPORTS):
            if name.startswith(".") or not name.endswith(".json"):
                # A temporary file of a master that crashed while writing.
                continue
            with self.shared.read(f"{REPORTS}/{name}") as file:
                content = file.read()
            try:
                found[unquote(name.removesuffix(".json"))] = {**json.loads(content)}
            except (ValueError, TypeError) as error:
                where = self.shared.describe(f"{REPORTS}/{name}")
                raise StorageError(f"{where}: not a report of a sweep: {error!r}") from None
        return found

    def _ends_within(self, seconds: float) -> bool:
        """Wait until the application has ended; return whether it has.  YARN ends its containers first."""
        until_s = time.monotonic() + seconds
        # An application that YARN has forgotten may still run.
        while (report := self._report()) is None or not report.ended or self._inquiry.is_unknown:
            if time.monotonic() >= until_s:
                return False
            time.sleep(POLL_S)
        return True

    def _report(self) -> ApplicationReport | None:
        """Return YARN's report; None while YARN does not answer, as during a restart or a failover."""
        try:
            return self._inquiry.report()
        except EpsError as error:
            self._say(str(error))
            return None

    def _poll(self) -> Ended | None:
        """Ask YARN once; return how the application ended, None while it may run."""
        interrupt.check()
        report = self._report()
        if report is None:
            return None
        if report.ended:
            return self._ended(report)
        if report.state == "RUNNING":
            if self.place is None or report.attempt != self._attempt:
                self._find_service(report)
        else:
            why = shorten(why_waiting(report.diagnostics), LONGEST_WHY, placeholder=" ...")
            self._say(f"{report.application_id} is {report.state}" + (f": {why}" if why else ""))
        return None

    def _find_service(self, report: ApplicationReport) -> None:
        """Look up the address of the latest attempt's service, and start to show its news."""
        place = place_of(self.shared)
        if place is None or place == self.place:
            return
        if self.place is not None:
            self._say(f"the master was restarted and listens on {place}; jobs resume from their checkpoints")
        self._attempt, self.place, self.page = report.attempt, place, report.tracking_url
        self._directory.write_address(place, 0)
        if self._watcher is None and self._sweep is not None:
            self._say(f"the sweep's page, while it runs: {self.page}")
            self._news = SchedulerClient(self._directory, give_up_s=GIVE_UP_S)
            self._watcher = threading.Thread(
                target=self._watch, args=(self._news, self._sweep), name="news", daemon=True
            )
            self._watcher.start()

    def _watch(self, client: SchedulerClient, sweep: str) -> None:
        seen = 0
        while not self._stop_watching.is_set():
            try:
                for news in client.watch(sweep):
                    if news.number > seen:
                        seen = news.number
                        self._tell(f"{news.at_s:8.2f} s  {news.text}")
                return
            except EpsError as error:
                # Retry: another attempt may follow, until YARN reports the end of the application.
                logger.info("%s", error)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(text)

    def _ended(self, report: ApplicationReport) -> Ended:
        self._close()
        state, reason, _ = outcome(report)
        is_over = not self._inquiry.is_unknown
        word, reports = read_outcome(self.shared), self.stored_reports()
        if word is not None:
            return Ended(word[0], word[1], reports)
        return self._cut_off(state, reason, reports, is_over)

    def _close(self) -> None:
        if self._watcher is not None and self._news is not None:
            self._watcher.join(_JOIN_S)
            self._stop_watching.set()
            self._news.close()


# ---- results


def fetch_results(known: ApplicationDir, shared: Storage, ended: Ended) -> str:
    """Download an application's results and remove its files on the cluster; return the problem, if any, as a sentence.

    If the download fails or the application may still run, the files stay, and the sentence says what to do.  Those of
    a sweep that can be resumed stay, too.
    """
    stays = f"its results stay at {shared.describe('')}"
    try:
        for sweep, report in ended.reports.items():
            _fetch_sweep(shared, sweep, report)
        if not ended.is_over and not ended.can_resume:
            told = "YARN no longer knows the application, which may still run"
            return f"{stays}: {told}; {known.follow_command} tries again"
        known.save(ended)
    except EpsError as error:
        return f"{stays}: they cannot be fetched: {error}; {known.follow_command} tries again"
    if not ended.can_resume:
        remove_remote_files(known)
    return ""


def remove_remote_files(known: ApplicationDir) -> None:
    """Remove an application's files on the cluster, after its results were fetched; log a warning if that fails."""
    try:
        remove_staged(known.job)
    except EpsError as error:
        told = f"the application's files on the cluster cannot be removed: {error}"
        logger.warning("%s; %s tries again", told, known.follow_command)


def _fetch_sweep(shared: Storage, sweep: str, report: Mapping[str, Any]) -> None:
    """Download the best trial's model and the results of failed trials; of jobs without a sweep all results.

    Raises
    ------
    StorageError
        The results of a trial cannot be downloaded, or a model is missing.  Those of the other trials were downloaded.
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
    """Download a job's results to a directory of its name under ``EPS_HOME``; return that, None if there are none.

    Parameters
    ----------
    shared : Storage
    name : str
    has_model : bool
        The model must be among the results.

    Raises
    ------
    StorageError
        A file cannot be read or written, or the model is missing.
    """
    folder = f"{JOBS}/{name}/{RESULTS}"
    names = shared.names(folder)
    job = JobDir(jobs_dir() / name)
    if has_model and job.model.name not in names:
        raise StorageError(f"the model is missing: {shared.describe(folder)} has no {job.model.name}")
    if not names:
        return None
    try:
        make_private(job.logs)
    except OSError as error:
        raise StorageError(f"{job.logs}: cannot be created: {error.strerror or error}") from error
    for each in names:
        target = job.log(each.removesuffix(".log")) if each.endswith(".log") else job.path / each
        if target not in (job.report, job.model) and target.parent != job.logs:
            # A temporary file of a master that crashed while writing.
            continue
        with shared.read(f"{folder}/{each}") as file:
            write_bytes_atomic(target, file.read(), sync=False)
    report = readable(job.report)
    with JobLock(job.lock):
        job.close(End(str(report.get("state", "killed")), str(report.get("reason", ""))))
    return job.path
