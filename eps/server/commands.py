"""Executes the commands of a server's state: one method for each command, in the order that the state gave.

Sums and steps of several partitions are computed together, on two threads if that is faster.

Source: performance.md section 3 (the costs of a server's clock).
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from eps.core import messages as m
from eps.core import server_events as s
from eps.core.partition_state import Holding
from eps.core.server_state import ServerState
from eps.errors import ProtocolError, TakenOverError
from eps.net.messages import exchange as x
from eps.net.messages.codec import membership_to_pb
from eps.net.messages.exchange import PushPart
from eps.pb import data_pb2 as pb
from eps.server.checks import update_data
from eps.server.copier import Copier
from eps.server.cuts import CutCopies
from eps.server.followers import Followers
from eps.server.open_requests import DeferredAnswer, PullRequest, PushRequest, TransferRequest
from eps.server.partition_store import PartitionStore, UpdateData
from eps.server.partitions import Partitions

logger = logging.getLogger(__name__)

#: Bytes of pushed sums from which on a second thread helps: waking it takes as long as adding 1 MB.
SHARED_BYTES = 1 << 20

Command = s.Accumulate | s.StepPartition
#: Commands of one partition: position in the run, command, and whether the step follows directly.
Group = list[tuple[int, Command, bool]]


class Arithmetic:
    """Computes sums and steps of several partitions, on two threads if that is faster.

    When the last push of a clock has arrived, the workers wait for the sums and steps of all partitions.  All cores but
    one are idle then.  Partitions share no arrays, so two threads can divide them; kernels release the interpreter
    lock.  With one thread a clock takes 1.3 to 1.5 times as long.  If, in addition, the last sum is not added in the
    step's pass, it takes 1.3 to 1.7 times as long.  (12 partitions of 100,000 to 1,000,000 keys, SGD and Adam, two
    cores.)

    Called with the server's lock held.  The second thread works only while the caller, which holds the lock, waits.

    Parameters
    ----------
    cores : int, optional
        Cores that this process may use; by default determined from the system.
    """

    def __init__(self, cores: int | None = None) -> None:
        two = (len(os.sched_getaffinity(0)) if cores is None else cores) > 1
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="arithmetic") if two else None

    def run(self, commands: Sequence[Command], stores: Mapping[int, PartitionStore]) -> list[UpdateData | None]:
        """Compute sums and steps, those of one partition in their order.

        Parameters
        ----------
        commands : sequence of Accumulate or StepPartition
        stores : mapping of int to PartitionStore
            Their allocators must be safe to call from two threads.

        Returns
        -------
        list of UpdateData, or None
            For each command, the update for followers, if any.

        Raises
        ------
        Exception
            Of the first failed command by position; later commands of its partition were not tried.
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
            # The system has no thread left, or the server is ending.  Nothing waits for a thread that starts late.
            logger.debug("sums and steps run on one thread: %s", error)
        work()
        # If it has not started by now, nothing is left for it; otherwise it finishes its last partition.
        if helps is not None and not helps.cancel():
            helps.result()
        if errors:
            raise errors[min(errors)]
        return found

    def close(self) -> None:
        """End the second thread."""
        if self._helper is not None:
            self._helper.shutdown(wait=False, cancel_futures=True)


def _carry_out(command: Command, store: PartitionStore, is_last: bool) -> UpdateData | None:
    if isinstance(command, s.Accumulate):
        store.accumulate(_pushed(command), command.first_of_clock, is_last)
        return None
    return store.step(command.clock, command.followed)


def _pushed(command: s.Accumulate) -> PushPart:
    assert isinstance(command.request, PushRequest)
    return command.request.part


def _is_last(commands: Sequence[Command], position: int) -> bool:
    """Return whether the next command is the step of the same partition."""
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

    Before a clock is complete it would take a core from workers that still compute.
    """
    if len(commands) < 4 or sum([isinstance(command, s.StepPartition) for command in commands]) < 2:
        return False
    sums = (command for command in commands if isinstance(command, s.Accumulate))
    return sum(_pushed(command).total.nbytes for command in sums) >= SHARED_BYTES


#: Commands that are computed together.
SUMS = (s.Accumulate, s.StepPartition)


class Commands:
    """Executes the commands of a server's state on its arrays, streams and open requests.

    Called with the server's lock held.

    Parameters
    ----------
    state : ServerState
        Read, never stepped.
    report : callable
        Sends a report to the job master.

    Attributes
    ----------
    deferred : deque
        Complete answers, to be sent without the lock.
    """

    def __init__(
        self,
        state: ServerState,
        partitions: Partitions,
        followers: Followers,
        writer: Copier[m.TakeCheckpoint, s.TakeSnapshot],
        cuts: CutCopies,
        report: Callable[[m.Report], None],
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._followers = followers
        self._cuts = cuts
        self._copiers = (writer, cuts.copier)
        self._report = report
        self._arithmetic = Arithmetic()
        self.deferred: deque[DeferredAnswer] = deque()
        self.table: dict[type, Callable[[Any], None]] = {
            s.CreatePartition: self._create_partition,
            s.ApplyPush: self._apply_push,
            s.AckPush: self._ack_push,
            s.AnswerPull: self._answer_pull,
            s.Fail: self._fail,
            s.RefuseStale: self._refuse_stale,
            s.RefusePassed: self._refuse_passed,
            s.SendSnapshot: self._send_snapshot,
            s.SendUpdate: followers.send_update,
            s.SendPromote: followers.send_promote,
            s.StopSending: followers.stop_sending,
            s.InstallSnapshot: self._install_snapshot,
            s.ApplyUpdate: self._apply_update,
            s.DropUpdate: self._drop_update,
            s.RefuseUpdate: self._refuse_update,
            s.DropPartition: self._drop_partition,
            s.TakeSnapshot: writer.take,
            s.SkipSnapshot: writer.skip,
            s.CopyForCut: cuts.take,
            s.SkipCut: cuts.copier.skip,
            s.StoreCut: self._store_cut,
            s.DropCut: cuts.drop,
            s.ReportToMaster: self._report_to_master,
        }

    def run(self, commands: Sequence[s.ServerCommand]) -> None:
        """Execute commands in their order; runs of sums and steps are computed together."""
        sums: list[Command] = []
        for command in commands:
            if isinstance(command, SUMS):
                sums.append(command)
                continue
            if sums:
                self._add_and_step(sums)
                sums = []
            self.table[type(command)](command)
        if sums:
            self._add_and_step(sums)
        # All of them have been queued.
        self._followers.forget_updates()

    def stale(self) -> pb.Refusal:
        """Return the refusal of a part that an old membership routed here; it has the current one."""
        refusal = pb.Refusal(retry=True)
        if self._state.membership is not None:
            refusal.membership.CopyFrom(membership_to_pb(self._state.membership))
        return refusal

    def close(self) -> None:
        """End the second thread."""
        self._arithmetic.close()

    # ---- arithmetic

    def _add_and_step(self, commands: Sequence[Command]) -> None:
        for copier in self._copiers:
            # Usually nothing is to be copied.
            for command in commands if copier.queued else ():
                if isinstance(command, s.StepPartition):
                    copier.before_change(command.partition)
        for command, update in zip(commands, self._arithmetic.run(commands, self._partitions.stores), strict=True):
            if update is not None and isinstance(command, s.StepPartition) and command.followed:
                self._followers.keep_update(command.partition, update)

    def _before_change(self, partition: int) -> None:
        for copier in self._copiers:
            if copier.queued:
                copier.before_change(partition)

    def _apply_push(self, command: s.ApplyPush) -> None:
        self._before_change(command.partition)
        update = self._partitions.stores[command.partition].apply_push(_push(command.request).part, command.clock)
        if command.followed:
            self._followers.keep_update(command.partition, update)

    # ---- answers to workers

    def _ack_push(self, command: s.AckPush) -> None:
        answer = x.PushAnswer(command.partition, command.have, command.accepted)
        _push(command.request).exchange.settle(answer)

    def _answer_pull(self, command: s.AnswerPull) -> None:
        request = command.request
        assert isinstance(request, PullRequest)
        store, part, clock = self._partitions.stores[command.partition], request.part, command.clock
        try:
            values, exponents = store.pull(clock, part)
        except ProtocolError as error:
            # A late repeat of a pull that was answered before.
            request.refuse(pb.Refusal(error=str(error)))
            return
        request.exchange.settle(x.PullAnswer(part.partition, clock, values, exponents))

    def _fail(self, command: s.Fail) -> None:
        _part(command.request).refuse(pb.Refusal(error=command.why))

    def _refuse_passed(self, command: s.RefusePassed) -> None:
        _part(command.request).refuse(pb.Refusal(passed=True))

    def _refuse_stale(self, command: s.RefuseStale) -> None:
        _part(command.request).refuse(self.stale())

    # ---- messages of owners

    def _send_snapshot(self, command: s.SendSnapshot) -> None:
        self._followers.send_snapshot(command, self._cuts.copy_on(command.to, command.partition))

    def _install_snapshot(self, command: s.InstallSnapshot) -> None:
        request = _transfer(command.request)
        assert request.store is not None
        self._partitions.stores[command.partition] = request.store
        self.deferred.append(request)

    def _apply_update(self, command: s.ApplyUpdate) -> None:
        request = _transfer(command.request)
        update = update_data(request.header.update, request.message.arrays)
        self._partitions.stores[command.partition].apply_update(update, command.clock, command.splits)
        self.deferred.append(request)

    def _drop_update(self, command: s.DropUpdate) -> None:
        self.deferred.append(_transfer(command.request))

    def _refuse_update(self, command: s.RefuseUpdate) -> None:
        request = _transfer(command.request)
        name, header = self._state.name, request.header
        if header.HasField("cut"):
            why = f"{name} knows a later cut than {header.cut.cut_id}, or another incarnation of the parameters"
        else:
            why = f"{name} owns partition {header.update.partition} now"
        request.refusal = TakenOverError(why)
        self.deferred.append(request)

    def _store_cut(self, command: s.StoreCut) -> None:
        request = _transfer(command.request)
        self._cuts.store(command.partition, command.clock, request.message.arrays)
        self.deferred.append(request)

    # ---- other commands

    def _create_partition(self, command: s.CreatePartition) -> None:
        partition, cut = command.partition, command.cut
        kept = None if cut is None else self._cuts.find(partition, cut)
        if cut is not None and kept is None:
            raise ProtocolError(f"{self._state.name} keeps no copy of partition {partition} at clock {cut}")
        self._partitions.create(partition, kept)

    def _drop_partition(self, command: s.DropPartition) -> None:
        self._before_change(command.partition)
        self._partitions.drop(command.partition)
        # Only once all are dropped: others that move in would reuse the memory.
        if all(state.holding is Holding.DROPPED for state in self._state.partitions.values()):
            self._partitions.give_back()

    def _report_to_master(self, command: s.ReportToMaster) -> None:
        self._report(command.report)


def _part(request: object) -> PushRequest | PullRequest:
    assert isinstance(request, PushRequest | PullRequest)
    return request


def _push(request: object) -> PushRequest:
    assert isinstance(request, PushRequest)
    return request


def _transfer(request: object) -> TransferRequest:
    assert isinstance(request, TransferRequest)
    return request
