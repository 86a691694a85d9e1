"""What containers on other hosts need of this one, packed: our own code, and a job's files.  L2.

The same files give the same bytes, so that a packed file can be named by its digest and brought to the cluster once.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import eps
from eps.errors import ConfigError, StorageError
from eps.storage.jobdir import JobDir

#: Of every member of an archive: when it was made must not change its bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Names of what is unpacked in a container's folder.
CODE, JOB, ENVIRONMENT = "eps-code", "eps-job", "eps-env"
_PACKAGES = ("eps", "hscheduler")
#: Endings of what is code, or is read by it.
_SHIPPED = (".py", ".html", ".properties")
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")


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


def pack_code() -> Packed:
    """Return this installation of EPS, without what it depends on."""
    root = Path(eps.__file__).absolute().parent.parent
    return packed(
        (str(path.relative_to(root)), path.read_bytes(), 0o644)
        for package in _PACKAGES
        for path in sorted((root / package).rglob("*"))
        if path.is_file() and path.name.endswith(_SHIPPED)
    )


def pack_job(job: JobDir) -> Packed:
    """Return the files of a job's directory that its processes read.

    Raises
    ------
    StorageError
        One of them cannot be read.
    """
    try:
        return packed((name, path.read_bytes(), 0o600) for name, path in _job_files(job))
    except OSError as error:
        raise StorageError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _job_files(job: JobDir) -> Iterator[tuple[str, Path]]:
    from eps.launch import MODEL_CODE
    from eps.server.initial import INIT_FILE

    singles = [job.job_json, job.token, job.shared_json, job.history, job.path / INIT_FILE]
    for path in [*singles, *job.tls.glob("*"), *(job.path / MODEL_CODE).glob("*")]:
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
        if "://" not in text and not Path(text).is_file():
            raise ConfigError(f"python is {text}, but there is no such archive: make it with conda-pack or venv-pack")
        return PythonEnvironment(f"./{ENVIRONMENT}/bin/python", text)
    if not text.startswith("/"):
        raise ConfigError(
            f"python is {text!r}, but must be the absolute path of an interpreter that every node has, or an archive "
            f"({', '.join(_ARCHIVES)}) of an environment"
        )
    return PythonEnvironment(text)
