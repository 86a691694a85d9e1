"""What a job's user gets of it: its report and its trained model, on this machine or on HDFS.  L3."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from eps.ended import check_fetched
from eps.errors import ConfigError, StorageError
from eps.jobspec_file import RunRequest
from eps.storage.jobdir import JobDir
from eps.storage.locations import Location, RemotePath, location

_PIECE_BYTES = 1 << 20


def check_results(request: RunRequest) -> None:
    """Refuse before training what could not be written after it.

    Raises
    ------
    ConfigError
        Report or export cannot be written where the request wants them.
    StorageError
        HDFS cannot be asked.
    """
    for name, text in (("report", request.report), ("export", request.export)):
        check_result(name, text)


def check_result(name: str, text: str) -> None:
    """Refuse a place for a file, of a setting ``name``, where none could be written; an empty text is none.

    Raises
    ------
    ConfigError, StorageError
        As of :func:`check_results`.
    """
    if not text:
        return
    path = location(text)
    if isinstance(path, RemotePath):
        _check_remote(name, path)
        return
    if not path.parent.is_dir():
        raise ConfigError(f"{name} is {path}, but its folder {path.parent} must exist")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{name} is {path}, but must be a file that can be written")


def _check_remote(name: str, path: RemotePath) -> None:
    if not path.parent.is_dir():
        makes = f"hdfs dfs -mkdir -p {path.parent} makes it"
        raise ConfigError(f"{name} is {path}, but its folder {path.parent} must exist: {makes}")
    if path.is_dir():
        raise ConfigError(f"{name} is {path}, but must be a file that can be written")


def deliver_results(directory: JobDir, request: RunRequest) -> None:
    """Copy report and model of an ended job to where its user wants them; a failed job has a report only.

    Raises
    ------
    StorageError
        They cannot be written; or the job has finished, and they could not be fetched from its cluster.
    """
    check_fetched(directory)
    if request.report and directory.report.exists():
        copy_result(directory.report, location(request.report), f"job {directory.name!r} has no report")
    if request.export and directory.model.exists():
        copy_result(directory.model, location(request.export), f"job {directory.name!r} has no trained model")


def copy_result(source: Path, target: Location, missing: str) -> None:
    """Copy a file of a job, readable for everybody.

    Raises
    ------
    StorageError
        ``source`` is missing, with the text ``missing``; or ``target`` cannot be written.
    """
    if not source.exists():
        raise StorageError(missing)
    try:
        if isinstance(target, RemotePath):
            with source.open("rb") as file, target.open_to_write() as copy:
                shutil.copyfileobj(file, copy, _PIECE_BYTES)
        else:
            shutil.copyfile(source, target)
    except StorageError as error:
        raise StorageError(f"{error}; what it was to hold is {source}") from error
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror}; what it was to hold is {source}") from error
