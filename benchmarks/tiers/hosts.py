"""Hosts with links of a given rate: a network namespace for each, and one that routes between them.  Needs root.

A container of a local job enters the namespace of a free host before it opens a socket.  Its data goes over TCP through
that host's link, which ``tc`` limits in both directions.  The members of one container exchange arrays in memory, as on
a real host.  The job master and this process are in the namespace that routes, so their link is unlimited.  The control
plane stays on Unix sockets in the job's folder, which every namespace reaches: its messages take no bandwidth.

EPS itself has no code for this: a supervisor runs the entry point that it gets for each role.  The namespaces have no
names.  They end with this process and the job's processes, however those end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from eps.cluster.supervisor.process import MASTER, ContainerContext
from eps.errors import ConfigError, ResourceError
from eps.job.entry_points import ENTRY_POINTS
from eps.net.arrays.negotiated import NegotiatedVan
from eps.net.security.credentials import Security
from tools.chaos.evictor import FOLDER, EvictingResourceManager

#: Describes the hosts to the job's processes.
ENVIRONMENT = "EPS_BENCHMARK_HOSTS"
#: Seconds between two cuts of a job, if not those of EPS.
CUT_PAUSE = "EPS_BENCHMARK_CUT_PAUSE_S"
HOST_ROLE = "server+worker"

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
#: The router.  With a route through it, 64 hosts need 128 neighbour entries; on a bridge each host would need 63, and
#: the kernel keeps 1,024 over all namespaces.
_ROUTER = 0
#: Largest packet that passes a link at once: the kernel joins packets of a connection up to 64 KiB.
_BURST = "68kb"
#: The queue before a link.  It holds all that senders have in flight, so that no packet is dropped.
_QUEUE = "32mb"


class Hosts:
    """Network namespaces with limited links; this process is on the router between them until :meth:`close`.

    Parameters
    ----------
    number : int
        Number of hosts.

    Raises
    ------
    ConfigError
        The user may not make network namespaces.
    ResourceError
        The kernel lacks veth or ``sch_tbf``.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._before_fd = _own_namespace()
        #: A locked file in it marks a host as taken.
        self._claims = tempfile.TemporaryDirectory(prefix="eps-hosts-")
        #: Descriptors of the namespaces of hosts 1, 2, ...
        self.namespaces: list[int] = []
        self._rates: dict[int, float] = {}
        try:
            _unshare()
            _run("ip", ["link set lo up", f"addr add {address(_ROUTER)}/32 dev lo"])
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
            for host in range(1, number + 1):
                self._add(host)
        except BaseException:
            self.close()
            raise

    def _add(self, host: int) -> None:
        failures: list[BaseException] = []

        def inside() -> None:
            # The namespace of this thread, and of the processes that it starts.
            try:
                _unshare()
                self.namespaces.append(_own_namespace())
                _run(
                    "ip",
                    [
                        "link set lo up",
                        f"link add eth0 type veth peer name {_port(host)} netns {os.getpid()}",
                        f"addr add {address(host)}/32 dev eth0",
                        "link set eth0 up",
                        f"route add {address(_ROUTER)} dev eth0",
                        f"route add default via {address(_ROUTER)}",
                    ],
                )
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        _run("ip", [f"link set {_port(host)} up", f"route add {address(host)} dev {_port(host)}"])

    def limit(self, rates: Sequence[float]) -> None:
        """Give the link of each host a rate in Mbit/s, in both directions; 0 for no limit."""
        for host, rate in enumerate(rates, start=1):
            if self._rates.get(host, 0.0) == rate:
                continue
            verb = "replace" if rate else "del"
            limit = f" tbf rate {rate:g}mbit burst {_BURST} limit {_QUEUE}" if rate else ""
            _run("tc", [f"qdisc {verb} dev {_port(host)} root{limit}"])
            with inside(self.namespaces[host - 1]):
                _run("tc", [f"qdisc {verb} dev eth0 root{limit}"])
            self._rates[host] = rate

    def sent_bytes(self) -> list[tuple[int, int]]:
        """Return for each host the bytes that it has sent and received through its link."""
        text = _run("ip", [], "-json", "-statistics", "link", "show", "type", "veth")
        found = {link["ifname"]: link["stats64"] for link in json.loads(text)}
        ports = [found[_port(host)] for host in range(1, self.number + 1)]
        # A port of the router receives what its host sends.
        return [(port["rx"]["bytes"], port["tx"]["bytes"]) for port in ports]

    @contextmanager
    def jobs(self) -> Iterator[None]:
        """Run the containers of jobs that this process starts on these hosts."""
        entries, environment = dict(ENTRY_POINTS), os.environ.get(ENVIRONMENT)
        ENTRY_POINTS[MASTER] = f"{__name__}:run_master"
        ENTRY_POINTS[HOST_ROLE] = f"{__name__}:run_container"
        fds = [f"/proc/{os.getpid()}/fd/{fd}" for fd in self.namespaces]
        os.environ[ENVIRONMENT] = json.dumps({"namespaces": fds, "claims": self._claims.name})
        try:
            yield
        finally:
            ENTRY_POINTS.update(entries)
            os.environ.pop(ENVIRONMENT)
            if environment is not None:
                os.environ[ENVIRONMENT] = environment

    def close(self) -> None:
        """Leave the hosts, which end with their last process.  Idempotent."""
        if self._before_fd >= 0:
            _enter(self._before_fd)
            for fd in (self._before_fd, *self.namespaces):
                os.close(fd)
            self._before_fd = -1
            self._claims.cleanup()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def address(host: int) -> str:
    """Return the address of a host, from 1, or of the router."""
    return f"10.99.{host >> 8}.{host & 255 or 254}"


def _port(host: int) -> str:
    return f"host{host}"


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _unshare() -> None:
    if _LIBC.unshare(_CLONE_NEWNET):
        why = os.strerror(ctypes.get_errno())
        raise ConfigError(f"hosts are network namespaces, which this user may not make: {why}; run it as root")


def _enter(fd: int) -> None:
    """Move this thread, and the threads and processes that it starts, to a namespace."""
    if _LIBC.setns(fd, _CLONE_NEWNET):
        raise ResourceError(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")


@contextmanager
def inside(fd: int) -> Iterator[None]:
    """Be in a namespace during the block."""
    before_fd = _own_namespace()
    try:
        _enter(fd)
        yield
    finally:
        _enter(before_fd)
        os.close(before_fd)


def _run(tool: str, lines: Sequence[str], *words: str) -> str:
    """Run ``ip`` or ``tc`` with a batch of commands, or with words."""
    command = [tool, *(words or ("-batch", "-"))]
    try:
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError(f"hosts need the command {tool!r} (package iproute2)") from None
    if done.returncode:
        raise ResourceError(f"{' '.join(command)}: {'; '.join(lines)}: {done.stderr.strip()}")
    return done.stdout


# ---- in the job's processes


def run_master(context: ContainerContext) -> int:
    """Run the job master's process, which connects to servers over TCP and evicts containers on request."""
    from eps.core import cuts
    from eps.master import main

    def local(supervisor_fd: int, max_containers: int, adopted: Mapping[str, int]) -> EvictingResourceManager:
        return EvictingResourceManager(context.job_dir / FOLDER, supervisor_fd, max_containers, adopted)

    main.NegotiatedVan = _over_tcp  # type: ignore[attr-defined, assignment]
    main.LocalResourceManager = local  # type: ignore[attr-defined, assignment]
    if os.environ.get(CUT_PAUSE):
        cuts.PAUSE_S = float(os.environ[CUT_PAUSE])
    return main.run(context)


def run_container(context: ContainerContext) -> int:
    """Run the process of a container on a free host."""
    from eps.job import member

    number = _claim(context.container_id)
    member.NegotiatedVan = _over_tcp  # type: ignore[attr-defined, assignment]
    return member.run(replace(context, host=address(number)))


def _over_tcp(security: Security, *args: Any, **options: Any) -> NegotiatedVan:
    """Return a van of a job between hosts, without TLS: encryption would take the processor that all hosts share."""
    return NegotiatedVan(replace(security, sockets=None), *args, **options)


def _claim(container_id: str) -> int:
    """Enter the namespace of a free host and return its number.

    ``container-3`` gets host 3 if that is free, so that the reliable containers, which a job requests first, are on the
    first hosts.
    """
    place = json.loads(os.environ[ENVIRONMENT])
    number = len(place["namespaces"])
    first = int(container_id.rpartition("-")[2]) - 1
    for host in (1 + (first + i) % number for i in range(number)):
        # Open, and so locked, until this process ends.
        fd = os.open(Path(place["claims"]) / str(host), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        with open(place["namespaces"][host - 1], "rb") as namespace:
            _enter(namespace.fileno())
        return host
    raise ResourceError(f"{container_id}: all {number} hosts are taken")
