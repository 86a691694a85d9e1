"""Numbers, names and answers of a ResourceManager for the tests of an application master's allocation."""

from __future__ import annotations

from eps.cluster.api import ContainerRequest
from eps.cluster.yarn.allocation import (
    Allocation,
    Limits,
    Placement,
)
from eps.cluster.yarn.types import (
    AllocateResult,
    Ask,
    Execution,
    Grant,
    Registration,
    Resource,
)

ROOM = Resource(1024, 1)
REGISTRATION = Registration(Resource(4096, 4))
PLACEMENTS = {"worker": Placement(), "server": Placement("reliable", Execution.OPPORTUNISTIC, ("node-1",), 3)}


def name(number: int) -> str:
    return f"container-{number:04d}"


def yarn_name(sequence: int, attempt: int = 1) -> str:
    return f"container_1700000000000_0001_{attempt:02d}_{sequence:06d}"


def grant(sequence: int, node: str = "node-1:8041", number: int = 1) -> Grant:
    return Grant(yarn_name(sequence), node, number, ROOM)


#: What a worker asks for, where nothing else was asked for before.
ASK = Ask(1, ROOM)


def made(limits: Limits | None = None, max_containers: int = 0) -> Allocation:
    allocation = Allocation(PLACEMENTS, limits, max_containers)
    allocation.on_registered(REGISTRATION)
    return allocation


def asked(*numbers: int, limits: Limits | None = None) -> Allocation:
    """Return one whose requests have been asked."""
    allocation = made(limits)
    for number in numbers:
        allocation.request(ContainerRequest(name(number), "worker"), 0.0)
    allocation.take_turn()
    return allocation


def started(*numbers: int, limits: Limits | None = None) -> Allocation:
    """Return one whose containers run, 1 is the second that YARN gives, on node-1, and so on."""
    allocation = asked(*numbers, limits=limits)
    allocation.on_allocated(AllocateResult(tuple(grant(n + 1, f"node-{n}:8041") for n in numbers)), 0.0)
    for number in numbers:
        allocation.on_started(name(number))
    allocation.take_orders()
    allocation.take_events()
    return allocation
