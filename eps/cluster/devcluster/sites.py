"""Site files and command lines of a cluster, and the settings of its Kerberos realm.

A comment gives the reason for a value that is not Hadoop's default.

Source: Hadoop's documentation of each key; "Hadoop in Secure Mode", and Hadoop's own tests on a MiniKdc.
"""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Mapping
from xml.sax.saxutils import escape

from eps.cluster.devcluster.settings import (
    DATANODE,
    KDC,
    MASTER_ADDRESS,
    NAMENODE,
    QUEUES,
    RESOURCEMANAGER,
    TRANSIENT_LABEL,
    Cluster,
    ClusterSettings,
    node_number,
    nodemanager,
)

CORE, HDFS, YARN, CAPACITY = "core-site.xml", "hdfs-site.xml", "yarn-site.xml", "capacity-scheduler.xml"
#: The file of ``HADOOP_CONF_DIR`` with one line: the class path of the cluster's jars, without the site files.
CLASS_PATH_FILE = "eps-classpath.txt"
#: NameNode and DataNode look for these on the class path; their content is in no jar.
WEB_ROOTS = ("hdfs", "datanode", "secondary", "static")
#: A NodeManager without a heartbeat for this long is lost; the ResourceManager checks three times in it.
_NODE_EXPIRY_S = 6
#: A job master without a heartbeat for this long is lost.
_MASTER_EXPIRY_S = 120
_HEARTBEAT_MS = 200
#: A container that is marked for preemption is killed after this long.
PREEMPTION_GRACE_S = 8
#: Tests kill a job master many times.
_MOST_ATTEMPTS = 10
_CAPACITY_KEYS = ("yarn.scheduler.capacity.", "yarn.resourcemanager.monitor.capacity.")

#: Realm of Hadoop's MiniKdc, which is a daemon of the cluster.  It makes new keys at each start.
REALM = "EPS.DEV"
#: MiniKdc logs this once it listens and has written all keys.
KDC_READY = "Standalone MiniKdc Running"
#: Principal of all daemons.
SERVICE = f"hadoop/localhost@{REALM}"
#: Principal of all web servers that authenticate: clients derive this name from the URL.
_WEB = f"HTTP/{MASTER_ADDRESS}@{REALM}"
_LIFETIME_MS = 24 * 3600 * 1000

_YARN_SERVER, _CLI = "org.apache.hadoop.yarn.server", "org.apache.hadoop.yarn.client.cli"
_SCHEDULER = f"{_YARN_SERVER}.resourcemanager"
#: Name of the process that formats HDFS.
FORMAT = "format"
_NAMENODE_CLASS = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_CLASSES = {
    KDC: "org.apache.hadoop.minikdc.MiniKdc",
    FORMAT: _NAMENODE_CLASS,
    NAMENODE: _NAMENODE_CLASS,
    DATANODE: "org.apache.hadoop.hdfs.server.datanode.DataNode",
    RESOURCEMANAGER: f"{_SCHEDULER}.ResourceManager",
}
_NODEMANAGER_CLASS = f"{_YARN_SERVER}.nodemanager.NodeManager"

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
    # Starts faster; these servers do not run for weeks.
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)
#: Packages of Java 17 that Hadoop before 3.5 needs opened (HADOOP-19310).
_OPENED = (
    "java.io java.lang java.lang.reflect java.math java.net java.text java.util java.util.concurrent java.util.zip "
    "sun.security.util sun.security.x509"
).split()
#: Prefixes of environment variables that daemons do not inherit: those of another Hadoop, of Kerberos, of EPS.
_NOT_OURS = ("HADOOP_", "YARN_", "HDFS_", "EPS_HOME", "KRB5")

Values = dict[str, str]


def site_of(key: str) -> str:
    """Return the site file of a property."""
    if key.startswith(_CAPACITY_KEYS):
        return CAPACITY
    if key.startswith("dfs."):
        return HDFS
    return YARN if key.startswith(("yarn.", "eps.", "hscheduler.")) else CORE


def site_files(cluster: Cluster, node: int = 0) -> dict[str, str]:
    """Return the files of ``HADOOP_CONF_DIR``: name -> text.

    Parameters
    ----------
    cluster : Cluster
    node : int
        A NodeManager, from 1; 0: all other programs.
    """
    sites = {CORE: _core_site(cluster), HDFS: _hdfs_site(cluster), YARN: _yarn_site(cluster)}
    if cluster.settings.kerberos:
        for name, values in _secure_sites(cluster).items():
            sites[name] |= values
    if node:
        sites[YARN] |= _node_site(cluster, node)
    else:
        sites[CAPACITY] = _capacity_scheduler(cluster.settings)
    for key, value in cluster.settings.properties:
        if site_of(key) in sites:
            sites[site_of(key)][key] = value
    return {name: to_xml(values) for name, values in sites.items()} | {"log4j.properties": _LOG4J}


def _core_site(cluster: Cluster) -> Values:
    return {
        "fs.defaultFS": cluster.hdfs_url,
        "hadoop.tmp.dir": str(cluster.data / "tmp"),
        "hadoop.http.staticuser.user": getpass.getuser(),
    }


def _hdfs_site(cluster: Cluster) -> Values:
    return {
        "dfs.replication": "1",
        # Delay before a client retries to close a file whose last block the NameNode does not know yet.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
        "dfs.namenode.name.dir": f"file://{cluster.data}/namenode",
        "dfs.datanode.data.dir": f"file://{cluster.data}/datanode",
        "dfs.namenode.rpc-address": cluster.address(NAMENODE, "rpc"),
        "dfs.namenode.http-address": cluster.address(NAMENODE, "web"),
        "dfs.namenode.http-bind-host": MASTER_ADDRESS,
        "dfs.datanode.address": cluster.address(DATANODE, "data"),
        "dfs.datanode.http.address": cluster.address(DATANODE, "web"),
        "dfs.datanode.ipc.address": cluster.address(DATANODE, "ipc"),
        "dfs.datanode.hostname": MASTER_ADDRESS,
        # A host may have no name for its loopback address.
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.safemode.extension": "0",
        # A lost DataNode is dead after 2 * 1 s + 10 * 1 s, not after ten minutes.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "1000",
        # Tests write small files of several blocks.
        "dfs.namenode.fs-limits.min-block-size": "4096",
    }


def _yarn_site(cluster: Cluster) -> Values:
    settings, rm = cluster.settings, "yarn.resourcemanager"
    preemption = f"{_SCHEDULER}.monitor.capacity.ProportionalCapacityPreemptionPolicy"
    return {
        f"{rm}.hostname": MASTER_ADDRESS,
        f"{rm}.bind-host": MASTER_ADDRESS,
        f"{rm}.address": cluster.address(RESOURCEMANAGER, "client"),
        f"{rm}.scheduler.address": cluster.address(RESOURCEMANAGER, "scheduler"),
        f"{rm}.resource-tracker.address": cluster.address(RESOURCEMANAGER, "tracker"),
        f"{rm}.admin.address": cluster.address(RESOURCEMANAGER, "admin"),
        f"{rm}.webapp.address": cluster.address(RESOURCEMANAGER, "web"),
        f"{rm}.nodes.exclude-path": str(cluster.exclude),
        f"{rm}.nodemanagers.heartbeat-interval-ms": str(_HEARTBEAT_MS),
        f"{rm}.decommissioning-nodes-watcher.poll-interval-secs": "1",
        f"{rm}.am.max-attempts": str(_MOST_ATTEMPTS),
        "yarn.nm.liveness-monitor.expiry-interval-ms": str(_NODE_EXPIRY_S * 1000),
        "yarn.am.liveness-monitor.expiry-interval-ms": str(_MASTER_EXPIRY_S * 1000),
        "yarn.acl.enable": "false",
        # Applications and their containers survive a restart of the ResourceManager.
        f"{rm}.recovery.enabled": "true",
        f"{rm}.work-preserving-recovery.enabled": "true",
        # Nodes reconnect within two seconds, so a new ResourceManager need not wait the default of ten.
        f"{rm}.work-preserving-recovery.scheduling-wait-ms": "3000",
        f"{rm}.store.class": f"{_SCHEDULER}.recovery.FileSystemRMStateStore",
        f"{rm}.fs.state-store.uri": f"file://{cluster.data}/resourcemanager",
        # Clients reconnect to the ResourceManager twice a second; Hadoop's default is half a minute.
        f"{rm}.connect.retry-interval.ms": "500",
        # Here, not in capacity-scheduler.xml: job masters read it as well.
        f"{rm}.monitor.capacity.preemption.max_wait_before_kill": str(PREEMPTION_GRACE_S * 1000),
        f"{rm}.scheduler.class": f"{_SCHEDULER}.scheduler.capacity.CapacityScheduler",
        f"{rm}.scheduler.monitor.enable": "true",
        f"{rm}.scheduler.monitor.policies": ",".join((*settings.policies, preemption)),
        f"{rm}.opportunistic-container-allocation.enabled": "true",
        f"{rm}.placement-constraints.handler": "scheduler",
        "yarn.scheduler.minimum-allocation-mb": "64",
        "yarn.scheduler.maximum-allocation-mb": str(settings.memory_mb),
        "yarn.scheduler.maximum-allocation-vcores": str(settings.vcores),
        "yarn.cluster.max-application-priority": "10",
        "yarn.node-labels.enabled": "true",
        # On this host's disk, so that the ResourceManager need not wait for HDFS.
        "yarn.node-labels.fs-store.root-dir": f"file://{cluster.data}/node-labels",
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": "/app-logs",
    }


def _node_site(cluster: Cluster, number: int) -> Values:
    nm, daemon, data = "yarn.nodemanager", nodemanager(number), cluster.node_data(number)
    host = cluster.nodes[number - 1]
    return {
        f"{nm}.hostname": host,
        f"{nm}.bind-host": host,
        f"{nm}.address": cluster.address(daemon, "rpc"),
        f"{nm}.localizer.address": cluster.address(daemon, "localizer"),
        f"{nm}.webapp.address": cluster.address(daemon, "web"),
        f"{nm}.collector-service.address": cluster.address(daemon, "collector"),
        f"{nm}.local-dirs": str(data / "local"),
        f"{nm}.log-dirs": str(data / "logs"),
        f"{nm}.resource.memory-mb": str(cluster.settings.memory_mb),
        f"{nm}.resource.cpu-vcores": str(cluster.settings.vcores),
        # Python and Java map far more memory than they use, and the nodes offer more than the host has.
        f"{nm}.vmem-check-enabled": "false",
        f"{nm}.pmem-check-enabled": "false",
        f"{nm}.container-executor.class": f"{_YARN_SERVER}.nodemanager.DefaultContainerExecutor",
        # A developer's disk is often fuller than the 90 % at which a node calls itself unhealthy.
        f"{nm}.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        f"{nm}.disk-health-checker.min-free-space-per-disk-mb": "0",
        f"{nm}.localizer.cache.target-size-mb": "2048",
        f"{nm}.opportunistic-containers-max-queue-length": "10",
        f"{nm}.env-whitelist": "JAVA_HOME,HADOOP_CONF_DIR,KRB5_CONFIG,PATH,LANG",
        # The nodes' pages need no login, also with Kerberos.
        "hadoop.http.filter.initializers": "org.apache.hadoop.http.lib.StaticUserWebFilter",
    }


def _capacity_scheduler(settings: ClusterSettings) -> Values:
    """Return the queues: each has half of the cluster, and may use all of it while the other is idle."""
    prefix, root = "yarn.scheduler.capacity", "yarn.scheduler.capacity.root"
    monitor = "yarn.resourcemanager.monitor.capacity.preemption"
    values = {
        f"{root}.queues": ",".join(QUEUES),
        # With the default of a tenth the second small application would wait forever.
        f"{prefix}.maximum-am-resource-percent": "0.8",
        f"{prefix}.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        f"{prefix}.node-locality-delay": "-1",
        f"{root}.accessible-node-labels.{TRANSIENT_LABEL}.capacity": "100",
        f"{monitor}.monitoring_interval": "1000",
        f"{monitor}.total_preemption_per_round": "1.0",
        f"{monitor}.natural_termination_factor": "1.0",
    }
    share = str(100 // len(QUEUES))
    for queue in QUEUES:
        values |= {
            f"{root}.{queue}.capacity": share,
            f"{root}.{queue}.maximum-capacity": "100",
            # One user may use the other queue's idle capacity.
            f"{root}.{queue}.user-limit-factor": "10",
            f"{root}.{queue}.accessible-node-labels": TRANSIENT_LABEL,
            f"{root}.{queue}.accessible-node-labels.{TRANSIENT_LABEL}.capacity": share,
            f"{root}.{queue}.accessible-node-labels.{TRANSIENT_LABEL}.maximum-capacity": "100",
        }
        if queue in settings.no_preemption:
            values[f"{root}.{queue}.disable_preemption"] = "true"
    return values


def _secure_sites(cluster: Cluster) -> dict[str, Values]:
    """Return the additional settings of a cluster with Kerberos, by file."""
    web, keytab = "hadoop.http.authentication", str(cluster.keytab)
    core = {
        "hadoop.security.authentication": "kerberos",
        # Without it a NameNode refuses HTTP requests even with a ticket.
        "hadoop.http.filter.initializers": "org.apache.hadoop.security.AuthenticationFilterInitializer",
        f"{web}.type": "kerberos",
        f"{web}.kerberos.principal": _WEB,
        f"{web}.kerberos.keytab": keytab,
        # The start of the cluster polls it without a ticket.
        f"{web}.kerberos.endpoint.whitelist": "/jmx",
    }
    hdfs = {
        "dfs.block.access.token.enable": "true",
        # A developer's host has no root for ports below 1024, and no certificates.
        "ignore.secure.ports.for.testing": "true",
        "dfs.namenode.kerberos.principal": SERVICE,
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": SERVICE,
        "dfs.datanode.keytab.file": keytab,
        "dfs.namenode.kerberos.internal.spnego.principal": _WEB,
        "dfs.web.authentication.kerberos.principal": _WEB,
        "dfs.web.authentication.kerberos.keytab": keytab,
    }
    yarn = {
        "yarn.resourcemanager.principal": SERVICE,
        "yarn.resourcemanager.keytab": keytab,
        "yarn.resourcemanager.webapp.spnego-principal": _WEB,
        "yarn.resourcemanager.webapp.spnego-keytab-file": keytab,
        "yarn.nodemanager.principal": SERVICE,
        "yarn.nodemanager.keytab": keytab,
        # With Kerberos, Hadoop checks the owner of log files by its native library, which no jar has: a NodeManager
        # that aggregates logs without it exits.
        "yarn.log-aggregation-enable": "false",
        # For eps logs, which finds the containers' files by it.  Each node's own settings name its folder.
        "yarn.nodemanager.log-dirs": f"{cluster.data}/node-*/logs",
    }
    return {CORE: core, HDFS: hdfs, YARN: yarn}


def to_xml(values: Mapping[str, str]) -> str:
    """Return a site file of Hadoop with ``values``, sorted by key."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<configuration>"]
    for key, value in sorted(values.items()):
        lines.append(f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>")
    return "\n".join([*lines, "</configuration>", ""])


#: Logs go to standard error, which is the daemon's log file.
_LOG4J = """\
log4j.rootLogger=${hadoop.root.logger}
hadoop.root.logger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
# The jars have no native library, and need none.
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
# No line for each HTTP request.
log4j.logger.http.requests=WARN
"""


def realm_files(cluster: Cluster) -> dict[str, str]:
    """Return the settings of MiniKdc and of its clients: path below the home -> text."""
    organisation, _, domain = REALM.partition(".")
    port = cluster.ports[KDC]["kdc"]
    properties = {
        "org.name": organisation,
        "org.domain": domain,
        "kdc.bind.address": MASTER_ADDRESS,
        "kdc.port": str(port),
        "max.ticket.lifetime": str(_LIFETIME_MS),
        "max.renewable.lifetime": str(7 * _LIFETIME_MS),
    }
    krb5 = f"""\
[libdefaults]
    default_realm = {REALM}
    # MiniKdc listens on TCP only.
    udp_preference_limit = 1
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
[realms]
    {REALM} = {{
        kdc = {MASTER_ADDRESS}:{port}
    }}
"""
    return {
        "kdc/minikdc.properties": "".join(f"{name}={value}\n" for name, value in properties.items()),
        "conf/krb5.conf": krb5,
    }


# ---- command lines


def mark_of(home: object, daemon: str) -> str:
    """Return the word of a process's command line by which it is found."""
    return f"-Deps.devcluster={home}:{daemon}"


def daemon_command(cluster: Cluster, daemon: str) -> list[str]:
    """Return the command line of a daemon, or of :data:`FORMAT`; the class path is in the environment."""
    words = [*_java(cluster), f"-Djava.io.tmpdir={cluster.data}/tmp", mark_of(cluster.home, daemon)]
    words.append(_NODEMANAGER_CLASS if node_number(daemon) else _CLASSES[daemon])
    if daemon == FORMAT:
        words += ["-format", "-nonInteractive"]
    if daemon == KDC:
        principals = [name.partition("@")[0] for name in (SERVICE, _WEB, getpass.getuser())]
        words += [f"{cluster.home}/kdc", f"{cluster.home}/kdc/minikdc.properties", str(cluster.keytab), *principals]
    return words


def _java(cluster: Cluster) -> list[str]:
    opened = _OPENED if cluster.settings.release < (3, 5) else ()
    realm = [f"-Djava.security.krb5.conf={cluster.krb5_conf}"] if cluster.settings.kerberos else []
    java = f"{cluster.java_home}/bin/java"
    return [java, *_JAVA_OPTIONS, *realm, *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in opened)]


def daemon_environment(cluster: Cluster, daemon: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a daemon: ours, without the variables of another Hadoop.

    Containers inherit ``HADOOP_CONF_DIR``, ``JAVA_HOME`` and ``KRB5_CONFIG``.
    """
    kept = {key: value for key, value in environ.items() if not key.startswith(_NOT_OURS)}
    if cluster.settings.kerberos:
        kept["KRB5_CONFIG"] = str(cluster.krb5_conf)
    entries = [str(cluster.node_conf(node_number(daemon)))]
    if daemon in (FORMAT, NAMENODE, DATANODE):
        # Only for HDFS: the web roots of the other daemons are in jars, which this folder would hide.
        entries.append(str(cluster.home / "web"))
    if daemon == RESOURCEMANAGER:
        entries += cluster.settings.rm_class_path
    class_path = ":".join([*entries, cluster.jars])
    return kept | {"HADOOP_CONF_DIR": str(cluster.conf_dir), "JAVA_HOME": cluster.java_home, "CLASSPATH": class_path}


def script(cluster: Cluster, program: str) -> str:
    """Return a shell script for Hadoop's command ``yarn``, ``hdfs`` or ``hadoop`` on this cluster."""
    conf = shlex.quote(str(cluster.conf_dir))
    class_path = f'{conf}:"$(cat {conf}/{CLASS_PATH_FILE})"'
    # ApplicationCLI serves several subcommands and reads which from its arguments.
    cases = [
        f"    {name}) class={main}{'' if main.endswith('.ApplicationCLI') else '; shift'} ;;"
        for name, main in COMMANDS[program].items()
    ]
    if program != "hdfs":
        # With or without --glob.
        cases.append(f"    classpath) echo {class_path}; exit ;;")
    lines = [
        "#!/bin/sh",
        f"export HADOOP_CONF_DIR={conf}",
        f"export CLASSPATH={class_path}",
        'case "${1:-}" in',
        *cases,
        f'    *) echo "{program}: must be followed by one of {", ".join(COMMANDS[program])}" >&2; exit 2 ;;',
        "esac",
        f'exec {shlex.join(_java(cluster))} -Dhadoop.root.logger=WARN,console "$class" "$@"',
    ]
    return "\n".join([*lines, ""])
