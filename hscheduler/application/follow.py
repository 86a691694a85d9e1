"""A sweep's application from the side of whoever submitted it: what happens is shown until it has ended."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from eps.cluster.yarn.application import RESULTS, Application
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.outcome import outcome
from eps.cluster.yarn.types import ApplicationReport
from eps.core.types import Address
from eps.errors import EpsError, StorageError
from eps.job.yarn.inquiry import Inquiry, why_waiting
from eps.job.yarn.submit import end_submitted
from eps.job.yarn.sweeps import REPORT_FILE, said_end
from eps.job.yarn.within import JOBS
from eps.storage.api import Storage
from eps.storage.atomic import write_bytes_atomic
from eps.storage.jobdir import JobDir, JobLock, jobs_dir, readable
from eps.storage.record import End
from eps.system import interrupt
from eps.system.home import make_private
from hscheduler.application.orders import SERVICE_FILE, SWEEP
from hscheduler.service.client import SchedulerClient
from hscheduler.service.directory import ServiceDir

logger = logging.getLogger(__name__)

#: How often YARN is asked.
ASK_S = 0.5
#: A service that is silent for so long is looked for anew.
GIVE_UP_S = 5.0
#: A report is wanted of a sweep that is being ended: so long it may take.
LAST_REPORT_S = 5.0
#: Characters of YARN's word on what an application waits for.
LONGEST_WHY = 160
#: What is said last is shown still.
_JOIN_S = 3.0


@dataclass(frozen=True)
class Ended:
    """How an application ended."""

    state: str
    reason: str
    #: Of all that there was; None where none was left: no trial had ended.
    report: dict[str, Any] | None
    #: False where YARN does not know it any more, and it has not said itself that it has ended: it may run.
    is_over: bool = True


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
    """

    def __init__(
        self,
        application: Application,
        client: Client,
        directory: ServiceDir,
        shared: Storage,
        tell: Callable[[str], None],
    ) -> None:
        self._application, self._client, self._directory = application, client, directory
        self._shared, self._tell = shared, tell
        self._place: Address | None = None
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
        while True:
            interrupt.check()
            report = self._report()
            if report is not None and report.ended:
                return self._end(report)
            if report is not None:
                self._look(report)
            self._pause.wait(ASK_S)

    def kill(self, why: str) -> dict[str, Any] | None:
        """End the application; return its service's report of what there was, None where that does not answer.

        A second Ctrl-C meanwhile does not keep the application from being ended.
        """
        try:
            return self._last_report()
        finally:
            end_submitted(self._client, self._application, why)
            self._close()

    def _last_report(self) -> dict[str, Any] | None:
        """Ask the service for its report, as long as one that is being ended may be waited for."""
        if self._place is None:
            return None
        found: list[dict[str, Any]] = []

        def ask() -> None:
            with suppress(EpsError), SchedulerClient(self._directory, give_up_s=LAST_REPORT_S) as client:
                found.append(client.report(SWEEP)[0])

        # A master that hangs takes the call, and is waited for much longer.
        asking = threading.Thread(target=ask, name="last report", daemon=True)
        asking.start()
        asking.join(LAST_REPORT_S)
        return found[0] if found else None

    def left_report(self) -> dict[str, Any] | None:
        """Return the report that the application has left on the cluster; None where there is none.

        Raises
        ------
        StorageError
            It cannot be read, or is none.
        """
        if REPORT_FILE not in self._shared.names(""):
            return None
        with self._shared.read(REPORT_FILE) as file:
            content = file.read()
        try:
            found = json.loads(content)
            if not isinstance(found, dict):
                raise TypeError(f"a {type(found).__name__}, not an object")
        except (ValueError, TypeError) as error:
            raise StorageError(f"{self._shared.describe(REPORT_FILE)}: is no report of a sweep: {error!r}") from None
        return found

    def ends_within(self, seconds: float) -> bool:
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

    def _look(self, report: ApplicationReport) -> None:
        if report.state != "RUNNING":
            why = shorten(why_waiting(report.diagnostics), LONGEST_WHY, placeholder=" ...")
            self._say(f"{report.application_id} is {report.state}" + (f": {why}" if why else ""))
            return
        place = self._found_place()
        if place is None or place == self._place:
            return
        self._place = place
        self._directory.say_where(place, 0)
        if self._watcher is None:
            self._say(f"the sweep's page, while it runs: {report.tracking_url}")
            self._news = SchedulerClient(self._directory, give_up_s=GIVE_UP_S)
            self._watcher = threading.Thread(target=self._watch, args=(self._news,), name="news", daemon=True)
            self._watcher.start()

    def _found_place(self) -> Address | None:
        """Return where the service of the latest attempt listens; None before it does."""
        try:
            if SERVICE_FILE not in self._shared.names(""):
                return None
            with self._shared.read(SERVICE_FILE) as file:
                found = json.loads(file.read())
            return Address(str(found["host"]), int(found["port"]))
        except (StorageError, ValueError, KeyError, TypeError) as error:
            # It is looked for again; whether the application has ended YARN says.
            logger.info("%s: %r", self._shared.describe(SERVICE_FILE), error)
            return None

    def _watch(self, client: SchedulerClient) -> None:
        seen = 0
        while not self._over.is_set():
            try:
                for news in client.watch(SWEEP):
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

    # ---- the end

    def _end(self, report: ApplicationReport) -> Ended:
        self._close()
        state, reason, _ = outcome(report)
        is_over = not self._inquiry.is_unknown
        word = said_end(self._shared)
        if word is not None:
            (state, reason, _), is_over = word, True
        return Ended(state, reason, self.left_report(), is_over)

    def _close(self) -> None:
        if self._watcher is not None and self._news is not None:
            self._watcher.join(_JOIN_S)
            self._over.set()
            self._news.close()


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
