"""Connection of a client to a job master; it follows the master when that is restarted elsewhere."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc

from eps.core.types import Address
from eps.errors import JobFinishedError, PeerUnavailableError
from eps.job.status import UNREACHABLE, WAITING_STATES, without_figures
from eps.net.calls.call import call, channel, error_of
from eps.net.security.credentials import Security
from eps.pb import control_pb2 as pb
from eps.pb.control_pb2_grpc import JobMasterStub
from eps.storage.atomic import read_json
from eps.storage.jobdir import JobDir

logger = logging.getLogger(__name__)

#: Timeout for a job without a master yet, and for a watched job.
GIVE_UP_S = 30.0
#: Timeout of a call for the next master after the connection to one was lost.
NEXT_MASTER_S = 10.0
#: Waits longer than this are reported.
NOTICED_S = 1.0
RETRY_S = 0.05
#: Poll interval of a job that waits for its cluster.
WAITING_POLL_S = 0.2
LONGEST_RETRY_S = 1.0

#: The generated class has no annotations.
_make_stub: Callable[[grpc.Channel], JobMasterStub] = JobMasterStub


@dataclass(frozen=True)
class Progress:
    """News of a job."""

    #: As ``eps status --json`` prints it.
    status: dict[str, Any]
    #: Clocks that were completed since the last news, as in the report's ``history``.
    history: tuple[dict[str, Any], ...] = ()


class Whereabouts(Protocol):
    """A client's view of where a job runs: on this machine, or as an application of YARN."""

    def is_running(self) -> bool:
        """Return whether a process of the job runs or may run."""

    def address(self) -> Address | None:
        """Return the job master's address; None if no master listens."""

    def waiting(self) -> dict[str, Any] | None:
        """Return the status of a job that waits for its cluster, as ``eps status --json`` prints it; else None."""

    @property
    def application_id(self) -> str:
        """The job's application on YARN; empty for a job elsewhere."""


class OnThisMachine:
    """A job whose supervisor runs on this machine; read from its lock and ``master.json``."""

    application_id = ""

    def __init__(self, job: JobDir) -> None:
        self._job = job

    def is_running(self) -> bool:
        """See :class:`Whereabouts`."""
        return self._job.is_running()

    def address(self) -> Address | None:
        """See :class:`Whereabouts`."""
        record = read_json(self._job.master_json)
        return None if record is None else Address(str(record["host"]), int(record["port"]))

    def waiting(self) -> None:
        """See :class:`Whereabouts`."""


class MasterLink:
    """Call the master of one job, with retries.  Calls must be idempotent.

    Parameters
    ----------
    job : JobDir
    where : Whereabouts
    give_up_s : float, seconds
        How long to look for a master that does not answer.
    """

    def __init__(self, job: JobDir, where: Whereabouts, give_up_s: float = GIVE_UP_S) -> None:
        self._job = job
        self._where = where
        self._give_up_s = give_up_s
        self._address: Address | None = None
        self._channel: grpc.Channel | None = None
        self._told_silence = ""

    def call(self, method: str, request: Any, what: str, timeout_s: float = 60.0, *, waits: bool = True) -> Any:
        """Call a unary method; retry while the master cannot be reached.

        While the job waits for its cluster to start its master, wait too; with ``waits`` False, return None instead.
        A cluster that does not answer is logged.

        Raises
        ------
        EpsError
            The master's refusal.
        JobFinishedError
            The job has ended.
        PeerUnavailableError
            The job runs, but neither its master nor a next one answered for ten seconds, or ``give_up_s`` if less.
        """

        def attempt(stub: JobMasterStub) -> Any:
            return call(getattr(stub, method), request, timeout_s, what)

        return self._repeated(attempt, what, min(self._give_up_s, NEXT_MASTER_S), waits)

    def watch(self, after_clock: int = -1, *, is_patient: bool = False) -> Iterator[Progress]:
        """Yield news until the job has ended; resume after a lost connection without gaps.

        Parameters
        ----------
        after_clock : int
        is_patient : bool
            On YARN, wait for a silent master without limit while YARN reports the application as running: a restarted
            master answers after it has replayed its log.  Leave it False if others wait for the job's containers: the
            master may never be reachable from this host.

        Raises
        ------
        PeerUnavailableError
            The job runs, but its master did not answer for ``give_up_s`` (never with ``is_patient`` on YARN).
        """
        what = f"watch job {self._job.name!r}"
        patience_s = math.inf if is_patient and self._where.application_id else self._give_up_s
        ended = False
        while not ended:
            yield from self._waits()
            try:
                # The first message is part of the attempt: only it shows that the stream is connected.
                opened = self._repeated(
                    partial(_opened, after_clock=after_clock, what=what), what, patience_s, waits=False
                )
            except JobFinishedError:
                return
            if opened is None:
                # The next round yields what the job waits for.
                continue
            stream, first = opened
            try:
                update = first
                while update is not None:
                    history = tuple(json.loads(text) for text in update.history_json)
                    if history:
                        after_clock = history[-1]["clock"]
                    yield Progress(json.loads(update.status_json), history)
                    update = next(stream, None)
                ended = True
            except grpc.RpcError as error:
                ours = error_of(error, what)
                if not isinstance(ours, PeerUnavailableError):
                    raise ours from error
                self._forget()
            finally:
                stream.cancel()

    def _waits(self) -> Iterator[Progress]:
        """Yield the reason of the wait when it changes, until a job master runs or the job has ended."""
        said = ""
        while (status := self._where.waiting()) is not None and self._where.is_running():
            if status["reason"] != said:
                said = status["reason"]
                yield Progress(status)
            time.sleep(WAITING_POLL_S)

    def answers(self) -> bool:
        """Return whether the job's cluster is not known to be silent; log a silence once."""
        waiting = self._where.waiting()
        silence = str(waiting["reason"]) if waiting is not None and waiting["state"] == UNREACHABLE else ""
        if silence and silence != self._told_silence:
            # The reason has a time, so another silence is logged again.
            self._told_silence = silence
            logger.warning("job %r: %s", self._job.name, silence)
        return not silence

    def close(self) -> None:
        """Close the connection.  Idempotent."""
        self._forget()

    def _repeated(
        self, attempt: Callable[[JobMasterStub], Any], what: str, next_master_s: float, waits: bool = True
    ) -> Any:
        """Attempt until a master answers; after a lost master, wait up to ``next_master_s`` for the next one."""
        since_s: float | None = None
        began_s, retry_s, told = time.monotonic(), RETRY_S, False
        is_silence_told = False
        while True:
            unreachable: PeerUnavailableError | None = None
            try:
                # The sockets of a job that is just ending may be removed.
                if (stub := self._stub()) is not None:
                    return attempt(stub)
            except PeerUnavailableError as error:
                unreachable = error
                self._forget()
                # From now on: the attempt may have waited long before the master was lost.
                since_s = time.monotonic() if since_s is None else since_s
            is_waiting = self._where.waiting() is not None
            if is_waiting:
                # Not a failure: the cluster has no free container yet, or restarts the master.
                began_s, since_s = time.monotonic(), None
            if not self._where.is_running():
                raise JobFinishedError(f"{what}: job {self._job.name!r} has ended") from unreachable
            if not waits and is_waiting:
                return None
            self.answers()
            patience_s = self._give_up_s if since_s is None else next_master_s
            waited_s = time.monotonic() - (began_s if since_s is None else since_s)
            if waited_s > patience_s:
                raise PeerUnavailableError(
                    f"{what}: the master of job {self._job.name!r} does not answer for {patience_s:g} s"
                    + self._likely_reason()
                ) from unreachable
            if waited_s > min(NEXT_MASTER_S, patience_s) and not is_silence_told:
                is_silence_told = told = True
                since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited_s))
                reason = self._likely_reason()
                logger.warning(
                    "%s: the master of job %r has not answered since %s; still waiting%s",
                    *(what, self._job.name, since, reason),
                )
            if waited_s > NOTICED_S and not told and since_s is not None:
                told = True
                logger.warning("%s: waiting for the next master of job %r", what, self._job.name)
            time.sleep(retry_s)
            retry_s = min(LONGEST_RETRY_S, retry_s * 1.5)

    def _likely_reason(self) -> str:
        """Return the end of a sentence: why the master of a job on YARN may be silent; empty for other jobs."""
        if not self._where.application_id:
            return ""
        return (
            f"; YARN reports application {self._where.application_id} as running: a restarted master answers when it "
            "has read its log, and retries while HDFS does not answer"
        )

    def _stub(self) -> JobMasterStub | None:
        address = self._where.address()
        if address is None:
            return None
        if address != self._address:
            self._forget()
        if self._channel is None:
            self._address, self._channel = address, channel(address, Security.of_job(self._job.path))
        return _make_stub(self._channel)

    def _forget(self) -> None:
        connection, self._channel, self._address = self._channel, None, None
        if connection is not None:
            connection.close()


class WaitNews:
    """Report what a starting job is waiting for: after a second, and when the reason changes.

    Parameters
    ----------
    tell : callable
        Called with a sentence.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._tell_s = time.monotonic() + NOTICED_S
        self._told = ""

    def is_waiting(self, status: Mapping[str, Any]) -> bool:
        """Return whether a job of that status has not started to train."""
        waits = status["state"] in WAITING_STATES
        if waits and time.monotonic() >= self._tell_s:
            text = f"waiting for job {status['name']!r}: {waiting_text(status)}"
            what = without_figures(text)
            if what != self._told:
                self._told = what
                self._tell(text)
        return waits


def waiting_text(status: Mapping[str, Any]) -> str:
    """Return the state of a waiting job, with the reason if known: ``it is starting: waits for 1 container``."""
    return f"it is {status['state']}" + (f": {status['reason']}" if status["reason"] else "")


def _opened(stub: JobMasterStub, after_clock: int, what: str) -> tuple[Any, pb.ProgressUpdate | None]:
    stream = stub.Watch(pb.WatchRequest(after_clock=after_clock))
    try:
        return stream, next(stream, None)
    except grpc.RpcError as error:
        with suppress(grpc.RpcError):
            stream.cancel()
        raise error_of(error, what) from error
