"""Jobs on disk: one directory per job under ``EPS_HOME``, with a lock that shows whether the job runs.

::

    EPS_HOME (default ~/.eps)
    ├── cache/                    prepared data sets, shared by all jobs
    └── jobs/NAME/
        ├── lock                  locked (flock) while the job runs
        ├── token                 shared secret of the members, for connections outside of sockets/
        ├── tls/                  authority, certificate and key of the job, if it uses TLS
        ├── sockets/              Unix sockets of its processes, if it does not
        ├── job.json              the record: settings, where the job runs, how it ended; see eps.storage.record
        ├── master.json           address of the job master; only while the job runs
        ├── status.json           status of a second ago; only while the job runs
        ├── state/                state of the job master, for its restart
        ├── logs/                 one file per process
        ├── containers/ID/        scratch directory of a container; removed when it ends
        ├── checkpoints/          saved parameters; see eps.storage.checkpoint
        ├── history.jsonl         measurements before the checkpoint from which the job was resumed
        ├── report.json           measurements of the job
        └── model.npz             the trained model

A lock, not a pid, shows that a job runs: the kernel releases it when its last holder ends in any way, while pids are
reused.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from pathlib import Path
from types import TracebackType
from typing import Any

from eps.errors import ConfigError, JobExistsError, JobNotFoundError, StorageError
from eps.storage.atomic import read_json, write_bytes_atomic
from eps.storage.record import SUPERVISOR_KILLED, End, Phase, Record, read_record, write_record
from eps.system.home import DIRECTORY_MODE, eps_home, make_private

#: File name in a job's directory, and in a store that replaces the directory between hosts.
MASTER_FILE = "master.json"
#: End of a job whose supervisor was killed.
LOST = End("killed", SUPERVISOR_KILLED, is_lost=True)
TOKEN_BYTES = 16
#: Disk space that a job reserves while it runs, so that its end can be recorded on a full disk.
RESERVE_BYTES = 256 << 10
#: Tries to lock, a millisecond apart: a process that settles a job holds its lock for a few disk writes.
LOCK_ATTEMPTS = 100
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)


def check_job_name(name: str) -> str:
    """Return ``name`` if it is a valid job name.

    Raises
    ------
    ConfigError
        The name is not 1 to 64 letters, digits, dots, underscores and dashes, or begins with a dot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"job name {name!r}: must be 1 to 64 letters, digits, '.', '_' and '-', and not begin with '.'"
        )
    return name


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, fd: int) -> bool:
    """Return whether the open file ``fd`` is the one that ``path`` names now."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


class JobLock:
    """The lock of a running job, held by an open file.

    Every process that inherits the open file holds the lock.  The client that creates a job hands the file to the
    supervisor, so the lock is never free in between.

    The lock applies to the file that ``path`` names.  A file that was removed or replaced after it was opened is opened
    again.

    Parameters
    ----------
    path : Path
        The job's lock file, created if missing.
    handed_fd : int, optional
        The open file, if another process has locked it for this one.

    Raises
    ------
    JobExistsError
        Another process holds the lock.
    ConfigError
        ``handed_fd`` is another file.
    StorageError
        The file cannot be opened or locked; its directory may be gone.
    """

    def __init__(self, path: Path, handed_fd: int = -1) -> None:
        self.path = path
        self._fd = -1
        try:
            if handed_fd >= 0:
                os.set_inheritable(handed_fd, False)
                if not _is_at(path, handed_fd):
                    raise ConfigError(f"descriptor {handed_fd} is not {path}")
                self._fd = handed_fd
            for _ in range(LOCK_ATTEMPTS):
                if self._fd < 0:
                    self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if not _try_lock(self._fd, fcntl.LOCK_EX):
                    # The holder may be :meth:`JobDir.is_running` or :meth:`JobDir.settle`, for an instant.
                    time.sleep(0.001)
                elif _is_at(path, self._fd):
                    return
                else:
                    self.close()
        except OSError as error:
            self.close()
            raise StorageError(f"{path}: cannot be locked: {error.strerror or error}") from error
        self.close()
        raise JobExistsError(f"job {path.parent.name!r} is running: {path} is locked")

    def fileno(self) -> int:
        """Return the descriptor that holds the lock."""
        return self._fd

    def close(self) -> None:
        """Close this process's hold; other processes with the open file keep the lock.  Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def release(self) -> None:
        """Unlock the file, which no other process was given, and close it.

        A process that another thread forks meanwhile inherits the open file until it runs exec.  Closing alone would
        leave the lock held for that time, and the job would seem to run.
        """
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.close()

    def __enter__(self) -> JobLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _File:
    """The path of a file or folder in a job's directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, job: JobDir, kind: type[JobDir]) -> Path:
        return job.path / self._name


@dataclass(frozen=True)
class JobDir:
    """The directory of one job: the paths of its files, and its record."""

    path: Path

    #: Locked while the job runs.
    lock = _File("lock")
    #: Secret that callers must prove to know.
    token = _File("token")
    #: Certificates; exists only if the job uses TLS.
    tls = _File("tls")
    #: Folder of the user's model code; exists only if the job has one.
    model_code = _File("model-code")
    #: Initial values of all parameters, one flat float32 array; exists only if the job starts from a model.
    initial = _File("init.npy")
    #: Unix sockets of the job's processes on this host; only their user can enter the folder.
    sockets = _File("sockets")
    #: The record of the job; see :mod:`eps.storage.record`.
    job_json = _File("job.json")
    #: Address of the job master; exists only while the job runs.
    master_json = _File(MASTER_FILE)
    #: The job's status of a second ago; exists only while the job runs, since afterwards the record has it.
    status_json = _File("status.json")
    #: Reserved space for the final record on a full disk; exists only while the job runs.
    reserve = _File("reserve")
    #: State of the job master for its restart: a snapshot and the events since.
    state = _File("state")
    #: One file per process.
    logs = _File("logs")
    #: Scratch directories of the running containers.
    containers = _File("containers")
    #: Saved parameters.
    checkpoints = _File("checkpoints")
    #: Measurements before the clock at which a resumed job continues.
    history = _File("history.jsonl")
    #: Measurements of the job.
    report = _File("report.json")
    #: The trained model.
    model = _File("model.npz")

    @property
    def name(self) -> str:
        """The job's name."""
        return self.path.name

    def log(self, name: str) -> Path:
        """Return the log file of a process: a container id, ``master`` or ``supervisor``."""
        return self.logs / f"{name}.log"

    def scratch(self, container_id: str) -> Path:
        """Return the scratch directory of a container."""
        return self.containers / container_id

    def started_s(self) -> float:
        """Return when the job was started or resumed, as Unix time in seconds; 0.0 if unknown."""
        started_s = 0.0
        with suppress(StorageError):
            started_s = self.record().started_s
        return started_s or _changed_s(self.job_json) or _changed_s(self.path)

    def changed_s(self) -> float:
        """Return when an entry of the directory last changed, as Unix time in seconds."""
        return _changed_s(self.path)

    def is_running(self) -> bool:
        """Return whether the job's supervisor lives.

        Raises
        ------
        StorageError
            The lock file cannot be read.
        """
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StorageError(f"{self.lock}: cannot be read: {error.strerror}") from error
        try:
            return not _try_lock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    # ---- the record

    def record(self) -> Record:
        """Return the job's record; an empty one if there is none.

        Raises
        ------
        StorageError
            The record is damaged or cannot be read.
        """
        return read_record(self.job_json)

    def note(self, *, sync: bool = True, yarn: Mapping[str, Any] | None = None, **changes: Any) -> Record:
        """Change fields of the record, ``yarn`` those of its YARN part, and return it; the caller holds the lock.

        Without ``sync`` a power loss may damage the record, which is acceptable before the job has done anything.

        Raises
        ------
        StorageError
            The record cannot be read or written.
        """
        record = self.record().changed(yarn, **changes)
        write_record(self.job_json, record, sync=sync)
        return record

    def begin(self, *, yarn: Mapping[str, Any] | None = None, **changes: Any) -> None:
        """Record that a run of the job begins; further changes as for :meth:`note`.  The caller holds the lock.

        Results of an earlier run are removed; from now on the earlier run cannot be restored.

        Raises
        ------
        StorageError
            The record cannot be read or written.
        """
        record = self.record()
        if record.former is not None:
            _drop_results(self)
        write_record(self.job_json, record.changed(yarn, former=None, **changes))
        with suppress(OSError), self.reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def close(self, end: End) -> Record:
        """Record how the job ended, and remove the files that only a running job has; the caller holds the lock.

        Raises
        ------
        StorageError
            The record cannot be read or written.
        """
        record = _closed(self, self.record(), end)
        # Before the sockets: a client that reads this address must find a socket there.
        with suppress(OSError):
            self.master_json.unlink()
        for folder in (self.containers, self.sockets):
            shutil.rmtree(folder, ignore_errors=True)
        self.reserve.unlink(missing_ok=True)
        write_record(self.job_json, record)
        # The record has these figures now.
        with suppress(OSError):
            self.status_json.unlink()
        return record

    def give_back(self) -> End | None:
        """Undo the preparation of a run that has not begun; the caller holds the lock.

        Returns
        -------
        End or None
            How the job had ended before; None if no run is prepared, and then nothing changes.

        Raises
        ------
        StorageError
            The record cannot be read or written.
        """
        former = self.record().former
        if former is None:
            return None
        write_record(self.job_json, former)
        return former.end

    def settle(self) -> Record:
        """Return the record; if its last writer was killed, first complete it.

        A job whose supervisor was killed has ended.  A run that a client prepared but did not start is undone.  If the
        directory cannot be written, the completed record is returned all the same.

        Raises
        ------
        StorageError
            The record cannot be read.
        """
        # Check the lock first: the record of a job whose lock is free is final.
        is_running, record = self.is_running(), self.record()
        if is_running or not _is_unsettled(record) or not self.job_json.exists():
            return record if is_running else self.seen(record)
        try:
            lock = JobLock(self.lock)
            try:
                # Another process may have settled it meanwhile, or another run may have ended.
                if _is_unsettled(record := self.record()):
                    _ = self.close(LOST) if record.former is None else self.give_back()
                return self.record()
            finally:
                lock.release()
        except JobExistsError:
            return self.record()
        except (OSError, StorageError):
            return self.seen(record)

    def seen(self, record: Record) -> Record:
        """Return a record as :meth:`settle` would complete it, for a job that does not run; write nothing."""
        if not _is_unsettled(record):
            return record
        return _closed(self, record, LOST) if record.former is None else record.former

    def ended(self) -> End | None:
        """Return how the job ended; None while it runs, also if it may run on its cluster without a local process.

        Raises
        ------
        StorageError
            The record cannot be read.
        """
        if self.is_running():
            return self.record().end
        record = self.seen(self.record())
        # Another run may have begun meanwhile.
        return None if record.end is not None and record.end.is_lost and self.is_running() else record.end

    def check_fetched(self) -> None:
        """Refuse a finished job whose model is only on its cluster.

        Raises
        ------
        StorageError
            The model was not fetched yet, or the record cannot be read.
        """
        if is_unfetched(self.record()):
            raise StorageError(
                f"job {self.name!r} has finished, and its model is on its cluster: eps fetch {self.name}"
            )

    def is_on_yarn(self) -> bool:
        """Return whether the job has or had a YARN application; False if its record is damaged."""
        try:
            return self.record().yarn.application is not None
        except StorageError:
            return False

    def make_token(self) -> None:
        """Give the job a new token, readable by its user only.

        Raises
        ------
        StorageError
            The token cannot be written.
        """
        write_bytes_atomic(self.token, secrets.token_hex(TOKEN_BYTES).encode("ascii") + b"\n", sync=False)

    def read_token(self) -> str:
        """Return the job's token.

        Raises
        ------
        StorageError
            The token cannot be read.
        """
        try:
            return self.token.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self.token}: cannot be read: {error}") from error


def is_unfetched(record: Record) -> bool:
    """Return whether a job on YARN has finished and its model is only on its cluster."""
    is_finished = record.end is not None and record.end.state == "finished"
    return is_finished and not record.yarn.is_fetched and bool((record.yarn.application or {}).get("shared"))


def readable(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one if the file is missing or damaged."""
    try:
        return read_json(path) or {}
    except StorageError:
        return {}


def with_figures(job: JobDir, end: End) -> End:
    """Return an end with the figures from the job's files: its report, or else the last status."""
    if report := readable(job.report):
        latest = {name: report[name][-1:] for name in ("history", "membership") if name in report}
        return replace(end, report={**report, **latest})
    return replace(end, last=readable(job.status_json))


def _closed(job: JobDir, record: Record, end: End) -> Record:
    """Return the final record of a job that has ended."""
    report = readable(job.report)
    if end.is_lost and report.get("state"):
        # The job master's report is valid even if the supervisor was killed before it recorded the end.
        state = str(report["state"])
        end = End(state, str(report.get("reason", "")), 0 if state == "finished" else 1)
    return record.ended(with_figures(job, end))


def _drop_results(job: JobDir) -> None:
    """Remove the results of an earlier run."""
    try:
        for path in (job.report, job.model, job.status_json):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{job.path}: old results cannot be removed: {error.strerror or error}") from error


def jobs_dir(home: Path | None = None) -> Path:
    """Return the directory of all jobs."""
    return (home or eps_home()) / "jobs"


def cache_dir() -> Path:
    """Return the directory of prepared data sets, created if missing.

    Raises
    ------
    StorageError
        The directory cannot be created.
    """
    path = eps_home() / "cache"
    _make(path)
    return path


def create_job_dir(
    name: str, home: Path | None = None, *, anew: bool = False, may_replace: bool = True
) -> tuple[JobDir, JobLock]:
    """Create the directory of a new job; a finished job of that name is replaced.

    Parameters
    ----------
    name : str
        See :func:`check_job_name`.
    home : Path, optional
        Default: :func:`~eps.system.home.eps_home`.
    anew : bool
        Also replace a job that stopped early and could be resumed.
    may_replace : bool
        False to replace no job.

    Returns
    -------
    JobDir, JobLock
        The lock is held: the job counts as running until its last holder closes it.  Hand it to
        :meth:`eps.cluster.supervisor.start.WarmSupervisor.give`, then close it.

    Raises
    ------
    ConfigError
        :func:`job_dir` refuses the name.
    JobExistsError
        A job of that name is running, or stopped early, or must not be replaced.
    StorageError
        The directory cannot be created.
    """
    job = job_dir(name, home)
    root = job.path.parent
    _make(root)
    with _taking_turns(root):
        if not may_replace and job.path.exists():
            raise JobExistsError(f"job {name!r} exists: choose another name")
        running = f"job {name!r} is running: end it or choose another name"
        if job.path.is_file():
            with suppress(OSError):
                job.path.unlink()
        _make(job.path)
        try:
            lock = JobLock(job.lock)
        except JobExistsError:
            raise JobExistsError(running) from None
        try:
            why = "" if anew else why_not_replaced(job)
            if why:
                raise JobExistsError(f"job {name!r} {why}, choose another name, or replace it (--anew)")
            _empty(job)
            _make(job.logs)
            _make(job.containers)
            job.make_token()
        except BaseException:
            lock.close()
            raise
        return job, lock


def remove_job(job: JobDir, lock: JobLock | None = None) -> None:
    """Remove a job that has ended, with all its files.

    Parameters
    ----------
    job : JobDir
    lock : JobLock, optional
        The job's lock, if the caller holds it to remove more of the job: then no run can start in between.  Closed
        here.

    Raises
    ------
    JobExistsError
        The job is running.
    StorageError
        The job cannot be removed, or only in part.
    """
    with _taking_turns(job.path.parent):
        with lock or JobLock(job.lock):
            _empty(job)
            try:
                job.lock.unlink()
                job.path.rmdir()
            except OSError as error:
                raise StorageError(f"{job.path}: cannot be removed: {error.strerror or error}") from error


@contextmanager
def _taking_turns(root: Path) -> Iterator[None]:
    """Hold a lock inside the block, so that jobs are created and removed one at a time."""
    try:
        fd = os.open(root / ".create.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(f"{root}: cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_unsettled(record: Record) -> bool:
    """Return whether the record's last writer was killed, given that the job's lock is free."""
    return record.phase is not Phase.ENDED and not record.is_elsewhere


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _empty(job: JobDir) -> None:
    """Remove all files of a finished job except its lock, which the caller keeps holding.

    Replacing the lock file would let a process that had opened the old one hold a lock too, for example to resume the
    job.  Files go before folders, which take longer: a job that is half removed must not be resumed.
    """
    try:
        job.path.chmod(DIRECTORY_MODE)
        left = sorted(path for path in job.path.iterdir() if path != job.lock)
        trees = [path for path in left if path.is_dir() and not path.is_symlink()]
        for path in left:
            if path not in trees:
                path.unlink()
        for path in trees:
            shutil.rmtree(path)
    except OSError as error:
        raise StorageError(f"{job.path}: the files of the ended job cannot be removed: {error}") from error


def job_dir(name: str, home: Path | None = None) -> JobDir:
    """Return the directory of a job, which may not exist.

    Raises
    ------
    ConfigError
        The name is invalid, or a symbolic link has that name.
    """
    job = JobDir(jobs_dir(home) / check_job_name(name))
    if job.path.is_symlink():
        raise ConfigError(f"job {name!r} is {job.path}, a symbolic link, but must be a directory: rm {job.path}")
    return job


def find_job(name: str, home: Path | None = None) -> JobDir:
    """Return the directory of an existing job.

    Raises
    ------
    ConfigError
        :func:`job_dir` refuses the name.
    JobNotFoundError
        There is no such job.
    """
    if not (job := job_dir(name, home)).path.is_dir():
        raise JobNotFoundError(f"no job {name!r} in {job.path.parent}")
    return job


def list_jobs(home: Path | None = None) -> list[JobDir]:
    """Return all jobs, running or ended, by name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        named = [e for e in jobs_dir(home).iterdir() if _NAME.fullmatch(e.name)]
        return sorted((JobDir(e) for e in named if e.is_dir() and not e.is_symlink()), key=lambda job: job.name)
    return []


def _make(path: Path) -> None:
    try:
        make_private(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be created: {error.strerror}") from error


class KeepReason(StrEnum):
    """Reasons to keep a job that does not run."""

    #: Its model is only on its cluster.
    UNFETCHED = auto()
    RESUMABLE = auto()
    #: Unknown: a file, or the disk, is damaged.
    UNREADABLE = auto()


def keep_reason(job: JobDir) -> KeepReason | None:
    """Return why to keep a job that does not run; None if only its results would be lost."""
    try:
        record = job.seen(job.record())
    except StorageError:
        return KeepReason.UNREADABLE
    if is_unfetched(record):
        return KeepReason.UNFETCHED
    if record.runtime is None or (record.end is not None and record.end.state == "finished"):
        return None
    return KeepReason.RESUMABLE


def can_be_resumed(job: JobDir) -> bool:
    """Return whether ``eps resume`` can restart a job that does not run, from a checkpoint or its seed."""
    return keep_reason(job) is KeepReason.RESUMABLE


def why_not_replaced(job: JobDir) -> str:
    """Return why a job that does not run must not be replaced, and what to do; empty if it may be."""
    match keep_reason(job):
        case KeepReason.UNFETCHED:
            return f"has results that are only on its cluster: fetch them (eps fetch {job.name})"
        case KeepReason.RESUMABLE:
            return f"stopped before its end: continue it (eps resume {job.name})"
        case KeepReason.UNREADABLE:
            return f"may have stopped before its end, but its files are damaged: see {job.path}"
        case None:
            return ""
