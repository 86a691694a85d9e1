"""``python -m hscheduler.application.am``: the application master of H-scheduler on YARN.

It runs the service of ``hscheduler serve``, whose jobs share this application
(:mod:`eps.job.yarn.shared_application`).  It requests as many containers from YARN as the scheduler grants to jobs.  It
ends with its sweep; without one it serves clients until YARN ends it.

If an attempt fails, its jobs end, too.  The next attempt reads the scheduler's record from the cluster's file system
and resumes unfinished jobs from their checkpoints.  Under BSP their models are bit-identical.

Source: EPS §5.1 (the scheduler starts jobs and changes their size).  Deviation: all jobs share one application.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eps.cluster.broker.service import Broker
from eps.cluster.yarn.application import CHECKPOINTS, ENDED_FILE, MasterOrders
from eps.cluster.yarn.attempt import Yarn, exit_process, exit_superseded, run_attempt
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.proxied import ProxiedServer
from eps.cluster.yarn.resources import MasterEndpoint, YarnResourceManager
from eps.errors import ConfigError, EpsError, ResourceError, StorageError
from eps.job.yarn import shared_application
from eps.job.yarn.sweeps import read_outcome, report_file
from eps.net.security.credentials import TlsFiles
from eps.spec.job_spec import JobSpec
from eps.spec.tables import Containers
from eps.storage.api import Storage
from eps.storage.atomic import write_bytes_atomic
from eps.storage.jobdir import JobDir, jobs_dir
from eps.storage.locations import RemotePath, open_storage
from eps.storage.shared_log import DamagedLogError, LogStorage
from eps.system.home import make_private
from eps.system.threads import expect_many_threads
from hscheduler.application.staged_files import SERVICE_FILE, SERVICE_FOLDER, ServiceOrders
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.ledger import Hold
from hscheduler.core.resources import Role
from hscheduler.core.state import Scheduler
from hscheduler.live.sweep import SWEEP
from hscheduler.page import LiveReports
from hscheduler.record.log import LogRecord
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service
from hscheduler.spec import Spec
from hscheduler.yarn.nodes import Machine

logger = logging.getLogger(__name__)

#: Environment variable of the NodeManager with the id of this container.
CONTAINER = "CONTAINER_ID"
#: Folder of the scheduler's record in the shared folder.
STATE = "scheduler"
#: Folder in the container with jobs, prepared data and the scheduler's directory.
HOME = "home"
#: Seconds between two checks of the service and its sweep.
CHECK_S = 0.2
#: Most seconds that a write to the record retries.  Later writes then queue, but queries are answered.
LOG_PATIENCE_S = 2.0
#: Seconds between two reports that are stored while jobs end.
REPORT_S = 5.0


def attempt_of(container: str) -> str:
    """Return the name of an application master's attempt, also among those of applications before it.

    Raises
    ------
    ConfigError
        The text is not the id of a container.
    """
    parts = container.split("_")
    if len(parts) < 5 or not parts[-2].isdecimal():
        raise ConfigError(f"{CONTAINER} is {container!r}, but must be the id of a YARN container")
    return f"attempt-{parts[-4]}-{parts[-3]}-{int(parts[-2]):06d}"


def service_directory(folder: Path) -> ServiceDir:
    """Create the scheduler's directory in a container's folder, with the shipped certificates.

    Raises
    ------
    StorageError
        A file cannot be written.
    """
    directory = ServiceDir(folder / HOME / "hscheduler")
    try:
        make_private(directory.tls)
        for name, content in TlsFiles.within(folder / SERVICE_FOLDER).contents().items():
            write_bytes_atomic(directory.tls / name, content)
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}") from error
    return directory


class Grants:
    """Passes the containers that the scheduler grants to the broker, and notes changed sweeps and ended jobs.

    Parameters
    ----------
    broker : Broker
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Job of the scheduler -> its name; None before the scheduler exists.
        self._name_of: Callable[[str], str] | None = None
        #: Sweeps of which a job was submitted, started or ended since their last report; any thread may remove one.
        self.changed: set[str] = set()
        #: Names of jobs that have ended for good, whose checkpoints may be removed.
        self.ended: set[str] = set()

    def begin(self, name_of: Callable[[str], str], state: Scheduler) -> None:
        """Start with the state of the scheduler; called on its thread."""
        self._name_of = name_of
        # Jobs may have ended after the last report of the previous attempt.
        self.changed.update(job.request.sweep for job in state.jobs.values())
        self._lease(name_of, state)

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event, the commands that followed and the new state; called on the scheduler's thread."""
        if self._name_of is None or (isinstance(event, e.Iterated) and not commands):
            return
        self._lease(self._name_of, state)
        match event:
            case e.JobSubmitted(request):
                self.changed.add(request.sweep)
            case e.JobRefused(_, sweep):
                self.changed.add(sweep)
            case e.JobStarted(job_id) | e.JobEnded(job_id):
                self.changed.add(state.jobs[job_id].request.sweep)
        self.ended.update(self._name_of(each.job_id) for each in commands if isinstance(each, e.JobOver))

    def _lease(self, name_of: Callable[[str], str], state: Scheduler) -> None:
        ledger = state.ledger
        held = (
            container
            for container in ledger.all()
            if container.role is not Role.MASTER and ledger.hold(container.container_id) is not Hold.PROMISED
        )
        self._broker.lease(Counter(name_of(container.job_id) for container in held))


@dataclass(frozen=True)
class Environment:
    """The environment of one attempt of an application."""

    #: Host name for clients, containers and YARN's proxy.
    host: str
    #: Folder of the container.
    folder: Path
    #: The application's folder in the cluster's file system.
    shared: LogStorage
    #: Returns the cluster's machines in any state; raises EpsError if YARN does not answer.
    machines: Callable[[], Sequence[Machine]]
    #: Who may see the page, see :func:`eps.cluster.yarn.proxied.viewer_of`.
    viewer: str | None
    attempt: str
    #: :attr:`shared` with short timeouts, for writes while the service runs; None: the same.
    impatient: LogStorage | None = None


class Application:
    """One attempt of an application.

    Parameters
    ----------
    orders : ServiceOrders
    resources : YarnResourceManager
    broker : Broker
    place : shared_application.SharedApplication
    environment : Environment
    """

    def __init__(
        self,
        orders: ServiceOrders,
        resources: YarnResourceManager,
        broker: Broker,
        place: shared_application.SharedApplication,
        environment: Environment,
    ) -> None:
        self._orders = orders
        self._resources, self._broker, self._place, self._environment = resources, broker, place, environment
        self._grants = Grants(broker)
        #: Time of the last attempt to store a report, and the sweeps whose report could not be stored.
        self._report_s, self._unstored = -math.inf, set[str]()
        #: Names of jobs whose results are stored; checkpoints of other jobs are kept.
        self._stored: set[str] = set()
        #: Set when a later attempt runs.  This one must then end without changing anything.
        self.superseded = threading.Event()

    def run(self, directory: ServiceDir) -> tuple[int, str, str]:
        """Run the sweep to its end; return the outcome, as :func:`outcome_of`.  Without a sweep run forever.

        Raises
        ------
        EpsError
            The service failed.
        """
        environment = self._environment
        record = LogRecord(
            environment.shared, STATE, directory.path / "rows.sqlite", self.superseded.set, environment.impatient
        )
        if record.header is not None:
            names = self._place.restore()
            logger.warning("H an earlier attempt had started %d jobs; the unfinished ones restart", len(names))
        settings = replace(self._orders.settings, host=environment.host)
        with ExitStack() as stack:
            service = stack.enter_context(
                Service(directory, settings, self._grants.take, environment.machines, record, self.before_end)
            )
            scheduler = service.scheduler
            scheduler.ask(lambda: self._grants.begin(scheduler.name_of, scheduler.state))
            sweep = "" if self._orders.sweep is None else SWEEP
            page = page_of(service, sweep, environment.host, environment.viewer)
            stack.callback(page.close)
            # YARN's proxy shows it as the tracking URL.
            self._resources.show_page(page.url)
            if self._orders.sweep is not None:
                service.sweeps.run(SWEEP, self._orders.sweep)
            with environment.shared.write(SERVICE_FILE) as file:
                place = {"host": service.address.host, "port": service.address.port}
                file.write(json.dumps(place).encode("ascii"))
            self._wait(service)
            report = service.sweeps.report(SWEEP)
            store_report(environment.shared, SWEEP, report)
        return outcome_of(report)

    def before_end(self, name: str, phase: Phase) -> None:
        """Release the containers of a job that ends, and store its results; called on a thread of the job.

        Raises
        ------
        StorageError
            The results cannot be stored.
        """
        self._place.end(name)
        self._place.upload_results(JobDir(jobs_dir() / name), logs=phase is Phase.FAILED)
        self._stored.add(name)

    def _wait(self, service: Service) -> None:
        """Wait for the end of the sweep; without a sweep forever."""
        trials = None if self._orders.sweep is None else Spec.of(self._orders.sweep).sweep.trials
        while trials is None or not service.sweeps.has_ended(SWEEP):
            try:
                service.scheduler.check()
            except RuntimeError as error:
                raise ResourceError(str(error)) from error
            if self._broker.gone:
                raise ResourceError(self._broker.gone)
            if self.superseded.is_set():
                raise ResourceError("another attempt of this application has taken over")
            if trials is not None:
                self._resources.fraction_done = min(1.0, service.scheduler.look_ups.num_over(SWEEP) / trials)
            self._store_reports(service)
            self._remove_ended()
            time.sleep(CHECK_S)
        why = service.sweeps.states().get(SWEEP, "")
        if why != "ended":
            raise ResourceError(f"the sweep failed: {why}")

    def _store_reports(self, service: Service) -> None:
        """Store changed reports: at once if all jobs of the sweep have ended, else every :data:`REPORT_S` seconds.

        A failed attempt is repeated.
        """
        changed, is_due = self._grants.changed, time.monotonic() >= self._report_s + REPORT_S
        for sweep in list(changed):
            waits = sweep in self._unstored or not all(job.is_over for job in service.scheduler.look_ups.current(sweep))
            if waits and not is_due:
                continue
            # Before the report is made: it may miss later changes, which mark the sweep again.
            changed.discard(sweep)
            self._unstored.discard(sweep)
            try:
                store_report(
                    self._environment.impatient or self._environment.shared, sweep, service.sweeps.report(sweep)
                )
            except (EpsError, RuntimeError) as error:
                changed.add(sweep)
                self._unstored.add(sweep)
                logger.warning("H the report of sweep %s cannot be stored, and is retried: %s", sweep, error)
            self._report_s = time.monotonic()

    def _remove_ended(self) -> None:
        """Remove the settings and checkpoints of one job that has ended for good.

        Its results are stored, and the record has its end, so no attempt runs it again.
        """
        if self._grants.ended and (name := self._grants.ended.pop()) in self._stored:
            self._stored.discard(name)
            try:
                self._place.forget(JobDir(jobs_dir() / name))
            except EpsError as error:
                logger.warning("H the checkpoints of %s cannot be removed: %s", name, error)


def store_report(shared: Storage, sweep: str, report: Mapping[str, Any]) -> None:
    """Store the report of a sweep in an application's folder.  Raises StorageError if it cannot be written."""
    with shared.write(report_file(sweep)) as file:
        file.write(json.dumps(report).encode("utf-8"))


def page_of(service: Service, sweep: str, host: str, viewer: str | None) -> ProxiedServer:
    """Serve the page of a sweep (empty: of all jobs) to YARN's proxy, with relative links.

    Other parameters are those of :class:`ProxiedServer`.
    """
    live = LiveReports(service.metrics)
    live.show(lambda: {service.scheduler.settings.policy: service.sweeps.report(sweep)})
    return ProxiedServer(host, live.pages, viewer)


def outcome_of(report: Mapping[str, Any]) -> tuple[int, str, str]:
    """Return (exit code, state, reason) of an application from the report of its ended sweep."""
    if report["best"] is None:
        return 1, "failed", "no trial finished"
    return 0, "finished", f"{report['completed']} of {len(report['trials'])} trials finished"


def run(orders: MasterOrders, host: str, folder: Path) -> int:
    """Run the application on Hadoop's YARN; return the exit code.

    Raises
    ------
    EpsError
        The application cannot start, or YARN could not be told of its end.  YARN starts another attempt.
    """
    # Imported late: they need Java.
    from eps.cluster.yarn.hadoop.client import HadoopClient
    from eps.cluster.yarn.hadoop.files import HadoopFiles
    from eps.cluster.yarn.log_storage import HadoopLogStorage
    from eps.hadoop.session import HadoopSession
    from hscheduler.live.yarn_nodes import machines_of

    service = ServiceOrders.read(folder / SERVICE_FOLDER)
    session = HadoopSession()
    # With Kerberos the client uses the delegation token that was obtained at submission.
    client = HadoopClient(session)
    yarn, attempt = Yarn.of_hadoop(session), attempt_of(os.environ.get(CONTAINER, ""))
    files = HadoopFiles(session)
    shared = HadoopLogStorage(files, open_storage(orders.shared))
    impatient = HadoopLogStorage(files, open_storage(orders.shared, patience_s=LOG_PATIENCE_S))
    environment = Environment(host, folder, shared, lambda: machines_of(client), yarn.viewer, attempt, impatient)
    return serve(orders, service, yarn, environment)


def serve(orders: MasterOrders, service: ServiceOrders, yarn: Yarn, environment: Environment) -> int:
    """Run the application on the given YARN; return the exit code.

    If an earlier attempt has recorded the end of the sweep, report that end to YARN again, which may have missed it.

    Parameters
    ----------
    orders : MasterOrders
    service : ServiceOrders
    yarn : Yarn
        Hadoop's or a fake; both of its clients are closed when this returns.
    environment : Environment

    Raises
    ------
    EpsError
        As :func:`run`.
    """
    roles: dict[str, RoleTemplate] = {}
    resources = YarnResourceManager(
        yarn.am,
        yarn.nm,
        LaunchTemplate(roles, yarn.credentials),
        MasterEndpoint(environment.host),
        limits=yarn.limits(JobSpec(containers=Containers(container_timeout_s=service.container_timeout_s))),
        on_ended=exit_superseded,
    )
    try:
        word = read_outcome(environment.shared)
        if word is not None:
            state, reason, exit_code = word
            end = exit_code, state, reason
            logger.warning("H the sweep ended in an earlier attempt: %s", reason)
        else:
            end, is_current = _run_service(orders, service, environment, resources, roles)
            if not is_current:
                return end[0]
        resources.end_job(*end)
        return end[0]
    finally:
        resources.close()


def _run_service(
    orders: MasterOrders,
    service: ServiceOrders,
    environment: Environment,
    resources: YarnResourceManager,
    roles: dict[str, RoleTemplate],
) -> tuple[tuple[int, str, str], bool]:
    """Run the service and record its end; return the end, and whether YARN still accepts it from this attempt.

    Raises
    ------
    StorageError
        The cluster's file system is unreachable or not writable.
    """
    directory = service_directory(environment.folder)
    broker = Broker(resources, role_of=shared_application.role_key)
    # No containers until the scheduler grants them.
    broker.lease({})
    # shared is HOME/sweeps/ID.
    home = RemotePath.parse(orders.shared).parent.parent
    place = shared_application.SharedApplication(orders, home, environment.attempt, environment.host, broker, roles)
    application = Application(service, resources, broker, place, environment)
    try:
        with shared_application.hosting(place), closing(place):
            place.warm_up()
            end = application.run(directory)
    except EpsError as error:
        if isinstance(error, StorageError) and not isinstance(error, DamagedLogError):
            # The next attempt may reach the file system, with an intact record.
            raise
        logger.exception("H the application failed")
        end = 1, "failed", f"{'the service' if service.sweep is None else 'the sweep'} failed: {error}"
    if broker.gone or application.superseded.is_set():
        return end, False
    exit_code, state, reason = end
    with environment.shared.write(ENDED_FILE) as file:
        file.write(json.dumps({"state": state, "exit_code": exit_code, "reason": reason}).encode("utf-8"))
    if state == "finished":
        # After the end is recorded: until then the next attempt would resume from them.
        with suppress(StorageError):
            for name in (CHECKPOINTS, STATE):
                environment.shared.remove(name)
    broker.close()
    return end, True


def main() -> int:
    """Run the application master of the environment; return its exit code."""
    expect_many_threads()
    folder = Path.cwd()
    os.environ["EPS_HOME"] = str(folder / HOME)
    return run_attempt(lambda orders, host: run(orders, host, folder))


if __name__ == "__main__":
    exit_process(main())
