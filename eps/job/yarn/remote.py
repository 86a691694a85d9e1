"""A job on YARN as its clients see it.

The job's directory names its application and the folder that its processes share
(:class:`~eps.cluster.yarn.application.Application`).  YARN reports the state of the application, and the job master
that of the job while it listens.  At the end the master writes the outcome to the shared folder.  The first client that
sees the end notes it in the directory; after that no client asks the cluster.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from eps.cluster.yarn.application import (
    COPY_BYTES,
    ENDED_FILE,
    PAGE_FILE,
    RESULTS,
    Application,
    result_files,
)
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.outcome import outcome, parse_outcome
from eps.cluster.yarn.types import ApplicationReport
from eps.core.types import Address
from eps.errors import (
    DeadlineError,
    EpsError,
    JobExistsError,
    JobNotFoundError,
    PeerUnavailableError,
    PlanError,
    StorageError,
)
from eps.hadoop.conf import HadoopConf, read_configuration
from eps.job.page import RESULT_LINKS, page_of
from eps.job.status import UNREACHABLE, ended_status, waiting_status
from eps.spec.results import deliver_detached
from eps.storage.api import Storage
from eps.storage.atomic import atomic_writer, read_json, write_bytes_atomic, write_json_atomic
from eps.storage.claims import remove_claimed
from eps.storage.jobdir import JobDir, JobLock
from eps.storage.locations import open_storage
from eps.storage.record import End, Phase

logger = logging.getLogger(__name__)

#: An application counts as failed when YARN has answered for this long that it does not know it.
FORGOTTEN_S = 30.0
#: Timeout of a connection that tests whether a master listens.
CONNECT_S = 1.0
#: In the diagnostics of a waiting application: the time of writing, and the label of its master.
_LOOKED_AT = re.compile(r"\[[^\[\]]*\b\d\d:\d\d:\d\d\b[^\[\]]*\]")
_LABEL = re.compile(r"AM Partition = ([\w-]+)")
#: Poll intervals of YARN: while no job master listens, and the longest while one does.
ASK_S, ASK_SELDOM_S = 0.2, 2.0
#: A kill is repeated this often: a ResourceManager that failed over may have lost the first.
KILL_AGAIN_S = 5.0
#: Longest wait for a killed application to end, and for a ResourceManager that does not answer.
ENDED_S, SILENT_S = 60.0, 15.0
#: Waits longer than this are reported.
NOTICED_S = 1.0
#: Timeout for a file system that does not answer, in commands that only read.
PATIENCE_S = 10.0


class Inquiry:
    """Query YARN for one application.

    Parameters
    ----------
    client : Client or Listing
    application_id : str
    """

    def __init__(self, client: Client | Listing, application_id: str) -> None:
        self._client = client
        self._application_id = application_id
        #: Time since which every answer has been that the application is unknown; a failed call resets it.
        self._unknown_since_s: float | None = None
        self._is_unknown = False

    @property
    def is_unknown(self) -> bool:
        """Whether YARN did not know the application in its last answer; it may run nevertheless."""
        return self._is_unknown

    def report(self) -> ApplicationReport:
        """Return YARN's report; an application that has been unknown for :data:`FORGOTTEN_S` is reported as failed.

        A call that fails restarts that period, since the ResourceManager may have been restarted.

        Raises
        ------
        JobNotFoundError
            YARN does not know it yet: a restarted ResourceManager may still be recovering its state.
        EpsError
            YARN does not answer.
        """
        try:
            found = self._client.report(self._application_id)
        except JobNotFoundError:
            now_s, self._is_unknown = time.monotonic(), True
            if self._unknown_since_s is None:
                self._unknown_since_s = now_s
            if now_s - self._unknown_since_s < FORGOTTEN_S:
                raise
            return _forgotten(self._application_id)
        except EpsError:
            self._unknown_since_s = None
            raise
        self._unknown_since_s, self._is_unknown = None, False
        return found


def _forgotten(application_id: str) -> ApplicationReport:
    said = "YARN no longer knows the application: its ResourceManager has lost its state"
    return ApplicationReport(application_id, "", "EPS", "", "", "FAILED", "FAILED", said, "", -1, "", 0.0, (), 0, 0, 0)


def why_waiting(diagnostics: str) -> str:
    """Return in one line what an application waits for: a limit of its queue, or a container for its master.

    Times and figures in YARN's text are left out, since they change with every report.
    """
    said, _, details = " ".join(_LOOKED_AT.sub("", diagnostics).split()).partition(" Details :")
    label = _LABEL.search(details)
    return said.rstrip(".") + (f" (nodes labelled {label[1]!r})" if label is not None else "")


def place_of(report: ApplicationReport) -> Address | None:
    """Return the job master's address as YARN reports it; None if no master listens."""
    if report.state != "RUNNING" or not report.host or report.rpc_port <= 0:
        return None
    return Address(report.host, report.rpc_port)


def described(report: ApplicationReport) -> str:
    """Return the state of an application, with YARN's reason."""
    why = why_waiting(report.diagnostics)
    return f"application {report.application_id} is {report.state}" + (f": {why}" if why else "")


def listens(place: Address) -> bool:
    """Return whether a process accepts connections at an address."""
    try:
        with socket.create_connection((place.host, place.port), CONNECT_S):
            return True
    except OSError:
        return False


class YarnJob:
    """A job that is an application of its own; :class:`~eps.job.master_link.Whereabouts` for its clients.

    Parameters
    ----------
    directory : JobDir
        Its record names the application.
    listing : Listing, optional
        Reports of many jobs from one query of the cluster; by default the cluster is queried for this job alone.

    Raises
    ------
    ConfigError
        The cluster's configuration cannot be read.
    StorageError
        The record cannot be read, or names no application.
    """

    def __init__(self, directory: JobDir, listing: Listing | None = None) -> None:
        application = Application.read(directory)
        if application is None:
            raise StorageError(f"{directory.path}: its record names no application on YARN")
        self.directory, self.application = directory, application
        self._conf = read_configuration(Path(application.conf_dir))
        self._client = YarnClient(self._conf) if listing is None else listing
        self._inquiry = Inquiry(self._client, application.application_id)
        #: YARN's last report, the time of its last answer (Unix time), and the error of the last call.
        self._report: ApplicationReport | None = None
        self._answered_s = time.time()
        self._trouble: EpsError | None = None
        self._progress = 0.0
        self._due_s, self._pause_s = 0.0, ASK_S
        #: Timeout for the file system while the outcome is read; None: the default of the store.
        self.patience_s: float | None = PATIENCE_S
        self._end: End | None = None
        self._stop_reason = ""

    @property
    def application_id(self) -> str:
        """See :class:`~eps.job.master_link.Whereabouts`."""
        return self.application.application_id

    # ---- state

    def is_running(self) -> bool:
        """Return whether the job runs or may run; raises the errors of :meth:`end`."""
        return self.end() is None

    def end(self, *, is_final: bool = False) -> End | None:
        """Return the outcome of the job and note it in its record; None while the job runs or may run.

        Parameters
        ----------
        is_final : bool
            Query YARN now; an application that it does not know has ended.

        Raises
        ------
        AuthenticationError, RpcError
            With ``is_final``: YARN does not answer.
        StorageError
            The application has ended and its results cannot be read, or the record cannot be read.
        """
        if self._end is not None or (not is_final and time.monotonic() < self._due_s):
            return self._end
        record = self.directory.record()
        if record.end is not None and not (record.end.is_lost and is_final):
            self._end = record.end
            return self._end
        self._query()
        if is_final and self._trouble is not None and not isinstance(self._trouble, JobNotFoundError):
            raise self._trouble
        if self._trouble is None and self._report is not None and not self._report.ended:
            if record.end is not None:
                # A ResourceManager that did not know the application has recovered its state.
                self._reopen()
        elif self._trouble is None or isinstance(self._trouble, JobNotFoundError):
            self._end = self._note_end(is_final)
        self._due_s = time.monotonic() + self._pause_s
        self._pause_s = ASK_S if self._place() is None or self._stop_reason else min(ASK_SELDOM_S, 1.5 * self._pause_s)
        return self._end

    def _query(self) -> None:
        try:
            self._report, self._trouble = self._inquiry.report(), None
        except EpsError as error:
            # Temporary: the ResourceManager restarts or fails over.
            self._trouble = error
        if self._trouble is None or isinstance(self._trouble, JobNotFoundError):
            self._answered_s = time.time()
        if self._report is not None and not self._report.ended:
            self._progress = max(self._progress, self._report.progress)

    def _place(self) -> Address | None:
        return None if self._report is None else place_of(self._report)

    def address(self) -> Address | None:
        """Return the job master's address in YARN's latest report; None if no master listens."""
        return None if self.end() is not None else self._place()

    def waiting(self) -> dict[str, Any] | None:
        """Return the status of a job that has no master yet or whose cluster does not answer; None for other jobs."""
        if self.end() is not None:
            return None
        place = self._place()
        if self._trouble is not None and (place is None or not listens(place)):
            # 0: YARN has never answered this process.
            known_s = 0.0 if self._report is None else self._answered_s
            return waiting_status(self.directory, UNREACHABLE, self._silence(place), self._clock(), known_s)
        if place is not None or self._report is None:
            return None
        reason = described(self._report)
        if self._clock():
            # The members wait for the next master and stop at the last clock that they may train.
            reason = f"it was at clock {self._clock()}; its job master is being restarted: {reason}"
        return waiting_status(self.directory, "starting", reason, self._clock(), None)

    def _clock(self) -> int:
        return round(self._progress * int(self.directory.record().spec.get("iterations", 0)))

    def _silence(self, place: Address | None) -> str:
        what, since = f"the ResourceManager at {self._client.address}", ""
        if self._report is not None:
            since = f" since {time.strftime('%H:%M:%S', time.localtime(self._answered_s))}"
        if isinstance(self._trouble, JobNotFoundError):
            reason = f"{what} does not know {self.application_id}; if it has just started, it may still recover it"
        elif isinstance(self._trouble, PeerUnavailableError | DeadlineError):
            reason = f"{what} has not answered{since} ({self._trouble})"
        else:
            reason = f"{what} cannot be asked{since} ({self._trouble})"
        if place is not None:
            reason += f", nor does the job master at {place}"
        if self._report is not None:
            reason += f"; last known: application {self.application_id} was {self._report.state}"
        return reason

    # ---- end

    def _note_end(self, is_final: bool) -> End | None:
        """Note the outcome of the application, from its master or else from YARN; return None if neither knows it."""
        report, job = None if self._trouble is not None else self._report, self.directory
        try:
            shared = self._shared(self.patience_s)
            # Empty: the files of the run were removed.
            names = shared.names(RESULTS) if self.application.shared else []
            noted = None
            if ENDED_FILE in names:
                noted = parse_outcome(_read(shared, ENDED_FILE), f"{RESULTS}/{ENDED_FILE}")
            elif report is None and not is_final:
                # A restarted ResourceManager may still recover it.
                return None
            files = {path: _read(shared, path.name) for path in result_files(job) if path.name in names}
        except StorageError as error:
            how = "is not known to YARN" if report is None else f"has ended ({outcome(report, self._stop_reason)[0]})"
            raise StorageError(
                f"{self.application_id} {how}, and the results of job {job.name!r} cannot be read: {error}; "
                f"try again with eps fetch {job.name}"
            ) from error
        if noted is not None:
            state, reason, exit_code = noted
        elif report is not None:
            state, reason, exit_code = outcome(report, self._stop_reason)
        else:
            state, reason, exit_code = "failed", str(self._trouble), 1
        if state == "finished" and job.model.name not in names:
            # The model is lost; the checkpoints are not.
            state, exit_code = "failed", 1
            reason = f"it finished, but its model was not uploaded: recover it with eps resume {job.name}"
        end = End(state, reason, exit_code, round(time.time(), 3))
        if noted is None and (report is None or self._inquiry.is_unknown):
            end = End(state, reason, exit_code, end.time_s, is_lost=True)
        # If another client holds the lock, it notes the end or resumes the job; the next call sees that.
        with suppress(JobExistsError), JobLock(job.lock):
            if Application.read(job) == self.application and (job.record().end is None or is_final):
                for path, content in files.items():
                    path.parent.mkdir(exist_ok=True)
                    write_bytes_atomic(path, content, sync=False)
                if self._progress and not files:
                    # No master reported: YARN's progress is all that is known.
                    known = waiting_status(job, state, reason, self._clock(), round(self._answered_s, 3))
                    write_json_atomic(job.status_json, known, sync=False)
                _correct_report(job, state, reason)
                job.close(end)
        return job.record().end

    def _reopen(self) -> None:
        with JobLock(self.directory.lock):
            record = self.directory.record()
            if record.end is not None and record.end.is_lost:
                self.directory.note(phase=Phase.SUBMITTED, end=None)

    def _shared(self, patience_s: float | None) -> Storage:
        return open_storage(self.application.shared, patience_s=patience_s, conf=self._conf)

    def fetch(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """Download the results into the job's directory, and copy them to the places that the user asked for.

        Idempotent.  The checkpoints of a finished job are removed from the cluster.

        Parameters
        ----------
        tell : callable
            Called with a sentence before a long download.

        Raises
        ------
        PlanError
            The job runs.
        StorageError
            The results cannot be read or written.
        AuthenticationError, RpcError
            YARN does not answer.
        """
        job, end = self.directory, self.end(is_final=True)
        if end is None:
            raise PlanError(
                f"job {job.name!r} is still running ({self.application_id}): fetch its results when it has ended"
            )
        if not self.application.shared:
            return
        shared = self._shared(None)
        names = shared.names(RESULTS)
        if names and PAGE_FILE not in names:
            # YARN killed the application before its master could write the page.
            is_viewed = bool(job.record().spec.get("acl"))
            store = open_storage(self.application.shared, public=is_viewed, conf=self._conf)
            with store.write(f"{RESULTS}/{PAGE_FILE}") as page:
                page.write(page_of(ended_status(job), links=RESULT_LINKS).encode("utf-8"))
        if not job.model.exists() and job.model.name in names:
            tell(f"downloading its model from {shared.describe(RESULTS)}")
            # In pieces: it may be larger than memory.
            with shared.read(f"{RESULTS}/{job.model.name}") as source, atomic_writer(job.model, sync=False) as target:
                while block := source.read(COPY_BYTES):
                    target.write(block)
        if failed := deliver_detached(job, lambda place: isinstance(place, Path)):
            raise StorageError(f"job {job.name!r} {end.state}, but {failed}")
        # If another client holds the lock, it notes the same.
        with suppress(JobExistsError), JobLock(job.lock):
            if job.record().end == end and not job.record().yarn.is_fetched:
                job.note(yarn={"is_fetched": True})
                if end.state == "finished":
                    _remove_checkpoints(job)

    def kill(self, reason: str, timeout_s: float, tell: Callable[[str], None] = lambda text: None) -> None:
        """Kill the application and wait for its end.  Idempotent.

        Parameters
        ----------
        reason : str
        timeout_s : float
            Raised to at least :data:`ENDED_S`, since YARN ends the containers first.
        tell : callable
            Called with a sentence when the reason of the wait changes.

        Raises
        ------
        DeadlineError
            The application has not ended in time.
        PeerUnavailableError
            The ResourceManager does not answer.
        StorageError
            See :meth:`end`.
        """
        began_s, said, told_s = time.monotonic(), "", None
        silent_s: float | None = None
        again = f"try again with eps kill {self.directory.name}"
        self._pause_s = ASK_S
        while self.end() is None:
            now_s = time.monotonic()
            if told_s is None or now_s - told_s > KILL_AGAIN_S:
                trouble = self.tell_to_end(reason)
                told_s = now_s if trouble is None else told_s
                silent_s = None if trouble is None else now_s if silent_s is None else silent_s
            text = f"waiting for the end of {self.application_id}" + (f": {trouble}" if trouble is not None else "")
            if text != said and (trouble is not None or now_s - began_s > NOTICED_S):
                said = text
                tell(text)
            if silent_s is not None and now_s - silent_s > SILENT_S:
                raise PeerUnavailableError(f"job {self.directory.name!r} has not ended: {trouble}; {again}")
            if now_s - began_s > max(timeout_s, ENDED_S):
                raise DeadlineError(
                    f"job {self.directory.name!r} has not ended within {max(timeout_s, ENDED_S):g} s, although "
                    f"YARN was asked to kill {self.application_id}; {again}"
                )
            time.sleep(ASK_S)

    def tell_to_end(self, reason: str) -> EpsError | None:
        """Ask YARN once to kill the application; return the error if it does not answer, else None."""
        self._stop_reason = self._stop_reason or reason
        try:
            self._client.kill(self.application_id, reason)
        except EpsError as error:
            return error
        return None

    def close(self) -> None:
        """Close the connections to the cluster.  Idempotent."""
        self._client.close()


class Listing:
    """Reports of all applications of a cluster, from one query at the first use.

    Parameters
    ----------
    conf : HadoopConf
    timeout_s : float
        Timeout for each ResourceManager.
    """

    def __init__(self, conf: HadoopConf, timeout_s: float) -> None:
        self._client = YarnClient(conf, timeout_s)
        self._found: dict[str, ApplicationReport] | None = None
        self._trouble: EpsError | None = None

    @property
    def address(self) -> str:
        """Addresses of the ResourceManagers, for messages."""
        return self._client.address

    def report(self, application_id: str) -> ApplicationReport:
        """See :class:`~eps.cluster.yarn.facade.Client`."""
        if self._found is None and self._trouble is None:
            try:
                self._found = {found.application_id: found for found in self._client.applications()}
            except EpsError as error:
                self._trouble = error
        if self._trouble is not None:
            raise self._trouble
        found = (self._found or {}).get(application_id)
        if found is None:
            raise JobNotFoundError(f"YARN does not know {application_id}")
        return found

    def kill(self, application_id: str, diagnostics: str = "") -> None:
        """See :class:`~eps.cluster.yarn.facade.Client`."""
        self._client.kill(application_id, diagnostics)

    def close(self) -> None:
        """Close the connections to the cluster; the reports stay available."""
        self._client.close()


class Clusters:
    """The clusters of many jobs; each is queried once.

    Parameters
    ----------
    patience_s : float
        Timeout for a ResourceManager or a file system that does not answer.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._listings: dict[str, Listing] = {}

    def job(self, directory: JobDir) -> YarnJob:
        """Return a job with its cluster's report; raises the errors of :class:`YarnJob`."""
        application = Application.read(directory)
        conf_dir = "" if application is None else application.conf_dir
        if conf_dir not in self._listings:
            self._listings[conf_dir] = Listing(read_configuration(Path(conf_dir)), self._patience_s)
        found = YarnJob(directory, self._listings[conf_dir])
        found.patience_s = self._patience_s
        return found

    def __enter__(self) -> Clusters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listing in self._listings.values():
            listing.close()


def _read(shared: Storage, name: str) -> bytes:
    with shared.read(f"{RESULTS}/{name}") as file:
        return file.read()


def _correct_report(job: JobDir, state: str, reason: str) -> None:
    """Correct the outcome in the report, which the master wrote before the job ended."""
    report = read_json(job.report) or {}
    if report.get("state", state) != state:
        write_json_atomic(job.report, {**report, "state": state, "reason": reason}, sync=False)


def _remove_checkpoints(job: JobDir) -> None:
    try:
        remove_claimed(job)
    except EpsError as error:
        logger.warning("%s: try again with eps prune %s", error, job.name)


def settle(job: JobDir) -> None:
    """Note the outcome of a job's application before the job is resumed or its name is reused.

    An application that YARN does not know has ended.

    Raises
    ------
    JobExistsError
        The application runs: two masters must never write the same checkpoints.
    AuthenticationError, RpcError
        The ResourceManager does not answer.
    StorageError
        Its results cannot be read.
    """
    application = Application.read(job)
    if application is None or job.is_running():
        return
    with closing(YarnJob(job)) as there:
        if there.end(is_final=True) is None:
            raise JobExistsError(
                f"job {job.name!r} is running ({application.application_id}): end it before you start it again"
            )
