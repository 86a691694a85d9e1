"""The elasticity controller of a job on reliable and transient containers: who works, and who serves.  Pure.

Every container is a :class:`~eps.core.members.Host`: its process has a worker and a server.  The controller decides
which of them take part; the others are spare.  Its decisions become ordinary plans.

Stage 1, the only one yet: servers on reliable containers, workers on all.  So transient containers hold no state that
could be lost with them.

Source: Proteus §3.2 (stage 1, Fig. 4a), §3.3 (elasticity controller).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from eps.core.types import MemberId, Role, Tier, member_name
from eps.errors import PlanError


class Stage(IntEnum):
    """How a job uses its containers (Proteus §3.2)."""

    #: Servers on reliable containers only.
    PARAM_SERVS = 1


@dataclass(frozen=True, slots=True)
class HostView:
    """A container that the job may use, as the controller sees it."""

    #: Empty for one that is still to be requested.
    container: str
    tier: Tier
    #: Its number in the order of requests.
    rank: int
    #: Its members; None where one has left and its successor has not registered.
    worker: MemberId | None
    server: MemberId | None


@dataclass(frozen=True, slots=True)
class Decision:
    """Who takes part from now on, and why."""

    stage: Stage
    workers: tuple[MemberId, ...]
    servers: tuple[MemberId, ...]
    #: Why, as a sentence.
    reason: str


def decide(hosts: Iterable[HostView]) -> Decision | None:
    """Return who takes part; None if the containers have no worker, or no server, that could.

    Parameters
    ----------
    hosts : iterable of HostView
        Without containers that will be taken away.
    """
    ordered = sorted(hosts, key=lambda host: host.rank)
    workers = tuple(host.worker for host in ordered if host.worker is not None)
    servers = tuple(host.server for host in ordered if host.server is not None and host.tier is Tier.RELIABLE)
    if not workers or not servers:
        return None
    counts = {tier: sum(host.tier is tier for host in ordered) for tier in Tier}
    reason = (
        f"{counts[Tier.RELIABLE]} reliable and {counts[Tier.TRANSIENT]} transient containers: servers on the reliable "
        "ones, workers on all"
    )
    return Decision(Stage.PARAM_SERVS, workers, servers, reason)


#: Changes of the number of containers: by tier, positive or negative.
Deltas = tuple[tuple[Tier, int], ...]


def deltas_text(deltas: Deltas) -> str:
    """Return ``reliable=+1,transient=-3``."""
    return ",".join(f"{tier}={number:+d}" for tier, number in deltas)


def resized(hosts: Sequence[HostView], deltas: Deltas, next_worker: int, next_server: int) -> tuple[HostView, ...]:
    """Return the containers after a change of their number; of those of a tier, the youngest leave first.

    Parameters
    ----------
    next_worker, next_server : int
        Numbers of the next members: each new container has one of each role.

    Raises
    ------
    PlanError
        A tier has fewer containers than are to be removed, or no reliable one would be left.
    """
    found = list(hosts)
    rank = max((host.rank for host in hosts), default=0)
    for tier, number in deltas:
        present = sorted((host for host in found if host.tier is tier), key=lambda host: host.rank)
        if number < 0:
            if -number > len(present):
                raise PlanError(f"{deltas_text(deltas)}: the job has {len(present)} {tier} containers")
            leaving = present[number:]
            found = [host for host in found if host not in leaving]
        for i in range(max(0, number)):
            rank += 1
            worker, server = member_name(Role.WORKER, next_worker + i), member_name(Role.SERVER, next_server + i)
            found.append(HostView("", tier, rank, worker, server))
        next_worker, next_server = next_worker + max(0, number), next_server + max(0, number)
    if not any(host.tier is Tier.RELIABLE for host in found):
        raise PlanError(
            f"{deltas_text(deltas)}: a job must keep at least one reliable container, which has its servers"
        )
    return tuple(found)
