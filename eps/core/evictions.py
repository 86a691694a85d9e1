"""Containers that the cluster will take away, and what became of the members in them.  Pure.

Members on announced containers leave by an ordinary plan; other plans that are not committed make way.
Members that are still there at the deadline are lost like any other, and recovered from.

Source: Proteus §3.3 (an *eviction* is announced, a *failure* is not, and an *effective failure* is announced too late).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from eps.core import events as e
from eps.core.membership import Membership
from eps.core.reconfig import Operation, Plan
from eps.core.types import MemberId, Role

#: Why a container is taken away, where the resource manager gives no reason.
TAKEN_AWAY = "is to be taken away"


class EvictionOutcome(StrEnum):
    """What became of an eviction that was announced."""

    #: Its member is still there.
    WARNED = "warned"
    #: Its member left in order, before the deadline.
    DRAINED = "drained"
    #: Its member left in order after the deadline, which was not kept.
    LATE = "late"
    #: Its member ended before it could leave; others took over (an effective failure).
    LOST = "lost"
    #: No member that the job counts on was in it.
    WITHDRAWN = "withdrawn"


@dataclass
class Eviction:
    """A container that is to be taken away."""

    name: MemberId
    roles: frozenset[Role]
    container_id: str
    #: As words after the container's name.
    reason: str
    warned_s: float
    #: When it will be taken away, on the master's clock.
    deadline_s: float
    #: The plan that drains it; 0 before there is one.
    plan_id: int = 0
    outcome: EvictionOutcome = EvictionOutcome.WARNED
    #: When it had been given back, or was gone.
    ended_s: float | None = None
    #: Others are to get its room.
    for_others: bool = False
    #: Its member took part when it ended.
    took_part: bool = False

    @property
    def lost(self) -> bool:
        """True where a member that took part ended before it could leave."""
        return self.took_part and self.outcome is EvictionOutcome.LOST

    def warn_again(self, deadline_s: float, now_s: float, reason: str = "", for_others: bool = False) -> None:
        """Take a further warning in: it makes the deadline earlier, or takes the place of one that was not kept."""
        self.for_others = self.for_others or for_others
        if deadline_s < self.deadline_s or self.deadline_s < now_s:
            self.deadline_s, self.reason = deadline_s, reason or self.reason

    def end(self, outcome: EvictionOutcome, now_s: float) -> None:
        """Note what became of it; a drain counts by whether it was in time."""
        late = outcome is EvictionOutcome.DRAINED and now_s > self.deadline_s
        self.outcome, self.ended_s = EvictionOutcome.LATE if late else outcome, now_s


class Evictions:
    """The evictions of a job: announced, drained, over."""

    def __init__(self) -> None:
        #: All that were announced, oldest first.
        self.all: list[Eviction] = []
        #: Container -> the one that is not over.
        self._open: dict[str, Eviction] = {}
        #: Those that are over, and were not returned by :meth:`settle` yet.
        self._over: list[Eviction] = []

    def warn(
        self, name: MemberId, roles: frozenset[Role], warning: e.ContainerWarning, now_s: float
    ) -> list[e.Command]:
        """Take in that the container of a member will be taken away."""
        deadline_s, known = now_s + warning.deadline_s, self._open.get(warning.container_id)
        if known is not None:
            known.warn_again(deadline_s, now_s, warning.reason, warning.for_others)
            return []
        reason = warning.reason or TAKEN_AWAY
        eviction = Eviction(name, roles, warning.container_id, reason, now_s, deadline_s)
        eviction.for_others = warning.for_others
        self.all.append(eviction)
        self._open[warning.container_id] = eviction
        details = {"container": warning.container_id, "in_s": round(warning.deadline_s, 6), "reason": reason}
        return [e.noted("warned", now_s, member=name, **details)]

    def end(self, container_id: str, outcome: EvictionOutcome, now_s: float, *, took_part: bool) -> list[e.Command]:
        """Take in what became of a container, which perhaps nobody had announced to go."""
        eviction = self._open.pop(container_id, None)
        if eviction is None:
            return []
        eviction.end(outcome, now_s)
        eviction.took_part = took_part
        self._over.append(eviction)
        details = {"container": container_id, "outcome": str(eviction.outcome), "plan": eviction.plan_id}
        seconds = round(now_s - eviction.warned_s, 6)
        return [e.noted("evicted", now_s, member=eviction.name, **details, seconds=seconds)]

    def settle(self, containers: Collection[str], now_s: float) -> tuple[list[Eviction], list[e.Command]]:
        """Withdraw the evictions of containers that were given back before the job counted on them.

        Parameters
        ----------
        containers : collection
            Those that the job counts on.

        Returns
        -------
        over : list of Eviction
            Those that are over since the last call.
        commands : list of Command
        """
        withdrawn = [container_id for container_id in self._open if container_id not in containers]
        commands = [
            command
            for container_id in withdrawn
            for command in self.end(container_id, EvictionOutcome.WITHDRAWN, now_s, took_part=False)
        ]
        over, self._over = self._over, []
        return over, commands

    @property
    def are_open(self) -> bool:
        """True while a container that the job counts on is to be taken away."""
        return bool(self._open)

    def of(self, name: MemberId) -> Eviction | None:
        """Return what is announced for a member; None where nothing is."""
        return next((eviction for eviction in self._open.values() if eviction.name == name), None)

    def next_to_drain(self, membership: Membership) -> tuple[MemberId, ...]:
        """Return who leaves next; see :func:`next_to_drain`."""
        return next_to_drain(membership, {each.name for each in self._open.values()}) if self._open else ()

    def drained_by(self, plan: Plan) -> None:
        """Note the plan that takes announced members away."""
        for eviction in self._open.values():
            if eviction.name in plan.removed:
                eviction.plan_id = plan.plan_id

    def servers_warned_s(self, membership: Membership) -> float | None:
        """Return when it was announced last that a server's container goes, where all of them do; else None."""
        warned = [each.warned_s for each in self._open.values() if each.name in membership.servers]
        return max(warned) if len(warned) == len(membership.servers) else None

    def validate(self) -> None:
        """Assert that an eviction is open until it has an outcome."""
        waiting = [eviction for eviction in self.all if eviction.outcome is EvictionOutcome.WARNED]
        assert waiting == list(self._open.values())
        assert all(eviction.container_id == container_id for container_id, eviction in self._open.items())


def counts(evictions: Iterable[Eviction]) -> dict[str, int]:
    """Return how many were announced (``asked``), and how many had which outcome."""
    found = Counter(str(eviction.outcome) for eviction in evictions)
    return {"asked": found.total(), **{str(outcome): found[str(outcome)] for outcome in EvictionOutcome}}


def next_to_drain(membership: Membership, warned: Collection[MemberId]) -> tuple[MemberId, ...]:
    """Return who leaves next of the members that must.

    All at once: workers and servers in one plan, for each plan waits for a commit clock.  But who is among the last of
    a role needs a successor, which may be long in coming: it goes after those that need none.
    """
    going = {role: tuple(name for name in membership.of_role(role) if name in warned) for role in Role}
    at_once = [name for role, names in going.items() if names != membership.of_role(role) for name in names]
    return tuple(at_once) or going[Role.WORKER] + going[Role.SERVER]


def is_all_of_a_role(membership: Membership, names: Collection[MemberId]) -> bool:
    """Return whether no member of some role would be left without ``names``."""
    return any(set(membership.of_role(role)) <= set(names) for role in Role)


def may_go_on(plan: Plan, membership: Membership, names: Collection[MemberId]) -> bool:
    """Return whether an undecided plan is no obstacle to the drain of ``names``.

    It takes them away itself; or the drain needs a successor, and the plan brings one, or needs no
    container and is over soon.
    """
    if set(names) <= set(plan.removed):
        return True
    if not is_all_of_a_role(membership, names) or plan.change.operation is Operation.DRAIN:
        return False
    lacking = [role for role in Role if set(membership.of_role(role)) <= set(names)]
    return not plan.added or any(plan.coming.of_role(role) for role in lacking)
