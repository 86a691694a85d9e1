"""Numbers of things, in words."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hscheduler.core.jobs import JobRequest
from hscheduler.core.resources import Role

#: Advice never suggests less memory for a container (MiB): Python and its libraries take about half of it.
LEAST_MEMORY_MB = 256


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def count_of(workers: int, servers: int) -> str:
    """Return text such as ``2 workers and 1 server``; with 0 servers ``2 containers``, which host both."""
    if not servers:
        return counted(workers, "container")
    return f"{counted(workers, 'worker')} and {counted(servers, 'server')}"


def request_text(request: JobRequest) -> str:
    """Return the containers of a request with their sizes as text."""
    nouns = {Role.WORKER: "container" if request.hosts else "worker", Role.SERVER: "server"}
    counts = {role: counted(request.count(role), noun) for role, noun in nouns.items() if request.count(role)}
    parts = [f"{count} of {request.resources(role)}" for role, count in counts.items()]
    if request.count(Role.MASTER):
        return f"{', '.join(parts)} and a master of {request.master}"
    return " and ".join(parts)


def advice_to_fit(request: JobRequest, fits: Callable[[JobRequest], bool]) -> str:
    """Return what to change so that a job fits that does not fit yet, as the end of a sentence.

    Parameters
    ----------
    request : JobRequest
    fits : callable
        Returns whether a request fits.
    """
    memory_mb = max(size.memory_mb for size, _ in request.needs()) // 2
    while memory_mb >= LEAST_MEMORY_MB:
        worker, server, master = (size.at_most(memory_mb) for size in (request.worker, request.server, request.master))
        if fits(replace(request, worker=worker, server=server, master=master)):
            return (
                f"; with {memory_mb} MiB for each container it would fit: set container_memory in [cluster], or "
                "hscheduler serve --container-memory"
            )
        memory_mb //= 2
    servers = request.servers
    if servers and not fits(replace(request, workers=1)):
        # The largest number that fits.
        servers = bisect_left(range(1, servers), True, key=lambda n: not fits(replace(request, workers=1, servers=n)))
        workers = 1
    else:
        workers = bisect_left(range(1, request.workers), True, key=lambda n: not fits(replace(request, workers=n)))
    if not workers or (request.servers and not servers):
        return "; the cluster needs more or larger nodes"
    keys = "reliable" if request.hosts else "workers and servers"
    return f"; with {count_of(workers, servers)} it would fit: set {keys} in [job]"


def words_of(roles: Iterable[Role], hosts: bool) -> str:
    """Return the numbers of workers and servers among the roles as text; there must be at least one.

    Parameters
    ----------
    roles : iterable of Role
    hosts : bool
        Whether each container hosts a worker and a server.
    """
    found = Counter(roles)
    workers, servers = found[Role.WORKER], found[Role.SERVER]
    if hosts or (workers and servers):
        return count_of(workers, servers)
    return counted(workers, "worker") if workers else counted(servers, "server")


def listed(parts: Sequence[str], between: str = "") -> str:
    """Return parts of a sentence, joined; of a long list the first six and the number of the others.

    Parameters
    ----------
    parts : sequence of str
    between : str
        What separates them; by default commas, and "and" before the last one.
    """
    shown = list(parts[:6])
    if len(parts) > len(shown):
        shown.append(f"{len(parts) - len(shown)} more")
    if between:
        return between.join(shown)
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
