"""The arrays of a server: its partitions, and the key sets that are registered for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from eps.core import server_events as s
from eps.net.arrays.api import Van
from eps.net.arrays.memory import give_back
from eps.server.arithmetic import Arithmetic, Command
from eps.server.initial import initial_values
from eps.server.keysets import KeySets
from eps.server.partition_store import PartitionStore, UpdateData
from eps.server.rows import Rows
from eps.spec.runtime import Runtime


class Partitions:
    """Partitions by number.  Not thread-safe, but for :meth:`empty` and :meth:`new`; the server's lock guards it.

    Parameters
    ----------
    runtime : Runtime
    van : Van
        Gives the memory that is sent from.
    """

    def __init__(self, runtime: Runtime, van: Van) -> None:
        self._runtime = runtime
        self._van = van
        self.stores: dict[int, PartitionStore] = {}
        self.keysets = KeySets()
        #: Partitions of the checkpoint that the job begins with or goes back to, until they are in use.
        self._started_with: dict[int, PartitionStore] = {}
        self._rows = Rows(runtime.ranges, self.stores, self.empty)
        self._arithmetic = Arithmetic()

    def empty(self, length: int) -> np.ndarray:
        """Return memory for so many float32, from which the van sends with the fewest copies."""
        return self._van.empty(length, np.float32)

    def new(self, partition: int, values: np.ndarray | None) -> PartitionStore:
        """Return a partition that is not in use yet."""
        return PartitionStore(self._runtime, partition, values, self.empty, partial(self._rows.memory, partition))

    def begin_with(self, stores: dict[int, PartitionStore]) -> None:
        """Take the partitions of the checkpoint that the job begins with or goes back to."""
        self._started_with = stores
        self._rows.go_back()

    def create(self, command: s.CreatePartition) -> None:
        """Use a partition as the job begins, or goes back: from its checkpoint, or from its seed."""
        partition = command.partition
        found = self._started_with.pop(partition, None)
        if found is None:
            start, stop = self._runtime.ranges[partition]
            found = self.new(partition, initial_values(self._runtime, start, stop))
        self.stores[partition] = found

    def add_and_step(self, commands: Sequence[Command]) -> list[UpdateData | None]:
        """Carry out a run of sums and steps; see :meth:`eps.server.arithmetic.Arithmetic.run`."""
        return self._arithmetic.run(commands, self.stores)

    def drop(self, partition: int) -> None:
        """Free a partition and its key sets."""
        self.stores.pop(partition, None)
        self.keysets.forget(partition)

    def give_back(self) -> None:
        """Return freed memory to the system, if no partition is left."""
        if not self.stores:
            give_back()

    def close(self) -> None:
        """Let the second thread of the arithmetic end."""
        self._arithmetic.close()
