"""Run jobs that share one application of YARN, in its application master.

The job masters run in processes of the application master's container, several in each (:mod:`eps.job.yarn.masters`).
Workers and servers are containers of the application; a job master requests them from the application master
(:mod:`eps.cluster.broker.service`).  So only one process of the application talks to YARN and needs a Java virtual
machine.  If that process ends, all jobs end; the next attempt restarts them from their checkpoints.

Source: EPS §5.1 and Fig. 12 (each job is an application of its own).  Deviation: here several share one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from eps.cluster.broker.service import Broker
from eps.cluster.yarn.application import CHECKPOINTS, JOB_ARCHIVE, RESULTS, MasterOrders, role_templates
from eps.cluster.yarn.launch import RoleTemplate
from eps.cluster.yarn.shipping import unpack_job
from eps.job.entry_points import ENTRY_POINTS
from eps.job.launch import PreparedJob, prepare_job
from eps.job.yarn.masters import HostedMaster, MasterHosts
from eps.job.yarn.submit import with_job
from eps.net.security.credentials import Security
from eps.spec.file import RunRequest
from eps.spec.runtime import Runtime
from eps.storage.atomic import write_bytes_atomic
from eps.storage.jobdir import MASTER_FILE, JobDir, jobs_dir
from eps.storage.locations import RemotePath
from eps.system.home import make_private

logger = logging.getLogger(__name__)

#: Subfolder of the application's shared folder, with a folder for each job.
JOBS = "jobs"
#: Short timeout for the removal of files that are only a waste of space.
FORGET_PATIENCE_S = 2.0


def role_key(job: str, role: str) -> str:
    """Return the role name under which the broker requests containers of a job's role."""
    return f"{job}/{role}"


class SharedApplication:
    """Run jobs inside the application of this application master.  Thread-safe.

    Parameters
    ----------
    orders : MasterOrders
        Settings and files that the containers of all jobs share.
    home : RemotePath
        Folder with the data sets that jobs share.
    attempt : str
        Name of this attempt of the application; every attempt has another.
    host : str
        Name of this host, for the containers.
    broker : Broker
    roles : dict
        Role -> template from which the broker's resource manager starts containers.  Starting and ending a job adds
        and removes entries.
    """

    def __init__(
        self,
        orders: MasterOrders,
        home: RemotePath,
        attempt: str,
        host: str,
        broker: Broker,
        roles: dict[str, RoleTemplate],
    ) -> None:
        self._orders, self._home, self._attempt, self._host = orders, home, attempt, host
        self._broker, self._roles = broker, roles
        self._shared = RemotePath.parse(orders.shared)
        self._lock = threading.Lock()
        self._masters = MasterHosts()
        #: One start at a time: the first uploads the shared data, and hundreds at once would overload HDFS.
        self._starting = threading.Lock()
        #: Jobs that were started here and have not ended.
        self._begun: set[str] = set()

    def start(self, request: RunRequest, before_data: Callable[[], None] | None = None) -> tuple[JobDir, HostedMaster]:
        """Start a job, which ends with this process; raises the errors of :meth:`eps.job.client.Job.start`."""
        if not request.spec.checkpoints.checkpoint_dir:
            # A folder for each attempt: the run of the previous attempt may still write its checkpoints.
            request = request.with_spec(checkpoint_dir=str(self._shared / CHECKPOINTS / self._attempt))
        with self._starting:
            prepared = prepare_job(request, before_data)
            return prepared.directory, self._start_prepared(prepared)

    def start_prepared(self, prepared: PreparedJob) -> HostedMaster:
        """Start a job that is already prepared, such as a resumed one; raises the errors of :meth:`start`."""
        with self._starting:
            return self._start_prepared(prepared)

    def _start_prepared(self, prepared: PreparedJob) -> HostedMaster:
        try:
            self._begin(prepared)
        except BaseException:
            prepared.lock.close()
            raise
        return self._masters.start(prepared)

    def warm_up(self) -> None:
        """Start a process for job masters before the first job needs it; raises ResourceError if it cannot."""
        make_private(jobs_dir())
        self._masters.warm_up(jobs_dir())

    def host_pids(self) -> list[int]:
        """Return the processes that run the jobs' masters."""
        return self._masters.pids()

    def close(self) -> None:
        """End all jobs.  Idempotent."""
        self._masters.close()

    def _begin(self, prepared: PreparedJob) -> None:
        spec, job = prepared.runtime.spec, prepared.directory
        self.end(job.name)
        shared = self._folder(job.name)
        # Remove the previous run's address, whose generation count starts again, and its results: from those the next
        # attempt would conclude that this run has ended.
        for left in (MASTER_FILE, RESULTS):
            shared.storage().remove(left)
        orders = with_job(prepared, self._orders, shared, self._home)
        with self._lock:
            self._begun.add(job.name)
            for role, template in role_templates(orders, spec, ENTRY_POINTS).items():
                self._roles[role_key(job.name, role)] = template
        address = self._broker.add(job.name, Security.of_job(job.path), spec.containers.max_containers)
        job.note(yarn={"broker": {"broker": str(address), "host": self._host}})

    def end(self, job: str) -> None:
        """Release all containers of an ended job.  Does nothing for a job that was not started here."""
        with self._lock:
            if job not in self._begun:
                return
            self._begun.remove(job)
        self._broker.remove(job)
        # Only now: removing the job withdraws and releases containers of these roles.
        with self._lock:
            for role in [role for role in self._roles if role.startswith(role_key(job, ""))]:
                del self._roles[role]

    def upload_results(self, job: JobDir, logs: bool = False) -> None:
        """Upload the results of a job to the cluster's file system, with its master's log if ``logs``.

        Raises
        ------
        StorageError
            The results cannot be written.
        """
        storage = self._folder(job.name).storage()
        # The report last: it tells the next attempt that the job has ended and that the other files are complete.
        wanted = [*([job.log("master"), job.log("supervisor")] if logs else []), job.model, job.report]
        for path in wanted:
            if path.is_file():
                with storage.write(f"{RESULTS}/{path.name}") as file, path.open("rb") as source:
                    while block := source.read(1 << 20):
                        file.write(block)

    def open_model(self, job: str) -> AbstractContextManager[BinaryIO]:
        """Open the uploaded model of a job for reading.

        Raises
        ------
        StorageError
            There is no model, or it cannot be read.
        """
        return self._folder(job).storage().read(f"{RESULTS}/{JobDir(Path(job)).model.name}")

    def forget(self, job: JobDir) -> None:
        """Remove the archive and the checkpoints of a finished job; its uploaded results stay.

        Raises
        ------
        StorageError
            They cannot be removed.
        """
        # Without settings, a previous attempt has already removed them.
        if job.record().runtime is not None:
            where, _, attempt = Runtime.of_job(job).spec.checkpoints.checkpoint_dir.rpartition("/")
            # Checkpoints in a folder that the user chose stay.
            if where == str(self._shared / CHECKPOINTS):
                self._shared.storage(patience_s=FORGET_PATIENCE_S).remove(f"{CHECKPOINTS}/{attempt}/{job.name}")
        self._folder(job.name).storage(patience_s=FORGET_PATIENCE_S).remove(JOB_ARCHIVE)

    def _folder(self, job: str) -> RemotePath:
        return self._shared / JOBS / job

    # ---- after an attempt that was lost

    def restore(self) -> list[str]:
        """Restore the directories of the jobs that previous attempts started; return the jobs' names.

        Raises
        ------
        StorageError
            Files on the cluster cannot be read, or directories here cannot be written.
        """
        storage = (self._shared / JOBS).storage()
        names = storage.names("")
        for name in names:
            job = JobDir(jobs_dir() / name)
            make_private(job.path)
            found = storage.names(name)
            if JOB_ARCHIVE in found:
                with storage.read(f"{name}/{JOB_ARCHIVE}") as file:
                    unpack_job(file.read(), job)
                # The directory has another path in this container.
                job.note(runtime=Runtime.of_job(job).within(job.path).to_values())
            if RESULTS in found and job.report.name in storage.names(f"{name}/{RESULTS}"):
                with storage.read(f"{name}/{RESULTS}/{job.report.name}") as file:
                    write_bytes_atomic(job.report, file.read(), sync=False)
        return names


_here: SharedApplication | None = None


def current() -> SharedApplication | None:
    """Return the application that runs jobs in this process; None outside an application master of H-scheduler."""
    return _here


@contextmanager
def hosting(place: SharedApplication) -> Iterator[None]:
    """Run the YARN jobs that this process starts inside ``place``, not as applications of their own."""
    global _here
    _here = place
    try:
        yield
    finally:
        _here = None
