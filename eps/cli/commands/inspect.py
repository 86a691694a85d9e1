"""Commands that show one job: status, fetch, logs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from eps.cli.exits import EXIT_NOT_FOUND, EXIT_OK
from eps.cluster.supervisor.process import MASTER
from eps.errors import DeadlineError, EpsError, JobNotFoundError, PeerUnavailableError
from eps.job.client import Job
from eps.job.display import STOPPED_STATES, status_text
from eps.job.status import (
    LOGS_COMMAND,
    UNREACHABLE,
    WAITING_STATES,
    application_id_of,
    attempt_of,
    checkpoints_of,
    members_of,
)
from eps.spec.results import detached_places
from eps.spec.runtime import Runtime
from eps.storage.jobdir import JobDir, can_be_resumed

if TYPE_CHECKING:
    from eps.job.yarn.logs import LiveLogs

FOLLOW_POLL_S = 0.1
#: Longer on YARN, because each poll downloads whole log files.
FOLLOW_REMOTE_S = 5.0
#: With ``--follow``, these errors are retried while the job runs.
RETRIED = (JobNotFoundError, PeerUnavailableError, DeadlineError)
#: Bytes compared to notice that the next run has replaced a log file.
HEAD_BYTES = 64


def status(args: argparse.Namespace) -> int:
    """Show one job."""
    job = Job.find(args.name)
    try:
        found = job.status()
    finally:
        job.close()
    resumable = found["state"] in STOPPED_STATES and can_be_resumed(job.directory)
    print(json.dumps(found, indent=1) if args.json else status_text(found, resumable=resumable))
    return EXIT_NOT_FOUND if found["state"] == UNREACHABLE else EXIT_OK


def fetch(args: argparse.Namespace) -> int:
    """Download report and model of a job on YARN that has ended."""
    job = Job.find(args.name)
    try:
        job.fetch(lambda text: print(f"{args.name}: {text}", flush=True))
        directory = job.directory
        found, places = job.status(), detached_places(directory)
        print(f"{args.name}: {found['state']}")
        for what, setting, path in (("report", "report", directory.report), ("model", "export", directory.model)):
            print(f"  {what}: {path if path.exists() else 'none'}")
            if path.exists() and setting in places:
                print(f"  {what}: {places[setting]}")
        # A finished job on YARN has given its checkpoints up.
        if found["state"] in STOPPED_STATES and checkpoints_of(found).get("complete"):
            print(f"  checkpoints: {Runtime.of_job(directory).checkpoints}")
    finally:
        job.close()
    return EXIT_OK


def logs(args: argparse.Namespace) -> int:
    """Show the log files of all processes, or of one."""
    job = Job.find(args.name)
    directory = job.directory
    reader, said = LogReader(directory.logs, args.member), set[str]()
    live = _live_logs(directory)
    try:
        while True:
            trouble: EpsError | None = None
            # Before reading: lines written after this check are read in the next round.
            running = job.running
            try:
                if live is not None and running:
                    _download(job, live)
            except EpsError as error:
                trouble = error
            # Even after an error: the local files may be the logs of an earlier run.
            lines = reader.new_lines()
            for line in lines:
                sys.stdout.write(line)
            sys.stdout.flush()
            if trouble is not None:
                if not (args.follow and running and isinstance(trouble, RETRIED)):
                    raise trouble
                if str(trouble) not in said:
                    said.add(str(trouble))
                    print(f"eps: {trouble}", file=sys.stderr, flush=True)
            elif not (args.follow and running):
                break
            elif lines:
                said.clear()
            time.sleep(FOLLOW_POLL_S if live is None else FOLLOW_REMOTE_S)
    finally:
        if live is not None:
            live.close()
        job.close()
    if live is not None and not running:
        told = LOGS_COMMAND.format(application_id_of(directory))
        print(f"eps: {told} shows the output of its containers, if the cluster keeps it", file=sys.stderr)
    if args.member and not reader.found:
        known, left = ", ".join(reader.speakers()) or "none", ""
        if live is not None:
            told = LOGS_COMMAND.format(application_id_of(directory))
            left = f"; after the application has ended, {told} shows the logs of removed members"
        raise JobNotFoundError(f"job {args.name!r} has no log of {args.member!r}; it has {known}{left}")
    return EXIT_OK


def _live_logs(directory: JobDir) -> LiveLogs | None:
    """Return the downloader of the logs of a job on YARN; None for other jobs, whose logs are local."""
    if not application_id_of(directory):
        return None
    from eps.job.yarn.logs import LiveLogs

    return LiveLogs(directory)


def _download(job: Job, live: LiveLogs) -> None:
    """Download the logs of a running job.

    Raises
    ------
    JobNotFoundError
        The job waits for containers and has no logs yet.
    EpsError
        See :meth:`eps.job.yarn.logs.LiveLogs.bring`.
    """
    if not live.download() and (found := job.status())["state"] in WAITING_STATES:
        # Local log files are those of the run before.
        which = "newer logs" if any(job.directory.logs.glob("*.log")) else "logs"
        raise JobNotFoundError(f"job {job.name!r} has no {which} yet: {found['reason']}")


class LogReader:
    """Reads new lines of the log files of a job.

    Parameters
    ----------
    folder : Path
    member : str
        Name of a member or container, ``supervisor``, ``master`` (all its attempts) or the name of a log file without
        ``.log``, such as ``master-2``.  Empty for all.
    """

    def __init__(self, folder: Path, member: str = "") -> None:
        self._folder = folder
        self._member = member
        self._offsets: dict[Path, int] = {}
        self._heads: dict[Path, bytes] = {}
        self._names: dict[Path, tuple[str, ...]] = {}
        self.found = False

    def new_lines(self) -> list[str]:
        """Return lines that were not returned before; each begins with its member's name unless one was selected."""
        lines = []
        for path in sorted(self._folder.glob("*.log"), key=lambda path: (attempt_of(path), path)):
            names = self._named(path)
            if self._member and self._member not in (*names, path.stem, MASTER if attempt_of(path) else ""):
                continue
            self.found = True
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
                if not head.startswith(self._heads.get(path, b"")):
                    self._offsets[path] = 0
                self._heads[path] = head
                file.seek(self._offsets.get(path, 0))
                content = file.read()
            # The last line may be half written.
            end = content.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + end
            # A container may have a worker and a server, and later their successors.
            prefix = "" if self._member in (*names, path.stem) else f"[{' '.join(names[:2]) or path.stem}] "
            lines += [f"{prefix}{line}\n" for line in content[:end].decode("utf-8", "replace").splitlines()]
        return lines

    def speakers(self) -> list[str]:
        """Return the members that have a log file."""
        return sorted(name for path in self._folder.glob("*.log") for name in self._named(path) or (path.stem,))

    def _named(self, path: Path) -> tuple[str, ...]:
        """Return the members that wrote a file; none until the master has named them."""
        known = self._names.get(path, ())
        if not known or (self._member and self._member not in known):
            known = self._names[path] = members_of(path)
        return known
