"""Upload a job's status to its folder on the cluster while it runs, and its results at the end.

If YARN kills the application, the status that was uploaded last is all that clients can read.
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
from eps.cluster.yarn.application import COPY_BYTES, ENDED_FILE, PAGE_FILE, RESULTS, result_files
from eps.errors import StorageError
from eps.job.page import RESULT_LINKS, page_of
from eps.storage.api import Storage
from eps.storage.atomic import write_bytes_atomic
from eps.storage.jobdir import JobDir, readable

logger = logging.getLogger(__name__)

#: This process's standard error, which the NodeManager keeps, and how much of its end is uploaded.
OWN_LOG, LOG_BYTES = Path("/proc/self/fd/2"), 1 << 20
#: Seconds between uploads of the status, and the least seconds if there is a new checkpoint or change.
REFRESH_S, LEAST_S = 30.0, 5.0
LOOK_S = 1.0
#: Longest wait for an upload at the end.
CLOSE_S = 10.0
#: Entries of the history in the status, evenly spaced.
MOST_HISTORY = 250


class Results:
    """Uploads a job's results to its folder on the cluster.  Thread-safe.

    Parameters
    ----------
    job : JobDir
        Of this process.
    shared : Storage
    fence : callable
        Called before a file gets its final name; does not return if a later attempt has started.
    """

    def __init__(self, job: JobDir, shared: Storage, fence: Callable[[], None] = lambda: None) -> None:
        self._job, self._shared, self._fence = job, shared, fence
        self._lock = threading.Lock()
        self._has_ended = False

    def upload_model(self) -> None:
        """Upload the model before the job's end is reported, since no later master could recreate it.

        Raises
        ------
        StorageError
            The model cannot be written.
        """
        self._copy(self._job.model)

    def upload_status(self, status: Mapping[str, Any]) -> None:
        """Upload the status, unless the job has ended and its results are being uploaded.

        Raises
        ------
        StorageError
            The status cannot be written.
        """
        with self._lock:
            if not self._has_ended:
                with self._file(self._job.status_json.name) as file:
                    file.write(json.dumps(status).encode("utf-8"))

    def upload_results(self, exit_code: int, state: str, reason: str) -> None:
        """Upload the other files, and the outcome last: if that file exists, all others do.

        Raises
        ------
        StorageError
            The files cannot be written.
        """
        with self._lock:
            self._has_ended = True
        _keep_own_log(self._job)
        for path in result_files(self._job):
            if path.is_file():
                self._copy(path)
        if status := readable(self._job.status_json):
            page = page_of({**status, "state": state, "reason": reason}, status.get("history", ()), links=RESULT_LINKS)
            with self._file(PAGE_FILE) as file:
                file.write(page.encode("utf-8"))
        ended = {"state": state, "exit_code": exit_code, "reason": reason}
        with self._file(ENDED_FILE) as file:
            file.write(json.dumps(ended).encode("utf-8"))

    def _copy(self, path: Path) -> None:
        # A model may be larger than the free memory of the container.
        with path.open("rb") as source, self._file(path.name) as file:
            shutil.copyfileobj(source, file, COPY_BYTES)

    @contextmanager
    def _file(self, name: str) -> Iterator[BinaryIO]:
        with self._shared.write(f"{RESULTS}/{name}") as file:
            yield file
            self._fence()


def _keep_own_log(job: JobDir) -> None:
    """Copy the end of this process's log to the job's files, because YARN deletes the container's folder."""
    with suppress(OSError), OWN_LOG.open("rb") as source:
        source.seek(max(0, OWN_LOG.stat().st_size - LOG_BYTES))
        job.logs.mkdir(exist_ok=True)
        write_bytes_atomic(job.log(MASTER), source.read(LOG_BYTES), sync=False)


class StatusRefresher:
    """Uploads a job's status to its folder on the cluster while the job runs, on its own thread.

    Parameters
    ----------
    job : JobDir
        Of this process; its master writes the status there.
    results : Results
    history : callable
        Returns at most the given number of entries.
    """

    def __init__(self, job: JobDir, results: Results, history: Callable[[int], list[dict[str, Any]]]) -> None:
        self._job, self._results, self._history = job, results, history
        self._left_s, self._trouble = -REFRESH_S, ""
        #: Checkpoints and latest change of the last uploaded status.
        self._news: tuple[object, ...] = ()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            self.refresh(time.monotonic())

    def refresh(self, now_s: float) -> None:
        """Upload the status if it is due."""
        status = readable(self._job.status_json)
        if not status:
            return
        latest = [(change["plan_id"], change["phase"]) for change in status["changes"][-1:]]
        news = (status["checkpoints"]["complete"], *latest)
        if now_s - self._left_s < (REFRESH_S if news == self._news else LEAST_S):
            return
        trouble = ""
        try:
            self._results.upload_status({**status, "history": self._history(MOST_HISTORY)})
        except StorageError as error:
            trouble = str(error)
        if trouble and not self._trouble:
            logger.warning("M the status cannot be uploaded: %s", trouble)
        self._left_s, self._news, self._trouble = now_s, news, trouble

    def close(self) -> None:
        """Stop uploading.  Idempotent."""
        self._closing.set()
        # The end of a job does not wait for a store that hangs: the process ends, and the thread with it.
        self._thread.join(CLOSE_S)
