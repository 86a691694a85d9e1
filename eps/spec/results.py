"""Results of a job, its report and its trained model: their destinations here or on HDFS, and how they get there."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eps.errors import ConfigError, StorageError
from eps.spec.file import RunRequest
from eps.storage.jobdir import JobDir
from eps.storage.locations import Location, RemotePath, location

logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
#: Keys beside the destinations in a job's record: the job itself copies them; time of the entry, in Unix seconds.
_DETACHED, _SINCE = "detached", "since_s"


@dataclass(frozen=True)
class Result:
    """A file of a job that EPS copies to a destination."""

    #: The setting with its destination.
    name: str
    #: What messages call it.
    what: str
    #: Its path in the job's directory.
    own: Callable[[JobDir], Path]


_RESULTS = (
    Result("report", "report", lambda directory: directory.report),
    Result("export", "model", lambda directory: directory.model),
)


def wanted_of(request: RunRequest) -> Iterator[tuple[Result, str]]:
    """Yield the results that a request wants copied, with their destinations."""
    for result in _RESULTS:
        if text := getattr(request, result.name):
            yield result, text


def check_results(request: RunRequest) -> None:
    """Refuse before training destinations that cannot be written.

    Raises
    ------
    ConfigError
        A destination of report or model cannot be written.
    StorageError
        HDFS cannot be asked.
    """
    for result, text in wanted_of(request):
        check_result(result.name, text)


def check_result(name: str, text: str) -> None:
    """Refuse a destination that cannot be written; an empty ``text`` is none, ``name`` is its setting.

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


def keep_places(directory: JobDir, request: RunRequest) -> None:
    """Record the destinations of report and model, for a detached job and for ``eps resume``.

    Raises
    ------
    ConfigError
        A destination is malformed.
    StorageError
        The job's directory cannot be written.
    """
    places = noted_places(request)
    known = directory.record().results
    if places and {**places, _SINCE: 0.0} != {**known, _SINCE: 0.0}:
        directory.note(results=places)


def noted_places(request: RunRequest) -> dict[str, Any]:
    """Return the destinations of report and model as a job's record has them; empty without any.

    Raises
    ------
    ConfigError
        A destination is malformed.
    """
    places: dict[str, Any] = {}
    for result, text in wanted_of(request):
        place = location(text)
        places[result.name] = str(place.absolute() if isinstance(place, Path) else place)
    if places and request.detached:
        places[_DETACHED] = True
    if places:
        # It tells which files are newer than the job.
        places[_SINCE] = time.time()
    return places


def kept_places(directory: JobDir) -> dict[str, str]:
    """Return the recorded destinations of report and model."""
    names, noted = {result.name for result in _RESULTS}, directory.record().results
    return {name: str(place) for name, place in noted.items() if name in names}


def detached_places(directory: JobDir) -> dict[str, str]:
    """Return the recorded destinations of a detached job, which copies its results itself; empty for any other job."""
    return kept_places(directory) if directory.record().results.get(_DETACHED) else {}


def with_kept_places(directory: JobDir, request: RunRequest) -> RunRequest:
    """Return the request to resume a job with its recorded destinations, unless the request has its own.

    Raises
    ------
    ConfigError
        A destination can no longer be written.
    StorageError
        HDFS cannot be asked.
    """
    check_results(request)
    kept: dict[str, Any] = {n: place for n, place in kept_places(directory).items() if not getattr(request, n)}
    for name, place in kept.items():
        try:
            check_result(name, place)
        except (ConfigError, StorageError) as error:
            hint = f"job {directory.name!r} was started with it: --{name} takes another place"
            raise type(error)(f"{error}; {hint}") from error
    return dataclasses.replace(request, **kept)


def replaced_by_results(directory: JobDir, request: RunRequest) -> list[str]:
    """Return a warning for each file that a result will replace, if it is newer than the stopped job and not its own.

    Raises
    ------
    StorageError
        It cannot be read.
    """
    since_s = directory.record().results.get(_SINCE) or directory.started_s()
    told = []
    for result, text in wanted_of(request):
        place = location(text)
        modified_s, size_bytes = _found(place)
        if modified_s > since_s and not _is_copy(place, size_bytes, result.own(directory)):
            told.append(
                f"{place} is newer than job {directory.name!r}, and is replaced when that ends: "
                f"--{result.name} takes another place"
            )
    return told


def _found(place: Location) -> tuple[float, int]:
    """Return a file's time of change, in Unix seconds, and its size in bytes; zeros if there is none."""
    if isinstance(place, RemotePath):
        found = place.status()
        return (0.0, 0) if found is None else (found.modified_ms / 1000, found.size_bytes)
    try:
        status = place.stat()
        return status.st_mtime, status.st_size
    except FileNotFoundError:
        return 0.0, 0
    except OSError as error:
        raise StorageError(f"{place}: cannot be read: {error.strerror}") from error


def _is_copy(place: Location, size_bytes: int, own: Path) -> bool:
    """Return whether a file of that size is the copy that an earlier run of a job made; reads in pieces."""
    try:
        if not own.exists() or own.stat().st_size != size_bytes:
            return False
        with own.open("rb") as mine, place.open() if isinstance(place, RemotePath) else place.open("rb") as there:
            # HDFS may give less than was asked for.
            while piece := there.read(_PIECE_BYTES):
                if mine.read(len(piece)) != piece:
                    return False
            return not mine.read(1)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{place}: cannot be read: {error.strerror}") from error


def deliver_results(directory: JobDir, request: RunRequest, tell: Callable[[str], None] = lambda text: None) -> None:
    """Copy report and model of an ended job to their destinations, if it has them.

    Parameters
    ----------
    directory : JobDir
    request : RunRequest
    tell : callable
        Takes a sentence before each copy to HDFS, which may have to wait.

    Raises
    ------
    StorageError
        A copy failed; the message says how the job ended, and where its files are.
    """
    directory.check_fetched()
    ended = directory.ended()
    state = "ended" if ended is None else ended.state
    wanted = [(result, location(text)) for result, text in wanted_of(request)]
    try:
        _bring(directory, wanted, tell)
    except StorageError as error:
        raise StorageError(f"job {directory.name!r} {state}, but {error}") from error


def deliver_detached(directory: JobDir, wanted: Callable[[Location], bool] = lambda place: True) -> str:
    """Copy report and model of a detached job that is ending to their destinations.

    Parameters
    ----------
    directory : JobDir
    wanted : callable
        Whether this process writes a destination.

    Returns
    -------
    str
        A sentence about a copy that failed; empty if all succeeded.
    """
    places = detached_places(directory)
    try:
        targets = [(result, location(places[result.name])) for result in _RESULTS if result.name in places]
        _bring(directory, [(result, target) for result, target in targets if wanted(target)])
    except (ConfigError, StorageError) as error:
        logger.warning("%s", error)
        return str(error)
    return ""


def _bring(
    directory: JobDir, wanted: Sequence[tuple[Result, Location]], tell: Callable[[str], None] = lambda text: None
) -> None:
    left = [(result, target) for result, target in wanted if result.own(directory).exists()]
    try:
        while left:
            result, target = left[0]
            if isinstance(target, RemotePath):
                tell(f"writes its {result.what} to {target}; where HDFS does not answer, that is waited for")
            copy_result(result.own(directory), target, f"job {directory.name!r} has no {result.what}")
            del left[0]
    except KeyboardInterrupt as error:
        for result, target in left:
            held = f"what it was to hold is {result.own(directory)}"
            error.add_note(f"{directory.name}: interrupted; {target} is not written: {held}")
        raise
    except StorageError as error:
        # The first of these failed; the others were not tried.
        what = " and its ".join(result.what for result, _ in left)
        rest = [f"{result.own(directory)} was to become {target}" for result, target in left[1:]]
        raise StorageError("; ".join([f"its {what} could not be brought: {error}", *rest])) from error


def copy_result(source: Path, target: Location, missing: str) -> None:
    """Copy a file of a job, readable by all users.

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
