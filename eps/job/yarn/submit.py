"""Submit a prepared job to YARN: upload its files and request a container for its master.

Files that jobs share are uploaded once and named by their content: EPS's code, an environment's archive, prepared
data.  A job's own files are in a folder that only its user can read: settings, token, and the state of its masters.
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
from eps.job.launch import PreparedJob, prepare_job, remove_former
from eps.job.yarn.staged_jobs import check_not_running
from eps.spec.file import RunRequest
from eps.spec.job_spec import JobSpec
from eps.spec.results import detached_places
from eps.storage.hdfs import FileStatus
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath, has_scheme
from eps.storage.record import Record

logger = logging.getLogger(__name__)

#: Folder of the cluster's configuration in a container.
CONF = "eps-conf"
#: The application fails after this many failures of its master within this many seconds.  A supervisor allows more,
#: since it counts only failures without progress, which YARN does not know.
MOST_ATTEMPTS, FAILURES_VALID_S = 3, 60.0


def start(request: RunRequest, before_data: Callable[[], None] | None = None) -> JobDir:
    """Prepare a job, submit it as an application of its own, and return its directory once YARN has accepted it.

    Parameters
    ----------
    request : RunRequest
    before_data : callable, optional
        See :func:`eps.job.launch.prepare_job`.

    Raises
    ------
    ConfigError
        A setting is invalid, or HADOOP_CONF_DIR names no cluster.
    DataError
        The data cannot be used.
    AuthenticationError
        The cluster uses Kerberos, and this user has no valid ticket.
    JobExistsError
        A job of that name runs.
    ResourceError
        YARN refuses the application; the message says why.
    RpcError
        The cluster cannot be reached.
    StorageError
        The cluster's file system cannot be used.
    """
    conf = environment_configuration()
    prepared: PreparedJob | None = None
    try:
        with closing(YarnClient(conf)) as client:
            _check(request.spec, client, conf)
            # On the cluster, where every container and a later `eps resume` can read the checkpoints.
            own = home_of(conf, request.spec, client) / CHECKPOINTS
            if request.name and not request.spec.checkpoints.checkpoint_dir:
                check_not_running(request.name, own, client)
            client.prepare()
            prepared = prepare_job(request, before_data, own)
            submit(prepared, client, conf)
            return prepared.directory
    except BaseException as error:
        if prepared is not None:
            if prepared.directory.is_on_yarn():
                _note_application(error, prepared.directory)
            else:
                # It was not submitted.
                prepared.discard()
        raise
    finally:
        if prepared is not None:
            prepared.lock.close()


def check_prepared(spec: JobSpec) -> None:
    """Check a job for :func:`start_prepared` before its directory changes; raises the errors of :func:`start`.

    Parameters
    ----------
    spec : JobSpec
        The settings, with the size at which the job starts.
    """
    conf = environment_configuration()
    with closing(YarnClient(conf)) as client:
        _check(spec, client, conf)


def _check(spec: JobSpec, client: Client, conf: HadoopConf) -> None:
    check_job(Cluster(client), spec)
    check_environment(spec.yarn.python)
    check_file_systems(conf, spec, client)


def start_prepared(prepared: PreparedJob) -> None:
    """Submit a job that is already prepared and checked, such as a resumed one; raises the errors of :func:`start`.

    If the submission fails, the job's directory is restored to its state before it was prepared.
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
                _note_application(error, job)
            raise
        finally:
            if former is not None and Application.read(job) != former:
                remove_former(former.shared, former.remove)
    finally:
        prepared.lock.close()


def check_environment(python: str) -> None:
    """Check that containers can use an interpreter or archive.

    Raises
    ------
    ConfigError
        The path is no Python interpreter, or the archive does not exist.
    StorageError
        The archive's file system does not answer.
    """
    environment = python_environment(python)
    if has_scheme(environment.archive):
        _remote_archive(environment.archive)
    check_here(environment)


def submit(prepared: PreparedJob, client: Client, conf: HadoopConf) -> Application:
    """Upload a job's files and submit its application, which is noted in the job's directory first.

    Raises the errors of :func:`start`.  If it is unknown whether YARN accepted the application, EPS asks YARN to kill
    it.
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
            launch=dataclasses.replace(launch, access=spec.yarn.access()),
            resource=resource_of(spec, "master"),
            queue=spec.yarn.queue,
            tags=tags_of(spec),
            label=spec.yarn.label_of("master"),
            max_attempts=MOST_ATTEMPTS,
            failures_valid_s=FAILURES_VALID_S,
            priority=spec.yarn.priority if spec.yarn.priority >= 0 else None,
            lifetime_s=spec.yarn.lifetime_s or None,
        )
        application = Application(application_id, str(shared), conf.source)
        submit_noted(client, job, application, submission)
    except BaseException:
        remove_shared(shared)
        raise
    return application


def _admit_viewers(shared: RemotePath, spec: JobSpec) -> None:
    """Let the viewers of a job traverse its folder to the results; its secrets stay readable by its user only."""
    if viewers := spec.yarn.viewers():
        try:
            for folder in (shared.parent.parent, shared.parent, shared):
                folder.storage().admit("", viewers, "--x")
        except StorageError as error:
            logger.warning(
                "acl is %s: viewers can see the job's page, but not its results on HDFS: %s", spec.yarn.acl, error
            )


def submit_noted(
    client: Client,
    job: JobDir,
    application: Application,
    submission: Submission,
    ends: str = "",
) -> None:
    """Note an application in a job's directory, then submit it.

    If the answer is lost or the user interrupts, EPS asks YARN to kill the application and logs its id.  If YARN has
    refused the application or does not know it, the job's record is restored.  An interrupt gets a note with the
    command that ends the application: ``ends``, by default ``eps kill``.

    Raises the errors of :meth:`eps.cluster.yarn.facade.Client.submit`; StorageError if it cannot be noted.
    """
    before = job.record()
    try:
        # First, so that the application can be found if this process dies or YARN's answer is lost.
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
    """Restore a job's record to its state before the submission and before the preparation of this run."""
    if before == Record():
        job.job_json.unlink(missing_ok=True)
    elif job.give_back() is None:
        job.note(phase=before.phase, yarn={"application": before.yarn.application})


def _note_application(error: BaseException, job: JobDir) -> None:
    """Add a note about the job's application to an interrupt, also to one while the client closes."""
    application = Application.read(job)
    if application is not None:
        _note_interrupt(error, application, job)


def _note_interrupt(error: BaseException, application: Application, job: JobDir, ends: str = "") -> None:
    """Add a note to an interrupt, once: how to end the application if YARN still runs it."""
    if isinstance(error, KeyboardInterrupt) and not getattr(error, "__notes__", ()):
        ends = ends or f"eps kill {job.name}"
        told = f"interrupted while {application.application_id} was submitted: if it runs, end it with {ends}"
        error.add_note(f"{job.name}: {told}")


def _is_refusal(error: BaseException, client: Client, application: Application) -> bool:
    """Return whether YARN itself refused a submission: it then lists the application as ended."""
    if not isinstance(error, EpsError) or isinstance(error, RpcError):
        # Lost answer or interrupt: do not make the user wait for another call.
        return False
    with suppress(EpsError):
        return client.report(application.application_id).ended
    return False


def end_submitted(client: Client, application: Application, reason: str) -> bool:
    """Ask YARN once to kill an application, and log the result; return False if YARN does not know it."""
    name = application.application_id
    try:
        client.kill(name, reason)
    except JobNotFoundError:
        return False
    except EpsError as error:
        logger.warning("%s may run (end it with yarn application -kill %s): %s", name, name, error)
    else:
        logger.warning("%s does not run: %s", name, reason)
    return True


def common_orders(conf: HadoopConf, spec: JobSpec, shared: RemotePath, client: Client) -> MasterOrders:
    """Upload what the containers of all jobs share: EPS's code, the configuration, an environment.

    Parameters
    ----------
    conf : HadoopConf
    spec : JobSpec
    shared : RemotePath
        Folder that the application's processes share.
    client : Client
        Its user is the one that containers act as.
    """
    home, environment = home_of(conf, spec, client), python_environment(spec.yarn.python)
    # Not unpacked: Python imports from the archive.
    code = put_once(home, pack_code(), "code.zip", FileKind.FILE)
    files = {CODE: code, CONF: put_once(home, pack_conf(conf), "conf.zip")}
    if environment.archive:
        files[ENVIRONMENT] = _environment_file(home, environment.archive)
    # In the command, not in ``env``: YARN does not expand $PWD in a container's environment, the shell does.
    python = f"env PYTHONPATH=$PWD/{CODE} HADOOP_CONF_DIR=$PWD/{CONF} {shlex.quote(environment.interpreter)}"
    env = {**passed_on(os.environ), "HADOOP_USER_NAME": client.user, "PYTHONDONTWRITEBYTECODE": "1"}
    return MasterOrders(str(shared), python, files, env)


def with_job(prepared: PreparedJob, orders: MasterOrders, shared: RemotePath, home: RemotePath) -> MasterOrders:
    """Upload a job's own files and its data; return its orders, which name them.

    Parameters
    ----------
    prepared : PreparedJob
    orders : MasterOrders
        What the containers of all jobs share (:func:`common_orders`).
    shared : RemotePath
        Folder that the job's processes share.
    home : RemotePath
        Folder with the data sets that jobs share.
    """
    job = prepared.directory
    published = publish_dataset(prepared.dataset, home / "data")
    runtime = dataclasses.replace(prepared.runtime, dataset_dir=published.directory)
    job.note(runtime=runtime.to_values(), yarn={"shared": str(shared)})
    archive = put_file(shared, JOB_ARCHIVE, io.BytesIO(pack_job(job).content), Visibility.APPLICATION)
    return dataclasses.replace(orders, files={**orders.files, JOB: archive})


def launch_of(module: str, orders: MasterOrders, files: Mapping[str, LocalFile], credentials: bytes = b"") -> Launch:
    """Return the launch of an application master: ``module``, with ``files`` and tokens in its container."""
    command = f"exec {orders.python} -P -m {module} {LOG_STREAMS}"
    return Launch(command, {**orders.env, ORDERS: orders.to_text()}, files, credentials)


def pack_conf(conf: HadoopConf) -> Packed:
    """Pack the configuration files, so that containers see the cluster as this client does."""
    folder = Path(conf.source)

    def found() -> Iterable[tuple[str, bytes, int]]:
        for name in (*FILES, SCHEDULER_FILE):
            # Only the ResourceManager's user may be able to read the scheduler's file.
            if (folder / name).is_file() and (name in FILES or os.access(folder / name, os.R_OK)):
                yield name, self_contained(folder / name), 0o644
        if (folder / CLASS_PATH_FILE).is_file():
            yield CLASS_PATH_FILE, (folder / CLASS_PATH_FILE).read_bytes(), 0o644

    try:
        return packed(found())
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}") from None


def put_once(home: RemotePath, archive: Packed, name: str, kind: FileKind = FileKind.ARCHIVE) -> LocalFile:
    """Return an archive in the cluster's cache; upload it if it is not there."""
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
        found = _upload(cached, size_bytes, source)
    return _local_file(cached, found, Visibility.PRIVATE, kind)


def _upload(cached: RemotePath, size_bytes: int, source: Callable[[], BinaryIO]) -> FileStatus:
    """Upload a file into a folder named by its content; return the status of the file there.

    Concurrent uploads are safe: one of them wins and all use its file, since nodes refuse a file that has changed.
    """
    folder, cache = cached.parent, cached.parent.parent.storage()
    coming = f".tmp-{secrets.token_hex(6)}"
    try:
        with source() as file, cache.write(f"{coming}/{cached.name}") as target:
            shutil.copyfileobj(file, target, 1 << 20)
        if folder.is_dir() and not _is_complete(cached.status(), size_bytes):
            # Incomplete: left by an upload that was killed.
            cache.remove(folder.name)
        try:
            cache.rename(coming, folder.name)
        except StorageError:
            if not _is_complete(cached.status(), size_bytes):
                raise
    finally:
        with suppress(StorageError):
            cache.remove(coming)
    return cache.status(f"{folder.name}/{cached.name}")


def _is_complete(found: FileStatus | None, size_bytes: int) -> bool:
    return found is not None and found.size_bytes == size_bytes


def _environment_file(home: RemotePath, archive: str) -> LocalFile:
    if has_scheme(archive):
        return _local_file(*_remote_archive(archive), Visibility.PRIVATE)
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
    """Upload an archive; return it as a file of a container."""
    with folder.storage().write(name) as file:
        shutil.copyfileobj(source, file, 1 << 20)
    return uploaded_file(folder, name, visibility)


def uploaded_file(folder: RemotePath, name: str, visibility: Visibility) -> LocalFile:
    """Return an archive that was uploaded as a file of a container."""
    return _local_file(folder / name, folder.storage().status(name), visibility)


def _local_file(
    where: RemotePath, found: FileStatus, visibility: Visibility, kind: FileKind = FileKind.ARCHIVE
) -> LocalFile:
    return LocalFile(str(where), found.size_bytes, found.modified_ms, kind, visibility)


def remove_shared(shared: RemotePath) -> None:
    """Try to remove the uploaded files of an application that does not run."""
    try:
        shared.parent.storage(patience_s=2.0).remove(shared.name)
    except StorageError:
        # The file system may be what failed; the files only take space.
        return
