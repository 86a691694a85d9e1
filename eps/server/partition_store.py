"""The arrays of one partition: parameters, optimizer slots, the clock's sum, the previous version.

Not thread-safe; the server's lock guards it.  It decides nothing: ``eps.core.server_state`` does.  It keeps no arrays
of its callers, except those of :meth:`PartitionStore.install`: a request's arrays are valid until it is answered.

Memory: parameters, slots, the clock's sum and the previous version.  The previous version is freed when the next clock
begins.  The first contribution of a clock proves that every partition has completed the clock before, because its
sender pulled all of them.  So no worker needs the previous version any more.  A step passes over memory once, in chunks
that fit into the cache.

Source: EPS §2.2 Fig. 1c (steps of a server); design section 5; reproducible.md; performance.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np

from eps.errors import ProtocolError, TransferError
from eps.ml import kernels
from eps.ml.grid import Blocks, Grid, next_exponents
from eps.ml.optim import Optimizer
from eps.ml.steps import Formed, Summed, prepare, step_out_of_place
from eps.ml.sums import ClockSum, PlainClockSum
from eps.net.messages.exchange import PullPart, PushPart
from eps.server.hot_keys import HotKeys, Table
from eps.spec.runtime import Runtime


@dataclass(frozen=True, slots=True, eq=False)
class UpdateData:
    """A step as it was applied, which a follower repeats."""

    gradient: np.ndarray
    #: Positions in the partition, ascending, int64; None means every key.
    keys: np.ndarray | None
    #: Exponents of the grid after the step, int16 by block; empty if sums are not reproducible.
    exponents: np.ndarray
    rate_scale: float


#: See :meth:`PartitionStore.snapshot`.
Snapshot = Sequence[np.ndarray]


def changed_keys(snapshot: Snapshot, base: Snapshot) -> Snapshot | None:
    """Return a snapshot with only the keys whose bits differ from ``base``; None if that is not smaller.

    The last array has the positions of these keys, int32, ascending.
    """
    per_key = _per_key(snapshot)
    differs = np.zeros(len(snapshot[1]), np.bool_)
    for i in per_key:
        differs |= snapshot[i].view(np.uint32) != base[i].view(np.uint32)
    positions = np.flatnonzero(differs).astype(np.int32)
    if len(positions) * (1 + len(per_key)) >= len(differs) * len(per_key):
        return None
    found = list(snapshot)
    for i in per_key:
        found[i] = found[i][positions]
    return (*found, positions)


def with_changes(base: Snapshot, changed: Snapshot) -> list[np.ndarray]:
    """Return the snapshot from which :func:`changed_keys` returned ``changed``.

    Raises
    ------
    TransferError
        The arrays do not fit ``base``.
    """
    if len(changed) != len(base) + 1:
        raise TransferError(f"changed keys came as {len(changed)} arrays; expected {len(base) + 1}")
    *found, positions = changed
    size, ascends = len(base[1]), positions.dtype == np.int32 and positions.ndim == 1
    if ascends and len(positions):
        ascends = bool(positions[0] >= 0 and positions[-1] < size and np.all(positions[1:] > positions[:-1]))
    if not ascends:
        raise TransferError(f"changed keys have positions that are not ascending from 0 to {size - 1}")
    per_key = _per_key(base)
    if any(found[i].shape != positions.shape or found[i].dtype != base[i].dtype for i in per_key):
        raise TransferError("changed keys came as arrays that do not fit the partition")
    for i in per_key:
        whole = base[i].copy()
        whole[positions] = found[i]
        found[i] = whole
    return found


def _per_key(snapshot: Snapshot) -> list[int]:
    """Return the indices of the arrays that have a value of four bytes for each key."""
    return [i for i in (1, *range(4, len(snapshot))) if len(snapshot[i])]


#: At most this many splits are counted one by one.
_FEW_SPLITS = 16


def _empty(length: int) -> np.ndarray:
    return np.empty(length, np.float32)


class AllKeys:
    """Parameters and slots of a partition in which every key takes every step.

    :class:`~eps.server.hot_keys.HotKeys` is the counterpart for sparse jobs under BSP.

    Parameters
    ----------
    optimizer : Optimizer
    start : int
        First global key of the partition.
    values : ndarray, shape (p,), float32
        Parameters.  All given arrays belong to this object from now on.
    slots : list of ndarray, shape (p,), float32
    penalised : ndarray, shape (p,), bool, or None
    replaces : bool
        Whether a step writes the parameters to other memory (BSP) instead of changing them in place.
    empty, empty_after : callable
        See :class:`PartitionStore`.
    """

    #: Every key has had every clock.
    last: np.ndarray | None = None
    #: Every key takes every step.
    places: np.ndarray | None = None

    def __init__(
        self,
        optimizer: Optimizer,
        start: int,
        values: np.ndarray,
        slots: list[np.ndarray],
        penalised: np.ndarray | None,
        replaces: bool,
        empty: Callable[[int], np.ndarray],
        empty_after: Callable[[int], np.ndarray] | None,
    ) -> None:
        self._optimizer = optimizer
        self._start = start
        self._penalised = penalised
        self._replaces = replaces
        self._empty = empty
        self._empty_after = empty_after
        self.values, self.slots = values, slots
        self._previous: np.ndarray | None = None

    def install(self, values: np.ndarray, slots: list[np.ndarray], last: np.ndarray, clock: int) -> None:
        """Replace all arrays."""
        self.values, self.slots, self._previous = values, slots, None

    def arrays(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return (values, last, slots), which never change later."""
        values = self.values if self._replaces else self.values.copy()
        return values, np.empty(0, np.int32), [slot.copy() for slot in self.slots]

    def begin_clock(self) -> None:
        """Start a clock with its first push: frees the previous version."""
        self._previous = None

    def contribute(self, keyset: bytes, keys: np.ndarray | None) -> tuple[Table | None, None]:
        """Return over which keys the clock's sum runs: always the partition."""
        return None, None

    def settle(self) -> Table | None:
        """Return the keys to step: always the partition."""
        return None

    def step(self, closed: Summed, samples: int, clock: int, keep_gradient: bool) -> np.ndarray | None:
        """Apply the step of a clock out of place; return the gradient, float32, if ``keep_gradient``."""
        # The old array is replaced, never changed, because readers may still be sending it.
        values = self._empty(len(self.values)) if self._empty_after is None else self._empty_after(clock)
        # The gradient is sent to followers from this memory without a copy.
        memory = self._empty(len(self.values)) if keep_gradient else None
        gradient = step_out_of_place(
            self._optimizer,
            closed,
            samples,
            self.values,
            values,
            self.slots,
            clock,
            self._penalised,
            keep_gradient,
            memory,
        )
        self._previous, self.values = self.values, values
        return gradient

    def follow(self, gradient: np.ndarray, places: np.ndarray | None, clock: int) -> None:
        """Apply the owner's step of a clock."""
        self.step(Formed(gradient), 1, clock, keep_gradient=False)

    def step_in_place(self, update: UpdateData, clock: int) -> None:
        """Apply one push (SSP and ASP)."""
        keys, slots = update.keys, self.slots
        if update.rate_scale <= 0.0:
            return
        if keys is None:
            self._optimizer.step(self.values, slots, update.gradient, clock, self._penalised, update.rate_scale)
            return
        values, some = self.values[keys], [slot[keys] for slot in slots]
        penalised = None if self._penalised is None else self._penalised[keys]
        self._optimizer.step(values, some, update.gradient, clock, penalised, update.rate_scale)
        self.values[keys] = values
        for slot, changed in zip(slots, some, strict=True):
            slot[keys] = changed

    @property
    def has_previous(self) -> bool:
        """Return whether the previous version is kept."""
        return self._previous is not None

    def read(self, keyset: bytes, keys: np.ndarray | None, previous: bool) -> np.ndarray:
        """Return parameters of the current or the previous version, in an array that never changes later.

        Parameters
        ----------
        keyset : bytes
        keys : ndarray of int64, ascending, or None
            Global keys; None means all.
        previous : bool
        """
        source = self._previous if previous else self.values
        assert source is not None
        if keys is None and self._replaces:
            return source
        out = self._empty(len(source) if keys is None else len(keys))
        if keys is None:
            np.copyto(out, source)
        else:
            kernels.take(source, keys, self._start, out)
        return out

    def export(self) -> np.ndarray:
        """Return a copy of every value."""
        return self.values.copy()


class ClockPushes:
    """The sum of a clock's pushes, until its step.

    Parameters
    ----------
    grid : Grid or None
        None if sums need not be reproducible.
    start, length : int
        The partition.
    """

    def __init__(self, grid: Grid | None, start: int, length: int) -> None:
        self._grid = grid
        self._start = start
        self._length = length
        self._blocks: Blocks | None = None
        #: Memory of the last clock's sum, and the table over which that ran.
        self._memory: tuple[Table | None, np.ndarray | None] = None, None
        #: The table over which the sum runs; None means the partition.
        self._table: Table | None = None
        self.total: ClockSum | PlainClockSum | None = None
        self.maxima: np.ndarray | None = None
        self.samples = 0
        self.splits: list[int] = []

    def measure(self, maxima: np.ndarray) -> None:
        """Record a push that only measures maxima."""
        self.maxima = maxima.copy() if self.maxima is None else np.maximum(self.maxima, maxima)

    def add(
        self,
        push: PushPart,
        exponents: np.ndarray,
        table: Table | None,
        positions: np.ndarray | None,
        is_last: bool,
    ) -> None:
        """Add a push to the sum.

        Parameters
        ----------
        push : PushPart
        exponents : ndarray of int16
            The clock's grid.
        table : Table or None
            Over which the sum runs; None means the partition, from the first push on that the table lacks.
        positions : ndarray or None
            Positions of the push's keys in the table.
        is_last : bool
            See :meth:`PartitionStore.accumulate`.
        """
        total = self.total
        if total is None:
            total = self.total = self._begin(exponents, table)
        elif table is None and total.keys is not None:
            total, self._table = total.over(None), None
            self.total = total
        if isinstance(total, ClockSum):
            total.add(push.total, push.maxima, push.raw, push.keys, positions, is_last)
        else:
            total.add(push.total, push.keys, positions, is_last)
        self.samples += push.samples
        self.splits.extend(push.splits)

    def _begin(self, exponents: np.ndarray, table: Table | None) -> ClockSum | PlainClockSum:
        self._table = table
        keys = None if table is None else table.keys
        memory = self._memory[1] if self._memory[0] is table else None
        if self._grid is None:
            return PlainClockSum(self._start, self._length, keys, memory)
        if table is not None:
            blocks = table.blocks
        else:
            if self._blocks is None:
                self._blocks = Blocks(self._grid.block_keys, self._start, self._length, None)
            blocks = self._blocks
        return ClockSum(self._grid, exponents, self._start, self._length, keys, memory, blocks)

    def over(self, table: Table | None) -> ClockSum | PlainClockSum:
        """Return the sum over the keys of the step."""
        closed = self.total
        assert closed is not None
        if table is None or closed.keys is table.keys:
            return closed
        if isinstance(closed, ClockSum):
            closed = closed.over(table.keys, None, table.blocks)
        else:
            closed = closed.over(table.keys)
        self.total, self._table = closed, table
        return closed

    def close(self) -> None:
        """End the clock; the next clock reuses its memory."""
        if self.total is not None:
            self._memory = self._table, self.total.memory
        self.forget()

    def forget(self) -> None:
        """Forget all pushes of the clock."""
        self.total, self.maxima, self.samples, self.splits = None, None, 0, []


class PartitionStore:
    """Arrays of the keys [start, stop) of a job.

    Parameters
    ----------
    runtime : Runtime
    partition : int
    values : ndarray, shape (p,), float32, or None
        Initial parameters; None if :meth:`install` sets them.
    empty : callable
        Returns memory for a number of float32; results of reads, and under dense BSP the parameters, are stored in it.
    empty_after : callable, optional
        Returns memory for the parameters after a clock, if that differs.
    """

    def __init__(
        self,
        runtime: Runtime,
        partition: int,
        values: np.ndarray | None,
        empty: Callable[[int], np.ndarray] = _empty,
        empty_after: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self.start, self.stop = runtime.ranges[partition]
        length = self.stop - self.start
        settings, optimizer, grid = runtime.settings, runtime.optimizer, runtime.grid
        if values is not None and values.shape != (length,):
            raise ProtocolError(f"partition {partition} starts with {values.shape} values; it has {length} keys")
        kernels.use_for(runtime.key_space.num_keys)
        if settings.bsp:
            prepare(optimizer, grid.dtype if settings.reproducible else np.dtype(np.float32))
        self.partition = partition
        self._runtime = runtime
        #: Copied here because every request needs it.
        self._bsp = settings.bsp
        self._idle_changes_nothing = optimizer.idle_step_changes_nothing()
        self._takes_sum = optimizer.takes_sum
        self.clock = settings.first_clock
        self.exponents = grid.initial_exponents(length) if settings.reproducible else np.empty(0, np.int16)
        self._previous_exponents = self.exponents
        #: How often each split was added to the parameters, for the ledger; counted where it happens.
        self.applications = np.zeros(settings.num_splits, np.int64)
        self._pushes = ClockPushes(grid if settings.reproducible else None, self.start, length)
        mine = empty(0 if values is None else length)
        if values is not None:
            np.copyto(mine, values)
        penalised = runtime.key_space.penalised_mask(self.start, self.stop)
        slots = list(optimizer.initial_slots(mine, penalised))
        self._parameters: AllKeys | HotKeys
        if runtime.sparse and settings.bsp:
            # Clocks that each key has had; None if a zero gradient changes nothing.
            last = None if self._idle_changes_nothing else np.zeros(len(mine), np.int32)
            self._parameters = HotKeys(
                optimizer, grid.block_keys, self.start, mine, slots, last, penalised, max(0, self.clock), empty
            )
        else:
            self._parameters = AllKeys(optimizer, self.start, mine, slots, penalised, self._bsp, empty, empty_after)

    # ---- BSP: one step for each clock

    def accumulate(self, push: PushPart, first_of_clock: bool, is_last: bool = False) -> None:
        """Add a push to the clock's sum; :func:`eps.server.checks.check_pushes` must have accepted it.

        Parameters
        ----------
        push : PushPart
        first_of_clock : bool
        is_last : bool
            Whether the step comes next.  The push's arrays must not change until then; they may be added only then.
        """
        if first_of_clock:
            self._parameters.begin_clock()
            # A sum may be left from before the partition went to another owner; all of it is pushed again.
            self._pushes.forget()
        if self.clock < 0:
            # The clock before the first only measures the maxima that set the first grid.
            self._pushes.measure(push.maxima)
            return
        table, positions = self._parameters.contribute(push.keyset, push.keys)
        self._pushes.add(push, self.exponents, table, positions, is_last)

    @overload
    def step(self, clock: int, keep_gradient: Literal[True] = True) -> UpdateData: ...

    @overload
    def step(self, clock: int, keep_gradient: bool) -> UpdateData | None: ...

    def step(self, clock: int, keep_gradient: bool = True) -> UpdateData | None:
        """Close the clock: one optimizer step with the mean gradient; the previous version stays readable.

        Parameters
        ----------
        clock : int
        keep_gradient : bool
            Whether a follower needs the step.

        Returns
        -------
        UpdateData, or None if no follower needs it
        """
        assert clock == self.clock, (clock, self.clock)
        pushes, parameters = self._pushes, self._parameters
        if clock < 0:
            assert pushes.maxima is not None
            exponents = next_exponents(self.exponents, pushes.maxima, clock)
            pushes.close()
            self._measure(exponents, clock)
            return UpdateData(np.empty(0, np.float32), None, exponents, 1.0)
        closed, samples = pushes.total, 1 if self._takes_sum else max(1, pushes.samples)
        assert closed is not None
        exponents = closed.next_exponents(clock) if isinstance(closed, ClockSum) else self.exponents
        gradient = parameters.step(pushes.over(parameters.settle()), samples, clock, keep_gradient)
        self._count(pushes.splits)
        pushes.close()
        self._measure(exponents, clock)
        return None if gradient is None else UpdateData(gradient, parameters.places, exponents, 1.0)

    def _measure(self, exponents: np.ndarray, clock: int) -> None:
        self._previous_exponents, self.exponents, self.clock = self.exponents, exponents, clock + 1

    def _count(self, splits: Sequence[int]) -> None:
        # For a few splits, add.at costs more than the additions.
        if len(splits) > _FEW_SPLITS:
            # NumPy takes a tuple for an index of as many dimensions.
            np.add.at(self.applications, np.asarray(splits, np.intp), 1)
            return
        for split in splits:
            self.applications[split] += 1

    # ---- SSP and ASP: one step for each push

    def apply_push(self, push: PushPart, clock: int) -> UpdateData:
        """Apply a push as it arrives, scaled by its share of the clock's samples."""
        assert isinstance(self._parameters, AllKeys)
        share = push.samples / max(1, self._runtime.samples_per_clock)
        gradient, keys = push.total, None if push.keys is None else push.keys - self.start
        if keys is not None and not self._idle_changes_nothing:
            dense = np.zeros(self.stop - self.start, np.float32)
            dense[keys] = gradient
            gradient, keys = dense, None
        mean = (gradient / np.float32(max(1, push.samples))).astype(np.float32)
        update = UpdateData(mean, keys, np.empty(0, np.int16), share)
        self._parameters.step_in_place(update, clock)
        self._count(push.splits)
        return update

    # ---- followers

    def apply_update(self, update: UpdateData, clock: int, splits: Sequence[int]) -> None:
        """Apply a step of the owner; the bits are the owner's."""
        if not self._bsp:
            assert isinstance(self._parameters, AllKeys)
            self._parameters.step_in_place(update, clock)
        else:
            if clock >= 0:
                self._parameters.follow(update.gradient, update.keys, clock)
            self._measure(update.exponents.copy(), clock)
            if clock < 0:
                return
        self._count(splits)

    def snapshot(self) -> tuple[tuple[np.ndarray, ...], int]:
        """Return (arrays, size_bytes): the partition in an opaque form that never changes later."""
        values, last, slots = self._parameters.arrays()
        state = np.array([self.clock], np.int64)
        arrays = (state, values, self.exponents, self.applications.copy(), last, *slots)
        return arrays, sum(a.nbytes for a in arrays)

    def install(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the state from the arrays of :meth:`snapshot`.

        Parameters
        ----------
        arrays : sequence of ndarray
            Writable.  They belong to the store from now on: large arrays are not copied.

        Raises
        ------
        TransferError
            The arrays do not fit this partition.
        """
        num_slots = len(self._parameters.slots)
        if len(arrays) != 5 + num_slots:
            raise TransferError(f"partition {self.partition} came as {len(arrays)} arrays; expected {5 + num_slots}")
        state, values, exponents, applications, last, *slots = arrays
        size = self.stop - self.start
        expected = [(size, np.float32), (len(self.exponents), np.int16), (len(self.applications), np.int64)]
        expected += [(size, np.float32)] * num_slots + [(1, np.int64)]
        for (length, dtype), theirs in zip(expected, [values, exponents, applications, *slots, state], strict=True):
            if theirs.shape != (length,) or theirs.dtype != dtype:
                due = f"{np.dtype(dtype)}({length},)"
                raise TransferError(
                    f"partition {self.partition} has an array {theirs.dtype}{theirs.shape}; expected {due}"
                )
        if self._parameters.last is not None and (last.shape != (size,) or last.dtype != np.int32):
            found = f"{last.dtype}{last.shape}"
            raise TransferError(f"partition {self.partition} has clocks {found}; expected int32({size},)")
        self.clock = int(state[0])
        # Small arrays may share memory with others, so they are copied.
        self.exponents = self._previous_exponents = exponents.copy()
        self.applications = applications.copy()
        self._parameters.install(values, slots, last, max(0, self.clock))

    # ---- reading

    def pull(self, clock: int, part: PullPart) -> tuple[np.ndarray, np.ndarray]:
        """Return (values, exponents) of ``clock``, in arrays that never change later.

        Parameters
        ----------
        clock : int
            Under BSP the current clock or the one before; ignored under SSP and ASP.
        part : PullPart
            Its keys must be filled in if it has a key set; None means every key of the partition.

        Raises
        ------
        ProtocolError
            The version is no longer kept.
        """
        previous = self._bsp and clock != self.clock
        exponents = self._previous_exponents if previous else self.exponents
        # Clock -1 changes no parameter, so its version is that of clock 0.
        unchanged = clock == -1 and self.clock == 0
        if previous and not unchanged and (clock < 0 or not self._parameters.has_previous):
            raise ProtocolError(f"partition {self.partition} no longer keeps its parameters of clock {clock}")
        return self._parameters.read(part.keyset, part.keys, previous and not unchanged), exponents

    def export(self) -> np.ndarray:
        """Return every value brought up to date, shape (p,), float32."""
        return self._parameters.export()

    def ledger(self) -> tuple[int, int, int]:
        """Return (applied, lost, applied_twice) in units of (clock, split) of this partition."""
        iterations = self._runtime.settings.iterations
        applied = int(self.applications.sum())
        lost = int(np.maximum(0, iterations - self.applications).sum())
        twice = int(np.maximum(0, self.applications - iterations).sum())
        return applied, lost, twice
