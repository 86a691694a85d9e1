"""The processes of a job, found in ``/proc``; Linux only."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir

#: Environment variable of every process of a chaos test, so that all of them are found.
MARK = "EPS_CHAOS_MARK"


@contextmanager
def marked() -> Iterator[str]:
    """Mark every process that is started inside, and its descendants."""
    before, mark = os.environ.get(MARK), secrets.token_hex(8)
    os.environ[MARK] = mark
    try:
        yield mark
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before


def with_mark(mark: str) -> list[int]:
    """Return the processes that carry a mark, except this one."""
    needle, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if needle in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    """Return the pid of the parent; 0 if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    # The name, in parentheses, may contain any characters.
    return int(stat.rpartition(")")[2].split()[1])


def master_pid(directory: JobDir) -> int:
    """Return the pid of the job master; 0 if there is none."""
    with suppress(Exception):
        return int((read_json(directory.master_json) or {}).get("pid", 0))
    return 0


def send(directory: JobDir, pid: int, number: signal.Signals) -> bool:
    """Send a signal to a process if it belongs to the job; return whether it was sent."""
    with suppress(OSError):
        supervisor = directory.record().pid
        # The pid may have been reused, but not by a child of the supervisor.
        if supervisor and pid and parent_of(pid) == supervisor:
            os.kill(pid, number)
            return True
    return False
