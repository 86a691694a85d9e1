"""A small YARN as its REST interface tells it, with the masters of its jobs, in memory, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eps.cluster.yarn.queues import counts_cores
from eps.core.reconfig import Operation
from eps.errors import EpsError, JobNotFoundError
from hscheduler.yarn.snapshot import Application
from tests.hscheduler.yarn_world import container

CORES, MEMORY_MB = 1, 1024
TAGS = "eps.workers=1,eps.servers=1,eps.worker=1024x1,eps.server=1024x1"
NODES = ("n1:1", "n2:1")


def size(vcores: int) -> dict[str, int]:
    """Return an amount as YARN tells it."""
    return {"memory": vcores * MEMORY_MB, "vCores": vcores}


@dataclass
class App:
    """An application: its containers have one core each."""

    number: int
    #: Its job master's node; empty while it waits for it.
    master: str = "n1:1"
    #: Container -> node, of its members.
    members: dict[str, str] = field(default_factory=dict)
    #: Containers that it asks for.
    asks: int = 0
    priority: int = 0
    kind: str = "EPS"
    queue: str = "eps"
    tags: str = TAGS
    diagnostics: str = ""
    over: bool = False

    @property
    def id(self) -> str:
        """As YARN calls it."""
        return f"application_1700000000000_{self.number:04d}"

    def document(self) -> dict[str, Any]:
        """Return it as YARN tells it."""
        held = len(self.members) + bool(self.master)
        request = {
            "resourceName": "*",
            "numContainers": self.asks,
            "capability": size(CORES),
            "nodeLabelExpression": "<DEFAULT_PARTITION>",
        }
        found: dict[str, Any] = {
            "id": self.id,
            "name": f"job-{self.number}",
            "user": "ada",
            "queue": self.queue,
            "state": "RUNNING" if self.master else "ACCEPTED",
            "applicationTags": self.tags,
            "applicationType": self.kind,
            "priority": self.priority or -1,
            "startedTime": self.number,
            "diagnostics": self.diagnostics,
            "clusterId": 1700000000000,
            "runningContainers": held,
            "allocatedMB": held * MEMORY_MB,
        }
        if self.asks:
            found["resourceRequests"] = [request, {**request, "resourceName": "n1"}]
        if self.master:
            found["amContainerLogs"] = f"http://{self.master}/node/containerlogs/{container(self.number, 1)}/ada"
            found["amRPCAddress"] = f"n1:{40000 + self.number}"
        return found

    def containers(self) -> dict[str, Any]:
        """Return its containers as YARN tells them."""
        held = {container(self.number, 1): self.master, **self.members} if self.master else {}
        return {
            "container": [
                {"containerId": name, "assignedNodeId": node, "allocatedMB": MEMORY_MB, "allocatedVCores": CORES}
                | {"elapsedTime": 90_000 - k}
                for k, (name, node) in enumerate(held.items())
            ]
        }


class FakeWeb:
    """A ResourceManager: nodes of four cores, a queue that may have all of them."""

    def __init__(self, *apps: App, nodes: Sequence[str] = NODES, cores: int = 4, memory_mb: int = MEMORY_MB) -> None:
        self.apps = list(apps)
        #: Megabytes of a node for each of its cores.
        self.nodes, self.cores, self.memory_mb = nodes, cores, memory_mb
        #: Cores that the queue may have; all where it is None.
        self.most: int | None = None
        self.most_priority = 10
        #: What the queue's job masters may have at once, in memory and cores; None: it is not told.
        self.am_limit: dict[str, int] | None = None
        #: What the files of the cluster name.
        self.calculator = "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
        #: Done before an answer to a path is given.
        self.before: dict[str, Callable[[], None]] = {}
        #: Raised instead of an answer.
        self.error: EpsError | None = None
        self.priorities: list[tuple[str, int]] = []

    def look(self, path: str, what: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """See :class:`hscheduler.live.yarn_reader.Web`."""
        if self.error is not None:
            raise self.error
        self.before.get(path, lambda: None)()
        match path.split("/"):
            case ["scheduler"]:
                return self._scheduler()
            case ["scheduler-overview"]:
                kinds = "memory-mb (unit=Mi), vcores"
                return {"scheduler": {"schedulingResourceType": kinds, "applicationPriority": self.most_priority}}
            case ["apps"]:
                kind, states = (query or {}).get("applicationTypes"), (query or {}).get("states", "").split(",")
                found = [a.document() for a in self.apps if not a.over and kind in (None, a.kind)]
                return {"apps": {"app": [app for app in found if app["state"] in states]} if found else None}
            case ["nodes"]:
                return {"nodes": {"node": [self._node(name) for name in self.nodes]}}
            case ["apps", name, "appattempts", attempt, "containers"]:
                app = next((a for a in self.apps if a.id == name and not a.over), None)
                if app is None:
                    raise JobNotFoundError(f"no {name}")
                assert attempt == f"appattempt_1700000000000_{app.number:04d}_000001"
                return app.containers()
        raise JobNotFoundError(f"no {path}")

    def counts_cores(self, info: Mapping[str, Any]) -> bool:
        """See :class:`hscheduler.live.yarn_reader.Web`."""
        return counts_cores(info, self.calculator)

    def set_priority(self, application_id: str, priority: int) -> int:
        """See :class:`hscheduler.live.yarn_reader.Web`."""
        if self.error is not None:
            raise self.error
        given = min(priority, self.most_priority)
        self.priorities.append((application_id, given))
        next(a for a in self.apps if a.id == application_id).priority = given
        return given

    def used(self, node: str = "") -> int:
        """Return the cores in use, of one node or of all."""
        places = [p for a in self.apps if not a.over for p in (a.master, *a.members.values()) if p]
        return sum(1 for place in places if node in ("", place))

    def free(self, node: str) -> int:
        """Return the cores of a node that are free."""
        return self.cores - self.used(node)

    def _node(self, name: str) -> dict[str, Any]:
        left = self.free(name)
        memory = self.cores * self.memory_mb - self.used(name) * MEMORY_MB
        return {"id": name, "state": "RUNNING", "availMemoryMB": memory, "availableVirtualCores": left}

    def _scheduler(self) -> dict[str, Any]:
        used = {"resourceUsagesByPartition": [{"partitionName": "", "used": size(self.used())}]}
        if self.am_limit is not None:
            used["resourceUsagesByPartition"][0]["amLimit"] = self.am_limit
        cores = len(self.nodes) * self.cores if self.most is None else self.most
        most = {"partitionName": "", "effectiveMaxResource": size(cores), "effectiveMinResource": size(4)}
        most["maxAMLimitPercentage"] = 80.0
        eps = {
            "queueName": "eps",
            "queuePath": "root.eps",
            "resources": used,
            "capacities": {"queueCapacitiesByPartition": [most]},
            "userLimitFactor": 10.0,
            "users": {"user": [{"username": "ada", "resources": used}]},
        }
        return {"scheduler": {"schedulerInfo": {"queueName": "root", "queues": {"queue": [eps]}}}}


class FakeJob:
    """The master of a job: every container of the application is a member, the first is the server."""

    def __init__(self, app: App, *, clock: int = 100, state: str = "running", manager: str = "") -> None:
        self.app = app
        self.clock, self.state, self.manager = clock, state, manager
        self.names = {name: "server-1" if k == 0 else f"worker-{k}" for k, name in enumerate(app.members)}
        #: Changes that have not ended.
        self.changes: list[dict[str, Any]] = []
        #: What was asked of it, in order.
        self.asked: list[tuple[object, ...]] = []
        self.refusal: EpsError | None = None

    def status(self) -> dict[str, Any]:
        """Return its status."""
        members = [
            {"name": member, "role": member.partition("-")[0], "container": "container-0001", "granted": name}
            for name, member in self.names.items()
        ]
        plan, *queued = self.changes or [None]
        return {
            "state": self.state,
            "clock": self.clock,
            "members": members,
            "plan": plan,
            "queued": queued,
            "manager": self.manager,
        }

    def grow(self, phase: str = "proposed", asked_by: str = "user") -> None:
        """Have it ask for a worker."""
        self.changes.append(
            {"plan_id": 7, "operation": "add-workers", "phase": phase, "asked_by": asked_by, "removed": [], "added": []}
        )

    def cancel(self, plan_id: int) -> int:
        """See :class:`eps.job.client.Job`."""
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(("cancel", plan_id))
        self.changes = [change for change in self.changes if change["plan_id"] != plan_id]
        return plan_id

    def change(
        self,
        operation: Operation,
        names: int | Sequence[str],
        *,
        wait: bool,
        request_id: str = "",
        for_queue: bool = False,
    ) -> dict[str, Any]:
        """See :class:`eps.job.client.Job`."""
        assert not wait and not isinstance(names, int)
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((str(operation), *names))
        change = {"plan_id": 8, "operation": str(operation), "phase": "queued", "asked_by": "user"}
        self.changes.append({**change, "removed": list(names)})
        return self.changes[-1]

    def drained(self) -> list[str]:
        """Let go of what was to be removed; return the containers, which YARN still has."""
        gone = [name for name, member in self.names.items() if any(member in c["removed"] for c in self.changes)]
        for name in gone:
            del self.names[name]
        self.changes = []
        return gone


class FakeMasters:
    """Stands for :class:`hscheduler.live.yarn_facts.Masters`."""

    def __init__(self, *jobs: FakeJob) -> None:
        self.jobs = {job.app.id: job for job in jobs}

    def job(self, application: Application) -> FakeJob:
        """Return a job."""
        if application.application_id not in self.jobs:
            raise JobNotFoundError("nobody knows")
        return self.jobs[application.application_id]

    def status(self, application: Application) -> dict[str, Any]:
        """Return its status."""
        return self.job(application).status()

    def keep(self, application_ids: frozenset[str]) -> None:
        """Forget nothing."""
