"""Numbers of things, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hscheduler.core.resources import Role


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def count_of(workers: int, servers: int) -> str:
    """Return text such as ``2 workers and 1 server``."""
    return f"{counted(workers, 'worker')} and {counted(servers, 'server')}"


def words_of(roles: Iterable[Role]) -> str:
    """Return the numbers of workers and servers among the roles as text; there must be at least one."""
    found = Counter(roles)
    workers, servers = found[Role.WORKER], found[Role.SERVER]
    if workers and servers:
        return count_of(workers, servers)
    return counted(workers, "worker") if workers else counted(servers, "server")
