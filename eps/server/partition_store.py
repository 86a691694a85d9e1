"""The arrays of one partition: parameters, optimizer slots, the clock's sum, the version before.

Not thread-safe; the server's lock guards it.  Decides nothing: what to do, and whether, is ``eps.core.server_state``'s.

Memory: parameters, slots, and either the clock's sum or the version before, never both: the first contribution of a
clock proves that every partition completed the clock before (its sender pulled all of them), so that nobody can need
the version before any more.

Source: EPS §2.2 Fig. 1c (steps of a server); design section 5; reproducible.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eps.errors import ProtocolError, TransferError
from eps.ml import lazy
from eps.ml.grid import ClockSum, next_exponents
from eps.rpc.exchange import PushPart
from eps.runtime import Runtime

#: Unions of key sets that are remembered; they are the same clock after clock while nobody comes or goes.
MOST_UNIONS = 16


@dataclass(frozen=True, slots=True, eq=False)
class UpdateData:
    """A step as it was applied: what a follower needs to apply the same."""

    gradient: np.ndarray
    #: Positions in the partition, ascending, int64; None: every key.
    keys: np.ndarray | None
    #: The grid's exponents after it, int16 by block; empty under SSP and ASP.
    exponents: np.ndarray
    rate_scale: float


class PartitionStore:
    """Arrays of the keys [start, stop) of a job.

    Parameters
    ----------
    runtime : Runtime
    partition : int
    values : ndarray, shape (p,), float32
        The start of the parameters.
    """

    def __init__(self, runtime: Runtime, partition: int, values: np.ndarray) -> None:
        self.start, self.stop = runtime.ranges[partition]
        settings = runtime.settings
        if values.shape != (self.stop - self.start,):
            raise ProtocolError(
                f"partition {partition} starts with {values.shape} values; it has {self.stop - self.start} keys"
            )
        self.partition = partition
        self._runtime = runtime
        self._settings = settings
        self._optimizer = runtime.optimizer
        self._penalised = runtime.key_space.penalised_mask(self.start, self.stop)
        self.values = np.array(values, dtype=np.float32)
        self.slots = list(self._optimizer.initial_slots(self.values, self._penalised))
        no_exponents = np.empty(0, np.int16)
        self.exponents = runtime.grid.initial_exponents(len(values)) if settings.reproducible else no_exponents
        self.clock = settings.first_clock
        #: How often each split was added to the parameters; counted where it happens, for the ledger.
        self.applications = np.zeros(settings.num_splits, np.int64)
        lazily = runtime.sparse and settings.bsp and not self._optimizer.idle_step_changes_nothing()
        #: Clocks applied to each key; None where a zero gradient changes nothing or every key is stepped.
        self.last: np.ndarray | None = np.zeros(len(values), np.int32) if lazily else None
        self._previous: np.ndarray | None = None
        self._previous_keys: np.ndarray | None = None
        self._previous_exponents = self.exponents
        self._sum: ClockSum | None = None
        self._maxima: np.ndarray | None = None
        self._samples = 0
        self._contributed: list[int] = []
        self._touched: list[PushPart] = []
        self._unions: dict[tuple[bytes, ...], np.ndarray] = {}

    # ---- BSP: one step for each clock

    def accumulate(self, push: PushPart, first_of_clock: bool) -> None:
        """Add a push, which :func:`eps.server.checks.check_push` has passed, to the clock's sum."""
        if first_of_clock:
            self._previous = self._previous_keys = None
        if self.clock < 0:
            # The clock before the first only measures maxima, which set the first grid.
            self._maxima = push.maxima if self._maxima is None else np.maximum(self._maxima, push.maxima)
            return
        if self._sum is None:
            self._sum = ClockSum(self._runtime.grid, self.exponents, self.start, len(self.values))
        self._sum.add(push.total, push.maxima, push.raw, push.keys)
        self._samples += push.samples
        self._contributed.extend(push.splits)
        self._touched.append(push)

    def step(self, clock: int) -> UpdateData:
        """Close the clock: one optimizer step with the mean gradient; the version before stays readable."""
        assert clock == self.clock, (clock, self.clock)
        if clock < 0:
            assert self._maxima is not None
            update = UpdateData(np.empty(0, np.float32), None, next_exponents(self.exponents, self._maxima, clock), 1.0)
            self._maxima = None
            self._measure(update, clock)
            return update
        closed = self._sum
        assert closed is not None
        keys = self._union()
        gradient = (closed.total(keys) / max(1, self._samples)).astype(np.float32)
        positions = None if keys is None else keys - self.start
        update = UpdateData(gradient, positions, closed.next_exponents(clock), 1.0)
        contributed = self._contributed
        self._sum, self._samples, self._contributed, self._touched = None, 0, [], []
        self._apply_step(update, clock)
        np.add.at(self.applications, contributed, 1)
        return update

    def _measure(self, update: UpdateData, clock: int) -> None:
        self._previous_exponents, self.exponents, self.clock = self.exponents, update.exponents, clock + 1

    def _union(self) -> np.ndarray | None:
        """Return the global keys touched at this clock, or None for all of them."""
        if any(push.keys is None for push in self._touched):
            return None
        sets = {push.keyset: push.keys for push in self._touched if push.keys is not None}
        name = tuple(sorted(sets))
        if name not in self._unions:
            if len(self._unions) >= MOST_UNIONS:
                self._unions.clear()
            self._unions[name] = np.unique(np.concatenate(list(sets.values())))
        return self._unions[name]

    def _apply_step(self, update: UpdateData, clock: int) -> None:
        """Apply a step out of place (dense) or keep what it overwrites (sparse)."""
        if update.keys is None:
            # Readers may still send the old array, so it is replaced, never changed.
            self._previous, self._previous_keys = self.values, None
            values = self.values.copy()
            self._optimizer.step(values, self.slots, update.gradient, clock, self._penalised)
            self.values = values
        else:
            self._previous = self._read(update.keys, clock)
            self._previous_keys = update.keys
            if self.last is not None:
                lazy.step_lazy(
                    self._optimizer,
                    self.values,
                    self.slots,
                    self.last,
                    update.keys,
                    update.gradient,
                    clock,
                    self._penalised,
                )
            else:
                self._step_keys(update, clock)
        self._previous_exponents, self.exponents = self.exponents, update.exponents
        self.clock = clock + 1

    def _step_keys(self, update: UpdateData, clock: int) -> None:
        keys = update.keys
        values, slots = self.values[keys], [slot[keys] for slot in self.slots]
        penalised = None if self._penalised is None else self._penalised[keys]
        self._optimizer.step(values, slots, update.gradient, clock, penalised, update.rate_scale)
        self.values[keys] = values
        for slot, changed in zip(self.slots, slots, strict=True):
            slot[keys] = changed

    # ---- SSP and ASP: one step for each push

    def apply_push(self, push: PushPart, clock: int) -> UpdateData:
        """Apply a push as it arrives, scaled by its share of the clock's samples."""
        share = push.samples / max(1, self._runtime.samples_per_clock)
        gradient, keys = push.total, None if push.keys is None else push.keys - self.start
        if keys is not None and not self._optimizer.idle_step_changes_nothing():
            dense = np.zeros(len(self.values), np.float32)
            dense[keys] = gradient
            gradient, keys = dense, None
        mean = (gradient / np.float32(max(1, push.samples))).astype(np.float32)
        update = UpdateData(mean, keys, np.empty(0, np.int16), share)
        self._apply_now(update, clock)
        np.add.at(self.applications, list(push.splits), 1)
        return update

    def _apply_now(self, update: UpdateData, clock: int) -> None:
        if update.rate_scale <= 0.0:
            return
        if update.keys is None:
            self._optimizer.step(self.values, self.slots, update.gradient, clock, self._penalised, update.rate_scale)
        else:
            self._step_keys(update, clock)

    # ---- followers

    def apply_update(self, update: UpdateData, clock: int, splits: Sequence[int]) -> None:
        """Apply what the owner applied; the bits are the owner's."""
        if not self._settings.bsp:
            self._apply_now(update, clock)
        elif clock < 0:
            self._measure(update, clock)
            return
        else:
            self._apply_step(update, clock)
        np.add.at(self.applications, list(splits), 1)

    def snapshot(self) -> tuple[tuple[np.ndarray, ...], int]:
        """Return (arrays, size_bytes): the partition as an opaque blob that nobody changes later."""
        last = self.last if self.last is not None else np.empty(0, np.int32)
        state = np.array([self.clock], np.int64)
        # Under BSP a dense step replaces the parameters; everything else is changed in place.
        replaced = self._settings.bsp and not self._runtime.sparse
        values = self.values if replaced else self.values.copy()
        arrays = (state, values, self.exponents, self.applications.copy(), last.copy(), *(s.copy() for s in self.slots))
        return arrays, sum(a.nbytes for a in arrays)

    def install(self, arrays: Sequence[np.ndarray]) -> None:
        """Become what ``arrays`` (of :meth:`snapshot`) describe.

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
        expected: list[np.ndarray] = [self.values, self.exponents, self.applications, *self.slots]
        found: list[np.ndarray] = [values, exponents, applications, *slots]
        for mine, theirs in zip(expected, found, strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                raise TransferError(
                    f"partition {self.partition}: {theirs.dtype}{theirs.shape} where {mine.dtype}{mine.shape} is due"
                )
        self.clock = int(state[0])
        self.values, self.exponents, self.applications = values, exponents, applications
        self._previous_exponents = exponents
        self.slots = list(slots)
        if self.last is not None:
            self.last = last

    # ---- reading

    def read(self, clock: int, keys: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return (values, exponents) of ``clock``; arrays that nobody changes later.

        Parameters
        ----------
        clock : int
            Under BSP the current clock or the one before; ignored under SSP and ASP.
        keys : ndarray of int64, ascending, or None for all
            Positions in the partition.
        """
        if not self._settings.bsp:
            values = self.values.copy() if keys is None else self.values[keys]
            return values, self.exponents
        if clock == self.clock:
            if keys is None and not self._runtime.sparse:
                return self.values, self.exponents
            return self._read(keys, clock), self.exponents
        return self._read_previous(clock, keys), self._previous_exponents

    def _read(self, keys: np.ndarray | None, clock: int) -> np.ndarray:
        if keys is None:
            keys = np.arange(len(self.values), dtype=np.int64)
        if self.last is None:
            found: np.ndarray = self.values[keys]
            return found
        return lazy.peek(self._optimizer, self.values, self.slots, self.last, keys, clock, self._penalised)

    def _read_previous(self, clock: int, keys: np.ndarray | None) -> np.ndarray:
        if clock < 0 or self._previous is None:
            # Clock -1 changes no parameter: its version is that of clock 0.
            if clock == -1 and self.clock == 0:
                return self._read(keys, 0)
            raise ProtocolError(f"partition {self.partition} does not keep its parameters of clock {clock} any more")
        if self._previous_keys is None:
            return self._previous if keys is None else self._previous[keys]
        if keys is None:
            keys = np.arange(len(self.values), dtype=np.int64)
        where = np.searchsorted(self._previous_keys, keys)
        where[where == len(self._previous_keys)] = 0
        stepped = self._previous_keys[where] == keys if len(self._previous_keys) else np.zeros(len(keys), bool)
        found = np.empty(len(keys), np.float32)
        found[stepped] = self._previous[where[stepped]]
        found[~stepped] = self._read(keys[~stepped], clock)
        return found

    def export(self) -> np.ndarray:
        """Return every value brought up to date, shape (p,), float32."""
        return self._read(None, self.clock) if self.last is not None else self.values.copy()

    def ledger(self) -> tuple[int, int, int]:
        """Return (applied, lost, applied_twice) in units of (clock, split) of this partition."""
        iterations = self._settings.iterations
        applied = int(self.applications.sum())
        lost = int(np.maximum(0, iterations - self.applications).sum())
        twice = int(np.maximum(0, self.applications - iterations).sum())
        return applied, lost, twice


def checksum_of(arrays: Sequence[np.ndarray]) -> str:
    """Return the CRC-32 over the bytes of ``arrays``, in order, as eight hexadecimal digits."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data if array.nbytes else b"", crc)
    return f"{crc:08x}"
