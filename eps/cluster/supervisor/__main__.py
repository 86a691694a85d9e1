"""``python -m eps.cluster.supervisor``: run the supervisor of one job; its exit code is the job's.

It imports first and receives the job later, over the socket ``--handoff-fd``.  With ``--fork-fd`` it forks such
supervisors (:mod:`eps.cluster.supervisor.fork_server`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal as signals
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eps.cluster.supervisor.fork_server import serve
from eps.cluster.supervisor.loop import STOP_SIGNALS, Supervisor, clean_up
from eps.cluster.supervisor.process import (
    PRELOAD,
    SUPERVISOR,
    buffer_lines,
    load_entry,
    num_threads,
    preload,
    prepare_environment,
)
from eps.cluster.supervisor.state import GRACE_S, MEMBER_TIMEOUT_S, End
from eps.errors import EpsError
from eps.storage.jobdir import JobDir, JobLock
from eps.storage.record import Phase

#: Exit code of a supervisor that could not start.
CANNOT_START = 2


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's values."""
    parser = argparse.ArgumentParser(
        prog="python -m eps.cluster.supervisor", description="Own the processes of one job."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--handoff-fd", type=int, metavar="N", help="socket that sends the job later")
    source.add_argument("--fork-fd", type=int, metavar="N", help="socket of requests to fork a supervisor")
    parser.add_argument("--preload", metavar="MODULES", default=",".join(PRELOAD), help="separated by commas")
    parser.add_argument("--entry", action="append", default=[], metavar="ROLE=MODULE:FUNCTION", help="entry of a role")
    parser.add_argument(
        "--grace-s", type=float, metavar="S", default=GRACE_S, help="from the signal that ends a process to SIGKILL"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the supervisor and return its exit code."""
    arguments = parse_arguments(argv)
    prepare_environment(os.environ)
    buffer_lines()
    entry_points = dict(text.split("=", 1) for text in arguments.entry)
    modules = [name for name in arguments.preload.split(",") if name]
    modules += sorted({entry.partition(":")[0] for entry in entry_points.values()})
    failures = preload(modules)
    handoff_fd = arguments.handoff_fd if arguments.fork_fd is None else serve(arguments.fork_fd)
    if handoff_fd is None or (taken := _take_job(handoff_fd)) is None:
        return 0
    job, lock_fd, tied_fd = taken
    try:
        # Never closed: it is held until this process ends.
        lock = JobLock(job.lock, lock_fd)
        if tied_fd is not None:
            os.set_inheritable(tied_fd, False)
        job.begin(phase=Phase.RUNNING, pid=os.getpid(), end=None)
        runtime = job.record().runtime or {}
    except (EpsError, OSError) as error:
        print(f"eps.cluster.supervisor: {error}", file=sys.stderr)
        return CANNOT_START
    signals.pthread_sigmask(signals.SIG_BLOCK, STOP_SIGNALS)
    for failure in failures:
        print(f"eps.cluster.supervisor: {failure}", file=sys.stderr)
    prepare = entry_points.pop(SUPERVISOR, "")
    if prepare:
        load_entry(prepare)(runtime)
    if num_threads() > 1:
        print(
            f"eps.cluster.supervisor: {num_threads()} threads after the imports, but must be 1: a lock that another "
            "thread holds during a fork stays locked in the child",
            file=sys.stderr,
        )
    try:
        return Supervisor(job, entry_points, tied_fd, arguments.grace_s, _member_timeout_s(runtime)).run()
    except Exception as error:
        # The kernel kills the remaining processes when this one ends.
        traceback.print_exc()
        clean_up(job, End("failed", 1, f"the supervisor failed: {type(error).__name__}: {error}"))
        return 1
    finally:
        lock.close()


def _take_job(handoff_fd: int) -> tuple[JobDir, int, int | None] | None:
    """Wait for the job; return its directory and the descriptors of its lock and of the pipe that ties it.

    Return None if the starting process has no job for this supervisor.  A job without the pipe is detached.
    """
    with socket.socket(fileno=handoff_fd) as handoff:
        content, descriptors, _, _ = socket.recv_fds(handoff, 64 * 1024, 2)
    if not content:
        return None
    job = JobDir(Path(json.loads(content)["job_dir"]))
    lock_fd, *tied = descriptors
    log = os.open(job.log("supervisor"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return job, lock_fd, tied[0] if tied else None


def _member_timeout_s(runtime: Mapping[str, Any]) -> float:
    """Return the setting, which was validated when the job was created."""
    return float(runtime.get("spec", {}).get("member_timeout_s", MEMBER_TIMEOUT_S))


if __name__ == "__main__":
    sys.exit(main())
