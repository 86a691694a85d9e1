"""What can be chosen about a cluster, and what every cluster is made of.  Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eps.errors import ConfigError

HADOOP_VERSION = "3.5.0"
#: Releases with which a cluster was tried; others of Hadoop 3 may do as well.
TRIED_VERSIONS = ("3.3.6", "3.4.3", HADOOP_VERSION)
#: Everything but the NodeManagers listens here.
MASTER_ADDRESS = "127.0.0.1"
#: NodeManager i listens at 127.0.0.(10 + i): exclude files and labels go by host, so each needs an address of its own.
FIRST_NODE = 11
MOST_NODES = 200
#: What containers have to leave a node that is decommissioned, in seconds: Hadoop's own default.
WITHIN_S = 3600
QUEUES = ("default", "batch")
#: A label that the last node has; others may use it while nobody asks for it.
TRANSIENT_LABEL = "transient"
#: Hadoop's own preemption between queues.
QUEUE_PREEMPTION = "org.apache.hadoop.yarn.server.resourcemanager.monitor.capacity.ProportionalCapacityPreemptionPolicy"

KDC = "kdc"
NAMENODE = "namenode"
DATANODE = "datanode"
RESOURCEMANAGER = "resourcemanager"
_NODEMANAGER = "nodemanager-"

#: What each daemon listens for.  The first is the one that others call, ``web`` its HTTP port.
_LISTENS = {
    KDC: ("kdc",),
    NAMENODE: ("rpc", "web"),
    DATANODE: ("data", "web", "ipc"),
    RESOURCEMANAGER: ("client", "scheduler", "tracker", "admin", "web"),
}
_NODEMANAGER_LISTENS = ("rpc", "localizer", "web", "collector")

_VERSION = re.compile(r"3\.[3-9]\.\d+")
_CLASS = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*")

#: Ports by daemon and what they are for: ``ports["namenode"]["rpc"]``.
Ports = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class ClusterSettings:
    """What can be chosen.

    Parameters
    ----------
    nodes : int
        NodeManagers; 1 to 200.
    memory_mb : int
        Memory that each NodeManager offers; not checked against what the host has.
    vcores : int
        Virtual cores that each NodeManager offers.
    hadoop_version : str
        A release of Hadoop 3.3 or later.
    no_preemption : tuple of str
        Queues from which Hadoop's own preemption takes nothing.
    policies : tuple of str
        Classes of scheduling monitors of the ResourceManager, called before Hadoop's own preemption.
    rm_class_path : tuple of str
        Jars and directories that the ResourceManager's class path begins with.
    kerberos : bool
        Everybody must prove who they are, in a realm of the cluster's own; its nodes have no labels.
    properties : tuple of (str, str)
        Settings of Hadoop in the place of ours; :func:`eps.cluster.devcluster.sites.site_of` says in which file.

    Raises
    ------
    ConfigError
        A value cannot work.
    """

    nodes: int = 3
    memory_mb: int = 4096
    vcores: int = 4
    hadoop_version: str = HADOOP_VERSION
    no_preemption: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    rm_class_path: tuple[str, ...] = ()
    kerberos: bool = False
    properties: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise ConfigError(f"nodes is {self.nodes}, but must be 1 to {MOST_NODES}")
        if self.memory_mb < 512:
            raise ConfigError(f"memory is {self.memory_mb} MB, but must be at least 512: a job master takes that much")
        if self.vcores < 1:
            raise ConfigError(f"vcores is {self.vcores}, but must be at least 1")
        if not _VERSION.fullmatch(self.hadoop_version):
            raise ConfigError(
                f"hadoop version is {self.hadoop_version!r}, but must be a release of Hadoop 3, 3.3.0 or later: "
                f"{', '.join(TRIED_VERSIONS)} were tried"
            )
        for queue in self.no_preemption:
            if queue not in QUEUES:
                raise ConfigError(f"queue is {queue!r}, but must be one of {', '.join(QUEUES)}")
        for policy in self.policies:
            if not _CLASS.fullmatch(policy):
                raise ConfigError(f"policy is {policy!r}, but must be the name of a Java class, with its package")
        for key, _ in self.properties:
            if not key or key != key.strip():
                raise ConfigError(f"property is {key!r}, but must be KEY=VALUE")

    @property
    def release(self) -> tuple[int, int]:
        """The line of Hadoop: (3, 5)."""
        major, minor, _ = self.hadoop_version.split(".")
        return int(major), int(minor)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON knows them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ClusterSettings:
        """Return what :meth:`to_dict` gave, also after a trip through JSON."""
        found: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
        found["properties"] = tuple((key, value) for key, value in values["properties"])
        return cls(**found)


def nodemanager(number: int) -> str:
    """Return the name of the ``number``-th NodeManager, from 1."""
    return f"{_NODEMANAGER}{number}"


def node_address(number: int) -> str:
    """Return the address of the ``number``-th node, from 1."""
    return f"127.0.0.{FIRST_NODE - 1 + number}"


def node_number(daemon: str) -> int:
    """Return the number of a NodeManager; 0 for another daemon."""
    return int(daemon.removeprefix(_NODEMANAGER)) if daemon.startswith(_NODEMANAGER) else 0


def daemons_of(settings: ClusterSettings) -> tuple[str, ...]:
    """Return the daemons of a cluster, in the order in which they start."""
    realm = (KDC,) if settings.kerberos else ()
    return (*realm, NAMENODE, RESOURCEMANAGER, DATANODE, *map(nodemanager, range(1, settings.nodes + 1)))


def address_of(daemon: str) -> str:
    """Return the address that a daemon listens at."""
    number = node_number(daemon)
    return node_address(number) if number else MASTER_ADDRESS


def listens_of(daemon: str) -> tuple[str, ...]:
    """Return what a daemon needs ports for; the first is the one that others call."""
    return _NODEMANAGER_LISTENS if node_number(daemon) else _LISTENS[daemon]
