"""``python -m hscheduler.application.am``: the master of the application that a whole sweep is.

It is the service of ``hscheduler serve`` with one sweep, whose jobs are within this application
(:mod:`eps.job.yarn.within`): containers that YARN grants, as far as the scheduler does.  An attempt that is lost
takes its jobs along.  The next one has the record of the scheduler in the cluster's file system, and begins the
trials that were not over again from their checkpoints: under BSP they end with the same bits.

Source: EPS §5.1 (the scheduler starts jobs and changes their size).  Deviation: one application is all of them.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from eps.cluster.broker.service import Broker
from eps.cluster.yarn.application import CHECKPOINTS, ENDED_FILE, MasterOrders
from eps.cluster.yarn.attempt import Yarn, begin, end, leave
from eps.cluster.yarn.launch import LaunchTemplate, RoleTemplate
from eps.cluster.yarn.resources import Place, YarnResourceManager
from eps.errors import ConfigError, EpsError, ResourceError, StorageError
from eps.job.yarn import within
from eps.job.yarn.sweeps import said_end
from eps.net.security.credentials import TlsFiles
from eps.storage.atomic import write_bytes_atomic
from eps.storage.locations import RemotePath, open_storage
from eps.storage.shared_log import LogStorage
from eps.system.home import make_private
from hscheduler.application.ends import Ends
from hscheduler.application.orders import SERVICE_FILE, SWEEP, SWEEP_FOLDER, SweepOrders
from hscheduler.application.page import ApplicationPage
from hscheduler.live.on_yarn import container_settings
from hscheduler.record.log import LogRecord
from hscheduler.reports.metrics import metrics_text
from hscheduler.service.directory import ServiceDir
from hscheduler.service.main import Service, ServiceSettings
from hscheduler.spec import Spec

logger = logging.getLogger(__name__)

#: Set by a NodeManager: which container this is.
CONTAINER = "CONTAINER_ID"
#: Of the shared folder: the record of the scheduler.
STATE = "scheduler"
#: Of the container's folder: jobs, prepared data and the scheduler's directory.
HOME = "home"
#: How often it is looked whether the sweep has ended.
LOOK_S = 0.2


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


def settings_of(spec: Spec, policy: str, host: str) -> ServiceSettings:
    """Return the settings of a service that runs one sweep as it would run by itself."""
    cluster, sweep = spec.cluster, spec.sweep
    return ServiceSettings(
        policy=policy,
        nodes=cluster.nodes,
        vcores=cluster.vcores,
        memory=cluster.memory,
        seed=sweep.seed,
        kill_restart_s=max(0.0, sweep.kill_restart_s),
        job_settings=container_settings(cluster),
        host=host,
    )


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
        for name, content in TlsFiles.within(folder / SWEEP_FOLDER).contents().items():
            write_bytes_atomic(directory.tls / name, content)
    except OSError as error:
        raise StorageError(f"{error.filename}: {error.strerror}") from error
    return directory


class Application:
    """One attempt of a sweep's application.

    Parameters
    ----------
    sweep : SweepOrders
    resources : YarnResourceManager
    broker : Broker
    place : within.Place
    shared : LogStorage
        The application's folder in the cluster's file system.
    host : str
        By which clients and YARN's proxy reach this process.
    viewer : str or None
        Who is shown the page, as of :func:`eps.cluster.yarn.proxied.viewer_of`.
    """

    def __init__(
        self,
        sweep: SweepOrders,
        resources: YarnResourceManager,
        broker: Broker,
        place: within.Place,
        shared: LogStorage,
        host: str,
        viewer: str | None,
    ) -> None:
        self._tables, self._spec = dict(sweep.tables), Spec.of(sweep.tables)
        self._settings = settings_of(self._spec, sweep.policy, host)
        self._resources, self._broker, self._place = resources, broker, place
        self._shared, self._host, self._viewer = shared, host, viewer
        self._ends = Ends(broker, place, shared)
        #: Set when the next attempt has begun: this one is to end, and to leave everything to that.
        self.superseded = threading.Event()
        self._look = threading.Event()

    def run(self, directory: ServiceDir) -> tuple[int, str, str]:
        """Run the sweep to its end; return how it ended, as :func:`outcome_of`.

        Raises
        ------
        EpsError
            It cannot go on.
        """
        record = LogRecord(self._shared, STATE, directory.path / "rows.sqlite", self.superseded.set)
        if record.header is not None:
            names = self._place.restore()
            logger.warning("H takes over: trials that were not over begin again, of %d that had begun", len(names))
        with ExitStack() as stack:
            service = stack.enter_context(Service(directory, self._settings, self._ends.take, record))
            scheduler = service.scheduler
            scheduler.ask(lambda: self._ends.begin(scheduler.name_of, self._reporter(service), scheduler.state))
            page = ApplicationPage(
                self._host,
                lambda: {scheduler.settings.policy: service.sweeps.report("")},
                lambda: metrics_text(service.observer.view.look()),
                self._viewer,
            )
            stack.callback(page.close)
            self._resources.show_page(page.url)
            service.sweeps.run(SWEEP, self._tables)
            self._say_where(service)
            self._wait(service)
            unleft = self._ends.close()
            report = service.sweeps.report(SWEEP)
            self._ends.leave_report(report)
        return outcome_of(report, unleft)

    def _reporter(self, service: Service) -> Callable[[], dict[str, Any]]:
        return lambda: service.sweeps.report(SWEEP)

    def _say_where(self, service: Service) -> None:
        with self._shared.write(SERVICE_FILE) as file:
            file.write(json.dumps({"host": service.address.host, "port": service.address.port}).encode("ascii"))

    def _wait(self, service: Service) -> None:
        trials = self._spec.sweep.trials
        while not service.sweeps.has_ended(SWEEP):
            try:
                service.scheduler.check()
            except RuntimeError as error:
                raise ResourceError(str(error)) from error
            if self._broker.gone:
                raise ResourceError(self._broker.gone)
            if self.superseded.is_set():
                raise ResourceError("another attempt of this application has taken over")
            over = sum(each.is_over for each in service.scheduler.look_ups.submissions(SWEEP))
            self._resources.fraction_done = min(1.0, over / trials)
            self._look.wait(LOOK_S)
        why = service.sweeps.states().get(SWEEP, "")
        if why != "ended":
            raise ResourceError(f"the sweep cannot go on: {why}")


def outcome_of(report: Mapping[str, Any], unleft: Mapping[str, str]) -> tuple[int, str, str]:
    """Return (exit code, state, reason) of an application whose sweep has ended.

    Parameters
    ----------
    report : mapping
    unleft : mapping
        As of :meth:`~hscheduler.application.ends.Ends.close`: without the best trial's model it has failed.
    """
    if report["best"] is None:
        return 1, "failed", "no trial finished"
    best = report["best"]["job_id"]
    for trial in report["trials"]:
        if trial["job_id"] == best and trial["name"] in unleft:
            return 1, "failed", f"what the best trial, {best}, has brought is not left: {unleft[trial['name']]}"
    return 0, "finished", f"{report['completed']} of {len(report['trials'])} trials finished"


def run(orders: MasterOrders, sweep: SweepOrders, host: str, folder: Path) -> int:
    """Run the application on Hadoop's YARN; return the exit code.

    Raises
    ------
    EpsError
        It cannot begin, or nobody could be told of its end: YARN tries it again.
    """
    # Whoever only looks into this module needs no Java.
    from eps.cluster.yarn.hadoop.files import HadoopFiles
    from eps.cluster.yarn.log_storage import HadoopLogStorage
    from eps.hadoop.session import HadoopSession

    session = HadoopSession()
    shared = HadoopLogStorage(HadoopFiles(session), open_storage(orders.shared))
    return serve(orders, sweep, host, folder, Yarn.of_hadoop(session), shared)


def serve(
    orders: MasterOrders,
    sweep: SweepOrders,
    host: str,
    folder: Path,
    yarn: Yarn,
    shared: LogStorage,
) -> int:
    """Run the application on whatever is behind the facade; return the exit code.

    Where an attempt before has left how the sweep ended, and YARN may not have heard it, that is said once more.

    Parameters
    ----------
    orders : MasterOrders
    sweep : SweepOrders
    host : str
        By which clients and YARN's proxy reach this process.
    folder : Path
        Of the container.
    yarn : Yarn
        Both sides are closed when this returns.
    shared : LogStorage
        The application's folder in the cluster's file system.

    Raises
    ------
    EpsError
        As :func:`run`.
    """
    job = Spec.of(sweep.tables).job_spec()
    roles: dict[str, RoleTemplate] = {}
    resources = YarnResourceManager(
        yarn.am,
        yarn.nm,
        LaunchTemplate(roles, yarn.credentials),
        Place(host),
        limits=yarn.limits(job),
        on_ended=leave,
    )
    try:
        word = said_end(shared)
        if word is not None:
            state, reason, exit_code = word
            end = exit_code, state, reason
            logger.warning("H the sweep has ended before this attempt: %s", reason)
        else:
            end, is_heard = _to_its_end(orders, sweep, host, yarn.viewer, folder, resources, roles, shared)
            if not is_heard:
                return end[0]
        resources.end_job(*end)
        return end[0]
    finally:
        resources.close()


def _to_its_end(
    orders: MasterOrders,
    sweep: SweepOrders,
    host: str,
    viewer: str | None,
    folder: Path,
    resources: YarnResourceManager,
    roles: dict[str, RoleTemplate],
    shared: LogStorage,
) -> tuple[tuple[int, str, str], bool]:
    """Run the sweep, and leave how it ended; return that, and whether YARN still listens to this attempt."""
    attempt = attempt_of(os.environ.get(CONTAINER, ""))
    directory = service_directory(folder)
    broker = Broker(resources, role_of=within.role_key)
    # Nothing before the scheduler says so.
    broker.lease({})
    # Its folder is among those of other sweeps, in the folder of all that EPS keeps there.
    home = RemotePath.parse(orders.shared).parent.parent
    place = within.Place(orders, home, attempt, host, broker, roles)
    application = Application(sweep, resources, broker, place, shared, host, viewer)
    try:
        with within.standing(place):
            end = application.run(directory)
    except EpsError as error:
        logger.exception("H cannot go on")
        end = 1, "failed", f"the sweep cannot go on: {error}"
    if broker.gone or application.superseded.is_set():
        return end, False
    exit_code, state, reason = end
    with shared.write(ENDED_FILE) as file:
        file.write(json.dumps({"state": state, "exit_code": exit_code, "reason": reason}).encode("utf-8"))
    if state == "finished":
        # Not before: without that word, the next attempt goes on from them.
        with suppress(StorageError):
            for name in (CHECKPOINTS, STATE):
                shared.remove(name)
    broker.close()
    return end, True


def main() -> int:
    """Run the application master of the environment; return its exit code."""
    folder = Path.cwd()
    os.environ["EPS_HOME"] = str(folder / HOME)
    return begin(lambda orders, host: run(orders, SweepOrders.read(folder / SWEEP_FOLDER), host, folder))


if __name__ == "__main__":
    end(main())
