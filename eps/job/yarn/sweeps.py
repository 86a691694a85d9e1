"""Sweeps on YARN, each an application, as directories on the client's machine know them.

``hscheduler sweep --on yarn`` makes one under ``EPS_HOME/sweeps`` and follows the application; here is what becomes of
it when no process follows it any more.  It has the files of a job's directory: ``lock`` for as long as a process
follows, and the record, with the application, and with an end when what the sweep has left on the cluster is here.
"""

from __future__ import annotations

import re
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

#: Of what H-scheduler leaves on the cluster: a folder with the report of each sweep of which a job has ended.
REPORTS = "reports"
_NAME = re.compile(r"[0-9a-f]+", re.ASCII)


@dataclass(frozen=True)
class SweepState:
    """How a sweep is."""

    #: ``running``, or how it ended.
    state: str
    #: Why it is not to be removed just so; empty where nothing is lost with it.
    keep: str = ""


def sweeps_dir() -> Path:
    """Return the directory of all sweeps that are applications."""
    return eps_home() / "sweeps"


def list_sweeps() -> list[JobDir]:
    """Return the directory of every such sweep, by name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        there = [path for path in sweeps_dir().iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
        return [JobDir(path) for path in sorted(there)]
    return []


def name_of_sweep(sweep: JobDir) -> str:
    """Return how a sweep is called: by where it is, so that no job has the name."""
    return f"{sweep.path.parent.name}/{sweep.name}"


def state_of_sweep(sweep: JobDir) -> SweepState:
    """Return how a sweep is; of one that nobody has followed to its end YARN and the cluster's file system are asked.

    Raises
    ------
    ConfigError
        The configuration of its cluster cannot be read any more.
    StorageError
        Its directory cannot be read, or what it has on the cluster.
    AuthenticationError, RpcError
        YARN cannot be asked.
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
    word = said_end(store)
    if word is not None:
        state = word[0]
    elif report is None and left:
        return SweepState(state, f"YARN does not know {application.application_id} any more, which may run")
    if REPORTS in left:
        told = f"what it has left was not fetched from {store.describe('')}"
        return SweepState(state, f"{told}: hscheduler sweep --resume {sweep.name} does")
    return SweepState(state)


def report_file(sweep: str) -> str:
    """Return where the report of a sweep is, in its application's folder on the cluster."""
    return f"{REPORTS}/{quote(sweep, safe='')}.json"


def said_end(shared: Storage) -> tuple[str, str, int] | None:
    """Return how a sweep has ended by the word that its master has left: state, reason, exit code; None before its end.

    Parameters
    ----------
    shared : Storage
        The application's folder in the cluster's file system.

    Raises
    ------
    StorageError
        It cannot be read.
    """
    if ENDED_FILE not in shared.names(""):
        return None
    with shared.read(ENDED_FILE) as file:
        return parse_outcome(file.read(), shared.describe(ENDED_FILE))


def report_of(application: Application) -> ApplicationReport | None:
    """Return what YARN says of an application; None where it does not know it.

    Raises
    ------
    ConfigError
        The configuration of its cluster cannot be read any more.
    AuthenticationError, RpcError
        YARN cannot be asked.
    """
    with closing(YarnClient(read_configuration(Path(application.conf_dir)))) as client:
        try:
            return client.report(application.application_id)
        except JobNotFoundError:
            return None
