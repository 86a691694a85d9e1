"""``python -m eps.job.yarn.am``: the job master as an application master.

It is the same :class:`~eps.master.main.Master` as on one machine, with three differences:

* YARN grants the containers;
* the state log and the address of the current master are on the cluster's file system;
* the results go there as well.

If the master dies, YARN starts the next attempt of the application.  Workers and servers keep running
(``keepContainersAcrossApplicationAttempts``) and connect to the new master.

Source: EPS §5.1 and Fig. 12 (the job master is the application master of one job).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eps.cluster.api import NO_NEWS
from eps.cluster.yarn.application import STATE, MasterOrders, role_templates
from eps.cluster.yarn.attempt import Yarn, exit_process, exit_superseded, run_attempt
from eps.cluster.yarn.container import own_job_dir
from eps.cluster.yarn.launch import LaunchTemplate
from eps.cluster.yarn.proxied import ProxiedServer
from eps.cluster.yarn.resources import MasterEndpoint, YarnResourceManager
from eps.core.events import JobState, KillRequested
from eps.core.job import Job
from eps.errors import StorageError
from eps.job.entry_points import ENTRY_POINTS
from eps.job.page import pages_of
from eps.job.yarn.results import Results, StatusRefresher
from eps.master.main import RESULTS_PATIENCE_S, Master
from eps.master.records import job_metrics
from eps.master.service import Announcements
from eps.master.state_log import StateLog
from eps.net.calls.call import BoundServer
from eps.net.security.credentials import Security
from eps.spec.results import deliver_detached
from eps.spec.runtime import Runtime
from eps.storage.api import Storage
from eps.storage.jobdir import JobDir
from eps.storage.locations import RemotePath, open_storage
from eps.storage.shared_log import DamagedLogError, LogStorage, SharedLog
from eps.system.metrics_text import CONTENT_TYPE
from eps.system.text_server import Text

logger = logging.getLogger(__name__)

SUPERSEDED_REASON = "another job master has taken over"
#: Retry deadline for a log record while the job runs, in addition to the timeouts of Hadoop's client.
LOG_PATIENCE_S = 2.0
#: A job ends this long before the end of its application's lifetime, but at most this share of the lifetime before.
LIFETIME_RESERVE_S, LIFETIME_RESERVE = 30.0, 0.25


def template_of(orders: MasterOrders, runtime: Runtime, credentials: bytes = b"") -> LaunchTemplate:
    """Return the launch template of a job's workers and servers, with their tokens."""
    return LaunchTemplate(role_templates(orders, runtime.spec, ENTRY_POINTS), credentials)


class JobResources(YarnResourceManager):
    """YARN's containers for a job, which uploads its results before the application ends."""

    #: Set before the job starts.
    results: Results
    iterations: int = 1

    def beat(self, changes: int, patience_s: float = 0.0, *, clock: int = NO_NEWS) -> None:
        """Show that the owner thread is alive, and report the job's progress."""
        self.fraction_done = min(1.0, max(0, clock) / max(1, self.iterations))
        super().beat(changes, patience_s, clock=clock)

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """Upload the results, then release all containers and unregister the application."""
        super().beat(NO_NEWS, RESULTS_PATIENCE_S)
        try:
            self.results.upload_results(exit_code, state, reason)
        except StorageError as error:
            logger.exception("M the results cannot be written")
            if exit_code == 0:
                exit_code, state, reason = 1, str(JobState.FAILED), f"the results cannot be written: {error}"
        super().end_job(exit_code, state, reason)


class YarnHost:
    """The host of a job master on YARN; implements :class:`~eps.master.main.Host`.

    Parameters
    ----------
    runtime : Runtime
    job : JobDir
    resources : JobResources
    """

    def __init__(self, runtime: Runtime, job: JobDir, resources: JobResources) -> None:
        self._runtime, self._job, self._resources = runtime, job, resources

    def add_to(self, status: dict[str, Any]) -> dict[str, Any]:
        """See :class:`~eps.master.main.Host`."""
        found = with_why(with_grants(status, self._resources.granted()), self._resources.waiting())
        # Schedulers that resize the job need the node labels that its containers may use; empty: nodes without one.
        spec = self._runtime.spec
        labels = {str(kind): spec.yarn.label_of(kind) for kind in spec.first_containers}
        return {**found, "manager": self._runtime.manager, "labels": labels}

    def bring_model(self) -> None:
        """See :class:`~eps.master.main.Host`."""
        self._resources.results.upload_model()

    def deliver(self) -> str:
        """See :class:`~eps.master.main.Host`."""
        # Paths without a scheme are on the client's host.
        return deliver_detached(self._job, lambda place: isinstance(place, RemotePath))


def with_grants(status: dict[str, Any], granted: Mapping[str, str]) -> dict[str, Any]:
    """Return a status with YARN's name of each member's container, empty before it is granted."""
    members = [{**member, "granted": granted.get(member["container"], "")} for member in status["members"]]
    return {**status, "members": members}


def with_why(status: dict[str, Any], waiting: Mapping[str, str]) -> dict[str, Any]:
    """Return a status with YARN's reason why a job still waits for containers that it needs to continue."""
    known = [why for member in status["members"] if (why := waiting.get(member["container"]))]
    key = "reason" if status["state"] == JobState.STARTING else "recovery_waits_for"
    return {**status, key: f"{status[key]}; {known[0]}"} if known and status.get(key) else status


class JobPage(ProxiedServer):
    """Serves a job's page.

    Parameters
    ----------
    host : str
        Name by which YARN's proxy reaches this host.
    status, history : callable
        As of :func:`eps.job.page.pages_of`.
    viewer, may_view
        See :class:`~eps.cluster.yarn.proxied.ProxiedServer`.
    """

    def __init__(
        self,
        host: str,
        status: Callable[[], Mapping[str, Any]],
        history: Callable[[int], Sequence[Mapping[str, Any]]] = lambda most: (),
        viewer: str | None = None,
        may_view: Callable[[str], bool] = lambda user: False,
    ) -> None:
        pages = {
            **pages_of(status, history, ("status.json", "metrics")),
            "/status.json": lambda: Text("application/json", json.dumps(status(), indent=1)),
            "/metrics": lambda: Text(CONTENT_TYPE, job_metrics(status())),
        }
        super().__init__(host, pages, viewer, may_view)


def run(orders: MasterOrders, job: JobDir, host: str) -> int:
    """Run the job's master on Hadoop's YARN; return the exit code.

    Raises
    ------
    EpsError
        The master cannot start.
    """
    # Imported here, so that importing this module needs no Java.
    from eps.cluster.yarn.hadoop.files import HadoopFiles
    from eps.cluster.yarn.log_storage import HadoopLogStorage
    from eps.hadoop.session import HadoopSession

    session = HadoopSession()
    files = HadoopFiles(session)
    store = HadoopLogStorage(files, open_storage(orders.shared))
    at_work = HadoopLogStorage(files, open_storage(orders.shared, patience_s=LOG_PATIENCE_S))
    return serve(orders, job, host, Yarn.of_hadoop(session), store, log_store=at_work)


def serve(
    orders: MasterOrders,
    job: JobDir,
    host: str,
    yarn: Yarn,
    shared: LogStorage,
    watch: Callable[[Job, bool], None] | None = None,
    log_store: LogStorage | None = None,
) -> int:
    """Run the job's master on any implementation of YARN's facade; return the exit code.

    Parameters
    ----------
    orders : MasterOrders
    job : JobDir
        This process's own job directory.
    host : str
        Host to listen on.
    yarn : Yarn
        Its clients are closed at the end.
    shared : LogStorage
        Folder on the cluster that the job's processes share.
    watch : callable, optional
        See :class:`~eps.master.main.Master`.
    log_store : LogStorage, optional
        Same folder, with the timeouts for log records while the job runs; default: ``shared``.

    Raises
    ------
    EpsError
        The master cannot start; YARN starts the next attempt.
    """
    runtime = Runtime.of_job(job).within(job.path)
    spec, security = runtime.spec, Security.of_job(job.path)
    server = BoundServer(host, security=security)
    resources = JobResources(
        yarn.am,
        yarn.nm,
        template_of(orders, runtime, yarn.credentials),
        MasterEndpoint(server.address.host, server.address.port),
        limits=yarn.limits(spec),
        max_containers=spec.containers.max_containers,
        home=yarn.home(spec),
        on_ended=exit_superseded,
    )
    resources.results, resources.iterations = Results(job, shared), spec.iterations

    page: JobPage | None = None
    log: StateLog | None = None
    refresher: StatusRefresher | None = None
    lifetime: threading.Timer | None = None
    try:
        opened = SharedLog.open(shared, STATE, partial(exit_superseded, SUPERSEDED_REASON), log_store)
        # Only once this process owns the log: until then another master may be running and announce itself.
        said = Announcements(job, shared)
        log = StateLog(opened)
        yarn_host = YarnHost(runtime, job, resources)
        master = Master(
            runtime,
            job,
            resources,
            security,
            watch,
            server=server,
            log=log,
            announcements=said,
            host=yarn_host,
        )
        viewers = spec.yarn.access().get("view", "")
        # Other users read the results through the job's folder, which is otherwise private.
        left = open_storage(orders.shared, public=True) if viewers else shared
        resources.results = Results(job, left, partial(fence, job, shared, master.status()["generation"]))
        page = JobPage(
            host,
            master.status,
            master.history,
            yarn.viewer,
            lambda user: bool(viewers) and yarn.is_in_acl(viewers, user),
        )
        resources.show_page(page.url)
        refresher = StatusRefresher(job, resources.results, master.history)
        if spec.yarn.lifetime_s and yarn.submitted_s:
            reason = f"its lifetime of {spec.yarn.lifetime_s:g} s has passed"
            left_s = lifetime_left_s(spec.yarn.lifetime_s, yarn.submitted_s, time.time())
            lifetime = threading.Timer(left_s, master.events.put, (KillRequested(reason),))
            lifetime.daemon = True
            lifetime.start()
        return master.run()
    except StorageError as error:
        if log is None and not isinstance(error, DamagedLogError):
            # The next attempt may reach the store, and then restores the job.
            raise
        logger.exception("M cannot continue")
        resources.end_job(1, str(JobState.FAILED), f"the job master cannot continue: {error}")
        return 1
    finally:
        if lifetime is not None:
            lifetime.cancel()
        if refresher is not None:
            refresher.close()
        if page is not None:
            page.close()
        resources.close()


def fence(job: JobDir, shared: Storage, generation: int) -> None:
    """Exit if a job master later than that of ``generation`` has announced itself.

    Raises
    ------
    StorageError
        The announcement cannot be read.
    """
    if Announcements(job, shared).generation > generation:
        exit_superseded(SUPERSEDED_REASON)


def lifetime_left_s(lifetime_s: float, submitted_s: float, now_s: float) -> float:
    """Return the seconds until a job must begin to end, so that it has ended in order before its lifetime is over."""
    end_s = submitted_s + lifetime_s - min(LIFETIME_RESERVE_S, LIFETIME_RESERVE * lifetime_s)
    return min(max(0.0, end_s - now_s), threading.TIMEOUT_MAX)


def main() -> int:
    """Run the job's master with the orders of the environment; return its exit code."""
    return run_attempt(lambda orders, host: run(orders, own_job_dir(Path.cwd()), host))


if __name__ == "__main__":
    exit_process(main())
