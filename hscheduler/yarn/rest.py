"""What a ResourceManager's REST interface answers, as a :class:`~hscheduler.yarn.snapshot.Snapshot`.  Pure.

Its answers are of several moments: :func:`same_moment` says whether what they tell together was ever true.  What they
do not tell is left to whoever asks the job masters: which of an application's containers are on their way out, and who
is in them.

Source: Hadoop 3.5.0, "ResourceManager REST API's": Cluster Applications API, Cluster Nodes API, Cluster Scheduler API
(Capacity Scheduler), and ``apps/ID/appattempts/ATTEMPT/containers``, which is not described there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hscheduler.core.resources import NOTHING, Resources
from hscheduler.yarn.snapshot import Application, Ask, Held, Node, Queue, Snapshot, User

Document = Mapping[str, Any]

#: An application that is in none of these is over.
STATES = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING")
_MASTER = re.compile(r"/(container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+)(?:/|$)", re.ASCII)
_ANYWHERE = "*"
#: How some releases call the partition of nodes without a label.
_NO_LABEL = "<DEFAULT_PARTITION>"
#: What changes of an application whenever a container of it comes or goes, or is asked for.
_CHANGES = (
    "state",
    "amContainerLogs",
    "amRPCAddress",
    "allocatedMB",
    "allocatedVCores",
    "reservedMB",
    "runningContainers",
    "resourceRequests",
)


@dataclass(frozen=True)
class Answers:
    """What was answered."""

    #: To ``apps``.
    apps: Document
    #: To ``nodes``.
    nodes: Document
    #: To ``scheduler``.
    scheduler: Document
    #: Application id -> to ``apps/ID/appattempts/ATTEMPT/containers``, of those whose containers matter.
    containers: Mapping[str, Document] = field(default_factory=dict)
    #: YARN counts cores, too.
    counts_cores: bool = True
    taken_ms: int = 0


def entries(document: Document, outer: str, inner: str) -> list[Document]:
    """Return a list of an answer: it may be missing, null, or where it has one entry that entry alone."""
    found = (document.get(outer) or {}).get(inner) or []
    return [found] if isinstance(found, Mapping) else list(found)


# ---- queues


def queues_of(scheduler: Document) -> dict[str, Document]:
    """Return the path of each queue -> what is told of it; without the root."""
    return dict(_below((scheduler.get("scheduler") or {}).get("schedulerInfo") or {}, ""))


def _below(info: Document, above: str) -> Iterator[tuple[str, Document]]:
    """Yield path and entry of each queue below one; releases differ in what they tell."""
    name = str(info.get("queueName", ""))
    path = str(info.get("queuePath") or (f"{above}.{name}" if above else name))
    for entry in entries(info, "queues", "queue"):
        yield from _below(entry, path)
    if above:
        yield path, info


def names_of(queues: Mapping[str, Document], asked: Iterable[str]) -> tuple[frozenset[str], list[str]]:
    """Return all that the applications of some queues may name them, and which of the asked there are not."""
    found: set[str] = set()
    unknown = []
    for name in asked:
        paths = [path for path in queues if name in (path, path.rpartition(".")[2])]
        if not paths:
            unknown.append(name)
        for path in paths:
            found |= {path, path.rpartition(".")[2]}
    return frozenset(found), unknown


def most_priority_in(overview: Document) -> int | None:
    """Return the highest priority of applications; None where that is not told.

    Parameters
    ----------
    overview : mapping
        The answer to ``scheduler-overview``.
    """
    found = overview.get("scheduler") or overview
    most = found.get("applicationPriority")
    return None if most is None else int(most)


# ---- applications


def of_queues(apps: Document, queues: frozenset[str]) -> list[Document]:
    """Return the applications of some queues that are not over."""
    found = entries(apps, "apps", "app")
    return [app for app in found if app.get("queue") in queues and app.get("state") in STATES]


def same_moment(before: Sequence[Document], after: Sequence[Document]) -> bool:
    """Return whether nothing has happened to applications between two answers: then what came in between fits both."""

    def told(apps: Sequence[Document]) -> dict[str, tuple[Any, ...]]:
        return {str(app["id"]): tuple(app.get(name) for name in _CHANGES) for app in apps}

    return told(before) == told(after)


def attempt_of(app: Document) -> str:
    """Return the attempt that an application is in; empty where its job master is not there."""
    found = _MASTER.search(str(app.get("amContainerLogs") or ""))
    return f"appattempt_{found[2]}_{int(found[3]):06d}" if found else ""


def priority_of(app: Document) -> int:
    """Return an application's priority: where none was ever given, which YARN tells as -1, it is 0."""
    return max(0, int(app.get("priority") or 0))


def application_of(app: Document, containers: Document | None = None) -> Application:
    """Return an application as the snapshot has it."""
    host, _, port = str(app.get("amRPCAddress") or "").rpartition(":")
    listens = bool(host) and port.isdigit()
    master = _MASTER.search(str(app.get("amContainerLogs") or ""))
    # What outlived the attempt before is not asked for again: then only the master is.
    kept = master is None and int(app.get("runningContainers") or 0) > 0
    tags = "" if kept else str(app.get("applicationTags") or "")
    lacks_master = master is None and not app.get("unmanagedApplication")
    return Application(
        application_id=str(app["id"]),
        name=str(app.get("name", "")),
        state=str(app["state"]),
        queue=str(app.get("queue", "")),
        user=str(app.get("user", "")),
        priority=priority_of(app),
        submitted_ms=int(app.get("startedTime") or 0),
        tags=tuple(tag for tag in tags.split(",") if tag),
        host=host if listens else "",
        port=int(port) if listens else -1,
        diagnostics=str(app.get("diagnostics") or ""),
        asks=tuple(_asks(app, lacks_master)),
        containers=tuple(_held(containers or {}, master[1] if master else "")),
    )


def _asks(app: Document, for_master: bool) -> Iterator[Ask]:
    requests = app.get("resourceRequests") or []
    for request in [requests] if isinstance(requests, Mapping) else requests:
        number = int(request.get("numContainers") or 0)
        # Of one ask, hosts and racks are told as well.
        if number > 0 and request.get("resourceName", _ANYWHERE) == _ANYWHERE:
            label = str(request.get("nodeLabelExpression") or "")
            size = _resources(request.get("capability"))
            yield Ask(for_master, number, size, "" if label == _NO_LABEL else label)


def _held(containers: Document, master: str) -> Iterator[Held]:
    found = containers.get("container") or entries(containers, "containers", "container")
    for container in [found] if isinstance(found, Mapping) else found:
        name = str(container["containerId"])
        size = Resources(int(container.get("allocatedVCores") or 0), int(container.get("allocatedMB") or 0))
        age_ms = int(container.get("elapsedTime") or 0)
        yield Held(name, str(container.get("assignedNodeId", "")), size, name == master, age_ms, 0)


# ---- all of it


def snapshot_of(found: Answers, queues: frozenset[str]) -> Snapshot:
    """Return what there is, with the applications of some queues.

    Raises
    ------
    KeyError, TypeError, ValueError
        It is nothing that a ResourceManager answers.
    """
    apps = of_queues(found.apps, queues)
    applications = [application_of(app, found.containers.get(str(app["id"]))) for app in apps]
    nodes = [_node(node) for node in entries(found.nodes, "nodes", "node") if node.get("state", "RUNNING") == "RUNNING"]
    partitions = sorted({node.partition for node in nodes})
    known = queues_of(found.scheduler)
    limits: list[Queue] = []
    users: list[User] = []
    for name in sorted({a.queue for a in applications}):
        entry = next((info for path, info in known.items() if name in (path, path.rpartition(".")[2])), None)
        for partition in partitions if entry is not None else ():
            reserved = _reserved(apps, name, partition, applications)
            limits.append(_queue(name, entry or {}, partition, reserved))
            users += _users(name, entry or {}, partition, reserved)
    life = str(next((app.get("clusterId", "") for app in apps), ""))
    return Snapshot(
        life, found.taken_ms, found.counts_cores, tuple(nodes), tuple(applications), tuple(limits), tuple(users)
    )


def _node(node: Document) -> Node:
    labels = node.get("nodeLabels") or [""]
    free = Resources(int(node.get("availableVirtualCores") or 0), int(node.get("availMemoryMB") or 0))
    return Node(str(node["id"]), str(labels if isinstance(labels, str) else labels[0]), free)


def _reserved(
    apps: Sequence[Document], queue: str, partition: str, applications: Sequence[Application]
) -> dict[str, Resources]:
    """Return user -> what YARN keeps for applications that wait, and counts as used already."""
    found: dict[str, Resources] = {}
    for app, application in zip(apps, applications, strict=True):
        asks = application.asks
        if application.queue == queue and asks and asks[0].label == partition:
            size = Resources(max(0, int(app.get("reservedVCores") or 0)), max(0, int(app.get("reservedMB") or 0)))
            found[application.user] = found.get(application.user, NOTHING) + size
    return found


def _queue(name: str, entry: Document, partition: str, reserved: Mapping[str, Resources]) -> Queue:
    used = _resources(_of_partition(entry.get("resources"), "resourceUsagesByPartition", partition).get("used"))
    for size in reserved.values():
        used -= size
    most = _capacities(entry, partition).get("effectiveMaxResource")
    return Queue(name, partition, used, _resources(most), entry.get("preemptionDisabled") is True)


def _users(name: str, entry: Document, partition: str, reserved: Mapping[str, Resources]) -> Iterator[User]:
    factor = float(entry.get("userLimitFactor", -1))
    share = _resources(_capacities(entry, partition).get("effectiveMinResource"))
    if factor < 0 or share == NOTHING:
        return
    limit = Resources(int(share.vcores * factor), int(share.memory_mb * factor))
    for user in entries(entry, "users", "user"):
        who = str(user.get("username", ""))
        told = _of_partition(user.get("resources"), "resourceUsagesByPartition", partition).get("used")
        yield User(name, who, partition, _resources(told) - reserved.get(who, NOTHING), limit)


def _capacities(entry: Document, partition: str) -> Document:
    return _of_partition(entry.get("capacities"), "queueCapacitiesByPartition", partition)


def _of_partition(document: Document | None, name: str, partition: str) -> Document:
    found = (document or {}).get(name) or []
    for entry in [found] if isinstance(found, Mapping) else found:
        told = str(entry.get("partitionName") or "")
        if ("" if told == _NO_LABEL else told) == partition:
            return dict(entry)
    return {}


def _resources(document: Document | None) -> Resources:
    found = document or {}
    return Resources(int(found.get("vCores") or 0), int(found.get("memory") or 0))


# ---- what job masters add


def with_marks(snapshot: Snapshot, leaving: frozenset[str]) -> Snapshot:
    """Return a snapshot in which containers are marked that are on their way out."""

    def marked(application: Application) -> Application:
        held = (replace(c, marked=c.container_id in leaving) for c in application.containers)
        return replace(application, containers=tuple(held))

    return replace(snapshot, applications=tuple(map(marked, snapshot.applications)))
