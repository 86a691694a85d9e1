"""Jobs that share one application of YARN, on the side of its application master.

Each job's master is in a process of the application master's container, with others (:mod:`eps.job.yarn.masters`).
Its workers and servers are containers of the application, which the job's master asks the application master for
(:mod:`eps.cluster.broker.service`).  So one process of the application speaks to YARN, and has a Java virtual
machine.  Jobs end with that process, however it ends: the next attempt begins them again from their checkpoints.

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

#: Of the application's shared folder: a folder for each job, beside that for the checkpoints of all.
JOBS = "jobs"
#: A file system that does not answer is not waited for longer with what only takes room.
FORGET_PATIENCE_S = 2.0


def role_key(job: str, role: str) -> str:
    """Return what containers of a job's role are asked for as."""
    return f"{job}/{role}"


class Place:
    """The application that this process is the master of, as a place for jobs.  Thread-safe.

    Parameters
    ----------
    orders : MasterOrders
        What the containers of every job have.
    home : RemotePath
        Where data is kept that jobs share.
    attempt : str
        Differs from one attempt of the application to the next.
    host : str
        By which containers reach this one.
    broker : Broker
    roles : dict
        What the broker's resource manager starts containers by; here jobs' roles come and go.
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
        #: One start at a time: the first brings the data that all have, and hundreds at once would overrun HDFS.
        self._starting = threading.Lock()
        #: Jobs that have begun here, and not ended.
        self._begun: set[str] = set()

    def start(self, request: RunRequest, before_data: Callable[[], None] | None = None) -> tuple[JobDir, HostedMaster]:
        """Start a job; it ends with this process.  Raises as :meth:`eps.job.client.Job.start`."""
        if not request.spec.checkpoint_dir:
            # Of a job that is begun twice, by this attempt and by the one before, both may be there.
            request = request.with_spec(checkpoint_dir=str(self._shared / CHECKPOINTS / self._attempt))
        with self._starting:
            prepared = prepare_job(request, before_data)
            return prepared.directory, self._start_prepared(prepared)

    def start_prepared(self, prepared: PreparedJob) -> HostedMaster:
        """Start a job that is prepared already, as one that is resumed; raises as :meth:`start`."""
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
        """Start the process of the first job's master before there is one; raises as :meth:`start`."""
        make_private(jobs_dir())
        self._masters.warm_up(jobs_dir())

    def host_pids(self) -> list[int]:
        """Return the processes that run the jobs' masters."""
        return self._masters.pids()

    def close(self) -> None:
        """End all jobs; harmless when repeated."""
        self._masters.close()

    def _begin(self, prepared: PreparedJob) -> None:
        spec, job = prepared.runtime.spec, prepared.directory
        self.end(job.name)
        shared = self._folder(job.name)
        # Masters of this run are counted anew; who was told where one of the run before listens has ended.  By what
        # that run has left, the next attempt would take this one for ended.
        for left in (MASTER_FILE, RESULTS):
            shared.storage().remove(left)
        orders = with_job(prepared, self._orders, shared, self._home)
        with self._lock:
            self._begun.add(job.name)
            for role, template in role_templates(orders, spec, ENTRY_POINTS).items():
                self._roles[role_key(job.name, role)] = template
        address = self._broker.add(job.name, Security.of_job(job.path), spec.max_containers)
        job.note(yarn={"broker": {"broker": str(address), "host": self._host}})

    def end(self, job: str) -> None:
        """Give back all containers of a job that has ended; harmless where it has not begun here."""
        with self._lock:
            if job not in self._begun:
                return
            self._begun.remove(job)
        self._broker.remove(job)
        # What was asked for under its roles is withdrawn, or given back.
        with self._lock:
            for role in [role for role in self._roles if role.startswith(role_key(job, ""))]:
                del self._roles[role]

    def leave(self, job: JobDir, logs: bool = False) -> None:
        """Leave what a job has brought in the cluster's file system, and its master's log where that is wanted.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        storage = self._folder(job.name).storage()
        # By its report the next attempt knows that it has ended: whatever else there is, is there by then.
        wanted = [*([job.log("master"), job.log("supervisor")] if logs else []), job.model, job.report]
        for path in wanted:
            if path.is_file():
                with storage.write(f"{RESULTS}/{path.name}") as file, path.open("rb") as source:
                    while block := source.read(1 << 20):
                        file.write(block)

    def open_model(self, job: str) -> AbstractContextManager[BinaryIO]:
        """Return the model that a job has left, open for reading.

        Raises
        ------
        StorageError
            There is none, or it cannot be read.
        """
        return self._folder(job).storage().read(f"{RESULTS}/{JobDir(Path(job)).model.name}")

    def forget(self, job: JobDir) -> None:
        """Remove what a job that finished was begun with, and its checkpoints; its results were left before.

        Raises
        ------
        StorageError
            They cannot be removed.
        """
        # It has no settings where an attempt before has removed them.
        if job.record().runtime is not None:
            where, _, attempt = Runtime.of_job(job).spec.checkpoint_dir.rpartition("/")
            # Those of a folder that its user has named stay.
            if where == str(self._shared / CHECKPOINTS):
                self._shared.storage(patience_s=FORGET_PATIENCE_S).remove(f"{CHECKPOINTS}/{attempt}/{job.name}")
        self._folder(job.name).storage(patience_s=FORGET_PATIENCE_S).remove(JOB_ARCHIVE)

    def _folder(self, job: str) -> RemotePath:
        return self._shared / JOBS / job

    # ---- after an attempt that was lost

    def restore(self) -> list[str]:
        """Make the directories of jobs that an attempt before has begun, as far as their next run needs them.

        Raises
        ------
        StorageError
            They cannot be read, or made here.
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
                # Paths within the directory are other ones here.
                job.note(runtime=Runtime.of_job(job).within(job.path).to_values())
            if RESULTS in found and job.report.name in storage.names(f"{name}/{RESULTS}"):
                with storage.read(f"{name}/{RESULTS}/{job.report.name}") as file:
                    write_bytes_atomic(job.report, file.read(), sync=False)
        return names


_here: Place | None = None


def here() -> Place | None:
    """Return the application that this process is the master of; None in every other process."""
    return _here


@contextmanager
def standing(place: Place) -> Iterator[None]:
    """Have the jobs of this process that are to run on YARN run within its own application."""
    global _here
    _here = place
    try:
        yield
    finally:
        _here = None
