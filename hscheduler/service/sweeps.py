"""Sweeps that the service runs itself.  They continue without their client, and after a restart."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from eps.errors import ConfigError
from hscheduler.live.checks import check_sweep, warnings_of, working
from hscheduler.live.placement import check_place
from hscheduler.live.reporting import report_of
from hscheduler.live.scheduler import LiveScheduler
from hscheduler.live.sweep import SETTLE_TIMEOUT_S, SWEEP, Sweep, check_names, jobs_of, trial_prefix
from hscheduler.spec import ClusterSpec, Spec

logger = logging.getLogger(__name__)

#: Name of the sweep of all jobs that were submitted without one.
ALONE = "jobs"
_JOIN_S = 10.0


class Sweeps:
    """The sweeps of one service; thread-safe.

    Parameters
    ----------
    scheduler : LiveScheduler
    cluster : ClusterSpec
        Replaces the cluster in a sweep's file.
    """

    def __init__(self, scheduler: LiveScheduler, cluster: ClusterSpec) -> None:
        self._scheduler = scheduler
        self._cluster = cluster
        self._lock = threading.Lock()
        self._sweeps: dict[str, Sweep] = {}
        self._threads: dict[str, threading.Thread] = {}
        #: Sweeps whose trials have all ended, without more to come.
        self._ended: set[str] = set()
        self._failed: dict[str, str] = {}

    def resume(self) -> None:
        """Resume the sweeps in the scheduler's record; a sweep that cannot resume does not stop the others."""
        with self._lock:
            for name, tables in list(self._scheduler.registry.tables.items()):
                if name in self._threads:
                    continue
                if name in self._scheduler.registry.ended:
                    self._ended.add(name)
                    continue
                try:
                    self._start(name, self._sweep(name, tables))
                except ConfigError as error:
                    # For example, its search algorithm is not installed.  The next restart tries again.
                    logger.error("sweep %s cannot resume: %s", name, error)
                    # Meanwhile no room is kept for its trials.
                    opened = self._scheduler.registry.sweeps[name]
                    self._scheduler.open_sweep(dataclasses.replace(opened, coming=None))
                    self._failed[name] = str(error)

    def run(self, name: str, tables: Mapping[str, Any]) -> None:
        """Start a sweep.  Idempotent.

        Raises
        ------
        ConfigError
            A setting is invalid, or another sweep has the name.
        DeadlineError, RuntimeError
            As :meth:`LiveScheduler.settle`.
        """
        scheduler = self._scheduler
        with self._lock:
            before = scheduler.registry.tables.get(name)
            is_same = before is not None and dict(before) == dict(tables)
            if is_same and (name in self._threads or name in self._ended):
                return
            if not is_same:
                self._check_name(name)
                # Reading all data would delay the answer.
                spec = self._spec(tables)
                check_names(spec, self._label(name))
                check_sweep(spec, reads_data=False)
                working(spec, lambda job: check_place(job, scheduler.settings.job_settings))
                for sentence in warnings_of(spec, scheduler.settings.policy):
                    logger.warning("sweep %s: %s", name, sentence)
            sweep = self._sweep(name, tables)
            if not is_same:
                scheduler.open_sweep(sweep.spec.opened(name), tables)
            scheduler.settle(SETTLE_TIMEOUT_S)
            self._start(name, sweep)

    def _check_name(self, name: str) -> None:
        scheduler = self._scheduler
        if not name or name in (ALONE, *scheduler.registry.tables) or scheduler.look_ups.has_sweep(name):
            raise ConfigError(f"sweep is {name!r}, but must be an unused name")
        taken = scheduler.look_ups.first_id(trial_prefix(self._label(name)))
        if not taken and scheduler.names_are_ids and (jobs := jobs_of(name)):
            taken = jobs[0].name
        if taken:
            raise ConfigError(f"sweep is {name!r}, but must be another name: job {taken!r} exists")

    def _label(self, name: str) -> str:
        """Return the name with which the ids of a sweep's trials begin; empty for the only sweep of an application."""
        return "" if name == SWEEP and not self._scheduler.names_are_ids else name

    def check_job_id(self, job_id: str) -> None:
        """Reject a job id that is reserved for trials of a sweep.

        Raises
        ------
        ConfigError
            The id is reserved.
        """
        for name in list(self._scheduler.registry.tables):
            if job_id.startswith(trial_prefix(self._label(name))):
                raise ConfigError(f"job id is {job_id!r}, but must be another: sweep {name!r} reserves such ids")

    def _sweep(self, name: str, tables: Mapping[str, Any]) -> Sweep:
        return Sweep(self._spec(tables), self._scheduler.settings.policy, name=self._label(name))

    def _spec(self, tables: Mapping[str, Any]) -> Spec:
        values = {section: table for section, table in tables.items() if section != "cluster"}
        return Spec.of({**values, "cluster": vars(self._cluster)})

    def _start(self, name: str, sweep: Sweep) -> None:
        self._sweeps[name] = sweep
        thread = threading.Thread(target=self._feed, args=(name, sweep), name=f"sweep {name}", daemon=True)
        self._threads[name] = thread
        thread.start()

    def _feed(self, name: str, sweep: Sweep) -> None:
        try:
            sweep.feed(self._scheduler)
        except Exception as error:
            if self._scheduler.has_ended:
                # The next service resumes it.
                return
            logger.exception("sweep %s failed", name)
            self._failed[name] = f"{type(error).__name__}: {error}"
            self._scheduler.close_sweep(name, f"the sweep failed: {error}")
        self._ended.add(name)
        self._scheduler.note_end(name)
        # The scheduler has the state of its trials.
        del self._sweeps[name], self._threads[name]

    def wake(self) -> None:
        """Make all sweeps check their trials."""
        for sweep in list(self._sweeps.values()):
            sweep.wake()

    def has_ended(self, name: str) -> bool:
        """Return whether all trials of a sweep have ended, without more to come.  Always False for a client's sweep.

        A failed sweep has ended, too; :meth:`states` has the reason.
        """
        return name in self._ended or name in self._failed

    def states(self) -> dict[str, str]:
        """Return the state of each sweep: ``running``, ``ended``, or why it failed."""
        names = dict.fromkeys([*self._scheduler.registry.sweeps, *self._sweeps])
        return {name: self._failed.get(name) or ("ended" if self.has_ended(name) else "running") for name in names}

    def running(self) -> list[str]:
        """Return the names of the sweeps that run."""
        closed = self._scheduler.registry.closed
        return [name for name, state in self.states().items() if name and state == "running" and name not in closed]

    def report(self, name: str) -> dict[str, Any]:
        """Return the report of a sweep (empty: of all jobs).  Raises as :func:`report_of`."""
        spec, tables = None, self._scheduler.registry.tables.get(name)
        if tables is not None:
            with suppress(ConfigError):
                spec = self._spec(tables)
        return report_of(self._scheduler, name, spec)

    def end(self, why: str) -> None:
        """End all running sweeps for good, so that no service resumes them."""
        for name in list(self._scheduler.registry.tables):
            if name not in self._ended:
                self._scheduler.close_sweep(name, why)

    def close(self) -> None:
        """Wait for the threads of sweeps.  Close the scheduler first."""
        self.wake()
        for thread in list(self._threads.values()):
            thread.join(_JOIN_S)
