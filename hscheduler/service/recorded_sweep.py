"""The folder of a sweep on this host: its record, from which ``hscheduler sweep --resume`` continues it.

::

    EPS_HOME/sweeps/NAME
    ├── lock            locked (flock) while the sweep runs
    ├── sweep.json      its policy and the tables of its file
    ├── callable.pickle the callable whose calls are its trials, if it has one
    ├── record.sqlite   see hscheduler.record
    └── report.json     the report of the latest seconds, then the final one

The folders of sweeps on YARN are beside it (:mod:`hscheduler.application.monitor`).
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, JobExistsError, StorageError
from eps.job.yarn.sweeps import SETTINGS, sweeps_dir
from eps.storage.atomic import read_json, write_bytes_atomic
from eps.storage.jobdir import JobDir, JobLock, check_job_name
from eps.system.home import DIRECTORY_MODE, make_private
from hscheduler.live.sweep import jobs_of, report_of_record, trial_prefix
from hscheduler.record.sqlite import SqliteRecord
from hscheduler.reports.report import is_report
from hscheduler.spec import Spec

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
#: Longest part of a file's name that becomes the name of a sweep.
_LONGEST_STEM = 40


class SweepState(StrEnum):
    """State of a sweep, as its report and ``hscheduler sweeps`` have it."""

    RUNNING = "running"
    #: It does not run, and can be resumed.
    INTERRUPTED = "interrupted"
    ENDED = "ended"


@dataclass(frozen=True)
class RecordedSweep:
    """The folder of one sweep."""

    path: Path

    @classmethod
    def named(cls, name: str) -> RecordedSweep:
        """Return the sweep with this name, which need not exist.

        Raises
        ------
        ConfigError
            No sweep can have the name.
        """
        try:
            return cls(sweeps_dir() / check_job_name(name))
        except ConfigError:
            raise ConfigError(
                f"name is {name!r}, but must have 1 to 64 letters, digits, '.', '_' and '-', and not begin with '.'"
            ) from None

    @classmethod
    def find(cls, name: str) -> RecordedSweep | None:
        """Return the sweep of this host with this name; None if there is none."""
        with suppress(ConfigError):
            found = cls.named(name)
            return found if found.settings_path.exists() else None
        return None

    @classmethod
    @contextmanager
    def create(cls, name: str, stem: str) -> Iterator[RecordedSweep]:
        """Create the folder of a new sweep, and lock it inside the block.

        Parameters
        ----------
        name : str
            Empty: ``stem``, with a number if a sweep has that name.
        stem : str
            Name of the sweep's file.

        Raises
        ------
        ConfigError
            A sweep has the name, or none can have it.
        StorageError
            The folder cannot be created.
        """
        stem = _NO_NAME.sub("-", stem)[:_LONGEST_STEM].strip(".-") or "sweep"
        numbered = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        for each in [name] if name else numbered:
            found = cls.named(each)
            if jobs_of(each) and not found.settings_path.exists():
                # Of a sweep that was removed, or of a service's.
                continue
            if (lock := found._claim()) is not None:
                with lock:
                    try:
                        yield found
                    finally:
                        if not found.settings_path.exists():
                            shutil.rmtree(found.path, ignore_errors=True)
                return
        raise ConfigError(f"name is {name!r}, but must be an unused name: {found.how_to_free()}")

    def _claim(self) -> JobLock | None:
        """Create the folder; return its lock, or None if a sweep has it.

        A process that was killed before the end of :meth:`begin` leaves a folder without settings, which is used again.
        """
        try:
            make_private(self.path.parent)
            self.path.mkdir(mode=DIRECTORY_MODE)
        except FileExistsError:
            pass
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be created: {error.strerror or error}") from error
        try:
            lock = JobLock(self.lock_path)
        except JobExistsError:
            return None
        if not {*self.path.iterdir()} <= {self.lock_path, self.callable_path}:
            lock.close()
            return None
        return lock

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.path.name

    @property
    def lock_path(self) -> Path:
        """File that is locked while the sweep runs."""
        return JobDir(self.path).lock

    @property
    def settings_path(self) -> Path:
        """File of the sweep's settings; the folder has a sweep once it exists."""
        return self.path / SETTINGS

    @property
    def report_path(self) -> Path:
        """File of the report."""
        return JobDir(self.path).report

    @property
    def resume_command(self) -> str:
        """The command that continues the sweep, or writes its report."""
        return f"hscheduler sweep --resume {self.name}"

    def kept(self) -> str:
        """Return where the results are and what writes the report, as a clause."""
        return f"every result is in {self.path}: {self.resume_command} --report PATH writes the report"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the sweep inside the block.

        Raises
        ------
        ConfigError
            It runs.
        StorageError
            The lock cannot be opened.
        """
        try:
            lock = JobLock(self.lock_path)
        except JobExistsError:
            raise ConfigError(
                f"sweep {self.name!r} runs in another process: wait for its end, or interrupt that process"
            ) from None
        with lock:
            yield

    def state(self) -> SweepState:
        """Return the state of the sweep.  Raises StorageError if its lock cannot be read."""
        if JobDir(self.path).is_running():
            return SweepState.RUNNING
        return SweepState.ENDED if self.has_ended() else SweepState.INTERRUPTED

    def has_ended(self) -> bool:
        """Return whether the final report is here."""
        # The record makes up for a report that was damaged in a power failure.
        with suppress(StorageError):
            return (self.latest_report() or {}).get("state") == SweepState.ENDED
        return False

    def latest_report(self) -> dict[str, Any] | None:
        """Return the last report that was written; None before the first.  Raises StorageError."""
        found = read_json(self.report_path)
        return None if found is None else dict(found)

    def changed_s(self) -> float:
        """Return when the sweep last changed, as Unix time in seconds."""
        times = [0.0]
        for path in (self.path, self.report_path, self.path / "record.sqlite"):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
        return min(max(times), time.time())

    def how_to_free(self) -> str:
        """Return which sweep has the name, and what to do, as a sentence."""
        if not self.settings_path.exists() and jobs_of(self.name):
            prefix = trial_prefix(self.name)
            return f"jobs of an earlier sweep have names with {prefix} (eps prune {prefix} --resumable removes them)"
        if not self.settings_path.exists():
            return f"{self.path} belongs to another sweep (hscheduler sweeps lists it)"
        removes = f"hscheduler sweeps --remove {self.name} removes it"
        match self.state():
            case SweepState.RUNNING:
                return f"sweep {self.name!r} is running"
            case SweepState.INTERRUPTED:
                return f"sweep {self.name!r} was interrupted: {self.resume_command} continues it, {removes}"
        return f"sweep {self.name!r} has ended: {removes}"

    @property
    def callable_path(self) -> Path:
        """File of the pickled callable."""
        return self.path / "callable.pickle"

    def begin(self, policy: str, spec: Spec, objective: bytes | None = None) -> None:
        """Write what :meth:`settings` returns; from here on the sweep can be resumed.  The caller holds the lock.

        Parameters
        ----------
        policy : str
        spec : Spec
        objective : bytes, optional
            The pickled callable whose calls are the trials.  Its modules are later found where they are found now.

        Raises
        ------
        StorageError
            A file cannot be written.
        """
        found: dict[str, Any] = {"policy": policy, "tables": spec.tables()}
        if objective is not None:
            write_bytes_atomic(self.callable_path, objective)
            found["python_path"] = [str(Path(each).absolute()) for each in sys.path]
        # In its order: points are drawn in that of the space.
        write_bytes_atomic(self.settings_path, json.dumps(found, indent=1).encode("utf-8") + b"\n")

    def objective(self) -> bytes | None:
        """Return the pickled callable whose calls are the trials; None if these are jobs of EPS.

        Raises
        ------
        ConfigError
            It cannot be loaded here.
        StorageError
            A file is damaged, or cannot be read.
        """
        found = read_json(self.settings_path) or {}
        if "python_path" not in found:
            return None
        sys.path += [each for each in found["python_path"] if each not in sys.path]
        try:
            pickled = self.callable_path.read_bytes()
        except OSError as error:
            raise StorageError(f"{self.callable_path}: cannot be read: {error.strerror or error}") from error
        try:
            pickle.loads(pickled)
        except Exception as error:
            # Not once for each trial, which would fail.
            raise ConfigError(
                f"the callable of sweep {self.name!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return pickled

    def settings(self) -> tuple[str, Spec]:
        """Return policy and settings of the sweep.

        Raises
        ------
        ConfigError
            The settings are not valid in this version.
        StorageError
            The file is damaged, or cannot be read.
        """
        found = read_json(self.settings_path) or {}
        try:
            return str(found["policy"]), Spec.of(found["tables"], is_callable="python_path" in found)
        except (KeyError, TypeError) as error:
            raise StorageError(f"{self.settings_path} is not a file of a sweep: {error!r}") from None

    def open_record(self) -> SqliteRecord:
        """Open the record.  The caller holds the lock.

        Raises
        ------
        StorageError
            The record is of another version, damaged, or cannot be read.
        """
        return SqliteRecord(self.path / "record.sqlite")

    def report(self) -> dict[str, Any]:
        """Return the report: the final one, the latest of a sweep that runs, or that of an interrupted sweep's record.

        Raises
        ------
        ConfigError, StorageError
            As :meth:`settings` and :meth:`open_record`; it runs and has no report yet; or that is of another version.
        """
        state = self.state()
        if state is SweepState.INTERRUPTED:
            with self.lock():
                policy, spec = self.settings()
                with closing(self.open_record()) as record:
                    return self.titled(report_of_record(spec, policy, self.name, record), state)
        found = self.latest_report()
        if found is None:
            raise ConfigError(f"sweep {self.name!r} has no report yet: try again in a few seconds")
        if not is_report(found):
            raise ConfigError(f"{self.report_path} is a report of another version of hscheduler")
        return found

    def titled(self, report: Mapping[str, Any], state: SweepState) -> dict[str, Any]:
        """Return a report with the name of the sweep and its state."""
        return {**report, "name": self.name, "state": str(state)}

    def jobs(self) -> list[JobDir]:
        """Return its jobs under ``EPS_HOME``."""
        return jobs_of(self.name)

    def remove(self) -> None:
        """Remove the folder, and with it the record of an interrupted sweep.

        Raises
        ------
        ConfigError
            The sweep runs, or jobs that outlived it do.
        StorageError
            A file cannot be removed.
        """
        with self.lock():
            if running := [job.name for job in self.jobs() if job.is_running()]:
                raise ConfigError(
                    f"sweep {self.name!r} was killed, but its jobs still run ({', '.join(running)}): "
                    f"{self.resume_command} continues it; or end them with eps kill"
                )
            try:
                shutil.rmtree(self.path)
            except OSError as error:
                raise StorageError(f"{self.path}: cannot be removed: {error.strerror or error}") from error


def recorded_sweeps() -> Iterator[RecordedSweep]:
    """Yield the sweeps of this host, by name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from (RecordedSweep(path) for path in sorted(sweeps_dir().iterdir()) if (path / SETTINGS).exists())
