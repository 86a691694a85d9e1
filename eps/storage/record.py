"""The record of a job: ``job.json`` in its directory, with its settings, where it runs, and how it ended.

Only the holder of the job's lock writes it, so there is one writer at a time.  That is the client that prepares the
job, then the supervisor; after the end, the process that resumes or settles the job.

For a job on YARN the record is a pointer to its application and its folder on the cluster.  Its end is recorded when a
client first sees it.

Values that change every second are in separate files (``master.json``, ``status.json``), which exist only while the job
runs.  At the end the figures of the report, or else of the last status, are copied into the record.  The record alone
then describes the ended job; other files hold results: report, model, checkpoints, logs.

Every version is durable before it replaces the previous one, and has a checksum.  The record holds no secret.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

from eps.errors import StorageError
from eps.storage.atomic import CHECKSUM, read_json, with_checksum, write_bytes_atomic

#: Version of the file format.
VERSION = 4
#: Reason for the end of a job whose supervisor was killed.
SUPERVISOR_KILLED = "its supervisor was killed before it could record the end"


class Phase(StrEnum):
    """A job's phase."""

    #: A client prepares the job and starts its processes.
    PREPARED = auto()
    #: On YARN: the application may have been submitted.
    SUBMITTED = auto()
    #: A supervisor runs the job.
    RUNNING = auto()
    ENDED = auto()


@dataclass(frozen=True)
class End:
    """How a job ended."""

    state: str
    reason: str = ""
    exit_code: int = 1
    #: Unix time in seconds.
    time_s: float = 0.0
    #: No process saw the end: the supervisor was killed, or YARN has forgotten the application.
    is_lost: bool = False
    #: The master's report, with only the last entries of history and memberships; empty if it could not report.
    report: Mapping[str, Any] = field(default_factory=dict)
    #: The last status of a master that could not report.
    last: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class YarnPart:
    """A job's state on a YARN cluster; empty for other jobs."""

    #: The application; see :class:`eps.cluster.yarn.application.Application`.
    application: Mapping[str, Any] | None = None
    #: The checkpoint folder that EPS chose; see :class:`eps.storage.claims.Claim`.
    claim: Mapping[str, Any] | None = None
    #: The store that replaces the job's directory for processes on other hosts; empty if there is none.
    shared: str = ""
    #: For a job in a shared application: the address of its container broker, and its host's name for the containers.
    broker: Mapping[str, Any] | None = None
    #: Whether the model was downloaded.
    is_fetched: bool = False


@dataclass(frozen=True)
class Record:
    """The known facts about a job."""

    phase: Phase = Phase.PREPARED
    #: When it was started or resumed, as Unix time in seconds.
    started_s: float = 0.0
    #: Values for its processes, see :meth:`eps.spec.runtime.Runtime.to_values`; None until known.
    runtime: Mapping[str, Any] | None = None
    #: Destinations of its report and model; see :mod:`eps.spec.results`.
    results: Mapping[str, Any] = field(default_factory=dict)
    #: Pid of the supervisor while the job runs; 0 until it can receive signals.
    pid: int = 0
    #: State on YARN.
    yarn: YarnPart = YarnPart()
    #: How it ended; None if it has not.
    end: End | None = None
    #: Changes and checkpoints of the runs before it was resumed; see :func:`eps.job.status.with_record`.
    earlier: Mapping[str, Any] = field(default_factory=dict)
    #: The record before the current run was prepared; kept until that run begins.
    former: Record | None = None

    def __post_init__(self) -> None:
        """Refuse a phase that contradicts the end."""
        if (self.end is not None) != (self.phase is Phase.ENDED):
            raise ValueError(f"phase {self.phase} with end {self.end}")

    @property
    def spec(self) -> Mapping[str, Any]:
        """The job's settings; empty if unknown."""
        found: Mapping[str, Any] = (self.runtime or {}).get("spec", {})
        return found

    @property
    def runs_on(self) -> str:
        """The backend in its settings, such as ``local`` or ``yarn``; empty if unknown."""
        return str(self.spec.get("on", ""))

    @property
    def is_elsewhere(self) -> bool:
        """Whether the job may run without a process on this machine, as a YARN application."""
        return self.yarn.application is not None and self.phase in (Phase.SUBMITTED, Phase.RUNNING)

    def ended(self, end: End) -> Record:
        """Return the record with the job's end."""
        return self.changed(phase=Phase.ENDED, pid=0, end=end, former=None)

    def changed(self, yarn: Mapping[str, Any] | None = None, **changes: Any) -> Record:
        """Return the record with changed fields; ``yarn`` changes fields of its YARN part."""
        return dataclasses.replace(self, yarn=dataclasses.replace(self.yarn, **(yarn or {})), **changes)

    def to_values(self) -> dict[str, Any]:
        """Return the values for :meth:`from_values`, without defaults."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["yarn"] = {name: value for name, value in dataclasses.asdict(self.yarn).items() if value}
        if self.end is not None:
            values["end"] = dataclasses.asdict(self.end)
        if self.former is not None:
            values["former"] = self.former.to_values()
        return {name: value for name, value in values.items() if value or name == "phase"}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Record:
        """Return the record that ``values`` describe.

        Raises
        ------
        KeyError, TypeError, ValueError
            The values are not those of a record.
        """
        more = dict(values)
        more["phase"] = Phase(more["phase"])
        if "end" in more:
            more["end"] = End(**more["end"])
        if "yarn" in more:
            more["yarn"] = YarnPart(**more["yarn"])
        if "former" in more:
            more["former"] = cls.from_values(more["former"])
        return cls(**more)


def read_record(path: Path) -> Record:
    """Return the record in a file; an empty one if the file does not exist.

    Raises
    ------
    StorageError
        The file cannot be read, is damaged, or was written by another version of EPS; the message says what to do.
    """
    try:
        values = read_json(path)
    except StorageError as error:
        raise StorageError(f"{error}; {_remedy(path)}") from None
    if values is None:
        return Record()
    if values.get("version") != VERSION:
        raise StorageError(f"{path}: was written by another version of EPS and cannot be read; {_remedy(path)}")
    try:
        return Record.from_values({k: v for k, v in values.items() if k not in ("version", CHECKSUM)})
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path}: is not a job record: {error!r}; {_remedy(path)}") from None


def write_record(path: Path, record: Record, *, sync: bool = True) -> None:
    """Write a record atomically; without ``sync`` it may not survive a power loss.

    Raises
    ------
    StorageError
        The record cannot be written, and the previous one is unchanged.
    """
    write_bytes_atomic(path, record_bytes(record), sync=sync)


def record_bytes(record: Record) -> bytes:
    """Return the content of a record's file."""
    values = with_checksum({"version": VERSION, **record.to_values()})
    # In one line: indenting thousands of splits is slow.
    return json.dumps(values, sort_keys=True).encode("utf-8") + b"\n"


def _remedy(path: Path) -> str:
    name = path.parent.name
    if path.parent.parent.name == "sweeps":
        return f"eps prune sweeps/{name} --state unreadable removes it"
    return f"eps run --name {name} --anew replaces the job, eps prune {name} --state unreadable removes it"
