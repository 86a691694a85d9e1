"""Convert between our values and Hadoop's records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from eps.cluster.yarn.launch import escaped
from eps.cluster.yarn.types import (
    ApplicationReport,
    Ask,
    ClusterNode,
    Completed,
    Execution,
    FileKind,
    Grant,
    Launch,
    LocalFile,
    NodeChange,
    NodeUpdate,
    Preemption,
    Resource,
)
from eps.errors import ConfigError
from eps.hadoop.bridge import jarray, java, jbool, jbytes, jint, jlong

_RECORDS = "org.apache.hadoop.yarn.api.records."
_APPLICATION_ID = re.compile(r"application_[0-9]{1,18}_[0-9]{1,9}", re.ASCII)
_UNUSABLE = ("UNHEALTHY", "DECOMMISSIONED", "LOST", "SHUTDOWN")


def record(name: str) -> Any:
    """Return one of YARN's record classes."""
    return java(_RECORDS + name)


# ---- to Java


def java_resource(resource: Resource) -> Any:
    """Return a resource."""
    # The casts choose between overloads for int and long.
    found = record("Resource").newInstance(jlong(resource.memory_mb), jint(resource.vcores))
    for name, number in resource.others:
        found.setResourceValue(name, jlong(number))
    return found


def java_container_id(container: str) -> Any:
    """Return a container's id."""
    return record("ContainerId").fromString(container)


def java_node_id(node: str) -> Any:
    """Return the id of a node, ``host:port``."""
    return record("NodeId").fromString(node)


def java_application_id(application_id: str) -> Any:
    """Return an application's id.

    Raises
    ------
    ConfigError
        The text is no application id.
    """
    if not _APPLICATION_ID.fullmatch(application_id):
        raise ConfigError(f"{application_id!r} is no application id: expected one like application_1700000000000_0001")
    return record("ApplicationId").fromString(application_id)


def java_ask(ask: Ask) -> Any:
    """Return an ask as a request of ``AMRMClient``."""
    builder = java("org.apache.hadoop.yarn.client.api.AMRMClient$ContainerRequest").newBuilder()
    execution = getattr(record("ExecutionType"), ask.execution.name)
    builder = (
        builder.capability(java_resource(ask.resource))
        .priority(record("Priority").newInstance(jint(ask.priority)))
        .allocationRequestId(jlong(ask.number))
        .relaxLocality(jbool(True))
        .executionTypeRequest(record("ExecutionTypeRequest").newInstance(execution, jbool(True)))
    )
    if ask.label:
        # YARN refuses both together: a label is a must, hosts are a preference.
        builder = builder.nodeLabelsExpression(ask.label)
    elif ask.nodes:
        builder = builder.nodes(jarray(java("java.lang.String"), ask.nodes))
    return builder.build()


def java_launch(launch: Launch) -> Any:
    """Return a container's launch context."""
    files, env, commands = (java(f"java.util.{name}")() for name in ("HashMap", "HashMap", "ArrayList"))
    for name, file in launch.files.items():
        files.put(name, java_local_file(file))
    for name, value in launch.env.items():
        env.put(name, escaped(value))
    commands.add(escaped(launch.command))
    tokens = None
    if launch.credentials:
        tokens = java("java.nio.ByteBuffer").wrap(jbytes(launch.credentials))
    access = java("java.util.HashMap")()
    for name, who in launch.access.items():
        access.put(getattr(record("ApplicationAccessType"), f"{name.upper()}_APP"), who)
    return record("ContainerLaunchContext").newInstance(files, env, commands, None, tokens, access)


def java_local_file(file: LocalFile) -> Any:
    """Return a file for a NodeManager to localize."""
    kind = record("LocalResourceType").ARCHIVE if file.kind is FileKind.ARCHIVE else record("LocalResourceType").FILE
    return record("LocalResource").newInstance(
        record("URL").fromPath(java("org.apache.hadoop.fs.Path")(file.url)),
        kind,
        getattr(record("LocalResourceVisibility"), file.visibility.name),
        jlong(file.size_bytes),
        jlong(file.timestamp_ms),
    )


def java_set(values: Iterable[Any]) -> Any:
    """Return a ``HashSet``."""
    found = java("java.util.HashSet")()
    for value in values:
        found.add(value)
    return found


# ---- from Java


def resource_of(found: Any) -> Resource:
    """Return a resource."""
    # Hadoop's list begins with memory and cores.
    others = sorted((str(each.getName()), int(each.getValue())) for each in list(found.getResources())[2:])
    return Resource(
        int(found.getMemorySize()), int(found.getVirtualCores()), tuple((name, n) for name, n in others if n)
    )


def grant_of(container: Any) -> Grant:
    """Return a granted container."""
    return Grant(
        str(container.getId()),
        str(container.getNodeId()),
        int(container.getAllocationRequestId()),
        resource_of(container.getResource()),
        Execution[str(container.getExecutionType())],
    )


def completed_of(status: Any) -> Completed:
    """Return a container that has ended."""
    return Completed(str(status.getContainerId()), int(status.getExitStatus()), str(status.getDiagnostics() or ""))


def node_update_of(report: Any) -> NodeUpdate:
    """Return a change of a node's state."""
    state = str(report.getNodeState())
    change = NodeChange.USABLE
    if state == "DECOMMISSIONING":
        change = NodeChange.DECOMMISSIONING
    elif state in _UNUSABLE:
        change = NodeChange.UNUSABLE
    left = report.getDecommissioningTimeout()
    # A negative timeout means: until its containers end.
    deadline_s = float(int(left)) if left is not None and int(left) >= 0 else None
    return NodeUpdate(str(report.getNodeId()), change, state, deadline_s)


def preemption_of(message: Any) -> Preemption | None:
    """Return the content of a preemption message; None for None or an empty one."""
    if message is None:
        return None

    def names(contract: Any) -> tuple[str, ...]:
        return () if contract is None else tuple(sorted(str(c.getId()) for c in contract.getContainers() or ()))

    found = Preemption(names(message.getStrictContract()), names(message.getContract()))
    return found if found.strict or found.negotiable else None


def application_of(report: Any) -> ApplicationReport:
    """Return the report on an application."""
    attempt = report.getCurrentApplicationAttemptId()
    return ApplicationReport(
        application_id=str(report.getApplicationId()),
        name=str(report.getName()),
        application_type=str(report.getApplicationType()),
        user=str(report.getUser()),
        queue=str(report.getQueue()),
        state=str(report.getYarnApplicationState()),
        final_status=str(report.getFinalApplicationStatus()),
        diagnostics=str(report.getDiagnostics() or ""),
        host=_known(report.getHost()),
        rpc_port=int(report.getRpcPort()),
        tracking_url=_known(report.getTrackingUrl()),
        progress=float(report.getProgress()),
        tags=tuple(sorted(str(tag) for tag in report.getApplicationTags() or ())),
        attempt=0 if attempt is None else int(attempt.getAttemptId()),
        started_ms=int(report.getStartTime()),
        finished_ms=int(report.getFinishTime()),
    )


def _known(text: Any) -> str:
    return "" if text is None or str(text) == "N/A" else str(text)


def cluster_node_of(report: Any) -> ClusterNode:
    """Return a node of the cluster."""
    return ClusterNode(
        str(report.getNodeId()),
        str(report.getHttpAddress()),
        resource_of(report.getCapability()),
        tuple(sorted(str(label) for label in report.getNodeLabels() or ())),
        int(report.getNumContainers()),
        str(report.getNodeState()),
    )
