"""Pack EPS's code and a job's files for containers on other hosts.

The same files give the same bytes.  So an archive is named by its digest and uploaded once.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import logging
import marshal
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eps import errors
from eps.errors import ConfigError, StorageError
from eps.storage.jobdir import JobDir
from eps.storage.locations import has_scheme
from eps.storage.record import Record, YarnPart, record_bytes
from eps.system.home import DIRECTORY_MODE, make_private

logger = logging.getLogger(__name__)

#: Time of all members of an archive, so that equal files give equal bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Names in a container's folder; EPS's code stays an archive, the others are unpacked.
CODE, JOB, ENVIRONMENT = "eps-code", "eps-job", "eps-env"
_PACKAGES = ("eps", "hscheduler")
#: Suffixes of code files, and of files that the code reads.
_SHIPPED = (".py", ".css", ".html", ".js", ".LICENSE", ".properties")
#: Timeout for the test run of an interpreter on this machine.
INTERPRETER_S = 20.0
_FILE_MODE = 0o600
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")
#: Flag of compiled code that Python does not compare with its source (PEP 552).
_UNCHECKED_HASH = (0b01).to_bytes(4, "little")
#: The last format that does not depend on reference counts: equal source gives equal bytes.
_MARSHAL_VERSION = 2


@dataclass(frozen=True)
class Packed:
    """An archive."""

    content: bytes
    #: SHA-256 of it, hexadecimal.
    digest: str


def packed(members: Iterable[tuple[str, bytes, int]]) -> Packed:
    """Return a ZIP archive.

    Parameters
    ----------
    members : iterable of (name, content, permissions)
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in sorted(members):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, content)
    content = out.getvalue()
    return Packed(content, hashlib.sha256(content).hexdigest())


@functools.cache
def pack_code() -> Packed:
    """Return this installation of EPS, without its dependencies, as an archive that Python can import from.

    Nodes do not unpack it: without Hadoop's native library a NodeManager starts a process for each unpacked file, which
    takes seconds on a new node.  The archive has compiled code for this version of Python; other versions compile the
    source.
    """
    root = Path(errors.__file__).absolute().parent.parent
    if root.is_file():
        # This process itself runs from the archive.
        content = root.read_bytes()
        return Packed(content, hashlib.sha256(content).hexdigest())
    return packed(
        member
        for package in _PACKAGES
        for path in sorted((root / package).rglob("*"))
        if path.is_file() and path.name.endswith(_SHIPPED)
        for member in _code(str(path.relative_to(root)), path.read_bytes())
    )


def _code(name: str, content: bytes) -> Iterator[tuple[str, bytes, int]]:
    yield name, content, 0o644
    if name.endswith(".py"):
        code = marshal.dumps(
            compile(content, f"{CODE}/{name}", "exec", dont_inherit=True, optimize=0), _MARSHAL_VERSION
        )
        header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(content)
        yield f"{name}c", header + code, 0o644


def pack_job(job: JobDir) -> Packed:
    """Return an archive of the files in a job's directory that its processes read.

    Raises
    ------
    StorageError
        A file cannot be read.
    """
    try:
        known = job.record()
        shared = YarnPart(shared=known.yarn.shared)
        record = Record(started_s=known.started_s, runtime=known.runtime, results=known.results, yarn=shared)
        files = [(name, path.read_bytes(), 0o600) for name, path in _job_files(job)]
        return packed([(job.job_json.name, record_bytes(record), 0o600), *files])
    except OSError as error:
        raise StorageError(f"{error.filename}: cannot be read: {error.strerror}") from error


def unpack_job(content: bytes, job: JobDir) -> None:
    """Unpack an archive of :func:`pack_job` into a job's directory, with permissions for its user only.

    Raises
    ------
    StorageError
        The directory cannot be written, or the archive is damaged.
    """
    try:
        for folder in (job.path, job.logs, job.containers):
            make_private(folder)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in archive.namelist():
                target = job.path / name
                target.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
                target.touch(_FILE_MODE)
                target.write_bytes(archive.read(name))
    except (OSError, zipfile.BadZipFile) as error:
        raise StorageError(f"{job.path}: the files of the job cannot be unpacked: {error}") from error


def _job_files(job: JobDir) -> Iterator[tuple[str, Path]]:
    for path in [job.token, job.history, job.initial, *job.tls.glob("*"), *job.model_code.glob("*")]:
        if path.is_file():
            yield str(path.relative_to(job.path)), path


@dataclass(frozen=True)
class PythonEnvironment:
    """A Python interpreter with EPS's dependencies, for containers."""

    #: Path on every node, or in the unpacked archive.
    interpreter: str
    #: Local path, or URL on the cluster, of an archive; empty: the interpreter is on every node.
    archive: str = ""


def python_environment(text: str) -> PythonEnvironment:
    """Return the environment that the setting ``python`` names.

    Parameters
    ----------
    text : str
        Empty: this process's interpreter.  An absolute path: an interpreter that every node has.  Else the path of a
        local archive from conda-pack or venv-pack, or its ``hdfs://...``.

    Raises
    ------
    ConfigError
        The text is none of these, or the archive does not exist.
    """
    if not text:
        return PythonEnvironment(sys.executable)
    if text.endswith(_ARCHIVES):
        if not has_scheme(text) and not Path(text).is_file():
            raise ConfigError(f"python is {text}, but there is no such archive: make it with conda-pack or venv-pack")
        return PythonEnvironment(f"./{ENVIRONMENT}/bin/python", text)
    if not text.startswith("/"):
        raise ConfigError(
            f"python is {text!r}, but must be the absolute path of an interpreter that every node has, or an archive "
            f"({', '.join(_ARCHIVES)}) of an environment"
        )
    return PythonEnvironment(text)


def check_here(environment: PythonEnvironment) -> None:
    """Check an environment as far as this machine can.

    A path that does not exist here gets a warning only: the nodes may have it.

    Raises
    ------
    ConfigError
        The archive cannot be unpacked, or the path is no interpreter.
    """
    if environment.archive:
        if not has_scheme(environment.archive):
            _check_archive(Path(environment.archive))
        return
    path = Path(environment.interpreter)
    if environment.interpreter == sys.executable:
        return
    if not path.exists():
        logger.warning("python is %s, which this machine does not have: check that every node has it", path)
        return
    told = f"python is {path}, but must be an interpreter"
    if not path.is_file():
        raise ConfigError(f"{told}, not a folder")
    try:
        done = subprocess.run(
            [path, "-c", "print(6 * 7)"], capture_output=True, stdin=subprocess.DEVNULL, timeout=INTERPRETER_S
        )
    except OSError as error:
        raise ConfigError(f"{told}: it cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{told}: its test run did not end within {INTERPRETER_S:g} s") from None
    if done.stdout.strip() != b"42":
        raise ConfigError(f"{told}: its test run failed (exit code {done.returncode})")


def _check_archive(path: Path) -> None:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                is_empty = not archive.namelist()
        else:
            with tarfile.open(path) as unpacked:
                # Reading all of it would take long; the first member shows most truncated or empty archives.
                is_empty = unpacked.next() is None
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ConfigError(f"python is {path}, which cannot be unpacked: {error or type(error).__name__}") from None
    if is_empty:
        raise ConfigError(f"python is {path}, but that archive is empty: make it with conda-pack or venv-pack")
