"""The keys that the workers of a sparse job push clock after clock, as a compact table.

While the same key sets contribute, their union is known: parameters, slots and sum lie side by side there, and a key
set is a list of positions in it.  A clock then touches memory of the size of the union, in order, and the step is dense
and out of place, so that the version before stays readable.

A table may have more keys than a clock touches: a step with a zero gradient is what :mod:`eps.ml.steps` would replay
later, to the bit.  It needs no more than this to be exact: keys that enter are caught up to the clock first, and
:meth:`HotKeys.write_back` brings the partition's arrays up to date.

Without it a clock takes 1.4 times as long with SGD and 1.9 times with Adam (32 partitions of 30,000 keys, of which each
worker touches 500; shared memory).

Not thread-safe; the server's lock guards it.

Source: performance.md section 5 ("cache each worker's key list at the server as positions in a compact table").
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eps.ml import kernels
from eps.ml import steps as lazy
from eps.ml.arrays import distinct
from eps.ml.grid import Blocks
from eps.ml.optim import Optimizer
from eps.ml.steps import Summed, step_out_of_place

#: Beyond this share of a partition's keys all of them are the table: as fast, and without a second set of arrays.
MOST_OF_A_PARTITION = 0.25
#: Partitions with no more keys have positions of 32 bits.
_UINT32_KEYS = 1 << 32


class HotKeys:
    """Parameters, slots and clocks of the keys [start, start + p) under BSP, some of them in a table.

    Parameters
    ----------
    optimizer : Optimizer
    block_keys : int
    start : int
        First global key of the partition.
    values : ndarray, shape (p,), float32
        Parameters; from now on this object's, like all arrays given.
    slots : list of ndarray, shape (p,), float32
    last : ndarray, shape (p,), int32, or None
        Clocks that each key has had; None where a step with a zero gradient changes nothing.
    penalised : ndarray, shape (p,), bool, or None
    clock : int
        Clocks that the partition has had.
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
    ) -> None:
        self._optimizer = optimizer
        self._block_keys = block_keys
        self._start = start
        self._size = len(values)
        #: Arrays of the partition; up to date after :meth:`write_back`.
        self.values, self.slots, self.last = values, slots, last
        self._penalised = penalised
        self.clock = clock
        self._set_table(np.empty(0, np.int64))

    def _set_table(self, places: np.ndarray | None) -> None:
        #: Places of the table's keys in the partition, ascending; None: all.
        self.places = places
        #: The same as global keys.
        self.keys = None if places is None else places + self._start
        self.blocks = Blocks(self._block_keys, self._start, self._size, self.keys)
        #: Key sets that the table was built of; empty where it was built for a follower.
        self.names: frozenset[bytes] = frozenset()
        self._positions: dict[bytes, np.ndarray] = {}
        self._previous: np.ndarray | None = None
        self._spare: np.ndarray | None = None
        #: Whether the partition's arrays are behind the table.
        self._ahead = False
        #: Memory for the clock's sum, kept from clock to clock.
        self.sum_memory: np.ndarray | None = None
        if places is None:
            self._values, self._slots, self._mask = self.values, self.slots, self._penalised
        else:
            self._values = self.values[places]
            self._slots = [slot[places] for slot in self.slots]
            self._mask = None if self._penalised is None else self._penalised[places]

    @property
    def size(self) -> int:
        """Number of keys in the table."""
        return len(self._values)

    # ---- key sets

    def find(self, keyset: bytes, keys: np.ndarray | None, keep: bool = False) -> tuple[bool, np.ndarray | None]:
        """Return whether a key set is part of the table, and its positions there.

        Parameters
        ----------
        keyset : bytes
            Digest of the keys; empty for all of them.
        keys : ndarray of int64, ascending, or None
            Global keys.
        keep : bool
            Remember the positions under the digest.

        Returns
        -------
        bool
        ndarray of uint32 (or int64), or None
            None too where every key of the partition is meant.
        """
        if keys is None:
            return self.places is None, None
        found = self._positions.get(keyset) if keyset else None
        if found is None:
            if self.keys is None:
                found = keys - self._start
            else:
                found = np.searchsorted(self.keys, keys)
                if len(keys) and (not self.size or keys[-1] > self.keys[-1]):
                    return False, None
                if not np.array_equal(self.keys[found], keys):
                    return False, None
            if self._size <= _UINT32_KEYS:
                # Half the memory to read with every push and pull.
                found = found.astype(np.uint32)
            if keep and keyset:
                self._positions[keyset] = found
        return True, found

    def keys_of(self, keyset: bytes) -> np.ndarray | None:
        """Return the global keys of a key set that was found and kept; None for all of them."""
        if not keyset:
            return None
        found = self._positions[keyset]
        return found.astype(np.int64) + self._start if self.keys is None else self.keys[found]

    def rebuild(self, keysets: Mapping[bytes, np.ndarray | None]) -> None:
        """Make the table the union of some key sets.

        Parameters
        ----------
        keysets : mapping
            Digest -> global keys; None for all of them.
        """
        names = frozenset(keysets)
        if names == self.names and names:
            return
        parts = [keys for keys in keysets.values() if keys is not None]
        union = None
        if len(parts) == len(keysets):
            union = distinct(np.concatenate(parts)) - self._start
            if len(union) > MOST_OF_A_PARTITION * self._size:
                union = None
        self.set_places(union)
        self.names = names
        self._positions = {name: found for name, found in self._positions.items() if name in names}

    def set_places(self, places: np.ndarray | None) -> None:
        """Make the table the keys at these places of the partition, or all keys."""
        same = places is self.places or (
            places is not None and self.places is not None and np.array_equal(places, self.places)
        )
        if same:
            return
        self.write_back()
        if self.last is not None:
            lazy.catch_up(self._optimizer, self.values, self.slots, self.last, places, self.clock, self._penalised)
        self._set_table(None if places is None else places.copy())

    # ---- steps

    def step(self, closed: Summed, samples: int, keep_gradient: bool) -> np.ndarray | None:
        """Apply the step of the clock to every key of the table; the version before stays readable.

        Parameters
        ----------
        closed : Summed
            Sum of the clock over the table.
        samples : int
        keep_gradient : bool

        Returns
        -------
        ndarray, float32, or None
            The whole gradient, if it is to be kept.
        """
        self.drop_previous()
        before, self._previous = self._values, self._values
        after = np.empty_like(before) if self._spare is None else self._spare
        self._spare = None
        gradient = step_out_of_place(
            self._optimizer, closed, samples, before, after, self._slots, self.clock, self._mask, keep_gradient
        )
        self._values, self._ahead = after, True
        self.clock += 1
        return gradient

    def keep_values(self) -> None:
        """Close a clock whose step changes nothing: the version before is this one."""
        self.drop_previous()
        self._previous = self._values
        self._ahead = True
        self.clock += 1

    def drop_previous(self) -> None:
        """Keep the version before no longer."""
        if self._previous is not None:
            if self._previous is not self._values:
                self._spare = self._previous
            self._previous = None

    def write_back(self) -> None:
        """Bring the partition's arrays up to date."""
        if not self._ahead:
            return
        if self.places is None:
            self.values = self._values
            if self.last is not None:
                self.last.fill(self.clock)
        else:
            self.values[self.places] = self._values
            for slot, hot in zip(self.slots, self._slots, strict=True):
                slot[self.places] = hot
            if self.last is not None:
                self.last[self.places] = self.clock
        self._ahead = False

    # ---- reading

    @property
    def has_previous(self) -> bool:
        """Whether the version before is kept."""
        return self._previous is not None

    def read(self, keyset: bytes, keys: np.ndarray | None, out: np.ndarray, previous: bool = False) -> None:
        """Read parameters of the partition's clock, or of the one before.

        Parameters
        ----------
        keyset : bytes
        keys : ndarray of int64, ascending, or None
            Global keys; None is all.
        out : ndarray, float32
            Takes the values.
        """
        source = self._previous if previous else self._values
        assert source is not None
        if keys is not None and self.places is None and keyset not in self._positions:
            kernels.take(source, keys, self._start, out)
            return
        known, positions = self.find(keyset, keys)
        if known and positions is None:
            np.copyto(out, source)
        elif known and positions is not None:
            kernels.take(source, positions, 0, out)
        else:
            assert self.places is not None
            places = np.arange(self._size, dtype=np.int64) if keys is None else keys - self._start
            where = np.minimum(np.searchsorted(self.places, places), max(0, self.size - 1))
            inside = self.places[where] == places if self.size else np.zeros(len(places), np.bool_)
            out[inside] = source[where[inside]]
            out[~inside] = self._outside(places[~inside], self.clock - previous)

    def _outside(self, places: np.ndarray, clock: int) -> np.ndarray:
        """Return the parameters at places that are not in the table."""
        if self.last is None:
            found: np.ndarray = self.values[places]
            return found
        return lazy.peek(self._optimizer, self.values, self.slots, self.last, places, clock, self._penalised)
