"""What the containers of a job on YARN wrote, brought into the job's directory.

``yarn logs`` knows where they are: at the NodeManagers while the application runs, in the cluster's file system after
it (log aggregation).  So ``eps logs`` shows a job on YARN as it shows a local one.  Whoever follows the logs of a job
that runs looks again and again, by the nodes' web servers (:mod:`eps.job.yarn.live_logs`).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO

from eps.cluster.devcluster.jars import find_java
from eps.cluster.supervisor.process import MASTER
from eps.cluster.yarn.application import Application
from eps.cluster.yarn.clients import open_client
from eps.cluster.yarn.facade import Client
from eps.errors import ConfigError, DeadlineError, EpsError, ResourceError, RpcError, StorageError
from eps.hadoop.bridge import class_path
from eps.hadoop.conf import HadoopConf, read_configuration
from eps.hadoop.kerberos import java_options
from eps.hadoop.token_file import TOKEN_FILE_VARIABLE
from eps.job.status import attempt_of
from eps.job.yarn.live_logs import FILES, open_live_logs
from eps.job.yarn.log_looks import Pace, Patience
from eps.storage.atomic import atomic_writer
from eps.storage.jobdir import JobDir
from eps.system.home import DIRECTORY_MODE

logger = logging.getLogger(__name__)

#: Tokens that nobody renews hold for a day, unless the cluster says otherwise.
REFRESH_S = 6 * 3600.0
#: The command begins a Java virtual machine, and asks every node.
TIMEOUT_S = 60.0
CHECK_S = 0.5
#: Whether nodes bring the logs of an application that has ended to the cluster's file system, and where they are first.
AGGREGATION, LOG_DIRS = "yarn.log-aggregation-enable", "yarn.nodemanager.log-dirs"
CLI = "org.apache.hadoop.yarn.client.cli.LogsCLI"
_CONTAINER = re.compile(r"Container: (container_\w+) on \S+")
_FILE = re.compile(r"LogType:\s*(\S+)")
_CONTENTS, _END = "LogContents:", "End of LogType:"
#: In the log of the job master: which of its containers is which of YARN's.
_PLACED = re.compile(r"M (\S+) is (container_\w+) on \S+")
#: YARN's number of the application master's container, in each attempt.
_MASTER_CONTAINER = re.compile(r"container_(?:e\d+_)?\d+_\d+_(\d+)_000001")


def split_logs(lines: Iterable[str], folder: Path) -> dict[str, dict[str, Path]]:
    """Write each log that ``yarn logs`` prints into a file of its own: a job's logs may be larger than memory.

    Parameters
    ----------
    lines : iterable of str
        What it prints, each with its end.
    folder : Path
        Empty.

    Returns
    -------
    dict
        YARN's container -> name of a log of it -> its file.
    """
    found: dict[str, dict[str, Path]] = {}
    numbers = count()
    container = name = ""
    target: IO[str] | None = None
    with ExitStack() as stack:
        for line in lines:
            if target is not None:
                # The last line may be half written.
                rest, end, _ = line.partition(f"{_END}{name}")
                if end:
                    target.write(rest)
                    stack.close()
                    target = None
                else:
                    target.write(line)
            elif match := _CONTAINER.match(line):
                container = match[1]
            elif match := _FILE.match(line):
                name = match[1]
            elif line.startswith(_CONTENTS):
                path = found.setdefault(container, {})[name] = folder / str(next(numbers))
                target = stack.enter_context(path.open("w", encoding="utf-8"))
    return found


def name_logs(found: Mapping[str, Mapping[str, Path]], masters_before: Iterable[Path] = ()) -> dict[str, list[Path]]:
    """Return name of a log as in a job's directory -> the files that make it.

    The job master's are ``master``, and ``master-N`` of later attempts; a container that the master's log names has
    the name that the master gave it, any other the one that YARN gave it.

    Parameters
    ----------
    found : mapping
        As of :func:`split_logs`.
    masters_before : iterable of Path
        Logs of the job's masters that were brought before.
    """
    parts = {container: _parts(files) for container, files in found.items()}
    masters = {c: int(m[1]) for c in parts if (m := _MASTER_CONTAINER.fullmatch(c)) is not None}
    names: dict[str, str] = {}
    for path in (*masters_before, *(path for container in masters for path in parts[container])):
        with path.open(encoding="utf-8") as lines:
            names |= {match[2]: match[1] for line in lines for match in _PLACED.finditer(line)}
    for container, attempt in masters.items():
        names[container] = MASTER if attempt == 1 else f"{MASTER}-{attempt}"
    return {names.get(container, container): paths for container, paths in parts.items()}


def _parts(files: Mapping[str, Path]) -> list[Path]:
    """Return the files of a container: what it said, and what YARN said before it, where that is a word."""
    return [files[name] for name in FILES if name in files and not _is_blank(files[name])]


def _is_blank(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as lines:
        return not any(line.strip() for line in lines)


def fetch_logs(job: JobDir) -> list[str]:
    """Bring the logs of a job's containers into its directory; return their names.

    Raises
    ------
    ConfigError
        There is no Java, or nothing leads to Hadoop's jars.
    DeadlineError
        The command takes too long.
    ResourceError
        The job has ended, and its cluster collects no logs.
    RpcError
        It fails: the message has its last line.
    StorageError
        There is no room for them, or they cannot be written.
    """
    with open_logs(job) as fetch:
        return fetch()


@contextmanager
def open_logs(
    job: JobDir, check: Callable[[], None] = lambda: None, tell: Callable[[str], None] = logger.warning
) -> Iterator[Callable[[], list[str]]]:
    """Give what brings a job's logs as :func:`fetch_logs`, as often as it is called; tokens last as long as the block.

    While the job runs, a look may bring nothing that would take a command, where the ones before brought nothing new.

    Parameters
    ----------
    job : JobDir
    check : callable
        Called before each look, and every :data:`CHECK_S` of it; what it raises ends the look.
    tell : callable
        Called with what is waited for.

    Raises
    ------
    AuthenticationError, ConfigError
        As :func:`eps.cluster.yarn.clients.open_client`, and where the job is not on YARN.
    """
    application = Application.read(job)
    if application is None:
        raise ConfigError(f"job {job.name!r} is none on YARN")
    conf = read_configuration(Path(application.conf_dir))
    proofs, live = _Proofs(conf, application), open_live_logs(conf, application.application_id)
    patience, pace, looked = Patience(conf, application, check, tell), Pace(), False

    def fetch() -> list[str]:
        nonlocal looked
        check()
        # The command knows also of what has ended, and takes a Java virtual machine.
        again, looked = looked, True
        if again and job.is_running():
            if live is not None:
                try:
                    return _fetch(job, live.print_to)
                except RpcError as error:
                    logger.info("%s", error)
            if not pace.is_due():
                return []
        # Whoever brings the logs of a job that has failed holds its lock, and has noted its end before.
        if not job.is_running() or job.ended() is not None:
            _check_kept(conf, application)
        patience.begin()
        before_bytes = _size_bytes(job)
        try:
            return _fetch(job, partial(_ask, application, proofs, patience.look))
        finally:
            pace.note(is_new=_size_bytes(job) != before_bytes)

    try:
        yield fetch
    finally:
        proofs.close()
        if live is not None:
            live.close()


def _check_kept(conf: HadoopConf, application: Application) -> None:
    """Refuse to ask for the logs of an application that has ended where the cluster says that it collects none.

    Where it does not say so the command is asked: the setting is the nodes' own, of which a client need not know.

    Raises
    ------
    ResourceError
        They stay on the nodes.
    """
    if conf.get_bool(AGGREGATION, default=True):
        return
    raise ResourceError(
        f"the logs of {application.application_id} are not collected: {AGGREGATION} is false in {conf.source}; what "
        f"its containers wrote stays for a while on the nodes that they ran on, in {application.application_id} within "
        f"{conf.get(LOG_DIRS) or LOG_DIRS}"
    )


def _size_bytes(job: JobDir) -> int:
    return sum(path.stat().st_size for path in job.logs.glob("*.log"))


def _fetch(job: JobDir, ask: Callable[[Path], None]) -> list[str]:
    """Bring what ``ask`` writes into a file; raises as :func:`fetch_logs`."""
    try:
        return _brought(job, ask)
    except EpsError:
        raise
    except OSError as error:
        where = error.filename or job.path
        raise StorageError(
            f"{where}: the logs of job {job.name!r} cannot be written: {error.strerror or error}"
        ) from error


def _brought(job: JobDir, ask: Callable[[Path], None]) -> list[str]:
    job.logs.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    # Beside the logs: a disk with room for them, not one that may be memory.
    with tempfile.TemporaryDirectory(dir=job.path, prefix=".logs-") as folder:
        printed = Path(folder) / "printed"
        ask(printed)
        with printed.open(encoding="utf-8", errors="replace") as lines:
            logs = name_logs(split_logs(lines, Path(folder)), job.logs.glob(f"{MASTER}*.log"))
        for name, parts in logs.items():
            with atomic_writer(job.log(name), sync=False) as target:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, target)
    _remove_masters_after(job, max((attempt_of(job.log(name)) for name in logs), default=0))
    return sorted(logs)


def _remove_masters_after(job: JobDir, attempt: int) -> None:
    """Remove logs of later masters than the latest that this run has had: they are of a run before."""
    for path in job.logs.glob(f"{MASTER}-*.log"):
        if attempt_of(path) > attempt > 0:
            path.unlink(missing_ok=True)


def _ask(application: Application, proofs: _Proofs, check: Callable[[], None], printed: Path) -> None:
    """Run the command; what it prints goes into a file.  Raises as :func:`fetch_logs`, and what ``check`` raises."""
    words = [find_java().command, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *java_options(os.environ)]
    words += ["-cp", os.pathsep.join(class_path(proofs.conf)), CLI, "-applicationId", application.application_id]
    environment = proofs.environment()
    with printed.open("wb") as target:
        try:
            command = subprocess.Popen(
                words,
                stdout=target,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as error:
            raise ConfigError(f"{words[0]} cannot be run: {error.strerror}") from None
        with command:
            said = _word_of(command, check, application)
    if command.returncode != 0 and _is_blank(printed):
        raise RpcError(f"the logs of {application.application_id}: {_last_line(said.splitlines())}")


def _word_of(command: subprocess.Popen[str], check: Callable[[], None], application: Application) -> str:
    """Wait for a command, :data:`TIMEOUT_S` at most; return what it wrote on standard error."""
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                return command.communicate(timeout=CHECK_S)[1]
            except subprocess.TimeoutExpired:
                check()
                if time.monotonic() > deadline_s:
                    raise DeadlineError(
                        f"the logs of {application.application_id}: YARN did not give them within {TIMEOUT_S:g} s"
                    ) from None
    except BaseException:
        command.kill()
        raise


class _Proofs:
    """What the command proves with who it is: tokens, where the cluster wants any, since it knows no keytab.

    Parameters
    ----------
    conf : HadoopConf
    application : Application
        Whose logs are asked for.
    """

    def __init__(self, conf: HadoopConf, application: Application) -> None:
        self.conf = conf
        self._application = application
        self._client: Client | None = None
        self._tokens = b""
        self._obtained_s = 0.0
        self._file: IO[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Return the command's environment; the file of tokens that it names is there until :meth:`close`."""
        if not self.conf.wants_kerberos:
            return dict(os.environ)
        if self._file is None or time.monotonic() - self._obtained_s > REFRESH_S:
            self._obtain()
        assert self._file is not None
        return {**os.environ, TOKEN_FILE_VARIABLE: self._file.name}

    def _obtain(self) -> None:
        self._cancel()
        if self._client is None:
            self._client = open_client(self.conf, self._application.client)
        self._tokens, self._obtained_s = self._client.obtain_tokens(), time.monotonic()
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="eps-tokens-")
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._tokens)
        self._file.flush()

    def _cancel(self) -> None:
        """Leave no token behind that would be worth something for a day."""
        tokens, self._tokens = self._tokens, b""
        if self._client is not None and tokens:
            try:
                self._client.cancel_tokens(tokens)
            except EpsError as error:
                logger.warning("%s", error)

    def close(self) -> None:
        """Cancel the tokens, and remove their file."""
        try:
            self._cancel()
        finally:
            if self._client is not None:
                self._client.close()
            if self._file is not None:
                self._file.close()


def _last_line(lines: Iterable[str]) -> str:
    said = [line.strip() for line in lines if line.strip() and not line.startswith(("\t", "log4j:", "SLF4J:"))]
    return said[-1] if said else "YARN gave no reason"
