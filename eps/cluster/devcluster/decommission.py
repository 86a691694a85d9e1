"""Letting a node of a cluster go with notice, and taking it back, as its administrator does.

Who is let go stands in the file of excluded hosts, which the ResourceManager reads when it is told to.
"""

from __future__ import annotations

import time
from pathlib import Path

from eps.cluster.devcluster import probe
from eps.cluster.devcluster.cluster import Cluster
from eps.cluster.devcluster.lifecycle import READY_TIMEOUT_S, held, restart_daemon
from eps.cluster.devcluster.maven import Say
from eps.cluster.devcluster.settings import RESOURCEMANAGER, node_address, nodemanager
from eps.errors import ConfigError, DeadlineError, ResourceError

_POLL_S = 0.2


def decommission(home: Path, node: str, within_s: int, say: Say) -> str:
    """Let a node go: YARN warns of the containers there, and kills what is left of them at the deadline.

    Returns as soon as the ResourceManager knows.  One that is let go already is given the new deadline.

    Parameters
    ----------
    home : Path
        Of the cluster.
    node : str
        Its host, or the name of its NodeManager.
    within_s : int, seconds
        Until the deadline; with 0 there is no warning.
    say : callable
        Told how it goes.

    Returns
    -------
    str
        The host of the node.

    Raises
    ------
    ConfigError
        The cluster has no such node, or its ResourceManager does not run; or the time is none.
    JobNotFoundError
        No cluster was started there.
    DeadlineError, ResourceError
        The ResourceManager is not told in time, or refuses.
    """
    if within_s < 0:
        raise ConfigError(f"within is {within_s}, but must be at least 0 seconds")
    cluster, host = _cluster_with(home, node)
    with held(cluster.places, say):
        _exclude(cluster, {*cluster.excluded, host}, "-g", str(within_s), "-server")
    return host


def recommission(home: Path, node: str, say: Say, timeout_s: float = READY_TIMEOUT_S) -> str:
    """Take a node back that was let go, or was to be; return its host when YARN counts on it.

    A NodeManager that has ended, as YARN tells those to that went to the end, is started again.

    Raises
    ------
    ConfigError
        The cluster has no such node, or its ResourceManager does not run.
    JobNotFoundError
        No cluster was started there.
    DaemonEndedError, DeadlineError, ResourceError
        As :func:`~eps.cluster.devcluster.lifecycle.restart_daemon`; or the ResourceManager refuses.
    """
    cluster, host = _cluster_with(home, node)
    daemon = nodemanager(cluster.nodes.index(host) + 1)
    deadline = time.monotonic() + timeout_s
    with held(cluster.places, say):
        _exclude(cluster, set(cluster.excluded) - {host})
    # One that was told to end is about to.
    while not probe.is_back(daemon, cluster.record.ports, 0.0):
        if not cluster.is_running(daemon):
            restart_daemon(cluster, daemon, say, deadline - time.monotonic())
            break
        if time.monotonic() > deadline:
            raise DeadlineError(f"{daemon} neither registers nor ends within {timeout_s:g} s")
        time.sleep(_POLL_S)
    return host


def _cluster_with(home: Path, node: str) -> tuple[Cluster, str]:
    """Return the cluster at ``home``, and the host of a node of it."""
    cluster = Cluster.at(home)
    for number, host in enumerate(cluster.nodes, 1):
        if node in (host, nodemanager(number)):
            if not cluster.is_running(RESOURCEMANAGER):
                raise ConfigError(
                    f"the {RESOURCEMANAGER} has ended, which is to know of it: "
                    f"eps devcluster restart --home {home} {RESOURCEMANAGER} starts it again"
                )
            return cluster, host
    last = cluster.settings.nodes
    raise ConfigError(
        f"node is {node!r}, but the cluster at {home} has {nodemanager(1)} to {nodemanager(last)}, "
        f"which are {node_address(1)} to {node_address(last)}"
    )


def _exclude(cluster: Cluster, hosts: set[str], *words: str) -> None:
    """Have the ResourceManager exclude these hosts, and no others; where it does not, the file is as it was."""
    path, before = cluster.places.exclude, cluster.excluded
    path.write_text("".join(f"{host}\n" for host in sorted(hosts)), encoding="ascii")
    done = False
    try:
        answer = cluster.command("yarn", "rmadmin", "-refreshNodes", *words)
        done = answer.returncode == 0
        if not done:
            said = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
            raise ResourceError(f"the {RESOURCEMANAGER} refuses: {said[-1] if said else answer.returncode}")
    finally:
        if not done:
            path.write_text("".join(f"{host}\n" for host in before), encoding="ascii")
