"""Commands that look at one job: status, logs; and version."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eps._version import __version__
from eps.cli.commands.finding import find
from eps.cli.exits import EXIT_OK
from eps.cluster.supervisor.process import MASTER
from eps.errors import DeadlineError, EpsError, JobNotFoundError, PeerUnavailableError, RpcError
from eps.job.display import STOPPED_STATES, status_text
from eps.job.status import application_id_of, attempt_of, member_of, silence_of, waiting_status
from eps.storage.jobdir import JobDir, can_be_resumed

FOLLOW_POLL_S = 0.1
#: Those of other hosts are brought whole by each look.
FOLLOW_REMOTE_S = 5.0
#: Who follows the logs of a job that runs waits for the end of such.
PASSING = (JobNotFoundError, PeerUnavailableError, DeadlineError)
#: A log that begins otherwise than it did is another: that of the next run.
HEAD_BYTES = 64


def version(args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"eps {__version__}")
    return EXIT_OK


def status(args: argparse.Namespace) -> int:
    """Show one job."""
    job = find(args.name)
    try:
        found = job.status()
    finally:
        job.close()
    resumable = found["state"] in STOPPED_STATES and can_be_resumed(job.directory)
    print(json.dumps(found, indent=1) if args.json else status_text(found, resumable=resumable))
    return EXIT_OK


def logs(args: argparse.Namespace) -> int:
    """Show log files, those of all processes or of one."""
    with find(args.name) as job:
        directory = job.directory
    reader, said = LogReader(directory.logs, args.member), set[str]()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            print(f"eps: {text}", file=sys.stderr, flush=True)

    with _source_of(directory, say) as (bring, pause_s):
        while True:
            trouble: EpsError | None = None
            try:
                bring()
            except EpsError as error:
                trouble = error
            # Asked before reading: what is written between the two is read in the next round.
            running = directory.is_running()
            # In any case: what is here may be all that there is of a run before.
            lines = reader.new_lines()
            for line in lines:
                sys.stdout.write(line)
            sys.stdout.flush()
            if trouble is not None:
                if not (args.follow and running and isinstance(trouble, PASSING)):
                    raise trouble
                say(str(trouble))
            elif not (args.follow and running):
                break
            elif lines:
                said.clear()
            time.sleep(pause_s)
    if args.member and not reader.found:
        raise JobNotFoundError(
            f"job {args.name!r} has no log of {args.member!r}; it has {', '.join(reader.speakers())}"
        )
    return EXIT_OK


@contextmanager
def _source_of(directory: JobDir, say: Callable[[str], None]) -> Iterator[tuple[Callable[[], object], float]]:
    """Give what brings a job's logs to where they are read, and how long it is waited for more.

    It calls ``say`` with what it waits for, and raises PeerUnavailableError where the job's cluster does not answer,
    JobNotFoundError where there are none yet.
    """
    if not application_id_of(directory):
        yield lambda: None, FOLLOW_POLL_S
        return
    from eps.job.yarn.logs import open_logs

    def check() -> None:
        if directory.is_running() and (silence := silence_of(directory)):
            raise PeerUnavailableError(f"the logs of job {directory.name!r} cannot be had now: {silence}")

    def bring() -> None:
        try:
            fetch()
        except RpcError as error:
            waiting = waiting_status(directory) if directory.is_running() else None
            if waiting is None or isinstance(error, PeerUnavailableError | DeadlineError):
                raise
            # Those of the run before are here.
            which = "newer logs" if any(directory.logs.glob("*.log")) else "logs"
            raise JobNotFoundError(f"job {directory.name!r} has no {which} yet: {waiting['reason']}") from error

    with open_logs(directory, check, say) as fetch:
        yield bring, FOLLOW_REMOTE_S


class LogReader:
    """Reads what is new in the log files of a job.

    Parameters
    ----------
    folder : Path
    member : str
        A member, ``master`` (all that the job has had), ``supervisor``, the name of a log file without its end, as
        ``master-2``, or a container; empty for all.
    """

    def __init__(self, folder: Path, member: str = "") -> None:
        self._folder = folder
        self._member = member
        self._offsets: dict[Path, int] = {}
        self._heads: dict[Path, bytes] = {}
        self._names: dict[Path, str] = {}
        self.found = False

    def new_lines(self) -> list[str]:
        """Return lines that were not returned before, each with the name of who wrote it unless one was asked for."""
        lines = []
        for path in sorted(self._folder.glob("*.log"), key=lambda path: (attempt_of(path), path)):
            name = self._name(path)
            if self._member and self._member not in (name, path.stem, MASTER if attempt_of(path) else ""):
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
            prefix = "" if self._member in (name, path.stem) else f"[{name}] "
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
