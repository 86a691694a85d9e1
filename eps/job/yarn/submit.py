"""From a prepared job to an application on YARN: its files go to the cluster, and its master is asked for.

What jobs share is brought once and named by its content: our code, an environment's archive, prepared data.  What is
a job's own lies in a folder of its own, which only its user can read: settings, token, and what its masters share.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import os
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO

from eps.cluster.supervisor.process import passed_on
from eps.cluster.yarn.application import (
    CHECKPOINTS,
    JOB_ARCHIVE,
    ORDERS,
    Application,
    MasterOrders,
    resource_of,
    staged_name,
    tags_of,
)
from eps.cluster.yarn.checks import Cluster, check_file_systems, check_job, file_systems_of, home_of
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.launch import LOG_STREAMS
from eps.cluster.yarn.shipping import (
    CODE,
    ENVIRONMENT,
    JOB,
    Packed,
    check_here,
    pack_code,
    pack_job,
    packed,
    python_environment,
)
from eps.cluster.yarn.types import FileKind, Launch, LocalFile, Submission, Visibility
from eps.data.publish import publish_dataset
from eps.errors import ConfigError, EpsError, JobNotFoundError, RpcError, StorageError
from eps.hadoop.bridge import CLASS_PATH_FILE
from eps.hadoop.conf import FILES, SCHEDULER_FILE, HadoopConf, environment_configuration, self_contained
from eps.job.launch import PreparedJob, prepare_job, remove_left
from eps.job.yarn.staged_jobs import check_not_running
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import detached_places
from eps.storage.hdfs import FileStatus
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath, has_scheme
from eps.storage.record import Record

logger = logging.getLogger(__name__)

#: Name of what is unpacked in a container's folder: the cluster's configuration.
CONF = "eps-conf"
#: Application masters that fail within so many seconds before their application has failed: fewer than a supervisor
#: allows, for YARN does not know how far a job gets in between.
MOST_ATTEMPTS, FAILURES_VALID_S = 3, 60.0


def start(request: RunRequest, before_data: Callable[[], None] | None = None) -> JobDir:
    """Prepare a job here and submit it as an application of its own; return its directory when YARN has accepted it.

    Parameters
    ----------
    request : RunRequest
    before_data : callable, optional
        As of :func:`eps.job.launch.prepare_job`.

    Raises
    ------
    ConfigError
        The settings cannot work, or HADOOP_CONF_DIR names no cluster.
    DataError
        The data cannot be used.
    AuthenticationError
        The cluster wants Kerberos, and nobody has logged in.
    JobExistsError
        A job of that name runs.
    ResourceError
        YARN refuses: the message says what.
    RpcError
        The cluster cannot be reached.
    StorageError
        Its file system cannot be used.
    """
    conf = environment_configuration()
    prepared: PreparedJob | None = None
    try:
        with closing(YarnClient(conf)) as client:
            _check(request.spec, client, conf)
            # Where every container, and whoever resumes the job, finds its checkpoints.
            own = home_of(conf, request.spec, client) / CHECKPOINTS
            if request.name and not request.spec.checkpoint_dir:
                check_not_running(request.name, own, client)
            client.prepare()
            prepared = prepare_job(request, before_data, own)
            submit(prepared, client, conf)
            return prepared.directory
    except BaseException as error:
        if prepared is not None:
            if prepared.directory.is_on_yarn():
                _tell_of_application(error, prepared.directory)
            else:
                # YARN has nothing of it.
                prepared.discard()
        raise
    finally:
        if prepared is not None:
            prepared.lock.close()


def check_prepared(spec: JobSpec) -> None:
    """Refuse a job that :func:`start_prepared` would, while nothing of it is cleared; raises as :func:`start`.

    Parameters
    ----------
    spec : JobSpec
        Of the size that the job begins with.
    """
    conf = environment_configuration()
    with closing(YarnClient(conf)) as client:
        _check(spec, client, conf)


def _check(spec: JobSpec, client: Client, conf: HadoopConf) -> None:
    check_job(Cluster(client), spec)
    check_environment(spec.python)
    check_file_systems(conf, spec, client)


def start_prepared(prepared: PreparedJob) -> None:
    """Submit a job that is prepared and checked already, as one that is resumed; raises as :func:`start`.

    Where YARN gets nothing of it, all is as it was before it was prepared.
    """
    job = prepared.directory
    try:
        former = Application.read(job)
        try:
            conf = environment_configuration()
            with closing(YarnClient(conf)) as client:
                submit(prepared, client, conf)
        except BaseException as error:
            if Application.read(job) == former:
                prepared.give_back()
            else:
                _tell_of_application(error, job)
            raise
        finally:
            if former is not None and Application.read(job) != former:
                remove_left(former.shared, former.remove)
    finally:
        prepared.lock.close()


def check_environment(python: str) -> None:
    """Refuse, before anything is prepared, an interpreter that no container could have.

    Raises
    ------
    ConfigError
        It is none, or there is no such archive.
    StorageError
        The file system that it is on cannot be asked.
    """
    environment = python_environment(python)
    if has_scheme(environment.archive):
        _remote_archive(environment.archive)
    check_here(environment)


def submit(prepared: PreparedJob, client: Client, conf: HadoopConf) -> Application:
    """Bring a job's files to the cluster and submit its application, which its directory knows from before on.

    Raises as :func:`start`; where YARN may have it all the same, it is told to end it.
    """
    spec, job = prepared.runtime.spec, prepared.directory
    home = home_of(conf, spec, client)
    application_id = client.new_application()
    shared = home / "jobs" / staged_name(job.name, application_id)
    try:
        orders = with_job(prepared, common_orders(conf, spec, shared, client), shared, home)
        _admit_viewers(shared, spec)
        tokens = client.obtain_tokens(file_systems_of(home, spec, detached_places(job).values()))
        launch = launch_of("eps.job.yarn.am", orders, orders.files, tokens)
        submission = Submission(
            name=job.name,
            launch=dataclasses.replace(launch, access=spec.access()),
            resource=resource_of(spec, "master"),
            queue=spec.queue,
            tags=tags_of(spec),
            label=spec.by_role("label", "master"),
            max_attempts=MOST_ATTEMPTS,
            failures_valid_s=FAILURES_VALID_S,
            priority=spec.priority if spec.priority >= 0 else None,
            lifetime_s=spec.lifetime_s or None,
        )
        application = Application(application_id, str(shared), conf.source)
        submit_noted(client, job, application, submission)
    except BaseException:
        remove_shared(shared)
        raise
    return application


def _admit_viewers(shared: RemotePath, spec: JobSpec) -> None:
    """Let those who may view a job come to what it leaves in its folder; its secrets there stay its user's alone."""
    if viewers := spec.viewers():
        try:
            for folder in (shared.parent.parent, shared.parent, shared):
                folder.storage().admit("", viewers, "--x")
        except StorageError as error:
            logger.warning("acl lets %s see the job's page, but not what it leaves on HDFS: %s", spec.acl, error)


def submit_noted(
    client: Client,
    job: JobDir,
    application: Application,
    submission: Submission,
    ends: str = "",
) -> None:
    """Submit an application that a directory knows from before on.

    Where it is not known whether YARN has it, for the answer is lost or somebody interrupts, YARN is told to end it,
    and the log which one that is.  Where YARN has none, or has refused it, the record is what it was before.
    Whoever interrupts is told the command that ends it: ``ends``, by default that of a job.

    Raises as :meth:`eps.cluster.yarn.facade.Client.submit`; StorageError where it cannot be noted.
    """
    before = job.record()
    try:
        # Before YARN has it: should its answer be lost, or this process, whoever asks for the job finds it.
        application.write(job)
        client.submit(application.application_id, submission)
        job.begin()
    except BaseException as error:
        refused = _is_refusal(error, client, application)
        if refused or not end_submitted(client, application, "its submission was cut short"):
            with suppress(StorageError):
                _take_back(job, before)
        else:
            with suppress(StorageError):
                job.begin()
            _note_interrupt(error, application, job, ends)
        raise


def _take_back(job: JobDir, before: Record) -> None:
    """Make a job what it was before it was submitted, and before its next run was prepared."""
    if before == Record():
        job.job_json.unlink(missing_ok=True)
    elif job.give_back() is None:
        job.note(phase=before.phase, yarn={"application": before.yarn.application})


def _tell_of_application(error: BaseException, job: JobDir) -> None:
    """Let whoever interrupts be told of the application that the job has by now: also while its client is closed."""
    application = Application.read(job)
    if application is not None:
        _note_interrupt(error, application, job)


def _note_interrupt(error: BaseException, application: Application, job: JobDir, ends: str = "") -> None:
    """Let whoever interrupted a submission be told, once, what to do where YARN did not hear that it is to end."""
    if isinstance(error, KeyboardInterrupt) and not getattr(error, "__notes__", ()):
        ends = ends or f"eps kill {job.name}"
        told = f"interrupted while {application.application_id} was submitted: if it runs, {ends} ends it"
        error.add_note(f"{job.name}: {told}")


def _is_refusal(error: BaseException, client: Client, application: Application) -> bool:
    """Return whether a submission ended by YARN's own word, which lists what a queue refuses as an application."""
    if not isinstance(error, EpsError) or isinstance(error, RpcError):
        # An answer is lost, or somebody interrupts, who is not to wait for another.
        return False
    with suppress(EpsError):
        return client.report(application.application_id).ended
    return False


def end_submitted(client: Client, application: Application, reason: str) -> bool:
    """Have YARN end an application, as far as that is possible now, and say so; return whether there may be one."""
    name = application.application_id
    try:
        client.kill(name, reason)
    except JobNotFoundError:
        return False
    except EpsError as error:
        logger.warning("%s may run (yarn application -kill %s ends it): %s", name, name, error)
    else:
        logger.warning("%s does not run: %s", name, reason)
    return True


def common_orders(conf: HadoopConf, spec: JobSpec, shared: RemotePath, client: Client) -> MasterOrders:
    """Bring to the cluster what containers have of every job: our code, the configuration, an environment.

    Parameters
    ----------
    conf : HadoopConf
    spec : JobSpec
    shared : RemotePath
        Folder that the processes share.
    client : Client
        Says who submits.
    """
    home, environment = home_of(conf, spec, client), python_environment(spec.python)
    # Python imports from it as it is.
    code = put_once(home, pack_code(), "code.zip", FileKind.FILE)
    files = {CODE: code, CONF: put_once(home, pack_conf(conf), "conf.zip")}
    if environment.archive:
        files[ENVIRONMENT] = _environment_file(home, environment.archive)
    # A container's environment is set as it is given; the shell that runs the command knows where it is.
    python = f"env PYTHONPATH=$PWD/{CODE} HADOOP_CONF_DIR=$PWD/{CONF} {shlex.quote(environment.interpreter)}"
    env = {**passed_on(os.environ), "HADOOP_USER_NAME": client.user, "PYTHONDONTWRITEBYTECODE": "1"}
    return MasterOrders(str(shared), python, files, env)


def with_job(prepared: PreparedJob, orders: MasterOrders, shared: RemotePath, home: RemotePath) -> MasterOrders:
    """Bring a job's own files and its data to the cluster, and tell its processes that they are there.

    Parameters
    ----------
    prepared : PreparedJob
    orders : MasterOrders
        With what its containers have of every job.
    shared : RemotePath
        Folder that the job's processes share.
    home : RemotePath
        Where data is kept that jobs share.
    """
    job = prepared.directory
    published = publish_dataset(prepared.dataset, home / "data")
    runtime = dataclasses.replace(prepared.runtime, dataset_dir=published.directory)
    job.note(runtime=runtime.to_values(), yarn={"shared": str(shared)})
    archive = put_file(shared, JOB_ARCHIVE, io.BytesIO(pack_job(job).content), Visibility.APPLICATION)
    return dataclasses.replace(orders, files={**orders.files, JOB: archive})


def launch_of(module: str, orders: MasterOrders, files: Mapping[str, LocalFile], credentials: bytes = b"") -> Launch:
    """Return how an application master that is ``module`` is started, with ``files`` and tokens in its container."""
    command = f"exec {orders.python} -P -m {module} {LOG_STREAMS}"
    return Launch(command, {**orders.env, ORDERS: orders.to_text()}, files, credentials)


def pack_conf(conf: HadoopConf) -> Packed:
    """Return the files of the configuration, so that containers see the cluster as this client does."""
    folder = Path(conf.source)

    def found() -> Iterable[tuple[str, bytes, int]]:
        for name in (*FILES, SCHEDULER_FILE):
            # The scheduler's may be for the ResourceManager's user alone.
            if (folder / name).is_file() and (name in FILES or os.access(folder / name, os.R_OK)):
                yield name, self_contained(folder / name), 0o644
        if (folder / CLASS_PATH_FILE).is_file():
            yield CLASS_PATH_FILE, (folder / CLASS_PATH_FILE).read_bytes(), 0o644

    try:
        return packed(found())
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None


def put_once(home: RemotePath, archive: Packed, name: str, kind: FileKind = FileKind.ARCHIVE) -> LocalFile:
    """Return an archive in the cluster's cache, brought there if no job before this one did."""
    return _cached(home, archive.digest, name, len(archive.content), lambda: io.BytesIO(archive.content), kind)


def _cached(
    home: RemotePath,
    digest: str,
    name: str,
    size_bytes: int,
    source: Callable[[], BinaryIO],
    kind: FileKind = FileKind.ARCHIVE,
) -> LocalFile:
    cached = home / "cache" / digest / name
    found = cached.status()
    if found is None or found.size_bytes != size_bytes:
        found = _bring(cached, size_bytes, source)
    return _brought(cached, found, Visibility.PRIVATE, kind)


def _bring(cached: RemotePath, size_bytes: int, source: Callable[[], BinaryIO]) -> FileStatus:
    """Bring a file into a folder that is named by its content; return what is there then.

    Of several jobs that do so at once one does, and all take that file: a node refuses one that was written again.
    """
    folder, cache = cached.parent, cached.parent.parent.storage()
    coming = f".tmp-{secrets.token_hex(6)}"
    try:
        with source() as file, cache.write(f"{coming}/{cached.name}") as target:
            shutil.copyfileobj(file, target, 1 << 20)
        if folder.is_dir() and not _is_whole(cached.status(), size_bytes):
            # Of somebody who was killed while it was written: nobody can use it.
            cache.remove(folder.name)
        try:
            cache.rename(coming, folder.name)
        except StorageError:
            if not _is_whole(cached.status(), size_bytes):
                raise
    finally:
        with suppress(StorageError):
            cache.remove(coming)
    return cache.status(f"{folder.name}/{cached.name}")


def _is_whole(found: FileStatus | None, size_bytes: int) -> bool:
    return found is not None and found.size_bytes == size_bytes


def _environment_file(home: RemotePath, archive: str) -> LocalFile:
    if has_scheme(archive):
        return _brought(*_remote_archive(archive), Visibility.PRIVATE)
    path = Path(archive)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return _cached(home, digest, path.name, path.stat().st_size, lambda: path.open("rb"))
    except OSError as error:
        if isinstance(error, EpsError):
            raise
        raise ConfigError(f"python is {archive}: cannot be read: {error.strerror}") from None


def _remote_archive(archive: str) -> tuple[RemotePath, FileStatus]:
    where = RemotePath.parse(archive)
    found = where.status()
    if found is None or found.is_folder:
        raise ConfigError(f"python is {archive}, but there is no such archive")
    return where, found


def put_file(folder: RemotePath, name: str, source: BinaryIO, visibility: Visibility) -> LocalFile:
    """Write an archive to the cluster; return it as containers are brought it."""
    storage = folder.storage()
    with storage.write(name) as file:
        shutil.copyfileobj(source, file, 1 << 20)
    return _brought(folder / name, storage.status(name), visibility)


def _brought(
    where: RemotePath, found: FileStatus, visibility: Visibility, kind: FileKind = FileKind.ARCHIVE
) -> LocalFile:
    return LocalFile(str(where), found.size_bytes, found.modified_ms, kind, visibility)


def remove_shared(shared: RemotePath) -> None:
    """Remove what was brought for an application that does not run, as far as that is possible."""
    try:
        shared.parent.storage(patience_s=2.0).remove(shared.name)
    except StorageError:
        # What stopped a submission may stop this as well; it holds nothing that anybody needs.
        return
