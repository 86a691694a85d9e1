"""What a job's user gets of it: its report and its trained model, on this machine or on HDFS."""

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
#: In the record of where results go: the job itself brings them there; when that was noted, in seconds of Unix time.
_DETACHED, _SINCE = "detached", "since_s"


@dataclass(frozen=True)
class Result:
    """A file of a job that its user may have brought somewhere."""

    #: The setting that says where to.
    name: str
    #: In words.
    what: str
    #: Where it is in the job's directory.
    own: Callable[[JobDir], Path]


_RESULTS = (
    Result("report", "report", lambda directory: directory.report),
    Result("export", "model", lambda directory: directory.model),
)


def wanted_of(request: RunRequest) -> Iterator[tuple[Result, str]]:
    """Yield what a request wants brought somewhere, and where to."""
    for result in _RESULTS:
        if text := getattr(request, result.name):
            yield result, text


def check_results(request: RunRequest) -> None:
    """Refuse before training what could not be written after it.

    Raises
    ------
    ConfigError
        Report or export cannot be written where the request wants them.
    StorageError
        HDFS cannot be asked.
    """
    for result, text in wanted_of(request):
        check_result(result.name, text)


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


def keep_places(directory: JobDir, request: RunRequest) -> None:
    """Note where report and model of a job are to go: for a job that is detached, and for whoever resumes it.

    Raises
    ------
    ConfigError
        A place is none.
    StorageError
        The job's directory cannot be written.
    """
    places = noted_places(request)
    known = directory.record().results
    if places and {**places, _SINCE: 0.0} != {**known, _SINCE: 0.0}:
        directory.note(results=places)


def noted_places(request: RunRequest) -> dict[str, Any]:
    """Return where report and model of a job are to go, as its record holds it; empty where it was asked for nothing.

    Raises
    ------
    ConfigError
        A place is none.
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
    """Return where report and model of a job are to go, by :func:`keep_places`; those of them that it was asked for."""
    names, noted = {result.name for result in _RESULTS}, directory.record().results
    return {name: str(place) for name, place in noted.items() if name in names}


def detached_places(directory: JobDir) -> dict[str, str]:
    """Return as :func:`kept_places` where a detached job brings them itself; nothing of any other job."""
    return kept_places(directory) if directory.record().results.get(_DETACHED) else {}


def with_kept_places(directory: JobDir, request: RunRequest) -> RunRequest:
    """Return the request for a job that is resumed, whose results go where it was asked to bring them.

    Places that the request names itself go before those.

    Raises
    ------
    ConfigError
        Nothing can be written there any more.
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
    """Return a sentence for each file that is newer than a stopped job, not its own, and in the place of a result.

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
    """Return when a file was changed last, in seconds of Unix time, and its bytes; zeros where there is none."""
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
    """Return whether a file of that size is what an earlier run of a job has brought there; a model may be large."""
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
    """Copy report and model of an ended job to where its user wants them, as far as it has left them.

    One that failed or was killed has a model, too, where that had been brought by then.

    Parameters
    ----------
    directory : JobDir
    request : RunRequest
    tell : callable
        Takes, before each is written to HDFS, which may have to be waited for, that it is.

    Raises
    ------
    StorageError
        They cannot be written: the message says how the job ended, and where they are.
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
    """Bring report and model of a detached job that is ending to where they were asked for.

    Parameters
    ----------
    directory : JobDir
    wanted : callable
        Which places are this process's to write.

    Returns
    -------
    str
        What could not be brought, where it is and why, as a sentence; empty where all was.
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
        # The first of what is left was tried.
        what = " and its ".join(result.what for result, _ in left)
        rest = [f"{result.own(directory)} was to become {target}" for result, target in left[1:]]
        raise StorageError("; ".join([f"its {what} could not be brought: {error}", *rest])) from error


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
