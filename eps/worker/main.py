"""A worker process: wiring of session, data plane, datasets and training loop.

Source: EPS §2.2, §3.1.2 (worker-to-worker transmission of splits).
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eps.core import messages as m
from eps.core.types import Address
from eps.errors import EpsError, ProtocolError
from eps.net.arrays.api import Message, ReplyTo
from eps.net.arrays.memory import raise_descriptor_limit, tune_malloc
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.arrays.peers import Peers
from eps.net.arrays.traffic import TRAFFIC
from eps.net.control.session import MemberSession, Patience, master_finder
from eps.net.messages.exchange import parse_header, simple
from eps.net.security.credentials import Security
from eps.spec.runtime import Runtime
from eps.system.logs import set_up_logging
from eps.worker.datasets import Datasets
from eps.worker.loop import TrainingLoop

if TYPE_CHECKING:
    from eps.cluster.supervisor.context import ContainerContext

logger = logging.getLogger(__name__)

TRANSFER_TIMEOUT_S = 120.0


class Worker:
    """One worker process."""

    def __init__(self, context: ContainerContext) -> None:
        self._context = context
        self._security = Security.of_job(context.job_dir)
        self._van = NegotiatedVan(self._security)
        self._loop: TrainingLoop | None = None
        self._runtime: Runtime | None = None
        self._datasets: Datasets | None = None
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._session: MemberSession | None = None
        self._peers = Peers(self._van)
        self._transfers = ThreadPoolExecutor(1, thread_name_prefix="transfer")
        #: (plan, split) that are being sent or loaded; those that were, too, so that a repeat is told apart.
        self._under_way: set[tuple[int, int]] = set()
        self._exit_code = 0
        self.name = context.container_id

    def run(self) -> int:
        """Register, train, and return the exit code."""
        listener = self._van.listen(self._handle, self._context.host)
        assert self._context.master_address is not None
        session = MemberSession(
            self._context.master_address,
            self._context.container_id,
            listener.address,
            os.getpid(),
            self._security,
            find=master_finder(self._context.job_dir),
        )
        self._session = session
        welcome = session.open(self._on_order, self._on_session_end)()
        self.name = welcome.name
        self._runtime = runtime = Runtime.from_json(welcome.job_json).within(self._context.job_dir)
        session.be_patient(Patience.of_job(runtime.spec.member_timeout_s, runtime.spec.master_timeout_s))
        self._van.restrict_to(runtime.spec.van)
        self._van.on_reached = lambda peer, way: session.report(m.PeerReached(self.name, peer, way), can_wait=True)
        self._datasets = Datasets(runtime, runtime.job_dir / "containers" / self._context.container_id / "splits")
        self._loop = TrainingLoop(runtime, self.name, self._van, self._datasets, session.report)
        self._loop.prepare([Address(server.host, server.port) for server in welcome.servers])
        self._ready.set()
        logger.info("W[%s] M ready at %s", self.name, listener.address)
        try:
            self._loop.run()
        except Exception as error:
            # A user's model may raise anything; the master must know why this worker stops.
            if not self._ended.is_set():
                logger.exception("W[%s] cannot go on", self.name)
                session.report(m.MemberFailed(self.name, type(error).__name__, describe(error)))
        # Nobody needs anything of this worker any more, so the end of the process is all the tidying there is.
        self._ended.wait()
        return self._exit_code

    # ---- orders of the master (on the session's thread)

    def _on_order(self, order: m.Order) -> None:
        if isinstance(order, m.Shutdown):
            self._end(0, order.reason)
            return
        self._ready.wait()
        assert self._loop is not None and self._datasets is not None and self._session is not None
        match order:
            case m.GrantHorizon():
                self._loop.on_grant(order)
            case m.UpdateMembership(plan_id, membership):
                # The data must be there before the acknowledgement: the commit's clock may come at once.
                if membership.version == 1 or membership.takes_over:
                    for split in membership.splits.active_on(self.name):
                        self._datasets.load_initial(split)
                self._datasets.close_plan(plan_id, keep=True)
                acked = self._loop.on_membership(plan_id, membership)
                for split in self._loop.needed():
                    self._datasets.activate(split)
                self._session.report(acked)
            case m.UpdateLists(plan_id, added):
                self._loop.on_lists(added)
                self._session.report(m.ListsUpdated(self.name, plan_id))
            case m.SendSplits(plan_id, transfers):
                for target in transfers:
                    # The master repeats the order while a split is missing; one that is on its way is not sent twice.
                    if (plan_id, target.item) not in self._under_way:
                        self._under_way.add((plan_id, target.item))
                        self._transfers.submit(self._send_split, plan_id, target)
            case m.LoadSplits(plan_id, splits):
                for split in splits:
                    if (plan_id, split) not in self._under_way:
                        self._under_way.add((plan_id, split))
                        self._transfers.submit(self._load_split, plan_id, split)
            case m.TakeInventory(recovery):
                self._session.report(self._loop.inventory(recovery))
            case m.AbortPlan(plan_id):
                self._datasets.close_plan(plan_id, keep=False)
                self._forget(plan_id)
            case m.ReleasePlan(plan_id, _):
                self._loop.on_release(plan_id)
                self._forget(plan_id)

    def _forget(self, plan_id: int) -> None:
        """Close the connections on which splits were sent: plans come one after the other, so none is on its way."""
        self._peers.keep(())
        self._under_way = {(plan, split) for plan, split in self._under_way if plan > plan_id}

    def _on_session_end(self, error: EpsError | None) -> None:
        if error is not None and not self._ended.is_set():
            self._end(1, f"the job master is gone: {error}")

    def _end(self, exit_code: int, reason: str) -> None:
        logger.info("W[%s] %s", self.name, TRAFFIC)
        # Last: of a container that failed, YARN tells what it wrote last.
        logger.info("W[%s] M ends: %s", self.name, reason)
        self._exit_code = exit_code
        self._ended.set()
        if self._loop is not None:
            self._loop.stop()
        if not self._ready.is_set():
            # Told to end before the welcome: nothing was begun that would need an orderly end.
            os._exit(exit_code)

    # ---- worker to worker

    def _send_split(self, plan_id: int, target: m.Target) -> None:
        """Copy a split to another worker; it stays here, active until the commit, then inactive (EPS Fig. 8)."""
        assert self._datasets is not None
        if self._datasets.is_closed(plan_id):
            return
        try:
            content = np.frombuffer(self._datasets.content(target.item), np.uint8)
            header = simple("split_copy", plan_id=plan_id, split=target.item)
            self._peers.to(target.address).request(Message(header, (content,))).result(TRANSFER_TIMEOUT_S)
        except (EpsError, OSError, TimeoutError) as error:
            self._transfer_failed(plan_id, f"split {target.item} did not reach {target.target}: {error}")

    def _load_split(self, plan_id: int, split: int) -> None:
        """Read an inactive split that a plan makes active here (EPS Fig. 11)."""
        assert self._datasets is not None and self._session is not None and self._runtime is not None
        try:
            self._datasets.activate(split)
        except (EpsError, OSError) as error:
            self._transfer_failed(plan_id, f"split {split} cannot be read: {error}")
            return
        checksum = self._runtime.shape.split_checksums[split]
        self._session.report(m.SplitReceived(self.name, plan_id, split, 0, checksum))

    def _transfer_failed(self, plan_id: int, message: str) -> None:
        assert self._datasets is not None and self._session is not None
        logger.warning("W[%s] %s", self.name, message)
        if not self._datasets.is_closed(plan_id):
            self._session.report(m.TransferFailed(self.name, plan_id, message))

    def _handle(self, message: Message, reply: ReplyTo) -> None:
        header = parse_header(message)
        if header.WhichOneof("kind") != "split_copy" or len(message.arrays) != 1:
            raise ProtocolError(f"a worker does not answer messages of kind {header.WhichOneof('kind')!r}")
        if not self._ready.wait(TRANSFER_TIMEOUT_S):
            raise ProtocolError("this worker is not ready to receive splits")
        assert self._datasets is not None and self._session is not None
        copy = header.split_copy
        size_bytes, checksum = self._datasets.receive(copy.plan_id, copy.split, message.arrays[0].data)
        # It is to be active soon: read it now, so that the first clock does not wait for the disk.
        self._datasets.activate(copy.split)
        assert self._loop is not None
        self._loop.warm_up(copy.split)
        self._session.report(m.SplitReceived(self.name, copy.plan_id, copy.split, size_bytes, checksum))
        reply.send(Message(simple("done")))


def describe(error: Exception) -> str:
    """Return an error in words; one that is not ours with its type and the line that raised it."""
    if isinstance(error, EpsError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def run(context: ContainerContext) -> int:
    """Entry point of a worker's container."""
    set_up_logging()
    tune_malloc()
    raise_descriptor_limit()
    return Worker(context).run()
