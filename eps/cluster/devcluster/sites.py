"""The site files of a cluster, as values, and as XML.  Pure.

Source: the configuration that Hadoop's documentation gives for each key; where ours is not Hadoop's default, the
comment beside it says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from eps.cluster.devcluster import secure
from eps.cluster.devcluster.places import Places, as_url
from eps.cluster.devcluster.settings import (
    DATANODE,
    MASTER_ADDRESS,
    NAMENODE,
    QUEUE_PREEMPTION,
    QUEUES,
    RESOURCEMANAGER,
    TRANSIENT_LABEL,
    ClusterSettings,
    Ports,
    node_address,
    nodemanager,
)

CORE = "core-site.xml"
HDFS = "hdfs-site.xml"
YARN = "yarn-site.xml"
CAPACITY = "capacity-scheduler.xml"
LOG4J = "log4j.properties"

#: A NodeManager that is silent for this long is lost; ResourceManagers look three times within it.
NODE_EXPIRY_S = 6
#: A job master that is silent for this long is lost.
MASTER_EXPIRY_S = 120
HEARTBEAT_MS = 200
#: A container that is marked for preemption is killed after this long.
PREEMPTION_GRACE_S = 8
#: Applications whose job masters are killed again and again: tests do that.
MOST_ATTEMPTS = 10

_SERVER = "org.apache.hadoop.yarn.server.resourcemanager"
_CAPACITY_KEYS = ("yarn.scheduler.capacity.", "yarn.resourcemanager.monitor.capacity.")

Values = dict[str, str]


@dataclass(frozen=True)
class Blueprint:
    """All that the files of a cluster are made of."""

    settings: ClusterSettings
    places: Places
    ports: Ports
    user: str

    def at(self, daemon: str, purpose: str) -> str:
        """Return ``host:port`` of one of the master daemons."""
        return f"{MASTER_ADDRESS}:{self.ports[daemon][purpose]}"

    @property
    def hdfs_url(self) -> str:
        """What HDFS is called by."""
        return f"hdfs://{self.at(NAMENODE, 'rpc')}"


def site_of(key: str) -> str:
    """Return the file that a property stands in."""
    if key.startswith(_CAPACITY_KEYS):
        return CAPACITY
    if key.startswith("dfs."):
        return HDFS
    return YARN if key.startswith(("yarn.", "eps.", "hscheduler.")) else CORE


def site_files(blueprint: Blueprint, node: int = 0) -> dict[str, str]:
    """Return the files of ``HADOOP_CONF_DIR``: name -> text.

    Parameters
    ----------
    blueprint : Blueprint
    node : int
        A NodeManager, from 1, whose own files are asked for; 0: those of everybody else.
    """
    sites = {CORE: core_site(blueprint), HDFS: hdfs_site(blueprint), YARN: yarn_site(blueprint)}
    if blueprint.settings.kerberos:
        sites[CORE] |= secure.core_values(blueprint.places)
        sites[HDFS] |= secure.hdfs_values(blueprint.places)
        sites[YARN] |= secure.yarn_values(blueprint.places) | (secure.node_values() if node else {})
    if node:
        sites[YARN] |= node_site(blueprint, node)
    else:
        sites[CAPACITY] = capacity_scheduler(blueprint.settings)
    for key, value in blueprint.settings.properties:
        if site_of(key) in sites:
            sites[site_of(key)][key] = value
    return {name: to_xml(values) for name, values in sites.items()} | {LOG4J: log4j()}


def core_site(blueprint: Blueprint) -> Values:
    """Return what everybody reads."""
    return {
        "fs.defaultFS": blueprint.hdfs_url,
        "hadoop.tmp.dir": str(blueprint.places.data / "tmp"),
        "hadoop.http.staticuser.user": blueprint.user,
    }


def hdfs_site(blueprint: Blueprint) -> Values:
    """Return what NameNode, DataNode and clients of HDFS read."""
    data = blueprint.places.data
    return {
        "dfs.replication": "1",
        # Of a small cluster: whoever closes a file before the NameNode has heard of its last block asks again so soon.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "20",
        "dfs.namenode.name.dir": as_url(blueprint.places.names),
        "dfs.datanode.data.dir": as_url(data / "datanode"),
        "dfs.namenode.rpc-address": blueprint.at(NAMENODE, "rpc"),
        "dfs.namenode.http-address": blueprint.at(NAMENODE, "web"),
        "dfs.namenode.http-bind-host": MASTER_ADDRESS,
        "dfs.datanode.address": blueprint.at(DATANODE, "data"),
        "dfs.datanode.http.address": blueprint.at(DATANODE, "web"),
        "dfs.datanode.ipc.address": blueprint.at(DATANODE, "ipc"),
        "dfs.datanode.hostname": MASTER_ADDRESS,
        # A host may have no name for its loopback address.
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.safemode.extension": "0",
        # A DataNode that is gone is dead after 2 * 1 s + 10 * 1 s, not after ten minutes.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "1000",
        # Files of several blocks, without many megabytes.
        "dfs.namenode.fs-limits.min-block-size": "4096",
    }


def yarn_site(blueprint: Blueprint) -> Values:
    """Return what the ResourceManager and clients of YARN read."""
    return _resourcemanager(blueprint) | _recovery(blueprint) | _scheduling(blueprint) | _labels_and_logs(blueprint)


def _resourcemanager(blueprint: Blueprint) -> Values:
    prefix = "yarn.resourcemanager"
    return {
        f"{prefix}.hostname": MASTER_ADDRESS,
        f"{prefix}.bind-host": MASTER_ADDRESS,
        f"{prefix}.address": blueprint.at(RESOURCEMANAGER, "client"),
        f"{prefix}.scheduler.address": blueprint.at(RESOURCEMANAGER, "scheduler"),
        f"{prefix}.resource-tracker.address": blueprint.at(RESOURCEMANAGER, "tracker"),
        f"{prefix}.admin.address": blueprint.at(RESOURCEMANAGER, "admin"),
        f"{prefix}.webapp.address": blueprint.at(RESOURCEMANAGER, "web"),
        f"{prefix}.nodes.exclude-path": str(blueprint.places.exclude),
        f"{prefix}.nodemanagers.heartbeat-interval-ms": str(HEARTBEAT_MS),
        f"{prefix}.decommissioning-nodes-watcher.poll-interval-secs": "1",
        f"{prefix}.am.max-attempts": str(MOST_ATTEMPTS),
        "yarn.nm.liveness-monitor.expiry-interval-ms": str(NODE_EXPIRY_S * 1000),
        "yarn.am.liveness-monitor.expiry-interval-ms": str(MASTER_EXPIRY_S * 1000),
        "yarn.acl.enable": "false",
    }


def _recovery(blueprint: Blueprint) -> Values:
    """Applications outlive the ResourceManager, and containers go on without it."""
    prefix = "yarn.resourcemanager"
    return {
        f"{prefix}.recovery.enabled": "true",
        f"{prefix}.work-preserving-recovery.enabled": "true",
        # Nodes are back within two seconds, so that a new ResourceManager need not wait ten to know what runs.
        f"{prefix}.work-preserving-recovery.scheduling-wait-ms": "3000",
        f"{prefix}.store.class": f"{_SERVER}.recovery.FileSystemRMStateStore",
        f"{prefix}.fs.state-store.uri": as_url(blueprint.places.data / "resourcemanager"),
        # Everybody looks for the next ResourceManager twice a second; Hadoop's default is half a minute.
        f"{prefix}.connect.retry-interval.ms": "500",
    }


def _scheduling(blueprint: Blueprint) -> Values:
    settings, prefix = blueprint.settings, "yarn.resourcemanager"
    return {
        # Here, not with the queues: job masters read it as well.
        f"{prefix}.monitor.capacity.preemption.max_wait_before_kill": str(PREEMPTION_GRACE_S * 1000),
        f"{prefix}.scheduler.class": f"{_SERVER}.scheduler.capacity.CapacityScheduler",
        f"{prefix}.scheduler.monitor.enable": "true",
        f"{prefix}.scheduler.monitor.policies": ",".join((*settings.policies, QUEUE_PREEMPTION)),
        f"{prefix}.opportunistic-container-allocation.enabled": "true",
        f"{prefix}.placement-constraints.handler": "scheduler",
        "yarn.scheduler.minimum-allocation-mb": "64",
        "yarn.scheduler.maximum-allocation-mb": str(settings.memory_mb),
        "yarn.scheduler.maximum-allocation-vcores": str(settings.vcores),
        "yarn.cluster.max-application-priority": "10",
    }


def _labels_and_logs(blueprint: Blueprint) -> Values:
    return {
        "yarn.node-labels.enabled": "true",
        # On this host's disk, so that the ResourceManager starts beside HDFS, not after it.
        "yarn.node-labels.fs-store.root-dir": as_url(blueprint.places.data / "node-labels"),
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": "/app-logs",
    }


def node_site(blueprint: Blueprint, number: int) -> Values:
    """Return what NodeManager ``number`` reads beside :func:`yarn_site`."""
    prefix, host, settings = "yarn.nodemanager", node_address(number), blueprint.settings
    ports, data = blueprint.ports[nodemanager(number)], blueprint.places.node_data(number)
    return {
        f"{prefix}.hostname": host,
        f"{prefix}.bind-host": host,
        f"{prefix}.address": f"{host}:{ports['rpc']}",
        f"{prefix}.localizer.address": f"{host}:{ports['localizer']}",
        f"{prefix}.webapp.address": f"{host}:{ports['web']}",
        f"{prefix}.collector-service.address": f"{host}:{ports['collector']}",
        f"{prefix}.local-dirs": str(data / "local"),
        f"{prefix}.log-dirs": str(data / "logs"),
        f"{prefix}.resource.memory-mb": str(settings.memory_mb),
        f"{prefix}.resource.cpu-vcores": str(settings.vcores),
        # Python and Java map far more than they use, and what is offered is more than the host has.
        f"{prefix}.vmem-check-enabled": "false",
        f"{prefix}.pmem-check-enabled": "false",
        f"{prefix}.container-executor.class": "org.apache.hadoop.yarn.server.nodemanager.DefaultContainerExecutor",
        # A developer's disk is often fuller than the 90 % at which a node calls itself unhealthy.
        f"{prefix}.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        f"{prefix}.disk-health-checker.min-free-space-per-disk-mb": "0",
        f"{prefix}.localizer.cache.target-size-mb": "2048",
        f"{prefix}.opportunistic-containers-max-queue-length": "10",
        f"{prefix}.env-whitelist": "JAVA_HOME,HADOOP_CONF_DIR,KRB5_CONFIG,PATH,LANG",
    }


def capacity_scheduler(settings: ClusterSettings) -> Values:
    """Return the queues: half of the cluster each, and all of it while the other does not ask."""
    prefix, root = "yarn.scheduler.capacity", "yarn.scheduler.capacity.root"
    monitor = "yarn.resourcemanager.monitor.capacity.preemption"
    values = {
        f"{root}.queues": ",".join(QUEUES),
        # The default of a tenth leaves the second small application waiting for ever.
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
            # One user may take what the other queue leaves.
            f"{root}.{queue}.user-limit-factor": "10",
            f"{root}.{queue}.accessible-node-labels": TRANSIENT_LABEL,
            f"{root}.{queue}.accessible-node-labels.{TRANSIENT_LABEL}.capacity": share,
            f"{root}.{queue}.accessible-node-labels.{TRANSIENT_LABEL}.maximum-capacity": "100",
        }
        if queue in settings.no_preemption:
            values[f"{root}.{queue}.disable_preemption"] = "true"
    return values


def to_xml(values: Mapping[str, str]) -> str:
    """Return a site file of Hadoop with ``values``, sorted by key."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<configuration>"]
    for key, value in sorted(values.items()):
        lines.append(f"  <property><name>{escape(key)}</name><value>{escape(value)}</value></property>")
    return "\n".join([*lines, "</configuration>", ""])


def log4j() -> str:
    """Return the settings of logging: everything to standard output, which is the daemon's log file."""
    return """\
log4j.rootLogger=${hadoop.root.logger}
hadoop.root.logger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
# Jars have no native library, and need none.
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
# Not a line for every look at a page.
log4j.logger.http.requests=WARN
"""
