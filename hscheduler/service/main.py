"""One service: its directory, its journal, the scheduler, and who may call it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from eps.core.types import Address
from eps.errors import ConfigError
from eps.rpc.call import serve, stop
from hscheduler.core.resources import Resources
from hscheduler.live.journal import EventJournal, Header
from hscheduler.live.scheduler import LiveScheduler, LiveSettings
from hscheduler.pb.scheduler_pb2_grpc import add_HSchedulerServicer_to_server
from hscheduler.service.directory import ServiceDir
from hscheduler.service.observer import Observer
from hscheduler.service.server import SchedulerService
from hscheduler.service.sweeps import Sweeps
from hscheduler.spec import ClusterSpec

#: Calls and streams at the same time; a further one is refused.
MOST_CALLS = 256
STOP_GRACE_S = 0.5


@dataclass(frozen=True)
class ServiceSettings:
    """What a service is told; None takes what its journal was begun with, or the default."""

    policy: str | None = None
    nodes: int | None = None
    vcores: int | None = None
    memory: str | None = None
    seed: int | None = None
    threshold: int | None = None
    feedback_iteration: int = 100
    kill_restart_s: float | None = None
    host: str = "127.0.0.1"
    #: 0: the one it last had, where that is free; else any.
    port: int = 0

    def cluster(self, header: Header | None) -> ClusterSpec:
        """Return the cluster that was asked for; what was not said is as it was."""
        default = ClusterSpec()
        if header is not None:
            # All nodes are alike.
            vcores, memory_mb = next(iter(header.nodes.values()))
            default = replace(default, nodes=len(header.nodes), vcores=vcores, memory=f"{memory_mb}MiB")
        return replace(
            default,
            nodes=default.nodes if self.nodes is None else self.nodes,
            vcores=default.vcores if self.vcores is None else self.vcores,
            memory=default.memory if self.memory is None else self.memory,
        )

    def live(self, header: Header | None) -> LiveSettings:
        """Return how jobs are treated; what was not said is as it was."""
        was = header or Header("elastic", 0, {}, None, 0.0, "", 0.0)
        return LiveSettings(
            policy=self.policy or was.policy,
            seed=was.seed if self.seed is None else self.seed,
            feedback_iteration=self.feedback_iteration,
            restart_s=was.restart_s if self.kill_restart_s is None else self.kill_restart_s,
            threshold=was.threshold if self.threshold is None else (self.threshold or None),
        )


def past_report(directory: ServiceDir, sweep: str) -> dict[str, Any]:
    """Return the report of a sweep, or of everything where that is empty, from the journal of a service that is gone.

    Raises
    ------
    ConfigError
        A service runs there, nothing was ever done there, or the sweep is unknown.
    StorageError
        The directory cannot be used, or its journal is damaged.
    """
    if not directory.journal.exists():
        raise ConfigError(f"{directory.path}: no H-scheduler was ever here")
    with directory.lock(), EventJournal(directory.journal) as journal:
        if journal.header is None:
            raise ConfigError(f"{directory.journal}: it is empty")
        settings = ServiceSettings()
        cluster = settings.cluster(journal.header)
        live = settings.live(journal.header)
        scheduler = LiveScheduler(cluster.capacities(), live, journal=journal, takes_up=False)
        scheduler.close(leave=True)
        if sweep and sweep not in scheduler.sweeps and not scheduler.submissions(sweep):
            raise ConfigError(f"sweep is {sweep!r}, but must be one of {', '.join(scheduler.sweeps) or 'none'}")
        return Sweeps(scheduler, cluster).report(sweep)


class Service:
    """A service that runs; as a context manager it ends all of its jobs at the end, but for :meth:`leave`.

    Where the block ends with an exception nobody wanted them to end: they are left.

    Parameters
    ----------
    directory : ServiceDir
    settings : ServiceSettings

    Raises
    ------
    ConfigError
        The directory belongs to another one that runs or was begun with other settings, or the address is taken.
    StorageError
        The directory cannot be used, or its journal is damaged.
    """

    def __init__(self, directory: ServiceDir, settings: ServiceSettings) -> None:
        self._lock = directory.lock()
        self._leaves = False
        undo = ExitStack()
        undo.callback(self._lock.close)
        with undo:
            self._journal = undo.enter_context(EventJournal(directory.journal))
            #: What was dropped at the end of the journal, as a sentence; empty if nothing was.
            self.dropped = self._journal.dropped
            header = self._journal.header
            self.cluster = settings.cluster(header)
            nodes: dict[str, Resources] = self.cluster.capacities()
            live = settings.live(header)
            self.observer = Observer(live.policy)
            self.scheduler = LiveScheduler(nodes, live, journal=self._journal, observe=self.observer.take)
            undo.callback(self.scheduler.close, leave=True)
            self.sweeps = Sweeps(self.scheduler, self.cluster)
            self.observer.wake, self.observer.name_of = self.sweeps.wake, self._name_of
            # Before anybody can ask for one of them.
            self.sweeps.go_on()
            servicer = SchedulerService(self.scheduler, self.cluster, self.observer.board, self.sweeps)
            security = directory.security()

            def listen(port: int) -> tuple[object, int]:
                return serve(
                    lambda server: add_HSchedulerServicer_to_server(servicer, server),
                    settings.host,
                    port,
                    MOST_CALLS,
                    security,
                )

            try:
                self._server, port = listen(settings.port or directory.last_port())
            except ConfigError:
                if settings.port:
                    raise
                self._server, port = listen(0)
            self.address = Address(settings.host, port)
            undo.callback(stop, self._server, STOP_GRACE_S)
            directory.say_where(self.address, os.getpid())
            undo.pop_all()

    def _name_of(self, job_id: str) -> str:
        submission = self.scheduler.submission(job_id)
        return "" if submission is None else submission.name

    def leave(self) -> None:
        """Leave the jobs as they are when this ends, for a service that goes on with the same directory."""
        self._leaves = True

    def close(self) -> None:
        """End it, and its jobs unless they are to be left; harmless when repeated."""
        stop(self._server, STOP_GRACE_S)
        if not self._leaves:
            self.sweeps.end("H-scheduler ends")
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
