"""``python -m eps.job.yarn.attendant JOB_DIR``: stands for a job that runs on YARN, on the machine of whoever submitted
it.

It takes the supervisor's place in the job's directory: it holds the lock that says that the job runs, notes where the
job master listens, ends the application when its client asks or is gone, and fetches what the job has left when it has
ended.  So every command works on such a job as on a local one.  The application does not need it: where it is killed,
the job goes on, and the next command about the job starts another one.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal as signals
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.clients import asked_at, open_client
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.outcome import outcome
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import DeadlineError, EpsError, JobNotFoundError, PeerUnavailableError, StorageError
from eps.hadoop.conf import read_configuration
from eps.job.yarn.ending import wish, wished
from eps.job.yarn.fetching import End
from eps.job.yarn.inquiry import Inquiry, listens, why_waiting
from eps.storage.api import Storage
from eps.storage.atomic import write_json_atomic
from eps.storage.jobdir import JobDir, JobLock
from eps.storage.locations import open_storage
from eps.storage.record import Phase
from eps.system.logs import set_up_logging

logger = logging.getLogger(__name__)

#: How often YARN is asked: until the job master listens, and afterwards.
ASK_S, ASK_SLOWER_S = 0.2, 1.0
#: A ResourceManager that cannot be reached is waited for, and it is said this often.
SAY_S = 10.0
#: One that has not answered for this long is told of: until then it may be a slow answer.
SILENT_S = 2.0
#: After a signal the cluster has this long to answer; then the next attendant goes on with what this one was about.
STOP_S, AGAIN_S = 5.0, 1.0
STOP_SIGNALS = (signals.SIGTERM, signals.SIGINT, signals.SIGHUP)
CANNOT_START = 2
#: Whoever fetches once more what could not be fetched is waited for: a file system that is away has so long then.
FETCH_AGAIN_S = 10.0
#: YARN is told again to end an application that has not ended: a ResourceManager that fails may have forgotten it.
KILL_AGAIN_S = 5.0


class GaveUp(BaseException):
    """This process is to end, and nobody answers; not an Exception, since it comes in the midst of anything."""


class Attendant:
    """Follows one application until it has ended.

    Parameters
    ----------
    job : JobDir
        Its lock is held by this process.
    application_id : str
    client : Client
    shared : Storage or None
        The folder that the job's processes share; None where it has gone.
    tied_fd : int, optional
        Read end of the client's pipe; its end of file ends the application.
    address : str
        Where the ResourceManager is, for people.
    """

    def __init__(
        self,
        job: JobDir,
        application_id: str,
        client: Client,
        shared: Storage | None,
        tied_fd: int | None = None,
        address: str = "",
    ) -> None:
        self._job = job
        self._application_id = application_id
        self._client = client
        self._tied_fd = tied_fd
        self._address = address
        self._place: tuple[str, int] | None = None
        #: What YARN said last: its report, when that was (Unix time and monotonic), and how far the job was by it.
        self._last: ApplicationReport | None = None
        self._answered_unix_s, self._answered_s = time.time(), time.monotonic()
        self._progress = self._seen_s = 0.0
        self._noted: dict[str, Any] | None = None
        self._stop_reason = ""
        self._killed_s: float | None = None
        self._said_s = -SAY_S
        self._inquiry = Inquiry(client, application_id)
        self._end = End(job, shared, self._answered, self._note_fetching)
        self._signal_out, self._signal_in = os.pipe()
        os.set_blocking(self._signal_in, False)

    def run(self) -> int:
        """Follow the application; return the job's exit code."""
        signals.signal(signals.SIGALRM, self._look_whether_to_give_up)
        for number in STOP_SIGNALS:
            signals.signal(number, self._stop)
        signals.set_wakeup_fd(self._signal_in, warn_on_full_buffer=False)
        # Not before: a signal to whoever is named here is an order to end the application, not the end of this process.
        self._job.note(pid=os.getpid())
        gave_up = False
        try:
            while True:
                # It may come once more where this process was held up after the first.
                with suppress(GaveUp):
                    if gave_up:
                        signals.setitimer(signals.ITIMER_REAL, 0)
                        return self._give_up()
                    gave_up = True
                    return self._follow()
        finally:
            signals.setitimer(signals.ITIMER_REAL, 0)
            with suppress(StorageError):
                # Where the disk is full the next attendant does it.
                self._job.note(pid=0, yarn={"waiting": None})

    def _follow(self) -> int:
        end = self._job.record().end
        if end is not None and end.yarn.unfetched is not None:
            # YARN need not be asked any more.
            self._progress, self._seen_s = end.yarn.progress, end.yarn.seen_s
            return self._fetch((end.state, end.yarn.unfetched, end.exit_code), is_known=not end.yarn.is_forgotten)
        while True:
            with suppress(StorageError):
                self._want_end(wished(self._job, self._application_id))
            report = self._report()
            if report is not None:
                if report.state == "RUNNING" and self._job.record().phase is not Phase.RUNNING:
                    # Where it takes another run's place, there is no way back.
                    self._job.begin(phase=Phase.RUNNING, end=None)
                if report.ended:
                    # A ResourceManager that has lost its state does not know whether it has.
                    return self._fetch(outcome(report, self._stop_reason), is_known=not self._inquiry.is_unknown)
                self._note(report)
            if self._stop_reason:
                self._kill()
            self._wait(ASK_S if self._place is None or self._stop_reason else ASK_SLOWER_S)

    # ---- how it is told to end

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Have the application ended after a signal, and see that this process ends if nobody answers."""
        name = signals.Signals(number).name
        self._stop_reason = self._stop_reason or f"{name} ended who attended to it on {socket.gethostname()}"
        signals.setitimer(signals.ITIMER_REAL, STOP_S)

    def _look_whether_to_give_up(self, number: int, frame: FrameType | None) -> None:
        answers_s = time.monotonic() - self._answered_s
        # Again in any case: what is raised where a finaliser runs is lost.
        signals.setitimer(signals.ITIMER_REAL, AGAIN_S if answers_s >= STOP_S else STOP_S - answers_s)
        if answers_s >= STOP_S and not self._end.is_being_noted:
            raise GaveUp

    def _give_up(self) -> int:
        """Leave to the next attendant what this one cannot do within a signal's time; return an exit code."""
        if self._end.exit_code is not None:
            logger.warning(
                "%s: what the job may still have on the cluster is left to eps prune, its logs to eps logs",
                self._stop_reason,
            )
            return self._end.exit_code
        with suppress(StorageError):
            wish(self._job, self._application_id, self._stop_reason)
        logger.warning(
            "%s: its cluster does not answer: whoever asks after the job next goes on with it", self._stop_reason
        )
        return 1

    def _want_end(self, reason: str) -> None:
        """Have the application ended, if there is a reason; the first one stays."""
        self._stop_reason = self._stop_reason or reason

    # ---- what YARN says

    def _report(self) -> ApplicationReport | None:
        """Return what YARN says; None where it cannot be asked now, which passes: it restarts, or fails over."""
        try:
            report = self._inquiry.report()
        except EpsError as error:
            if isinstance(error, JobNotFoundError):
                self._answered()
            if time.monotonic() - self._said_s >= SAY_S:
                self._said_s = time.monotonic()
                logger.warning("%s", error)
            if time.monotonic() - self._answered_s >= SILENT_S:
                self._note_silence(error)
            return None
        self._answered()
        return report

    def _answered(self) -> None:
        self._answered_unix_s, self._answered_s = time.time(), time.monotonic()

    def _note(self, report: ApplicationReport) -> None:
        """Note where the job master listens, or what is waited for."""
        self._last, place = report, place_of(report)
        if place is None:
            self._note_waiting(described(report))
        else:
            self._progress, self._seen_s = report.progress, self._answered_unix_s
            self._note_place(place)

    def _note_silence(self, error: EpsError) -> None:
        """Note that nobody knows of the application now; a job master that listens where it did needs nobody for it."""
        place = None if self._last is None else place_of(self._last)
        if place is not None and listens(place):
            self._note_place(place)
            return
        since = time.strftime("%H:%M:%S", time.localtime(self._answered_unix_s))
        what = f"the ResourceManager at {self._address}" if self._address else "the ResourceManager"
        reason = f"{what} has not answered since {since}"
        if not isinstance(error, PeerUnavailableError | DeadlineError):
            reason = f"{what} cannot be asked since {since} ({error})"
        if place is not None:
            reason += f", nor does the job master at {place[0]}:{place[1]}"
        reason += ", and is waited for"
        if self._last is not None:
            reason += f"; last known: application {self._application_id} was {self._last.state}"
        self._note_waiting(reason, is_silent=True)

    def _note_place(self, place: tuple[str, int]) -> None:
        if place == self._place:
            return
        self._place, self._noted = place, None
        host, port = place
        write_json_atomic(self._job.master_json, {"host": host, "port": port}, sync=False)
        self._job.note(yarn={"waiting": None})
        logger.info("the job master listens at %s:%d", host, port)

    def _note_fetching(self, what: str) -> None:
        """Note that the application has ended, whose master is not to be asked any more, and what is fetched of it."""
        with suppress(StorageError):
            # A disk that is full may have room for what is fetched.
            self._note_waiting(f"application {self._application_id} has ended; {what}", is_fetching=True)
        self._job.master_json.unlink(missing_ok=True)

    def _note_waiting(self, reason: str, *, is_silent: bool = False, is_fetching: bool = False) -> None:
        """Note what is waited for, and for whoever asks how far the job was when that was known last."""
        self._place = None
        seen_s = self._seen_s or self._answered_unix_s
        found = {"reason": reason, "progress": self._progress, "seen_s": round(seen_s, 3)}
        found |= {"is_silent": is_silent, "is_fetching": is_fetching}
        before, self._noted = self._noted, found
        if before is None or any(before[name] != found[name] for name in ("reason", "is_silent", "is_fetching")):
            self._job.note(yarn={"waiting": found})
            logger.info("%s", reason)

    def _wait(self, seconds: float) -> None:
        poller = select.poll()
        poller.register(self._signal_out, select.POLLIN)
        if self._tied_fd is not None:
            poller.register(self._tied_fd, select.POLLIN)
        for fd, _ in poller.poll(seconds * 1000):
            data = b""
            with suppress(OSError):
                data = os.read(fd, 4096)
            if fd == self._tied_fd and not data:
                os.close(fd)
                self._tied_fd = None
                self._want_end("its client is gone")

    def _kill(self) -> None:
        """Have YARN end the application; again from time to time, for a word that it took may be lost with it."""
        if self._killed_s is not None and time.monotonic() - self._killed_s < KILL_AGAIN_S:
            return
        with suppress(StorageError):
            # It outlives this process.
            wish(self._job, self._application_id, self._stop_reason)
        try:
            self._client.kill(self._application_id, self._stop_reason)
            self._killed_s = time.monotonic()
            self._answered()
        except EpsError as error:
            logger.warning("%s", error)

    # ---- the end

    def _fetch(self, found: tuple[str, str, int], *, is_known: bool) -> int:
        """Fetch what the job has left, and note how it ended; parameters and result as of :meth:`End.note`."""
        return self._end.note(found, is_known=is_known, progress=self._progress, seen_s=self._seen_s)


def place_of(report: ApplicationReport) -> tuple[str, int] | None:
    """Return where a job master listens, by YARN's word; None where none does."""
    return (report.host, report.rpc_port) if report.state == "RUNNING" and report.host and report.rpc_port > 0 else None


def described(report: ApplicationReport) -> str:
    """Return how an application is, with YARN's word on why."""
    why = why_waiting(report.diagnostics)
    return f"application {report.application_id} is {report.state}" + (f": {why}" if why else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Attend to one job; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m eps.job.yarn.attendant", description="Stand for a job on YARN.")
    parser.add_argument("job_dir", type=Path, metavar="JOB_DIR", help="the job's directory")
    parser.add_argument("--tied-fd", type=int, metavar="N", help="read end of a pipe: its end of file ends the job")
    parser.add_argument("--lock-fd", type=int, metavar="N", default=-1, help="the open lock file, already locked")
    arguments = parser.parse_args(argv)
    set_up_logging()
    job = JobDir(arguments.job_dir.absolute())
    try:
        lock = JobLock(job.lock, arguments.lock_fd)
        if arguments.tied_fd is not None:
            os.set_inheritable(arguments.tied_fd, False)
        application = Application.read(job)
        if application is None:
            raise StorageError(f"{job.path}: is no job on YARN")
        os.environ["HADOOP_CONF_DIR"] = application.conf_dir
        conf = read_configuration(Path(application.conf_dir))
        client = open_client(conf, application.client)
        # Where nothing is named, nothing is left: it is not this process's working directory.
        end = job.record().end
        patience_s = FETCH_AGAIN_S if end is not None and end.yarn.unfetched is not None else None
        shared = open_storage(application.shared, patience_s=patience_s) if application.shared else None
    except (EpsError, OSError) as error:
        print(f"eps.job.yarn.attendant: {error}", file=sys.stderr)
        return CANNOT_START
    try:
        address = asked_at(conf, application.client)
        return Attendant(job, application.application_id, client, shared, arguments.tied_fd, address).run()
    finally:
        lock.close()


if __name__ == "__main__":
    sys.exit(main())
