"""Requests to YARN and its answers, as values.  Pure.

Names of containers, applications and nodes are YARN's own texts (``container_1700000000000_0001_01_000002``,
``application_1700000000000_0001``, ``host:port``).  EPS's container ids name *requests*: YARN names a container only
when it grants one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Execution(StrEnum):
    """YARN's execution types."""

    #: Starts at once on its node, and runs until it is released, preempted or lost.
    GUARANTEED = "guaranteed"
    #: Uses idle capacity; killed without a warning when a guaranteed container needs it.
    OPPORTUNISTIC = "opportunistic"


class FinalStatus(StrEnum):
    """The outcome that an application master reports to YARN."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"


class FileKind(StrEnum):
    """How a NodeManager localizes a file."""

    FILE = "file"
    #: Unpacked into a folder with the file's name.
    ARCHIVE = "archive"


class Visibility(StrEnum):
    """Who shares a NodeManager's copy of a file."""

    PUBLIC = "public"
    #: All applications of one user.
    PRIVATE = "private"
    APPLICATION = "application"


class NodeChange(StrEnum):
    """New state of a node."""

    USABLE = "usable"
    #: Lost, unhealthy or decommissioned.
    UNUSABLE = "unusable"
    #: Decommissioned as soon as its containers have ended, or at its deadline.
    DECOMMISSIONING = "decommissioning"


@dataclass(frozen=True, slots=True)
class Resource:
    """Memory, cores and other resources of a container or a node."""

    memory_mb: int
    vcores: int
    #: Other resources, such as ``("yarn.io/gpu", 1)``, sorted by name.
    others: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        others = "".join(f" and {number} {name}" for name, number in self.others)
        return f"{self.memory_mb} MB and {self.vcores} vcore{'' if self.vcores == 1 else 's'}{others}"

    def fits_in(self, other: Resource) -> bool:
        """Return whether memory and cores fit into ``other``; only YARN accounts for other resources."""
        return self.memory_mb <= other.memory_mb and self.vcores <= other.vcores


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for one container."""

    #: YARN's allocationRequestId, which its grant repeats.  Equal asks of an attempt share one; the first is 1.
    number: int
    resource: Resource
    #: YARN serves lower numbers first, among the asks of one application.
    priority: int = 1
    #: Preferred hosts; YARN may choose others.
    nodes: tuple[str, ...] = ()
    #: Node label; empty: the default partition.
    label: str = ""
    execution: Execution = Execution.GUARANTEED


def host_of(node: str) -> str:
    """Return the host of a node's ``host:port``."""
    return node.rpartition(":")[0] or node


@dataclass(frozen=True, slots=True)
class Grant:
    """A container that YARN granted to the application."""

    container: str
    #: ``host:port`` of its NodeManager.
    node: str
    #: Number of the :class:`Ask` that it answers; unknown to us if YARN granted it without one.
    number: int
    resource: Resource
    execution: Execution = Execution.GUARANTEED

    @property
    def host(self) -> str:
        """Host of the node."""
        return host_of(self.node)

    @property
    def pid(self) -> int:
        """Number of the container, unique within the application.

        It is the last part of the name, plus 10**6 for each earlier attempt of the application, plus 10**9 for each
        restart of the ResourceManager: ``container_e17_1700000000000_0001_02_000005`` is 17001000005.
        """
        _, *epoch, _, _, attempt, sequence = self.container.split("_")
        starts = int(epoch[0].removeprefix("e")) if epoch else 0
        return int(sequence) + 10**6 * (int(attempt) - 1) + 10**9 * starts


@dataclass(frozen=True, slots=True)
class Completed:
    """A container that has ended."""

    container: str
    #: Exit code of its process, or a negative status of YARN.
    exit_status: int
    #: YARN's explanation, of several lines.
    diagnostics: str = ""


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """A change of a node's state."""

    node: str
    change: NodeChange
    #: YARN's word for the node's state.
    state: str = ""
    #: Seconds until a decommissioning node stops its containers; None if YARN does not say.
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """Containers that YARN is about to preempt; it says so once."""

    #: YARN preempts these in any case.
    strict: tuple[str, ...] = ()
    #: YARN preempts these unless the application releases as much elsewhere.
    negotiable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Registration:
    """YARN's answer when an application master registers."""

    #: The largest container that YARN grants.
    largest: Resource
    #: Containers of earlier attempts that still run, or were never started.
    kept: tuple[Grant, ...] = ()
    #: Whether YARN accounts for cores; if not, memory alone decides what fits.
    counts_cores: bool = True


@dataclass(frozen=True, slots=True)
class AllocateResult:
    """YARN's answer to a heartbeat."""

    granted: tuple[Grant, ...] = ()
    completed: tuple[Completed, ...] = ()
    nodes: tuple[NodeUpdate, ...] = ()
    preemption: Preemption | None = None
    #: Capacity that this application may still get now; None if YARN did not say.
    headroom: Resource | None = None
    num_nodes: int = 0
    #: Containers of earlier attempts that YARN has found since.
    kept: tuple[Grant, ...] = ()

    @property
    def has_news(self) -> bool:
        """Whether the answer has any event."""
        return bool(self.granted or self.completed or self.nodes or self.preemption or self.kept)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on the cluster that NodeManagers localize for containers."""

    #: ``hdfs://host:port/path``.
    url: str
    #: Exactly the file's size and time: a NodeManager refuses a file with others.
    size_bytes: int
    timestamp_ms: int
    kind: FileKind = FileKind.FILE
    visibility: Visibility = Visibility.APPLICATION


@dataclass(frozen=True, slots=True)
class Launch:
    """A container's command, environment and files."""

    #: For a shell; YARN replaces ``<LOG_DIR>`` by the container's log directory.
    command: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: Name in the container's folder -> file.
    files: Mapping[str, LocalFile] = field(default_factory=dict)
    #: Tokens in Hadoop's format; empty: none.
    credentials: bytes = field(default=b"", repr=False)
    #: ``view`` and ``modify`` -> further users and groups, in YARN's format.
    access: Mapping[str, str] = field(default_factory=dict)


class ContainerState(StrEnum):
    """State of a container, as its NodeManager reports it."""

    #: Never started there.
    UNKNOWN = "unknown"
    RUNNING = "running"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Submission:
    """An application to submit."""

    name: str
    #: Of the application master's container.
    launch: Launch
    resource: Resource
    queue: str = "default"
    #: For searches; YARN converts them to lower case and allows 10 of at most 100 characters.
    tags: tuple[str, ...] = ()
    application_type: str = "EPS"
    #: The queue serves higher numbers first; None: the queue's default.
    priority: int | None = None
    #: YARN kills the application this long after its submission; None: never.
    lifetime_s: float | None = None
    #: Node label for the application master only; empty: the queue's default.
    label: str = ""
    max_attempts: int = 2
    #: Failed attempts older than this do not count; None: all count.
    failures_valid_s: float | None = None
    keep_containers: bool = True


@dataclass(frozen=True, slots=True)
class ApplicationReport:
    """YARN's report on an application."""

    application_id: str
    name: str
    application_type: str
    user: str
    queue: str
    #: NEW, SUBMITTED, ACCEPTED, RUNNING, FINISHED, FAILED or KILLED.
    state: str
    #: UNDEFINED until the end; then SUCCEEDED, FAILED or KILLED.
    final_status: str
    diagnostics: str
    #: Address of the application master; empty and -1 until it has registered.
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
        """Whether the application has ended."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


#: All states of a node, also those in which it is unusable.
ALL_STATES = (
    "NEW", "RUNNING", "UNHEALTHY", "DECOMMISSIONING", "DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster."""

    node: str
    #: ``host:port`` of its web page.
    http_address: str
    capacity: Resource
    labels: tuple[str, ...]
    num_containers: int
    #: One of :data:`ALL_STATES`.
    state: str = "RUNNING"


@dataclass(frozen=True, slots=True)
class QueueReport:
    """YARN's report on a queue."""

    name: str
    #: RUNNING, STOPPED or DRAINING.
    state: str
    #: Node labels that the queue may use; ``*``: all.
    labels: tuple[str, ...]
    #: Names of the queues below it; a queue with children takes no applications.
    children: tuple[str, ...] = ()
    #: The largest container that YARN grants there; None if YARN does not say.
    largest: Resource | None = None
    #: Node label (empty: nodes without one) -> maximum capacity; labels for which YARN reports none are left out.
    most: Mapping[str, Resource] = field(default_factory=dict)
    #: Whether YARN accounts for cores; False also if it does not say.
    counts_cores: bool = False
    #: False if YARN says that the user may not submit there.
    may_submit: bool = True
