"""What containers on other hosts need of this one, packed: our own code, and a job's files.

The same files give the same bytes, so that a packed file can be named by its digest and brought to the cluster once.
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

#: Of every member of an archive: when it was made must not change its bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Names in a container's folder; our code stays an archive, the others are unpacked.
CODE, JOB, ENVIRONMENT = "eps-code", "eps-job", "eps-env"
_PACKAGES = ("eps", "hscheduler")
#: Endings of what is code, or is read by it.
_SHIPPED = (".py", ".html", ".properties")
#: An interpreter of this machine has so long to show that it is one.
INTERPRETER_S = 20.0
_FILE_MODE = 0o600
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")
#: Of compiled code that is taken as it is: its source, which is beside it, is not compared (PEP 552).
_UNCHECKED_HASH = (0b01).to_bytes(4, "little")
#: The last format that does not depend on who else refers to a value: the same source gives the same bytes.
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
    """Return this installation of EPS, without what it depends on, as an archive that Python imports from.

    It is brought to a node as the one file that it is.  Where Hadoop has no native library, a NodeManager starts a
    process for each file that it unpacks: seconds on a node that has started nothing of ours before.  Compiled code
    is beside the source, for an interpreter of our version; any other takes the source.
    """
    root = Path(errors.__file__).absolute().parent.parent
    if root.is_file():
        # This process runs from such an archive.
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
    """Return the files of a job's directory that its processes read.

    Raises
    ------
    StorageError
        One of them cannot be read.
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
    """Make a job's directory of what :func:`pack_job` has packed, for its user alone.

    Raises
    ------
    StorageError
        It cannot be made.
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
    """Where a container finds the interpreter, with all that EPS depends on."""

    #: On every node, or within the unpacked archive.
    interpreter: str
    #: Local path, or URL of the cluster's file system, of an archive; empty: the interpreter is on every node.
    archive: str = ""


def python_environment(text: str) -> PythonEnvironment:
    """Return what the setting ``python`` names.

    Parameters
    ----------
    text : str
        Empty: this process's interpreter.  An absolute path: an interpreter that every node has.  A local archive (as
        conda-pack or venv-pack make it), or ``hdfs://...`` of one.

    Raises
    ------
    ConfigError
        It is neither, or there is no such archive.
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
    """Refuse what this machine can tell of an environment: an archive that is none, a path that is no interpreter.

    Nodes may have an interpreter where this machine has nothing.

    Raises
    ------
    ConfigError
        It could not start a container.
    """
    if environment.archive:
        if not has_scheme(environment.archive):
            _check_archive(Path(environment.archive))
        return
    path = Path(environment.interpreter)
    if environment.interpreter == sys.executable:
        return
    if not path.exists():
        logger.warning("python is %s, which is not on this machine: every node must have it", path)
        return
    told = f"python is {path}, but must be an interpreter"
    if not path.is_file():
        raise ConfigError(f"{told}: that is a folder")
    try:
        done = subprocess.run(
            [path, "-c", "print(6 * 7)"], capture_output=True, stdin=subprocess.DEVNULL, timeout=INTERPRETER_S
        )
    except OSError as error:
        raise ConfigError(f"{told}: it cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{told}: it does not answer here within {INTERPRETER_S:g} s") from None
    if done.stdout.strip() != b"42":
        raise ConfigError(f"{told}: run here it is no Python (exit code {done.returncode})")


def _check_archive(path: Path) -> None:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                is_empty = not archive.namelist()
        else:
            with tarfile.open(path) as unpacked:
                # All of it takes long: that something is in it is enough for one that was cut short, or never filled.
                is_empty = unpacked.next() is None
    except (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ConfigError(f"python is {path}, which cannot be unpacked: {error or type(error).__name__}") from None
    if is_empty:
        raise ConfigError(f"python is {path}, but that archive is empty: make it with conda-pack or venv-pack")
