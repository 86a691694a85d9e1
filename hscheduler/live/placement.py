"""Place the jobs of a sweep or a service: on this host, in Docker containers, or on a YARN cluster.

The scheduler counts with nodes of one size.  If the nodes of a YARN cluster differ, it uses the size with which they
hold most containers, and ignores smaller nodes.  So one small node does not shrink all, and a granted container fits
each counted node.  YARN may still be late with a container that the scheduler has granted; the job waits for it
(``container_timeout_s``).
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
from eps.core.types import Role, Tier
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
    """Return a sweep with its jobs placed on ``on``; None uses the sweep's file.

    Raises
    ------
    ConfigError
        ``on`` is unknown, HADOOP_CONF_DIR names no cluster, the Docker engine lacks the image, no node is large enough
        for a container, or YARN would accept no trial, by :func:`eps.cluster.yarn.checks.check_job`.
    ResourceError
        The cluster has no running node, or the Docker engine does not answer.
    RpcError
        The ResourceManager cannot be reached.
    AuthenticationError
        The ResourceManager requires Kerberos, and there is no valid ticket.
    """
    where = on if on is not None else str(spec.job.get("on", "local"))
    if where not in PLACES:
        raise ConfigError(f"on is {where!r}, but must be {one_of(where, PLACES)}")
    if where == "local":
        return spec
    if where == "docker":
        # The nodes are simulated, as for local jobs, and the engine limits each container to the size of the sweep's
        # file.
        spec = dataclasses.replace(spec, job={**spec.job, **container_settings(spec.cluster, where)})
        check_backend(spec.job_spec())
        return spec
    client = YarnClient(environment_configuration())
    try:
        cluster = cluster_of(spec.cluster, client.nodes())
        spec = dataclasses.replace(spec, cluster=cluster, job={**spec.job, **container_settings(cluster)})
        told = Cluster(client, memory="container_memory in [cluster]")
        working(spec, lambda job: check_job(told, hosted(job)))
        return spec
    finally:
        client.close()


def cluster_of(asked: ClusterSpec, nodes: Sequence[ClusterNode]) -> ClusterSpec:
    """Return the cluster that these nodes of YARN make for containers of the size in ``asked``.

    Raises
    ------
    ConfigError
        No node is large enough for a container.
    ResourceError
        There are no nodes.
    """
    if not nodes:
        raise ResourceError("the cluster has no running node: see yarn node -list -all")
    size = asked.container()

    def held(vcores: int, memory: int) -> tuple[int, int]:
        """Return how many containers nodes of a size hold, and how many nodes are at least of that size."""
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
    """Refuse a YARN job of a scheduler that does not itself run as a YARN application.

    Parameters
    ----------
    job : JobSpec
    settings : mapping
        Settings that the scheduler sets for all its jobs.

    Raises
    ------
    ConfigError
        The job would run on YARN, the scheduler does not.
    """
    if runs_on_yarn({"on": job.on, **settings}) and shared_application.current() is None:
        raise ConfigError(
            "on is 'yarn', but this scheduler does not run on YARN: start one there with hscheduler serve --on yarn, "
            "or run the sweep there with hscheduler sweep --on yarn"
        )


def runs_on_yarn(settings: Mapping[str, Any]) -> bool:
    """Return whether jobs with these settings run on YARN."""
    return str(settings.get("on", "local")) == "yarn"


def hosted(job: JobSpec) -> JobSpec:
    """Return a job with containers of one size: one that hosts a worker and a server has that of a worker."""
    if not job.tiers.total:
        return job
    size = job.containers
    memory = f"{size.memory_mb},{Tier.RELIABLE}={size.memory_of(Role.WORKER)}"
    return job.with_settings(memory_mb=memory, vcores=f"{size.vcores},{Tier.RELIABLE}={size.vcores_of(Role.WORKER)}")


def container_settings(cluster: ClusterSpec, on: str = "yarn") -> dict[str, str]:
    """Return the settings with which a job's containers have the size that the scheduler counts with."""
    size = str(memory_mb(cluster.container_memory, "container_memory"))
    return {"on": on, "memory_mb": size, "vcores": str(cluster.container_vcores)}
