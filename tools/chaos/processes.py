"""The processes of a job, as the operating system sees them.  Linux only: all of it is read from ``/proc``."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir

#: Every process of a job that chaos starts has this in its environment, so that none is overlooked.
MARK = "EPS_CHAOS_MARK"


@contextmanager
def marked() -> Iterator[str]:
    """Mark every process that is started in here, and all that they start."""
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
    """Return the parent of a process; 0 where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    # The name, in parentheses, may hold anything.
    return int(stat.rpartition(")")[2].split()[1])


def master_pid(directory: JobDir) -> int:
    """Return the job master's process; 0 where there is none."""
    with suppress(Exception):
        return int((read_json(directory.master_json) or {}).get("pid", 0))
    return 0


def send(directory: JobDir, pid: int, number: signal.Signals) -> bool:
    """Signal a process if it is the job's; return whether it was."""
    with suppress(OSError):
        supervisor = directory.record().pid
        # A number may be somebody else's by now; the supervisor's children cannot.
        if supervisor and pid and parent_of(pid) == supervisor:
            os.kill(pid, number)
            return True
    return False
