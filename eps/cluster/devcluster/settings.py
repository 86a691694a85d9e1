"""What can be chosen about a cluster, and where its daemons and files are.

::

    HOME (default EPS_HOME/devcluster)
    ├── lock            held while a command starts or stops the cluster
    ├── cluster.json    what was started: settings, ports, Java, jars
    ├── conf/           HADOOP_CONF_DIR: site files, and eps-classpath.txt
    │   └── nodes/I/    the site files of NodeManager I
    ├── exclude         hosts that YARN excludes after bin/yarn rmadmin -refreshNodes
    ├── bin/            yarn, hdfs and hadoop, as Hadoop's own distribution has them
    ├── web/            empty web roots of NameNode and DataNode
    ├── kdc/            with Kerberos: all keys, and those of the host's user
    ├── logs/           one file for each daemon
    └── data/           what HDFS holds, the ResourceManager's state, the NodeManagers' directories
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eps.errors import ConfigError
from eps.system.nearest import one_of

HADOOP_VERSION = "3.5.0"
#: Releases with which a cluster was tried; others of Hadoop 3 may do as well.
TRIED_VERSIONS = ("3.3.6", "3.4.3", HADOOP_VERSION)
#: Everything but the NodeManagers listens here.
MASTER_ADDRESS = "127.0.0.1"
#: NodeManager i listens at 127.0.0.(10 + i): exclude files and labels go by host, so each needs an address of its own.
_FIRST_NODE, _MOST_NODES = 11, 200
QUEUES = ("default", "batch")
#: The label of the last node; it is not exclusive, so applications without it may run there.
TRANSIENT_LABEL = "transient"

KDC, NAMENODE, DATANODE, RESOURCEMANAGER = "kdc", "namenode", "datanode", "resourcemanager"
_NODEMANAGER = "nodemanager-"
#: What each daemon listens for.  The first is what others call, ``web`` its HTTP port.
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
    memory_mb, vcores : int
        What each NodeManager offers; the host need not have it.
    hadoop_version : str
        A release of Hadoop 3.3 or later.
    no_preemption : tuple of str
        Queues from which Hadoop's own preemption takes nothing.
    policies : tuple of str
        Classes of scheduling monitors of the ResourceManager, called before Hadoop's own preemption.
    rm_class_path : tuple of str
        Jars and directories that the ResourceManager's class path begins with.
    kerberos : bool
        Clients and daemons authenticate in a realm of the cluster's own; its nodes have no labels.
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
        if not 1 <= self.nodes <= _MOST_NODES:
            raise ConfigError(f"nodes is {self.nodes}, but must be 1 to {_MOST_NODES}")
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
                raise ConfigError(f"queue is {queue!r}, but must be {one_of(queue, QUEUES)}")
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

    @property
    def daemons(self) -> tuple[str, ...]:
        """The names of all daemons, in the order in which they start."""
        realm = (KDC,) if self.kerberos else ()
        return (*realm, NAMENODE, RESOURCEMANAGER, DATANODE, *map(nodemanager, range(1, self.nodes + 1)))


def nodemanager(number: int) -> str:
    """Return the name of the ``number``-th NodeManager, from 1."""
    return f"{_NODEMANAGER}{number}"


def node_number(daemon: str) -> int:
    """Return the number of a NodeManager; 0 for another daemon."""
    return int(daemon.removeprefix(_NODEMANAGER)) if daemon.startswith(_NODEMANAGER) else 0


def address_of(daemon: str) -> str:
    """Return the address that a daemon listens at."""
    number = node_number(daemon)
    return f"127.0.0.{_FIRST_NODE - 1 + number}" if number else MASTER_ADDRESS


def listens_of(daemon: str) -> tuple[str, ...]:
    """Return what a daemon needs ports for; the first is the one that others call."""
    return _NODEMANAGER_LISTENS if node_number(daemon) else _LISTENS[daemon]


@dataclass(frozen=True)
class Cluster:
    """A cluster that was started: all that its files and command lines are made of.

    Parameters
    ----------
    home : Path
        Absolute.
    settings : ClusterSettings
    ports : mapping
    java_home : str
    jars : str
        Hadoop's jars, joined by colons.
    """

    home: Path
    settings: ClusterSettings
    ports: Ports
    java_home: str
    jars: str

    @property
    def nodes(self) -> tuple[str, ...]:
        """The host of each NodeManager."""
        return tuple(address_of(nodemanager(number)) for number in range(1, self.settings.nodes + 1))

    @property
    def conf_dir(self) -> Path:
        """What HADOOP_CONF_DIR must name."""
        return self.home / "conf"

    @property
    def data(self) -> Path:
        """What the daemons keep."""
        return self.home / "data"

    @property
    def bin(self) -> Path:
        """Hadoop's commands."""
        return self.home / "bin"

    @property
    def exclude(self) -> Path:
        """Names the hosts that YARN excludes."""
        return self.home / "exclude"

    @property
    def keytab(self) -> Path:
        """With Kerberos: the keys of all principals."""
        return self.home / "kdc" / "all.keytab"

    @property
    def user_keytab(self) -> Path:
        """The keys of the host's user: what KRB5_CLIENT_KTNAME may name in the place of a ticket."""
        return self.home / "kdc" / "user.keytab"

    @property
    def krb5_conf(self) -> Path:
        """What KRB5_CONFIG must name."""
        return self.conf_dir / "krb5.conf"

    def node_conf(self, number: int) -> Path:
        """Return the folder of the site files of a NodeManager; for 0 that of all other programs."""
        return self.conf_dir / "nodes" / str(number) if number else self.conf_dir

    def node_data(self, number: int) -> Path:
        """Return what a NodeManager writes to: localized files and logs of its containers."""
        return self.data / f"node-{number}"

    def log(self, daemon: str) -> Path:
        """Return the log of a daemon."""
        return self.home / "logs" / f"{daemon}.log"

    def address(self, daemon: str, purpose: str = "") -> str:
        """Return ``host:port`` of a daemon: of the port that others call, or of the one for ``purpose``."""
        return f"{address_of(daemon)}:{self.ports[daemon][purpose or listens_of(daemon)[0]]}"

    @property
    def hdfs_url(self) -> str:
        """``hdfs://HOST:PORT``."""
        return f"hdfs://{self.address(NAMENODE)}"

    @property
    def webhdfs_url(self) -> str:
        """``http://HOST:PORT`` of WebHDFS."""
        return f"http://{self.address(NAMENODE, 'web')}"

    @property
    def rm_url(self) -> str:
        """``http://HOST:PORT`` of the ResourceManager."""
        return f"http://{self.address(RESOURCEMANAGER, 'web')}"

    def variables(self) -> dict[str, str]:
        """Return the variables that lead a program to the cluster, and let it prove who its user is."""
        keys = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_CLIENT_KTNAME": str(self.user_keytab)}
        return {"HADOOP_CONF_DIR": str(self.conf_dir), **(keys if self.settings.kerberos else {})}

    def environment(self) -> dict[str, str]:
        """Return the environment of a program that is to use the cluster."""
        return {**os.environ, **self.variables(), "JAVA_HOME": self.java_home}
