"""The record of a job: ``job.json`` in its directory, with what was asked, where it runs, and how it ended.

Only the holder of the job's lock writes it, so there is one writer at a time: the client that prepares the job, then
the supervisor that takes the lock over, and after the end whoever resumes or settles the job.  Of a job on YARN the
record is a pointer: which application it is, and its folder on the cluster; its end is noted when it is first seen.
What a running master changes every second is in files of its own (``master.json``, ``status.json``), there only while
the job runs: at the end the figures of the report, or else of the last status, become part of the record.  So all that
is said of a job that has ended is in the record alone, and its other files hold results: report, model, checkpoints,
logs.

Every version of it is durable before it takes the place of the one before, and proves by a checksum that it is whole.
The record holds no secret.
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
from eps.storage.atomic import CHECKSUM, checksum, read_json, with_checksum, write_bytes_atomic

#: Of the form of the file.
VERSION = 3
#: Why a job ended whose supervisor was killed before it could note the end.
NO_WORD = "its supervisor ended without a word"


class Phase(StrEnum):
    """How far a job is."""

    #: A client makes it ready, and starts its processes.
    PREPARED = auto()
    #: On YARN: the ResourceManager may have its application.
    SUBMITTED = auto()
    #: A supervisor stands for it.
    RUNNING = auto()
    ENDED = auto()


@dataclass(frozen=True)
class End:
    """How a job ended."""

    state: str
    reason: str = ""
    exit_code: int = 1
    #: When, in seconds of Unix time.
    time_s: float = 0.0
    #: No process has seen how it ended: its supervisor was killed, or YARN has forgotten its application.
    is_lost: bool = False
    #: What its master has reported, of history and memberships the last; empty where it could not report.
    report: Mapping[str, Any] = field(default_factory=dict)
    #: The status that a master which could not report wrote last.
    last: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class YarnPart:
    """What a job has on a YARN cluster; of any other job nothing."""

    #: Its application; see :class:`eps.cluster.yarn.application.Application`.
    application: Mapping[str, Any] | None = None
    #: The folder that EPS chose for its checkpoints; see :class:`eps.storage.claims.Claim`.
    claim: Mapping[str, Any] | None = None
    #: The store that takes the place of its directory for processes on other hosts; empty for none.
    shared: str = ""
    #: Of a job that shares an application: where it asks for containers, and the host by which they reach it.
    broker: Mapping[str, Any] | None = None
    #: Its model, too, is here.
    is_fetched: bool = False


@dataclass(frozen=True)
class Record:
    """What is known of a job."""

    phase: Phase = Phase.PREPARED
    #: When it was started, or resumed, in seconds of Unix time.
    started_s: float = 0.0
    #: What its processes are told, as of :meth:`eps.spec.runtime.Runtime.to_values`; None before that is known.
    runtime: Mapping[str, Any] | None = None
    #: Where its report and model are to go; see :mod:`eps.spec.results`.
    results: Mapping[str, Any] = field(default_factory=dict)
    #: The supervisor of a job that runs; 0 until it can be sent a signal.
    pid: int = 0
    #: What it has on YARN.
    yarn: YarnPart = YarnPart()
    #: How it ended; None of a job that has not.
    end: End | None = None
    #: What it was before this run of it was prepared, until that begins.
    former: Record | None = None

    def __post_init__(self) -> None:
        """Refuse a record that contradicts itself."""
        if (self.end is not None) != (self.phase is Phase.ENDED):
            raise ValueError(f"phase {self.phase} with end {self.end}")

    @property
    def spec(self) -> Mapping[str, Any]:
        """The job's settings; empty where they are not known."""
        found: Mapping[str, Any] = (self.runtime or {}).get("spec", {})
        return found

    @property
    def runs_on(self) -> str:
        """What its settings have it run on: ``local``, ``yarn``; empty where they are not known."""
        return str(self.spec.get("on", ""))

    @property
    def is_elsewhere(self) -> bool:
        """Whether the job may go on without any process of this machine: YARN may have its application."""
        return self.yarn.application is not None and self.phase in (Phase.SUBMITTED, Phase.RUNNING)

    def ended(self, end: End) -> Record:
        """Return the record of a job that has ended."""
        return self.changed(phase=Phase.ENDED, pid=0, end=end, former=None)

    def changed(self, yarn: Mapping[str, Any] | None = None, **changes: Any) -> Record:
        """Return the record with other fields; ``yarn`` has those of its part on YARN."""
        return dataclasses.replace(self, yarn=dataclasses.replace(self.yarn, **(yarn or {})), **changes)

    def to_values(self) -> dict[str, Any]:
        """Return what :meth:`from_values` reads; without fields that are as by default."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["yarn"] = {name: value for name, value in dataclasses.asdict(self.yarn).items() if value}
        if self.end is not None:
            values["end"] = dataclasses.asdict(self.end)
        if self.former is not None:
            values["former"] = self.former.to_values()
        return {name: value for name, value in values.items() if value or name == "phase"}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Record:
        """Return the record that values describe.

        Raises
        ------
        KeyError, TypeError, ValueError
            They describe none.
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
    """Return the record in a file; one of which nothing is known where there is no such file.

    Raises
    ------
    StorageError
        The file cannot be read, is empty or damaged, or another version of EPS wrote it: the message says what to do.
    """
    try:
        values = read_json(path)
    except StorageError as error:
        raise StorageError(f"{error}; {_remedy(path)}") from None
    if values is None:
        return Record()
    if values.get("version") != VERSION:
        raise StorageError(f"{path}: another version of EPS wrote it, which this one cannot read; {_remedy(path)}")
    try:
        return Record.from_values({k: v for k, v in values.items() if k not in ("version", CHECKSUM)})
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path}: is no record of a job: {error!r}; {_remedy(path)}") from None


def write_record(path: Path, record: Record, *, sync: bool = True) -> None:
    """Write a record, whole or not at all; it survives a loss of power, unless ``sync`` is False.

    Raises
    ------
    StorageError
        It cannot be written, and the one before is as it was.
    """
    write_bytes_atomic(path, record_bytes(record), sync=sync)


def record_bytes(record: Record) -> bytes:
    """Return what a file of a record holds."""
    values = with_checksum({"version": VERSION, **record.to_values()})
    # In one line: thousands of splits take long to be indented.
    return json.dumps(values, sort_keys=True).encode("utf-8") + b"\n"


def readable_runtime(path: Path) -> Mapping[str, Any] | None:
    """Return what a job's processes are told from a record that is damaged elsewhere; None where that is damaged, too.

    That part of the record has a checksum of its own.  A job on YARN is left alone: its application may run.
    """
    try:
        values = json.loads(path.read_bytes())
        found = values["runtime"]
        is_whole = found[CHECKSUM] == checksum({k: v for k, v in found.items() if k != CHECKSUM})
        return found if is_whole and found["spec"]["on"] != "yarn" else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _remedy(path: Path) -> str:
    name = path.parent.name
    if path.parent.parent.name == "sweeps":
        return f"eps prune sweeps/{name} --state unreadable removes it"
    if readable_runtime(path) is not None:
        return f"its settings can be read: eps resume {name} goes on from its latest checkpoint"
    return (
        f"its settings are lost: eps run --name {name} --anew begins in its place, eps prune {name} --state unreadable "
        "removes it"
    )
