"""A service: its directory, its record, the scheduler, and the gRPC server."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import grpc

from eps.core.types import Address
from eps.errors import ConfigError, StorageError
from eps.net.calls.call import serve, stop
from eps.storage.jobdir import list_jobs
from hscheduler.core.rungs import DEFAULT
from hscheduler.live.job import ENDS, BeforeEnd, do_nothing
from hscheduler.live.placement import runs_on_yarn
from hscheduler.live.reporting import look_of
from hscheduler.live.scheduler import LiveScheduler, LiveSettings, Observe, is_managed
from hscheduler.live.yarn_nodes import YarnNodes
from hscheduler.pb.scheduler_pb2_grpc import add_HSchedulerServicer_to_server
from hscheduler.record.api import Header, SchedulerRecord
from hscheduler.record.sqlite import SqliteRecord, tag_of
from hscheduler.reports.metrics import metrics_text
from hscheduler.reports.view import Look
from hscheduler.service.directory import ServiceDir
from hscheduler.service.observer import Observer
from hscheduler.service.server import SchedulerService
from hscheduler.service.sweeps import Sweeps
from hscheduler.spec import ClusterSpec, checked_stopping
from hscheduler.yarn.nodes import Machine

#: Most concurrent calls and streams; more are rejected.
MOST_CALLS = 256
STOP_GRACE_S = 0.5


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a service.  None keeps the value in its record, or the default for a new record."""

    policy: str | None = None
    nodes: int | None = None
    vcores: int | None = None
    memory: str | None = None
    seed: int | None = None
    threshold: int | None = None
    stop: str | None = None
    feedback_iteration: int | None = None
    kill_restart_s: float | None = None
    #: Settings of every job; see :class:`~hscheduler.live.scheduler.LiveSettings`.
    job_settings: Mapping[str, str] | None = None
    #: Host name or address for clients on other hosts; empty: only processes of the user on this host may connect.
    host: str = ""
    #: 0: the last port if it is free, else any.
    port: int = 0

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("threshold", 0), ("feedback_iteration", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}, but must be at least {least}")
        checked_stopping(self.stop or "", DEFAULT.eta, 0, 0)

    def cluster(self, header: Header | None) -> ClusterSpec:
        """Return the cluster; a setting that is None keeps its value in the record."""
        default = ClusterSpec()
        size = (None if header is None else header.job_settings) if self.job_settings is None else self.job_settings
        is_watched = False
        if header is not None:
            # All nodes have the same size.
            vcores, memory_mb = next(iter(header.nodes.values()))
            default = replace(default, nodes=len(header.nodes), vcores=vcores, memory=f"{memory_mb}MiB")
            # On YARN nodes come and go.  The service restarts with the recorded nodes, and then learns of changes.
            is_watched = runs_on_yarn(size or {})
        if size:
            memory = f"{size['memory_mb']}MiB"
            default = replace(default, container_memory=memory, container_vcores=int(size["vcores"]))
        if is_watched:
            return default
        return replace(
            default,
            nodes=default.nodes if self.nodes is None else self.nodes,
            vcores=default.vcores if self.vcores is None else self.vcores,
            memory=default.memory if self.memory is None else self.memory,
        )

    def live(self, header: Header | None) -> LiveSettings:
        """Return the scheduler's settings; a setting that is None keeps its value in the record."""
        was = LiveSettings() if header is None else header
        return LiveSettings(
            policy=self.policy or was.policy,
            seed=was.seed if self.seed is None else self.seed,
            metric=was.metric,
            feedback_iteration=was.feedback_iteration if self.feedback_iteration is None else self.feedback_iteration,
            restart_s=was.restart_s if self.kill_restart_s is None else self.kill_restart_s,
            threshold=was.threshold if self.threshold is None else (self.threshold or None),
            job_settings=was.job_settings if self.job_settings is None else self.job_settings,
            stop=was.stop if self.stop is None else self.stop,
        )


def past_report(directory: ServiceDir, sweep: str) -> dict[str, Any]:
    """Return the report of a sweep (empty: of all jobs) from the record of a service that has ended.

    Raises
    ------
    ConfigError
        A service runs in the directory, none ever ran there, or the sweep is unknown.
    StorageError
        The directory cannot be used, or its record is damaged.
    """
    if not directory.record.exists():
        told = f"there is no sweep {sweep!r} (hscheduler sweeps lists them)"
        raise ConfigError(f"{told}, and no service ever ran in {directory.path}")
    with directory.lock(), closing(SqliteRecord(directory.record)) as record:
        if record.header is None:
            raise ConfigError(f"{directory.record} has no sweeps: it is empty")
        settings = ServiceSettings()
        cluster = settings.cluster(record.header)
        live = settings.live(record.header)
        scheduler = LiveScheduler(cluster.capacities(), live, record=record, attaches=False)
        try:
            if sweep and not scheduler.look_ups.has_sweep(sweep):
                jobs = scheduler.look_ups.submissions()
                known = dict.fromkeys([*scheduler.registry.sweeps, *(job.sweep for job in jobs)])
                raise ConfigError(f"sweep is {sweep!r}, but must be one of {', '.join(known) or 'none'}")
            return Sweeps(scheduler, cluster).report(sweep)
        finally:
            scheduler.close(leave=True)


def _way_out(tag: str, error: StorageError) -> StorageError:
    """Return an error about an unusable record: the cause, its running jobs, and what to do."""
    running = [job.name for job in list_jobs() if tag and is_managed(job, tag) and job.is_running()]
    told = (
        f"its running jobs: {', '.join(running) or 'none'}" if tag else "its jobs are unknown: eps list shows all jobs"
    )
    return StorageError(
        f"{error}\nThe record was not changed; {told}.\n"
        "Use the version that wrote the record; or end these jobs (eps kill NAME), and start with another --state"
    )


def _check_address(host: str, port: int) -> None:
    """Check that the service can listen on an address.

    Raises
    ------
    ConfigError
        The address is in use, or does not belong to this host.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _opened(directory: ServiceDir) -> SqliteRecord:
    try:
        return SqliteRecord(directory.record)
    except StorageError as error:
        raise _way_out(tag_of(directory.record), error) from error


class Service:
    """A running service.  Closing it ends its jobs, unless :meth:`leave` was called.

    As a context manager it leaves the jobs running if the block raises an exception.

    Parameters
    ----------
    directory : ServiceDir
    settings : ServiceSettings
    observe : callable, optional
        Called with every event, on the scheduler's thread.
    machines : callable, optional
        Returns the current machines of a YARN cluster, see :class:`YarnNodes`; default: the nodes are fixed.
    record : SchedulerRecord, optional
        Closed with the service; default: the file in the directory.
    before_end : callable, optional
        See :class:`~hscheduler.live.scheduler.LiveScheduler`.

    Raises
    ------
    ConfigError
        Another service runs in the directory, its record has other settings, or the address is in use.
    StorageError
        The directory cannot be used, or its record cannot be read; the message says what to do.
    """

    def __init__(
        self,
        directory: ServiceDir,
        settings: ServiceSettings,
        observe: Observe | None = None,
        machines: Callable[[], Sequence[Machine]] | None = None,
        record: SchedulerRecord | None = None,
        before_end: BeforeEnd = do_nothing,
    ) -> None:
        self._lock = directory.lock()
        self._leaves = False
        undo = ExitStack()
        undo.callback(self._lock.close)
        with undo:
            # First, because a bad address must not leave a record, which fixes the settings of later starts.
            if settings.host:
                _check_address(settings.host, settings.port)
            is_own = record is None
            record = record or _opened(directory)
            undo.callback(record.close)
            #: What was dropped at the damaged end of the record, as a sentence; empty if nothing was.
            self.dropped = record.dropped
            header = record.header
            self.cluster = settings.cluster(header)
            nodes = self.cluster.capacities()
            live = settings.live(header)
            self.observer = Observer(observe)
            try:
                self.scheduler = LiveScheduler(
                    nodes, live, record=record, observe=self.observer.take, before_end=before_end
                )
            except StorageError as error:
                raise error if header is None or not is_own else _way_out(header.tag, error) from error
            undo.callback(self.scheduler.close, leave=True)
            self._nodes: YarnNodes | None = None
            if machines is not None:
                self._nodes = YarnNodes(self.scheduler, self.cluster, machines)
                undo.callback(self._nodes.close)
            self.sweeps = Sweeps(self.scheduler, self.cluster)
            self.observer.wake, self.observer.name_of = self.sweeps.wake, self._name_of
            # Before clients can ask for a sweep.
            self.sweeps.resume()
            servicer = SchedulerService(self.scheduler, self.cluster, self.observer.board, self.sweeps)
            security = directory.security(between_hosts=bool(settings.host))

            def listen(port: int) -> tuple[grpc.Server, Address]:
                return serve(
                    lambda server: add_HSchedulerServicer_to_server(servicer, server),
                    settings.host,
                    port,
                    MOST_CALLS,
                    security,
                )

            try:
                self._server, self.address = listen(settings.port or directory.last_port())
            except ConfigError:
                if settings.port:
                    raise
                self._server, self.address = listen(0)
            undo.callback(stop, self._server, STOP_GRACE_S)
            directory.write_address(self.address, os.getpid())
            undo.pop_all()

    def _name_of(self, job_id: str) -> str:
        submission = self.scheduler.look_ups.submission(job_id)
        return "" if submission is None else submission.name

    def metrics(self) -> str:
        """Return the metrics of all jobs, for Prometheus; no best job, because sweeps may have different metrics.

        Raises
        ------
        DeadlineError
            As :meth:`LiveScheduler.ask`.
        """
        return metrics_text(look_of(self.scheduler, Look(policy=self.scheduler.settings.policy, metric="")))

    def leave(self) -> None:
        """Keep the jobs running after :meth:`close`, for the next service in the directory."""
        self._leaves = True

    def close(self) -> None:
        """Stop the service, and end its jobs unless :meth:`leave` was called.  Idempotent."""
        stop(self._server, STOP_GRACE_S)
        if self._nodes is not None:
            self._nodes.close()
        if not self._leaves:
            self.sweeps.end(ENDS)
        self.scheduler.close(leave=self._leaves)
        self.sweeps.close()
        self._lock.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.leave()
        self.close()
