"""``python -m hscheduler.application.am``: the master of the application that H-scheduler on YARN is.

It is the service of ``hscheduler serve``, whose jobs share this application
(:mod:`eps.job.yarn.shared_application`).  Its containers come from YARN, as far as the scheduler grants them.  It ends
with the sweep that it was submitted with, or has none and serves clients until YARN ends it.  If an attempt is lost,
its jobs end too.  The next attempt reads the scheduler's record from the cluster's file system and restarts unfinished
jobs from their checkpoints: under BSP they end with the same bits.

Source: EPS §5.1 (the scheduler starts jobs and changes their size).  Deviation: one application is all of them.
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
from eps.cluster.yarn.attempt import Yarn, begin, end, leave
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.proxied import ProxiedServer
from eps.cluster.yarn.resources import MasterEndpoint, YarnResourceManager
from eps.errors import ConfigError, EpsError, ResourceError, StorageError
from eps.job.yarn import shared_application
from eps.job.yarn.sweeps import report_file, said_end
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
from hscheduler.application.orders import SERVICE_FILE, SERVICE_FOLDER, SWEEP, ServiceOrders
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.ledger import Hold
from hscheduler.core.resources import Role
from hscheduler.core.state import Scheduler
from hscheduler.page import LiveReports
from hscheduler.record.log import LogRecord
from hscheduler.reports.metrics import metrics_text
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service
from hscheduler.spec import Spec
from hscheduler.yarn.nodes import Machine

logger = logging.getLogger(__name__)

#: Set by a NodeManager: which container this is.
CONTAINER = "CONTAINER_ID"
#: Of the shared folder: the record of the scheduler.
STATE = "scheduler"
#: Of the container's folder: jobs, prepared data and the scheduler's directory.
HOME = "home"
#: How often it is looked whether the service is well, and whether its sweep has ended.
LOOK_S = 0.2
#: A file system that does not answer is waited for so long; then what is to be recorded waits, and questions do not.
LOG_PATIENCE_S = 2.0
#: While jobs end, the reports of their sweeps are left so often.
REPORT_S = 5.0


def attempt_of(container: str) -> str:
    """Return the attempt that an application master's container is of, so that names are in their order.

    Raises
    ------
    ConfigError
        It is no container of YARN.
    """
    parts = container.split("_")
    if len(parts) < 5 or not parts[-2].isdecimal():
        raise ConfigError(f"{CONTAINER} is {container!r}: this is no container of YARN")
    return f"attempt-{int(parts[-2]):06d}"


def service_directory(folder: Path) -> ServiceDir:
    """Make the directory of the scheduler in a container's folder, with the certificates that were brought there.

    Raises
    ------
    StorageError
        It cannot be made.
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
    """Has an application's jobs have as many containers as its scheduler grants, and notes what has ended.

    Parameters
    ----------
    broker : Broker
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Job of the scheduler -> its name; known when the scheduler is.
        self._name_of: Callable[[str], str] | None = None
        #: Sweeps of which a job has come, started or ended since their report was left; any thread may take one.
        self.changed: set[str] = set()
        #: Names of jobs that have ended for good, whose checkpoints may be removed.
        self.over: set[str] = set()

    def begin(self, name_of: Callable[[str], str], state: Scheduler) -> None:
        """Grant from now on what the scheduler has granted; on its thread."""
        self._name_of = name_of
        # Who had ended before may have done so after the last report.
        self.changed.update(job.request.sweep for job in state.jobs.values())
        self._lease(name_of, state)

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event and what it brought about, with the state as it is now; on the scheduler's thread."""
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
        if isinstance(event, e.JobEnded) and state.jobs[event.job_id].phase.ended:
            self.over.add(self._name_of(event.job_id))

    def _lease(self, name_of: Callable[[str], str], state: Scheduler) -> None:
        ledger = state.ledger
        held = (
            container
            for container in ledger.all()
            if container.role is not Role.MASTER and ledger.hold(container.container_id) is not Hold.PROMISED
        )
        self._broker.lease(Counter(name_of(container.job_id) for container in held))


@dataclass(frozen=True)
class Surroundings:
    """Where one attempt of an application runs."""

    #: By which clients, containers and YARN's proxy reach this process.
    host: str
    #: Of the container.
    folder: Path
    #: The application's folder in the cluster's file system.
    shared: LogStorage
    #: Returns the cluster's machines of any state; raises an EpsError where YARN does not answer.
    machines: Callable[[], Sequence[Machine]]
    #: Who is shown the page, as of :func:`eps.cluster.yarn.proxied.viewer_of`.
    viewer: str | None
    attempt: str
    #: :attr:`shared`, as the record is written while the service runs: with less patience; default: as it is.
    at_work: LogStorage | None = None


class Application:
    """One attempt of an application.

    Parameters
    ----------
    orders : ServiceOrders
    resources : YarnResourceManager
    broker : Broker
    place : shared_application.SharedApplication
    around : Surroundings
    """

    def __init__(
        self,
        orders: ServiceOrders,
        resources: YarnResourceManager,
        broker: Broker,
        place: shared_application.SharedApplication,
        around: Surroundings,
    ) -> None:
        self._orders = orders
        self._resources, self._broker, self._place, self._around = resources, broker, place, around
        self._grants = Grants(broker)
        #: When a report was left last, or could not be; and of which sweeps that was so.
        self._report_s, self._unleft = -math.inf, set[str]()
        #: Names of jobs whose results are stored; the others' checkpoints stay.
        self._left: set[str] = set()
        #: Set when the next attempt has begun: this one is to end, and to leave everything to that.
        self.superseded = threading.Event()
        self._look = threading.Event()

    def run(self, directory: ServiceDir) -> tuple[int, str, str]:
        """Run the sweep to its end; return how it ended, as :func:`outcome_of`.  Without one it does not end.

        Raises
        ------
        EpsError
            It cannot go on.
        """
        around = self._around
        record = LogRecord(around.shared, STATE, directory.path / "rows.sqlite", self.superseded.set, around.at_work)
        if record.header is not None:
            names = self._place.restore()
            logger.warning("H takes over: jobs that were not over begin again, of %d that had begun", len(names))
        settings = replace(self._orders.settings, host=around.host)
        with ExitStack() as stack:
            service = stack.enter_context(
                Service(directory, settings, self._grants.take, around.machines, record, self.before_end)
            )
            scheduler = service.scheduler
            scheduler.ask(lambda: self._grants.begin(scheduler.name_of, scheduler.state))
            page = page_of(service, around.host, around.viewer)
            stack.callback(page.close)
            # YARN's proxy shows it as the tracking URL.
            self._resources.show_page(page.url)
            if self._orders.sweep is not None:
                service.sweeps.run(SWEEP, self._orders.sweep)
            with around.shared.write(SERVICE_FILE) as file:
                place = {"host": service.address.host, "port": service.address.port}
                file.write(json.dumps(place).encode("ascii"))
            self._wait(service)
            report = service.sweeps.report(SWEEP)
            leave_report(around.shared, SWEEP, report)
        return outcome_of(report)

    def before_end(self, name: str, phase: Phase) -> None:
        """Give back the containers of a job that ends, and leave what it has brought; on a thread of the job.

        Raises
        ------
        StorageError
            It cannot be left.
        """
        self._place.end(name)
        self._place.leave(JobDir(jobs_dir() / name), logs=phase is Phase.FAILED)
        self._left.add(name)

    def _wait(self, service: Service) -> None:
        """Wait for the end of the sweep; without one for ever."""
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
            self._leave_reports(service)
            self._forget_over()
            self._look.wait(LOOK_S)
        why = service.sweeps.states().get(SWEEP, "")
        if why != "ended":
            raise ResourceError(f"the sweep cannot go on: {why}")

    def _leave_reports(self, service: Service) -> None:
        """Leave the reports that have changed, now and then; that of a sweep none of whose jobs is there, at once.

        Where one cannot be left it is tried again.
        """
        changed, is_due = self._grants.changed, time.monotonic() >= self._report_s + REPORT_S
        for sweep in list(changed):
            waits = sweep in self._unleft or not all(job.is_over for job in service.scheduler.look_ups.here(sweep))
            if waits and not is_due:
                continue
            # In this order: what happens meanwhile may not be in the report.
            changed.discard(sweep)
            self._unleft.discard(sweep)
            try:
                leave_report(self._around.at_work or self._around.shared, sweep, service.sweeps.report(sweep))
            except (EpsError, RuntimeError) as error:
                changed.add(sweep)
                self._unleft.add(sweep)
                logger.warning("H the report of sweep %s so far is not left: %s", sweep, error)
            self._report_s = time.monotonic()

    def _forget_over(self) -> None:
        """Remove the settings and checkpoints of one job that has ended for good.

        Its results are stored, and the record has its end: no attempt runs it again.
        """
        if self._grants.over and (name := self._grants.over.pop()) in self._left:
            self._left.discard(name)
            try:
                self._place.forget(JobDir(jobs_dir() / name))
            except EpsError as error:
                logger.warning("H what %s was begun with stays: %s", name, error)


def leave_report(shared: Storage, sweep: str, report: Mapping[str, Any]) -> None:
    """Leave the report of a sweep in an application's folder.  Raises StorageError where it cannot be written."""
    with shared.write(report_file(sweep)) as file:
        file.write(json.dumps(report).encode("utf-8"))


def page_of(service: Service, host: str, viewer: str | None) -> ProxiedServer:
    """Serve a service's page to YARN's proxy, by relative links; parameters as of :class:`ProxiedServer`."""
    pages = LiveReports(
        lambda: {service.scheduler.settings.policy: service.sweeps.report("")},
        lambda: metrics_text(service.observer.view.look()),
    ).pages
    return ProxiedServer(host, pages, viewer)


def outcome_of(report: Mapping[str, Any]) -> tuple[int, str, str]:
    """Return (exit code, state, reason) of an application whose sweep has ended with this report."""
    if report["best"] is None:
        return 1, "failed", "no trial finished"
    return 0, "finished", f"{report['completed']} of {len(report['trials'])} trials finished"


def run(orders: MasterOrders, host: str, folder: Path) -> int:
    """Run the application on Hadoop's YARN; return the exit code.

    Raises
    ------
    EpsError
        It cannot begin, or YARN could not be told of its end: YARN tries it again.
    """
    # Whoever only looks into this module needs no Java.
    from eps.cluster.yarn.hadoop.client import HadoopClient
    from eps.cluster.yarn.hadoop.files import HadoopFiles
    from eps.cluster.yarn.log_storage import HadoopLogStorage
    from eps.hadoop.session import HadoopSession
    from hscheduler.live.yarn_nodes import machines_of

    service = ServiceOrders.read(folder / SERVICE_FOLDER)
    session = HadoopSession()
    # With Kerberos it speaks for its user by a delegation token, which whoever submitted obtained.
    client = HadoopClient(session)
    yarn, attempt = Yarn.of_hadoop(session), attempt_of(os.environ.get(CONTAINER, ""))
    files = HadoopFiles(session)
    shared = HadoopLogStorage(files, open_storage(orders.shared))
    at_work = HadoopLogStorage(files, open_storage(orders.shared, patience_s=LOG_PATIENCE_S))
    around = Surroundings(host, folder, shared, lambda: machines_of(client), yarn.viewer, attempt, at_work)
    return serve(orders, service, yarn, around)


def serve(orders: MasterOrders, service: ServiceOrders, yarn: Yarn, around: Surroundings) -> int:
    """Run the application on whatever is behind the facade; return the exit code.

    Where an attempt before has left how the sweep ended, and YARN may not have heard it, that is said once more.

    Parameters
    ----------
    orders : MasterOrders
    service : ServiceOrders
    yarn : Yarn
        Both sides are closed when this returns.
    around : Surroundings

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
        MasterEndpoint(around.host),
        limits=yarn.limits(JobSpec(containers=Containers(container_timeout_s=service.container_timeout_s))),
        on_ended=leave,
    )
    try:
        word = said_end(around.shared)
        if word is not None:
            state, reason, exit_code = word
            end = exit_code, state, reason
            logger.warning("H the sweep has ended before this attempt: %s", reason)
        else:
            end, is_heard = _to_its_end(orders, service, around, resources, roles)
            if not is_heard:
                return end[0]
        resources.end_job(*end)
        return end[0]
    finally:
        resources.close()


def _to_its_end(
    orders: MasterOrders,
    service: ServiceOrders,
    around: Surroundings,
    resources: YarnResourceManager,
    roles: dict[str, RoleTemplate],
) -> tuple[tuple[int, str, str], bool]:
    """Run the service, and leave how it ended; return that, and whether YARN still listens to this attempt.

    Raises
    ------
    StorageError
        The cluster's file system is away, or takes nothing.
    """
    directory = service_directory(around.folder)
    broker = Broker(resources, role_of=shared_application.role_key)
    # Nothing before the scheduler says so.
    broker.lease({})
    # Its folder is among those of other applications, in the folder of all that EPS keeps there.
    home = RemotePath.parse(orders.shared).parent.parent
    place = shared_application.SharedApplication(orders, home, around.attempt, around.host, broker, roles)
    application = Application(service, resources, broker, place, around)
    try:
        with shared_application.hosting(place), closing(place):
            place.warm_up()
            end = application.run(directory)
    except EpsError as error:
        if isinstance(error, StorageError) and not isinstance(error, DamagedLogError):
            # The next attempt may find the store again, and the record as it is.
            raise
        logger.exception("H cannot go on")
        end = 1, "failed", f"{'the service' if service.sweep is None else 'the sweep'} cannot go on: {error}"
    if broker.gone or application.superseded.is_set():
        return end, False
    exit_code, state, reason = end
    with around.shared.write(ENDED_FILE) as file:
        file.write(json.dumps({"state": state, "exit_code": exit_code, "reason": reason}).encode("utf-8"))
    if state == "finished":
        # Not before: without that word, the next attempt goes on from them.
        with suppress(StorageError):
            for name in (CHECKPOINTS, STATE):
                around.shared.remove(name)
    broker.close()
    return end, True


def main() -> int:
    """Run the application master of the environment; return its exit code."""
    expect_many_threads()
    folder = Path.cwd()
    os.environ["EPS_HOME"] = str(folder / HOME)
    return begin(lambda orders, host: run(orders, host, folder))


if __name__ == "__main__":
    end(main())
