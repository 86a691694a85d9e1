"""Directories of sweeps on YARN, on the client's machine; those of sweeps on this host are beside them.

``hscheduler sweep --on yarn`` makes a directory under ``EPS_HOME/sweeps`` and follows the sweep's application.  This
module reads these directories when no process follows any more.  Each has files of a job's directory: ``lock``, held
while a process follows, and a record.  The record names the application, and has an end once the results are here.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from eps.cluster.yarn.application import ENDED_FILE, Application
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.outcome import outcome, parse_outcome
from eps.cluster.yarn.types import ApplicationReport
from eps.errors import JobNotFoundError
from eps.hadoop.conf import read_configuration
from eps.storage.api import Storage
from eps.storage.jobdir import JobDir
from eps.system.home import eps_home

#: Folder of the application with a report for each sweep of which a job has ended.
REPORTS = "reports"
#: File that only the folder of a sweep on this host has; see :mod:`hscheduler.service.recorded_sweep`.
SETTINGS = "sweep.json"


@dataclass(frozen=True)
class SweepState:
    """State of a sweep."""

    #: ``running``, or the outcome.
    state: str
    #: Why its directory must not be removed; empty if nothing would be lost.
    keep: str = ""


def sweeps_dir() -> Path:
    """Return the directory of all sweeps of ``hscheduler sweep``, on this host and on YARN."""
    return eps_home() / "sweeps"


def list_sweeps() -> list[JobDir]:
    """Return the directories of all sweeps on YARN, sorted by name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        there = [path for path in sweeps_dir().iterdir() if not path.name.startswith(".") and path.is_dir()]
        return [JobDir(path) for path in sorted(there) if not (path / SETTINGS).exists()]
    return []


def name_of_sweep(sweep: JobDir) -> str:
    """Return a sweep's name for messages, ``sweeps/NAME``, which no job can have."""
    return f"{sweep.path.parent.name}/{sweep.name}"


def state_of_sweep(sweep: JobDir) -> SweepState:
    """Return a sweep's state; ask YARN and the cluster's file system unless the record has its end.

    Raises
    ------
    ConfigError
        The cluster's configuration can no longer be read.
    StorageError
        Its directory, or its folder on the cluster, cannot be read.
    AuthenticationError, RpcError
        YARN does not answer.
    """
    if sweep.is_running():
        return SweepState("running")
    application, ended = Application.read(sweep), sweep.record().end
    if ended is not None or application is None or not application.shared:
        return SweepState("killed" if ended is None else ended.state)
    report = report_of(application)
    if report is not None and not report.ended:
        return SweepState("running")
    store = application.storage()
    left = store.names("")
    state = "failed" if report is None else outcome(report)[0]
    noted = read_outcome(store)
    if noted is not None:
        state = noted[0]
    elif REPORTS in left or (left and report is None):
        told = f"its application ended before it ({state})" if report else "YARN no longer knows its application"
        return SweepState(state, f"{told}: hscheduler sweep --resume {sweep.name} continues it")
    if REPORTS in left:
        told = f"its results in {store.describe('')} were not downloaded"
        return SweepState(state, f"{told}: hscheduler sweep --resume {sweep.name} downloads them")
    return SweepState(state)


def report_file(sweep: str) -> str:
    """Return the path of a sweep's report in its application's folder on the cluster."""
    return f"{REPORTS}/{quote(sweep, safe='')}.json"


def read_outcome(shared: Storage) -> tuple[str, str, int] | None:
    """Return (state, reason, exit code) from the file in which a master has noted its end; None before that.

    Parameters
    ----------
    shared : Storage
        The application's folder on the cluster.

    Raises
    ------
    StorageError
        The folder cannot be read, or the file is damaged.
    """
    if ENDED_FILE not in shared.names(""):
        return None
    with shared.read(ENDED_FILE) as file:
        return parse_outcome(file.read(), shared.describe(ENDED_FILE))


def report_of(application: Application) -> ApplicationReport | None:
    """Return YARN's report on an application; None if YARN does not know it.

    Raises
    ------
    ConfigError
        The cluster's configuration can no longer be read.
    AuthenticationError, RpcError
        YARN does not answer.
    """
    with closing(YarnClient(read_configuration(Path(application.conf_dir)))) as client:
        try:
            return client.report(application.application_id)
        except JobNotFoundError:
            return None
