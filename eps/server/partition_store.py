"""The arrays of one partition: parameters, optimizer slots, the clock's sum, the version before.

Not thread-safe; the server's lock guards it.  Decides nothing: what to do, and whether, is ``eps.core.server_state``'s.
Nothing that it is given is kept, but for the arrays of :meth:`PartitionStore.install`: requests lend their arrays until
they are answered.

Memory: parameters, slots, the memory of the clock's sum, and the version before, which goes when the next clock
begins: the first contribution of a clock proves that every partition completed the clock before (its sender pulled all
of them), so that no worker needs the version before any more.  A step goes over them once, in parts that fit into the
cache.

Source: EPS §2.2 Fig. 1c (steps of a server); design section 5; reproducible.md; performance.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np

from eps.errors import ProtocolError, TransferError
from eps.ml import kernels
from eps.ml import steps as lazy
from eps.ml.grid import Blocks, next_exponents
from eps.ml.steps import Formed, Summed, prepare, step_out_of_place
from eps.ml.sums import ClockSum, PlainClockSum
from eps.net.messages.exchange import PullPart, PushPart
from eps.server.hot_keys import HotKeys
from eps.spec.runtime import Runtime


@dataclass(frozen=True, slots=True, eq=False)
class UpdateData:
    """A step as it was applied: what a follower needs to apply the same."""

    gradient: np.ndarray
    #: Positions in the partition, ascending, int64; None: every key.
    keys: np.ndarray | None
    #: The grid's exponents after it, int16 by block; empty where sums are not reproducible.
    exponents: np.ndarray
    rate_scale: float


#: Below this many they are counted one by one.
_FEW_SPLITS = 16


def _empty(length: int) -> np.ndarray:
    return np.empty(length, np.float32)


class PartitionStore:
    """Arrays of the keys [start, stop) of a job.

    Parameters
    ----------
    runtime : Runtime
    partition : int
    values : ndarray, shape (p,), float32
        The start of the parameters.
    empty : callable
        Returns memory for so many float32; what is read, and under dense BSP the parameters, lie in it.
    empty_after : callable, optional
        Returns memory for the parameters after a clock, where that is to be another.
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
        settings = runtime.settings
        if values is None:
            values = np.empty(0, np.float32)
        elif values.shape != (self.stop - self.start,):
            raise ProtocolError(
                f"partition {partition} starts with {values.shape} values; it has {self.stop - self.start} keys"
            )
        kernels.use_for(runtime.key_space.num_keys)
        if settings.bsp:
            prepare(runtime.optimizer, runtime.grid.dtype if settings.reproducible else np.dtype(np.float32))
        self.partition = partition
        self._runtime = runtime
        self._settings = settings
        #: Asked for with every request.
        self._bsp, self._reproducible = settings.bsp, settings.reproducible
        self._idle_changes_nothing = runtime.optimizer.idle_step_changes_nothing()
        self._empty = empty
        self._empty_after = empty_after
        self._optimizer = runtime.optimizer
        self._penalised = runtime.key_space.penalised_mask(self.start, self.stop)
        self.values = self._own(values)
        self.slots = list(self._optimizer.initial_slots(self.values, self._penalised))
        self.exponents = np.empty(0, np.int16)
        if settings.reproducible:
            self.exponents = runtime.grid.initial_exponents(self.stop - self.start)
        self.clock = settings.first_clock
        #: Counts the changes of the values, from 1; a follower's may be ahead of its owner's, never behind.
        self.version = self._previous_version = 1
        #: How often each split was added to the parameters; counted where it happens, for the ledger.
        self.applications = np.zeros(settings.num_splits, np.int64)
        lazily = runtime.sparse and settings.bsp and not self._optimizer.idle_step_changes_nothing()
        #: Clocks applied to each key; None where a zero gradient changes nothing or every key is stepped.
        self.last: np.ndarray | None = np.zeros(len(values), np.int32) if lazily else None
        self._hot = self._make_hot()
        self._previous: np.ndarray | None = None
        self._previous_exponents = self.exponents
        self._sum: ClockSum | PlainClockSum | None = None
        self._sum_memory: np.ndarray | None = None
        self._blocks: Blocks | None = None
        self._maxima: np.ndarray | None = None
        self._samples = 0
        self._contributed: list[int] = []
        #: Key sets that contributed to the clock: those in the table, and the keys of the others.
        self._known: set[bytes] = set()
        self._unknown: dict[bytes, np.ndarray | None] = {}

    def _own(self, values: np.ndarray) -> np.ndarray:
        mine = self._empty(len(values))
        np.copyto(mine, values)
        return mine

    def _make_hot(self) -> HotKeys | None:
        """Return the table of the keys that are pushed, where only some of them are."""
        if not (self._runtime.sparse and self._settings.bsp):
            return None
        return HotKeys(
            self._optimizer,
            self._runtime.grid.block_keys,
            self.start,
            self.values,
            self.slots,
            self.last,
            self._penalised,
            max(0, self.clock),
        )

    # ---- BSP: one step for each clock

    def accumulate(self, push: PushPart, first_of_clock: bool, is_last: bool = False) -> None:
        """Add a push, which :func:`eps.server.checks.check_pushes` has passed, to the clock's sum.

        Parameters
        ----------
        push : PushPart
        first_of_clock : bool
        is_last : bool
            The step comes next; until then the push's arrays stay as they are, and may be added no sooner.
        """
        if first_of_clock:
            self._previous = None
            if self._hot is not None:
                self._hot.drop_previous()
            # A sum that was begun when the partition went to another owner; all of it is pushed again.
            self._forget_sum()
        if self.clock < 0:
            # The clock before the first only measures maxima, which set the first grid.
            self._maxima = push.maxima.copy() if self._maxima is None else np.maximum(self._maxima, push.maxima)
            return
        positions = None
        if self._hot is not None:
            known, positions = self._hot.find(push.keyset, push.keys, keep=True)
            if known:
                self._known.add(push.keyset)
            else:
                if push.keyset not in self._unknown:
                    self._unknown[push.keyset] = None if push.keys is None else push.keys.copy()
                if self._sum is not None and self._sum.keys is not None:
                    self._sum = self._sum.over(None)
            if self._unknown:
                positions = None
        if self._sum is None:
            self._sum = self._new_sum()
        if isinstance(self._sum, ClockSum):
            self._sum.add(push.total, push.maxima, push.raw, push.keys, positions, is_last)
        else:
            self._sum.add(push.total, push.keys, positions, is_last)
        self._samples += push.samples
        self._contributed.extend(push.splits)

    def _forget_sum(self) -> None:
        self._sum, self._maxima, self._samples, self._contributed = None, None, 0, []
        self._known, self._unknown = set(), {}

    def _new_sum(self) -> ClockSum | PlainClockSum:
        """Return an empty sum: over the table, or over the partition where there is none or a key set is not in it."""
        length, hot = len(self.values), self._hot
        keys, memory, blocks = None, self._sum_memory, self._blocks
        if hot is not None and not self._unknown:
            keys, memory, blocks = hot.keys, hot.sum_memory, hot.blocks
        elif blocks is None and self._reproducible:
            blocks = self._blocks = Blocks(self._runtime.grid.block_keys, self.start, length, None)
        if self._reproducible:
            return ClockSum(self._runtime.grid, self.exponents, self.start, length, keys, memory, blocks)
        return PlainClockSum(self.start, length, keys, memory)

    @overload
    def step(self, clock: int, keep_gradient: Literal[True] = True) -> UpdateData: ...

    @overload
    def step(self, clock: int, keep_gradient: bool) -> UpdateData | None: ...

    def step(self, clock: int, keep_gradient: bool = True) -> UpdateData | None:
        """Close the clock: one optimizer step with the mean gradient; the version before stays readable.

        Parameters
        ----------
        clock : int
        keep_gradient : bool
            Whether a follower needs the step.

        Returns
        -------
        UpdateData, or None if it is not to be kept
        """
        assert clock == self.clock, (clock, self.clock)
        if clock < 0:
            assert self._maxima is not None
            update = UpdateData(np.empty(0, np.float32), None, next_exponents(self.exponents, self._maxima, clock), 1.0)
            self._maxima = None
            self._measure(update.exponents, clock)
            return update
        closed, samples = self._sum, max(1, self._samples)
        assert closed is not None
        exponents = closed.next_exponents(clock) if isinstance(closed, ClockSum) else self.exponents
        places = None
        self._previous_version = self.version
        if not keep_gradient and self._changes_nothing(closed):
            gradient = None
            self._keep_values()
            self._sum_memory = None if self._hot is not None else closed.memory
        elif self._hot is not None:
            self.version += 1
            closed = self._over_table(self._hot, closed)
            gradient = self._hot.step(closed, samples, keep_gradient)
            self._hot.sum_memory, places = closed.memory, self._hot.places
        else:
            self.version += 1
            gradient = self._step_dense(closed, samples, clock, keep_gradient)
            self._sum_memory = closed.memory
        self._count(self._contributed)
        self._forget_sum()
        self._measure(exponents, clock)
        return None if gradient is None else UpdateData(gradient, places, exponents, 1.0)

    def _changes_nothing(self, closed: ClockSum | PlainClockSum) -> bool:
        """Return whether the step of a clock leaves every value as it is."""
        if not self._idle_changes_nothing or (isinstance(closed, ClockSum) and closed.raw):
            return False
        return closed.is_zero()

    def _keep_values(self) -> None:
        """Close a clock that changes nothing: its version is the one before."""
        if self._hot is not None:
            self._hot.keep_values()
        else:
            self._previous = self.values

    def _measure(self, exponents: np.ndarray, clock: int) -> None:
        self._previous_exponents, self.exponents, self.clock = self.exponents, exponents, clock + 1
        if self._hot is not None:
            self._hot.clock = self.clock

    def _over_table(self, hot: HotKeys, closed: ClockSum | PlainClockSum) -> ClockSum | PlainClockSum:
        """Make the table what this clock touched; return the sum over it."""
        if not self._unknown and hot.names == self._known:
            return closed
        hot.rebuild({**{name: hot.keys_of(name) for name in self._known}, **self._unknown})
        if closed.keys is hot.keys:
            return closed
        if isinstance(closed, ClockSum):
            return closed.over(hot.keys, None, hot.blocks)
        return closed.over(hot.keys)

    def _step_dense(self, closed: Summed, samples: int, clock: int, keep_gradient: bool) -> np.ndarray | None:
        # Readers may still send the old array, so it is replaced, never changed.
        values = self._empty(len(self.values)) if self._empty_after is None else self._empty_after(clock)
        # It travels to a follower, from where it lies.
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

    def _count(self, splits: Sequence[int]) -> None:
        # For a few splits, add.at costs more than the additions.
        if len(splits) > _FEW_SPLITS:
            # A tuple would be an index of as many dimensions.
            np.add.at(self.applications, np.asarray(splits, np.intp), 1)
            return
        for split in splits:
            self.applications[split] += 1

    # ---- SSP and ASP: one step for each push

    def apply_push(self, push: PushPart, clock: int) -> UpdateData:
        """Apply a push as it arrives, scaled by its share of the clock's samples."""
        share = push.samples / max(1, self._runtime.samples_per_clock)
        gradient, keys = push.total, None if push.keys is None else push.keys - self.start
        if keys is not None and not self._idle_changes_nothing:
            dense = np.zeros(len(self.values), np.float32)
            dense[keys] = gradient
            gradient, keys = dense, None
        mean = (gradient / np.float32(max(1, push.samples))).astype(np.float32)
        update = UpdateData(mean, keys, np.empty(0, np.int16), share)
        self._apply_now(update, clock)
        self.version += 1
        self._count(push.splits)
        return update

    def _apply_now(self, update: UpdateData, clock: int) -> None:
        if update.rate_scale <= 0.0:
            return
        keys = update.keys
        if keys is None:
            self._optimizer.step(self.values, self.slots, update.gradient, clock, self._penalised, update.rate_scale)
            return
        values, slots = self.values[keys], [slot[keys] for slot in self.slots]
        penalised = None if self._penalised is None else self._penalised[keys]
        self._optimizer.step(values, slots, update.gradient, clock, penalised, update.rate_scale)
        self.values[keys] = values
        for slot, changed in zip(self.slots, slots, strict=True):
            slot[keys] = changed

    # ---- followers

    def apply_update(self, update: UpdateData, clock: int, splits: Sequence[int]) -> None:
        """Apply what the owner applied; the bits are the owner's."""
        self._previous_version = self.version
        self.version += 1
        if not self._bsp:
            self._apply_now(update, clock)
        else:
            if clock >= 0 and self._hot is not None:
                self._hot.set_places(update.keys)
                self._hot.step(Formed(update.gradient), 1, keep_gradient=False)
            elif clock >= 0:
                self._step_dense(Formed(update.gradient), 1, clock, keep_gradient=False)
            self._measure(update.exponents.copy(), clock)
            if clock < 0:
                return
        self._count(splits)

    def snapshot(self) -> tuple[tuple[np.ndarray, ...], int]:
        """Return (arrays, size_bytes): the partition as an opaque blob that is never changed later."""
        self._write_back()
        last = self.last if self.last is not None else np.empty(0, np.int32)
        state = np.array([self.clock, self.version], np.int64)
        # Under BSP a dense step replaces the parameters; everything else is changed in place.
        replaced = self._settings.bsp and not self._runtime.sparse
        values = self.values if replaced else self.values.copy()
        arrays = (state, values, self.exponents, self.applications.copy(), last.copy(), *(s.copy() for s in self.slots))
        return arrays, sum(a.nbytes for a in arrays)

    def install(self, arrays: Sequence[np.ndarray]) -> None:
        """Become what ``arrays`` (of :meth:`snapshot`) describe.

        Parameters
        ----------
        arrays : sequence of ndarray
            Writable, and the store's from now on: of the size of a partition, they are not copied again.

        Raises
        ------
        TransferError
            They are not the arrays of this partition.
        """
        if len(arrays) != 5 + len(self.slots):
            raise TransferError(
                f"partition {self.partition} came as {len(arrays)} arrays; expected {5 + len(self.slots)}"
            )
        state, values, exponents, applications, last, *slots = arrays
        size = self.stop - self.start
        expected = [(size, np.float32), (len(self.exponents), np.int16), (len(self.applications), np.int64)]
        expected += [(size, np.float32)] * len(slots) + [(2, np.int64)]
        for (length, dtype), theirs in zip(expected, [values, exponents, applications, *slots, state], strict=True):
            if theirs.shape != (length,) or theirs.dtype != dtype:
                due = f"{np.dtype(dtype)}({length},)"
                raise TransferError(f"partition {self.partition}: {theirs.dtype}{theirs.shape} where {due} is due")
        if self.last is not None and (last.shape != (size,) or last.dtype != np.int32):
            found = f"{last.dtype}{last.shape}"
            raise TransferError(f"partition {self.partition}: clocks {found} where int32({size},) is due")
        self.clock, self.version = int(state[0]), int(state[1])
        self._previous_version = self.version
        self.values = values
        # Those that are small may share memory with others, and are copied.
        self.exponents = self._previous_exponents = exponents.copy()
        self.applications = applications.copy()
        self.slots = slots
        if self.last is not None:
            self.last = last
        self._hot = self._make_hot()

    def _write_back(self) -> None:
        if self._hot is not None:
            self._hot.write_back()
            self.values = self._hot.values

    # ---- reading

    def pull(self, clock: int, part: PullPart) -> tuple[np.ndarray, np.ndarray]:
        """Return (values, exponents) of ``clock``; arrays that are never changed later.

        Parameters
        ----------
        clock : int
            Under BSP the current clock or the one before; ignored under SSP and ASP.
        part : PullPart
            With its keys filled in, where it has a key set; None is every key of the partition.

        Raises
        ------
        ProtocolError
            The version is not kept any more.
        """
        keys = part.keys
        previous = self._bsp and clock != self.clock
        exponents = self._previous_exponents if previous else self.exponents
        # Clock -1 changes no parameter: its version is that of clock 0.
        unchanged = clock == -1 and self.clock == 0
        if previous and not unchanged and (clock < 0 or not self._has_previous()):
            raise ProtocolError(f"partition {self.partition} does not keep its parameters of clock {clock} any more")
        previous = previous and not unchanged
        if self._hot is not None:
            out = self._empty(len(self.values) if keys is None else len(keys))
            self._hot.read(part.keyset, keys, out, previous)
            return out, exponents
        source = self._previous if previous else self.values
        assert source is not None
        if keys is None and self._bsp:
            return source, exponents
        if keys is None:
            return self._own(source), exponents
        out = self._empty(len(keys))
        kernels.take(source, keys, self.start, out)
        return out, exponents

    def version_at(self, clock: int) -> int:
        """Return the version of the values that :meth:`pull` returns for ``clock``."""
        return self._previous_version if self._bsp and clock != self.clock else self.version

    def exponents_at(self, clock: int) -> np.ndarray:
        """Return the exponents that :meth:`pull` returns for ``clock``."""
        return self._previous_exponents if self._bsp and clock != self.clock else self.exponents

    def _has_previous(self) -> bool:
        return self._previous is not None if self._hot is None else self._hot.has_previous

    def export(self) -> np.ndarray:
        """Return every value brought up to date, shape (p,), float32."""
        self._write_back()
        if self.last is None:
            return self.values.copy()
        return lazy.peek(self._optimizer, self.values, self.slots, self.last, None, max(0, self.clock), self._penalised)

    def ledger(self) -> tuple[int, int, int]:
        """Return (applied, lost, applied_twice) in units of (clock, split) of this partition."""
        iterations = self._settings.iterations
        applied = int(self.applications.sum())
        lost = int(np.maximum(0, iterations - self.applications).sum())
        twice = int(np.maximum(0, self.applications - iterations).sum())
        return applied, lost, twice
