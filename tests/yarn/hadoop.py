"""The real Hadoop that tests share, and faults for it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from eps.cluster.devcluster.lifecycle import ask, find_cluster, processes, start_cluster, write_cluster
from eps.cluster.devcluster.settings import (
    DATANODE,
    RESOURCEMANAGER,
    ClusterSettings,
    address_of,
    node_number,
    nodemanager,
)
from eps.errors import PeerUnavailableError
from eps.system.waits import wait_for
from tests.processes import Process, kill_all, with_variable
from tests.yarn.plugin import Plugin

#: All states of a node; without this filter a ResourceManager lists only running nodes.
NODE_STATES = "NEW,RUNNING,UNHEALTHY,DECOMMISSIONING,DECOMMISSIONED,LOST,REBOOTED,SHUTDOWN"
#: Timeout of each wait for Hadoop, on a busy machine.
PATIENCE_S = 120.0


class Hadoop:
    """A cluster of one NameNode, DataNode and ResourceManager, and three NodeManagers.

    Daemons are ``namenode``, ``datanode``, ``resourcemanager`` and ``nodemanager-1`` to ``-3``; nodes are their hosts,
    ``127.0.0.11`` to ``.13``.  The last node has the label ``transient``.  A test that breaks the cluster repairs it.
    """

    def __init__(self, home: Path, plugin: Plugin | None = None) -> None:
        self.home = home
        #: H-scheduler's plugin in the ResourceManager; None without a Java compiler.
        self.plugin = plugin
        self.cluster = find_cluster(home)

    @property
    def conf_dir(self) -> Path:
        """Value for HADOOP_CONF_DIR."""
        return self.cluster.conf_dir

    @property
    def class_path(self) -> str:
        """The jars, joined by colons, without the directory of the site files."""
        return self.cluster.jars

    @property
    def hdfs_url(self) -> str:
        """``hdfs://HOST:PORT``."""
        return self.cluster.hdfs_url

    @property
    def webhdfs_url(self) -> str:
        """``http://HOST:PORT`` of WebHDFS."""
        return self.cluster.webhdfs_url

    @property
    def rm_url(self) -> str:
        """``http://HOST:PORT`` of the ResourceManager's REST API and pages."""
        return self.cluster.rm_url

    @property
    def nodes(self) -> tuple[str, ...]:
        """The hosts of the NodeManagers."""
        return self.cluster.nodes

    @property
    def env(self) -> dict[str, str]:
        """Environment of a program that uses the cluster: that of this process, with HADOOP_CONF_DIR and JAVA_HOME."""
        return self.cluster.environment()

    def rest(self, path: str, body: Any = None) -> Any:
        """Return the ResourceManager's answer to ``rest("/ws/v1/cluster/metrics")``; a body is posted."""
        return ask(self.cluster, RESOURCEMANAGER, path, body)

    def node_states(self) -> dict[str, str]:
        """Return the state of each node, by the ResourceManager."""
        nodes = (self.rest(f"/ws/v1/cluster/nodes?states={NODE_STATES}")["nodes"] or {}).get("node", [])
        # Each start of a NodeManager adds a node of the same host: the latest counts.
        return {
            node["nodeHostName"]: node["state"] for node in sorted(nodes, key=lambda node: node["lastHealthUpdate"])
        }

    def run_cli(self, program: str, *words: str) -> str:
        """Run one of Hadoop's commands, as ``run_cli("yarn", "application", "-list")``; return its output."""
        line = [str(self.cluster.bin / program), *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def log(self, daemon: str) -> str:
        """Return a daemon's log."""
        return self.cluster.log(daemon).read_text(encoding="utf-8", errors="replace")

    # ---- faults and repairs

    def process(self, daemon: str) -> Process:
        """Return the process of a daemon, for signals."""
        (pid,) = (pid for pid, name in processes(self.home).items() if name == daemon)
        return Process.of(pid)

    def kill(self, daemon: str) -> None:
        """Kill a daemon (SIGKILL); the containers of a NodeManager keep running."""
        kill_all([self.process(daemon)])

    def containers(self, node: str) -> list[Process]:
        """Return the processes of the containers on a node."""
        number = self.nodes.index(node) + 1
        return with_variable("LOCAL_DIRS", f"{self.cluster.node_data(number)}/")

    def strike_node(self, node: str, number: signal.Signals) -> list[Process]:
        """Send a NodeManager and then all containers of its node SIGKILL or SIGSTOP; return them.

        This simulates a machine that crashes (SIGKILL) or hangs (SIGSTOP).  The NodeManager goes first, so that YARN
        hears nothing.
        """
        manager = self.process(self.daemon_of(node))
        manager.send(number)
        if number == signal.SIGKILL:
            manager.wait(PATIENCE_S)
        containers = self.containers(node)
        for process in containers:
            process.send(number)
        return [manager, *containers]

    def stop(self, daemon: str) -> None:
        """Let a daemon hang (SIGSTOP); ``process(daemon).send(signal.SIGCONT)`` continues it."""
        assert self.process(daemon).send(signal.SIGSTOP)

    def restart(self, daemon: str, timeout_s: float = PATIENCE_S) -> None:
        """Restart a daemon, or start it; return when it works and has registered."""
        self._begin_again(daemon, self.cluster.settings, timeout_s)

    def reconfigure(self, **changes: Any) -> None:
        """Change settings of the ResourceManager (fields of ClusterSettings), and restart it."""
        self._begin_again(RESOURCEMANAGER, replace(self.cluster.settings, **changes), PATIENCE_S)

    def _begin_again(self, daemon: str, settings: ClusterSettings, timeout_s: float) -> None:
        kill_all([Process.of(pid) for pid, name in processes(self.home).items() if name == daemon])
        self.cluster = replace(self.cluster, settings=settings)
        write_cluster(self.cluster)
        since_ms = time.time() * 1000
        start_cluster(self.home, settings, lambda text: None, timeout_s)
        # Its master may still use the previous one.
        self.wait_until(lambda: self._is_back(daemon, since_ms), f"{daemon} to register", timeout_s)

    def _is_back(self, daemon: str, since_ms: float) -> bool:
        if daemon == DATANODE:
            beans = ask(self.cluster, DATANODE, "/jmx?qry=Hadoop:service=DataNode,name=DataNodeInfo")["beans"]
            pools = json.loads(beans[0].get("BPServiceActorInfo", "[]")) if beans else []
            return bool(pools) and all(pool["ActorState"] == "RUNNING" for pool in pools)
        if not node_number(daemon):
            return True
        nodes = (self.rest("/ws/v1/cluster/nodes?states=RUNNING")["nodes"] or {}).get("node", [])
        mine = [node for node in nodes if node["nodeHostName"] == address_of(daemon)]
        return any(node["lastHealthUpdate"] >= since_ms for node in mine)

    def decommission(self, node: str, timeout_s: int) -> None:
        """Decommission a node: its containers have ``timeout_s``.  Return once the ResourceManager knows."""
        self.cluster.exclude.write_text(f"{node}\n")
        self.run_cli("yarn", "rmadmin", "-refreshNodes", "-g", str(timeout_s), "-server")

    def recommission(self, node: str) -> None:
        """Recommission a node; restart its NodeManager if it exited."""
        self.cluster.exclude.write_text("")
        self.run_cli("yarn", "rmadmin", "-refreshNodes")
        daemon = self.daemon_of(node)
        ended = lambda: daemon not in processes(self.home).values()  # noqa: E731
        # A NodeManager that was ordered to shut down is about to exit.
        self.wait_until(lambda: self.node_states()[node] == "RUNNING" or ended(), f"{daemon} to register, or to end")
        if ended():
            self.restart(daemon)

    def daemon_of(self, node: str) -> str:
        """Return the name of a node's NodeManager."""
        return nodemanager(self.nodes.index(node) + 1)

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a condition holds; a daemon that answers late counts as no answer."""

        def known_to_hold() -> bool:
            try:
                return holds()
            except PeerUnavailableError:
                return False

        wait_for(known_to_hold, timeout_s, what)
