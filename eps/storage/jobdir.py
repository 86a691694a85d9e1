"""Where jobs live on disk: ``EPS_HOME``, one directory per job, and the lock that says whether it runs.

::

    EPS_HOME (default ~/.eps)
    ├── cache/                    prepared data sets, shared by all jobs
    └── jobs/NAME/
        ├── lock                  locked (flock) for as long as the job runs
        ├── token                 what members prove to each other on sockets outside of sockets/
        ├── tls/                  authority, certificate and key of the job, where it uses TLS
        ├── sockets/              what its processes listen on, where it does not
        ├── job.json              the record: what was asked, where the job runs, how it ended; see eps.storage.record
        ├── master.json           where the job master listens; there only while the job runs, as is
        ├── status.json           how far the job was a second ago
        ├── journal.jsonl         what the job master decided
        ├── state/                what the job master needs to be started again
        ├── logs/                 one file per process
        ├── containers/ID/        scratch space of a container; gone when it ends
        ├── checkpoints/          the parameters at some clocks; see eps.storage.checkpoint
        ├── history.jsonl         of a job that was resumed: what was measured before
        ├── report.json           what the job measured
        └── model.npz             the trained model

A lock, and not a pid, says that a job runs: the kernel drops it with its last holder, however that ends, and pids are
used again.
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
from eps.storage.record import NO_WORD, End, Phase, Record, read_record, write_record
from eps.system.home import DIRECTORY_MODE, eps_home, make_private

#: In a job's directory, and in a store that takes its place between hosts.
MASTER_FILE = "master.json"
#: Of a job whose supervisor was killed.
LOST = End("killed", NO_WORD, is_lost=True)
TOKEN_BYTES = 16
#: Room on the disk that a job keeps while it runs, so that how it ended can be noted where the disk is full.
RESERVE_BYTES = 256 << 10
#: A millisecond lies between two of them: a process that settles a job has its lock for about as long as a disk takes.
LOCK_ATTEMPTS = 100
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)


def check_job_name(name: str) -> str:
    """Return ``name`` if a job may have it.

    Raises
    ------
    ConfigError
        It is not 1 to 64 letters, digits, dots, underscores and dashes, or begins with a dot.
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

    Every process that has inherited the open file holds it, so the client that creates a job hands it to the supervisor
    with no moment between in which nobody has it.

    It is the file at ``path`` that is locked: one that was removed or replaced after it was opened says nothing, and is
    opened again.

    Parameters
    ----------
    path : Path
        The job's lock file, created if need be.
    handed_fd : int, optional
        The open file, where another process has locked it for this one.

    Raises
    ------
    JobExistsError
        Somebody else holds it.
    ConfigError
        ``handed_fd`` is another file.
    StorageError
        The file cannot be opened or locked; its directory may have gone.
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
                    # It may be :meth:`JobDir.is_running` or :meth:`JobDir.settle` that holds it, for an instant.
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
        """Close this process's hold; the lock lives on where the file was handed over.  Harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def release(self) -> None:
        """Unlock the file, which was handed to no process, and close it.

        A process that another thread forks meanwhile has the open file until it runs its program.  If this only closed
        it, it would be locked for so long, and the job would seem to run.
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
    """A file, or a folder, of a job's directory, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, job: JobDir, kind: type[JobDir]) -> Path:
        return job.path / self._name


@dataclass(frozen=True)
class JobDir:
    """The directory of one job: where each file of it is, and its record."""

    path: Path

    #: Locked while the job runs.
    lock = _File("lock")
    #: What a caller must prove to know.
    token = _File("token")
    #: Certificates; there only where the job uses TLS.
    tls = _File("tls")
    #: Folder of the file of the user's model; there only where the job has one.
    model_code = _File("model-code")
    #: The start of all parameters, one flat float32 array; there only where the job begins with a model.
    initial = _File("init.npy")
    #: Unix sockets of the job's processes on this host, in a folder that only their user can enter.
    sockets = _File("sockets")
    #: The record of the job; see :mod:`eps.storage.record`.
    job_json = _File("job.json")
    #: Where the job master listens; there only while the job runs.
    master_json = _File(MASTER_FILE)
    #: The job's status of a second ago; there only while the job runs: at its end the record has it.
    status_json = _File("status.json")
    #: Room for the record of the end where the disk is full by then; there only while the job runs.
    reserve = _File("reserve")
    #: What the job master decided.
    journal = _File("journal.jsonl")
    #: What the job master needs to be started again: its state and the events since.
    state = _File("state")
    #: One file per process.
    logs = _File("logs")
    #: Scratch space of the containers that run.
    containers = _File("containers")
    #: The parameters at some clocks.
    checkpoints = _File("checkpoints")
    #: What was measured before the clock that a resumed job goes on with.
    history = _File("history.jsonl")
    #: What the job measured.
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
        """Return when the job was started, or resumed, in seconds of Unix time; 0.0 where that cannot be known."""
        started_s = 0.0
        with suppress(StorageError):
            started_s = self.record().started_s
        return started_s or _changed_s(self.job_json) or _changed_s(self.path)

    def changed_s(self) -> float:
        """Return when a file of its directory came, went or was replaced last, in seconds of Unix time."""
        return _changed_s(self.path)

    def is_running(self) -> bool:
        """Return whether the job's supervisor lives.

        Raises
        ------
        StorageError
            The lock cannot be looked at.
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

    # ---- its record

    def record(self) -> Record:
        """Return the job's record; one of which nothing is known where there is none.

        Raises
        ------
        StorageError
            It is damaged, or cannot be read.
        """
        return read_record(self.job_json)

    def note(self, *, sync: bool = True, yarn: Mapping[str, Any] | None = None, **changes: Any) -> Record:
        """Change fields of the record, and ``yarn`` those of its part on YARN; return it.  The caller holds the lock.

        Without ``sync`` a loss of power may damage the record: of a job that has done nothing yet.

        Raises
        ------
        StorageError
            The record cannot be read, or not be written.
        """
        record = self.record().changed(yarn, **changes)
        write_record(self.job_json, record, sync=sync)
        return record

    def begin(self, *, yarn: Mapping[str, Any] | None = None, **changes: Any) -> None:
        """Note that a run of the job has begun, with other changes as of :meth:`note`; the caller holds the job's lock.

        What an earlier run has brought goes: from now on nothing leads back to it.

        Raises
        ------
        StorageError
            The record cannot be read, or not be written.
        """
        record = self.record()
        if record.former is not None:
            _drop_results(self)
        write_record(self.job_json, record.changed(yarn, former=None, **changes))
        with suppress(OSError), self.reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def close(self, end: End) -> Record:
        """Note how the job ended, and remove what only a running job has; the caller holds the job's lock.

        Raises
        ------
        StorageError
            The record cannot be read, or not be written.
        """
        record = _closed(self, self.record(), end)
        # Before the sockets: a client that finds where the master listened finds a socket there.
        with suppress(OSError):
            self.master_json.unlink()
        for folder in (self.containers, self.sockets):
            shutil.rmtree(folder, ignore_errors=True)
        self.reserve.unlink(missing_ok=True)
        write_record(self.job_json, record)
        # The figures are in the record by now.
        with suppress(OSError):
            self.status_json.unlink()
        return record

    def give_back(self) -> End | None:
        """Make the job what it was before its next run was prepared, which has not begun; the caller holds its lock.

        Returns
        -------
        End or None
            How it had ended; None where no next run is prepared: then nothing changes.

        Raises
        ------
        StorageError
            The record cannot be read, or not be written.
        """
        former = self.record().former
        if former is None:
            return None
        write_record(self.job_json, former)
        return former.end

    def settle(self) -> Record:
        """Return the record, after its last writer was killed as that process would have left it.

        A job whose supervisor was killed has ended; one that a client prepared anew, and did not start, is what it was
        before.  Where the directory cannot be written the record is returned in that way all the same.

        Raises
        ------
        StorageError
            It cannot be read.
        """
        # The lock first: what is read of a job whose lock is free is final.
        is_running, record = self.is_running(), self.record()
        if is_running or not _is_unsettled(record) or not self.job_json.exists():
            return record if is_running else self.seen(record)
        try:
            lock = JobLock(self.lock)
            try:
                # Another process may have settled it by now, or another run of it ended.
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
        """Return a record as :meth:`settle` leaves it, of a job that does not run; writes nothing."""
        if not _is_unsettled(record):
            return record
        return _closed(self, record, LOST) if record.former is None else record.former

    def ended(self) -> End | None:
        """Return how the job ended; None while it runs, and where it may run on its cluster without a process here.

        Raises
        ------
        StorageError
            Its record cannot be read.
        """
        if self.is_running():
            return self.record().end
        record = self.seen(self.record())
        # Another run of it may have begun meanwhile.
        return None if record.end is not None and record.end.is_lost and self.is_running() else record.end

    def check_fetched(self) -> None:
        """Refuse a job that has finished while its model is on its cluster only.

        Raises
        ------
        StorageError
            It is; or the record cannot be read.
        """
        if is_unfetched(self.record()):
            raise StorageError(
                f"job {self.name!r} has finished, and its model is on its cluster: eps fetch {self.name}"
            )

    def is_on_yarn(self) -> bool:
        """Return whether it has, or had, an application on YARN; also where its record is damaged: False then."""
        try:
            return self.record().yarn.application is not None
        except StorageError:
            return False

    def make_token(self) -> None:
        """Give the job another token, which its user alone can read.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        write_bytes_atomic(self.token, secrets.token_hex(TOKEN_BYTES).encode("ascii") + b"\n", sync=False)

    def read_token(self) -> str:
        """Return the job's token.

        Raises
        ------
        StorageError
            It cannot be read.
        """
        try:
            return self.token.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self.token}: cannot be read: {error}") from error


def is_unfetched(record: Record) -> bool:
    """Return whether a job on YARN has finished, and its model is on its cluster only."""
    is_finished = record.end is not None and record.end.state == "finished"
    return is_finished and not record.yarn.is_fetched and bool((record.yarn.application or {}).get("shared"))


def readable(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one where the file is missing or damaged."""
    try:
        return read_json(path) or {}
    except StorageError:
        return {}


def with_figures(job: JobDir, end: End) -> End:
    """Return an end with the figures that are in the job's files: its report, or what its master wrote last."""
    if report := readable(job.report):
        latest = {name: report[name][-1:] for name in ("history", "membership") if name in report}
        return replace(end, report={**report, **latest})
    return replace(end, last=readable(job.status_json))


def _closed(job: JobDir, record: Record, end: End) -> Record:
    """Return the record of a job that has ended, with all that is said of it from now on."""
    report = readable(job.report)
    if end.is_lost and report.get("state"):
        # The job master's word, where its supervisor was killed before it had its say.
        state = str(report["state"])
        end = End(state, str(report.get("reason", "")), 0 if state == "finished" else 1)
    return record.ended(with_figures(job, end))


def _drop_results(job: JobDir) -> None:
    """Remove what an earlier run of a job has brought."""
    try:
        for path in (job.report, job.model, job.status_json):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{job.path}: cannot be made ready: {error.strerror or error}") from error


def jobs_dir(home: Path | None = None) -> Path:
    """Return the directory of all jobs."""
    return (home or eps_home()) / "jobs"


def cache_dir(home: Path | None = None) -> Path:
    """Return the directory of prepared data sets, created if need be.

    Raises
    ------
    StorageError
        It cannot be created.
    """
    path = (home or eps_home()) / "cache"
    _make(path)
    return path


def create_job_dir(name: str, home: Path | None = None, *, anew: bool = False) -> tuple[JobDir, JobLock]:
    """Make the directory of a new job, in the place of a finished one of that name.

    Parameters
    ----------
    name : str
        See :func:`check_job_name`.
    home : Path, optional
        Default: :func:`~eps.system.home.eps_home`.
    anew : bool
        Take the place of one as well that has stopped before its end and could be resumed.

    Returns
    -------
    JobDir, JobLock
        The lock is held: the job counts as running until its last holder closes it.  Hand it to
        :func:`eps.cluster.supervisor.start.start_supervisor`, then close it.

    Raises
    ------
    ConfigError
        As of :func:`job_dir`.
    JobExistsError
        A job of that name is running, or has stopped before its end.
    StorageError
        The directory cannot be made.
    """
    job = job_dir(name, home)
    root = job.path.parent
    _make(root)
    with _taking_turns(root):
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
                raise JobExistsError(f"job {name!r} {why}, choose another name, or begin again in its place (--anew)")
            _empty(job)
            _make(job.logs)
            _make(job.containers)
            job.make_token()
        except BaseException:
            lock.close()
            raise
        return job, lock


def remove_job(job: JobDir, lock: JobLock | None = None) -> None:
    """Remove a job that has ended, with all that is kept of it.

    Parameters
    ----------
    job : JobDir
    lock : JobLock, optional
        The job's, where the caller holds it for what else has to go: nobody starts the job again in between.  Closed.

    Raises
    ------
    JobExistsError
        It is running.
    StorageError
        It cannot be removed, or only in part.
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
    """Let nobody else make or remove a job, so that nobody removes what somebody else has just made."""
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
    """Return whether the last writer of a record was killed, where the lock of its job is free."""
    return record.phase is not Phase.ENDED and not record.is_elsewhere


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _empty(job: JobDir) -> None:
    """Remove all that a finished job left, except its lock, which the caller holds and goes on to hold.

    Were the lock file replaced, somebody who had opened the old one could hold that as well: to resume the job, say.
    What says that there is a job goes before what takes long, so that nobody resumes one that was half removed.
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
        raise StorageError(f"{job.path}: the finished job cannot be replaced: {error}") from error


def job_dir(name: str, home: Path | None = None) -> JobDir:
    """Return where the directory of a job of that name is, or would be.

    Raises
    ------
    ConfigError
        No job can have that name, or a symbolic link is there: what it leads to is no directory of a job.
    """
    job = JobDir(jobs_dir(home) / check_job_name(name))
    if job.path.is_symlink():
        raise ConfigError(f"job {name!r} is {job.path}, a symbolic link, but must be a directory: rm {job.path}")
    return job


def find_job(name: str, home: Path | None = None) -> JobDir:
    """Return the directory of a job that runs or has run.

    Raises
    ------
    ConfigError
        As of :func:`job_dir`.
    JobNotFoundError
        There is none: the message has what H-scheduler calls its job of that name.
    """
    if not (job := job_dir(name, home)).path.is_dir():
        # LiveScheduler.name_of makes them.
        names = [j.name for j in list_jobs(home) if re.fullmatch(f"sweep-[0-9a-f]{{6}}-{re.escape(name)}", j.name)]
        told = f": here H-scheduler's job of that name is called {' or '.join(names)}" if names else ""
        raise JobNotFoundError(f"no job {name!r} in {job.path.parent}{told}")
    return job


def list_jobs(home: Path | None = None) -> list[JobDir]:
    """Return every job that runs or has run, by name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        named = [e for e in jobs_dir(home).iterdir() if _NAME.fullmatch(e.name)]
        return sorted((JobDir(e) for e in named if e.is_dir() and not e.is_symlink()), key=lambda job: job.name)
    return []


def _make(path: Path) -> None:
    try:
        make_private(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be made: {error.strerror}") from error


class Worth(StrEnum):
    """What a job that does not run is worth keeping for."""

    #: Its model is on its cluster only.
    UNFETCHED = auto()
    RESUMABLE = auto()
    #: Nobody can tell: a file that says so is damaged, or the disk is.
    UNREADABLE = auto()


def worth_of(job: JobDir) -> Worth | None:
    """Return what a job that does not run is worth keeping for; None where nothing is lost with it but its results."""
    try:
        record = job.seen(job.record())
    except StorageError:
        return Worth.UNREADABLE
    if is_unfetched(record):
        return Worth.UNFETCHED
    if record.runtime is None or (record.end is not None and record.end.state == "finished"):
        return None
    return Worth.RESUMABLE


def can_be_resumed(job: JobDir) -> bool:
    """Return whether ``eps resume`` starts a job again that does not run: from a checkpoint, or from its seed."""
    return worth_of(job) is Worth.RESUMABLE


def why_not_replaced(job: JobDir) -> str:
    """Return why no other job takes the place of one that does not run, and what to do; empty where one may."""
    match worth_of(job):
        case Worth.UNFETCHED:
            return f"left results on its cluster: fetch them (eps fetch {job.name})"
        case Worth.RESUMABLE:
            return f"stopped before its end: go on with it (eps resume {job.name})"
        case Worth.UNREADABLE:
            return f"may have stopped before its end, but its files are damaged: see {job.path}"
        case None:
            return ""
