"""Check, before a job is prepared, that the cluster will accept it and can grant its containers.

EPS retries while a NameNode is in safe mode or fails over.  A wrong address is different: these checks report it, with
its setting, within seconds.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection, Iterator
from functools import cached_property
from urllib.parse import urlsplit

from eps.cluster.yarn.application import home_location, resource_of, tags_of
from eps.cluster.yarn.facade import Client
from eps.cluster.yarn.types import ClusterNode, QueueReport, Resource
from eps.core.size import least_of
from eps.core.types import Tier
from eps.errors import ConfigError, ResourceError, StorageAwayError
from eps.hadoop.conf import HadoopConf
from eps.spec.job_spec import JobSpec
from eps.spec.tables import EXECUTIONS
from eps.storage.locations import RemotePath, is_remote
from eps.storage.webhdfs import SEE_IT_RUNS, web_addresses

logger = logging.getLogger(__name__)

#: YARN's limits on tags: their number, and characters in each.
MOST_TAGS, LONGEST_TAG = 10, 100
#: Timeout for a connection to a NameNode.
CONNECT_S = 5.0


class Cluster:
    """A cluster's answers, each asked for at its first use and then cached.

    Parameters
    ----------
    client : Client
        All methods here raise its errors.
    warns : bool
        Whether :meth:`warn` logs; False if another check warns the user.
    memory : str
        Name of the setting for the memory of containers, for messages.
    """

    def __init__(self, client: Client, *, warns: bool = True, memory: str = "memory_mb") -> None:
        self._client = client
        self.memory = memory
        self._warns = warns
        self._told: set[str] = set()
        self._queues: dict[str, QueueReport | None] = {}

    @cached_property
    def nodes(self) -> list[ClusterNode]:
        """The running nodes."""
        return self._client.nodes()

    def queue(self, name: str) -> QueueReport | None:
        """Return YARN's report on a queue; None if no queue has that name."""
        if name not in self._queues:
            self._queues[name] = self._client.queue(name)
        return self._queues[name]

    @property
    def user(self) -> str:
        """Name of the user for the cluster."""
        return self._client.user

    def warn(self, sentence: str) -> None:
        """Log a warning, each one only once."""
        if self._warns and sentence not in self._told:
            self._told.add(sentence)
            logger.warning("%s", sentence)


def check_job(cluster: Cluster, spec: JobSpec) -> None:
    """Refuse a job that YARN would refuse or never grant; warn if the queue has too little capacity for it now.

    Raises
    ------
    ConfigError
        The queue is unknown, stopped, not open to this user, or has child queues; the queue may not use a label, or no
        node has it; a container is larger than any node or than YARN grants; a tag is invalid.
    ResourceError
        No node is running.
    RpcError
        The cluster does not answer.
    """
    queue = _checked_queue(cluster, spec)
    if not cluster.nodes:
        raise ResourceError("the cluster has no running node: see yarn node -list -all")
    for kind in ("master", *reversed(spec.first_containers)):
        _check_container(cluster, queue, spec, kind)
    tags = tags_of(spec)
    for tag in tags:
        if not tag.isascii():
            odd = next(character for character in tag if not character.isascii())
            raise ConfigError(
                f"tags is {spec.yarn.tags!r}, but YARN allows ASCII characters only, which {odd!r} is not"
            )
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
        raise ConfigError(
            f"tags is {spec.yarn.tags!r}, but YARN allows at most {MOST_TAGS} tags, of which EPS needs 4, of at most "
            f"{LONGEST_TAG} characters each"
        )
    _warn_of_size(cluster, queue, spec)


def _checked_queue(cluster: Cluster, spec: JobSpec) -> QueueReport:
    queue, told = cluster.queue(spec.yarn.queue), f"queue is {spec.yarn.queue!r}, but"
    if queue is None:
        raise ConfigError(f"{told} the cluster has no queue of that name: see yarn queue -list")
    if queue.children:
        raise ConfigError(f"{told} it takes no applications itself: name a queue below it: {', '.join(queue.children)}")
    if queue.state != "RUNNING":
        raise ConfigError(f"{told} it is {queue.state}: ask its administrator, or choose another")
    if not queue.may_submit:
        raise ConfigError(f"{told} {cluster.user} may not submit to it: ask its administrator, or choose another")
    return queue


def _check_container(cluster: Cluster, queue: QueueReport, spec: JobSpec, kind: str) -> None:
    wanted, label = resource_of(spec, kind), spec.yarn.label_of(kind)
    who = _word(kind)
    if label and not {"*", label} & set(queue.labels):
        known = ", ".join(queue.labels) or "none"
        raise ConfigError(f"label is {label!r}, but queue {spec.yarn.queue!r} allows only: {known}")
    has = dict(queue.largest.others) if queue.largest is not None else dict(wanted.others)
    for name, number in wanted.others:
        told = f"resource gives a {who} {number} {name}, but"
        if name not in has:
            others = "".join(f", {other}" for other in sorted(has))
            raise ConfigError(f"{told} the cluster has no such resource: it has memory, vcores{others}")
        if number > has[name]:
            raise ConfigError(f"{told} YARN grants at most {has[name]} to one container")
    there = [node.capacity for node in cluster.nodes if not label or label in node.labels]
    if not there:
        known = ", ".join(sorted({name for node in cluster.nodes for name in node.labels})) or "none"
        raise ConfigError(
            f"label is {label!r}, but no running node has it: see yarn node -list -showDetails; running nodes have: "
            f"{known}"
        )
    labelled = f" with label {label!r}" if label else ""
    for name in ("memory_mb", "vcores"):
        # If YARN does not account for cores, it starts a container anywhere, but still grants no more than the largest
        # node has.
        decides = name == "memory_mb" or queue.counts_cores
        able = there if decides else [node.capacity for node in cluster.nodes]
        asked, most = getattr(wanted, name), max(getattr(node, name) for node in able)
        rule = f"no node{labelled if decides else ''} has more"
        if queue.largest is not None and getattr(queue.largest, name) <= most:
            most, rule = getattr(queue.largest, name), f"YARN grants at most {queue.largest} to one container"
        if asked > most:
            told = f"{name} is {getattr(spec.containers, name)!r}, which gives a {who} {asked}"
            raise ConfigError(f"{told}, but must give it at most {most}: {rule}")
    if queue.counts_cores and not any(wanted.fits_in(node) for node in there):
        size = spec.containers
        raise ConfigError(
            f"memory_mb is {size.memory_mb!r} and vcores is {size.vcores!r}, which gives a {who} {wanted}, but no "
            f"node{labelled} has both: lower one of them"
        )


def _warn_of_size(cluster: Cluster, queue: QueueReport, spec: JobSpec) -> None:
    """Warn if even the empty queue has too little capacity for a job's first containers.

    The job is not refused: YARN computes the queue's capacity from the nodes that run now, and an autoscaling cluster
    may have more in a minute.  Nodes with a label may also serve requests without one.
    """
    for label, need, most in _lacking(cluster, queue, spec):
        where = f" of the nodes with label {label}" if label else ""
        what, at_most = (str(r) if queue.counts_cores else f"{r.memory_mb} MB" for r in (need, most))
        cluster.warn(
            f"{_size_text(spec)} and a master need {what}{where}, but with the nodes that run now queue "
            f"{spec.yarn.queue!r} has at most {at_most}: {_what_job_does(cluster, queue, spec)}; to avoid the wait, "
            f"use fewer or smaller containers ({cluster.memory}), or another queue"
        )


def _lacking(cluster: Cluster, queue: QueueReport, spec: JobSpec) -> Iterator[tuple[str, Resource, Resource]]:
    """Yield (label, size of a job's first containers, capacity of the queue), for labels with too little capacity."""
    needs = _needs(spec)
    for label in sorted(needs):
        need, most = needs[label], queue.most.get(label)
        if most is None:
            continue
        if not label:
            # Nodes with a label may serve requests for it and requests without a label.
            need = _sum(*needs.values())
            most = _sum(most, *(node.capacity for node in cluster.nodes if node.labels))
        counted = Resource(need.memory_mb, need.vcores if queue.counts_cores else 0)
        if not counted.fits_in(most):
            yield label, need, most


def _what_job_does(cluster: Cluster, queue: QueueReport, spec: JobSpec) -> str:
    """Return a clause on what a job does if the queue has too little capacity for its first containers."""
    part = spec.containers.start_with
    if spec.tiers.total:
        least = spec.with_settings(reliable=least_of(spec.tiers.reliable, part), transient=0)
    else:
        least = spec.with_settings(workers=least_of(spec.workers, part), servers=least_of(spec.servers, part))
    if any(_lacking(cluster, queue, least)):
        return "the job waits for more nodes"
    return (
        f"the job waits for a while, starts with at least {_size_text(least)} (start_with), and requests the rest "
        "when there are more nodes"
    )


def _size_text(spec: JobSpec) -> str:
    return ", ".join(_number(number, _word(kind)) for kind, number in spec.first_containers.items() if number)


def _word(kind: str) -> str:
    return f"{kind} container" if kind in tuple(Tier) else kind


def _needs(spec: JobSpec) -> dict[str, Resource]:
    """Return label -> size of a job's first containers; opportunistic ones do not count for a queue."""
    found: dict[str, Resource] = {}
    for kind, number in {"master": 1, **spec.first_containers}.items():
        if spec.yarn.execution_of(kind) == EXECUTIONS[0]:
            size, label = resource_of(spec, kind), spec.yarn.label_of(kind)
            found[label] = _sum(found.get(label, Resource(0, 0)), *[size] * number)
    return found


def _number(number: int, role: str) -> str:
    return f"{number} {role}{'' if number == 1 else 's'}"


def _sum(*sizes: Resource) -> Resource:
    return Resource(sum(each.memory_mb for each in sizes), sum(each.vcores for each in sizes))


def home_of(conf: HadoopConf, spec: JobSpec, client: Client) -> RemotePath:
    """Return EPS's folder on the cluster for a job; see :func:`~eps.cluster.yarn.application.home_location`."""
    return home_location(conf, client.user, spec.yarn.staging)


def file_systems_of(home: RemotePath, spec: JobSpec, results: Collection[str] = ()) -> list[str]:
    """Return the file systems of the cluster for which a job's containers need tokens.

    Parameters
    ----------
    home : RemotePath
    spec : JobSpec
    results : collection of str
        Locations to which its processes upload its report and model.
    """
    places = [
        home,
        *(RemotePath.parse(text) for text in (spec.checkpoints.checkpoint_dir, *results) if is_remote(text)),
    ]
    # A webhdfs:// location names its address itself, and belongs to no configured file system.
    return sorted({f"hdfs://{place.authority}" for place in places if place.scheme == "hdfs"})


def check_file_systems(conf: HadoopConf, spec: JobSpec, client: Client) -> None:
    """Refuse a job whose folders are on a file system that cannot be reached.

    Raises
    ------
    ConfigError
        A folder is no location on HDFS.
    StorageAwayError
        The only NameNode of a file system cannot be reached.
    """
    home = home_of(conf, spec, client)
    option = (
        f"staging is {spec.yarn.staging}" if spec.yarn.staging else f"fs.defaultFS of {conf.source} leads to {home}"
    )
    _check_place(conf, home, option)
    if is_remote(spec.checkpoints.checkpoint_dir):
        _check_place(
            conf,
            RemotePath.parse(spec.checkpoints.checkpoint_dir),
            f"checkpoint_dir is {spec.checkpoints.checkpoint_dir}",
        )


def _check_place(conf: HadoopConf, place: RemotePath, option: str) -> None:
    urls = web_addresses(place.scheme, place.authority, conf)
    if len(urls) > 1:
        # A name service with several NameNodes may be failing over.
        return
    reason = _unreachable(urls[0])
    if reason:
        raise StorageAwayError(f"{option}, but its NameNode cannot be reached at {urls[0]} ({reason}): {SEE_IT_RUNS}")


def _unreachable(url: str) -> str:
    """Return why a URL's host does not accept connections; empty if it does."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port or 80), CONNECT_S):
            return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
