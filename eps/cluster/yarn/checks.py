"""What a cluster would refuse of a job, or never grant it, found before anything is prepared.

A NameNode in safe mode, or one whose twin takes over, is waited for by whoever uses it.  An address that leads nowhere
is none of these: who has mistyped it is to know within seconds, and which setting it was.
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
from eps.errors import ConfigError, ResourceError, StorageAwayError
from eps.hadoop.conf import HadoopConf
from eps.spec.job_spec import JobSpec
from eps.spec.tables import EXECUTIONS, ROLES
from eps.storage.locations import RemotePath, is_remote
from eps.storage.webhdfs import SEE_IT_RUNS, web_addresses

logger = logging.getLogger(__name__)

#: YARN's limits.
MOST_TAGS, LONGEST_TAG = 10, 100
#: A NameNode's host has this long to take a connection.
CONNECT_S = 5.0


class Cluster:
    """What a cluster tells of itself: everything is asked once, when it is first wanted.

    Parameters
    ----------
    client : Client
        Errors of its methods are those of this.
    warns : bool
        Whether :meth:`warn` says anything; False where the user is told elsewhere.
    memory : str
        What the user sets how large containers are with.
    """

    def __init__(self, client: Client, *, warns: bool = True, memory: str = "memory_mb") -> None:
        self._client = client
        self.memory = memory
        self._warns = warns
        self._told: set[str] = set()
        self._queues: dict[str, QueueReport | None] = {}

    @cached_property
    def nodes(self) -> list[ClusterNode]:
        """The nodes that can be used."""
        return self._client.nodes()

    def queue(self, name: str) -> QueueReport | None:
        """Return a queue; None where there is none of that name."""
        if name not in self._queues:
            self._queues[name] = self._client.queue(name)
        return self._queues[name]

    @property
    def user(self) -> str:
        """Who asks."""
        return self._client.user

    def warn(self, sentence: str) -> None:
        """Tell the user something, once."""
        if self._warns and sentence not in self._told:
            self._told.add(sentence)
            logger.warning("%s", sentence)


def check_job(cluster: Cluster, spec: JobSpec) -> None:
    """Refuse what YARN would refuse or never grant, as far as it tells; warn of what there is no room for now.

    Raises
    ------
    ConfigError
        The queue is unknown, closed, not for this user, or has others below it; a label is not its own, or no node's; a
        container is larger than any node, or than YARN grants; a tag is too long.
    ResourceError
        No node runs.
    RpcError
        The cluster cannot be asked.
    """
    queue = _checked_queue(cluster, spec)
    if not cluster.nodes:
        raise ResourceError("the cluster has no node that runs: see yarn node -list -all")
    for role in reversed(ROLES):
        _check_container(cluster, queue, spec, role)
    tags = tags_of(spec)
    for tag in tags:
        if not tag.isascii():
            odd = next(character for character in tag if not character.isascii())
            raise ConfigError(f"tags is {spec.yarn.tags!r}, but YARN takes ASCII characters only, which {odd!r} is not")
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
        raise ConfigError(
            f"tags is {spec.yarn.tags!r}, but YARN takes at most {MOST_TAGS}, of which EPS needs 4, of at most "
            f"{LONGEST_TAG} characters"
        )
    _look_at_size(cluster, queue, spec)


def _checked_queue(cluster: Cluster, spec: JobSpec) -> QueueReport:
    queue, told = cluster.queue(spec.yarn.queue), f"queue is {spec.yarn.queue!r}, but"
    if queue is None:
        raise ConfigError(f"{told} the cluster has no queue of that name: see yarn queue -list")
    if queue.children:
        raise ConfigError(f"{told} it takes no applications itself: name one below it, as {', '.join(queue.children)}")
    if queue.state != "RUNNING":
        raise ConfigError(f"{told} it is {queue.state}: ask its administrator, or choose another")
    if not queue.may_submit:
        raise ConfigError(f"{told} {cluster.user} may not submit to it: ask its administrator, or choose another")
    return queue


def _check_container(cluster: Cluster, queue: QueueReport, spec: JobSpec, role: str) -> None:
    wanted, label = resource_of(spec, role), spec.yarn.label_of(role)
    if label and not {"*", label} & set(queue.labels):
        known = ", ".join(queue.labels) or "none"
        raise ConfigError(f"label is {label!r}, but queue {spec.yarn.queue!r} may use these only: {known}")
    has = dict(queue.largest.others) if queue.largest is not None else dict(wanted.others)
    for name, number in wanted.others:
        told = f"resource gives a {role} {number} {name}, but"
        if name not in has:
            others = "".join(f", {other}" for other in sorted(has))
            raise ConfigError(f"{told} the cluster has no such resource: it has memory, vcores{others}")
        if number > has[name]:
            raise ConfigError(f"{told} YARN grants one container no more than {has[name]}")
    there = [node.capacity for node in cluster.nodes if not label or label in node.labels]
    if not there:
        raise ConfigError(f"label is {label!r}, but no node that runs has it: see yarn node -list -showDetails")
    labelled = f" with label {label!r}" if label else ""
    for name in ("memory_mb", "vcores"):
        # Cores that do not count it takes wherever it runs, but grants nobody more of them than some node has.
        decides = name == "memory_mb" or queue.counts_cores
        able = there if decides else [node.capacity for node in cluster.nodes]
        asked, most = getattr(wanted, name), max(getattr(node, name) for node in able)
        rule = f"no node{labelled if decides else ''} has more"
        if queue.largest is not None and getattr(queue.largest, name) <= most:
            most, rule = getattr(queue.largest, name), f"YARN grants one container no more than {queue.largest}"
        if asked > most:
            told = f"{name} is {getattr(spec.containers, name)!r}, which gives a {role} {asked}"
            raise ConfigError(f"{told}, but must give it at most {most}: {rule}")
    if queue.counts_cores and not any(wanted.fits_in(node) for node in there):
        size = spec.containers
        raise ConfigError(
            f"memory_mb is {size.memory_mb!r} and vcores is {size.vcores!r}, which gives a {role} {wanted}, but no "
            f"node{labelled} has both: lower one of them"
        )


def _look_at_size(cluster: Cluster, queue: QueueReport, spec: JobSpec) -> None:
    """Warn of a first size for which the queue has no room now, even where nobody else uses it.

    That is no reason to refuse it: what a queue may have is counted by the nodes of the moment, of which there may be
    more in a minute, where they come as they are needed or one is started again.  Nodes with a label may be lent to who
    asks for none, beyond what a queue may have of the others.
    """
    for label, need, most in _lacking(cluster, queue, spec):
        where = f" of the nodes with label {label}" if label else ""
        what, at_most = (str(r) if queue.counts_cores else f"{r.memory_mb} MB" for r in (need, most))
        cluster.warn(
            f"{_size_text(spec)} and a master take {what}{where}, but queue {spec.yarn.queue!r} has no more than "
            f"{at_most} with the nodes that run now: {_what_comes(cluster, queue, spec)}; with fewer or smaller "
            f"containers ({cluster.memory}), or in another queue, it need not wait"
        )


def _lacking(cluster: Cluster, queue: QueueReport, spec: JobSpec) -> Iterator[tuple[str, Resource, Resource]]:
    """Yield label, what a job's first containers take, and what the queue has, where that is less."""
    needs = _needs(spec)
    for label in sorted(needs):
        need, most = needs[label], queue.most.get(label)
        if most is None:
            continue
        if not label:
            # What has a label may be given to both, those who ask for it and those who ask for none.
            need = _sum(*needs.values())
            most = _sum(most, *(node.capacity for node in cluster.nodes if node.labels))
        counted = Resource(need.memory_mb, need.vcores if queue.counts_cores else 0)
        if not counted.fits_in(most):
            yield label, need, most


def _what_comes(cluster: Cluster, queue: QueueReport, spec: JobSpec) -> str:
    """Return what a job does whose first size there is no room for."""
    part = spec.containers.start_with
    least = spec.with_settings(workers=least_of(spec.workers, part), servers=least_of(spec.servers, part))
    if any(_lacking(cluster, queue, least)):
        return "the job waits until there are more"
    return (
        f"the job waits for a while, begins with what it was granted, from {_size_text(least)} on (start_with), and "
        "asks for the rest when there are more"
    )


def _size_text(spec: JobSpec) -> str:
    return f"{_number(spec.workers, 'worker')}, {_number(spec.servers, 'server')}"


def _needs(spec: JobSpec) -> dict[str, Resource]:
    """Return label -> what a job's first containers take of a queue; opportunistic ones take nothing of it."""
    found: dict[str, Resource] = {}
    for role, number in (("master", 1), ("worker", spec.workers), ("server", spec.servers)):
        if spec.yarn.execution_of(role) == EXECUTIONS[0]:
            size, label = resource_of(spec, role), spec.yarn.label_of(role)
            found[label] = _sum(found.get(label, Resource(0, 0)), *[size] * number)
    return found


def _number(number: int, role: str) -> str:
    return f"{number} {role}{'' if number == 1 else 's'}"


def _sum(*sizes: Resource) -> Resource:
    return Resource(sum(each.memory_mb for each in sizes), sum(each.vcores for each in sizes))


def home_of(conf: HadoopConf, spec: JobSpec, client: Client) -> RemotePath:
    """Return the folder of the cluster's file system in which EPS keeps jobs and what they share.

    Raises as :func:`~eps.cluster.yarn.application.home_location`.
    """
    return home_location(conf, client.user, spec.yarn.staging)


def file_systems_of(home: RemotePath, spec: JobSpec, results: Collection[str] = ()) -> list[str]:
    """Return the file systems of the cluster that a job's containers use, for which they need tokens.

    Parameters
    ----------
    home : RemotePath
    spec : JobSpec
    results : collection of str
        Where its processes bring its report and model.
    """
    places = [
        home,
        *(RemotePath.parse(text) for text in (spec.checkpoints.checkpoint_dir, *results) if is_remote(text)),
    ]
    # WebHDFS that is named by its own address belongs to no configuration: it is on its own.
    return sorted({f"hdfs://{place.authority}" for place in places if place.scheme == "hdfs"})


def check_file_systems(conf: HadoopConf, spec: JobSpec, client: Client) -> None:
    """Refuse, before anything is prepared, folders of a job on a file system that cannot be reached.

    Raises
    ------
    ConfigError
        A folder is no location on HDFS.
    StorageAwayError
        Nobody listens there, or the host is not known; of several NameNodes one may be away.
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
        # Those of a name service follow each other, and that takes its time.
        return
    reason = _unreachable(urls[0])
    if reason:
        raise StorageAwayError(f"{option}, but its NameNode cannot be reached at {urls[0]} ({reason}): {SEE_IT_RUNS}")


def _unreachable(url: str) -> str:
    """Return why nobody can be reached at an address; empty where somebody can."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port or 80), CONNECT_S):
            return ""
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
