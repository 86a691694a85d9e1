"""Containers of one Docker host: one for each worker and server, or for a worker and a server together.

The job master stays a process of this host, forked by the job's supervisor.  Its containers share the host's network
and process ids, and see the job's directory at the same path.  An image provides the file system; the engine limits
each container to the memory and cores of its request.

One thread polls the engine every :data:`LOOK_S` seconds, finds containers that have ended, and sends the signals that
are due.  If the engine does not respond for ``engine_timeout_s``, the job ends.

A container ends when the job's lock is released (see ``eps.cluster.container``), so no process has to end it.  The job
master removes it from the engine.  If the master was killed, the next job with ``on = docker`` does.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal as signals
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from eps.cluster.api import NO_NEWS, ContainerEvent, ContainerRequest, ResourceManager
from eps.cluster.backend import ContainerLedger, Phase, SupervisedManager
from eps.cluster.docker.container import (
    CHECK_IMAGE,
    CONTAINER,
    INSTANCE,
    JOB,
    DockerSettings,
    JobLabels,
    build_container,
)
from eps.cluster.docker.engine import TIMEOUT_S, DockerEngine, EngineSilentError, Found, Process, engine_host
from eps.cluster.supervisor.process import END
from eps.cluster.supervisor.state import exit_reason
from eps.errors import EpsError, ResourceError
from eps.storage.jobdir import JobDir

logger = logging.getLogger(__name__)

#: Name of this host in the status.
THIS_HOST = "localhost"
#: Polling interval for the job's containers.
LOOK_S = 0.5
#: Pause before a failed call is retried.
RETRY_S = 0.2
#: Heartbeat patience of a starting job master: it sends a few queries, each of which may time out.
OPEN_PATIENCE_S = 10.0 * TIMEOUT_S
#: Containers that are launched or removed concurrently.
NUM_LAUNCHERS = 10
#: How long the end of a job waits for the removal of its containers.
END_S = 10.0
GONE = "was lost: the Docker engine no longer lists it"
_LONGEST_LINE = 300
#: A shell's exit codes if a command cannot be executed or found, and Python's message for a missing module.
_NO_COMMAND, _NO_MODULE = (126, 127), "No module named"


def open_docker(
    settings: DockerSettings, job: JobDir, max_containers: int, supervisor: ResourceManager
) -> DockerResourceManager:
    """Return a resource manager for the engine that the environment names; parameters and errors are those of the
    class.

    If the engine is not available, for example during a restart, retry for ``engine_timeout_s``.
    """
    began_s = time.monotonic()
    while True:
        supervisor.beat(NO_NEWS, OPEN_PATIENCE_S)
        try:
            engine = DockerEngine()
            try:
                return DockerResourceManager(engine, settings, job, max_containers, supervisor)
            except BaseException:
                engine.close()
                raise
        except EngineSilentError as error:
            silent_s = time.monotonic() - began_s
            if silent_s >= settings.engine_timeout_s:
                raise ResourceError(_silent_too_long(silent_s, settings, job)) from error
            # Log only the text: a handler that keeps the record would keep the connection open.
            logger.warning("M %s", str(error))
            time.sleep(RETRY_S)


def _silent_too_long(silent_s: float, settings: DockerSettings, job: JobDir) -> str:
    return (
        f"the Docker engine at {engine_host()} has not answered for {silent_s:.0f} s (engine_timeout_s is "
        f"{settings.engine_timeout_s:g}): start it, then eps resume {job.name} restarts from the latest checkpoint, "
        "or from the seed if there is none"
    )


class DockerResourceManager(SupervisedManager):
    """A :class:`~eps.cluster.api.ResourceManager` over a Docker engine on this host.

    Parameters
    ----------
    engine : DockerEngine
        Closed with this object.
    settings : DockerSettings
    job : JobDir
        Its lock is held while the job runs.
    max_containers : int
        Maximum number of concurrent containers; further requests wait for one to end.  0 sets no limit.
    supervisor : ResourceManager, optional
        See :class:`~eps.cluster.backend.SupervisedManager`.

    Raises
    ------
    ConfigError
        ``max_containers`` is negative.
    ResourceError
        The engine does not respond.
    StorageError
        The job's token cannot be read.
    """

    def __init__(
        self,
        engine: DockerEngine,
        settings: DockerSettings,
        job: JobDir,
        max_containers: int = 0,
        supervisor: ResourceManager | None = None,
    ) -> None:
        self._engine, self._settings, self._job = engine, settings, job
        self._labels = JobLabels.of(job)
        found = engine.find(JOB)
        adopted = _pids(engine, found, self._labels)
        self._ledger = ContainerLedger(max_containers, adopted)
        super().__init__(threading.Lock(), supervisor, adopted)
        #: Requests, by container.
        self._requests: dict[str, ContainerRequest] = {}
        #: Containers not known to have ended -> when the engine had started them, on the monotonic clock.
        self._started = dict.fromkeys(adopted, time.monotonic())
        #: Container -> (next signal, earliest time); sent once the container has started.
        self._to_end: dict[str, tuple[int, float]] = {}
        self._ending = False
        #: Time of the first query without an answer; None while the engine responds.
        self._silent_since_s: float | None = None
        #: When the engine was last found silent.
        self._silent_at_s = 0.0
        self._look_now = threading.Event()
        self._launchers = ThreadPoolExecutor(NUM_LAUNCHERS, thread_name_prefix="docker")
        self._thread = threading.Thread(target=self._watch, name="docker-watch", daemon=True)
        self._thread.start()
        for stray in filter(self._labels.is_stray, found):
            logger.warning("M removes container %s of a run that has ended", stray.name)
            self._launchers.submit(self._try, engine.remove, stray.name)

    def request(self, request: ContainerRequest) -> None:
        """Request a container; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            self._check_open()
            granted = self._ledger.request(request)
            self._requests[request.container_id] = request
            self._launch(granted)
            self._wake()

    def withdraw(self, container_id: str) -> bool:
        """Withdraw a request that is not granted yet; return whether it was withdrawn."""
        with self._lock:
            withdrawn = self._ledger.withdraw(container_id)
            self._wake()
            return withdrawn

    def release(self, container_id: str) -> None:
        """Release a container; no effect if it has ended or is unknown."""
        with self._lock:
            if not self._ledger.withdraw(container_id) and self._ledger.is_live(container_id):
                # An earlier kill, or its time, stays.
                self._to_end.setdefault(container_id, (END, 0.0))
                self._look_now.set()
            self._wake()

    def kill(self, container_id: str) -> None:
        """Kill a container's process at once; no effect if it is not running."""
        with self._lock:
            if self._ledger.is_live(container_id):
                self._to_end[container_id] = (signals.SIGKILL, 0.0)
                self._look_now.set()

    def room(self) -> Mapping[str, int]:
        """Return an empty mapping: no other job competes for these containers."""
        return {}

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """End every container, and report the end of the job to the supervisor."""
        with self._lock:
            self._check_open()
            self._ending = True
        if self._supervisor is not None:
            self._supervisor.beat(NO_NEWS, TIMEOUT_S + 2 * END_S)
        if self._silent_since_s is None:
            # Members were asked to end before; the remaining ones are killed.
            with suppress(ResourceError):
                names = [each.name for each in self._engine.find(self._labels.label)]
                wait([self._launchers.submit(self._try, self._engine.remove, name) for name in names], END_S)
        if self._supervisor is not None:
            self._supervisor.end_job(exit_code, state, reason)

    def close(self) -> None:
        """Disconnect from the engine.  Idempotent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            self._wakeup.close()
        self._look_now.set()
        self._launchers.shutdown(wait=False, cancel_futures=True)
        self._thread.join(RETRY_S)
        self._engine.close()

    def _source_silent_s(self) -> float:
        since_s = self._silent_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    # ---- with the lock held

    def _take_events(self) -> list[ContainerEvent]:
        return self._ledger.take_events()

    def _wake(self) -> None:
        if self._ledger.events and not self._closed.is_set():
            self._wakeup.notify()

    def _launch(self, granted: Iterable[ContainerRequest]) -> None:
        for request in granted:
            # Fails only while the interpreter shuts down.
            with suppress(RuntimeError):
                self._launchers.submit(self._try, self._launch_one, request)

    # ---- the threads that launch and remove

    def _try(self, work: Callable[..., None], what: Any) -> None:
        try:
            work(what)
        except EpsError as error:
            logger.error("M %s: %s", what, str(error))
        except Exception:
            logger.exception("M a call to the Docker engine failed")

    def _launch_one(self, request: ContainerRequest) -> None:
        container_id = request.container_id
        if self._ending:
            self._on_end(container_id, None, "was refused: the job is ending")
            return
        config = build_container(request, self._settings, self._labels, os.environ)
        try:
            pid = self._launch_patiently(container_id, config)
        except ResourceError as error:
            # If it starts after all, the next poll removes it.
            self._on_end(container_id, None, f"could not be launched: {error}")
            return
        with self._lock:
            self._started[container_id] = time.monotonic()
            if pid:
                self._ledger.on_running(container_id, pid, THIS_HOST)
            self._wake()
        self._look_now.set()
        if self._ending:
            self._engine.remove(self._labels.name(container_id))

    def _launch_patiently(self, container_id: str, config: Mapping[str, Any]) -> int:
        """Launch a container; if only this call times out, retry it for ``engine_timeout_s``."""
        until_s = time.monotonic() + self._settings.engine_timeout_s
        while True:
            try:
                return self._engine.launch(self._labels.name(container_id), config)
            except EngineSilentError:
                wanted = not self._ending and not self._gone and container_id not in self._to_end
                answers = self._silent_since_s is None
                if not wanted or (answers and time.monotonic() >= until_s) or self._closed.wait(RETRY_S):
                    raise

    def _on_end(self, container_id: str, code: int | None, reason: str, taken: bool = False) -> None:
        with self._lock:
            # A job that ends because the engine is gone requests no further containers.
            if self._closed.is_set() or self._gone or not self._ledger.is_live(container_id):
                return
            granted = self._ledger.on_end(container_id, code, reason, taken)
            self._started.pop(container_id, None)
            self._to_end.pop(container_id, None)
            self._launch(granted)
            self._wake()
        shutil.rmtree(self._job.scratch(container_id), ignore_errors=True)

    # ---- the thread that polls the engine

    def _watch(self) -> None:
        while not self._closed.is_set():
            asked_s = time.monotonic()
            try:
                self._send_signals()
                self._look()
                self._silent_since_s = None
            except EngineSilentError as error:
                self._on_silence(asked_s, error)
            except Exception:
                logger.exception("M polling the Docker engine failed")
            self._look_now.wait(LOOK_S)
            self._look_now.clear()

    def _on_silence(self, asked_s: float, error: EngineSilentError) -> None:
        """Record that the engine does not respond; end the job after ``engine_timeout_s``."""
        self._silent_at_s = time.monotonic()
        if self._silent_since_s is None:
            self._silent_since_s = asked_s
            logger.warning("M %s", str(error))
        silent_s = self._source_silent_s()
        with self._lock:
            if silent_s >= self._settings.engine_timeout_s and not self._gone and not self._closed.is_set():
                self._gone = _silent_too_long(silent_s, self._settings, self._job)
                logger.error("M %s", self._gone)
                self._wakeup.notify()

    def _send_signals(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            due = [(c, n) for c, (n, at_s) in self._to_end.items() if c in self._started and at_s <= now_s]
        for container_id, number in due:
            self._engine.kill(self._labels.name(container_id), number)
            with self._lock:
                # The container may have ended, or a kill been requested, meanwhile.
                if number == signals.SIGKILL:
                    self._to_end.pop(container_id, None)
                elif self._to_end.get(container_id) == (number, 0.0):
                    self._to_end[container_id] = (signals.SIGKILL, now_s + self._settings.grace_s)

    def _look(self) -> None:
        """Compare the containers that the engine lists with those that it was asked to start."""
        with self._lock:
            started = dict(self._started)
        found = {each.labels[CONTAINER]: each for each in self._engine.find(self._labels.label)}
        was_silent = self._silent_since_s is not None
        for container_id, started_s in started.items():
            # An engine that was down may have lost the containers that it had started before.
            taken = was_silent and started_s < self._silent_at_s
            each = found.get(container_id)
            process = self._engine.process(each.name) if each is not None and each.has_ended else None
            if process is not None:
                request = self._requests.get(container_id)
                limit = f"its {request.memory_mb} MB" if request is not None else "its limit"
                self._on_end(container_id, *_how_ended(process, self._job.log(container_id), limit), taken)
            elif each is None:
                self._on_end(container_id, None, GONE, taken=True)
        for container_id, each in found.items():
            # Remove ended containers, late starts of abandoned launches, and half-finished launches of an earlier
            # master.
            if self._ledger.phase(container_id) in (None, Phase.ENDED):
                self._engine.remove(each.name)


def _pids(engine: DockerEngine, found: Iterable[Found], labels: JobLabels) -> dict[str, int]:
    """Return the running containers of the previous job master -> pid."""
    mine = [each for each in found if each.labels.get(INSTANCE) == labels.instance and each.is_running]
    processes = {each.labels[CONTAINER]: engine.process(each.name) for each in mine}
    # A container that has ended meanwhile has no pid.
    return {container_id: process.pid for container_id, process in processes.items() if process and process.pid}


def _how_ended(process: Process, log: Path, limit: str) -> tuple[int | None, str]:
    """Return the exit code and the reason for the end of a process; codes above 128 stand for signals."""
    code = process.exit_code
    if code <= 128 or code - 128 not in signals.valid_signals():
        last = _last_line(log) if code else ""
        reason = exit_reason(code, None) + (f"; the last line of its log: {last}" if last else "")
        lacks = code in _NO_COMMAND or _NO_MODULE in last
        return code, f"{reason}; {CHECK_IMAGE}" if lacks else reason
    reason = exit_reason(None, code - 128)
    if process.out_of_memory:
        reason += f": it needed more memory than {limit}"
    return None, reason


def _last_line(log: Path) -> str:
    """Return the last non-empty line of a log; it reveals an image without EPS or with another version."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:_LONGEST_LINE] if lines else ""
    return ""
