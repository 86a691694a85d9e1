"""The job master's part of a checkpoint: history, manifest and name, written on its own thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from eps.core import events as e
from eps.core.checkpoints import Checkpoints, Timetable, checkpoint_name
from eps.core.progress import ClockHistory
from eps.core.recovery import RestorePoint
from eps.errors import StorageError
from eps.spec.runtime import Runtime, identity
from eps.storage.api import telling
from eps.storage.checkpoint import CheckpointStore, Manifest, parse_history
from eps.storage.claims import check_owner, restore_owner
from eps.storage.jobdir import JobDir

logger = logging.getLogger(__name__)


def driver_of(runtime: Runtime) -> Checkpoints:
    """Return the state that decides when a job takes checkpoints."""
    spec = runtime.spec
    return Checkpoints(
        Timetable(spec.checkpoint_schedule(), runtime.settings.iterations),
        runtime.settings.num_partitions,
        spec.checkpoints.keep,
        runtime.start.epoch,
        complete=_begun_with(runtime),
    )


def _begun_with(runtime: Runtime) -> list[RestorePoint]:
    """Return the checkpoint from which the job was resumed; the job can restore it again."""
    start = runtime.start
    if start.clock is None or not start.checkpoint:
        return []
    return [RestorePoint(start.checkpoint, start.clock)]


def pending_name(driver: Checkpoints) -> str:
    """Return the name of the unfinished checkpoint; empty if there is none."""
    return "" if driver.pending is None else checkpoint_name(driver.epoch, driver.pending.clock)


def earlier_history(runtime: Runtime, job_dir: JobDir) -> ClockHistory:
    """Return the history of the earlier runs of a job; empty if it starts from the seed.

    Raises
    ------
    StorageError
        The history cannot be read, or ends before the clock at which the job resumes.
    """
    start = runtime.start.clock
    if start is None:
        return ClockHistory()
    try:
        found = parse_history(job_dir.history.read_bytes(), str(job_dir.history))
    except OSError as error:
        raise StorageError(f"{job_dir.history}: cannot be read: {error.strerror or error}") from error
    if len(found) < start:
        raise StorageError(f"{job_dir.history}: ends before clock {len(found)}, but the job resumes at clock {start}")
    return found


class CheckpointFinisher:
    """Completes and discards checkpoints one after the other on its own thread, so that the owner thread never waits.

    Parameters
    ----------
    runtime : Runtime
    store : CheckpointStore
    history : callable
        Returns the records of all clocks before the given one; called on the owner thread.
    put : callable
        Takes the events that tell the outcome.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: CheckpointStore,
        history: Callable[[int], ClockHistory],
        put: Callable[..., None],
    ) -> None:
        self._job = identity(runtime)
        self._owner = runtime.owner
        self._store = store
        self._history = history
        self._put = put
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy_with = 0
        #: Command of the latest completed checkpoint, until the earlier ones are removed; used by the thread.
        self._superseding: e.FinishCheckpoint | None = None

    def begin(self, pending: str = "") -> None:
        """Remove the files of unfinished checkpoints but ``pending``; if that fails, training continues."""
        try:
            check_owner(self._store.storage, self._owner)
            self._store.remove_leftovers(pending)
        except StorageError as error:
            logger.warning("M %s", error)

    def finish(self, command: e.FinishCheckpoint) -> None:
        """Complete a checkpoint; a repeated command is ignored."""
        if command.checkpoint_id != self._busy_with:
            self._busy_with = command.checkpoint_id
            history = self._history(command.first_clock)
            self._submit(lambda: self._finish(command, history))

    def remove_earlier(self, checkpoint_id: int) -> None:
        """Remove the checkpoints that one completed by this process supersedes.

        Do nothing if an earlier master completed it, because its name may not be durable.  The next checkpoint removes
        them.
        """
        self._submit(lambda: self._remove_earlier(checkpoint_id))

    def discard(self, command: e.DiscardCheckpoint) -> None:
        """Remove the files of a checkpoint; it supersedes no other."""
        self._submit(lambda: self._discard(command))

    def close(self) -> None:
        """Wait for pending work; remove superseded and unfinished checkpoints."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
        if self._superseding is not None:
            self._remove_earlier(self._superseding.checkpoint_id)
        self.begin()

    def _submit(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except StorageError as error:
                logger.warning("M %s", error)
            except Exception:
                # The thread must survive for the next checkpoint.
                logger.exception("M a checkpoint cannot be completed or removed")

    def _finish(self, command: e.FinishCheckpoint, history: ClockHistory) -> None:
        manifest = Manifest(
            command.epoch,
            command.clock,
            self._job,
            command.parts,
            command.workers,
            command.servers,
            command.triggers_asked,
            history="",
        )
        try:
            with telling(lambda why: self._put(e.CheckpointWaits(command.checkpoint_id, why))):
                restore_owner(self._store.storage, self._owner)
                self._store.finish(manifest, history)
        except Exception as error:
            # Any error: without an outcome, the job would take no further checkpoint.
            self._put(e.CheckpointFailed(command.checkpoint_id, str(error)))
        else:
            self._superseding = command
            self._put(e.CheckpointDone(command.checkpoint_id))

    def _remove_earlier(self, checkpoint_id: int) -> None:
        command = self._superseding
        if command is not None and command.checkpoint_id == checkpoint_id:
            self._superseding = None
            try:
                check_owner(self._store.storage, self._owner)
            except StorageError as error:
                logger.warning("M earlier checkpoints stay: %s", error)
            else:
                self._store.remove_earlier(checkpoint_name(command.epoch, command.clock), command.kept)

    def _discard(self, command: e.DiscardCheckpoint) -> None:
        latest = self._superseding
        if latest is not None and (latest.epoch, latest.clock) == (command.epoch, command.clock):
            # It was completed, but the job has restored an earlier one, which must stay.
            self._superseding = None
        self._store.discard(checkpoint_name(command.epoch, command.clock))
