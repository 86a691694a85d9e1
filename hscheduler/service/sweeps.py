"""Sweeps whose points the service itself finds: they go on when their client is gone, and after a restart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from eps.errors import ConfigError
from hscheduler.live.checks import check_sweep, working
from hscheduler.live.placement import check_place
from hscheduler.live.reporting import report_of
from hscheduler.live.scheduler import LiveScheduler
from hscheduler.live.submission import attempt_id
from hscheduler.live.sweep import Sweep, opened_of, trial_id, trial_prefix
from hscheduler.spec import ClusterSpec, Spec

logger = logging.getLogger(__name__)

#: Jobs that belong to no sweep are ranked among each other under this name.
ALONE = "jobs"
TAKE_TIMEOUT_S = 30.0
_JOIN_S = 10.0


class Sweeps:
    """The sweeps of one service; thread-safe.

    Parameters
    ----------
    scheduler : LiveScheduler
    cluster : ClusterSpec
        In the place of the one in a sweep's file.
    """

    def __init__(self, scheduler: LiveScheduler, cluster: ClusterSpec) -> None:
        self._scheduler = scheduler
        self._cluster = cluster
        self._lock = threading.Lock()
        self._sweeps: dict[str, Sweep] = {}
        self._threads: dict[str, threading.Thread] = {}
        #: Sweeps all of whose trials are over, and no more will come.
        self._ended: set[str] = set()
        self._failed: dict[str, str] = {}

    def go_on(self) -> None:
        """Take up the sweeps of the scheduler's record; one that cannot go on does not keep the others from it."""
        with self._lock:
            for name, tables in list(self._scheduler.registry.tables.items()):
                if name in self._threads:
                    continue
                if name in self._scheduler.registry.ended:
                    self._ended.add(name)
                    continue
                try:
                    self._begin(name, self._sweep(name, tables))
                except ConfigError as error:
                    # As where what finds its points is not installed any more; it may be when this starts again.
                    logger.error("sweep %s cannot go on: %s", name, error)
                    self._failed[name] = str(error)

    def run(self, name: str, tables: Mapping[str, Any]) -> None:
        """Begin a sweep; the same once more changes nothing.

        Raises
        ------
        ConfigError
            It cannot work, or another sweep has its name.
        DeadlineError, RuntimeError
            As of :meth:`LiveScheduler.settle`.
        """
        scheduler = self._scheduler
        with self._lock:
            before = scheduler.registry.tables.get(name)
            is_same = before is not None and dict(before) == dict(tables)
            if is_same and (name in self._threads or name in self._ended):
                return
            if not is_same:
                self._check_name(name)
                # Who waits for the answer does not wait for all of the data to be read.
                spec = self._spec(tables)
                check_sweep(spec, reads_data=False)
                working(spec, lambda job: check_place(job, scheduler.settings.job_settings))
            sweep = self._sweep(name, tables)
            try:
                # The longest that there may be.
                scheduler.name_of(attempt_id(trial_id(name, sweep.spec.sweep.trials), sweep.spec.sweep.retries + 1))
            except ConfigError:
                raise ConfigError(
                    f"sweep is {name!r}, but must be of letters, digits, '.', '_' and '-', and so short that the names "
                    "of its jobs, which begin with it, have at most 64 characters"
                ) from None
            if not is_same:
                scheduler.open_sweep(opened_of(sweep.spec, name), tables)
            scheduler.settle(TAKE_TIMEOUT_S)
            self._begin(name, sweep)

    def _check_name(self, name: str) -> None:
        scheduler = self._scheduler
        if not name or name in (ALONE, *scheduler.registry.tables) or scheduler.look_ups.has_sweep(name):
            raise ConfigError(f"sweep is {name!r}, but must be a name that no other sweep has")
        if taken := scheduler.look_ups.first_id(trial_prefix(name)):
            raise ConfigError(f"sweep is {name!r}, but must be another name: there has been a job {taken!r}")

    def check_job_id(self, job_id: str) -> None:
        """Refuse a job id that a trial of a sweep of ours may have.

        Raises
        ------
        ConfigError
            It is one.
        """
        for name in list(self._scheduler.registry.tables):
            if job_id.startswith(trial_prefix(name)):
                raise ConfigError(f"job id is {job_id!r}, but must be another: sweep {name!r} has such ids")

    def _sweep(self, name: str, tables: Mapping[str, Any]) -> Sweep:
        return Sweep(self._spec(tables), self._scheduler.settings.policy, name=name)

    def _spec(self, tables: Mapping[str, Any]) -> Spec:
        values = {section: table for section, table in tables.items() if section != "cluster"}
        return Spec.of({**values, "cluster": vars(self._cluster)})

    def _begin(self, name: str, sweep: Sweep) -> None:
        self._sweeps[name] = sweep
        thread = threading.Thread(target=self._feed, args=(name, sweep), name=f"sweep {name}", daemon=True)
        self._threads[name] = thread
        thread.start()

    def _feed(self, name: str, sweep: Sweep) -> None:
        try:
            sweep.feed(self._scheduler)
        except Exception as error:
            if self._scheduler.has_ended:
                # The next one goes on with it.
                return
            logger.exception("sweep %s cannot go on", name)
            self._failed[name] = f"{type(error).__name__}: {error}"
            self._scheduler.close_sweep(name, f"the sweep cannot go on: {error}")
        self._ended.add(name)
        self._scheduler.note_end(name)
        # What it knows of its trials is in the scheduler.
        del self._sweeps[name], self._threads[name]

    def wake(self) -> None:
        """Have all sweeps look at their trials."""
        for sweep in list(self._sweeps.values()):
            sweep.wake()

    def has_ended(self, name: str) -> bool:
        """Return whether no more trials of a sweep will come, and all are over; one of a client's own never ends.

        A sweep that cannot go on has ended, too: :meth:`states` says why.
        """
        return name in self._ended or name in self._failed

    def states(self) -> dict[str, str]:
        """Return how each sweep is."""
        names = dict.fromkeys([*self._scheduler.registry.sweeps, *self._sweeps])
        return {name: self._failed.get(name) or ("ended" if self.has_ended(name) else "running") for name in names}

    def report(self, name: str) -> dict[str, Any]:
        """Return the report of a sweep, or of everything where the name is empty.  Raises as :func:`report_of`."""
        spec, tables = None, self._scheduler.registry.tables.get(name)
        if tables is not None:
            with suppress(ConfigError):
                spec = self._spec(tables)
        return report_of(self._scheduler, name, spec)

    def end(self, why: str) -> None:
        """End all sweeps that have not ended: no scheduler is to go on with them."""
        for name in list(self._scheduler.registry.tables):
            if name not in self._ended:
                self._scheduler.close_sweep(name, why)

    def close(self) -> None:
        """Wait for the sweeps' threads, whose scheduler has been closed."""
        self.wake()
        for thread in list(self._threads.values()):
            thread.join(_JOIN_S)
