"""A job on YARN as its clients see it: a pointer here, everything else on the cluster.

The job's directory names its application and the folder that its processes share
(:class:`~eps.cluster.yarn.application.Application`).  YARN says how the job is, and the job master does while it
listens; how it ended, its master leaves in that folder.  The first client that sees the end notes it in the directory:
from then on the cluster need not be asked.
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
    papers_of,
)
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.outcome import outcome, word_of
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
from eps.job.status import UNREACHABLE, ended_status, waiting_status
from eps.job.yarn.page import page_of
from eps.spec.results import deliver_detached
from eps.storage.api import Storage
from eps.storage.atomic import atomic_writer, read_json, write_bytes_atomic, write_json_atomic
from eps.storage.claims import remove_claimed
from eps.storage.jobdir import JobDir, JobLock
from eps.storage.locations import open_storage
from eps.storage.record import End, Phase

logger = logging.getLogger(__name__)

#: An application that a ResourceManager which answers does not know is given up after this long.
FORGOTTEN_S = 30.0
#: A process that does not take a connection within this long does not listen.
CONNECT_S = 1.0
#: In the diagnostics of an application that waits: when they were written, and the label of its master.
_LOOKED_AT = re.compile(r"\[[^\[\]]*\b\d\d:\d\d:\d\d\b[^\[\]]*\]")
_LABEL = re.compile(r"AM Partition = ([\w-]+)")
#: How often YARN is asked: while no job master listens, and then less and less often.
ASK_S, ASK_SELDOM_S = 0.2, 2.0
#: YARN is told again to end an application that has not ended: a ResourceManager that fails may have forgotten it.
KILL_AGAIN_S = 5.0
#: An application that YARN was told to end is waited for this long; less, where the ResourceManager does not answer.
ENDED_S, SILENT_S = 60.0, 15.0
#: Who waits longer than this says what for.
NOTICED_S = 1.0
#: A file system that does not answer is waited for this long, by commands that only look.
PATIENCE_S = 10.0


class Inquiry:
    """Asks YARN after one application.

    Parameters
    ----------
    client : Client or Listing
    application_id : str
    """

    def __init__(self, client: Client | Listing, application_id: str) -> None:
        self._client = client
        self._application_id = application_id
        #: Since when it has not known the application in every answer, without one that failed to come.
        self._unknown_since_s: float | None = None
        self._is_unknown = False

    @property
    def is_unknown(self) -> bool:
        """Whether YARN did not know the application when it last answered: it may run all the same."""
        return self._is_unknown

    def report(self) -> ApplicationReport:
        """Return what YARN says; of an application that it has not known for :data:`FORGOTTEN_S`, that it has failed.

        A ResourceManager that is away meanwhile is another one when it is back, and has as long again.

        Raises
        ------
        JobNotFoundError
            YARN does not know it, for less than that: a ResourceManager that starts again may know it soon.
        EpsError
            YARN cannot be asked now.
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
    said = "YARN does not know the application any more: its ResourceManager has lost its state"
    return ApplicationReport(application_id, "", "EPS", "", "", "FAILED", "FAILED", said, "", -1, "", 0.0, (), 0, 0, 0)


def why_waiting(diagnostics: str) -> str:
    """Return what YARN says an application waits for, in one line: a limit of its queue, or room for its master.

    YARN also tells when it last looked, and the figures of that moment: both change all the time.
    """
    said, _, details = " ".join(_LOOKED_AT.sub("", diagnostics).split()).partition(" Details :")
    label = _LABEL.search(details)
    return said.rstrip(".") + (f" (nodes labelled {label[1]!r})" if label is not None else "")


def place_of(report: ApplicationReport) -> Address | None:
    """Return where a job master listens, by YARN's word; None where none does."""
    if report.state != "RUNNING" or not report.host or report.rpc_port <= 0:
        return None
    return Address(report.host, report.rpc_port)


def described(report: ApplicationReport) -> str:
    """Return how an application is, with YARN's word on why."""
    why = why_waiting(report.diagnostics)
    return f"application {report.application_id} is {report.state}" + (f": {why}" if why else "")


def listens(place: Address) -> bool:
    """Return whether somebody listens at an address."""
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
        With the job's application in its record.
    listing : Listing, optional
        What its cluster has said of many jobs; by default the cluster is asked after this one.

    Raises
    ------
    ConfigError
        Its cluster's configuration cannot be read any more, or the record names no application.
    StorageError
        The record cannot be read.
    """

    def __init__(self, directory: JobDir, listing: Listing | None = None) -> None:
        application = Application.read(directory)
        if application is None:
            raise StorageError(f"{directory.path}: is no job on YARN")
        self.directory, self.application = directory, application
        self._conf = read_configuration(Path(application.conf_dir))
        self._client = YarnClient(self._conf) if listing is None else listing
        self._inquiry = Inquiry(self._client, application.application_id)
        #: What YARN said last, when it answered (Unix time), and why it does not now.
        self._report: ApplicationReport | None = None
        self._answered_s = time.time()
        self._trouble: EpsError | None = None
        self._progress = 0.0
        self._due_s, self._pause_s = 0.0, ASK_S
        #: So long a file system that does not answer is waited for, to say how the job ended; None: as by default.
        self.patience_s: float | None = PATIENCE_S
        self._end: End | None = None
        self._stop_reason = ""

    @property
    def application_id(self) -> str:
        """As of :class:`~eps.job.master_link.Whereabouts`."""
        return self.application.application_id

    # ---- how it is

    def is_running(self) -> bool:
        """Return whether it runs, or may; raises as :meth:`end`."""
        return self.end() is None

    def end(self, *, is_final: bool = False) -> End | None:
        """Return how the job ended, which its record says from then on; None while it runs, or may.

        Parameters
        ----------
        is_final : bool
            YARN is asked now, and an application that it does not know has ended.

        Raises
        ------
        AuthenticationError, RpcError
            With ``is_final``: YARN cannot be asked.
        StorageError
            The application has ended, and what it has left cannot be read; or the record cannot be read.
        """
        if self._end is not None or (not is_final and time.monotonic() < self._due_s):
            return self._end
        record = self.directory.record()
        if record.end is not None and not (record.end.is_lost and is_final):
            self._end = record.end
            return self._end
        self._ask()
        if is_final and self._trouble is not None and not isinstance(self._trouble, JobNotFoundError):
            raise self._trouble
        if self._trouble is None and self._report is not None and not self._report.ended:
            if record.end is not None:
                # YARN had forgotten it, and has found its state again.
                self._take_end_back()
        elif self._trouble is None or isinstance(self._trouble, JobNotFoundError):
            self._end = self._note_end(is_final)
        self._due_s = time.monotonic() + self._pause_s
        self._pause_s = ASK_S if self._place() is None or self._stop_reason else min(ASK_SELDOM_S, 1.5 * self._pause_s)
        return self._end

    def _ask(self) -> None:
        try:
            self._report, self._trouble = self._inquiry.report(), None
        except EpsError as error:
            # It passes: the ResourceManager starts again, or fails over.
            self._trouble = error
        if self._trouble is None or isinstance(self._trouble, JobNotFoundError):
            self._answered_s = time.time()
        if self._report is not None and not self._report.ended:
            self._progress = max(self._progress, self._report.progress)

    def _place(self) -> Address | None:
        return None if self._report is None else place_of(self._report)

    def address(self) -> Address | None:
        """Return where the job master listens, by YARN's latest word; None where none does."""
        return None if self.end() is not None else self._place()

    def waiting(self) -> dict[str, Any] | None:
        """Return the status of a job without a master yet, or whose cluster does not answer; None of others."""
        if self.end() is not None:
            return None
        place = self._place()
        if self._trouble is not None and (place is None or not listens(place)):
            # Where it has never answered this process, nothing is known of now, nor of before.
            known_s = 0.0 if self._report is None else self._answered_s
            return waiting_status(self.directory, UNREACHABLE, self._silence(place), self._clock(), known_s)
        if place is not None or self._report is None:
            return None
        reason = described(self._report)
        if self._clock():
            # Its members wait for the next master, and train no further than they were allowed to.
            reason = f"it was at clock {self._clock()}, and its job master is started again: {reason}"
        return waiting_status(self.directory, "starting", reason, self._clock(), None)

    def _clock(self) -> int:
        return round(self._progress * int(self.directory.record().spec.get("iterations", 0)))

    def _silence(self, place: Address | None) -> str:
        what, since = f"the ResourceManager at {self._client.address}", ""
        if self._report is not None:
            since = f" since {time.strftime('%H:%M:%S', time.localtime(self._answered_s))}"
        if isinstance(self._trouble, JobNotFoundError):
            reason = f"{what} does not know {self.application_id}; if it has just started, it may know it soon"
        elif isinstance(self._trouble, PeerUnavailableError | DeadlineError):
            reason = f"{what} has not answered{since} ({self._trouble})"
        else:
            reason = f"{what} cannot be asked{since} ({self._trouble})"
        if place is not None:
            reason += f", nor does the job master at {place}"
        if self._report is not None:
            reason += f"; last known: application {self.application_id} was {self._report.state}"
        return reason

    # ---- its end

    def _note_end(self, is_final: bool) -> End | None:
        """Note how the application ended, by its master's word or else YARN's; None where neither knows."""
        report, job = None if self._trouble is not None else self._report, self.directory
        try:
            shared = self._shared(self.patience_s)
            # Of a run that was removed nothing is left.
            names = shared.names(RESULTS) if self.application.shared else []
            word = None
            if ENDED_FILE in names:
                word = word_of(_read(shared, ENDED_FILE), f"{RESULTS}/{ENDED_FILE}")
            elif report is None and not is_final:
                # A ResourceManager that starts again may know it soon.
                return None
            papers = {path: _read(shared, path.name) for path in papers_of(job) if path.name in names}
        except StorageError as error:
            how = "is not known to YARN" if report is None else f"has ended ({outcome(report, self._stop_reason)[0]})"
            raise StorageError(
                f"{self.application_id} {how}, and what job {job.name!r} has left cannot be read: {error}; "
                f"eps fetch {job.name} tries again"
            ) from error
        if word is not None:
            state, reason, exit_code = word
        elif report is not None:
            state, reason, exit_code = outcome(report, self._stop_reason)
        else:
            state, reason, exit_code = "failed", str(self._trouble), 1
        if state == "finished" and job.model.name not in names:
            # Its checkpoints are all that is left of it.
            state, exit_code = "failed", 1
            reason = f"it finished, but did not leave its model: eps resume {job.name} makes it again"
        end = End(state, reason, exit_code, round(time.time(), 3))
        if word is None and (report is None or self._inquiry.is_unknown):
            end = End(state, reason, exit_code, end.time_s, is_lost=True)
        # Where another client notes it at this moment, or starts the job again, the next look finds that.
        with suppress(JobExistsError), JobLock(job.lock):
            if Application.read(job) == self.application and (job.record().end is None or is_final):
                for path, content in papers.items():
                    path.parent.mkdir(exist_ok=True)
                    write_bytes_atomic(path, content, sync=False)
                if self._progress and not papers:
                    # No master could tell: what YARN knew of it is the best there is.
                    known = waiting_status(job, state, reason, self._clock(), round(self._answered_s, 3))
                    write_json_atomic(job.status_json, known, sync=False)
                _correct_report(job, state, reason)
                job.close(end)
        return job.record().end

    def _take_end_back(self) -> None:
        with JobLock(self.directory.lock):
            record = self.directory.record()
            if record.end is not None and record.end.is_lost:
                self.directory.note(phase=Phase.SUBMITTED, end=None)

    def _shared(self, patience_s: float | None) -> Storage:
        return open_storage(self.application.shared, patience_s=patience_s, conf=self._conf)

    def fetch(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """Bring what the job has left into its directory, and from there to where it was asked for.

        Harmless when repeated.  Checkpoints that nobody needs any more are removed from the cluster.

        Parameters
        ----------
        tell : callable
            Called with a sentence before what may take long.

        Raises
        ------
        PlanError
            It runs.
        StorageError
            It cannot be read, or not be written.
        AuthenticationError, RpcError
            YARN cannot be asked.
        """
        job, end = self.directory, self.end(is_final=True)
        if end is None:
            raise PlanError(f"job {job.name!r} runs ({self.application_id}): its results are there when it has ended")
        if not self.application.shared:
            return
        shared = self._shared(None)
        names = shared.names(RESULTS)
        if names and PAGE_FILE not in names:
            # YARN ended the application from outside: its master had no time to write one.
            is_viewed = bool(job.record().spec.get("acl"))
            store = open_storage(self.application.shared, public=is_viewed, conf=self._conf)
            with store.write(f"{RESULTS}/{PAGE_FILE}") as page:
                page.write(page_of(ended_status(job), has_ended=True).encode("utf-8"))
        if not job.model.exists() and job.model.name in names:
            tell(f"its model is fetched from {shared.describe(RESULTS)}")
            # It may be larger than what this process should have.
            with shared.read(f"{RESULTS}/{job.model.name}") as source, atomic_writer(job.model, sync=False) as target:
                while block := source.read(COPY_BYTES):
                    target.write(block)
        if failed := deliver_detached(job, lambda place: isinstance(place, Path)):
            raise StorageError(f"job {job.name!r} {end.state}, but {failed}")
        # Where another client notes it at this moment it is noted.
        with suppress(JobExistsError), JobLock(job.lock):
            if job.record().end == end and not job.record().yarn.is_fetched:
                job.note(yarn={"is_fetched": True})
                if end.state == "finished":
                    _remove_checkpoints(job)

    def kill(self, reason: str, timeout_s: float, tell: Callable[[str], None] = lambda text: None) -> None:
        """Have YARN end the application, and wait for that; harmless where it has ended.

        Parameters
        ----------
        reason : str
        timeout_s : float
            At least :data:`ENDED_S` are waited: YARN ends the containers first.
        tell : callable
            Called with a sentence whenever what is waited for has changed.

        Raises
        ------
        DeadlineError
            It has not ended in time.
        PeerUnavailableError
            The ResourceManager does not answer.
        StorageError
            As of :meth:`end`.
        """
        began_s, said, told_s = time.monotonic(), "", None
        silent_s: float | None = None
        again = f"eps kill {self.directory.name} tries again"
        self._pause_s = ASK_S
        while self.end() is None:
            now_s = time.monotonic()
            if told_s is None or now_s - told_s > KILL_AGAIN_S:
                trouble = self.tell_to_end(reason)
                told_s = now_s if trouble is None else told_s
                silent_s = None if trouble is None else now_s if silent_s is None else silent_s
            text = f"waits for the end of {self.application_id}" + (f": {trouble}" if trouble is not None else "")
            if text != said and (trouble is not None or now_s - began_s > NOTICED_S):
                said = text
                tell(text)
            if silent_s is not None and now_s - silent_s > SILENT_S:
                raise PeerUnavailableError(f"job {self.directory.name!r} has not ended: {trouble}; {again}")
            if now_s - began_s > max(timeout_s, ENDED_S):
                raise DeadlineError(
                    f"job {self.directory.name!r} has not ended within {max(timeout_s, ENDED_S):g} s, though YARN was "
                    f"told to end {self.application_id}; {again}"
                )
            time.sleep(ASK_S)

    def tell_to_end(self, reason: str) -> EpsError | None:
        """Tell YARN once to end the application; return why it could not be told, None where it was."""
        self._stop_reason = self._stop_reason or reason
        try:
            self._client.kill(self.application_id, reason)
        except EpsError as error:
            return error
        return None

    def close(self) -> None:
        """Let go of the cluster; harmless when repeated."""
        self._client.close()


class Listing:
    """What a cluster says of its applications, for many jobs: it is asked once, when the first answer is wanted.

    Parameters
    ----------
    conf : HadoopConf
    timeout_s : float
        Each ResourceManager has so long for the answer.
    """

    def __init__(self, conf: HadoopConf, timeout_s: float) -> None:
        self._client = YarnClient(conf, timeout_s)
        self._found: dict[str, ApplicationReport] | None = None
        self._trouble: EpsError | None = None

    @property
    def address(self) -> str:
        """Where the ResourceManagers are asked, for people."""
        return self._client.address

    def report(self, application_id: str) -> ApplicationReport:
        """As of :class:`~eps.cluster.yarn.facade.Client`."""
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
        """As of :class:`~eps.cluster.yarn.facade.Client`."""
        self._client.kill(application_id, diagnostics)

    def close(self) -> None:
        """Let go of the cluster; what it has said is known further on."""
        self._client.close()


class Clusters:
    """The clusters that many jobs run on; each is asked once.

    Parameters
    ----------
    patience_s : float
        A ResourceManager, or a file system, that does not answer is waited for so long.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._listings: dict[str, Listing] = {}

    def job(self, directory: JobDir) -> YarnJob:
        """Return a job as its cluster has it; raises as :class:`YarnJob`."""
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
    """Have the report say how the job ended: its master wrote it before anybody could know."""
    report = read_json(job.report) or {}
    if report.get("state", state) != state:
        write_json_atomic(job.report, {**report, "state": state, "reason": reason}, sync=False)


def _remove_checkpoints(job: JobDir) -> None:
    try:
        remove_claimed(job)
    except EpsError as error:
        logger.warning("%s: eps prune %s tries again", error, job.name)


def settle(job: JobDir) -> None:
    """Note how a job ended that is an application, before another run or another job takes its place.

    One that YARN does not know any more has ended.

    Raises
    ------
    JobExistsError
        It runs: two masters must never write the same checkpoints.
    AuthenticationError, RpcError
        The ResourceManager cannot be asked.
    StorageError
        What it has left cannot be read.
    """
    application = Application.read(job)
    if application is None or job.is_running():
        return
    with closing(YarnJob(job)) as there:
        if there.end(is_final=True) is None:
            raise JobExistsError(
                f"job {job.name!r} is running ({application.application_id}): only one that has stopped can be "
                "started again"
            )
