"""What a worker does at the master's orders: its loop, its splits, its reports.

Source: EPS §2.2, §3.1.2 (worker-to-worker transmission of splits).
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from eps.core import messages as m
from eps.core.types import MemberId, Role
from eps.core.worker_state import WorkerState
from eps.net.arrays.api import Van
from eps.spec.runtime import Runtime
from eps.worker.datasets import Datasets
from eps.worker.loop import Reporter, TrainingLoop
from eps.worker.program import Program
from eps.worker.push_pull import ROUTING_GRACE_S, Patience, PushPull
from eps.worker.transfers import Transfers
from eps.worker.wire import ServerWire


class Disk(Protocol):
    """The splits of a worker, as :class:`eps.worker.datasets.Datasets` keeps them."""

    def load_initial(self, split: int) -> None:
        """Take a split from the prepared data set; no plan that ends takes it away again."""

    def activate(self, split: int) -> object:
        """Read a split into memory, if it is not there."""

    def close_plan(self, plan_id: int, keep: bool) -> None:
        """End a plan: keep what it brought, or forget it."""


class WorkerShell:
    """Executes the orders of the master, on the session's thread.

    Parameters
    ----------
    name : str
    loop : TrainingLoop
    datasets : Disk
    transfers : Transfers
    report : Reporter
    """

    def __init__(
        self, name: MemberId, loop: TrainingLoop, datasets: Disk, transfers: Transfers, report: Reporter
    ) -> None:
        self.name = name
        self.loop = loop
        self._datasets = datasets
        self._transfers = transfers
        self._report = report
        #: (plan, split) that are being sent or loaded; those that were, too, so that a repeat is told apart.
        self._under_way: set[tuple[int, int]] = set()

    def on_order(self, order: m.Order) -> None:
        """Do what the master says."""
        match order:
            case m.GrantHorizon():
                self.loop.on_grant(order)
            case m.UpdateMembership(plan_id, membership):
                # The data must be there before the acknowledgement: the commit's clock may come at once.
                if membership.version == 1 or membership.takes_over:
                    for split in membership.splits.active_on(self.name):
                        self._datasets.load_initial(split)
                self._datasets.close_plan(plan_id, keep=True)
                acked = self.loop.on_membership(plan_id, membership)
                for split in self.loop.needed():
                    self._datasets.activate(split)
                self._report(acked)
            case m.UpdateLists(plan_id, added):
                servers = [entry.address for entry in added if Role.SERVER in entry.roles]
                self.loop.prepare(servers)
                self._report(m.ListsUpdated(self.name, plan_id))
            case m.SendSplits(plan_id, transfers):
                for target in transfers:
                    if self._is_new(plan_id, target.item):
                        self._transfers.send(plan_id, target)
            case m.LoadSplits(plan_id, splits):
                for split in splits:
                    if self._is_new(plan_id, split):
                        self._transfers.load(plan_id, split)
            case m.TakeInventory(recovery):
                self._report(self.loop.inventory(recovery))
            case m.AbortPlan(plan_id):
                self._datasets.close_plan(plan_id, keep=False)
                self._forget(plan_id)
            case m.ReleasePlan(plan_id, _):
                self.loop.on_release(plan_id)
                self._forget(plan_id)

    def _is_new(self, plan_id: int, split: int) -> bool:
        """Return whether a transfer has not begun: the master repeats its order while a split is missing."""
        if (plan_id, split) in self._under_way:
            return False
        self._under_way.add((plan_id, split))
        return True

    def _forget(self, plan_id: int) -> None:
        """Forget the transfers of a plan: plans come one after the other."""
        self._transfers.forget(plan_id)
        self._under_way = {(plan, split) for plan, split in self._under_way if plan > plan_id}


def make_loop(
    runtime: Runtime, name: MemberId, van: Van, datasets: Datasets, report: Reporter
) -> tuple[TrainingLoop, Program]:
    """Return the loop of a worker that trains over a van, and its program."""
    state, changed = WorkerState(name, runtime.settings), threading.Condition()
    program = Program(runtime, datasets, van.empty)
    patience = Patience(runtime.spec.exchange_timeout_s, runtime.spec.master_timeout_s + ROUTING_GRACE_S)
    plane = PushPull(
        state,
        changed,
        program,
        ServerWire(van, runtime.lean, runtime.longest_partition),
        patience,
        time.monotonic,
        skip_unchanged=runtime.lean.skip_unchanged,
    )
    return TrainingLoop(state, changed, program, plane, report), program
