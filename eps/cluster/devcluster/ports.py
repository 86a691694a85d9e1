"""Ports that nobody has: chosen, looked at, and given to daemons, which must bind them themselves.

Between the look and the bind somebody may come: a daemon that cannot bind says so, and the cluster is started with
other ports.  Ports below those that the kernel gives to connections are taken, so that a daemon that is started again
later finds its own.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from eps.cluster.devcluster.settings import ClusterSettings, Ports, address_of, daemons_of, listens_of
from eps.errors import ConfigError

_LOWEST = 10_000
_ATTEMPTS = 200
#: The kernel's own range begins here unless it is told otherwise.
_EPHEMERAL = 32_768


def choose_ports(settings: ClusterSettings, rng: random.Random | None = None) -> dict[str, dict[str, int]]:
    """Return free ports for every daemon; no two daemons get the same, so that a log line names one.

    Raises
    ------
    ConfigError
        An address of a node cannot be used on this host, or nothing is free.
    """
    rng = rng or random.SystemRandom()
    taken: set[int] = set()
    return {
        daemon: {purpose: _choose(address_of(daemon), rng, taken) for purpose in listens_of(daemon)}
        for daemon in daemons_of(settings)
    }


def are_free(ports: Ports) -> bool:
    """Return whether nobody has one of ``ports``, so that a cluster can be started again where it was."""
    with ExitStack() as stack:
        try:
            for daemon, by_purpose in ports.items():
                for port in by_purpose.values():
                    stack.enter_context(_bound(address_of(daemon), port))
        except OSError:
            return False
    return True


def check_addresses(settings: ClusterSettings) -> None:
    """Refuse a host on which the nodes' addresses cannot be used.

    Raises
    ------
    ConfigError
        One of them cannot.
    """
    for daemon in daemons_of(settings):
        try:
            _bound(address_of(daemon), 0).close()
        except OSError as error:
            raise ConfigError(
                f"{address_of(daemon)} cannot be used on this host ({error.strerror}): the cluster needs Linux, where "
                "all of 127.0.0.0/8 is this host, and its loopback interface up (ip link set lo up)"
            ) from error


def _choose(address: str, rng: random.Random, taken: set[int]) -> int:
    highest = _lowest_ephemeral() - 1
    for _ in range(_ATTEMPTS):
        port = rng.randint(_LOWEST, highest)
        if port in taken:
            continue
        try:
            _bound(address, port).close()
        except OSError:
            continue
        taken.add(port)
        return port
    raise ConfigError(f"no port from {_LOWEST} to {highest} is free at {address}")


def _bound(address: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # As Java does it: what lingers of closed connections is in nobody's way.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
        bound.listen(1)
    except OSError:
        bound.close()
        raise
    return bound


def _lowest_ephemeral() -> int:
    try:
        words = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except OSError:
        return _EPHEMERAL
    return int(words[0]) if int(words[0]) > _LOWEST + 1000 else _EPHEMERAL
