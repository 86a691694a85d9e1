#!/bin/sh
# Runs a daemon of Hadoop, a command of HDFS, or any other command.
#
#   hadoop.sh namenode | datanode | resourcemanager | nodemanager
#   hadoop.sh fs -ls /
#   hadoop.sh eps run ...
set -eu
conf="$HADOOP_CONF_DIR"
jars="$(cat "$conf/eps-classpath.txt")"
options="-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.net.preferIPv4Stack=true"
server=org.apache.hadoop.yarn.server
hdfs=org.apache.hadoop.hdfs.server
# Empty web roots for HDFS, whose jars have none; on YARN's class path they would hide YARN's own.
web=/opt/hadoop/web
# The daemon of this container, for the health check.
daemon=/tmp/daemon
export NODE_HOST="${NODE_HOST:-$(hostname)}"
run() {
    class_path="$1" class="$2"
    shift 2
    # shellcheck disable=SC2086 # several words
    CLASSPATH="$class_path" exec java $options "$class" "$@"
}
# A DataNode or NodeManager is healthy once its master lists it.
healthy() {
    [ -e "$daemon" ] || exit 0
    exec python3 - "$(cat "$daemon")" "$NODE_HOST" <<'PYTHON'
import json
import sys
from urllib.request import urlopen

from eps.hadoop.conf import (
    default_authority,
    environment_configuration,
    namenode_web_addresses,
    resourcemanager_web_addresses,
)

daemon, host = sys.argv[1:]
conf = environment_configuration()


def ask(address, path):
    with urlopen(address + path, timeout=5) as answer:
        return json.load(answer)


def known_nodes():
    if daemon in ("namenode", "datanode"):
        (address,) = namenode_web_addresses(conf, default_authority(conf))
        (beans,) = ask(address, "/jmx?qry=Hadoop:service=NameNode,name=NameNodeInfo")["beans"]
        return beans["Safemode"], list(json.loads(beans["LiveNodes"]))
    (address,) = resourcemanager_web_addresses(conf)
    nodes = ask(address, "/ws/v1/cluster/nodes?states=RUNNING")["nodes"] or {"node": []}
    return "", [node["id"] for node in nodes["node"]]


try:
    safe_mode, nodes = known_nodes()
except (OSError, ValueError) as error:
    sys.exit(f"the master does not answer yet: {error}")
known = [name.partition(":")[0] for name in nodes]
well = daemon in ("namenode", "resourcemanager") or (host in known and not safe_mode)
print("ready" if well else f"{host} is not ready; its master lists: {known}")
sys.exit(0 if well else 1)
PYTHON
}
case "${1:-help}" in
    namenode | datanode | resourcemanager | nodemanager) echo "$1" > "$daemon" ;;
esac
case "${1:-help}" in
    namenode)
        [ -d /data/namenode/current ] || (run "$conf:$web:$jars" "$hdfs.namenode.NameNode" -format -nonInteractive)
        run "$conf:$web:$jars" "$hdfs.namenode.NameNode"
        ;;
    datanode) run "$conf:$web:$jars" "$hdfs.datanode.DataNode" ;;
    resourcemanager) run "$conf:$jars" "$server.resourcemanager.ResourceManager" ;;
    nodemanager) run "$conf:$jars" "$server.nodemanager.NodeManager" ;;
    fs)
        shift
        run "$conf:$jars" org.apache.hadoop.fs.FsShell "$@"
        ;;
    healthy) healthy ;;
    help)
        sed -n '2,7s/^# \{0,1\}//p' "$0"
        ;;
    *) exec "$@" ;;
esac
