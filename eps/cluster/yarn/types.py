"""What is said to and by YARN, as values.  Pure.

Names of containers, applications and nodes are YARN's own texts (``container_1700000000000_0001_01_000002``,
``application_1700000000000_0001``, ``host:port``).  What EPS calls a container is the *request* here: YARN names a
container only when it grants one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Execution(StrEnum):
    """YARN's execution types."""

    #: Starts at once where it was granted, and stays until it is released, preempted or lost.
    GUARANTEED = "guaranteed"
    #: Takes room that nobody uses; killed without a warning as soon as a guaranteed container needs it.
    OPPORTUNISTIC = "opportunistic"


class FinalStatus(StrEnum):
    """How an application says that it ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"


class FileKind(StrEnum):
    """What a NodeManager makes of a file that it brings to a container."""

    FILE = "file"
    #: Unpacked into a folder of its name.
    ARCHIVE = "archive"


class Visibility(StrEnum):
    """Who shares a NodeManager's copy of a file."""

    PUBLIC = "public"
    #: All applications of one user.
    PRIVATE = "private"
    APPLICATION = "application"


class NodeChange(StrEnum):
    """What became of a node."""

    USABLE = "usable"
    #: Lost, unhealthy or taken out.
    UNUSABLE = "unusable"
    #: To be taken out when its containers have ended, or at its deadline.
    DECOMMISSIONING = "decommissioning"


@dataclass(frozen=True, slots=True)
class Resource:
    """Memory and cores, and what else a container has."""

    memory_mb: int
    vcores: int
    #: Other resources, as ``("yarn.io/gpu", 1)``, by name.
    others: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        others = "".join(f" and {number} {name}" for name, number in self.others)
        return f"{self.memory_mb} MB and {self.vcores} vcore{'' if self.vcores == 1 else 's'}{others}"

    def fits_in(self, other: Resource) -> bool:
        """Return whether ``other`` has memory and cores for this; of other resources YARN alone keeps count."""
        return self.memory_mb <= other.memory_mb and self.vcores <= other.vcores


@dataclass(frozen=True, slots=True)
class Ask:
    """One container that is asked for."""

    #: YARN's allocationRequestId: what is granted for it carries it.  Equal asks of an attempt have the same, from 1.
    number: int
    resource: Resource
    #: Lower goes first, among the asks of one application.
    priority: int = 1
    #: Hosts that would suit; others will do.
    nodes: tuple[str, ...] = ()
    #: Node label; empty: the default partition.
    label: str = ""
    execution: Execution = Execution.GUARANTEED


def host_of(node: str) -> str:
    """Return the host in a node's ``host:port``."""
    return node.rpartition(":")[0] or node


@dataclass(frozen=True, slots=True)
class Grant:
    """A container that YARN gave the application."""

    container: str
    #: ``host:port`` of its NodeManager.
    node: str
    #: Of the ask that it answers; what YARN gives without one has a number that nobody asked.
    number: int
    resource: Resource
    execution: Execution = Execution.GUARANTEED

    @property
    def host(self) -> str:
        """Host of the node."""
        return host_of(self.node)

    @property
    def pid(self) -> int:
        """The number of the container, unique within the application.

        It is the last part of the name, plus a million for each earlier attempt of the application, plus a billion for
        each earlier start of the ResourceManager: ``container_e17_1700000000000_0001_02_000005`` is 17001000005.
        """
        _, *epoch, _, _, attempt, sequence = self.container.split("_")
        starts = int(epoch[0].removeprefix("e")) if epoch else 0
        return int(sequence) + 10**6 * (int(attempt) - 1) + 10**9 * starts


@dataclass(frozen=True, slots=True)
class Completed:
    """A container that has ended."""

    container: str
    #: Of its process, or one of YARN's own below 0.
    exit_status: int
    #: Whatever YARN has to say, over several lines.
    diagnostics: str = ""


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """Something happened to a node."""

    node: str
    change: NodeChange
    #: YARN's word for the node's state.
    state: str = ""
    #: Of a node that is decommissioned: seconds that its containers have left; None where YARN does not say.
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """Containers that YARN wants back; it says so once."""

    #: These go, whatever the application does.
    strict: tuple[str, ...] = ()
    #: These go, unless the application gives back as much otherwise.
    negotiable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registration:
    """What an application master is told when it registers."""

    #: The largest container that YARN grants.
    largest: Resource
    queue: str = ""
    #: Containers of the attempts before, that run or were never started.
    kept: tuple[Grant, ...] = ()
    #: YARN counts cores, too; else memory alone decides what fits.
    counts_cores: bool = True


@dataclass(frozen=True, slots=True)
class AllocateResult:
    """What a heartbeat brought."""

    granted: tuple[Grant, ...] = ()
    completed: tuple[Completed, ...] = ()
    nodes: tuple[NodeUpdate, ...] = ()
    preemption: Preemption | None = None
    #: What YARN has left for this application now; None where it did not say.
    headroom: Resource | None = None
    num_nodes: int = 0
    #: Containers of the attempts before that YARN found again since.
    kept: tuple[Grant, ...] = ()

    @property
    def has_news(self) -> bool:
        """Whether something has happened."""
        return bool(self.granted or self.completed or self.nodes or self.preemption or self.kept)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file in a file system of the cluster that a NodeManager brings to a container."""

    #: ``hdfs://host:port/path``.
    url: str
    #: Exactly those of the file there: a NodeManager refuses any other.
    size_bytes: int
    timestamp_ms: int
    kind: FileKind = FileKind.FILE
    visibility: Visibility = Visibility.APPLICATION


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to run in a container."""

    #: Run by a shell; ``<LOG_DIR>`` in it becomes the container's log directory.
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: Name in the container's folder -> file.
    files: Mapping[str, LocalFile] = field(default_factory=dict)
    #: Tokens in Hadoop's format; empty: none.
    credentials: bytes = field(default=b"", repr=False)
    #: ``view`` and ``modify`` -> users and groups beside the application's own, as YARN writes them.
    access: Mapping[str, str] = field(default_factory=dict)


class ContainerState(StrEnum):
    """What a NodeManager says of a container."""

    #: It has not been started there.
    UNKNOWN = "unknown"
    RUNNING = "running"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Submission:
    """An application to submit."""

    name: str
    #: The application master's.
    launch: Launch
    resource: Resource
    queue: str = "default"
    #: Searchable; YARN makes them lower case and allows 10 of at most 100 characters.
    tags: tuple[str, ...] = ()
    application_type: str = "EPS"
    #: Higher goes first in the queue; None: the queue's default.
    priority: int | None = None
    #: YARN ends the application so many seconds after its submission; None: never.
    lifetime_s: float | None = None
    #: Of the application master's node alone; empty: the queue's default.
    label: str = ""
    max_attempts: int = 2
    #: Failed attempts older than this are forgotten; None: they all count.
    failures_valid_s: float | None = None
    keep_containers: bool = True


def submission_values(submission: Submission) -> dict[str, Any]:
    """Return a submission as values of JSON, for :func:`submission_of`."""
    values = asdict(submission)
    values["launch"]["credentials"] = base64.b64encode(submission.launch.credentials).decode("ascii")
    return values


def submission_of(values: Mapping[str, Any]) -> Submission:
    """Return the submission that :func:`submission_values` has made values of.

    Raises
    ------
    KeyError, TypeError, ValueError
        It has not made these.
    """
    launch = values["launch"]
    files = {name: local_file_of(file) for name, file in launch["files"].items()}
    found = Launch(**{**launch, "files": files, "credentials": base64.b64decode(launch["credentials"])})
    others = tuple((name, number) for name, number in values["resource"]["others"])
    resource = Resource(**{**values["resource"], "others": others})
    return Submission(**{**values, "launch": found, "resource": resource, "tags": tuple(values["tags"])})


def local_file_of(values: Mapping[str, Any]) -> LocalFile:
    """Return the file of which these are the fields, its kinds as words."""
    kinds = {"kind": FileKind(values["kind"]), "visibility": Visibility(values["visibility"])}
    return LocalFile(**{**values, **kinds})


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """What YARN says of an application."""

    application_id: str
    name: str
    application_type: str
    user: str
    queue: str
    #: YARN's word: NEW, SUBMITTED, ACCEPTED, RUNNING, FINISHED, FAILED, KILLED.
    state: str
    #: UNDEFINED until it has ended; then SUCCEEDED, FAILED or KILLED.
    final_status: str
    diagnostics: str
    #: Where the application master listens; empty and -1 until it has registered.
    host: str
    rpc_port: int
    tracking_url: str
    progress: float
    tags: tuple[str, ...]
    attempt: int
    started_ms: int
    finished_ms: int

    @property
    def ended(self) -> bool:
        """Whether nothing of it will run any more."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


#: States of a node, those in which nothing can be had of it included.
ALL_STATES = (
    "NEW", "RUNNING", "UNHEALTHY", "DECOMMISSIONING", "DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster that can be used."""

    node: str
    #: ``host:port`` of its web page.
    http_address: str
    capacity: Resource
    used: Resource
    labels: tuple[str, ...]
    num_containers: int
    #: YARN's word.
    state: str = "RUNNING"


@dataclass(frozen=True, slots=True)
class QueueReport:
    """What YARN says of a queue."""

    name: str
    #: RUNNING, STOPPED or DRAINING.
    state: str
    #: Shares of the whole cluster: granted to it, and how much of that is used; 1.0 is all.
    capacity: float
    maximum_capacity: float
    used_capacity: float
    #: Node labels that it may use; ``*`` is all of them.
    labels: tuple[str, ...]
    #: Of one that takes no applications itself: the names of those below it.
    children: tuple[str, ...] = ()
    #: The largest container that is granted there; None where YARN does not tell.
    largest: Resource | None = None
    #: Node label (empty: the nodes without) -> the most that it may have there; of what YARN does not tell, nothing.
    most: Mapping[str, Resource] = field(default_factory=dict)
    #: YARN counts cores, too; False also where it does not tell.
    counts_cores: bool = False
    #: False where YARN tells that whoever asks may not submit there.
    may_submit: bool = True
