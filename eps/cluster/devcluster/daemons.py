"""The command lines of daemons and of Hadoop's own commands.  Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from eps.cluster.devcluster.places import Places
from eps.cluster.devcluster.secure import kdc_words
from eps.cluster.devcluster.settings import DATANODE, NAMENODE, RESOURCEMANAGER, ClusterSettings, node_number

_SERVER = "org.apache.hadoop.yarn.server"
_CLI = "org.apache.hadoop.yarn.client.cli"
_NAMENODE_CLASS = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_CLASSES = {
    NAMENODE: _NAMENODE_CLASS,
    DATANODE: "org.apache.hadoop.hdfs.server.datanode.DataNode",
    RESOURCEMANAGER: f"{_SERVER}.resourcemanager.ResourceManager",
}
_NODEMANAGER_CLASS = f"{_SERVER}.nodemanager.NodeManager"

#: Hadoop's commands: program -> subcommand -> class.
COMMANDS: Mapping[str, Mapping[str, str]] = {
    "yarn": {
        "application": f"{_CLI}.ApplicationCLI",
        "applicationattempt": f"{_CLI}.ApplicationCLI",
        "container": f"{_CLI}.ApplicationCLI",
        "logs": f"{_CLI}.LogsCLI",
        "node": f"{_CLI}.NodeCLI",
        "rmadmin": f"{_CLI}.RMAdminCLI",
    },
    "hdfs": {
        "dfs": "org.apache.hadoop.fs.FsShell",
        "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
        "fetchdt": "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher",
        "fsck": "org.apache.hadoop.hdfs.tools.DFSck",
    },
    "hadoop": {"fs": "org.apache.hadoop.fs.FsShell"},
}

_JAVA_OPTIONS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    # Ready sooner, and these are not servers that run for weeks.
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)
#: What Hadoop before 3.5 opens of Java 17 (HADOOP-19310).
_OPENED = (
    "java.io java.lang java.lang.reflect java.math java.net java.text java.util java.util.concurrent java.util.zip "
    "sun.security.util sun.security.x509"
).split()
#: The command line of a daemon names its cluster, so that one that nobody wrote down is found.
_MARK = "-Deps.devcluster="

#: What these name belongs to another Hadoop, to another program in Java, or to jobs of EPS.
_NOT_OURS = ("HADOOP_", "YARN_", "HDFS_", "EPS_HOME", "KRB5")


def daemon_class_path(daemon: str, places: Places, settings: ClusterSettings, jars: str) -> str:
    """Return what a daemon loads, its site files first.

    Parameters
    ----------
    daemon : str
    places : Places
    settings : ClusterSettings
    jars : str
        The jars of the cluster, joined by colons.
    """
    number = node_number(daemon)
    entries = [str(places.node_conf(number) if number else places.conf)]
    if daemon in (NAMENODE, DATANODE):
        # Only theirs: the others have web roots in their jars, which this would hide.
        entries.append(str(places.web))
    if daemon == RESOURCEMANAGER:
        entries += settings.rm_class_path
    return ":".join([*entries, jars])


def mark_of(places: Places) -> str:
    """Return what stands on the command line of every process of the cluster, as one word."""
    return f"{_MARK}{places.home}"


def daemon_command(java: str, daemon: str, places: Places, settings: ClusterSettings) -> list[str]:
    """Return the command line of a daemon; its class path is in the environment."""
    main = _NODEMANAGER_CLASS if node_number(daemon) else _CLASSES[daemon]
    return [java, *java_options(places, settings), f"-Djava.io.tmpdir={places.data / 'tmp'}", mark_of(places), main]


def kdc_command(java: str, places: Places, settings: ClusterSettings, user: str) -> list[str]:
    """Return the command line of the realm's program."""
    return [java, *java_options(places, settings), mark_of(places), *kdc_words(places, user)]


def format_command(java: str, places: Places, settings: ClusterSettings) -> list[str]:
    """Return the command line that makes an empty HDFS."""
    return [java, *java_options(places, settings), mark_of(places), _NAMENODE_CLASS, "-format", "-nonInteractive"]


def java_options(places: Places, settings: ClusterSettings) -> list[str]:
    """Return the options of every JVM of a cluster."""
    opened = _OPENED if settings.release < (3, 5) else ()
    realm = [f"-Djava.security.krb5.conf={places.krb5_conf}"] if settings.kerberos else []
    return [*_JAVA_OPTIONS, *realm, *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in opened)]


def daemon_environment(
    environ: Mapping[str, str], places: Places, settings: ClusterSettings, java_home: str, class_path: str
) -> dict[str, str]:
    """Return the environment of a daemon: ours, without what is meant for another Hadoop.

    Containers get ``HADOOP_CONF_DIR``, ``JAVA_HOME`` and ``KRB5_CONFIG`` of it.
    """
    kept = {key: value for key, value in environ.items() if not key.startswith(_NOT_OURS)}
    if settings.kerberos:
        kept["KRB5_CONFIG"] = str(places.krb5_conf)
    return kept | {"HADOOP_CONF_DIR": str(places.conf), "JAVA_HOME": java_home, "CLASSPATH": class_path}


def script(program: str, java: str, places: Places, settings: ClusterSettings) -> str:
    """Return a shell script that does what Hadoop's ``yarn``, ``hdfs`` or ``hadoop`` does, for this cluster."""
    class_path = f'{shlex.quote(str(places.conf))}:"$(cat {shlex.quote(str(places.class_path))})"'
    # One class serves several subcommands, and is told which.
    cases = [
        f"    {name}) class={main}{'' if main.endswith('.ApplicationCLI') else '; shift'} ;;"
        for name, main in COMMANDS[program].items()
    ]
    if program != "hdfs":
        # With or without --glob.
        cases.append(f"    classpath) echo {class_path}; exit ;;")
    known, words = ", ".join(COMMANDS[program]), shlex.join([java, *java_options(places, settings)])
    return "\n".join(
        [
            "#!/bin/sh",
            f"export HADOOP_CONF_DIR={shlex.quote(str(places.conf))}",
            f"export CLASSPATH={class_path}",
            'case "${1:-}" in',
            *cases,
            f'    *) echo "{program}: must be followed by one of {known}" >&2; exit 2 ;;',
            "esac",
            f'exec {words} -Dhadoop.root.logger=WARN,console "$class" "$@"',
            "",
        ]
    )
