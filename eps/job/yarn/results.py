"""What a job on YARN leaves in its folder on the cluster: how far it is while it runs, and its results at the end.

An application that YARN ends from outside has no time to say anything.  What its master left there before is then all
that is known of it.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from eps.cluster.supervisor.process import MASTER
from eps.cluster.yarn.application import COPY_BYTES, ENDED_FILE, PAGE_FILE, RESULTS, papers_of
from eps.errors import StorageError
from eps.job.yarn.page import page_of
from eps.storage.api import Storage
from eps.storage.atomic import write_bytes_atomic
from eps.storage.jobdir import JobDir, readable

logger = logging.getLogger(__name__)

#: What a NodeManager keeps of this process's standard error, and how much of its end is left with the results.
OWN_LOG, LOG_BYTES = Path("/proc/self/fd/2"), 1 << 20
#: The status is left so often; with each checkpoint and each change of size sooner, but at most every :data:`LEAST_S`.
REFRESH_S, LEAST_S = 30.0, 5.0
LOOK_S = 1.0
#: Entries of the history that are left with the status, evenly spaced.
MOST_HISTORY = 250


class Results:
    """Leaves what a job has brought where its clients look for it.  Thread-safe.

    Parameters
    ----------
    job : JobDir
        Of this process.
    shared : Storage
    fence : callable
        Called before a file takes its name; does not return where a later attempt has begun.
    """

    def __init__(self, job: JobDir, shared: Storage, fence: Callable[[], None] = lambda: None) -> None:
        self._job, self._shared, self._fence = job, shared, fence
        self._lock = threading.Lock()
        self._has_ended = False

    def leave_model(self) -> None:
        """Copy the model, before the job is said to have finished: of what is left then, no other master could make it.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        self._copy(self._job.model)

    def leave_status(self, status: Mapping[str, Any]) -> None:
        """Write how far the job is, unless it has ended: what is left then says more.

        Raises
        ------
        StorageError
            It cannot be written.
        """
        with self._lock:
            if not self._has_ended:
                with self._file(self._job.status_json.name) as file:
                    file.write(json.dumps(status).encode("utf-8"))

    def leave(self, exit_code: int, state: str, reason: str) -> None:
        """Copy the other files, and last how the job ended: where that is, the others are.

        Raises
        ------
        StorageError
            They cannot be written.
        """
        with self._lock:
            self._has_ended = True
        _keep_own_log(self._job)
        for path in papers_of(self._job):
            if path.is_file():
                self._copy(path)
        if status := readable(self._job.status_json):
            page = page_of({**status, "state": state, "reason": reason}, has_ended=True)
            with self._file(PAGE_FILE) as file:
                file.write(page.encode("utf-8"))
        ended = {"state": state, "exit_code": exit_code, "reason": reason}
        with self._file(ENDED_FILE) as file:
            file.write(json.dumps(ended).encode("utf-8"))

    def _copy(self, path: Path) -> None:
        # A model may be larger than what is left of the container.
        with path.open("rb") as source, self._file(path.name) as file:
            shutil.copyfileobj(source, file, COPY_BYTES)

    @contextmanager
    def _file(self, name: str) -> Iterator[BinaryIO]:
        with self._shared.write(f"{RESULTS}/{name}") as file:
            yield file
            self._fence()


def _keep_own_log(job: JobDir) -> None:
    """Keep the end of what this process has logged among the job's files: its container's folder goes with it."""
    with suppress(OSError), OWN_LOG.open("rb") as source:
        source.seek(max(0, OWN_LOG.stat().st_size - LOG_BYTES))
        job.logs.mkdir(exist_ok=True)
        write_bytes_atomic(job.log(MASTER), source.read(LOG_BYTES), sync=False)


class StatusRefresher:
    """Leaves a job's status in its folder on the cluster while the job runs, on a thread of its own.

    Parameters
    ----------
    job : JobDir
        Of this process; its master writes the status there.
    results : Results
    history : callable
        Takes how many entries are wanted at most, and returns them.
    """

    def __init__(self, job: JobDir, results: Results, history: Callable[[int], list[dict[str, Any]]]) -> None:
        self._job, self._results, self._history = job, results, history
        self._left_s, self._trouble = -REFRESH_S, ""
        #: Of the status that was left last: its checkpoints, and the latest change.
        self._news: tuple[object, ...] = ()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self.refresh(time.monotonic())

    def refresh(self, now_s: float) -> None:
        """Leave the status, where that is due."""
        status = readable(self._job.status_json)
        if not status:
            return
        latest = [(change["plan_id"], change["phase"]) for change in status["changes"][-1:]]
        news = (status["checkpoints"]["complete"], *latest)
        if now_s - self._left_s < (REFRESH_S if news == self._news else LEAST_S):
            return
        trouble = ""
        try:
            self._results.leave_status({**status, "history": self._history(MOST_HISTORY)})
        except StorageError as error:
            trouble = str(error)
        if trouble and not self._trouble:
            logger.warning("M the status is not left on the cluster: %s", trouble)
        self._left_s, self._news, self._trouble = now_s, news, trouble

    def close(self) -> None:
        """Leave nothing more; harmless when repeated."""
        self._closing.set()
        self._thread.join()
