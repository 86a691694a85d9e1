"""The keys that the workers of a sparse job push clock after clock, in a compact table.

While the same key sets contribute, their union is known.  The table holds parameters, slots and sum of the union side
by side, and a key set is a list of positions in it.  So a clock touches memory of the size of the union, in order.  The
step is dense and out of place, so the previous version stays readable.

A table may have more keys than a clock touches: their step with a zero gradient is, to the bit, what
:mod:`eps.ml.steps` would replay later.  Two rules keep it exact: keys are caught up to the clock before they enter, and
:meth:`HotKeys.write_back` brings the partition's arrays up to date.

Without it a clock takes 1.4 times as long with SGD and 1.9 times with Adam (32 partitions of 30,000 keys, of which each
worker touches 500; shared memory).

Not thread-safe; the server's lock guards it.

Source: performance.md section 5 ("cache each worker's key list at the server as positions in a compact table").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from eps.ml import kernels
from eps.ml import steps as lazy
from eps.ml.arrays import distinct
from eps.ml.grid import Blocks
from eps.ml.optim import Optimizer
from eps.ml.steps import Formed, Summed, step_out_of_place

#: Beyond this share of a partition's keys the table has all of them: as fast, and without a second set of arrays.
MOST_OF_A_PARTITION = 0.25
#: Partitions with at most this many keys have positions of 32 bits.
_UINT32_KEYS = 1 << 32


class Table:
    """Some or all keys of a partition, in order: their parameters, and the positions of key sets among them.

    Parameters
    ----------
    places : ndarray of int64, ascending, or None
        Positions of the keys in the partition; None means all.
    start, size : int
        First global key of the partition, and its number of keys.
    block_keys : int
    values, mask : ndarray
        Of the keys: parameters, and which of them take penalties (None: all).
    slots : list of ndarray
    """

    def __init__(
        self,
        places: np.ndarray | None,
        start: int,
        size: int,
        block_keys: int,
        values: np.ndarray,
        slots: list[np.ndarray],
        mask: np.ndarray | None,
    ) -> None:
        self.places = places
        self._start = start
        self._size = size
        #: The global keys; None means all of the partition.
        self.keys = None if places is None else places + start
        self.blocks = Blocks(block_keys, start, size, self.keys)
        self.values, self.slots, self._mask = values, slots, mask
        #: Key sets from which the table was built; empty if it was built for a follower.
        self.names: frozenset[bytes] = frozenset()
        self._positions: dict[bytes, np.ndarray] = {}
        #: The previous version, while it is kept, and memory for the next one.
        self.previous: np.ndarray | None = None
        self._spare: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def find(self, keyset: bytes, keys: np.ndarray | None, keep: bool = False) -> tuple[bool, np.ndarray | None]:
        """Return whether the table contains a key set, and the key set's positions.

        Parameters
        ----------
        keyset : bytes
            Digest of the keys; empty means all keys.
        keys : ndarray of int64, ascending, or None
            Global keys.
        keep : bool
            Whether to cache the positions under the digest.

        Returns
        -------
        bool
        ndarray of uint32 (or int64), or None
            Also None if the key set is the whole partition.
        """
        if keys is None:
            return self.places is None, None
        found = self._positions.get(keyset) if keyset else None
        if found is None:
            if self.keys is None:
                found = keys - self._start
            else:
                if len(keys):
                    if not len(self) or keys[-1] > self.keys[-1]:
                        return False, None
                    # The keys of another batch are often told apart by the first.
                    if self.keys[np.searchsorted(self.keys, keys[0])] != keys[0]:
                        return False, None
                found = np.searchsorted(self.keys, keys)
                if not np.array_equal(self.keys[found], keys):
                    return False, None
            if self._size <= _UINT32_KEYS:
                # Halves the memory that every push and pull reads.
                found = found.astype(np.uint32)
            if keep and keyset:
                self._positions[keyset] = found
        return True, found

    def knows(self, keyset: bytes) -> bool:
        """Return whether the positions of a key set are cached."""
        return keyset in self._positions

    def keys_of(self, keyset: bytes) -> np.ndarray | None:
        """Return the global keys of a cached key set; None means all."""
        if not keyset:
            return None
        found = self._positions[keyset]
        return found.astype(np.int64) + self._start if self.keys is None else self.keys[found]

    def name(self, names: frozenset[bytes]) -> None:
        """Set the key sets of the table, and forget cached positions of others."""
        self.names = names
        self._positions = {name: found for name, found in self._positions.items() if name in names}

    def step(
        self, optimizer: Optimizer, closed: Summed, samples: int, clock: int, keep_gradient: bool
    ) -> np.ndarray | None:
        """Apply the step of a clock to every key; the previous version stays readable."""
        self.drop_previous()
        before, self.previous = self.values, self.values
        after = np.empty_like(before) if self._spare is None else self._spare
        self._spare = None
        gradient = step_out_of_place(
            optimizer, closed, samples, before, after, self.slots, clock, self._mask, keep_gradient
        )
        self.values = after
        return gradient

    def drop_previous(self) -> None:
        """Free the previous version."""
        if self.previous is not None:
            self._spare, self.previous = self.previous, None


class HotKeys:
    """Parameters, slots and clocks of the keys [start, start + p) under BSP, with frequent keys in a table.

    Parameters
    ----------
    optimizer : Optimizer
    block_keys : int
    start : int
        First global key of the partition.
    values : ndarray, shape (p,), float32
        Parameters.  All given arrays belong to this object from now on.
    slots : list of ndarray, shape (p,), float32
    last : ndarray, shape (p,), int32, or None
        Clocks that each key has had; None if a step with a zero gradient changes nothing.
    penalised : ndarray, shape (p,), bool, or None
    clock : int
        Clocks that the partition has had.
    empty : callable
        Returns memory for a number of float32; results of reads are stored in it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        block_keys: int,
        start: int,
        values: np.ndarray,
        slots: list[np.ndarray],
        last: np.ndarray | None,
        penalised: np.ndarray | None,
        clock: int,
        empty: Callable[[int], np.ndarray],
    ) -> None:
        self._optimizer = optimizer
        self._block_keys = block_keys
        self._start = start
        self._penalised = penalised
        self._empty = empty
        self._reset(values, slots, last, clock)

    def _reset(self, values: np.ndarray, slots: list[np.ndarray], last: np.ndarray | None, clock: int) -> None:
        #: Arrays of the partition; up to date after :meth:`write_back`.
        self.values, self.slots, self.last = values, slots, last
        self.clock = clock
        #: Key sets that contributed to the clock: those in the table, and the others with their keys.
        self._known: set[bytes] = set()
        self._strays: dict[bytes, np.ndarray | None] = {}
        self._set_table(np.empty(0, np.int64))

    def _set_table(self, places: np.ndarray | None) -> None:
        values, slots, mask = self.values, self.slots, self._penalised
        if places is not None:
            values, slots = values[places], [slot[places] for slot in slots]
            mask = None if mask is None else mask[places]
        self.table = Table(places, self._start, len(self.values), self._block_keys, values, slots, mask)
        #: Whether the table is newer than the partition's arrays.
        self._ahead = False

    @property
    def places(self) -> np.ndarray | None:
        """Positions of the table's keys in the partition, ascending; None means all."""
        return self.table.places

    def install(self, values: np.ndarray, slots: list[np.ndarray], last: np.ndarray, clock: int) -> None:
        """Replace all arrays."""
        self._reset(values, slots, None if self.last is None else last, clock)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return copies of (values, last, slots), up to date."""
        self.write_back()
        last = np.empty(0, np.int32) if self.last is None else self.last.copy()
        return self.values.copy(), last, [slot.copy() for slot in self.slots]

    # ---- key sets

    def begin_clock(self) -> None:
        """Start a clock with its first push: frees the previous version."""
        self.table.drop_previous()
        self._known.clear()
        self._strays.clear()

    def contribute(self, keyset: bytes, keys: np.ndarray | None) -> tuple[Table | None, np.ndarray | None]:
        """Return over which keys the clock's sum runs, and the positions of the pushed keys there.

        That is the table until a key set is pushed that the table lacks; from then on None, the partition.
        """
        known, positions = self.table.find(keyset, keys, keep=True)
        if known:
            self._known.add(keyset)
        elif keyset not in self._strays:
            self._strays[keyset] = None if keys is None else keys.copy()
        return (None, None) if self._strays else (self.table, positions)

    def settle(self) -> Table:
        """Make the table the keys that this clock touched, and return it for the step."""
        if self._strays or self.table.names != self._known:
            self._rebuild({**{name: self.table.keys_of(name) for name in self._known}, **self._strays})
        return self.table

    def _rebuild(self, keysets: Mapping[bytes, np.ndarray | None]) -> None:
        """Rebuild the table as the union of key sets: digest -> global keys, where None means all."""
        names = frozenset(keysets)
        if names == self.table.names and names:
            return
        parts = [keys for keys in keysets.values() if keys is not None]
        union = None
        if len(parts) == len(keysets):
            union = distinct(np.concatenate(parts)) - self._start
            if len(union) > MOST_OF_A_PARTITION * len(self.values):
                union = None
        self._set_places(union)
        self.table.name(names)

    def _set_places(self, places: np.ndarray | None) -> None:
        """Rebuild the table with the keys at these positions of the partition; None means all."""
        now = self.table.places
        if places is now or (places is not None and now is not None and np.array_equal(places, now)):
            return
        self.write_back()
        if self.last is not None:
            lazy.catch_up(self._optimizer, self.values, self.slots, self.last, places, self.clock, self._penalised)
        self._set_table(None if places is None else places.copy())

    # ---- steps

    def step(self, closed: Summed, samples: int, clock: int, keep_gradient: bool) -> np.ndarray | None:
        """Apply the step of a clock to every key of the table; the previous version stays readable.

        Parameters
        ----------
        closed : Summed
            Sum of the clock over the table.
        samples : int
        clock : int
        keep_gradient : bool

        Returns
        -------
        ndarray, float32, or None
            The whole gradient if ``keep_gradient``.
        """
        gradient = self.table.step(self._optimizer, closed, samples, clock, keep_gradient)
        self._ahead, self.clock = True, clock + 1
        return gradient

    def follow(self, gradient: np.ndarray, places: np.ndarray | None, clock: int) -> None:
        """Apply the owner's step of a clock."""
        self._set_places(places)
        self.step(Formed(gradient), 1, clock, keep_gradient=False)

    def write_back(self) -> None:
        """Bring the partition's arrays up to date."""
        if not self._ahead:
            return
        table = self.table
        if table.places is None:
            self.values = table.values
            if self.last is not None:
                self.last.fill(self.clock)
        else:
            self.values[table.places] = table.values
            for slot, hot in zip(self.slots, table.slots, strict=True):
                slot[table.places] = hot
            if self.last is not None:
                self.last[table.places] = self.clock
        self._ahead = False

    # ---- reading

    @property
    def has_previous(self) -> bool:
        """Return whether the previous version is kept."""
        return self.table.previous is not None

    def read(self, keyset: bytes, keys: np.ndarray | None, previous: bool) -> np.ndarray:
        """Return parameters of the current or the previous version, in an array that never changes later.

        Parameters
        ----------
        keyset : bytes
        keys : ndarray of int64, ascending, or None
            Global keys; None means all.
        previous : bool
        """
        table, out = self.table, self._empty(len(self.values) if keys is None else len(keys))
        source = table.previous if previous else table.values
        assert source is not None
        if keys is not None and table.places is None and not table.knows(keyset):
            kernels.take(source, keys, self._start, out)
            return out
        if keys is not None and self.last is None and not previous and not table.knows(keyset):
            # The keys of a batch: few are in the table of the batch before.
            self.write_back()
            kernels.take(self.values, keys, self._start, out)
            return out
        known, positions = table.find(keyset, keys)
        if known and positions is None:
            np.copyto(out, source)
        elif known and positions is not None:
            kernels.take(source, positions, 0, out)
        else:
            assert table.places is not None
            places = np.arange(len(out), dtype=np.int64) if keys is None else keys - self._start
            where = np.minimum(np.searchsorted(table.places, places), max(0, len(table) - 1))
            inside = table.places[where] == places if len(table) else np.zeros(len(places), np.bool_)
            out[inside] = source[where[inside]]
            out[~inside] = self._outside(places[~inside], self.clock - previous)
        return out

    def _outside(self, places: np.ndarray, clock: int) -> np.ndarray:
        """Return the parameters at positions outside the table."""
        if self.last is None:
            found: np.ndarray = self.values[places]
            return found
        return lazy.peek(self._optimizer, self.values, self.slots, self.last, places, clock, self._penalised)

    def export(self) -> np.ndarray:
        """Return a copy of every value, brought up to date."""
        self.write_back()
        if self.last is None:
            return self.values.copy()
        return lazy.peek(self._optimizer, self.values, self.slots, self.last, None, self.clock, self._penalised)
