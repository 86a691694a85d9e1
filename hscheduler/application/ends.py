"""What an application's scheduler decides, carried out on its containers: who may have how many, and who has ended."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

from eps.cluster.broker.service import Broker
from eps.errors import EpsError, StorageError
from eps.job.yarn.sweeps import REPORT_FILE
from eps.job.yarn.within import Place
from eps.storage.api import Storage
from eps.storage.jobdir import find_job
from hscheduler.core import events as e
from hscheduler.core.jobs import Phase
from hscheduler.core.ledger import Hold
from hscheduler.core.resources import Role
from hscheduler.core.state import Scheduler

logger = logging.getLogger(__name__)

#: What jobs have brought is on its way for so long after the last one's end, at most.
_JOIN_S = 180.0
#: A file system that refuses what a job has brought is tried so often, after pauses of so many seconds.
LEAVE_ATTEMPTS, PAUSE_S = 3, 1.0
#: A job, which start of it, and whether it failed.
_Ended = tuple[str, object, bool]


class Ends:
    """Watches a scheduler that shares one application among its jobs.

    Parameters
    ----------
    broker : Broker
    place : Place
    results : Storage
        Where the report of what there is so far is left.
    """

    def __init__(self, broker: Broker, place: Place, results: Storage) -> None:
        self._broker, self._place, self._results = broker, place, results
        #: Job of the scheduler -> its name; known when the scheduler is.
        self._name_of: Callable[[str], str] | None = None
        self._report: Callable[[], Mapping[str, Any]] | None = None
        #: Job of the scheduler -> which start of it trains.
        self._runs: dict[str, object | None] = {}
        #: Name of a job that has ended -> which start of it, and why what it has brought is not left (yet).
        self._unleft: dict[str, tuple[object, str]] = {}
        self._lock = Lock()
        self._pause = Event()
        self._ended: SimpleQueue[_Ended | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, name="ends of jobs", daemon=True)
        self._thread.start()

    def begin(self, name_of: Callable[[str], str], report: Callable[[], Mapping[str, Any]], state: Scheduler) -> None:
        """Grant from now on what the scheduler has granted; on its thread."""
        self._report = report
        self._name_of = name_of
        self._lease(name_of, state)

    def take(self, now_s: float, event: e.Event, commands: list[e.Command], state: Scheduler) -> None:
        """Take an event and what it brought about, with the state as it is now; on the scheduler's thread."""
        if self._name_of is None or (isinstance(event, e.Iterated) and not commands):
            return
        self._lease(self._name_of, state)
        if isinstance(event, e.MembersFound):
            self._runs[event.job_id] = self._place.run_of(self._name_of(event.job_id))
        elif isinstance(event, e.JobEnded):
            name, run = self._name_of(event.job_id), self._runs.pop(event.job_id, None)
            if run is None and any(isinstance(command, e.JobOver) for command in commands):
                # It never trained; nor is it begun again, as one may be by now that has only stopped.
                run = self._place.run_of(name)
            if run is not None:
                with self._lock:
                    self._unleft[name] = run, "its turn did not come"
                self._ended.put((name, run, event.phase is Phase.FAILED))

    def close(self) -> dict[str, str]:
        """Return when all that has ended so far is left in the cluster's file system: of which jobs it is not, and why.

        What takes too long is among them.
        """
        self._ended.put(None)
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            logger.warning("H what jobs have brought is not left within %g s", _JOIN_S)
        with self._lock:
            return {name: why for name, (_, why) in self._unleft.items()}

    def _lease(self, name_of: Callable[[str], str], state: Scheduler) -> None:
        ledger = state.ledger
        held = (
            container
            for container in ledger.all()
            if container.role is not Role.MASTER and ledger.hold(container.container_id) is not Hold.PROMISED
        )
        self._broker.lease(Counter(name_of(container.job_id) for container in held))

    def _serve(self) -> None:
        while (ended := self._ended.get()) is not None:
            name, run, has_failed = ended
            try:
                # One that begins again meanwhile has a directory of that name, and a start of its own.
                self._place.end(name, run)
                if self._place.run_of(name) is None:
                    self._leave(name, has_failed)
                self._note(name, run, "")
            except (EpsError, RuntimeError) as error:
                self._note(name, run, str(error))
                logger.warning("H what %s has brought is not left: %s", name, error)
            try:
                if self._report is not None:
                    self.leave_report(self._report())
            except (EpsError, RuntimeError) as error:
                logger.warning("H the report of what there is so far is not left: %s", error)

    def _leave(self, name: str, has_failed: bool) -> None:
        """Leave what a job has brought; again where that fails for now."""
        for attempt in range(1, LEAVE_ATTEMPTS + 1):
            try:
                self._place.leave(find_job(name), logs=has_failed)
                return
            except StorageError as error:
                if attempt == LEAVE_ATTEMPTS:
                    raise
                logger.warning("H what %s has brought is left again: %s", name, error)
                self._pause.wait(PAUSE_S)

    def _note(self, name: str, run: object, why: str) -> None:
        """Note whether what a start of a job has brought is left; another one since then is not meant."""
        with self._lock:
            if name not in self._unleft or self._unleft[name][0] is not run:
                return
            if why:
                self._unleft[name] = run, why
            else:
                del self._unleft[name]

    def leave_report(self, report: Mapping[str, Any]) -> None:
        """Leave the sweep's report as it is.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        with self._results.write(REPORT_FILE) as file:
            file.write(json.dumps(report).encode("utf-8"))
