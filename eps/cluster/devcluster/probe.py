"""What the daemons say of themselves over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any

from eps.cluster.devcluster.settings import DATANODE, KDC, NAMENODE, RESOURCEMANAGER, Ports, address_of, node_number
from eps.errors import PeerUnavailableError

_TIMEOUT_S = 5.0
#: All that a node can be; asked for none, a ResourceManager tells of those that work.
NODE_STATES = ("NEW", "RUNNING", "UNHEALTHY", "DECOMMISSIONING", "DECOMMISSIONED", "LOST", "REBOOTED", "SHUTDOWN")
_DATANODE_INFO = "/jmx?qry=Hadoop:service=DataNode,name=DataNodeInfo"
#: Seen by anybody, also where the rest of a ResourceManager's pages is not.
_LIVE_NODES = "/jmx?qry=Hadoop:service=ResourceManager,name=RMNMInfo"
_NAMESYSTEM = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"


def call(address: str, port: int, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return what a daemon answers, as JSON knows it; None where it answers nothing.

    Parameters
    ----------
    address, port
        Where it listens; no proxy is asked.
    path : str
        With the query.
    body : mapping, optional
        What is posted.

    Raises
    ------
    PeerUnavailableError
        It cannot be reached, is silent, or refuses.
    """
    connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    try:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status >= 400:
            raise PeerUnavailableError(f"http://{address}:{port}{path} answers {answer.status}: {said[:500]!r}")
        return json.loads(said) if said.strip() else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, PeerUnavailableError):
            raise
        raise PeerUnavailableError(f"http://{address}:{port}{path} does not answer: {error}") from error
    finally:
        connection.close()


def what_is_missing(ports: Ports, num_nodes: int, num_datanodes: int = 1) -> str:
    """Return what a cluster of so many still waits for; empty: it is ready."""
    return missing_of_yarn(ports, num_nodes) or missing_of_hdfs(ports, num_datanodes)


def missing_of_yarn(ports: Ports, num_nodes: int) -> str:
    """Return what a ResourceManager of so many nodes still waits for; empty: nothing."""
    try:
        active = sum(node["State"] == "RUNNING" for node in _live_nodes(ports))
    except (PeerUnavailableError, KeyError, TypeError, IndexError, ValueError):
        return "the ResourceManager"
    return "" if active >= num_nodes else f"NodeManagers ({active} of {num_nodes} are there)"


def missing_of_hdfs(ports: Ports, num_datanodes: int = 1) -> str:
    """Return what an HDFS of so many DataNodes still waits for; empty: nothing."""
    try:
        names = ask(NAMENODE, ports, _NAMESYSTEM)["beans"][0]
    except (PeerUnavailableError, KeyError, TypeError, IndexError):
        return "the NameNode"
    if names["NumLiveDataNodes"] < num_datanodes:
        return "the DataNode"
    if names["FSState"] == "Operational":
        return ""
    return "HDFS to leave safe mode (where somebody began it: hdfs dfsadmin -safemode leave)"


def answers(daemon: str, ports: Ports) -> bool:
    """Return whether a daemon answers: its HTTP server, where it has one."""
    try:
        if daemon == KDC:
            return _listens(address_of(daemon), ports[daemon]["kdc"])
        ask(daemon, ports, "/jmx?qry=java.lang:type=ClassLoading")
    except PeerUnavailableError:
        return False
    return True


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _TIMEOUT_S).close()
    except OSError:
        return False
    return True


def is_back(daemon: str, ports: Ports, since_ms: float) -> bool:
    """Return whether a daemon that was started at ``since_ms`` (Unix time) has registered with its master.

    Its master may still believe in the one before.
    """
    if not answers(daemon, ports):
        return False
    try:
        if daemon == DATANODE:
            pools = ask(daemon, ports, _DATANODE_INFO)["beans"][0]["BPServiceActorInfo"]
            return all(pool["ActorState"] == "RUNNING" for pool in json.loads(pools))
        if node_number(daemon):
            mine = [node for node in _live_nodes(ports) if node["HostName"] == address_of(daemon)]
            return any(node["State"] == "RUNNING" and node["LastHealthUpdate"] >= since_ms for node in mine)
    except (PeerUnavailableError, KeyError, IndexError, TypeError, ValueError):
        return False
    return True


def node_states(ports: Ports) -> dict[str, str]:
    """Return what the ResourceManager says of nodes, the latest of each: host -> ``RUNNING``, ``LOST`` and so on.

    Raises
    ------
    PeerUnavailableError
        It does not answer.
    """
    return {host: node["state"] for host, node in _nodes(ports).items()}


def _live_nodes(ports: Ports) -> list[dict[str, Any]]:
    """Return the nodes that the ResourceManager counts on, also where its other pages ask who looks."""
    return list(json.loads(ask(RESOURCEMANAGER, ports, _LIVE_NODES)["beans"][0]["LiveNodeManagers"]))


def _nodes(ports: Ports) -> dict[str, Any]:
    """Return the latest node of each host."""
    found = ask(RESOURCEMANAGER, ports, f"/ws/v1/cluster/nodes?states={','.join(NODE_STATES)}") or {}
    nodes = (found.get("nodes") or {}).get("node") or []
    # Where there is one, some releases leave out the list.
    every = [nodes] if isinstance(nodes, dict) else list(nodes)
    return {node["nodeHostName"]: node for node in sorted(every, key=lambda node: node.get("lastHealthUpdate", 0))}


def ask(daemon: str, ports: Ports, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return what ``daemon`` answers; see :func:`call`."""
    return call(address_of(daemon), ports[daemon]["web"], path, body)
