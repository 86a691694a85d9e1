"""Jobs that were submitted from any machine, found by their applications.

Where a job master listens, YARN tells; what its callers must prove to know lies where the job was staged, which only
its user can read.  Both together make a directory with which a job is asked as if it had been started here.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from eps.cluster.yarn.application import JOB_ARCHIVE, home_location, staged_name
from eps.core.types import Address
from eps.errors import ConfigError, StorageError
from eps.hadoop.conf import HadoopConf
from eps.storage.atomic import read_json, write_bytes_atomic, write_json_atomic
from eps.storage.jobdir import JobDir, check_job_name
from eps.system.home import DIRECTORY_MODE

if TYPE_CHECKING:
    from eps.storage.hdfs import HdfsStorage

#: A NameNode or DataNode that does not answer is waited for this long.
PATIENCE_S = 3.0
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
