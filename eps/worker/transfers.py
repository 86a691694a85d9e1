"""Splits on their way between workers.

Source: EPS §3.1.2 (worker-to-worker transmission of splits), Figs 8 and 11.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from eps.core import messages as m
from eps.core.types import MemberId
from eps.errors import EpsError, ProtocolError
from eps.net.arrays.api import Message, Peers, Van
from eps.net.messages.exchange import parse_header, simple
from eps.worker.datasets import Datasets
from eps.worker.loop import Reporter

logger = logging.getLogger(__name__)

TRANSFER_TIMEOUT_S = 120.0


class Transfers(Protocol):
    """Brings splits to where a plan makes them active, and reports to the master what came of it."""

    def send(self, plan_id: int, target: m.Target) -> None:
        """Send a split to another worker; returns at once."""

    def load(self, plan_id: int, split: int) -> None:
        """Read a split that is on this worker's disk; returns at once."""

    def receive(self, message: Message) -> m.SplitReceived:
        """Take a split that another worker sends; return what to report of it."""

    def forget(self, plan_id: int) -> None:
        """End what belongs to a plan; plans come one after the other."""


class SplitTransfers:
    """Transfers over a van, on a thread of their own.

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
        """Read an inactive split that a plan makes active here (EPS Fig. 11); returns at once."""
        self._pool.submit(self._load, plan_id, split)

    def forget(self, plan_id: int) -> None:
        """Close the connections on which splits were sent: none is on its way."""
        self._peers.keep(())

    def _send(self, plan_id: int, target: m.Target) -> None:
        """Copy a split to another worker; it stays here, active until the commit, then inactive (EPS Fig. 8)."""
        if self._datasets.is_closed(plan_id):
            return
        try:
            content = np.frombuffer(self._datasets.content(target.item), np.uint8)
            header = simple("split_copy", plan_id=plan_id, split=target.item)
            self._peers.to(target.address).request(Message(header, (content,))).result(TRANSFER_TIMEOUT_S)
        except (EpsError, OSError, TimeoutError) as error:
            self._failed(plan_id, f"split {target.item} did not reach {target.target}: {error}")

    def _load(self, plan_id: int, split: int) -> None:
        try:
            self._datasets.activate(split)
        except (EpsError, OSError) as error:
            self._failed(plan_id, f"split {split} cannot be read: {error}")
            return
        self._report(m.SplitReceived(self._name, plan_id, split, 0, self._datasets.checksum(split)))

    def _failed(self, plan_id: int, message: str) -> None:
        logger.warning("W[%s] %s", self._name, message)
        if not self._datasets.is_closed(plan_id):
            self._report(m.TransferFailed(self._name, plan_id, message))

    def receive(self, message: Message) -> m.SplitReceived:
        """Take a split that another worker sends; return what to report of it.

        Raises
        ------
        ProtocolError
            The message is not a split.
        TransferError
            The split is not what the job's data was cut into.
        """
        header = parse_header(message)
        if header.WhichOneof("kind") != "split_copy" or len(message.arrays) != 1:
            raise ProtocolError(f"a worker does not answer messages of kind {header.WhichOneof('kind')!r}")
        copy = header.split_copy
        size_bytes, checksum = self._datasets.receive(copy.plan_id, copy.split, message.arrays[0].data)
        # It is to be active soon: read it now, so that the first clock does not wait for the disk.
        self._datasets.activate(copy.split)
        return m.SplitReceived(self._name, copy.plan_id, copy.split, size_bytes, checksum)
