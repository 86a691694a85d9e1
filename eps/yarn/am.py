"""``python -m eps.yarn.am``: the job master as an application master.  L5.

The same :class:`~eps.master.main.Master` as on one machine, with three things in other places: containers come from
YARN, what the job's masters share (the log of their state, and where the latest of them listens) is in the cluster's
file system, and so is what the job leaves behind.  A master that is lost is started again by YARN, as the next attempt
of the application; its workers and servers stay (``keepContainersAcrossApplicationAttempts``) and find it.

Source: EPS §5.1 and Fig. 12 (the job master is the application master of one job).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from eps.core.events import JobState
from eps.core.master_state import MasterState
from eps.core.types import Role
from eps.errors import ConfigError, EpsError, StorageError
from eps.hadoop_conf import FILES, SCHEDULER_FILE, read_configuration
from eps.logs import set_up_logging
from eps.master.main import Master
from eps.master.place import announce_in
from eps.master.state_log import StateLog
from eps.resources.api import NO_NEWS
from eps.resources.yarn import Place, YarnResourceManager
from eps.rpc.call import BoundServer
from eps.rpc.security import Security
from eps.runtime import Runtime
from eps.storage.api import Storage
from eps.storage.jobdir import JobDir
from eps.storage.locations import open_storage
from eps.storage.shared_log import DamagedLogError, LogStorage, SharedLog
from eps.van.memory import raise_descriptor_limit, tune_malloc
from eps.yarn.allocation import Limits
from eps.yarn.application import COPY_BYTES, ENDED_FILE, ORDERS, RESULTS, STATE, MasterOrders, role_templates
from eps.yarn.container import own_job_dir
from eps.yarn.facade import AmClient, NmClient
from eps.yarn.launch import LaunchTemplate
from eps.yarn.page import JobPage

logger = logging.getLogger(__name__)

#: Set by a NodeManager: the name of its host.
NODE_HOST = "NM_HOST"
#: Setting of the ResourceManager: milliseconds from a preemption message to the end of the container.
PREEMPTION_WAIT = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill"
#: Exit code of an attempt that finds that a later one has taken over, or that YARN has ended it.
SUPERSEDED = 71
SUPERSEDED_REASON = "another job master has taken over"
#: What is logged while the job runs is waited for this long, beside what Hadoop's client itself waits.
LOG_PATIENCE_S = 2.0
#: The owner thread writes a model to the cluster's file system, which may wait for a NameNode to come back.
RESULTS_PATIENCE_S = 300.0
#: Exit code of one that is not told what it must know.
CANNOT_START = 2


def template_of(orders: MasterOrders, runtime: Runtime, credentials: bytes = b"") -> LaunchTemplate:
    """Return how the workers and servers of a job are started, and what they prove with who they are."""
    return LaunchTemplate(role_templates(orders, runtime.spec), credentials)


class Results:
    """Leaves what a job has brought where its client fetches it.

    Parameters
    ----------
    job : JobDir
        Of this process.
    shared : Storage
    """

    def __init__(self, job: JobDir, shared: Storage) -> None:
        self._job = job
        self._shared = shared

    def leave(self, exit_code: int, state: str, reason: str) -> None:
        """Copy the files, and last how the job ended: where that is, the others are.

        Raises
        ------
        StorageError
            They cannot be written.
        """
        for path in (self._job.report, self._job.model, self._job.journal, self._job.status_json):
            if path.is_file():
                # A model may be larger than what is left of the container.
                with path.open("rb") as source, self._shared.write(f"{RESULTS}/{path.name}") as file:
                    shutil.copyfileobj(source, file, COPY_BYTES)
        ended = {"state": state, "exit_code": exit_code, "reason": reason}
        with self._shared.write(f"{RESULTS}/{ENDED_FILE}") as file:
            file.write(json.dumps(ended).encode("utf-8"))


class JobResources(YarnResourceManager):
    """YARN's containers for a job that leaves its results before it says that it has ended."""

    #: Set before the job begins.
    results: Results
    iterations: int = 1

    def beat(self, progress: int, patience_s: float = 0.0) -> None:
        """Say that the owner thread lives, and how far the job is."""
        self.fraction_done = min(1.0, max(0, progress) / max(1, self.iterations))
        super().beat(progress, patience_s)

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Leave the results, then end whatever still runs and tell YARN how the job ended."""
        super().beat(NO_NEWS, RESULTS_PATIENCE_S)
        try:
            self.results.leave(exit_code, state, reason)
        except StorageError as error:
            logger.exception("M the results cannot be left")
            if exit_code == 0:
                exit_code, state, reason = 1, str(JobState.FAILED), f"the results cannot be written: {error}"
        super().end_job(exit_code, state, reason)


class YarnMaster(Master):
    """A job master whose status tells what only an application master knows, to whoever shrinks the job for others.

    Parameters
    ----------
    resources : YarnResourceManager
    *others
        As of :class:`~eps.master.main.Master`, whose other two positions come before.
    """

    def __init__(
        self, runtime: Runtime, job: JobDir, resources: YarnResourceManager, *others: Any, **more: Any
    ) -> None:
        self._granted = resources.granted
        super().__init__(runtime, job, resources, *others, **more)

    def _status(self) -> dict[str, Any]:
        found = with_grants(super()._status(), self._granted())
        # Of the nodes that its containers may be on; empty: any without one, and what others leave free.
        labels = {str(role): self._runtime.spec.by_role("label", str(role)) for role in Role}
        return {**found, "manager": self.manager, "labels": labels}


def with_grants(status: dict[str, Any], granted: Mapping[str, str]) -> dict[str, Any]:
    """Return a status with YARN's name of each member's container, empty before it is granted."""
    members = [{**member, "granted": granted.get(member["container"], "")} for member in status["members"]]
    return {**status, "members": members}


def limits_of(container_timeout_s: float, preemption_wait_ms: str, grow_back_s: float) -> Limits:
    """Return how long things may take; the ResourceManager does not tell what it leaves whom it preempts."""
    limits = Limits(grant_s=container_timeout_s or None, quiet_s=grow_back_s)
    if preemption_wait_ms.isdecimal():
        limits = dataclasses.replace(limits, preemption_s=int(preemption_wait_ms) / 1000.0)
    return limits


def preemption_wait_ms(conf_dir: str) -> str:
    """Return :data:`PREEMPTION_WAIT` as a ResourceManager reads it; empty where nothing says it.

    Parameters
    ----------
    conf_dir : str
        The folder of the cluster's configuration.  A ResourceManager also reads ``capacity-scheduler.xml``, after the
        others: the submitting host may have it.

    Raises
    ------
    ConfigError
        It cannot be read.
    """
    return read_configuration(Path(conf_dir), files=(*FILES, SCHEDULER_FILE)).get(PREEMPTION_WAIT)


def leave(reason: str) -> None:
    """End this process at once: whatever it still did, the next attempt does already, or nobody wants any more."""
    logger.critical("M %s: this one ends", reason)
    os._exit(SUPERSEDED)


def run(orders: MasterOrders, job: JobDir, host: str) -> int:
    """Run the job's master on Hadoop's YARN; return the exit code.

    Raises
    ------
    EpsError
        It cannot begin.
    """
    # Whoever only looks into this module needs no Java.
    from eps.yarn.hadoop.files import HadoopFiles
    from eps.yarn.hadoop.master import open_master
    from eps.yarn.hadoop.session import HadoopSession
    from eps.yarn.hadoop.tokens import tokens_for_containers
    from eps.yarn.log_storage import HadoopLogStorage

    session = HadoopSession()
    files = HadoopFiles(session)
    store = HadoopLogStorage(files, open_storage(orders.shared))
    at_work = HadoopLogStorage(files, open_storage(orders.shared, patience_s=LOG_PATIENCE_S))
    am, nm = open_master(session)
    tokens = tokens_for_containers(session)
    wait_ms = preemption_wait_ms(os.environ["HADOOP_CONF_DIR"])
    return serve(orders, job, host, am, nm, store, tokens, wait_ms, log_store=at_work)


def serve(
    orders: MasterOrders,
    job: JobDir,
    host: str,
    am: AmClient,
    nm: NmClient,
    shared: LogStorage,
    credentials: bytes = b"",
    preemption_wait_ms: str = "",
    watch: Callable[[MasterState, bool], None] | None = None,
    log_store: LogStorage | None = None,
) -> int:
    """Run the job's master on whatever is behind the facade; return the exit code.

    Parameters
    ----------
    orders : MasterOrders
    job : JobDir
        Of this process.
    host : str
        Where it listens.
    am, nm : AmClient, NmClient
        Closed when this returns.
    shared : LogStorage
        The folder that the job's processes share.
    credentials : bytes
        Tokens for the containers, in Hadoop's format; empty: none.
    preemption_wait_ms : str
        What the cluster says of :data:`PREEMPTION_WAIT`; empty: nothing.
    watch : callable, optional
        As of :class:`~eps.master.main.Master`.
    log_store : LogStorage, optional
        The shared folder as the log is written while the job runs; default: ``shared``.

    Raises
    ------
    EpsError
        It cannot begin; YARN tries it again.
    """
    runtime = Runtime.from_json(job.job_json.read_text(encoding="utf-8")).within(job.path)
    spec, security = runtime.spec, Security.of_job(job.path)
    server = BoundServer(host, security=security)
    resources = JobResources(
        am,
        nm,
        template_of(orders, runtime, credentials),
        Place(server.address.host, server.address.port),
        limits=limits_of(spec.container_timeout_s, preemption_wait_ms, spec.grow_back_s),
        max_containers=spec.max_containers,
        on_ended=leave,
    )
    resources.results, resources.iterations = Results(job, shared), spec.iterations

    page: JobPage | None = None
    log: StateLog | None = None
    try:
        log = StateLog(SharedLog.open(shared, STATE, partial(leave, SUPERSEDED_REASON), log_store))
        announce = announce_in(job, shared)
        master = YarnMaster(runtime, job, resources, security, watch, server=server, log=log, announce=announce)
        page = JobPage(host, master.status)
        resources.show_page(page.url)
        return master.run()
    except StorageError as error:
        if log is None and not isinstance(error, DamagedLogError):
            # The next attempt may find the store again, and the job as it is.
            raise
        logger.exception("M cannot go on")
        resources.end_job(1, str(JobState.FAILED), f"the job master cannot go on: {error}")
        return 1
    finally:
        if page is not None:
            page.close()
        resources.close()


def main() -> int:
    """Run the application master of the environment; return its exit code."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    try:
        orders = MasterOrders.from_text(os.environ.get(ORDERS, ""))
        host = os.environ.get(NODE_HOST, "")
        if not host:
            raise ConfigError(f"{NODE_HOST} is not set: this is no container of YARN")
        return run(orders, own_job_dir(Path.cwd()), host)
    except EpsError as error:
        logger.exception("M cannot begin")
        # YARN shows the end of this to whoever asks why the application failed.
        print(f"eps: {error}", file=sys.stderr)
        return CANNOT_START


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not ``sys.exit``: a thread that Java holds must not hold this process.
    os._exit(code)
