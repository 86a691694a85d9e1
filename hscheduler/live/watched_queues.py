"""Which queues of YARN a process makes room in: two in one queue would both plan, and take twice what is wanted.

A locked file for each queue under ``EPS_HOME/yarn-queues`` stands for it, as a job's lock for the job: it is free as
soon as the process ends, however it ends.  What has another ``EPS_HOME`` is not seen: other users', other machines'.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from eps.errors import ConfigError, JobExistsError, StorageError
from eps.storage.jobdir import JobLock
from eps.system.home import DIRECTORY_MODE, eps_home, make_home


@contextmanager
def watching(cluster: Sequence[str], queues: Sequence[str]) -> Iterator[None]:
    """Be the only process that makes room in some queues while this lasts.

    Parameters
    ----------
    cluster : sequence of str
        Where its ResourceManagers are.
    queues : sequence of str
        Names, or whole paths: a queue goes by its last name, as its applications do.

    Raises
    ------
    ConfigError
        Another process does so; the message names it.
    StorageError
        The lock cannot be taken.
    """
    make_home()
    names = {queue.rpartition(".")[2]: queue for queue in queues}
    with ExitStack() as stack:
        for name, queue in sorted(names.items()):
            path = _lock_of(cluster, name)
            try:
                lock = stack.enter_context(JobLock(path))
            except JobExistsError:
                told = f"{_holder(path)} makes room in it already (hscheduler yarn-queue): end that first"
                raise ConfigError(f"queue is {queue!r}, but {told}") from None
            note = {"pid": os.getpid(), "host": socket.gethostname(), "queue": name, "cluster": list(cluster)}
            _write(lock, note)
        yield


def _lock_of(cluster: Sequence[str], name: str) -> Path:
    folder = eps_home() / "yarn-queues"
    try:
        folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be made: {error.strerror or error}") from error
    # The names of queues and hosts may have characters that those of files have not.
    known = json.dumps([sorted(address.lower() for address in cluster), name])
    return folder / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.lock"


def _write(lock: JobLock, note: dict[str, object]) -> None:
    """Say in a lock's file whose it is; that is for people, and a full disk keeps nobody from watching."""
    with suppress(OSError):
        os.ftruncate(lock.fileno(), 0)
        os.pwrite(lock.fileno(), json.dumps(note).encode() + b"\n", 0)


def _holder(path: Path) -> str:
    """Return who holds a lock, in words."""
    try:
        found = json.loads(path.read_bytes())
        return f"process {int(found['pid'])} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        # It has just taken it.
        return "another process"
