"""Prepare a job's data and directory from its settings, and start its supervisor."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eps.cluster.supervisor.start import SupervisorHandle, WarmSupervisor
from eps.data.cut import prepare
from eps.data.dataset import DatasetInfo
from eps.data.settings import DataSettings
from eps.errors import ConfigError, DataError, EpsError, JobExistsError, StorageError
from eps.hadoop.conf import environment_configuration
from eps.ml import kernels
from eps.ml.combinations import check_combination, check_given
from eps.ml.grid import GROWTH_BITS
from eps.ml.models import MODELS, load_model
from eps.net.arrays.memory import descriptor_limit
from eps.net.security.certificates import check_tls, make_certificates
from eps.spec.file import OF_CHECKPOINTS, OF_YARN, RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.model_file import read_model
from eps.spec.results import noted_places
from eps.spec.runtime import (
    DataShape,
    Runtime,
    check_descriptors,
    check_memory,
    check_model,
    machine_memory_bytes,
    model_options,
    optimizer_settings,
    settled,
)
from eps.storage.atomic import atomic_writer
from eps.storage.claims import REMOVE_S, Claim, check_claim, claim, owner_of, release
from eps.storage.jobdir import JobDir, JobLock, cache_dir, create_job_dir, job_dir, jobs_dir, remove_job
from eps.storage.locations import Location, has_scheme, location, open_storage
from eps.system.home import make_home

if TYPE_CHECKING:
    from eps.cluster.yarn.application import Application

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedJob:
    """A job whose directory is complete.  It holds the job's lock, so no other job can take the name."""

    directory: JobDir
    lock: JobLock
    runtime: Runtime
    dataset: DatasetInfo

    def start(self, *, tied: bool, warm: WarmSupervisor) -> SupervisorHandle:
        """Start the job's processes, which take over the lock.

        If the start fails, restore the previous state of a resumed job.

        Parameters
        ----------
        tied : bool
            The job ends with this process.
        warm : WarmSupervisor
            Becomes the job's supervisor.

        Raises
        ------
        ResourceError
            The processes cannot be started.
        StorageError
            The job's directory cannot be written.
        """
        try:
            try:
                return warm.give(self.directory.path, tied, self.lock)
            except BaseException:
                self.give_back()
                raise
        finally:
            self.lock.close()

    def give_back(self) -> None:
        """Restore the previous state of a resumed job that has not started, as far as possible."""
        try:
            self.directory.give_back()
        except StorageError as error:
            # The next process that opens the job tries again.
            logger.warning("%s", error)

    def discard(self) -> None:
        """Remove everything of a job that has not started, as far as possible; does nothing for one that has."""
        self.lock.close()
        place = self.runtime.spec.checkpoints.checkpoint_dir
        _discard(self.directory, self.runtime.checkpoints if place else None)


def _discard(directory: JobDir, claimed: Location | None) -> None:
    """Remove the directory of a job that is not running, and the folder that it has claimed for its checkpoints."""
    try:
        with JobLock(directory.lock) as lock:
            if claimed is not None:
                _release(claimed, owner_of(directory))
            remove_job(directory, lock)
    except JobExistsError:
        # Its processes have started, or another job has taken the name.
        return
    except EpsError as error:
        logger.warning("%s is not removed: %s", directory.path, error)


def _release(folder: Location, owner: str) -> None:
    try:
        release(open_storage(folder, patience_s=REMOVE_S), owner)
    except EpsError as error:
        # The error that stopped the job may also stop this; the next job of the name reuses the folder.
        logger.warning("%s is not removed; the next job of its name reuses it: %s", folder, error)


def data_settings(spec: JobSpec) -> DataSettings:
    """Return the settings of a job's data.

    Raises
    ------
    ConfigError
        A value is invalid.
    """
    model = load_model(spec.model)
    values: dict[str, Any] = {
        "data": spec.data,
        "task": model.task_for(model_options(spec)),
        "num_splits": spec.splits,
        "seed": spec.seed,
        "labels": spec.labels or None,
        "test": spec.test or None,
        "test_labels": spec.test_labels or None,
        "folds": spec.folds or None,
        "fold": max(0, spec.fold),
        "format": model.data_format if spec.reading.format == "auto" else spec.reading.format,
        "features": spec.features or None,
        "label_column": spec.reading.label_column,
        "columns": tuple(part.strip() for part in spec.reading.columns.split(",") if part.strip()),
        "delimiter": spec.reading.delimiter,
        "index_base": spec.reading.index_base,
        "normalize": spec.normalize,
        "target_scale": spec.reading.target_scale,
        "centred": model.centres_labels,
    }
    return DataSettings.from_dict(values)


def _check_port(port: int) -> None:
    if port > 0:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError as error:
                raise ConfigError(f"metrics_port is {port}, but that port cannot be used: {error.strerror}") from None


def prepare_job(
    request: RunRequest, before_data: Callable[[], None] | None = None, own_checkpoints: Location | None = None
) -> PreparedJob:
    """Check the settings, prepare the data and make the job's directory; remove it again if a step fails.

    Parameters
    ----------
    request : RunRequest
    before_data : callable, optional
        Called after all checks that need no data.
    own_checkpoints : Location, optional
        Folder on a cluster for the checkpoints of jobs without ``checkpoint_dir``, which are removed with their job.
        By default these checkpoints are in the job's directory.

    Raises
    ------
    ConfigError
        A setting is invalid, alone, in combination, or for this data.
    JobExistsError
        A job of that name is running.
    DataError
        The data cannot be used.
    StorageError
        A file cannot be written.
    """
    check_request(request)
    # Elsewhere the job has another interpreter.
    if request.spec.on == "local" and kernels.are_missing():
        _warn_of_numba(request.spec.model)
    # A scheduler chooses when its jobs take checkpoints.
    if not request.spec.checkpoint_every and not request.manager and request.given & OF_CHECKPOINTS:
        name = min(request.given & OF_CHECKPOINTS).replace("_", "-")
        logger.warning("warning: the job takes no checkpoints, so --%s has no effect: add --checkpoint-every", name)
    own = None if request.spec.checkpoints.checkpoint_dir else own_checkpoints
    given = request
    request = _with_absolute_places(request) if own is None else request.with_spec(checkpoint_dir=str(own))
    spec = request.spec
    make_home()
    # Other machines may have jobs with checkpoints in the same folder.
    name = request.name or _free_name(spec, [] if own is None else open_storage(own).names(""))
    former = job_dir(name)
    if request.name and former.is_running():
        # Checked again when the directory is made; an early error saves the wait for the data.
        raise JobExistsError(f"job {name!r} is running: end it or choose another name")
    elsewhere = location(spec.checkpoints.checkpoint_dir) / name if spec.checkpoints.checkpoint_dir else None
    owner, formers, application = owner_of(former), _claim_of(former), _application_of(former)
    # The former owner's name differs if this machine was renamed.
    aliases = () if formers is None or formers.folder != str(elsewhere) else (formers.owner,)
    if elsewhere is not None:
        check_claim(elsewhere, owner, *aliases)
    if before_data is not None:
        before_data()
    runtime, dataset, initial = _with_data(request, name)
    try:
        directory, lock = create_job_dir(name, anew=request.anew, may_replace=bool(request.name))
    except JobExistsError:
        if request.name:
            raise
        # Another job took the free name meanwhile; the data is in the cache now.
        return prepare_job(given, None, own_checkpoints)
    try:
        # The new directory has no note of the former job's folders, so remove them now.
        if application is not None:
            remove_former(application.shared, application.remove)
        if formers is not None and formers.folder != str(elsewhere):
            remove_former(formers.folder, formers.remove)
        if elsewhere is not None:
            if own is not None:
                Claim(str(elsewhere), owner, environment_configuration().source).write(directory)
            claim(elsewhere, owner, *aliases)
            runtime = dataclasses.replace(runtime, owner=owner)
        if spec.uses_tls:
            make_certificates(directory.tls)
        if spec.model not in MODELS:
            runtime = _with_model_code(runtime, directory.model_code)
        if initial is not None:
            with atomic_writer(directory.initial, sync=False) as file:
                np.save(file, initial, allow_pickle=False)
        directory.note(
            sync=False, started_s=round(time.time(), 3), runtime=runtime.to_values(), results=noted_places(request)
        )
    except BaseException:
        lock.close()
        # Also the former job's checkpoints there: no record names them any more.
        _discard(directory, elsewhere)
        raise
    return PreparedJob(directory, lock, runtime, dataset)


def start_here(
    request: RunRequest, warm: WarmSupervisor, *, tied: bool, before_data: Callable[[], None] | None = None
) -> tuple[PreparedJob, SupervisorHandle]:
    """Prepare a job and start its processes on this machine; if they cannot be started, remove it again.

    Raises the errors of :func:`prepare_job` and :meth:`PreparedJob.start`.
    """
    prepared = prepare_job(request, before_data)
    try:
        return prepared, prepared.start(tied=tied, warm=warm)
    except BaseException:
        prepared.discard()
        raise


@cache
def _warn_of_numba(name: str) -> None:
    """Log once in a process that a model is slow without Numba."""
    times = load_model(name).slower_without_numba
    if times > 1:
        logger.warning(
            "warning: Numba is not installed: an iteration of %s takes about %d times as long, with the same result; "
            "install it with: pip install numba",
            name,
            times,
        )


def _claim_of(former: JobDir) -> Claim | None:
    """Return the claimed checkpoint folder of the former job of a name; None also if its record is damaged."""
    with suppress(StorageError):
        return Claim.read(former)
    return None


def _application_of(former: JobDir) -> Application | None:
    """Return the application of the former job of a name; None also if its record is damaged."""
    if not former.is_on_yarn():
        # Without importing YARN's modules.
        return None
    from eps.cluster.yarn.application import Application

    with suppress(StorageError):
        return Application.read(former)
    return None


def remove_former(what: str, remove: Callable[[], None]) -> None:
    """Remove a former run's or job's files on a cluster; log a warning if that fails."""
    try:
        remove()
    except EpsError as error:
        logger.warning("%s is not removed: %s", what, error)


def _with_absolute_places(request: RunRequest) -> RunRequest:
    """Return the request with a checkpoint_dir that depends on neither working directory nor Hadoop configuration."""
    text = request.spec.checkpoints.checkpoint_dir
    if not text:
        return request
    try:
        place = location(text) if has_scheme(text) else Path(text).expanduser().absolute()
    except ConfigError as error:
        raise ConfigError(f"checkpoint_dir: {error}") from None
    return request.with_spec(checkpoint_dir=str(place))


def check_request(request: RunRequest) -> None:
    """Check the settings as far as possible without the data.

    Raises
    ------
    ConfigError
        The model is unknown, or a setting is invalid, alone or in combination.
    """
    spec = request.spec
    model = load_model(spec.model)
    check_combination(model, optimizer_settings(spec))
    check_given(model, spec.optimizer, request.given)
    if "image" in request.given and spec.on != "docker":
        raise ConfigError(
            f"image is {spec.docker.image!r}, but only jobs on docker have an image: this one is on {spec.on}"
        )
    # A sweep's file may have settings for YARN although the sweep runs elsewhere.
    if spec.on != "yarn" and not request.manager and (foreign := sorted(request.given & OF_YARN)):
        name, *others = (each.removesuffix("_s") for each in foreign)
        told = f"{name} is {spec.values()[foreign[0]]!r}, but the job is on {spec.on}"
        also = f" (and {', '.join(others)})" if others else ""
        raise ConfigError(f"{told}: this setting{also} is for jobs on YARN only; add --on yarn, or leave it out")
    check_model(spec)
    if spec.uses_tls:
        check_tls()
    _check_port(spec.monitoring.metrics_port)


def check_data(request: RunRequest) -> Runtime:
    """Check the settings against the data, as :func:`prepare_job` does; return what the job would be.

    The data is in the cache afterwards.

    Raises
    ------
    ConfigError
        A setting is invalid for this data.
    DataError
        The data cannot be used.
    StorageError
        The cache cannot be written.
    """
    make_home()
    return _with_data(request, request.name)[0]


def _with_data(request: RunRequest, name: str) -> tuple[Runtime, DatasetInfo, np.ndarray | None]:
    """Return a job's runtime, its data, and its initial parameters (None: random)."""
    dataset = prepare(data_settings(request.spec), cache_dir())
    shape = shape_of(dataset)
    # A scheduler has counted the servers.
    lower_servers = "servers" not in request.given and not request.manager
    spec = settled(request.spec, shape.num_features, shape.num_outputs, lower_servers=lower_servers)
    runtime = Runtime(name, spec, shape, dataset.directory, jobs_dir() / name, manager=request.manager)
    check_runtime(runtime)
    return runtime, dataset, _initial_values(runtime, dataset) if spec.training.init else None


def shape_of(dataset: DatasetInfo) -> DataShape:
    """Return the shape of a job's data, for its processes."""
    return DataShape(
        num_features=dataset.num_features,
        num_outputs=sum(dataset.split_rows) if dataset.task == "topics" else len(dataset.classes) or 1,
        split_rows=dataset.split_rows,
        sparse=dataset.is_sparse,
        test_rows=dataset.num_test_rows,
        split_checksums=dataset.split_checksums,
    )


def check_runtime(runtime: Runtime) -> None:
    """Check now for errors that would end the job's processes later.

    Raises
    ------
    ConfigError
        Settings, model and data do not fit together, or exceed this machine's memory or limit of open files.
    """
    _ = runtime.settings, runtime.ranges, runtime.grid, runtime.optimizer, runtime.samples_per_clock
    if runtime.model.adds:
        largest, most = max(runtime.shape.split_rows), 1 << (runtime.grid.value_bits - GROWTH_BITS)
        if largest > most:
            raise ConfigError(
                f"a split has {largest} tokens, but {runtime.settings.num_splits} splits can add changes of {most} "
                "exactly: use fewer splits, or cut the longest documents"
            )
    check_memory(runtime, machine_memory_bytes())
    check_descriptors(runtime, descriptor_limit())


def fold_name(name: str, fold: int) -> str:
    """Return the name of the job of a fold, given that of its cross-validation."""
    return f"{name}-fold-{fold}"


def _free_name(spec: JobSpec, taken: Collection[str]) -> str:
    """Return the first name ``MODEL-<n>`` that is free on this machine and not taken.

    For a fold: ``MODEL-<n>-fold-<i>``, where the names of all its folds are free.
    """

    def is_free(name: str) -> bool:
        names = [name, *(fold_name(name, fold) for fold in range(spec.folds))]
        return not any(each in taken or (jobs_dir() / each).exists() for each in names)

    stem = spec.model.rpartition(":")[2].lower()
    name = next(name for number in count(1) if is_free(name := f"{stem}-{number}"))
    return fold_name(name, spec.fold) if spec.fold >= 0 else name


def _initial_values(runtime: Runtime, dataset: DatasetInfo) -> np.ndarray:
    path = location(runtime.spec.training.init)
    model = read_model(path)
    declared = [(t.name, t.shape) for t in runtime.key_space.tensors]
    found = [(name, array.shape) for name, array in model.tensors.items()]
    if found != declared:
        raise DataError(f"init {path} has tensors {_shown(found)}; the model of this job has {_shown(declared)}")
    if model.classes != dataset.classes:
        raise DataError(f"init {path} was trained for classes {model.classes}; this data has {dataset.classes}")
    trained = {"normalize": model.normalizer.kind, "target_scale": model.target_scale}
    for name, value in trained.items():
        ours = getattr(dataset.settings, name)
        if value != ours:
            raise DataError(f"init {path} was trained with {name} {value!r}; this job has {ours!r}: use the same")
    if model.feature_names and dataset.feature_names:
        pairs = zip_longest(model.feature_names, dataset.feature_names)
        for number, (theirs, ours) in enumerate(pairs, 1):
            if theirs != ours:
                raise DataError(f"init {path} was trained with {theirs!r} as column {number}; this data has {ours!r}")
    for name, array in model.tensors.items():
        if not np.isfinite(array).all():
            raise DataError(f"init {path}: tensor {name!r} has values that are not finite")
    return runtime.key_space.pack(dict(model.tensors))


def _with_model_code(runtime: Runtime, folder: Path) -> Runtime:
    """Return ``runtime`` with a copy of the user's model file, so that later edits do not change the job."""
    source, _, class_name = runtime.spec.model.rpartition(":")
    target = folder / Path(source).name
    try:
        target.parent.mkdir()
        shutil.copyfile(source, target)
    except OSError as error:
        raise ConfigError(f"model file {source} cannot be copied: {error.strerror}") from error
    spec = runtime.spec.with_settings(model=f"{target}:{class_name}")
    return dataclasses.replace(runtime, spec=spec, model_source=f"{Path(source).absolute()}:{class_name}")


def _shown(tensors: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in tensors)
