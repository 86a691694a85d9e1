"""The arithmetic of a batch of commands: what arrived last and the step in one pass, and partitions on two cores.

When the last push of a clock has arrived, the workers wait for sums and steps of all partitions, while all but one of
their cores do nothing.  Partitions have no array in common, so these are computed first, by two threads, and the
commands are then carried out in their order, with what was found.  The kernels run without the interpreter's lock.

Source: none; performance.md section 3 (what a server's clock is made of).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from eps.core import server_events as s
from eps.server.partition_store import PartitionStore, UpdateData
from eps.server.pending import PushRequest

logger = logging.getLogger(__name__)

#: Bytes of pushed sums from which a second thread is asked to help: to wake it takes as long as to add 1 MB.
SHARED_BYTES = 1 << 20
#: Partitions with fewer keys are taken as they come: to look ahead would take longer than it saves.
LEAST_KEYS = 4096

#: What a command found: a step the update, if it is to be kept; or why it failed.
Found = UpdateData | Exception | None
Command = s.Accumulate | s.StepPartition


class Arithmetic:
    """Computes sums and steps of the partitions of a server, ahead of the other commands of a batch.

    Called with the server's lock held; a second thread works only while the caller, which has the lock, waits for it.

    Parameters
    ----------
    stores : mapping of int to PartitionStore
        The partitions here, as they change; what they call for memory must be safe to call on two threads.
    is_followed : callable
        Tells whether a follower needs the steps of a partition.
    before_change : callable
        Called with a partition, on the caller's thread, before its parameters change.
    longest_partition : int
        Keys of the job's largest partition.
    cores : int, optional
        How many this process may run on; by default it is asked.
    """

    def __init__(
        self,
        stores: Mapping[int, PartitionStore],
        is_followed: Callable[[int], bool],
        before_change: Callable[[int], None],
        longest_partition: int,
        cores: int | None = None,
    ) -> None:
        self._stores = stores
        self._is_followed = is_followed
        self._before_change = before_change
        self._looks_ahead = longest_partition >= LEAST_KEYS
        two = (len(os.sched_getaffinity(0)) if cores is None else cores) > 1
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="arithmetic") if two else None

    def ahead(self, commands: Sequence[s.ServerCommand]) -> dict[int, Found]:
        """Carry out the sums and steps of a batch that no other command of their partition comes before.

        Parameters
        ----------
        commands : sequence of ServerCommand
            In order.

        Returns
        -------
        dict
            What was found, by position in ``commands``.  After one that failed, no more of its partition were tried.
        """
        found: dict[int, Found] = {}
        groups = _by_partition(commands) if self._looks_ahead else {}
        if not groups:
            return found
        steps = [p for p, group in groups.items() if any(isinstance(one, s.StepPartition) for _, one in group)]
        for partition in steps:
            self._before_change(partition)
        waiting = deque(groups.values())

        def work() -> None:
            while True:
                try:
                    group = waiting.popleft()
                except IndexError:
                    return
                self._do_in_order(group, found)

        helps = None
        # Before a clock is complete other workers compute, and a second core would be taken from them.
        if self._helper is not None and len(steps) > 1 and _pushed_bytes(groups.values()) >= SHARED_BYTES:
            try:
                helps = self._helper.submit(work)
            except RuntimeError as error:
                # The system has no thread, or the server ends.  Should it be begun all the same, nothing waits for it.
                logger.debug("no second thread helps: %s", error)
        work()
        # If it has not begun by now, nothing is left for it; if it has, it finishes its last partition.
        if helps is not None and not helps.cancel():
            helps.result()
        return found

    def do(self, command: Command, is_last: bool = False) -> UpdateData | None:
        """Carry out one sum or step; ``is_last``: the sum's step comes next."""
        store = self._stores[command.partition]
        if isinstance(command, s.Accumulate):
            assert isinstance(command.request, PushRequest)
            store.accumulate(command.request.part, command.first_of_clock, is_last)
            return None
        return store.step(command.clock, self._is_followed(command.partition))

    def _do_in_order(self, group: Sequence[tuple[int, Command]], found: dict[int, Found]) -> None:
        for number, (position, command) in enumerate(group):
            is_last = number + 1 < len(group) and isinstance(group[number + 1][1], s.StepPartition)
            try:
                found[position] = self.do(command, is_last)
            except Exception as error:
                # It is raised where the command's turn comes.
                found[position] = error
                return

    def close(self) -> None:
        """Let the second thread end."""
        if self._helper is not None:
            self._helper.shutdown(wait=False, cancel_futures=True)


def _by_partition(commands: Sequence[s.ServerCommand]) -> dict[int, list[tuple[int, Command]]]:
    """Return the sums and steps that may come first, with their positions, in order."""
    groups: dict[int, list[tuple[int, Command]]] = {}
    met: set[int] = set()
    for position, command in enumerate(commands):
        match command:
            case s.Accumulate() | s.StepPartition():
                if command.partition not in met:
                    groups.setdefault(command.partition, []).append((position, command))
            case s.AckPush():
                # It reads no array.
                pass
            case _:
                # It may read or replace the partition's arrays as they are by then; without a partition it does not.
                met.add(getattr(command, "partition", -1))
    return groups


def _pushed_bytes(groups: Iterable[Sequence[tuple[int, Command]]]) -> int:
    commands = (command for group in groups for _, command in group if isinstance(command, s.Accumulate))
    return sum(command.request.part.total.nbytes for command in commands)  # type: ignore[attr-defined]
