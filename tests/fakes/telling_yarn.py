"""The side of a client of YARN that tells what there is, before anything is submitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from eps.cluster.yarn.types import ClusterNode, QueueReport, Resource
from eps.errors import EpsError

#: By default a job fits into it that asks for 6144 MB and 12 cores in all: what has the label is lent.
QUEUE = QueueReport(
    "default",
    "RUNNING",
    0.5,
    1.0,
    0.0,
    ("transient",),
    largest=Resource(3072, 8),
    most={"": Resource(4096, 4), "transient": Resource(2048, 8)},
    counts_cores=True,
)
NODES = (
    ClusterNode("n1:1", "", Resource(4096, 4), Resource(0, 0), (), 0),
    ClusterNode("n2:1", "", Resource(2048, 8), Resource(0, 0), ("transient",), 0),
)


class TellingYarn:
    """One queue, and two nodes, of which one has a label.

    Parameters
    ----------
    nodes : sequence of ClusterNode
    **more
        What the queue has otherwise, as of :class:`~eps.cluster.yarn.types.QueueReport`.
    """

    user = "ada"

    def __init__(self, nodes: Sequence[ClusterNode] = NODES, **more: Any) -> None:
        self._queue, self._nodes = QUEUE, list(nodes)
        self.tells(**more)
        self.asked: list[str] = []
        #: Raised instead of an answer.
        self.away: EpsError | None = None

    def tells(self, **more: Any) -> None:
        """Tell something else of the queue from now on."""
        self._queue = dataclasses.replace(self._queue, **more)

    def queue(self, name: str) -> QueueReport | None:
        return self._queue if self._told(name) == "default" else None

    def nodes(self) -> list[ClusterNode]:
        self._told("nodes")
        return self._nodes

    def _told(self, what: str) -> str:
        self.asked.append(what)
        if self.away is not None:
            raise self.away
        return what

    def close(self) -> None:
        pass
