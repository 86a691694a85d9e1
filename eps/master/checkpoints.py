"""The job master's share of a checkpoint: history, manifest and name, on a thread of its own."""

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
from eps.storage.claims import check_signed, claim_again
from eps.storage.jobdir import JobDir

logger = logging.getLogger(__name__)


def driver_of(runtime: Runtime) -> Checkpoints:
    """Return when a job takes checkpoints."""
    spec = runtime.spec
    return Checkpoints(
        Timetable(spec.checkpoint_schedule(), runtime.settings.iterations),
        runtime.settings.num_partitions,
        spec.checkpoints.keep,
        runtime.start.epoch,
        complete=_begun_with(runtime),
    )


def _begun_with(runtime: Runtime) -> list[RestorePoint]:
    """Return the checkpoint that a resumed job began with: it can go back to it."""
    start = runtime.start
    if start.clock is None or not start.checkpoint:
        return []
    return [RestorePoint(start.checkpoint, start.clock)]


def pending_name(driver: Checkpoints) -> str:
    """Return the name of the checkpoint on its way; empty for none."""
    return "" if driver.pending is None else checkpoint_name(driver.epoch, driver.pending.clock)


def earlier_history(runtime: Runtime, job_dir: JobDir) -> ClockHistory:
    """Return what the runs before this one measured; nothing where it starts from the seed.

    Raises
    ------
    StorageError
        It cannot be read, or is of fewer clocks.
    """
    start = runtime.start.clock
    if start is None:
        return ClockHistory()
    try:
        found = parse_history(job_dir.history.read_bytes(), str(job_dir.history))
    except OSError as error:
        raise StorageError(f"{job_dir.history}: cannot be read: {error.strerror or error}") from error
    if len(found) < start:
        raise StorageError(f"{job_dir.history}: ends before clock {len(found)}, but the job goes on at clock {start}")
    return found


class CheckpointFinisher:
    """Completes and discards checkpoints, one after the other, so that the owner thread waits for no disk.

    Parameters
    ----------
    runtime : Runtime
    store : CheckpointStore
    history : callable
        Returns the records of the clocks before one; called on the owner thread.
    put : callable
        Takes the events that say how it went.
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
        #: The command of the latest that was completed and has earlier ones beside it still; of the thread.
        self._superseding: e.FinishCheckpoint | None = None

    def begin(self, pending: str = "") -> None:
        """Remove what was left half written before ``pending``, the one on its way; training goes on without it."""
        try:
            check_signed(self._store.storage, self._owner)
            self._store.remove_leftovers(pending)
        except StorageError as error:
            logger.warning("M %s", error)

    def finish(self, command: e.FinishCheckpoint) -> None:
        """Complete a checkpoint; a command that is given again while it is being done is ignored."""
        if command.checkpoint_id != self._busy_with:
            self._busy_with = command.checkpoint_id
            history = self._history(command.first_clock)
            self._submit(lambda: self._finish(command, history))

    def remove_earlier(self, checkpoint_id: int) -> None:
        """Remove what a checkpoint that this process completed makes superfluous.

        What another master completed removes nothing: the next one will, whose name is known to be durable.
        """
        self._submit(lambda: self._remove_earlier(checkpoint_id))

    def discard(self, command: e.DiscardCheckpoint) -> None:
        """Remove what was written of a checkpoint, which takes no other's place."""
        self._submit(lambda: self._discard(command))

    def close(self) -> None:
        """Wait for what is being done, and remove what nobody will complete, or go back to any more."""
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
                # The next one must find this thread.
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
                claim_again(self._store.storage, self._owner)
                self._store.finish(manifest, history)
        except Exception as error:
            # Whatever it is: one that nobody hears of again would be the last.
            self._put(e.CheckpointFailed(command.checkpoint_id, str(error)))
        else:
            self._superseding = command
            self._put(e.CheckpointDone(command.checkpoint_id))

    def _remove_earlier(self, checkpoint_id: int) -> None:
        command = self._superseding
        if command is not None and command.checkpoint_id == checkpoint_id:
            self._superseding = None
            try:
                check_signed(self._store.storage, self._owner)
            except StorageError as error:
                logger.warning("M earlier checkpoints stay: %s", error)
            else:
                self._store.remove_earlier(checkpoint_name(command.epoch, command.clock), command.kept)

    def _discard(self, command: e.DiscardCheckpoint) -> None:
        latest = self._superseding
        if latest is not None and (latest.epoch, latest.clock) == (command.epoch, command.clock):
            # It was completed, and the job had gone back by then to one that must stay.
            self._superseding = None
        self._store.discard(checkpoint_name(command.epoch, command.clock))
