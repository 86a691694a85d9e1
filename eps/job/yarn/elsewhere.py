"""Jobs on YARN of which this machine has no directory: theirs was lost, or is on another machine.

What a directory holds lies where the job was staged, which only its user can read.  The folder there is named by the
job and its application.
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
from eps.storage.claims import Claim, owner_of, signed_by
from eps.storage.jobdir import JobDir, JobLock, check_job_name, job_dir
from eps.storage.locations import RemotePath, open_storage
from eps.system.home import DIRECTORY_MODE

if TYPE_CHECKING:
    from eps.storage.hdfs import HdfsStorage

logger = logging.getLogger(__name__)

#: A NameNode or DataNode that does not answer is waited for this long.
PATIENCE_S = 3.0
#: Somebody mistyped a name, and waits.
FIND_S = 2.0
#: States of applications that have not ended.
_LIVE = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
_APPLICATION = re.compile(r"application_\d+_\d+", re.ASCII)
#: What callers of a master need of a job's directory.
_TOKEN, _TLS = "token", ("tls/ca.pem", "tls/certificate.pem", "tls/key.pem")


class StagedJobs:
    """Directories of jobs that run on YARN.  They hold secrets: they are this user's alone, and gone when closed.

    Parameters
    ----------
    conf : HadoopConf
    staging : str
        Where the jobs were told to be staged (``eps --staging``); empty: in their users' home folders.

    Raises
    ------
    ConfigError
        Where they were told to be staged is no location on HDFS.
    StorageError
        No directory can be made.
    """

    def __init__(self, conf: HadoopConf, staging: str = "") -> None:
        self._conf = conf
        self._staging = staging
        if staging:
            # Not only when somebody's job is looked for.
            home_location(conf, "", staging)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="eps-masters-"))
        except OSError as error:
            raise StorageError(f"{tempfile.gettempdir()}: no directory can be made: {error.strerror}") from error

    def directory(self, application_id: str, name: str, user: str, master: Address) -> JobDir:
        """Return a directory with which the job of an application can be asked.

        Parameters
        ----------
        application_id, name, user : str
            As YARN tells them.
        master : Address
            Where YARN says that it listens.

        Raises
        ------
        ConfigError
            No job can be called that, or the configuration has no file system.
        StorageError
            What the job was staged with cannot be read.
        """
        if not _APPLICATION.fullmatch(application_id):
            raise ConfigError(f"{application_id!r} is no application's id")
        job = JobDir(self._folder / application_id / check_job_name(name))
        if not job.token.exists():
            self._bring(job, application_id, user)
        place = {"host": master.host, "port": master.port}
        if read_json(job.master_json) != place:
            write_json_atomic(job.master_json, place, sync=False)
        return job

    def forget(self, application_id: str) -> None:
        """Remove what is kept of an application; harmless where that is nothing."""
        if _APPLICATION.fullmatch(application_id):
            shutil.rmtree(self._folder / application_id, ignore_errors=True)

    def close(self) -> None:
        """Remove all directories; harmless when repeated."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _bring(self, job: JobDir, application_id: str, user: str) -> None:
        """Bring token and certificates; the token last: where it is, all is there."""
        folder = home_location(self._conf, user, self._staging) / "jobs" / staged_name(job.name, application_id)
        found = _read_archive(folder.storage(patience_s=PATIENCE_S, conf=self._conf))
        # That there are certificates says that the job uses them.
        try:
            (job.tls if len(found) > 1 else job.path).mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be made: {error.strerror}") from error
        for name in sorted(found):
            write_bytes_atomic(job.path / name, found[name], sync=False)


def _read_archive(storage: HdfsStorage) -> dict[str, bytes]:
    with storage.read(JOB_ARCHIVE) as file, tempfile.TemporaryFile() as copy:
        try:
            # Initial parameters may be in it as well.
            shutil.copyfileobj(file, copy, 1 << 20)
            with zipfile.ZipFile(copy) as archive:
                there = set(archive.namelist())
                return {name: archive.read(name) for name in (_TOKEN, *_TLS) if name == _TOKEN or name in there}
        except (zipfile.BadZipFile, KeyError) as error:
            raise StorageError(f"{storage.describe(JOB_ARCHIVE)}: is not what a job is staged with: {error}") from None


def restore(name: str, unknown: JobNotFoundError) -> JobDir:
    """Make the directory of a job again from what its application has on the cluster of ``HADOOP_CONF_DIR``.

    Parameters
    ----------
    name : str
    unknown : JobNotFoundError
        Says that there is no such directory.

    Raises
    ------
    JobNotFoundError
        ``unknown``, with what YARN has of that name, or why it was not asked: this user has no folder of such a job on
        the cluster.
    PeerUnavailableError
        The cluster does not answer: whether it has one is not known.
    StorageError
        The directory cannot be made.
    """
    told = ""
    try:
        conf = environment_configuration()
        with closing(YarnClient(conf, FIND_S)) as client:
            try:
                told = _told_of(name, client.address, _live(client, name))
            except EpsError as error:
                told = f"; {error}"
            home = home_location(conf, client.user)
        folder = home / "jobs" / _latest_staged((home / "jobs").storage(patience_s=FIND_S, conf=conf).names(""), name)
        with folder.storage(patience_s=PATIENCE_S, conf=conf).read(JOB_ARCHIVE) as file:
            content = file.read()
    except (JobNotFoundError, ConfigError) as error:
        raise JobNotFoundError(f"{unknown}{told or f'; no cluster was asked: {error}'}") from None
    except EpsError as error:
        raise PeerUnavailableError(f"{unknown} here, and its cluster cannot be asked: {error}") from error
    job = job_dir(name)
    unpack_job(content, job)
    with JobLock(job.lock):
        # Paths within the directory are other ones here.
        runtime = Runtime.of_job(job).within(job.path)
        job.note(runtime=runtime.to_values())
        if runtime.spec.checkpoint_dir == str(home / CHECKPOINTS):
            Claim(str(home / CHECKPOINTS / name), runtime.owner, conf.source).write(job)
        Application(folder.name.removeprefix(f"{name}-"), str(folder), conf.source).write(job)
    logger.warning("%s was made again from %s", job.path, folder)
    return job


def _latest_staged(names: Collection[str], name: str) -> str:
    """Return the folder of the latest application of a job's name.

    Raises
    ------
    JobNotFoundError
        There is none.
    """
    numbered = re.compile(rf"{re.escape(name)}-application_(\d+)_(\d+)", re.ASCII)
    found = {(int(match[1]), int(match[2])): each for each in names if (match := numbered.fullmatch(each))}
    if not found:
        raise JobNotFoundError(f"no job {name!r}")
    return found[max(found)]


def _live(client: Client, name: str) -> list[ApplicationReport]:
    return [found for found in client.applications(states=_LIVE) if found.name == name]


def _told_of(name: str, address: str, found: Sequence[ApplicationReport]) -> str:
    """Return what YARN at an address has of a job's name and how that is ended, as the end of a sentence."""
    if not found:
        return f"; no application of YARN at {address} has that name"
    listed = ", ".join(f"{each.application_id} (of {each.user}, {each.state.lower()})" for each in found)
    ends = "; ".join(f"yarn application -kill {each.application_id}" for each in found)
    # In quotes, as a shell must not take it for files here.
    theirs = f"'.eps/jobs/{staged_pattern(name)}' .eps/checkpoints/{name}"
    return (
        f"; but YARN has {listed} of that name: {ends} ends it, and what it has on HDFS ({theirs}) stays then; a job "
        "that was submitted with --staging has that in the folder it named"
    )


def check_not_running(name: str, checkpoints: RemotePath, client: Client) -> None:
    """Refuse a name that a job still has which YARN runs, though its directory here was removed.

    Its checkpoints would go with the name: whoever is to have them is taken for what it was here before.

    Parameters
    ----------
    name : str
    checkpoints : RemotePath
        Where EPS has the checkpoints of all jobs of this user.
    client : Client

    Raises
    ------
    ConfigError
        No job may have that name.
    JobExistsError
        There is such a job.
    RpcError, StorageError
        The cluster, or its file system, cannot be asked.
    """
    former = job_dir(name)
    if former.path.exists() or signed_by(open_storage(checkpoints / name)) != owner_of(former):
        return
    found = [each for each in _live(client, name) if each.user == client.user]
    if found:
        raise JobExistsError(
            f"job {name!r} runs as {found[-1].application_id}, though its directory {former.path} was removed, and has "
            f"its checkpoints in {checkpoints / name}: choose another name, or end it first: eps kill {name}"
        )
