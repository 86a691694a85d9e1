"""A job master's state on disk: a write-ahead log of events, shortened by snapshots.

The state is a function of its events, so the log restores it; a snapshot only keeps the log short.  The history, which
grows without limit, is stored in columns that are copied without pickling.

If the log cannot be written, training continues and the status shows the reason.  The master retries with a snapshot.
Until one succeeds, no other master can take over: the log says so, or, if even that cannot be written, the members do
(:mod:`eps.core.members`).

An event whose processing raises an exception crashes its master, and raises again in the next one, which replays it.
That one ends the job and names the event.

Events and states are pickled, because a state is a graph: a plan in the queue and among all plans must be one object
again.  The unpickler accepts only classes of the pure core and a few of the standard library.
"""

from __future__ import annotations

import io
import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping
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
from eps.core.tiers import StageRule
from eps.core.types import Tier
from eps.errors import StorageError
from eps.master.checkpoints import driver_of, earlier_history
from eps.master.resources import Pulse
from eps.spec.runtime import Runtime
from eps.storage.jobdir import JobDir
from eps.storage.shared_log import SharedLog
from eps.storage.wal import EventLog

#: Events between two snapshots of a job with a short history.
SNAPSHOT_EVENTS = 2048
#: With a long history a snapshot needs one more event per this many clocks, because it writes all of the history.
CLOCKS_PER_EVENT = 16
#: Seconds between retries of a failed log; at least ``HEAL_TIMES`` times as long as the last retry took.
HEAL_S, HEAL_TIMES = 1.0, 10
#: Longest description of an event in a message, in characters.
MOST_DETAIL = 200
#: Time for which the owner thread may wait for a slow disk.
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
    """A state restored from a log."""

    state: Job
    #: Time of the last event on the master's clock.
    now_s: float
    #: Wall-clock seconds since then.
    away_s: float
    num_events: int


class StateLog:
    """The log of one job master; its owner thread uses it.

    Parameters
    ----------
    where : Path or SharedLog
        Directory of the log, created if missing; or the open log of a job whose masters share no directory.
    snapshot_events : int
        Least number of events between two snapshots.

    Raises
    ------
    StorageError
        The log is damaged.
    """

    def __init__(self, where: Path | SharedLog, snapshot_events: int = SNAPSHOT_EVENTS) -> None:
        self.path = where if isinstance(where, Path) else Path()
        self.snapshot_events = snapshot_events
        self._log: EventLog | SharedLog | None = None
        #: Why the log cannot be written; empty if it can.
        self.error = ""
        self._num_events = 0
        self._heal_at_s = 0.0
        self._writer: threading.Thread | None = None
        if not isinstance(where, Path):
            self._log = where
        elif where.exists():
            self._log = EventLog.open(where)

    def restore(self) -> Restored | None:
        """Return the logged state, or None if nothing was logged.

        Raises
        ------
        StorageError
            A record cannot be read, or an event has crashed two masters.
        """
        if self._log is None or self._log.recovered.snapshot is None:
            return None
        recovered = self._log.recovered
        assert recovered.snapshot is not None
        for sentence in recovered.dropped:
            logger.warning("M %s", sentence)
        now_s, state = _load(recovered.snapshot)
        for record in recovered.records:
            now_s, event = loads(record)
            try:
                state.step(event, now_s)
            except Exception as error:
                raise StorageError(f"{_deadly(event)}: {type(error).__name__}: {error}") from error
        self._num_events = len(recovered.records)
        return Restored(state, now_s, recovered.age_s, self._num_events)

    def begin(self, state: Job, now_s: float) -> None:
        """Begin the log with a snapshot."""
        self._try_snapshot(_parts(state, now_s), now_s)

    def record(self, event: e.Event, now_s: float) -> None:
        """Log an event, before its commands are executed."""
        self._num_events += 1
        if self._log is not None and not self.error:
            try:
                self._log.append(dumps((now_s, event)))
            except StorageError as error:
                self._fail(str(error), now_s)

    def sync(self, now_s: float) -> None:
        """Flush the log, so that it survives a power failure."""
        if self._log is not None and not self.error:
            try:
                self._log.sync()
            except StorageError as error:
                self._fail(str(error), now_s)

    def due(self, state: Job, now_s: float) -> list[bytes] | None:
        """Return the snapshot for :meth:`shorten`, None if none is due; call it under the state's lock."""
        if self.error:
            return _parts(state, now_s) if now_s >= self._heal_at_s else None
        due = max(self.snapshot_events, len(state.progress.history) // CLOCKS_PER_EVENT)
        if self._log is None or self._num_events < due or (self._writer is not None and self._writer.is_alive()):
            return None
        return _parts(state, now_s)

    def shorten(self, parts: list[bytes], now_s: float) -> None:
        """Begin a new log file; a thread writes the snapshot before it.  Call it before the next :meth:`record`.

        If records are missing in the log, the snapshot is written before this returns.
        """
        if self.error:
            self._try_snapshot(parts, now_s)
            return
        assert self._log is not None
        try:
            number = self._log.begin()
        except StorageError as error:
            # The log is complete, so nothing is lost: it only stays long.
            logger.warning("M %s", error)
            self._num_events = 0
            return
        self._num_events = 0
        log = self._log

        def write() -> None:
            try:
                log.write_snapshot(number, parts)
            except StorageError as error:
                logger.warning("M the snapshot cannot be written; the log stays long: %s", error)

        self._writer = threading.Thread(target=write, name="snapshot", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Close the files; idempotent."""
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
            # A killed process loses nothing that it wrote, so the next flush may be that of a plan's commit.
            self._log.snapshot(*parts, sync=bool(self.error))
        except StorageError as error:
            # A retry blocks the owner thread, so a slow one is made less often.
            self._fail(str(error), now_s, HEAL_TIMES * (time.monotonic() - began_s))
            return
        if self.error:
            logger.warning("M the state is logged again")
        self.error = ""
        self._num_events = 0

    def _fail(self, reason: str, now_s: float, rest_s: float = 0.0) -> None:
        self._heal_at_s = now_s + max(HEAL_S, rest_s)
        if not self.error:
            logger.error(
                "M the state cannot be logged: training continues, but no other master can take over: %s", reason
            )
        self.error = reason


class LoggedJob:
    """The state of a job; every event is logged before the state processes it.

    The owner thread steps it under ``changed``; other threads read it under that lock.

    Parameters
    ----------
    runtime : Runtime
    job_dir : JobDir
    log : StateLog
        Restores the state if there was a job master before this one.
    generation : int
        Generation of the latest announced master; 0 for none.
    adopt : callable
        See :meth:`~eps.cluster.api.ResourceManager.adopt`.
    pulse : Pulse
        Sends heartbeats while the log waits for the disk.

    Attributes
    ----------
    adopted : mapping
        Containers that already ran -> pid.

    Raises
    ------
    StorageError
        There was a job master before this one, and its state cannot be restored.
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
        #: Number of threads that wait for any event.
        self.num_waiting = 0
        #: Number of events that may have changed the status; ticks of a job that only trains do not count.
        self.num_news = 0
        self._tick_due_s: float | None = None
        #: Notified when the job's state, or the phase of a plan, has changed.
        self.changed = threading.Condition()
        self._pulse = pulse
        self._started_s = time.monotonic()
        self.state: Job
        #: Commands to execute before the first event.
        self.first_commands: list[e.Command]
        restored = log.restore()
        self.adopted = adopt({} if restored is None else restored.state.members.pids())
        if restored is not None:
            self._take_over(restored, generation)
        elif self.adopted:
            raise StorageError(f"{job_dir.state}: containers of this job run, but the log of its state is missing")
        else:
            self._begin(runtime, job_dir, generation)

    def _take_over(self, restored: Restored, generation: int) -> None:
        logger.info("M takes over: %d events, %.3f s after the last", restored.num_events, restored.away_s)
        self._started_s -= restored.now_s + restored.away_s
        self.state = restored.state
        # A master that could not log may have announced a later generation; each generation is used once.
        event = e.MasterRestarted(max(self.state.masters.generation, generation) + 1, self.adopted)
        self.log.record(event, self.now())
        self.first_commands = self.state.step(event, self.now())

    def _begin(self, runtime: Runtime, job_dir: JobDir, generation: int) -> None:
        self.state = first_state(runtime, generation + 1)
        history = earlier_history(runtime, job_dir)
        self.state.progress.restore(history)
        if history:
            # The clock of a resumed job continues where its history ends.
            self._started_s -= history[-1].completed_s
        self.first_commands = list(self.state.start(self.now()))
        self.log.begin(self.state, self.now())

    def now(self) -> float:
        """Return the seconds since the job started; the clock continues across masters and resumes."""
        return time.monotonic() - self._started_s

    def step(self, event: e.Event) -> list[e.Command]:
        """Log an event, step the state with it, and return the commands."""
        now_s = self.now()
        # The status of a job that waits shows for how long.
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
        """Return whether a tick may change the state; call it on the owner thread."""
        if self._tick_due_s is None:
            self._tick_due_s = self.state.tick_due_s
        # A failed log is retried with each event.
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
        Generation of this master: one more than the latest announced.
    """
    spec, start = runtime.spec, runtime.start
    workers, servers = runtime.first_size
    tiers = {Tier.RELIABLE: servers, Tier.TRANSIENT: workers - servers} if spec.tiers.total else None
    state = Job(
        runtime.settings,
        workers,
        servers,
        [trigger for trigger in spec.triggers() if trigger.clock > start.triggers_asked],
        stop_on_divergence=spec.training.on_divergence == "stop",
        checkpoints=driver_of(runtime),
        first_container=start.first_container,
        managed=bool(runtime.manager),
        start_with=spec.containers.start_with,
        # Later masters restore it from the log.
        tiers=tiers,
        stage_rule=StageRule(spec.tiers.stage_rule),
        max_lag_s=spec.tiers.max_lag_s,
        seed=f"{runtime.name} {time.time_ns()}",
    )
    state.masters.generation = generation
    return state


def _deadly(event: e.Event) -> str:
    """Return the reason of a job that ends because two masters crashed at the same event."""
    detail = ""
    if isinstance(event, e.ChangeRequested):
        detail = f" ({event.change})"
    elif isinstance(event, e.ReportReceived):
        detail = f" ({type(event.report).__name__} of {event.report.name})"
    elif isinstance(event, e.ContainerExited):
        detail = f" ({event.container_id}: {event.reason})"
    elif isinstance(event, e.MemberLost):
        detail = f" ({event.seat}: {event.reason})"
    name = f"{type(event).__name__}{detail[:MOST_DETAIL]}"
    return f"the event {name} has crashed two job masters; eps resume continues from the latest checkpoint, or the seed"


def _parts(state: Job, now_s: float) -> list[bytes]:
    """Return the parts of a snapshot: the state without its history, then the history's columns."""
    progress, history = state.progress, state.progress.history
    # None instead of an empty history, whose columns dumps does not accept.
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
    """How to pickle each class: a frozen dataclass as its constructor's arguments, which is three times as fast."""

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
    """Serialise ``value``."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, _PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """Return the value that :func:`dumps` serialised.

    Raises
    ------
    StorageError
        The bytes are not a serialised value, or name a class that is not allowed in one.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        # Unpickling can raise any exception.  The checksum has matched, so these are the bytes that were written.
        raise StorageError(f"a record of {len(data)} bytes cannot be read: {type(error).__name__}: {error}") from error
