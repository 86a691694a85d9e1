"""Keeps a job master's state: every event in a write-ahead log, and now and then a snapshot.

The state is a function of its events, so a log of events is enough; a snapshot only makes the log short.  What grows
without end, the history, is in columns, which are copied as they are.

A log that cannot be written does not end a job: training goes on without it, the reason is shown, and snapshots are
tried until one heals it.  Until then the master cannot be started again: the log says so, or where not even that could
be written, the members do (:mod:`eps.core.members`).

The state is a function of its events, so an event that ends one master, by a crash or a hang, ends the next one while
that restores the state.  Beside the log stands which event a master is restoring: the third master ends the job.

Events and states are pickled, because a state is a graph: a plan is in the queue and among all plans, and must be one
object again.  Classes are those of the pure core and a few of the standard library; nothing else is ever looked up,
whatever the bytes say.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from math import inf
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eps.core import events as e
from eps.core.events import ENDED_STATES, JobState
from eps.core.job import Job
from eps.core.progress import ClockHistory
from eps.core.reconfig import Phase
from eps.errors import StorageError
from eps.master.checkpoints import driver_of, earlier_history
from eps.master.resources import Pulse
from eps.spec.runtime import Runtime
from eps.storage.atomic import FILE_MODE
from eps.storage.jobdir import JobDir
from eps.storage.shared_log import SharedLog
from eps.storage.wal import EventLog

#: Events between two snapshots of a job with a short history.
SNAPSHOT_EVENTS = 2048
#: With a long history there are this many clocks to an event: what snapshots write stays in proportion.
CLOCKS_PER_EVENT = 16
#: A log that cannot be written is tried again this often, or after so many times what the last try took.
HEAL_S, HEAL_TIMES = 1.0, 10
#: File of a log's directory with the number of the event that a master is restoring; 0 where none does.
RESTORING = "restoring"
#: What a message says of an event, in characters.
MOST_DETAIL = 200
#: A slow disk may keep the owner thread for so long without a beat.
SYNC_PATIENCE_S = 60.0

_BUILTINS = frozenset(
    {"bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}
)
_COLLECTIONS = frozenset({"Counter", "OrderedDict", "defaultdict", "deque"})
_PROTOCOL = 5

Reducer = Callable[[Any], tuple[Any, ...]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """What a log says."""

    state: Job
    #: Time of the last event, on the master's clock.
    now_s: float
    #: Wall-clock seconds since then.
    away_s: float
    num_events: int


class StateLog:
    """The log of one job master; its owner thread uses it.

    Parameters
    ----------
    where : Path or SharedLog
        Directory of the log, created if need be; or the open log of a job whose masters share no directory.
    snapshot_events : int
        Events between two snapshots, at least.

    Raises
    ------
    StorageError
        There is a log, and it is damaged.
    """

    def __init__(self, where: Path | SharedLog, snapshot_events: int = SNAPSHOT_EVENTS) -> None:
        self.path = where if isinstance(where, Path) else Path()
        self.snapshot_events = snapshot_events
        self._log: EventLog | SharedLog | None = None
        #: Why nothing is logged; empty while all is well.
        self.error = ""
        self._num_events = 0
        self._heal_at_s = 0.0
        self._writer: threading.Thread | None = None
        self._is_shared = not isinstance(where, Path)
        if not isinstance(where, Path):
            self._log = where
        elif where.exists():
            self._log = EventLog.open(where)

    def restore(self) -> Restored | None:
        """Return the state that the log says, None where it says nothing.

        Raises
        ------
        StorageError
            A record cannot be read, or an event has ended two masters.
        """
        if self._log is None or self._log.recovered.snapshot is None:
            return None
        recovered = self._log.recovered
        assert recovered.snapshot is not None
        for sentence in recovered.dropped:
            logger.warning("M %s", sentence)
        now_s, state = _load(recovered.snapshot)
        if recovered.records and self._restoring() == state.masters.steps + len(recovered.records):
            # The master that logged it did nothing afterwards, and the one that restored it ended there.
            raise StorageError(_deadly(loads(recovered.records[-1])[1]))
        last = state.masters.steps + len(recovered.records)
        for record in recovered.records:
            now_s, event = loads(record)
            if state.masters.steps + 1 == last:
                self._note_restoring(last)
            try:
                state.step(event, now_s)
            except Exception as error:
                raise StorageError(f"{_deadly(event)}: {type(error).__name__}: {error}") from error
        self._note_restoring(0)
        self._num_events = len(recovered.records)
        return Restored(state, now_s, recovered.age_s, self._num_events)

    def _restoring(self) -> int:
        """Return the number of the event at which a master ended that restored the state; 0 where none did."""
        try:
            return 0 if self._is_shared else int.from_bytes((self.path / RESTORING).read_bytes(), "little")
        except OSError:
            return 0

    def _note_restoring(self, number: int) -> None:
        if self._is_shared:
            # A write to a cluster's file system for every event would take long, and YARN counts attempts itself.
            return
        # Where that cannot be written, the supervisor still counts masters.
        with suppress(OSError):
            fd = os.open(self.path / RESTORING, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                os.pwrite(fd, number.to_bytes(8, "little"), 0)
            finally:
                os.close(fd)

    def begin(self, state: Job, now_s: float) -> None:
        """Log from here on: write the first snapshot."""
        self._try_snapshot(_parts(state, now_s), now_s)

    def record(self, event: e.Event, now_s: float) -> None:
        """Write an event ahead of what follows from it."""
        self._num_events += 1
        if self._log is not None and not self.error:
            try:
                self._log.append(dumps((now_s, event)))
            except StorageError as error:
                self._fail(str(error), now_s)

    def sync(self, now_s: float) -> None:
        """Return when everything that was recorded would survive a loss of power."""
        if self._log is not None and not self.error:
            try:
                self._log.sync()
            except StorageError as error:
                self._fail(str(error), now_s)

    def due(self, state: Job, now_s: float) -> list[bytes] | None:
        """Return what :meth:`shorten` is to write, None where no snapshot is due; under the state's lock."""
        if self.error:
            return _parts(state, now_s) if now_s >= self._heal_at_s else None
        due = max(self.snapshot_events, len(state.progress.history) // CLOCKS_PER_EVENT)
        if self._log is None or self._num_events < due or (self._writer is not None and self._writer.is_alive()):
            return None
        return _parts(state, now_s)

    def shorten(self, parts: list[bytes], now_s: float) -> None:
        """Begin the log anew after a snapshot, before anything else is recorded; its file is written meanwhile.

        Where the log misses records, all of the snapshot is written before this returns.
        """
        if self.error:
            self._try_snapshot(parts, now_s)
            return
        assert self._log is not None
        try:
            number = self._log.begin()
        except StorageError as error:
            # What has been logged is whole, so nothing is lost yet.
            logger.warning("M %s", error)
            self._num_events = 0
            return
        self._num_events = 0
        log = self._log

        def write() -> None:
            try:
                log.write_snapshot(number, parts)
            except StorageError as error:
                logger.warning("M the log stays long: %s", error)

        self._writer = threading.Thread(target=write, name="snapshot", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Close the files; harmless when repeated."""
        if self._writer is not None:
            self._writer.join()
        if self._log is not None:
            self._log.close()

    def _try_snapshot(self, parts: list[bytes], now_s: float) -> None:
        began_s = time.monotonic()
        try:
            if self._writer is not None:
                self._writer.join()
            if self._log is None:
                self._log = EventLog.open(self.path)
            # A process that is killed loses nothing that it wrote; the next sync is that of a plan's commit.
            self._log.snapshot(*parts, sync=bool(self.error))
        except StorageError as error:
            # While this is tried, nothing else is done.
            self._fail(str(error), now_s, HEAL_TIMES * (time.monotonic() - began_s))
            return
        if self.error:
            logger.warning("M the state is logged again")
        self.error = ""
        self._num_events = 0

    def _fail(self, reason: str, now_s: float, rest_s: float = 0.0) -> None:
        self._heal_at_s = now_s + max(HEAL_S, rest_s)
        if not self.error:
            logger.error("M goes on, and cannot be started again until this is mended: %s", reason)
        self.error = reason


class LoggedJob:
    """The state of a job, which takes no event before the log has it.

    The owner thread steps it, under ``changed``; other threads read it under that lock.

    Parameters
    ----------
    runtime : Runtime
    job_dir : JobDir
    log : StateLog
        Restores the state where another process was master before this one.
    generation : int
        Of the master that was announced last; 0 where none was.
    adopt : callable
        As of :class:`~eps.cluster.api.ResourceManager`.
    pulse : Pulse
        Beats while the log waits for the disk.

    Attributes
    ----------
    adopted : mapping
        Containers that ran already -> pid.

    Raises
    ------
    StorageError
        Another process was master before this one, and did not leave what is needed to take over.
    """

    def __init__(
        self,
        runtime: Runtime,
        job_dir: JobDir,
        log: StateLog,
        generation: int,
        adopt: Callable[[Mapping[str, int]], Mapping[str, int]],
        pulse: Pulse,
    ) -> None:
        self.log = log
        #: Threads that wait for the next news, whatever it is.
        self.num_waiting = 0
        #: Counts what may have changed the status: events, but for ticks of a job that only trains.
        self.num_news = 0
        self._tick_due_s: float | None = None
        #: Notified when the job's state, or the phase of a plan, has changed.
        self.changed = threading.Condition()
        self._pulse = pulse
        self._started_s = time.monotonic()
        self.state: Job
        #: What is to be done before the first event.
        self.first_commands: list[e.Command]
        restored = log.restore()
        self.adopted = adopt({} if restored is None else restored.state.members.pids())
        if restored is not None:
            self._take_over(restored, generation)
        elif self.adopted:
            raise StorageError(f"{job_dir.state}: containers run, but nothing was logged")
        else:
            self._begin(runtime, job_dir, generation)

    def _take_over(self, restored: Restored, generation: int) -> None:
        logger.info("M takes over: %d events, %.3f s after the last", restored.num_events, restored.away_s)
        self._started_s -= restored.now_s + restored.away_s
        self.state = restored.state
        # One before may have been announced that could log nothing; a generation is used once.
        event = e.MasterRestarted(max(self.state.masters.generation, generation) + 1, self.adopted)
        self.log.record(event, self.now())
        self.first_commands = self.state.step(event, self.now())

    def _begin(self, runtime: Runtime, job_dir: JobDir, generation: int) -> None:
        self.state = first_state(runtime, generation + 1)
        history = earlier_history(runtime, job_dir)
        self.state.progress.restore(history)
        if history:
            # The time of a job that was resumed goes on where its history ends.
            self._started_s -= history[-1].completed_s
        self.first_commands = list(self.state.start(self.now()))
        self.log.begin(self.state, self.now())

    def now(self) -> float:
        """Return the seconds of the job's time; it goes on where that of the master before ended."""
        return time.monotonic() - self._started_s

    def step(self, event: e.Event) -> list[e.Command]:
        """Log an event, let the state take it, and return what is to be done."""
        now_s = self.now()
        # A job that waits for something tells for how long.
        is_news = not isinstance(event, e.Tick) or self._tick_due_s in (None, -inf)
        with self._pulse.patience(SYNC_PATIENCE_S):
            self.log.record(event, now_s)
        with self.changed:
            before = self._phases()
            commands = self.state.step(event, now_s)
            self._tick_due_s = None
            self.num_news += is_news
            is_awaited = before != self._phases() or any(isinstance(c, e.Answer | e.EndJob) for c in commands)
            if is_awaited or (is_news and self.num_waiting):
                self.changed.notify_all()
            parts = None if self.state.state in ENDED_STATES else self.log.due(self.state, now_s)
        if parts is not None:
            with self._pulse.patience(SYNC_PATIENCE_S):
                self.log.shorten(parts, now_s)
        return commands

    def tick_is_due(self) -> bool:
        """Return whether a tick may bring anything; on the owner thread."""
        if self._tick_due_s is None:
            self._tick_due_s = self.state.tick_due_s
        # A log that cannot be written is tried again when an event comes.
        return bool(self.log.error) or self.now() >= self._tick_due_s

    def _phases(self) -> tuple[JobState, Phase | None]:
        driver = self.state.plans.flight.driver
        return self.state.state, None if driver is None else driver.plan.phase


def first_state(runtime: Runtime, generation: int) -> Job:
    """Return the state of a job without logged state.

    Parameters
    ----------
    runtime : Runtime
    generation : int
        The one after that of the master that was announced last; 1 where none was.
    """
    spec, start = runtime.spec, runtime.start
    state = Job(
        runtime.settings,
        start.workers or spec.workers,
        start.servers or spec.servers,
        [trigger for trigger in spec.triggers() if trigger.clock > start.triggers_asked],
        stop_on_divergence=spec.training.on_divergence == "stop",
        checkpoints=driver_of(runtime),
        first_container=start.first_container,
        managed=bool(runtime.manager),
        start_with=spec.containers.start_with,
        # Later masters have it from the log, with the rest of the state.
        seed=f"{runtime.name} {time.time_ns()}",
    )
    state.masters.generation = generation
    return state


def _deadly(event: e.Event) -> str:
    """Return why a job ends whose masters end at the same event."""
    detail = ""
    if isinstance(event, e.ChangeRequested):
        detail = f" ({event.change})"
    elif isinstance(event, e.ReportReceived):
        detail = f" ({type(event.report).__name__} of {event.report.name})"
    elif isinstance(event, e.ContainerExited | e.MemberLost):
        detail = f" ({event.container_id}: {event.reason})"
    name = f"{type(event).__name__}{detail[:MOST_DETAIL]}"
    return f"the event {name} has ended two masters; eps resume goes on from the latest checkpoint, or from the seed"


def _parts(state: Job, now_s: float) -> list[bytes]:
    """Return the parts of a snapshot: the state without its history, then the history's columns."""
    progress, history = state.progress, state.progress.history
    # Not an empty one: columns are no part of what :func:`dumps` takes.
    progress.history = None  # type: ignore[assignment]
    try:
        main = dumps((now_s, state))
    finally:
        progress.history = history
    return [main, *history.columns()]


def _load(parts: tuple[bytes, ...]) -> tuple[float, Job]:
    now_s, state = loads(parts[0])
    state.progress.history = ClockHistory.from_columns(parts[1:])
    return now_s, state


class _Reducers(dict[type, Reducer]):
    """How each class is taken apart; the way of a frozen dataclass is three times as fast as its own."""

    def __missing__(self, kind: type) -> Reducer:
        found = _reducer(kind)
        if found is None:
            raise KeyError(kind)
        self[kind] = found
        return found


def _reducer(kind: type) -> Reducer | None:
    if issubclass(kind, Enum):
        return lambda value: (kind, (value.value,))
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return None
    if not all(field.init and not field.kw_only for field in fields(kind)):
        return None
    names = [field.name for field in fields(kind)]
    if not names:
        return lambda value: (kind, ())
    get = attrgetter(*names)
    if len(names) == 1:
        return lambda value: (kind, (get(value),))
    return lambda value: (kind, get(value))


_REDUCERS = _Reducers({MappingProxyType: lambda value: (dict, (dict(value),))})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        core = module == "eps.errors" or module.startswith("eps.core.")
        known = (module == "builtins" and name in _BUILTINS) or (module == "collections" and name in _COLLECTIONS)
        if known or (core and "." not in name):
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a job master's state")


def dumps(value: Any) -> bytes:
    """Return ``value`` as bytes."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, _PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """Return the value that :func:`dumps` was given.

    Raises
    ------
    StorageError
        The bytes are not such a value, or name a class that has no place in one.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        # Whatever bytes make of an unpickler; the checksum has said that they are those that were written.
        raise StorageError(f"a record of {len(data)} bytes cannot be read: {type(error).__name__}: {error}") from error
