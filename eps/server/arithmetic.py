"""Sums and steps of several partitions, on two threads where that pays.

When the last push of a clock has arrived, the workers wait for sums and steps of all partitions, while all but one of
their cores do nothing.  Partitions have no array in common, so two threads divide them.  The kernels run without the
interpreter's lock.  With one thread a clock takes 1.3 to 1.5 times as long; where the last sum is not added by the
step's own pass either, 1.3 to 1.7 times (12 partitions of 100,000 to 1,000,000 keys, SGD and Adam, two quiet cores).

Source: none; performance.md section 3 (what a server's clock is made of).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from eps.core import server_events as s
from eps.net.messages.exchange import PushPart
from eps.server.partition_store import PartitionStore, UpdateData
from eps.server.pending import PushRequest

logger = logging.getLogger(__name__)

#: Bytes of pushed sums from which a second thread helps: to wake it takes as long as to add 1 MB.
SHARED_BYTES = 1 << 20

Command = s.Accumulate | s.StepPartition
#: Commands of one partition, with their positions in the run, and whether the step follows a sum.
Group = list[tuple[int, Command, bool]]


class Arithmetic:
    """Computes runs of sums and steps.

    Called with the server's lock held; a second thread works only while the caller, which has the lock, waits for it.

    Parameters
    ----------
    cores : int, optional
        How many this process may run on; by default the system is asked.
    """

    def __init__(self, cores: int | None = None) -> None:
        two = (len(os.sched_getaffinity(0)) if cores is None else cores) > 1
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="arithmetic") if two else None

    def run(self, commands: Sequence[Command], stores: Mapping[int, PartitionStore]) -> list[UpdateData | None]:
        """Carry out sums and steps; those of one partition in their order.

        Parameters
        ----------
        commands : sequence of Accumulate or StepPartition
        stores : mapping of int to PartitionStore
            What they call for memory must be safe to call on two threads.

        Returns
        -------
        list of UpdateData, or None
            For each command, what a follower needs of a step.

        Raises
        ------
        Exception
            The first command that failed, by position; later ones of its partition were not tried.
        """
        if self._helper is None or not _pays(commands):
            return [
                _carry_out(command, stores[command.partition], _is_last(commands, position))
                for position, command in enumerate(commands)
            ]
        found: list[UpdateData | None] = [None] * len(commands)
        groups = deque(_by_partition(commands))
        errors: dict[int, Exception] = {}

        def work() -> None:
            while True:
                try:
                    group = groups.popleft()
                except IndexError:
                    return
                for position, command, is_last in group:
                    try:
                        found[position] = _carry_out(command, stores[command.partition], is_last)
                    except Exception as error:
                        errors[position] = error
                        break

        helps = None
        try:
            helps = self._helper.submit(work)
        except RuntimeError as error:
            # The system has no thread, or the server ends.  Should it be begun all the same, nothing waits for it.
            logger.debug("no second thread helps: %s", error)
        work()
        # If it has not begun by now, nothing is left for it; if it has, it finishes its last partition.
        if helps is not None and not helps.cancel():
            helps.result()
        if errors:
            raise errors[min(errors)]
        return found

    def close(self) -> None:
        """Let the second thread end."""
        if self._helper is not None:
            self._helper.shutdown(wait=False, cancel_futures=True)


def _carry_out(command: Command, store: PartitionStore, is_last: bool) -> UpdateData | None:
    if isinstance(command, s.Accumulate):
        store.accumulate(_part(command), command.first_of_clock, is_last)
        return None
    return store.step(command.clock, command.followed)


def _part(command: s.Accumulate) -> PushPart:
    assert isinstance(command.request, PushRequest)
    return command.request.part


def _is_last(commands: Sequence[Command], position: int) -> bool:
    """Return whether the step of its partition follows a sum."""
    if position + 1 == len(commands):
        return False
    after = commands[position + 1]
    return isinstance(after, s.StepPartition) and after.partition == commands[position].partition


def _by_partition(commands: Sequence[Command]) -> list[Group]:
    groups: dict[int, Group] = {}
    for position, command in enumerate(commands):
        groups.setdefault(command.partition, []).append((position, command, _is_last(commands, position)))
    return list(groups.values())


def _pays(commands: Sequence[Command]) -> bool:
    """Return whether a second thread would save time.

    Before a clock is complete other workers compute, and a second core would be taken from them.
    """
    if len(commands) < 4 or sum([isinstance(command, s.StepPartition) for command in commands]) < 2:
        return False
    sums = (command for command in commands if isinstance(command, s.Accumulate))
    return sum(_part(command).total.nbytes for command in sums) >= SHARED_BYTES
