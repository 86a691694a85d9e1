"""Resume a job that stopped before its end, from its latest valid checkpoint or from its seed."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import time
from collections.abc import Callable

from eps.cluster.choice import check_backend
from eps.data.arrays import is_array_file
from eps.data.cut import prepare
from eps.data.dataset import DatasetInfo, is_complete, open_dataset
from eps.errors import ConfigError, DataError, JobExistsError, PlanError, StorageError
from eps.job.launch import PreparedJob, check_runtime, data_settings
from eps.job.status import RUNS, check_unfinished, earlier_of
from eps.net.security.certificates import make_certificates
from eps.net.security.credentials import Security, TlsFiles
from eps.spec.job_spec import JobSpec
from eps.spec.runtime import Runtime, Start, identity
from eps.storage.atomic import write_bytes_atomic
from eps.storage.checkpoint import Manifest, history_lines, open_checkpoints
from eps.storage.jobdir import JobDir, JobLock, cache_dir, find_job
from eps.storage.record import Record, YarnPart, write_record
from eps.system.home import DIRECTORY_MODE, make_home

#: A container's log file.
_CONTAINER = re.compile(r"container-(\d+)\.log", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Resumed:
    """A job that is ready to be resumed."""

    prepared: PreparedJob
    #: The checkpoint to restore; None to start from the seed.
    manifest: Manifest | None
    #: Sentences about damaged checkpoints, data that was prepared again, and a renewed token.
    warnings: tuple[str, ...]

    def describe(self) -> str:
        """Return a sentence about the checkpoint or seed that the job resumes from."""
        if self.manifest is None:
            return f"{self.prepared.directory.name}: no checkpoint; restarts from its seed"
        return (
            f"{self.prepared.directory.name}: resumes at clock {self.manifest.first_clock}, "
            f"from checkpoint {self.manifest.name}"
        )


def prepare_resume(
    name: str,
    workers: int = 0,
    servers: int = 0,
    python: str = "",
    check: Callable[[JobSpec], None] | None = None,
    *,
    reliable: int = 0,
) -> Resumed:
    """Prepare the directory of a stopped job for another run, and keep its lock.

    Parameters
    ----------
    name : str
    workers, servers : int
        0: the job's size at the checkpoint.
    python : str
        On YARN, the new interpreter or archive; empty: the previous one.
    check : callable, optional
        Called with the settings, at that size, before the directory changes; its exceptions propagate.
    reliable : int
        The same, of a job on reliable containers alone.

    Raises
    ------
    JobExistsError
        The job is running.
    JobFinishedError
        The job has finished.
    JobNotFoundError
        There is no such job.
    ConfigError
        The size or interpreter is not possible, or the checkpoint belongs to another job.
    DataError
        The prepared data set is missing, and cannot be prepared again from its source.
    ResourceError
        The Docker engine does not answer.
    StorageError
        The job's directory cannot be read or written.
    """
    make_home()
    directory = find_job(name)
    try:
        lock = JobLock(directory.lock)
    except JobExistsError:
        raise JobExistsError(RUNS.format(name=name)) from None
    try:
        return _prepare(directory, lock, (workers, servers, reliable), python, check)
    except BaseException:
        lock.close()
        raise


def _prepare(
    directory: JobDir,
    lock: JobLock,
    asked: tuple[int, int, int],
    python: str,
    check: Callable[[JobSpec], None] | None,
) -> Resumed:
    # Under the job's lock: a record without an end means that its last writer was killed.
    former = directory.seen(directory.record())
    check_unfinished(directory.name, former.end)
    if former.runtime is None:
        raise PlanError(f"job {directory.name!r} was never started: it has no {directory.job_json.name}")
    before = dataclasses.replace(Runtime.from_values(former.runtime), job_dir=directory.path)
    if python:
        before = dataclasses.replace(before, spec=_with_python(before.spec, python))
    workers, servers, reliable = asked
    tiers = before.spec.tiers
    if tiers.total and (workers or servers or (reliable and tiers.transient)):
        raise ConfigError(
            f"job {directory.name!r} has reliable and transient containers: it resumes with as many as it had; change "
            "that afterwards, as in eps scale NAME transient=+2"
        )
    if reliable and not tiers.total:
        raise ConfigError(f"reliable is {reliable}, but job {directory.name!r} has workers and servers")
    # Each container hosts both.
    workers, servers = workers or reliable, servers or reliable
    check_backend(before.spec)
    store = open_checkpoints(before.checkpoints)
    manifest, damaged = store.latest_valid(identity(before))
    epoch = max(before.start.epoch, store.last_epoch()) + 1
    start = Start(epoch=epoch, workers=workers, servers=servers, first_container=_next_container(directory))
    if manifest is not None:
        start = dataclasses.replace(
            start,
            checkpoint=manifest.name,
            clock=manifest.first_clock,
            workers=workers or manifest.workers,
            servers=servers or manifest.servers,
            triggers_asked=manifest.triggers_asked,
        )
    runtime = dataclasses.replace(before, start=start)
    # Only for the check: the job keeps the settings that the user gave.
    size = dict(zip(("workers", "servers"), runtime.first_size, strict=True))
    if tiers.total:
        size = {"reliable": reliable} if reliable else {}
    sized = before.spec.with_settings(**size)
    check_runtime(runtime)
    if check is not None:
        check(sized)
    dataset, prepared_again = _data_of(runtime)
    runtime = dataclasses.replace(runtime, dataset_dir=dataset.directory)
    store.remove_leftovers()
    warnings = [*damaged, *prepared_again]
    try:
        warnings += _renew_secrets(directory, before.spec)
        _clear(directory)
        history = b"" if manifest is None else b"".join(history_lines(store.history(manifest)))
        write_bytes_atomic(directory.history, history)
        record = Record(
            started_s=round(time.time(), 3),
            runtime=runtime.to_values(),
            results=former.results,
            yarn=YarnPart(application=former.yarn.application, claim=former.yarn.claim),
            earlier=earlier_of(directory, former),
            former=former,
        )
        write_record(directory.job_json, record)
    except OSError as error:
        raise StorageError(f"{directory.path}: cannot be prepared: {error.strerror or error}") from error
    prepared = PreparedJob(directory, lock, runtime, dataset)
    return Resumed(prepared, manifest, tuple(warnings))


def _with_python(spec: JobSpec, python: str) -> JobSpec:
    """Return a job's settings with another interpreter."""
    if spec.on != "yarn":
        raise ConfigError(
            f"python is {python!r}, but only jobs on YARN take another interpreter: this one is on {spec.on}"
        )
    return spec.with_settings(python=python)


def _data_of(runtime: Runtime) -> tuple[DatasetInfo, list[str]]:
    """Return the job's prepared data, prepared again if the cache was emptied, and a sentence about that.

    Raises
    ------
    DataError
        The data cannot be prepared again, or its source has changed.
    """
    place = runtime.dataset_dir
    try:
        dataset = open_dataset(place)
        if is_complete(dataset):
            return dataset, []
    except StorageError:
        pass
    gone = f"the prepared data of job {runtime.name!r} is no longer at {place}"
    try:
        dataset = prepare(data_settings(runtime.spec), cache_dir())
    except (ConfigError, DataError, StorageError) as error:
        if is_array_file(runtime.spec.data):
            raise DataError(
                f"{gone}, and it was made of arrays, which EPS does not keep: run the job again with these arrays"
            ) from error
        raise DataError(f"{gone}, and cannot be prepared again: {error}") from error
    if dataset.split_checksums != runtime.shape.split_checksums:
        raise DataError(f"{gone}, and {runtime.spec.data} has changed since: the job cannot be resumed with other data")
    return dataset, [f"{gone}; it was prepared again from {runtime.spec.data}"]


def _renew_secrets(directory: JobDir, spec: JobSpec) -> list[str]:
    """Replace unusable certificates and an unusable token; safe, since no process of the job runs."""
    if spec.uses_tls:
        try:
            Security(tls=TlsFiles.within(directory.tls)).ssl_context(server_side=True)
        except StorageError:
            make_certificates(directory.tls)
    try:
        Security.of_job(directory.path)
    except StorageError as error:
        directory.make_token()
        return [f"{error}; the job was given another token"]
    return []


def _clear(directory: JobDir) -> None:
    """Remove the files of the previous run's processes; its results stay until the next run starts."""
    shutil.rmtree(directory.containers, ignore_errors=True)
    shutil.rmtree(directory.sockets, ignore_errors=True)
    # The master's state describes members that no longer run; the next run starts a new one.
    shutil.rmtree(directory.state, ignore_errors=True)
    directory.containers.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    directory.logs.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    directory.master_json.unlink(missing_ok=True)


def _next_container(directory: JobDir) -> int:
    """Return the first container number that no log file has."""
    names: list[str] = os.listdir(directory.logs) if directory.logs.is_dir() else []
    return max((int(found[1]) for name in names if (found := _CONTAINER.fullmatch(name))), default=0) + 1
