"""A YARN as its users see it, behind :class:`eps.cluster.yarn.facade.Client`: no Hadoop, and nothing runs on it.

It passes the contract of :mod:`tests.contract.yarn_clients`, as the real one does.  An application stays as it was
submitted until a test changes it; every rare answer is an attribute.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from eps.cluster.yarn.application import Application
from eps.cluster.yarn.types import (
    ApplicationReport,
    ClusterNode,
    Launch,
    QueueReport,
    Resource,
    Submission,
)
from eps.errors import ConfigError, EpsError, JobNotFoundError
from eps.storage.jobdir import JobDir

#: The first application that is submitted.
ID = "application_1_0001"
#: By default a job fits into it that asks for 6144 MB and 12 cores in all: what has the label is lent.
QUEUE = QueueReport(
    "default",
    "RUNNING",
    ("transient",),
    largest=Resource(3072, 8),
    most={"": Resource(4096, 4), "transient": Resource(2048, 8)},
    counts_cores=True,
)
NODES = (
    ClusterNode("n1:1", "", Resource(4096, 4), (), 0),
    ClusterNode("n2:1", "", Resource(2048, 8), ("transient",), 0),
)
#: State -> final status; UNDEFINED in all others.
FINAL = {"FINISHED": "SUCCEEDED", "FAILED": "FAILED", "KILLED": "KILLED"}
#: What a report of an application says next: raised, sent to this process, or from then on its state or other fields.
Word = BaseException | signal.Signals | str | Mapping[str, Any]


def report_of(application_id: str, **fields: Any) -> ApplicationReport:
    """Return the report of an application whose master has not registered, but for these fields."""
    told = {"state": "ACCEPTED", "application_type": "EPS", "user": "ada", "queue": "default", **fields}
    told.setdefault("final_status", FINAL.get(told["state"], "UNDEFINED"))
    known = {"name": "", "diagnostics": "", "host": "", "rpc_port": -1, "tracking_url": "http://rm/proxy/"}
    counted = {"progress": 0.0, "tags": (), "attempt": 1, "started_ms": 0, "finished_ms": 0}
    return ApplicationReport(application_id, **{**known, **counted, **told})


class FakeYarnClient:
    """One queue, two nodes of which one has a label, and the applications that were submitted.

    Parameters
    ----------
    nodes : sequence of ClusterNode
    directory : JobDir, optional
        Where whoever submits notes the application.
    **more
        What the queue has otherwise, as of :class:`~eps.cluster.yarn.types.QueueReport`.
    """

    user = "ada"

    def __init__(self, nodes: Sequence[ClusterNode] = NODES, *, directory: JobDir | None = None, **more: Any) -> None:
        self._queue, self._nodes = QUEUE, list(nodes)
        self.tells(**more)
        self.directory = directory
        self.reports: dict[str, ApplicationReport] = {}
        #: What the next reports say, one after the other; the last one stays.
        self.said: list[Word] = []
        #: Raised by a submission, which leaves the application in ``state``; empty: YARN has none of it.
        self.submitting: BaseException | None = None
        self.state = "ACCEPTED"
        #: Raised instead of an end.
        self.killing: BaseException | None = None
        self.killed: list[str] = []
        #: Raised instead of what there is.
        self.away: EpsError | None = None
        self.asked: list[str] = []
        #: The latest submission, and what the directory said of its application then.
        self.submission: Submission | None = None
        self.noted: Application | None = None
        #: The latest application.
        self.started = ""

    # ---- what happens to it

    def tells(self, **more: Any) -> None:
        """Tell something else of the queue from now on."""
        self._queue = dataclasses.replace(self._queue, **more)

    def refuses(self, reason: str) -> None:
        """Take no application."""
        self.submitting, self.state = ConfigError(reason), ""

    def lists(self, application_id: str = ID, **fields: Any) -> None:
        """Have an application of which these are fields of its report."""
        self.reports[application_id] = report_of(application_id, **fields)

    @property
    def launch(self) -> Launch | None:
        """What the latest application master is to run."""
        return None if self.submission is None else self.submission.launch

    # ---- as of eps.cluster.yarn.facade.Client

    def prepare(self) -> None:
        pass

    def obtain_tokens(self, file_systems: Collection[str] = ()) -> bytes:
        return b""

    def new_application(self) -> str:
        number = int(self.started.rpartition("_")[2]) if self.started else 0
        self.started = f"application_1_{number + 1:04d}"
        return self.started

    def submit(self, application_id: str, submission: Submission) -> None:
        self.submission = submission
        self.noted = None if self.directory is None else Application.read(self.directory)
        largest = self._queue.largest
        if largest is not None and submission.resource.memory_mb > largest.memory_mb:
            raise ConfigError(f"{application_id} asks for more memory than the {largest.memory_mb} MB of a container")
        if self.state:
            fields = {"name": submission.name, "application_type": submission.application_type}
            tags = tuple(tag.lower() for tag in submission.tags)
            self.lists(application_id, state=self.state, queue=submission.queue, tags=tags, **fields)
        if self.submitting is not None:
            raise self.submitting

    def report(self, application_id: str) -> ApplicationReport:
        word = self.said.pop(0) if len(self.said) > 1 else next(iter(self.said), {})
        if isinstance(word, BaseException):
            raise word
        if isinstance(word, signal.Signals):
            signal.raise_signal(word)
            word = {}
        self._change(application_id, **({"state": word} if isinstance(word, str) else word))
        return self.reports[application_id]

    def applications(
        self, application_type: str = "EPS", states: Sequence[str] = (), tags: Sequence[str] = ()
    ) -> list[ApplicationReport]:
        wanted = {tag.lower() for tag in tags}
        found = [report for report in self.reports.values() if report.application_type == application_type]
        found = [report for report in found if not states or report.state in states]
        return [report for report in found if not wanted or not wanted.isdisjoint(report.tags)]

    def kill(self, application_id: str, diagnostics: str = "") -> None:
        self.killed.append(application_id)
        if self.killing is not None:
            raise self.killing
        if not self._known(application_id).ended:
            self._change(application_id, state="KILLED", diagnostics=diagnostics)

    def queue(self, name: str) -> QueueReport | None:
        return self._queue if self._told(name) == self._queue.name else None

    def nodes(self, states: Sequence[str] = ("RUNNING",)) -> list[ClusterNode]:
        self._told("nodes")
        return [node for node in self._nodes if node.state in states]

    def close(self) -> None:
        pass

    # ---- helpers

    def _known(self, application_id: str) -> ApplicationReport:
        if application_id not in self.reports:
            raise JobNotFoundError(f"no such application: {application_id}")
        return self.reports[application_id]

    def _change(self, application_id: str, **fields: Any) -> None:
        before = self._known(application_id)
        if "state" in fields:
            fields = {"final_status": FINAL.get(fields["state"], "UNDEFINED"), **fields}
        self.reports[application_id] = dataclasses.replace(before, **fields)

    def _told(self, what: str) -> str:
        self.asked.append(what)
        if self.away is not None:
            raise self.away
        return what
