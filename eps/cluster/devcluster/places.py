"""Where the files of a cluster are.  Pure.

::

    HOME (default EPS_HOME/devcluster)
    ├── lock            locked while somebody starts or stops the cluster
    ├── cluster.json    what was started: settings, ports, daemons with pid and start time
    ├── conf/           HADOOP_CONF_DIR: site files, and eps-classpath.txt
    │   └── nodes/I/    the site files of NodeManager I
    ├── exclude         hosts to decommission
    ├── bin/            yarn, hdfs and hadoop, as Hadoop's own distribution has them
    ├── web/            empty web roots of NameNode and DataNode
    ├── kdc/            of a cluster with Kerberos: all keys, and those of the host's user
    ├── logs/           one file for each daemon
    └── data/           what HDFS holds, the ResourceManager's state, the NodeManagers' directories
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: One line: the Java class path of the cluster's jars, without the directory of the site files.
CLASS_PATH_FILE = "eps-classpath.txt"
#: NameNode and DataNode look for these on the class path; their content is in no jar.
WEB_ROOTS = ("hdfs", "datanode", "secondary", "static")


@dataclass(frozen=True)
class Places:
    """The files of the cluster at ``home``, which is absolute."""

    home: Path

    @property
    def lock(self) -> Path:
        """Locked while somebody starts or stops the cluster."""
        return self.home / "lock"

    @property
    def record(self) -> Path:
        """What was started."""
        return self.home / "cluster.json"

    @property
    def conf(self) -> Path:
        """What HADOOP_CONF_DIR names."""
        return self.home / "conf"

    @property
    def class_path(self) -> Path:
        """The file that says the class path."""
        return self.conf / CLASS_PATH_FILE

    @property
    def exclude(self) -> Path:
        """Hosts to decommission."""
        return self.home / "exclude"

    @property
    def bin(self) -> Path:
        """Hadoop's commands."""
        return self.home / "bin"

    @property
    def web(self) -> Path:
        """On the class path of NameNode and DataNode only."""
        return self.home / "web"

    @property
    def krb5_conf(self) -> Path:
        """What KRB5_CONFIG must name, of a cluster with Kerberos."""
        return self.conf / "krb5.conf"

    @property
    def kdc(self) -> Path:
        """What the realm keeps."""
        return self.home / "kdc"

    @property
    def kdc_properties(self) -> Path:
        """The settings of the realm's program."""
        return self.kdc / "minikdc.properties"

    @property
    def keytab(self) -> Path:
        """The keys of all principals."""
        return self.kdc / "all.keytab"

    @property
    def user_keytab(self) -> Path:
        """The keys of the host's user: what KRB5_CLIENT_KTNAME may name in the place of a ticket."""
        return self.kdc / "user.keytab"

    @property
    def logs(self) -> Path:
        """One file for each daemon."""
        return self.home / "logs"

    @property
    def data(self) -> Path:
        """What the daemons keep."""
        return self.home / "data"

    @property
    def names(self) -> Path:
        """What the NameNode keeps."""
        return self.data / "namenode"

    @property
    def formatted(self) -> Path:
        """There as soon as HDFS was formatted, to the end."""
        return self.data / "formatted"

    def node_conf(self, number: int) -> Path:
        """Return the directory of the site files of a NodeManager."""
        return self.conf / "nodes" / str(number)

    def node_data(self, number: int) -> Path:
        """Return what a NodeManager writes to: localized files and logs of its containers."""
        return self.data / f"node-{number}"

    def log(self, name: str) -> Path:
        """Return the log of a daemon, or of ``format``."""
        return self.logs / f"{name}.log"


def as_url(path: Path) -> str:
    """Return ``path`` as Hadoop names local files."""
    return f"file://{path}"
