"""Sweeps whose points the service itself finds: they go on when their client is gone, and after a restart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from eps.errors import ConfigError
from hscheduler.core import events as e
from hscheduler.core.jobs import Direction
from hscheduler.live.attempts import attempt_id
from hscheduler.live.scheduler import LiveScheduler
from hscheduler.live.sweep import Sweep, opened_of, trial_id, trial_prefix
from hscheduler.report import report
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
        """Take up the sweeps of the scheduler's journal; one that cannot go on does not keep the others from it."""
        with self._lock:
            for name, tables in list(self._scheduler.tables.items()):
                if name in self._threads:
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
            before = scheduler.tables.get(name)
            is_same = before is not None and dict(before) == dict(tables)
            if is_same and name in self._threads:
                return
            if not is_same:
                self._check_name(name)
            sweep = self._sweep(name, tables)
            # The longest that there may be.
            scheduler.name_of(attempt_id(trial_id(name, sweep.spec.sweep.trials), sweep.spec.sweep.retries + 1))
            if not is_same:
                scheduler.open_sweep(opened_of(sweep.spec, name), tables)
            scheduler.settle(TAKE_TIMEOUT_S)
            self._begin(name, sweep)

    def _check_name(self, name: str) -> None:
        scheduler = self._scheduler
        if not name or name in (ALONE, *scheduler.tables, *scheduler.sweeps) or scheduler.submissions(name):
            raise ConfigError(f"sweep is {name!r}, but must be a name that no other sweep has")
        taken = [each.job_id for each in scheduler.submissions() if each.job_id.startswith(trial_prefix(name))]
        if taken:
            raise ConfigError(f"sweep is {name!r}, but must be another name: there has been a job {taken[0]!r}")

    def check_job_id(self, job_id: str) -> None:
        """Refuse a job id that a trial of a sweep of ours may have.

        Raises
        ------
        ConfigError
            It is one.
        """
        for name in list(self._scheduler.tables):
            if job_id.startswith(trial_prefix(name)):
                raise ConfigError(f"job id is {job_id!r}, but must be another: sweep {name!r} has such ids")

    def _sweep(self, name: str, tables: Mapping[str, Any]) -> Sweep:
        values = {section: table for section, table in tables.items() if section != "cluster"}
        spec = Spec.of({**values, "cluster": vars(self._cluster)})
        return Sweep(spec, self._scheduler.settings.policy, name=name)

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

    def wake(self) -> None:
        """Have all sweeps look at their trials."""
        for sweep in list(self._sweeps.values()):
            sweep.wake()

    def has_ended(self, name: str) -> bool:
        """Return whether all trials of a sweep are over, and no more will come; one of a client's own never ends."""
        return name in self._ended

    def states(self) -> dict[str, str]:
        """Return how each sweep is."""
        names = dict.fromkeys([*self._scheduler.sweeps, *self._sweeps])
        return {name: self._failed.get(name) or ("ended" if self.has_ended(name) else "running") for name in names}

    def report(self, name: str) -> dict[str, Any]:
        """Return the report of a sweep, or of everything where the name is empty."""
        sweep = self._sweeps.get(name)
        scheduler = self._scheduler
        jobs = scheduler.submissions(name)
        if sweep is not None and sweep.scheduler is not None:
            return sweep.report()
        opened = scheduler.sweeps.get(name, e.SweepOpened(name))
        return report(
            scheduler.record,
            policy=scheduler.settings.policy,
            direction=Direction(opened.direction),
            losses={each.job_id: each.loss for each in jobs if each.loss is not None},
            points={each.job_id: each.point for each in jobs},
            names={each.job_id: each.name for each in jobs},
            waiting={job.job_id: job.why for job in list(scheduler.state.queue)},
            metric=opened.metric or scheduler.settings.metric,
            leaked=scheduler.leaked(),
            sweep=name,
            began_s=scheduler.opened_s.get(name, 0.0),
        )

    def end(self, why: str) -> None:
        """End all sweeps that have not ended: no scheduler is to go on with them."""
        for name in list(self._scheduler.tables):
            if name not in self._ended:
                self._scheduler.close_sweep(name, why)

    def close(self) -> None:
        """Wait for the sweeps' threads, whose scheduler has been closed."""
        self.wake()
        for thread in list(self._threads.values()):
            thread.join(_JOIN_S)
