"""Execution of the master's orders by a worker: training loop, transfers of splits between workers, reports.

Source: EPS §2.2, §3.1.2 (worker-to-worker transmission of splits), Figs 8 and 11.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from eps.core import messages as m
from eps.core.membership import Membership
from eps.core.types import Address, MemberId, Role
from eps.core.worker_state import WorkerState
from eps.errors import EpsError, ProtocolError
from eps.net.arrays.api import Message, Peers, ReplyTo, Van
from eps.net.messages.exchange import parse_header, simple
from eps.spec.runtime import Runtime
from eps.worker.compute import Program
from eps.worker.datasets import Datasets
from eps.worker.loop import ParameterPlane, Reporter, TrainingLoop, Wakeup
from eps.worker.push_pull import ROUTING_GRACE_S, Patience, PushPull
from eps.worker.wire import ServerWire

logger = logging.getLogger(__name__)

TRANSFER_TIMEOUT_S = 120.0


class Transfers(Protocol):
    """Moves splits to the workers on which a plan makes them active, and reports the results to the master."""

    def send(self, plan_id: int, target: m.Target) -> None:
        """Send a split to another worker; returns at once."""

    def load(self, plan_id: int, split: int) -> None:
        """Load a split from this worker's disk; returns at once."""

    def receive(self, message: Message) -> m.SplitReceived:
        """Store a split that another worker sent; return the report about it."""

    def forget(self, plan_id: int) -> None:
        """End the transfers of a plan; plans do not overlap."""


class SplitTransfers:
    """Transfers over a van, on a separate thread.

    Parameters
    ----------
    name : str
    van : Van
    datasets : Datasets
    report : Reporter
    """

    def __init__(self, name: MemberId, van: Van, datasets: Datasets, report: Reporter) -> None:
        self._name = name
        self._datasets = datasets
        self._report = report
        self._peers = Peers(van)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="transfer")

    def send(self, plan_id: int, target: m.Target) -> None:
        """Send a split to another worker; returns at once."""
        self._pool.submit(self._send, plan_id, target)

    def load(self, plan_id: int, split: int) -> None:
        """Load an inactive split that a plan makes active here (EPS Fig. 11); returns at once."""
        self._pool.submit(self._load, plan_id, split)

    def forget(self, plan_id: int) -> None:
        """Close the connections for splits; no transfer is running."""
        self._peers.keep(())

    def _send(self, plan_id: int, target: m.Target) -> None:
        """Copy a split to another worker; here it stays active until the commit, then inactive (EPS Fig. 8)."""
        if self._datasets.is_closed(plan_id):
            return
        try:
            content = np.frombuffer(self._datasets.content(target.item), np.uint8)
            header = simple("split_copy", plan_id=plan_id, split=target.item)
            self._peers.to(target.address).request(Message(header, (content,))).result(TRANSFER_TIMEOUT_S)
        except (EpsError, OSError, TimeoutError) as error:
            self._failed(plan_id, f"split {target.item} could not be sent to {target.target}: {error}")

    def _load(self, plan_id: int, split: int) -> None:
        try:
            self._datasets.activate(split)
        except (EpsError, OSError) as error:
            self._failed(plan_id, f"split {split} could not be read: {error}")
            return
        self._report(m.SplitReceived(self._name, plan_id, split, 0))

    def _failed(self, plan_id: int, message: str) -> None:
        logger.warning("W[%s] %s", self._name, message)
        if not self._datasets.is_closed(plan_id):
            self._report(m.TransferFailed(self._name, plan_id, message))

    def receive(self, message: Message) -> m.SplitReceived:
        """Store a split that another worker sent; return the report about it.

        Raises
        ------
        ProtocolError
            The message is not a split.
        TransferError
            The split's checksum is wrong.
        """
        header = parse_header(message)
        if header.WhichOneof("kind") != "split_copy" or len(message.arrays) != 1:
            raise ProtocolError(f"a worker does not answer messages of kind {header.WhichOneof('kind')!r}")
        copy = header.split_copy
        size_bytes = self._datasets.receive(copy.plan_id, copy.split, message.arrays[0].data)
        # Read now, because it becomes active soon: then the first clock does not wait for the disk.
        self._datasets.activate(copy.split)
        return m.SplitReceived(self._name, copy.plan_id, copy.split, size_bytes)


class Disk(Protocol):
    """The splits of a worker on its disk; see :class:`eps.worker.datasets.Datasets`."""

    def load_initial(self, split: int) -> None:
        """Copy a split from the prepared data set; the end of a plan does not remove it."""

    def activate(self, split: int) -> object:
        """Read a split into memory, if it is not there."""

    def close_plan(self, plan_id: int, keep: bool) -> None:
        """End a plan: keep or delete the splits that it brought."""


class WorkerShell:
    """Executes the orders of the master on the session's thread, beside the training loop.

    Parameters
    ----------
    loop : TrainingLoop
    wakeup : Wakeup
    plane : ParameterPlane
    datasets : Disk
    transfers : Transfers
    report : Reporter
    """

    def __init__(
        self,
        loop: TrainingLoop,
        wakeup: Wakeup,
        plane: ParameterPlane,
        datasets: Disk,
        transfers: Transfers,
        report: Reporter,
    ) -> None:
        self.loop = loop
        self.state = loop.state
        self._wakeup = wakeup
        self._plane = plane
        self._datasets = datasets
        self._transfers = transfers
        self._report = report
        #: Started transfers (plan, split), including finished ones, so that repeated orders are recognised.
        self._under_way: set[tuple[int, int]] = set()

    def on_order(self, order: m.Order) -> None:
        """Execute an order of the master."""
        match order:
            case m.GrantHorizon():
                with self._wakeup.lock:
                    self.state.duties.on_grant(order)
                self._wakeup.tell()
            case m.UpdateMembership(plan_id, membership):
                self._follow(plan_id, membership)
            case m.UpdateLists(plan_id, added):
                servers = [entry.address for entry in added if Role.SERVER in entry.roles]
                self._plane.prepare(servers)
                self._report(m.ListsUpdated(self.state.name, plan_id))
            case m.SendSplits(plan_id, transfers):
                for target in transfers:
                    if self._is_new(plan_id, target.item):
                        self._transfers.send(plan_id, target)
            case m.LoadSplits(plan_id, splits):
                for split in splits:
                    if self._is_new(plan_id, split):
                        self._transfers.load(plan_id, split)
            case m.TakeInventory(recovery, _):
                with self._wakeup.lock:
                    inventory = self.state.inventory(recovery)
                self._report(inventory)
            case m.AbortPlan(plan_id):
                self._datasets.close_plan(plan_id, keep=False)
                self._forget(plan_id)
            case m.ReleasePlan(plan_id):
                with self._wakeup.lock:
                    self.state.releases.ask(plan_id)
                    for report in self.state.released():
                        self._report(report)
                self._forget(plan_id)

    def _follow(self, plan_id: int, membership: Membership) -> None:
        """Install a membership once its splits are stored here, because its clock may come at once."""
        name = self.state.name
        if membership.version == 1 or membership.takes_over:
            # A recovery may be the first that this worker hears of: then it has none of its inactive copies.
            for split in membership.splits.active_on(name) + membership.splits.inactive_on(name):
                self._datasets.load_initial(split)
        self._datasets.close_plan(plan_id, keep=True)
        with self._wakeup.lock:
            first = not self.state.memberships
            acked = self.state.on_membership(membership, plan_id)
            needed = self.state.duties.needed()
        self._wakeup.tell()
        if first:
            self._plane.prepare([membership.addresses[server] for server in membership.servers])
        for split in needed:
            self._datasets.activate(split)
        self._report(acked)
        if membership.version > 1 and not membership.takes_over:
            # At the start and after a loss the loop loads its splits itself, at once.
            self.loop.program.prepare(membership.splits.active_on(name))

    def _is_new(self, plan_id: int, split: int) -> bool:
        """Return whether a transfer has not started; the master repeats its order while a split is missing."""
        if (plan_id, split) in self._under_way:
            return False
        self._under_way.add((plan_id, split))
        return True

    def _forget(self, plan_id: int) -> None:
        """Forget the transfers of a plan; plans do not overlap."""
        self._transfers.forget(plan_id)
        self._under_way = {(plan, split) for plan, split in self._under_way if plan > plan_id}

    def handle(self, message: Message, reply: ReplyTo) -> None:
        """Store a split that another worker sent, on a thread of the data plane.

        Raises
        ------
        EpsError
            The message is not a split, or the split is not for this worker.
        """
        received = self._transfers.receive(message)
        if not self.state.memberships:
            # This worker is being added: the commit waits for the warm-up, training does not.
            self.loop.program.warm_up(received.split)
        self._report(received)
        reply.send(Message(simple("done")))

    def prepare(self, servers: Iterable[Address]) -> None:
        """Start connecting to the existing servers, for a worker that joins a running job."""
        self._plane.prepare(servers)

    def stop(self) -> None:
        """Make the loop end soon."""
        self._wakeup.stop()

    def close(self) -> None:
        """Close the connections."""
        self._plane.close()


def make_shell(runtime: Runtime, name: MemberId, van: Van, datasets: Datasets, report: Reporter) -> WorkerShell:
    """Return the shell of a worker that trains over a van."""
    state, wakeup, program = WorkerState(name, runtime.settings), Wakeup(), Program(runtime, datasets, van.empty)
    wire = ServerWire(van, runtime.lean, runtime.longest_partition)
    recovery = runtime.spec.recovery
    patience = Patience(recovery.exchange_timeout_s, recovery.master_timeout_s + ROUTING_GRACE_S)
    plane = PushPull(state, wakeup, program, wire, patience)
    loop = TrainingLoop(state, wakeup, program, plane, report)
    return WorkerShell(loop, wakeup, plane, datasets, SplitTransfers(name, van, datasets, report), report)
