"""Settings of a cluster, and the paths and addresses of its files and daemons.

::

    HOME (default EPS_HOME/devcluster)
    ├── lock            held while a command starts or stops the cluster
    ├── cluster.json    record of the cluster: settings, ports, Java, jars
    ├── conf/           HADOOP_CONF_DIR: site files, and eps-classpath.txt
    │   └── nodes/I/    site files of NodeManager I
    ├── exclude         hosts that YARN excludes after bin/yarn rmadmin -refreshNodes
    ├── bin/            Hadoop's commands yarn, hdfs and hadoop
    ├── web/            empty web roots of NameNode and DataNode
    ├── kdc/            with Kerberos: keytabs of all principals, and of the host's user
    ├── logs/           one file for each daemon
    └── data/           HDFS, the ResourceManager's state, the NodeManagers' directories
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
#: Releases with which a cluster was tried; other releases of Hadoop 3 may work.
TRIED_VERSIONS = ("3.3.6", "3.4.3", HADOOP_VERSION)
#: Address of all daemons but the NodeManagers.
MASTER_ADDRESS = "127.0.0.1"
#: NodeManager i listens at 127.0.0.(10 + i): exclude files and labels name hosts, so each needs its own address.
_FIRST_NODE, _MOST_NODES = 11, 200
QUEUES = ("default", "batch")
#: Label of the last node.  It is not exclusive: applications without the label may run there.
TRANSIENT_LABEL = "transient"

KDC, NAMENODE, DATANODE, RESOURCEMANAGER = "kdc", "namenode", "datanode", "resourcemanager"
_NODEMANAGER = "nodemanager-"
#: Purposes of each daemon's ports.  Clients connect to the first; ``web`` is HTTP.
_LISTENS = {
    KDC: ("kdc",),
    NAMENODE: ("rpc", "web"),
    DATANODE: ("data", "web", "ipc"),
    RESOURCEMANAGER: ("client", "scheduler", "tracker", "admin", "web"),
}
_NODEMANAGER_LISTENS = ("rpc", "localizer", "web", "collector")
_VERSION = re.compile(r"3\.[3-9]\.\d+")
_CLASS = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*")

#: Ports by daemon and purpose: ``ports["namenode"]["rpc"]``.
Ports = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class ClusterSettings:
    """Settings that a user can choose.

    Parameters
    ----------
    nodes : int
        Number of NodeManagers, 1 to 200.
    memory_mb, vcores : int
        Capacity that each NodeManager offers; the host may have less.
    hadoop_version : str
        A release of Hadoop 3.3 or later.
    no_preemption : tuple of str
        Queues whose containers Hadoop's preemption leaves alone.
    policies : tuple of str
        Scheduling monitors (Java classes) of the ResourceManager, called before Hadoop's preemption.
    rm_class_path : tuple of str
        Jars and directories at the beginning of the ResourceManager's class path.
    kerberos : bool
        Clients and daemons authenticate in the cluster's own realm; its nodes have no labels.
    properties : tuple of (str, str)
        Hadoop's settings that override ours; :func:`eps.cluster.devcluster.sites.site_of` gives the file of each.

    Raises
    ------
    ConfigError
        A value is invalid.
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
            raise ConfigError(f"memory is {self.memory_mb} MB, but must be at least 512: a job master needs that much")
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
        """Major and minor version of Hadoop: (3, 5)."""
        major, minor, _ = self.hadoop_version.split(".")
        return int(major), int(minor)

    @property
    def daemons(self) -> tuple[str, ...]:
        """Names of all daemons, in the order in which they start."""
        realm = (KDC,) if self.kerberos else ()
        return (*realm, NAMENODE, RESOURCEMANAGER, DATANODE, *map(nodemanager, range(1, self.nodes + 1)))


def nodemanager(number: int) -> str:
    """Return the name of the ``number``-th NodeManager, from 1."""
    return f"{_NODEMANAGER}{number}"


def node_number(daemon: str) -> int:
    """Return the number of a NodeManager; 0 for another daemon."""
    return int(daemon.removeprefix(_NODEMANAGER)) if daemon.startswith(_NODEMANAGER) else 0


def address_of(daemon: str) -> str:
    """Return the IP address of a daemon."""
    number = node_number(daemon)
    return f"127.0.0.{_FIRST_NODE - 1 + number}" if number else MASTER_ADDRESS


def listens_of(daemon: str) -> tuple[str, ...]:
    """Return the purposes of a daemon's ports; clients connect to the first."""
    return _NODEMANAGER_LISTENS if node_number(daemon) else _LISTENS[daemon]


@dataclass(frozen=True)
class Cluster:
    """A started cluster: everything that its site files and command lines depend on.

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
        """Directory for HADOOP_CONF_DIR."""
        return self.home / "conf"

    @property
    def data(self) -> Path:
        """Directory of the daemons' data."""
        return self.home / "data"

    @property
    def bin(self) -> Path:
        """Directory of Hadoop's commands."""
        return self.home / "bin"

    @property
    def exclude(self) -> Path:
        """File that lists the hosts that YARN excludes."""
        return self.home / "exclude"

    @property
    def keytab(self) -> Path:
        """Keytab of all principals of a cluster with Kerberos."""
        return self.home / "kdc" / "all.keytab"

    @property
    def user_keytab(self) -> Path:
        """Keytab of the host's user; KRB5_CLIENT_KTNAME may name it instead of a ticket."""
        return self.home / "kdc" / "user.keytab"

    @property
    def krb5_conf(self) -> Path:
        """File for KRB5_CONFIG."""
        return self.conf_dir / "krb5.conf"

    def node_conf(self, number: int) -> Path:
        """Return the folder of a NodeManager's site files; 0: of all other programs'."""
        return self.conf_dir / "nodes" / str(number) if number else self.conf_dir

    def node_data(self, number: int) -> Path:
        """Return the directory of a NodeManager's localized files and container logs."""
        return self.data / f"node-{number}"

    def log(self, daemon: str) -> Path:
        """Return the log file of a daemon."""
        return self.home / "logs" / f"{daemon}.log"

    def address(self, daemon: str, purpose: str = "") -> str:
        """Return ``host:port`` of a daemon's port for ``purpose``; by default of the one that clients connect to."""
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
        """Return the environment variables by which a program finds the cluster and authenticates to it."""
        keys = {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_CLIENT_KTNAME": str(self.user_keytab)}
        return {"HADOOP_CONF_DIR": str(self.conf_dir), **(keys if self.settings.kerberos else {})}

    def environment(self) -> dict[str, str]:
        """Return this process's environment with :meth:`variables` and JAVA_HOME."""
        return {**os.environ, **self.variables(), "JAVA_HOME": self.java_home}
