"""Containers of one Docker host: one for each worker and server.  L2.

The job master stays a process of this host, forked by the job's supervisor; what it starts here shares the host's
network and process ids, and sees the job's directory at the same path.  An image gives the file system; the engine
holds each container to the memory and the cores of its request.

A container ends with the job's lock (see :mod:`eps.cluster.container`), so nothing has to be alive for it to be ended,
and the engine forgets it when it has ended.  What hangs then is removed by the next job on the host.
"""

from __future__ import annotations

import logging
import math
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

from eps.cluster.advice import CHECK_IMAGE
from eps.cluster.api import NO_NEWS, ContainerEvent, ContainerRequest, ResourceManager
from eps.cluster.book import ContainerBook, Phase
from eps.cluster.docker.container import CONTAINER, INSTANCE, JOB, DockerSettings, JobLabels, build_container
from eps.cluster.docker.engine import (
    MOST_CALLS,
    TIMEOUT_S,
    Died,
    DockerEngine,
    EngineSilentError,
    Events,
    Found,
    OutOfMemory,
    engine_host,
)
from eps.cluster.docker.silence import EngineSilence, LaunchPatience
from eps.cluster.supervised import SupervisedManager
from eps.cluster.supervisor.protocol import exit_reason
from eps.errors import EpsError, ResourceError
from eps.storage.jobdir import JobDir

logger = logging.getLogger(__name__)

#: Name of this host, for who reads a status.
THIS_HOST = "localhost"
#: What the engine has is compared with what it said this often; sooner where something is missing, or no answer comes.
LOOK_S, LOOK_AGAIN_S = 5.0, 0.5
#: An engine that is started again is back after about so long: a job master that begins, and whatever else is asked but
#: a container, waits for it.
ENGINE_PATIENCE_S = 20.0
RETRY_S = 0.2
#: A job master that begins asks one question after the other, each of which may hang for :data:`TIMEOUT_S`.
ASK_PATIENCE_S = 2.0 * TIMEOUT_S
#: Threads that launch containers, and threads that end them: a launch may hang for long, and no end waits for it.  One
#: connection more is for events, one to look.
NUM_LAUNCHERS = 10
NUM_ENDERS = MOST_CALLS - 2 - NUM_LAUNCHERS
#: The last containers of a job are given so long.
END_S = 10.0
_LONGEST_LINE = 300
#: A shell's exit codes where it cannot execute a command, and where there is none; and how Python says what it lacks.
_NO_COMMAND, _NO_MODULE = (126, 127), "No module named"


def _last_line(log: Path) -> str:
    """Return the last line of a log that says something: an image without EPS, or with another one, is told by it."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:_LONGEST_LINE] if lines else ""
    return ""


def open_docker(
    settings: DockerSettings, job: JobDir, max_containers: int, supervisor: ResourceManager
) -> DockerResourceManager:
    """Return a manager over the engine that the environment names; parameters and errors as of the class.

    A job master may take over while the engine is away, or hangs: it waits for it, as the one before would have.
    Members look for a master for ``master_timeout_s`` only.  Where they end meanwhile, what is waited for is to go back
    to a checkpoint, and not to lose the job.
    """
    patience_s, told = max(settings.engine_timeout_s, ENGINE_PATIENCE_S), False
    began_s = time.monotonic()
    while True:
        _say_busy(supervisor)
        try:
            return _connected(settings, job, max_containers, supervisor)
        except EngineSilentError as error:
            silent_s = time.monotonic() - began_s
            if silent_s >= patience_s:
                raise ResourceError(_silent_too_long(silent_s, settings.engine_timeout_s, job)) from error
            if not told:
                logger.warning("M %s; waits for it for %g s", error, patience_s)
                told = True
            time.sleep(RETRY_S)


def _connected(
    settings: DockerSettings, job: JobDir, max_containers: int, supervisor: ResourceManager
) -> DockerResourceManager:
    engine = DockerEngine()
    try:
        return DockerResourceManager(engine, settings, job, max_containers, supervisor)
    except BaseException:
        engine.close()
        raise


def _silent_too_long(silent_s: float, most_s: float, job: JobDir) -> str:
    return (
        f"the Docker engine at {engine_host()} has not answered for {silent_s:.0f} s, and the job gets no further "
        f"without it (engine_timeout_s is {most_s:g}): start it, then eps resume {job.name} goes on from the latest "
        "checkpoint, or from the seed"
    )


def _say_busy(supervisor: ResourceManager | None) -> None:
    """Have the supervisor wait for one question to the engine: whoever asks one that hangs cannot beat meanwhile."""
    if supervisor is not None:
        supervisor.beat(NO_NEWS, ASK_PATIENCE_S)


class DockerResourceManager(SupervisedManager):
    """A Docker engine on this host as a :class:`~eps.cluster.api.ResourceManager`.

    Parameters
    ----------
    engine : DockerEngine
        Closed with this object.
    settings : DockerSettings
    job : JobDir
        Its lock is held while the job runs.
    max_containers : int
        Containers that may be there at once; a request beyond it waits for the end of another.  0 sets no limit.
    supervisor : ResourceManager, optional
        As of the base.

    Raises
    ------
    ConfigError
        ``max_containers`` is negative.
    ResourceError
        The engine does not answer.
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
        self._label = f"{INSTANCE}={self._labels.instance}"
        self._since_s = time.time()
        _say_busy(supervisor)
        found = engine.find(JOB)
        self.adopted: Mapping[str, int] = self._adopt(found, supervisor)
        self._book = ContainerBook(max_containers, self.adopted)
        super().__init__(threading.Lock(), supervisor)
        #: What was asked for, by container.
        self._requests: dict[str, ContainerRequest] = {}
        #: Containers that the engine has started.
        self._started = set(self.adopted)
        #: Containers that are to end as soon as they have started, and how.
        self._to_end: dict[str, Callable[[str], None]] = {}
        self._out_of_memory: set[str] = set()
        #: Containers that the engine did not have when it was asked last.
        self._missing: set[str] = set()
        self._ending = False
        self._silence = EngineSilence(settings.engine_timeout_s)
        self._events: Events | None = None
        self._look_now = threading.Event()
        self._launchers = ThreadPoolExecutor(NUM_LAUNCHERS, thread_name_prefix="docker-launch")
        self._enders = ThreadPoolExecutor(NUM_ENDERS, thread_name_prefix="docker-end")
        self._threads = [
            threading.Thread(target=target, name=f"docker-{target.__name__.strip('_')}", daemon=True)
            for target in (self._listen, self._look)
        ]
        for thread in self._threads:
            thread.start()
        for stray in filter(self._labels.is_stray, found):
            logger.warning("M removes container %s of a run that is over", stray.name)
            self._soon(self._enders, self._ask, engine.remove, stray.name)

    def _adopt(self, found: Iterable[Found], supervisor: ResourceManager | None) -> dict[str, int]:
        """Return the containers that the job master before this one started -> pid."""
        mine = [each for each in found if each.labels.get(INSTANCE) == self._labels.instance and each.is_running]
        pids: dict[str, int] = {}
        for each in mine:
            _say_busy(supervisor)
            pids[each.labels[CONTAINER]] = self._engine.pid(each.name)
        # One that has ended meanwhile has none.
        return {container_id: pid for container_id, pid in pids.items() if pid}

    def request(self, request: ContainerRequest) -> None:
        """Ask for a container; see :class:`~eps.cluster.api.ResourceManager`."""
        with self._lock:
            self._check_open()
            granted = self._book.request(request)
            self._requests[request.container_id] = request
            self._launch(granted)
            self._wake()

    def withdraw(self, container_id: str) -> bool:
        """Take a request back that has not been granted; return whether that was so."""
        with self._lock:
            withdrawn = self._book.withdraw(container_id)
            self._wake()
            return withdrawn

    def release(self, container_id: str) -> None:
        """Give a container back by id; harmless for one that has ended or is unknown."""
        with self._lock:
            if not self._book.withdraw(container_id):
                self._end_soon(container_id, self._stop)
            self._wake()

    def kill(self, container_id: str) -> None:
        """End a container's process at once; harmless for one that is not running."""
        with self._lock:
            self._end_soon(container_id, self._engine.kill)

    def beat(self, progress: int, patience_s: float = 0.0) -> None:
        """Note how far the job is, and tell the supervisor; see :class:`~eps.cluster.api.ResourceManager`."""
        self._silence.on_progress(progress, time.monotonic())
        # Not where a question fails: an engine that hangs keeps each waiting for long.
        self._give_up_in_time()
        super().beat(progress, patience_s)

    def _give_up_in_time(self) -> None:
        """Let the job end where it has waited for the engine long enough."""
        with self._lock:
            waits = any(self._book.phase(each) is Phase.LAUNCHING for each in self._book.there())
            if self._gone or self._closed.is_set() or not self._silence.is_too_long(time.monotonic(), waits=waits):
                return
            self._gone = _silent_too_long(self._silence.silent_s(time.monotonic()), self._silence.most_s, self._job)
            logger.error("M %s", self._gone)
            self._bell.ring()

    def room(self) -> Mapping[str, int]:
        """Return nothing: no other job waits for containers of this one."""
        return {}

    def end_job(self, exit_code: int, state: str, reason: str = "") -> None:
        """End whatever still runs, and tell the supervisor how the job ended."""
        with self._lock:
            self._check_open()
            self._ending = True
            names = [self._labels.name(container_id) for container_id in self._book.there()]
            for container_id in self._book.there():
                self._to_end[container_id] = self._engine.kill
        if self._supervisor is not None:
            self._supervisor.beat(NO_NEWS, 2 * END_S)
        if not self._gone:
            # Members were told to end before; who has not is not waited for.
            wait([self._enders.submit(self._try, self._ask, self._engine.remove, name) for name in names], END_S)
        if self._supervisor is not None:
            self._supervisor.end_job(exit_code, state, reason)

    def close(self) -> None:
        """Let go of the engine; harmless when repeated."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            events = self._events
            self._bell.close()
        self._look_now.set()
        if events is not None:
            events.close()
        for threads in (self._launchers, self._enders):
            threads.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            thread.join(RETRY_S)
        self._engine.close()

    def _source_silent_s(self) -> float:
        return self._silence.silent_s(time.monotonic())

    # ---- with the lock held

    def _take_events(self) -> list[ContainerEvent]:
        return self._book.take_events()

    def _wake(self) -> None:
        if self._book.events and not self._closed.is_set():
            self._bell.ring()

    def _launch(self, granted: Iterable[ContainerRequest]) -> None:
        for request in granted:
            self._soon(self._launchers, self._launch_one, request)

    def _end_soon(self, container_id: str, how: Callable[[str], None]) -> None:
        if self._closed.is_set() or not self._book.is_there(container_id):
            return
        if container_id in self._started:
            self._soon(self._enders, self._ask, how, self._labels.name(container_id))
        else:
            self._to_end[container_id] = how

    # ---- on other threads

    def _soon(self, threads: ThreadPoolExecutor, work: Callable[..., None], *values: Any) -> None:
        # Refused only where this object has been closed, or the interpreter ends.
        with suppress(RuntimeError):
            threads.submit(self._try, work, *values)

    def _try(self, work: Callable[..., None], *values: Any) -> None:
        try:
            work(*values)
        except EpsError as error:
            logger.error("M %s: %s", values[-1], error)
        except Exception:
            logger.exception("M a call of the Docker engine failed")

    def _ask(self, what: Callable[[str], None], name: str) -> None:
        """Have a container ended by an engine that may be being started again: it is waited for a while."""
        until_s = time.monotonic() + ENGINE_PATIENCE_S

        def goes_on(asked_s: float, error: EngineSilentError) -> bool:
            self._note_silence(asked_s)
            return time.monotonic() < until_s

        self._patiently(lambda: what(name), goes_on)

    def _patiently(self, work: Callable[[], Any], goes_on: Callable[[float, EngineSilentError], bool]) -> Any:
        """Do something with the engine; where it did not answer, do it again while it ``goes_on``, told since when."""
        while True:
            asked_s = time.monotonic()
            try:
                result = work()
            except EngineSilentError as error:
                if self._closed.is_set() or not goes_on(asked_s, error) or self._closed.wait(RETRY_S):
                    raise
            else:
                self._silence.on_answer(time.monotonic())
                return result

    def _answers(self) -> bool:
        """Return whether the engine answers what it has no reason to take long for."""
        asked_s = time.monotonic()
        try:
            self._engine.find(self._label)
        except ResourceError:
            self._note_silence(asked_s)
            return False
        self._silence.on_answer(time.monotonic())
        return True

    def _note_silence(self, asked_s: float) -> None:
        if not self._is_silent():
            # From now on its return is looked for.
            self._look_now.set()
        self._silence.on_silence(asked_s)

    def _is_silent(self) -> bool:
        return self._source_silent_s() > 0.0

    def _is_wanted(self, container_id: str) -> bool:
        return not self._ending and not self._gone and container_id not in self._to_end

    def _stop(self, name: str) -> None:
        self._engine.stop(name, math.ceil(self._settings.grace_s))

    def _launch_one(self, request: ContainerRequest) -> None:
        container_id = request.container_id
        name = self._labels.name(container_id)
        if self._ending:
            self._on_end(container_id, None, "was refused: the job is ending")
            return
        config = build_container(request, self._settings, self._labels, os.environ)
        try:
            pid = self._patiently(lambda: self._engine.launch(name, config), self._launch_patience(container_id))
        except ResourceError as error:
            if self._closed.is_set():
                return
            with suppress(ResourceError):
                self._engine.remove(name)
            self._on_end(container_id, None, f"could not be launched: {error}")
            return
        with self._lock:
            self._started.add(container_id)
            if pid:
                self._book.on_running(container_id, pid, THIS_HOST)
            how = self._to_end.pop(container_id, None)
            if how is not None:
                self._end_soon(container_id, how)
            self._wake()

    def _launch_patience(self, container_id: str) -> Callable[[float, EngineSilentError], bool]:
        """Return what says whether a launch that was not answered is tried again; it raises where the engine refuses.

        It is, as long as it is wanted: an engine that stays away ends the job, not one container after the other.  One
        that answers other calls only ends the container, and the job's own rules say what follows.
        """
        patience, told = LaunchPatience(self._settings.engine_timeout_s), False

        def goes_on(asked_s: float, error: EngineSilentError) -> bool:
            nonlocal told
            if not told:
                told = True
                # Its words only: who keeps the record would keep the connection.
                logger.warning("M tries again to launch %s: %s", container_id, str(error))
            patience.on_failure(asked_s, others_answered=self._answers())
            now_s = time.monotonic()
            if patience.is_over(now_s):
                raise ResourceError(
                    f"{error}; other calls were answered in these {patience.tried_s(now_s):.0f} s (engine_timeout_s is "
                    f"{patience.most_s:g}): the engine's log may say why"
                ) from error
            return self._is_wanted(container_id)

        return goes_on

    def _listen(self) -> None:
        """Take in what the engine says; where it goes away, wait for it."""
        told = ""
        while not self._closed.is_set():
            asked_s = time.monotonic()
            try:
                with self._engine.events(self._label, self._since_s) as events:
                    told = ""
                    with self._lock:
                        self._events = events
                        if self._closed.is_set():
                            return
                    # What happened before is said once more, unless the engine was started again.
                    self._look_now.set()
                    for event in events:
                        self._on_event(event)
                    self._since_s = max(self._since_s, events.last_s)
            except ResourceError as error:
                if self._closed.is_set():
                    return
                self._note_silence(asked_s)
                # Once in a silence: it may be a long one.
                if str(error) != told:
                    told = str(error)
                    logger.warning("M hears nothing of the containers: %s", told)
            self._closed.wait(RETRY_S)

    def _on_event(self, event: Died | OutOfMemory) -> None:
        container_id = event.labels.get(CONTAINER, "")
        if isinstance(event, OutOfMemory):
            self._out_of_memory.add(container_id)
        else:
            self._on_end(container_id, *self._how_ended(container_id, event.exit_code))

    def _how_ended(self, container_id: str, exit_code: int) -> tuple[int | None, str]:
        """Return the code and the words for the end of a process; 128 and more stands for a signal."""
        if exit_code <= 128 or exit_code - 128 not in {int(number) for number in signals.Signals}:
            last = _last_line(self._job.log(container_id)) if exit_code else ""
            reason = exit_reason(exit_code, None) + (f"; the last line of its log: {last}" if last else "")
            lacks = exit_code in _NO_COMMAND or _NO_MODULE in last
            return exit_code, f"{reason}; {CHECK_IMAGE}" if lacks else reason
        reason = exit_reason(None, exit_code - 128)
        if container_id in self._out_of_memory:
            request = self._requests.get(container_id)
            limit = f"its {request.memory_mb} MB" if request is not None else "its limit"
            reason += f": it needed more memory than {limit}"
        return None, reason

    def _on_end(self, container_id: str, code: int | None, reason: str, taken: bool = False) -> None:
        with self._lock:
            # Of a job that ends for want of the engine nothing more is told: it would ask for others.
            if self._closed.is_set() or self._gone or not self._book.is_there(container_id):
                return
            granted = self._book.on_end(container_id, code, reason, taken)
            self._started.discard(container_id)
            self._to_end.pop(container_id, None)
            self._launch(granted)
            self._wake()
        self._soon(self._enders, shutil.rmtree, self._job.scratch(container_id), True)

    def _look(self) -> None:
        """Compare what the engine has with what it said, now and then."""
        while not self._closed.is_set():
            self._look_now.wait(LOOK_AGAIN_S if self._missing or self._is_silent() else LOOK_S)
            self._look_now.clear()
            asked_s = time.monotonic()
            try:
                self._compare()
                self._silence.on_answer(time.monotonic())
            except ResourceError:
                self._note_silence(asked_s)

    def _compare(self) -> None:
        """End the containers that the engine had no longer twice in a row: once may be an event on its way."""
        with self._lock:
            expected = {each for each in self._started if self._book.phase(each) is not Phase.ENDED}
        found = self._engine.find(self._label)
        for each in found:
            # One whose launch was given up, and which came after all.
            if self._book.phase(each.labels[CONTAINER]) is Phase.ENDED:
                self._soon(self._enders, self._ask, self._engine.remove, each.name)
        there = {each.labels[CONTAINER] for each in found if each.is_running}
        missing = expected - there
        for container_id in sorted(missing & self._missing):
            code = self._engine.exit_code(self._labels.name(container_id))
            if code is None:
                self._on_end(container_id, None, "is gone: the Docker engine does not know it any more", taken=True)
            else:
                self._on_end(container_id, *self._how_ended(container_id, code))
        self._missing = missing
