"""Sweeps that are applications, as this machine knows them: a folder for each under ``EPS_HOME/sweeps``.

::

    EPS_HOME/sweeps/ID
    ├── lock          held (flock) by whoever follows the application, from before it is submitted on
    ├── job.json      which application it is, and what it keeps on the cluster, from before YARN knows of it on; and
    │                 how it ended, when what it has left was fetched
    ├── tls/          certificates by which its service and that one's callers know each other
    ├── service.json  where that listens
    └── report.json   the sweep's report
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eps.cluster.yarn.application import Application
from eps.errors import JobNotFoundError, StorageError
from eps.job.yarn.sweeps import list_sweeps, sweeps_dir
from eps.storage.atomic import read_json, write_json_atomic
from eps.storage.jobdir import JobDir
from eps.storage.record import End, Phase
from eps.system.home import make_private
from hscheduler.application.follow import Ended
from hscheduler.service.directory import ServiceDir


@dataclass(frozen=True)
class KnownSweep:
    """The folder of one sweep that is an application."""

    path: Path

    @classmethod
    def new(cls) -> KnownSweep:
        """Make the folder of one that is to be submitted, with certificates.

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
        """The folder as that of a job, of which it has lock, certificates, logs, and how it ended."""
        return JobDir(self.path)

    @property
    def how_again(self) -> str:
        """The command that follows the sweep again."""
        return f"hscheduler sweep --resume {self.sweep_id}"

    def application(self) -> Application | None:
        """Return which application it is; None where none was submitted.

        Raises
        ------
        StorageError
            The note cannot be read.
        """
        return Application.read(self.job)

    def keep(self, ended: Ended) -> None:
        """Keep how the sweep ended, and its report: soon nobody else knows.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        if ended.report is not None:
            write_json_atomic(self.job.report, ended.report)
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
        report = read_json(self.job.report)
        return Ended(found.state, found.reason, None if report is None else dict(report))


def known_sweeps() -> Iterator[KnownSweep]:
    """Yield the sweeps that were submitted from this machine, whose folder is still there; what changed last first."""
    found = [KnownSweep(each.path) for each in list_sweeps() if each.job_json.exists()]
    yield from sorted(found, key=lambda each: (-each.job.changed_s(), each.sweep_id))


def known_sweep(name: str) -> KnownSweep:
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
