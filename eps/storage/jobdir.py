"""Where jobs live on disk: ``EPS_HOME``, one directory per job, and the lock that says whether it runs.  L2.

::

    EPS_HOME (default ~/.eps)
    ├── cache/                    prepared data sets, shared by all jobs
    └── jobs/NAME/
        ├── lock                  locked (flock) for as long as the job runs
        ├── token                 what members prove to each other on sockets outside of sockets/
        ├── tls/                  authority, certificate and key of the job, where it uses TLS
        ├── sockets/              what its processes listen on, where it does not
        ├── job.json              the job's settings
        ├── results.json          {"report", "export", "detached"}: where these are to go, of eps.spec.results
        ├── supervisor.json       {"pid"}
        ├── master.json           where the job master listens
        ├── yarn.json             the application of a job that runs on YARN
        ├── claim.json            where checkpoints are on the cluster, if EPS chose the place; see eps.storage.claims
        ├── waiting.json          {"reason", ...}: why its master does not listen, or what is fetched; see eps.job.ended
        ├── ending.json           {"reason", ...}: a job on YARN is to end; see eps.job.yarn.ending
        ├── shared.json           {"location"}: the store that takes the place of this directory between hosts
        ├── status.json           how far the job was a second ago
        ├── journal.jsonl         what the job master decided
        ├── state/                what the job master needs to be started again
        ├── logs/                 one file per process
        ├── containers/ID/        scratch space of a container; gone when it ends
        ├── checkpoints/          the parameters at some clocks; see eps.storage.checkpoint
        ├── history.jsonl         of a job that was resumed: what was measured before
        ├── before/               how it ended and what it brought, for the moment in which another run of it begins
        ├── report.json           what the job measured
        ├── model.npz             the trained model
        └── ended.json            how it ended: {"state", "exit_code", "reason", "time_s"}; of a job that YARN does not
                                  know any more, and that may run, {"is_forgotten"}; of one whose results are on its
                                  cluster only {"unfetched"}, see JobDir.unfetched

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
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from types import TracebackType
from typing import Any

from eps.errors import ConfigError, JobExistsError, JobNotFoundError, StorageError
from eps.storage.atomic import read_json, write_bytes_atomic
from eps.system.home import DIRECTORY_MODE, eps_home, make_private

#: In a job's directory, and in a store that takes its place between hosts.
MASTER_FILE = "master.json"
TOKEN_BYTES = 16
LOCK_ATTEMPTS = 20
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
                    # It may be :meth:`JobDir.is_running` that holds it, for an instant.
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

    def __enter__(self) -> JobLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class JobDir:
    """The directory of one job: where each file of it is."""

    path: Path

    @property
    def name(self) -> str:
        """The job's name."""
        return self.path.name

    @property
    def lock(self) -> Path:
        """Locked while the job runs."""
        return self.path / "lock"

    @property
    def token(self) -> Path:
        """What a caller must prove to know."""
        return self.path / "token"

    @property
    def tls(self) -> Path:
        """Certificates; there only where the job uses TLS."""
        return self.path / "tls"

    @property
    def model_code(self) -> Path:
        """Folder of the file of the user's model; there only where the job has one."""
        return self.path / "model-code"

    @property
    def initial(self) -> Path:
        """The start of all parameters, one flat float32 array; there only where the job begins with a model."""
        return self.path / "init.npy"

    @property
    def sockets(self) -> Path:
        """Unix sockets of the job's processes on this host, in a folder that only their user can enter."""
        return self.path / "sockets"

    @property
    def job_json(self) -> Path:
        """The job's settings."""
        return self.path / "job.json"

    @property
    def results_json(self) -> Path:
        """Where its report and model are to go; see :mod:`eps.spec.results`."""
        return self.path / "results.json"

    @property
    def supervisor_json(self) -> Path:
        """The supervisor's pid."""
        return self.path / "supervisor.json"

    @property
    def master_json(self) -> Path:
        """Where the job master listens."""
        return self.path / MASTER_FILE

    @property
    def yarn_json(self) -> Path:
        """The application of a job on YARN; see :class:`eps.cluster.yarn.application.Application`."""
        return self.path / "yarn.json"

    @property
    def claim_json(self) -> Path:
        """Folder of its checkpoints on a cluster, where EPS chose it; see :class:`eps.storage.claims.Claim`."""
        return self.path / "claim.json"

    @property
    def waiting_json(self) -> Path:
        """Why the job's master does not listen; there only while it, or what the job has left, is waited for."""
        return self.path / "waiting.json"

    @property
    def ending_json(self) -> Path:
        """That a job on YARN is to end, until it has; see :mod:`eps.job.yarn.ending`."""
        return self.path / "ending.json"

    @property
    def shared_json(self) -> Path:
        """Where processes on other hosts find what this directory tells those of one host; there only if it matters."""
        return self.path / "shared.json"

    @property
    def broker_json(self) -> Path:
        """Of a job that shares an application: where it asks for containers, and the host by which they reach it."""
        return self.path / "broker.json"

    @property
    def journal(self) -> Path:
        """What the job master decided."""
        return self.path / "journal.jsonl"

    @property
    def state(self) -> Path:
        """What the job master needs to be started again: its state and the events since."""
        return self.path / "state"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.path / "logs"

    @property
    def containers(self) -> Path:
        """Scratch space of the containers that run."""
        return self.path / "containers"

    @property
    def checkpoints(self) -> Path:
        """The parameters at some clocks."""
        return self.path / "checkpoints"

    @property
    def history(self) -> Path:
        """What was measured before the clock that a resumed job goes on with."""
        return self.path / "history.jsonl"

    @property
    def report(self) -> Path:
        """What the job measured."""
        return self.path / "report.json"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / "model.npz"

    @property
    def status_json(self) -> Path:
        """The job's status of a second ago, for when nobody can be asked any more."""
        return self.path / "status.json"

    @property
    def ended_json(self) -> Path:
        """How the job ended."""
        return self.path / "ended.json"

    def log(self, name: str) -> Path:
        """Return the log file of a process: a container id, ``master`` or ``supervisor``."""
        return self.logs / f"{name}.log"

    def scratch(self, container_id: str) -> Path:
        """Return the scratch directory of a container."""
        return self.containers / container_id

    def started_s(self) -> float:
        """Return when the job was started, or resumed, in seconds of Unix time; 0.0 where that cannot be known."""
        return _changed_s(self.job_json) or _changed_s(self.path)

    def changed_s(self) -> float:
        """Return when a file of its directory came, went or was replaced last, in seconds of Unix time."""
        return _changed_s(self.path)

    def size_bytes(self) -> int:
        """Return how much its files hold; what goes meanwhile counts as nothing."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total

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

    def ended(self) -> Mapping[str, Any] | None:
        """Return how the job ended; None while it runs, and where its supervisor was killed outright."""
        return read_json(self.ended_json)

    def check_fetched(self) -> None:
        """Refuse a job that has finished while what it has left is on its cluster only.

        Raises
        ------
        StorageError
            It could not be fetched: the message says why, and what to do.
        """
        ended = self.ended() or {}
        if ended.get("state") == "finished" and not self.is_settled():
            raise StorageError(f"job {self.name!r}: {ended['reason']}")

    def unfetched(self) -> str | None:
        """Return why a job on YARN ended whose results are on its cluster only; None of every other one.

        Raises
        ------
        StorageError
            The note cannot be read.
        """
        found = (self.ended() or {}).get("unfetched")
        return None if found is None else str(found)

    def is_forgotten(self) -> bool:
        """Return whether a job counts as ended only because YARN did not know its application any more: it may run.

        Raises
        ------
        StorageError
            How it ended cannot be read.
        """
        return bool((self.ended() or {}).get("is_forgotten"))

    def is_settled(self) -> bool:
        """Return whether nobody has to look after it any more: it has ended, and what it has left is here.

        Raises
        ------
        StorageError
            How it ended cannot be read.
        """
        return self.ended() is not None and self.unfetched() is None

    def runs_on(self) -> str:
        """Return what its settings have it run on: ``local``, ``yarn``; empty where it has none yet.

        Raises
        ------
        StorageError
            They cannot be read.
        """
        return str((read_json(self.job_json) or {}).get("spec", {}).get("on", ""))

    def outcome(self) -> Mapping[str, Any]:
        """Return ``state`` and ``reason`` of the end; empty where nobody left a word of it.

        The supervisor's word, or where it was ended before it had its say, the job master's: the report.

        Raises
        ------
        StorageError
            One of them cannot be read.
        """
        return self.ended() or read_json(self.report) or {}

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

    #: Its results are on its cluster only; see :meth:`JobDir.unfetched`.
    UNFETCHED = auto()
    RESUMABLE = auto()
    #: Nobody can tell: a file that says so is damaged, or the disk is.
    UNREADABLE = auto()


def worth_of(job: JobDir) -> Worth | None:
    """Return what a job that does not run is worth keeping for; None where nothing is lost with it but its results."""
    try:
        if job.unfetched() is not None:
            return Worth.UNFETCHED
        if job.outcome().get("state") == "finished":
            return None
        return None if read_json(job.job_json) is None else Worth.RESUMABLE
    except StorageError:
        return Worth.UNREADABLE


def can_be_resumed(job: JobDir) -> bool:
    """Return whether ``eps resume`` starts a job again that does not run: from a checkpoint, or from its seed."""
    return worth_of(job) is Worth.RESUMABLE


def why_not_replaced(job: JobDir) -> str:
    """Return why no other job takes the place of one that does not run, and what to do; empty where one may."""
    match worth_of(job):
        case Worth.UNFETCHED:
            return f"left results on its cluster: fetch them (eps status {job.name})"
        case Worth.RESUMABLE:
            return f"stopped before its end: go on with it (eps resume {job.name})"
        case Worth.UNREADABLE:
            return f"may have stopped before its end, but its files are damaged: see {job.path}"
        case None:
            return ""
