"""Where the jobs of a sweep or a service run; on YARN the cluster is the ResourceManager's.

The scheduler counts with nodes that are alike.  Where they differ, it counts with those that are at least of the size
with which they hold most containers: what it grants fits wherever YARN puts it, and a small node does not shrink all.
Its grants are its own plan, and YARN's are what happens: a container that the scheduler grants and YARN does not yet
have is waited for by the job (``container_timeout_s``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from eps.cluster.choice import check_backend
from eps.cluster.yarn.checks import Cluster, check_job
from eps.cluster.yarn.client import YarnClient
from eps.cluster.yarn.types import ClusterNode
from eps.errors import ConfigError, ResourceError
from eps.hadoop.conf import environment_configuration
from eps.job.yarn import shared_application
from eps.spec.job_spec import JobSpec
from eps.system.nearest import one_of
from hscheduler.core.resources import Resources
from hscheduler.live.checks import working
from hscheduler.spec import ClusterSpec, Spec, memory_mb

#: Where the jobs of a sweep can run.
PLACES = ("local", "docker", "yarn")


def placed(spec: Spec, on: str | None) -> Spec:
    """Return a sweep with its jobs where ``on`` says; None is where its file says.

    Raises
    ------
    ConfigError
        There is no such place, HADOOP_CONF_DIR names no cluster, or the Docker engine has no such image; no node has
        room for a container; or YARN would take no trial, as of :func:`eps.cluster.yarn.checks.check_job`.
    ResourceError
        The cluster has no node; or the Docker engine does not answer.
    RpcError
        The ResourceManager cannot be reached.
    AuthenticationError
        It wants Kerberos, and nobody has logged in.
    """
    where = on if on is not None else str(spec.job.get("on", "local"))
    if where not in PLACES:
        raise ConfigError(f"on is {where!r}, but must be {one_of(where, PLACES)}")
    if where == "local":
        return spec
    if where == "docker":
        # Simulated nodes as on this host, and containers that the engine holds to the size that is counted with.
        spec = dataclasses.replace(spec, job={**spec.job, **container_settings(spec.cluster, where)})
        check_backend(spec.job_spec())
        return spec
    client = YarnClient(environment_configuration())
    try:
        cluster = cluster_of(spec.cluster, client.nodes())
        spec = dataclasses.replace(spec, cluster=cluster, job={**spec.job, **container_settings(cluster)})
        told = Cluster(client, memory="container_memory in [cluster]")
        working(spec, lambda job: check_job(told, job))
        return spec
    finally:
        client.close()


def cluster_of(asked: ClusterSpec, nodes: Sequence[ClusterNode]) -> ClusterSpec:
    """Return a cluster of these nodes of YARN, for containers of the size that is asked.

    Raises
    ------
    ConfigError
        None has room for a container.
    ResourceError
        There is none.
    """
    if not nodes:
        raise ResourceError("the cluster has no node that runs: see yarn node -list -all")
    size = asked.container()

    def held(vcores: int, memory: int) -> tuple[int, int]:
        """Return how many containers nodes of a size hold, and how many nodes are at least so large."""
        able = sum(node.capacity.vcores >= vcores and node.capacity.memory_mb >= memory for node in nodes)
        return able * min(vcores // size.vcores, memory // size.memory_mb), able

    sizes = product({node.capacity.vcores for node in nodes}, {node.capacity.memory_mb for node in nodes})
    vcores, memory = max(sizes, key=lambda each: (held(*each), each))
    containers, able = held(vcores, memory)
    if not containers:
        largest = max((node.capacity for node in nodes), key=lambda each: (each.memory_mb, each.vcores))
        raise ConfigError(
            f"a container of {size} fits no node of {Resources(largest.vcores, largest.memory_mb)}: set "
            "container_memory and container_vcores in [cluster]"
        )
    return dataclasses.replace(asked, nodes=able, vcores=vcores, memory=f"{memory}MiB")


def check_place(job: JobSpec, settings: Mapping[str, Any]) -> None:
    """Refuse a job on YARN of a scheduler that is not an application of YARN itself.

    Parameters
    ----------
    job : JobSpec
    settings : mapping
        Those that the scheduler gives its jobs.

    Raises
    ------
    ConfigError
        It is one.
    """
    if on_yarn({"on": job.on, **settings}) and shared_application.current() is None:
        raise ConfigError(
            "on is 'yarn', but the jobs of this scheduler run where it runs: start one on YARN by hscheduler serve "
            "--on yarn, or run a sweep there by hscheduler sweep --on yarn"
        )


def on_yarn(settings: Mapping[str, Any]) -> bool:
    """Return whether jobs of these settings run on YARN."""
    return str(settings.get("on", "local")) == "yarn"


def container_settings(cluster: ClusterSpec, on: str = "yarn") -> dict[str, str]:
    """Return the settings of a job whose containers are those that the scheduler counts with."""
    size = str(memory_mb(cluster.container_memory, "container_memory"))
    return {"on": on, "memory_mb": size, "vcores": str(cluster.container_vcores)}
