"""Commands that only look: status, list, logs, version."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from eps._version import __version__
from eps.cli import EXIT_OK
from eps.client import Job
from eps.display import list_text, status_text
from eps.ended import ended_status
from eps.errors import JobNotFoundError, RpcError, StorageError
from eps.home import check_home
from eps.last_words import member_of
from eps.storage.jobdir import JobDir, find_job, list_jobs

#: A job of a list that does not answer does not hold up the others.
LIST_PATIENCE_S = 2.0
FOLLOW_POLL_S = 0.1
#: What a list says of a job whose directory is damaged.
UNREADABLE: dict[str, Any] = {
    "state": "unreadable", "clock": 0, "iterations": 0, "loss": None, "metrics": {}, "workers": 0, "servers": 0,
}  # fmt: skip


def version(args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"eps {__version__}")
    return EXIT_OK


def status(args: argparse.Namespace) -> int:
    """Show one job."""
    job = Job.find(args.name)
    try:
        found = job.status()
    finally:
        job.close()
    print(json.dumps(found, indent=1) if args.json else status_text(found))
    return EXIT_OK


def list_all(args: argparse.Namespace) -> int:
    """Show all jobs."""
    check_home(writable=False)
    found = [_brief_status(job) for job in list_jobs()]
    print(json.dumps(found, indent=1) if args.json else list_text(found))
    return EXIT_OK


def _brief_status(directory: JobDir) -> dict[str, Any]:
    try:
        return _status_of(directory)
    except StorageError as error:
        # One damaged directory does not hide the other jobs.
        return {**UNREADABLE, "name": directory.name, "reason": str(error)}


def _status_of(directory: JobDir) -> dict[str, Any]:
    if not directory.is_running():
        return ended_status(directory)
    job = Job(directory, patience_s=LIST_PATIENCE_S)
    try:
        return job.status(LIST_PATIENCE_S)
    except RpcError as error:
        return {**ended_status(directory), "state": "unreachable", "reason": str(error)}
    finally:
        job.close()


def logs(args: argparse.Namespace) -> int:
    """Show log files, those of all processes or of one."""
    directory = find_job(args.name)
    reader = LogReader(directory.logs, args.member)
    while True:
        # Asked before reading: what is written between the two is read in the next round.
        running = directory.is_running()
        for line in reader.new_lines():
            sys.stdout.write(line)
        sys.stdout.flush()
        if not (args.follow and running):
            break
        time.sleep(FOLLOW_POLL_S)
    if args.member and not reader.found:
        raise JobNotFoundError(
            f"job {args.name!r} has no log of {args.member!r}; it has {', '.join(reader.speakers())}"
        )
    return EXIT_OK


class LogReader:
    """Reads what is new in the log files of a job.

    Parameters
    ----------
    folder : Path
    member : str
        A member, ``master``, ``supervisor`` or a container; empty for all.
    """

    def __init__(self, folder: Path, member: str = "") -> None:
        self._folder = folder
        self._member = member
        self._offsets: dict[Path, int] = {}
        self._names: dict[Path, str] = {}
        self.found = False

    def new_lines(self) -> list[str]:
        """Return lines that were not returned before, each with the name of who wrote it unless one was asked for."""
        lines = []
        for path in sorted(self._folder.glob("*.log")):
            name = self._name(path)
            if self._member and self._member not in (name, path.stem):
                continue
            self.found = True
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                content = file.read()
            # The last line may be half written.
            end = content.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + end
            prefix = "" if self._member else f"[{name}] "
            lines += [f"{prefix}{line}\n" for line in content[:end].decode("utf-8", "replace").splitlines()]
        return lines

    def speakers(self) -> list[str]:
        """Return who has a log file."""
        return sorted(self._name(path) for path in self._folder.glob("*.log"))

    def _name(self, path: Path) -> str:
        """Return the member that wrote a file; a container gets its member's name when the master has named it."""
        if path not in self._names:
            member = member_of(path)
            if member is None:
                return path.stem
            self._names[path] = member
        return self._names[path]
