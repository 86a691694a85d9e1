"""Jobs on YARN without a directory on this machine: it was lost, or is on another machine.

The job's staging folder on the cluster has a copy of the directory, which only the job's user can read.  The folder is
named after the job and its application.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import zipfile
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from eps.cluster.yarn.application import (
    CHECKPOINTS,
    JOB_ARCHIVE,
    Application,
    home_location,
    staged_name,
    staged_pattern,
)
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.shipping import unpack_job
from eps.cluster.yarn.types import ApplicationReport
from eps.core.types import Address
from eps.errors import ConfigError, EpsError, JobExistsError, JobNotFoundError, PeerUnavailableError, StorageError
from eps.hadoop.conf import HadoopConf, environment_configuration
from eps.spec.runtime import Runtime
from eps.storage.atomic import read_json, write_bytes_atomic, write_json_atomic
from eps.storage.claims import Claim, owner_of, read_owner
from eps.storage.jobdir import JobDir, JobLock, check_job_name, job_dir
from eps.storage.locations import RemotePath, open_storage
from eps.system.home import DIRECTORY_MODE

if TYPE_CHECKING:
    from eps.storage.hdfs import HdfsStorage

logger = logging.getLogger(__name__)

#: Timeout for a NameNode or DataNode that does not answer.
PATIENCE_S = 3.0
#: Short timeout while a job is looked up: the name may be mistyped, and a user waits.
FIND_S = 2.0
#: States of applications that have not ended.
_LIVE = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
_APPLICATION = re.compile(r"application_\d+_\d+", re.ASCII)
#: Files of a job's directory that a client needs to call the job master.
_TOKEN, _TLS = "token", ("tls/ca.pem", "tls/certificate.pem", "tls/key.pem")


class StagedJobs:
    """Temporary directories of jobs on YARN, with what is needed to call their masters.

    They hold secrets, so only this user can read them, and :meth:`close` removes them.

    Parameters
    ----------
    conf : HadoopConf
    staging : str
        Staging folder of the jobs (``eps --staging``); empty: the home folders of their users.

    Raises
    ------
    ConfigError
        ``staging`` is no location on HDFS.
    StorageError
        The temporary directory cannot be made.
    """

    def __init__(self, conf: HadoopConf, staging: str = "") -> None:
        self._conf = conf
        self._staging = staging
        if staging:
            # Refuse a wrong location now, not at the first job.
            home_location(conf, "", staging)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="eps-masters-"))
        except OSError as error:
            raise StorageError(f"{tempfile.gettempdir()}: cannot create a directory: {error.strerror}") from error

    def directory(self, application_id: str, name: str, user: str, master: Address) -> JobDir:
        """Return a directory with which clients can call the master of an application's job.

        Parameters
        ----------
        application_id, name, user : str
            As YARN reports them.
        master : Address
            Address of the job master, as YARN reports it.

        Raises
        ------
        ConfigError
            ``name`` is no valid job name, or the configuration names no file system.
        StorageError
            The job's staged files cannot be read.
        """
        if not _APPLICATION.fullmatch(application_id):
            raise ConfigError(f"{application_id!r} is no application id: expected application_<timestamp>_<number>")
        job = JobDir(self._folder / application_id / check_job_name(name))
        if not job.token.exists():
            self._download_secrets(job, application_id, user)
        place = {"host": master.host, "port": master.port}
        if read_json(job.master_json) != place:
            write_json_atomic(job.master_json, place, sync=False)
        return job

    def forget(self, application_id: str) -> None:
        """Remove the directory of an application's job.  Idempotent."""
        if _APPLICATION.fullmatch(application_id):
            shutil.rmtree(self._folder / application_id, ignore_errors=True)

    def close(self) -> None:
        """Remove all directories.  Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _download_secrets(self, job: JobDir, application_id: str, user: str) -> None:
        """Download certificates and token; the token is written last, so that its presence means that all are there."""
        folder = home_location(self._conf, user, self._staging) / "jobs" / staged_name(job.name, application_id)
        found = _read_archive(folder.storage(patience_s=PATIENCE_S, conf=self._conf))
        # A job that uses TLS has certificates in its archive.
        try:
            (job.tls if len(found) > 1 else job.path).mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be created: {error.strerror}") from error
        for name in sorted(found):
            write_bytes_atomic(job.path / name, found[name], sync=False)


def _read_archive(storage: HdfsStorage) -> dict[str, bytes]:
    with storage.read(JOB_ARCHIVE) as file, tempfile.TemporaryFile() as copy:
        try:
            # Not in memory: the archive may hold large initial parameters.
            shutil.copyfileobj(file, copy, 1 << 20)
            with zipfile.ZipFile(copy) as archive:
                there = set(archive.namelist())
                return {name: archive.read(name) for name in (_TOKEN, *_TLS) if name == _TOKEN or name in there}
        except (zipfile.BadZipFile, KeyError) as error:
            raise StorageError(f"{storage.describe(JOB_ARCHIVE)}: is no archive of a staged job: {error}") from None


def restore(name: str, unknown: JobNotFoundError) -> JobDir:
    """Restore the directory of a job from its staged files on the cluster of ``HADOOP_CONF_DIR``.

    Parameters
    ----------
    name : str
    unknown : JobNotFoundError
        The error of the lookup on this machine; its message opens the message of a failure.

    Raises
    ------
    JobNotFoundError
        This user has staged no such job on the cluster.  The message lists applications of that name on YARN, or says
        why YARN was not asked.
    PeerUnavailableError
        The cluster does not answer, so that it is unknown whether it has the job.
    StorageError
        The directory cannot be made.
    """
    told = ""
    try:
        conf = environment_configuration()
        with closing(YarnClient(conf, FIND_S)) as client:
            try:
                told = _applications_text(name, client.address, _live(client, name))
            except EpsError as error:
                told = f"; {error}"
            home = home_location(conf, client.user)
        folder = home / "jobs" / _latest_staged((home / "jobs").storage(patience_s=FIND_S, conf=conf).names(""), name)
        with folder.storage(patience_s=PATIENCE_S, conf=conf).read(JOB_ARCHIVE) as file:
            content = file.read()
    except (JobNotFoundError, ConfigError) as error:
        raise JobNotFoundError(f"{unknown}{told or f'; no cluster was asked: {error}'}") from None
    except EpsError as error:
        raise PeerUnavailableError(f"{unknown} on this machine, and the cluster cannot be asked: {error}") from error
    job = job_dir(name)
    unpack_job(content, job)
    with JobLock(job.lock):
        # The directory has another path on this machine.
        runtime = Runtime.of_job(job).within(job.path)
        job.note(runtime=runtime.to_values())
        if runtime.spec.checkpoints.checkpoint_dir == str(home / CHECKPOINTS):
            Claim(str(home / CHECKPOINTS / name), runtime.owner, conf.source).write(job)
        Application(folder.name.removeprefix(f"{name}-"), str(folder), conf.source).write(job)
    logger.warning("%s was restored from %s", job.path, folder)
    return job


def _latest_staged(names: Collection[str], name: str) -> str:
    """Return the staging folder of the latest application with a job's name.

    Raises
    ------
    JobNotFoundError
        There is no such folder.
    """
    numbered = re.compile(rf"{re.escape(name)}-application_(\d+)_(\d+)", re.ASCII)
    found = {(int(match[1]), int(match[2])): each for each in names if (match := numbered.fullmatch(each))}
    if not found:
        raise JobNotFoundError(f"no job {name!r}")
    return found[max(found)]


def _live(client: Client, name: str) -> list[ApplicationReport]:
    return [found for found in client.applications(states=_LIVE) if found.name == name]


def _applications_text(name: str, address: str, found: Sequence[ApplicationReport]) -> str:
    """Return the end of a sentence: the applications of a job's name on YARN, and how to end them."""
    if not found:
        return f"; no application of YARN at {address} has that name"
    listed = ", ".join(f"{each.application_id} (of {each.user}, {each.state.lower()})" for each in found)
    ends = "; ".join(f"yarn application -kill {each.application_id}" for each in found)
    # Quoted, so that a shell does not expand the pattern on this machine.
    theirs = f"'.eps/jobs/{staged_pattern(name)}' .eps/checkpoints/{name}"
    return (
        f"; but YARN has {listed} of that name.  To end it: {ends}.  Its files on HDFS ({theirs}) stay; those of a job "
        "submitted with --staging are in the folder given there"
    )


def check_not_running(name: str, checkpoints: RemotePath, client: Client) -> None:
    """Refuse the name of a job that still runs on YARN although its directory here was removed.

    A new job of that name would take over the checkpoints of the running one.

    Parameters
    ----------
    name : str
    checkpoints : RemotePath
        Folder with the checkpoints of all jobs of this user.
    client : Client

    Raises
    ------
    ConfigError
        The name is invalid.
    JobExistsError
        Such a job runs.
    RpcError, StorageError
        The cluster or its file system does not answer.
    """
    former = job_dir(name)
    if former.path.exists() or read_owner(open_storage(checkpoints / name)) != owner_of(former):
        return
    found = [each for each in _live(client, name) if each.user == client.user]
    if found:
        raise JobExistsError(
            f"job {name!r} still runs as {found[-1].application_id}, though its directory {former.path} was removed; "
            f"its checkpoints are in {checkpoints / name}: choose another name, or end it first: eps kill {name}"
        )
